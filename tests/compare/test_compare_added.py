"""Other people's runs in a report."""

import json
import re
from pathlib import Path

import gymnasium as gym
import numpy as np
import pandas as pd
import pytest
from comparing import RECORDS, record, text_of, write
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.env_util import make_vec_env

from sb3_ppo_variants import ArgumentError, PPOClip
from sb3_ppo_variants.__main__ import main
from sb3_ppo_variants.compare import records
from sb3_ppo_variants.compare.records import ADDED, RANDOM, read_beside
from sb3_ppo_variants.compare.scores import comparisons

pytestmark = pytest.mark.usefixtures("blank_pictures")
FOUND = [record("ppo_clip", env, 0, 1) for env in ("CartPole-v1", "A-v0", "B-v5")]
RETURN = "charts/episodic_return"


def chart(folder: Path, **returns: float) -> Path:
    """Write the chart of runs in some environments, as Weights & Biases exports it."""
    columns = {f"{env.replace('_v', '-v')}__ppo__1__17 - {RETURN}": [value] for env, value in returns.items()}
    file = folder / f"{'-'.join(returns)}.csv"
    pd.DataFrame({"global_step": [10], **columns}).to_csv(file, index=False)
    return file


def test_a_folder_of_the_zoo(tmp_path: Path) -> None:
    folder = tmp_path / "ppo" / "CartPole-v1_1"
    env = make_vec_env("CartPole-v1", n_envs=2, seed=0, monitor_dir=str(folder))
    model = PPOClip("MlpPolicy", env, n_steps=64, batch_size=64, n_epochs=1, seed=0).learn(512)
    with (folder / "0.monitor.csv").open("a") as file:
        file.write("7.0,")  # The run was killed.
    (run,) = read_beside([f"zoo={tmp_path}"], FOUND)
    assert (run["label"], run["env"], run["seed"]) == ("zoo", "CartPole-v1", 0)
    assert list(run["last_returns"])[-5:] == [info["r"] for info in model.ep_info_buffer or []][-5:]
    assert run["score"] == pytest.approx(np.mean(run["last_returns"])) and 400 < run["steps"] <= 512


def test_evaluations(tmp_path: Path) -> None:
    folder = tmp_path / "CartPole-v1_3"
    evaluated = EvalCallback(gym.make("CartPole-v1"), n_eval_episodes=3, eval_freq=64, log_path=str(folder), verbose=0)
    PPOClip("MlpPolicy", "CartPole-v1", n_steps=64, batch_size=64, n_epochs=1).learn(128, evaluated)
    (run,) = read_beside([f"zoo={tmp_path}"], FOUND)
    expected = np.load(folder / "evaluations.npz")["results"]
    assert run["env"] == "CartPole-v1" and run["steps"] == 128
    assert run["episodes"] == {"ends": [64, 64, 64, 128, 128, 128], "returns": expected.ravel().tolist()}


def test_exports_of_cleanrl(tmp_path: Path) -> None:
    runs = [f"A-v0__ppo__{seed}__1700000000 - {RETURN}" for seed in (1, 2)]
    frame = pd.DataFrame({"global_step": [10, 20, 30], runs[0]: [1.0, np.nan, 3.0], runs[1]: [4.0, 5.0, 6.0]})
    frame[f"{runs[0]}__MIN"] = 0.0
    frame.to_csv(tmp_path / "chart.csv", index=False)
    one, other = read_beside([f"CleanRL={tmp_path / 'chart.csv'}"], FOUND)
    assert (one["env"], one["seed"], other["seed"]) == ("A-v0", 0, 1)
    assert one["episodes"] == {"ends": [10, 30], "returns": [1, 3]} and other["score"] == 5
    # The history of a run, whose steps may be fractions, and columns with the same name.
    alone = tmp_path / "run.csv"
    alone.write_text(f"_step,global_step,{RETURN}\n0,90.5,3\n")
    (run,) = read_beside([f"CleanRL@B-v5={alone}"], FOUND)
    assert run["steps"] == run["timesteps"] == 91 and records.curve(run) == [None] * 99 + [3.0]
    alone.write_text(f"global_step,ppo - {RETURN},ppo - {RETURN}\n10,1,2\n")
    assert [run["score"] for run in read_beside([f"W&B@A-v0={alone}"], FOUND)] == [1, 2]


def test_added_runs_are_of_one_environment(tmp_path: Path) -> None:
    (run,) = read_beside([f"CleanRL@B-v5={chart(tmp_path, C_v4=7.0)}"], FOUND)
    assert run["score"] == 7
    with pytest.raises(ArgumentError, match="has runs of A-v3, C-v3; runs of one environment can be LABEL@ENV=PATH"):
        read_beside([f"CleanRL@B-v5={chart(tmp_path, A_v3=1.0, C_v3=1.0)}"], FOUND)


def test_added_runs_change_nothing_about_others() -> None:
    """The scale of an environment, whether it has one, and the tests are those without them."""
    generator = np.random.default_rng(0)
    own = [record(RANDOM, env, 0, 0) for env in ("A-v0", "B-v0", "C-v0")]
    for label, of_envs in {"ppo_clip": (90, 60, -9), "ppo_fixed_kl": (60, 90, -9)}.items():
        for env, score in zip(("A-v0", "B-v0", "C-v0"), of_envs, strict=True):
            own += [record(label, env, seed, score + generator.normal(0, 9)) for seed in range(6)]
    for envs in (("A-v0",), ("A-v0", "B-v0", "C-v0")):
        added = [record("CleanRL", env, seed, 5000 + seed, algorithm=ADDED) for env in envs for seed in range(2)]
        (alone,), (beside,) = comparisons(own), comparisons([*own, *added])
        pair = ("ppo_clip", "ppo_fixed_kl")
        assert beside.differences[pair] == alone.differences[pair]
        assert beside.are_equivalent(*pair) == alone.are_equivalent(*pair)
        assert all(np.array_equal(beside.arrays[label], alone.arrays[label]) for label in pair)
        of_added = beside.table[beside.table["label"] == "CleanRL"]["normalised"].dropna()
        assert len(of_added) == 2 * min(len(envs), 2) and (of_added > 40).all()


def test_added_runs_are_shown_but_not_tested(tmp_path: Path) -> None:
    of_own = {"sb3_ppo": 50, "ppo_clip": 80}
    own = [record(label, "A-v0", seed, mean + seed) for label, mean in of_own.items() for seed in range(4)]
    write(tmp_path, [record(RANDOM, "A-v0", 0, 10), *own])
    columns = {f"A-v0__ppo__{seed}__17 - {RETURN}": [50.0 + seed, 50 + seed] for seed in range(4)}
    pd.DataFrame({"global_step": [40, 90], **columns}).to_csv(tmp_path / "chart.csv")
    packed = tmp_path / "own.jsonl.gz"
    given = ["report", "--out", str(tmp_path), "--export", str(packed), "--add", f"other={tmp_path / 'chart.csv'}"]
    assert main(given) == 0
    text = text_of(tmp_path / "report.md")
    assert "Added from elsewhere: other (4 runs)." in text and "- runs: 8 finished, 0 failed (2 settings" in text
    assert "It is better beyond noise than sb3_ppo, and cannot be told apart from other (recorded elsewhere)." in text
    # Two of the 70 divisions of eight runs are as far apart. The added runs do not count in the correction.
    assert re.search(r"\| ppo_clip \| 4 \| .* \| 0\.029 \| no evidence \(.*\) \|", text)
    # The scores are those of sb3_ppo, but of another part of training.
    assert re.search(r"\| other \| 4 \| 0\.50 .* \| \| equivalence not tested \|", text)
    assert {each["label"] for each in records.read(packed)} == {RANDOM, *of_own}


def test_added_runs_are_shown_while_no_own_run_has_finished(tmp_path: Path) -> None:
    write(tmp_path / "out", RECORDS[:1])
    monitored = tmp_path / "zoo" / "A-v0_1"
    monitored.mkdir(parents=True)
    header = json.dumps({"t_start": 0.0, "env_id": "A-v0"})
    (monitored / "0.monitor.csv").write_text(f"#{header}\nr,l,t\n60,10,4\n")
    assert main(["report", "--out", str(tmp_path / "out"), "--add", f"zoo={tmp_path / 'zoo'}"]) == 0
    text = text_of(tmp_path / "out" / "report.md")
    assert "| zoo | 60 |" in text and "### Hyperparameters" not in text
    # The run took 4 seconds for 10 steps, with unknown seconds of CPU.
    assert ",10,4.0,,1,2.5," in (tmp_path / "out" / "scores.csv").read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("zoo", "must be LABEL=PATH"),
        ("zoo=nowhere", "has no episodes: PATH must be a folder with"),
        ("zoo=run.csv", "has runs of an unknown environment; runs of one environment can be LABEL@ENV=PATH"),
        ("zoo=torn.csv", "cannot be read: EmptyDataError"),
        ("zoo=damaged", "cannot be read: BadZipFile"),
        ("zoo@A-v0=infinite.csv", "cannot be read: ValueError: an episode's return or step is inf; leave out its run"),
        ("zoo@C-v0=run.csv", "zoo has runs in C-v0, and the records are of CartPole-v1, A-v0, B-v5|A-v0, B-v5, Cart"),
        ("ppo_clip@A-v0=run.csv", "--add ppo_clip=PATH: the report has a setting of this name"),
    ],
)
def test_other_additions_are_refused(text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.csv").write_text(f"global_step,{RETURN}\n1,2\n")
    Path("torn.csv").write_text("")
    Path("infinite.csv").write_text(f"global_step,{RETURN}\n1,inf\n2,3\n")
    Path("damaged").mkdir()
    Path("damaged", "evaluations.npz").write_bytes(b"PK\x03\x04")
    with pytest.raises(ArgumentError, match=message):
        read_beside([text], FOUND)
