"""What a result depends on besides settings and seed: the processor, the versions of packages, the code, the machine.

Processors, and versions of the code, round sums differently, and training amplifies the last bit into other scores.
"""

import hashlib
import os
import platform
import re
import subprocess
import sys
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path

import gymnasium as gym
import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm

from sb3_ppo_variants.compare.plan import Run
from sb3_ppo_variants.engines.choice import choose
from sb3_ppo_variants.engines.native.library import library
from sb3_ppo_variants.ppo import PPOBase
from sb3_ppo_variants.saving.plain import Values

# Environments and algorithms come from these packages, so that their versions matter where they are installed.
OPTIONAL_PACKAGES = ("sb3_contrib", "mujoco", "ale_py", "envpool", "box2d")


def numerics(model: BaseAlgorithm | None) -> dict[str, str]:
    """Describe what decides how this process rounds sums. Only this package's algorithms have a path."""
    found = library()
    return {
        "processor": processor(),
        "native": "" if found is None else found.instructions,
        "torch": th.backends.cpu.get_cpu_capability(),
        "path": choose(model._plan(), model.fast).engine.name if isinstance(model, PPOBase) else "",
    }


@cache
def processor() -> str:
    """Find the model of the processor, as far as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    fields = dict(line.replace("\t", "").split(": ", 1) for line in lines if ": " in line)
    numbers = "/".join(fields[name] for name in ("cpu family", "model") if name in fields)
    return fields.get("model name", platform.machine()) + (f" ({numbers})" if numbers else "")


def installed_versions() -> dict[str, str]:
    """Find the versions of those of ``OPTIONAL_PACKAGES`` that are installed."""
    found = {}
    for name in OPTIONAL_PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


@cache
def packaged_modules() -> set[str]:
    """List the first names of the modules that Python, this package and the installed ones contain."""
    return {*packages_distributions(), *sys.stdlib_module_names, __name__.partition(".")[0], ""}


@cache
def _digest(file: str) -> str:
    """Hash a file, once: a process goes on with the code that it has imported, even if the file changes."""
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:12]


def own_modules(run: Run) -> dict[str, str]:
    """Hash each imported module that a run names and that no installed package contains."""
    spec = gym.registry.get(run.env.rpartition(":")[2])
    named = [run.algorithm, run.env, spec and str(spec.entry_point), run.identity["hyperparameters"]]
    words = re.findall(r"[^\W\d][\w.]*", str(named))
    paths = {path for word in words for path in (word, word.rpartition(".")[0])}
    own = [path for path in sorted(paths) if path.partition(".")[0] not in packaged_modules()]
    files = {path: getattr(sys.modules.get(path), "__file__", None) for path in own}
    return {path: _digest(file) for path, file in files.items() if file}


@cache
def commit() -> str | None:
    """Find the commit of this package, with ``-dirty`` if files were changed, or ``None`` outside its repository."""
    git = partial(subprocess.run, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    try:
        git(["git", "ls-files", "--error-unmatch", Path(__file__).name])  # Fails in another project's repository.
        return git(["git", "describe", "--always", "--abbrev=12", "--dirty", "--exclude=*"]).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def circumstances(*packages: str) -> Values:
    """Describe how a result was made: the versions of Python, the core packages and these packages, and the machine."""
    names = ("sb3_ppo_variants", "stable_baselines3", "gymnasium", "torch", "numpy", *packages)
    versions = {name: str(import_module(name).__version__) for name in names}
    return {
        "versions": {"python": platform.python_version(), **versions},
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores of {processor()}",
    }
