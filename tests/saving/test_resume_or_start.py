"""A script that is submitted repeatedly continues where it stopped."""

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch as th
from resuming import KillAt, Killed, pendulums, state, steps
from scipy.interpolate import interp1d
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import VecNormalize
from torch import nn

from helpers import VARIANTS
from sb3_ppo_variants import ArgumentError, DamagedFileError, ExactCheckpointCallback, KLAdaptive, PPOClip, PPOCustom
from sb3_ppo_variants.objectives import AdaptiveKL, AdaptiveReverseKL, Clipped, Unclipped
from sb3_ppo_variants.saving.checkpoint import Checkpoint, get_arguments

ARGUMENTS: dict[str, Any] = {"n_steps": 16, "batch_size": 16, "n_epochs": 2, "seed": 3, "device": "cpu"}


def submitted(cls: Any, folder: Path, kill_at: int | None = None, total: float = 200, **more: Any) -> Any:
    """Run the script."""
    model = cls.resume_or_start(folder, "MlpPolicy", VecNormalize(pendulums()), **{**ARGUMENTS, **more})
    checkpoints = ExactCheckpointCallback(64, folder, at_end=True)
    return model.learn_to(total, callback=[checkpoints, *([KillAt(kill_at)] if kill_at else [])])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("variant", VARIANTS)
def test_it_goes_on_until_it_is_done(variant: Any, tmp_path: Path) -> None:
    whole = submitted(variant, tmp_path / "whole")
    for kill_at in (20, 100, 180):
        with pytest.raises(Killed):
            submitted(variant, tmp_path / "cut", kill_at)
    cut = submitted(variant, tmp_path / "cut")
    assert state(cut) == state(whole)
    assert whole.num_timesteps == 224  # 200 steps, rounded up to complete rollouts.
    again = submitted(variant, tmp_path / "cut", kill_at=1)  # There is nothing left to do.
    assert state(again) == state(whole)
    assert steps(tmp_path / "cut")[-1] == "step_000000224"


@pytest.mark.parametrize(
    ("name", "value"), [("learning_rate", 1e-4), ("n_epochs", 3), ("clip_range", 0.3), ("seed", 4)]
)
def test_arguments_of_another_run_are_refused(name: str, value: Any, tmp_path: Path) -> None:
    submitted(PPOClip, tmp_path)
    with pytest.raises(ArgumentError, match=rf"{name}=.*, but the run in .* has "):
        submitted(PPOClip, tmp_path, **{name: value})


def falling(progress: float) -> float:
    return 1e-3 * progress


def falling_slowly(progress: float) -> float:
    return 1e-3 * (0.5 + progress / 2)


class OnePolicy(ActorCriticPolicy):
    pass


class OtherPolicy(ActorCriticPolicy):
    pass


@pytest.mark.parametrize(
    ("name", "of_run", "value"),
    [
        ("learning_rate", 1e-3, falling),
        ("learning_rate", falling, 1e-3),
        ("learning_rate", falling, falling_slowly),
        ("clip_range", falling, 0.2),
        ("policy", OnePolicy, "MlpPolicy"),
        ("policy", "MlpPolicy", OnePolicy),
        ("policy", OnePolicy, OtherPolicy),
        ("policy_kwargs", {"net_arch": [8]}, {"net_arch": [16]}),
    ],
)
def test_arguments_that_are_classes_or_functions(name: str, of_run: Any, value: Any, tmp_path: Path) -> None:
    def start(argument: Any) -> Any:
        if name == "policy_kwargs":
            argument = {**argument, "activation_fn": lambda: th.nn.Tanh()}
        arguments = {**ARGUMENTS, "policy": "MlpPolicy", name: argument}
        return PPOClip.resume_or_start(tmp_path, env=pendulums(), **arguments)

    start(of_run).learn(32, callback=ExactCheckpointCallback(64, tmp_path))
    assert start(of_run).num_timesteps == 0
    with pytest.raises(ArgumentError, match=rf"^{name}=.*, but the run in .* has "):
        start(value)


class Anneals(BaseCallback):
    """Changes an argument during the run."""

    def _on_step(self) -> bool:
        self.model.ent_coef = 0.01  # type: ignore[attr-defined]
        return True


def test_arguments_that_a_callback_changes(tmp_path: Path) -> None:
    def start(**arguments: Any) -> Any:
        return PPOClip.resume_or_start(tmp_path, "MlpPolicy", pendulums(), **ARGUMENTS, **arguments)

    for total in (64, 128):
        start().learn_to(total, callback=[ExactCheckpointCallback(32, tmp_path, at_end=True), Anneals()])
    assert start().ent_coef == 0.01
    with pytest.raises(ArgumentError, match=r"^ent_coef=0\.02, but the run in .* has 0\.0\. "):
        start(ent_coef=0.02)


@pytest.mark.parametrize(
    ("of_run", "value"),
    [
        (Clipped(clip_range=0.2), Clipped(clip_range=0.4)),
        (AdaptiveKL(kl_coef=1.0, desired_kl=0.01), AdaptiveKL(kl_coef=1.0, desired_kl=0.02)),
        (Clipped(clip_range=0.2), Unclipped()),
    ],
)
def test_objectives_of_ones_own(of_run: Any, value: Any, tmp_path: Path) -> None:
    def start(objective: Any) -> Any:
        return PPOCustom.resume_or_start(tmp_path, "MlpPolicy", pendulums(), objective=objective, **ARGUMENTS)

    model = start(of_run).learn_to(64, callback=ExactCheckpointCallback(32, tmp_path, at_end=True))
    assert start(of_run).objective == model.objective
    assert (model.objective == of_run) is not isinstance(of_run, AdaptiveKL)
    with pytest.raises(ArgumentError, match=r"^objective=.*, but the run in .* has "):
        start(value)


class Taught(PPOClip):
    """Has an argument that is called, but is no schedule."""

    def __init__(self, *args: Any, teacher: Any = None, **arguments: Any):
        self.teacher = teacher
        super().__init__(*args, **arguments)


class Hidden(PPOClip):
    """Keeps an argument under another name."""

    def __init__(self, *args: Any, bonus: float = 0.0, **arguments: Any):
        self._bonus = bonus
        super().__init__(*args, **arguments)


def test_arguments_that_cannot_be_compared_are_refused_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"cannot tell .* the same bonus, .* set self\.bonus in its constructor"):
        Hidden.resume_or_start(tmp_path, "MlpPolicy", pendulums(), **ARGUMENTS, bonus=1.0)
    assert Hidden.resume_or_start(tmp_path, "MlpPolicy", pendulums(), **ARGUMENTS)._bonus == 0.0


def test_the_arguments_of_a_checkpoint_are_those_of_the_constructor() -> None:
    compared = get_arguments(Taught("MlpPolicy", pendulums(), **ARGUMENTS, teacher=max))
    others = {"env", "device", "verbose", "tensorboard_log", "_init_setup_model"}
    assert compared.keys() == {*inspect.signature(PPOClip).parameters, "teacher"} - others
    assert compared["teacher"] is max and compared["n_steps"] == 16


@pytest.mark.parametrize("teacher", [nn.Linear(4, 2), max, lambda one, two: one])
def test_arguments_that_are_no_schedules(teacher: Any, tmp_path: Path) -> None:
    model = Taught("MlpPolicy", pendulums(), **ARGUMENTS, teacher=teacher)
    model.learn(32, callback=ExactCheckpointCallback(32, tmp_path))
    assert Taught.resume_or_start(tmp_path, "MlpPolicy", pendulums(), **ARGUMENTS, teacher=teacher).teacher is not None


def test_a_schedule_of_arrays(tmp_path: Path) -> None:
    """SciPy's interpolations return arrays without dimensions."""

    def start(last: float) -> Any:
        rate: Any = interp1d([-1, 0, 1], [0, 0, last])
        return PPOClip.resume_or_start(tmp_path, "MlpPolicy", pendulums(), **ARGUMENTS, learning_rate=rate)

    start(3e-4).learn_to(32, callback=ExactCheckpointCallback(32, tmp_path))
    start(3e-4)
    with pytest.raises(ArgumentError, match=r"^learning_rate="):
        start(1e-4)


@pytest.mark.parametrize(
    ("cls", "arguments"),
    [
        (PPOClip, {"learning_rate": KLAdaptive(desired_kl=1e-4)}),
        (PPOCustom, {"objective": AdaptiveReverseKL(desired_kl=1e-6)}),
    ],
)
def test_arguments_that_had_adapted_before_the_first_checkpoint(cls: Any, arguments: Any, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    model = cls("MlpPolicy", pendulums(), **ARGUMENTS, **arguments).learn(64)
    for folder in (first, second):
        model.learn(64, callback=ExactCheckpointCallback(32, folder), reset_num_timesteps=False)
        resumed = cls.resume_or_start(folder, "MlpPolicy", pendulums(), **ARGUMENTS, **arguments)
        model = cls.resume(folder, pendulums())
        assert resumed.num_timesteps == model.num_timesteps
    (name,) = arguments
    assert getattr(resumed, name) != arguments[name]


def test_what_may_be_another(tmp_path: Path) -> None:
    submitted(PPOClip, tmp_path / "ckpt", policy_kwargs={"net_arch": [8], "ortho_init": False})
    others: dict[str, Any] = {"verbose": 1, "tensorboard_log": str(tmp_path / "logs")}
    others["policy_kwargs"] = {"ortho_init": False, "net_arch": [8]}  # In another order.
    model = submitted(PPOClip, tmp_path / "ckpt", **others)
    assert (model.verbose, model.tensorboard_log) == (1, others["tensorboard_log"])


def test_a_folder_that_is_damaged_is_not_started_anew(tmp_path: Path) -> None:
    submitted(PPOClip, tmp_path)
    for folder in tmp_path.iterdir():
        (folder / "model.zip").write_bytes(b"")
    with pytest.raises(DamagedFileError, match="every checkpoint is damaged"):
        submitted(PPOClip, tmp_path)


def test_what_resuming_needs(tmp_path: Path) -> None:
    env: Any = None
    with pytest.raises(ArgumentError, match=r"^env=None, but resume"):
        PPOClip.resume(tmp_path, env)
    with pytest.raises(ArgumentError, match="takes no reset_num_timesteps"):
        PPOClip.resume_or_start(tmp_path, "MlpPolicy", pendulums()).learn_to(64, reset_num_timesteps=True)


@pytest.mark.parametrize("total", [-5, float("nan"), "64", True, None])
def test_numbers_of_steps(total: Any, tmp_path: Path) -> None:
    model = PPOClip.resume_or_start(tmp_path, "MlpPolicy", pendulums())
    for method in (model.learn_to, model.learn):
        with pytest.raises(ArgumentError, match=rf"^total_timesteps={total!r} is not allowed; allowed: a number >= 0$"):
            method(total)
    assert model.learn_to(0).num_timesteps == 0


class Ends(BaseCallback):
    """Stops training within the second rollout, or raises an error after it."""

    def __init__(self, how: str):
        super().__init__()
        self._how = how

    def _on_step(self) -> bool:
        return self._how != "stopped" or self.num_timesteps < 40

    def _on_rollout_end(self) -> None:
        if self._how == "failed" and self.num_timesteps >= 64:
            raise ZeroDivisionError


@pytest.mark.parametrize("how", ["whole", "stopped", "failed"])
@pytest.mark.parametrize("at_end", [True, False])
def test_the_last_checkpoint_is_of_training_that_no_error_ended(how: str, at_end: bool, tmp_path: Path) -> None:
    model = PPOClip("MlpPolicy", pendulums(), **ARGUMENTS)
    callbacks = [ExactCheckpointCallback(1000, tmp_path, at_end=at_end), Ends(how)]
    try:
        model.learn(64, callback=callbacks)
    except ZeroDivisionError:
        assert how == "failed"
    last = {"whole": ["step_000000064"], "stopped": ["step_000000040"], "failed": []}[how] if at_end else []
    assert steps(tmp_path) == ["step_000000000", *last]


def test_a_run_that_a_callback_stopped_goes_on(tmp_path: Path) -> None:
    model = PPOClip("MlpPolicy", VecNormalize(pendulums()), **ARGUMENTS)
    model.learn(96, callback=[ExactCheckpointCallback(1000, tmp_path, at_end=True), Ends("stopped")])
    assert Checkpoint.read(tmp_path / "step_000000040").iterations == 1  # The rollout that was stopped does not count.
    model.learn(64, reset_num_timesteps=False)
    resumed = PPOClip.resume(tmp_path, VecNormalize(pendulums())).learn(64, reset_num_timesteps=False)
    assert resumed.num_timesteps == 104 and state(resumed) == state(model)
