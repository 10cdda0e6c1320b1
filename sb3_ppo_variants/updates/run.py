"""The loop that runs updates, shared by all objectives, policy kinds and backends."""

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

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


def run(update: Update, plan: UpdatePlan, verbose: int, guarded: bool = True) -> Outcome:
    """Run an update, and undo it if it fails.

    :param verbose: 1 prints a message in rank 0 when ``target_kl`` ends a descent early
    :param guarded: whether to check that losses, gradients and parameters are finite
    :raises NonFiniteError: if a loss, a gradient or a parameter is not finite
    """
    epochs, measured = [], []
    try:
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
            if guarded:
                measured[-1].check_finite()
        if guarded:
            update.check_finite()
        kl, together = update.finish(), [one.averaged(plan.processes) for one in measured]
        return Outcome(epochs, together, None if kl is None else plan.processes.mean(kl))
    except BaseException:
        update.undo()
        raise


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
