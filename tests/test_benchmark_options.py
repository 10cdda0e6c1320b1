"""What the options of the benchmarks refuse."""

from pathlib import Path

import pytest

from sb3_ppo_variants.benchmark.__main__ import main

WITH_REPORTS = (
    "cold",
    "guard",
    "kl-estimators",
    "paths",
    "peers",
    "scaling",
    "scaling-learning",
    "stepping",
    "throughput",
)


@pytest.mark.parametrize("command", WITH_REPORTS)
def test_files_that_are_no_reports(command: str, tmp_path: Path) -> None:
    file = tmp_path / "runs.json"
    with pytest.raises(SystemExit, match=r"^--report .*runs.json cannot be read as a file .*: .*No such file"):
        main([command, "--report", str(file)])
    file.write_text("{")
    with pytest.raises(SystemExit, match=r"^--report .*runs.json cannot be read as a file .*: Expecting"):
        main([command, "--report", str(file)])
    file.write_text("[]" if command == "guard" else '{"versions": {}}')
    with pytest.raises(SystemExit, match=r"^--report .*runs.json is not a file that --json of this command wrote"):
        main([command, "--report", str(file)])
