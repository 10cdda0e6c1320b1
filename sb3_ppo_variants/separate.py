"""Separate updates of policy and value, as in Spinning Up's PPO."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch as th
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import Schedule
from torch.optim import Optimizer

from sb3_ppo_variants.arguments import COUNT, NON_NEGATIVE, NORM, Values, check_names, current_value, is_schedule
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.limits import EarlyStop
from sb3_ppo_variants.policies.kind import of_first_state
from sb3_ppo_variants.saving import register_plain
from sb3_ppo_variants.update import JOINT, Descent, DescentResult, Trained, Updates, parameters_in


@dataclass(frozen=True)
class SeparateUpdates(Updates):
    """Update the policy first and then the value function, each with its own optimizer.

    This is Spinning Up's algorithm (https://spinningup.openai.com/en/latest/algorithms/ppo.html). The policy's loss is
    the objective and the entropy bonus; the value function's loss is ``vf_coef`` times the value loss.
    ``learning_rate``, ``target_kl`` and ``stop`` apply to the policy only. For full-batch steps, set ``batch_size`` to
    the size of the rollout.

    :param policy_epochs: passes over the rollout for the policy, >= 1; ``None`` for ``n_epochs``
    :param value_epochs: passes over the rollout for the value function, >= 1; ``None`` for ``n_epochs``
    :param value_learning_rate: step size for the value function, >= 0, a number or a schedule of the remaining progress
    :param value_max_grad_norm: maximum norm of the value function's gradient, >= 0; ``None`` for ``max_grad_norm``
    :raises ArgumentError: (a ``ValueError``) if an argument has a value that is not allowed
    """

    policy_epochs: int | None = None
    value_epochs: int | None = None
    value_learning_rate: float | Schedule = 1e-3
    value_max_grad_norm: float | None = None

    optimizers: ClassVar[Sequence[str]] = ("value_optimizer",)

    def __post_init__(self) -> None:
        COUNT.or_none().check("policy_epochs", self.policy_epochs)
        COUNT.or_none().check("value_epochs", self.value_epochs)
        NON_NEGATIVE.or_schedule().check("value_learning_rate", self.value_learning_rate)
        NORM.or_none().check("value_max_grad_norm", self.value_max_grad_norm)

    def prepare(self, model: Trained) -> None:
        """Create one optimizer for the parameters of the policy, and one for those of the value function.

        :raises ArgumentError: if the two share parameters
        """
        policy = model.policy
        of_policy, of_value = divided_parameters(policy)
        # Both have the class and the arguments of the single optimizer that SB3 has created.
        make: Callable[..., Optimizer] = partial(policy.optimizer_class, **policy.optimizer_kwargs)
        policy.optimizer = make(of_policy, lr=model.lr_schedule(1))
        model.value_optimizer = make(of_value, lr=self._rate(model, 1.0))

    def descents(self, model: Trained, stop: EarlyStop | None) -> list[Descent]:
        """Plan a descent for the policy, and one for the value function.

        :raises ArgumentError: if one of them has no parameter that requires a gradient
        """
        if not set(parameters_in(model.value_optimizer)) <= set(model.policy.parameters()):
            self.prepare(model)  # The model has another policy than before.
        of_policy, of_value = map(parameters_in, (model.policy.optimizer, model.value_optimizer))
        for outputs, parameters in (("actions", of_policy), ("values", of_value)):
            if not any(parameter.requires_grad for parameter in parameters):
                raise _untrained(outputs)
        (joint,) = JOINT.descents(model, stop)
        policy = replace(joint, parameters=of_policy, epochs=self.policy_epochs or model.n_epochs, of_value=False)
        value = Descent(
            model.value_optimizer,
            of_value,
            learning_rate=self._rate(model, model._current_progress_remaining),
            epochs=self.value_epochs or model.n_epochs,
            max_grad_norm=joint.max_grad_norm if self.value_max_grad_norm is None else self.value_max_grad_norm,
            of_policy=False,
        )
        return [policy, value]

    def _rate(self, model: Any, progress_remaining: float) -> float:
        if is_schedule(self.value_learning_rate) and not model.run.has_begun:
            return 0.0
        return current_value("value_learning_rate", self.value_learning_rate, progress_remaining)

    def log(self, results: Sequence[DescentResult]) -> dict[str, float]:
        """Return the step sizes and the numbers of epochs of both."""
        policy, value = results
        return {
            "learning_rate": policy.learning_rate,
            "value_learning_rate": value.learning_rate,
            "policy_epochs": policy.epochs,
            "value_epochs": value.epochs,
        }


register_plain(SeparateUpdates)


def separate(updates: Updates | Values | None) -> Updates | None:
    """Create separate updates from a dict of arguments, such as one from a file of hyperparameters.

    :raises ArgumentError: if an argument does not exist or has a value that is not allowed
    """
    if not isinstance(updates, dict):
        return updates
    check_names("updates", updates, SeparateUpdates, ())
    return SeparateUpdates(**updates)


def _untrained(outputs: str) -> ArgumentError:
    return ArgumentError(
        f"SeparateUpdates needs trainable parameters in both networks, but {outputs} depend on none. updates=None "
        "trains only the other network"
    )


def divided_parameters(policy: ActorCriticPolicy) -> tuple[list[th.nn.Parameter], list[th.nn.Parameter]]:
    """Find the parameters of the policy and those of the value function.

    Parameters that values depend on belong to the value function. All others belong to the policy, even if actions do
    not depend on them either.

    :raises ArgumentError: if actions and values depend on the same parameters, or one of them only on frozen ones
    """
    # In evaluation mode, cuDNN computes no gradients of an LSTM.
    with th.enable_grad(), th.backends.cudnn.flags(enabled=False):
        distribution, values = of_first_state(policy)
        log_prob = distribution.log_prob(distribution.get_actions(deterministic=True))
        actor, critic = _depends(policy, log_prob), _depends(policy, values)
    for outputs, names in (("actions", actor), ("values", critic)):
        if not names:
            raise _untrained(outputs)
    shared = sorted(actor & critic)
    if shared:
        others = f" and {len(shared) - 1} more" if len(shared) > 1 else ""
        raise ArgumentError(
            f"SeparateUpdates needs a policy and a value network that share no parameters, but {shared[0]}{others} "
            "belong to both. SB3's policies keep them apart with policy_kwargs={'share_features_extractor': False}"
        )
    named = dict(policy.named_parameters())
    return [p for name, p in named.items() if name not in critic], [named[name] for name in named if name in critic]


def _depends(policy: ActorCriticPolicy, output: th.Tensor) -> set[str]:
    """Find the names of the parameters that an output depends on, except frozen ones."""
    if not output.requires_grad:
        return set()
    named = {name: parameter for name, parameter in policy.named_parameters() if parameter.requires_grad}
    gradients = th.autograd.grad(output.sum(), list(named.values()), allow_unused=True)
    return {name for name, gradient in zip(named, gradients, strict=True) if gradient is not None}
