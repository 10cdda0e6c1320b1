"""What a policy kind is: how a step of a rollout and a minibatch are evaluated."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.type_aliases import PyTorchObs

from sb3_ppo_variants.kl import ExactKL, Parameters
from sb3_ppo_variants.rollouts.buffer import Samples, WithParameters

NOTHING: Mapping[str, Any] = {}


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
    columns: Mapping[str, Any] = NOTHING
    """What the buffer's ``add`` takes besides SB3's arguments, by its names."""
    seen: Mapping[str, Any] = NOTHING
    """What callbacks find in their ``locals`` besides SB3's names."""


class Evaluated(NamedTuple):
    """A minibatch under the policy as it is now, a row for each of its samples."""

    values: th.Tensor
    """Shape ``(batch,)``."""
    log_prob: th.Tensor
    """log pi(a|s), shape ``(batch,)``."""
    entropy: th.Tensor | None
    """Shape ``(batch,)``; ``None`` where it has no closed form."""


class Acting(Protocol):
    """A policy during one rollout, with what it needs to know besides observations. No gradients are asked for."""

    def act(self, observations: PyTorchObs, episode_starts: np.ndarray) -> Acted:
        """Draw an action for each environment.

        :param episode_starts: whether an episode begins with these observations, shape ``(n_envs,)``
        """

    def terminal_value(self, observation: PyTorchObs, env_index: int) -> th.Tensor:
        """The value of the state in which the step that :meth:`act` made last ended an episode, shape ``(1, 1)``."""

    def last_values(self, observations: PyTorchObs, dones: np.ndarray) -> th.Tensor:
        """The values of the states after the last step, shape ``(n_envs, 1)``.

        :param dones: whether the last step ended an episode, shape ``(n_envs,)``
        """


class PolicyKind(Protocol):
    """Evaluates a policy. The samples of a minibatch count alike: a kind that pads them leaves the padding out."""

    policies: ClassVar[Sequence[type[BasePolicy]]]
    """The policies for vectors, images and dictionaries."""
    buffers: ClassVar[Sequence[type[RolloutBuffer]]]
    """The classes of rollout buffers, for arrays and for dictionaries."""
    with_parameters: ClassVar[type[WithParameters]]
    """Adds the columns with the old parameters to these classes."""
    takes_masks: ClassVar[bool]
    """Whether actions are masked."""

    def __init__(self, policy: ActorCriticPolicy): ...

    @property
    def policy(self) -> ActorCriticPolicy:
        """The policy."""

    @classmethod
    def make_policy(cls, model: OnPolicyAlgorithm) -> BasePolicy:
        """Make the policy of a model."""

    def buffer_arguments(self, model: OnPolicyAlgorithm) -> dict[str, Any]:
        """What the constructor of a buffer takes besides SB3's arguments."""

    def acting(self, model: OnPolicyAlgorithm) -> Acting:
        """Begin a rollout of a model in its environments."""

    def samples(self, read: Any) -> Samples:
        """A minibatch, without padding, of what the rollout buffer makes of it."""

    def evaluate(self, samples: Samples) -> Evaluated:
        """Evaluate a minibatch."""

    def evaluate_values(self, samples: Samples) -> th.Tensor:
        """The values of a minibatch alone, shape ``(batch,)``."""

    def evaluated_parameters(self, samples: Samples) -> tuple[ExactKL, Parameters]:
        """The KL and the parameters of the distributions that :meth:`evaluate` found last, for these samples."""

    def distributions(self, buffer: RolloutBuffer) -> Iterator[Distribution]:
        """The distributions in all states of a rollout in the order of its rows, in chunks.

        :param buffer: a full buffer, read before or not
        :return: each may be the same object, with other parameters
        """

    def of_first_state(self, observations: PyTorchObs) -> tuple[Distribution, th.Tensor]:
        """The distributions and the values, shape ``(n, 1)``, in states that episodes begin with."""
