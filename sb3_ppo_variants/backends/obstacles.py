"""Reasons why fast backends cannot compute a plan, as far as several of them share these.

Each function checks one aspect, and raises an :class:`ObstacleError` for the first reason that it finds.
"""

from collections.abc import Callable, Collection, Iterable, Sequence

import torch as th
from torch import nn
from torch.nn.modules import module as torch_modules
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizers

from sb3_ppo_variants.kl import MissingKLError
from sb3_ppo_variants.policies.kind import PolicyKind
from sb3_ppo_variants.update import UpdatePlan

# Methods of ActorCriticPolicy that fast backends reimplement or rely on. A subclass may override the others.
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
# Options of Adam that fast backends do not implement, with the values that disable them.
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
# Whatever a module, a parameter or an optimizer keeps under a name with this part may be a kind of hook, perhaps one
# that a newer PyTorch has added. Some take no part in a computation.
HOOKS = "_hooks"
HARMLESS_HOOKS = {
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
    "_optimizer_state_dict_pre_hooks",
    "_optimizer_state_dict_post_hooks",
    "_optimizer_load_state_dict_pre_hooks",
    "_optimizer_load_state_dict_post_hooks",
}
HOOKS_OF_TENSORS = [name for name in dir(nn.Parameter) if name.endswith(HOOKS)]
# What keeps the hooks of all objects of a kind, except those that are called at registrations.
HOOKS_OF_ALL_MODULES, HOOKS_OF_ALL_OPTIMIZERS = (
    [
        kept
        for name, kept in vars(module).items()
        if name.startswith("_global") and name.endswith(HOOKS) and "registration" not in name
    ]
    for module in (torch_modules, torch_optimizers)
)


class ObstacleError(ValueError):
    """The reason why a fast backend cannot compute a plan, as a clause that completes "because ..."."""


def find_obstacle(check: Callable[..., None], *arguments: object) -> str | None:
    """Find the reason with which a check of these arguments fails, or ``None`` if it does not."""
    try:
        check(*arguments)
    except (ObstacleError, MissingKLError) as reason:
        return str(reason)
    return None


def check_written_out(plan: UpdatePlan) -> None:
    """Check that policy and buffer compute as SB3's or sb3-contrib's do, without a memory."""
    kind = plan.kind
    if type(kind) is not PolicyKind and not kind.takes_masks:
        raise ObstacleError(f"the policy is of the kind {type(kind).__name__}")
    check_overrides(plan, WRITTEN_OUT)
    check_methods(plan.buffer, "rollout buffer")


def check_overrides(plan: UpdatePlan, methods: Iterable[str]) -> None:
    """Check that the policy overrides none of these methods, and that the buffer is of the class for its kind."""
    policy, cls, base = plan.kind.policy, type(plan.kind.policy), plan.kind.policies[0]
    if not isinstance(policy, base):
        raise ObstacleError(f"{cls.__name__} is not a subclass of {base.__name__}")
    for method in ("__call__", *methods):
        if getattr(cls, method) is not getattr(base, method) or method in vars(policy):
            raise ObstacleError(f"{cls.__name__} overrides {method}")
    if type(plan.buffer) not in (*plan.kind.buffers, *plan.kind.hybrid_buffers):
        raise ObstacleError(f"the rollout buffer is a {type(plan.buffer).__name__}")


def check_methods(owner: object, what: str) -> None:
    """Check that no method of an object was replaced by another one.

    :param what: what the object is, without an article
    """
    for name in vars(owner):
        if callable(getattr(type(owner), name, None)):
            raise ObstacleError(f"the {what} has its own {name}")


def check_hooks(
    modules: Iterable[nn.Module], parameters: Collection[nn.Parameter] = (), optimizers: Iterable[Optimizer] = ()
) -> None:
    """Check that nothing is called while PyTorch computes, which a fast backend would not call."""
    of_tensors = any(getattr(parameter, name) for parameter in parameters for name in HOOKS_OF_TENSORS)
    found = {
        "the policy's modules have": any(map(_has_hooks, modules)),
        "the policy's parameters have": of_tensors or any(map(_has_hooks, parameters)),
        "the optimizer has": any(map(_has_hooks, optimizers)),
        "all optimizers have": any(HOOKS_OF_ALL_OPTIMIZERS),
        "all modules have": any(HOOKS_OF_ALL_MODULES),
    }
    for owner, has_hooks in found.items():
        if has_hooks:
            raise ObstacleError(f"{owner} hooks")


def _has_hooks(owner: object) -> bool:
    return any(kept for name, kept in vars(owner).items() if HOOKS in name and name not in HARMLESS_HOOKS)


def check_parameters(parameters: Collection[nn.Parameter]) -> None:
    """Check all parameters of a policy."""
    first = next(iter(parameters))
    places = [parameter.data_ptr() for parameter in parameters if parameter.numel()]
    if len({*places}) < len(places):
        raise ObstacleError("some parameters overlap in memory")
    for parameter in parameters:
        if parameter.device.type != "cpu":
            raise ObstacleError(f"the policy is on {parameter.device}")
        if parameter.dtype != first.dtype or not parameter.is_floating_point():
            raise ObstacleError("the parameters are of different types")
        if not parameter.requires_grad:
            raise ObstacleError("some parameters are frozen")
        if 0 in parameter.stride() and not parameter.is_contiguous():
            raise ObstacleError("some parameters overlap in memory")


def check_optimizers(parameters: Iterable[nn.Parameter], optimizers: Sequence[Optimizer]) -> None:
    """Check that the optimizers are plain Adam optimizers that together train exactly these parameters."""
    if len({*optimizers}) < len(optimizers):
        raise ObstacleError("several descents share an optimizer")
    trained: list[nn.Parameter] = []
    for optimizer in optimizers:
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
        trained += group["params"]
    if sorted(map(id, trained)) != sorted(map(id, parameters)):
        raise ObstacleError("the optimizer does not train all parameters of the policy")
    for optimizer in optimizers:
        _check_moments(optimizer)


def _check_moments(optimizer: Optimizer) -> None:
    """Check that Adam has moments of the type and shape of their parameters, which fast backends do not compare."""
    for parameter in optimizer.param_groups[0]["params"]:
        state = optimizer.state.get(parameter) or {}
        for name in state.keys() & {"exp_avg", "exp_avg_sq"}:
            moment = state[name]
            if moment.dtype is not parameter.dtype or moment.device != parameter.device:
                raise ObstacleError(f"Adam has moments in {moment.dtype} for parameters in {parameter.dtype}")
            if moment.shape != parameter.shape:
                shapes = f"{tuple(moment.shape)} for parameters of {tuple(parameter.shape)}"
                raise ObstacleError(f"Adam has moments of shape {shapes}")
