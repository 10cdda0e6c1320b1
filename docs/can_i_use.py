"""Writes the table of paths in ``can_i_use.md`` by querying the engines: run ``python docs/can_i_use.py``."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.torch_layers import FlattenExtractor

from sb3_ppo_variants import (
    Batch,
    Objective,
    PPOAdaptiveKL,
    PPOClip,
    PPOCustom,
    PPOFixedKL,
    PPOUnclipped,
    SeparateUpdates,
)
from sb3_ppo_variants.engines.choice import choose
from sb3_ppo_variants.envs.masks import choices
from sb3_ppo_variants.ppo import PPOBase
from sb3_ppo_variants.processes import Processes

PAGE = Path(__file__).with_suffix(".md")
TABLE = re.compile(r"(?<=<!-- made by docs/can_i_use.py -->\n\n).*?(?=\n\n<!-- end -->)", re.DOTALL)
VECTOR = spaces.Box(-1, 1, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (36, 36, 1), np.uint8)
CONTINUOUS = spaces.Box(-1, 1, (2,), np.float32)
DISCRETE = spaces.Discrete(3)
HYBRID = spaces.Dict({"choice": DISCRETE, "force": CONTINUOUS})


class Own(Objective):
    """The loss of the unclipped objective, as a user would write it."""

    def loss(self, batch: Batch) -> th.Tensor:
        """Return the loss."""
        return -(batch.ratio * batch.advantages).mean()


class Features(FlattenExtractor):
    """A custom features extractor."""


class Env(gym.Env):
    """An environment with the given spaces and no dynamics."""

    def __init__(self, observations: spaces.Space, actions: spaces.Space):
        self.observation_space, self.action_space = observations, actions

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        """Begin an episode."""
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        """Sample another observation, without a reward."""
        return self.observation_space.sample(), 0.0, False, False, {}

    def action_masks(self) -> np.ndarray:
        """Allow everything."""
        return np.ones(sum(choices(self.action_space) or ()), dtype=bool)


class Case(NamedTuple):
    """A row of the table."""

    policy: str
    observations: spaces.Space
    actions: spaces.Space
    arguments: Mapping[str, Any] = MappingProxyType({})
    processes: Processes | None = None


def drawn(distribution: str, **others: str) -> dict[str, Any]:
    """Return the arguments with which actions are drawn from a distribution."""
    return {"policy_kwargs": {"distribution": distribution, **others}}


class Two(Processes):
    """Two processes that train together."""

    size = 2


CLASSES: dict[str, Callable[..., PPOBase]] = {
    "`PPOClip`": PPOClip,
    "`PPOAdaptiveKL`": PPOAdaptiveKL,
    "`PPOFixedKL`": PPOFixedKL,
    "`PPOUnclipped`": PPOUnclipped,
    "`PPOCustom`": lambda *args, **rest: PPOCustom(*args, objective=Own(), **rest),
}
DICT = spaces.Dict({"a": VECTOR, "b": spaces.Discrete(4)})
WITH_IMAGE = spaces.Dict({"a": VECTOR, "image": IMAGE})
CASES = {
    "`MlpPolicy`, Box actions": Case("MlpPolicy", VECTOR, CONTINUOUS),
    "`MlpPolicy`, Discrete actions": Case("MlpPolicy", VECTOR, DISCRETE),
    "`MlpPolicy`, MultiDiscrete actions": Case("MlpPolicy", VECTOR, spaces.MultiDiscrete([2, 4])),
    "`MlpPolicy`, MultiBinary actions": Case("MlpPolicy", VECTOR, spaces.MultiBinary(3)),
    "`MlpPolicy`, Dict or Tuple actions": Case("MlpPolicy", VECTOR, HYBRID),
    "`CnnPolicy`, Dict or Tuple actions": Case("CnnPolicy", IMAGE, HYBRID),
    "`MaskableMlpPolicy`, Dict or Tuple actions": Case("MaskableMlpPolicy", VECTOR, HYBRID),
    "`MlpLstmPolicy`, Dict or Tuple actions": Case("MlpLstmPolicy", VECTOR, HYBRID),
    "`MlpPolicy`, Discrete observations": Case("MlpPolicy", spaces.Discrete(5), DISCRETE),
    "`MlpPolicy`, MultiDiscrete observations": Case("MlpPolicy", spaces.MultiDiscrete([2, 3]), DISCRETE),
    "`MlpPolicy`, MultiBinary observations": Case("MlpPolicy", spaces.MultiBinary(4), DISCRETE),
    "`MultiInputPolicy`, Dict observations": Case("MultiInputPolicy", DICT, DISCRETE),
    "`MultiInputPolicy`, Dict with images": Case("MultiInputPolicy", WITH_IMAGE, DISCRETE),
    "`MultiInputPolicy`, `actor_keys` or `critic_keys`": Case(
        "MultiInputPolicy", DICT, DISCRETE, {"policy_kwargs": {"actor_keys": ["a"]}}
    ),
    "`CnnPolicy`": Case("CnnPolicy", IMAGE, DISCRETE),
    "`distribution='squashed_gaussian'`": Case("MlpPolicy", VECTOR, CONTINUOUS, drawn("squashed_gaussian")),
    "`distribution='beta'`": Case("MlpPolicy", VECTOR, CONTINUOUS, drawn("beta")),
    "`distribution='beta'`, `MlpLstmPolicy`": Case("MlpLstmPolicy", VECTOR, CONTINUOUS, drawn("beta")),
    "`distribution='beta'`, `actor_keys` or `critic_keys`": Case(
        "MultiInputPolicy", DICT, CONTINUOUS, {"policy_kwargs": {"distribution": "beta", "actor_keys": ["a"]}}
    ),
    "`std='state'`": Case("MlpPolicy", VECTOR, CONTINUOUS, drawn("gaussian", std="state")),
    "gSDE (`use_sde=True`)": Case("MlpPolicy", VECTOR, CONTINUOUS, {"use_sde": True}),
    "`MaskableMlpPolicy`": Case("MaskableMlpPolicy", VECTOR, DISCRETE),
    "`MaskableMultiInputPolicy`": Case("MaskableMultiInputPolicy", DICT, DISCRETE),
    "`MaskableCnnPolicy`": Case("MaskableCnnPolicy", IMAGE, DISCRETE),
    "`MlpLstmPolicy`": Case("MlpLstmPolicy", VECTOR, DISCRETE),
    "`CnnLstmPolicy`": Case("CnnLstmPolicy", IMAGE, DISCRETE),
    "`MultiInputLstmPolicy`": Case("MultiInputLstmPolicy", DICT, DISCRETE),
    "`MlpLstmPolicy`, `memory='gru'`": Case("MlpLstmPolicy", VECTOR, DISCRETE, {"policy_kwargs": {"memory": "gru"}}),
    "`MaskableMlpLstmPolicy`": Case("MaskableMlpLstmPolicy", VECTOR, DISCRETE),
    "`MaskableCnnLstmPolicy`": Case("MaskableCnnLstmPolicy", IMAGE, DISCRETE),
    "`MaskableMultiInputLstmPolicy`": Case("MaskableMultiInputLstmPolicy", DICT, DISCRETE),
    "`MlpPolicy`, separate updates": Case("MlpPolicy", VECTOR, DISCRETE, {"updates": SeparateUpdates()}),
    "`MlpPolicy`, two processes": Case("MlpPolicy", VECTOR, DISCRETE, processes=Two()),
    "`MlpPolicy`, own features": Case(
        "MlpPolicy", VECTOR, DISCRETE, {"policy_kwargs": {"features_extractor_class": Features}}
    ),
    "`MlpPolicy`, another optimizer": Case(
        "MlpPolicy", VECTOR, DISCRETE, {"policy_kwargs": {"optimizer_class": th.optim.SGD}}
    ),
}


def path(case: Case, make: Callable[..., PPOBase]) -> str:
    """Return the name of the engine that computes a case."""
    env = Env(case.observations, case.actions)
    model = make(case.policy, env, n_steps=8, batch_size=8, device="cpu", **case.arguments)
    plan = model._plan()
    if case.processes is not None:
        plan = replace(plan, processes=case.processes)
    return choose(plan, "auto").engine.name


def table() -> str:
    """Return the table of paths. Classes that take the same paths share a column."""
    columns: dict[tuple[str, ...], list[str]] = {}
    for name, make in CLASSES.items():
        columns.setdefault(tuple(path(case, make) for case in CASES.values()), []).append(name)
    rows = [["", *(", ".join(names) for names in columns.values())], ["---"] * (len(columns) + 1)]
    rows += [list(row) for row in zip(CASES, *columns, strict=True)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    PAGE.write_text(TABLE.sub(lambda _: table(), PAGE.read_text()))
