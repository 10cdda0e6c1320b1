"""The parts of a comparison: settings, hyperparameters and the plan."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparing import planned
from stable_baselines3 import PPO
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from torch import nn

from benchmarks.paper import TABLE_1
from sb3_ppo_variants import ArgumentError
from sb3_ppo_variants.__main__ import main
from sb3_ppo_variants.arguments import list_arguments
from sb3_ppo_variants.compare.config import read_config
from sb3_ppo_variants.compare.options import ALGORITHM_PATHS
from sb3_ppo_variants.compare.plan import Run, make_plan
from sb3_ppo_variants.compare.records import RANDOM, to_plain
from sb3_ppo_variants.compare.settings import (
    Conditions,
    Resolved,
    Setting,
    SettingsFile,
    assignments,
    load_class,
    read_file,
    read_setting,
    resolve,
)

ENV = "CartPole-v1"


class Mine(PPO):
    def __init__(self, *args: Any, extra: int = 3, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.extra = extra


class Unannealed(PPO):
    def __init__(self, policy: str, env: Any, seed: int | None = None, device: str = "cpu"):
        super().__init__(policy, env, seed=seed, device=device)


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


@pytest.mark.parametrize("text", ["", "a", "a=", "=1", "1,b=2"])
def test_what_is_no_assignment_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match=rf"^'{text}' must be name=value"):
        assignments(text)


def test_a_value_that_is_given_twice_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"^a is given more than once in 'a=1,a=2'$"):
        assignments("a=1,a=2")


def test_settings() -> None:
    assert read_setting("ppo_clip").label == "ppo_clip"
    assert read_setting("ppo_clip:n_epochs=5,clip_range=0.1").label == "ppo_clip clip_range=0.1, n_epochs=5"
    mine = read_setting("test_compare:Mine:extra=4,n_steps=8")
    assert (mine.path, mine.arguments) == ("test_compare:Mine", {"extra": 4, "n_steps": 8})
    # Arguments of base classes count if a class passes its own on to them.
    assert list_arguments(Mine)["extra"] == 3
    assert list_arguments(Mine)["gae_lambda"] == 0.95
    # A base class without a constructor, such as a mixin, passes them on.
    mixed: Any = type("Mixed", (type("Mixin", (), {}), Mine), {"__init__": lambda self, *, own=1, **others: None})
    assert list_arguments(mixed) == {"own": 1, **list_arguments(Mine)}
    assert {load_class(path).__name__ for path in ALGORITHM_PATHS.values()} >= {"PPOClip", "PPO", "A2C", "TRPO"}


@pytest.mark.parametrize(
    "text, message",
    [
        ("ppo_clap", "ppo_clap is not a setting: name ppo_clip.*module:Class"),
        ("ppo_clip:gamma", "ppo_clip:gamma is not a setting.* arguments as in"),
        ("nowhere:PPO", "nowhere:PPO cannot be imported: ModuleNotFoundError: No module named 'nowhere'"),
        ("stable_baselines3:PPOO", "stable_baselines3:PPOO cannot be imported: .*has no attribute"),
        ("builtins:dict", "builtins:dict is not an algorithm: it must derive from .*BaseAlgorithm"),
        ("ppo_clip:clip_rang=0.1", "ppo_clip has no argument clip_rang; it has .*clip_range"),
        ("sb3_ppo:desired_kl=0.1", "sb3_ppo has no argument desired_kl"),
        (":PPO", ":PPO is not a setting"),
        (".x:PPO", ".x:PPO cannot be imported"),
        ("ppo_clip:verbose=1", "verbose cannot be an argument.*it does not change what is learned"),
        ("ppo_clip:seed=1", "seed cannot be an argument of a setting, as in ppo_clip:seed=1: use --seeds"),
    ],
)
def test_settings_that_are_not_known_are_refused(text: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        read_setting(text)


def test_hyperparameters_are_those_of_the_recipe() -> None:
    found = resolve(read_setting("ppo_fixed_kl:kl_coef=1"), ENV, Conditions(parameters={"gamma": 0.5}))
    chosen = {
        name: found.hyperparameters[name] for name in ("n_envs", "n_steps", "kl_coef", "gamma", "device", "vf_coef")
    }
    assert chosen == {"n_envs": 8, "n_steps": 32, "kl_coef": 1, "gamma": 0.5, "device": "cpu", "vf_coef": 0.5}
    assert found.timesteps == 100_000
    assert found.dropped == []


def test_an_algorithm_goes_without_what_it_does_not_have() -> None:
    file = SettingsFile("mine.yml", {ENV: {"policy": "MlpPolicy", "n_steps": 32, "batch_size": 32, "clip_range": 0.3}})
    found = resolve(Setting("sb3_a2c"), ENV, Conditions(file=file, timesteps=50))
    assert found.dropped == ["batch_size", "clip_range"]
    assert (found.timesteps, found.hyperparameters["n_steps"]) == (50, 32)
    # A shared clip_range does not apply to objectives with a penalty; their own argument does.
    shared = Conditions(parameters={"clip_range": 0.3})
    assert resolve(Setting("ppo_fixed_kl"), ENV, shared).hyperparameters["clip_range"] is None
    assert resolve(Setting("ppo_fixed_kl", {"clip_range": 0.4}), ENV, shared).hyperparameters["clip_range"] == 0.4
    assert resolve(Setting("ppo_clip"), ENV, shared).hyperparameters["clip_range"] == 0.3


@pytest.mark.parametrize("name", ["sb3_a2c", "stable_baselines3:A2C"])
def test_a_baseline_has_its_own_hyperparameters(name: str) -> None:
    """Not PPO's: A2C is made for short rollouts, and takes as many steps in all."""
    found = resolve(Setting(name), ENV, Conditions())
    assert (found.timesteps, found.dropped) == (100_000, [])
    assert {"n_steps": 5, "n_envs": 8, "gamma": 0.99}.items() <= found.hyperparameters.items()
    on_mujoco = resolve(Setting("trpo"), "Reacher-v5", Conditions(entry="mujoco"))
    assert {"n_steps": 1024, "n_envs": 2, "cg_max_steps": 25}.items() <= on_mujoco.hyperparameters.items()
    given = Conditions(parameters={"n_steps": 16, "gamma": 0.9})
    assert {"n_steps": 16, "gamma": 0.9}.items() <= resolve(Setting(name), ENV, given).hyperparameters.items()
    with pytest.raises(
        ArgumentError, match=f"--entry spinning-up has no hyperparameters for {name}, which has default"
    ):
        resolve(Setting(name), ENV, Conditions(entry="spinning-up"))


def rates(env: str, **conditions: Any) -> list[Any]:
    found = resolve(Setting("ppo_clip"), env, Conditions(**conditions)).hyperparameters
    return [found["learning_rate"], found.get("normalize")]


def test_the_two_switches() -> None:
    assert rates(ENV) == ["lin_0.001", None]
    assert rates(ENV, anneal=False, normalize=True) == [0.001, True]
    assert rates("Reacher-v5") == [0.0003, True]
    assert rates("Reacher-v5", anneal=True, normalize=False) == ["lin_0.0003", False]
    assert rates(ENV, parameters={"learning_rate": 0.5}, anneal=True) == ["lin_0.5", None]


YML = """
CartPole-v1:
  n_timesteps: !!float 3e4
  policy: MlpPolicy
  n_steps: 16
  clip_range: 0.3
  normalize: "{'norm_reward': False}"
  policy_kwargs: "dict(net_arch=[8], activation_fn=nn.ReLU)"
"""
PY = """
from torch import nn
hyperparams = {"CartPole-v1": dict(n_timesteps=3e4, policy="MlpPolicy", n_steps=16, clip_range=0.3,
    normalize={"norm_reward": False}, policy_kwargs=dict(net_arch=[8], activation_fn=nn.ReLU))}
"""


@pytest.mark.parametrize("name, text", [("mine.yml", YML), ("mine.py", PY)])
def test_hyperparameters_of_a_file(name: str, text: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text(text)
    conditions = Conditions(file=read_file(file))
    found = resolve(Setting("sb3_ppo"), ENV, conditions)
    assert found.timesteps == 30_000
    assert found.hyperparameters["normalize"] == {"norm_reward": False}
    assert found.hyperparameters["policy_kwargs"] == {"net_arch": [8], "activation_fn": nn.ReLU}
    before = conditions.description()["file"]
    file.write_text(text.replace("0.3", "0.4"))
    assert Conditions(file=read_file(file)).description()["file"] != before


def test_a_file_may_name_what_the_zoo_knows(tmp_path: Path) -> None:
    optimizer = "dict(optimizer_class=RMSpropTFLike, optimizer_kwargs=dict(eps=1e-5), activation_fn=th.nn.Tanh)"
    (tmp_path / "zoo.yml").write_text(f"{ENV}:\n  policy_kwargs: {optimizer}\n")
    found = read_file(tmp_path / "zoo.yml").entries[ENV]["policy_kwargs"]
    assert found == {"optimizer_class": RMSpropTFLike, "optimizer_kwargs": {"eps": 1e-5}, "activation_fn": nn.Tanh}


@pytest.mark.parametrize("own", [True, False])
def test_a_protocol_changes_the_hyperparameters_of_a_file(own: bool, tmp_path: Path) -> None:
    (tmp_path / "mine.yml").write_text(YML)
    given = ["ppo_clip:protocol=text"] if own else ["ppo_clip", "--protocol", "text"]
    (_, run) = planned(["--seeds", "1", "--hyperparams", str(tmp_path / "mine.yml"), "--algos", *given]).runs
    # The file has n_steps=16, and the protocol does not clip gradients.
    assert (run.hyperparameters["n_steps"], run.hyperparameters["max_grad_norm"]) == (16, None)


FAULTY = {
    "missing.yml": (None, "FileNotFoundError"),
    "torn.yml": ("CartPole-v1: [", "ParserError"),
    "text.yml": ("CartPole-v1", "AttributeError|TypeError"),
    "syntax.py": ("hyperparams = {", "SyntaxError"),
    "empty.py": ("", "KeyError"),
    "name.yml": ("CartPole-v1: {policy_kwargs: 'dict(activation_fn=torch.nn.ReLU)'}", "NameError.*torch"),
}


@pytest.mark.parametrize("name", FAULTY)
def test_a_faulty_file_is_refused(name: str, tmp_path: Path) -> None:
    text, fault = FAULTY[name]
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(SystemExit, match=rf"(?s)--hyperparams .*{name} cannot be read: ({fault}).*a dict for"):
        main(["compare", "--hyperparams", str(tmp_path / name), "--dry-run", "--out", str(tmp_path / "out")])


NOT_IN_FILE = [([], "'Pendulum-v1' or 'default'"), (["--entry", "mujoco"], "entry='mujoco'")]


@pytest.mark.parametrize("entry, wanted", NOT_IN_FILE)
def test_a_file_without_an_environment_is_named(entry: list[str], wanted: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yml").write_text(YML)
    given = ["--hyperparams", str(tmp_path / "mine.yml"), "--envs", "Pendulum-v1", *entry]
    expected = rf"^--hyperparams mine\.yml \(sha256 \w+\) has no hyperparameters for {wanted}, only for {ENV}$"
    with pytest.raises(SystemExit, match=expected):
        main(["compare", *given, "--dry-run", "--out", str(tmp_path / "out")])


def test_hyperparameters_of_one_algorithm_are_for_it_alone() -> None:
    (_, fixed, unclipped) = plan_of("ppo_fixed_kl", "ppo_unclipped", seeds=1, parameters={"kl_coef": 0.5})
    assert fixed.hyperparameters["kl_coef"] == 0.5 and "kl_coef" not in unclipped.hyperparameters
    with pytest.raises(ArgumentError, match="no setting has a hyperparameter kl_coef"):
        plan_of("ppo_unclipped", parameters={"kl_coef": 0.5})
    # DQN's n_steps has a different meaning from PPO's.
    assert plan_of("stable_baselines3:DQN", seeds=1)[1].hyperparameters["n_steps"] == 1


def test_a_settings_own_step_size_stays_as_it_is() -> None:
    (_, run) = plan_of("ppo_clip:learning_rate=0.01", seeds=1, anneal=True)
    assert run.hyperparameters["learning_rate"] == 0.01


@pytest.mark.parametrize(
    "conditions, env, message",
    [
        ({"normalize": False, "parameters": {"normalize": True}}, ENV, "normalize=True contradicts --no-normalize"),
        ({"normalize": True, "parameters": {"normalize": None}}, ENV, "normalize=None contradicts --normalize"),
        ({"normalize": False, "parameters": {"normalize": {}}}, ENV, "normalize={} contradicts --no-normalize"),
        ({"parameters": {"verbose": 1}}, ENV, "verbose cannot be a hyperparameter of a comparison: it does not change"),
        ({"parameters": {"env": 3}}, ENV, "env cannot be a hyperparameter of a comparison: use --envs"),
        ({"timesteps": 0}, ENV, "CartPole-v1 must take at least 1 step; --timesteps is 0"),
        ({"entry": "nowhere"}, ENV, "entry='nowhere'.*mujoco"),
        ({}, "CartPole-v9", "env_id='CartPole-v9'"),
        ({"file": SettingsFile("mine", {ENV: {"n_timesteps": "many"}})}, ENV, "n_timesteps of .* is 'many'"),
        ({"anneal": True, "parameters": {"learning_rate": "fast"}}, ENV, "--anneal .* a learning_rate.*not 'fast'"),
        ({"anneal": False, "parameters": {"learning_rate": "lin_x"}}, ENV, "need a learning_rate.* not 'lin_x'"),
    ],
)
def test_conditions_that_are_not_known_are_refused(conditions: dict[str, Any], env: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        resolve(Setting("ppo_clip"), env, Conditions(**conditions))


def test_a_switch_for_a_step_size_needs_one() -> None:
    setting, given = Setting(f"{__name__}:Unannealed"), Conditions(parameters={"normalize": {}}, normalize=True)
    assert resolve(setting, ENV, given).hyperparameters["normalize"] == {}
    for anneal, switch in ((True, "--anneal"), (False, "--no-anneal")):
        with pytest.raises(ArgumentError, match=f"^{switch} is for algorithms with a learning_rate, which .*Unann"):
            resolve(setting, ENV, replace(given, anneal=anneal))


def plan_of(*settings: str, envs: tuple[str, ...] = (ENV,), seeds: int = 2, **conditions: Any) -> list[Run]:
    return make_plan([read_setting(text) for text in settings], list(envs), seeds, Conditions(**conditions)).runs


def test_a_plan_has_all_runs_seeds_slowest() -> None:
    runs = plan_of("ppo_clip", "sb3_ppo", envs=(ENV, "Acrobot-v1"), timesteps=64)
    assert [(run.seed, run.env, run.label) for run in runs] == [
        (0, ENV, RANDOM),
        (0, "Acrobot-v1", RANDOM),
        *((seed, env, label) for seed in (0, 1) for env in (ENV, "Acrobot-v1") for label in ("ppo_clip", "sb3_ppo")),
    ]
    assert len({run.name for run in runs}) == len(runs)


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
        (("ppo_clip", "ppo_clip"), {}, "--algos names ppo_clip more than once"),
        (("ppo_clip", "ppo_clip:clip_range=lin_0.2"), {}, "ppo_clip clip_range=lin_0.2 and ppo_clip are the same"),
        (("ppo_fixed_kl:kl_coef=3", "ppo_fixed_kl"), {}, "ppo_fixed_kl and ppo_fixed_kl kl_coef=3 are the same"),
        (("ppo_clip",), {"envs": (ENV, ENV)}, "--envs names CartPole-v1 more than once"),
        (("ppo_clip",), {"envs": (ENV, "CartPole")}, "--envs names CartPole-v1 more than once"),
        (("ppo_clip",), {"seeds": 0}, "--seeds must be at least 1, not 0"),
        (
            ("ppo_clip:protocol=sb3", "ppo_clip"),
            {"timesteps": None},
            "protocol=sb3 would train for 1,000,000 steps in CartPole-v1, and ppo_clip for 100,000: choose one",
        ),
    ],
)
def test_plans_that_compare_nothing_are_refused(
    settings: tuple[str, ...], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        plan_of(*settings, **options)


def test_hyperparameters_that_no_setting_has_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"no setting has a hyperparameter n_stepz; they have .*n_steps"):
        plan_of("ppo_clip", "sb3_ppo", parameters={"n_stepz": 3})
    with pytest.raises(ArgumentError, match="a comparison has no callbacks: remove callback from the hyperparameters"):
        plan_of("ppo_clip", parameters={"callback": "stable_baselines3.common.callbacks.CallbackList"})


def test_objects_without_a_name_are_refused() -> None:
    assert to_plain("policy_kwargs", {"activation_fn": nn.ReLU}) == {
        "activation_fn": "torch.nn.modules.activation.ReLU"
    }
    with pytest.raises(ArgumentError, match=r"learning_rate=<function.*lin_x"):
        to_plain("learning_rate", lambda _: 1.0)
    with pytest.raises(ArgumentError, match="gamma="):
        to_plain("gamma", np.ones(2))


def test_the_papers_hyperparameters() -> None:
    preset = read_config("paper-table1")
    assert list(preset.settings) == [*(row.setting for row in TABLE_1), "sb3_ppo"]
    (conditions,) = preset.conditions
    table_3 = {"n_steps": 2048, "learning_rate": "lin_0.0003", "n_epochs": 10, "batch_size": 64, "gamma": 0.99}
    table_3 |= {"gae_lambda": 0.95, "ent_coef": 0.0, "n_envs": 1, "policy": "MlpPolicy", "policy_kwargs": None}
    for text in preset.settings:
        for env in preset.envs:
            found: Resolved = resolve(read_setting(text), env, conditions)
            assert {name: found.hyperparameters[name] for name in table_3} == table_3
            assert found.timesteps == 1_000_000
