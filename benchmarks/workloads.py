"""The workloads of the speed benchmarks: environments, and how to train on them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv, VecMonitor, VecNormalize

from sb3_ppo_variants.compare import ALGORITHM_PATHS, BASELINE
from sb3_ppo_variants.compare.plan import Setting, load_class
from sb3_ppo_variants.envs import GymnasiumVecEnv, make_ale_vec_env
from sb3_ppo_variants.recipes import recipe
from sb3_ppo_variants.variants import PPOClip

Algorithms = Mapping[str, Callable[..., OnPolicyAlgorithm]]
# Steps of a rollout over all environments, for workloads that exist with several numbers of environments.
ROLLOUT, POOLED_ROLLOUT = 2048, 4096
N_ENVS = (1, 8, 32, 128)
BREAKOUT = "BreakoutNoFrameskip-v4"
# The name of PPOClip on the reference path.
REFERENCE = "PPOClip, fast=False"


@dataclass(frozen=True)
class Workload:
    """An environment and how to train on it. A run is one or more rollouts, each with its update."""

    make_env: Callable[[], VecEnv]
    policy: str
    settings: dict[str, Any]
    own_env: Callable[[], VecEnv] | None = None
    """The environment for this package's classes, if it differs from that of SB3's."""
    rollouts: int = 1
    """Rollouts of a run: enough for the start of ``learn``, and caches that another run has filled, not to matter."""
    baseline: str | None = BASELINE
    """The setting of ``compare`` that the others are compared with; ``None`` for the reference path."""

    def model(self, algorithm: Callable[..., OnPolicyAlgorithm], ours: bool = True) -> OnPolicyAlgorithm:
        """Create a model for this workload.

        :param ours: whether the algorithm belongs to this package
        """
        return algorithm(self.policy, self.env(ours), seed=0, **self.settings)

    def with_baseline(self, algorithms: Algorithms, device: str = "cpu") -> Algorithms:
        """Return the algorithms, preceded by the one that they are compared with, on this device."""
        if self.baseline is None:
            return {REFERENCE: partial(PPOClip, device=device, fast=False), **algorithms}
        setting, cls = Setting(self.baseline), cast(Any, load_class(ALGORITHM_PATHS[self.baseline]))

        def make(policy: str, *args: Any, **arguments: Any) -> OnPolicyAlgorithm:
            return cls(setting.name_of_policy(policy), *args, device=device, **arguments)

        return {cls.__name__: make, **algorithms}

    def env(self, ours: bool = True) -> VecEnv:
        """Create the environment."""
        return self.own_env() if ours and self.own_env is not None else self.make_env()


def _breakout() -> VecEnv:
    return recipe("ppo_clip", BREAKOUT).make_env(n_envs=8, seed=0)


def _with_envs(env: str, n_envs: int, rollouts: int = 1) -> Workload:
    settings = {"n_steps": ROLLOUT // n_envs}
    return Workload(partial(make_vec_env, env, n_envs), "MlpPolicy", settings, rollouts=rollouts)


def with_wide_networks(width: int, batch_size: int) -> Workload:
    """Return a workload with two hidden layers of this width, in HalfCheetah."""
    settings = {"n_steps": ROLLOUT // 8, "batch_size": batch_size, "policy_kwargs": {"net_arch": [width, width]}}
    return Workload(partial(make_vec_env, "HalfCheetah-v5", 8), "MlpPolicy", settings)


def make_envpool(env_id: str, n_envs: int) -> VecEnv:
    """Create environments of EnvPool."""
    import envpool

    pool: Any = envpool.make(env_id, "gymnasium", num_envs=n_envs, seed=0)
    return VecMonitor(GymnasiumVecEnv(pool))


def _pooled(env: str, n_envs: int, rollout: int) -> Workload:
    return Workload(partial(make_envpool, env, n_envs), "MlpPolicy", {"n_steps": rollout // n_envs})


def _zoo(env: str, rollouts: int = 1, **changes: Any) -> Workload:
    """Return a workload with the RL Zoo's hyperparameters, which the recipes contain."""
    made = recipe("ppo_clip", env, **changes)
    settings = {name: value for name, value in made.arguments.items() if name != "policy"}
    return Workload(made.make_env, made.arguments["policy"], settings, rollouts=rollouts)


IMAGES = {"n_steps": 128, "batch_size": 256, "n_epochs": 4}
# From rl_zoo3 2.9.2, hyperparams/ppo.yml, with rollouts half as long.
GSDE = {"n_steps": 512, "gamma": 0.9, "learning_rate": 1e-3, "use_sde": True, "sde_sample_freq": 4}
WORKLOADS = {
    "halfcheetah": _with_envs("HalfCheetah-v5", 1),
    "hopper": _with_envs("Hopper-v5", 1),
    "cartpole": _with_envs("CartPole-v1", 8, rollouts=4),
    "breakout": Workload(_breakout, "CnnPolicy", IMAGES),
}
DEFAULT_WORKLOADS = list(WORKLOADS)
WORKLOADS |= {
    "halfcheetah-normalized": Workload(lambda: VecNormalize(make_vec_env("HalfCheetah-v5")), "MlpPolicy", {}),
    "halfcheetah-zoo": _zoo("HalfCheetah-v5"),
    "cartpole-zoo": _zoo("CartPole-v1", rollouts=32),
    "halfcheetah-wide": with_wide_networks(1024, batch_size=1024),
    "halfcheetah-envpool": _pooled("HalfCheetah-v5", 8, ROLLOUT),
    "lunarlander": _zoo("LunarLander-v3"),
    "bipedalwalker": _zoo("BipedalWalker-v3", n_steps=512),
    "humanoid": _with_envs("Humanoid-v5", 1),
    "pendulum-gsde": Workload(partial(make_vec_env, "Pendulum-v1", 4), "MlpPolicy", GSDE),
    "breakout-ale": Workload(_breakout, "CnnPolicy", IMAGES, partial(make_ale_vec_env, BREAKOUT, 8, seed=0)),
}
for _name, _env in (("cartpole", "CartPole-v1"), ("halfcheetah", "HalfCheetah-v5")):
    for _n_envs in N_ENVS:
        WORKLOADS[f"{_name}-{_n_envs}"] = _with_envs(_env, _n_envs)
        WORKLOADS[f"{_name}-envpool-{_n_envs}"] = _pooled(_env, _n_envs, POOLED_ROLLOUT)
WORKLOADS["scheduling"] = Workload(
    partial(make_vec_env, "examples.environments:Scheduling-v0", 8),
    "MaskableMlpPolicy",
    {"n_steps": ROLLOUT // 8},
    baseline="contrib_maskable_ppo",
)
# SB3's PPO takes no such actions.
WORKLOADS["move-or-kick"] = Workload(
    partial(make_vec_env, "examples.environments:MoveOrKick-v0", 8),
    "MlpPolicy",
    {
        "n_steps": ROLLOUT // 8,
        "ent_coef": 0.01,
        "policy_kwargs": {
            "only_if": {"move": ("choice", 0), "kick": ("choice", 1)},
            "entropy_weights": {"choice": 2.0},
        },
    },
    baseline=None,
)
for _n_envs in (1, 8):
    WORKLOADS[f"cartpole-novel-{_n_envs}"] = Workload(
        partial(make_vec_env, "examples.environments:CartPoleNoVel-v1", _n_envs),
        "MlpLstmPolicy",
        {"n_steps": ROLLOUT // _n_envs, "batch_size": 128},
        baseline="contrib_recurrent_ppo",
    )


class Bar(NamedTuple):
    """The required speed of PPOClip on a workload, and the goal, as multiples of the speed of SB3's PPO."""

    workload: str
    least: float
    goal: float


BARS = {
    "halfcheetah": Bar("HalfCheetah, 1 environment", 8, 10),
    "hopper": Bar("Hopper, 1 environment", 5, 5.5),
    "halfcheetah-normalized": Bar("HalfCheetah, 1 environment, VecNormalize", 8, 10),
    "halfcheetah-zoo": Bar("HalfCheetah, the RL Zoo's settings (256x256, 20 epochs, VecNormalize)", 5, 7),
    "cartpole": Bar("CartPole, 8 x 256", 16, 20),
    "cartpole-zoo": Bar("CartPole, the RL Zoo's settings", 11, 15),
    "halfcheetah-envpool": Bar("HalfCheetah, 8 x 256, both on EnvPool", 15, 20),
    "lunarlander": Bar("LunarLander, 16 environments", 3, 4),
    "bipedalwalker": Bar("BipedalWalker, 32 environments, VecNormalize", 3, 4),
    "humanoid": Bar("Humanoid, 1 environment", 3.5, 5),
    "pendulum-gsde": Bar("Pendulum with gSDE, 4 x 512", 5, 8),
    "breakout-ale": Bar("Breakout, 8 x 128, ours on ALE's vector environment", 1.8, 2.2),
}
