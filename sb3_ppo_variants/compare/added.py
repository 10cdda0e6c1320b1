"""Runs that were recorded elsewhere, which ``report --add`` shows beside those of ``compare``.

They are read from folders that SB3's ``Monitor`` and ``EvalCallback`` wrote, such as the RL Zoo's, and from CSV files
with CleanRL's ``charts/episodic_return``, as Weights & Biases exports them.
"""

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from stable_baselines3.common.monitor import get_monitor_files, load_results

from sb3_ppo_variants.compare.records import ADDED, FORMAT, LAST, RANDOM, Record, digest
from sb3_ppo_variants.errors import ArgumentError

# What is read: files, columns, and names that begin with the environment.
EVALUATIONS_FILE = "evaluations.npz"
RETURN = "charts/episodic_return"
STEP_COLUMNS = ("global_step", "_step", "Step")
IN_FOLDER, IN_NAME = re.compile(r"(.+-v\d+)_\d+"), re.compile(r"(.+?)__.+__\d+__\d+")
# pandas numbers columns of the same name.
RETURNS = re.compile(rf"{RETURN}(?:\.\d+)?$")


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
        for label, env, run in _read(text):
            runs[label, env].append(run)
    taken = {RANDOM, *(record["label"] for record in found)}
    records: list[Record] = []
    for (label, env), of_label in runs.items():
        if label in taken:
            raise ArgumentError(f"--add {label}=PATH: the report has a setting of this name, choose another")
        own = {digest(record["conditions"]): record["conditions"] for record in found if record["env"] == env}
        if not own:
            known = ", ".join(sorted({record["env"] for record in found}))
            same = f"if one of these is the same, say so: --add {label}@ENV=PATH"
            raise ArgumentError(f"{label} has runs in {env}, and the records are of {known}; {same}")
        # All runs get the same number of timesteps. Runs of different lengths would count as different settings.
        longest = math.ceil(max(run.ends[-1] for run in of_label))
        for conditions, (seed, run) in product(own.values(), enumerate(of_label)):
            last = run.returns[-LAST:]
            records.append({
                "format": FORMAT, "name": f"{label}-{env}-{seed}", "status": "finished", "label": label,
                "algorithm": ADDED, "env": env, "seed": seed, "timesteps": longest, "hyperparameters": {},
                "conditions": conditions, "score": float(np.mean(last)), "steps": math.ceil(run.ends[-1]),
                "last_returns": last, "episodes": {"ends": run.ends, "returns": run.returns},
                "versions": {}, "machine": "", "wall_seconds": run.seconds, "cpu_seconds": None,
            })  # fmt: skip
    return records


def _read(text: str) -> list[tuple[str, str, Added]]:
    """Read the runs that an ``--add`` names, each with its label and environment."""
    named, _, path = text.partition("=")
    label, _, env = named.partition("@")
    if not label or not path:
        raise ArgumentError(f"--add {text} must be LABEL=PATH, or LABEL@ENV=PATH for another version of ENV")
    try:
        found = [run for run in _runs(Path(path)) if run.ends]
    except Exception as error:
        # NumPy, pandas and SB3 raise many kinds of errors for files that are damaged or not theirs.
        raise ArgumentError(f"--add {text} cannot be read: {type(error).__name__}: {error}") from error
    if not found:
        raise ArgumentError(
            f"--add {text} has no episodes: PATH must be a folder with *.monitor.csv or {EVALUATIONS_FILE} in it or in "
            f"its folders, or a csv file with a column global_step and one or more ending in {RETURN}"
        )
    # An infinite return would be the best of all, and the normalised scores of all other runs 0.
    strange = [value for run in found for value in (*run.returns, *run.ends) if not math.isfinite(value)]
    if strange:
        raise ArgumentError(f"--add {text} has an episode whose return or step is {strange[0]}; leave out its run")
    names = {run.env for run in found}
    if env and len(names) > 1:
        several = ", ".join(sorted(map(str, names)))
        raise ArgumentError(f"--add {text} has runs of {several}, and @{env} needs runs of one environment")
    if not env and None in names:
        raise ArgumentError(f"--add {text} does not name the environment of the runs; write LABEL@ENV=PATH")
    return [(label, env or run.env or "", run) for run in found]


def _runs(path: Path) -> Iterator[Added]:
    if path.suffix == ".csv" and path.is_file():
        frame = pd.read_csv(path)
        steps = next((name for name in STEP_COLUMNS if name in frame), None)
        for column in frame.columns[frame.columns.str.contains(RETURNS)] if steps else []:
            run = RETURNS.sub("", column).removesuffix(" - ") or path.stem
            rows = frame[[steps, column]].dropna().sort_values(steps, kind="stable").astype(float)
            yield Added(_env_in(IN_NAME, run), rows[steps].tolist(), rows[column].tolist())
    for folder in sorted([path, *(each for each in path.rglob("*") if each.is_dir())]) if path.is_dir() else []:
        if files := get_monitor_files(str(folder)):
            # The training episodes of all environments. If the run was killed, its last line may be torn.
            env = json.loads(Path(files[0]).read_text().partition("\n")[0].removeprefix("#")).get("env_id")
            frame = load_results(str(folder))[["r", "l", "t"]].dropna().astype(float)
            seconds = float(frame["t"].max()) if len(frame) else None
            yield Added(env, frame["l"].cumsum().tolist(), frame["r"].tolist(), seconds)
        elif (folder / EVALUATIONS_FILE).exists():
            found = np.load(folder / EVALUATIONS_FILE)
            returns = found["results"].astype(float)
            ends = np.repeat(found["timesteps"], returns.shape[1]).astype(float)
            yield Added(_env_in(IN_FOLDER, folder.name), ends.tolist(), returns.ravel().tolist())


def _env_in(pattern: re.Pattern[str], name: str) -> str | None:
    named = pattern.fullmatch(name)
    return named and named[1]
