"""The native backend, in C++, and the reasons why it cannot compute a policy."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.distributions import (
    BernoulliDistribution,
    CategoricalDistribution,
    DiagGaussianDistribution,
    MultiCategoricalDistribution,
    StateDependentNoiseDistribution,
    TanhBijector,
)
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.torch_layers import CombinedExtractor, FlattenExtractor, MlpExtractor
from torch import nn
from torch.optim import Optimizer

from sb3_ppo_variants.backends import obstacles
from sb3_ppo_variants.backends.native.actor import NativeActor
from sb3_ppo_variants.backends.native.library import REBUILD, library
from sb3_ppo_variants.backends.native.networks import ACTIVATIONS
from sb3_ppo_variants.backends.native.update import NATIVE_OBJECTIVES, NativeUpdate
from sb3_ppo_variants.backends.remade import UntilRemade
from sb3_ppo_variants.kl import MissingKLError, exact_kl, is_built_in, is_masked
from sb3_ppo_variants.objectives import arrays_obstacle
from sb3_ppo_variants.rollouts.buffer import WithParameters
from sb3_ppo_variants.rollouts.loop import Actor
from sb3_ppo_variants.updates.plan import UpdatePlan

DISTRIBUTIONS = (
    BernoulliDistribution,
    CategoricalDistribution,
    DiagGaussianDistribution,
    MultiCategoricalDistribution,
    StateDependentNoiseDistribution,
)
TYPES = (th.float32, th.float64)
REMEDY = f"to build it, install a C++ compiler and then: {REBUILD}"


def obstacle(plan: UpdatePlan) -> str | None:
    """Return the first reason why the library cannot run a plan, as a clause, or ``None`` if it can."""
    policy, parameters = plan.kind.policy, [*plan.parameters.values()]
    return (
        _library_obstacle()
        or _objective_obstacle(plan)
        or obstacles.of_policy(plan.kind)
        or obstacles.of_buffer(plan.buffer, plan.kind)
        or obstacles.of_hooks(plan.modules, parameters, plan.optimizers)
        or _methods_obstacle(plan)
        or _distribution_obstacle(policy)
        or _features_obstacle(policy)
        or _network_obstacle(policy, parameters)
        or obstacles.of_tensors(parameters)
        or _memory_obstacle(parameters)
        or obstacles.of_training(parameters, plan.optimizers)
        or _steps_obstacle(plan.optimizers)
        or _rollout_obstacle(plan)
    )


def _library_obstacle() -> str | None:
    return f"the native library was not built ({REMEDY})" if library() is None else None


def _objective_obstacle(plan: UpdatePlan) -> str | None:
    return None if type(plan.objective) in NATIVE_OBJECTIVES else arrays_obstacle(plan.objective)


def _methods_obstacle(plan: UpdatePlan) -> str | None:
    for module in plan.modules:
        for method in ("forward", "forward_actor", "forward_critic"):
            if method in vars(module):
                return f"a {type(module).__name__} has its own {method}"
    for optimizer in plan.optimizers:
        # PyTorch's schedulers of the learning rate replace the method too, to count its calls.
        if "step" in vars(optimizer) and not hasattr(optimizer.step, "_wrapped_by_lr_sched"):
            return "the optimizer has its own step"
    return obstacles.of_methods(plan.kind.policy.action_dist, "distribution")


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
    # A policy whose actor and critic share their features uses the first of them to act.
    extractors = policy.features_extractor, policy.pi_features_extractor, policy.vf_features_extractor
    for extractor in extractors:
        parts = [*extractor.extractors.values()] if type(extractor) is CombinedExtractor else [extractor]
        for part in (each.flatten if type(each) is FlattenExtractor else each for each in parts):
            if type(part) is not nn.Flatten:
                return f"features come from a {type(part).__name__}"
    if len({(type(extractor), *getattr(extractor, "extractors", ())) for extractor in extractors}) > 1:
        return "actor and critic have different features"
    space = policy.observation_space
    if any(map(is_image_space, space.values() if isinstance(space, spaces.Dict) else [space])):
        return "observations are images"
    return None


def _network_obstacle(policy: Any, parameters: Sequence[nn.Parameter]) -> str | None:
    if type(policy.mlp_extractor) is not MlpExtractor:
        return f"hidden layers are in a {type(policy.mlp_extractor).__name__}"
    trunks = policy.mlp_extractor.policy_net, policy.mlp_extractor.value_net
    for trunk in trunks:
        if type(trunk) is not nn.Sequential:
            return f"hidden layers are in a {type(trunk).__name__}"
    hidden = [*trunks[0], *trunks[1]]
    heads = policy.action_net, policy.value_net
    linear = [*hidden[::2], *heads]
    for layer in linear:
        if type(layer) is not nn.Linear or layer.bias is None:
            return f"the networks have a {layer} where a layer with weights and biases is expected"
    kinds = {type(layer) for layer in hidden[1::2]}
    if len(kinds) > 1 or not kinds <= set(ACTIVATIONS):
        return f"the activation is {', '.join(sorted(kind.__name__ for kind in kinds))}"
    of_layers = [id(parameter) for layer in linear for parameter in (layer.weight, layer.bias)]
    if len({*of_layers}) < len(of_layers):
        return "layers share parameters"
    others = {*map(id, parameters)} - {*of_layers}
    if others - {id(getattr(policy, "log_std", None))}:
        return "the policy has parameters outside its layers"
    networks = [[*trunk, head] for trunk, head in zip(trunks, heads, strict=True)]
    return _sizes_obstacle(policy, networks) or _log_std_obstacle(policy, others)


def _sizes_obstacle(policy: Any, networks: Iterable[Sequence[Any]]) -> str | None:
    """Check that each layer takes what the previous one returns, because the library does not check it."""
    outputs = []
    for layers in networks:
        size = policy.pi_features_extractor.features_dim
        for layer in layers[::2]:
            shape = layer.weight.shape
            if shape != (*layer.bias.shape, size):
                return f"a layer has weights of shape {tuple(shape)} for {size} inputs"
            size = shape[0]
        outputs.append(size)
    if outputs[1] != 1:
        return f"the value network has {outputs[1]} outputs"
    # A number of dimensions or categories, or the categories of each dimension.
    taken = np.sum(getattr(policy.action_dist, "action_dims", 0)) or policy.action_dist.action_dim
    return None if taken == outputs[0] else f"the policy network has {outputs[0]} outputs instead of {taken}"


def _log_std_obstacle(policy: Any, others: set[int]) -> str | None:
    """Check that ``log_std`` is a parameter with the shape that SB3 gives it."""
    distribution, outputs = policy.action_dist, len(policy.action_net.bias)
    if isinstance(distribution, DiagGaussianDistribution):
        shape: tuple[int, ...] = (outputs,)
    elif isinstance(distribution, StateDependentNoiseDistribution):
        shape = (policy.action_net.weight.shape[1], outputs if distribution.full_std else 1)
    else:
        return None
    if id(policy.log_std) not in others:
        return "log_std is not a parameter"
    return None if policy.log_std.shape == shape else f"log_std has the shape {tuple(policy.log_std.shape)}"


def _memory_obstacle(parameters: Sequence[nn.Parameter]) -> str | None:
    for parameter in parameters:
        if parameter.dtype not in TYPES:
            return f"the native library does not compute in {parameter.dtype}"
        if not parameter.is_contiguous():
            return "some parameters are not contiguous in memory"
        if parameter.data_ptr() % parameter.itemsize:
            return "some parameters are not aligned in memory"
    return None


def _steps_obstacle(optimizers: Sequence[Optimizer]) -> str | None:
    """Check that Adam has made the same number of steps with all parameters."""
    for optimizer in optimizers:
        states = [optimizer.state.get(parameter) or {} for parameter in optimizer.param_groups[0]["params"]]
        if len({float(state.get("step", 0)) for state in states}) > 1:
            return "Adam has made more steps with some parameters than with others"
    return None


def _rollout_obstacle(plan: UpdatePlan) -> str | None:
    """Check that the rollout has all its rows, and a single standard deviation if it does not depend on the state."""
    buffer = plan.buffer
    rows = buffer.buffer_size * buffer.n_envs
    if buffer.full and (obstacle := _columns_obstacle(buffer, rows)) is not None:
        return obstacle
    old = buffer.old_parameters if isinstance(buffer, WithParameters) else None
    if old is None:
        return None
    if any(len(column) != rows for column in old):
        return "the rollout buffer has old parameters of other rows"
    if not isinstance(plan.kind.policy.action_dist, DiagGaussianDistribution):
        return None
    std = old[1].numpy()
    return "the standard deviation changed during the rollout" if (std != std[0]).any() else None


def _columns_obstacle(buffer: RolloutBuffer, rows: int) -> str | None:
    """Check that the arrays of a rollout have this many rows."""
    for name in ("actions", "values", "log_probs", "advantages", "returns"):
        array: np.ndarray = getattr(buffer, name)
        if array.size != rows * (buffer.action_dim if name == "actions" else 1):
            return f"the {name} of the rollout buffer have the shape {array.shape}"
    observations: Any = buffer.observations
    for array in observations.values() if isinstance(observations, dict) else [observations]:
        if array.shape[:1] not in ((rows,), (buffer.buffer_size,)):
            return f"the observations of the rollout buffer have the shape {array.shape}"
    return None


class Native:
    """Computes small networks with the native library, on one core of a CPU."""

    name = "native"
    path = "fast"
    has_memory = False
    how = "the native library computes the networks"

    def obstacle(self, plan: UpdatePlan) -> str | None:
        return obstacle(plan)

    def prepared(self, plan: UpdatePlan, updating: bool) -> AbstractContextManager[None]:
        return nullcontext()

    def actor(self, model: OnPolicyAlgorithm, plan: UpdatePlan, buffer: RolloutBuffer, n_steps: int) -> Actor:
        return UntilRemade(NativeActor(model, plan.kind, buffer, n_steps), model, plan)

    def update(self, plan: UpdatePlan) -> NativeUpdate:
        return NativeUpdate(plan)
