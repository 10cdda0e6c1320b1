"""What is measured on minibatches: how it is reduced, whether it must be finite, and what it is logged as.

:data:`STATISTICS` is the only list. The native library reports some of them under the same names, in upper case, in the
enumeration ``Statistics`` of ``interface.hpp``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch as th
from stable_baselines3.common.policies import ActorCriticPolicy

from sb3_ppo_variants.errors import NonFiniteError
from sb3_ppo_variants.processes import Processes


@dataclass(frozen=True)
class Statistic:
    """A number that is measured on each minibatch.

    :param name: its name in the code
    :param logged_as: what ``train/...`` it is logged as, SB3's name where SB3 logs it; ``None`` if it is not logged
    :param over_minibatches: how the values of a descent are reduced: to their mean, the mean of the last epoch's, or
        the last
    :param over_processes: how the processes that train together reduce it
    :param must_be_finite: whether an update with another value is an error
    """

    name: str
    logged_as: str | None = None
    over_minibatches: Literal["mean", "mean of last epoch", "last"] = "mean"
    over_processes: Literal["mean", "max"] = "mean"
    must_be_finite: bool = False


# Of those that must be finite, causes come before effects.
STATISTICS: Mapping[str, Statistic] = {
    each.name: each
    for each in (
        Statistic("policy_loss", "policy_gradient_loss", must_be_finite=True),
        Statistic("value_loss", "value_loss", must_be_finite=True),
        Statistic("entropy_loss", "entropy_loss", must_be_finite=True),
        Statistic("loss", "loss", "last", must_be_finite=True),
        Statistic("gradient", must_be_finite=True),  # Its norm, before it is clipped.
        Statistic("approx_kl", "approx_kl", "mean of last epoch"),
        Statistic("kl"),
        Statistic("ratio_deviation"),
        Statistic("clip_fraction", "clip_fraction"),
    )
}
# Everything else that an update logs, except the coefficients of the objective.
LOGGED_BESIDE = frozenset({
    "clip_range_vf", "ent_coef", "explained_variance", "gae_lambda", "kl", "learning_rate", "n_updates",
    "policy_epochs", "std", "target_kl", "value_epochs", "value_learning_rate", "vf_coef",
})  # fmt: skip
LOGGED = LOGGED_BESIDE | {each.logged_as for each in STATISTICS.values() if each.logged_as is not None}


@dataclass(frozen=True)
class MinibatchStatistics:
    """The statistics of the minibatches of one descent.

    :param values: those that the descent measures, by name, each of shape ``(minibatches,)``
    :param last_epoch: index of the first minibatch of the last epoch
    """

    values: Mapping[str, np.ndarray]
    last_epoch: int = 0

    def check_finite(self) -> None:
        """Check that all losses and gradients are finite.

        :raises NonFiniteError: if one is not finite, naming the first minibatch in which that is so
        """
        wrong: dict[str, int] = {}
        for name, statistic in STATISTICS.items():
            if statistic.must_be_finite and name in self.values:
                finite = np.isfinite(self.values[name])
                if not finite.all():
                    wrong[name] = int(np.argmin(finite))
        if wrong:
            name = min(wrong, key=wrong.__getitem__)  # Within a minibatch, the first of the table.
            quantity = f"{name.replace('_', ' ')} of minibatch {wrong[name]}"
            raise NonFiniteError(quantity, f"not finite: {self.values[name][wrong[name]]}")

    def over(self, processes: Processes) -> "MinibatchStatistics":
        """Reduce them over all processes, whose descents have as many minibatches."""
        if processes.size == 1 or not self.values:
            return self
        own = np.concatenate([array.astype(np.float64) for array in self.values.values()])
        each = processes.gather(th.from_numpy(own)).numpy()
        ends = np.cumsum([len(array) for array in self.values.values()])[:-1]
        columns = dict(zip(self.values, np.split(each, ends, axis=1), strict=True))
        values = {
            name: column.max(axis=0) if STATISTICS[name].over_processes == "max" else column.mean(axis=0)
            for name, column in columns.items()
        }
        return MinibatchStatistics(values, self.last_epoch)

    def logged(self) -> dict[str, float]:
        """Compute what is logged, by SB3's names."""
        logged: dict[str, float] = {}
        for name, values in self.values.items():
            statistic = STATISTICS[name]
            if statistic.logged_as is not None:
                first = {"mean": 0, "mean of last epoch": self.last_epoch, "last": -1}[statistic.over_minibatches]
                logged[statistic.logged_as] = float(values[first:].mean())
        return logged


@th.no_grad()
def check_finite_parameters(policy: ActorCriticPolicy) -> None:
    """Check that all parameters of the policy are finite.

    :raises NonFiniteError: if a parameter is not finite, naming it
    """
    if th.nn.utils.get_total_norm(list(policy.parameters())).isfinite():
        return  # Otherwise one is not, or the square of one is not.
    for name, parameter in policy.named_parameters():
        if not parameter.isfinite().all():
            raise NonFiniteError(f"parameter {name}", "not finite")
