"""Conversion of observations to the inputs of the networks."""

from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.preprocessing import preprocess_obs
from stable_baselines3.common.torch_layers import CombinedExtractor

from sb3_ppo_variants.rollouts.loop import Observations


class Features:
    """Computes the features of SB3's ``FlattenExtractor``, or of a ``CombinedExtractor`` without images.

    :param policy: the policy
    :param dtype: the type of the features
    """

    def __init__(self, policy: ActorCriticPolicy, dtype: np.dtype):
        self._space = policy.observation_space
        self._normalize_images = policy.normalize_images
        self._dtype = dtype
        extractor = policy.features_extractor
        self._keys = list(extractor.extractors) if isinstance(extractor, CombinedExtractor) else None

    def __call__(self, observations: Observations) -> np.ndarray:
        """Return features of shape ``(batch, inputs)``.

        As in SB3, discrete values become one-hot vectors, and others are rounded to single precision.
        """
        if self._keys is None:
            return self._flat(observations, self._space)
        assert isinstance(self._space, spaces.Dict)
        return np.concatenate([self._flat(observations[key], self._space[key]) for key in self._keys], axis=1)

    def _flat(self, observations: np.ndarray, space: spaces.Space) -> np.ndarray:
        if observations.dtype.kind == "f":
            flat = observations if observations.ndim == 2 else observations.reshape(len(observations), -1)
            return flat.astype(np.float32, copy=False).astype(self._dtype, copy=False)
        tensor = preprocess_obs(th.as_tensor(observations), space, self._normalize_images)
        assert isinstance(tensor, th.Tensor)
        return tensor.flatten(1).numpy().astype(self._dtype, copy=False)


def as_batch(observation: Any) -> Observations:
    """Return one observation as a batch of one."""
    if isinstance(observation, dict):
        return {key: np.asarray(value)[None] for key, value in observation.items()}
    return np.asarray(observation)[None]
