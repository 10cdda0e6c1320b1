"""The code in the documentation can be pasted into a fresh interpreter, and its links are valid."""

import importlib
import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fresh import Ended, ended, run_code
from helpers import OPTIONAL

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted(path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts)]
# An HTML comment right above a block, which readers do not see, says what its test needs.
BLOCK = re.compile(r"(?:<!-- test: (?P<note>[^>]*) -->\n+)?```python\n(?P<code>.*?)```", re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^]]*\]\((?P<target>[^)\s]+)\)")
# In a block, where lines end in a backslash, or within a sentence.
COMMAND = re.compile(r"^python -m (?:.*\\\n)*.*$|(?<=`)python\s-m\s[^`]+(?=`)", re.MULTILINE)
FENCE = re.compile(r"^(`{3,}).*?^\1", re.DOTALL | re.MULTILINE)
FORMULA = re.compile(r"(?<![\\$])\$(?!\$)([^$]+)\$")
# One short rollout and one update.
MAX_STEPS, MAX_TIMESTEPS = 64, 1


class Block(NamedTuple):
    """A Python code block on a page."""

    page: Path
    line: int
    note: str
    code: str


def blocks() -> list[Any]:
    found = []
    for page in PAGES:
        text = page.read_text()
        for match in BLOCK.finditer(text):
            block = Block(page, text.count("\n", 0, match.start("code")), match["note"] or "", match["code"])
            name = f"{page.relative_to(ROOT).with_suffix('')}:{block.line}"
            found.append(pytest.param(block, id=name, marks=[pytest.mark.slow] if "slow" in block.note else []))
    return found


def paste(code: str) -> None:
    """Run a block as the main module.

    The only difference from a user's interpreter is that models learn for only one rollout, and that it is short.
    """
    from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

    init: Any = OnPolicyAlgorithm.__init__
    learn = OnPolicyAlgorithm.learn

    def init_short(self: Any, *args: Any, n_steps: int, **arguments: Any) -> None:
        init(self, *args, n_steps=min(n_steps, MAX_STEPS), **arguments)

    def learn_briefly(self: Any, total_timesteps: int, *args: Any, **arguments: Any) -> Any:
        return learn(self, min(total_timesteps, MAX_TIMESTEPS), *args, **arguments)

    OnPolicyAlgorithm.__init__ = init_short  # type: ignore[assignment, method-assign]
    OnPolicyAlgorithm.learn = learn_briefly  # type: ignore[method-assign]
    run_code(code)


def assert_runs(code: str, folder: Path) -> None:
    """Paste a block into a fresh interpreter in an empty folder."""
    assert_succeeded(ended(paste, code, folder=folder))


def assert_succeeded(result: Ended) -> None:
    missing = re.search(r"ModuleNotFoundError: No module named '(\w+)'", result.stderr)
    if missing and missing[1] in OPTIONAL and find_spec(missing[1]) is None:
        pytest.skip(f"{missing[1]} is not installed")
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("block", blocks())
def test_a_block_runs_in_a_fresh_interpreter(block: Block, tmp_path: Path) -> None:
    if needs := re.search(r"needs (?P<what>.*)", block.note):
        pytest.skip(f"needs {needs['what']}")
    assert_runs(block.code, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["quickstart", "comparison", "own_objective"])
def test_a_notebook_runs(name: str, tmp_path: Path) -> None:
    cells = json.loads((ROOT / "docs" / "notebooks" / f"{name}.ipynb").read_text())["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    # Run all training steps, because the cells check what was learned.
    assert_succeeded(ended(run_code, code, folder=tmp_path, MPLBACKEND="agg"))


@pytest.mark.slow
def test_the_table_of_paths_is_what_the_engines_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    can_i_use = importlib.import_module("can_i_use")
    assert can_i_use.table() in can_i_use.PAGE.read_text()


def test_most_blocks_are_tried() -> None:
    """The pattern finds every block."""
    shown = sum(page.read_text().count("```python\n") for page in PAGES)
    assert len(blocks()) == shown > 40
    assert sum("needs" in parameters.values[0].note for parameters in blocks()) <= 5


@pytest.mark.slow
def test_options_of_commands_exist(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pandas")
    used: dict[tuple[str, str], set[str]] = {}
    for page in PAGES:
        for command in COMMAND.findall(page.read_text()):
            words = command.replace("\\\n", " ").split("#")[0].split()
            if words[2] in ("sb3_ppo_variants", "benchmarks") and re.fullmatch(r"[a-z-]+", words[3]):
                options = {word for word in words[4:] if re.match(r"--?[a-z]", word)}
                used[words[2], words[3]] = used.get((words[2], words[3]), set()) | options
    assert len(used) > 5
    for (module, tool), options in used.items():
        with pytest.raises(SystemExit):
            importlib.import_module(f"{module}.__main__").main([tool, "--help"])
        assert options <= {*re.findall(r"--?[a-z][\w-]*", capsys.readouterr().out)}, (module, tool)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_to_files(page: Path) -> None:
    text = re.sub(r"```.*?```|\$\$.*?\$\$", "", page.read_text(), flags=re.DOTALL)
    targets = {match["target"] for match in LINK.finditer(text)}
    relative = {target.partition("#")[0] for target in targets if not re.match(r"https?:|mailto:|#", target)}
    assert not [name for name in relative if not (page.parent / name).exists()]


def test_the_readme_is_short_and_its_references_lead_to_files() -> None:
    text = (ROOT / "README.md").read_text()
    references = dict(re.findall(r"^\[(\w+)\]: (docs/\S+)$", text, re.M))
    assert set(re.findall(r"\]\[(\w+)\]", text)) == references.keys()
    assert [path for path in references.values() if not (ROOT / path).exists()] == []
    assert len(text.splitlines()) <= 100


@pytest.mark.parametrize("page", [page for page in PAGES if "$" in page.read_text()], ids=lambda page: page.stem)
def test_formulas_in_text_have_no_line_breaks(page: Path) -> None:
    """A plus or minus at the beginning of a line would be the bullet of a list."""
    text = re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text()))
    assert not [formula for formula in FORMULA.findall(text) if "\n" in formula]
