"""The RL Zoo's scripts with the variants, run as a user would run them."""

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import optuna
import pytest
import rl_zoo3
import yaml
from huggingface_hub import HfApi
from rl_zoo3.hyperparams_opt import sample_ppo_params
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from stable_baselines3 import PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import DummyVecEnv

import examples.environments  # noqa: F401
from fresh import ended, run_code_anew, run_module
from helpers import assert_same_weights
from own_objectives import SPO
from sb3_ppo_variants import ArgumentError, PPOAdaptiveKL, PPOClip, PPOFixedKL
from sb3_ppo_variants.envs import MujocoVecEnv
from sb3_ppo_variants.recipes import ALGORITHMS, recipe
from sb3_ppo_variants.recipes import train as train_recipe
from sb3_ppo_variants.zoo import ExperimentManager, sample
from sb3_ppo_variants.zoo.__main__ import SCRIPTS
from sb3_ppo_variants.zoo.push_to_hub import push_to_hub

ENV = "CartPole-v1"
LSTM = str(Path(rl_zoo3.__file__).parent / "hyperparams/ppo_lstm.yml")


def test_the_scripts_are_listed(tmp_path: Path) -> None:
    assert len(SCRIPTS) == 10 and all(find_spec(f"sb3_ppo_variants.zoo.{script}") for script in SCRIPTS)
    assert all(f"  {script} " in zoo(tmp_path, "__main__") for script in ("train", "plot_from_file"))


def zoo(folder: Path, script: str, *options: str) -> str:
    """Run a script.

    :return: what it printed
    """
    environment = {"OMP_NUM_THREADS": "1", "MPLBACKEND": "agg", "WANDB_MODE": "offline"}
    result = ended(run_module, f"sb3_ppo_variants.zoo.{script}", *options, folder=folder, **environment)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout + result.stderr


def train(folder: Path, algorithm: str, *options: str) -> Path:
    """Train for 1,000 steps.

    :return: the saved model
    """
    zoo(folder, "train", "--algo", algorithm, "--env", ENV, "-n", "1000", "-f", "logs", *options)
    return max((folder / "logs" / algorithm).glob(f"{ENV}_*")) / f"{ENV}.zip"


def test_train_and_enjoy(tmp_path: Path) -> None:
    saved = train(tmp_path, "ppo_adaptive_kl", "--seed", "1", "--eval-freq", "500", "--save-freq", "500", "-tb", "tb")
    config = yaml.unsafe_load((saved.with_suffix("") / "config.yml").read_text())
    assert (config["desired_kl"], config["n_steps"], config["learning_rate"]) == (0.01, 32, "lin_0.001")
    written = {path.name for path in saved.parent.iterdir()}
    assert {"best_model.zip", "evaluations.npz", "rl_model_496_steps.zip"} <= written
    assert list((tmp_path / "tb").rglob("events.out.*"))
    model = PPOAdaptiveKL.load(saved)
    assert (model.num_timesteps, model.n_envs, model.seed) == (1024, 8, 1)
    output = zoo(tmp_path, "enjoy", "--algo", "ppo_adaptive_kl", "--env", ENV, "-f", "logs", "--no-render", "-n", "600")
    assert "Mean reward" in output  # An episode of CartPole ends after at most 500 steps.


def manager(
    env_id: str, config: str | None, folder: Path, algorithm: str = "ppo_clip", agent: str = "", **hyperparams: object
) -> ExperimentManager:
    """Create an experiment, which continues with an agent if one is given, as ``train`` does."""
    options = {"n_timesteps": 100, "eval_freq": -1, "log_interval": -1, "config": config, "verbose": 0}
    return ExperimentManager(
        argparse.Namespace(), algorithm, env_id, str(folder), trained_agent=agent, hyperparams=hyperparams, **options
    )


def set_up(*arguments: Any, **named: Any) -> BaseAlgorithm:
    """Set up an experiment in this process, with the arguments of :func:`manager`."""
    setup = manager(*arguments, **named).setup_experiment()
    assert setup is not None
    return setup[0]


def test_a_checkpoint_is_continued_with_its_statistics(tmp_path: Path) -> None:
    made = recipe("ppo_clip", ENV, normalize={"clip_obs": 5.0}, n_timesteps=256)
    trained_in: Any = train_recipe(made, tmp_path / "run", seed=1).get_vec_normalize_env()
    experiment = manager(ENV, None, tmp_path, agent=str(tmp_path / "run/model.zip"), normalize=True)
    model, _ = cast(Any, experiment.setup_experiment())
    continued_in = model.get_vec_normalize_env()
    assert (continued_in.training, continued_in.norm_reward, continued_in.clip_obs) == (True, True, 5.0)
    np.testing.assert_array_equal(continued_in.obs_rms.mean, trained_in.obs_rms.mean)
    evaluated_in: Any = experiment.create_envs(1, eval_env=True)
    assert (evaluated_in.training, evaluated_in.norm_reward) == (False, False)
    np.testing.assert_array_equal(evaluated_in.obs_rms.mean, trained_in.obs_rms.mean)


def test_the_fastest_environments_give_the_same(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"n_envs": 2, "n_steps": 64, "normalize": True, "policy": "MlpPolicy"}
    models: list[Any] = []
    for fast_envs in (False, True):
        models.append(set_up("HalfCheetah-v5", None, tmp_path, fast_envs=fast_envs, **settings).learn(256))
    assert [type(model.get_env().unwrapped) for model in models] == [DummyVecEnv, MujocoVecEnv]
    assert_same_weights(*models)
    with pytest.raises(ArgumentError, match="fast_envs='yes' is not allowed"):
        set_up("HalfCheetah-v5", None, tmp_path, fast_envs="yes")


@pytest.mark.parametrize("policy", ["MaskableMlpPolicy", MaskableActorCriticPolicy, "sb3_contrib.ppo_mask.MlpPolicy"])
def test_policies_that_need_masks_are_refused_before_training(policy: Any, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"without action masks, which a Maskable.* needs; .* docs/masked\.md"):
        set_up("Scheduling-v0", None, tmp_path, policy=policy)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [*sorted(ALGORITHMS.keys() - {"ppo_custom"}), "ppo"])
def test_every_script(algorithm: str, tmp_path: Path) -> None:
    of_run = ["--algo", algorithm, "--env", ENV, "-f", "logs"]
    # rl_zoo3's plots of final scores need two runs.
    for seed in ("1", "2"):
        saved = train(tmp_path, algorithm, "--seed", seed, "--eval-freq", "200", "-P", "-params", "n_steps:16")
    more = train(tmp_path, algorithm, "-i", str(saved), "--vec-env", "subproc", "--eval-freq", "-1")
    (ALGORITHMS | {"ppo": PPO})[algorithm].load(more)
    zoo(tmp_path, "enjoy", *of_run, "--no-render", "-n", "200", "--exp-id", "1", "--load-best")
    zoo(tmp_path, "record_video", *of_run, "-n", "20")
    assert list(tmp_path.rglob("*.mp4"))
    zoo(tmp_path, "benchmark", "--log-dir", "logs", "--benchmark-dir", "out", "-n", "500", "--no-hub", "--test-mode")
    assert f"|{algorithm}|{ENV}" in (tmp_path / "out/benchmark.md").read_text().replace(" ", "")
    # This comes last, because it creates a run without a model, which is then the latest one.
    output = zoo(tmp_path, "train", *of_run, "-n", "500", "-optimize", "--n-trials", "3", "--n-evaluations", "2")
    assert "Best trial" in output


@pytest.mark.slow
def test_plots(tmp_path: Path) -> None:
    for algorithm in ("ppo_clip", "ppo_unclipped"):
        for seed in ("1", "2"):
            train(tmp_path, algorithm, "--seed", seed, "--eval-freq", "200")
    zoo(tmp_path, "plot_train", "-a", "ppo_clip", "-e", ENV, "-f", "logs")
    zoo(tmp_path, "all_plots", "-a", "ppo_clip", "ppo_unclipped", "-e", ENV, "-f", "logs", "-o", "scores")
    zoo(tmp_path, "plot_from_file", "-i", "scores.pkl", "-o", "curves.png", "--format", "png")
    zoo(tmp_path, "plot_from_file", "-i", "scores.pkl", "-r", "-vs", "-iqm", "-o", "scores.png", "--format", "png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "scores.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_tracking(tmp_path: Path) -> None:
    train(tmp_path, "ppo_clip", "--track", "--wandb-project-name", "test")
    assert list(tmp_path.glob("wandb/offline-run-*"))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_samples_are_arguments_of_the_algorithm(name: str) -> None:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    for _ in range(5):
        trial = study.ask()
        arguments = sample(name, trial, 2, 8, {})
        own = {"objective": SPO(0.2)} if name == "ppo_custom" else {}
        make: Any = ALGORITHMS[name]
        model = make("MlpPolicy", ENV, **{**arguments, **own, "n_steps": 1024})
        assert model.gamma == 1 - trial.params["one_minus_gamma"]
        assert model.batch_size == 2 ** trial.params["batch_size_pow"]
        if isinstance(model, PPOFixedKL):
            assert model.current_argument("kl_coef") == trial.params["kl_coef"]


def test_the_search_space_is_that_of_the_zoo() -> None:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    theirs, ours = study.ask(), study.ask()
    sample_ppo_params(theirs, 2, 8, {})
    sample("ppo_clip", ours, 2, 8, {})
    assert ours.distributions == theirs.distributions
    assert ours.user_attrs.keys() == theirs.user_attrs.keys()
    assert ours.user_attrs["batch_size"] == 2 ** ours.params["batch_size_pow"]
    assert ours.user_attrs["n_steps"] == 2 ** ours.params["n_steps_pow"]
    assert ours.user_attrs["gamma"] == 1 - ours.params["one_minus_gamma"]


def test_an_objective_of_the_user(tmp_path: Path) -> None:
    saved = train(tmp_path, "ppo_custom", "-params", "objective:'own_objectives:SPO(epsilon=0.1)'", "--eval-freq", "-1")
    config = yaml.unsafe_load((saved.with_suffix("") / "config.yml").read_text())
    assert config["objective"] == "own_objectives:SPO(epsilon=0.1)"
    output = zoo(tmp_path, "enjoy", "--algo", "ppo_custom", "--env", ENV, "-f", "logs", "--no-render", "-n", "600")
    assert "Mean reward" in output  # An episode of CartPole ends after at most 500 steps.


def test_a_model_of_the_zoo_is_loaded_without_it(tmp_path: Path) -> None:
    set_up(ENV, None, tmp_path).learn(1).save(tmp_path / "model")
    code = "import sys; sys.modules['rl_zoo3'] = None; from sb3_ppo_variants import PPOClip; "
    code += f"print(PPOClip.load({str(tmp_path / 'model')!r}).clip_range(0.5))"
    assert ended(run_code_anew, code).stdout == "0.1\n"


@pytest.mark.parametrize("script", ["train", "push_to_hub"])
def test_the_zoo_missing(script: str) -> None:
    code = "import sys; sys.modules |= dict.fromkeys(['rl_zoo3', 'huggingface_hub', 'huggingface_sb3']); import runpy; "
    code += f"runpy.run_module('sb3_ppo_variants.zoo.{script}', run_name='__main__')"
    result = ended(run_code_anew, code)
    assert "ImportError: rl_zoo3 is not installed: pip install -e '.[zoo]'" in result.stderr


@pytest.mark.slow
def test_what_is_uploaded_names_our_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tmp_path, "ppo_clip", "--eval-freq", "-1")
    uploaded = tmp_path / f"hub/ppo_clip-{ENV}"
    uploaded.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    options = ["--algo", "ppo_clip", "--env", ENV, "-f", "logs", "-orga", "someone", "--no-render"]
    monkeypatch.setattr(sys, "argv", ["push_to_hub", *options])
    with (
        patch.object(HfApi, "create_repo", return_value="url"),
        patch.object(HfApi, "snapshot_download"),
        patch.object(HfApi, "upload_folder") as upload,
    ):
        push_to_hub()
    assert upload.call_args.kwargs["repo_id"] == f"someone/ppo_clip-{ENV}"
    card = (uploaded / "README.md").read_text()
    assert "python -m sb3_ppo_variants.zoo.enjoy --algo ppo_clip" in card
    assert "-m rl_zoo3." not in card
    assert card.count("pip install -e '.[zoo]'") == 1 and "pip install rl_zoo3" not in card
    assert yaml.safe_load(card.split("---")[1])["model-index"][0]["name"] == "PPOClip"
    PPOClip.load(uploaded / f"ppo_clip-{ENV}.zip")


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "conf"), [("ppo_clip", ["-conf", LSTM]), ("ppo_unclipped", [])])
def test_hyperparameters_with_an_lstm(algorithm: str, conf: list[str], tmp_path: Path) -> None:
    of_run = ["--algo", algorithm, "--env", "CartPoleNoVel-v1", "-f", "logs"]
    zoo(tmp_path, "train", *of_run, "-n", "256", *conf, "--eval-freq", "-1")
    model = ALGORITHMS[algorithm].load(next(tmp_path.glob(f"logs/{algorithm}/*/CartPoleNoVel-v1.zip")))
    assert model.policy_class is RecurrentActorCriticPolicy
    assert "Mean reward" in zoo(tmp_path, "enjoy", *of_run, "--no-render", "-n", "100")
