"""Files from earlier versions load, predict and continue training with the same results.

Each folder in ``files`` contains models, each with that version's predictions and the weights after its next update on
either path, and a checkpoint with the weights at the end of its run.
"""

from pathlib import Path

import numpy as np
import pytest
from make_files import FILES, MODELS, evaluation, next_update, predict
from packaging.version import Version

from helpers import BOX, flat_weights, noise_envs
from sb3_ppo_variants import ExactCheckpointCallback, PPOAdaptiveKL

VERSIONS = sorted(FILES.iterdir(), key=lambda path: Version(path.name))
SAVED = sorted(path for version in VERSIONS for path in version.glob("*.zip"))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("weights_only", [False, True])
@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("file", SAVED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_model_goes_on(file: Path, fast: bool, weights_only: bool) -> None:
    expected = np.load(file.with_suffix(".npz"))
    model = MODELS[file.stem][0].load(file, weights_only=weights_only)
    # Rounding differs between processors.
    np.testing.assert_allclose(predict(model), expected["actions"], rtol=1e-5)
    updated = next_update(file, fast, weights_only=weights_only)
    # It is far smaller than the change by the update.
    np.testing.assert_allclose(flat_weights(updated).numpy(), expected[f"weights_fast_{fast}"], rtol=1e-4, atol=1e-6)
    assert np.abs(flat_weights(updated).numpy() - flat_weights(model).numpy()).max() > 1e-3
    if f"kl_coef_fast_{fast}" in expected:
        assert updated.kl_coef == expected[f"kl_coef_fast_{fast}"]


@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.name)
def test_a_run_is_resumed(version: Path, tmp_path: Path) -> None:
    expected = np.load(version / "checkpoints.npz")
    model = PPOAdaptiveKL.resume(version / "checkpoints", noise_envs(BOX))
    assert (model.num_timesteps, model.remaining_timesteps) == (64, 64)
    before, evaluated = flat_weights(model).numpy(), evaluation()
    callbacks = [ExactCheckpointCallback(every=64, path=tmp_path), evaluated]
    model.learn(64, reset_num_timesteps=False, callback=callbacks)
    np.testing.assert_allclose(flat_weights(model).numpy(), expected["weights"], rtol=1e-4, atol=1e-6)
    assert np.abs(flat_weights(model).numpy() - before).max() > 1e-4
    assert model.kl_coef == expected["kl_coef"]
    assert evaluated.best_mean_reward == pytest.approx(float(expected["best_mean_reward"]), rel=1e-5)
    assert evaluated.n_calls == 64


def test_every_kind_of_model_has_a_file() -> None:
    assert {path.stem for path in VERSIONS[-1].glob("*.zip")} == set(MODELS)
