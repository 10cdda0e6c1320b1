"""Other people's runs in a report, human-normalised scores of Atari games, and logging to other tools."""

import json
import re
import sys
from pathlib import Path
from unittest.mock import MagicMock

import gymnasium as gym
import numpy as np
import pandas as pd
import pytest
from comparing import RECORDS, planned, record, text_of, write
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.env_util import make_vec_env

from sb3_ppo_variants import ArgumentError, PPOClip
from sb3_ppo_variants.__main__ import main
from sb3_ppo_variants.compare import records
from sb3_ppo_variants.compare.added import ADDED, read_beside
from sb3_ppo_variants.compare.execution import Tracking, perform
from sb3_ppo_variants.compare.plan import make_plan
from sb3_ppo_variants.compare.records import RANDOM
from sb3_ppo_variants.compare.scores import comparisons, game_of, normalise_by_humans
from sb3_ppo_variants.compare.settings import Conditions, read_setting

pytestmark = pytest.mark.usefixtures("blank_pictures")
FOUND = [record("ppo_clip", env, 0, 1) for env in ("CartPole-v1", "A-v0", "B-v5")]


def test_a_folder_of_the_zoo(tmp_path: Path) -> None:
    folder = tmp_path / "ppo" / "CartPole-v1_1"
    env = make_vec_env("CartPole-v1", n_envs=2, seed=0, monitor_dir=str(folder))
    model = PPOClip("MlpPolicy", env, n_steps=64, batch_size=64, n_epochs=1, seed=0).learn(512)
    (run,) = read_beside([f"zoo={tmp_path}"], FOUND)
    assert (run["label"], run["env"], run["seed"]) == ("zoo", "CartPole-v1", 0)
    assert list(run["last_returns"])[-5:] == [info["r"] for info in model.ep_info_buffer or []][-5:]
    assert run["score"] == pytest.approx(np.mean(run["last_returns"])) and 400 < run["steps"] <= 512


def test_a_torn_episode_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "0.monitor.csv").write_text('#{"t_start": 0.0, "env_id": "A-v0"}\nr,l,t\n5.0,20,0.5\n7.0,')
    (run,) = read_beside([f"zoo={tmp_path}"], FOUND)
    assert run["episodes"] == {"ends": [20.0], "returns": [5.0]}


def test_evaluations(tmp_path: Path) -> None:
    folder = tmp_path / "CartPole-v1_3"
    evaluated = EvalCallback(gym.make("CartPole-v1"), n_eval_episodes=3, eval_freq=64, log_path=str(folder), verbose=0)
    PPOClip("MlpPolicy", "CartPole-v1", n_steps=64, batch_size=64, n_epochs=1).learn(128, evaluated)
    (run,) = read_beside([f"zoo={tmp_path}"], FOUND)
    expected = np.load(folder / "evaluations.npz")["results"]
    assert run["env"] == "CartPole-v1" and run["steps"] == 128
    assert run["episodes"] == {"ends": [64, 64, 64, 128, 128, 128], "returns": expected.ravel().tolist()}


def test_exports_of_cleanrl(tmp_path: Path) -> None:
    runs = [f"A-v0__ppo__{seed}__1700000000 - charts/episodic_return" for seed in (1, 2)]
    frame = pd.DataFrame({"global_step": [10, 20, 30], runs[0]: [1.0, np.nan, 3.0], runs[1]: [4.0, 5.0, 6.0]})
    frame[f"{runs[0]}__MIN"] = 0.0
    frame.to_csv(tmp_path / "chart.csv", index=False)
    one, other = read_beside([f"CleanRL={tmp_path / 'chart.csv'}"], FOUND)
    assert (one["env"], one["seed"], other["seed"]) == ("A-v0", 0, 1)
    assert one["episodes"] == {"ends": [10, 30], "returns": [1, 3]} and other["score"] == 5
    alone = tmp_path / "B-v0__ppo__1__1700000000.csv"
    pd.DataFrame({"_step": [0, 1], "global_step": [5, 9], "charts/episodic_return": [1, 2]}).to_csv(alone)
    (run,) = read_beside([f"CleanRL@B-v5={alone}"], FOUND)
    assert run["env"] == "B-v5" and run["episodes"] == {"ends": [5, 9], "returns": [1, 2]}


def test_a_step_may_be_a_fraction(tmp_path: Path) -> None:
    (tmp_path / "run.csv").write_text("global_step,charts/episodic_return\n90.5,3\n")
    (run,) = read_beside([f"CleanRL@A-v0={tmp_path / 'run.csv'}"], FOUND)
    assert run["steps"] == run["timesteps"] == 91 and records.curve(run) == [None] * 99 + [3.0]


def test_added_runs_are_lines_of_the_report(tmp_path: Path) -> None:
    write(tmp_path / "out", RECORDS)
    columns = {f"A-v0__ppo__{seed}__17 - charts/episodic_return": [50.0 + seed, 60.0] for seed in (1, 2)}
    pd.DataFrame({"global_step": [40, 90], **columns}).to_csv(tmp_path / "chart.csv")
    packed = tmp_path / "own.jsonl.gz"
    arguments = ["--add", f"CleanRL PPO={tmp_path / 'chart.csv'}"]
    assert main(["report", "--out", str(tmp_path / "out"), *arguments, "--export", str(packed)]) == 0
    text = text_of(tmp_path / "out" / "report.md")
    assert "Added from elsewhere: CleanRL PPO (2 runs)." in text and "- runs: 8 finished, 0 failed (2 settings" in text
    assert "| CleanRL PPO | 55.75 ± 0.3536 (2) | |" in text
    assert {each["label"] for each in records.unpack(packed)[0]} == {each["label"] for each in RECORDS}


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
    own = [record("sb3_ppo", "A-v0", seed, 50 + seed) for seed in range(5)]
    write(tmp_path / "out", [record(RANDOM, "A-v0", 0, 10), *own])
    columns = {f"A-v0__ppo__{seed}__17 - charts/episodic_return": [90.0 + seed, 95.0] for seed in range(5)}
    pd.DataFrame({"global_step": [40, 90], **columns}).to_csv(tmp_path / "chart.csv")
    add = ["--add", f"CleanRL PPO={tmp_path / 'chart.csv'}"]
    assert main(["report", "--out", str(tmp_path / "out"), *add]) == 0
    text = text_of(tmp_path / "out" / "report.md")
    assert "**CleanRL PPO** (recorded elsewhere) has the highest mean score" in text
    assert "It is not better than any other beyond noise: it cannot be told apart from sb3_ppo." in text
    assert "Runs that were recorded elsewhere do not set this scale where others beat the random policy" in text


def test_added_runs_do_not_count_in_the_correction(tmp_path: Path) -> None:
    of_own = {"sb3_ppo": 50, "ppo_clip": 80}
    own = [record(label, "A-v0", seed, mean + seed) for label, mean in of_own.items() for seed in range(4)]
    write(tmp_path / "out", [record(RANDOM, "A-v0", 0, 10), *own])
    columns = {f"A-v0__ppo__{seed}__17 - charts/episodic_return": [50.0 + seed, 50 + seed] for seed in range(4)}
    pd.DataFrame({"global_step": [40, 90], **columns}).to_csv(tmp_path / "chart.csv")
    assert main(["report", "--out", str(tmp_path / "out"), "--add", f"other={tmp_path / 'chart.csv'}"]) == 0
    text = text_of(tmp_path / "out" / "report.md")
    assert "It is better beyond noise than sb3_ppo, and cannot be told apart from other (recorded elsewhere)." in text
    # Two of the 70 divisions of eight runs are as far apart.
    assert re.search(r"\| ppo_clip \| 4 \| .* \| 0\.029 \| not shown \|", text)
    # The scores are those of sb3_ppo, but of another part of training.
    assert re.search(r"\| other \| 4 \| 0\.50 .* \| \| not shown \|", text)


def test_added_runs_are_of_one_environment(tmp_path: Path) -> None:
    names = {"A-v3": 1.0, "A-v4": 4.0, "C-v4": 7.0}

    def chart(*envs: str) -> Path:
        file = tmp_path / f"{'-'.join(envs)}.csv"
        columns = {f"{env}__ppo__1__17 - charts/episodic_return": [names[env]] for env in envs}
        pd.DataFrame({"global_step": [10], **columns}).to_csv(file, index=False)
        return file

    (run,) = read_beside([f"CleanRL@A-v0={chart('A-v4', 'C-v4')}"], FOUND)
    assert run["score"] == 4
    (run,) = read_beside([f"CleanRL@B-v5={chart('C-v4')}"], FOUND)
    assert run["score"] == 7
    for several in (("A-v3", "A-v4"), ("A-v3", "C-v4")):
        with pytest.raises(ArgumentError, match=rf"has runs of {', '.join(several)}, and it must be clear which are"):
            read_beside([f"CleanRL@B-v5={chart(*several)}"], FOUND)


def test_columns_may_have_the_same_name(tmp_path: Path) -> None:
    name = "ppo - charts/episodic_return"
    (tmp_path / "chart.csv").write_text(f"global_step,{name},{name},{name}__MIN\n10,1,2,0\n")
    found = read_beside([f"W&B@A-v0={tmp_path / 'chart.csv'}"], FOUND)
    assert [run["score"] for run in found] == [1, 2]


def test_added_runs_are_shown_while_no_own_run_has_finished(tmp_path: Path) -> None:
    write(tmp_path / "out", RECORDS[:1])
    monitored = tmp_path / "zoo" / "A-v0_1"
    monitored.mkdir(parents=True)
    header = json.dumps({"t_start": 0.0, "env_id": "A-v0"})
    (monitored / "0.monitor.csv").write_text(f"#{header}\nr,l,t\n60,10,4\n")
    assert main(["report", "--out", str(tmp_path / "out"), "--add", f"zoo={tmp_path / 'zoo'}"]) == 0
    text = text_of(tmp_path / "out" / "report.md")
    assert "| zoo | 60 (1) |" in text and "### Command" not in text and "### Hyperparameters" not in text
    # The run took 4 seconds for 10 steps, with unknown seconds of CPU.
    assert "| zoo | 1 | 2 | 4 | |" in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("zoo", "must be LABEL=PATH"),
        ("zoo=nowhere", "has no episodes: PATH must be a folder with"),
        ("zoo=run.csv", "does not name the environment of the runs; write LABEL@ENV=PATH"),
        ("zoo=torn.csv", "cannot be read: EmptyDataError"),
        ("zoo=empty", "cannot be read: EOFError"),
        ("zoo=damaged", "cannot be read: BadZipFile"),
        ("zoo@A-v0=infinite.csv", "has an episode whose return or step is inf; leave out its run"),
        ("zoo@A-v0=endless.csv", "has an episode whose return or step is inf; leave out its run"),
        ("zoo@A-v0=unknown", "has an episode whose return or step is nan; leave out its run"),
    ],
)
def test_what_cannot_be_added_is_refused(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.csv").write_text("global_step,charts/episodic_return\n1,2\n")
    Path("torn.csv").write_text("")
    Path("infinite.csv").write_text("global_step,charts/episodic_return\n1,inf\n2,3\n")
    Path("endless.csv").write_text("global_step,charts/episodic_return\n1,2\ninf,3\n")
    Path("unknown").mkdir()
    np.savez("unknown/evaluations.npz", timesteps=[100], results=[[1.0, np.nan]])
    for folder, content in (("empty", b""), ("damaged", b"PK\x03\x04")):
        Path(folder).mkdir()
        Path(folder, "evaluations.npz").write_bytes(content)
    with pytest.raises(ArgumentError, match=message):
        read_beside([text], FOUND)
    with pytest.raises(ArgumentError, match="zoo has runs in C-v0, and the records are of A-v0, B-v0; if one of these"):
        read_beside(["zoo@C-v0=run.csv"], RECORDS)


@pytest.mark.parametrize("label", ["ppo_clip", RANDOM])
def test_an_added_setting_needs_its_own_name(label: str, tmp_path: Path) -> None:
    (tmp_path / "run.csv").write_text("global_step,charts/episodic_return\n1,2\n")
    with pytest.raises(ArgumentError, match=f"--add {label}=PATH: the report has a setting of this name"):
        read_beside([f"{label}@A-v0={tmp_path / 'run.csv'}"], RECORDS)


def test_human_normalised_scores(tmp_path: Path) -> None:
    ids = {"ALE/Breakout-v5": "Breakout", "MsPacmanNoFrameskip-v4": "MsPacman", "CartPole-v1": None, "ALE/Go-v5": None}
    ids |= {f"ale_py:{env}": game for env, game in ids.items()}
    assert {env: game_of(env) for env in ids} == ids
    frame = pd.DataFrame({"env": ["CartPole-v1", "PongNoFrameskip-v4"], "score": [500.0, -20.7 + 35.3 / 2]})
    assert normalise_by_humans(frame)["normalised"].tolist() == pytest.approx([0.5])
    games = ["BreakoutNoFrameskip-v4", "PongNoFrameskip-v4"]
    runs = [
        record("ppo_clip", env, seed, score)
        for env, score in zip(games, (30.5, 14.6), strict=True)
        for seed in range(2)
    ]
    write(tmp_path, [*RECORDS, *runs, record("trpo", games[0], 0, 30.5)])
    assert main(["report", "--out", str(tmp_path)]) == 0
    shares = text_of(tmp_path / "report.md").partition("### Human-normalised scores")[2].partition("\n### ")[0]
    assert "| ppo_clip | 1.000 | 1.000 |" in shares and "A-v0" not in shares
    assert "Over all games, with 95% intervals, the mean: ppo_clip 1.00. Only seeds with a run" in shares
    assert "Only seeds with a run in every game count." in shares and ": trpo" not in shares


@pytest.mark.slow
def test_runs_are_tracked_elsewhere_and_learn_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("WANDB_MODE", "offline")
    conditions = Conditions(timesteps=512, parameters={"n_steps": 16, "batch_size": 64})
    _, run = make_plan([read_setting("ppo_clip")], ["CartPole-v1"], 1, conditions).runs
    # The second run writes over the files of the first.
    for _ in range(2):
        tracked = perform(run, tracking=Tracking(tmp_path / "boards", "trial", tmp_path))
        assert tracked["status"] == "finished", tracked["error"]
    plain = perform(run)
    assert all(tracked[part] == plain[part] for part in ("episodes", "training"))
    events = EventAccumulator(str(tmp_path / "boards" / run.name))
    events.Reload()
    # SB3 logs the statistics of an update with the next rollout.
    assert [event.step for event in events.Scalars("train/kl")] == [256, 384, 512, 512]
    assert len(list((tmp_path / "wandb").glob("offline-run-*"))) == 2


def test_names_are_not_longer_than_weights_and_biases_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has at most 128 characters, which a setting of the paper's Figure 3 exceeds."""
    wandb = pytest.importorskip("wandb")
    init = MagicMock()  # Its result is a context.
    monkeypatch.setattr(wandb, "init", init)
    runs = [run for run in planned(["--config", "paper-figure3"]).runs if run.algorithm]
    for run in runs:
        with Tracking(wandb="trial", wandb_folder=tmp_path).log(run, MagicMock()):
            pass
    names, groups = ([call.kwargs[key] for call in init.call_args_list] for key in ("name", "group"))
    assert max(map(len, names)) == max(map(len, groups)) == 128
    assert len(set(names)) == len(runs) and len(set(groups)) == len(runs) / 3
    assert "sb3_a2c, Hopper-v5, seed 0" in names and "sb3_a2c, Hopper-v5" in groups


@pytest.mark.parametrize(
    ("package", "option", "message"),
    [("wandb", ["--wandb", "x"], r"\[wandb\]"), ("tensorboard", ["--tensorboard", "x"], r"\[examples\]")],
)
def test_a_missing_package_names_its_extra(
    package: str, option: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SystemExit, match=message):
        main(["compare", "--out", str(tmp_path / "out"), "--dry-run", *option])
    assert not (tmp_path / "out").exists()
