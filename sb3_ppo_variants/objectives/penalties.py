"""Objectives with a penalty on a KL: with a hinge, on the reverse KL, and with the step size of mirror descent."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import ClassVar

import torch as th

from sb3_ppo_variants.arguments import NON_NEGATIVE, POSITIVE
from sb3_ppo_variants.errors import refuse
from sb3_ppo_variants.objectives.objective import Batch, NativeObjective, Rules
from sb3_ppo_variants.objectives.surrogates import KL_COEF, MAX_KL_COEF, MIN_KL_COEF, adapt_kl_coef


@dataclass(frozen=True)
class KLHinge(NativeObjective):
    """PPO with a KL penalty and a hinge: E[r A] - beta d - eta max(0, d - 2 d_targ)^2, where d = E[KL(old || new)].

    It is the objective of J. Schulman's modular_rl (``ppo.py``), from before the PPO paper, of algorithm 1 of
    https://arxiv.org/abs/1707.02286, and of TF-Agents. The defaults are those of the first and the last. d is the mean
    over the minibatch, so that the hinge does not depend on single states. With several processes, it is the mean of
    the process's part of the minibatch.

    After each update, beta is multiplied by 1.5 if d > 1.3 d_targ, and divided by 1.5 if d < 0.7 d_targ.

    :param desired_kl: d_targ, in nats per state, > 0
    :param kl_coef: beta of the first update, between ``MIN_KL_COEF`` and ``MAX_KL_COEF``
    :param eta: the weight of the hinge, >= 0
    :raises ArgumentError: (a ``ValueError``) if one has a value that is not allowed
    """

    term: ClassVar[str] = "HINGED"
    needs_kl: ClassVar[bool] = True
    rules: ClassVar[Rules] = {"desired_kl": POSITIVE, "kl_coef": KL_COEF, "eta": NON_NEGATIVE}
    desired_kl: float = 0.01
    kl_coef: float = 1.0
    eta: float = 1000.0

    @property
    def constants(self) -> Sequence[float]:
        """Beta, eta, and the mean KL at which the hinge begins."""
        return self.kl_coef, self.eta, 2 * self.desired_kl

    def loss(self, batch: Batch) -> th.Tensor:
        """-E[r A] + beta d + eta max(0, d - 2 d_targ)^2."""
        kl = batch.kl.mean()
        hinge = self.eta * th.relu(kl - 2 * self.desired_kl) ** 2
        return self.kl_coef * kl + hinge - (batch.ratio * batch.advantages).mean()

    def coefficients(self) -> dict[str, float]:
        """Return beta."""
        return {"kl_coef": self.kl_coef}

    def after_update(self, kl: float | None) -> "KLHinge":
        """Return the same objective with the beta of the next update."""
        assert kl is not None, "an update with a penalty measures the KL"
        factor = 1.5 if kl > 1.3 * self.desired_kl else 1 / 1.5 if kl < 0.7 * self.desired_kl else 1.0
        return replace(self, kl_coef=min(max(self.kl_coef * factor, MIN_KL_COEF), MAX_KL_COEF))


@dataclass(frozen=True)
class ReverseKL(NativeObjective):
    """The objective of https://arxiv.org/abs/2009.10897: E[r A - beta KL(new || old)].

    The reverse KL counts most where the new policy acts, and holds actions back that the old policy hardly took. The
    default is the coefficient of the paper's figures.

    :param kl_coef: beta, >= 0
    :raises ArgumentError: (a ``ValueError``) if it has a value that is not allowed
    """

    term: ClassVar[str] = "CLIPPED"
    needs_kl: ClassVar[bool] = True
    rules: ClassVar[Rules] = {"kl_coef": NON_NEGATIVE}
    kl_coef: float = 3.0

    @property
    def constants(self) -> Sequence[float]:
        """An infinite range, no penalty on the KL, and beta."""
        return -inf, inf, 0.0, self.kl_coef

    def loss(self, batch: Batch) -> th.Tensor:
        """-E[r A - beta KL(new || old)]."""
        return (self.kl_coef * batch.reverse_kl - batch.ratio * batch.advantages).mean()

    def coefficients(self) -> dict[str, float]:
        """Return beta."""
        return {"kl_coef": self.kl_coef}


@dataclass(frozen=True)
class AdaptiveReverseKL(ReverseKL):
    """The objective of https://arxiv.org/abs/2009.10897 with the adaptive beta of the PPO paper, section 4.

    The target is one of KL(old || new), which each update measures. For small steps the two KLs are equal.

    :param kl_coef: beta of the first update, between ``MIN_KL_COEF`` and ``MAX_KL_COEF``
    :param desired_kl: d_targ, in nats per state, > 0
    :raises ArgumentError: (a ``ValueError``) if one has a value that is not allowed
    """

    rules: ClassVar[Rules] = {"kl_coef": KL_COEF, "desired_kl": POSITIVE}
    kl_coef: float = 1.0
    desired_kl: float = 0.01

    def after_update(self, kl: float | None) -> "AdaptiveReverseKL":
        """Return the same objective with the beta of the next update."""
        assert kl is not None, "an update with a penalty measures the KL"
        return replace(self, kl_coef=adapt_kl_coef(self.kl_coef, kl, self.desired_kl))


@dataclass(frozen=True)
class MDPO(NativeObjective):
    """Mirror Descent Policy Optimization, on-policy, equation 5 of https://arxiv.org/abs/2005.09814.

    It is E[r A - KL(new || old) / t_k], where the step size t_k of update k falls linearly over training. In the
    authors' code, t_k = 1 - (k - 1) / K with k from 0 to K - 1, so it ends at 2 / K. The paper's m, the number of
    gradient steps for each t_k, is the number of minibatches of an update.

    :param step_size: t at the beginning of training, > 0
    :param final_step_size: t at its end, in (0, step_size]
    :raises ArgumentError: (a ``ValueError``) if one has a value that is not allowed
    """

    term: ClassVar[str] = "CLIPPED"
    needs_kl: ClassVar[bool] = True
    rules: ClassVar[Rules] = {"step_size": POSITIVE, "final_step_size": POSITIVE}
    step_size: float = 1.0
    final_step_size: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.final_step_size > self.step_size:
            refuse("final_step_size", self.final_step_size, f"a number <= step_size={self.step_size}")

    def at(self, progress_remaining: float) -> "MDPO":
        """Return the objective with the step size of one update."""
        final = self.final_step_size
        return replace(self, step_size=final + (self.step_size - final) * progress_remaining)

    @property
    def constants(self) -> Sequence[float]:
        """An infinite range, no penalty on the KL, and 1 / t."""
        return -inf, inf, 0.0, 1 / self.step_size

    def loss(self, batch: Batch) -> th.Tensor:
        """-E[r A - KL(new || old) / t]."""
        return ReverseKL(1 / self.step_size).loss(batch)

    def coefficients(self) -> dict[str, float]:
        """Return t, and the weight of the KL."""
        return {"step_size": self.step_size, "kl_coef": 1 / self.step_size}
