"""On its reference path, PPOClip with a masked policy matches sb3-contrib's MaskablePPO bit for bit."""

from collections.abc import Callable
from typing import Any

import pytest
import torch as th
from gymnasium import spaces
from masked_envs import MASKED_SPACES, MULTI, masked_envs
from parity import OBSERVED, ModeDependent, train
from sb3_contrib import MaskablePPO
from sb3_contrib.common.envs import InvalidActionEnvDiscrete, InvalidActionEnvMultiBinary, InvalidActionEnvMultiDiscrete
from sb3_contrib.common.wrappers import ActionMasker
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecNormalize

from helpers import IMAGE, NoiseEnv, assert_same_weights
from sb3_ppo_variants import PPOClip
from sb3_ppo_variants.envs import SafeSubprocVecEnv, make_gymnasium_vec_env


def case(make_env: Callable[[], VecEnv] = lambda: masked_envs(MULTI), **arguments: Any) -> dict[str, Any]:
    return {"make_env": make_env, **arguments}


def wrapped() -> VecEnv:
    def masks(env: Any) -> Any:
        return [True, env._steps > 3, 0, 1]

    return DummyVecEnv([lambda: ActionMasker(NoiseEnv(spaces.Discrete(4)), masks)])


def of_space(space: spaces.Space) -> Callable[[], VecEnv]:
    return lambda: masked_envs(space)


CASES: dict[str, dict[str, Any]] = {
    **{name: case(of_space(space)) for name, space in MASKED_SPACES.items()},
    "one environment": case(lambda: masked_envs(MULTI, n_envs=1)),
    "InvalidActionEnvDiscrete": case(lambda: DummyVecEnv([lambda: InvalidActionEnvDiscrete(9, 7, 5)])),
    "InvalidActionEnvMultiDiscrete": case(lambda: DummyVecEnv([lambda: InvalidActionEnvMultiDiscrete([3, 4], 7, 3)])),
    "InvalidActionEnvMultiBinary": case(lambda: DummyVecEnv([lambda: InvalidActionEnvMultiBinary(4, 7, 2)])),
    "ActionMasker": case(wrapped),
    "CnnPolicy": case(lambda: masked_envs(MULTI, IMAGE), policy="CnnPolicy"),
    "MultiInputPolicy": case(lambda: masked_envs(MULTI, OBSERVED), policy="MultiInputPolicy"),
    "separate features": case(
        lambda: masked_envs(MULTI, IMAGE), policy="CnnPolicy", policy_kwargs={"share_features_extractor": False}
    ),
    "target_kl": case(target_kl=1e-4, learning_rate=1e-3),
    "schedules": case(learning_rate=LinearSchedule(1e-3, 0, 1.0), clip_range=LinearSchedule(0.01, 0, 1.0)),
    "overshoot": case(total_timesteps=100, learning_rate=lambda progress: 1e-3 + 1e-3 * progress),
    "truncated minibatch": case(batch_size=21),
    "raw advantages": case(normalize_advantage=False),
    "entropy": case(ent_coef=0.1, vf_coef=0.25, max_grad_norm=0.1),
    "relu": case(policy_kwargs={"activation_fn": th.nn.ReLU, "net_arch": [16], "optimizer_class": th.optim.SGD}),
    "batch norm and dropout": case(policy_kwargs={"features_extractor_class": ModeDependent}),
    "VecNormalize": case(lambda: VecNormalize(masked_envs(MULTI))),
}


def ours_of(**arguments: Any) -> tuple[OnPolicyAlgorithm, list[dict[str, Any]]]:
    return train(PPOClip, **{**arguments, "policy": f"Maskable{arguments.get('policy', 'MlpPolicy')}"})


@pytest.mark.sampled(9)
@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
@pytest.mark.parametrize("name", CASES)
def test_same_weights_and_logs_as_sb3_contrib(name: str) -> None:
    theirs, their_log = train(MaskablePPO, **CASES[name])
    ours, our_log = ours_of(fast=False, **CASES[name])
    assert_same_weights(ours, theirs)
    assert len(our_log) == len(their_log) > 1
    for their_values, our_values in zip(their_log, our_log, strict=True):
        train_keys = {key for key in their_values if not key.startswith("time/")}
        assert {"train/kl"} <= set(our_values) - set(their_values) <= {"train/kl", "train/learning_rate"}
        for key in train_keys:
            assert our_values[key] == pytest.approx(their_values[key], rel=1e-5, abs=1e-7, nan_ok=True), key


def test_the_cases_train_and_mask() -> None:
    """The other tests would be meaningless if weights never changed or masks allowed every action."""
    model: Any = ours_of(**case())[0]
    untrained: Any = PPOClip("MaskableMlpPolicy", masked_envs(MULTI), seed=5, device="cpu")
    assert not th.equal(model.policy.action_net.weight, untrained.policy.action_net.weight)
    assert 0.3 < model.rollout_buffer.action_masks.mean() < 0.9


@pytest.mark.slow
@pytest.mark.parametrize("vec_env", [SubprocVecEnv, SafeSubprocVecEnv])
def test_workers(vec_env: Any) -> None:
    in_process, _ = ours_of(fast=False, **case(lambda: masked_envs(MULTI, n_envs=2)))
    in_workers, _ = ours_of(fast=False, **case(lambda: masked_envs(MULTI, n_envs=2, vec_env=vec_env)))
    assert_same_weights(in_process, in_workers)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_environments_of_gymnasium(mode: str) -> None:
    def make() -> VecEnv:
        return make_gymnasium_vec_env("examples.environments:Scheduling-v0", 2, vectorization_mode=mode)

    theirs, _ = train(MaskablePPO, make)
    ours, _ = ours_of(make_env=make, fast=False)
    assert_same_weights(ours, theirs)
