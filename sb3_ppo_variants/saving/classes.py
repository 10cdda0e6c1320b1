"""What a class can load: files of which classes, and which attributes and arguments; files of others are converted."""

import inspect
import io
from collections.abc import Collection

from gymnasium.vector import VectorEnv
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import GymEnv

from sb3_ppo_variants.arguments.checks import check_names, list_arguments
from sb3_ppo_variants.errors import ArgumentError, OtherClassError
from sb3_ppo_variants.saving import plain
from sb3_ppo_variants.saving.archive import DATA, NOTE, Archive, File, read_archive
from sb3_ppo_variants.saving.plain import Values

# The module of the algorithms, by name, because it imports this one.
VARIANTS = "sb3_ppo_variants.variants"
# Attributes of SB3's PPO. None of SB3's other algorithms has all of them.
OF_PPO = ("n_steps", "batch_size", "n_epochs", "gae_lambda")
NEEDED = ("policy_class", "observation_space", "action_space")
# For loading, they differ from SB3's PPO only in the packages of their policies.
CONTRIBS = {"sb3_contrib.common.maskable": "MaskablePPO", "sb3_contrib.common.recurrent": "RecurrentPPO"}
# Arguments of the constructor whose attributes have other names.
ATTRIBUTES = {"policy": "policy_class", "stats_window_size": "_stats_window_size"}
# Arguments of the constructor that from_ppo() takes itself, or not at all.
NOT_CONVERTED = ("policy", "env", "device", "_init_setup_model")


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


def check_known(cls: type[BaseAlgorithm], archive: Archive, env: GymEnv | None, arguments: Values) -> None:
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
    cls: type[BaseAlgorithm],
    source: File | BaseAlgorithm,
    env: GymEnv | VectorEnv | None,
    arguments: Values,
    is_trusted: bool,
) -> tuple[io.BytesIO, Values]:
    """Convert a model of PPO, or a file of one, to a file that a class can load with the returned arguments.

    Arguments of the objective of ``cls`` are not taken from the source, unless ``cls`` can read files of SB3's PPO.

    :param env: the environment of the new model
    :param arguments: arguments of the constructor that override those of the source
    :param is_trusted: whether a file may take as much memory as it asks for
    :raises ArgumentError: if the constructor has no such argument, or the model no such attribute
    :raises DamagedFileError: if the file is damaged or belongs to an algorithm other than PPO
    """
    attributes = find_attributes(cls, env)
    _check_settable(cls, arguments, attributes)
    if isinstance(source, BaseAlgorithm):
        file = io.BytesIO()
        file.name = f"the given {type(source).__name__}"
        source.save(file)
        source = file
    archive = read_archive(source, is_trusted)
    check_class(cls, archive, converts=True)
    parameters = inspect.signature(cls).parameters
    reads = getattr(cls, "reads_sb3s_ppo", False)
    own = [n for n in getattr(cls, "own_rules", {}) if not (reads and archive.data.get(n) is not None)]
    names = attributes.difference(own)
    data = {name: value for name, value in archive.data.items() if name in names}
    defaults = {name: parameters[name].default for name in own if name in parameters}
    note = {"classes": [cls.__name__], "plain": archive.note.get("plain", {})}
    return archive.with_data(data).with_note(note).to_file(), {**defaults, **arguments}


def _check_settable(cls: type[BaseAlgorithm], arguments: Values, attributes: Collection[str]) -> None:
    """Check that a class has arguments with these names, and that it keeps them as attributes.

    A class that passes on ``**kwargs`` has those of its bases too.

    :param attributes: the names of the attributes of a new model
    :raises ArgumentError: if an argument does not exist, or setting it would change nothing
    """
    callee = f"{cls.__name__}.from_ppo"
    check_names(callee, arguments, cls, NOT_CONVERTED)
    settable = _find_settable(cls, attributes)
    for name, value in arguments.items():
        if name not in settable:
            raise ArgumentError(
                f"{callee} cannot set {name}={value!r}, because {cls.__name__} keeps no argument of this name as an "
                f"attribute: pass what its constructor makes of it; it keeps {', '.join(settable)}"
            )
