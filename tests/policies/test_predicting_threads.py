"""What one thread computes with a policy is its own."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import numpy as np
import pytest
from masked_envs import small_masked
from parity import ModeDependent

from helpers import KICK, assert_same_weights, noise_envs, small
from sb3_ppo_variants.layout import parts_of

MODELS: dict[str, Callable[[], Any]] = {
    "Box": lambda: small(fast=False),
    "gSDE": lambda: small(fast=False, use_sde=True),
    "hybrid": lambda: small(fast=False, env=noise_envs(KICK)),
    "LSTM": lambda: small(policy="MlpLstmPolicy"),
    "masked": lambda: small_masked(fast=False),
    "mode": lambda: small(fast=False, policy_kwargs={"features_extractor_class": ModeDependent}),
    "native": small,
}
N_OBSERVED = 5
OBSERVATIONS = np.random.default_rng(0).uniform(-1, 1, (2, N_OBSERVED, 3)).astype(np.float32)
pytestmark = pytest.mark.filterwarnings("ignore:.*without a state")


def predicted(model: Any, observations: np.ndarray) -> Any:
    masks = {"action_masks": np.ones((N_OBSERVED, 6), bool)} if "Mask" in type(model.policy).__name__ else {}
    return model.predict(observations, deterministic=True, **masks)[0]


def numbers_in(actions: Any) -> np.ndarray:
    return np.concatenate([np.ravel(part) for row in actions for _, part in parts_of(row)])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", MODELS)
def test_a_model_learns_the_same_while_another_thread_predicts(name: str) -> None:
    alone, watched, ends = MODELS[name]().learn(64), MODELS[name](), Event()

    def predict_all_the_time() -> None:
        while not ends.is_set():
            assert len(predicted(watched, OBSERVATIONS[0])) == N_OBSERVED

    with ThreadPoolExecutor(1) as pool:
        predicting = pool.submit(predict_all_the_time)
        try:
            watched.learn(64)
        finally:
            ends.set()
    predicting.result()
    assert_same_weights(watched, alone)


@pytest.mark.parametrize("name", ["Box", "hybrid"])
def test_threads_predict_at_once(name: str) -> None:
    model = MODELS[name]()
    expected = [predicted(model, each) for each in OBSERVATIONS]
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda each: [predicted(model, each) for _ in range(100)], OBSERVATIONS)
    for of_thread, wanted in zip(found, expected, strict=True):
        for each in of_thread:  # PyTorch adds up in another order in other threads.
            np.testing.assert_allclose(numbers_in(each), numbers_in(wanted), rtol=1e-4, atol=1e-6)
