"""Evaluation of policies that take action masks, with or without a memory."""

from collections.abc import Callable

import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from sb3_ppo_variants.guards.masks import METHOD

__all__ = ["WithMasks"]


class WithMasks:
    """Predicts with the masks of environments, so that SB3's ``evaluate_policy`` can evaluate a maskable policy.

    ``evaluate_policy(WithMasks(model, env), env)`` keeps the memory of a policy, unlike ``evaluate_policy`` of
    sb3-contrib, which passes ``state=None`` at every step if it passes masks.

    :param model: a model whose policy takes masks
    :param env: the environments that it is evaluated in, or a single one
    """

    def __init__(self, model: BaseAlgorithm, env: GymEnv):
        # SB3 does not annotate the masks.
        self._predict: Callable[..., tuple[np.ndarray, tuple[np.ndarray, ...] | None]] = model.predict
        self._env = env if isinstance(env, VecEnv) else DummyVecEnv([lambda: env])  # As evaluate_policy does.

    def predict(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...] | None]:
        """Predict the actions for the current observations of the environments; see the model."""
        masks = self._env.env_method(METHOD)
        return self._predict(observation, state, episode_start, deterministic, action_masks=masks)
