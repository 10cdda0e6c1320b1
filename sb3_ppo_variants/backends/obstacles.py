"""Reasons why a fast backend cannot take a policy, as far as several fast backends share them.

Each function returns the first reason it finds, as a clause, or ``None``.
"""

from collections.abc import Iterable, Sequence
from types import ModuleType

import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.policies import ActorCriticPolicy
from torch import nn
from torch.nn.modules import module as torch_modules
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizers

from sb3_ppo_variants.policies.kind import PolicyKind
from sb3_ppo_variants.rollouts.buffer import with_parameters

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
# The state of a plain module that fast backends know: what they read, and hooks that take no part in a computation.
# Whatever else a module, a parameter or an optimizer keeps under a name that ends like these may be a kind of hook that
# a newer PyTorch has added.
HOOKS = "_hooks"
KNOWN = {
    "training",
    "_parameters",
    "_buffers",
    "_non_persistent_buffers_set",
    "_modules",
    "_is_full_backward_hook",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
    "_optimizer_state_dict_pre_hooks",
    "_optimizer_state_dict_post_hooks",
    "_optimizer_load_state_dict_pre_hooks",
    "_optimizer_load_state_dict_post_hooks",
}
UNKNOWN_OF_MODULES = vars(nn.Module()).keys() - KNOWN
OF_TENSORS = [name for name in dir(nn.Parameter) if name.endswith(HOOKS)]


def _of_all(module: ModuleType) -> list[object]:
    """Return what keeps the hooks of all objects of a kind, except those that are called at registrations."""
    names = [name for name in vars(module) if name.startswith("_global") and name.endswith(HOOKS)]
    return [getattr(module, name) for name in names if "registration" not in name]


OF_ALL_MODULES, OF_ALL_OPTIMIZERS = _of_all(torch_modules), _of_all(torch_optimizers)


def of_hooks(
    modules: Iterable[nn.Module], parameters: Iterable[nn.Parameter] = (), optimizers: Iterable[Optimizer] = ()
) -> str | None:
    """Check that nothing is called while PyTorch computes, which a fast backend would not call."""
    if any(_has_hooks(module, UNKNOWN_OF_MODULES) for module in modules):
        return "the policy's modules have hooks"
    if any(_has_hooks(parameter) or any(getattr(parameter, name) for name in OF_TENSORS) for parameter in parameters):
        return "the policy's parameters have hooks"
    if any(map(_has_hooks, optimizers)):
        return "the optimizer has hooks"
    if any(OF_ALL_OPTIMIZERS):
        return "all optimizers have hooks"
    return "all modules have hooks" if any(OF_ALL_MODULES) else None


def _has_hooks(owner: object, names: Iterable[str] = ()) -> bool:
    """Whether an object keeps hooks of an unknown kind, under one of these names or another one that ends alike."""
    state = vars(owner)
    if any(state.get(name) for name in names):
        return True
    return any(value for name, value in state.items() if name.endswith(HOOKS) and name not in KNOWN)


def of_buffer(buffer: RolloutBuffer, kind: PolicyKind) -> str | None:
    """Check the class of a rollout buffer for a policy kind."""
    cls = type(buffer)
    if cls not in [with_parameters(plain) for plain in kind.buffers]:
        return f"the rollout buffer is a {cls.__name__}"
    return of_methods(buffer, "rollout buffer")


def of_methods(owner: object, what: str) -> str | None:
    """Check that no method of an object was replaced by another one.

    :param what: what the object is, without an article
    """
    own = [name for name in vars(owner) if callable(getattr(type(owner), name, None))]
    return f"the {what} has its own {own[0]}" if own else None


def of_policy(kind: PolicyKind) -> str | None:
    """Check the kind of a policy, and that the policy overrides none of the methods above."""
    if type(kind) is not PolicyKind and not kind.takes_masks:
        return f"the policy is of the kind {type(kind).__name__}"
    policy, cls, base = kind.policy, type(kind.policy), kind.policies[0]
    if not isinstance(policy, base):
        return f"{cls.__name__} is not a subclass of {base.__name__}"
    for method in WRITTEN_OUT:
        if getattr(cls, method) is not getattr(base, method) or method in vars(policy):
            return f"{cls.__name__} overrides {method}"
    return None


def of_parameters(policy: ActorCriticPolicy) -> str | None:
    """Check the parameters of a policy."""
    return of_tensors(list(policy.parameters()))


def of_tensors(parameters: Sequence[th.nn.Parameter]) -> str | None:
    """Check a list of all parameters of a policy."""
    if {parameter.device.type for parameter in parameters} != {"cpu"}:
        return f"the policy is on {parameters[0].device}"
    if len({parameter.dtype for parameter in parameters}) != 1 or not parameters[0].dtype.is_floating_point:
        return "the parameters are of different types"
    if not all(parameter.requires_grad for parameter in parameters):
        return "some parameters are frozen"
    if any(0 in parameter.stride() and not parameter.is_contiguous() for parameter in parameters):
        return "some parameters overlap in memory"
    return None


def of_optimizers(policy: ActorCriticPolicy, optimizers: Sequence[Optimizer]) -> str | None:
    """Check that the optimizers are plain Adam optimizers that together train the whole policy."""
    return of_training(list(policy.parameters()), optimizers)


def of_moments(optimizers: Sequence[Optimizer]) -> str | None:
    """Check that Adam has moments of the type and shape of their parameters, which fast backends do not compare."""
    for optimizer in optimizers:
        for parameter in optimizer.param_groups[0]["params"]:
            state = optimizer.state.get(parameter) or {}
            for moment in (state[name] for name in ("exp_avg", "exp_avg_sq") if name in state):
                if moment.dtype is not parameter.dtype or moment.device != parameter.device:
                    return f"Adam has moments in {moment.dtype} for parameters in {parameter.dtype}"
                if moment.shape != parameter.shape:
                    return f"Adam has moments of shape {tuple(moment.shape)} for parameters of {tuple(parameter.shape)}"
    return None


def of_training(parameters: Sequence[th.nn.Parameter], optimizers: Sequence[Optimizer]) -> str | None:
    """Check that the optimizers are plain Adam optimizers that together train exactly these parameters."""
    trained: list[int] = []
    for optimizer in optimizers:
        obstacle = _of_optimizer(optimizer)
        if obstacle is not None:
            return obstacle
        trained += [id(parameter) for parameter in optimizer.param_groups[0]["params"]]
    if sorted(trained) != sorted(map(id, parameters)):
        return "the optimizer does not train all parameters of the policy"
    return of_moments(optimizers)


def _of_optimizer(optimizer: Optimizer) -> str | None:
    if type(optimizer) is not th.optim.Adam:
        return f"the optimizer is {type(optimizer).__name__}, not Adam"
    if len(optimizer.param_groups) != 1:
        return "the optimizer has several groups of parameters"
    (group,) = optimizer.param_groups
    for option, value in group.items():
        if option not in FREE_ADAM and (option not in PLAIN_ADAM or value != PLAIN_ADAM[option]):
            return f"Adam's {option} is {value}"
    if isinstance(group["lr"], th.Tensor):
        return "Adam's step size is a tensor"
    return None
