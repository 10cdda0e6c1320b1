"""Protocols for the paper's MuJoCo experiments: the settings around the objectives, which decide how they compare."""

from collections.abc import Sequence
from dataclasses import dataclass

from sb3_ppo_variants.errors import refuse
from sb3_ppo_variants.recipes.environments import Hyperparameters

ACTIONS_AS_DRAWN = "sb3_ppo_variants.envs.ActionsAsDrawn"


@dataclass(frozen=True)
class Protocol:
    """Hyperparameters that override those of Table 3, the entry ``"mujoco"``.

    :param says: description of the protocol, as clauses
    :param changes: hyperparameters in the RL Zoo's format
    :param annealed: names of hyperparameters that are annealed linearly to 0
    """

    says: str
    changes: Hyperparameters
    annealed: Sequence[str] = ()

    def anneal(self, hyperparameters: Hyperparameters) -> Hyperparameters:
        """Anneal the protocol's ``annealed`` hyperparameters, except those that are not numbers."""
        numbers = {name: hyperparameters.get(name) for name in self.annealed}
        return hyperparameters | {n: f"lin_{value!r}" for n, value in numbers.items() if isinstance(value, float | int)}


PROTOCOLS = {
    "text": Protocol(
        "as the text of the paper: actions as they are drawn, nothing but advantages normalised, a constant step size, "
        "gradients not clipped",
        {"normalize": False, "env_wrapper": ACTIONS_AS_DRAWN, "max_grad_norm": None},
    ),
    "released-code": Protocol(
        "as the code released with the paper: actions as they are drawn, observations normalised and clipped at 5, "
        "advantages normalised over the rollout, step size and ε annealed to 0, gradients not clipped",
        {
            "normalize": {"norm_reward": False, "clip_obs": 5.0},
            "normalize_advantage": "rollout",
            "policy_kwargs": {"optimizer_kwargs": {"eps": 1e-5}},
            "env_wrapper": ACTIONS_AS_DRAWN,
            "max_grad_norm": None,
        },
        annealed=("learning_rate", "clip_range"),
    ),
    "sb3": Protocol(
        "as users of SB3 run it: actions clipped to the bounds, observations and rewards normalised, advantages "
        "normalised in each minibatch, the step size annealed to 0, gradients clipped at 0.5",
        {"normalize": True},
        annealed=("learning_rate",),
    ),
}


def protocol_of(name: str) -> Protocol:
    """Return the protocol with the given name.

    :raises ArgumentError: if there is none
    """
    if name not in PROTOCOLS:
        refuse("protocol", name, ", ".join(PROTOCOLS))
    return PROTOCOLS[name]
