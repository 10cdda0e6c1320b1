"""The interactive page evaluates the objectives in JavaScript, with the same results as the package."""

import json
from collections.abc import Callable, Iterator
from inspect import signature
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from javascript import STATIC, evaluate

from benchmarks.figures.ratio import by_ratio
from sb3_ppo_variants import PPOClip, PPOFixedKL, objectives
from sb3_ppo_variants.objectives import NativeObjective
from sb3_ppo_variants.objectives.trust_region import DISCRETE_DELTA

# The objectives with the values of the sliders that each has.
MADE: dict[str, Callable[[dict[str, float]], NativeObjective]] = {
    "Unclipped": lambda c: objectives.Unclipped(),
    "Clipped": lambda c: objectives.Clipped(c["eps"]),
    "ClipHigher": lambda c: objectives.ClipHigher(c["eps"], c["epsHigh"]),
    "DualClip": lambda c: objectives.DualClip(c["eps"], c["c"]),
    "CISPO": lambda c: objectives.CISPO(c["epsHigh"]),
    "Rollback": lambda c: objectives.Rollback(c["eps"], c["alpha"]),
    "TrulyPPO": lambda c: objectives.TrulyPPO(c["delta"], c["alphaKL"]),
    "TRGPPO": lambda c: objectives.TRGPPO(c["eps"], c["deltaTRG"]),
    "SPO": lambda c: objectives.SPO(c["eps"]),
    "P3O": lambda c: objectives.P3O(c["tau"], c["betaP3O"]),
    "SAPO": lambda c: objectives.SAPO(c["tauPos"], c["tauNeg"]),
    "DPO": lambda c: objectives.DPO(c["alphaDPO"], c["betaDPO"]),
    "KLPenalized": lambda c: objectives.KLPenalized(kl_coef=c["beta"]),
    "KLHinge": lambda c: objectives.KLHinge(c["target"], c["beta"], c["eta"]),
    "ReverseKL": lambda c: objectives.ReverseKL(c["betaReverse"]),
}
# The same curves as another: with a rule for beta, with a schedule for it, or with a rule that ends updates.
SAME_CURVES = {"AdaptiveKL", "AdaptiveReverseKL", "MDPO", "ESPO"}
# Where an argument has no default, that of the class of the algorithm, or of the distribution.
DEFAULTS = {
    "Clipped": objectives.Clipped(0.2),
    "KLPenalized": objectives.KLPenalized(kl_coef=1.0),
    "TRGPPO": objectives.TRGPPO(delta=DISCRETE_DELTA),
}
ADVANTAGES = (-2.3, -1.0, 1.0, 0.4)
PARTS = np.linspace(0.0031, 0.9973, 37)


class Case(NamedTuple):
    """What one objective is evaluated for."""

    name: str
    ratio: list[float]
    advantage: float
    coefficients: dict[str, float]


def javascript(expression: str) -> Any:
    """Evaluate an expression after the script of the page."""
    return evaluate(expression, STATIC / "objectives.js")


def cases() -> Iterator[Case]:
    """Generate samples with the first values of the sliders, and with random ones."""
    sliders, rng = javascript("COEFFICIENTS"), np.random.default_rng(0)
    first = {key: slider["first"] for key, slider in sliders.items()}
    drawn = [{key: rng.uniform(s["from"], s["to"]) for key, s in sliders.items()} for _ in range(3)]
    for name, advantage, coefficients in product(MADE, ADVANTAGES, (first, *drawn)):
        ratio = PARTS * min(4, 1 / coefficients["oldProb"])
        yield Case(name, ratio.tolist(), advantage, coefficients)


def test_the_page_has_the_formulas_of_the_package() -> None:
    evaluated = list(cases())
    given = json.dumps([case._asdict() for case in evaluated])
    run = "({name, ratio, advantage, coefficients}) => ratio.map((r) => evaluate(name, r, advantage, coefficients))"
    for case, found in zip(evaluated, javascript(f"{given}.map({run})"), strict=True):
        objective = MADE[case.name](case.coefficients)
        expected = by_ratio(objective, np.array(case.ratio), case.advantage, case.coefficients["oldProb"])
        for key, array in zip(("value", "slope"), expected, strict=True):
            own = np.array([at[key] for at in found])
            np.testing.assert_allclose(own, array, rtol=1e-8, atol=1e-10, err_msg=f"{key} of {objective}, {case}")


def test_the_page_has_every_objective() -> None:
    curves = {name for name, found in objectives.list_objectives().items() if issubclass(found, NativeObjective)}
    assert set(javascript("Object.keys(OBJECTIVES)")) == set(MADE) == curves - SAME_CURVES


def test_the_sliders_start_at_the_defaults_of_the_package() -> None:
    first = {key: slider["first"] for key, slider in javascript("COEFFICIENTS").items()}
    for name, made in MADE.items():
        assert made(first) == (DEFAULTS[name] if name in DEFAULTS else type(made(first))())
    for cls in (PPOClip, PPOFixedKL):
        arguments = signature(cls).parameters
        for name, value in vars(DEFAULTS["Clipped" if cls is PPOClip else "KLPenalized"]).items():
            assert arguments[name].default == value
