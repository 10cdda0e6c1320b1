"""Runs keep their names in all versions, so that recorded runs are not repeated."""

import inspect
from dataclasses import fields
from pathlib import Path

import pytest
from committed import needs_records

from sb3_ppo_variants import PPOClip
from sb3_ppo_variants.compare import records
from sb3_ppo_variants.compare.config import read_config
from sb3_ppo_variants.compare.plan import Run, make_plan
from sb3_ppo_variants.compare.settings import Conditions, read_setting

RESULTS = Path(__file__).parents[2] / "results"
ENV = "CartPole-v1"


class Strict(PPOClip):
    """A user's class, all of whose arguments are recorded."""

    def __init__(self, *args: object, strictness: float = 1.0, **kwargs: object):
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]


def committed(file: Path) -> list[records.Record]:
    found, problems = records.unpack(file)
    assert found and not problems
    return found


@pytest.mark.parametrize("file", sorted(RESULTS.glob("*.jsonl.gz")), ids=lambda file: file.name)
def test_committed_records_have_the_names_of_their_runs(file: Path) -> None:
    for record in committed(file):
        run = Run(**{field.name: record[field.name] for field in fields(Run)})  # type: ignore[literal-required]
        assert run.name == record["name"]


@needs_records
def test_the_runs_of_the_study_are_found_again() -> None:
    preset = read_config(str(Path(__file__).parents[2] / "benchmarks" / "comparisons" / "table1-study.yml"))
    settings = [read_setting(text) for text in preset.settings]
    plans = [make_plan(settings, preset.envs, preset.seeds, each) for each in preset.conditions]
    names = {run.name for plan in plans for run in plan.runs}
    assert {record["name"] for record in committed(RESULTS / "table1-study.jsonl.gz")} <= names


@pytest.mark.parametrize("algorithm", ["ppo_clip", f"{__name__}:Strict"])
def test_a_later_argument_at_its_default_changes_no_name(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*arguments: str) -> Run:
        setting = read_setting(":".join([algorithm, ",".join(arguments)]) if arguments else algorithm)
        return make_plan([setting], [ENV], 1, Conditions(timesteps=64)).runs[-1]

    before = run()
    signature = inspect.signature(PPOClip.__init__)
    novel = inspect.Parameter("novel", inspect.Parameter.KEYWORD_ONLY, default=3)
    later = signature.replace(parameters=[*signature.parameters.values(), novel])
    monkeypatch.setattr(PPOClip.__init__, "__signature__", later, raising=False)
    at_default = run("novel=3")
    assert before.name == run().name and before.hyperparameters == at_default.hyperparameters
    assert run("novel=4").hyperparameters == {**before.hyperparameters, "novel": 4}


def test_a_file_can_have_the_name_of_any_run(tmp_path: Path) -> None:
    for letter in "xä走𐀀":
        name = Run(200 * letter, "module:Class", ENV, 0, 1, {}, {}).name
        (tmp_path / f"{name}.json").touch()
        assert name.startswith(50 * letter)


def test_all_arguments_of_a_users_class_are_recorded() -> None:
    (run,) = make_plan([read_setting(f"{__name__}:Strict")], [ENV], 1, Conditions(timesteps=64)).runs[1:]
    assert run.hyperparameters["strictness"] == 1.0
