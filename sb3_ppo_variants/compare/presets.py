"""Named comparisons: the paper's Table 1, a study of what it depends on, and Atari games."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sb3_ppo_variants.compare import paper
from sb3_ppo_variants.compare.conditions import Conditions
from sb3_ppo_variants.compare.options import BASELINE, FIRST
from sb3_ppo_variants.compare.records import Record
from sb3_ppo_variants.compare.settings import parse


@dataclass(frozen=True)
class Preset:
    """The defaults of the command line for a named comparison.

    :param settings: the settings of each cut, by name
    :param envs: the environments
    :param conditions: the conditions that all settings share
    :param seeds: number of seeds
    :param why: the reason for the conditions
    :param studied: if not empty, the settings are compared under each of these conditions instead of ``conditions``
    """

    settings: Mapping[str, list[str]]
    envs: list[str]
    conditions: Conditions
    seeds: int = 3
    why: str = ""
    studied: Sequence[Conditions] = ()

    def cut(self, name: str, protocol: str | None) -> list[str]:
        """Return the settings of a cut under a protocol.

        SB3's PPO cannot follow the paper's protocols. It then runs under its own, or is left out of the headline.
        """
        if protocol in (None, "sb3"):
            return self.settings[name]
        of_paper = [text for text in self.settings[name] if text != BASELINE]
        return of_paper if name == "headline" or len(of_paper) == len(self.settings[name]) else [*of_paper, IN_ITS_OWN]

    def labels(self, protocol: str | None) -> set[str]:
        """Return the labels of all settings under a protocol."""
        return {parse(text).label for text in self.cut("all", protocol)}

    def planned(self, records: Iterable[Record], protocol: str | None) -> list[Record]:
        """Return the records of the runs that the preset has under a protocol, without those of other options."""
        labels = self.labels(protocol)
        return [
            record
            for record in records
            if record["label"] in labels and record["env"] in self.envs and record["seed"] < self.seeds
        ]


IN_ITS_OWN = f"{BASELINE}:protocol=sb3"
HEADLINE = [paper.NONE, paper.BEST, "ppo_adaptive_kl:desired_kl=0.01", "ppo_fixed_kl:kl_coef=1"]
STUDY = Conditions("table1-study", timesteps=500_000, entry="mujoco")


def _switched(what: str, anneal: bool | None = None, **changes: object) -> Conditions:
    """Return the conditions of the released code with one ingredient changed."""
    return replace(STUDY, protocol="released-code", switched=what, anneal=anneal, parameters=changes)


# The three protocols, then the released code with one ingredient changed at a time: to what users of SB3 have, and last
# with advantages that are not normalised at all.
STUDIED = [
    replace(STUDY, protocol="released-code"),
    replace(STUDY, protocol="text"),
    replace(STUDY, protocol="sb3"),
    _switched("actions clipped", env_wrapper=None),
    _switched("gradients clipped at 0.5", max_grad_norm=0.5),
    _switched("rewards normalised too", normalize={"norm_reward": True, "clip_obs": 5.0}),
    _switched("observations not normalised", normalize=False),
    _switched("nothing annealed", anneal=False),
    _switched("advantages normalised in each minibatch", normalize_advantage=True),
    _switched("advantages not normalised", normalize_advantage=False),
]
# The comparison without --preset.
DEFAULT = Preset({"all": FIRST}, ["CartPole-v1"], Conditions())
PRESETS = {
    "paper-table1": Preset(
        settings={"all": [*(row.setting for row in paper.TABLE_1), BASELINE], "headline": [*HEADLINE, BASELINE]},
        envs=paper.ENVS,
        conditions=Conditions("paper-table1", timesteps=1_000_000, entry="mujoco", normalize=True, anneal=True),
        why=(
            "the paper's text says neither that observations are normalised nor that the step size is annealed; the "
            "code released with it does both, and so does this preset. That code anneals ε too, which here is "
            "constant. Rewards are scaled as well, because SB3 clips the gradients of policy and value together, and "
            "the error of unscaled values would leave the policy little; the objectives do not see that scale, as "
            "advantages are normalised. `--no-normalize` and `--no-anneal` follow the text"
        ),
    ),
    "table1-study": Preset(
        settings={"all": HEADLINE},
        envs=["HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Swimmer-v5"],
        conditions=STUDY,
        seeds=2,
        studied=STUDIED,
    ),
    "atari-demo": Preset(
        settings={"all": FIRST, "headline": ["ppo_clip", BASELINE]},
        envs=["BreakoutNoFrameskip-v4", "PongNoFrameskip-v4"],
        conditions=Conditions("atari-demo", timesteps=10_000_000, entry="atari", parameters={"device": "auto"}),
    ),
}
