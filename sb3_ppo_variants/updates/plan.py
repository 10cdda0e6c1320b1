"""The plan of an update: the terms of the loss, and the descents that minimise it with their step sizes."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

import numpy as np
import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import Schedule
from torch import nn
from torch.optim import Optimizer

from sb3_ppo_variants.arguments.rules import ABOVE_ONE, POSITIVE, Rule, current_value
from sb3_ppo_variants.errors import refuse
from sb3_ppo_variants.losses import ADVANTAGE_EPSILON, ClippedError, Huber, SquaredError, ValueLoss
from sb3_ppo_variants.objectives import Objective
from sb3_ppo_variants.objectives.objective import TensorOrArray
from sb3_ppo_variants.policies.kind import PolicyKind
from sb3_ppo_variants.processes import ALONE, Processes, moments_together
from sb3_ppo_variants.saving import register_plain
from sb3_ppo_variants.stops import ApproximateKL, EarlyStop, ExactKL, RatioDeviation

# True means "minibatch", as in SB3.
NormalizeAdvantage: TypeAlias = bool | Literal["minibatch", "rollout"]

EVERY = Rule("'update' or 'minibatch'", lambda value: isinstance(value, str) and value in ("update", "minibatch"))


@dataclass(frozen=True, kw_only=True)
class KLAdaptive:
    """An Adam step size that keeps the KL of an update near a target; pass it as ``learning_rate``.

    If the exact mean of KL(old || new) is above ``tolerance * desired_kl``, the step size is divided by ``factor``; if
    it is below ``desired_kl / tolerance``, it is multiplied by ``factor``.

    The PPO paper (https://arxiv.org/abs/1707.06347, table 4) adjusts Adam's step size by a target value of the KL on
    Roboschool, but does not give its rule. The rule and its constants are those of OpenAI Baselines' ACKTR, which
    applies it after each update, and of rsl_rl's PPO, which applies it before each step.

    :param desired_kl: the target, in nats per state, > 0
    :param learning_rate: the step size to begin with, between the bounds. The model's attribute ``learning_rate`` is
        replaced by an object with the adapted step size after each update
    :param every: ``"update"`` adapts the step size after each update, by the KL over the rollout; ``"minibatch"``
        adapts it before each step, by the KL over the minibatch, except before the first step of an update, where the
        policy has not moved yet
    :param factor: > 1
    :param tolerance: > 1
    :param min_learning_rate: the lower bound, > 0
    :param max_learning_rate: the upper bound
    :raises ArgumentError: (a ``ValueError``) if an argument has a value that is not allowed
    """

    desired_kl: float = 0.01
    learning_rate: float = 3e-4
    every: Literal["update", "minibatch"] = "update"
    factor: float = 1.5
    tolerance: float = 2.0
    min_learning_rate: float = 1e-5
    max_learning_rate: float = 1e-2

    def __post_init__(self) -> None:
        for name in ("desired_kl", "learning_rate", "min_learning_rate", "max_learning_rate"):
            POSITIVE.check(name, getattr(self, name))
        for name in ("factor", "tolerance"):
            ABOVE_ONE.check(name, getattr(self, name))
        EVERY.check("every", self.every)
        low, high = self.min_learning_rate, self.max_learning_rate
        if not low <= self.learning_rate <= high:
            refuse(
                "learning_rate",
                self.learning_rate,
                f"a number in [{low:g}, {high:g}], the bounds of {type(self).__name__}",
            )

    @property
    def in_minibatches(self) -> bool:
        """Whether the step size is adapted before each step."""
        return self.every == "minibatch"

    def adapted(self, learning_rate: float, kl: float) -> float:
        """Compute the next step size.

        :param learning_rate: the last step size
        :param kl: the mean of KL(old || new). A KL of 0 changes nothing, since the policy has not moved
        """
        if kl > self.tolerance * self.desired_kl:
            return max(learning_rate / self.factor, self.min_learning_rate)
        if 0 < kl < self.desired_kl / self.tolerance:
            return min(learning_rate * self.factor, self.max_learning_rate)
        return learning_rate

    def after_update(self, learning_rate: float, kl: float | None) -> "KLAdaptive":
        """Return the same rule with the step size of the next update.

        :param learning_rate: the last step size of the update
        :param kl: the mean of KL(old || new) over the rollout
        """
        if not self.in_minibatches:
            assert kl is not None, "a model with this step size measures the KL"
            learning_rate = self.adapted(learning_rate, kl)
        return replace(self, learning_rate=learning_rate)


# These are saved as their fields, without pickle.
for _part in (ApproximateKL, ExactKL, RatioDeviation, KLAdaptive, ClippedError, Huber, SquaredError):
    register_plain(_part.__name__, _part)


def rollout_normalizer(
    advantages: np.ndarray, processes: Processes = ALONE
) -> Callable[[TensorOrArray], TensorOrArray]:
    """Make a function that normalises advantages over a whole rollout, as OpenAI Baselines does.

    It uses the mean and the standard deviation of all advantages in the rollout.

    :param advantages: the advantages of the rollout, which are not modified
    :param processes: the processes whose rollouts are normalised as one
    :return: a function that can be applied to any of the advantages, on any device
    """
    mean, scale = float(advantages.mean()), float(advantages.std() + ADVANTAGE_EPSILON)
    if processes.size > 1:
        mean, scale = moments_together(th.from_numpy(advantages), processes)
    return lambda given: (given - mean) / scale


class ProximalPolicy(nn.Module):
    """The average of a policy's parameters after each gradient step. Those of earlier steps decay.

    :param parameters: the parameters that the steps change, whose current values are the first of the average
    """

    average: th.Tensor
    total_weight: th.Tensor

    def __init__(self, parameters: Sequence[nn.Parameter]):
        super().__init__()
        self.register_buffer("average", join(parameters))
        self.register_buffer("total_weight", th.ones((), dtype=th.float64))
        self._last: th.Tensor | None = None

    def load_state_dict(self, *args: Any, **arguments: Any) -> Any:
        """Load an average, which is that of parameters loaded with it."""
        self._last = None
        return super().load_state_dict(*args, **arguments)

    def remember(self, parameters: Sequence[nn.Parameter]) -> None:
        """Remember the parameters with which an update ends."""
        self._last = join(parameters)

    def has_followed(self, parameters: Sequence[nn.Parameter]) -> bool:
        """Whether it has followed steps that led to these parameters. They may have been set since."""
        if float(self.total_weight) == 1:
            return False
        return self._last is None or th.equal(self._last, join(parameters))

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


@dataclass(frozen=True)
class Descent:
    """Passes over the rollout that minimise the loss, or part of it, with one optimizer.

    :param optimizer: takes the steps
    :param parameters: the parameters whose gradient is clipped
    :param learning_rate: step size of the optimizer
    :param epochs: number of passes
    :param max_grad_norm: maximum norm of the gradient, infinite if it is not clipped
    :param of_policy: whether the loss includes the objective and the entropy loss
    :param of_value: whether the loss includes the value loss
    :param stop: ends the passes, or single ones, early; ``None`` never does
    :param adaptive: the rule that adapts the step size before each step, if there is one
    """

    optimizer: Optimizer
    parameters: Sequence[nn.Parameter]
    learning_rate: float
    epochs: int
    max_grad_norm: float
    of_policy: bool = True
    of_value: bool = True
    stop: EarlyStop | None = None
    adaptive: KLAdaptive | None = None

    @property
    def needs_kl(self) -> bool:
        """Whether the KL of each minibatch is measured, even if the objective does not need it."""
        return self.adaptive is not None or (self.stop is not None and self.stop.needs_kl)


@dataclass(frozen=True)
class UpdatePlan:
    """Everything that a backend knows about an update.

    The loss is equation 9 of https://arxiv.org/abs/1707.06347, negated:
    the objective's loss + ent_coef * entropy loss + vf_coef * value loss.

    :param kind: evaluates the policy
    :param buffer: a full rollout buffer
    :param objective: the policy objective with its coefficients
    :param ent_coef: coefficient of the entropy loss
    :param vf_coef: coefficient of the value loss
    :param value_loss: the value loss
    :param normalize_advantage: where advantages are normalised; ``None`` for nowhere
    :param batch_size: rows in a minibatch, at most those of the rollout
    :param descents: the descents, in the order in which they run
    :param processes: the processes that share the update
    :param proximal: the policy to stay close to; ``None`` if it is the policy of the rollout
    """

    kind: PolicyKind
    buffer: RolloutBuffer
    objective: Objective
    ent_coef: float
    vf_coef: float
    value_loss: ValueLoss
    normalize_advantage: Literal["minibatch", "rollout"] | None
    batch_size: int
    descents: Sequence[Descent]
    processes: Processes = ALONE
    proximal: ProximalPolicy | None = None

    def coefficients(self) -> dict[str, float]:
        """Return the coefficients of the objective and of the value loss, as they are logged."""
        return {**self.objective.coefficients(), **self.value_loss.coefficients()}

    @property
    def needs_kl(self) -> bool:
        """Whether the KL of each minibatch is computed."""
        return self.objective.needs_kl or any(descent.needs_kl for descent in self.descents)

    @cached_property
    def modules(self) -> Sequence[nn.Module]:
        """The policy's modules. They are listed once per plan, and every rollout and update has a new plan."""
        return list(self.kind.policy.modules())

    @cached_property
    def parameters(self) -> Mapping[str, nn.Parameter]:
        """The policy's parameters by name."""
        return dict(self.kind.policy.named_parameters())

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizers of all descents."""
        return [descent.optimizer for descent in self.descents]


class Trained(Protocol):
    """The attributes of a model that are read to plan its updates."""

    policy: ActorCriticPolicy
    value_optimizer: Optimizer
    lr_schedule: Schedule
    n_epochs: int
    max_grad_norm: float  # It may also be None, but SB3's annotation says float.
    learning_rate: Any
    _current_progress_remaining: float

    @property
    def early_stop(self) -> EarlyStop | None:
        """What ends the next update early."""


class Updates(ABC):
    """Divides an update into descents, and creates the optimizers that they need."""

    optimizers: ClassVar[Sequence[str]] = ()
    """The model's attributes that hold optimizers other than ``policy.optimizer``. They are saved with the model."""

    @abstractmethod
    def prepare(self, model: Trained) -> None:
        """Create the optimizers of a model whose policy is new."""

    @abstractmethod
    def descents(self, model: Trained) -> list[Descent]:
        """Plan the descents of the next update, the policy's first."""

    @abstractmethod
    def log(self, descents: Sequence[Descent], epochs: Sequence[int]) -> dict[str, float]:
        """Return the values that are logged after an update in addition to its losses.

        :param descents: the descents of the update
        :param epochs: for each descent, the number of passes that were begun
        """


class JointUpdates(Updates):
    """One optimizer for all terms of equation 9 of https://arxiv.org/abs/1707.06347, as in SB3."""

    def prepare(self, model: Trained) -> None:
        """Do nothing: the policy already has its optimizer."""

    def descents(self, model: Trained) -> list[Descent]:
        """Plan a single descent for the whole loss."""
        policy, rate = model.policy, model.learning_rate
        return [
            Descent(
                policy.optimizer,
                list(policy.parameters()),
                learning_rate=current_value("learning_rate", model.lr_schedule, model._current_progress_remaining),
                epochs=model.n_epochs,
                max_grad_norm=math.inf if model.max_grad_norm is None else model.max_grad_norm,
                stop=model.early_stop,
                adaptive=rate if isinstance(rate, KLAdaptive) and rate.in_minibatches else None,
            )
        ]

    def log(self, descents: Sequence[Descent], epochs: Sequence[int]) -> dict[str, float]:
        return {"learning_rate": descents[0].learning_rate}


JOINT = JointUpdates()
