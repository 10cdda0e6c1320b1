"""The published agents have the scores on their cards, and another score is found."""

import re
import shutil
from pathlib import Path

import pytest

from benchmarks import agents
from benchmarks.__main__ import main

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "results" / "agents"
pytestmark = pytest.mark.skipif(not FOLDER.exists(), reason="the source distribution has no agents")


@pytest.mark.parametrize(
    "env_id",
    [
        env_id if env_id == "MoveOrKick-v0" else pytest.param(env_id, marks=pytest.mark.slow)
        for env_id in agents.ENVIRONMENTS
    ],
)
def test_their_scores(env_id: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["agents", "--envs", env_id, "--agents", str(FOLDER)]) == 0
    assert capsys.readouterr().out.startswith(f"{env_id}: ")


def test_another_score_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(FOLDER / "MoveOrKick-v0", tmp_path / "MoveOrKick-v0")
    card = tmp_path / "MoveOrKick-v0" / "README.md"
    text, changed = re.subn(r"value: (\S+) \+/-", "value: 9.00 +/-", card.read_text())
    card.write_text(text)
    assert changed == 1 and main(["agents", "--envs", "MoveOrKick-v0", "--agents", str(tmp_path)]) == 1
    assert "published: 9.00 ± " in capsys.readouterr().out


def test_cards_name_the_score_of_the_gallery() -> None:
    page = (ROOT / "docs" / "reports" / "gallery" / "README.md").read_text()
    assert agents.overview(FOLDER) in page
    for env_id in agents.ENVIRONMENTS:
        card = (FOLDER / env_id / "README.md").read_text()
        assert f"Its score, {agents.published(FOLDER / env_id)}, is the mean return" in card
        assert f'load("results/agents/{env_id}/model.zip", weights_only=True)' in card
