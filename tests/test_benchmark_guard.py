"""What the guards cost: in seconds, and in instructions."""

import json
import shutil
from pathlib import Path

import pytest
import torch as th

from benchmarks import guard, instructions
from benchmarks.__main__ import main
from helpers import BOX, noise_envs


@pytest.mark.slow
@pytest.mark.parametrize(("bar", "code"), [(-1e9, 1), pytest.param(1e9, 0, marks=pytest.mark.slow)])
def test_the_cost_of_the_guards(
    bar: float, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(guard, "BAR", bar)
    file = tmp_path / "shares.json"
    arguments = ["--workloads", "cartpole", "--reference", "--pairs", "1", "--json", str(file)]
    assert main(["guard", *arguments]) == code
    table = capsys.readouterr().out
    assert "| cartpole | fast |" in table and "| cartpole | reference |" in table
    assert [len(shares) for shares in json.loads(file.read_text()).values()] == [1, 1]


def test_the_cost_of_the_guards_in_instructions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """5 of 1000 instructions are 0.5%, and 20 of 1000 are over the limit of 1%."""
    file = tmp_path / "counted.json"
    for guarded, code, added in ((1005, 0, "0.50%"), (1020, 1, "2.00%")):
        file.write_text(json.dumps({"cartpole, arrays": {"Unguarded": 1000, "PPOClip": guarded}}))
        assert main(["guard", "--report", str(file)]) == code
        assert capsys.readouterr().out.splitlines()[2:] == [f"| cartpole | arrays | 1,000 | {added} |"]


def test_instructions_are_counted_with_valgrind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SystemExit, match="--instructions counts with valgrind, which is not installed"):
        main(["guard", "--instructions"])


def test_an_interrupt_loses_only_the_last_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def count(workload: str, name: str, path: str) -> int:
        if path == "reference":
            raise KeyboardInterrupt
        return 1000

    monkeypatch.setattr(instructions, "count", count)
    file = tmp_path / "counted.json"
    with pytest.raises(KeyboardInterrupt):
        main(["guard", "--instructions", "--workloads", "cartpole", "--json", str(file)])
    assert json.loads(file.read_text()) == {"cartpole, native": {"Unguarded": 1000, "PPOClip": 1000}}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="needs valgrind")
def test_the_same_run_has_the_same_instructions() -> None:
    one, other = (instructions.count("cartpole", "PPOClip", "native") for _ in range(2))
    assert one > 10**7 and one == pytest.approx(other, rel=1e-3)


def test_what_has_no_guards_takes_the_same_steps() -> None:
    guarded, unguarded = (
        cls("MlpPolicy", noise_envs(BOX), n_steps=16, batch_size=16, seed=0, device="cpu").learn(64)
        for cls in (guard.PPOClip, guard.Unguarded)
    )
    for ours, theirs in zip(guarded.policy.parameters(), unguarded.policy.parameters(), strict=True):
        assert th.equal(ours, theirs)
