"""What the result of a run depends on besides its settings and seed: versions, the user's own modules, the processor.

Sums of floating-point numbers depend on the order in which a processor's instructions add them. Training amplifies the
last bit until two processors, or two versions of the code, give different scores.
"""

import hashlib
import os
import platform
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from typing import Any, TypedDict

import gymnasium as gym
import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm

from sb3_ppo_variants.backends.choice import choose
from sb3_ppo_variants.backends.native.library import library
from sb3_ppo_variants.base.algorithm import PPOBase

# Environments and algorithms come from these packages, so that their versions matter where they are installed.
PACKAGES = ("sb3_contrib", "mujoco", "ale_py", "envpool", "box2d")
HERE = __name__.partition(".")[0]


class Numerics(TypedDict):
    """What decides how a run's sums are rounded."""

    # The model of the processor.
    processor: str
    # The instruction sets that the native library and PyTorch use.
    native: str
    torch: str
    # The name of the backend that computes the updates; empty for algorithms of other packages.
    path: str


def numerics(model: BaseAlgorithm | None) -> Numerics:
    """Describe how this process computes the updates of a model.

    :param model: the model; ``None`` for the random policy
    """
    path = choose(model._plan(), model.fast).backend.name if isinstance(model, PPOBase) else ""
    found = library()
    return {
        "processor": processor(),
        "native": "" if found is None else found.instructions,
        "torch": th.backends.cpu.get_cpu_capability(),
        "path": path,
    }


@cache
def processor() -> str:
    """Return the model of the processor, as far as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    fields = dict(line.replace("\t", "").split(": ", 1) for line in lines if ": " in line)
    numbers = [fields[name] for name in ("cpu family", "model") if name in fields]
    return " ".join([fields.get("model name", platform.machine()), *([f"({'/'.join(numbers)})"] if numbers else [])])


def installed() -> dict[str, str]:
    """Return the versions of those of ``PACKAGES`` that are installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def own_modules(algorithm: str, env: str, wrappers: object) -> dict[str, str]:
    """Return a digest of each imported module that a run names and that no installed package contains.

    :param algorithm: ``module:Class``, empty for the random policy
    :param env: id of the environment
    :param wrappers: the hyperparameter ``env_wrapper``
    """
    paths = [algorithm.partition(":")[0], *_modules(wrappers)]
    if env in gym.registry and isinstance(entry := gym.registry[env].entry_point, str):
        paths.append(entry.partition(":")[0])
    packaged = packages_distributions().keys() | sys.stdlib_module_names | {HERE}
    found = {}
    for path in sorted({path for path in paths if path and path.partition(".")[0] not in packaged}):
        file = getattr(sys.modules.get(path), "__file__", None)
        if file is not None:
            found[path] = hashlib.sha256(Path(file).read_bytes()).hexdigest()[:12]
    return found


def _modules(wrappers: object) -> list[str]:
    """Return the modules of wrappers in the RL Zoo's format: an import path, a dict with one as key, or a list."""
    if isinstance(wrappers, list):
        return [path for each in wrappers for path in _modules(each)]
    names = wrappers if isinstance(wrappers, dict) else [wrappers]  # None is no name.
    return [name.rpartition(".")[0] for name in names if isinstance(name, str)]


def described(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say in lines what computed some runs, and whether they can be compared seed by seed.

    :param records: the records of the runs; those of earlier versions lack ``numerics`` and ``modules``
    """
    machines: Counter[str] = Counter()
    kinds: dict[str, set[str]] = defaultdict(set)
    digests: dict[str, set[str]] = defaultdict(set)
    for record in records:
        found = record.get("numerics")
        kinds[record["label"]].add(str(found))
        machines[_machine(found) if found else "not known, recorded by an earlier version"] += 1
        for module, digest in record.get("modules", {}).items():
            digests[module].add(digest)
    counted = sorted(machines.items())
    lines = [f"processor: {machine} ({number} run{'s' * (number != 1)})" for machine, number in counted]
    if len(machines) > 1 or any(len(of_label) > 1 for of_label in kinds.values()):
        lines.append(
            "runs of different processors or backends are compared here: with the same seed, they would differ as runs "
            "of different seeds do"
        )
    changed = sorted(module for module, of_module in digests.items() if len(of_module) > 1)
    return [*lines, *(f"the code of {module} is not the same in all of these runs" for module in changed)]


def _machine(found: Numerics) -> str:
    native = found["native"] or "not built"
    return f"{found['processor']}; native library: {native}, PyTorch: {found['torch']}"


@cache
def commit() -> str | None:
    """Return the commit of this package, with ``-dirty`` if files were changed, or ``None`` outside its repository."""
    file = Path(__file__)
    try:
        _git("ls-files", "--error-unmatch", file.name, folder=file.parent)  # Fails in another project's repository.
        return _git("describe", "--always", "--abbrev=12", "--dirty", "--exclude=*", folder=file.parent)
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(*arguments: str, folder: Path) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def circumstances(*packages: str) -> dict[str, Any]:
    """Describe how a result was made: the versions of Python, the core packages and these packages, and the machine."""
    names = ("sb3_ppo_variants", "stable_baselines3", "gymnasium", "torch", "numpy", *packages)
    versions = {name: str(import_module(name).__version__) for name in names}
    return {
        "versions": {"python": platform.python_version(), **versions},
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
    }
