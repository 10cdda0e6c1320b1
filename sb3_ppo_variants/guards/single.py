"""Checks around a single environment in a worker process."""

from collections.abc import Callable

import gymnasium as gym
import numpy as np

from sb3_ppo_variants.guards.masks import METHOD, MaskCheck, choices
from sb3_ppo_variants.guards.outputs import EnvCheck, Info, Value, Watch, call_env, copy_observation


class CheckedEnv:
    """An environment in a worker process, and its ``step`` and ``reset`` with checks of the values that they return.

    The environment itself stays as it is, because it may copy itself, or take steps that only its own code sees. The
    process of the model checks that numbers are finite, because it knows the step.
    """

    CHECKED: tuple[str, ...] = ("step", "reset")

    def __init__(self, env: gym.Env, env_index: int):
        self.env = env
        self._check = EnvCheck(env.observation_space, env_index, Watch())

    def step(self, *args: object, **kwargs: object) -> tuple[Value, ...]:
        """Take a step."""
        observation, *others = self._check.step(call_env(self._check, self.env.step, *args, **kwargs))
        return copy_observation(observation), *others

    def reset(self, **arguments: object) -> tuple[Value, Info]:
        """Begin an episode."""
        observation, info = self._check.reset(call_env(self._check, self.env.reset, **arguments))
        return copy_observation(observation), info

    def find_method(self, name: str) -> Callable[..., object]:
        """Find a method of the environment, with its checks if it has any."""
        found: Callable[..., object] = getattr(self, name) if name in self.CHECKED else self.env.get_wrapper_attr(name)
        return found


class MaskedEnv(CheckedEnv):
    """An environment with masks in a worker process, which must not change between the policy's question and the step.

    The environment may ask itself at any time.
    """

    CHECKED = (*CheckedEnv.CHECKED, METHOD)

    def __init__(self, env: gym.Env, env_index: int):
        super().__init__(env, env_index)
        self._mask_check = MaskCheck(env.action_space, self._check.watch)
        self._received: np.ndarray | None = None

    def action_masks(self) -> np.ndarray:
        """Ask for the mask that the policy receives."""
        self._received = self._ask()
        return self._received

    def step(self, *args: object, **kwargs: object) -> tuple[Value, ...]:
        """Take a step.

        :raises EnvOutputError: if the mask has changed since the policy received it
        """
        received, self._received = self._received, None
        if received is not None and len(changed := np.flatnonzero(self._ask() != received)):
            found = f"different at {changed.tolist()} from the one that the policy received"
            self._check.watch.refuse("action mask", found, "unchanged until the step", self._check.env_index)
        return super().step(*args, **kwargs)

    def reset(self, **arguments: object) -> tuple[Value, Info]:
        """Begin an episode."""
        self._received = None
        return super().reset(**arguments)

    def _ask(self) -> np.ndarray:
        return self._mask_check.fit(self.env.get_wrapper_attr(METHOD)(), self._check.env_index)


def add_checks(env: gym.Env, env_index: int) -> CheckedEnv:
    """Add checks to an environment in a worker process, those of its masks too if it has any."""
    is_masked = env.has_wrapper_attr(METHOD) and choices(env.action_space) is not None
    return (MaskedEnv if is_masked else CheckedEnv)(env, env_index)
