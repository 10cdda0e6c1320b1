"""What the fast engines recognise. Everything else takes the reference path.

Each check raises an :class:`ObstacleError` for the first thing that an engine does not recognise. An engine is chosen
once per rollout and once per update. During a rollout, :class:`UntilChanged` hands over to PyTorch if a callback puts
another policy, or other tensors, in the place of those that the rollout began with.
"""

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch as th
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from torch import nn
from torch.nn.modules.module import _has_any_global_hook
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizers

from sb3_ppo_variants.collector import Actor, Observations
from sb3_ppo_variants.engines.native.library import REBUILD, library
from sb3_ppo_variants.engines.reference import TorchActor
from sb3_ppo_variants.kl import Parameters
from sb3_ppo_variants.policies.kind import PolicyKind
from sb3_ppo_variants.policies.kinds import kind_of
from sb3_ppo_variants.update import UpdatePlan

# Methods of ActorCriticPolicy that engines reimplement or rely on. A subclass may override the others.
WRITTEN_OUT = (
    "forward",
    "evaluate_actions",
    "get_distribution",
    "predict_values",
    "extract_features",
    "obs_to_tensor",
    "set_training_mode",
    "_get_action_dist_from_latent",
)
# Options of Adam that engines do not implement, with the values that disable them.
PLAIN_ADAM = {
    "weight_decay": 0,
    "amsgrad": False,
    "maximize": False,
    "capturable": False,
    "differentiable": False,
    "decoupled_weight_decay": False,
}
# Options of Adam that they implement, or that do not change the result.
FREE_ADAM = {"params", "lr", "initial_lr", "betas", "eps", "foreach", "fused"}


class ObstacleError(ValueError):
    """The reason why an engine cannot compute a plan, as a clause that completes "because ..."."""


def check_library() -> None:
    """Check that the native library was built."""
    if library() is None:
        folder = Path(__file__).parent / "native"
        raise ObstacleError(f"there is no native library in {folder} (install a C++ compiler and, {REBUILD})")


def check_written_out(plan: UpdatePlan) -> None:
    """Check that policy and buffer compute as SB3's or sb3-contrib's do, without a memory."""
    if type(plan.kind) is not PolicyKind and not plan.kind.takes_masks:
        raise ObstacleError(f"the policy is of the kind {type(plan.kind).__name__}")
    check_overrides(plan, WRITTEN_OUT)
    if plan.proximal is not None:
        raise ObstacleError("an EWMA compares with another policy than that of the rollout")


def check_overrides(plan: UpdatePlan, methods: Iterable[str]) -> None:
    """Check that the policy overrides none of these methods, and that the buffer is of the class for its kind."""
    cls, base = type(plan.kind.policy), plan.kind.policies[0]
    if not issubclass(cls, base):
        raise ObstacleError(f"{cls.__name__} is not a subclass of {base.__name__}")
    for method in ("__call__", *methods):
        if getattr(cls, method) is not getattr(base, method):
            raise ObstacleError(f"{cls.__name__} overrides {method}")
    if type(plan.buffer) not in plan.kind.buffers:
        raise ObstacleError(f"the rollout buffer is a {type(plan.buffer).__name__}")


def check_hooks(plan: UpdatePlan) -> None:
    """Check that nothing is called while PyTorch computes, which an engine would not call."""
    check_modules(plan.modules)
    for parameter in plan.parameters.values():
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            raise ObstacleError("the policy's parameters have hooks")
    for optimizer in plan.optimizers:
        if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
            raise ObstacleError("the optimizer has hooks")
    if torch_optimizers._global_optimizer_pre_hooks or torch_optimizers._global_optimizer_post_hooks:
        raise ObstacleError("all optimizers have hooks")


def check_modules(modules: Iterable[nn.Module]) -> None:
    """Check that modules compute what their classes do, and call nothing else."""
    of_all: bool = _has_any_global_hook()  # type: ignore[no-untyped-call]
    for module in modules:
        hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks
        if of_all or hooks or module._backward_pre_hooks:
            raise ObstacleError("the policy's modules have hooks")
        if "forward" in vars(module):
            raise ObstacleError(f"a {type(module).__name__} has its own forward")


def check_parameters(parameters: Collection[nn.Parameter]) -> None:
    """Check all parameters of a policy."""
    first = next(iter(parameters))
    for parameter in parameters:
        if parameter.device.type != "cpu":
            raise ObstacleError(f"the policy is on {parameter.device}")
        if parameter.dtype != first.dtype or not parameter.is_floating_point():
            raise ObstacleError("the parameters are of different types")
        if not parameter.requires_grad:
            raise ObstacleError("some parameters are frozen")


def check_optimizers(plan: UpdatePlan) -> None:
    """Check that the optimizers are plain Adam optimizers that together train exactly the policy's parameters."""
    optimizers = plan.optimizers
    if len({*optimizers}) < len(optimizers):
        raise ObstacleError("several descents share an optimizer")
    trained: list[nn.Parameter] = []
    for optimizer in optimizers:
        check_adam(optimizer)
        trained += optimizer.param_groups[0]["params"]
    if sorted(map(id, trained)) != sorted(map(id, plan.parameters.values())):
        raise ObstacleError("the optimizer does not train all parameters of the policy")


def check_adam(optimizer: Optimizer) -> None:
    """Check that an optimizer is a plain Adam."""
    if type(optimizer) is not th.optim.Adam:
        raise ObstacleError(f"the optimizer is {type(optimizer).__name__}, not Adam")
    if len(optimizer.param_groups) != 1:
        raise ObstacleError("the optimizer has several groups of parameters")
    (group,) = optimizer.param_groups
    for option, value in group.items():
        if option not in FREE_ADAM and (option not in PLAIN_ADAM or value != PLAIN_ADAM[option]):
            raise ObstacleError(f"Adam's {option} is {value}")
    if isinstance(group["lr"], th.Tensor):
        raise ObstacleError("Adam's step size is a tensor")
    for parameter in group["params"]:
        state = optimizer.state.get(parameter) or {}
        for name in state.keys() & {"exp_avg", "exp_avg_sq"}:
            moment = state[name]
            if (moment.dtype, moment.device, moment.shape) != (parameter.dtype, parameter.device, parameter.shape):
                raise ObstacleError("Adam has moments of another type or shape than the parameters")


class FastActor(Actor, Protocol):
    """An actor that is built for the networks of a policy."""

    def drawn_from(self) -> Sequence[Parameters | None]:
        """Return the parameters of the distributions of each step that was stored; ``None`` where they are unknown."""


class UntilChanged:
    """Acts with a fast actor until the policy or its tensors are replaced, and with PyTorch from then on.

    Values may change in place. What else callbacks change in the middle of a rollout may have no effect before the next
    one. The fast actor keeps the memory of the tensors that it was built for.

    :param fast: the fast actor
    :param model: the model
    :param plan: its policy and its buffer
    """

    def __init__(self, fast: FastActor, model: OnPolicyAlgorithm, plan: UpdatePlan):
        self._fast, self._model, self._plan = fast, model, plan
        self._actor: Actor = fast
        self._parameters = [module._parameters for module in plan.modules if module._parameters]
        self._tensors = self._find_tensors()
        self._seen = False

    def _find_tensors(self) -> list[int]:
        """Return where the parameters are in memory, and how large they are."""
        tensors = [each for parameters in self._parameters for each in parameters.values() if each is not None]
        return [*map(th.Tensor.data_ptr, tensors), *map(th.Tensor.numel, tensors)]

    def _now(self) -> Actor:
        """Return the actor for the policy as it is now. Only callbacks that see a step may have changed it."""
        policy = self._model.policy
        if self._actor is not self._fast or not self._seen:
            return self._actor
        if policy is self._plan.kind.policy and self._find_tensors() == self._tensors:
            return self._actor
        return TorchActor(self._model, kind_of(policy), self._plan.buffer, self._fast.drawn_from())

    def act(self, step: int, observations: Observations) -> np.ndarray:
        if self._seen:
            self._actor, self._seen = self._now(), False
        return self._actor.act(step, observations)

    def seen(self) -> dict[str, object]:
        self._seen = True
        return self._actor.seen()

    def terminal_value(self, observation: Observations, env_index: int) -> float | th.Tensor:
        return self._now().terminal_value(observation, env_index)  # The step is stored by the actor that took it.

    def store(self, observations: Observations, rewards: np.ndarray, episode_starts: np.ndarray) -> None:
        self._actor.store(observations, rewards, episode_starts)

    def finish(self, observations: Observations, dones: np.ndarray) -> th.Tensor:
        self._actor = self._now()
        return self._actor.finish(observations, dones)

    def old_parameters(self) -> Parameters | None:
        return self._actor.old_parameters()
