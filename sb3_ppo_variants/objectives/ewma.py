"""PPO-EWMA (https://arxiv.org/abs/2110.00641), around any objective."""

from dataclasses import dataclass, replace

import torch as th

from sb3_ppo_variants.arguments import FRACTION, instance
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.objectives.objective import Batch, Objective
from sb3_ppo_variants.objectives.surrogates import Clipped
from sb3_ppo_variants.stops import EarlyStop

OF_THE_PAPER = Clipped(0.2)


@dataclass(frozen=True)
class EWMA(Objective):
    """An objective that keeps the policy close to a moving average of itself instead of the policy of the rollout.

    In PPO, pi_old has two roles: it corrects for the policy that drew the actions, and it is the policy to stay close
    to. Hilton et al. 2021 (section 3 of https://arxiv.org/abs/2110.00641) give the second role to pi_prox, whose
    weights are an exponentially weighted moving average. The objective then sees r = pi / pi_prox, KLs with pi_prox in
    the place of pi_old, and advantages multiplied by pi_prox / pi_old. With :class:`Clipped`, this is their decoupled
    objective E[(pi_prox / pi_old) min(r A, clip(r, 1 - eps, 1 + eps) A)].

    :param objective: the objective; by default that of the paper
    :param decay: the decay of the average per gradient step of the policy, in [0, 1]; with 0, pi_prox is always pi
    :raises ArgumentError: (a ``ValueError``) if one has a value that is not allowed
    """

    objective: Objective = OF_THE_PAPER
    decay: float = 0.889

    def __post_init__(self) -> None:
        instance("an instance of a class derived from Objective", Objective).check("objective", self.objective)
        FRACTION.check("decay", self.decay)
        if self.objective.proximal_decay is not None:
            raise ArgumentError(f"objective={self.objective} is an EWMA already: pass the objective that it is around")

    @property
    def proximal_decay(self) -> float:  # type: ignore[override]
        """The decay."""
        return self.decay

    @property
    def needs_kl(self) -> bool:  # type: ignore[override]
        """As the objective within."""
        return self.objective.needs_kl

    @property
    def clip_range(self) -> float | None:  # type: ignore[override]
        """As the objective within."""
        return self.objective.clip_range

    @property
    def stop(self) -> EarlyStop | None:  # type: ignore[override]
        """As the objective within."""
        return self.objective.stop

    @property
    def within(self) -> Objective:
        """The objective within. A subclass with a loss of its own is not around another one."""
        return self.objective if type(self).loss is EWMA.loss else self

    def loss(self, batch: Batch) -> th.Tensor:
        """Compute the loss of the objective within, whose batch already refers to the proximal policy."""
        return self.objective.loss(batch)

    def coefficients(self) -> dict[str, float]:
        """Return the coefficients of the objective within, and the decay."""
        return {**self.objective.coefficients(), "proximal_decay": self.decay}

    def at(self, progress_remaining: float) -> "EWMA":
        """Return the same with the objective within for one update."""
        return replace(self, objective=self.objective.at(progress_remaining))

    def after_update(self, kl: float | None) -> "EWMA":
        """Return the same with the objective within for later updates; the KL is KL(old || new)."""
        return replace(self, objective=self.objective.after_update(kl))
