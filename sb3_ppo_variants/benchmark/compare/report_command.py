"""Report what a comparison has recorded so far, in report.md, report.html and scores.csv."""

import argparse
from pathlib import Path

from sb3_ppo_variants.benchmark.compare import records

OUT = Path("runs/compare")
# Folders in it: of finished and failed runs, and of how far the others are.
RECORDS, STATES = "records", "running"


def add_command(parser: argparse.ArgumentParser) -> None:
    """Add the options of the report."""
    parser.add_argument("--out", type=Path, default=OUT, help="folder of records and report (default: %(default)s)")
    parser.add_argument("--from", dest="files", type=Path, nargs="+", help="report these exported records, into --out")
    parser.add_argument("--export", type=Path, metavar="FILE", help="also pack the records into a .jsonl.gz file")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write the report of the records there are.

    :return: 0
    :raises SystemExit: if the folder or a file is not there
    """
    if options.files:
        for file in options.files:
            if not file.is_file():
                raise SystemExit(f"--from {file} is not allowed; allowed: a file that report --export has written")
        parts = [records.unpack(file) for file in options.files]
        found, problems = [record for part, _ in parts for record in part], [line for _, part in parts for line in part]
    elif (options.out / RECORDS).is_dir():
        found, problems = records.read(options.out / RECORDS)
    else:
        raise SystemExit(f"--out {options.out} is not allowed; allowed: a folder that compare has made")
    if options.export is not None:
        records.pack(found, options.export)
    report(options.out, found, problems)
    return 0


def report(out: Path, found: list[records.Record], problems: list[str]) -> None:
    """Write the report of records.

    :param out: folder for the report
    :param found: the records
    :param problems: what to say of records that can not be used
    :raises SystemExit: if it can not be written
    """
    from sb3_ppo_variants.benchmark.compare.progress import running
    from sb3_ppo_variants.benchmark.compare.report import write

    try:
        files = write(found, problems, len(running(out / STATES)), out)
    except OSError as error:
        raise SystemExit(f"the report could not be written: {error}") from error
    print(f"Report: {', '.join(str(file) for file in files)}")
