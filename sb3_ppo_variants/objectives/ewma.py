"""PPO-EWMA (https://arxiv.org/abs/2110.00641), around any objective: an average of policies to stay close to."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch as th
from stable_baselines3.common.distributions import Distribution
from torch import nn

from sb3_ppo_variants.arguments import FRACTION, instance
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.limits import EarlyStop
from sb3_ppo_variants.objectives.objective import Batch, Objective
from sb3_ppo_variants.objectives.surrogates import Clipped

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
    :param decay: the decay of the average per gradient step of the policy, in [0, 1]; with 0, pi_prox is always pi. By
        default, it is m / (m + 1) with the number m of minibatches of an update, in all epochs. The paper's 0.889 is
        that of 8 minibatches
    :raises ArgumentError: (a ``ValueError``) if one has a value that is not allowed
    """

    objective: Objective = OF_THE_PAPER
    decay: float | None = None

    def __post_init__(self) -> None:
        instance("an instance of a class derived from Objective", Objective).check("objective", self.objective)
        FRACTION.or_none().check("decay", self.decay)
        if isinstance(self.objective, EWMA):
            raise ArgumentError(f"objective={self.objective} is an EWMA already: pass the objective that it is around")

    def decay_over(self, minibatches: int) -> float:
        """Return the decay in an update with so many minibatches."""
        return minibatches / (minibatches + 1) if self.decay is None else float(self.decay)

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

    def loss(self, batch: Batch) -> th.Tensor:
        """Compute the loss of the objective within, whose batch already refers to the proximal policy."""
        return self.objective.loss(batch)

    def check_distribution(self, distribution: Distribution) -> None:
        """Check that the loss within is known for the policy's actions."""
        self.objective.check_distribution(distribution)

    def coefficients(self) -> dict[str, float]:
        """Return the coefficients of the objective within."""
        return self.objective.coefficients()

    def at(self, progress_remaining: float) -> "EWMA":
        """Return the same with the objective within for one update."""
        return replace(self, objective=self.objective.at(progress_remaining))

    def after_update(self, kl: float | None) -> "EWMA":
        """Return the same with the objective within for later updates; the KL is KL(old || new)."""
        return replace(self, objective=self.objective.after_update(kl))


def within(objective: Objective) -> Objective:
    """Return the objective that an EWMA is around, or else the objective itself."""
    return objective.objective if type(objective) is EWMA else objective


class ProximalPolicy(nn.Module):
    """The average of a policy's parameters after each gradient step. Those of earlier steps decay.

    :param parameters: the parameters that the steps change
    """

    average: th.Tensor
    total_weight: th.Tensor

    def __init__(self, parameters: Sequence[nn.Parameter]):
        super().__init__()
        self.register_buffer("average", join(parameters))
        self.register_buffer("total_weight", th.zeros((), dtype=th.float64, device="cpu"))

    def begin(self, parameters: Sequence[nn.Parameter]) -> None:
        """Take the current values of the parameters as the first of the average, unless it has followed steps."""
        if self.total_weight == 0:
            self.average = join(parameters)
            self.total_weight.fill_(1)

    def follow(self, parameters: Sequence[nn.Parameter], decay: float) -> None:
        """Add the current values of the parameters to the average, after the earlier ones have decayed."""
        before = decay * float(self.total_weight)
        self.average.mul_(before / (before + 1)).add_(join(parameters) / (before + 1))
        self.total_weight.fill_(before + 1)

    @contextmanager
    def in_place_of(self, parameters: Sequence[nn.Parameter]) -> Iterator[None]:
        """Give the parameters their averaged values while the context is active."""
        current = [parameter.data for parameter in parameters]
        averages = th.split(self.average, [tensor.numel() for tensor in current])
        try:
            for parameter, tensor in zip(parameters, averages, strict=True):
                parameter.data = tensor.view_as(parameter)
            yield
        finally:
            for parameter, tensor in zip(parameters, current, strict=True):
                parameter.data = tensor


def join(tensors: Iterable[th.Tensor]) -> th.Tensor:
    """Concatenate tensors of any shapes into a new vector."""
    return th.cat([tensor.detach().flatten() for tensor in tensors])
