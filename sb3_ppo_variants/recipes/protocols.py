"""Protocols for the paper's MuJoCo experiments: the settings around the objectives, which decide how they compare."""

from collections.abc import Sequence
from dataclasses import dataclass

from sb3_ppo_variants.envs import ActionsAsDrawn
from sb3_ppo_variants.errors import refuse
from sb3_ppo_variants.recipes.environments import Hyperparameters

ACTIONS_AS_DRAWN = "sb3_ppo_variants.envs.ActionsAsDrawn"


@dataclass(frozen=True)
class Protocol:
    """Hyperparameters that override those of Table 3, the entry ``"mujoco"``.

    :param says: description of the protocol, as clauses
    :param changes: hyperparameters in the RL Zoo's format
    :param annealed: names of hyperparameters that are annealed linearly to 0

    The protocol's ``policy_kwargs`` and ``env_wrapper`` do not replace others, but are added to them.
    """

    says: str
    changes: Hyperparameters
    annealed: Sequence[str] = ()

    def over(self, entry: Hyperparameters) -> Hyperparameters:
        """Return the hyperparameters of an entry with the protocol's changes."""
        merged = {**entry, **self.changes}
        if entry.get("policy_kwargs") and "policy_kwargs" in self.changes:
            merged["policy_kwargs"] = _merged(entry["policy_kwargs"], self.changes["policy_kwargs"])
        return self._wrapping(merged, entry)

    def under(self, changes: Hyperparameters) -> Hyperparameters:
        """Return changes to the protocol that keep its ``policy_kwargs`` and ``env_wrapper``, except those set to None.

        In ``policy_kwargs``, the values of ``changes`` take precedence.
        """
        merged = {**changes}
        if changes.get("policy_kwargs") is not None and "policy_kwargs" in self.changes:
            merged["policy_kwargs"] = _merged(self.changes["policy_kwargs"], changes["policy_kwargs"])
        return self._wrapping(merged, changes)

    def _wrapping(self, merged: Hyperparameters, given: Hyperparameters) -> Hyperparameters:
        """Return the hyperparameters with the protocol's wrapper around those that are given."""
        others, own = given.get("env_wrapper"), self.changes.get("env_wrapper")
        if others is None or own is None:
            return merged
        listed = [*others] if isinstance(others, list | tuple) else [others]
        names = [name for each in listed for name in (each if isinstance(each, dict) else [each])]
        # A recipe names a wrapper by its path, or contains its class.
        return merged | {"env_wrapper": others if own in names or ActionsAsDrawn in names else [*listed, own]}

    def anneal(self, hyperparameters: Hyperparameters) -> Hyperparameters:
        """Anneal the protocol's ``annealed`` hyperparameters, except those that are not numbers."""
        numbers = {name: hyperparameters.get(name) for name in self.annealed}
        return hyperparameters | {n: f"lin_{value!r}" for n, value in numbers.items() if isinstance(value, float | int)}


def _merged(below: Hyperparameters, above: Hyperparameters) -> Hyperparameters:
    """Return the values of both, those of ``above`` if they differ; dicts within them are merged too."""
    shared = below.keys() & above.keys()
    both = [name for name in shared if isinstance(below[name], dict) and isinstance(above[name], dict)]
    return {**below, **above, **{name: _merged(below[name], above[name]) for name in both}}


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
