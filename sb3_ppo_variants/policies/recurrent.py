"""Policies with LSTMs, sb3-contrib's ``RecurrentActorCriticPolicy`` and its subclasses, or with GRUs instead."""

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import torch as th
from sb3_contrib.common.recurrent.buffers import RecurrentDictRolloutBuffer, RecurrentRolloutBuffer
from sb3_contrib.common.recurrent.policies import (
    RecurrentActorCriticCnnPolicy,
    RecurrentActorCriticPolicy,
    RecurrentMultiInputActorCriticPolicy,
)
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from torch import nn
from torch.optim import Optimizer

from sb3_ppo_variants.arguments import COUNT, FLAG, Rule, Values
from sb3_ppo_variants.kl import Divergences, Parameters
from sb3_ppo_variants.layout import AnySpace
from sb3_ppo_variants.policies.head import Asymmetric, BoxActions, HybridActions
from sb3_ppo_variants.policies.kind import POLICY_RULES, Acted, ActingPolicy, Evaluated, More, PolicyKind, register_kind
from sb3_ppo_variants.rollout import ROWS_AT_ONCE, Read, Samples, in_rows, inputs_at

# The hidden and the cell states of an LSTM, each of shape (layers, sequences, size).
HiddenStates: TypeAlias = tuple[th.Tensor, ...]
# The columns of a minibatch that lose their padding before the policy evaluates it.
PADDED = ("old_values", "old_log_prob", "advantages", "returns")


class PaddedSequences(NamedTuple):
    """The inputs of the policy in addition to the observations and actions, which may be padded."""

    lstm_states: RNNStates
    """The states at the beginning of each sequence."""
    episode_starts: th.Tensor
    """Whether an episode begins with each step, with padding."""
    steps: th.Tensor | None = None
    """True for steps and False for padding; ``None`` if there is no padding."""
    action_masks: th.Tensor | np.ndarray | None = None
    """Which actions are allowed in each step, with padding; ``None`` if the policy takes no masks."""


class GRULikeLSTM(nn.GRU):
    """PyTorch's GRU with the states of an LSTM, as sb3-contrib's policies and buffers pass them on.

    A GRU has no cell states. They keep their shape, and their value of zero.
    """

    def forward(  # type: ignore[override]
        self, input: th.Tensor, hx: tuple[th.Tensor, th.Tensor]
    ) -> tuple[th.Tensor, tuple[th.Tensor, th.Tensor]]:
        """Compute whole sequences.

        :param input: shape ``(steps, sequences, features)``
        :param hx: the hidden states and the unused cell states, each of shape ``(layers, sequences, size)``
        :return: the outputs of the last layer, shape ``(steps, sequences, size)``, and the states after the last step
        """
        output, hidden = super().forward(input, hx[0])
        return output, (hidden, hx[1])


def use_gru(policy: ActorCriticPolicy, lr_schedule: Schedule) -> None:
    """Replace the LSTMs of a new ``RecurrentActorCriticPolicy``, and its optimizer."""
    for name in ("lstm_actor", "lstm_critic"):
        lstm = getattr(policy, name)
        if lstm is not None:
            sizes = lstm.input_size, lstm.hidden_size, lstm.num_layers
            setattr(policy, name, GRULikeLSTM(*sizes, bias=lstm.bias, dropout=lstm.dropout))
    optimizer_class = policy.optimizer_class
    policy.optimizer = optimizer_class(policy.parameters(), lr=lr_schedule(1), **policy.optimizer_kwargs)  # type: ignore[call-arg]


class AsymmetricLstmPolicy(Asymmetric, RecurrentMultiInputActorCriticPolicy):
    """sb3-contrib's policy with LSTMs, whose actor and critic may see different observations."""

    # The layers after the LSTMs, whose outputs have one size.
    _build_mlp_extractor = RecurrentActorCriticPolicy._build_mlp_extractor

    def __init__(self, observation_space: AnySpace, action_space: AnySpace, lr_schedule: Schedule, **arguments: Any):
        super().__init__(observation_space, action_space, lr_schedule, **arguments)
        if not self.is_asymmetric:
            return
        # What sb3-contrib has made takes as many features as the actor's LSTM.
        n_features, (n_layers, _, size) = self.vf_features_extractor.features_dim, self.lstm_hidden_state_shape
        if self.lstm_critic is None:
            self.critic = nn.Linear(n_features, size)
        else:
            self.lstm_critic = nn.LSTM(n_features, size, n_layers, **self.lstm_kwargs)
        make: Callable[..., Optimizer] = self.optimizer_class
        self.optimizer = make(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)


class BoxLstmPolicy(BoxActions, AsymmetricLstmPolicy):
    """sb3-contrib's policy with a named distribution of continuous actions."""


class HybridLstmPolicy(HybridActions, AsymmetricLstmPolicy):
    """sb3-contrib's policy for actions that have several parts."""


LSTM_RULES: Mapping[str, Rule] = {
    **POLICY_RULES,
    "memory": Rule("'lstm' or 'gru'", lambda v: v in ("lstm", "gru")),
    "lstm_hidden_size": COUNT,
    "n_lstm_layers": COUNT,
    "shared_lstm": FLAG,
    "enable_critic_lstm": FLAG,
    # The other options of nn.LSTM change the shapes of its inputs and outputs.
    "lstm_kwargs": Rule(
        "a dict that may have 'bias' and 'dropout'", lambda v: isinstance(v, dict) and v.keys() <= {"bias", "dropout"}
    ).or_none(),
}


@register_kind
class Recurrent(PolicyKind):
    """Evaluates a policy as sb3-contrib's RecurrentPPO does.

    A minibatch consists of padded sequences of steps. As in sb3-contrib, the policy evaluates the padding too. The
    results leave it out.
    """

    policies = (RecurrentActorCriticPolicy, RecurrentActorCriticCnnPolicy, RecurrentMultiInputActorCriticPolicy)
    aliases = ("MlpLstmPolicy", "CnnLstmPolicy", "MultiInputLstmPolicy")
    asymmetric: ClassVar[type[BasePolicy]] = AsymmetricLstmPolicy
    box_head: ClassVar[type[BasePolicy]] = BoxLstmPolicy
    hybrid_head: ClassVar[type[BasePolicy]] = HybridLstmPolicy
    buffers = (RecurrentRolloutBuffer, RecurrentDictRolloutBuffer)
    rules = LSTM_RULES
    has_memory = True

    @classmethod
    def make_policy(
        cls, make: Callable[..., ActorCriticPolicy], model: OnPolicyAlgorithm, arguments: Values
    ) -> ActorCriticPolicy:
        memory = arguments.pop("memory", "lstm") if cls.has_sb3s_constructor(model.policy_class) else "lstm"
        policy = super().make_policy(make, model, arguments)
        if memory == "gru":
            use_gru(policy, model.lr_schedule)
        model._last_lstm_states = _zeros(policy.to(model.device), model.n_envs)  # type: ignore[attr-defined]
        return policy

    def buffer_arguments(self, model: OnPolicyAlgorithm) -> Values:
        n_layers, _, size = self.policy.lstm_hidden_state_shape
        shape = model.n_steps, n_layers, model.n_envs, size
        return {**super().buffer_arguments(model), "hidden_state_shape": shape}

    def acting(self, model: OnPolicyAlgorithm) -> "RecurrentActing":
        return RecurrentActing(self, model)

    def samples(self, read: Read, rows: np.ndarray | None) -> Samples:
        samples, steps = super().samples(read, rows), read.mask > 1e-8
        masks: More = samples.more
        columns = {name: getattr(samples, name)[steps] for name in PADDED}
        return samples._replace(**columns, more=PaddedSequences(read.lstm_states, read.episode_starts, steps, masks))

    @staticmethod
    def without_starts(samples: Samples) -> Samples:
        """Make the same minibatch with no episode starts, because sb3-contrib loops over all steps if there are any.

        Sequences are cut where an episode begins, so only their first steps can be episode starts. Such sequences get
        initial states of zero instead, which has the same effect.
        """
        sequences = _sequences(samples)
        states, starts = sequences.lstm_states, sequences.episode_starts
        goes_on = (1.0 - starts.reshape(states.pi[0].shape[1], -1)[:, :1])[None]
        kept = (tuple(goes_on * state for state in of_lstm) for of_lstm in states)
        begun = sequences._replace(lstm_states=RNNStates(*kept), episode_starts=th.zeros_like(starts))
        return samples._replace(more=begun)

    def evaluate(self, samples: Samples) -> Evaluated:
        (values, log_prob, entropy), steps = super().evaluate(samples), _sequences(samples).steps
        return Evaluated(values[steps], log_prob[steps], None if entropy is None else entropy[steps])

    def evaluate_values(self, samples: Samples) -> th.Tensor:
        return super().evaluate_values(samples)[_sequences(samples).steps]

    def evaluated_parameters(self, samples: Samples) -> tuple[Divergences, Parameters]:
        divergences, parameters = super().evaluated_parameters(samples)
        return divergences, tuple(column[_sequences(samples).steps] for column in parameters)

    def arguments(self, more: PaddedSequences) -> Values:
        masks = {} if more.action_masks is None else {"action_masks": more.action_masks}
        return {"lstm_states": more.lstm_states, "episode_starts": more.episode_starts, **masks}

    def distribution(self, observations: PyTorchObs, more: More = None) -> Distribution:
        return self._distribution_and_states(observations, more)[0]

    def _distribution_and_states(
        self, observations: PyTorchObs, more: PaddedSequences
    ) -> tuple[Distribution, HiddenStates]:
        given = {**self.arguments(more), "lstm_states": more.lstm_states.pi}
        returned: tuple[Distribution, HiddenStates] = self.policy.get_distribution(observations, **given)
        return returned

    def values(self, observations: PyTorchObs, more: More = None) -> th.Tensor:
        values: th.Tensor = self.policy.predict_values(observations, more.lstm_states.vf, more.episode_starts)
        return values

    def distributions(self, buffer: RolloutBuffer) -> Iterator[Distribution]:
        assert isinstance(buffer, RecurrentRolloutBuffer | RecurrentDictRolloutBuffer)
        self.check_kl()
        starts = in_rows(buffer, buffer.episode_starts).reshape(buffer.n_envs, -1)
        for env_index, of_env in enumerate(starts):
            states = self._first_states(buffer, env_index)
            # Cut the steps where episodes begin, so that the LSTM can be called once for each piece.
            edges = sorted({*range(0, len(of_env), ROWS_AT_ONCE), *np.flatnonzero(of_env).tolist(), len(of_env)})
            for start, end in pairwise(edges):
                if of_env[start]:
                    states = tuple(map(th.zeros_like, states))
                observations, masks = inputs_at(buffer, env_index * len(of_env) + np.arange(start, end))
                none_begin = th.zeros(end - start, device=states[0].device)
                steps = PaddedSequences(RNNStates(states, states), none_begin, action_masks=masks)
                distribution, states = self._distribution_and_states(observations, steps)
                yield distribution

    def _first_states(
        self, buffer: RecurrentRolloutBuffer | RecurrentDictRolloutBuffer, env_index: int
    ) -> HiddenStates:
        """Read the actor's states before the first step of an environment."""
        row = env_index * buffer.buffer_size
        both = (buffer.hidden_states_pi, buffer.cell_states_pi)
        # Until the buffer is first read, the dimensions of these arrays begin with steps, layers, environments.
        rows = (array[row] if buffer.generator_ready else array[0, :, env_index] for array in both)
        return tuple(buffer.to_torch(array)[:, None].contiguous() for array in rows)

    def of_first_state(self, observations: PyTorchObs) -> tuple[Distribution, th.Tensor]:
        first = PaddedSequences(_zeros(self.policy, 1), th.ones(1, device=self.policy.device))
        return self.distribution(observations, first), self.values(observations, first)


class RecurrentActing(ActingPolicy):
    """Acts and keeps the states of the LSTMs between steps, and in ``model._last_lstm_states`` between rollouts.

    :param kind: evaluates the policy
    :param model: the policy's model
    """

    def __init__(self, kind: Recurrent, model: OnPolicyAlgorithm):
        super().__init__(kind, model)
        # Where an episode begins, states are multiplied by 0, which leaves those that are not finite. An error has
        # ended training then, after which episodes begin anew.
        states: RNNStates = model._last_lstm_states  # type: ignore[attr-defined]
        begins = th.as_tensor(model._last_episode_starts, device=kind.policy.device).bool()[None, :, None]
        kept = (tuple(th.where(begins & ~state.isfinite(), 0.0, state) for state in of_lstm) for of_lstm in states)
        self._states = RNNStates(*kept)

    def act(self, observations: PyTorchObs, episode_starts: np.ndarray) -> Acted:
        self._model._last_lstm_states = self._states  # type: ignore[attr-defined]
        masks = None if self._masks is None else self._masks.now(self._model.env)
        before = self._with_starts(self._states, episode_starts)._replace(action_masks=masks)
        given = self._kind.arguments(before)
        actions, values, log_probs, self._states = self._kind.policy(observations, **given)
        parameters = self._kind.acted_parameters()
        columns = {name: value for name, value in given.items() if name != "episode_starts"}
        return Acted(actions, values, log_probs, parameters, columns, {**given, "lstm_states": self._states})

    def terminal_value(self, observation: PyTorchObs, env_index: int) -> th.Tensor:
        critic = tuple(state[:, env_index : env_index + 1].contiguous() for state in self._states.vf)
        return self._kind.values(observation, self._with_starts(RNNStates(critic, critic), np.zeros(1)))

    def last_values(self, observations: PyTorchObs, dones: np.ndarray) -> th.Tensor:
        self._model._last_lstm_states = self._states  # type: ignore[attr-defined]
        return self._kind.values(observations, self._with_starts(self._states, dones))

    def _with_starts(self, states: RNNStates, episode_starts: np.ndarray) -> PaddedSequences:
        return PaddedSequences(states, th.tensor(episode_starts, dtype=th.float32, device=self._kind.policy.device))


def _sequences(samples: Samples) -> PaddedSequences:
    assert isinstance(samples.more, PaddedSequences)
    return samples.more


def _zeros(policy: Any, n_envs: int) -> RNNStates:
    n_layers, _, size = policy.lstm_hidden_state_shape
    of_actor, of_critic = (
        tuple(th.zeros(n_layers, n_envs, size, device=policy.device) for _ in range(2)) for _ in range(2)
    )
    return RNNStates(of_actor, of_critic)
