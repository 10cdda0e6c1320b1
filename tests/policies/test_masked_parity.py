"""On its reference path, PPOClip with a masked policy matches sb3-contrib's MaskablePPO bit for bit."""

from typing import Any

import pytest
import torch as th
from masked_envs import MULTI, masked_envs
from parity import MASKED_CASES, masked_case, train
from sb3_contrib import MaskablePPO
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import SubprocVecEnv

from helpers import assert_same_weights
from sb3_ppo_variants import PPOClip
from sb3_ppo_variants.envs import SafeSubprocVecEnv


def ours_of(**arguments: Any) -> tuple[OnPolicyAlgorithm, list[dict[str, Any]]]:
    return train(PPOClip, **{**arguments, "policy": f"Maskable{arguments.get('policy', 'MlpPolicy')}"})


@pytest.mark.sampled(9)
@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
@pytest.mark.parametrize("name", MASKED_CASES)
def test_same_weights_and_logs_as_sb3_contrib(name: str) -> None:
    theirs, their_log = train(MaskablePPO, **MASKED_CASES[name])
    ours, our_log = ours_of(fast=False, **MASKED_CASES[name])
    assert_same_weights(ours, theirs)
    assert len(our_log) == len(their_log) > 1
    for their_values, our_values in zip(their_log, our_log, strict=True):
        train_keys = {key for key in their_values if not key.startswith("time/")}
        assert {"train/kl"} <= set(our_values) - set(their_values) <= {"train/kl", "train/learning_rate"}
        for key in train_keys:
            assert our_values[key] == pytest.approx(their_values[key], rel=1e-5, abs=1e-7, nan_ok=True), key


def test_the_cases_train_and_mask() -> None:
    """The other tests would be meaningless if weights never changed or masks allowed every action."""
    model: Any = ours_of(**masked_case())[0]
    untrained: Any = PPOClip("MaskableMlpPolicy", masked_envs(MULTI), seed=5, device="cpu")
    assert not th.equal(model.policy.action_net.weight, untrained.policy.action_net.weight)
    assert 0.3 < model.rollout_buffer.action_masks.mean() < 0.9


@pytest.mark.slow
@pytest.mark.parametrize("vec_env", [SubprocVecEnv, SafeSubprocVecEnv])
def test_workers(vec_env: Any) -> None:
    in_process, _ = ours_of(fast=False, **masked_case(lambda: masked_envs(MULTI, n_envs=2)))
    in_workers, _ = ours_of(fast=False, **masked_case(lambda: masked_envs(MULTI, n_envs=2, vec_env=vec_env)))
    assert_same_weights(in_process, in_workers)
