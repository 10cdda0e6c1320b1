"""The settings of an update, which must be the same in all processes that train together.

Callbacks may change them at any time. If they differ, the processes average gradients of different losses, or exchange
numbers that do not belong together.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv

from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.processes.statistics import describe, normalizations, wrapper_name
from sb3_ppo_variants.saving import SavedAlgorithm
from sb3_ppo_variants.updates import UpdatePlan


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


# Arguments that may differ between processes.
FREE = {"policy", "env", "seed", "device", "verbose", "tensorboard_log"}
OF_NORMALIZATION = (
    "training", "norm_obs", "norm_obs_keys", "norm_reward", "clip_obs", "clip_reward", "gamma", "epsilon",
)  # fmt: skip
OF_BUFFER = ("buffer_size", "gamma", "gae_lambda")
OF_DESCENT = ("learning_rate", "epochs", "max_grad_norm", "target_kl", "of_policy", "of_value")
# The parameters themselves are compared one by one, and each update sets the learning rate.
NOT_OF_OPTIMIZER = {"params", "lr"}


def settings_of(
    model: SavedAlgorithm, names: Iterable[str], plan: UpdatePlan, path: str, progress_remaining: Sequence[float]
) -> dict[str, str]:
    """Describe everything that an update depends on, except its data.

    :param names: the names of the model's arguments
    :param plan: the plan of the update
    :param path: the path of the backend; the two paths exchange numbers in a different order
    :param progress_remaining: where to compare schedules
    :return: descriptions that are the same in all processes if the settings are, by name
    """
    found = {
        **dict(_arguments(model, names)),
        **dict(_of_plan(plan)),
        **dict(_of_normalizations(model.env)),
        "path of the update": path,
    }
    return {name: describe(value, progress_remaining) for name, value in found.items()}


def _arguments(model: SavedAlgorithm, names: Iterable[str]) -> Iterator[tuple[str, Any]]:
    for name in names:
        attribute = name if hasattr(model, name) else f"_{name}"  # Such as stats_window_size.
        # The plan knows what the update makes of names with an underscore, such as beta.
        if name not in FREE and not name.startswith("_") and hasattr(model, attribute):
            yield name, getattr(model, attribute)


def _of_plan(plan: UpdatePlan) -> Iterator[tuple[str, Any]]:
    """Describe what the update makes of the arguments, and what has no argument."""
    for name, value in plan.coefficients().items():
        yield f"{name} of the update", value
    for name in OF_BUFFER:
        yield f"rollout_buffer.{name}", getattr(plan.buffer, name)
    for index, descent in enumerate(plan.descents):
        which = "the update" if len(plan.descents) == 1 else f"descent {index}"
        for name in OF_DESCENT:
            yield f"{name} of {which}", getattr(descent, name)
        groups = descent.optimizer.param_groups
        for name in groups[0]:
            if name not in NOT_OF_OPTIMIZER:
                values = [group[name] for group in groups]
                yield f"{name} of the optimizer of {which}", values if len(values) > 1 else values[0]
    for name, parameter in plan.parameters.items():
        shape = tuple(parameter.shape)
        yield f"policy's {name}", shape if parameter.requires_grad else f"{shape}, frozen"


def _of_normalizations(env: VecEnv | None) -> Iterator[tuple[str, Any]]:
    for index, wrapper in enumerate(normalizations(env)):
        for name in OF_NORMALIZATION:
            yield f"{wrapper_name(index)}.{name}", getattr(wrapper, name, None)
