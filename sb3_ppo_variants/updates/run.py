"""The loop that runs updates, shared by all objectives, policy kinds and backends, and what undoes them."""

from collections.abc import Iterator
from types import TracebackType
from typing import Any, NamedTuple, Protocol

from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from sb3_ppo_variants.guards.interrupts import HELD
from sb3_ppo_variants.processes import Processes
from sb3_ppo_variants.updates.measured import Measured
from sb3_ppo_variants.updates.plan import Descent, UpdatePlan

# As in SB3, a descent ends early once the KL exceeds its target by this factor.
TOLERATED = 1.5


class Ended(NamedTuple):
    """Where a descent ended."""

    epochs: int
    """The number of passes that were begun."""
    max_kl: float | None = None
    """The approximate KL that ended the descent early; ``None`` if it was completed."""


class Descending(Protocol):
    """A descent, as a backend implements it."""

    def descend(self) -> Ended:
        """Run all passes over the rollout, or fewer if ``target_kl`` ends them early."""

    def measured(self) -> Measured:
        """Return the statistics measured on the minibatches."""


class Stepwise(Protocol):
    """A descent that runs step by step: it computes the loss of each minibatch and takes a step down its gradient."""

    def minibatches(self) -> Iterator[Any]:
        """Shuffle the rollout and return it in minibatches."""

    def loss(self, minibatch: Any) -> None:
        """Compute the loss of a minibatch."""

    def approximate_kl(self) -> float:
        """Return SB3's estimate of the KL on the last minibatch."""

    def step(self) -> None:
        """Take a step down the gradient of the last loss."""


class Update(Protocol):
    """An update, as a backend implements it."""

    def begin(self, descent: Descent) -> Descending:
        """Begin a descent."""

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


class Outcome(NamedTuple):
    """The result of an update."""

    epochs: list[int]
    """For each descent, the number of passes that were begun."""
    measured: list[Measured]
    """For each descent, the statistics of its minibatches, averaged over all processes."""
    kl: float | None
    """The mean of KL(old || new) over the rollout; ``None`` if the policy's distribution has no known KL."""


def run(update: Update, plan: UpdatePlan, verbose: int) -> Outcome:
    """Run an update. If it fails, :class:`AllOrNothing` undoes it.

    :param verbose: 1 prints a message in rank 0 when ``target_kl`` ends a descent early
    :raises NonFiniteError: if a loss, a gradient or a parameter is not finite
    """
    epochs, measured = [], []
    for descent in plan.descents:
        descending = update.begin(descent)
        try:
            ended = descending.descend()
        except (ValueError, RuntimeError):
            # PyTorch raises an error for what follows from a non-finite step, but does not name the cause.
            descending.measured().check_finite()
            update.check_finite()
            raise
        if ended.max_kl is not None and verbose >= 1 and plan.processes.rank == 0:
            print(f"Early stopping at step {ended.epochs - 1} due to reaching max kl: {ended.max_kl:.2f}")
        epochs.append(ended.epochs)
        measured.append(descending.measured())
        measured[-1].check_finite()
    update.check_finite()
    kl, together = update.finish(), [one.averaged(plan.processes) for one in measured]
    return Outcome(epochs, together, None if kl is None else plan.processes.mean(kl))


def in_steps(descending: Stepwise, descent: Descent, processes: Processes) -> Ended:
    """Run a descent step by step."""
    for epoch in range(descent.epochs):
        for minibatch in descending.minibatches():
            descending.loss(minibatch)
            if descent.target_kl is not None:
                approx_kl = processes.mean(descending.approximate_kl())
                if approx_kl > TOLERATED * descent.target_kl:
                    return Ended(epoch + 1, approx_kl)
            descending.step()
    return Ended(descent.epochs)


class AllOrNothing:
    """A context manager that undoes an update, unless :meth:`keep` was reached.

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

    def __init__(self, model: OnPolicyAlgorithm, plan: UpdatePlan):
        self._model = model
        self._attributes = dict(model.__dict__)
        self._optimizers = plan.optimizers
        self._settings = [[dict(group) for group in optimizer.param_groups] for optimizer in plan.optimizers]
        self._kept = False

    def keep(self) -> None:
        """Keep all changes. This is a single assignment, so no interrupt can divide it."""
        self._kept = True

    def __enter__(self) -> "AllOrNothing":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._kept:
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
