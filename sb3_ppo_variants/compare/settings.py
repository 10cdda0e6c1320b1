"""The settings to compare: algorithms, each with its own arguments."""

import ast
import inspect
import math
import re
from dataclasses import dataclass, field
from importlib import import_module

from stable_baselines3.common.base_class import BaseAlgorithm

from sb3_ppo_variants import recipes
from sb3_ppo_variants.compare.options import ALGORITHMS, EXAMPLE, MASKABLE
from sb3_ppo_variants.errors import ArgumentError, installation

# Arguments that a comparison does not take as hyperparameters, with the reason or the option to use instead.
NO_PART = "it does not change what is learned"
RESERVED = {
    "env": "use --envs",
    "seed": "use --seeds",
    "n_timesteps": "use --timesteps",
    "verbose": NO_PART,
    "tensorboard_log": NO_PART,
    "stats_window_size": NO_PART,
    "_init_setup_model": NO_PART,
    "data_parallel": "each run is one process",
}

# The arguments of this package's classes that every record contains. Arguments that the classes gained later are only
# recorded if they are not at their defaults, so that earlier runs keep their names.
RECORDED = frozenset({
    "policy", "learning_rate", "n_steps", "batch_size", "n_epochs", "gamma", "gae_lambda", "clip_range",
    "clip_range_vf", "normalize_advantage", "ent_coef", "vf_coef", "max_grad_norm", "use_sde", "sde_sample_freq",
    "rollout_buffer_class", "rollout_buffer_kwargs", "target_kl", "policy_kwargs", "device", "fast", "updates",
    "desired_kl", "kl_coef", "objective",
})  # fmt: skip

# A name and "=", at the beginning or after a comma.
ASSIGNMENT = re.compile(r"(?:^|,)\s*([A-Za-z_]\w*)\s*=")


@dataclass(frozen=True)
class Setting:
    """An algorithm (a key of ``ALGORITHMS`` or ``module:Class``), its arguments and, optionally, its own protocol."""

    name: str
    arguments: dict[str, object] = field(default_factory=dict)
    protocol: str | None = None

    @property
    def label(self) -> str:
        """The setting in words."""
        given = self.arguments if self.protocol is None else {**self.arguments, "protocol": self.protocol}
        listed = ", ".join(f"{name}={value}" for name, value in sorted(given.items()))
        return f"{self.name} {listed}".strip()

    @property
    def path(self) -> str:
        """The import path of the algorithm, ``module:Class``."""
        return ALGORITHMS.get(self.name, self.name)


def own_protocol(label: str) -> str | None:
    """Return the protocol of its own that the setting with a label has, if it has one."""
    found = re.search(r"[ ,] ?protocol=([\w-]+)", label)
    return found and found[1]


def named(text: str) -> Setting:
    """Return the setting that ``name`` or ``name:argument=value,...`` names, whether or not it exists."""
    name, *given = re.split(r":(?=\s*\w+\s*=)", text, maxsplit=1)
    arguments = assignments(given[0]) if given else {}
    protocol = arguments.pop("protocol", None)
    return Setting(name, arguments, None if protocol is None else str(protocol))


def parse(text: str) -> Setting:
    """Parse ``name`` or ``name:argument=value,...`` into a setting, where the name may also be ``module:Class``."""
    setting = named(text)
    if setting.protocol is not None and setting.protocol not in recipes.PROTOCOLS:
        known_protocols = ", ".join(recipes.PROTOCOLS)
        raise ArgumentError(f"protocol={setting.protocol} in {text} is none of the protocols: {known_protocols}")
    known = accepted(load_class(setting.path))
    for argument in setting.arguments:
        if argument in RESERVED:
            raise ArgumentError(f"{argument} cannot be an argument of a setting, as in {text}: {RESERVED[argument]}")
        if argument not in known and argument not in recipes.ENVIRONMENT_KEYS:
            names = ", ".join([*sorted(known.keys() - RESERVED.keys()), *recipes.ENVIRONMENT_KEYS, "protocol"])
            raise ArgumentError(f"{setting.name} has no argument {argument}; it has {names}")
    return setting


def assignments(text: str) -> dict[str, object]:
    """Parse ``name=value,name=value``, where each value is a Python literal, ``inf`` or text like ``lin_3e-4``
    and ``mine:SPO(0.2)``."""
    found = [match for match in ASSIGNMENT.finditer(text) if not _is_within_brackets(text, match.start())]
    names, ends = [match[1] for match in found], [*(match.start() for match in found[1:]), len(text)]
    values = [text[match.end() : end] for match, end in zip(found, ends, strict=bool(found))]
    before = text[: found[0].start()] if found else text
    if before.strip() or not names or not all(value.strip() for value in values):
        raise ArgumentError(f"{text!r} must be name=value, or several of them separated by commas")
    for name in names:
        if names.count(name) > 1:
            raise ArgumentError(f"{name} is given more than once in {text!r}")
    return {name: _literal(value.strip()) for name, value in zip(names, values, strict=True)}


def _is_within_brackets(text: str, position: int) -> bool:
    before = text[:position]
    return sum(map(before.count, "([{")) > sum(map(before.count, ")]}"))


def _literal(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        # Infinity has no literal. The commands in reports name it so too.
        return math.inf if text == "inf" else text


def load_class(path: str) -> type[BaseAlgorithm]:
    """Import the class at ``module:Class``, which must derive from SB3's ``BaseAlgorithm``."""
    module, _, name = path.partition(":")
    if not module or not name or module in ALGORITHMS:
        names = ", ".join(ALGORITHMS)
        raise ArgumentError(f"{path} is not a setting: name {names} or module:Class, and arguments as in {EXAMPLE}")
    try:
        found = getattr(import_module(module), name)
    except Exception as error:  # The module's own code may raise anything.
        extra = f"; {installation('contrib')}" if module == "sb3_contrib" else ""
        raise ArgumentError(f"{path} cannot be imported: {type(error).__name__}: {error}{extra}") from error
    if not (isinstance(found, type) and issubclass(found, BaseAlgorithm)):
        raise ArgumentError(f"{path} is not an algorithm: it must derive from stable_baselines3's BaseAlgorithm")
    return found


def policy_of(setting: Setting, policy: object) -> object:
    """Return an algorithm's name for a policy: sb3-contrib's maskable policies are called ``MlpPolicy`` and so on."""
    return policy.removeprefix("Maskable") if setting.path == MASKABLE and isinstance(policy, str) else policy


def accepted(algorithm: type) -> dict[str, object]:
    """Return the arguments of a class with their defaults, including those of its bases if it takes ``**kwargs``."""
    arguments: dict[str, object] = {}
    for base in algorithm.__mro__:
        parameters = inspect.signature(base).parameters.values()
        named = {p.name: p.default for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        arguments = {**named, **arguments}
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            break
    return arguments


def own_defaults(algorithm: type) -> dict[str, object]:
    """Return the arguments of a class that have defaults, without those that it takes as ``**kwargs``.

    Of the latter, the class may set some itself, so they cannot all be passed.
    """
    parameters = inspect.signature(algorithm).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


def added_later(algorithm: type) -> dict[str, object]:
    """Return the arguments, besides ``RECORDED``, that a class has from this package, with their defaults there."""
    package = __name__.partition(".")[0]
    own = next((base for base in algorithm.__mro__ if base.__module__.partition(".")[0] == package), None)
    return {} if own is None else {name: value for name, value in accepted(own).items() if name not in RECORDED}
