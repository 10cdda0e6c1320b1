"""Runs that were recorded elsewhere, as additional settings in a report.

They are read from folders that SB3's ``Monitor`` and ``EvalCallback`` wrote, such as the RL Zoo's, and from CSV files
with CleanRL's ``charts/episodic_return``, as Weights & Biases exports them, for instance from openrlbenchmark's runs.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from math import ceil, isfinite
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from stable_baselines3.common.monitor import get_monitor_files, load_results

from sb3_ppo_variants.compare.records import ADDED, FORMAT, LAST, RANDOM, Record, digest
from sb3_ppo_variants.errors import ArgumentError

EVALUATIONS = "evaluations.npz"
RETURN = "charts/episodic_return"
STEPS = ("global_step", "_step", "Step")
# Names of the RL Zoo's folders and of CleanRL's runs, which begin with the environment.
IN_FOLDER, IN_NAME = re.compile(r"(.+-v\d+)_\d+"), re.compile(r"(.+?)__.+__\d+__\d+")


class Added(NamedTuple):
    """The episodes of a run: the steps at which they ended, ascending, and their returns. The others may be unknown."""

    env: str | None
    ends: list[float]
    returns: list[float]
    seconds: float | None = None


def read_beside(texts: Iterable[str], found: Sequence[Record]) -> list[Record]:
    """Read the runs at ``LABEL=PATH`` or ``LABEL@ENV=PATH`` as records beside those of the runs that were found.

    There is one for each of the conditions under which the found runs include their environment.
    """
    runs: dict[tuple[str, str], list[Added]] = defaultdict(list)
    for text in texts:
        named, _, path = text.partition("=")
        label, _, env = named.partition("@")
        if not label or not path:
            raise ArgumentError(f"--add {text} must be LABEL=PATH, or LABEL@ENV=PATH for another version of ENV")
        for run in _read(text, Path(path)):
            if not (env or run.env):
                raise ArgumentError(f"--add {text} does not name the environment of the runs; write LABEL@ENV=PATH")
            runs[label, env or run.env or ""].append(run)
    conditions = {digest(record["conditions"]): (record["conditions"], set[str]()) for record in found}
    for record in found:
        conditions[digest(record["conditions"])][1].add(record["env"])
    taken = {RANDOM, *(record["label"] for record in found)}
    records: list[Record] = []
    for (label, env), of_label in runs.items():
        if label in taken:
            raise ArgumentError(f"--add {label}=PATH: the report has a setting of this name, choose another")
        own = [each for each, envs in conditions.values() if env in envs]
        if not own:
            known = ", ".join(sorted({env for _, envs in conditions.values() for env in envs}))
            raise ArgumentError(
                f"{label} has runs in {env}, and the records are of {known}; if one of these is "
                f"the same, say so: --add {label}@ENV=PATH"
            )
        records += [record for each in own for record in _records(label, env, each, of_label)]
    return records


def _read(text: str, path: Path) -> list[Added]:
    try:
        found = [run for run in _runs(path) if run.ends]
    except Exception as error:
        # NumPy, pandas and SB3 raise many kinds of errors for files that are damaged or not theirs.
        raise ArgumentError(f"--add {text} cannot be read: {type(error).__name__}: {error}") from error
    if not found:
        raise ArgumentError(
            f"--add {text} has no episodes: PATH must be a folder with *.monitor.csv or {EVALUATIONS} in it or in its "
            f"folders, or a csv file with a column global_step and one or more ending in {RETURN}"
        )
    # An infinite return would be the best of all, and the normalised scores of all other runs 0.
    strange = [value for run in found for value in run.returns if not isfinite(value)]
    if strange:
        raise ArgumentError(f"--add {text} has an episode whose return is {strange[0]}; leave out its run")
    return found


def _records(label: str, env: str, conditions: dict[str, Any], runs: list[Added]) -> Iterator[Record]:
    # All runs get the same number of timesteps, because runs of different lengths would count as different settings.
    longest = ceil(max(run.ends[-1] for run in runs))
    for seed, run in enumerate(runs):
        last = run.returns[-LAST:]
        yield {
            "format": FORMAT, "name": f"{label}-{env}-{seed}", "status": "finished", "label": label, "algorithm": ADDED,
            "env": env, "seed": seed, "timesteps": longest, "hyperparameters": {}, "conditions": conditions,
            "score": float(np.mean(last)), "steps": ceil(run.ends[-1]), "last_returns": last, "curve": [],
            "episodes": {"ends": run.ends, "returns": run.returns}, "versions": {}, "machine": "",
            "wall_seconds": run.seconds, "cpu_seconds": None,
        }  # fmt: skip


def _runs(path: Path) -> Iterator[Added]:
    if path.suffix == ".csv" and path.is_file():
        yield from _read_export(path)
    elif path.is_dir():
        for folder in sorted([path, *(each for each in path.rglob("*") if each.is_dir())]):
            if get_monitor_files(str(folder)):
                yield _read_monitors(folder)
            elif (folder / EVALUATIONS).exists():
                yield _read_evaluations(folder)


def _read_monitors(folder: Path) -> Added:
    """Return the training episodes of all environments of a run."""
    with open(get_monitor_files(str(folder))[0]) as lines:
        env = json.loads(lines.readline().removeprefix("#")).get("env_id")
    # If the run was killed, its last line may be torn.
    frame = load_results(str(folder)).dropna(subset=["r", "l", "t"])
    seconds = float(frame["t"].max()) if len(frame) else None
    return Added(env, frame["l"].cumsum().astype(float).tolist(), frame["r"].astype(float).tolist(), seconds)


def _read_evaluations(folder: Path) -> Added:
    """Return the episodes of all evaluations of a run."""
    found, named = np.load(folder / EVALUATIONS), IN_FOLDER.fullmatch(folder.name)
    results = found["results"]
    ends = np.repeat(found["timesteps"], results.shape[1]).astype(float)
    return Added(named[1] if named else None, ends.tolist(), results.ravel().astype(float).tolist())


def _read_export(file: Path) -> Iterator[Added]:
    """Yield the runs in a file, one per column."""
    frame = pd.read_csv(file)
    steps = next((name for name in STEPS if name in frame), None)
    for column in frame.columns if steps else []:
        if column.endswith(RETURN):
            run = column.removesuffix(RETURN).removesuffix(" - ") or file.stem
            named = IN_NAME.fullmatch(run)
            rows = frame[[steps, column]].dropna().sort_values(steps, kind="stable").astype(float)
            yield Added(named[1] if named else None, rows[steps].tolist(), rows[column].tolist())
