"""Which policies the fast paths know."""

from typing import Any

import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.distributions import (
    BernoulliDistribution,
    CategoricalDistribution,
    DiagGaussianDistribution,
    MultiCategoricalDistribution,
)
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.torch_layers import CombinedExtractor, FlattenExtractor, MlpExtractor, NatureCNN
from torch import nn

from sb3_ppo_variants.fast.choice import Choice
from sb3_ppo_variants.fast.networks import ACTIVATIONS
from sb3_ppo_variants.kl import MissingKLError, exact_kl, is_built_in

DISTRIBUTIONS = (
    BernoulliDistribution,
    CategoricalDistribution,
    DiagGaussianDistribution,
    MultiCategoricalDistribution,
)
# What of ActorCriticPolicy is written out in arrays; a subclass may change the rest.
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
# Where PyTorch keeps what would be called by computations that are written out.
MODULE_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
PARAMETER_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
OPTIMIZER_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
# Adam's options that are not written out, with the values that leave them out.
PLAIN_ADAM = {
    "weight_decay": 0,
    "amsgrad": False,
    "maximize": False,
    "capturable": False,
    "differentiable": False,
    "decoupled_weight_decay": False,
}


def choose(policy: Any, buffer: Any) -> Choice:
    """The path for a policy: over arrays if it can, else on images laid out for convolutions, else the reference."""
    obstacle = _arrays_obstacle(policy, buffer)
    if obstacle is None:
        return Choice("arrays", "the networks are computed over arrays")
    if _images_obstacle(policy, buffer) is None:
        return Choice("images", "images are laid out for convolutions")
    return Choice("reference", obstacle)


# Each returns the first reason it finds, as a clause, or None.


def _arrays_obstacle(policy: Any, buffer: Any) -> str | None:
    return (
        _buffer_obstacle(buffer)
        or _policy_obstacle(policy)
        or _hooks_obstacle(policy)
        or _distribution_obstacle(policy)
        or _features_obstacle(policy)
        or _network_obstacle(policy)
        or _parameter_obstacle(policy)
        or _optimizer_obstacle(policy)
    )


def _images_obstacle(policy: Any, buffer: Any) -> str | None:
    return (
        _buffer_obstacle(buffer)
        or _policy_obstacle(policy)
        or _convolutions_obstacle(policy)
        or _parameter_obstacle(policy)
        or _optimizer_obstacle(policy)
    )


def _buffer_obstacle(buffer: Any) -> str | None:
    if type(buffer) not in (RolloutBuffer, DictRolloutBuffer):
        return f"the rollout buffer is a {type(buffer).__name__}"
    return None


def _policy_obstacle(policy: Any) -> str | None:
    cls = type(policy)
    if not isinstance(policy, ActorCriticPolicy):
        return f"{cls.__name__} is not an ActorCriticPolicy"
    for method in WRITTEN_OUT:
        if getattr(cls, method) is not getattr(ActorCriticPolicy, method) or method in vars(policy):
            return f"{cls.__name__} has a {method} of its own"
    return None


def _hooks_obstacle(policy: Any) -> str | None:
    if any(getattr(module, hooks) for module in policy.modules() for hooks in MODULE_HOOKS):
        return "the policy's modules have hooks"
    if any(getattr(parameter, hooks) for parameter in policy.parameters() for hooks in PARAMETER_HOOKS):
        return "the policy's parameters have hooks"
    if any(getattr(policy.optimizer, hooks) for hooks in OPTIMIZER_HOOKS):
        return "the optimizer has hooks"
    return None


def _distribution_obstacle(policy: Any) -> str | None:
    if type(policy.action_dist) not in DISTRIBUTIONS:
        return f"actions are drawn from a {type(policy.action_dist).__name__}"
    try:
        if not is_built_in(exact_kl(policy.action_dist)):
            return f"a KL was registered for {type(policy.action_dist).__name__}"
    except MissingKLError as error:
        return str(error)
    return None


def _features_obstacle(policy: Any) -> str | None:
    for extractor in (policy.pi_features_extractor, policy.vf_features_extractor):
        parts = [*extractor.extractors.values()] if type(extractor) is CombinedExtractor else [extractor]
        for part in parts:
            if type(part) not in (FlattenExtractor, nn.Flatten):
                return f"features come from a {type(part).__name__}"
    space = policy.observation_space
    if any(map(is_image_space, space.values() if isinstance(space, spaces.Dict) else [space])):
        return "observations are images"
    return None


def _network_obstacle(policy: Any) -> str | None:
    if type(policy.mlp_extractor) is not MlpExtractor:
        return f"hidden layers are in a {type(policy.mlp_extractor).__name__}"
    hidden = [*policy.mlp_extractor.policy_net, *policy.mlp_extractor.value_net]
    linear = [*hidden[::2], policy.action_net, policy.value_net]
    for layer in linear:
        if type(layer) is not nn.Linear or layer.bias is None:
            return f"the networks have a {layer} where a layer with weights and biases is expected"
    kinds = {type(layer) for layer in hidden[1::2]}
    if len(kinds) > 1 or not kinds <= set(ACTIVATIONS):
        return f"the activation is {', '.join(sorted(kind.__name__ for kind in kinds))}"
    others = {id(p) for p in policy.parameters()} - {id(p) for layer in linear for p in layer.parameters()}
    if others - {id(getattr(policy, "log_std", None))}:
        return "the policy has parameters besides those of its layers"
    return None


def _convolutions_obstacle(policy: Any) -> str | None:
    for extractor in (policy.pi_features_extractor, policy.vf_features_extractor):
        if type(extractor) is not NatureCNN:
            return f"features come from a {type(extractor).__name__}"
    return None


def _parameter_obstacle(policy: Any) -> str | None:
    parameters = list(policy.parameters())
    if {parameter.device.type for parameter in parameters} != {"cpu"}:
        return f"the policy is on {parameters[0].device}"
    if len({parameter.dtype for parameter in parameters}) != 1 or not parameters[0].dtype.is_floating_point:
        return "the parameters are of different types"
    if not all(parameter.requires_grad for parameter in parameters):
        return "some parameters are frozen"
    return None


def _optimizer_obstacle(policy: Any) -> str | None:
    optimizer = policy.optimizer
    if type(optimizer) is not th.optim.Adam:
        return f"the optimizer is {type(optimizer).__name__}, not Adam"
    if len(optimizer.param_groups) != 1:
        return "the optimizer has several groups of parameters"
    (group,) = optimizer.param_groups
    if {id(p) for p in group["params"]} != {id(p) for p in policy.parameters()}:
        return "the optimizer does not train all parameters of the policy"
    for option, plain in PLAIN_ADAM.items():
        if group.get(option, plain) != plain:
            return f"Adam's {option} is {group[option]}"
    if isinstance(group["lr"], th.Tensor):
        return "Adam's step size is a tensor"
    return None
