"""Every example runs to the end, as a user would run it."""

from pathlib import Path

import pytest

from fresh import ended, run_script

EXAMPLES = Path(__file__).parents[2] / "examples"
RECIPE = ["--timesteps", "64", "--episodes", "1"]
ARGUMENTS = {
    "adaptive_kl": ["--timesteps", "1024"],
    "from_recipe": RECIPE,
    "data_parallel": ["--timesteps", "2048"],
    "gif": ["--timesteps", "1024", "--steps", "20"],
    "hybrid": ["--timesteps", "1024"],
    "masked": ["--timesteps", "1024"],
    "masked_recurrent": ["--timesteps", "512"],
    "recurrent": ["--timesteps", "256"],
    "separate_updates": ["--timesteps", "3072"],
    "clip": ["--timesteps", "1024"],
    "fixed_kl": ["--timesteps", "1024"],
    "unclipped": ["--timesteps", "1024"],
}
# These differ from other examples only in names.
ALIKE = ["fixed_kl", "unclipped"]
SLOW = dict.fromkeys(ALIKE, pytest.mark.slow)


def test_all_are_run() -> None:
    assert {path.stem for path in EXAMPLES.glob("[!_]*.py")} == {*ARGUMENTS, "environments"}


def run(name: str, folder: Path, *options: str) -> str:
    command = [str(EXAMPLES / f"{name}.py"), *ARGUMENTS[name], *options]
    result = ended(run_script, *command, folder=folder, OMP_NUM_THREADS="1", MPLBACKEND="agg")
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW.get(name, ())) for name in ARGUMENTS])
def test_example(name: str, tmp_path: Path) -> None:
    output = run(name, tmp_path)
    assert output
    if name == "from_recipe":
        assert output.index("with --episodes") < output.index("Mean reward of the saved model")
    if name == "clip":
        assert "Mean reward of the model loaded from runs/cartpole" in output
        assert (tmp_path / "runs/cartpole/model.zip").exists()
        assert (tmp_path / "runs/cartpole/learning_curve.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("option", ["--episodes", "--timesteps"])
def test_nothing_to_evaluate_is_refused_before_training(option: str, tmp_path: Path) -> None:
    result = ended(run_script, str(EXAMPLES / "from_recipe.py"), option, "0", folder=tmp_path)
    assert f"{option} must be an integer >= 1, not 0" in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--algo", "ppo_custom"], "argument --algo: invalid choice: 'ppo_custom' (choose from "),
        (["--seed", "-1"], "error: seed=-1 is not allowed"),
        (["--folder", "cartpole.txt"], "File exists: 'cartpole.txt'"),
    ],
)
def test_mistakes_are_said_in_a_line(options: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "cartpole.txt").touch()
    result = ended(run_script, str(EXAMPLES / "from_recipe.py"), *RECIPE, *options, folder=tmp_path)
    assert result.returncode == 2 and message in result.stderr and "Traceback" not in result.stderr
