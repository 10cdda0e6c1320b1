"""Compare the speed of the variants with that of SB3's PPO, in alternating runs of one process."""

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch as th
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack, VecNormalize

from sb3_ppo_variants import variants

Algorithms = dict[str, Callable[..., OnPolicyAlgorithm]]
# Steps of a rollout over all environments, for the workloads that differ in their number.
ROLLOUT = 2048
N_ENVS = (1, 8, 32, 128)


@dataclass(frozen=True)
class Workload:
    """An environment and how to train on it; a run is one rollout and its update."""

    make_env: Callable[[], VecEnv]
    policy: str
    settings: dict[str, Any]

    def model(self, algorithm: Callable[..., OnPolicyAlgorithm]) -> OnPolicyAlgorithm:
        """A new model of this workload."""
        return algorithm(self.policy, self.make_env(), seed=0, **self.settings)


def _breakout() -> VecEnv:
    import ale_py
    import gymnasium as gym

    gym.register_envs(ale_py)
    return VecFrameStack(make_atari_env("BreakoutNoFrameskip-v4", n_envs=8, seed=0), n_stack=4)


def _with_envs(env: str, n_envs: int) -> Workload:
    return Workload(partial(make_vec_env, env, n_envs), "MlpPolicy", {"n_steps": ROLLOUT // n_envs})


WORKLOADS = {
    "halfcheetah": _with_envs("HalfCheetah-v5", 1),
    "hopper": _with_envs("Hopper-v5", 1),
    "cartpole": _with_envs("CartPole-v1", 8),
    "breakout": Workload(_breakout, "CnnPolicy", {"n_steps": 128, "batch_size": 256, "n_epochs": 4}),
}
DEFAULT_WORKLOADS = list(WORKLOADS)
WORKLOADS["halfcheetah-normalized"] = Workload(lambda: VecNormalize(make_vec_env("HalfCheetah-v5")), "MlpPolicy", {})
for _name, _env in (("cartpole", "CartPole-v1"), ("halfcheetah", "HalfCheetah-v5")):
    for _n_envs in N_ENVS:
        WORKLOADS[f"{_name}-{_n_envs}"] = _with_envs(_env, _n_envs)


class RolloutTimer(BaseCallback):
    """Measures the seconds spent in rollouts."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0
        self._start = 0.0

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        self._start = time.perf_counter()

    def _on_rollout_end(self) -> None:
        self.seconds += time.perf_counter() - self._start


def measure(workload: Workload, algorithms: Algorithms, pairs: int) -> dict[str, Any]:
    """Run every algorithm in turn, ``pairs`` times, after one run each to warm up.

    :return: seconds of each run and of its rollout by algorithm, and environment steps of a run
    """
    models = {name: workload.model(algorithm) for name, algorithm in algorithms.items()}
    seconds: dict[str, list[float]] = {name: [] for name in models}
    rollout_seconds: dict[str, list[float]] = {name: [] for name in models}
    for pair in range(pairs + 1):
        for name, model in models.items():
            timer = RolloutTimer()
            start = time.perf_counter()
            model.learn(model.n_steps * model.n_envs, callback=timer)
            if pair > 0:
                seconds[name].append(time.perf_counter() - start)
                rollout_seconds[name].append(timer.seconds)
    model = next(iter(models.values()))
    steps = model.n_steps * model.n_envs
    return {"steps": steps, "seconds": seconds, "rollout_seconds": rollout_seconds, "floor": floor(workload, steps)}


def floor(workload: Workload, steps: int) -> float:
    """Seconds that the environments alone take for as many steps, with random actions."""
    env = workload.make_env()
    env.reset()
    actions = [np.array([env.action_space.sample() for _ in range(env.num_envs)]) for _ in range(steps // env.num_envs)]
    start = time.perf_counter()
    for action in actions:
        env.step(action)
    return time.perf_counter() - start


def rows(name: str, measured: dict[str, Any]) -> list[str]:
    """The lines of the table for one workload."""
    reference = np.array(measured["seconds"]["PPO"])
    lines = []
    for algorithm, seconds in measured["seconds"].items():
        low, median, high = np.quantile(reference / np.array(seconds), [0.25, 0.5, 0.75])
        share = np.median(np.array(measured["rollout_seconds"][algorithm]) / np.array(seconds))
        rate = measured["steps"] / np.median(seconds)
        ratio = f"{median:.2f} ({low:.2f} to {high:.2f})"
        lines.append(f"| {name} | {algorithm} | {ratio} | {rate:.0f} | {share:.0%} | {1 - share:.0%} |")
    lines.append(f"| {name} | environments alone | | {measured['steps'] / measured['floor']:.0f} | | |")
    return lines


def add_command(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--workloads",
        nargs="+",
        choices=WORKLOADS,
        default=DEFAULT_WORKLOADS,
        metavar="NAME",
        help=f"of {', '.join(WORKLOADS)}",
    )
    parser.add_argument(
        "--algorithms",
        nargs="+",
        choices=variants.__all__,
        default=["PPOClip"],
        metavar="NAME",
        help=f"of {', '.join(variants.__all__)}",
    )
    parser.add_argument("--reference", action="store_true", help="also run PPOClip with fast=False")
    parser.add_argument("--peers", action="store_true", help="also run SBX's PPO (pip install sbx-rl)")
    parser.add_argument("--pairs", type=int, default=7, help="runs of each algorithm (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="file for the measured seconds")
    parser.add_argument("--report", type=Path, help="measure nothing, print the table of such a file")
    parser.set_defaults(run=run)


def _algorithms(options: argparse.Namespace) -> Algorithms:
    algorithms: Algorithms = {"PPO": partial(PPO, device="cpu")}
    for name in options.algorithms:
        algorithms[name] = partial(getattr(variants, name), device="cpu")
    if options.reference:
        algorithms["PPOClip, fast=False"] = partial(variants.PPOClip, device="cpu", fast=False)
    if options.peers:
        try:
            import sbx
        except ImportError as error:
            raise SystemExit("--peers needs SBX: pip install sbx-rl") from error
        algorithms["SBX PPO"] = sbx.PPO
    return algorithms


def _print_table(runs: dict[str, Any]) -> None:
    print("| workload | algorithm | speed over SB3's PPO | steps/s | rollout | update |\n|---|---|---|---|---|---|")
    for name, values in runs.items():
        print("\n".join(rows(name, values)))


def run(options: argparse.Namespace) -> int:
    """Measure and print a table of medians, with quartiles of the speed over that of PPO.

    :return: 0
    """
    if options.report is not None:
        _print_table(json.loads(options.report.read_text())["runs"])
        return 0
    if options.pairs < 1:
        raise SystemExit(f"--pairs {options.pairs} is not allowed; allowed: an integer >= 1")
    th.set_num_threads(options.threads)
    algorithms = _algorithms(options)
    measured = rounded({name: measure(WORKLOADS[name], algorithms, options.pairs) for name in options.workloads})
    _print_table(measured)
    if options.json is not None:
        made_with = circumstances("torch")
        options.json.write_text(json.dumps({**made_with, "threads": options.threads, "runs": measured}) + "\n")
    return 0


def circumstances(*packages: str) -> dict[str, Any]:
    """What a measurement was made with: the versions of our packages and of these, and the machine."""
    versions = {name: version(name) for name in ("sb3_ppo_variants", "stable_baselines3", "numpy", *packages)}
    return {"versions": versions, "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"}


def rounded(value: Any) -> Any:
    """Times to a microsecond, which keeps the file small."""
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items()}
    if isinstance(value, list):
        return [rounded(part) for part in value]
    return round(value, 6) if isinstance(value, float) else value
