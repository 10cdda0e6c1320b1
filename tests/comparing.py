"""Records for the tests of the comparison, some made by hand and some by its command."""

import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from sb3_ppo_variants.__main__ import main, make_parser
from sb3_ppo_variants.compare import records, statistics
from sb3_ppo_variants.compare.plan import Run, plan_runs
from sb3_ppo_variants.compare.records import RANDOM
from sb3_ppo_variants.compare.runs import Pool

CONDITIONS: dict[str, Any] = {
    "preset": None, "timesteps": 100, "entry": None, "file": None, "parameters": {}, "normalize": None, "anneal": None,
}  # fmt: skip
CIRCUMSTANCES = ["versions", "machine", "numerics", "vec_env", "commit", "wall_seconds", "cpu_seconds"]
ALGOS = ["--algos", "ppo_clip", "ppo_unclipped"]
SHORT = ["--seeds", "1", "--timesteps", "512", "--jobs", "2"]


def record(label: str, env: str, seed: int, score: float | None, **changes: Any) -> Any:
    return {
        "format": records.FORMAT, "name": f"{label}-{env}-{seed}", "label": label, "algorithm": "module:Class",
        "env": env, "seed": seed, "timesteps": 100, "hyperparameters": {}, "conditions": CONDITIONS,
        "status": "finished", "score": score, "steps": 100, "last_returns": [score] * 3,
        "episodes": {"ends": [50, 70, 100], "returns": [score] * 3}, "versions": {"numpy": "2"},
        "machine": "Linux", "wall_seconds": 2.0, "cpu_seconds": 1.0, **changes,
    }  # fmt: skip


# Random policies score 10 and -50. The best runs score 110 and -10, so that the spans are 100 and 40.
SCORES = {
    ("sb3_ppo", "A-v0"): [60, 110],  # 0.5, 1
    ("sb3_ppo", "B-v0"): [-30, -10],  # 0.5, 1
    ("ppo_clip", "A-v0"): [85, 35],  # 0.75, 0.25
    ("ppo_clip", "B-v0"): [-20, -60],  # 0.75, -0.25
}
RECORDS = [
    record(RANDOM, "A-v0", 0, 10),
    record(RANDOM, "B-v0", 0, -50),
    *(record(label, env, seed, score) for (label, env), of in SCORES.items() for seed, score in enumerate(of)),
]


def p_value(one: np.ndarray, other: np.ndarray, samples: int = statistics.RANDOM_DIVISIONS) -> float:
    """Return the p value of a single pair of settings."""
    return float(statistics.p_values([(one, other)], samples)[0])


def write(folder: Path, found: list[records.Record]) -> None:
    (folder / "records").mkdir(parents=True)
    for each in found:
        records.write(folder / "records", each)


def text_of(report: Path) -> str:
    """Return a report without the spaces that align the columns of its tables."""
    return re.sub(r" +", " ", report.read_text())


def compare(out: Path, *arguments: str) -> int:
    return main(["compare", "--out", str(out), *ALGOS, *SHORT, *arguments])


def planned(arguments: list[str]) -> list[Run]:
    """Return the plan of the command with these arguments."""
    return plan_runs(make_parser().parse_args(["compare", *arguments]))


def written(out: Path) -> dict[str, records.Record]:
    return {record["name"]: record for record in records.read(out / "records")}


def contents(out: Path) -> dict[str, dict[str, object]]:
    """Return the parts of the records that depend only on the runs."""
    return {
        name: {key: value for key, value in record.items() if key not in CIRCUMSTANCES}
        for name, record in written(out).items()
    }


def files(out: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in (out / "records").glob("*.json")}


def report_of(found: list[Any], *arguments: str) -> str:
    """Return the report on records, without the spaces that align the columns of its tables."""
    with TemporaryDirectory() as folder:
        write(Path(folder), found)
        assert main(["report", "--out", folder, *arguments]) == 0
        return text_of(Path(folder, "report.md"))


class Lost(Exception):
    """A worker was lost."""


class InProcess(Pool):
    """Performs runs in this process, one after the other."""

    def records(self, runs: Any, work: Any) -> Iterator[records.Record]:
        yield from map(work, runs)
