"""Write a report of the runs recorded so far: report.md, report.html, interactive.html and scores.csv."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from sb3_ppo_variants.compare import records
from sb3_ppo_variants.compare.options import OUT
from sb3_ppo_variants.compare.settings import named
from sb3_ppo_variants.errors import ArgumentError

# Subfolders: the records of finished and failed runs, and the progress of the others.
RECORDS, STATES = "records", "running"
# A file in the same folder, which the command that makes runs keeps locked.
LOCK = ".lock"


def run(options: argparse.Namespace) -> int:
    """Write the report of the existing records."""
    out = options.out or OUT
    if options.files:
        if options.out is None:
            raise ArgumentError("--from needs --out, the folder for its report")
        parts = [records.unpack(file) for file in options.files]
    elif (out / RECORDS).is_dir():
        parts = [records.read(out / RECORDS)]
    else:
        raise ArgumentError(f"--out {out} has no records: create some with compare, or pass the folder that has them")
    found = [record for part, _ in parts for record in part]
    problems = [line for _, part in parts for line in part]
    report(out, found, problems, options.export, options.baseline, options.add)
    return 0


def report(
    out: Path,
    found: list[records.Record],
    problems: list[str],
    export: Path | None = None,
    baseline: str | None = None,
    add: Sequence[str] = (),
) -> None:
    """Write the report of records, and of problems with others, into a folder.

    :param export: file to pack the records into; ``None`` packs none
    :param baseline: the setting that the others are compared with, in the format of reports or of the command line
    :param add: runs that were recorded elsewhere, as ``LABEL=PATH``
    """
    from sb3_ppo_variants.compare import added
    from sb3_ppo_variants.compare.report import write

    found, twice = records.merged(found)
    try:
        if export is not None:
            records.pack(found, export)
        lines = added.beside(added.read(add), found)
        label = None if baseline is None else named(baseline).label
        files = write([*found, *lines], [*problems, *twice], _running(out), out, label)
    except OSError as error:
        raise SystemExit(f"the report could not be written: {error}") from error
    print(f"Report: {', '.join(map(str, files))}")


def _running(out: Path) -> int:
    """Return the number of runs in progress. Files that a killed command left over do not count."""
    from sb3_ppo_variants.compare.progress import running

    if not (out / LOCK).exists():
        return 0
    try:
        with FileLock(out / LOCK, timeout=0):
            return 0
    except Timeout:
        return len(running(out / STATES))
