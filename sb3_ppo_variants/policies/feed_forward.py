"""Policies without memory: SB3's ``ActorCriticPolicy`` and those derived from it."""

import torch as th
from gymnasium import spaces
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import PyTorchObs

from sb3_ppo_variants.kl import known_parameters
from sb3_ppo_variants.policies.kind import Acted, Evaluated
from sb3_ppo_variants.rollouts.buffer import Samples


class FeedForward:
    """How SB3's PPO evaluates a policy.

    :param policy: the policy
    """

    def __init__(self, policy: ActorCriticPolicy):
        self.policy = policy

    def act(self, observations: PyTorchObs) -> Acted:
        actions, values, log_probs = self.policy(observations)
        return Acted(actions, values, log_probs, known_parameters(self._left_by("forward", observations)))

    def predict_values(self, observations: PyTorchObs) -> th.Tensor:
        return self.policy.predict_values(observations)

    def evaluate(self, samples: Samples) -> Evaluated:
        actions = samples.actions
        if isinstance(self.policy.action_space, spaces.Discrete):
            actions = actions.long().flatten()
        values, log_prob, entropy = self.policy.evaluate_actions(samples.observations, actions)
        return Evaluated(values.flatten(), log_prob, entropy)

    def evaluate_values(self, samples: Samples) -> th.Tensor:
        return self.policy.predict_values(samples.observations).flatten()

    def evaluated_distribution(self, samples: Samples) -> Distribution:
        return self._left_by("evaluate_actions", samples.observations)

    def distribution(self, observations: PyTorchObs) -> Distribution:
        return self.policy.get_distribution(observations)

    def _left_by(self, method: str, observations: PyTorchObs) -> Distribution:
        # What SB3's methods compute they leave in action_dist, which saves a second pass of the policy. A policy that
        # replaces them may not.
        cls = type(self.policy)
        if all(
            getattr(cls, name, None) is getattr(ActorCriticPolicy, name)
            for name in (method, "_get_action_dist_from_latent")
        ):
            return self.policy.action_dist
        return self.policy.get_distribution(observations)
