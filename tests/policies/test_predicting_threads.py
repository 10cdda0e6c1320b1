"""What one thread computes with a policy is its own."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from masked_envs import small_masked
from parity import ModeDependent

from helpers import ACTION_SPACES, KICK, assert_same_weights, noise_envs, small
from sb3_ppo_variants.layout import parts_of

MODELS: dict[str, Callable[[], Any]] = {
    "Box": lambda: small(fast=False, n_steps=16),
    "Discrete": lambda: small(fast=False, n_steps=16, env=noise_envs(ACTION_SPACES["Discrete"])),
    "gSDE": lambda: small(fast=False, n_steps=16, use_sde=True),
    "hybrid": lambda: small(fast=False, n_steps=16, env=noise_envs(KICK)),
    "LSTM": lambda: small(n_steps=16, policy="MlpLstmPolicy"),
    "masked": lambda: small_masked(fast=False, n_steps=16),
    "mode": lambda: small(fast=False, n_steps=16, policy_kwargs={"features_extractor_class": ModeDependent}),
    "native": lambda: small(n_steps=16),
}
N_OBSERVED = 5
pytestmark = pytest.mark.filterwarnings("ignore:.*without a state")


def predicted(model: Any, observations: np.ndarray) -> Any:
    masks = {"action_masks": np.ones((len(observations), 6), bool)} if "Mask" in type(model.policy).__name__ else {}
    return model.predict(observations, deterministic=True, **masks)[0]


def numbers_in(actions: Any) -> np.ndarray:
    return np.concatenate([np.ravel(part) for row in actions for _, part in parts_of(row)])


@contextmanager
def predicting(model: Any) -> Iterator[None]:
    """Predict in another thread all the time."""
    ends, wrong = threading.Event(), list[BaseException]()
    observations = np.random.default_rng(0).uniform(-1, 1, (N_OBSERVED, 3)).astype(np.float32)

    def run() -> None:
        while not ends.is_set() and not wrong:
            try:
                assert len(predicted(model, observations)) == N_OBSERVED
            except BaseException as error:
                wrong.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()
    assert wrong == []


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", MODELS)
def test_a_model_learns_the_same_while_another_thread_predicts(name: str) -> None:
    alone, watched = MODELS[name]().learn(64), MODELS[name]()
    with predicting(watched):
        watched.learn(64)
    assert_same_weights(watched, alone)


@pytest.mark.parametrize("name", ["Box", "hybrid"])
def test_threads_predict_at_once(name: str) -> None:
    model = MODELS[name]()
    observations = np.random.default_rng(0).uniform(-1, 1, (2, N_OBSERVED, 3)).astype(np.float32)
    expected = [predicted(model, each) for each in observations]
    found: list[list[Any]] = [[], []]

    def run(i: int) -> None:
        found[i] = [predicted(model, observations[i]) for _ in range(100)]

    threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for of_thread, wanted in zip(found, expected, strict=True):
        for each in of_thread:  # PyTorch adds up in another order in other threads.
            np.testing.assert_allclose(numbers_in(each), numbers_in(wanted), rtol=1e-4, atol=1e-6)
