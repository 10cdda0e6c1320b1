"""What the comparisons with SB3 and with sb3-contrib share."""

from collections.abc import Callable
from typing import Any

import torch as th
from gymnasium import spaces
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.vec_env import VecEnv

from helpers import IMAGE, LogRecorder

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
