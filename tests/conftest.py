"""Fixtures and hooks for all tests."""

import multiprocessing
import pickle
import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterator
from functools import partial
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from math import ceil
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium as gym
import pytest
import torch as th

from fresh import IMPORTED, METHOD
from helpers import OPTIONAL, in_double_precision
from sb3_ppo_variants.engines.native.library import INSTRUCTIONS, library

if METHOD == "forkserver":
    # This also speeds up the worker processes of environments.
    multiprocessing.set_forkserver_preload(IMPORTED)

# Shells start background jobs with Ctrl-C ignored, and tests that send it to themselves would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests that import one of these packages are skipped.
ABSENT = {name for name in OPTIONAL if find_spec(name) is None}

if "rl_zoo3" not in ABSENT:
    # Importing rl_zoo3 permanently replaces gymnasium's TimeLimit, which all tests except those of its scripts need.
    TIME_LIMIT = gym.wrappers.TimeLimit
    import_module("rl_zoo3")
    for module in (gym.wrappers, gym.wrappers.common, gym.envs.registration):
        vars(module)["TimeLimit"] = TIME_LIMIT


def absent(error: BaseException | None) -> str | None:
    """Return the optional package whose absence caused an error, or ``None`` if there was another cause."""
    if isinstance(error, ModuleNotFoundError) and error.name in ABSENT:
        return error.name
    return None if error is None else absent(error.__cause__ or error.__context__)


def skip_without(report: pytest.CollectReport | pytest.TestReport, call: pytest.CallInfo[Any] | None) -> None:
    if call is not None and call.excinfo is not None and (package := absent(call.excinfo.value)):
        report.outcome = "skipped"
        report.longrepr = (report.fspath, 0, f"Skipped: {package} is not installed")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, Any, pytest.CollectReport]:
    report = yield
    skip_without(report, report.call)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[Any]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    skip_without(report, call)
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow all but one in ``n`` cases of each test with the marker ``sampled(n)``."""
    cases: dict[tuple[str, str], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sampled") and not item.get_closest_marker("slow"):
            cases[str(item.path), getattr(item, "originalname", item.name)].append(item)
    for alike in cases.values():
        (n,) = alike[0].get_closest_marker("sampled").args  # type: ignore[union-attr]
        for item in set(alike).difference(spread(alike, ceil(len(alike) / n))):
            item.add_marker(pytest.mark.slow)


def spread(cases: list[pytest.Item], n: int) -> list[pytest.Item]:
    """Choose ``n`` of the cases of a test, so that the values of each of its arguments occur about equally often.

    Where several cases would do, digests of their names choose, so that most choices stay when cases are added.
    """
    values = {
        case: [(name, id(value)) for name, value in case.callspec.params.items()]  # type: ignore[attr-defined]
        for case in cases
    }
    left = sorted(cases, key=lambda case: sha256(case.name.encode()).digest())
    chosen: list[pytest.Item] = []
    occurred: Counter[tuple[str, int]] = Counter()
    for _ in range(n):
        chosen.append(min(left, key=lambda case: sum(occurred[value] for value in values[case])))
        left.remove(chosen[-1])
        occurred.update(values[chosen[-1]])
    return chosen


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    th.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed() -> None:
    th.manual_seed(0)


@pytest.fixture
def natively() -> None:
    """Use the fast path of the native library, which must have been built."""
    if library() is None:
        pytest.skip("the native library was not built")


@pytest.fixture(params=INSTRUCTIONS)
def each_instruction_set(request: pytest.FixtureRequest, natively: None) -> Iterator[None]:
    """Make the library use each instruction set that this processor supports."""
    native = library()
    assert native is not None
    best = native.instructions
    if not native.use(request.param):
        pytest.skip(f"this processor has no {request.param}")
    assert native.instructions == request.param
    yield
    native.use(best)


@pytest.fixture
def nothing_is_unpickled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if anything is unpickled."""

    class Forbidden(pickle.Unpickler):
        def __init__(self, *_: object, **__: object):
            raise AssertionError("unpickled")

    for module, name in ((pickle, "loads"), (pickle, "load"), (pickle, "Unpickler"), (cloudpickle, "loads")):
        monkeypatch.setattr(module, name, Forbidden)


@pytest.fixture
def blank_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Save pictures as empty files, because drawing them takes most of the time of a report."""
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda _, file, **__: Path(file).touch())


@pytest.fixture
def double_precision(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Return a function that makes a model compute in double precision; see ``in_double_precision``."""
    return partial(in_double_precision, monkeypatch)
