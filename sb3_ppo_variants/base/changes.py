"""Arguments that are set as attributes of a model: they take effect, or an error says what to do instead.

Most arguments are read from the model before each rollout or update, so that new values take effect. This module is
about the others, from which something was built when the model was created: SB3 ignores them.
"""

from collections.abc import Callable, Mapping
from typing import Any

from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from sb3_ppo_variants.errors import ArgumentError


def _rebuild_schedule(model: OnPolicyAlgorithm) -> None:
    model._setup_lr_schedule()


def _pass_to_buffer(model: OnPolicyAlgorithm) -> None:
    model.rollout_buffer.gamma, model.rollout_buffer.gae_lambda = model.gamma, model.gae_lambda


# How a new value takes effect.
TAKEN: Mapping[str, Callable[[OnPolicyAlgorithm], None]] = {
    "learning_rate": _rebuild_schedule,
    "gamma": _pass_to_buffer,
    "gae_lambda": _pass_to_buffer,
}
# What to do instead of setting the attribute.
REFUSED: Mapping[str, str] = {
    "policy_kwargs": "create a new model with them",
    "use_sde": "create a new model with it",
    "rollout_buffer_class": "save the model and pass rollout_buffer_class to load()",
    "rollout_buffer_kwargs": "save the model and pass rollout_buffer_kwargs to load()",
    "device": "save the model and pass device to load()",
    "seed": "call set_random_seed(), or save the model and pass seed to load()",
}


class UsedArguments:
    """The values from which a model was built.

    :param model: the new model
    """

    def __init__(self, model: OnPolicyAlgorithm):
        self._values = {name: _kept(getattr(model, name)) for name in (*TAKEN, *REFUSED)}

    def update(self, model: OnPolicyAlgorithm) -> None:
        """Let values that were set since the last call take effect.

        :raises ArgumentError: for an attribute that only counts when a model is created
        """
        for name, used in self._values.items():
            value = getattr(model, name)
            if _same(value, used):
                continue
            if name in REFUSED:
                raise ArgumentError(
                    f"{name}={value!r} was set after the model was created with {name}={used!r}, where it has no "
                    f"effect: {REFUSED[name]}"
                )
            TAKEN[name](model)
            self._values[name] = _kept(value)


def _kept(value: Any) -> Any:
    return dict(value) if isinstance(value, dict) else value  # The user may change the dict.


def _same(value: Any, used: Any) -> bool:
    try:
        return value is used or bool(value == used)
    except (TypeError, ValueError):  # It contains arrays, for example.
        return False
