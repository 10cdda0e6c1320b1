"""From the same rollout, all paths compute the same update in double precision, for any model."""

from typing import Any

import pytest
import torch as th
from fuzzing import fuzz
from hypothesis import event, given
from models import PATHS, collected, in_double, state_of, updated


def assert_close(got: Any, wanted: Any, where: str = "state") -> None:
    assert type(got) is type(wanted), where
    if isinstance(wanted, dict):
        assert got.keys() == wanted.keys(), where
        for key, value in wanted.items():
            assert_close(got[key], value, f"{where}[{key!r}]")
    elif isinstance(wanted, list):
        assert len(got) == len(wanted), where
        for i, value in enumerate(wanted):
            assert_close(got[i], value, f"{where}[{i}]")
    elif isinstance(wanted, th.Tensor):
        th.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-8, msg=lambda text: f"{where}: {text}")
    elif isinstance(wanted, float):
        assert got == pytest.approx(wanted, rel=1e-5, abs=1e-7, nan_ok=True), where
    else:
        assert got == wanted, where


@pytest.mark.filterwarnings("ignore")
@fuzz(examples=50, endless=150)
@given(model=collected())
def test_all_paths_make_the_same_update(model: Any) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        in_double(model, monkeypatch)
        before = state_of(model)
        (reference, wanted), *others = [updated(model, path) for path in PATHS]
    event(f"{type(model).__name__}: {'an update' if isinstance(wanted, dict) else wanted.partition(' of ')[0]}")
    for fast, got in others:
        if isinstance(wanted, str):
            assert isinstance(got, str), f"the reference raised {wanted}, another path nothing"
            assert_close(reference, before)
            assert_close(fast, before)
        else:
            assert_close(got, wanted, "log")
            assert_close(fast, reference)
