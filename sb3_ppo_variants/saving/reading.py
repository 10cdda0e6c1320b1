"""Reads the attributes of a model in a file, and checks them before the model is created.

The rules of the constructor apply to files too. With ``weights_only``, a file may come from a stranger: nothing is
unpickled, and there are limits on which attributes the file may set and on how much memory it may use.
"""

import json
import math
import reprlib
import threading
import warnings
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from numbers import Real
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.preprocessing import get_action_dim
from stable_baselines3.common.save_util import json_to_data
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.utils import check_for_correct_spaces
from stable_baselines3.common.vec_env import VecEnv
from torch.nn.modules.module import register_module_parameter_registration_hook

from sb3_ppo_variants.arguments import rules
from sb3_ppo_variants.arguments.checks import check_buffer_arguments, check_policy, list_arguments
from sb3_ppo_variants.arguments.rules import RULES, Rule, check_arguments, current_value, instance
from sb3_ppo_variants.errors import ArgumentError, DamagedFileError, PickledValueError
from sb3_ppo_variants.guards.masks import choices
from sb3_ppo_variants.kl import MissingKLError
from sb3_ppo_variants.layout import layout_of, parts_of
from sb3_ppo_variants.saving import plain
from sb3_ppo_variants.saving.archive import MEMBERS, NOTE, POLICY, Archive
from sb3_ppo_variants.saving.classes import ATTRIBUTES, check_known, find_attributes
from sb3_ppo_variants.saving.parameters import has_numbers
from sb3_ppo_variants.saving.plain import Values
from sb3_ppo_variants.saving.state import EPISODES

# The modules of the policies that take action masks.
MASKABLE_POLICIES = "sb3_contrib.common.maskable.policies"
MASKABLE_RECURRENT = "sb3_ppo_variants.policies.masked_recurrent"
MASKABLE = {MASKABLE_POLICIES, MASKABLE_RECURRENT}
# The arguments of policies with memory whose product is the size of each of their four states, those of GRUs too.
LSTM_SIZES = ("n_lstm_layers", "lstm_hidden_size")
# Arguments of the constructor for which None stands for an empty dict.
EMPTY = ("policy_kwargs", "rollout_buffer_kwargs")
# A model recreates these: observations at the reset before training, the schedule from learning_rate.
MADE_ANEW = ("_last_obs", "_last_original_obs", "_last_episode_starts", "lr_schedule")
# Attributes that a stranger's file may not set: those that a model creates itself, and the path that it writes to.
KEPT_OUT = {"env", "device", "policy", "rollout_buffer", "_vec_normalize_env", "_logger", "_custom_logger"}
KEPT_OUT |= {*MADE_ANEW, "tensorboard_log"}
# Examples of values to pass instead of pickled ones.
EXAMPLES = {"policy_class": "'MlpPolicy'", "policy_kwargs": "{'net_arch': [64, 64]}", "rollout_buffer_class": "None"}
EXAMPLES |= {"learning_rate": "3e-4", "clip_range": "0.2", "clip_range_vf": "0.2"}
# The same for the policies of sb3-contrib, by the module of their classes.
POLICIES = {
    MASKABLE_POLICIES: "'MaskableMlpPolicy'",
    "sb3_contrib.common.recurrent.policies": "'MlpLstmPolicy'",
    MASKABLE_RECURRENT: "'MaskableMlpLstmPolicy'",
}
# For comparison, an Atari rollout with 256 environments takes 1 GiB.
LARGEST_ROLLOUT = 2**32
# A policy may create networks that it later replaces. One with GRUs and keys of the actor creates three LSTMs first: in
# all, three times as many numbers as it keeps.
SPARE_TIMES, SPARE_BYTES, SPARE_PARAMETERS = 4, 2**20, 100


def _is_number(value: object) -> bool:
    # Some environments report arrays with one element.
    array = np.asarray(value) if isinstance(value, Real | np.generic | np.ndarray) else np.empty(0)
    return array.size == 1 and array.dtype.kind in "biuf"


def _is_episode(value: object) -> bool:
    return isinstance(value, dict) and all(name in value and _is_number(value[name]) for name in ("r", "l"))


def _deque_of(allowed: str, accepts: Callable[[object], bool]) -> Rule:
    return Rule(f"a deque of {allowed}", lambda value: isinstance(value, deque) and all(map(accepts, value))).or_none()


OBJECTS = instance("a dict of attributes", dict).or_none()
# Files of SB3 before 1.8 may contain spaces of the old gym, which SB3 converts.
SPACE = Rule("a space", lambda value: isinstance(value, spaces.Space) or type(value).__module__.startswith("gym."))
# Rules for attributes that are not arguments, or that the constructor changes.
COUNTERS = ("num_timesteps", "_num_timesteps_at_start", "_n_updates", "_episode_num")
OF_STATE: Mapping[str, Rule] = {
    **dict.fromkeys(COUNTERS, rules.integer(0)),
    "_total_timesteps": rules.LEARN_RULES["total_timesteps"],
    **dict.fromkeys(("observation_space", "action_space"), SPACE),
    **dict.fromkeys(EPISODES, instance("a deque", deque).or_none()),
    **dict.fromkeys(EMPTY, instance("a dict", dict)),
    "_current_progress_remaining": rules.FINITE,
    "_stats_window_size": rules.COUNT,
    "n_envs": rules.COUNT,
    "action_noise": Rule("None", lambda value: value is None),
}
# Further rules for files from strangers. Otherwise, as in SB3, statistics are whatever the environments report.
OF_STRANGERS: Mapping[str, Rule] = {
    "ep_info_buffer": _deque_of("dicts with numbers r and l", _is_episode),
    "ep_success_buffer": _deque_of("booleans", _is_number),
}
# Arguments that determine the networks and the optimizers, with functions that return what matters about their values.
STRUCTURE: Mapping[str, Callable[[object], object]] = {
    "policy_kwargs": lambda value: {**value, "device": None} if isinstance(value, dict) else value,
    "use_sde": bool,
    "updates": lambda value: value is None,
}


def get_plain_forms(attributes: Values) -> Values:
    """Get the plain forms of all attributes of a model that have one."""
    plain_ones = {name: value for name, value in attributes.items() if name not in MADE_ANEW and plain.is_plain(value)}
    forms = {name: plain.encode(value) for name, value in plain_ones.items()}
    for name, value in plain_ones.items():
        if isinstance(value, spaces.Space) and plain.decode(forms[name]) != value:
            del forms[name]  # The plain form does not capture the whole space.
    return forms


def read_values(
    cls: type[BaseAlgorithm],
    archive: Archive,
    env: GymEnv | None,
    custom_objects: Values | None,
    arguments: Values,
    weights_only: bool,
) -> Values:
    """Read the attributes of a model from a file that its class can load, and check them.

    The arguments are those of ``load``, whose docstring lists the errors.
    """
    _check_states(cls, archive)
    wrapped = None if env is None else cls._wrap_env(env)
    allowed: Mapping[str, Rule] = {**getattr(cls, "rules", {}), **getattr(cls, "own_rules", {})}
    objects, arguments = _check_given(cls, archive, wrapped, allowed, custom_objects, arguments)
    read = _read_plainly(cls, archive, objects, arguments, wrapped) if weights_only else _read_all(archive, objects)
    read.pop("device", None)  # SB3 saves none, and the argument of load() decides.
    read |= {name: value for name, value in objects.items() if name in archive.data}
    _check_structure(archive, read, arguments)
    values = {"verbose": 0, **read, **arguments}
    values["policy_class"] = _get_policy_class(cls, archive, values["policy_class"])
    allowed = {**allowed, **OF_STATE, **(OF_STRANGERS if weights_only else {})}
    given = {**objects, **arguments}
    _check_attributes(cls, allowed, archive.name, values, given)
    values |= _fit_episodes(values, given)
    if weights_only:
        _check_rollout(archive, values, values.get("n_envs", 1) if wrapped is None else wrapped.num_envs)
        if wrapped is not None:
            check_for_correct_spaces(wrapped, values["observation_space"], values["action_space"])
    return values


def _check_given(
    cls: type[BaseAlgorithm],
    archive: Archive,
    env: VecEnv | None,
    allowed: Mapping[str, Rule],
    custom_objects: Values | None,
    arguments: Values,
) -> tuple[Values, Values]:
    """Check the custom objects and the arguments that replace values in a file, and convert both to attributes."""
    OBJECTS.check("custom_objects", custom_objects)
    objects = custom_objects or {}
    check_known(cls, archive, env, arguments)
    check_arguments({**objects, **arguments}, {**OF_STATE, **allowed})
    return _as_attributes(objects), _as_attributes(arguments)


def _read_all(archive: Archive, objects: Values) -> Values:
    """Read all attributes in a file, and unpickle those for which no object is given."""
    return _get_unpickled(archive) | _unpickle(archive, [name for name in archive.pickled if name not in objects])


def _read_plainly(
    cls: type[BaseAlgorithm], archive: Archive, objects: Values, arguments: Values, env: VecEnv | None
) -> Values:
    """Read the attributes in a file that a stranger may set, from their plain forms if they are pickled."""
    known = dict(arguments)
    if env is not None:
        known |= {"observation_space": env.observation_space, "action_space": env.action_space}
    settable = find_attributes(cls, env) - KEPT_OUT | {*objects, *known}
    # Another attribute of the class is refused rather than ignored, because the model would have another value.
    of_class = [name for name in archive.pickled if name not in KEPT_OUT and (name in settable or hasattr(cls, name))]
    read = _get_unpickled(archive) | _decode(archive, [name for name in of_class if name not in objects], known)
    return {name: value for name, value in read.items() if name in settable}


def _get_unpickled(archive: Archive) -> Values:
    return {name: value for name, value in archive.data.items() if name not in archive.pickled}


def _check_structure(archive: Archive, read: Values, arguments: Values) -> None:
    """Check that the arguments need no other networks and optimizers than those in a file."""
    for name, essence in STRUCTURE.items():
        if name in arguments and essence(arguments[name]) != essence(read.get(name)):
            raise ArgumentError(
                f"{name}={arguments[name]!r} needs other networks or optimizers than those in {archive.name}, whose "
                f"model has {name}={read.get(name)!r}. Leave it out, or create a new model with it"
            )


def _fit_episodes(values: Values, given: Collection[str]) -> Values:
    """Get the results of the last episodes that a model needs instead of those in a file."""
    if any(values.get(name) is None for name in EPISODES):
        # SB3 only creates the two together, so drop both if one is missing.
        return dict.fromkeys(EPISODES)
    if "_stats_window_size" in given:
        return {name: deque(values[name], int(values["_stats_window_size"])) for name in EPISODES}
    return {}


def _as_attributes(arguments: Values) -> Values:
    """Convert arguments of the constructor to the attributes that a model keeps."""
    values = {ATTRIBUTES.get(name, name): value for name, value in arguments.items()}
    return {name: {} if name in EMPTY and value is None else value for name, value in values.items()}


def _check_states(cls: type[BaseAlgorithm], archive: Archive) -> None:
    """Check that a file is whole, and has no tensors that its class does not have."""
    for member in MEMBERS:
        if member not in archive.members:
            raise archive.error(member, "is missing")
    _, variables = archive.states, archive.variables  # All are read here, because SB3's errors do not name the file.
    # A user's class may have tensors besides its networks and optimizers.
    has_none = cls._get_torch_save_params.__module__.startswith(__name__.partition(".")[0])
    if variables and has_none:
        raise archive.error("pytorch_variables", f"has {next(iter(variables))}; PPO has none")


def warn_of_weights(policy: th.nn.Module, file: str) -> None:
    """Warn of weights with which a policy that was read from a file can neither act nor learn.

    Buffers may hold any numbers: the mask of a Transformer has infinite ones.
    """
    for name, values in policy.named_parameters():
        if has_numbers(values) and not th.isfinite(values).all():
            warnings.warn(f"{file}: {name} of the policy has numbers that are not finite; no training mends them")


def _unpickle(archive: Archive, names: Collection[str]) -> Values:
    """Unpickle attributes. As in SB3, those whose class has changed since are left out with a warning."""
    values: Values = {}
    for name in names:
        try:
            values |= json_to_data(json.dumps({name: archive.data[name]}))
        except Exception as error:  # The code in a pickle may raise anything.
            fault = f"cannot be unpickled: {error!r}; pass custom_objects={{{name!r}: ...}} to replace it"
            raise archive.error(name, fault) from error
    return values


def _decode(archive: Archive, names: Collection[str], known: Values) -> Values:
    """Read attributes from their plain forms, or else take those that are known."""
    forms = archive.note.get("plain", {})
    if not isinstance(forms, dict):
        raise archive.error(NOTE, "has plain values without names")
    values: Values = {}
    refused = []
    for name in names:
        if name in forms:
            try:
                values[name] = plain.decode(forms[name])
            except (plain.NotPlainError, RecursionError) as error:
                raise archive.error(NOTE, f"has a {name} that cannot be read: {error}") from error
        elif name in known:
            values[name] = known[name]
        elif name not in EPISODES:
            refused.append(name)
    if not refused:
        return values
    examples = {**EXAMPLES, "policy_class": POLICIES.get(archive.policy_module, EXAMPLES["policy_class"])}
    objects = ", ".join(f"{name!r}: {examples.get(name, '...')}" for name in refused)
    or_env = ", or env for the spaces" if any(name.endswith("_space") for name in refused) else ""
    raise PickledValueError(
        f"{archive.name} contains pickled values, which weights_only=True does not unpickle: {', '.join(refused)}. "
        f"Pass your own values for them, such as custom_objects={{{objects}}}{or_env}"
    )


def _get_policy_class(cls: type[BaseAlgorithm], archive: Archive, policy: str | type[BasePolicy]) -> type[BasePolicy]:
    """Get the class of the policy, which may be given by an alias, if it can be trained like the saved one."""
    policy = cls.policy_aliases.get(policy, policy) if isinstance(policy, str) else policy
    if isinstance(policy, str) or not RULES["policy"].accepts(policy):
        raise archive.error("policy_class", f"is {policy!r}, not a policy class for {cls.__name__}")
    if archive.policy_module in MASKABLE and not _takes_masks(policy):
        fault = f"is {policy.__name__}, which ignores the action masks that the saved policy takes"
        raise archive.error("policy_class", f"{fault}; pass one such as {POLICIES[archive.policy_module]}")
    return policy


def _takes_masks(policy: type[BasePolicy]) -> bool:
    return not MASKABLE.isdisjoint(base.__module__ for base in policy.__mro__)


def _check_attributes(
    cls: type[BaseAlgorithm], allowed: Mapping[str, Rule], file: str, values: Values, given: Collection[str]
) -> None:
    """Check the attributes of a model, except those in ``given``, which are checked when the model is set up."""
    for name, rule in allowed.items():
        if name in values and name not in given:
            _check(file, name, rule, values[name])
    policy_kwargs, buffer_kwargs = (values.get(name) or {} for name in EMPTY)
    policy_kwargs = {name: value for name, value in policy_kwargs.items() if name != "device"}
    checks: Mapping[str, Callable[[], None]] = {
        "policy_kwargs": lambda: check_policy(values["policy_class"], cls.policy_aliases, policy_kwargs),
        "rollout_buffer_kwargs": lambda: check_buffer_arguments(values.get("rollout_buffer_class"), buffer_kwargs),
        "action_space": lambda: rules.check_spaces(values["action_space"], values.get("use_sde", False)),
    }
    for name, check in checks.items():
        is_old = type(values.get(name)).__module__.startswith("gym.")  # SB3 converts a space of the old gym first.
        if name in values and name not in given and not is_old:
            try:
                check()
            except ArgumentError as error:
                raise DamagedFileError(file, name, f"cannot be used: {error}") from error


def _check(file: str, name: str, rule: Rule, value: object) -> None:
    try:
        allowed = bool(rule.accepts(value))
    except (OverflowError, ValueError):  # An integer too large for a float, or an array instead of a flag.
        allowed = False
    if not allowed:
        raise DamagedFileError(file, name, f"is {reprlib.repr(value)}, but must be {rule.allowed}")
    if rule.of_schedule is not None and callable(value):
        try:
            current_value(name, value, 1.0, rule.of_schedule)
        except (ValueError, TypeError, AssertionError, ArithmeticError, AttributeError, RecursionError) as error:
            raise DamagedFileError(file, name, f"is not a schedule of allowed values: {error}") from error


def _check_rollout(archive: Archive, values: Values, n_envs: int) -> None:
    """Check that a rollout takes at most ``LARGEST_ROLLOUT`` bytes, before its buffer is allocated."""
    n_columns, n_bytes = get_action_dim(layout_of(values["action_space"]).rows), len(archive.members[POLICY])
    if n_columns > n_bytes:  # A list with an item for each would take long to make.
        raise archive.error("action_space", f"has {n_columns} dimensions, more than the policy has bytes: {n_bytes}")
    # Python's integers do not overflow.
    size = values.get("n_steps", 1) * n_envs * _measure_step(values)
    if size > LARGEST_ROLLOUT:
        raise archive.error(
            "n_steps",
            f"is {values['n_steps']} for {n_envs} environments, whose rollout would take {size / 2**30:.1f} GiB, more "
            f"than the {LARGEST_ROLLOUT / 2**30:.0f} that weights_only=True allows; load(..., n_steps=...) replaces it",
        )


def _measure_step(values: Values) -> int:
    """Compute how many bytes the rollout buffer takes for a step of an environment."""
    policy_class, action_space = values["policy_class"], values["action_space"]
    actions = layout_of(action_space).rows
    arguments: Values = {**list_arguments(policy_class), **(values.get("policy_kwargs") or {})}
    sizes: list[Any] = [arguments.get(name) for name in LSTM_SIZES]
    # Policies that are not of sb3-contrib may give these arguments another meaning.
    n_states = 4 * math.prod(map(int, sizes)) if all(map(rules.COUNT.accepts, sizes)) else 0
    n_masks = sum(choices(action_space) or ()) if _takes_masks(policy_class) else 0
    arrays = [(part, math.prod(map(int, part.shape or ()))) for _, part in parts_of(values["observation_space"])]
    arrays.append((actions, get_action_dim(actions)))
    of_spaces = sum(number * (4 if space.dtype is None else space.dtype.itemsize) for space, number in arrays)
    return 4 * (6 + n_states + n_masks) + of_spaces


@contextmanager
def limit_networks(archive: Archive) -> Iterator[None]:
    """Refuse networks larger than the policy in a file while the context is active, before their memory is filled.

    :raises DamagedFileError: if the network is larger, or cannot be built
    """
    thread = threading.get_ident()
    most_bytes = SPARE_BYTES + SPARE_TIMES * len(archive.members[POLICY])
    most = SPARE_PARAMETERS + SPARE_TIMES * len(archive.states["policy"])
    n_bytes = number = 0

    def count(module: th.nn.Module, name: str, parameter: th.nn.Parameter | None) -> None:
        nonlocal n_bytes, number
        if parameter is None or threading.get_ident() != thread:
            return
        n_bytes, number = n_bytes + parameter.numel() * parameter.element_size(), number + 1
        if n_bytes > most_bytes or number > most:
            raise DamagedFileError(
                archive.name, "policy", "is smaller than the network that policy_kwargs and the spaces describe"
            )

    hook = register_module_parameter_registration_hook(count)
    try:
        yield
    except (ArgumentError, DamagedFileError, MissingKLError):
        raise
    except Exception as error:  # Networks may raise anything for invalid arguments.
        raise archive.error("the model", f"cannot be built: {error}") from error
    finally:
        hook.remove()
