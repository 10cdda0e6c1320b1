"""Compare the speed of the variants with that of SB3's PPO, or of sb3-contrib's, in alternating runs of one process."""

import argparse
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from sb3_ppo_variants import variants
from sb3_ppo_variants.benchmark import measuring
from sb3_ppo_variants.benchmark.compare.settings import ALGORITHMS, BASELINE, Setting, load_class, policy_of
from sb3_ppo_variants.benchmark.measuring import Count, quartiles, since
from sb3_ppo_variants.recipes import recipe

Algorithms = Mapping[str, Callable[..., OnPolicyAlgorithm]]
# Steps of a rollout over all environments, for the workloads that differ in their number.
ROLLOUT = 2048
N_ENVS = (1, 8, 32, 128)


@dataclass(frozen=True)
class Workload:
    """An environment and how to train on it; a run is one rollout and its update.

    :param baseline: the setting of ``compare`` that the others are compared with
    """

    make_env: Callable[[], VecEnv]
    policy: str
    settings: dict[str, Any]
    baseline: str = BASELINE

    def model(self, algorithm: Callable[..., OnPolicyAlgorithm]) -> OnPolicyAlgorithm:
        """A new model of this workload."""
        return algorithm(self.policy, self.make_env(), seed=0, **self.settings)

    def with_baseline(self, algorithms: Algorithms) -> Algorithms:
        """The algorithms, after the one that they are compared with."""
        cls: Any = load_class(ALGORITHMS[self.baseline])

        def make(policy: str, *args: Any, **arguments: Any) -> OnPolicyAlgorithm:
            return cls(policy_of(Setting(self.baseline), policy), *args, device="cpu", **arguments)

        return {cls.__name__: make, **algorithms}


def _breakout() -> VecEnv:
    return recipe("ppo_clip", "BreakoutNoFrameskip-v4").make_env(n_envs=8, seed=0)


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
WORKLOADS["scheduling"] = Workload(
    partial(make_vec_env, "sb3_ppo_variants.tasks:Scheduling-v0", 8),
    "MaskableMlpPolicy",
    {"n_steps": ROLLOUT // 8},
    "contrib_maskable_ppo",
)
for _n_envs in (1, 8):
    WORKLOADS[f"cartpole-novel-{_n_envs}"] = Workload(
        partial(make_vec_env, "sb3_ppo_variants.tasks:CartPoleNoVel-v1", _n_envs),
        "MlpLstmPolicy",
        {"n_steps": ROLLOUT // _n_envs, "batch_size": 128},
        "contrib_recurrent_ppo",
    )


class RolloutTimer(BaseCallback):
    """Measures the seconds spent in rollouts."""

    seconds = 0.0

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        self._start = time.perf_counter()

    def _on_rollout_end(self) -> None:
        self.seconds += time.perf_counter() - self._start


def _learn(model: OnPolicyAlgorithm) -> tuple[float, float]:
    """Seconds of a run and of its rollout."""
    timer, start = RolloutTimer(), time.perf_counter()
    model.learn(model.n_steps * model.n_envs, callback=timer)
    return since(start), round(timer.seconds, 6)


def measure(workload: Workload, algorithms: Algorithms, pairs: int) -> dict[str, Any]:
    """Run every algorithm in turn, ``pairs`` times, after one run each to warm up.

    :return: ``steps`` of all environments in a run, ``seconds`` and ``rollout_seconds`` of each run by algorithm, and
        ``floor``: seconds that the environments alone take for as many steps, with random actions
    """
    models = {name: workload.model(algorithm) for name, algorithm in algorithms.items()}
    runs = measuring.in_turn({name: partial(_learn, model) for name, model in models.items()}, pairs)
    model = next(iter(models.values()))
    env = workload.make_env()
    env.reset()
    return {
        "steps": model.n_steps * model.n_envs,
        "seconds": {name: [seconds for seconds, _ in of_model] for name, of_model in runs.items()},
        "rollout_seconds": {name: [seconds for _, seconds in of_model] for name, of_model in runs.items()},
        "floor": measuring.seconds_to_step(env, model.n_steps),
    }


def rows(name: str, measured: dict[str, Any]) -> list[str]:
    """The lines of the table for one workload."""
    lines = []
    for algorithm, of_runs in measured["seconds"].items():
        seconds = np.array(of_runs)
        ratio = quartiles(np.array(next(iter(measured["seconds"].values()))) / seconds)
        share = np.median(np.array(measured["rollout_seconds"][algorithm]) / seconds)
        rate = measured["steps"] / np.median(seconds)
        lines.append(f"| {name} | {algorithm} | {ratio} | {rate:.0f} | {share:.0%} | {1 - share:.0%} |")
    return [*lines, f"| {name} | environments alone | | {measured['steps'] / measured['floor']:.0f} | | |"]


def add_command(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    measuring.add_options(parser, WORKLOADS, DEFAULT_WORKLOADS, pairs=7)
    measuring.add_names(parser, "--algorithms", variants.__all__, ["PPOClip"])
    parser.add_argument("--reference", action="store_true", help="also run PPOClip with fast=False")
    parser.add_argument("--peers", action="store_true", help="also run SBX's PPO (pip install sbx-rl)")
    parser.add_argument("--threads", action=Count, default=1, help="torch threads (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="file for the measured seconds")
    parser.add_argument("--report", type=Path, help="measure nothing, print the table of such a file")


def _algorithms(options: argparse.Namespace) -> Algorithms:
    algorithms: dict[str, Callable[..., Any]] = {
        name: partial(getattr(variants, name), device="cpu") for name in options.algorithms
    }
    if options.reference:
        algorithms["PPOClip, fast=False"] = partial(variants.PPOClip, device="cpu", fast=False)
    if options.peers:
        try:
            import sbx
        except ImportError as error:
            raise SystemExit("--peers needs SBX: pip install sbx-rl") from error
        algorithms["SBX PPO"] = sbx.PPO
    return algorithms


def run(options: argparse.Namespace) -> int:
    """Measure and print a table of medians, with quartiles of the speed over that of the first of its workload."""
    if options.report is None:
        th.set_num_threads(options.threads)
        algorithms = _algorithms(options)
        workloads = {name: WORKLOADS[name] for name in options.workloads}
        runs = {name: measure(of, of.with_baseline(algorithms), options.pairs) for name, of in workloads.items()}
        measured = {**measuring.circumstances(), "threads": options.threads, "runs": runs}
    else:
        measured = json.loads(options.report.read_text())
    print("| workload | algorithm | speed over the first | steps/s | rollout | update |\n|---|---|---|---|---|---|")
    for name, values in measured["runs"].items():
        print("\n".join(rows(name, values)))
    if options.json is not None:
        options.json.write_text(json.dumps(measured) + "\n")
    return 0
