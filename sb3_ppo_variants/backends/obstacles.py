"""Reasons why a fast backend cannot take a policy, as far as several fast backends share them.

Each function returns the first reason it finds, as a clause, or ``None``.
"""

from collections.abc import Sequence

import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.policies import ActorCriticPolicy
from torch.optim import Optimizer

from sb3_ppo_variants.policies.feed_forward import FeedForward
from sb3_ppo_variants.policies.kind import PolicyKind
from sb3_ppo_variants.rollouts.buffer import ParameterDictRolloutBuffer, ParameterRolloutBuffer

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


def of_buffer(buffer: RolloutBuffer, kind: PolicyKind) -> str | None:
    """Check the class of a rollout buffer for a policy kind."""
    cls = type(buffer)
    # The classes that add the columns to sb3-contrib's buffers are created on demand: recognise them by their bases.
    made = cls.__bases__ in [(kind.with_parameters, plain) for plain in kind.buffers] and kind.takes_masks
    if cls not in (ParameterRolloutBuffer, ParameterDictRolloutBuffer) and not made:
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
    if type(kind) is not FeedForward and not kind.takes_masks:
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
    return None


def of_optimizers(policy: ActorCriticPolicy, optimizers: Sequence[Optimizer]) -> str | None:
    """Check that the optimizers are plain Adam optimizers that together train the whole policy."""
    return of_training(list(policy.parameters()), optimizers)


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
    return None


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
