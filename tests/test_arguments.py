"""A bad argument is refused at construction. The error names it, its value and the allowed values."""

import re
import warnings
from functools import partial
from typing import Any, cast

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.vec_env import DummyVecEnv
from stable_baselines3.dqn.policies import DQNPolicy
from stable_baselines3.sac.policies import SACPolicy

from bad_arguments import BAD, UNNAMED, refused
from helpers import ACTION_SPACES, BOX, VARIANTS, NoiseEnv, named, noise_envs
from sb3_ppo_variants import ArgumentError, PPOAdaptiveKL, PPOClip, PPOFixedKL, PPOUnclipped
from sb3_ppo_variants.ppo import PPOBase

NAN, INF = float("nan"), float("inf")
SHARED: dict[str, list[Any]] = {
    "policy": [None, 3, dict, BasePolicy, SACPolicy, DQNPolicy],
    "learning_rate": [-1e-3, NAN, INF, "1e-3", None, True, 10**400],
    "n_steps": [0, -1, 1.5, "8", None, True],
    "batch_size": [0, -4, 1.5, 1, None],
    "n_epochs": [0, -1, 1.5, None],
    "gamma": [-0.1, 1.1, NAN, "0.9", None],
    "gae_lambda": [-0.1, 1.1, NAN, None],
    "clip_range_vf": [0, 0.0, -0.2, NAN, INF, "0.2"],
    "normalize_advantage": ["yes", "episode", None, 2],
    "ent_coef": [NAN, INF, -INF, "auto", None],
    "vf_coef": [-0.5, NAN, INF, None],
    "max_grad_norm": [-0.5, NAN, "none"],
    "use_sde": ["yes", None],
    "sde_sample_freq": [0, -2, 1.5, None],
    "rollout_buffer_class": ["RolloutBuffer", dict],
    "rollout_buffer_kwargs": ["gamma", 3],
    "target_kl": [0, -0.01, NAN, INF, "0.01"],
    "stats_window_size": [0, -1, 1.5, None],
    "tensorboard_log": [3],
    "policy_kwargs": ["net_arch", [64]],
    "verbose": ["1", None, 0.5, -1],
    "seed": [-1, 1.5, "0", 2**32, True],
}
OWN: list[tuple[type[PPOBase], str, list[Any]]] = [
    (PPOClip, "clip_range", [0, -0.2, NAN, INF, "0.2", None]),
    (PPOFixedKL, "clip_range", [0, -0.2, NAN, "0.2"]),
    (PPOAdaptiveKL, "clip_range", [0, -0.2, NAN, "0.2"]),
    (PPOFixedKL, "kl_coef", [-1, NAN, INF, "1", None]),
    (PPOAdaptiveKL, "kl_coef", [-1, 0, NAN, INF, 1e7, "1", None, lambda progress: progress]),
    (PPOAdaptiveKL, "desired_kl", [0, -0.01, NAN, INF, "0.01", None]),
]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in SHARED.items() for value in values])
def test_bad_value(variant: Any, name: str, value: Any) -> None:
    arguments = {"policy": "MlpPolicy", "env": NoiseEnv(BOX), name: value}
    with pytest.raises(ArgumentError) as caught:
        variant(**arguments)
    assert str(caught.value).startswith(f"{name}={value!r} is not allowed; allowed: ")
    assert isinstance(caught.value, ValueError) and isinstance(caught.value, AssertionError)


@pytest.mark.parametrize(("variant", "name", "value"), [(v, n, value) for v, n, values in OWN for value in values])
def test_bad_value_of_its_own(variant: Any, name: str, value: Any) -> None:
    with pytest.raises(ArgumentError) as caught:
        variant("MlpPolicy", NoiseEnv(BOX), **{name: value})
    assert str(caught.value).startswith(f"{name}={value!r} is not allowed; allowed: ")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("i", range(len(BAD)), ids=[f"{name}={named(value)}" for name, value in BAD])
def test_bad_values_are_refused_at_construction(i: int) -> None:
    name, value = BAD[i]
    error = refused(PPOClip, name, value)
    if message := UNNAMED.get((name, str(value))):
        assert message in str(error)
    else:
        assert isinstance(error, ArgumentError)
        assert re.match(
            rf"{name}.* (is not allowed; allowed: |has no entry |needs |cannot hold |pass )", str(error), re.S
        )


@pytest.mark.parametrize(
    ("variant", "name", "hint"),
    [
        (PPOUnclipped, "clip_range", "it belongs to PPOClip, PPOAdaptiveKL, PPOFixedKL"),
        (PPOClip, "kl_coef", "it belongs to PPOAdaptiveKL, PPOFixedKL"),
        (PPOFixedKL, "desired_kl", "it belongs to PPOAdaptiveKL"),
        (PPOClip, "clip_rang", "did you mean 'clip_range'?"),
        (PPOFixedKL, "net_arch", "it belongs to the policy, as in policy_kwargs={'net_arch': ...}"),
    ],
)
def test_an_unknown_argument(variant: Any, name: str, hint: str) -> None:
    message = f"{variant.__name__}() got an unexpected keyword argument '{name}'; {hint}"
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        variant("MlpPolicy", "CartPole-v1", **{name: 0.2})


def test_an_unknown_argument_of_learn() -> None:
    model, typo = PPOClip("MlpPolicy", "CartPole-v1"), cast(Any, {"total_timestep": 64})
    with pytest.raises(TypeError, match=r"^learn\(\) got .* 'total_timestep'; did you mean 'total_timesteps'\?$"):
        model.learn(**typo)
    assert model.num_timesteps == 0


@pytest.mark.parametrize("variant", VARIANTS)
def test_environments_that_do_not_fit(variant: Any) -> None:
    with pytest.raises(ArgumentError, match=r"^use_sde=True needs a Box action space, but the environment has Disc"):
        variant("MlpPolicy", NoiseEnv(ACTION_SPACES["Discrete"]), use_sde=True)
    with pytest.raises(ArgumentError, match=r"^env.action_space=Text.* is not supported; supported are Box"):
        variant("MlpPolicy", NoiseEnv(spaces.Text(3)))
    with pytest.raises(ArgumentError, match=r"^env.action_space=.* has infinite bounds; PPO needs a Box"):
        variant("MlpPolicy", NoiseEnv(spaces.Box(-np.inf, np.inf, (2,))))
    with pytest.raises(ArgumentError, match=r"^env=None: pass an environment"):
        variant("MlpPolicy", None)
    with pytest.raises(ArgumentError, match=r"^rollout_buffer_class=.*DictRoll.* cannot hold .* use RolloutBuffer"):
        variant("MlpPolicy", NoiseEnv(BOX), rollout_buffer_class=DictRolloutBuffer)
    with pytest.raises(ArgumentError, match=r"^rollout_buffer_class=.*RolloutBuffer.* cannot hold .* use DictRoll"):
        env = NoiseEnv(BOX, spaces.Dict({"a": spaces.Discrete(3)}))
        variant("MultiInputPolicy", env, rollout_buffer_class=RolloutBuffer)


def test_one_sample_can_not_be_normalised() -> None:
    env = NoiseEnv(BOX)
    with pytest.raises(ArgumentError, match=r"n_steps=1 is not allowed; allowed: n_steps \* n_envs > 1, unless"):
        PPOClip("MlpPolicy", env, n_steps=1)
    PPOClip("MlpPolicy", env, n_steps=1, batch_size=1, normalize_advantage=False).learn(2)
    two_envs = DummyVecEnv([lambda: NoiseEnv(BOX)] * 2)
    PPOClip("MlpPolicy", two_envs, n_steps=1, batch_size=2).learn(2)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    "arguments",
    [
        {"learning_rate": 0, "gamma": 0, "gae_lambda": 1, "ent_coef": -0.1, "vf_coef": 0, "max_grad_norm": INF},
        {"n_steps": np.int64(32), "batch_size": np.int32(16), "gamma": np.float32(0), "normalize_advantage": np.True_},
        {"max_grad_norm": None, "normalize_advantage": "rollout", "batch_size": 1},
        {"max_grad_norm": None, "normalize_advantage": "minibatch"},
        {"sde_sample_freq": 4, "use_sde": True, "target_kl": 0.1, "verbose": 0, "seed": 3},
        {"learning_rate": np.float64(1e-3), "clip_range_vf": 1, "rollout_buffer_kwargs": {}, "policy_kwargs": {}},
        {"learning_rate": np.float32(1e-3), "clip_range_vf": np.int64(1), "stats_window_size": np.int64(10)},
    ],
)
def test_good_values(variant: Any, arguments: dict[str, Any]) -> None:
    variant("MlpPolicy", noise_envs(BOX), **{"n_steps": 32, "n_epochs": 1, **arguments}).learn(64)


@pytest.mark.parametrize(("batch_size", "rest"), [(48, 16), (100, 64)])
def test_a_batch_size_that_does_not_divide_the_rollout_warns_and_trains(batch_size: int, rest: int) -> None:
    with pytest.warns(UserWarning, match=f"there will be a truncated mini-batch of size {rest}"):
        model = PPOClip("MlpPolicy", noise_envs(BOX), n_steps=32, batch_size=batch_size)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.learn(64)


@pytest.mark.parametrize(
    "policy_kwargs",
    [
        {"net_arch": []},
        {"net_arch": (np.int64(8), 8)},
        {"net_arch": {"pi": [8]}},
        {"net_arch": {"pi": [], "vf": [8, 8]}, "activation_fn": partial(th.nn.LeakyReLU, 0.1)},
        {"optimizer_class": th.optim.SGD, "optimizer_kwargs": {"momentum": 0.9}},
        {"optimizer_class": lambda parameters, lr: th.optim.SGD(parameters, lr)},
        {"log_std_init": -1, "ortho_init": False, "share_features_extractor": False, "optimizer_kwargs": None},
        {"features_extractor_kwargs": {}, "normalize_images": False},
    ],
)
def test_good_policy_arguments(policy_kwargs: dict[str, Any]) -> None:
    PPOClip("MlpPolicy", NoiseEnv(BOX), policy_kwargs=policy_kwargs)
