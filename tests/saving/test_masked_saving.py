"""Models with masked policies are saved, loaded, exchanged with sb3-contrib and resumed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from masked_envs import MASKED_SPACES, MULTI, masked_envs, small_masked
from resuming import assert_exact
from sb3_contrib import MaskablePPO
from stable_baselines3 import PPO
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from helpers import DICT, VARIANTS, assert_same_policy, noise_envs, save
from sb3_ppo_variants import DamagedFileError, PPOAdaptiveKL, PPOClip, PPOFixedKL, SeparateUpdates
from sb3_ppo_variants.envs import SafeSubprocVecEnv

SMALL: dict[str, Any] = {"n_steps": 16, "batch_size": 16, "n_epochs": 2, "learning_rate": 1e-3, "device": "cpu"}
SEPARATE: dict[str, Any] = {
    "updates": SeparateUpdates(policy_epochs=3),
    "policy_kwargs": {"share_features_extractor": False},
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("space", MASKED_SPACES)
def test_weights_only(variant: Any, space: str, nothing_is_unpickled: None) -> None:
    env = masked_envs(MASKED_SPACES[space])
    model = small_masked(variant, env, policy_kwargs={"net_arch": [8]}).learn(48)
    loaded = variant.load(save(model), env=masked_envs(MASKED_SPACES[space]), weights_only=True)
    assert_same_policy(loaded, model)
    loaded.learn(48)


def test_separate_updates_with_dictionaries(nothing_is_unpickled: None) -> None:
    model = small_masked(PPOFixedKL, masked_envs(MULTI, DICT), "MaskableMultiInputPolicy", **SEPARATE).learn(48)
    loaded = PPOFixedKL.load(save(model), env=masked_envs(MULTI, DICT), weights_only=True)
    assert_same_policy(loaded, model)
    loaded.learn(48)


def test_set_parameters() -> None:
    model, other = small_masked(PPOClip).learn(48), small_masked(PPOAdaptiveKL, seed=4)
    other.set_parameters(save(model))
    assert_same_policy(other, model)
    with pytest.raises(DamagedFileError):
        other.set_parameters(save(small_masked(PPOClip, policy_kwargs={"net_arch": [7]})))


def test_files_of_sb3_contrib_go_on_as_there() -> None:
    theirs: Any = small_masked(MaskablePPO, policy="MlpPolicy").learn(96)
    ours = PPOClip.load(save(theirs), env=masked_envs(MULTI), fast=False)
    assert_same_policy(ours, theirs)
    both = []
    for model in (ours, MaskablePPO.load(save(theirs), env=masked_envs(MULTI))):
        model.set_random_seed(9)
        both.append(model.learn(96))
    assert_same_policy(*both)
    assert_same_policy(PPOClip.load(save(ours)), ours)


def test_sb3_contrib_reads_ours() -> None:
    ours = small_masked(PPOClip, learning_rate=LinearSchedule(1e-3, 0.0, 1.0)).learn(96)
    theirs = MaskablePPO.load(save(ours), env=masked_envs(MULTI))
    assert_same_policy(theirs, ours)
    observations, masks = np.zeros((4, 3), np.float32), np.ones((4, 6), bool)
    actions, expected = (m.predict(observations, deterministic=True, action_masks=masks)[0] for m in (theirs, ours))
    np.testing.assert_array_equal(actions, expected)
    theirs.learn(48)


def test_other_classes_do_not_take_sb3_contribs_files() -> None:
    file = save(small_masked(MaskablePPO, policy="MlpPolicy"))
    with pytest.raises(DamagedFileError, match="is of sb3-contrib's MaskablePPO, not of PPOFixedKL"):
        PPOFixedKL.load(file)


def test_a_plain_model_is_no_masked_one() -> None:
    file = save(PPO("MlpPolicy", noise_envs(MULTI), **SMALL))
    model = PPOClip.load(file)
    assert "Maskable" not in type(model.policy).__name__


@pytest.mark.sampled(4)
@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_exact_resume(variant: Any, fast: bool, tmp_path: Path) -> None:
    assert_exact(lambda: small_masked(variant, fast=fast), lambda: masked_envs(MULTI), tmp_path, 240, 64, 170)


@pytest.mark.slow
def test_exact_resume_with_workers_and_normalisation(tmp_path: Path) -> None:
    def make_env() -> VecEnv:
        return VecNormalize(masked_envs(MULTI, n_envs=2, vec_env=SafeSubprocVecEnv))

    assert_exact(lambda: small_masked(PPOAdaptiveKL, make_env(), **SEPARATE), make_env, tmp_path, 240, 64, 170)
