"""PPOClip without its guards, to measure what they cost."""

from contextlib import ExitStack
from typing import Any
from unittest import mock

import numpy as np
from stable_baselines3.common.vec_env import DummyVecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn

from sb3_ppo_variants.backends import reference
from sb3_ppo_variants.backends.native.update import NativeUpdate
from sb3_ppo_variants.base import algorithm
from sb3_ppo_variants.guards import stepping
from sb3_ppo_variants.guards.outputs import copy_info, copy_observation
from sb3_ppo_variants.updates.run import Measured
from sb3_ppo_variants.variants import PPOClip


class NoSnapshot:
    """Replaces ``Snapshot``, and saves nothing that could be restored."""

    def __init__(self, *owners: object):
        pass


class Unguarded(PPOClip):
    """Takes the same steps as ``PPOClip``, but checks nothing and cannot undo updates made with PyTorch."""

    def learn(self, *args: Any, **arguments: Any) -> "Unguarded":
        """Train the model."""
        with ExitStack() as stack:
            for owner, name, replacement in REPLACED:
                stack.enter_context(mock.patch.object(owner, name, replacement))
            return super().learn(*args, **arguments)


def _check_nothing(*_: object) -> None:
    pass


class UncheckedSteps:
    """The steps that ``DummySteps`` takes, without its checks."""

    def __init__(self, env: DummyVecEnv, *_: object):
        self._env = env
        self.step_async, self.reset = env.step_async, env.reset
        arrays: Any = env.buf_obs
        self._rows = arrays[None] if None in arrays else stepping.DictRows(arrays)

    def step(self, actions: np.ndarray) -> VecEnvStepReturn:
        """Take a step."""
        self.step_async(actions)
        return self.step_wait()

    def step_wait(self) -> VecEnvStepReturn:
        """Step each environment, and reset it if its episode ended."""
        env, rows, actions = self._env, self._rows, self._env.actions
        rewards, dones, infos = env.buf_rews, env.buf_dones, env.buf_infos
        for i, single in enumerate(env.envs):
            observation, reward, terminated, truncated, info = single.step(actions[i])
            done = terminated or truncated
            rewards[i], dones[i], infos[i] = reward, done, info
            info["TimeLimit.truncated"] = truncated and not terminated
            if done:
                info["terminal_observation"] = copy_observation(observation)
                observation, env.reset_infos[i] = single.reset()
            rows[i] = observation
        return rows.copy(), rewards.copy(), dones.copy(), [copy_info(info) for info in infos]


REPLACED: tuple[tuple[Any, str, Any], ...] = (
    (stepping, "DummySteps", UncheckedSteps),
    (stepping, "CheckedStacks", lambda env, watch: env),
    (algorithm, "check_rollout", _check_nothing),
    (reference, "Snapshot", NoSnapshot),
    (reference, "check_actions", _check_nothing),
    (reference.TorchUpdate, "check_finite", _check_nothing),
    (NativeUpdate, "check_finite", _check_nothing),
    (Measured, "check_finite", _check_nothing),
)
