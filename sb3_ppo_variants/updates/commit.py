"""What an update changes is kept as a whole or not at all, wherever an error or an interrupt hits."""

from types import TracebackType

from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from sb3_ppo_variants.guards.interrupts import HELD
from sb3_ppo_variants.updates.plan import UpdatePlan
from sb3_ppo_variants.updates.run import Update


class AllOrNothing:
    """A context that takes back what happened within it, unless :meth:`keep` was reached.

    The update itself takes back the policy and what its optimizers know, until the end of the context: it was finished
    before the model has kept what follows from it. The rest is taken back here: the attributes of the model, such as
    beta and the count of updates, and the settings of the optimizers, such as their step sizes.

    This is no generator, because an interrupt in contextlib would leave one standing where it is.

    :param model: the model
    :param plan: the update's plan
    """

    update: Update | None = None
    """To be set before the first step."""

    def __init__(self, model: OnPolicyAlgorithm, plan: UpdatePlan):
        self._model = model
        self._attributes = dict(model.__dict__)
        self._optimizers = plan.optimizers
        self._settings = [[dict(group) for group in optimizer.param_groups] for optimizer in plan.optimizers]
        self._kept = False

    def keep(self) -> None:
        """Keep it all; no interrupt can come between."""
        self._kept = True

    def __enter__(self) -> "AllOrNothing":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._kept:
            with HELD:  # From someone who presses Ctrl-C twice.
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
