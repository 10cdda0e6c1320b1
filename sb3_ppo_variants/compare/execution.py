"""Executes one run, in any process, and returns its record."""

import json
import math
import time
import traceback
import warnings
from contextlib import suppress
from pathlib import Path
from typing import cast

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.vec_env import VecEnv
from threadpoolctl import threadpool_limits

from sb3_ppo_variants.compare.curves import LAST, SPANS
from sb3_ppo_variants.compare.logged import Logged
from sb3_ppo_variants.compare.plan import Run
from sb3_ppo_variants.compare.provenance import Numerics, circumstances, commit, installed, numerics, own_modules
from sb3_ppo_variants.compare.quiet import quieted
from sb3_ppo_variants.compare.records import FORMAT, Made, Record, Result
from sb3_ppo_variants.compare.tracking import Tracking
from sb3_ppo_variants.envs import ActionsAsDrawn
from sb3_ppo_variants.guards.capabilities import has_attr
from sb3_ppo_variants.guards.masks import METHOD, MaskCheck, choices
from sb3_ppo_variants.guards.outputs import Watch
from sb3_ppo_variants.recipes.episodes import Episodes
from sb3_ppo_variants.recipes.training import build, save

SECONDS_BETWEEN_STATES = 1.0
NOWHERE = Tracking()


class State(BaseCallback):
    """Writes the progress of a run to a file in a folder, if this machine has that folder."""

    def __init__(self, run: Run, episodes: Episodes, folder: Path | None):
        super().__init__()
        self._run, self._episodes = run, episodes
        self._file = folder / f"{run.name}.json" if folder is not None and folder.is_dir() else None
        self._next = 0.0
        self._on_training_start()

    def _on_training_start(self) -> None:
        # Restart the clocks, to leave out the imports of the environment, which only the first run of a process makes.
        self._begun = time.perf_counter(), time.process_time()

    def _on_step(self) -> bool:
        self.note(self.num_timesteps)
        return True

    def note(self, step: int) -> None:
        """Write that the run is at this step, if the last write was long enough ago."""
        now = time.monotonic()
        if self._file is None or now < self._next:
            return
        self._next = now + SECONDS_BETWEEN_STATES
        run, returns = self._run, self._episodes.returns[-LAST:]
        progress = {
            "label": run.label, "env": run.env, "seed": run.seed, "timesteps": run.timesteps, "steps": step,
            "reward": round(sum(returns) / len(returns), 2) if returns else None,
        }  # fmt: skip
        # A full disk must not stop the run. The command reports it when it writes the record.
        with suppress(OSError):
            temporary = self._file.with_suffix(".tmp")
            temporary.write_text(json.dumps(progress))
            temporary.replace(self._file)

    def seconds(self) -> tuple[float, float]:
        """Return the wall-clock and CPU seconds of the training so far."""
        clock, processor = self._begun
        return round(time.perf_counter() - clock, 2), round(time.process_time() - processor, 2)

    def close(self) -> None:
        """Remove the file."""
        if self._file is not None:
            self._file.unlink(missing_ok=True)


def perform(
    run: Run, states: Path | None = None, checkpoints: Path | None = None, tracking: Tracking = NOWHERE
) -> Record:
    """Execute a run and return its record. If the run raises an error, the record contains the traceback.

    :param states: folder for the progress of the runs; ``None`` writes none
    :param checkpoints: folder in which a folder with the trained model is saved; ``None`` saves none
    :param tracking: where to log, besides the record
    """
    # Compute with one thread everywhere, because the way sums are split over threads changes their rounding.
    th.set_num_threads(1)
    episodes, logged = Episodes(), Logged()
    state = State(run, episodes, states)
    result: Made
    try:
        with threadpool_limits(limits=1), quieted():
            if run.algorithm:
                steps, computed = _train(run, CallbackList([episodes, logged, state]), checkpoints, tracking)
            else:
                steps, computed = _act_randomly(run, episodes, state), numerics(None)
        training = logged.curves(steps, SPANS)
        status, result = "finished", {**_measured(episodes, steps), "training": training, "numerics": computed}
    except (Exception, SystemExit):
        # The names of files in a message may contain bytes that are no text, which no report could be written with.
        error = traceback.format_exc().encode(errors="backslashreplace").decode()
        status, result = "failed", {"error": error}
    finally:
        state.close()
    return record_of(run, status, result, *state.seconds())


def record_of(run: Run, status: str, result: Made, wall: float | None = None, cpu: float | None = None) -> Record:
    """Return the record of a run with its result and the wall-clock and CPU seconds it took."""
    made = {"format": FORMAT, "name": run.name, "status": status, **run.identity, **result, "commit": commit()}
    described = circumstances()
    described["versions"] |= installed()
    modules = own_modules(run.algorithm, run.env, run.hyperparameters.get("env_wrapper"))
    return cast(Record, {**made, **described, "modules": modules, "wall_seconds": wall, "cpu_seconds": cpu})


def _train(run: Run, callback: BaseCallback, checkpoints: Path | None, tracking: Tracking) -> tuple[int, Numerics]:
    """Return the number of steps that were made, and how the updates were computed."""
    model = build(run.recipe(), run.seed)
    computed = numerics(model)
    with tracking.logger(run) as logger:
        if logger is not None:
            model.set_logger(logger)
        model.learn(run.timesteps, callback=callback)
        # SB3 dumps the log before each update, so the values of the last update are still to be written.
        model.logger.dump(model.num_timesteps)
    if checkpoints is not None:
        try:
            save(model, checkpoints / run.name)
        except OSError as error:
            # The run still counts: its results are in the record.
            warnings.warn(f"the model of {run.name} could not be saved: {error}")
    env = model.get_env()
    assert env is not None
    env.close()
    return model.num_timesteps, computed


def _act_randomly(run: Run, episodes: Episodes, state: State) -> int:
    env = run.recipe().make_env(seed=run.seed)
    # Draw actions within the environment's own bounds, not within the much wider ones that ActionsAsDrawn sets.
    as_drawn = all(env.env_is_wrapped(ActionsAsDrawn))
    space = env.get_attr("own_action_space")[0] if as_drawn else env.action_space
    space.seed(run.seed)
    env.reset()
    steps = 0
    while len(episodes.returns) < LAST and steps < run.timesteps:
        steps += 1
        *_, infos = env.step(random_actions(env, space))
        episodes.note(steps, infos)
        state.note(steps)
    env.close()
    return steps


def _measured(episodes: Episodes, steps: int) -> Result:
    """Return the part of the record about the episodes, whose returns and their sums must be finite."""
    for number, value in enumerate(episodes.returns):
        if not math.isfinite(value):
            raise ValueError(f"the return of episode {number}, which ended at step {episodes.ends[number]}, is {value}")
    if not math.isfinite(sum(map(abs, episodes.returns))):
        raise ValueError(f"the returns are too large for a mean, up to {max(episodes.returns, key=abs)}")
    episodes.returns = [round(value, 4) for value in episodes.returns]
    last = episodes.returns[-LAST:]
    spans = episodes.spans(steps, SPANS)
    return {
        "score": round(float(np.mean(last)), 4) if last else None,
        "steps": steps,
        "last_returns": last,
        "curve": [round(float(span.mean()), 4) if len(span) else None for span in spans],
        "episodes": {"ends": episodes.ends, "returns": episodes.returns},
    }


def random_actions(env: VecEnv, space: spaces.Space | None = None) -> np.ndarray:
    """Draw a random action for each environment; if there are masks, one that the mask allows.

    :param space: action space to draw from; ``None`` takes that of the environments
    """
    space = env.action_space if space is None else space
    sizes = choices(space) if has_attr(env, METHOD) else None
    if sizes is None:
        return np.array([space.sample() for _ in range(env.num_envs)])
    masks = MaskCheck(space, Watch()).stack(env.env_method(METHOD))
    parts = np.split(masks, np.cumsum(sizes)[:-1], axis=1)
    drawn = [[space.np_random.choice(np.flatnonzero(row)) for row in part] for part in parts]
    return np.stack(drawn, axis=1).reshape(env.num_envs, *(space.shape or ()))
