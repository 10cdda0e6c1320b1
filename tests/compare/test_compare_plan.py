"""What may be compared: settings, hyperparameters, YAML files, options, and the plan of the runs."""

import math
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from committed import needs_records
from comparing import planned
from stable_baselines3 import PPO
from torch import nn

from benchmarks.paper import TABLE_1
from sb3_ppo_variants import ArgumentError
from sb3_ppo_variants.__main__ import main
from sb3_ppo_variants.compare import ALGORITHM_PATHS, records
from sb3_ppo_variants.compare.plan import (
    Conditions,
    Run,
    Setting,
    assignments,
    load_class,
    make_plan,
    read_config,
    read_setting,
    resolve,
)
from sb3_ppo_variants.compare.records import RANDOM

ENV = "CartPole-v1"
ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
STUDY = str(ROOT / "benchmarks" / "comparisons" / "table1-study.yml")


class Mine(PPO):
    def __init__(self, *args: Any, extra: int = 3, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.extra = extra


Compare = Callable[..., str]


@pytest.fixture
def dry_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Compare:
    """Return a function that shows the plan of the command with some arguments."""

    def show(*arguments: str) -> str:
        assert main(["compare", "--out", str(tmp_path / "out"), "--dry-run", *arguments]) == 0
        return capsys.readouterr().out

    return show


def plan_of(*settings: str, envs: tuple[str, ...] = (ENV,), seeds: int = 2, **conditions: Any) -> list[Run]:
    return make_plan([read_setting(text) for text in settings], list(envs), seeds, [Conditions(**conditions)])


# Settings


@pytest.mark.parametrize(
    "text, values",
    [
        ("a=1", {"a": 1}),
        ("a=inf", {"a": math.inf}),
        ("a=lin_2.5e-4,b=None, c=1e-3", {"a": "lin_2.5e-4", "b": None, "c": 1e-3}),
        ("net={'pi': [64, 64], 'vf': [8]},b=(1, 2)", {"net": {"pi": [64, 64], "vf": [8]}, "b": (1, 2)}),
    ],
)
def test_assignments(text: str, values: dict[str, Any]) -> None:
    assert assignments(text) == values


def test_settings() -> None:
    assert read_setting("ppo_clip").label == "ppo_clip"
    assert read_setting("ppo_clip:n_epochs=5,clip_range=0.1").label == "ppo_clip clip_range=0.1, n_epochs=5"
    mine = read_setting("test_compare_plan:Mine:extra=4,n_steps=8")
    assert (mine.path, mine.arguments) == ("test_compare_plan:Mine", {"extra": 4, "n_steps": 8})
    assert {load_class(path).__name__ for path in ALGORITHM_PATHS.values()} >= {"PPOClip", "PPO", "A2C", "TRPO"}


@pytest.mark.parametrize(
    "text, message",
    [
        ("ppo_clap", "ppo_clap is not a setting: name ppo_clip.*module:Class.*Did you mean ppo_clip?"),
        ("PPOFixedKL", "Did you mean ppo_fixed_kl?"),
        ("ppo_clip:gamma", "ppo_clip:gamma is not a setting.* arguments as in"),
        ("nowhere:PPO", "nowhere:PPO cannot be imported: ModuleNotFoundError: No module named 'nowhere'"),
        ("stable_baselines3:PPOO", "stable_baselines3:PPOO cannot be imported: .*has no attribute"),
        ("builtins:dict", "builtins:dict is not an algorithm: it must derive from .*BaseAlgorithm"),
        ("ppo_clip:clip_rang=0.1", "clip_rang cannot be an argument of ppo_clip: it has .*did you mean 'clip_range'"),
        ("ppo_clip:verbose=1", "verbose cannot be an argument of ppo_clip: it does not change what is learned"),
        ("ppo_clip:seed=1", "seed cannot be an argument of ppo_clip: use --seeds"),
        ("ppo_clip:a=1,a=2", r"^a is given more than once in 'a=1,a=2'$"),
        ("ppo_clip:protocol=mine", "protocol='mine' is not allowed; allowed: text"),
    ],
)
def test_settings_that_are_not_known_are_refused(text: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        read_setting(text)


# Hyperparameters


def resolved(setting: str, env: str = ENV, **conditions: Any) -> dict[str, Any]:
    return resolve(read_setting(setting), env, Conditions(**conditions)).hyperparameters


def test_hyperparameters_are_those_of_the_recipe() -> None:
    found = resolve(read_setting("ppo_fixed_kl:kl_coef=1"), ENV, Conditions(parameters={"gamma": 0.5}))
    chosen = {"n_envs": 8, "n_steps": 32, "kl_coef": 1, "gamma": 0.5, "device": "cpu", "vf_coef": 0.5}
    assert chosen.items() <= found.hyperparameters.items()
    assert (found.timesteps, found.unused) == (100_000, [])


def test_an_algorithm_goes_without_what_it_does_not_have() -> None:
    shared: dict[str, Any] = {"parameters": {"batch_size": 32, "n_steps": 16}}
    found = resolve(Setting("sb3_a2c"), ENV, Conditions(timesteps=50, **shared))
    assert found.unused == ["batch_size"] and (found.timesteps, found.hyperparameters["n_steps"]) == (50, 16)
    # A shared clip_range does not apply to objectives with a penalty; their own argument does.
    shared = {"parameters": {"clip_range": 0.3}}
    assert resolved("ppo_fixed_kl", **shared)["clip_range"] is None
    assert resolved("ppo_fixed_kl:clip_range=0.4", **shared)["clip_range"] == 0.4
    assert resolved("ppo_clip", **shared)["clip_range"] == 0.3
    # DQN's n_steps has a different meaning from PPO's.
    assert resolved("stable_baselines3:DQN")["n_steps"] == 1
    with pytest.raises(ArgumentError, match="kl_coef cannot be an argument of ppo_unclipped"):
        read_setting("ppo_unclipped:kl_coef=1")
    for parameters, message in (({"kl_coef": 0.5}, "kl_coef"), ({"n_stepz": 3}, "n_stepz; they have .*n_steps")):
        with pytest.raises(ArgumentError, match=f"no setting has a hyperparameter {message}"):
            plan_of("ppo_unclipped", "sb3_ppo", parameters=parameters)


@pytest.mark.parametrize("name", ["sb3_a2c", "stable_baselines3:A2C"])
def test_a_baseline_has_its_own_hyperparameters(name: str) -> None:
    """Not PPO's: A2C is made for short rollouts, and takes as many steps in all."""
    found = resolve(Setting(name), ENV, Conditions())
    assert (found.timesteps, found.unused) == (100_000, [])
    assert {"n_steps": 5, "n_envs": 8, "gamma": 0.99}.items() <= found.hyperparameters.items()
    assert resolved(name, parameters={"n_steps": 16})["n_steps"] == 16
    with pytest.raises(ArgumentError, match="there are no hyperparameters for entry='spinning-up', only for default"):
        resolved(name, entry="spinning-up")


YML = """
CartPole-v1:
  n_timesteps: !!float 3e4
  policy: MlpPolicy
  n_steps: 16
  clip_range: 0.3
  normalize: "{'norm_reward': False}"
  policy_kwargs: "dict(net_arch=[8], activation_fn=nn.ReLU)"
"""


def test_hyperparameters_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yml"
    file.write_text(YML)
    conditions = Conditions(file=str(file))
    described = conditions.description()["file"]
    found = resolve(Setting("sb3_ppo"), ENV, conditions)
    assert found.timesteps == 30_000 and found.hyperparameters["normalize"] == {"norm_reward": False}
    assert found.hyperparameters["policy_kwargs"] == {"net_arch": [8], "activation_fn": nn.ReLU}
    # A protocol changes the values of the file: it does not clip gradients.
    for given in (["ppo_clip:protocol=text"], ["ppo_clip", "--protocol", "text"]):
        (_, run) = planned(["--seeds", "1", "--hyperparams", str(file), "--algos", *given])
        assert (run.hyperparameters["n_steps"], run.hyperparameters["max_grad_norm"]) == (16, None)
    with pytest.raises(ArgumentError, match="no hyperparameters for 'Pendulum-v1' or 'default', only for CartPole-v1"):
        planned(["--hyperparams", str(file), "--envs", "Pendulum-v1"])
    file.write_text(YML.replace("0.3", "0.4"))
    assert str(described).startswith("mine.yml (") and conditions.description()["file"] != described
    for text, message in (
        ("{" + YML, r"--hyperparams .*mine\.yml must be a dict for each environment: while parsing"),
        ("CartPole-v1", r"--hyperparams .*mine\.yml must be a dict for each environment: "),
        (YML.replace("nn.", "mine."), "policy_kwargs='dict.*' cannot be read: NameError: name 'mine'"),
    ):
        file.write_text(text)
        with pytest.raises(ArgumentError, match=message):
            resolve(Setting("sb3_ppo"), ENV, conditions)


@pytest.mark.parametrize(
    "conditions, env, message",
    [
        ({"parameters": {"verbose": 1}}, ENV, "verbose cannot be a hyperparameter of a comparison: it does not change"),
        ({"timesteps": 0}, ENV, "CartPole-v1 must take at least 1 step; --timesteps or n_timesteps is 0"),
        ({"entry": "nowhere"}, ENV, "entry='nowhere'.*mujoco"),
        ({}, "CartPole-v9", "env_id='CartPole-v9'"),
        ({"anneal": True, "parameters": {"learning_rate": "fast"}}, ENV, "--anneal .* a learning_rate.*not 'fast'"),
    ],
)
def test_conditions_that_are_not_known_are_refused(conditions: dict[str, Any], env: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        resolve(Setting("ppo_clip"), env, Conditions(**conditions))


def test_the_papers_hyperparameters() -> None:
    preset = read_config("paper-table1")
    assert list(preset.settings) == [*(row.setting for row in TABLE_1), "sb3_ppo"]
    assert [row.score for row in TABLE_1] == [-0.39, 0.76, 0.82, 0.70, 0.68, 0.74, 0.71, 0.62, 0.71, 0.72, 0.69]
    (conditions,) = preset.conditions
    table_3 = {"n_steps": 2048, "learning_rate": "lin_0.0003", "n_epochs": 10, "batch_size": 64, "gamma": 0.99}
    table_3 |= {"gae_lambda": 0.95, "ent_coef": 0.0, "n_envs": 1, "policy": "MlpPolicy", "policy_kwargs": None}
    for text in preset.settings:
        for env in preset.envs:
            found = resolve(read_setting(text), env, conditions)
            assert table_3.items() <= found.hyperparameters.items() and found.timesteps == 1_000_000


# Files


def test_a_comparison_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yml"
    file.write_text("settings: [ppo_clip, 'ppo_fixed_kl:kl_coef=3']\nconditions: {timesteps: 64, normalize: true}\n")
    runs = planned(["--config", str(file)])
    assert [run.label for run in runs[1:3]] == ["ppo_clip", "ppo_fixed_kl kl_coef=3"] and len(runs) == 7
    assert {run.conditions["preset"] for run in runs} == {"mine"}
    changed = planned(["--config", str(file), "--seeds", "1", "--no-normalize", "--algos", "ppo_clip"])
    assert [run.hyperparameters.get("normalize") for run in changed] == [False, False]
    for text, message in (
        ("settings: ppo_clip", "settings must be a list of texts, not 'ppo_clip'"),
        ("settings: [ppo_clip]\nseed: 3", "unexpected keyword argument 'seed'"),
        ("settings: [ppo_clip]\nconditions: {gamma: 1}", "unexpected keyword argument 'gamma'"),
        (
            "settings: [ppo_clip]\nnames: {ppo_clip:gamma=1: x}",
            "names has ppo_clip gamma=1, which is not one",
        ),
        ("settings: [ppo_clip]\nnames: {ppo_clp: x}", "ppo_clp is not a setting.* Did you mean ppo_clip"),
        ("settings: [", "while parsing"),
    ):
        file.write_text(text)
        with pytest.raises(ArgumentError, match=f"(?s)nor a YAML file of a comparison: .*{message}"):
            read_config(str(file))


def test_options_change_all_conditions_of_a_file() -> None:
    runs = planned(["--config", STUDY, "--protocol", "text", "-p", "gamma=0.9"])
    assert {(run.conditions["protocol"], run.conditions["parameters"]["gamma"]) for run in runs} == {("text", 0.9)}
    # Three of the ten conditions are now the same.
    assert len({run.name for run in runs}) == len(runs) == 8 * (4 + 2 * 4 * 4)


# Plans and names


def test_a_plan_has_all_runs_seeds_slowest() -> None:
    runs = plan_of("ppo_clip", "sb3_ppo", envs=(ENV, "Acrobot-v1"), timesteps=64)
    assert [(run.seed, run.env, run.label) for run in runs] == [
        (seed, env, label)
        for seed in (0, 1)
        for env in (ENV, "Acrobot-v1")
        for label in (RANDOM, "ppo_clip", "sb3_ppo")
        if seed == 0 or label != RANDOM
    ]
    assert len({run.name for run in runs}) == len(runs)
    # What is named twice is compared once.
    assert runs == plan_of("ppo_clip", "sb3_ppo", "ppo_clip", envs=(ENV, "Acrobot-v1", "CartPole"), timesteps=64)


def test_a_change_of_anything_is_another_run() -> None:
    ways: list[Any] = [
        plan_of("ppo_clip", timesteps=64),
        plan_of("ppo_clip", timesteps=65),
        plan_of("ppo_clip:clip_range=0.1", timesteps=64),
        plan_of("ppo_clip", timesteps=64, parameters={"gamma": 0.9}),
        plan_of("ppo_clip", timesteps=64, normalize=True),
        plan_of("ppo_clip", timesteps=64, anneal=False),
    ]
    names = [run.name for runs in ways for run in runs if run.label != RANDOM]
    assert len(set(names)) == len(names)
    assert [run.name for run in plan_of("ppo_clip", timesteps=64)] == [run.name for run in ways[0]]


@pytest.mark.parametrize(
    "settings, options, message",
    [
        (("ppo_clip", "ppo_clip:clip_range=lin_0.2"), {}, "ppo_clip clip_range=lin_0.2 and ppo_clip are the same"),
        (("ppo_fixed_kl:kl_coef=3", "ppo_fixed_kl"), {}, "ppo_fixed_kl and ppo_fixed_kl kl_coef=3 are the same"),
        (("ppo_clip",), {"seeds": 0}, "--seeds must be at least 1, not 0"),
        (
            ("ppo_clip:protocol=sb3", "ppo_clip"),
            {"timesteps": None},
            "protocol=sb3 would train for 1,000,000 steps in CartPole-v1, and ppo_clip for 100,000: choose one",
        ),
    ],
)
def test_plans_of_nothing_are_refused(settings: tuple[str, ...], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        plan_of(*settings, **options)


@pytest.mark.parametrize("file", sorted(RESULTS.glob("*.jsonl.gz")), ids=lambda file: file.name)
def test_committed_records_have_the_names_of_their_runs(file: Path) -> None:
    for record in records.read(file):
        run = Run(**{field.name: record[field.name] for field in fields(Run) if field.compare})
        assert run.name == record["name"]


@needs_records
def test_the_runs_of_the_study_are_found_again() -> None:
    names = {run.name for run in planned(["--config", STUDY])}
    assert {record["name"] for record in records.read(RESULTS / "table1-study.jsonl.gz")} <= names


# The command before its first run


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--algos", "ppo_clip:clip_range=-1"], r"cannot run in CartPole-v1: clip_range=-1 is not allowed"),
        (["--algos", "contrib_maskable_ppo"], "contrib_maskable_ppo cannot run in CartPole-v1: .* needs action masks"),
        (["--config", "paper"], "--config paper is neither atari-demo, .*paper-table1 nor a YAML file of a comparison"),
        (["-p", "net_arch=[64]"], r"no setting has a hyperparameter net_arch; .* as in policy_kwargs=\{'net_arch'"),
        (["-p", "gamma"], "'gamma' must be name=value"),
        (["-p", "gamma=0.9", "-p", "gamma=0.8"], "gamma is given more than once"),
        (["-p", "fast_envs=True"], "fast_envs cannot be a hyperparameter of a comparison: use --fast-envs"),
        (["--resume-every", "0"], "--resume-every must be at least 1, not 0"),
        (["--resume-every", "64"], "--resume-every 64 needs algorithms of this package; sb3_ppo cannot"),
        (["--jobs", "0"], "--jobs must be at least 1, not 0"),
        (["--address", "127.0.0.1:1"], "--address 127.0.0.1:1 is for --backend ray or dask"),
    ],
)
def test_the_command_refuses_before_it_writes(arguments: list[str], message: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(SystemExit, match=message):
        main(["compare", "--out", str(out), "--seeds", "1", "--timesteps", "64", "--dry-run", *arguments])
    assert not out.exists()


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    given = ["--out", str(tmp_path / "out"), "--tensorboard", str(tmp_path / "file" / "in")]
    with pytest.raises(SystemExit, match=r"Not a directory: .*file/in"):
        main(["compare", "--algos", "ppo_clip", "--seeds", "1", *given])
    activation = {"activation_fn": "torch.nn.modules.activation.ReLU"}
    assert records.to_plain("policy_kwargs", {"activation_fn": nn.ReLU}) == activation
    with pytest.raises(ArgumentError, match=r"learning_rate=.* cannot be recorded: .*lin_x"):
        records.to_plain("learning_rate", lambda _: 1.0)


def test_the_plan_is_shown(dry_run: Compare) -> None:
    settings = ["--algos", "ppo_clip", "--algos", "sb3_a2c", "--envs", "Acrobot-v1", "--envs", ENV]
    shown = dry_run(*settings, "--timesteps", "64", "-p", "batch_size=32")
    assert "settings: ppo_clip; sb3_a2c\nenvironments: Acrobot-v1; CartPole-v1\nseeds: 0; 1; 2\n" in shown
    said = "2 settings x 2 environments x 3 seeds = 12 runs, and 2 of the random policy: 0 are finished, 14 to make"
    assert said in shown
    assert "sb3_a2c in CartPole-v1 does not use batch_size" in shown


def test_the_plan_names_conditions(dry_run: Compare, tmp_path: Path) -> None:
    both = "{protocol: text, entry: mujoco}, {protocol: sb3, entry: mujoco, switched: no clipping}"
    (tmp_path / "mine.yml").write_text(f"settings: [ppo_clip]\nseeds: 1\nconditions: [{both}]\n")
    shown = dry_run("--config", str(tmp_path / "mine.yml"), "--envs", "Pendulum-v1")
    assert "\nconditions: protocol text; protocol sb3, no clipping\n" in shown
    assert "1 setting x 1 environment x 1 seed x 2 conditions = 2 runs, and 2 of the random policy: " in shown
