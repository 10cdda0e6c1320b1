"""Runs that were recorded elsewhere, as additional settings in a report.

They are read from folders that SB3's ``Monitor`` and ``EvalCallback`` wrote, such as the RL Zoo's, and from CSV files
with CleanRL's ``charts/episodic_return``, as Weights & Biases exports them, for instance from openrlbenchmark's runs.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import ceil, isfinite
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd
from stable_baselines3.common.monitor import get_monitor_files, load_results

from sb3_ppo_variants.compare.curves import LAST
from sb3_ppo_variants.compare.plan import RANDOM
from sb3_ppo_variants.compare.records import ADDED, FORMAT, Record, digest
from sb3_ppo_variants.errors import ArgumentError

EVALUATIONS = "evaluations.npz"
RETURN = "charts/episodic_return"
STEPS = ("global_step", "_step", "Step")
# Names of the RL Zoo's folders and of CleanRL's runs, which begin with the environment.
IN_FOLDER, IN_NAME = re.compile(r"(.+-v\d+)_\d+"), re.compile(r"(.+?)__.+__\d+__\d+")


@dataclass(frozen=True)
class Episodes:
    """The episodes of a run: the steps at which they ended, ascending, and their returns.

    :param env: id of the environment, ``None`` if it is not known
    :param seconds: duration of the run, ``None`` if it is not known
    """

    env: str | None
    ends: list[float]
    returns: list[float]
    seconds: float | None = None


def read(texts: Iterable[str]) -> list[Record]:
    """Read the runs at ``LABEL=PATH`` or ``LABEL@ENV=PATH`` as records without conditions.

    :raises ArgumentError: if there are no runs, or their environment is not known
    """
    runs: dict[tuple[str, str], list[Episodes]] = defaultdict(list)
    for text in texts:
        named, _, path = text.partition("=")
        label, _, env = named.partition("@")
        if not label or not path:
            raise ArgumentError(f"--add {text} must be LABEL=PATH, or LABEL@ENV=PATH for another version of ENV")
        for run in _found(text, Path(path)):
            if not (env or run.env):
                raise ArgumentError(f"--add {text} does not name the environment of the runs; write LABEL@ENV=PATH")
            runs[label, env or run.env or ""].append(run)
    return [record for (label, env), of in runs.items() for record in _records(label, env, of)]


def _found(text: str, path: Path) -> list[Episodes]:
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


def beside(added: Iterable[Record], found: Iterable[Record]) -> list[Record]:
    """Return the added runs, once for each of the conditions under which the found runs include their environment.

    :raises ArgumentError: if no found run is in the environment of an added one, or a found run has its label
    """
    conditions = {digest(record["conditions"]): (record["conditions"], set[str]()) for record in found}
    for record in found:
        conditions[digest(record["conditions"])][1].add(record["env"])
    taken = {RANDOM, *(record["label"] for record in found)}
    lines: list[Record] = []
    for record in added:
        if record["label"] in taken:
            raise ArgumentError(f"--add {record['label']}=PATH: the report has a setting of this name, choose another")
        own = [{**record, "conditions": each} for each, envs in conditions.values() if record["env"] in envs]
        if not own:
            known = ", ".join(sorted({env for _, envs in conditions.values() for env in envs}))
            raise ArgumentError(
                f"{record['label']} has runs in {record['env']}, and the records are of {known}; if one of these is "
                f"the same, say so: --add {record['label']}@ENV=PATH"
            )
        lines += cast(list[Record], own)
    return lines


def _records(label: str, env: str, runs: list[Episodes]) -> Iterator[Record]:
    # All runs get the same number of timesteps, because runs of different lengths would count as different settings.
    longest = ceil(max(run.ends[-1] for run in runs))
    for seed, run in enumerate(runs):
        last = run.returns[-LAST:]
        yield {
            "format": FORMAT, "name": f"{label}-{env}-{seed}", "status": "finished", "label": label, "algorithm": ADDED,
            "env": env, "seed": seed, "timesteps": longest, "hyperparameters": {}, "conditions": {},
            "score": float(np.mean(last)), "steps": ceil(run.ends[-1]), "last_returns": last, "curve": [],
            "episodes": {"ends": run.ends, "returns": run.returns}, "versions": {}, "machine": "",
            "wall_seconds": run.seconds, "cpu_seconds": None,
        }  # fmt: skip


def _runs(path: Path) -> Iterator[Episodes]:
    if path.suffix == ".csv" and path.is_file():
        yield from _exported(path)
    elif path.is_dir():
        for folder in sorted([path, *(each for each in path.rglob("*") if each.is_dir())]):
            if get_monitor_files(str(folder)):
                yield _monitored(folder)
            elif (folder / EVALUATIONS).exists():
                yield _evaluated(folder)


def _monitored(folder: Path) -> Episodes:
    """Return the training episodes of all environments of a run."""
    with open(get_monitor_files(str(folder))[0]) as lines:
        env = json.loads(lines.readline().removeprefix("#")).get("env_id")
    # If the run was killed, its last line may be torn.
    frame = load_results(str(folder)).dropna(subset=["r", "l", "t"])
    seconds = float(frame["t"].max()) if len(frame) else None
    return Episodes(env, frame["l"].cumsum().astype(float).tolist(), frame["r"].astype(float).tolist(), seconds)


def _evaluated(folder: Path) -> Episodes:
    """Return the episodes of all evaluations of a run."""
    found, named = np.load(folder / EVALUATIONS), IN_FOLDER.fullmatch(folder.name)
    results = found["results"]
    ends = np.repeat(found["timesteps"], results.shape[1]).astype(float)
    return Episodes(named[1] if named else None, ends.tolist(), results.ravel().astype(float).tolist())


def _exported(file: Path) -> Iterator[Episodes]:
    """Yield the runs in a file, one per column."""
    frame = pd.read_csv(file)
    steps = next((name for name in STEPS if name in frame), None)
    for column in frame.columns if steps else []:
        if column.endswith(RETURN):
            run = column.removesuffix(RETURN).removesuffix(" - ") or file.stem
            named = IN_NAME.fullmatch(run)
            rows = frame[[steps, column]].dropna().sort_values(steps, kind="stable").astype(float)
            yield Episodes(named[1] if named else None, rows[steps].tolist(), rows[column].tolist())
