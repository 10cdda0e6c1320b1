"""What a policy kind is: how a step of a rollout and a minibatch are evaluated."""

from typing import NamedTuple, Protocol

import torch as th
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import PyTorchObs

from sb3_ppo_variants.kl import Parameters
from sb3_ppo_variants.rollouts.buffer import Samples


class Acted(NamedTuple):
    """One step of every environment."""

    actions: th.Tensor
    """Shape ``(n_envs, ...)``."""
    values: th.Tensor
    """Shape ``(n_envs, 1)``."""
    log_probs: th.Tensor
    """Shape ``(n_envs,)``."""
    parameters: Parameters | None
    """Those of the distributions that the actions were drawn from; ``None`` if they have no known KL."""


class Evaluated(NamedTuple):
    """A minibatch under the policy as it is now, a row for each of its samples."""

    values: th.Tensor
    """Shape ``(batch,)``."""
    log_prob: th.Tensor
    """log pi(a|s), shape ``(batch,)``."""
    entropy: th.Tensor | None
    """Shape ``(batch,)``; ``None`` where it has no closed form."""


class PolicyKind(Protocol):
    """Evaluates a policy. The samples of a minibatch count alike: a kind that pads them leaves the padding out."""

    policy: ActorCriticPolicy

    def act(self, observations: PyTorchObs) -> Acted:
        """Draw an action for each environment."""

    def predict_values(self, observations: PyTorchObs) -> th.Tensor:
        """The values of states, shape ``(n, 1)``."""

    def evaluate(self, samples: Samples) -> Evaluated:
        """Evaluate a minibatch."""

    def evaluate_values(self, samples: Samples) -> th.Tensor:
        """The values of a minibatch alone, shape ``(batch,)``."""

    def evaluated_distribution(self, samples: Samples) -> Distribution:
        """The distributions of actions that :meth:`evaluate` found last, for these samples."""

    def distribution(self, observations: PyTorchObs) -> Distribution:
        """The distributions of actions in states."""
