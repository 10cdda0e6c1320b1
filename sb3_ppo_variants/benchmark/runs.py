"""Runs that are recorded, a line of JSON each, as they end."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


def read(file: Path) -> list[dict[str, Any]]:
    """The records in a file, if it exists."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def make(function: Callable[..., dict[str, Any]], runs: Iterable[tuple], file: Path, jobs: int) -> list[dict[str, Any]]:
    """Make runs in parallel, and append the record of each to a file when it ends.

    :param function: makes a run, and returns its record
    :param runs: the function's arguments for each run
    :param file: the file
    :param jobs: runs at a time
    :return: all records in the file
    """
    from joblib import Parallel, delayed

    file.parent.mkdir(parents=True, exist_ok=True)
    for record in Parallel(n_jobs=jobs, return_as="generator_unordered")(delayed(function)(*run) for run in runs):
        with file.open("a") as lines:
            lines.write(json.dumps(record) + "\n")
    return read(file)
