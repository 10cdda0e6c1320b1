"""LSTMs over whole sequences.

If an episode begins in a minibatch, sb3-contrib calls the LSTM once per step, although PyTorch's LSTM is built for
sequences. Here one call processes all sequences of a minibatch. In rollouts PyTorch's LSTM cell processes single steps.
The same goes for GRUs.
"""

from collections.abc import Callable, Collection, Generator
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.distributions import CategoricalDistribution, MultiCategoricalDistribution
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from torch import nn

from sb3_ppo_variants.collector import Actor
from sb3_ppo_variants.engines.images import fuse_adam
from sb3_ppo_variants.engines.recognised import (
    ObstacleError,
    check_optimizers,
    check_overrides,
    find_obstacle,
    have_hooks,
)
from sb3_ppo_variants.engines.reference import Reference, TorchActor, TorchUpdate
from sb3_ppo_variants.engines.views import make_view
from sb3_ppo_variants.guards.masks import choices
from sb3_ppo_variants.kl import is_masked
from sb3_ppo_variants.policies.gru import GRULikeLSTM
from sb3_ppo_variants.rollout import Samples
from sb3_ppo_variants.update import UpdatePlan

if TYPE_CHECKING:
    from sb3_ppo_variants.policies.recurrent import Recurrent

# The hidden and cell states of an LSTM.
States: TypeAlias = tuple[th.Tensor, th.Tensor]
# Methods of RecurrentActorCriticPolicy that this engine relies on. A subclass may override the others.
RELIED_ON = (
    "forward",
    "evaluate_actions",
    "get_distribution",
    "predict_values",
    "extract_features",
    "_process_sequence",
    "_get_action_dist_from_latent",
)


def _check_plan(plan: UpdatePlan) -> None:
    policy = plan.kind.policy
    check_overrides(plan, RELIED_ON)
    for lstm in _lstms(policy):
        if type(lstm) not in (nn.LSTM, GRULikeLSTM) or lstm.bidirectional or lstm.proj_size > 0 or lstm.batch_first:
            raise ObstacleError(f"the recurrent layer is a {lstm}")
        if lstm.dropout > 0:
            raise ObstacleError("the LSTM has dropout")
        if have_hooks([lstm]):
            raise ObstacleError("the LSTM has hooks")
        if "forward" in vars(lstm):
            raise ObstacleError("the LSTM has its own forward")


def _lstms(policy: Any) -> list[nn.LSTM | GRULikeLSTM]:
    return [lstm for lstm in (policy.lstm_actor, policy.lstm_critic) if lstm is not None]


def _view_by_cells(policy: ActorCriticPolicy) -> ActorCriticPolicy:
    """Make a view of a policy that computes single steps with PyTorch's cells, much cheaper than an LSTM call."""
    view: Any = make_view(policy)
    view._process_sequence = StepsByCells(view._process_sequence, _lstms(policy))
    return cast(ActorCriticPolicy, view)


def _view_without_masks(policy: ActorCriticPolicy) -> ActorCriticPolicy:
    """Make a view of a policy with the distribution of SB3 that sb3-contrib's masked one extends, if it has one.

    This package's policy masks the logits before. sb3-contrib's distribution would then only normalise them twice.
    """
    if not is_masked(policy.action_dist):
        return policy
    view, sizes = make_view(policy), choices(policy.action_space)
    assert sizes is not None
    single = isinstance(policy.action_space, spaces.Discrete)
    view.action_dist = CategoricalDistribution(sizes[0]) if single else MultiCategoricalDistribution(sizes)
    return view


class StepsByCells:
    """Computes the same as sb3-contrib's ``_process_sequence``.

    :param process: that method, which is still called for several steps, for other LSTMs, and for changed ones
    :param lstms: the LSTMs that are known to compute as PyTorch's cells do
    """

    def __init__(self, process: Callable[..., tuple[th.Tensor, States]], lstms: Collection[nn.LSTM | GRULikeLSTM]):
        self._process, self._lstms = process, lstms

    def __call__(
        self, features: th.Tensor, states: States, episode_starts: th.Tensor, lstm: nn.LSTM | GRULikeLSTM
    ) -> tuple[th.Tensor, States]:
        hidden, cells = states
        changed = lstm._forward_hooks or lstm._forward_pre_hooks or "forward" in vars(lstm)
        if len(features) != hidden.shape[1] or lstm not in self._lstms or changed:
            return self._process(features, states, episode_starts, lstm)
        goes_on = (1.0 - episode_starts).view(1, -1, 1)
        pairs = []
        for weights, before, cell in zip(lstm.all_weights, goes_on * hidden, goes_on * cells, strict=True):
            if isinstance(lstm, GRULikeLSTM):
                features = th.gru_cell(features, before, *weights)
            else:
                features, cell = th.lstm_cell(features, (before, cell), *weights)
            pairs.append((features, cell))
        hidden, cells = (th.stack(tensors) for tensors in zip(*pairs, strict=True))
        return features, (hidden, cells)


class SequenceUpdate(TorchUpdate):
    """The same update, with no step of a minibatch marked as an episode start.

    If a step is marked, sb3-contrib loops over single steps.

    :param plan: the plan of the update
    """

    def __init__(self, plan: UpdatePlan):
        super().__init__(replace(plan, kind=type(plan.kind)(_view_without_masks(plan.kind.policy))))

    def minibatches(self) -> Generator[Samples]:
        with closing(super().minibatches()) as minibatches:
            yield from map(cast("Recurrent", self._plan.kind).without_starts, minibatches)


class Sequences(Reference):
    """Computes the same as the reference engine, with fewer LSTM calls."""

    name = "sequences"
    path = "fast"
    how = "LSTMs and GRUs run over whole sequences"
    update = SequenceUpdate

    def is_for(self, plan: UpdatePlan) -> bool:
        return plan.kind.has_memory

    def obstacle(self, plan: UpdatePlan) -> str | None:
        return find_obstacle(_check_plan, plan)

    def prepared(self, plan: UpdatePlan, updating: bool) -> AbstractContextManager[None]:
        """Use a fused Adam in updates while the context is active."""
        plain = updating and find_obstacle(check_optimizers, plan) is None
        return fuse_adam(plan.optimizers) if plain else nullcontext()

    def actor(self, model: OnPolicyAlgorithm, plan: UpdatePlan, buffer: RolloutBuffer, n_steps: int) -> Actor:
        return TorchActor(model, type(plan.kind)(_view_by_cells(_view_without_masks(plan.kind.policy))), buffer)
