"""The native engine, in C++, and the reasons why it cannot compute a plan."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from sb3_ppo_variants.collector import Actor
from sb3_ppo_variants.engines.native.actor import NativeActor
from sb3_ppo_variants.engines.native.distributions import drawn_by
from sb3_ppo_variants.engines.native.library import REBUILD, library
from sb3_ppo_variants.engines.native.networks import Architecture, Features, arrays_of
from sb3_ppo_variants.engines.native.update import NativeUpdate
from sb3_ppo_variants.engines.recognised import (
    ObstacleError,
    UntilChanged,
    check_hooks,
    check_optimizers,
    check_parameters,
    check_written_out,
    find_obstacle,
)
from sb3_ppo_variants.objectives import has_term
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
        return find_obstacle(_check_plan, plan)

    def prepared(self, plan: UpdatePlan, updating: bool) -> AbstractContextManager[None]:
        return nullcontext()

    def actor(self, model: OnPolicyAlgorithm, plan: UpdatePlan, buffer: RolloutBuffer, n_steps: int) -> Actor:
        return UntilChanged(NativeActor(model, plan.kind, buffer, n_steps), model, plan)


def _check_plan(plan: UpdatePlan) -> None:
    if library() is None:
        raise ObstacleError(
            f"there is no native library in {Path(__file__).parent} (install a C++ compiler and, {REBUILD})"
        )
    policy, parameters = plan.kind.policy, plan.parameters.values()
    check_written_out(plan)
    check_hooks(plan)
    for module in plan.modules:
        if "forward" in vars(module):
            raise ObstacleError(f"a {type(module).__name__} has its own forward")
    Features(policy)
    check_parameters(parameters)
    for parameter in parameters:
        if parameter.dtype not in (th.float32, th.float64):
            raise ObstacleError(f"the native library does not compute in {parameter.dtype}")
        if not parameter.is_contiguous():
            raise ObstacleError("some parameters are not contiguous in memory")
    Architecture.of(policy).structure(arrays_of(plan.parameters))
    check_optimizers(plan)
    _check_update(plan)


def _check_update(plan: UpdatePlan) -> None:
    """Check what the library computes of an update: Adam's steps, step sizes, an EWMA, and the old policy."""
    for optimizer in plan.optimizers:
        states = map(optimizer.state.get, optimizer.param_groups[0]["params"])
        if len({float(state.get("step", 0)) if state else 0.0 for state in states}) > 1:
            raise ObstacleError("Adam has made more steps with some parameters than with others")
    for adaptive in [type(descent.adaptive) for descent in plan.descents if descent.adaptive is not None]:
        if adaptive.adapted is not KLAdaptive.adapted:
            raise ObstacleError(f"{adaptive.__name__} overrides adapted")
    if plan.proximal is not None:
        _check_proximal(plan)
    if plan.old_parameters is not None:
        shared = drawn_by(plan.kind.policy.action_dist).shared()
        columns = zip(plan.old_parameters, shared, strict=True)
        if any((column != column[0]).any() for column, one_for_all in columns if one_for_all):
            raise ObstacleError("the standard deviation changed during the rollout")


def _check_proximal(plan: UpdatePlan) -> None:
    """Check that the library can compute the policy that an EWMA stays close to."""
    objective = plan.objective.within
    if not has_term(objective):
        raise ObstacleError(f"an EWMA is around {type(objective).__name__}, which the native library does not compute")
    if objective.numbers_per_sample:
        raise ObstacleError(f"an EWMA is around {type(objective).__name__}, which reads the whole rollout")
    if any(descent.needs_kl for descent in plan.descents):
        raise ObstacleError("minibatches have a KL to the old policy and, because of an EWMA, others")
