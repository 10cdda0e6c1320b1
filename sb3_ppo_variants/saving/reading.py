"""Reads and checks the attributes of a model in a file."""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.utils import check_for_correct_spaces
from stable_baselines3.common.vec_env import VecEnv

from sb3_ppo_variants.arguments.rules import Rule, check_arguments, instance
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.saving.archive import Archive
from sb3_ppo_variants.saving.fit import check_states, policy_class
from sb3_ppo_variants.saving.rules import OF_STATE, OF_STRANGERS, as_attributes, check_attributes
from sb3_ppo_variants.saving.strangers import KEPT_OUT, attributes_of, check_rollout, check_tensors
from sb3_ppo_variants.saving.values import STATISTICS, read_attributes

OBJECTS = instance("a dict of attributes", dict).or_none()
# Arguments that determine the networks and the optimizers, with functions that return what matters about their values.
STRUCTURE: Mapping[str, Callable[[Any], Any]] = {
    "policy_kwargs": lambda value: {**value, "device": None} if isinstance(value, dict) else value,
    "use_sde": bool,
    "updates": lambda value: value is None,
}


def read_values(
    cls: type[BaseAlgorithm],
    archive: Archive,
    env: GymEnv | None,
    custom_objects: dict[str, Any] | None,
    arguments: Mapping[str, Any],
    weights_only: bool,
) -> dict[str, Any]:
    """Read the attributes of a model from a file that its class can load.

    :param env: the environment of the model
    :param custom_objects: values that replace those in the file
    :param arguments: arguments of the constructor, or attributes, that override those in the file
    :param weights_only: whether to unpickle nothing, and to limit which attributes the file may set and how much memory
        it may use
    :raises ArgumentError: if an argument has a value that is not allowed, or needs other networks or optimizers than
        those in the file
    :raises DamagedFileError: if an attribute cannot be read, or has a value that no model can have
    :raises PickledValueError: with ``weights_only``, if the model needs a pickled value
    """
    if weights_only:
        check_tensors(archive)
    check_states(cls, archive)
    wrapped = None if env is None else cls._wrap_env(env)
    OBJECTS.check("custom_objects", custom_objects)
    of_arguments: Mapping[str, Rule] = {**getattr(cls, "rules", {}), **getattr(cls, "own_rules", {})}
    check_arguments({**(custom_objects or {}), **arguments}, {**OF_STATE, **of_arguments})
    objects, arguments = as_attributes(custom_objects or {}), as_attributes(arguments)
    given = {**objects, **arguments}
    known = {**arguments, **_spaces_of(wrapped)}
    read = _read_untrusted(cls, archive, objects, known) if weights_only else read_attributes(archive, objects)
    if "device" not in objects:
        read.pop("device", None)  # SB3 saves none, and the argument of load() decides.
    _check_structure(archive.name, read, arguments)
    values = {"verbose": 0, **read, **arguments}
    values["policy_class"] = policy_class(cls, archive, values)
    of_attributes = {**of_arguments, **OF_STATE, **(OF_STRANGERS if weights_only else {})}
    check_attributes(cls, of_attributes, archive.name, values, given)
    if any(values.get(name) is None for name in STATISTICS):
        # SB3 only creates the two together, so drop both if one is missing.
        values |= dict.fromkeys(STATISTICS)
    elif "_stats_window_size" in given:
        values |= {name: deque(values[name], int(values["_stats_window_size"])) for name in STATISTICS}
    if weights_only:
        _check_for_env(archive.name, values, wrapped)
    return values


def _read_untrusted(
    cls: type[BaseAlgorithm], archive: Archive, objects: Mapping[str, Any], known: Mapping[str, Any]
) -> dict[str, Any]:
    """Read the attributes that an untrusted file may set, and those that the caller passes."""
    settable = attributes_of(cls, ActorCriticPolicy) - KEPT_OUT | {*objects, *known}
    # Another attribute of the class is refused rather than ignored, because the model would have another value.
    ignored = [name for name in archive.pickled if name in KEPT_OUT or not (name in settable or hasattr(cls, name))]
    values = read_attributes(archive, objects, known, ignored)
    return {name: value for name, value in values.items() if name in settable}


def _check_for_env(file: str, values: Mapping[str, Any], env: VecEnv | None) -> None:
    """Check that the rollouts of a model fit into memory, before SB3 creates it, and that its spaces are the env's."""
    check_rollout(file, values, values.get("n_envs", 1) if env is None else env.num_envs)
    if env is not None:
        check_for_correct_spaces(env, values["observation_space"], values["action_space"])


def _check_structure(file: str, values: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    for name, essence in STRUCTURE.items():
        value, of_file = arguments.get(name), values.get(name)
        if name in arguments and essence(value) != essence(of_file):
            raise ArgumentError(
                f"{name}={value!r} needs other networks or optimizers than those in {file}, whose model has "
                f"{name}={of_file!r}. Leave it out, or create a new model with it"
            )


def _spaces_of(env: VecEnv | None) -> dict[str, spaces.Space]:
    return {} if env is None else {"observation_space": env.observation_space, "action_space": env.action_space}
