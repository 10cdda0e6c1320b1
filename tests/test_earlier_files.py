"""Files that version 0.1.0 wrote before objectives, updates and backends were parts.

``files/0.1.0`` has a model of each class, and beside it what that version predicted with it and the weights of its next
update on either path, and a checkpoint with the weights at the end of the run that it is of.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th

from helpers import ACTION_SPACES, VARIANTS, noise_envs
from sb3_ppo_variants import ExactCheckpointCallback, PPOAdaptiveKL

FILES = Path(__file__).parent / "files" / "0.1.0"
SPACES = {"PPOClip": "Box", "PPOAdaptiveKL": "MultiDiscrete", "PPOFixedKL": "Box", "PPOUnclipped": "Discrete"}
OBSERVATIONS = np.linspace(-1, 1, 15, dtype=np.float32).reshape(5, 3)


def weights(model: Any) -> np.ndarray:
    return th.nn.utils.parameters_to_vector(model.policy.parameters()).detach().numpy()


@pytest.mark.parametrize("weights_only", [False, True])
@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_model_goes_on(variant: Any, fast: bool, weights_only: bool) -> None:
    name = variant.__name__
    expected = np.load(FILES / f"{name}.npz")
    env = noise_envs(ACTION_SPACES[SPACES[name]])
    model = variant.load(FILES / f"{name}.zip", env=env, fast=fast, weights_only=weights_only)
    np.testing.assert_array_equal(model.predict(OBSERVATIONS, deterministic=True)[0], expected["actions"])
    before = weights(model)
    model.set_random_seed(7)
    model.learn(64, reset_num_timesteps=False)
    # Rounding, which differs between processors, is far less than what the update changed.
    np.testing.assert_allclose(weights(model), expected[f"weights_fast_{fast}"], rtol=1e-4, atol=1e-6)
    assert np.abs(weights(model) - before).max() > 1e-3
    if f"kl_coef_fast_{fast}" in expected:
        assert model.current_kl_coef == expected[f"kl_coef_fast_{fast}"]


def test_a_run_is_resumed(tmp_path: Path) -> None:
    expected = np.load(FILES / "checkpoints.npz")
    model = PPOAdaptiveKL.resume(FILES / "checkpoints", noise_envs(ACTION_SPACES["Box"]))
    assert (model.num_timesteps, model.remaining_timesteps) == (64, 64)
    before = weights(model)
    model.learn(64, reset_num_timesteps=False, callback=ExactCheckpointCallback(every=64, path=tmp_path))
    np.testing.assert_allclose(weights(model), expected["weights"], rtol=1e-4, atol=1e-6)
    assert np.abs(weights(model) - before).max() > 1e-4
    assert model.current_kl_coef == expected["kl_coef"]
