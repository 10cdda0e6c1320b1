"""Policies with LSTMs: sb3-contrib's ``RecurrentActorCriticPolicy`` and its subclasses."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import torch as th
from gymnasium import spaces
from sb3_contrib.common.recurrent.buffers import RecurrentDictRolloutBuffer, RecurrentRolloutBuffer
from sb3_contrib.common.recurrent.policies import (
    RecurrentActorCriticCnnPolicy,
    RecurrentActorCriticPolicy,
    RecurrentMultiInputActorCriticPolicy,
)
from sb3_contrib.common.recurrent.type_aliases import (
    RecurrentDictRolloutBufferSamples,
    RecurrentRolloutBufferSamples,
    RNNStates,
)
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import PyTorchObs

from sb3_ppo_variants.arguments.rules import COUNT, FLAG, Rule
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.kl import ExactKL, Parameters, kl_and_parameters, known_parameters
from sb3_ppo_variants.policies.feed_forward import FeedForward
from sb3_ppo_variants.policies.kind import Acted, Evaluated, check_distribution, has_distribution, leaves_distribution
from sb3_ppo_variants.rollouts.buffer import ROWS_AT_ONCE, Samples, WithParameters, in_rows, observations_at, where_in

# The hidden and the cell states of an LSTM, each of shape (layers, sequences, size).
States: TypeAlias = tuple[th.Tensor, ...]
# A RecurrentActorCriticPolicy. Its type hints allow neither dictionary observations nor these tuples.
Policy: TypeAlias = Any


class SequenceSamples(NamedTuple):
    """sb3-contrib's minibatch of padded sequences with the old parameters of their steps added, without padding."""

    observations: PyTorchObs
    actions: th.Tensor
    old_values: th.Tensor
    old_log_prob: th.Tensor
    advantages: th.Tensor
    returns: th.Tensor
    lstm_states: RNNStates
    episode_starts: th.Tensor
    mask: th.Tensor
    old_parameters: Parameters


class Sequences(NamedTuple):
    """The inputs of the policy for a minibatch in addition to the padded observations and actions."""

    lstm_states: RNNStates
    """The states at the beginning of each sequence."""
    episode_starts: th.Tensor
    """Whether an episode begins with each step, with padding."""
    steps: th.Tensor
    """True for steps and False for padding."""


class WithSequences(WithParameters):
    """Adds the columns with the old parameters to sb3-contrib's recurrent rollout buffers."""

    read_as: ClassVar[Mapping[type, type]] = {
        RecurrentRolloutBufferSamples: SequenceSamples,
        RecurrentDictRolloutBufferSamples: SequenceSamples,
    }


class Recurrent:
    """Evaluates a policy as sb3-contrib's RecurrentPPO does.

    A minibatch consists of padded sequences of steps. As in sb3-contrib, the policy evaluates the padding too. The
    results leave it out.

    :param policy: the policy
    """

    policies: ClassVar[Sequence[type[BasePolicy]]] = (
        RecurrentActorCriticPolicy,
        RecurrentActorCriticCnnPolicy,
        RecurrentMultiInputActorCriticPolicy,
    )
    buffers: ClassVar[Sequence[type[RolloutBuffer]]] = (RecurrentRolloutBuffer, RecurrentDictRolloutBuffer)
    with_parameters: ClassVar[type[WithParameters]] = WithSequences
    takes_masks: ClassVar[bool] = False

    def __init__(self, policy: Policy):
        self.policy = policy

    @classmethod
    def make_policy(cls, model: OnPolicyAlgorithm) -> BasePolicy:
        if model.policy_class.__init__ in [policy.__init__ for policy in cls.policies]:
            _check_lstm(model.policy_kwargs)
        policy = FeedForward.make_policy(model).to(model.device)
        model._last_lstm_states = _zeros(policy, model.n_envs)  # type: ignore[attr-defined]
        return policy

    def buffer_arguments(self, model: OnPolicyAlgorithm) -> dict[str, Any]:
        n_layers, _, size = self.policy.lstm_hidden_state_shape
        return {"hidden_state_shape": (model.n_steps, n_layers, model.n_envs, size)}

    def acting(self, model: OnPolicyAlgorithm) -> "RecurrentActing":
        return RecurrentActing(self, model)

    def samples(self, read: Any) -> Samples:
        steps = read.mask > 1e-8
        return Samples(
            read.observations,
            read.actions,
            read.old_values[steps],
            read.old_log_prob[steps],
            read.advantages[steps],
            read.returns[steps],
            getattr(read, "old_parameters", None),
            Sequences(read.lstm_states, read.episode_starts, steps),
        )

    @staticmethod
    def without_starts(samples: Samples) -> Samples:
        """Return the same minibatch with no episode starts, because sb3-contrib loops over all steps if there are any.

        Sequences are cut where an episode begins, so only their first steps can be episode starts. Such sequences get
        initial states of zero instead, which has the same effect.
        """
        states, starts, steps = _sequences(samples)
        goes_on = (1.0 - starts.reshape(states.pi[0].shape[1], -1)[:, :1])[None]
        kept = (tuple(goes_on * state for state in of_lstm) for of_lstm in states)
        return samples._replace(more=Sequences(RNNStates(*kept), th.zeros_like(starts), steps))

    def evaluate(self, samples: Samples) -> Evaluated:
        states, starts, steps = _sequences(samples)
        actions = samples.actions
        if isinstance(self.policy.action_space, spaces.Discrete):
            actions = actions.long().flatten()
        elif isinstance(self.policy.action_space, spaces.MultiBinary):
            # Unlike SB3's buffers, sb3-contrib's return integers, for which there is no log-probability.
            actions = actions.float()
        values, log_prob, entropy = self.policy.evaluate_actions(samples.observations, actions, states, starts)
        return Evaluated(values.flatten()[steps], log_prob[steps], None if entropy is None else entropy[steps])

    def evaluate_values(self, samples: Samples) -> th.Tensor:
        states, starts, steps = _sequences(samples)
        return self.policy.predict_values(samples.observations, states.vf, starts).flatten()[steps]

    def evaluated_parameters(self, samples: Samples) -> tuple[ExactKL, Parameters]:
        states, starts, steps = _sequences(samples)
        distribution = self.left_by("evaluate_actions", samples.observations, states, starts)
        kl, parameters = kl_and_parameters(distribution)
        return kl, tuple(column[steps] for column in parameters)

    def distributions(self, buffer: RolloutBuffer) -> Iterator[Distribution]:
        assert isinstance(buffer, RecurrentRolloutBuffer | RecurrentDictRolloutBuffer)
        check_distribution(self)
        starts = in_rows(buffer, buffer.episode_starts).reshape(buffer.n_envs, -1)
        for env_index, of_env in enumerate(starts):
            states = self._first_states(buffer, env_index)
            # Cut the steps where episodes begin, so that the LSTM can be called once for each piece.
            edges = sorted({*range(0, len(of_env), ROWS_AT_ONCE), *np.flatnonzero(of_env).tolist(), len(of_env)})
            for start, end in pairwise(edges):
                if of_env[start]:
                    states = tuple(map(th.zeros_like, states))
                where = where_in(buffer, env_index * len(of_env) + np.arange(start, end))
                none_begin = th.zeros(end - start, device=states[0].device)
                distribution, states = self.policy.get_distribution(observations_at(buffer, where), states, none_begin)
                yield distribution

    def _first_states(self, buffer: RecurrentRolloutBuffer | RecurrentDictRolloutBuffer, env_index: int) -> States:
        """Return the actor's states before the first step of an environment."""
        row = env_index * buffer.buffer_size
        both = (buffer.hidden_states_pi, buffer.cell_states_pi)
        # Until the buffer is first read, the dimensions of these arrays begin with steps, layers, environments.
        rows = (array[row] if buffer.generator_ready else array[0, :, env_index] for array in both)
        return tuple(buffer.to_torch(array)[:, None].contiguous() for array in rows)

    def of_first_state(self, observations: PyTorchObs) -> tuple[Distribution, th.Tensor]:
        states, starts = _zeros(self.policy, 1), th.ones(1, device=self.policy.device)
        distribution, _ = self.policy.get_distribution(observations, states.pi, starts)
        return distribution, self.policy.predict_values(observations, states.vf, starts)

    def left_by(self, method: str, observations: PyTorchObs, states: RNNStates, starts: th.Tensor) -> Distribution:
        """Return the distributions that the last call of a policy method left behind, or else compute them again."""
        if leaves_distribution(self, method):
            return self.policy.action_dist
        distribution, _ = self.policy.get_distribution(observations, states.pi, starts)
        return distribution


class RecurrentActing:
    """Acts and keeps the states of the LSTMs between steps, and in ``model._last_lstm_states`` between rollouts.

    :param kind: evaluates the policy
    :param model: the policy's model
    """

    def __init__(self, kind: Recurrent, model: OnPolicyAlgorithm):
        self._kind = kind
        self._policy = kind.policy
        self._model = model
        self._states: RNNStates = model._last_lstm_states  # type: ignore[attr-defined]

    def act(self, observations: PyTorchObs, episode_starts: np.ndarray) -> Acted:
        before = self._model._last_lstm_states = self._states  # type: ignore[attr-defined]
        starts = self._starts(episode_starts)
        actions, values, log_probs, self._states = self._policy(observations, before, starts)
        kind, parameters = self._kind, None
        if has_distribution(kind):
            parameters = known_parameters(kind.left_by("forward", observations, before, starts))
        seen = {"lstm_states": self._states, "episode_starts": starts}
        return Acted(actions, values, log_probs, parameters, {"lstm_states": before}, seen)

    def terminal_value(self, observation: PyTorchObs, env_index: int) -> th.Tensor:
        states = tuple(state[:, env_index : env_index + 1].contiguous() for state in self._states.vf)
        return self._policy.predict_values(observation, states, self._starts(np.zeros(1)))

    def last_values(self, observations: PyTorchObs, dones: np.ndarray) -> th.Tensor:
        self._model._last_lstm_states = self._states  # type: ignore[attr-defined]
        return self._policy.predict_values(observations, self._states.vf, self._starts(dones))

    def _starts(self, episode_starts: np.ndarray) -> th.Tensor:
        return th.tensor(episode_starts, dtype=th.float32, device=self._policy.device)


LSTM_RULES: Mapping[str, Rule] = {
    "lstm_hidden_size": COUNT,
    "n_lstm_layers": COUNT,
    "shared_lstm": FLAG,
    "enable_critic_lstm": FLAG,
    # The other options of nn.LSTM change the shapes of its inputs and outputs.
    "lstm_kwargs": Rule(
        "a dict that may have 'bias' and 'dropout'", lambda v: isinstance(v, dict) and v.keys() <= {"bias", "dropout"}
    ).or_none(),
}


def _check_lstm(arguments: Mapping[str, Any]) -> None:
    """Check the entries of ``policy_kwargs`` about LSTMs.

    :raises ArgumentError: if an entry is not allowed
    """
    for name, rule in LSTM_RULES.items():
        if name in arguments:
            rule.check(f"policy_kwargs[{name!r}]", arguments[name])
    if not arguments.get("shared_lstm", False):
        return
    if arguments.get("enable_critic_lstm", True):
        raise ArgumentError(
            "policy_kwargs: shared_lstm=True needs enable_critic_lstm=False, because actor and critic share one LSTM"
        )
    if not arguments.get("share_features_extractor", True):
        raise ArgumentError(
            "policy_kwargs: shared_lstm=True needs share_features_extractor=True, because the shared LSTM has one input"
        )


def _sequences(samples: Samples) -> Sequences:
    assert isinstance(samples.more, Sequences)
    return samples.more


def _zeros(policy: Policy, n_envs: int) -> RNNStates:
    n_layers, _, size = policy.lstm_hidden_state_shape
    of_actor, of_critic = (
        tuple(th.zeros(n_layers, n_envs, size, device=policy.device) for _ in range(2)) for _ in range(2)
    )
    return RNNStates(of_actor, of_critic)
