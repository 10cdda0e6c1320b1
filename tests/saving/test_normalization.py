"""A policy that was trained inside ``VecNormalize`` is not silently used without its statistics, or with two."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gymnasium import spaces
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecMonitor, VecNormalize

from helpers import BOX, VECTOR, NoiseEnv, noise_envs, save, small
from sb3_ppo_variants import ExactCheckpointCallback, PPOClip

BEGINNING = 90
MISSING = "the policy was trained on observations that VecNormalize normalized, but env has no VecNormalize"[:BEGINNING]
TWICE = "env normalizes observations twice, by a VecNormalize inside another one: leave out one of them"[:BEGINNING]


def warned(function: Callable[[], Any]) -> list[str]:
    """Call a function, and return how the warnings about observations begin."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function()
    return [str(one.message)[:BEGINNING] for one in caught if "normalize" in str(one.message)]


def normalized(**arguments: Any) -> VecNormalize:
    return VecNormalize(noise_envs(BOX), **arguments)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with a trained model, and the statistics that were saved after it."""
    folder = tmp_path_factory.mktemp("saved")
    model = small(env=normalized()).learn(64)
    assert warned(lambda: model.save(folder / "model.zip")) == []
    model.get_vec_normalize_env().save(folder / "statistics.pkl")
    return folder


def with_statistics(saved: Path) -> VecNormalize:
    return VecNormalize.load(str(saved / "statistics.pkl"), noise_envs(BOX))


ENVS: dict[str, tuple[Callable[[Path], Any], list[str]]] = {
    "raw": (lambda _: noise_envs(BOX), [MISSING]),
    "single": (lambda _: NoiseEnv(BOX), [MISSING]),
    "new statistics": (lambda _: VecMonitor(normalized()), [MISSING]),
    "of rewards only": (lambda _: normalized(norm_obs=False), [MISSING]),
    "statistics": (with_statistics, []),
    "statistics inside": (lambda saved: VecMonitor(with_statistics(saved)), []),
    "twice": (lambda saved: VecNormalize(with_statistics(saved)), [TWICE]),
    "rewards outside": (lambda saved: VecNormalize(with_statistics(saved), norm_obs=False), []),
}


@pytest.mark.parametrize("weights_only", [False, True])
@pytest.mark.parametrize("name", ENVS)
def test_a_model_that_is_loaded(name: str, weights_only: bool, saved: Path) -> None:
    make, expected = ENVS[name]
    env = make(saved)

    def load_and_go_on() -> None:
        model: Any = PPOClip.load(saved / "model.zip", env, weights_only=weights_only)
        model.learn(32, reset_num_timesteps=False)
        evaluate_policy(model, model.get_env(), 1, warn=False)

    assert warned(load_and_go_on) == expected


def test_a_model_that_gets_other_environments(saved: Path) -> None:
    model = PPOClip.load(saved / "model.zip")
    model.set_env(noise_envs(BOX))
    assert warned(lambda: model.learn(32)) == [MISSING]


@pytest.mark.parametrize("name", ["raw", "single", "of rewards only", "statistics", "twice"])
@pytest.mark.parametrize("loads", [False, True])
def test_a_model_that_is_evaluated(loads: bool, name: str, saved: Path) -> None:
    make, expected = ENVS[name]
    model = PPOClip.load(saved / "model.zip") if loads else small(env=normalized()).learn(64)
    assert warned(lambda: [evaluate_policy(model, make(saved), 3, warn=False) for _ in range(2)]) == expected


@pytest.mark.parametrize("env", [lambda: noise_envs(BOX), lambda: normalized(norm_obs=False)])
def test_a_model_that_was_trained_on_what_environments_return(env: Callable[[], Any]) -> None:
    file = save(small(env=env()).learn(32))
    assert warned(lambda: evaluate_policy(PPOClip.load(file, env()), env(), 2, warn=False)) == []


def test_an_environment_that_normalizes_twice() -> None:
    assert warned(lambda: small(env=VecNormalize(normalized()))) == [TWICE]
    both = noise_envs(BOX, spaces.Dict({"a": VECTOR, "b": VECTOR}))
    each = VecNormalize(VecNormalize(both, norm_obs_keys=["a"]), norm_obs_keys=["b"])
    assert warned(lambda: small(env=each).learn(32)) == []


def test_checkpoints_have_the_statistics(tmp_path: Path) -> None:
    def run() -> None:
        small(env=normalized()).learn(64, ExactCheckpointCallback(32, tmp_path))
        PPOClip.resume(tmp_path, normalized()).learn(32, reset_num_timesteps=False).save(tmp_path / "model.zip")

    assert warned(run) == []
    assert len(warned(lambda: PPOClip.load(tmp_path / "model.zip", noise_envs(BOX)))) == 1
