"""Compare the speed of PPOClip with the PPO of other packages, each in a virtual environment of its own."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import measuring
from benchmarks.measuring import quartiles, since

# Trains with SB3's interface: PPO, PPOClip and SBX's PPO.
SCRIPT = """
import json, sys
from importlib import import_module
import torch
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize
module, name, env, n_envs, normalized, arguments = json.loads(sys.argv[1])
torch.set_num_threads(1)
env = make_vec_env(env, n_envs)
algorithm = getattr(import_module(module), name)
algorithm("MlpPolicy", VecNormalize(env) if normalized else env, device="cpu", **arguments).learn(int(sys.argv[2]))
"""
# The settings of CleanRL's scripts, as far as the speed depends on them: environment id, number of environments,
# whether they are normalised, and arguments.
SETTINGS: Mapping[str, tuple[str, int, bool, Mapping[str, int]]] = {
    "cartpole": ("CartPole-v1", 4, False, {"n_steps": 128, "batch_size": 128, "n_epochs": 4}),
    "halfcheetah": ("HalfCheetah-v4", 1, True, {"n_steps": 2048, "batch_size": 64, "n_epochs": 10}),
}
# Steps of the shorter and of the longer run, both whole rollouts. Their difference leaves out start and compilation.
STEPS = {"cartpole": (2_560, 17_920), "halfcheetah": (2_048, 10_240)}
SCRIPTS = ("torch==2.13.0", "gymnasium==0.29.1", "mujoco<3.3", "tyro", "tensorboard", "wandb", "tensordict", "tqdm")
SERIAL = ("--algo=APPO", "--device=cpu", "--serial_mode=True", "--async_rl=False", "--use_rnn=False", "--num_workers=1")


@dataclass(frozen=True)
class Program:
    """A program that trains with PPO.

    :param arguments: Python's arguments by workload, with ``{folder}`` for the folder of all environments and
        ``{steps}`` for the number of steps
    :param environment: name of its virtual environment; ``None`` is the one that this command runs in
    :param packages: what to install there
    :param repository: address and commit of the repository to clone
    :param factor: how many times as many steps to measure, because the program is fast
    :param variables: environment variables
    """

    arguments: Mapping[str, Sequence[str]]
    environment: str | None = None
    packages: Sequence[str] = ()
    repository: tuple[str, str] | None = None
    factor: int = 1
    variables: Mapping[str, str] = field(default_factory=dict)


def _of_sb3(module: str, name: str, **more: Any) -> Program:
    asked = {workload: json.dumps([module, name, *settings]) for workload, settings in SETTINGS.items()}
    return Program({workload: ("-c", SCRIPT, asked[workload], "{steps}") for workload in SETTINGS}, **more)


def _script(path: str) -> tuple[str, ...]:
    return (f"{{folder}}/{path}", "--no-cuda", "--total-timesteps", "{steps}")


PROGRAMS = {
    "SB3's PPO": _of_sb3("stable_baselines3", "PPO"),
    "PPOClip": _of_sb3("sb3_ppo_variants", "PPOClip", factor=6),
    "SBX's PPO": _of_sb3(
        "sbx", "PPO", environment="sbx", packages=("torch==2.13.0", "sbx-rl", "gymnasium[mujoco]"),
        variables={"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"},
    ),
    "CleanRL": Program(
        {
            "cartpole": _script("cleanrl/cleanrl/ppo.py"),
            "halfcheetah": _script("cleanrl/cleanrl/ppo_continuous_action.py"),
        },
        "scripts", SCRIPTS, ("https://github.com/vwxyzjn/cleanrl", "fe8d8a03c41a7ef5b523e2e354bd01c363e786bb"),
    ),
    "LeanRL": Program(
        {"halfcheetah": _script("leanrl/leanrl/ppo_continuous_action.py")},
        "scripts", SCRIPTS, ("https://github.com/meta-pytorch/LeanRL", "760837e0844e32bb5e1b06afb612ac694f7240ca"),
        variables={"WANDB_MODE": "disabled"},
    ),
    "Sample Factory, one process": Program(
        {
            "cartpole": (
                "-m", "sf_examples.train_gym_env", *SERIAL, "--env=CartPole-v1", "--num_envs_per_worker=4",
                "--rollout=128", "--batch_size=128", "--num_batches_per_epoch=4", "--num_epochs=4",
                "--train_for_env_steps={steps}",
            ),
            "halfcheetah": (
                "-m", "sf_examples.mujoco.train_mujoco", *SERIAL, "--env=mujoco_halfcheetah", "--num_envs_per_worker=1",
                "--worker_num_splits=1", "--rollout=64", "--batch_size=64", "--num_batches_per_epoch=32",
                "--num_epochs=10", "--train_for_env_steps={steps}",
            ),
        },
        "factory", ("torch==2.13.0", "sample-factory", "mujoco<3.3", "imageio"),
    ),
}  # fmt: skip


def install(program: Program, folder: Path) -> None:
    """Create a program's environment and clone its repository, or complete what an interrupted installation left.

    :raises subprocess.CalledProcessError: if pip or git fails
    """
    run = partial(subprocess.run, check=True)
    if program.environment is not None:
        run([sys.executable, "-m", "venv", folder / program.environment])
        run([_python(program, folder), "-m", "pip", "install", "-q", *program.packages])
    if program.repository is not None:
        address, commit = program.repository
        clone = folder / address.rpartition("/")[2].lower()
        if not clone.exists():
            run(["git", "clone", "-q", address, clone])
        run(["git", "checkout", "-q", commit], cwd=clone)


def _python(program: Program, folder: Path) -> Path:
    return Path(sys.executable) if program.environment is None else folder / program.environment / "bin" / "python"


def seconds(program: Program, workload: str, steps: int, folder: Path) -> float:
    """Return the seconds that a program takes from its start to its end.

    :raises SystemExit: if it is missing, or fails; the message ends with its last output
    """
    python = _python(program, folder)
    if not python.exists():
        raise SystemExit(f"{python} is missing; pass --install to create it, or leave it out with --programs")
    given = program.arguments[workload]
    arguments = [each.replace("{folder}", str(folder)).replace("{steps}", str(steps)) for each in given]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **program.variables}
    # The programs write logs where they run.
    with tempfile.TemporaryDirectory() as where:
        start = time.perf_counter()
        ended = subprocess.run([python, *arguments], cwd=where, env=variables, capture_output=True, text=True)
        passed = since(start)
    if ended.returncode:
        raise SystemExit(f"{python} failed on {workload}:\n{ended.stderr[-2000:]}")
    return passed


def rate(program: Program, workload: str, folder: Path) -> float:
    """Return the steps per second of a program between the end of a shorter run and that of a longer one."""
    short, long = STEPS[workload]
    long = short + program.factor * (long - short)
    passed = seconds(program, workload, long, folder) - seconds(program, workload, short, folder)
    return round((long - short) / passed, 1)


def _runs(programs: Mapping[str, Program], folder: Path, workload: str) -> dict[str, Callable[[], float]]:
    having = {name: program for name, program in programs.items() if workload in program.arguments}
    return {name: partial(rate, program, workload, folder) for name, program in having.items()}


def table(runs: Mapping[str, Mapping[str, Sequence[float]]]) -> list[str]:
    """Return a table of each program's speed relative to SB3's PPO, for each workload."""
    lines = ["| workload | program | speed over SB3's PPO | steps/s |", "|---|---|---|---|"]
    for workload, of_workload in runs.items():
        for name, rates in of_workload.items():
            ratio = quartiles(np.array(rates) / np.array(of_workload["SB3's PPO"]))
            lines.append(f"| {workload} | {name} | {ratio} | {np.median(rates):.0f} |")
    return lines


def add_command(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    measuring.add_options(parser, SETTINGS, list(SETTINGS), pairs=5)
    measuring.add_names(parser, "--programs", PROGRAMS, list(PROGRAMS))
    parser.add_argument(
        "--folder", type=Path, default=Path("peers"), help="folder of the programs (default: %(default)s)"
    )
    parser.add_argument("--install", action="store_true", help="first install what is missing there, with pip and git")


def run(options: argparse.Namespace) -> int:
    """Measure the programs in turn and print a table of medians, with quartiles of the speed relative to SB3's PPO."""
    folder = options.folder.absolute()
    programs = {name: PROGRAMS[name] for name in ["SB3's PPO", *options.programs]}
    if options.install:
        for program in programs.values():
            install(program, folder)

    def measure(workload: str) -> Mapping[str, list[float]]:
        return measuring.in_turn(_runs(programs, folder, workload), options.pairs)

    print("\n".join(table(measuring.measured(options, measure, of_each=["SB3's PPO"])["runs"])))
    return 0
