"""Objectives that limit the policy smoothly: a quadratic, soft gates, and a drift that was found by meta-learning."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch as th

from sb3_ppo_variants.arguments import NON_NEGATIVE, POSITIVE
from sb3_ppo_variants.objectives.objective import Batch, NativeObjective, Rules


@dataclass(frozen=True)
class SPO(NativeObjective):
    """Equation 16 of https://arxiv.org/abs/2401.16025 (ICML 2025): E[r A - \\|A\\| / (2 eps) (r - 1)^2].

    As a function of r, it is greatest at an end of PPO's range, 1 + eps or 1 - eps. Every sample has a gradient, and
    those beyond the range are pulled back.

    :param clip_range: eps, > 0
    :raises ArgumentError: (a ``ValueError``) if it has a value that is not allowed
    """

    term: ClassVar[str] = "QUADRATIC"
    rules: ClassVar[Rules] = {"clip_range": POSITIVE}
    clip_range: float = 0.2

    @property
    def constants(self) -> Sequence[float]:
        """Eps."""
        return (self.clip_range,)

    def loss(self, batch: Batch) -> th.Tensor:
        """-E[r A - |A| / (2 eps) (r - 1)^2]."""
        penalty = batch.advantages.abs() / (2 * self.clip_range) * (batch.ratio - 1) ** 2
        return (penalty - batch.ratio * batch.advantages).mean()


@dataclass(frozen=True)
class P3O(NativeObjective):
    """Scopic, https://arxiv.org/abs/2205.10047: E[(4 / tau) sigmoid(tau (r - 1)) A - beta KL(old || new)].

    The derivative with respect to r is A at r = 1 and falls smoothly on both sides, so that a sample counts
    less the further r is from 1, but its weight never reaches 0. The paper's code has tau = 4 and beta = 0.1 on MuJoCo,
    which are the defaults, and 2 and 1 on Atari.

    :param tau: the steepness of the gate, > 0; from 2 on, the gate does not exceed r where r >= 1
    :param kl_coef: beta, >= 0
    :raises ArgumentError: (a ``ValueError``) if one has a value that is not allowed
    """

    term: ClassVar[str] = "GATED"
    needs_kl: ClassVar[bool] = True
    rules: ClassVar[Rules] = {"tau": POSITIVE, "kl_coef": NON_NEGATIVE}
    tau: float = 4.0
    kl_coef: float = 0.1

    @property
    def constants(self) -> Sequence[float]:
        """Tau for both signs of A, and beta."""
        return self.tau, self.tau, self.kl_coef

    def loss(self, batch: Batch) -> th.Tensor:
        """-E[(4 / tau) sigmoid(tau (r - 1)) A - beta KL]."""
        gate = 4 / self.tau * th.sigmoid(self.tau * (batch.ratio - 1))
        return (self.kl_coef * batch.kl - gate * batch.advantages).mean()


@dataclass(frozen=True)
class SAPO(NativeObjective):
    """Equations 5 and 6 of https://arxiv.org/abs/2511.20347: E[(4 / tau) sigmoid(tau (r - 1)) A].

    tau = tau_pos where A > 0, else tau_neg. The derivative with respect to r is A at r = 1 and falls smoothly on both
    sides, faster with a greater tau. Making an action less likely makes all others more likely, which is why the paper
    has the greater tau there. The defaults are for language models, where an update has few steps. With more, take
    greater temperatures, or end updates early with ``target_kl``.

    :param tau_pos: the steepness of the gate where A > 0, > 0
    :param tau_neg: the one elsewhere, > 0
    :raises ArgumentError: (a ``ValueError``) if one has a value that is not allowed
    """

    term: ClassVar[str] = "GATED"
    rules: ClassVar[Rules] = {"tau_pos": POSITIVE, "tau_neg": POSITIVE}
    tau_pos: float = 1.0
    tau_neg: float = 1.05

    @property
    def constants(self) -> Sequence[float]:
        """Both temperatures, and no penalty."""
        return self.tau_pos, self.tau_neg, 0.0

    def loss(self, batch: Batch) -> th.Tensor:
        """-E[(4 / tau) sigmoid(tau (r - 1)) A]."""
        of_positive, of_negative = map(batch.advantages.new_tensor, (self.tau_pos, self.tau_neg))
        tau = th.where(batch.advantages > 0, of_positive, of_negative)
        return -(4 / tau * th.sigmoid(tau * (batch.ratio - 1)) * batch.advantages).mean()


@dataclass(frozen=True)
class DPO(NativeObjective):
    """Discovered Policy Optimisation, https://arxiv.org/abs/2210.05639: E[r A - f(r, A)].

    The drift f was found by meta-learning and then written in closed form:

    - where A >= 0, f = relu((r - 1) A - alpha tanh((r - 1) A / alpha)), which takes the incentive away once (r - 1) A
      exceeds alpha,
    - where A < 0, f = relu(log(r) A - beta tanh(log(r) A / beta)), which pulls r back once it is small.

    The formula is that of the first author's code in PureJaxRL. The defaults are for normalised advantages. It is not
    Direct Preference Optimization, which has the same short name.

    :param alpha: the scale of the drift where A >= 0, > 0
    :param beta: the one where A < 0, > 0
    :raises ArgumentError: (a ``ValueError``) if one has a value that is not allowed
    """

    term: ClassVar[str] = "DISCOVERED"
    rules: ClassVar[Rules] = {"alpha": POSITIVE, "beta": POSITIVE}
    alpha: float = 2.0
    beta: float = 0.6

    @property
    def constants(self) -> Sequence[float]:
        """Alpha and beta."""
        return self.alpha, self.beta

    def loss(self, batch: Batch) -> th.Tensor:
        """-E[r A - f(r, A)]."""
        r, a = batch.ratio, batch.advantages
        above, below = (r - 1) * a, batch.log_ratio * a
        drift = th.where(
            a >= 0, above - self.alpha * th.tanh(above / self.alpha), below - self.beta * th.tanh(below / self.beta)
        )
        return (th.relu(drift) - r * a).mean()
