"""The published agents have the scores on their cards, and another score is found."""

import re
import shutil
from pathlib import Path

import pytest
import torch as th
from PIL import Image, ImageSequence

from benchmarks import agents
from benchmarks.__main__ import main
from sb3_ppo_variants import PPOClip

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


def test_a_published_agent_acts_as_the_trained_one_and_can_go_on(tmp_path: Path) -> None:
    trained = PPOClip.load(FOLDER / "MoveOrKick-v0" / "model.zip", weights_only=True)
    trained.set_env(agents.recipe("ppo_clip", "MoveOrKick-v0").make_env())
    trained.learn(trained.n_steps, reset_num_timesteps=False)
    trained.save(tmp_path / "trained" / "model.zip")
    score = agents.publish("MoveOrKick-v0", tmp_path / "trained", tmp_path / "published")
    assert str(score) == str(agents.published(tmp_path / "published"))
    after = PPOClip.load(tmp_path / "published" / "model.zip", weights_only=True)
    assert all(map(th.equal, trained.policy.parameters(), after.policy.parameters()))
    assert trained.policy.optimizer.state_dict()["state"] and not after.policy.optimizer.state_dict()["state"]
    after.set_env(agents.recipe("ppo_clip", "MoveOrKick-v0").make_env())
    after.learn(after.n_steps, reset_num_timesteps=False)


def test_a_clip_shows_every_other_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "CLIP_STEPS", 10)
    options = ["--envs", "CartPole-v1", "--agents", str(FOLDER), "--film", str(tmp_path / "clips")]
    assert main(["agents", *options]) == 0
    with Image.open(tmp_path / "clips" / "CartPole-v1.gif") as clip:
        # Equal pictures are one, which is shown for longer.
        shown = [picture.info["duration"] for picture in ImageSequence.Iterator(clip)]
        assert (sum(shown), clip.size) == (5 * agents.CLIP_PAUSE, (315, 210)) and len(shown) > 1


def test_cards_name_the_score_of_the_gallery() -> None:
    page = (ROOT / "docs" / "reports" / "gallery" / "README.md").read_text()
    assert agents.overview(FOLDER) in page
    for env_id in agents.ENVIRONMENTS:
        card = (FOLDER / env_id / "README.md").read_text()
        assert f"Its score, {agents.published(FOLDER / env_id)}, is the mean return" in card
        assert f'load("results/agents/{env_id}/model.zip", weights_only=True)' in card
