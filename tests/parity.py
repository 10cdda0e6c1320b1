"""What the comparisons with SB3 and with sb3-contrib share."""

import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from masked_envs import MASKED_SPACES, MULTI, masked_envs
from sb3_contrib.common.envs import InvalidActionEnvDiscrete, InvalidActionEnvMultiBinary, InvalidActionEnvMultiDiscrete
from sb3_contrib.common.wrappers import ActionMasker
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

from helpers import ACTION_SPACES, BOX, IMAGE, LogRecorder, NoiseEnv, noise_envs

OBSERVED = spaces.Dict({"vector": spaces.Box(-1, 1, (3,)), "image": IMAGE, "digit": spaces.Discrete(4)})


class ModeDependent(FlattenExtractor):
    """Features that differ between training and evaluation mode."""

    def __init__(self, observation_space: spaces.Space):
        super().__init__(observation_space)
        self.layers = th.nn.Sequential(th.nn.BatchNorm1d(self.features_dim), th.nn.Dropout(0.2))

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return self.layers(super().forward(observations))


class Traces(FlattenExtractor):
    """Draws random numbers and counts in evaluation mode too."""

    seen: th.Tensor

    def __init__(self, observation_space: spaces.Space):
        super().__init__(observation_space)
        self.register_buffer("seen", th.zeros(()))

    def forward(self, observations: th.Tensor) -> th.Tensor:
        self.seen += len(observations)
        return super().forward(observations) * (1 + self.seen / 1000) + 0.01 * th.randn(1)


class Remembers(FlattenExtractor):
    """Draws from every generator, and keeps what it has computed outside of buffers."""

    def __init__(self, observation_space: spaces.Space):
        super().__init__(observation_space)
        self.layer, self.lock = th.nn.utils.parametrizations.weight_norm(th.nn.Linear(3, 3)), threading.Lock()
        self.mean, self.memory, self.last = th.zeros(3), [th.zeros(())], [th.zeros(3)]
        self.drawn, self.numpys = th.Generator(), np.random.default_rng(0)
        self.counts: dict[str, int] = {"seen": 0}

    def forward(self, observations: th.Tensor) -> th.Tensor:
        features = self.layer(super().forward(observations))
        self.mean += 0.1 * (features.detach().mean(dim=0) - self.mean)
        self.memory.append(self.last.pop().detach().mean())
        self.last.append(features)  # With a graph in updates.
        self.counts["seen"] += 1
        noise = np.random.normal() + random.random() + self.numpys.normal() + self.counts["seen"] / 1000
        remembered = self.mean + th.stack(self.memory[-4:]).mean()
        return features - remembered + 0.01 * (noise + th.rand(1, generator=self.drawn))


def train(
    cls: type[OnPolicyAlgorithm],
    make_env: Callable[[], VecEnv],
    policy: str = "MlpPolicy",
    total_timesteps: int = 128,
    **arguments: Any,
) -> tuple[OnPolicyAlgorithm, list[dict[str, Any]]]:
    """Return a trained model and what each of its updates logged."""
    log = LogRecorder()
    settings = {"n_steps": 32, "batch_size": 16, "n_epochs": 3, "learning_rate": 1e-3, "seed": 5, "device": "cpu"}
    model = cls(policy, make_env(), **{**settings, **arguments})
    model.learn(total_timesteps, callback=log)
    env = model.get_env()
    assert env is not None
    env.close()
    return model, log.updates


class DroppingBuffer(RolloutBuffer):
    """A user's buffer that yields only the first minibatch of every pass."""

    def get(self, batch_size: int | None = None) -> Any:
        yield next(super().get(batch_size))


class OwnForward(ActorCriticPolicy):
    """A policy whose KL has to be computed anew, because nobody knows what its method leaves behind."""

    def forward(self, obs: Any, deterministic: bool = False) -> Any:
        return super().forward(obs, deterministic)


def case(action_space: spaces.Space = BOX, **arguments: Any) -> dict[str, Any]:
    return {"make_env": lambda: noise_envs(action_space), **arguments}


CASES: dict[str, dict[str, Any]] = {
    **{name: case(space) for name, space in ACTION_SPACES.items()},
    "CnnPolicy": case(make_env=lambda: noise_envs(BOX, IMAGE), policy="CnnPolicy"),
    "MultiInputPolicy": case(make_env=lambda: noise_envs(BOX, OBSERVED), policy="MultiInputPolicy"),
    "gSDE": case(use_sde=True, sde_sample_freq=4),
    "squashed gSDE": case(use_sde=True, policy_kwargs={"squash_output": True}),
    "separate features": case(
        make_env=lambda: noise_envs(BOX, IMAGE), policy="CnnPolicy", policy_kwargs={"share_features_extractor": False}
    ),
    "target_kl": case(target_kl=1e-4, learning_rate=1e-3),
    "schedules": case(learning_rate=LinearSchedule(1e-3, 0, 1.0), clip_range=LinearSchedule(0.01, 0, 1.0)),
    "overshoot": case(total_timesteps=100, learning_rate=lambda progress: 1e-3 + 1e-3 * progress),
    "truncated minibatch": case(batch_size=21),
    "minibatch of one": case(batch_size=63),
    "raw advantages": case(normalize_advantage=False),
    "entropy": case(ent_coef=0.1, vf_coef=0.25, max_grad_norm=0.1),
    "relu": case(policy_kwargs={"activation_fn": th.nn.ReLU, "net_arch": [16], "optimizer_class": th.optim.SGD}),
    "batch norm and dropout": case(policy_kwargs={"features_extractor_class": ModeDependent}),
    "traces": case(policy_kwargs={"features_extractor_class": Traces}),
    "traces of an own policy": case(policy=OwnForward, policy_kwargs={"features_extractor_class": Traces}),
    "memory": case(policy_kwargs={"features_extractor_class": Remembers}),
    "memory of an own policy": case(policy=OwnForward, policy_kwargs={"features_extractor_class": Remembers}),
    "VecNormalize": case(make_env=lambda: VecNormalize(noise_envs(BOX))),
    "own buffer": case(rollout_buffer_class=DroppingBuffer),
}


def masked_case(make_env: Callable[[], VecEnv] = lambda: masked_envs(MULTI), **arguments: Any) -> dict[str, Any]:
    return {"make_env": make_env, **arguments}


def wrapped() -> VecEnv:
    def masks(env: Any) -> Any:
        return [True, env._steps > 3, 0, 1]

    return DummyVecEnv([lambda: ActionMasker(NoiseEnv(spaces.Discrete(4)), masks)])


def of_space(space: spaces.Space) -> Callable[[], VecEnv]:
    return lambda: masked_envs(space)


MASKED_CASES: dict[str, dict[str, Any]] = {
    **{name: masked_case(of_space(space)) for name, space in MASKED_SPACES.items()},
    "one environment": masked_case(lambda: masked_envs(MULTI, n_envs=1)),
    "InvalidActionEnvDiscrete": masked_case(lambda: DummyVecEnv([lambda: InvalidActionEnvDiscrete(9, 7, 5)])),
    "InvalidActionEnvMultiDiscrete": masked_case(
        lambda: DummyVecEnv([lambda: InvalidActionEnvMultiDiscrete([3, 4], 7, 3)])
    ),
    "InvalidActionEnvMultiBinary": masked_case(lambda: DummyVecEnv([lambda: InvalidActionEnvMultiBinary(4, 7, 2)])),
    "ActionMasker": masked_case(wrapped),
    "CnnPolicy": masked_case(lambda: masked_envs(MULTI, IMAGE), policy="CnnPolicy"),
    "MultiInputPolicy": masked_case(lambda: masked_envs(MULTI, OBSERVED), policy="MultiInputPolicy"),
    "separate features": masked_case(
        lambda: masked_envs(MULTI, IMAGE), policy="CnnPolicy", policy_kwargs={"share_features_extractor": False}
    ),
    "target_kl": masked_case(target_kl=1e-4, learning_rate=1e-3),
    "schedules": masked_case(learning_rate=LinearSchedule(1e-3, 0, 1.0), clip_range=LinearSchedule(0.01, 0, 1.0)),
    "overshoot": masked_case(total_timesteps=100, learning_rate=lambda progress: 1e-3 + 1e-3 * progress),
    "truncated minibatch": masked_case(batch_size=21),
    "raw advantages": masked_case(normalize_advantage=False),
    "entropy": masked_case(ent_coef=0.1, vf_coef=0.25, max_grad_norm=0.1),
    "relu": masked_case(policy_kwargs={"activation_fn": th.nn.ReLU, "net_arch": [16], "optimizer_class": th.optim.SGD}),
    "batch norm and dropout": masked_case(policy_kwargs={"features_extractor_class": ModeDependent}),
    "VecNormalize": masked_case(lambda: VecNormalize(masked_envs(MULTI))),
}
