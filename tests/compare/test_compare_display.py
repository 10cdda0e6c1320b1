"""The estimated time to the end, by numbers worked out by hand, and the lines that show it."""

from pathlib import Path
from typing import Any

import pytest
from comparing import CONDITIONS, record

from sb3_ppo_variants.__main__ import main
from sb3_ppo_variants.compare.command import Display, TimeLeft, duration
from sb3_ppo_variants.compare.plan import Run
from sb3_ppo_variants.compare.records import RANDOM


def planned(label: str, env: str, seed: int, timesteps: int = 1000) -> Run:
    return Run(label, "" if label == RANDOM else "module:Class", env, seed, timesteps, {}, CONDITIONS)


def ended(run: Run, seconds: float | None, **changes: Any) -> Any:
    return record(run.label, run.env, run.seed, 1.0, name=run.name, wall_seconds=seconds, **changes)


def test_the_rest_is_spread_over_the_jobs() -> None:
    runs = [planned("a", "E-v0", seed) for seed in range(5)]
    estimate = TimeLeft(runs, jobs=2)
    assert estimate.seconds({}) is None
    estimate.note(ended(runs[0], 100))
    # Four runs of 100 seconds, two at a time.
    assert estimate.seconds({}) == pytest.approx(200)
    # One of them has done 400 of its 1000 steps, so 40 of the 400 seconds are over.
    assert estimate.seconds({runs[1].name: 400}) == pytest.approx((400 - 40) / 2)
    estimate.note(ended(runs[1], 140))
    # The mean is 120 seconds.
    assert estimate.seconds({}) == pytest.approx(3 * 120 / 2)


def test_the_longest_run_is_not_split() -> None:
    runs = [planned("a", "E-v0", seed) for seed in range(3)]
    estimate = TimeLeft(runs, jobs=8)
    estimate.note(ended(runs[0], 100))
    # Both runs are in progress: 30 and 90 seconds are left.
    assert estimate.seconds({runs[1].name: 700, runs[2].name: 100}) == pytest.approx(90)


def test_runs_that_are_alike_say_how_long_another_takes() -> None:
    runs = {
        "same": planned("a", "E-v0", 1),
        "other setting": planned("b", "E-v0", 0),
        "other environment": planned("c", "F-v0", 0, timesteps=2000),
    }
    finished = [planned("a", "E-v0", 0), planned("d", "E-v0", 0, timesteps=500)]
    estimate = TimeLeft([*finished, *runs.values()], jobs=1)
    # 0.1 and 0.3 seconds per step.
    estimate.note(ended(finished[0], 100))
    estimate.note(ended(finished[1], 150))
    # The same setting in the environment: 100. Another one there, and another environment: 0.2 seconds per step.
    assert estimate.seconds({}) == pytest.approx(100 + 200 + 400)
    assert estimate.seconds({runs["same"].name: 1000}) == pytest.approx(600)


def test_what_does_not_say_how_long_runs_take() -> None:
    """Failed runs, runs whose process was lost, the random policy, and runs that finished before."""
    failed, lost, random = planned("a", "E-v0", 0), planned("a", "E-v0", 1), planned(RANDOM, "E-v0", 0)
    rest = planned("a", "E-v0", 2)
    estimate = TimeLeft([failed, lost, random, rest], jobs=1)
    estimate.note(ended(failed, 1.0, status="failed"))
    estimate.note(ended(lost, None, status="failed"))
    estimate.note(ended(random, 3.0))
    estimate.note(ended(planned("a", "E-v0", 9), 50.0))
    assert estimate.seconds({}) is None
    estimate.note(ended(rest, 10.0))
    assert estimate.seconds({}) == 0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "1 s"), (59.5, "60 s"), (60.5, "2 min"), (3540, "59 min"), (3541, "1 h 0 min"), (93_600, "26 h 0 min")],
)
def test_durations_in_words(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_lines_say_how_long_the_others_take(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [planned("a", "E-v0", seed) for seed in range(4)]
    # The first is resumed.
    with Display(runs, runs[1:], tmp_path, jobs=1) as display:
        display.report(ended(runs[1], 90))
        (tmp_path / f"{runs[2].name}.json").write_text('{"label": "a", "steps": 500}')
        display.report(ended(runs[3], 90, status="failed", error="ValueError: no"))
        (tmp_path / f"{runs[2].name}.json").unlink()
        display.report(ended(runs[2], 90))
    assert capsys.readouterr().out.splitlines() == [
        "2/4 a, E-v0, seed 1: score 1.0; about 3 min left",
        "3/4 a, E-v0, seed 3: failed: ValueError: no; about 45 s left",
        "4/4 a, E-v0, seed 2: score 1.0",
    ]


def test_the_bar_says_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [planned("a", "E-v0", seed) for seed in range(3)]
    with Display(runs, runs, tmp_path, jobs=1) as display:
        display.report(ended(runs[0], 90))
        (tmp_path / f"{runs[1].name}.json").write_text(
            '{"label": "a", "env": "E-v0", "seed": 1, "steps": 500, "timesteps": 1000, "reward": 2.5}'
        )
        display.console.print(*display.get_renderables())
    line, _, row, bar = (line.split() for line in capsys.readouterr().out.splitlines())
    assert " ".join(line).endswith("about 3 min left")
    assert row == ["a", "E-v0", "1", "500", "of", "1000", "2.5"]
    # Half of the second run and the third take 45 + 90 seconds.
    assert bar[:2] == ["runs", "1/3"] and " ".join(bar).endswith("about 3 min left") and "50%" in bar


def test_commands_for_maintainers_are_not_among_those_for_users(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    assert "compare" in shown and "report" in shown and "study" not in shown
