"""Makes updates atomic: wherever an error or an interrupt hits, all changes of an update are kept or none."""

from types import TracebackType

from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from sb3_ppo_variants.guards.interrupts import HELD
from sb3_ppo_variants.updates.plan import UpdatePlan
from sb3_ppo_variants.updates.run import Update


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
