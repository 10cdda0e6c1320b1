"""Protocols for the paper's MuJoCo experiments: the settings around the objectives, which decide how they compare."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym

from sb3_ppo_variants.envs import ActionsAsDrawn
from sb3_ppo_variants.errors import refuse
from sb3_ppo_variants.recipes.environments import Hyperparameters

ACTIONS_AS_DRAWN = "sb3_ppo_variants.envs.ActionsAsDrawn"
# A class or its import path, and what may stand for wrappers in the RL Zoo's format.
Wrapper = str | Callable[..., gym.Env]
Wrappers = Wrapper | dict[Wrapper, Hyperparameters] | Sequence[Wrapper | dict[Wrapper, Hyperparameters]] | None


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
            merged["policy_kwargs"] = _merge(entry["policy_kwargs"], self.changes["policy_kwargs"])
        return self._wrap(merged, entry)

    def under(self, changes: Hyperparameters) -> Hyperparameters:
        """Return changes to the protocol that keep its ``policy_kwargs`` and ``env_wrapper``, except those set to None.

        In ``policy_kwargs``, the values of ``changes`` take precedence.
        """
        merged = {**changes}
        if changes.get("policy_kwargs") is not None and "policy_kwargs" in self.changes:
            merged["policy_kwargs"] = _merge(self.changes["policy_kwargs"], changes["policy_kwargs"])
        return self._wrap(merged, changes)

    def _wrap(self, merged: Hyperparameters, given: Hyperparameters) -> Hyperparameters:
        """Return the hyperparameters with the protocol's wrapper around those that are given."""
        others, own = given.get("env_wrapper"), self.changes.get("env_wrapper")
        if others is None or own is None:
            return merged
        # A recipe names a wrapper by its path, or contains its class.
        if any(wrapper in (own, ActionsAsDrawn) for wrapper, _ in list_wrappers(others)):
            return merged | {"env_wrapper": others}
        return merged | {"env_wrapper": [*(others if isinstance(others, list | tuple) else [others]), own]}

    def anneal(self, hyperparameters: Hyperparameters) -> Hyperparameters:
        """Anneal the protocol's ``annealed`` hyperparameters, except those that are not numbers."""
        numbers = {name: hyperparameters.get(name) for name in self.annealed}
        return hyperparameters | {n: f"lin_{value!r}" for n, value in numbers.items() if isinstance(value, float | int)}


def list_wrappers(env_wrapper: Wrappers) -> list[tuple[Wrapper, Hyperparameters]]:
    """Return each of the wrappers with its arguments, the innermost first."""
    if env_wrapper is None:
        return []
    listed: Sequence[Any] = env_wrapper if isinstance(env_wrapper, list | tuple) else [env_wrapper]
    dicts: list[dict[Wrapper, Hyperparameters]] = [each if isinstance(each, dict) else {each: {}} for each in listed]
    return [pair for each in dicts for pair in each.items()]


def _merge(below: Hyperparameters, above: Hyperparameters) -> Hyperparameters:
    """Return the values of both, those of ``above`` if they differ; dicts within them are merged too."""
    shared = below.keys() & above.keys()
    both = [name for name in shared if isinstance(below[name], dict) and isinstance(above[name], dict)]
    return {**below, **above, **{name: _merge(below[name], above[name]) for name in both}}


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
