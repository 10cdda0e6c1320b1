"""The comparison of all objectives of the package."""

import inspect
from pathlib import Path

import pytest
from comparing import planned, text_of, written

from sb3_ppo_variants.__main__ import main
from sb3_ppo_variants.compare.plan import OBJECTIVE_SETTINGS, OTHERS, PRESETS
from sb3_ppo_variants.objectives import list_objectives, read_objective, surrogates

PAPERS = ["ppo_clip", "ppo_adaptive_kl", "ppo_fixed_kl", "ppo_unclipped"]
SHORT = ["--seeds", "1", "--timesteps", "256", "-p", "n_steps=64", "-p", "n_epochs=1", "--jobs", "2"]


def test_every_exported_objective_is_compared() -> None:
    of_paper = {name for name in list_objectives() if hasattr(surrogates, name)}
    assert of_paper == {"Clipped", "Unclipped", "KLPenalized", "AdaptiveKL"}
    assert {*OTHERS} == list_objectives().keys() - of_paper
    assert [*OBJECTIVE_SETTINGS] == [*PAPERS, *(f"ppo_custom:objective={name}" for name in OTHERS)]


@pytest.mark.parametrize("name", OTHERS)
def test_every_objective_of_the_literature_has_defaults(name: str) -> None:
    made = read_objective(name)
    assert type(made).__name__ == name and made.coefficients()
    assert made.__doc__ and inspect.signature(type(made)).parameters


def test_a_run_has_the_papers_hyperparameters() -> None:
    plan = planned(["--preset", "objectives"])
    preset = PRESETS["objectives"]
    assert preset.envs == ["CartPole-v1", "Pendulum-v1", "HalfCheetah-v5", "Hopper-v5", "Walker2d-v5"]
    trainings = [run for run in plan.runs if run.algorithm]
    assert len({run.name for run in trainings}) == len(OBJECTIVE_SETTINGS) * len(preset.envs) * 3
    table_3 = {"n_steps": 2048, "learning_rate": "lin_0.0003", "n_epochs": 10, "batch_size": 64, "normalize": True}
    for run in trainings:
        assert run.timesteps == 500_000
        assert {name: run.hyperparameters[name] for name in table_3} == table_3


@pytest.mark.slow
@pytest.mark.usefixtures("blank_pictures")
def test_one_command_trains_all_and_continues(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["compare", "--preset", "objectives", *SHORT, "--out", str(tmp_path)]
    first = [*command, "--envs", "CartPole-v1"]
    assert main(first) == 0
    labels = [text.replace(":", " ", 1) for text in OBJECTIVE_SETTINGS]
    made = written(tmp_path)
    assert [record["status"] for record in made.values()] == ["finished"] * (len(labels) + 1)
    assert {*labels} < {record["label"] for record in made.values()}
    text = text_of(tmp_path / "report.md")
    assert f"coverage of the preset: {len(labels)} of {len(labels)} settings, 1 of 5 environments" in text
    assert "compare --preset objectives" in text and "--algos" not in text
    capsys.readouterr()
    assert main([*command, "--envs", "CartPole-v1", "Pendulum-v1", "--dry-run"]) == 0
    told = capsys.readouterr().out
    count = len(labels) + 1
    assert f"{2 * count} runs, 2 of them of the random policy: {count} are finished, {count} to make" in told
