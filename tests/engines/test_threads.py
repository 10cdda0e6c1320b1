"""Threads share the updates of the native library, whose results do not depend on how many there are."""

import multiprocessing
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch as th
from engine_models import OWN, SDE, assert_same_update, collected

from helpers import BOX, flat_weights, update
from sb3_ppo_variants import ApproximateKL, KLAdaptive, PPOClip, PPOCustom, PPOFixedKL, SeparateUpdates
from sb3_ppo_variants.engines.native import update as native_update
from sb3_ppo_variants.engines.native.update import divide_work
from sb3_ppo_variants.objectives import EWMA, Clipped, KLHinge

THREADS = (1, 2, 3, 4, 7)
SETTINGS: dict[str, tuple[Any, dict[str, Any]]] = {
    "one loss": (PPOClip, {"ent_coef": 0.02, "max_grad_norm": 0.05}),
    "both directions of the KL": (PPOFixedKL, {"kl_coef": 3.0, "clip_range": 0.1}),
    "separate updates": (PPOClip, {"updates": SeparateUpdates(2, 3)}),
    "an early stop": (PPOClip, {"stop": ApproximateKL(1e-3, "epoch"), "learning_rate": 3e-3}),
    "adaptive steps": (PPOClip, {"learning_rate": KLAdaptive(desired_kl=1e-3, every="minibatch")}),
    "the mean KL of a minibatch": (PPOCustom, {"objective": KLHinge(0.01, kl_coef=2.0)}),
    "an objective in Python": (PPOCustom, {"objective": OWN["of states"]}),
    "parameters in Python": (PPOCustom, {"objective": OWN["of parameters"]}),
    "an EWMA": (PPOCustom, {"objective": EWMA(Clipped(0.2))}),
    "gSDE": (PPOFixedKL, {"use_sde": True, "policy_kwargs": SDE["plain"]}),
    "gSDE with one deviation": (PPOFixedKL, {"use_sde": True, "policy_kwargs": SDE["one deviation"]}),
}

pytestmark = pytest.mark.usefixtures("natively", "_same_threads_after")


@pytest.fixture
def _same_threads_after() -> Iterator[None]:
    before = th.get_num_threads()
    yield
    th.set_num_threads(before)


@pytest.fixture
def divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divide small minibatches too: those of 50 states into 7 blocks, and parameters into many ranges."""
    monkeypatch.setattr(native_update, "WORTH_A_THREAD", 1)
    monkeypatch.setattr(native_update, "BLOCK_ROWS", 8)
    monkeypatch.setattr(native_update, "RANGE_SIZE", 37)


def results(model: Any, n_threads: int) -> tuple[Any, ...]:
    """Return everything that an update in so many threads computes."""
    th.set_num_threads(n_threads)
    updated = update(model, fast=True)
    gradients = [parameter.grad for parameter in updated.policy.parameters()]
    logged = {key: value for key, value in updated.logger.name_to_value.items() if isinstance(value, float)}
    return updated.get_parameters(), gradients, logged, updated._n_updates


def assert_same(model: Any) -> None:
    """Check that updates do not depend on the number of threads, bit for bit."""
    wanted = results(model, 1)
    assert all(gradient is not None and gradient.isfinite().all() for gradient in wanted[1])
    for n_threads in THREADS[1:]:
        th.testing.assert_close(results(model, n_threads), wanted, rtol=0, atol=0)


def with_batches(model: Any, batch_size: int = 50) -> Any:
    """Return a model with minibatches of several blocks, of which the last one has fewer states."""
    model.batch_size = batch_size
    if model.use_sde:
        with th.no_grad():  # Noise that requires gradients cannot be deep-copied.
            model.policy.reset_noise()
    return model


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("divided")
@pytest.mark.parametrize("name", SETTINGS)
def test_updates_do_not_depend_on_the_number_of_threads(name: str) -> None:
    cls, settings = SETTINGS[name]
    assert_same(with_batches(collected(cls, BOX, **{"n_epochs": 3, **settings})))


@pytest.mark.usefixtures("each_instruction_set")
def test_large_networks_and_minibatches_are_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule itself divides these: 300 states are two whole blocks and a part of one."""
    found: list[dict[str, int]] = []

    def noted(*arguments: Any) -> dict[str, int]:
        found.append(divide_work(*arguments))
        return found[-1]

    monkeypatch.setattr(native_update, "divide_work", noted)
    large: dict[str, Any] = {"n_steps": 200, "n_epochs": 1, "policy_kwargs": {"net_arch": [256, 256]}}
    assert_same(with_batches(collected(PPOClip, BOX, **large), 300))
    assert [each["threads"] for each in found] == [1, 2, 3, 4, 6]  # Three blocks, each of two networks.
    assert {each["block_rows"] for each in found} == {native_update.BLOCK_ROWS}
    found.clear()
    assert_same(with_batches(collected(PPOClip, BOX, n_steps=200, n_epochs=1), 64))
    assert {(each["block_rows"], each["threads"]) for each in found} == {(64, 1)}


@pytest.mark.usefixtures("divided")
@pytest.mark.parametrize("n_threads", [1, 3])
@pytest.mark.parametrize("name", SETTINGS)
def test_divided_updates_are_the_reference(name: str, n_threads: int, double_precision: Callable[[Any], None]) -> None:
    cls, settings = SETTINGS[name]
    model = with_batches(collected(cls, BOX, **{"n_epochs": 3, **settings}))
    double_precision(model)
    th.set_num_threads(n_threads)
    assert_same_update(model)


def updated_weights(model: Any) -> list[float]:
    th.set_num_threads(3)
    native_update.WORTH_A_THREAD, native_update.BLOCK_ROWS = 1, 8  # For processes that were spawned.
    weights: list[float] = flat_weights(update(model, fast=True)).tolist()
    return weights


@pytest.mark.usefixtures("divided")
@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_processes_that_are_started_after_an_update(method: str) -> None:
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"this system has no {method}")
    model = with_batches(collected(PPOClip, BOX, n_epochs=2))
    native_update.RANGE_SIZE = 16_384
    wanted = updated_weights(model)
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.apply_async(updated_weights, (model,)).get(timeout=120) == wanted


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="of systems that list a process's threads")
@pytest.mark.usefixtures("divided")
def test_no_thread_outlives_an_update() -> None:
    model = with_batches(collected(PPOClip, BOX, n_epochs=2))
    before = len(os.listdir("/proc/self/task"))
    th.set_num_threads(7)
    update(model, fast=True)
    assert len(os.listdir("/proc/self/task")) <= before
