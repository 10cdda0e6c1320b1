"""The messages of the command line before a run begins."""

import io
import sys
from pathlib import Path

import pytest

from sb3_ppo_variants.__main__ import main

STUDY = str(Path(__file__).parents[2] / "benchmarks" / "comparisons" / "table1-study.yml")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            ["--algos", "ppo_clip:clip_range=-1"],
            r"ppo_clip clip_range=-1 cannot run in CartPole-v1: clip_range=-1 is not allowed",
        ),
        (
            ["--algos", "ppo_clip:policy=MaskableMlpPolicy"],
            r"policy=MaskableMlpPolicy cannot run in CartPole-v1: MaskableActorCriticPolicy needs action masks, but .*",
        ),
        (["--algos", "contrib_maskable_ppo"], "contrib_maskable_ppo cannot run in CartPole-v1: .* needs action masks"),
        (["--envs", "Pendulum-v9"], "env_id='Pendulum-v9'"),
        (
            ["--config", STUDY, "--no-anneal"],
            "^--no-anneal cannot change --config .*",
        ),
        (
            ["--config", STUDY, "--normalize"],
            "^--normalize cannot change --config .*",
        ),
        (
            ["--config", STUDY, "-p", "gamma=0.9"],
            "^-p gamma=0.9 cannot change --config .*",
        ),
        (
            ["--config", STUDY, "--protocol", "text", "--hyperparams", "f.yml", "--entry", "mujoco"],
            "^--protocol text, --hyperparams f.yml, --entry mujoco cannot change --config .*",
        ),
        (["--config", "paper"], "--config paper is neither atari-demo, .*paper-table1 nor a YAML file of a comparison"),
        (["-p", "gamma"], "'gamma' must be name=value"),
        (["-p", "gamma=0.9", "-p", "gamma=0.8"], "gamma is given more than once"),
        (["--from", "none.jsonl.gz"], "--from none.jsonl.gz cannot be read as a file that report --export wrote"),
        (["-p", "fast_envs=True"], "fast_envs cannot be a hyperparameter of a comparison: use --fast-envs"),
        (["--algos", "ppo_clip:fast_envs=True"], "fast_envs cannot be an argument of a setting, .*: use --fast-envs"),
        (
            ["--config", STUDY, "--resume-every", "64", "--normalize"],
            "^--normalize, --resume-every 64 cannot change --config .*",
        ),
        (["--resume-every", "0"], "--resume-every must be at least 1, not 0"),
        (["--resume-every", "64"], "--resume-every 64 needs algorithms of this package, .*; sb3_ppo cannot"),
        (["--jobs", "0"], "--jobs must be at least 1, not 0"),
        (["--address", "127.0.0.1:1"], "--address 127.0.0.1:1 is for --backend ray or dask"),
    ],
)
def test_the_command_refuses_before_it_writes(arguments: list[str], message: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(SystemExit, match=message):
        main(["compare", "--out", str(out), "--seeds", "1", "--timesteps", "64", "--dry-run", *arguments])
    assert not out.exists()


def test_a_folder_that_can_not_be_written_in_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit, match=r"--out .*file cannot be written to: .*Not a directory"):
        main(["compare", "--out", str(tmp_path / "file"), "--algos", "ppo_clip", "--seeds", "1"])
    boards = ["--tensorboard", str(tmp_path / "file" / "boards")]
    with pytest.raises(SystemExit, match=r"--tensorboard .*boards cannot be written to: .*Not a directory"):
        main(["compare", "--out", str(tmp_path / "out"), "--algos", "ppo_clip", "--seeds", "1", *boards])


def test_an_output_may_lack_characters_of_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stdout", output)
    tasks = ["--envs", "troubled_envs:SaysWhy-v0", "--algos", "ppo_clip", "--seeds", "1", "--timesteps", "64"]
    assert main(["compare", "--out", str(tmp_path), "--jobs", "1", *tasks]) == 1
    output.flush()
    assert b"d\\xe9j\\xe0 vu" in output.buffer.getvalue()
    # The run of the random policy, which fails first, does not end the others.
    assert len(list((tmp_path / "records").glob("*.json"))) == 2


def test_an_abbreviation_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``--seed 7`` would be seven seeds."""
    with pytest.raises(SystemExit):
        main(["compare", "--algos", "ppo_clip", "--seed", "7", "--dry-run", "--out", str(tmp_path)])
    assert "unrecognized arguments: --seed 7" in capsys.readouterr().err


def test_the_plan_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--algos", "ppo_clip", "sb3_a2c", "--timesteps", "64", "-p", "batch_size=32", "--out", str(tmp_path)]
    assert main(["compare", *arguments, "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "settings: ppo_clip; sb3_a2c" in shown
    assert "7 runs, 1 of them of the random policy: 0 are finished, 7 to make" in shown
    assert "sb3_a2c in CartPole-v1 does not use batch_size" in shown


def test_options_with_several_values_may_be_repeated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["--algos", "ppo_clip", "--algos", "ppo_unclipped", "sb3_ppo", "--envs", "Pendulum-v1", "--envs"]
    assert main(["compare", *settings, "CartPole-v1", "--timesteps", "64", "--out", str(tmp_path), "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "settings: ppo_clip; ppo_unclipped; sb3_ppo\nenvironments: Pendulum-v1; CartPole-v1" in shown


def test_a_setting_that_is_not_annealed_is_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["--algos", "ppo_clip:learning_rate=0.001", "ppo_clip:learning_rate=lin_0.001"]
    assert main(["compare", *settings, "--anneal", "--timesteps", "64", "--out", str(tmp_path), "--dry-run"]) == 0
    (noted,) = (line for line in capsys.readouterr().out.splitlines() if "not annealed" in line)
    assert noted.startswith("- ppo_clip learning_rate=0.001 is not annealed") and noted.endswith("write lin_0.001")
