"""Policies with action masks: sb3-contrib's ``MaskableActorCriticPolicy`` and its subclasses."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import torch as th
from gymnasium import spaces
from sb3_contrib.common.maskable.buffers import (
    MaskableDictRolloutBuffer,
    MaskableDictRolloutBufferSamples,
    MaskableRolloutBuffer,
    MaskableRolloutBufferSamples,
)
from sb3_contrib.common.maskable.policies import (
    MaskableActorCriticCnnPolicy,
    MaskableActorCriticPolicy,
    MaskableMultiInputActorCriticPolicy,
)
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import PyTorchObs

from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.guards.masks import Masks, check_maskable
from sb3_ppo_variants.kl import ExactKL, Parameters, kl_and_parameters, known_parameters
from sb3_ppo_variants.policies.kind import Acted, Evaluated, check_distribution, has_distribution, leaves_distribution
from sb3_ppo_variants.rollouts.buffer import Samples, WithParameters, chunks, observations_at

# A MaskableActorCriticPolicy. Its type hints do not allow dictionary observations.
Policy: TypeAlias = Any


class MaskedSamples(NamedTuple):
    """sb3-contrib's minibatch with the old parameters added."""

    observations: PyTorchObs
    actions: th.Tensor
    old_values: th.Tensor
    old_log_prob: th.Tensor
    advantages: th.Tensor
    returns: th.Tensor
    action_masks: th.Tensor
    old_parameters: Parameters


class WithMasks(WithParameters):
    """Adds the columns with the old parameters to sb3-contrib's maskable rollout buffers."""

    read_as: ClassVar[Mapping[type, type]] = {
        MaskableRolloutBufferSamples: MaskedSamples,
        MaskableDictRolloutBufferSamples: MaskedSamples,
    }


class Masked:
    """Evaluates a policy as sb3-contrib's MaskablePPO does.

    :param policy: the policy
    """

    policies: ClassVar[Sequence[type[BasePolicy]]] = (
        MaskableActorCriticPolicy,
        MaskableActorCriticCnnPolicy,
        MaskableMultiInputActorCriticPolicy,
    )
    buffers: ClassVar[Sequence[type[RolloutBuffer]]] = (MaskableRolloutBuffer, MaskableDictRolloutBuffer)
    with_parameters: ClassVar[type[WithParameters]] = WithMasks
    takes_masks: ClassVar[bool] = True

    def __init__(self, policy: Policy):
        self.policy = policy

    @classmethod
    def make_policy(cls, model: OnPolicyAlgorithm) -> BasePolicy:
        if model.use_sde:
            raise ArgumentError("use_sde=True has no effect on a policy with action masks: pass use_sde=False")
        check_maskable(model.action_space)
        make: Any = model.policy_class
        return make(model.observation_space, model.action_space, model.lr_schedule, **model.policy_kwargs)

    def buffer_arguments(self, model: OnPolicyAlgorithm) -> dict[str, Any]:
        return {}

    def acting(self, model: OnPolicyAlgorithm) -> "MaskedActing":
        return MaskedActing(self, Masks(model))

    def samples(self, read: Any) -> Samples:
        return Samples(*Samples.of(read)[:6], getattr(read, "old_parameters", None), read.action_masks)

    def evaluate(self, samples: Samples) -> Evaluated:
        actions = samples.actions
        if isinstance(self.policy.action_space, spaces.Discrete):
            actions = actions.long().flatten()
        # As in sb3-contrib, masks are always passed by name.
        values, log_prob, entropy = self.policy.evaluate_actions(
            samples.observations, actions, action_masks=samples.more
        )
        return Evaluated(values.flatten(), log_prob, entropy)

    def evaluate_values(self, samples: Samples) -> th.Tensor:
        return self.policy.predict_values(samples.observations).flatten()

    def evaluated_parameters(self, samples: Samples) -> tuple[ExactKL, Parameters]:
        return kl_and_parameters(self.left_by("evaluate_actions", samples.observations, samples.more))

    def distributions(self, buffer: RolloutBuffer) -> Iterator[Distribution]:
        assert isinstance(buffer, MaskableRolloutBuffer | MaskableDictRolloutBuffer)
        check_distribution(self)
        for where in chunks(buffer):
            masks = buffer.action_masks[where]
            yield self.policy.get_distribution(observations_at(buffer, where), action_masks=masks)

    def of_first_state(self, observations: PyTorchObs) -> tuple[Distribution, th.Tensor]:
        return self.policy.get_distribution(observations), self.policy.predict_values(observations)

    def left_by(self, method: str, observations: PyTorchObs, masks: object) -> Distribution:
        """Return the distributions that the last call of a policy method left behind, or else compute them again."""
        if leaves_distribution(self, method):
            return self.policy.action_dist
        return self.policy.get_distribution(observations, action_masks=masks)


class MaskedActing:
    """Acts with the masks that the environments return at each step.

    :param kind: evaluates the policy
    :param masks: the masks of the environments
    """

    def __init__(self, kind: Masked, masks: Masks):
        self._kind = kind
        self._policy = kind.policy
        self._masks = masks

    def act(self, observations: PyTorchObs, episode_starts: np.ndarray) -> Acted:
        masks = self._masks.now()
        actions, values, log_probs = self._policy(observations, action_masks=masks)
        kind, parameters = self._kind, None
        if has_distribution(kind):
            parameters = known_parameters(kind.left_by("forward", observations, masks))
        columns = {"action_masks": masks}
        return Acted(actions, values, log_probs, parameters, columns, seen=columns)

    def terminal_value(self, observation: PyTorchObs, env_index: int) -> th.Tensor:
        return self._policy.predict_values(observation)

    def last_values(self, observations: PyTorchObs, dones: np.ndarray) -> th.Tensor:
        return self._policy.predict_values(observations)
