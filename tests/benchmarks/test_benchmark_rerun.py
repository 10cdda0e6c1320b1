"""The tool that makes runs again and says whether their records are the same."""

import json
from pathlib import Path
from typing import Any

import pytest
from comparing import compare

from benchmarks.__main__ import main
from sb3_ppo_variants.compare import records

Packed = tuple[Path, list[records.Record]]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    """Make three runs, of which one is of the random policy, and pack their records."""
    folder = tmp_path_factory.mktemp("rerun")
    assert compare(folder) == 0
    found, _ = records.read(folder / "records")
    assert len(found) == 3
    records.pack(found, folder / "first.jsonl.gz")
    return folder, found


def rerun(folder: Path, file: Path, *arguments: str) -> dict[str, bool]:
    """Run the command, and return whether the runs of each setting gave the same record."""
    json_file = folder / "again.json"
    assert main(["rerun", "--from", str(file), "--jobs", "1", "--json", str(json_file), *arguments]) == 0
    return {run["label"]: run["same"] for run in json.loads(json_file.read_text())["drawn"]}


def test_a_run_gives_the_same_record_again(packed: Packed, capsys: pytest.CaptureFixture[str]) -> None:
    folder, _ = packed
    file = folder / "first.jsonl.gz"
    assert rerun(folder, file, "--number", "2") == {"ppo_clip": True, "ppo_unclipped": True}
    assert main(["rerun", "--report", str(folder / "again.json")]) == 0
    assert capsys.readouterr().out.count("| yes ") == 4
    (one,) = {*rerun(folder, file, "--number", "1", "--seed", "0")}
    drawn = {*(label for seed in range(6) for label in rerun(folder, file, "--number", "1", "--seed", str(seed)))}
    assert one in drawn and len(drawn) == 2


@pytest.mark.parametrize("changed", ["last_returns", "episodes", "score"])
def test_a_record_that_differs_in_a_single_number_is_another(packed: Packed, changed: str) -> None:
    folder, found = packed
    others: list[Any] = []
    for record in found:
        value: Any = dict(record)[changed]
        if changed == "score":
            other: Any = value + 0.0001
        elif changed == "episodes":
            other = {**value, "returns": [value["returns"][0] + 0.01, *value["returns"][1:]]}
        else:
            other = [*value[:-1], value[-1] + 0.0001]
        others.append({**record, changed: other})
    file = folder / f"{changed}.jsonl.gz"
    records.pack(others, file)
    assert rerun(folder, file, "--number", "2") == {"ppo_clip": False, "ppo_unclipped": False}


def test_records_of_another_processor_are_not_drawn(packed: Packed) -> None:
    folder, found = packed
    elsewhere: list[Any] = [{**record, "numerics": {**record["numerics"], "processor": "Z80"}} for record in found]
    records.pack(elsewhere, folder / "elsewhere.jsonl.gz")
    with pytest.raises(SystemExit, match=r"^--number 3 is more than the 0 records from a machine like this: "):
        main(["rerun", "--from", str(folder / "elsewhere.jsonl.gz")])
    with pytest.raises(SystemExit, match=r"^--number 3 is more than the 2 records"):
        main(["rerun", "--from", str(folder / "elsewhere.jsonl.gz"), str(folder / "first.jsonl.gz")])


def test_a_run_that_fails_is_reported_beside_the_others(packed: Packed, capsys: pytest.CaptureFixture[str]) -> None:
    folder, found = packed
    changed: list[Any] = [
        {**record, "hyperparameters": {**record["hyperparameters"], "gamma": 2.0}}
        if record["label"] == "ppo_clip"
        else record
        for record in found
    ]
    records.pack(changed, folder / "failing.jsonl.gz")
    assert rerun(folder, folder / "failing.jsonl.gz", "--number", "2") == {"ppo_clip": False, "ppo_unclipped": True}
    out = capsys.readouterr().out
    assert "ArgumentError: gamma" in out and out.count("| failed ") == 1 and out.count("| yes ") == 1
