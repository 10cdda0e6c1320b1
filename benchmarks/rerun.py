"""Make runs again that are drawn at random from committed records, and say whether they give the same records.

A run gives the same record if the returns of its last episodes and its learning curve are the same, to all digits.
Processors round sums differently, so runs are drawn from those that were made on a processor like this one.
"""

import argparse
import json
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from joblib import Parallel, delayed

from benchmarks.measuring import Count, make_folders, reported
from sb3_ppo_variants.arguments.commandline import whole_number
from sb3_ppo_variants.compare.plan import Run
from sb3_ppo_variants.compare.records import Record, circumstances, commit, curve, numerics, unpack
from sb3_ppo_variants.compare.runs import perform
from sb3_ppo_variants.errors import ArgumentError

RESULTS = Path("results")
# What two records of the same run have in common. Their times differ.
SAME = ("steps", "score", "last_returns")
# What decides how sums are rounded on a machine.
ROUNDING = ("processor", "native", "torch")
# What the results say of a record.
DESCRIBED = ("label", "env", "seed", "timesteps", "commit")


class Recorded(NamedTuple):
    """A record, and the name of the file that it is in."""

    file: str
    record: Record


def rounding() -> dict[str, str]:
    """Describe how this machine rounds sums."""
    here = numerics(None)
    return {name: here[name] for name in ROUNDING}


def made_alike(files: Iterable[Path]) -> list[Recorded]:
    """Return the finished runs of algorithms whose sums were rounded as this machine rounds them, sorted by name.

    :raises ArgumentError: if a file cannot be read
    """
    here = rounding()
    found = [
        Recorded(file.name, record)
        for file in files
        for record in unpack(file)[0]
        if record["status"] == "finished" and record["algorithm"]
    ]
    alike = [each for each in found if here.items() <= each.record.get("numerics", {}).items()]
    return sorted(alike, key=lambda each: (each.file, each.record["name"]))


def draw(found: list[Recorded], number: int, seed: int) -> list[Recorded]:
    """Draw some of the records.

    :raises ArgumentError: if there are fewer
    """
    if len(found) < number:
        here = ", ".join(filter(None, rounding().values()))
        raise ArgumentError(f"--number {number} is more than the {len(found)} records from a machine like this: {here}")
    return [found[index] for index in np.random.default_rng(seed).choice(len(found), number, replace=False)]


def again(record: Record) -> dict[str, Any]:
    """Make the run of a record again, and return both scores, whether the records are the same, and why if it fails."""
    run = Run(**{field.name: record[field.name] for field in fields(Run)})  # type: ignore[literal-required]
    made = perform(run)
    equal = all(made.get(name) == record[name] for name in SAME)  # type: ignore[literal-required]
    same = equal and curve(made) == curve(record)
    described = {name: record[name] for name in DESCRIBED}  # type: ignore[literal-required]
    scores = {"recorded": record["score"], "again": made.get("score"), "same": same}
    error = {"error": made["error"]} if made["status"] == "failed" else {}
    return {**described, "version": record["versions"]["sb3_ppo_variants"], **scores, **error}


def table(found: dict[str, Any]) -> str:
    """Return the runs as a table in Markdown."""
    rows = [
        {
            "setting": run["label"], "environment": run["env"], "seed": run["seed"], "steps": f"{run['timesteps']:,}",
            "version of the record": run["version"], "score": run["recorded"], "again": run["again"],
            "the same": "failed" if "error" in run else "yes" if run["same"] else "no",
        }
        for run in found["drawn"]
    ]  # fmt: skip
    return str(pd.DataFrame(rows).to_markdown(index=False, disable_numparse=True))


def add_command(parser: argparse.ArgumentParser) -> None:
    """Add the options of this tool."""
    parser.add_argument(
        "--from", dest="files", type=Path, nargs="+", metavar="FILE", help="files of records (default: all in results/)"
    )
    parser.add_argument("--number", action=Count, default=3, help="number of runs (default: %(default)s)")
    parser.add_argument("--seed", type=whole_number, default=0, help="seed of the draw (default: %(default)s)")
    parser.add_argument("--jobs", action=Count, default=2, help="number of parallel runs (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--report", type=Path, help="print the table of such a file, without training")


def run(options: argparse.Namespace) -> int:
    """Make the runs again, write the results to a file, and print a table of them."""
    if options.report is None:
        make_folders(options.json)
        drawn = draw(made_alike(options.files or sorted(RESULTS.glob("*.jsonl.gz"))), options.number, options.seed)
        made = {**circumstances(), "commit": commit(), "numerics": rounding()}
        found = {**made, "seed": options.seed, "drawn": []}
        runs = Parallel(options.jobs, return_as="generator")(delayed(again)(each.record) for each in drawn)
        for each, of_run in zip(drawn, runs, strict=True):
            found["drawn"].append({"file": each.file, **of_run})
            if "error" in of_run:
                print(of_run["error"], flush=True)
            if options.json is not None:  # Now, so that an interrupt does not lose it.
                options.json.write_text(json.dumps(found, indent=1) + "\n")
    else:
        found = reported(options.report, "seed", "drawn")
    print(table(found))
    return 0
