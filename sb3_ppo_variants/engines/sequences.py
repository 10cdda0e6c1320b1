"""LSTMs over whole sequences.

If an episode begins in a minibatch, sb3-contrib calls the LSTM once per step, although PyTorch's LSTM is built for
sequences. Here one call processes all sequences of a minibatch. In rollouts PyTorch's LSTM cell processes single steps.
The same goes for GRUs.
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from copy import copy
from functools import partial
from typing import Any, TypeAlias, TypeVar, cast

import torch as th
from gymnasium import spaces
from stable_baselines3.common.distributions import CategoricalDistribution, MultiCategoricalDistribution
from stable_baselines3.common.policies import ActorCriticPolicy
from torch import nn
from torch.optim import Optimizer

from sb3_ppo_variants.engines import recognised
from sb3_ppo_variants.engines.reference import TorchUpdate
from sb3_ppo_variants.envs.masks import choices
from sb3_ppo_variants.policies.masked import is_masked
from sb3_ppo_variants.policies.recurrent import GRULikeLSTM, Recurrent
from sb3_ppo_variants.rollout import Samples
from sb3_ppo_variants.update import Descent, DescentResult

AnyModule = TypeVar("AnyModule", bound=nn.Module)
# The hidden and cell states of an LSTM.
States: TypeAlias = tuple[th.Tensor, th.Tensor]
# Methods of RecurrentActorCriticPolicy that this engine relies on. A subclass may override the others.
RELIED_ON = (
    "forward", "evaluate_actions", "get_distribution", "predict_values", "extract_features", "_process_sequence",
    "_get_action_dist_from_latent",
)  # fmt: skip


def make_view(module: AnyModule, **children: nn.Module) -> AnyModule:
    """Make a shallow copy of a module with some of its children replaced.

    It shares all parameters and all other children with the module, under the same names. If no child is replaced, it
    also has the children that the module gets later. Attributes of the view can be changed freely. Changing those of
    the module for a while instead would leave it changed if an interrupt hit at the wrong moment.
    """
    view = copy(module)
    if children:
        view._modules = {**module._modules, **children}
    return view


def view_sequences(policy: ActorCriticPolicy) -> ActorCriticPolicy:
    """Make a view of a policy that processes single steps by cells, and has no masked distribution of sb3-contrib.

    This package's policy masks the logits before. sb3-contrib's distribution would then only normalise them twice.
    """
    view = make_view(policy)
    vars(view)["_process_sequence"] = partial(process_by_cells, cast(Any, view)._process_sequence)
    if is_masked(policy.action_dist):
        sizes = choices(policy.action_space)
        assert sizes is not None
        single = isinstance(policy.action_space, spaces.Discrete)
        view.action_dist = CategoricalDistribution(sizes[0]) if single else MultiCategoricalDistribution(sizes)
    return view


def process_by_cells(
    process: Callable[..., tuple[th.Tensor, States]],
    features: th.Tensor,
    states: States,
    episode_starts: th.Tensor,
    lstm: nn.LSTM | GRULikeLSTM,
) -> tuple[th.Tensor, States]:
    """Compute the same as sb3-contrib's ``_process_sequence``, single steps with PyTorch's much cheaper cells.

    :param process: that method, which is called for several steps
    """
    hidden, cells = states
    if len(features) != hidden.shape[1]:
        return process(features, states, episode_starts, lstm)
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


@contextmanager
def fuse_adam(optimizer: Optimizer) -> Iterator[None]:
    """Run Adam as one fused kernel while the context is active, if the optimizer is a plain Adam."""
    try:
        recognised.require_adam(optimizer)
    except recognised.ObstacleError:
        yield
        return
    (group,) = optimizer.param_groups
    was_fused, group["fused"] = group["fused"], True
    for parameter, state in optimizer.state.items():
        # The kernel counts steps where the parameters are; Adam otherwise does so on the CPU, and files do.
        if "step" in state:
            state["step"] = state["step"].to(parameter.device, th.float32)
    try:
        yield
    finally:
        group["fused"] = was_fused


class FusedUpdate(TorchUpdate):
    """The same update, in which a plain Adam is one kernel."""

    def descend(self, descent: Descent) -> DescentResult:
        with fuse_adam(descent.optimizer):
            return super().descend(descent)


class SequenceUpdate(FusedUpdate):
    """The same update, with no step of a minibatch marked as an episode start.

    If a step is marked, sb3-contrib loops over single steps.
    """

    def minibatches(self) -> Generator[Samples]:
        with closing(super().minibatches()) as minibatches:
            yield from map(cast(Recurrent, self._plan.kind).without_starts, minibatches)


def require_lstms(policy: Any) -> None:
    """Require LSTMs or GRUs that these functions compute."""
    for lstm in (policy.lstm_actor, policy.lstm_critic):
        if lstm is not None:
            is_plain = type(lstm) in (nn.LSTM, GRULikeLSTM) and not (lstm.bidirectional or lstm.proj_size > 0)
            recognised.require(is_plain and not lstm.batch_first, f"the recurrent layer is a {lstm}")
            recognised.require(lstm.dropout == 0, "the LSTM has dropout")
            recognised.require_plain([lstm])
