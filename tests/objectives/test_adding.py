"""What it takes to add something: an objective is in four files, a statistic in two places, an argument in two."""

import re
from pathlib import Path
from typing import Any, ClassVar

import pytest

import sb3_ppo_variants
from helpers import small
from sb3_ppo_variants import ArgumentError, PPOClip
from sb3_ppo_variants.arguments import FINITE
from sb3_ppo_variants.engines.reference import TorchUpdate
from sb3_ppo_variants.objectives import NativeObjective, list_objectives
from sb3_ppo_variants.statistics import STATISTICS, Statistic

PACKAGE = Path(sb3_ppo_variants.__file__).parent
TEXTS = {
    str(path.relative_to(PACKAGE)): path.read_text()
    for suffix in ("py", "hpp")
    for path in PACKAGE.rglob(f"*.{suffix}")
}
# The names of the others are words of other files too.
OF_THE_FIELD = ["SAPO", "DPO", "CISPO", "Rollback", "KLHinge"]


@pytest.mark.parametrize("name", OF_THE_FIELD)
def test_an_objective_is_in_four_files(name: str) -> None:
    found = list_objectives()[name]
    assert issubclass(found, NativeObjective)
    pattern = re.compile(rf"\b({name}|{found.term})\(|\b{name},|\b{found.term}\b")
    files = {path for path, text in TEXTS.items() if pattern.search(text)}
    native = {f"engines/native/{file}.hpp" for file in ("interface", "objectives")}
    assert native | {"objectives/__init__.py"} < files and len(files) == 4


def test_a_statistic_is_a_line_and_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of the table, and one where the reference engine measures it. It is then checked, reduced and logged."""
    monkeypatch.setitem(STATISTICS, "spread", Statistic("spread", "return_spread"))
    loss = TorchUpdate.loss

    def noting(update: Any, samples: Any) -> Any:
        update._note(spread=samples.returns.std())
        return loss(update, samples)

    monkeypatch.setattr(TorchUpdate, "loss", noting)
    model = small(PPOClip, fast=False, n_epochs=1, batch_size=32).learn(32)
    assert model.logger.name_to_value["train/return_spread"] == pytest.approx(model.rollout_buffer.returns.std(ddof=1))


class Shifted(PPOClip):
    """Has another argument: a rule, and a name in the signature."""

    rules: ClassVar[Any] = {**PPOClip.rules, "shift": FINITE}

    def __init__(self, *args: Any, shift: float, **arguments: Any):
        self.shift = shift
        super().__init__(*args, **arguments)


def test_an_argument_is_a_rule_and_a_name() -> None:
    model = small(Shifted, shift=-1.0)
    assert model.current_argument("shift") == -1.0
    model.shift = float("nan")
    with pytest.raises(ArgumentError, match=r"^shift=nan is not allowed; .* a finite number"):
        model.learn(32)
