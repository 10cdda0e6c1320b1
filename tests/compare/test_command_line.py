"""The command lines: what they import, what they need, and how numbers are written."""

import json
import subprocess
import sys
from argparse import ArgumentTypeError
from pathlib import Path

import pytest

import sb3_ppo_variants
from fresh import ended, run_module
from helpers import OPTIONAL
from sb3_ppo_variants.__main__ import main
from sb3_ppo_variants.commandline import whole_number

# Runs a module in a new process, in which the optional packages are missing.
SCRIPT = """
import json, runpy, sys
packages, module, *sys.argv[1:] = json.loads(sys.argv[1])
sys.modules |= dict.fromkeys(packages)
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""
HELP = [["--help"], ["compare", "--help"], ["report", "--help"]]


def run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    given = json.dumps([OPTIONAL, module, *arguments])
    return subprocess.run([sys.executable, "-c", SCRIPT, given], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("module", "arguments"),
    [*(("sb3_ppo_variants", arguments) for arguments in HELP), ("benchmarks", ["--help"])],
    ids=lambda given: " ".join(given) if isinstance(given, list) else given,
)
def test_help_needs_no_optional_package(module: str, arguments: list[str]) -> None:
    result = run(module, *arguments)
    assert (result.returncode, result.stderr) == (0, "")
    assert f"usage: python -m {module}" in result.stdout


@pytest.mark.parametrize("command", [["sb3_ppo_variants", "compare", "--dry-run"], ["benchmarks", "figures", "--help"]])
def test_a_missing_package_names_the_extra(command: list[str]) -> None:
    result = run(*command)
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("this command needs more packages (")
    assert line.endswith("): pip install -e '.[benchmark]'  # in a clone of sb3_ppo_variants")


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out.strip() == sb3_ppo_variants.__version__


def test_the_comparisons_of_the_package_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["compare", "--help"])
    listed = capsys.readouterr().out.partition("comparisons of the package:\n")[2].splitlines()
    assert [line.split()[0] for line in listed] == ["atari-demo", "objectives", "paper-figure3", "paper-table1"]
    assert listed[0].endswith("Two Atari games, for 10 million steps.")


def compare_without_markdown() -> None:
    for name in ["markdown_it", *sys.modules]:
        if name.partition(".")[0] == "markdown_it":
            sys.modules[name] = None  # type: ignore[assignment]
    run_module("sb3_ppo_variants", "compare", "--timesteps", "64", "--out", "out")


def test_a_package_for_the_report_is_missed_before_the_first_run(tmp_path: Path) -> None:
    result = ended(compare_without_markdown, folder=tmp_path)
    assert "needs more packages" in result.stderr.splitlines()[-1]
    assert result.returncode == 1 and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "number"),
    [("100000", 100_000), ("100_000", 100_000), ("1e5", 100_000), ("1E+5", 100_000), ("2.5e3", 2500), ("3.0", 3)],
)
def test_whole_numbers_however_written(text: str, number: int) -> None:
    found = whole_number(text)
    assert found == number and type(found) is int


@pytest.mark.parametrize("text", ["1.5", "1e-1", "", "many", "inf", "nan", "1e999999999", "0x10"])
def test_other_numbers_are_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="is not a whole number, such as 100000, 100_000 or 1e5"):
        whole_number(text)
