"""Recipes: their values against the sources, and the models and environments made from them."""

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rl_zoo3
import torch as th
import yaml
from gymnasium import spaces
from gymnasium.envs.classic_control import PendulumEnv
from gymnasium.wrappers import RescaleAction
from sb3_contrib import TRPO, RecurrentPPO
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecNormalize, unwrap_vec_normalize
from torch import nn

from sb3_ppo_variants import KLAdaptive, PPOClip
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.recipes import (
    ALGORITHMS,
    Episodes,
    Recipe,
    build,
    entries_of,
    evaluate,
    load,
    parse,
    recipe,
    select,
    train,
)


def evaluated(algorithm: str) -> dict[str, dict[str, Any]]:
    """Return the entries of an algorithm, with what they write as Python evaluated."""
    entries = entries_of(algorithm)
    return {name: select(entries, "CartPole-v1", name) for name in entries}


hyperparams = evaluated("ppo_clip")
# Tasks that gymnasium does not have, in a module that registers them.
TASKS = {name: f"examples.environments:{name}" for name in hyperparams if "NoVel" in name or name.endswith("-v0")}
ZOO: dict[str, dict[str, Any]] = yaml.safe_load((Path(rl_zoo3.__file__).parent / "hyperparams/ppo.yml").read_text())
SAME_IN_ZOO = {
    "atari": "atari",
    "CartPole-v1": "CartPole-v1",
    "LunarLander-v3": "LunarLander-v3",
    "LunarLanderContinuous-v3": "LunarLanderContinuous-v3",
    "BipedalWalker-v3": "BipedalWalker-v3",
    "HalfCheetah-v5": "HalfCheetah-v4",
    "Hopper-v5": "Hopper-v4",
    "Walker2d-v5": "Walker2d-v4",
    "Humanoid-v5": "Humanoid-v4",
}
LSTM_ZOO: dict[str, dict[str, Any]] = yaml.safe_load(
    (Path(rl_zoo3.__file__).parent / "hyperparams/ppo_lstm.yml").read_text()
)
SAME_WITH_LSTMS = {
    "CartPoleNoVel-v1": "CartPoleNoVel-v1",
    "PendulumNoVel-v1": "PendulumNoVel-v1",
    "LunarLanderNoVel-v3": "LunarLanderNoVel-v2",
}
RMS_PROP = "stable_baselines3.common.sb2_compat.rmsprop_tf_like.RMSpropTFLike"


def defaults_of(algorithm: type[BaseAlgorithm]) -> dict[str, Any]:
    """List the values of what an entry of rl_zoo3 may leave out for an algorithm."""
    found = {name: each.default for name, each in inspect.signature(algorithm).parameters.items()}
    return {name: value for name, value in found.items() if value is not inspect.Parameter.empty} | {"n_envs": 1}


@pytest.mark.parametrize("ours, theirs", [*SAME_IN_ZOO.items(), *SAME_WITH_LSTMS.items()])
def test_values_are_those_of_the_named_source(ours: str, theirs: str) -> None:
    """Also those that only one of the two entries leaves to its algorithm."""
    algorithm, zoo = (RecurrentPPO, LSTM_ZOO) if ours in SAME_WITH_LSTMS else (PPO, ZOO)
    expected = defaults_of(algorithm) | zoo[theirs]
    if ours == "PendulumNoVel-v1":
        expected |= {name: defaults_of(algorithm)[name] for name in ("use_sde", "sde_sample_freq")}
    if isinstance(expected["policy_kwargs"], str):
        expected["policy_kwargs"] = eval(expected["policy_kwargs"], {"nn": nn, "dict": dict})
    found = defaults_of(PPOClip) | hyperparams[ours]
    assert {name: found.get(name) for name in expected} == expected
    assert hyperparams[ours].keys() <= expected.keys()


@pytest.mark.parametrize(("algorithm", "file"), [("stable_baselines3:A2C", "a2c"), ("sb3_contrib:TRPO", "trpo")])
def test_baselines_have_the_values_of_the_zoo(algorithm: str, file: str) -> None:
    zoo = yaml.safe_load((Path(rl_zoo3.__file__).parent / f"hyperparams/{file}.yml").read_text())
    signature = inspect.signature(A2C if file == "a2c" else TRPO).parameters
    compared = [name for name in evaluated(algorithm) if name in zoo or name.replace("-v5", "-v4") in zoo]
    assert len(compared) >= 10
    for name in compared:
        expected = {k: v for k, v in zoo[name.replace("-v5", "-v4")].items() if k != "n_timesteps"}
        if "policy_kwargs" in expected:
            expected["policy_kwargs"] = eval(expected["policy_kwargs"], {"RMSpropTFLike": RMS_PROP, "dict": dict})
        ours = evaluated(algorithm)[name]
        # What is left out has the default.
        left_out = {k: v for k, v in expected.items() if k not in ours}
        assert left_out == {k: signature[k].default for k in left_out}
        assert ours == {k: v for k, v in expected.items() if k in ours}, name


def test_spinning_up_updates_policy_and_value_separately() -> None:
    made = recipe("ppo_clip", "HalfCheetah-v5", "spinning-up", n_steps=64, batch_size=64)
    model: Any = made.algorithm(env=made.make_env(seed=0), **made.arguments).learn(64)
    log = model.logger.name_to_value
    assert log["train/value_epochs"] == 80 and 1 <= log["train/policy_epochs"] <= 80
    assert model.policy.optimizer.param_groups[0]["eps"] == model.value_optimizer.param_groups[0]["eps"] == 1e-8


@pytest.mark.sampled(2)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_recipe_makes_a_model(algorithm: str) -> None:
    for env_id in hyperparams:
        if env_id in ("default", "atari", "mujoco", "spinning-up"):
            continue
        own = {"objective": "own_objectives:SPO(0.2)"} if algorithm == "ppo_custom" else {}
        made = recipe(algorithm, TASKS.get(env_id, env_id), **own)
        env = made.make_env(n_envs=1, seed=0)
        made.algorithm(env=env, **{**made.arguments, "n_steps": made.arguments.get("batch_size", 64)})
        env.close()


@pytest.mark.parametrize(
    "env_id, entry, policy, n_envs",
    [
        ("ALE/Qbert-v5", None, "CnnPolicy", 8),
        ("Acrobot-v1", None, "MlpPolicy", 1),
        ("HalfCheetah-v5", "mujoco", "MlpPolicy", 1),
    ],
)
def test_an_environment_without_an_entry_takes_one(env_id: str, entry: str | None, policy: str, n_envs: int) -> None:
    made = recipe("ppo_clip", env_id, entry)
    assert (made.arguments["policy"], made.n_envs) == (policy, n_envs)
    assert made.arguments.get("learning_rate", 3e-4) != 2.0633e-05


def test_a_recipe_can_be_changed_and_leaves_the_others_alone() -> None:
    made = recipe("ppo_clip", "Hopper-v5", clip_range="lin_0.5", n_timesteps=5e4)
    made.arguments["policy_kwargs"]["net_arch"]["pi"][0] = 1
    assert isinstance(made.arguments["clip_range"], LinearSchedule)
    assert [made.arguments["clip_range"](progress) for progress in (1.0, 0.5, 0.0)] == [0.5, 0.25, 0.0]
    assert made.n_timesteps == 50_000
    assert recipe("ppo_clip", "Hopper-v5").arguments["policy_kwargs"]["net_arch"]["pi"][0] == 256


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("ppo", "CartPole-v1"), "algorithm='ppo'.*ppo_adaptive_kl"),
        (("ppo_clip", "CartPole-v9"), "env_id='CartPole-v9' is not a registered environment: .*`v1`"),
        (("ppo_clip", "nowhere:Mine-v0"), "env_id='nowhere:Mine-v0' is not .*: No module named 'nowhere'"),
        (("ppo_clip", "CartPole-v1", "nowhere"), "no hyperparameters for entry='nowhere'.*mujoco"),
    ],
)
def test_what_is_not_known_is_refused(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        recipe(*arguments)


@pytest.mark.parametrize("normalize", ["dict(norm_obs=True, norm_reward=False)", "{'norm_obs': False}", 1])
def test_a_normalization_that_is_not_read_is_refused(normalize: Any) -> None:
    with pytest.raises(ArgumentError, match=r"normalize=.* is not allowed; .*a dict of arguments for VecNormalize"):
        recipe("ppo_clip", "Pendulum-v1", normalize=normalize)


def test_a_text_names_a_step_size_that_adapts() -> None:
    made = recipe("ppo_clip", "CartPole-v1", learning_rate="KLAdaptive(desired_kl=0.02, every='minibatch')")
    assert made.arguments["learning_rate"] == KLAdaptive(desired_kl=0.02, every="minibatch")
    assert recipe("ppo_clip", "CartPole-v1", learning_rate="KLAdaptive").arguments["learning_rate"] == KLAdaptive()


@pytest.mark.parametrize("wrapper", ["gymnasium.wrappers.RescaleAction", RescaleAction])
def test_wrappers_and_arguments_of_the_environment(wrapper: str | type[RescaleAction]) -> None:
    limits = {"min_action": -5.0, "max_action": 5.0}
    of_env = {"env_wrapper": {wrapper: limits}, "env_kwargs": {"g": 9.0}, "n_envs": 2}
    settings = {"policy": "MlpPolicy", "n_timesteps": 1, **of_env}
    env = parse(ALGORITHMS["ppo_clip"], "Pendulum-v1", settings).make_env()
    assert isinstance(env.action_space, spaces.Box)
    assert env.action_space.high == 5.0
    assert env.get_attr("unwrapped")[1].g == 9.0


@pytest.mark.parametrize("wrapper", ["gymnasium.wrappers.Missing", "no_such_module.Wrapper", "RescaleAction"])
def test_a_wrapper_that_cannot_be_imported_is_refused(wrapper: str) -> None:
    changed = recipe("ppo_clip", "Pendulum-v1", env_wrapper=wrapper)
    with pytest.raises(ArgumentError, match=f"^env_wrapper='{wrapper}' cannot be imported: "):
        changed.make_env()


def test_a_class_in_policy_kwargs_can_be_named_by_its_path() -> None:
    named = recipe("ppo_clip", "CartPole-v1", policy_kwargs={"activation_fn": "torch.nn.ELU", "net_arch": [8]})
    assert named.arguments["policy_kwargs"] == {"activation_fn": nn.ELU, "net_arch": [8]}
    with pytest.raises(ArgumentError, match=r"policy_kwargs\['optimizer_class'\]='torch.optim.Adm' cannot be imported"):
        recipe("ppo_clip", "CartPole-v1", policy_kwargs={"optimizer_class": "torch.optim.Adm"})


def test_a_policy_can_be_named_by_its_path() -> None:
    made = recipe("ppo_clip", "CartPole-v1", policy="stable_baselines3.ppo.MlpPolicy")
    assert type(build(made).policy) is ActorCriticPolicy
    assert recipe("ppo_clip", "CartPole-v1", policy=ActorCriticPolicy).arguments["policy"] is ActorCriticPolicy
    with pytest.raises(ArgumentError, match=r"^policy='stable_baselines3\.ppo\.Missing' cannot be imported"):
        recipe("ppo_clip", "CartPole-v1", policy="stable_baselines3.ppo.Missing")


@pytest.mark.parametrize("name", ["nsteps", "desired_kl", "env", "seed"])
def test_hyperparameters_that_an_algorithm_does_not_take_are_refused(name: str) -> None:
    changes: dict[str, Any] = {name: 3}
    with pytest.raises(ArgumentError, match=f"^hyperparameters has no entry '{name}': PPOClip takes policy, .*n_envs"):
        recipe("ppo_clip", "CartPole-v1", **changes)


def test_frames_are_not_skipped_twice() -> None:
    with pytest.raises(ArgumentError, match="wrapper skips 4 again: use 'PongNoFrameskip-v4'"):
        recipe("ppo_clip", "ALE/Pong-v5").make_env(n_envs=1)
    recipe("ppo_clip", "ale_py:ALE/Pong-v5", env_kwargs={"frameskip": 1}).make_env(n_envs=1).close()


@pytest.fixture
def normalised() -> Recipe:
    return recipe("ppo_adaptive_kl", "Pendulum-v1", normalize=True, n_timesteps=512, n_envs=1, n_steps=256)


def test_what_was_trained_is_loaded_with_its_statistics(normalised: Recipe, tmp_path: Path) -> None:
    episodes = Episodes()
    model = train(normalised, tmp_path, seed=3, callback=episodes)
    loaded, env = load(normalised, tmp_path)
    trained_in, evaluated_in = model.get_vec_normalize_env(), unwrap_vec_normalize(env)
    assert isinstance(trained_in, VecNormalize)
    assert isinstance(evaluated_in, VecNormalize)
    state = np.ones((1, 3), np.float32)
    np.testing.assert_array_equal(trained_in.normalize_obs(state), evaluated_in.normalize_obs(state))
    assert (evaluated_in.training, evaluated_in.norm_reward) == (False, False)
    assert trained_in.gamma == normalised.arguments["gamma"]
    action, loaded_action = (m.predict(state, deterministic=True)[0] for m in (model, loaded))
    np.testing.assert_array_equal(action, loaded_action)
    # Pendulum's rewards are negative, and 200 of them add up to less than -50 unless they are scaled.
    returns = evaluate(normalised, tmp_path, episodes=2)
    assert returns.shape == (2,)
    with pytest.raises(ArgumentError, match="episodes=0 is not allowed; allowed: an integer >= 1"):
        evaluate(normalised, tmp_path, episodes=0)
    assert (returns < -50).all()
    assert episodes.ends == [200, 400] and len(episodes.returns) == 2


class Interrupt(BaseCallback):
    """Does what Ctrl-C does after some steps, or raises another error."""

    def __init__(self, steps: int, error: type[BaseException] = KeyboardInterrupt):
        super().__init__()
        self.steps, self.error = steps, error

    def _on_training_start(self) -> None:
        self._on_step()

    def _on_step(self) -> bool:
        if self.num_timesteps >= self.steps:
            raise self.error
        return True


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_a_run_that_ends_early_is_saved(
    error: type[BaseException], normalised: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[PendulumEnv] = []
    monkeypatch.setattr(PendulumEnv, "close", lambda env: closed.append(env))
    for steps in (300, 0):
        with pytest.raises(error):
            train(normalised, tmp_path, callback=Interrupt(steps, error))
        model, env = load(normalised, tmp_path)
        statistics: Any = unwrap_vec_normalize(env)
        # The first observation comes before the first step.
        assert (model.num_timesteps, round(statistics.obs_rms.count)) == (300, 301)
    assert len(closed) == 2


@pytest.mark.parametrize(
    ("trained", "loaded", "message"),
    [
        (True, None, "has a vecnormalize.pkl, but this recipe does not normalise"),
        (None, True, "has no vecnormalize.pkl, but this recipe normalises"),
    ],
)
def test_a_recipe_that_does_not_fit_the_run_is_refused(trained: Any, loaded: Any, message: str, tmp_path: Path) -> None:
    made = {value: recipe("ppo_clip", "Pendulum-v1", normalize=value, n_envs=1, n_steps=64) for value in (True, None)}
    train(made[trained], tmp_path, timesteps=64)
    with pytest.raises(ArgumentError, match=f"{message}: pass the recipe of the run"):
        evaluate(made[loaded], tmp_path, episodes=1)
    assert evaluate(made[trained], tmp_path, episodes=1).shape == (1,)


def test_rewards_alone_are_normalised(tmp_path: Path) -> None:
    made = recipe("ppo_clip", "Pendulum-v1", normalize={"norm_obs": False}, n_envs=1, n_steps=64)
    model = train(made, tmp_path, timesteps=64)
    trained_in = model.get_vec_normalize_env()
    assert isinstance(trained_in, VecNormalize)
    assert (trained_in.norm_obs, trained_in.norm_reward) == (False, True)
    _, env = load(made, tmp_path)
    # The first two values of Pendulum's observations are the cosine and the sine of an angle, unless they are scaled.
    observation = env.reset()
    assert isinstance(observation, np.ndarray)
    np.testing.assert_allclose(np.square(observation[:, :2]).sum(), 1, rtol=1e-5)
    assert evaluate(made, tmp_path, episodes=1)[0] < -1


def test_a_stochastic_policy_reaches_the_same_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = recipe("ppo_clip", "CartPole-v1")
    train(made, tmp_path, seed=0, timesteps=256)
    likely = evaluate(made, tmp_path, episodes=5)
    monkeypatch.setattr(Recipe, "is_deterministic", False)
    th.manual_seed(1)
    first, state = evaluate(made, tmp_path, episodes=5), th.get_rng_state()
    th.manual_seed(1)
    assert th.equal(state, th.get_rng_state())
    th.manual_seed(2)
    assert evaluate(made, tmp_path, episodes=5).tolist() == first.tolist() != likely.tolist()


def test_mujoco_is_the_papers_table_3() -> None:
    arguments = recipe("ppo_clip", "Reacher-v5").arguments
    table = {
        "n_steps": 2048,
        "learning_rate": 3e-4,
        "n_epochs": 10,
        "batch_size": 64,
        "gamma": 0.99,
        "gae_lambda": 0.95,
    }
    assert {name: arguments[name] for name in table} == table
