"""Results of the PPO paper (https://arxiv.org/abs/1707.06347) that comparisons are set beside: Table 1."""

from dataclasses import dataclass

from sb3_ppo_variants.compare.plan import read_setting


@dataclass(frozen=True)
class Row:
    """A row of Table 1: a setting as on the command line, the paper's name for it, and its average normalised score."""

    setting: str
    name: str
    score: float

    @property
    def label(self) -> str:
        """The label of the setting."""
        return read_setting(self.setting).label


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
