"""Policies without memory: SB3's ``ActorCriticPolicy`` and its subclasses."""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import (
    ActorCriticCnnPolicy,
    ActorCriticPolicy,
    BasePolicy,
    MultiInputActorCriticPolicy,
)
from stable_baselines3.common.type_aliases import PyTorchObs

from sb3_ppo_variants.kl import ExactKL, Parameters, kl_and_parameters, known_parameters
from sb3_ppo_variants.policies.kind import Acted, Evaluated, check_distribution, has_distribution, leaves_distribution
from sb3_ppo_variants.rollouts.buffer import Samples, WithParameters, rollout_observations


class FeedForward:
    """Evaluates a policy as SB3's PPO does. The policy acts on observations alone.

    :param policy: the policy
    """

    policies: ClassVar[Sequence[type[BasePolicy]]] = (
        ActorCriticPolicy,
        ActorCriticCnnPolicy,
        MultiInputActorCriticPolicy,
    )
    buffers: ClassVar[Sequence[type[RolloutBuffer]]] = (RolloutBuffer, DictRolloutBuffer)
    with_parameters: ClassVar[type[WithParameters]] = WithParameters
    takes_masks: ClassVar[bool] = False

    def __init__(self, policy: ActorCriticPolicy):
        self.policy = policy

    @classmethod
    def make_policy(cls, model: OnPolicyAlgorithm) -> BasePolicy:
        make: Any = model.policy_class
        space, action_space = model.observation_space, model.action_space
        return make(space, action_space, model.lr_schedule, use_sde=model.use_sde, **model.policy_kwargs)

    def buffer_arguments(self, model: OnPolicyAlgorithm) -> dict[str, Any]:
        return {}

    def acting(self, model: OnPolicyAlgorithm) -> "FeedForward":
        return self

    def act(self, observations: PyTorchObs, episode_starts: np.ndarray) -> Acted:
        actions, values, log_probs = self.policy(observations)
        parameters = known_parameters(self._left_by("forward", observations)) if has_distribution(self) else None
        return Acted(actions, values, log_probs, parameters)

    def terminal_value(self, observation: PyTorchObs, env_index: int) -> th.Tensor:
        return self.policy.predict_values(observation)

    def last_values(self, observations: PyTorchObs, dones: np.ndarray) -> th.Tensor:
        return self.policy.predict_values(observations)

    def samples(self, read: Any) -> Samples:
        return read if isinstance(read, Samples) else Samples.of(read)

    def evaluate(self, samples: Samples) -> Evaluated:
        actions = samples.actions
        if isinstance(self.policy.action_space, spaces.Discrete):
            actions = actions.long().flatten()
        values, log_prob, entropy = self.policy.evaluate_actions(samples.observations, actions)
        return Evaluated(values.flatten(), log_prob, entropy)

    def evaluate_values(self, samples: Samples) -> th.Tensor:
        return self.policy.predict_values(samples.observations).flatten()

    def evaluated_parameters(self, samples: Samples) -> tuple[ExactKL, Parameters]:
        return kl_and_parameters(self._left_by("evaluate_actions", samples.observations))

    def distributions(self, buffer: RolloutBuffer) -> Iterator[Distribution]:
        check_distribution(self)
        return map(self.policy.get_distribution, rollout_observations(buffer))

    def of_first_state(self, observations: PyTorchObs) -> tuple[Distribution, th.Tensor]:
        return self.policy.get_distribution(observations), self.policy.predict_values(observations)

    def _left_by(self, method: str, observations: PyTorchObs) -> Distribution:
        if leaves_distribution(self, method):
            return self.policy.action_dist
        return self.policy.get_distribution(observations)
