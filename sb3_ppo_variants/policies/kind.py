"""The interface of policy kinds, which evaluate the steps of a rollout and minibatches."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.type_aliases import PyTorchObs

from sb3_ppo_variants.kl import ExactKL, MissingKLError, Parameters
from sb3_ppo_variants.rollouts.buffer import Samples, WithParameters

NOTHING: Mapping[str, Any] = {}


class Acted(NamedTuple):
    """What the policy computes for one step in every environment."""

    actions: th.Tensor
    """Shape ``(n_envs, ...)``."""
    values: th.Tensor
    """Shape ``(n_envs, 1)``."""
    log_probs: th.Tensor
    """Shape ``(n_envs,)``."""
    parameters: Parameters | None
    """Parameters of the distributions that the actions were drawn from; ``None`` if they have no known KL."""
    columns: Mapping[str, Any] = NOTHING
    """Arguments of the buffer's ``add`` in addition to SB3's, by name."""
    seen: Mapping[str, Any] = NOTHING
    """Entries of the callbacks' ``locals`` in addition to SB3's, by name."""


class Evaluated(NamedTuple):
    """A minibatch evaluated by the current policy, with one row per sample."""

    values: th.Tensor
    """Shape ``(batch,)``."""
    log_prob: th.Tensor
    """log pi(a|s), shape ``(batch,)``."""
    entropy: th.Tensor | None
    """Shape ``(batch,)``; ``None`` where it has no closed form."""


class Acting(Protocol):
    """A policy during one rollout, with the state that it needs in addition to observations. It needs no gradients."""

    def act(self, observations: PyTorchObs, episode_starts: np.ndarray) -> Acted:
        """Draw an action for each environment.

        :param episode_starts: whether an episode begins with these observations, shape ``(n_envs,)``
        """

    def terminal_value(self, observation: PyTorchObs, env_index: int) -> th.Tensor:
        """Return the value of the state in which the last step of :meth:`act` ended an episode, shape ``(1, 1)``."""

    def last_values(self, observations: PyTorchObs, dones: np.ndarray) -> th.Tensor:
        """Return the values of the states after the last step, shape ``(n_envs, 1)``.

        :param dones: whether the last step ended an episode, shape ``(n_envs,)``
        """


class PolicyKind(Protocol):
    """Evaluates a policy. All samples of a minibatch count equally: a kind that pads them leaves out the padding."""

    policies: ClassVar[Sequence[type[BasePolicy]]]
    """The policy classes for vectors, images and dictionaries."""
    buffers: ClassVar[Sequence[type[RolloutBuffer]]]
    """The rollout buffer classes for arrays and for dictionaries."""
    with_parameters: ClassVar[type[WithParameters]]
    """The class that adds the columns with the old parameters to the buffer classes."""
    takes_masks: ClassVar[bool]
    """Whether the policy takes action masks."""

    def __init__(self, policy: ActorCriticPolicy): ...

    @property
    def policy(self) -> ActorCriticPolicy:
        """The policy."""

    @classmethod
    def make_policy(cls, model: OnPolicyAlgorithm) -> BasePolicy:
        """Create the policy of a model, and the state that the model keeps for it between rollouts, if any."""

    def buffer_arguments(self, model: OnPolicyAlgorithm) -> dict[str, Any]:
        """Return the arguments of the buffer's constructor in addition to SB3's."""

    def acting(self, model: OnPolicyAlgorithm) -> Acting:
        """Begin a rollout of a model in its environments."""

    def samples(self, read: Any) -> Samples:
        """Convert a minibatch that the rollout buffer yields. Only observations, actions and ``more`` may be padded."""

    def evaluate(self, samples: Samples) -> Evaluated:
        """Evaluate a minibatch."""

    def evaluate_values(self, samples: Samples) -> th.Tensor:
        """Return only the values of a minibatch, shape ``(batch,)``."""

    def evaluated_parameters(self, samples: Samples) -> tuple[ExactKL, Parameters]:
        """Return the KL and the parameters of the distributions of these samples, right after :meth:`evaluate`."""

    def distributions(self, buffer: RolloutBuffer) -> Iterator[Distribution]:
        """Return the distributions in all states of a rollout in the order of its rows, in chunks.

        :param buffer: a full buffer, whether or not it has been read before
        :return: an iterator, which may yield the same object each time with different parameters
        """

    def of_first_state(self, observations: PyTorchObs) -> tuple[Distribution, th.Tensor]:
        """Return the distributions and the values, shape ``(n, 1)``, in initial states of episodes."""


def has_distribution(kind: PolicyKind) -> bool:
    """Return whether ``get_distribution`` belongs to the policy.

    A policy that overrides both methods of training may have networks of its own, about which an inherited
    ``get_distribution`` knows nothing.
    """
    cls, base = type(kind.policy), kind.policies[0]
    names = ("forward", "evaluate_actions", "get_distribution")
    forward, evaluate, get = (getattr(cls, name, None) is not getattr(base, name) for name in names)
    return get or not (forward and evaluate)


def leaves_distribution(kind: PolicyKind, method: str) -> bool:
    """Return whether a method of the policy leaves the distribution of ``get_distribution`` in ``action_dist``.

    SB3's and sb3-contrib's methods do, which saves a second forward pass. A policy that overrides one may not do so.
    """
    cls, base = type(kind.policy), kind.policies[0]
    names = (method, "get_distribution", "_get_action_dist_from_latent")
    return all(getattr(cls, name, None) is getattr(base, name) for name in names)


def check_distribution(kind: PolicyKind) -> None:
    """Check that the policy's distributions, and with them the KL, are known.

    :raises MissingKLError: if ``get_distribution`` does not belong to the policy
    """
    if not has_distribution(kind):
        raise MissingKLError(
            f"{type(kind.policy).__name__} overrides forward and evaluate_actions, but not get_distribution, so its KL "
            "is not known: override get_distribution too"
        )
