"""Records of runs: each in a file of its own, which is written completely or not at all; packed; and from elsewhere."""

import gzip
import hashlib
import json
import math
import os
import platform
import re
import subprocess
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.monitor import get_monitor_files, load_results

from sb3_ppo_variants.arguments import Values
from sb3_ppo_variants.engines.choice import choose
from sb3_ppo_variants.engines.native.library import library
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.ppo import PPOBase
from sb3_ppo_variants.saving.files import write_atomically

# The subfolder of --out for records.
FOLDER = "records"
# Increases when the meaning of records changes. It is part of what names a run, so that no old record is overwritten.
FORMAT = 1
# The label of the runs of the random policy, for which normalised scores are 0.
RANDOM = "random policy"
# Stands for the algorithm of runs that were recorded elsewhere.
ADDED = "added"
# The score of a run is the mean return of this many of its last episodes.
LAST = 100
# A curve has a point at the end of each of this many equal spans of steps.
SPANS = 100
# The end of the name of a file into which records are packed.
PACKED = ".jsonl.gz"
# Results depend on the versions of these packages, if they are installed.
PACKAGES = (
    "sb3_ppo_variants", "stable_baselines3", "gymnasium", "torch", "numpy", "sb3_contrib", "mujoco", "ale_py",
    "envpool", "box2d",
)  # fmt: skip


# Everything about a run, as JSON-serialisable values:
# - "format", "name" and "status", which is "finished" or "failed", with the traceback in "error"
# - what the run is, the fields of plan.Run: two runs for which these are the same have the same result
# - the result: "score" (None if no episode ended), "steps", "last_returns", "episodes", which are "ends" (the steps at
#   which they ended) and "returns", and "training": by name of a logged value, its means over the updates in each span.
#   In exported records, "episodes" is None, and "trailing" has the mean return of the last episodes at the end of each
#   span
# - what decides how sums are rounded: "commit" of this package, "versions", "machine", "numerics" and "vec_env", the
#   class of the vectorised environment
# - "wall_seconds" and "cpu_seconds", which are None if the process of the run was lost
Record = Values


def write(folder: Path, record: Record) -> None:
    """Write a record to a folder, or end the command if it cannot be written, as when the disk is full."""
    file = folder / f"{record['name']}.json"
    try:
        write_atomically(file, (json.dumps(record, allow_nan=False) + "\n").encode())
    except OSError as error:
        rest = "all earlier records are safe, and the same command makes this run and the rest"
        raise SystemExit(f"{file} could not be written: {error}; {rest}") from error


def read(*paths: Path) -> list[Record]:
    """Read the records in folders, which have files with a record each and packed files, and in packed files.

    A run has one record, preferably a finished one.

    :raises ArgumentError: if a file cannot be read
    """
    found: dict[str, Record] = {}
    for path in paths:
        for file in [*sorted(path.glob("*.json")), *sorted(path.glob(f"*{PACKED}"))] if path.is_dir() else [path]:
            try:
                text = file.read_bytes() if file.suffix == ".json" else gzip.decompress(file.read_bytes())
                records: list[Record] = [json.loads(line) for line in text.decode().splitlines()]
            except (gzip.BadGzipFile, EOFError, ValueError, zlib.error) as error:
                raise ArgumentError(f"{file} cannot be read as records: {error}") from error
            for record in records:
                if (made := record.get("format")) != FORMAT:
                    raise ArgumentError(f"{file} has format {made}, and this version reads format {FORMAT}")
                if found.setdefault(record["name"], record)["status"] != "finished":
                    found[record["name"]] = record
    return list(found.values())


def pack(records: Iterable[Record], file: Path) -> None:
    """Write records to one small file, with their curves, but without the list of all episodes.

    :raises ArgumentError: if the name of the file does not end in ``.jsonl.gz``
    """
    if not file.name.endswith(PACKED):
        raise ArgumentError(f"--export {file} needs a name that ends in {PACKED}, because the file is compressed")
    lines = []
    for record in records:
        trailing = {"trailing": curve(record)} if record["status"] == "finished" else {}
        lines.append(json.dumps({**record, "episodes": None, **trailing}) + "\n")
    file.parent.mkdir(parents=True, exist_ok=True)
    # The file contains no timestamp, so that the same records give the same file.
    write_atomically(file, gzip.compress("".join(lines).encode(), mtime=0))


def trailing_means(ends: Sequence[float], returns: Sequence[float], steps: int) -> list[float | None]:
    """Compute the learning curve of a run: the mean return of its last episodes at the end of each span.

    The last point is the score. A point is ``None`` if no episode has ended yet. ``ends`` must be ascending.
    """
    ended = np.searchsorted(ends, np.arange(1, SPANS + 1) * steps / SPANS, side="right")
    # Differences of cumulative sums would be faster, but lose the digits of small returns after huge ones.
    digits = decimals(returns)
    return [round(float(np.mean(returns[max(end - LAST, 0) : end])), digits) if end else None for end in ended]


def decimals(returns: Sequence[float]) -> int:
    """Choose to how many digits after the point a record rounds returns: four, or more if all of them are small."""
    largest = max(map(abs, returns), default=0.0)
    return 4 if largest >= 1 or largest == 0 else 4 - math.floor(math.log10(largest))


def curve(record: Record, steps: int | None = None) -> list[float | None]:
    """Return the learning curve of a run, over these steps or those of the run."""
    episodes, trailing = record["episodes"], record.get("trailing", [])
    return trailing_means(**episodes, steps=steps or record["steps"]) if episodes else list(trailing)


def to_plain(name: str, value: object) -> object:
    """Convert a value for JSON. Classes and functions become their import paths; other objects are not allowed."""
    if isinstance(value, dict):
        return {str(key): to_plain(f"{name}[{key!r}]", part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(name, part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, str | bool | int | float):
        return value
    path = f"{getattr(value, '__module__', None)}.{getattr(value, '__qualname__', '<')}"
    if "<" in path:
        allowed = "numbers, text, lists, dicts, classes and functions that can be imported, and lin_x for a schedule"
        raise ArgumentError(f"{name}={value!r} cannot be recorded: use {allowed}")
    return path


def digest(value: object) -> str:
    """Hash a JSON-serialisable value. The result is short, and is the same in every process."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


# What a result depends on besides settings and seed. Processors, and versions of the code, round sums differently, and
# training amplifies the last bit into other scores.


def numerics(model: BaseAlgorithm | None) -> dict[str, str]:
    """Describe what decides how this process rounds sums. Only this package's algorithms have a path."""
    found = library()
    return {
        "processor": processor(),
        "native": "" if found is None else found.instructions,
        "torch": th.backends.cpu.get_cpu_capability(),
        "path": choose(model._plan(), model.fast).engine.name if isinstance(model, PPOBase) else "",
    }


@cache
def processor() -> str:
    """Find the model of the processor, as far as the system tells it."""
    with suppress(OSError, ValueError):
        fields = re.findall(r"(?m)^(cpu family|model|model name)\s*: (.*)$", Path("/proc/cpuinfo").read_text())
        family, model, name = (dict(fields).get(field, "") for field in ("cpu family", "model", "model name"))
        return f"{name} ({family}/{model})" if name else platform.machine()
    return platform.processor()


@cache
def commit() -> str | None:
    """Find the commit of this package, with ``-dirty`` if files were changed, or ``None`` outside its repository."""
    git = partial(subprocess.run, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    try:
        git(["git", "ls-files", "--error-unmatch", Path(__file__).name])  # Fails in another project's repository.
        return git(["git", "describe", "--always", "--abbrev=12", "--dirty", "--exclude=*"]).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def circumstances() -> Values:
    """Describe how a result was made: the versions of Python and of packages, and the machine."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores of {processor()}"
    return {"versions": versions, "machine": machine}


# Runs that were recorded elsewhere: in folders that SB3's Monitor and EvalCallback wrote, such as the RL Zoo's, and in
# CSV files with CleanRL's returns, as Weights & Biases exports them

EVALUATIONS_FILE = "evaluations.npz"
RETURN = "charts/episodic_return"
# pandas numbers columns of the same name.
RETURNS = re.compile(rf"{RETURN}(?:\.\d+)?$")
STEP_COLUMNS = ("global_step", "_step", "Step")


def read_beside(texts: Iterable[str], found: Sequence[Record]) -> list[Record]:
    """Read the runs at ``LABEL=PATH`` or ``LABEL@ENV=PATH`` as records beside those of the runs that were found.

    There is one for each of the conditions under which the found runs include their environment.
    """
    runs: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for text in texts:
        named, _, path = text.partition("=")
        label, _, env = named.partition("@")
        for run in _read_added(text, env, path):
            runs[label, env or run["env"]].append(run)
    taken = {RANDOM, *(record["label"] for record in found)}
    records = []
    for (label, env), of_label in runs.items():
        if label in taken:
            raise ArgumentError(f"--add {label}=PATH: the report has a setting of this name, choose another")
        own = {digest(record["conditions"]): record["conditions"] for record in found if record["env"] == env}
        if not own:
            known = ", ".join(sorted({record["env"] for record in found}))
            same = f"if one of these is the same, say so: --add {label}@ENV=PATH"
            raise ArgumentError(f"{label} has runs in {env}, and the records are of {known}; {same}")
        # All runs get the same number of timesteps. Runs of different lengths would count as different settings.
        shared = {
            "format": FORMAT, "status": "finished", "label": label, "algorithm": ADDED, "env": env, "machine": "",
            "timesteps": max(run["steps"] for run in of_label), "hyperparameters": {}, "versions": {},
            "cpu_seconds": None,
        }  # fmt: skip
        for conditions, (seed, run) in product(own.values(), enumerate(of_label)):
            records.append({**run, **shared, "name": f"{label}-{env}-{seed}", "seed": seed, "conditions": conditions})
    return records


def _read_added(text: str, env: str, path: str) -> list[Record]:
    """Read the runs that an ``--add`` names, all of ``env`` if it is not empty."""
    if not path or text.startswith(("=", "@")):
        raise ArgumentError(f"--add {text} must be LABEL=PATH, or LABEL@ENV=PATH for another version of ENV")
    try:
        found = list(_added(Path(path)))
    except Exception as error:
        # NumPy, pandas and SB3 raise many kinds of errors for files that are damaged or not theirs.
        raise ArgumentError(f"--add {text} cannot be read: {type(error).__name__}: {error}") from error
    if not found:
        raise ArgumentError(
            f"--add {text} has no episodes: PATH must be a folder with *.monitor.csv or {EVALUATIONS_FILE} in it or in "
            f"its folders, or a csv file with a column global_step and one or more ending in {RETURN}"
        )
    names = {run["env"] or "an unknown environment" for run in found}
    if (env and len(names) > 1) or (not env and not all(run["env"] for run in found)):
        several = ", ".join(sorted(names))
        raise ArgumentError(f"--add {text} has runs of {several}; runs of one environment can be LABEL@ENV=PATH")
    return found


def _added(path: Path) -> Iterator[Record]:
    """Read the runs in a file or folder, of which some do not say their environment."""

    def record(env: str | None, rows: pd.DataFrame, seconds: float | None = None) -> Iterator[Record]:
        """Yield the record of a run that has episodes: ``rows`` of where they ended, ascending, and their returns."""
        ends, returns = rows.dropna().astype(float).to_numpy().T.tolist()
        # An infinite return would be the best of all, and the normalised scores of all other runs 0.
        if strange := [value for value in (*returns, *ends) if not math.isfinite(value)]:
            raise ValueError(f"an episode's return or step is {strange[0]}; leave out its run")
        if ends:
            last = returns[-LAST:]
            yield {
                "env": env, "score": float(np.mean(last)), "steps": math.ceil(ends[-1]), "last_returns": last,
                "episodes": {"ends": ends, "returns": returns}, "wall_seconds": seconds,
            }  # fmt: skip

    if path.suffix == ".csv" and path.is_file():
        frame = pd.read_csv(path)
        steps = next((name for name in STEP_COLUMNS if name in frame), None)
        for column in frame.columns[frame.columns.str.contains(RETURNS)] if steps else []:
            named = re.fullmatch(r"(.+?)__.+__\d+__\d+", RETURNS.sub("", column).removesuffix(" - ") or path.stem)
            yield from record(named and named[1], frame[[steps, column]].sort_values(steps, kind="stable"))
    for folder in sorted([path, *path.rglob("*")]) if path.is_dir() else []:
        if files := get_monitor_files(str(folder)):
            # The training episodes of all environments. If the run was killed, its last line may be torn.
            env = json.loads(Path(files[0]).read_text().partition("\n")[0].removeprefix("#")).get("env_id")
            frame = load_results(str(folder))[["l", "r", "t"]].dropna().astype(float)
            yield from record(env, frame[["l", "r"]].assign(l=frame["l"].cumsum()), float(frame["t"].max()))
        elif (folder / EVALUATIONS_FILE).exists():
            named, found = re.fullmatch(r"(.+-v\d+)_\d+", folder.name), np.load(folder / EVALUATIONS_FILE)
            ends = np.repeat(found["timesteps"], found["results"].shape[1])
            yield from record(named and named[1], pd.DataFrame({"end": ends, "return": found["results"].ravel()}))
