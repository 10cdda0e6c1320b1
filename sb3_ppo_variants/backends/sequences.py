"""LSTMs over whole sequences.

If an episode begins in a minibatch, sb3-contrib calls the LSTM once per step, although PyTorch's LSTM is built for
sequences. Here one call processes all sequences of a minibatch. In rollouts PyTorch's LSTM cell processes single steps.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from torch import nn

from sb3_ppo_variants.backends import obstacles
from sb3_ppo_variants.backends.images import fused
from sb3_ppo_variants.backends.reference import Minibatches, Reference, TorchActor, TorchUpdate
from sb3_ppo_variants.backends.views import view_of
from sb3_ppo_variants.policies.kind import PolicyKind
from sb3_ppo_variants.rollouts.buffer import Samples, with_parameters
from sb3_ppo_variants.rollouts.loop import Actor
from sb3_ppo_variants.updates.plan import UpdatePlan

if TYPE_CHECKING:
    from sb3_ppo_variants.policies.recurrent import Recurrent

# The hidden and cell states of an LSTM.
States: TypeAlias = tuple[th.Tensor, th.Tensor]
# Methods of RecurrentActorCriticPolicy that this backend relies on. A subclass may override the others.
RELIED_ON = (
    "forward",
    "evaluate_actions",
    "get_distribution",
    "predict_values",
    "extract_features",
    "_process_sequence",
    "_get_action_dist_from_latent",
)


def recurrent(kind: PolicyKind) -> "Recurrent | None":
    """Return the policy kind if it is the one for LSTMs, else ``None``."""
    return cast("Recurrent", kind) if kind.has_memory else None


def _policy_obstacle(kind: "Recurrent") -> str | None:
    policy, cls, contribs = kind.policy, type(kind.policy), kind.policies[0]
    for method in RELIED_ON:
        if getattr(cls, method) is not getattr(contribs, method) or method in vars(policy):
            return f"{cls.__name__} overrides {method}"
    for lstm in (policy.lstm_actor, policy.lstm_critic):
        if lstm is None:
            continue
        if type(lstm) is not nn.LSTM or lstm.bidirectional or lstm.proj_size > 0 or lstm.batch_first:
            return f"the recurrent layer is a {lstm}"
        if lstm.dropout > 0:
            return "the LSTM has dropout"
        if lstm._forward_hooks or lstm._forward_pre_hooks or lstm._backward_hooks or lstm._backward_pre_hooks:
            return "the LSTM has hooks"
    return None


def _by_cells(policy: ActorCriticPolicy) -> ActorCriticPolicy:
    """Return a view of a policy that computes single steps with PyTorch's LSTM cell, much cheaper than an LSTM call."""
    view = view_of(policy)
    view._process_sequence = partial(_process, policy._process_sequence)  # type: ignore[assignment]
    return view


def _process(
    of_sequences: Any, features: th.Tensor, states: States, episode_starts: th.Tensor, lstm: nn.LSTM
) -> tuple[Any, ...]:
    """Compute the same as sb3-contrib's ``_process_sequence``.

    :param of_sequences: that method, which is still called for sequences of more than one step
    """
    hidden, cells = states
    if len(features) != hidden.shape[1]:
        return of_sequences(features, states, episode_starts, lstm)
    goes_on = (1.0 - episode_starts).view(1, -1, 1)
    pairs = []
    for weights, before, cell in zip(lstm.all_weights, goes_on * hidden, goes_on * cells, strict=True):
        features, cell = th.lstm_cell(features, (before, cell), *weights)
        pairs.append((features, cell))
    return features, tuple(th.stack(tensors) for tensors in zip(*pairs, strict=True))


class SequenceMinibatches(Minibatches):
    """The minibatches of the buffer, with no step marked as an episode start.

    If a step is marked, sb3-contrib loops over single steps.
    """

    def shuffled(self) -> Iterator[Samples]:
        kind = recurrent(self._kind)
        assert kind is not None
        return map(kind.without_starts, super().shuffled())


class Sequences(Reference):
    """Computes the same as the reference backend, with fewer LSTM calls."""

    name = "sequences"
    path = "fast"
    has_memory = True
    how = "LSTMs run over whole sequences"

    def obstacle(self, plan: UpdatePlan) -> str | None:
        kind = recurrent(plan.kind)
        if kind is None:
            return "the policy has no LSTM"
        if type(plan.buffer) not in [with_parameters(cls) for cls in kind.buffers]:
            return f"the rollout buffer is a {type(plan.buffer).__name__}"
        return _policy_obstacle(kind)

    def prepared(self, plan: UpdatePlan, updating: bool) -> AbstractContextManager[None]:
        """Use a fused Adam in updates while the context is active."""
        plain = updating and obstacles.of_optimizers(plan.kind.policy, plan.optimizers) is None
        return fused(plan.optimizers) if plain else nullcontext()

    def actor(self, model: OnPolicyAlgorithm, plan: UpdatePlan, buffer: RolloutBuffer, n_steps: int) -> Actor:
        return TorchActor(model, type(plan.kind)(_by_cells(plan.kind.policy)), buffer)

    def update(self, plan: UpdatePlan) -> TorchUpdate:
        return TorchUpdate(plan, SequenceMinibatches(plan))
