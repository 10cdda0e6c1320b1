"""Policies that callbacks replace or remake during a rollout: other modules, methods, hooks, parameters or layouts.

A fast actor is built for the networks that the policy has at the start of a rollout. It follows parameters whose values
change, or that move in memory. If more than that changes, PyTorch acts in its place, which then computes or raises what
SB3 would.
"""

from collections.abc import Sequence, Sized
from itertools import chain
from operator import is_
from typing import Protocol

import numpy as np
import torch as th
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy

from sb3_ppo_variants.backends.reference import TorchActor
from sb3_ppo_variants.collector import Actor, Observations
from sb3_ppo_variants.kl import Parameters
from sb3_ppo_variants.policies.families import kind_of
from sb3_ppo_variants.update import UpdatePlan


class Makeup:
    """The modules of a policy, their methods, forward hooks and parameters, and how parameters lie in memory."""

    def __init__(self, policy: ActorCriticPolicy):
        modules = [*policy.modules()]
        self._children = [module._modules for module in modules if module._modules]
        self._children_then = [children.copy() for children in self._children]
        own = [module._parameters for module in modules if module._parameters]
        hooks = [each for module in modules for each in (module._forward_hooks, module._forward_pre_hooks)]
        # A method of its own is a new entry in the dict of a module.
        self._dicts: list[Sized] = [*map(vars, modules), *own, *hooks]
        self._parameters = [*map(dict.values, own)]
        self._parameters_then = [*chain.from_iterable(self._parameters)]
        self._tensors = [parameter for parameter in self._parameters_then if parameter is not None]
        self._numbers, self._addresses, self._layouts = self._numbers_now(), self._addresses_now(), self._layouts_now()

    def have_moved(self) -> bool:
        """Whether parameters are elsewhere in memory than when they were last found."""
        return self._addresses_now() != self._addresses

    def find(self) -> None:
        """Remember where the parameters are."""
        self._addresses = self._addresses_now()

    def is_kept(self, thoroughly: bool) -> bool:
        """Whether the policy has the same modules, methods and hooks, and the same parameters in the same layout.

        :param thoroughly: whether to compare all of it, which takes several times as long. Unless parameters move, the
            rest does not change how SB3 computes: either SB3 raises an error, or the numbers are the same
        """
        # Modules are equal only to themselves.
        if self._children != self._children_then or self._numbers_now() != self._numbers:
            return False
        same = all(map(is_, chain.from_iterable(self._parameters), self._parameters_then))
        return same and not (thoroughly and self._layouts_now() != self._layouts)

    def _numbers_now(self) -> list[int]:
        """Count methods, hooks and parameters, and tell how large parameters are, and whether they are contiguous."""
        tensors = self._tensors
        return [*map(len, self._dicts), *map(th.Tensor.numel, tensors), *map(th.Tensor.is_contiguous, tensors)]

    def _addresses_now(self) -> list[int]:
        return [*map(th.Tensor.data_ptr, self._tensors)]

    def _layouts_now(self) -> list[object]:
        return [
            (each.dtype, each.device, each.shape, each.stride(), each.data_ptr() % each.itemsize)
            for each in self._tensors
        ]


class FastActor(Actor, Protocol):
    """An actor that is built for the networks of a policy."""

    def read(self) -> None:
        """Find the parameters in memory, where they have moved."""

    def drawn_from(self) -> Sequence[Parameters | None]:
        """Return the parameters of the distributions of each step that was stored; ``None`` where they are unknown."""


class UntilRemade:
    """Acts with a fast actor until the policy is remade, and with PyTorch from then on.

    :param fast: the fast actor
    :param model: the model
    :param plan: its policy and its buffer
    """

    def __init__(self, fast: FastActor, model: OnPolicyAlgorithm, plan: UpdatePlan):
        self._fast = fast
        self._model, self._plan = model, plan
        self._makeup = Makeup(plan.kind.policy)
        self._actor: Actor = fast
        self._was_seen = False
        self.store = fast.store

    def act(self, step: int, observations: Observations) -> np.ndarray:
        self._actor = actor = self._now()
        self.store = actor.store
        return actor.act(step, observations)

    def seen(self) -> dict[str, object]:
        self._was_seen = True
        return self._actor.seen()

    def terminal_value(self, observation: Observations, env_index: int) -> float | th.Tensor:
        return self._now().terminal_value(observation, env_index)

    def finish(self, observations: Observations, dones: np.ndarray) -> th.Tensor:
        self._actor = self._now(thoroughly=True)
        return self._actor.finish(observations, dones)

    def old_parameters(self) -> Parameters | None:
        return self._actor.old_parameters()

    def _now(self, thoroughly: bool = False) -> Actor:
        """Return the actor that computes what the policy is now."""
        if self._actor is not self._fast:
            return self._actor
        policy, moved = self._model.policy, self._makeup.have_moved()
        # Only callbacks remake a policy where it lies, and they see the step.
        seen = moved or thoroughly or self._was_seen
        if policy is not self._plan.kind.policy or (seen and not self._makeup.is_kept(moved or thoroughly)):
            return TorchActor(self._model, kind_of(policy), self._plan.buffer, self._fast.drawn_from())
        self._was_seen = False
        if moved:
            self._fast.read()
            self._makeup.find()
        return self._fast
