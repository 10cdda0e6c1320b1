"""Records of runs, each in a file of its own, which is written completely or not at all."""

import gzip
import hashlib
import json
import math
import os
import platform
import subprocess
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypedDict

import numpy as np
import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm

from sb3_ppo_variants.engines.choice import choose
from sb3_ppo_variants.engines.native.library import library
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.ppo import PPOBase
from sb3_ppo_variants.recipes.hyperparameters import Hyperparameters
from sb3_ppo_variants.saving.archive import write_atomically
from sb3_ppo_variants.saving.plain import Values

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
# What every record of a finished run has, besides what all records have.
FINISHED = ("score", "steps", "last_returns", "episodes")
# The name of a file into which records are packed.
PACKED = ".jsonl.gz"
# Results depend on the versions of these packages, if they are installed.
PACKAGES = (
    "sb3_ppo_variants", "stable_baselines3", "gymnasium", "torch", "numpy", "sb3_contrib", "mujoco", "ale_py",
    "envpool", "box2d",
)  # fmt: skip


class Result(TypedDict, total=False):
    """The results of a finished run, or the error of a failed one. There is no score if no episode ended."""

    error: str
    score: float | None
    steps: int
    last_returns: list[float]
    # "ends", the steps at which the episodes ended, and "returns"; None in exported records, which have "trailing".
    episodes: dict[str, Sequence[float]] | None
    # The learning curve: the mean return of the last episodes at the end of each span.
    trailing: list[float | None]
    # Records of earlier versions lack what follows. By name of a logged value, its means over the updates in each span.
    training: dict[str, list[float | None]]
    # The commit of this package, what decides how sums are rounded, and the class of the vectorised environment.
    commit: str | None
    numerics: dict[str, str]
    vec_env: str


class Record(Result):
    """Everything about a run, as JSON-serialisable values. ``status`` is ``"finished"`` or ``"failed"``."""

    format: int
    name: str
    status: str
    # The identity of the run. Two runs with the same identity have the same result.
    label: str
    algorithm: str
    env: str
    seed: int
    timesteps: int
    hyperparameters: Hyperparameters
    conditions: Values
    # Two such runs may differ in these. The seconds are unknown if the process of the run was lost.
    versions: dict[str, str]
    machine: str
    wall_seconds: float | None
    cpu_seconds: float | None


# Records, and a line for each problem with them.
Loaded = tuple[list[Record], list[str]]


def write(folder: Path, *found: Record) -> None:
    """Write records to a folder, each to a file of its own.

    :raises SystemExit: if one cannot be written, as when the disk is full
    """
    for record in found:
        file = folder / f"{record['name']}.json"
        try:
            write_atomically(file, (json.dumps(record, allow_nan=False) + "\n").encode())
        except OSError as error:
            rest = "all earlier records are safe, and the same command makes this run and the rest"
            raise SystemExit(f"{file} could not be written: {error}; {rest}") from error


def load_records(folder: Path | None, files: Iterable[Path] = ()) -> Loaded:
    """Read one record of each run in a folder and in exported files."""
    parts = [*([] if folder is None else [read(folder)]), *map(unpack, files)]
    found, twice = merge_records(record for part, _ in parts for record in part)
    return found, [*(line for _, problems in parts for line in problems), *twice]


def read(folder: Path) -> Loaded:
    """Read the records in a folder, sorted by name."""
    return _parse((str(file), file) for file in sorted(folder.glob("*.json")))


def unpack(file: Path) -> Loaded:
    """Read the records in a file that :func:`pack` wrote.

    :raises ArgumentError: if the file cannot be read
    """
    try:
        packed = file.read_bytes()
        if not packed:
            raise EOFError("it is empty")
        lines = gzip.decompress(packed).decode().splitlines()
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise ArgumentError(f"--from {file} cannot be read as a file that report --export wrote: {error}") from error
    return _parse((f"line {number} of {file}", line) for number, line in enumerate(lines, start=1))


def _parse(sources: Iterable[tuple[str, str | Path]]) -> Loaded:
    records: list[Record] = []
    problems = []
    for where, source in sources:
        try:
            record = json.loads(source if isinstance(source, str) else source.read_text())
            if (found := record.get("format")) != FORMAT:
                raise ValueError(f"it has format {found}, and this version of sb3_ppo_variants reads format {FORMAT}")
            of_episodes = () if record.get("episodes") else ("trailing",)
            of_result = ("error",) if record.get("status") == "failed" else (*FINISHED, *of_episodes)
            if missing := sorted({*Record.__required_keys__, *of_result} - record.keys()):
                raise ValueError(f"it lacks {', '.join(missing)}")
            records.append(record)
        except (ValueError, OSError, AttributeError) as error:
            problems.append(f"{where} is ignored: {error}")
    return records, problems


def merge_records(records: Iterable[Record]) -> Loaded:
    """Keep one record of each run, preferably a finished one. It is a problem if two of them have different scores."""
    found: dict[str, Record] = {}
    problems = []
    for record in records:
        other = found.setdefault(record["name"], record)
        if other["status"] != "finished":
            found[record["name"]] = record
        elif record["status"] == "finished" and record["score"] != other["score"]:
            differ = f"{other['score']}, which is used, and {record['score']}"
            problems.append(f"{record['name']} occurs twice, with scores {differ}")
    return list(found.values()), problems


def pack(records: Iterable[Record], file: Path) -> None:
    """Write records to one small file, with their curves, but without the list of all episodes.

    :raises ArgumentError: if the name of the file does not end in ``.jsonl.gz``, or it cannot be written
    """
    if not file.name.endswith(PACKED):
        raise ArgumentError(f"--export {file} needs a name that ends in {PACKED}, because the file is compressed")
    lines = []
    for record in records:
        is_finished = record["status"] == "finished"
        packed = {**record, "episodes": None} | ({"trailing": curve(record)} if is_finished else {})
        lines.append(json.dumps(packed) + "\n")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # The file contains no timestamp, so that the same records give the same file.
        write_atomically(file, gzip.compress("".join(lines).encode(), mtime=0))
    except OSError as error:
        raise ArgumentError(f"--export {file} could not be written: {error}") from error


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
    """Return the learning curve of a run.

    :param steps: number of steps that the curve extends over, if there are episodes; ``None`` for those of the run
    """
    if episodes := record["episodes"]:
        return trailing_means(episodes["ends"], episodes["returns"], steps or record["steps"])
    return record["trailing"]


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
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    fields = dict(line.replace("\t", "").split(": ", 1) for line in lines if ": " in line)
    numbers = "/".join(fields[name] for name in ("cpu family", "model") if name in fields)
    return fields.get("model name", platform.machine()) + (f" ({numbers})" if numbers else "")


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
    return {
        "versions": versions,
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores of {processor()}",
    }
