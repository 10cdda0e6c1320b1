"""Training in several processes is equivalent to training in one process with all of their environments."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import pytest
import torch as th
from masked_envs import masked_envs
from recurrence import SMALL as SMALL_LSTM
from recurrence import ragged_envs
from sb3_contrib.common.recurrent.buffers import RecurrentRolloutBuffer
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from stable_baselines3.common.distributions import BernoulliDistribution
from stable_baselines3.common.preprocessing import preprocess_obs

from helpers import ACTION_SPACES, LogRecorder, noise_envs
from ranks import answers
from sb3_ppo_variants import (
    ExactKL,
    Huber,
    KLAdaptive,
    PPOAdaptiveKL,
    PPOClip,
    PPOCustom,
    PPOFixedKL,
    PPOUnclipped,
    RatioDeviation,
    SeparateUpdates,
)
from sb3_ppo_variants.objectives import list_objectives, surrogates
from sb3_ppo_variants.rollout import OldPolicy

N_ENVS, N_STEPS, BATCH, UPDATES = 2, 12, 8, 2
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "clip": (PPOClip, {"clip_range_vf": 0.2, "ent_coef": 0.01}),
    "adaptive": (PPOAdaptiveKL, {}),
    "fixed": (PPOFixedKL, {"normalize_advantage": False}),
    "unclipped": (PPOUnclipped, {"target_kl": 0.001}),
    "separate": (PPOAdaptiveKL, {"updates": SeparateUpdates(policy_epochs=3, value_epochs=2), "target_kl": 0.01}),
    "truncated": (PPOClip, {"batch_size": 7}),
    "over the rollout": (PPOClip, {"normalize_advantage": "rollout"}),
    "recurrent": (PPOAdaptiveKL, {"policy": "MlpLstmPolicy", "policy_kwargs": SMALL_LSTM}),
    "stopped": (PPOClip, {"stop": ExactKL(1e-3), "value_loss": Huber(0.5), "ent_coef": lambda left: 0.1 * left}),
    "epochs": (PPOClip, {"stop": RatioDeviation(0.02, "epoch")}),
    "adaptive rate": (PPOClip, {"learning_rate": KLAdaptive(desired_kl=1e-3, learning_rate=1e-3)}),
    "rate in minibatches": (PPOClip, {"learning_rate": KLAdaptive(desired_kl=1e-3, every="minibatch")}),
    "masked": (PPOAdaptiveKL, {"policy": "MaskableMlpPolicy", "clip_range_vf": 0.2}),
}
# The objectives that have no class of their own. The hinge of ``KLHinge`` is of a mean, so that it is of each process.
CASES |= {
    name: (PPOCustom, {"objective": found()})
    for name, found in list_objectives().items()
    if found.__module__ != surrogates.__name__ and name != "KLHinge"
}
PATHS = ("reference", "native")
# The columns of rollouts, and which dimension of each is that of the environments.
FIELDS = dict.fromkeys(("observations", "actions", "rewards", "values", "log_probs", "advantages", "returns"), 1)
MORE = {
    "masked": {"action_masks": 1},
    "recurrent": {"episode_starts": 1}
    | {f"{what}_states_{of}": 2 for what in ("hidden", "cell") for of in ("pi", "vf")},
}


def in_double(*args: Any, **arguments: Any) -> Any:
    """Preprocess observations in double precision, where SB3 uses single precision."""
    observations = preprocess_obs(*args, **arguments)
    assert isinstance(observations, th.Tensor)
    return observations.double()


def sequences(buffer: Any, batch_size: int) -> Iterator[Any]:
    """Yield minibatches of steps in a given order, in which each rank's part begins with a new sequence."""
    n = buffer.buffer_size * buffer.n_envs
    if not buffer.generator_ready:
        next(GET(buffer, batch_size))  # Flattens the columns into rows.
    order = np.random.permutation(n)
    for rows in np.split(order, range(batch_size, n, batch_size)):
        begins = np.zeros((n, 1))
        begins[:: buffer.buffer_size] = begins[rows[::BATCH]] = 1.0
        yield buffer._get_samples(rows, begins)


GET = RecurrentRolloutBuffer.get


@contextmanager
def in_double_precision() -> Iterator[None]:
    log_prob: Any = BernoulliDistribution.log_prob
    with (
        patch.object(BernoulliDistribution, "log_prob", lambda self, actions: log_prob(self, actions.double())),
        patch("stable_baselines3.common.policies.preprocess_obs", in_double),
        patch.object(RecurrentRolloutBuffer, "get", sequences),
    ):
        yield


def make(case: str, space: str, path: str, n_envs: int) -> Any:
    cls, arguments = CASES[case]
    make_envs: dict[str, Any] = {"masked": masked_envs, "recurrent": ragged_envs}
    settings = {"policy": "MlpPolicy", "n_steps": N_STEPS, "batch_size": BATCH, "n_epochs": 3, "learning_rate": 1e-3}
    model = cls(
        env=make_envs.get(case, noise_envs)(ACTION_SPACES[space], n_envs=n_envs),
        **{**settings, **arguments},
        seed=3,
        fast=path != "reference",
        device="cpu",
    )
    model.policy.double()
    if case == "recurrent":
        model._last_lstm_states = RNNStates(*(tuple(map(th.Tensor.double, of)) for of in model._last_lstm_states))
    return model


def in_double_columns(buffer: Any, fields: Iterable[str]) -> None:
    for name in ("values", "log_probs", "advantages", "returns", *fields):
        setattr(buffer, name, getattr(buffer, name).astype(np.float64))


class Recorder(LogRecorder):
    """Also records the rollouts and the shuffles of a rank."""

    def __init__(self, case: str):
        super().__init__()
        self._case = case
        self._fields = MORE.get(case, {})
        self.rollouts: list[Any] = []
        self.shuffles: list[list[np.ndarray]] = []
        self._permutation = np.random.permutation

    def permutation(self, n: int) -> np.ndarray:
        order = self._permutation(n)
        self.shuffles[-1].append(np.roll(np.arange(n), order[0]) if self._case == "recurrent" else order)
        return self.shuffles[-1][-1]

    def _on_rollout_end(self) -> None:
        buffer = self.locals["rollout_buffer"]
        in_double_columns(buffer, self._fields)
        columns = {name: getattr(buffer, name).copy() for name in [*FIELDS, *self._fields]}
        # Tensors would share memory with this process, which will exit.
        self.rollouts.append((columns, [column.numpy() for column in cast(Any, self.model).old_policy.parameters]))
        self.shuffles.append([])


def of_rank(cases: list[tuple[str, str, str]]) -> list[Any]:
    found = []
    for case in cases:
        model, recorder = make(*case, N_ENVS), Recorder(case[0])
        with in_double_precision(), patch("numpy.random.permutation", recorder.permutation):
            model.learn(UPDATES * N_STEPS * N_ENVS * model.processes.size, callback=recorder)
        weights = {name: p.detach().numpy() for name, p in model.policy.named_parameters()}
        found.append((recorder.rollouts, recorder.shuffles, weights, recorder.updates))
    return found


def united(shuffles: list[np.ndarray], batch: int) -> np.ndarray:
    """Return the order of rows in which each minibatch combines those of all ranks."""
    n = len(shuffles[0])
    starts = range(0, n, batch)
    return np.concatenate([rank * n + shuffle[i : i + batch] for i in starts for rank, shuffle in enumerate(shuffles)])


def of_one(case: tuple[str, str, str], ranks: list[Any], size: int) -> tuple[dict[str, np.ndarray], list[Any]]:
    """Make the updates of a single process with the rollouts of all ranks."""
    model = make(*case, N_ENVS * size)
    batch, recorder = model.batch_size, LogRecorder()
    model.batch_size = batch * size
    _, callback = model._setup_learn(10**6, recorder)
    callback.on_training_start({}, {})
    for update in range(UPDATES):
        model._current_progress_remaining = 1 - (update + 1) / UPDATES
        buffer = model.rollout_buffer
        buffer.reset()
        for name, axis in (FIELDS | MORE.get(case[0], {})).items():
            columns = [rollouts[update][0][name] for rollouts, *_ in ranks]
            setattr(buffer, name, np.concatenate(columns, axis=axis))
        buffer.full = True
        old = zip(*(rollouts[update][1] for rollouts, *_ in ranks), strict=True)
        old_parameters = tuple(th.from_numpy(np.concatenate(columns)) for columns in old)
        each = [shuffles[update] for _, shuffles, *_ in ranks]
        orders: Iterator[np.ndarray] = (united(list(of_epoch), batch) for of_epoch in zip(*each, strict=True))
        with in_double_precision(), patch("numpy.random.permutation", lambda n, orders=orders: next(orders)):
            model.old_policy = OldPolicy(old_parameters, buffer.rewards)
            model.train()
        recorder._keep()
    return {name: p.detach().numpy() for name, p in model.policy.named_parameters()}, recorder.updates


@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_as_one_process_with_all_environments(size: int) -> None:
    spaces = list(ACTION_SPACES)
    cases = [
        (case, spaces[i % len(spaces)], path)
        for i, case in enumerate(CASES)
        for j, path in enumerate(PATHS)
        # With two processes, each case runs on one of the paths.
        if size > 2 or not (i + j) % 2
    ]
    found = answers(of_rank, size, cases)
    for i, case in enumerate(cases):
        ranks = [of_each[i] for of_each in found]
        weights, logs = of_one(case, ranks, size)
        for _, _, own, _ in ranks:
            for name, expected in weights.items():
                np.testing.assert_allclose(own[name], expected, rtol=1e-10, atol=1e-10, err_msg=f"{case} {name}")
        for logged, expected_log in zip(ranks[0][3], logs, strict=True):
            for name in expected_log:
                if name.startswith("train/"):
                    assert logged[name] == pytest.approx(expected_log[name], rel=1e-6, nan_ok=True), (case, name)
