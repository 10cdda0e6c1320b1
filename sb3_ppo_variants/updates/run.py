"""The loop that runs updates, for all objectives, policy kinds and backends; what it measures, and what undoes it."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch as th
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy

from sb3_ppo_variants.errors import NonFiniteError
from sb3_ppo_variants.guards.interrupts import HELD
from sb3_ppo_variants.processes import Processes
from sb3_ppo_variants.updates.plan import Descent, Ended, UpdatePlan

# Statistics that must be finite, causes before effects.
CHECKED = ("policy_loss", "value_loss", "entropy_loss", "loss", "gradient")


@dataclass(frozen=True)
class Measured:
    """Statistics measured on the minibatches of one descent.

    :param values: one value per minibatch of each of ``policy_loss``, ``value_loss``, ``entropy_loss``, ``loss``,
        ``approx_kl``, ``kl``, ``ratio_deviation``, ``clip_fraction`` and ``gradient`` (its norm) that the descent
        computes
    :param epoch_start: index of the first minibatch of the last epoch
    """

    values: Mapping[str, np.ndarray]
    epoch_start: int

    def averaged(self, processes: Processes) -> "Measured":
        """Compute the means over all processes, whose minibatches have the same size."""
        if not self.values:
            return self
        columns = [th.from_numpy(array.astype(np.float64)) for array in self.values.values()]
        vector = th.cat(columns)
        processes.average(vector)
        means = th.split(vector, [len(column) for column in columns])
        return Measured({name: m.numpy() for name, m in zip(self.values, means, strict=True)}, self.epoch_start)

    def check_finite(self) -> None:
        """Check that all losses and gradients are finite.

        :raises NonFiniteError: if one is not finite, naming the first minibatch in which that is so
        """
        finite = {name: np.isfinite(self.values[name]) for name in CHECKED if name in self.values}
        wrong = {name: int(np.argmin(these)) for name, these in finite.items() if not these.all()}
        if wrong:
            name = min(wrong, key=wrong.__getitem__)  # Within a minibatch, the first of CHECKED.
            quantity = f"{name.replace('_', ' ')} of minibatch {wrong[name]}"
            raise NonFiniteError(quantity, f"not finite: {self.values[name][wrong[name]]}")


def summary(descents: Sequence[Measured]) -> dict[str, float]:
    """Compute SB3's ``train/*`` values by name.

    As in SB3, ``train/loss`` is the loss of the last minibatch, ``train/approx_kl`` is the mean over the last epoch,
    and all others are means over the update. If policy and value have separate descents, ``train/loss`` is the sum of
    their last losses.
    """
    values: dict[str, float] = {}
    for measured in descents:
        values |= {
            LOGGED_MEANS[name]: float(array.mean()) for name, array in measured.values.items() if name in LOGGED_MEANS
        }
        if "approx_kl" in measured.values:
            values["approx_kl"] = float(measured.values["approx_kl"][measured.epoch_start :].mean())
    values["loss"] = float(sum(measured.values["loss"][-1] for measured in descents))
    return values


# Statistics that are logged as means over the update, with SB3's names for them.
LOGGED_MEANS = {
    "entropy_loss": "entropy_loss",
    "policy_loss": "policy_gradient_loss",
    "value_loss": "value_loss",
    "clip_fraction": "clip_fraction",
}
# The names of everything that an update logs, except the coefficients of the objective.
LOGGED_BY_UPDATES = frozenset({
    *LOGGED_MEANS.values(), "approx_kl", "clip_range_vf", "ent_coef", "explained_variance", "gae_lambda", "kl",
    "learning_rate", "loss", "n_updates", "policy_epochs", "std", "target_kl", "value_epochs", "value_learning_rate",
    "vf_coef",
})  # fmt: skip
# Those of them that a value loss may log.
OF_VALUE_LOSSES = frozenset({"clip_range_vf"})


class Update(Protocol):
    """An update, as a backend implements it."""

    def descend(self, descent: Descent) -> Ended:
        """Run all passes of a descent over the rollout, or fewer if ``stop`` ends them early."""

    def measured(self) -> Measured:
        """Collect the statistics measured on the minibatches of the last descent, as far as it came."""

    def check_finite(self) -> None:
        """Check that all parameters are finite.

        :raises NonFiniteError: if a parameter is not finite
        """

    def undo(self) -> None:
        """Restore the policy and its optimizers to their state before the update, at any point of the update."""

    def finish(self) -> float | None:
        """Finish the update.

        :return: the mean of KL(old || new) over the rollout; ``None`` if the policy's distribution has no known KL
        """


class UpdateOutcome(NamedTuple):
    """The result of an update."""

    ended: list[Ended]
    """Where each descent ended."""
    measured: list[Measured]
    """For each descent, the statistics of its minibatches, averaged over all processes."""
    kl: float | None
    """The mean of KL(old || new) over the rollout; ``None`` if the policy's distribution has no known KL."""


def run_update(update: Update, plan: UpdatePlan, verbose: int) -> UpdateOutcome:
    """Run an update. If it fails, :class:`AllOrNothing` undoes it.

    :param verbose: 1 prints a message in rank 0 when a descent ends early
    :raises NonFiniteError: if a loss, a gradient or a parameter is not finite
    """
    ends, measured = [], []
    for descent in plan.descents:
        try:
            ended = update.descend(descent)
        except (ValueError, RuntimeError):
            # PyTorch raises an error for what follows from a non-finite step, but does not name the cause.
            update.measured().check_finite()
            update.check_finite()
            raise
        if descent.stop is not None and ended.early and verbose >= 1 and plan.processes.rank == 0:
            ends_update = descent.stop.ends == "update"
            what = f"Early stopping at step {ended.epochs - 1}" if ends_update else f"{ended.early} epochs ended early"
            print(f"{what} due to reaching {descent.stop.reached}: {ended.statistic:.2f}")
        ends.append(ended)
        measured.append(update.measured())
        measured[-1].check_finite()
    update.check_finite()
    kl = update.finish()
    if plan.processes.size > 1:
        measured = [each.averaged(plan.processes) for each in measured]
        kl = None if kl is None else plan.processes.mean(kl)
    return UpdateOutcome(ends, measured, kl)


class AllOrNothing(AbstractContextManager["AllOrNothing"]):
    """A context manager that undoes an update, unless ``kept`` was set.

    The update itself restores the policy and the optimizers' state. It can do so until the context ends, even once it
    has finished, because the model only records the results of an update after that. The context restores everything
    else: the model's attributes, such as beta and the number of updates, and the optimizers' settings, such as their
    step sizes.

    This is a class rather than a generator with ``@contextmanager``, because an interrupt within contextlib would leave
    the generator suspended, and nothing would be undone.

    :param model: the model
    :param plan: the update's plan
    """

    update: Update | None = None
    """The update to undo. Set it before the update takes its first step."""
    kept: bool = False
    """Whether to keep all changes. No interrupt can divide the assignment that sets it."""

    def __init__(self, model: OnPolicyAlgorithm, plan: UpdatePlan):
        self._model = model
        self._attributes = dict(model.__dict__)
        self._optimizers = plan.optimizers
        self._settings = [[dict(group) for group in optimizer.param_groups] for optimizer in plan.optimizers]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self.kept:
            with HELD:  # A second Ctrl-C must not cut this short.
                self._undo()

    def _undo(self) -> None:
        if self.update is not None:
            self.update.undo()
        for optimizer, groups in zip(self._optimizers, self._settings, strict=True):
            for group, settings in zip(optimizer.param_groups, groups, strict=True):
                group.clear()
                group.update(settings)
        attributes = self._model.__dict__
        for name in attributes.keys() - self._attributes.keys():
            del attributes[name]
        attributes.update(self._attributes)


class Snapshot:
    """A copy of the current state of policies and optimizers.

    :param owners: the policies and optimizers
    """

    def __init__(self, *owners: th.nn.Module | th.optim.Optimizer):
        self._states = [(owner, _clone(owner.state_dict())) for owner in owners]

    def restore(self) -> None:
        """Restore all of them to this state."""
        for owner, state in self._states:
            if isinstance(owner, th.nn.Module):
                for name, buffer in owner.named_buffers():
                    # The update may have changed its shape, which load_state_dict() refuses to change back.
                    if name in state and buffer.shape != state[name].shape:
                        buffer.data = state[name].clone()
            owner.load_state_dict(state)


def _clone(state: Any) -> Any:
    # The result equals that of deepcopy, which takes many times as long for a tensor, but also copies sparse ones.
    if isinstance(state, th.Tensor) and state.layout is th.strided:
        return state.detach().clone(memory_format=th.contiguous_format)
    if isinstance(state, dict):
        return {key: _clone(value) for key, value in state.items()}
    return [*map(_clone, state)] if isinstance(state, list) else deepcopy(state)


def check_finite_parameters(policy: ActorCriticPolicy) -> None:
    """Check that all parameters of the policy are finite.

    :raises NonFiniteError: if a parameter is not finite, naming it
    """
    for name, parameter in policy.named_parameters():
        if not parameter.isfinite().all():
            raise NonFiniteError(f"parameter {name}", "not finite")
