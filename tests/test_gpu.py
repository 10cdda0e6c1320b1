"""On a GPU, training is what it is on a CPU, and where SB3 does the same, it matches SB3 bit for bit."""

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from faulty import WITHIN, Fault, faulty_envs
from masked_envs import MULTI, masked_envs, masked_hybrid_envs
from parity import CASES, MASKED_CASES, train
from recurrence import SMALL, ragged_envs
from resuming import exact, pendulums
from sb3_contrib import MaskablePPO, RecurrentPPO
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecEnv

from helpers import ACTION_SPACES, BOX, DICT, IMAGE, NESTED, assert_same_weights, collect, noise_envs, save, small
from sb3_ppo_variants import PPOAdaptiveKL, PPOClip, PPOCustom, PPOFixedKL, PPOUnclipped, SeparateUpdates
from sb3_ppo_variants.distributions import Gaussian
from sb3_ppo_variants.errors import NonFiniteError
from sb3_ppo_variants.objectives import EWMA, TRGPPO, list_objectives

GPU = "cuda"
pytestmark = [
    pytest.mark.skipif(not th.cuda.is_available(), reason="there is no GPU"),
    pytest.mark.filterwarnings("ignore:You are trying to run PPO.* on the GPU"),
    pytest.mark.filterwarnings("ignore:You have specified a mini-batch size"),
]
OBJECTIVES = [
    found()
    for name, found in list_objectives().items()
    if name not in ("AdaptiveKL", "Clipped", "EWMA", "KLPenalized", "Unclipped")
]
# Convolutions and LSTMs on a GPU may add numbers in another order each time.
IN_ANY_ORDER = ("CnnPolicy", "MultiInputPolicy", "separate features")


def assert_close(ours: Any, theirs: Any) -> None:
    weights, expected = (
        {key: weight.cpu() for key, weight in model.policy.state_dict().items()} for model in (ours, theirs)
    )
    th.testing.assert_close(weights, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_same_weights_as_sb3(name: str) -> None:
    theirs, ours = (
        train(cls, **{**CASES[name], **own, "device": GPU}) for cls, own in ((PPO, {}), (PPOClip, {"fast": False}))
    )
    (assert_close if name in IN_ANY_ORDER else assert_same_weights)(ours[0], theirs[0])


@pytest.mark.parametrize("name", MASKED_CASES)
def test_same_weights_as_maskable_ppo(name: str) -> None:
    case = MASKED_CASES[name]
    theirs = train(MaskablePPO, **{**case, "device": GPU})[0]
    policy = f"Maskable{case.get('policy', 'MlpPolicy')}"
    ours = train(PPOClip, **{**case, "policy": policy, "device": GPU, "fast": False})[0]
    (assert_close if name in IN_ANY_ORDER else assert_same_weights)(ours, theirs)


@pytest.mark.parametrize("fast", [False, "auto"])
@pytest.mark.parametrize("space", [BOX, ACTION_SPACES["MultiDiscrete"]], ids=str)
def test_nearly_the_weights_of_recurrent_ppo(space: Any, fast: Any) -> None:
    settings: dict[str, Any] = {"policy": "MlpLstmPolicy", "policy_kwargs": SMALL, "device": GPU}
    theirs = train(RecurrentPPO, lambda: ragged_envs(space), **settings)[0]
    ours = train(PPOClip, lambda: ragged_envs(space), fast=fast, **settings)[0]
    assert_close(ours, theirs)


UPDATES: dict[str, tuple[Any, Callable[[], VecEnv], dict[str, Any]]] = {
    **{f"{objective}": (PPOCustom, lambda: noise_envs(BOX), {"objective": objective}) for objective in OBJECTIVES},
    "EWMA": (PPOCustom, lambda: noise_envs(BOX), {"objective": EWMA(TRGPPO())}),
    **{name: (PPOFixedKL, partial(noise_envs, space), {}) for name, space in ACTION_SPACES.items()},
    "adaptive": (PPOAdaptiveKL, lambda: noise_envs(BOX), {"updates": SeparateUpdates(), "clip_range_vf": 0.1}),
    "gSDE": (PPOUnclipped, lambda: noise_envs(BOX), {"use_sde": True}),
    "beta": (PPOFixedKL, lambda: noise_envs(BOX), {"policy_kwargs": {"distribution": "beta"}}),
    "state": (PPOFixedKL, lambda: noise_envs(BOX), {"policy_kwargs": {"distribution": Gaussian(std="state")}}),
    "images": (PPOFixedKL, lambda: noise_envs(BOX, IMAGE), {}),
    "dictionaries": (PPOFixedKL, lambda: noise_envs(BOX, DICT), {}),
    "masks": (PPOFixedKL, lambda: masked_envs(MULTI), {"policy": "MaskableMlpPolicy"}),
    "hybrid": (PPOFixedKL, lambda: masked_hybrid_envs(NESTED), {"policy": "MaskableMlpPolicy"}),
    "LSTM": (PPOFixedKL, ragged_envs, {"policy": "MlpLstmPolicy", "policy_kwargs": SMALL}),
    "LSTM, separate": (
        PPOClip,
        ragged_envs,
        {"policy": "MlpLstmPolicy", "policy_kwargs": SMALL, "updates": SeparateUpdates()},
    ),
    "GRU with masks": (
        PPOFixedKL,
        lambda: masked_envs(MULTI),
        {"policy": "MaskableMlpLstmPolicy", "policy_kwargs": {**SMALL, "memory": "gru"}},
    ),
}


@pytest.mark.parametrize("fast", [False, "auto"])
@pytest.mark.parametrize("name", UPDATES)
def test_an_update_is_that_of_the_cpu(name: str, fast: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # By default, convolutions on a GPU round their factors to 10 bits.
    monkeypatch.setattr(th.backends.cudnn, "allow_tf32", False)
    cls, make_env, arguments = UPDATES[name]
    on_cpu = collect(small(cls, make_env(), fast=False, **arguments))
    on_gpu = cls.load(save(on_cpu), make_env(), device=GPU, fast=fast)
    on_gpu._setup_learn(1)
    on_gpu.rollout_buffer = deepcopy(on_cpu.rollout_buffer)
    on_gpu.rollout_buffer.device = on_gpu.device
    for model in (on_cpu, on_gpu):
        model.old_policy = None  # The policy of each device computes its own.
    before = deepcopy(on_cpu.policy.state_dict())
    for model in (on_cpu, on_gpu):
        np.random.seed(3)
        model.train()
    assert {weight.device.type for weight in on_gpu.policy.parameters()} == {"cuda"}
    assert any(not th.equal(before[key], weight) for key, weight in on_cpu.policy.state_dict().items())
    assert_close(on_gpu, on_cpu)


@pytest.mark.parametrize("name", ["beta", "gSDE", "hybrid", "LSTM, separate", "GRU with masks", "TRGPPO"])
def test_training_saving_and_loading(name: str) -> None:
    (key,) = (each for each in UPDATES if each.startswith(name))
    cls, make_env, arguments = UPDATES[key]
    model = small(cls, make_env(), device=GPU, **arguments).learn(96)
    for device in ("cpu", GPU):
        loaded = cls.load(save(model), make_env(), device=device)
        assert loaded.device.type == device
        th.testing.assert_close(
            loaded.policy.state_dict(), model.policy.state_dict(), rtol=0, atol=0, check_device=False
        )
        loaded.learn(96, reset_num_timesteps=False)


def test_an_optimizer_of_the_reference_path_goes_on_with_a_fused_kernel() -> None:
    cls, make_env, arguments = UPDATES["LSTM"]
    model = small(cls, make_env(), device=GPU, fast=False, **arguments).learn(96)
    model.fast = "auto"
    model.learn(96)


@pytest.mark.parametrize("arguments", [{}, {"use_sde": True}, {"updates": SeparateUpdates()}], ids=str)
def test_a_resumed_run_is_the_same(arguments: dict[str, Any], tmp_path: Path) -> None:
    exact(PPOAdaptiveKL, pendulums, tmp_path, device=GPU, **arguments)


def test_numbers_that_are_not_finite_end_training() -> None:
    model = small(PPOClip, faulty_envs(Fault("reward", float("nan"), WITHIN)), device=GPU)
    with pytest.raises(NonFiniteError, match="reward"):
        model.learn(400)
    assert all(weight.isfinite().all() for weight in model.policy.parameters())
