"""The native engine, in C++, and what it recognises."""

from collections.abc import Callable

from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from torch import float32, float64

from sb3_ppo_variants.collector import Actor
from sb3_ppo_variants.engines import recognised
from sb3_ppo_variants.engines.native.actor import NativeActor
from sb3_ppo_variants.engines.native.networks import Architecture, arrays_of
from sb3_ppo_variants.engines.native.update import NativeUpdate
from sb3_ppo_variants.engines.recognised import ObstacleError
from sb3_ppo_variants.limits import KLAdaptive
from sb3_ppo_variants.update import UpdatePlan


class Native:
    """Computes small networks with the native library, on a CPU."""

    name = "native"
    path = "fast"
    how = "the native library computes the networks"
    update: Callable[[UpdatePlan], NativeUpdate] = NativeUpdate

    def is_for(self, plan: UpdatePlan) -> bool:
        return not plan.kind.has_memory

    def check(self, plan: UpdatePlan) -> None:
        recognised.check_library()
        recognised.check_written_out(plan)
        recognised.check_hooks(plan)
        architecture = Architecture(plan.kind.policy)
        recognised.check_parameters(plan.parameters.values())
        for parameter in plan.parameters.values():
            if parameter.dtype not in (float32, float64):
                raise ObstacleError(f"the native library does not compute in {parameter.dtype}")
            if not parameter.is_contiguous():
                raise ObstacleError("some parameters are not contiguous in memory")
        architecture.structure(arrays_of(plan.parameters))
        recognised.check_optimizers(plan)
        _check_descents(plan)
        if plan.old_parameters is not None:
            for column, is_shared in zip(plan.old_parameters, architecture.distribution.shared, strict=True):
                if is_shared and (column != column[0]).any():
                    raise ObstacleError("the standard deviation changed during the rollout")

    def actor(self, model: OnPolicyAlgorithm, plan: UpdatePlan, buffer: RolloutBuffer, n_steps: int) -> Actor:
        return recognised.UntilChanged(NativeActor(model, plan.kind, buffer, n_steps), model, plan)


def _check_descents(plan: UpdatePlan) -> None:
    """Check that the library can take the steps of Adam, and adapt their size."""
    for descent in plan.descents:
        steps = set()
        for parameter in descent.optimizer.param_groups[0]["params"]:
            state = descent.optimizer.state.get(parameter)
            steps.add(float(state.get("step", 0)) if state else 0.0)
        if len(steps) > 1:
            raise ObstacleError("Adam has made more steps with some parameters than with others")
        if descent.adaptive is not None and type(descent.adaptive).adapted is not KLAdaptive.adapted:
            raise ObstacleError(f"{type(descent.adaptive).__name__} overrides adapted")
