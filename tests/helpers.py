"""Environments and helpers shared by several tests."""

import io
import re
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import stable_baselines3.common.policies
import torch as th
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.distributions import BernoulliDistribution, TanhBijector
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv
from torch.nn.utils import parameters_to_vector

from sb3_ppo_variants import PPOAdaptiveKL, PPOClip, PPOFixedKL, PPOUnclipped
from sb3_ppo_variants.rollout import draw_minibatches

# Untyped, because tests pass them arguments from tables.
VARIANTS: list[Any] = [PPOClip, PPOAdaptiveKL, PPOFixedKL, PPOUnclipped]
PENALISED: list[Any] = [PPOAdaptiveKL, PPOFixedKL]

VECTOR = spaces.Box(-1, 1, (3,), np.float32)
# The packages that the extras install.
OPTIONAL = [
    "ale_py", "Box2D", "cv2", "dask", "distributed", "envpool", "filelock", "huggingface_hub", "huggingface_sb3",
    "joblib", "markdown_it", "matplotlib", "moviepy", "mujoco", "onnxruntime", "optuna", "pandas", "pygame", "ray",
    "rich", "rl_zoo3", "rliable", "scipy", "seaborn", "tabulate", "tensorboard", "tqdm", "wandb",
]  # fmt: skip
ACTION_SPACES = {
    "Discrete": spaces.Discrete(3),
    "MultiDiscrete": spaces.MultiDiscrete([2, 4]),
    "MultiBinary": spaces.MultiBinary(3),
    "Box": spaces.Box(-1, 1, (2,), np.float32),
}
BOX = ACTION_SPACES["Box"]
DICT = spaces.Dict({"vector": VECTOR, "digit": spaces.Discrete(4)})
MIXED = spaces.Dict({"b": spaces.Box(-1, 1, (2, 2)), "a": spaces.Discrete(3)})
IMAGE = spaces.Box(0, 255, (36, 36, 1), np.uint8)
FORCE = spaces.Box(np.array([0, -2], np.float32), np.array([1, 3], np.float32))
KICK = spaces.Dict({"choice": spaces.Discrete(3), "force": FORCE})
NESTED = spaces.Tuple(
    [
        spaces.MultiBinary(2),
        spaces.Dict({"dials": spaces.MultiDiscrete([2, 4]), "exact": spaces.Box(-0.1, 0.8, (2, 2), np.float64)}),
        spaces.Discrete(3, start=-1),
        spaces.Box(0, 255, (2,), np.uint8),
        spaces.Tuple(
            [
                spaces.Box(-1, 1, (), np.float32),
                spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), start=np.array([[1, 1], [0, 9]])),
            ]
        ),
        spaces.MultiBinary([2, 2]),
    ]
)
# An observation of the actor alone, of the critic alone, and of both.
PRIVILEGED = spaces.Dict(
    {"sensors": spaces.Box(-1, 1, (2, 3)), "mass": spaces.Box(-1, 1, (5,)), "gear": spaces.Discrete(4)}
)
KEYS = {"actor_keys": ["sensors", "gear"], "critic_keys": ["mass", "gear"]}


def total(action: Any) -> float:
    """Return the sum of the numbers in an action, which may be a dict or a tuple."""
    if isinstance(action, dict):
        action = tuple(action.values())
    return sum(map(total, action)) if isinstance(action, tuple) else float(np.sum(action))


class NoiseEnv(gym.Env):
    """Random observations and rewards from one seeded generator, for any spaces; episodes of 7 steps."""

    def __init__(self, action_space: spaces.Space, observation_space: spaces.Space = VECTOR):
        self.action_space = action_space
        self.observation_space = observation_space
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self._steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self._steps += 1
        reward = total(action) + self.np_random.normal()
        return self.observation_space.sample(), reward, False, self._steps == 7, {}


def noise_envs(action_space: spaces.Space, observation_space: spaces.Space = VECTOR, n_envs: int = 2) -> VecEnv:
    # Each environment has its own copy of the space, because the space's generator draws the observations.
    return DummyVecEnv([lambda: NoiseEnv(action_space, deepcopy(observation_space)) for _ in range(n_envs)])


def in_double_precision(monkeypatch: pytest.MonkeyPatch, model: Any) -> None:
    """Make a model compute in double precision, which SB3's preprocessing and PyTorch's Bernoulli would undo."""
    preprocess: Any = stable_baselines3.common.policies.preprocess_obs
    log_prob: Any = BernoulliDistribution.log_prob
    inverse: Any = TanhBijector.inverse

    def double(*args: Any, **kwargs: Any) -> Any:
        observation = preprocess(*args, **kwargs)
        if isinstance(observation, dict):
            return {key: value.double() for key, value in observation.items()}
        return observation.double()

    monkeypatch.setattr(BernoulliDistribution, "log_prob", lambda self, actions: log_prob(self, actions.double()))
    monkeypatch.setattr(TanhBijector, "inverse", staticmethod(lambda actions: inverse(actions.double())))
    monkeypatch.setattr(stable_baselines3.common.policies, "preprocess_obs", double)
    model.policy.double()
    model.old_policy = None  # They are recomputed from the policy in double precision.
    for name in ("values", "log_probs", "advantages", "returns"):
        setattr(model.rollout_buffer, name, getattr(model.rollout_buffer, name).astype(np.float64))


def policy_for(env: VecEnv) -> str:
    space = env.observation_space
    if isinstance(space, spaces.Dict):
        return "MultiInputPolicy"
    return "CnnPolicy" if is_image_space(space) else "MlpPolicy"


def small(cls: Any = PPOClip, env: Any = None, policy: Any = None, **arguments: Any) -> Any:
    """Create a model that trains quickly, in environments of noise unless others are given."""
    env = noise_envs(BOX) if env is None else env
    settings: dict[str, Any] = {"n_steps": 16, "batch_size": 16, "n_epochs": 2, "seed": 3, "device": "cpu"}
    return cls(policy_for(env) if policy is None else policy, env, **{**settings, **arguments})


def collect(model: Any) -> Any:
    """Fill the rollout buffer of a model as ``learn`` would, and return the model."""
    _, callback = model._setup_learn(model.n_steps * model.n_envs)
    model.collect_rollouts(model.env, callback, model.rollout_buffer, model.n_steps)
    return model


def update(model: Any, fast: bool) -> Any:
    """Return a copy of a model after an update with its rollout, on the reference path or a fast one."""
    model = deepcopy(model)
    model.fast = fast
    np.random.seed(3)
    model.train()
    return model


def flat_weights(model: Any) -> th.Tensor:
    """Return all parameters of the policy as one vector."""
    return parameters_to_vector(model.policy.parameters()).detach()


def assert_same_weights(ours: Any, theirs: Any) -> None:
    th.testing.assert_close(ours.policy.state_dict(), theirs.policy.state_dict(), rtol=0, atol=0)


def assert_same_policy(ours: Any, theirs: Any) -> None:
    """Check that two models have the same class of policy, weights and moments of the optimizer."""
    assert ours.policy_class is theirs.policy_class
    assert_same_weights(ours, theirs)
    moments, expected = (model.policy.optimizer.state_dict()["state"] for model in (ours, theirs))
    th.testing.assert_close(moments, expected, rtol=0, atol=0)


def save(model: Any) -> io.BytesIO:
    """Save a model to a file in memory."""
    file = io.BytesIO()
    model.save(file)
    file.seek(0)
    return file


class Passive(BaseCallback):
    """Does only what a subclass adds."""

    def _on_step(self) -> bool:
        return True


class LogRecorder(Passive):
    """Records the values that each update logged."""

    def __init__(self) -> None:
        super().__init__()
        self.updates: list[dict[str, Any]] = []

    def _keep(self) -> None:
        if "train/loss" in self.logger.name_to_value:
            self.updates.append(dict(self.logger.name_to_value))

    def _on_rollout_start(self) -> None:
        self._keep()

    def _on_training_end(self) -> None:
        self._keep()


def named(value: object) -> str:
    """Return a name for a test case that is the same in every process."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def with_old_parameters(model: Any, batch_size: int) -> Iterator[tuple[Any, Any, tuple[th.Tensor, ...]]]:
    """Draw the minibatches of the last rollout, each with its rows and the old parameters of these."""
    for read, rows in draw_minibatches(model.rollout_buffer, batch_size):
        yield read, rows, tuple(column[th.from_numpy(rows)] for column in model.old_policy.parameters)
