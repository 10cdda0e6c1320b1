"""Which files a class can load, and the attributes that a model gets from a file or from a model of another class."""

import inspect
import io
import json
from collections import deque
from collections.abc import Callable, Collection, Mapping

from gymnasium import spaces
from gymnasium.vector import VectorEnv
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.save_util import json_to_data
from stable_baselines3.common.type_aliases import GymEnv

from sb3_ppo_variants.arguments.checks import check_names, list_arguments
from sb3_ppo_variants.arguments.rules import RULES, check_arguments, instance
from sb3_ppo_variants.errors import ArgumentError, OtherClassError, PickledValueError
from sb3_ppo_variants.saving import plain
from sb3_ppo_variants.saving.archive import DATA, MEMBERS, NOTE, Archive, File, read_archive
from sb3_ppo_variants.saving.plain import Values
from sb3_ppo_variants.saving.state import EPISODES

# The module of the algorithms, by name, because it imports this one.
VARIANTS = "sb3_ppo_variants.variants"
# Attributes of SB3's PPO. None of SB3's other algorithms has all of them.
OF_PPO = ("n_steps", "batch_size", "n_epochs", "gae_lambda")
NEEDED = ("policy_class", "observation_space", "action_space")
# For loading, they differ from SB3's PPO only in the packages of their policies.
CONTRIBS = {"sb3_contrib.common.maskable": "MaskablePPO", "sb3_contrib.common.recurrent": "RecurrentPPO"}
# Policies to pass instead of pickled ones, by the module of their classes. Those in MASKABLE take action masks.
MASKABLE = {
    "sb3_contrib.common.maskable.policies": "'MaskableMlpPolicy'",
    "sb3_ppo_variants.policies.masked_recurrent": "'MaskableMlpLstmPolicy'",
}
POLICIES = {**MASKABLE, "sb3_contrib.common.recurrent.policies": "'MlpLstmPolicy'"}
# Examples of other values to pass.
EXAMPLES = {"policy_class": "'MlpPolicy'", "policy_kwargs": "{'net_arch': [64, 64]}", "rollout_buffer_class": "None"}
EXAMPLES |= {"learning_rate": "3e-4", "clip_range": "0.2", "clip_range_vf": "0.2"}
# Arguments of the constructor whose attributes have other names.
ATTRIBUTES = {"policy": "policy_class", "stats_window_size": "_stats_window_size"}
# Arguments of the constructor that from_ppo() takes itself, or not at all.
NOT_CONVERTED = ("policy", "env", "device", "_init_setup_model")
# Arguments of the constructor for which None stands for an empty dict.
EMPTY = ("policy_kwargs", "rollout_buffer_kwargs")
# A model recreates these: observations at the reset before training, the schedule from learning_rate.
MADE_ANEW = ("_last_obs", "_last_original_obs", "_last_episode_starts", "lr_schedule")
# What a stranger's file does not decide: the environment, whose id may name a module to import, and where to write.
KEPT_OUT = {*MADE_ANEW, "env", "device", "tensorboard_log"}
# Arguments that determine the networks and the optimizers, with functions that return what matters about their values.
STRUCTURE: Mapping[str, Callable[[object], object]] = {
    "policy_kwargs": lambda value: {**value, "device": None} if isinstance(value, dict) else value,
    "use_sde": bool,
    "updates": lambda value: value is None,
}
OBJECTS = instance("a dict of attributes", dict).or_none()


def get_plain_forms(attributes: Values) -> Values:
    """Get the plain forms of all attributes of a model that have one."""
    plain_ones = {name: value for name, value in attributes.items() if name not in MADE_ANEW and plain.is_plain(value)}
    forms = {name: plain.encode(value) for name, value in plain_ones.items()}
    for name, value in plain_ones.items():
        if isinstance(value, spaces.Space) and plain.decode(forms[name]) != value:
            del forms[name]  # The plain form does not capture the whole space.
    return forms


def check_class(cls: type[BaseAlgorithm], archive: Archive, converts: bool = False) -> None:
    """Check that a class can load a file.

    A class can load files of itself, its subclasses and its base classes, and of other subclasses of the same algorithm
    of this package. A class with ``reads_sb3s_ppo`` can also load files of SB3's and sb3-contrib's PPO.

    :param converts: whether to allow all classes of this package, and SB3's and sb3-contrib's PPO, with any objective
    :raises DamagedFileError: if the file does not say which class it belongs to
    :raises OtherClassError: if the file belongs to a class that ``cls`` cannot load
    """
    for name in NEEDED:
        if name not in archive.data:
            raise archive.error(name, "is missing")
    how = f"set_parameters() reads its parameters, and {cls.__name__}.from_ppo() also reads its hyperparameters"
    if NOTE in archive.members:
        classes = archive.note.get("classes")
        if not isinstance(classes, list) or not classes:
            raise archive.error(NOTE, "names no class")
        algorithm = next((base for base in cls.__mro__ if base.__module__ == VARIANTS), cls)
        is_base = classes[0] in [base.__name__ for base in cls.__mro__]
        if not (converts or is_base or algorithm.__name__ in classes):
            fault = f"says that this is a {classes[0]}, not a {cls.__name__}; {how}"
            raise OtherClassError(archive.name, NOTE, fault)
        return
    missing = [name for name in OF_PPO if name not in archive.data]
    if missing:
        raise OtherClassError(archive.name, DATA, f"has no {', '.join(missing)}, so it is not a file of PPO")
    if not (converts or getattr(cls, "reads_sb3s_ppo", False)):
        found = [name for package, name in CONTRIBS.items() if archive.policy_module.startswith(package)]
        whose = f"sb3-contrib's {found[0]}" if found else "SB3's PPO"
        raise OtherClassError(archive.name, DATA, f"is of {whose}, not of {cls.__name__}; {how}")


def read_attributes(
    cls: type[BaseAlgorithm],
    archive: Archive,
    env: GymEnv | None,
    custom_objects: Values | None,
    arguments: Values,
    weights_only: bool,
) -> Values:
    """Read the attributes of a model from a file that its class can load.

    The arguments are those of ``load``, whose docstring lists the errors.
    """
    for member in MEMBERS:
        if member not in archive.members:
            raise archive.error(member, "is missing")
    _, _ = archive.states, archive.variables  # Both are read here, because SB3's errors do not name the file.
    OBJECTS.check("custom_objects", custom_objects)
    wrapped = None if env is None else cls._wrap_env(env)
    _check_known(cls, archive, wrapped, arguments)
    rules = {**getattr(cls, "rules", {}), **getattr(cls, "own_rules", {})}
    check_arguments({**(custom_objects or {}), **arguments}, rules)
    objects, arguments = _as_attributes(custom_objects or {}), _as_attributes(arguments)
    read = {name: value for name, value in archive.data.items() if name not in archive.pickled}
    if weights_only:
        known = dict(arguments)
        if wrapped is not None:
            known |= {"observation_space": wrapped.observation_space, "action_space": wrapped.action_space}
        settable = find_attributes(cls, wrapped) - KEPT_OUT | {*objects, *known}
        # Another attribute of the class is refused rather than ignored, because the model would have another value.
        wanted = [n for n in archive.pickled if n not in KEPT_OUT and (n in settable or hasattr(cls, n))]
        read |= _decode(archive, [name for name in wanted if name not in objects], known)
        read = {name: value for name, value in read.items() if name in settable}
    else:
        read |= _unpickle(archive, [name for name in archive.pickled if name not in objects])
    read.pop("device", None)  # SB3 saves none, and the argument of load() decides.
    read |= {name: value for name, value in objects.items() if name in archive.data}
    for name, essence in STRUCTURE.items():
        if name in arguments and essence(arguments[name]) != essence(read.get(name)):
            raise ArgumentError(
                f"{name}={arguments[name]!r} needs other networks or optimizers than those in {archive.name}, whose "
                f"model has {name}={read.get(name)!r}. Leave it out, or create a new model with it"
            )
    values = {"verbose": 0, **read, **arguments}
    values["policy_class"] = _get_policy_class(cls, archive, values["policy_class"])
    if any(values.get(name) is None for name in EPISODES):
        values |= dict.fromkeys(EPISODES)  # SB3 only creates the two together.
    elif "_stats_window_size" in {**objects, **arguments}:
        values |= {name: deque(values[name], int(values["_stats_window_size"])) for name in EPISODES}
    return values


def _as_attributes(arguments: Values) -> Values:
    """Convert arguments of the constructor to the attributes that a model keeps."""
    values = {ATTRIBUTES.get(name, name): value for name, value in arguments.items()}
    return {name: {} if name in EMPTY and value is None else value for name, value in values.items()}


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
    forms, values, refused = archive.note.get("plain", {}), Values(), []
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
    if archive.policy_module in MASKABLE and MASKABLE.keys().isdisjoint(base.__module__ for base in policy.__mro__):
        fault = f"is {policy.__name__}, which ignores the action masks that the saved policy takes"
        raise archive.error("policy_class", f"{fault}; pass one such as {POLICIES[archive.policy_module]}")
    return policy


def _check_known(cls: type[BaseAlgorithm], archive: Archive, env: GymEnv | None, arguments: Values) -> None:
    """Check that a model of a class has attributes with these names, or that its file brings them.

    :raises ArgumentError: if there is none of a name, because setting it would change nothing
    """
    unknown = [name for name in arguments if ATTRIBUTES.get(name, name) not in archive.data]
    attributes = find_attributes(cls, env) if unknown else set()
    for name in unknown:
        if ATTRIBUTES.get(name, name) not in attributes:
            raise ArgumentError(
                f"{cls.__name__}.load has no argument {name!r} (={arguments[name]!r}), and neither {cls.__name__} nor "
                f"{archive.name} has an attribute of this name; the arguments of the constructor that it can set are "
                f"{', '.join(_find_settable(cls, attributes))}"
            )


def _find_settable(cls: type[BaseAlgorithm], attributes: Collection[str]) -> list[str]:
    """Find the arguments of a class that it keeps as attributes."""
    takes = {*list_arguments(cls)}.union(getattr(cls, "rules", ())).difference(NOT_CONVERTED)
    return sorted(name for name in takes if ATTRIBUTES.get(name, name) in attributes)


def find_attributes(cls: type[BaseAlgorithm], env: GymEnv | VectorEnv | None) -> set[str]:
    """Find the names of the attributes of a new model.

    Class attributes with a plain form count too, unless they are declared as ``ClassVar``.

    :param env: the environment of the model, which its constructor may use
    """
    fresh = {"observation_space", "action_space", "n_envs"}  # A model gets these from its environment.
    # Create the model as SB3's load() does.
    fresh |= set(vars(cls(policy=ActorCriticPolicy, env=env, _init_setup_model=False)))  # type: ignore[arg-type, call-arg]
    for base in cls.__mro__:
        declared = vars(base).get("__annotations__", {})
        for name, value in vars(base).items():
            if not name.startswith("__") and "ClassVar" not in str(declared.get(name)) and plain.is_plain(value):
                fresh.add(name)
    return fresh


def convert(
    cls: type[BaseAlgorithm], source: File | BaseAlgorithm, env: GymEnv | VectorEnv | None, arguments: Values
) -> tuple[io.BytesIO, Values]:
    """Convert a model of PPO, or a file of one, to a file that a class can load with the returned arguments.

    Arguments of the objective of ``cls`` are not taken from the source, unless ``cls`` can read files of SB3's PPO.

    :param env: the environment of the new model
    :param arguments: arguments of the constructor that override those of the source
    :raises ArgumentError: if the constructor has no such argument, or the model no such attribute
    :raises DamagedFileError: if the file is damaged or belongs to an algorithm other than PPO
    """
    attributes = find_attributes(cls, env)
    check_names(f"{cls.__name__}.from_ppo", arguments, cls, NOT_CONVERTED)
    settable = _find_settable(cls, attributes)
    for name, value in arguments.items():
        if name not in settable:
            raise ArgumentError(
                f"{cls.__name__}.from_ppo cannot set {name}={value!r}, because {cls.__name__} keeps no argument of "
                f"this name as an attribute: pass what its constructor makes of it; it keeps {', '.join(settable)}"
            )
    if isinstance(source, BaseAlgorithm):
        file = io.BytesIO()
        file.name = f"the given {type(source).__name__}"
        source.save(file)
        source = file
    archive = read_archive(source)
    check_class(cls, archive, converts=True)
    reads = getattr(cls, "reads_sb3s_ppo", False)
    own = [n for n in getattr(cls, "own_rules", {}) if not (reads and archive.data.get(n) is not None)]
    data = {name: value for name, value in archive.data.items() if name in attributes and name not in own}
    parameters = inspect.signature(cls).parameters
    defaults = {name: parameters[name].default for name in own if name in parameters}
    note = {"classes": [cls.__name__], "plain": archive.note.get("plain", {})}
    return archive.with_data(data).with_note(note).to_file(), {**defaults, **arguments}
