"""Records of runs: a file each, written whole or not at all."""

import gzip
import hashlib
import json
import math
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypedDict

from sb3_ppo_variants.benchmark.compare.curves import trailing
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.recipes.environments import Hyperparameters
from sb3_ppo_variants.saving.atomic import write_atomically

# Goes up when a record means something else. A run has another name for each, so that no record is overwritten.
FORMAT = 1
# The algorithm of runs that somebody else recorded.
ADDED = "added"


class Result(TypedDict, total=False):
    """What a finished run reached, or what a failed one raised. Without an episode there is no score."""

    error: str
    score: float | None
    steps: int
    last_returns: list[float]
    curve: list[float | None]
    # The steps at which they ended, and their returns.
    episodes: dict[str, Sequence[float]] | None


class Made(Result, total=False):
    """With what records of earlier versions lack."""

    # Of what the updates logged, by name: the mean over those in each span of steps.
    training: dict[str, list[float | None]]
    # The mean return of the last episodes at the end of each span, of runs whose episodes were left out.
    trailing: list[float | None]
    # That the package was at; None where it is not in a repository.
    commit: str | None


class Record(Made):
    """All of a run, as JSON can hold it. ``status`` is ``"finished"`` or ``"failed"``."""

    format: int
    name: str
    status: str
    # What the run is. Two that are the same have the same result.
    label: str
    algorithm: str
    env: str
    seed: int
    timesteps: int
    hyperparameters: Hyperparameters
    conditions: dict[str, Any]
    # What they may differ in. The seconds are unknown of a run that lost its process.
    versions: dict[str, str]
    machine: str
    wall_seconds: float | None
    cpu_seconds: float | None


class Writer:
    """Writes records into a folder. One that the disk refuses waits, and is tried again with each that follows."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._waiting: list[Record] = []
        self.problem = ""

    def write(self, record: Record) -> list[Record]:
        """Write a record and those that wait, and return what is now on the disk.

        ``problem`` says why some still wait, and is empty if none does.
        """
        tried, self._waiting, self.problem = [*self._waiting, record], [], ""
        written = []
        for each in tried:
            file = self._folder / f"{each['name']}.json"
            try:
                write_atomically(file, (json.dumps(each, allow_nan=False) + "\n").encode())
            except OSError as error:
                self._waiting.append(each)
                self.problem = f"{file} could not be written: {error}. Records that wait: {len(self._waiting)}"
            else:
                written.append(each)
        return written


def read(folder: Path) -> tuple[list[Record], list[str]]:
    """The records in a folder by name, and a line for each file that is none of this version's."""
    records, problems = [], []
    for file in sorted(folder.glob("*.json")):
        try:
            records.append(_checked(file.read_text()))
        except (ValueError, OSError) as error:
            problems.append(f"{file} is left as it is and not used: {error}")
    return records, problems


def _checked(text: str) -> Record:
    record = json.loads(text)
    found = record.get("format") if isinstance(record, dict) else None
    if found != FORMAT:
        raise ValueError(
            f"it is a record of format {found}, this version of sb3_ppo_variants reads format {FORMAT}; "
            "use the version that wrote it, or make the run anew"
        )
    of_result = {"error"} if record.get("status") == "failed" else Result.__optional_keys__ - {"error"}
    if missing := sorted((Record.__required_keys__ | of_result) - record.keys()):
        raise ValueError(f"it lacks {', '.join(missing)}")
    return record


def merged(records: Iterable[Record]) -> tuple[list[Record], list[str]]:
    """Each run once, finished rather than failed, and a line for each of which two records say different things."""
    found: dict[str, Record] = {}
    problems = []
    for record in records:
        other = found.setdefault(record["name"], record)
        if other["status"] != "finished":
            found[record["name"]] = record
        elif record["status"] == "finished" and record["score"] != other["score"]:
            problems.append(
                f"{record['name']} is there twice, with scores {other['score']}, which is used, and {record['score']}"
            )
    return list(found.values()), problems


def pack(records: Iterable[Record], file: Path) -> None:
    """Write records to one small ``.jsonl.gz`` file, with their curves, but without the list of all episodes."""
    lines = [json.dumps({**record, **_trailing(record), "episodes": None}) + "\n" for record in records]
    # Without the time, so that the same records give the same file.
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, gzip.compress("".join(lines).encode(), mtime=0))


def _trailing(record: Record) -> Made:
    episodes = record.get("episodes")
    if record["status"] != "finished" or not episodes:
        return {}
    return {"trailing": trailing(episodes["ends"], episodes["returns"], record["steps"])}


def is_spanned(record: Record) -> bool:
    """Whether the curve of a run is of the episodes in each span, as in exported records of earlier versions."""
    return not (record.get("episodes") or record.get("trailing"))


def curve(record: Record) -> list[float | None]:
    """The learning curve of a run: of its last episodes, or of those in each span in records of earlier versions."""
    return _trailing(record).get("trailing") or record.get("trailing") or record["curve"]


def unpack(file: Path) -> tuple[list[Record], list[str]]:
    """The records in a file that :func:`pack` wrote, and a line for each that is none of this version's."""
    try:
        packed = file.read_bytes()
        if not packed:
            raise EOFError("it is empty")
        lines = gzip.decompress(packed).decode().splitlines()
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise ArgumentError(f"--from {file} cannot be read as a file that report --export wrote: {error}") from error
    records, problems = [], []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(_checked(line))
        except ValueError as error:
            problems.append(f"line {number} of {file} is not used: {error}")
    return records, problems


def plain(name: str, value: object) -> object:
    """A value as JSON can hold it, with classes and functions by their import path; no other objects are allowed."""
    if isinstance(value, dict):
        return {str(key): plain(f"{name}[{key!r}]", part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(name, part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, str | bool | int | float):
        return value
    path = f"{getattr(value, '__module__', None)}.{getattr(value, '__qualname__', '<')}"
    if "<" in path:
        raise ArgumentError(
            f"{name}={value!r} cannot be recorded: use numbers, text, lists, dicts, classes and functions that can be "
            "imported, and lin_x for a schedule"
        )
    return path


def digest(value: object) -> str:
    """A short name for a value that JSON can hold, the same in every process."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]
