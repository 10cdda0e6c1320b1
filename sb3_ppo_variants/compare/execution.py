"""Executes one run, in any process, and returns its record."""

import json
import math
import shutil
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from numbers import Real
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, cast

import numpy as np
import pandas as pd
import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import KVWriter, Logger, TensorBoardOutputFormat
from threadpoolctl import threadpool_limits

from sb3_ppo_variants.callbacks import tell
from sb3_ppo_variants.collector import Told
from sb3_ppo_variants.compare.plan import Run
from sb3_ppo_variants.compare.provenance import circumstances, commit, installed_versions, numerics, own_modules
from sb3_ppo_variants.compare.records import FORMAT, LAST, SPANS, Record, Result, decimals, digest
from sb3_ppo_variants.envs.cores import limit_cores
from sb3_ppo_variants.envs.masks import own_space, random_actions
from sb3_ppo_variants.errors import ArgumentError, DamagedFileError, installation
from sb3_ppo_variants.ppo import PPOBase
from sb3_ppo_variants.recipes.recipe import Recipe
from sb3_ppo_variants.recipes.training import Episodes, build, save
from sb3_ppo_variants.saving.run import ExactCheckpointCallback

if TYPE_CHECKING:
    from wandb.sdk.wandb_run import Run as WandbRun

SECONDS_BETWEEN_STATES = 1.0
# Weights & Biases refuses names of runs and groups with more characters.
LONGEST_WANDB_NAME = 128
# The logged values to keep: names of SB3 and of this package, without "train/".
RECORDED_VALUES = (
    "kl", "approx_kl", "entropy_loss", "explained_variance", "value_loss", "std", "kl_coef", "clip_range",
    "clip_fraction",
)  # fmt: skip


class RunState(Episodes):
    """Keeps the episodes of a run and the values that it logs, and writes its progress to a file in a folder."""

    remembered = ("ends", "returns", "_logged", "_spent")

    def __init__(self, run: Run, folder: Path | None):
        super().__init__()
        self._run = run
        self._file = folder / f"{run.name}.json" if folder is not None and folder.is_dir() else None
        self._next = 0.0
        self._logged: list[dict[str, float]] = []
        # Wall-clock and CPU seconds.
        self._spent = [0.0, 0.0]
        self._on_training_start()

    def _on_training_start(self) -> None:
        # Restart the clocks, to leave out the imports of the environment, which only the first run of a process makes.
        self._clocks = time.perf_counter(), time.process_time()

    def note(self, step: int, infos: list[dict[str, object]]) -> None:
        """Record the episodes that ended in a step, and write the progress, if the last write was long enough ago."""
        super().note(step, infos)
        now = time.monotonic()
        if self._file is None or now < self._next:
            return
        self._next = now + SECONDS_BETWEEN_STATES
        returns = self.returns[-LAST:]
        progress = {name: getattr(self._run, name) for name in ("label", "env", "seed", "timesteps")}
        progress |= {"steps": step, "reward": round(sum(returns) / len(returns), 2) if returns else None}
        # A full disk must not stop the run. The command reports it when it writes the record.
        with suppress(OSError):
            temporary = self._file.with_suffix(".tmp")
            temporary.write_text(json.dumps(progress))
            temporary.replace(self._file)

    def seconds(self) -> tuple[float, float]:
        """Measure the wall-clock and CPU seconds of the training so far."""
        self._count_seconds()
        wall, cpu = self._spent
        return round(wall, 2), round(cpu, 2)

    def _count_seconds(self) -> None:
        now = time.perf_counter(), time.process_time()
        self._spent = [spent + to - since for spent, to, since in zip(self._spent, now, self._clocks, strict=True)]
        self._clocks = now

    def close(self) -> None:
        """Remove the file."""
        if self._file is not None:
            self._file.unlink(missing_ok=True)

    def _on_rollout_start(self) -> None:
        self._count_seconds()  # A checkpoint may be written now.
        # Read the values before SB3 dumps and clears them, which it does between a rollout and its update.
        values = {name: self.logger.name_to_value.get(f"train/{name}") for name in RECORDED_VALUES}
        known = {name: float(value) for name, value in values.items() if value is not None}
        if known:
            self._logged.append({"step": self.num_timesteps, **known})

    _on_training_end = _on_rollout_start

    def curves(self, timesteps: int, number: int) -> dict[str, list[float | None]]:
        """Compute the mean of each logged value over the updates in each of ``number`` equal spans of the timesteps."""
        frame = pd.DataFrame(self._logged, columns=["step", *RECORDED_VALUES], dtype=float)
        spans = np.ceil(frame.pop("step") * number / timesteps).clip(1, number)
        means = frame.where(np.isfinite(frame)).groupby(spans).mean().reindex(range(1, number + 1))
        known = means.dropna(axis="columns", how="all")
        return {n: [None if pd.isna(mean) else float(f"{mean:.5g}") for mean in known[n]] for n in known}


tell(Told.ENVS, RunState)


@dataclass(frozen=True)
class Tracking:
    """Where runs log to, besides their records."""

    # A folder, in which each run gets its own folder.
    tensorboard: Path | None = None
    # A project at Weights & Biases, and the folder for its files.
    wandb: str | None = None
    wandb_folder: Path = Path()

    def check(self) -> None:
        """Exit, naming the extra to install, if a package is missing."""
        if self.tensorboard is not None and find_spec("tensorboard") is None:
            raise SystemExit(f"--tensorboard needs TensorBoard: {installation('examples')}")
        if self.wandb is not None and find_spec("wandb") is None:
            raise SystemExit(f"--wandb needs Weights & Biases: {installation('wandb')}")

    @contextmanager
    def log(self, run: Run, model: BaseAlgorithm) -> Iterator[None]:
        """Let a run's model log there. If an error is raised, the run of Weights & Biases is marked as failed."""
        with ExitStack() as stack:
            formats: list[KVWriter] = []
            if self.tensorboard is not None:
                folder = self.tensorboard / run.name
                if model.num_timesteps == 0:
                    # An earlier attempt at this run, which failed or was killed, may have left logs here.
                    shutil.rmtree(folder, ignore_errors=True)
                formats.append(TensorBoardOutputFormat(str(folder)))
                stack.callback(formats[0].close)
            if self.wandb is not None:
                import wandb

                self.wandb_folder.mkdir(parents=True, exist_ok=True)
                described = run.identity
                tracked = wandb.init(
                    project=self.wandb, dir=self.wandb_folder, group=_shorten(f"{run.label}, {run.env}"),
                    name=_shorten(f"{run.label}, {run.env}, seed {run.seed}"),
                    config={**described.pop("hyperparameters"), **described},
                    settings=wandb.Settings(silent=True, console="off"),
                )  # fmt: skip
                formats.append(ToWandb(stack.enter_context(tracked)))
            if formats:
                model.set_logger(Logger(str(self.tensorboard or self.wandb_folder), formats))
            yield


def _shorten(text: str) -> str:
    """Shorten a text to what Weights & Biases takes as a name, with a digest that tells it apart from others."""
    return text if len(text) <= LONGEST_WANDB_NAME else f"{text[: LONGEST_WANDB_NAME - 13]} {digest(text)}"


class ToWandb(KVWriter):
    """Writes numbers from SB3's logger to a run of Weights & Biases."""

    def __init__(self, run: "WandbRun"):
        self._run = run

    def write(self, key_values: dict[str, object], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        """Write the numbers that were logged at a step."""
        self._run.log({name: value for name, value in key_values.items() if isinstance(value, Real)}, step=step)

    def close(self) -> None:
        """Do nothing: the context that started the run ends it."""


def perform(
    run: Run,
    states: Path | None = None,
    checkpoints: Path | None = None,
    to_resume: Path | None = None,
    tracking: Tracking | None = None,
    fast_envs: bool = False,
    cores: int = 1,
) -> Record:
    """Execute a run and return its record. If the run raises an error, the record contains the traceback.

    :param states: folder for the progress of the runs
    :param checkpoints: folder in which a folder with the trained model is saved
    :param to_resume: folder for the checkpoints from which a run continues, if its conditions ask for them
    :param fast_envs: whether to use the fastest environments with the same results
    :param cores: number of cores that these may use
    """
    # Compute with one thread everywhere, because the way sums are split over threads changes their rounding.
    th.set_num_threads(1)
    state = RunState(run, states)
    result: Result
    try:
        with threadpool_limits(limits=1), limit_cores(cores), quiet(checked=True):
            made = run.recipe(fast_envs)
            if run.algorithm:
                steps, computed = _train(run, made, state, checkpoints, to_resume, tracking or Tracking())
            else:
                steps, computed = _act_randomly(run, made, state)
        training = state.curves(steps, SPANS)
        status, result = "finished", {**_measure(state, steps), "training": training, **computed}
    except (Exception, SystemExit):
        # The names of files in a message may contain bytes that are no text, which no report could be written with.
        error = traceback.format_exc().encode(errors="backslashreplace").decode()
        status, result = "failed", {"error": error}
    finally:
        state.close()
    return make_record(run, status, result, *state.seconds())


def make_record(run: Run, status: str, result: Result, wall: float | None = None, cpu: float | None = None) -> Record:
    """Make the record of a run with its result and the wall-clock and CPU seconds it took."""
    made = {"format": FORMAT, "name": run.name, "status": status, **run.identity, **result, "commit": commit()}
    described = circumstances()
    described["versions"] |= installed_versions()
    return cast(Record, {"modules": own_modules(run), **made, **described, "wall_seconds": wall, "cpu_seconds": cpu})


def _train(
    run: Run, made: Recipe, state: RunState, checkpoints: Path | None, to_resume: Path | None, tracking: Tracking
) -> tuple[int, Result]:
    """Train, and return the number of steps that were made, and what computed them."""
    model = build(made, run.seed)
    every = run.conditions.get("resume_every")
    env = model.get_env()
    assert env is not None
    computed: Result = {
        "numerics": numerics(model),
        "vec_env": type(env.unwrapped).__name__,
        "modules": own_modules(run),
    }
    with ExitStack() as stack:
        learn: Callable[..., object] = model.learn
        callbacks: list[BaseCallback] = [state]
        if every is not None:
            folder = Path(stack.enter_context(TemporaryDirectory())) if to_resume is None else to_resume / run.name
            model = _resume(model, folder)
            learn = model.learn_to
            callbacks.append(ExactCheckpointCallback(every, folder))
        stack.enter_context(tracking.log(run, model))
        learn(run.timesteps, callbacks)
        # SB3 dumps the log before each update, so the values of the last update are still to be written.
        model.logger.dump(model.num_timesteps)
    if checkpoints is not None:
        try:
            save(model, checkpoints / run.name)
        except OSError as error:
            # The run still counts: its results are in the record.
            warnings.warn(f"the model of {run.name} could not be saved: {error}")
    env.close()
    return model.num_timesteps, computed


def _resume(model: BaseAlgorithm, folder: Path) -> PPOBase:
    """Resume the run that has checkpoints in a folder, in the model's environment, or return the model to begin it."""
    assert isinstance(model, PPOBase) and model.env is not None  # A plan refuses other algorithms.
    try:
        return type(model).resume(folder, model.env, model.device)
    except FileNotFoundError:
        return model
    except DamagedFileError as error:
        fault = f"{error.fault}; remove {folder} to begin the run anew"
        raise DamagedFileError(error.file, error.part, fault) from error


def _act_randomly(run: Run, made: Recipe, state: RunState) -> tuple[int, Result]:
    """Act, and return the number of steps that were made, and what computed them."""
    env = made.make_env(seed=run.seed)
    space = own_space(env)
    space.seed(run.seed)
    env.reset()
    steps = 0
    while len(state.returns) < LAST and steps < run.timesteps:
        steps += 1
        *_, infos = env.step(random_actions(env, space))
        state.note(steps, infos)
    env.close()
    return steps, {"numerics": numerics(None), "vec_env": type(env.unwrapped).__name__, "modules": own_modules(run)}


def _measure(episodes: Episodes, steps: int) -> Result:
    """Make the part of the record about the episodes, whose returns and their sums must be finite."""
    for number, (value, end) in enumerate(zip(episodes.returns, episodes.ends, strict=True)):
        if not math.isfinite(value):
            raise ValueError(f"the return of episode {number}, which ended at step {end}, is {value}")
    if not math.isfinite(sum(map(abs, episodes.returns))):
        raise ValueError(f"the returns are too large for a mean, up to {max(episodes.returns, key=abs)}")
    digits = decimals(episodes.returns)
    episodes.returns = [round(value, digits) for value in episodes.returns]
    last = episodes.returns[-LAST:]
    return {
        "score": round(float(np.mean(last)), digits) if last else None,
        "steps": steps,
        "last_returns": last,
        "episodes": {"ends": episodes.ends, "returns": episodes.returns},
    }


def check(runs: Iterable[Run], fast_envs: bool = False) -> None:
    """Create the model of every setting in every environment once. Errors name the setting and the environment."""
    checked: set[str] = set()
    # The same hyperparameters give the same model, even under other conditions.
    for run in {(run.label, run.env, digest(run.identity["hyperparameters"])): run for run in runs}.values():
        try:
            with limit_cores(1), quiet(checked=run.env in checked):
                made = run.recipe(fast_envs)
                env = build(made, run.seed).get_env() if run.algorithm else made.make_env()
        except Exception as error:
            kind = "" if isinstance(error, ArgumentError) else f"{type(error).__name__}: "
            raise ArgumentError(f"{run.label} cannot run in {run.env}: {kind}{error}") from error
        checked.add(run.env)
        if env is not None:
            env.close()


@contextmanager
def quiet(checked: bool = False) -> Iterator[None]:
    """Let MuJoCo warn only once and write no ``MUJOCO_LOG.TXT``, and ignore warnings about the render mode.

    :param checked: whether to ignore what :func:`check` has warned of, too: that an environment has a newer version
    """
    mujoco = import_module("mujoco") if find_spec("mujoco") else None
    with warnings.catch_warnings(), ExitStack() as stack:
        # SB3 asks every environment for its render mode, even if the environment cannot render.
        warnings.filterwarnings("ignore", message=".*render_mode")
        if checked:
            warnings.filterwarnings("ignore", message=".* is out of date", category=DeprecationWarning)
        warnings.filterwarnings("once", message="MuJoCo: ")
        # This is about gymnasium's MuJoCo models, which users cannot change.
        warnings.filterwarnings("ignore", message="MuJoCo: compiler attribute")
        if mujoco is not None:
            mujoco.set_mju_user_warning(lambda message: warnings.warn(f"MuJoCo: {message}"))
            stack.callback(mujoco.set_mju_user_warning, None)
        yield
