"""Objectives of the user in comparisons, recipes and the RL Zoo, named in text."""

from pathlib import Path
from typing import Any

import pytest

from own_objectives import SPO
from sb3_ppo_variants import ArgumentError, Objective, PPOCustom
from sb3_ppo_variants.__main__ import main
from sb3_ppo_variants.objectives import EWMA, AdaptiveKL, Clipped, Unclipped, read_objective
from sb3_ppo_variants.recipes import evaluate, recipe, train

ENV = "CartPole-v1"


@pytest.mark.parametrize(
    ("text", "epsilon"),
    [
        ("own_objectives:SPO(0.1)", 0.1),
        ("own_objectives:SPO(epsilon=3e-1)", 0.3),
        (" own_objectives : SPO ( 1 ) ", 1),
        ("own_objectives:SPO()", 0.2),
        ("own_objectives:SPO", 0.2),
    ],
)
def test_an_objective_as_text(text: str, epsilon: float) -> None:
    assert read_objective(text) == SPO(epsilon)


@pytest.mark.parametrize(
    "text",
    ["SP0(0.2)", "Objective()", "own_objectives:", "own_objectives:SPO(0.2", "own_objectives:SPO(print())",
     "own_objectives:SPO(**{})", "own_objectives:SPO(1 + x)",
     "own_objectives:(SPO)(0.2).loss", "own_objectives:SPO(0.1)(0.2)"],
)  # fmt: skip
def test_other_texts_are_refused(text: str) -> None:
    allowed = r"is not allowed; allowed: .*Clipped, .* or module:Class, with literal arguments, as in SPO\(0.2\)"
    with pytest.raises(ArgumentError, match=allowed):
        read_objective(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("no_such_module:SPO(0.2)", "cannot be created: ModuleNotFoundError: No module named 'no_such_module'"),
        ("own_objectives:SPA(0.2)", "cannot be created: AttributeError"),
        ("own_objectives:SPO(0.2, 3)", "cannot be created: TypeError"),
        ("EWMA(Cliped(0.2))", r"objective='Cliped\(0.2\)' is not allowed; allowed: .*Clipped"),
        ("builtins:dict()", "is not an objective: dict must derive from Objective"),
    ],
)
def test_what_is_no_objective_is_refused(text: str, why: str) -> None:
    with pytest.raises(ArgumentError, match=why):
        read_objective(text)


@pytest.mark.parametrize(
    ("text", "objective"),
    [
        ("Clipped(0.2)", Clipped(0.2)),
        (" AdaptiveKL ( kl_coef=2.0, desired_kl=1e-2 ) ", AdaptiveKL(kl_coef=2.0, desired_kl=0.01)),
        ("Unclipped", Unclipped()),
        ("EWMA(Unclipped(), decay=0.5)", EWMA(Unclipped(), 0.5)),
        ("sb3_ppo_variants.objectives:Unclipped()", Unclipped()),
    ],
)
def test_an_objective_of_this_package_needs_no_module(text: str, objective: Objective) -> None:
    assert read_objective(text) == objective


def test_a_mistyped_objective_is_refused_before_the_first_run(tmp_path: Path) -> None:
    algos = ["--algos", "ppo_clip", "ppo_custom objective=Cliped(0.1)", "--seeds", "1", "--timesteps", "64"]
    with pytest.raises(SystemExit, match=r"objective='Cliped\(0.1\)' is not allowed; allowed: .*Clipped"):
        main(["compare", *algos, "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("objective", "made_of_it"),
    [("own_objectives:SPO(0.1)", SPO(0.1)), (SPO(0.1), SPO(0.1)), ("Clipped(0.1)", Clipped(0.1))],
)
def test_recipes(objective: Any, made_of_it: Objective, tmp_path: Path) -> None:
    made = recipe("ppo_custom", ENV, objective=objective, n_timesteps=256)
    model = train(made, tmp_path, seed=1)
    assert isinstance(model, PPOCustom) and model.objective == made_of_it
    assert len(evaluate(made, tmp_path, episodes=2)) == 2
