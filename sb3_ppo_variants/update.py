"""The plan of an update: the terms of the loss, and the descents that minimise it with their step sizes.

An engine runs the plan (:class:`Update`). A descent is gradient descent with one optimizer: some epochs, each a pass
over all minibatches of the rollout.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, TypeVar

import numpy as np
import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import Schedule
from torch import nn
from torch.optim import Optimizer

from sb3_ppo_variants.arguments import current_value
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.kl import Parameters
from sb3_ppo_variants.limits import EarlyStop, KLAdaptive
from sb3_ppo_variants.losses import ADVANTAGE_EPSILON, ValueLoss
from sb3_ppo_variants.objectives import Objective
from sb3_ppo_variants.objectives.ewma import ProximalPolicy
from sb3_ppo_variants.policies.kind import PolicyKind
from sb3_ppo_variants.processes import ALONE, Processes, mean_and_variance
from sb3_ppo_variants.statistics import MinibatchStatistics

# True means "minibatch", as in SB3.
NormalizeAdvantage: TypeAlias = bool | Literal["minibatch", "rollout"]
TensorOrArray = TypeVar("TensorOrArray", th.Tensor, np.ndarray)


@np.errstate(all="ignore")
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
        mean, variance = mean_and_variance(th.from_numpy(advantages), processes)
        scale = math.sqrt(variance) + ADVANTAGE_EPSILON
    return np.errstate(all="ignore")(lambda given: (given - mean) / scale)


def parameters_in(optimizer: Optimizer) -> list[nn.Parameter]:
    """List the parameters that an optimizer trains."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def set_step_size(optimizer: Optimizer, step_size: float) -> None:
    """Set the step size of an optimizer's first group of parameters. Those of the others keep their ratios to it.

    :raises ArgumentError: if the first group alone has begun with a step size of 0, to which there is no ratio
    """
    groups = optimizer.param_groups
    if len(groups) > 1:  # Keep what they begin with, as PyTorch's schedules do: no ratio survives a step size of 0.
        first, *others = (group.setdefault("initial_lr", group["lr"]) for group in groups)
        if first == 0 and any(others):
            raise ArgumentError("policy.optimizer: the first group of parameters needs a step size above 0")
        for group, rate in zip(groups[1:], others, strict=True):
            group["lr"] = step_size * (rate / first if first else 1.0)
    groups[0]["lr"] = step_size


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
class DescentResult:
    """What a descent did.

    :param epochs: number of epochs that were begun
    :param learning_rate: the last step size
    :param statistics: the statistics of its minibatches
    :param stopped: number of epochs that ``stop`` ended early
    :param exceeded: the statistic that ended the last of them
    """

    epochs: int
    learning_rate: float
    statistics: MinibatchStatistics
    stopped: int = 0
    exceeded: float = 0.0


@dataclass(frozen=True)
class UpdatePlan:
    """Everything that an engine knows about an update.

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
    :param proximal_decay: the decay of the average that it is, per gradient step of the policy
    :param old_parameters: the parameters of the distributions that the actions of the rollout were drawn from, one row
        per row; ``None`` if they are not known, because the rollout is not complete or another loop collected it
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
    proximal_decay: float = 0.0
    old_parameters: Parameters | None = None

    def coefficients(self) -> dict[str, float]:
        """Return the coefficients of the objective and of the value loss, as they are logged."""
        of_average = {} if self.proximal is None else {"proximal_decay": self.proximal_decay}
        return {**self.objective.coefficients(), **of_average, **self.value_loss.coefficients()}

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
        return [*map(attrgetter("optimizer"), self.descents)]


class Update(Protocol):
    """An update, as an engine runs it. It may change the policy and its optimizers, and nothing else of the model."""

    def descend(self, descent: Descent) -> DescentResult:
        """Run all epochs of a descent, or fewer if ``stop`` ends them early."""

    def statistics(self) -> MinibatchStatistics:
        """Return what the last descent has measured, as far as it came."""

    def store(self) -> None:
        """Write the results to the policy and the optimizers, if the update works on copies of them."""

    def kl(self) -> float | None:
        """Compute the mean of KL(old || new) over the rollout; ``None`` if the policy has no known KL."""


class Trained(Protocol):
    """The attributes of a model that are read to plan its updates."""

    policy: ActorCriticPolicy
    value_optimizer: Optimizer
    lr_schedule: Schedule
    n_epochs: int
    max_grad_norm: float  # It may also be None, but SB3's annotation says float.
    learning_rate: Any
    _current_progress_remaining: float


class Updates(ABC):
    """Divides an update into descents, and creates the optimizers that they need."""

    optimizers: ClassVar[Sequence[str]] = ()
    """The model's attributes that hold optimizers other than ``policy.optimizer``. They are saved with the model."""

    @abstractmethod
    def prepare(self, model: Trained) -> None:
        """Create the optimizers of a model whose policy is new."""

    @abstractmethod
    def descents(self, model: Trained, stop: EarlyStop | None) -> list[Descent]:
        """Plan the descents of the next update, the policy's first.

        :param stop: ends the passes of the policy early
        """

    @abstractmethod
    def log(self, results: Sequence[DescentResult]) -> dict[str, float]:
        """Return the values that are logged after an update in addition to its losses.

        :param results: what each descent did
        """


class JointUpdates(Updates):
    """One optimizer for all terms of equation 9 of https://arxiv.org/abs/1707.06347, as in SB3."""

    def prepare(self, model: Trained) -> None:
        """Do nothing: the policy already has its optimizer."""

    def descents(self, model: Trained, stop: EarlyStop | None) -> list[Descent]:
        """Plan a single descent for the whole loss."""
        policy, rate = model.policy, model.learning_rate
        return [
            Descent(
                policy.optimizer,
                list(policy.parameters()),
                learning_rate=current_value("learning_rate", model.lr_schedule, model._current_progress_remaining),
                epochs=model.n_epochs,
                max_grad_norm=math.inf if model.max_grad_norm is None else model.max_grad_norm,
                stop=stop,
                adaptive=rate if isinstance(rate, KLAdaptive) and rate.in_minibatches else None,
            )
        ]

    def log(self, results: Sequence[DescentResult]) -> dict[str, float]:
        """Return the step size."""
        return {"learning_rate": results[0].learning_rate}


JOINT = JointUpdates()


def divide(updates: Updates | None, prepared: Updates | None = None) -> Updates:
    """Choose the updates that the attribute ``updates`` of a model stands for.

    :param prepared: the updates that have created the optimizers of the model, if it already has optimizers
    :raises ArgumentError: if the updates are of another kind than the prepared ones
    """
    found = JOINT if updates is None else updates
    if prepared is not None and type(found) is not type(prepared):
        before = None if prepared is JOINT else prepared
        raise ArgumentError(
            f"updates={updates} does not fit the optimizers of this model, which was created with updates={before}: "
            f"create a new model with updates={updates}, and load the weights into it with "
            "new.policy.load_state_dict(model.policy.state_dict())"
        )
    return found
