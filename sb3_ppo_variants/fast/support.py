"""Which policies the fast path knows."""

from typing import Any

import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.distributions import (
    BernoulliDistribution,
    CategoricalDistribution,
    DiagGaussianDistribution,
    MultiCategoricalDistribution,
)
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.torch_layers import FlattenExtractor, MlpExtractor
from torch import nn

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
# Adam's options that are not written out, with the values that leave them out.
PLAIN_ADAM = {"weight_decay": 0, "amsgrad": False, "maximize": False, "decoupled_weight_decay": False}


def obstacle(policy: Any, buffer: Any) -> str | None:
    """Why a policy cannot be trained on the fast path.

    :return: the first reason found, as a clause; ``None`` if there is none
    """
    checks = (_policy_obstacle, _network_obstacle, _optimizer_obstacle)
    if type(buffer) is not RolloutBuffer:
        return f"the rollout buffer is a {type(buffer).__name__}, not a RolloutBuffer"
    return next((found for check in checks if (found := check(policy)) is not None), None)


def _policy_obstacle(policy: Any) -> str | None:
    cls = type(policy)
    if not isinstance(policy, ActorCriticPolicy):
        return f"{cls.__name__} is not an ActorCriticPolicy"
    for method in WRITTEN_OUT:
        if getattr(cls, method) is not getattr(ActorCriticPolicy, method) or method in vars(policy):
            return f"{cls.__name__} has a {method} of its own"
    if type(policy.action_dist) not in DISTRIBUTIONS:
        return f"actions are drawn from a {type(policy.action_dist).__name__}"
    try:
        if not is_built_in(exact_kl(policy.action_dist)):
            return f"a KL was registered for {type(policy.action_dist).__name__}"
    except MissingKLError as error:
        return str(error)
    if policy.squash_output:
        return "actions are squashed"
    extractors = {type(policy.pi_features_extractor), type(policy.vf_features_extractor)}
    if extractors != {FlattenExtractor}:
        return f"features come from a {policy.features_extractor_class.__name__}"
    if isinstance(policy.observation_space, spaces.Dict) or is_image_space(policy.observation_space):
        return "observations are images or dictionaries"
    return None


def _network_obstacle(policy: Any) -> str | None:
    if type(policy.mlp_extractor) is not MlpExtractor:
        return f"hidden layers are in a {type(policy.mlp_extractor).__name__}"
    heads = [("action_net", policy.action_net), ("value_net", policy.value_net)]
    hidden = [*policy.mlp_extractor.policy_net, *policy.mlp_extractor.value_net]
    known = set(ACTIVATIONS)
    for layer in hidden:
        if type(layer) not in known | {nn.Linear}:
            return f"the networks have a {type(layer).__name__} layer"
    for name, head in heads:
        if type(head) is not nn.Linear:
            return f"{name} is a {type(head).__name__}"
    if any(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks for module in policy.modules()):
        return "the policy's modules have hooks"
    return _parameter_obstacle(list(policy.parameters()))


def _parameter_obstacle(parameters: list[nn.Parameter]) -> str | None:
    if {parameter.device.type for parameter in parameters} != {"cpu"}:
        return f"the policy is on {parameters[0].device}, where the networks are too small to gain"
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
