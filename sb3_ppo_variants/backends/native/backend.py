"""The native backend, in C++, and the reasons why it cannot compute a plan."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np
import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from sb3_ppo_variants.backends import obstacles
from sb3_ppo_variants.backends.native.actor import NativeActor
from sb3_ppo_variants.backends.native.distributions import drawn_by
from sb3_ppo_variants.backends.native.library import REBUILD, library
from sb3_ppo_variants.backends.native.networks import Architecture, Features, arrays_of
from sb3_ppo_variants.backends.native.proximal import check_proximal
from sb3_ppo_variants.backends.native.update import NativeUpdate
from sb3_ppo_variants.backends.obstacles import ObstacleError
from sb3_ppo_variants.backends.remade import UntilRemade
from sb3_ppo_variants.collector import Actor
from sb3_ppo_variants.hybrid import HybridDistribution
from sb3_ppo_variants.layout import parts_of
from sb3_ppo_variants.step_size import KLAdaptive
from sb3_ppo_variants.update import UpdatePlan


class Native:
    """Computes small networks with the native library, on a CPU."""

    name = "native"
    path = "fast"
    how = "the native library computes the networks"
    update: Callable[[UpdatePlan], NativeUpdate] = NativeUpdate

    def is_for(self, plan: UpdatePlan) -> bool:
        return not plan.kind.has_memory

    def obstacle(self, plan: UpdatePlan) -> str | None:
        return obstacles.find_obstacle(_check_plan, plan)

    def prepared(self, plan: UpdatePlan, updating: bool) -> AbstractContextManager[None]:
        return nullcontext()

    def actor(self, model: OnPolicyAlgorithm, plan: UpdatePlan, buffer: RolloutBuffer, n_steps: int) -> Actor:
        return UntilRemade(NativeActor(model, plan.kind, buffer, n_steps), model, plan)


def _check_plan(plan: UpdatePlan) -> None:
    if library() is None:
        raise ObstacleError(
            f"there is no native library in {Path(__file__).parent} (install a C++ compiler and, {REBUILD})"
        )
    policy, parameters = plan.kind.policy, plan.parameters.values()
    obstacles.check_written_out(plan)
    if plan.proximal is not None:
        check_proximal(plan)
    obstacles.check_hooks(plan.modules, parameters, plan.optimizers)
    _check_methods(plan)
    Features(policy)
    obstacles.check_parameters(parameters)
    for parameter in parameters:
        if parameter.dtype not in (th.float32, th.float64):
            raise ObstacleError(f"the native library does not compute in {parameter.dtype}")
        if not parameter.is_contiguous():
            raise ObstacleError("some parameters are not contiguous in memory")
        if parameter.data_ptr() % parameter.itemsize:
            raise ObstacleError("some parameters are not aligned in memory")
    Architecture.of(policy).structure(arrays_of(plan.parameters))
    obstacles.check_optimizers(parameters, plan.optimizers)
    _check_steps(plan)
    _check_rollout(plan)


def _check_methods(plan: UpdatePlan) -> None:
    """Check that modules, optimizers, step sizes and the distribution compute with the methods of their classes."""
    for module in plan.modules:
        for method in ("forward", "forward_actor", "forward_critic"):
            if method in vars(module):
                raise ObstacleError(f"a {type(module).__name__} has its own {method}")
    for optimizer in plan.optimizers:
        # PyTorch's schedulers of the learning rate replace the method too, to count its calls.
        if "step" in vars(optimizer) and not hasattr(optimizer.step, "_wrapped_by_lr_sched"):
            raise ObstacleError("the optimizer has its own step")
    for adaptive in [type(descent.adaptive) for descent in plan.descents if descent.adaptive is not None]:
        if adaptive.adapted is not KLAdaptive.adapted:
            raise ObstacleError(f"{adaptive.__name__} overrides adapted")
    distribution = plan.kind.policy.action_dist
    for each in (distribution, *(distribution.parts if isinstance(distribution, HybridDistribution) else ())):
        obstacles.check_methods(each, "distribution")


def _check_steps(plan: UpdatePlan) -> None:
    """Check that Adam has made the same number of steps with all parameters."""
    for optimizer in plan.optimizers:
        states = map(optimizer.state.get, optimizer.param_groups[0]["params"])
        if len({float(state.get("step", 0)) if state else 0.0 for state in states}) > 1:
            raise ObstacleError("Adam has made more steps with some parameters than with others")


def _check_rollout(plan: UpdatePlan) -> None:
    """Check that the rollout has all its rows, and a single standard deviation if it does not depend on the state."""
    buffer = plan.buffer
    rows = buffer.buffer_size * buffer.n_envs
    if buffer.full:
        for name in ("actions", "values", "log_probs", "advantages", "returns"):
            array: np.ndarray = getattr(buffer, name)
            if array.size != rows * (buffer.action_dim if name == "actions" else 1):
                raise ObstacleError(f"the {name} of the rollout buffer have the shape {array.shape}")
        for _, array in parts_of(buffer.observations):
            if array.shape[:1] not in ((rows,), (buffer.buffer_size,)):
                raise ObstacleError(f"the observations of the rollout buffer have the shape {array.shape}")
    old = plan.old_parameters
    if old is None:
        return
    if {*map(len, old)} != {rows}:
        raise ObstacleError("the rollout buffer has old parameters of other rows")
    shared = drawn_by(plan.kind.policy.action_dist).shared()
    if any((each != each[0]).any() for each, one_for_all in zip(old, shared, strict=True) if one_for_all):
        raise ObstacleError("the standard deviation changed during the rollout")
