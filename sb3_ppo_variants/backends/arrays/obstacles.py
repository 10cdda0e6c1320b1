"""Reasons why a policy cannot be computed over arrays."""

from collections.abc import Iterable, Sequence
from typing import Any

from gymnasium import spaces
from stable_baselines3.common.distributions import (
    BernoulliDistribution,
    CategoricalDistribution,
    DiagGaussianDistribution,
    MultiCategoricalDistribution,
    StateDependentNoiseDistribution,
    TanhBijector,
)
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.torch_layers import CombinedExtractor, FlattenExtractor, MlpExtractor
from torch import nn

from sb3_ppo_variants.backends import obstacles
from sb3_ppo_variants.backends.arrays.networks import ACTIVATIONS
from sb3_ppo_variants.kl import MissingKLError, exact_kl, is_built_in, is_masked
from sb3_ppo_variants.objectives import arrays_obstacle
from sb3_ppo_variants.updates.plan import UpdatePlan

DISTRIBUTIONS = (
    BernoulliDistribution,
    CategoricalDistribution,
    DiagGaussianDistribution,
    MultiCategoricalDistribution,
    StateDependentNoiseDistribution,
)
# The attributes in which PyTorch stores hooks. Computations over arrays would not call them.
MODULE_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
PARAMETER_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
OPTIMIZER_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


def obstacle(plan: UpdatePlan) -> str | None:
    """Return the first reason why a plan cannot be computed over arrays, as a clause, or ``None`` if it can."""
    policy, parameters = plan.kind.policy, [*plan.parameters.values()]
    return (
        arrays_obstacle(plan.objective)
        or obstacles.of_policy(plan.kind)
        or obstacles.of_buffer(plan.buffer, plan.kind)
        or _hooks_obstacle(plan)
        or _distribution_obstacle(policy)
        or _features_obstacle(policy)
        or _network_obstacle(policy, parameters)
        or obstacles.of_tensors(parameters)
        or obstacles.of_training(parameters, plan.optimizers)
    )


def _hooks_obstacle(plan: UpdatePlan) -> str | None:
    owners: dict[str, tuple[Iterable[object], tuple[str, ...]]] = {
        "the policy's modules have": (plan.modules, MODULE_HOOKS),
        "the policy's parameters have": (plan.parameters.values(), PARAMETER_HOOKS),
        "the optimizer has": (plan.optimizers, OPTIMIZER_HOOKS),
    }
    for words, (objects, names) in owners.items():
        if any(getattr(owner, name) for owner in objects for name in names):
            return f"{words} hooks"
    return None


def _distribution_obstacle(policy: ActorCriticPolicy) -> str | None:
    if type(policy.action_dist) not in DISTRIBUTIONS and not is_masked(policy.action_dist):
        return f"actions are drawn from a {type(policy.action_dist).__name__}"
    bijector = getattr(policy.action_dist, "bijector", None)
    if bijector is not None and type(bijector) is not TanhBijector:
        return f"actions are squashed by a {type(bijector).__name__}"
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


def _network_obstacle(policy: Any, parameters: Sequence[nn.Parameter]) -> str | None:
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
    others = {*map(id, parameters)} - {id(p) for layer in linear for p in (layer.weight, layer.bias)}
    if others - {id(getattr(policy, "log_std", None))}:
        return "the policy has parameters outside its layers"
    return None
