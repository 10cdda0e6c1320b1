"""What the fast engines recognise. Everything else takes the reference path.

The ``check`` of each engine in ``choice.py`` is the list of what it requires; it ends with an :class:`ObstacleError` at
the first thing that is different. It is evaluated once per rollout and once per update. During a rollout,
:class:`UntilChanged` hands over to PyTorch if a callback puts another policy, or other tensors, in the place of those
that the rollout began with.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch as th
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from torch import nn
from torch.nn.modules.module import _has_any_global_hook
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizers

from sb3_ppo_variants.collector import Collector, Observations
from sb3_ppo_variants.engines.native.library import REBUILD, library
from sb3_ppo_variants.engines.reference import TorchCollector
from sb3_ppo_variants.kl import Parameters
from sb3_ppo_variants.policies.kind import PolicyKind, kind_of
from sb3_ppo_variants.update import UpdatePlan

# Methods of ActorCriticPolicy that engines reimplement or rely on. A subclass may override the others.
WRITTEN_OUT = (
    "forward", "evaluate_actions", "get_distribution", "predict_values", "extract_features", "obs_to_tensor",
    "set_training_mode", "_get_action_dist_from_latent",
)  # fmt: skip
# Options of Adam that engines implement, or that do not change the result. The others must be off.
OPTIONS_OF_ADAM = {"params", "lr", "initial_lr", "betas", "eps", "foreach", "fused"}


class ObstacleError(ValueError):
    """The reason why an engine cannot compute a plan, as a clause that completes "because ..."."""


def require(holds: bool, otherwise: str) -> None:
    """:raises ObstacleError: with this reason, if a condition does not hold"""
    if not holds:
        raise ObstacleError(otherwise)


def require_library() -> None:
    """Require that the native library was built."""
    folder = Path(__file__).parent / "native"
    advice = f"install a C++ compiler and, {REBUILD}"
    require(library() is not None, f"there is no native library in {folder} ({advice})")


def require_classes(plan: UpdatePlan, methods: Iterable[str]) -> None:
    """Require a policy of SB3's or sb3-contrib's that overrides none of these methods, and the buffer for its kind."""
    cls, base = type(plan.kind.policy), plan.kind.policies[0]
    require(issubclass(cls, base), f"{cls.__name__} is not a subclass of {base.__name__}")
    for method in ("__call__", *methods):
        require(getattr(cls, method) is getattr(base, method), f"{cls.__name__} overrides {method}")
    require(type(plan.buffer) in plan.kind.buffers, f"the rollout buffer is a {type(plan.buffer).__name__}")


def require_written_out(plan: UpdatePlan) -> None:
    """Require that what is computed is what SB3 or sb3-contrib compute, without a memory."""
    is_known = type(plan.kind) is PolicyKind or plan.kind.takes_masks
    require(is_known, f"the policy is of the kind {type(plan.kind).__name__}")
    require_classes(plan, WRITTEN_OUT)


def require_plain(modules: Iterable[nn.Module]) -> None:
    """Require modules that compute what their classes do, and call nothing else."""
    of_all: bool = _has_any_global_hook()  # type: ignore[no-untyped-call]
    for each in modules:
        hooks = each._forward_hooks or each._forward_pre_hooks or each._backward_hooks or each._backward_pre_hooks
        require(not (of_all or hooks), "the policy's modules have hooks")
        require("forward" not in vars(each), f"a {type(each).__name__} has its own forward")


def require_no_hooks(plan: UpdatePlan) -> None:
    """Require that nothing is called while autograd and optimizers compute."""
    for each in plan.parameters.values():
        require(not (each._backward_hooks or each._post_accumulate_grad_hooks), "the policy's parameters have hooks")
    hooks = [torch_optimizers._global_optimizer_pre_hooks, torch_optimizers._global_optimizer_post_hooks]
    for optimizer in plan.optimizers:
        hooks += [optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks]
    require(not any(hooks), "optimizers have hooks")


def require_parameters(plan: UpdatePlan) -> None:
    """Require parameters on the CPU, all of the same type, which are trained."""
    dtype = next(iter(plan.parameters.values())).dtype
    for each in plan.parameters.values():
        require(each.is_cpu, "the policy is not on the CPU")
        require(each.dtype == dtype and each.is_floating_point(), "the parameters are of different types")
        require(each.requires_grad, "some parameters are frozen")


def require_optimizers(plan: UpdatePlan) -> None:
    """Require plain Adams, of which one trains each parameter of the policy."""
    trained: list[int] = []
    for optimizer in plan.optimizers:
        require_adam(optimizer)
        trained += map(id, optimizer.param_groups[0]["params"])
    trains_each = sorted(trained) == sorted(map(id, plan.parameters.values()))
    require(trains_each, "the optimizers do not train each parameter of the policy once")


def require_adam(optimizer: Optimizer) -> None:
    """Require a plain Adam."""
    require(type(optimizer) is th.optim.Adam, f"the optimizer is {type(optimizer).__name__}, not Adam")
    require(len(optimizer.param_groups) == 1, "the optimizer has several groups of parameters")
    (group,) = optimizer.param_groups
    for option, value in group.items():
        if option not in OPTIONS_OF_ADAM and value:
            raise ObstacleError(f"Adam's {option} is {value}")
    for parameter in group["params"]:
        state = optimizer.state.get(parameter)
        for moment in (state["exp_avg"], state["exp_avg_sq"]) if state else ():
            fits = (moment.dtype, moment.shape) == (parameter.dtype, parameter.shape)
            require(fits, "Adam has moments of another type or shape than the parameters")


class UntilChanged:
    """Acts with a fast collector until the policy or its tensors are replaced, and with PyTorch from then on.

    Values may change in place. What else callbacks change in the middle of a rollout may have no effect before the next
    one. The fast collector keeps the memory of the tensors that it was built for.

    :param fast: the fast collector
    :param model: the model
    :param plan: its policy and its buffer
    """

    def __init__(self, fast: Collector, model: OnPolicyAlgorithm, plan: UpdatePlan):
        self._fast, self._model, self._plan = fast, model, plan
        self._collector: Collector = fast
        self._parameters = [module._parameters for module in plan.modules if module._parameters]
        self._tensors = self._find_tensors()
        self._seen = False

    def _find_tensors(self) -> list[int]:
        """Return where the parameters are in memory, and how large they are."""
        tensors = [each for parameters in self._parameters for each in parameters.values() if each is not None]
        return [*map(th.Tensor.data_ptr, tensors), *map(th.Tensor.numel, tensors)]

    def _now(self) -> Collector:
        """Return the collector for the policy as it is now. Only callbacks that see a step may have changed it."""
        policy = self._model.policy
        if self._collector is not self._fast or not self._seen:
            return self._collector
        if policy is self._plan.kind.policy and self._find_tensors() == self._tensors:
            return self._collector
        return TorchCollector(self._model, kind_of(policy), self._plan.buffer)

    def act(self, step: int, observations: Observations) -> np.ndarray:
        if self._seen:
            self._collector, self._seen = self._now(), False
        return self._collector.act(step, observations)

    def seen(self) -> dict[str, object]:
        self._seen = True
        return self._collector.seen()

    def terminal_value(self, observation: Observations, env_index: int) -> float | th.Tensor:
        return self._now().terminal_value(observation, env_index)  # The step is stored by the collector that took it.

    def store(self, observations: Observations, rewards: np.ndarray, episode_starts: np.ndarray) -> None:
        self._collector.store(observations, rewards, episode_starts)

    def finish(self, observations: Observations, dones: np.ndarray) -> th.Tensor:
        self._collector = self._now()
        return self._collector.finish(observations, dones)

    def old_parameters(self) -> Parameters | None:
        return self._collector.old_parameters() if self._collector is self._fast else None  # Of the last steps only.
