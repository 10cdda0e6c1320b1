"""LSTMs over whole sequences.

sb3-contrib calls an LSTM for each step of a minibatch if an episode begins in it, and PyTorch's LSTM is made for
sequences. Here one call takes the sequences of a minibatch, and in rollouts PyTorch's cell takes the single steps.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import torch as th
from stable_baselines3.common.policies import ActorCriticPolicy
from torch import nn

from sb3_ppo_variants.backends import obstacles
from sb3_ppo_variants.backends.images import fused
from sb3_ppo_variants.backends.reference import Reference
from sb3_ppo_variants.backends.torch_update import Minibatches, TorchUpdate
from sb3_ppo_variants.policies.feed_forward import FeedForward
from sb3_ppo_variants.policies.kind import PolicyKind
from sb3_ppo_variants.rollouts.buffer import Samples, with_parameters
from sb3_ppo_variants.updates.plan import UpdatePlan

if TYPE_CHECKING:
    from sb3_ppo_variants.policies.recurrent import Recurrent

# The hidden and the cell states of an LSTM.
States: TypeAlias = tuple[th.Tensor, th.Tensor]
# What of RecurrentActorCriticPolicy is relied on; a subclass may change the rest.
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
    """A kind, if it is the one of policies with LSTMs."""
    if isinstance(kind, FeedForward):
        return None
    # sb3-contrib is installed then, from which all other kinds come.
    from sb3_ppo_variants.policies.recurrent import Recurrent

    return kind if isinstance(kind, Recurrent) else None


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


@contextmanager
def _by_cells(policy: ActorCriticPolicy) -> Iterator[None]:
    """Within it a policy takes single steps with PyTorch's cell, which costs a fraction of a call of an LSTM."""
    policy._process_sequence = partial(_process, policy._process_sequence)  # type: ignore[assignment]
    try:
        yield
    finally:
        del policy._process_sequence


def _process(
    of_sequences: Any, features: th.Tensor, states: States, episode_starts: th.Tensor, lstm: nn.LSTM
) -> tuple[Any, ...]:
    """What sb3-contrib's ``_process_sequence`` does.

    :param of_sequences: that method, for sequences of more than one step
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
    """The minibatches of the buffer, with sequences that are not looked into for beginnings."""

    def shuffled(self) -> Iterator[Samples]:
        kind = recurrent(self._kind)
        assert kind is not None
        return map(kind.without_starts, super().shuffled())


class Sequences(Reference):
    """Computes as the reference does, with few calls of LSTMs."""

    path = "fast"
    how = "LSTMs run over whole sequences"
    update = staticmethod(partial(TorchUpdate, SequenceMinibatches))

    def obstacle(self, plan: UpdatePlan) -> str | None:
        kind = recurrent(plan.kind)
        if kind is None:
            return "the policy has no LSTM"
        if type(plan.buffer) not in [with_parameters(cls, kind.with_parameters) for cls in kind.buffers]:
            return f"the rollout buffer is a {type(plan.buffer).__name__}"
        return _policy_obstacle(kind)

    def prepared(self, plan: UpdatePlan, updating: bool) -> AbstractContextManager[None]:
        """Within it single steps take cells in rollouts, and in updates Adam is fused."""
        if not updating:
            return _by_cells(plan.kind.policy)
        plain = obstacles.of_optimizers(plan.kind.policy, plan.optimizers) is None
        return fused(plan.optimizers) if plain else nullcontext()
