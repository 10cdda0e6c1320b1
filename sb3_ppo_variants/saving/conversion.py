"""Converts files of SB3's PPO, or of another class of this package, to a class with another objective."""

import inspect
import io
import json
from collections.abc import Mapping
from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy

from sb3_ppo_variants.arguments.checks import check_names
from sb3_ppo_variants.saving.archive import DATA, NOTE, Archive, File, read_archive
from sb3_ppo_variants.saving.fit import check_class
from sb3_ppo_variants.saving.strangers import attributes_of


class NamedBytes(io.BytesIO):
    """An in-memory file with a name for error messages."""

    def __init__(self, name: str, content: bytes = b""):
        super().__init__(content)
        self.name = name


def converted(cls: type[BaseAlgorithm], source: File | BaseAlgorithm, arguments: Mapping[str, Any]) -> NamedBytes:
    """Convert a model of PPO, or a file of one, to a file that a class can load.

    Arguments of the objective of ``cls`` are not taken from the source, unless ``cls`` can read files of SB3's PPO.

    :param arguments: arguments of the constructor that override those of the source
    :raises ArgumentError: if the constructor has no such argument
    :raises DamagedFileError: if the file is damaged
    :raises OtherClassError: if the source belongs to an algorithm other than PPO
    """
    check_names(f"{cls.__name__}.from_ppo", arguments, cls, ("policy", "env", "device", "_init_setup_model"))
    if isinstance(source, BaseAlgorithm):
        file = NamedBytes(f"the given {type(source).__name__}")
        source.save(file)
        archive = read_archive(file)
    else:
        archive = read_archive(source)
    check_class(cls, archive, converts=True)
    names = attributes_of(cls, ActorCriticPolicy) - set(_own(cls, archive))
    data = {name: value for name, value in archive.data.items() if name in names}
    members = {name: content for name, content in archive.members.items() if name != NOTE}
    members[DATA] = json.dumps(data).encode()
    note = {"classes": [cls.__name__], "plain": archive.note.get("plain", {})}
    return NamedBytes(archive.name, Archive(archive.name, members).with_note(note))


def attributes(cls: type[BaseAlgorithm], source: NamedBytes, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments to load the file with: the given ones, and the defaults of those not taken from the file."""
    parameters = inspect.signature(cls).parameters
    missing = [name for name in _own(cls, read_archive(source)) if name in parameters]
    return {**{name: parameters[name].default for name in missing}, **arguments}


def _own(cls: type[BaseAlgorithm], archive: Archive) -> list[str]:
    """Return the names of the attributes of the objective of a class that are not taken from a file."""
    own = getattr(cls, "own_rules", {})
    kept = [name for name in own if archive.data.get(name) is not None] if getattr(cls, "reads_sb3s_ppo", False) else []
    return [name for name in own if name not in kept]
