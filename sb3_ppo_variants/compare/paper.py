"""Results of the PPO paper (https://arxiv.org/abs/1707.06347) that comparisons are set beside: Table 1 and Figure 3."""

from collections.abc import Mapping
from dataclasses import dataclass

from sb3_ppo_variants.compare.settings import read_setting


@dataclass(frozen=True)
class Method:
    """A setting as on the command line, and the paper's name for it."""

    setting: str
    name: str

    @property
    def label(self) -> str:
        """The label of the setting."""
        return read_setting(self.setting).label


@dataclass(frozen=True)
class Row(Method):
    """A row of Table 1, with its average normalised score."""

    score: float


NONE = "ppo_unclipped"
BEST = "ppo_clip:clip_range=0.2"
TABLE_1 = (
    Row(NONE, "no clipping or penalty", -0.39),
    Row("ppo_clip:clip_range=0.1", "clipping, ε = 0.1", 0.76),
    Row(BEST, "clipping, ε = 0.2", 0.82),
    Row("ppo_clip:clip_range=0.3", "clipping, ε = 0.3", 0.70),
    Row("ppo_adaptive_kl:desired_kl=0.003", "adaptive KL, d_targ = 0.003", 0.68),
    Row("ppo_adaptive_kl:desired_kl=0.01", "adaptive KL, d_targ = 0.01", 0.74),
    Row("ppo_adaptive_kl:desired_kl=0.03", "adaptive KL, d_targ = 0.03", 0.71),
    Row("ppo_fixed_kl:kl_coef=0.3", "fixed KL, β = 0.3", 0.62),
    Row("ppo_fixed_kl:kl_coef=1", "fixed KL, β = 1", 0.71),
    Row("ppo_fixed_kl:kl_coef=3", "fixed KL, β = 3", 0.72),
    Row("ppo_fixed_kl:kl_coef=10", "fixed KL, β = 10", 0.69),
)
PAPERS_ENVS = [
    "HalfCheetah-v5", "Hopper-v5", "InvertedDoublePendulum-v5", "InvertedPendulum-v5", "Reacher-v5", "Swimmer-v5",
    "Walker2d-v5",
]  # fmt: skip


@dataclass(frozen=True)
class Curve(Method):
    """A learning curve of Figure 3 in each environment.

    :param returns: by environment, the mean return at which the curve ends; empty where nobody has read it off
    """

    returns: Mapping[str, float]


def _returns(*values: float) -> dict[str, float]:
    return dict(zip(PAPERS_ENVS, values, strict=True))


# The paper has no numbers. The authors of Tianshou read these off its curves, to compare their own results with them
# (https://github.com/thu-ml/tianshou, examples/mujoco/README.md).
FIGURE_3 = (
    Curve("sb3_a2c", "A2C", _returns(1000, 900, 7100, 1000, -24, 31, 850)),
    Curve("ppo_clip:learning_rate=lin_0.0003", "PPO (clip)", _returns(1800, 2330, 8000, 1000, -7, 108, 3460)),
    Curve(
        "ppo_unclipped:batch_size=2048,n_epochs=1,learning_rate=KLAdaptive(desired_kl=0.01, learning_rate=0.001),"
        "updates={'value_epochs': 80}",
        "vanilla PG, adaptive",
        {},
    ),
    Curve("trpo", "TRPO", _returns(0, 2100, 200, 1000, -115, 121, 1100)),
)
