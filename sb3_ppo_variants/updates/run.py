"""The one loop that makes updates, for every objective, policy kind and backend."""

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from sb3_ppo_variants.processes import Processes
from sb3_ppo_variants.updates.measured import Measured
from sb3_ppo_variants.updates.plan import Descent, UpdatePlan

# As in SB3, a descent ends early once the KL exceeds its target so many times.
TOLERATED = 1.5


class Ended(NamedTuple):
    """Where a descent ended."""

    epochs: int
    """The passes that began."""
    max_kl: float | None = None
    """The approximate KL that ended them early."""


class Descending(Protocol):
    """A descent as a backend makes it."""

    def descend(self) -> Ended:
        """Make all passes over the rollout, or fewer if ``target_kl`` ends them early."""

    def measured(self) -> Measured:
        """What the minibatches measured."""


class Stepwise(Protocol):
    """A descent made step by step: for each minibatch its loss, then a step down its gradient."""

    def minibatches(self) -> Iterator[Any]:
        """The rollout in minibatches, shuffled anew."""

    def loss(self, minibatch: Any) -> None:
        """Measure the loss of a minibatch."""

    def approximate_kl(self) -> float:
        """SB3's estimate of the KL on the minibatch measured last."""

    def step(self) -> None:
        """Descend the gradient of the loss measured last."""


class Update(Protocol):
    """An update as a backend makes it."""

    def begin(self, descent: Descent) -> Descending:
        """Begin a descent."""

    def check_finite(self) -> None:
        """:raises NonFiniteError: if a parameter is not finite"""

    def undo(self) -> None:
        """Leave the policy and its optimizers as they were before the update, wherever it is."""

    def finish(self) -> float | None:
        """End the update.

        :return: the mean of KL(old || new) over the rollout; ``None`` if the policy's distribution has no known KL
        """


class Outcome(NamedTuple):
    """What an update came to."""

    epochs: list[int]
    """For each descent, the passes that began."""
    measured: list[Measured]
    """For each descent, what its minibatches measured, those of all processes."""
    kl: float | None
    """The mean of KL(old || new) over the rollout."""


def run(update: Update, plan: UpdatePlan, verbose: int, guarded: bool = True) -> Outcome:
    """Make an update, or none at all.

    :param verbose: 1 says when ``target_kl`` ends an update
    :param guarded: whether losses, gradients and parameters are checked
    :raises NonFiniteError: if a loss, a gradient or a parameter is not finite
    """
    epochs, measured = [], []
    try:
        for descent in plan.descents:
            descending = update.begin(descent)
            try:
                ended = descending.descend()
            except (ValueError, RuntimeError):
                # PyTorch refuses what follows from a step that was not finite, and does not say what was not.
                descending.measured().check_finite()
                update.check_finite()
                raise
            if ended.max_kl is not None and verbose >= 1:
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
    """Make a descent step by step."""
    for epoch in range(descent.epochs):
        for minibatch in descending.minibatches():
            descending.loss(minibatch)
            if descent.target_kl is not None:
                approx_kl = processes.mean(descending.approximate_kl())
                if approx_kl > TOLERATED * descent.target_kl:
                    return Ended(epoch + 1, approx_kl)
            descending.step()
    return Ended(descent.epochs)
