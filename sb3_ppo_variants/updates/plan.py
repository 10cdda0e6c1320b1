"""The plan of an update: the terms of the loss, and the descents that minimise it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from torch.optim import Optimizer

from sb3_ppo_variants.objectives import Objective
from sb3_ppo_variants.policies.kind import PolicyKind
from sb3_ppo_variants.processes import ALONE, Processes
from sb3_ppo_variants.updates.advantages import NormalizeAdvantage


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
    :param target_kl: the passes end once the approximate KL of a minibatch exceeds 1.5 times this; ``None`` never
        ends them early
    """

    optimizer: Optimizer
    parameters: Sequence[th.nn.Parameter]
    learning_rate: float
    epochs: int
    max_grad_norm: float
    of_policy: bool = True
    of_value: bool = True
    target_kl: float | None = None


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
    :param clip_range_vf: clipping of the value loss
    :param normalize_advantage: how advantages are normalised; see :mod:`sb3_ppo_variants.updates.advantages`
    :param batch_size: rows in a minibatch, at most those of the rollout
    :param descents: the descents, in the order in which they run
    :param processes: the processes that share the update
    """

    kind: PolicyKind
    buffer: RolloutBuffer
    objective: Objective
    ent_coef: float
    vf_coef: float
    clip_range_vf: float | None
    normalize_advantage: NormalizeAdvantage
    batch_size: int
    descents: Sequence[Descent]
    processes: Processes = ALONE

    def coefficients(self) -> dict[str, float]:
        """Return the coefficients of the objective and of the value clipping, as they are logged."""
        clip_range_vf = {} if self.clip_range_vf is None else {"clip_range_vf": self.clip_range_vf}
        return {**self.objective.coefficients(), **clip_range_vf}

    @cached_property
    def modules(self) -> Sequence[th.nn.Module]:
        """The policy's modules. They are listed once per plan, and every rollout and update has a new plan."""
        return list(self.kind.policy.modules())

    @cached_property
    def parameters(self) -> Mapping[str, th.nn.Parameter]:
        """The policy's parameters by name."""
        return dict(self.kind.policy.named_parameters())

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizers of all descents."""
        return [descent.optimizer for descent in self.descents]
