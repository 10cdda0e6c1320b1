"""The zip archive of a saved model, in SB3's format plus a note that SB3 ignores, and writes that leave no half files.

The note holds the model's class, the hashes of the other members and the plain forms of attributes; see
:mod:`sb3_ppo_variants.saving.plain`. Files without a note, such as SB3's, can be read too.
"""

import hashlib
import io
import json
import os
import secrets
import shutil
import zipfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

import torch as th
from stable_baselines3.common.save_util import json_to_data, open_path

from sb3_ppo_variants.arguments import Values
from sb3_ppo_variants.errors import DamagedFileError, OtherClassError, PickledValueError
from sb3_ppo_variants.processes import EPISODES
from sb3_ppo_variants.saving import plain

NOTE = "sb3_ppo_variants.json"
DATA = "data"
STATE_SUFFIX = ".pth"
VARIABLES = "pytorch_variables.pth"
"""Further tensors of SB3's format, of which PPO has none."""
PICKLED = ":serialized:"
"""SB3's key for a pickled value."""
OF_PPO = ("n_steps", "batch_size", "n_epochs", "gae_lambda")
"""Attributes of SB3's PPO. None of SB3's other algorithms has all of them."""
NOT_NEEDED = ("_last_obs", "_last_original_obs", "_last_episode_starts", "lr_schedule", "tensorboard_log", *EPISODES)
"""What a model does without: a reset makes the last observations, and learning_rate the schedule."""

File: TypeAlias = str | Path | io.BufferedIOBase


@dataclass(frozen=True)
class Archive:
    """The contents of the members of a file, and the name of the file in error messages."""

    name: str
    members: dict[str, bytes] = field(repr=False)

    @cached_property
    def note(self) -> Values:
        """The note of this package; empty if the file has none."""
        note: Values = json.loads(self.members.get(NOTE, b"{}"))
        return note

    @cached_property
    def data(self) -> Values:
        """The attributes of the model; SB3 wraps pickled ones in a dictionary."""
        data: Values = json.loads(self.members[DATA])
        return data

    def states(self) -> dict[str, Values]:
        """Read the state dictionaries on the CPU, by the names of their owners, such as ``"policy.optimizer"``."""
        states = {name: content for name, content in self.members.items() if name.endswith(STATE_SUFFIX)}
        return {
            name.removesuffix(STATE_SUFFIX): th.load(io.BytesIO(content), map_location="cpu", weights_only=True)
            for name, content in states.items()
            if name != VARIABLES
        }

    def check_class(self, names: Collection[str], reads_sb3s_ppo: bool, converts: bool = False) -> None:
        """Check that a class can load the file, whose class must have the same objective.

        :param names: the names of the class and of its bases that have an objective
        :param reads_sb3s_ppo: whether the class can also load files of SB3's and sb3-contrib's PPO
        :param converts: whether to allow all classes of this package, and SB3's and sb3-contrib's PPO
        :raises OtherClassError: if it is of another class
        """
        own, *_ = names
        how = f"set_parameters() reads its parameters, and {own}.from_ppo() also reads its hyperparameters"
        if NOTE in self.members:
            classes = self.note["classes"]
            if not converts and set(names).isdisjoint(classes):
                raise OtherClassError(self.name, NOTE, f"says that this is a {classes[0]}, not a {own}; {how}")
        elif missing := [name for name in OF_PPO if name not in self.data]:
            raise OtherClassError(self.name, DATA, f"has no {', '.join(missing)}, so it is not a file of PPO")
        elif not (converts or reads_sb3s_ppo):
            raise OtherClassError(self.name, DATA, f"is of SB3 or sb3-contrib, not of {own}; {how}")

    def attributes(self, objects: Values, given: Collection[str], weights_only: bool) -> Values:
        """Read the attributes, from plain forms or else from pickles.

        :param objects: values that replace those in the file
        :param given: the names of attributes that are set anyway
        :param weights_only: whether to unpickle nothing
        :raises PickledValueError: with ``weights_only``, if values are only pickled, naming them all
        """
        forms = self.note.get("plain", {})
        known = {name: plain.decode(form) for name, form in forms.items() if name in self.data and name not in objects}
        data = {name: value for name, value in self.data.items() if name not in known}
        pickled = {name for name, value in data.items() if isinstance(value, dict) and PICKLED in value}
        if weights_only:
            if refused := [name for name in data if name in pickled.difference(objects, given, NOT_NEEDED)]:
                raise PickledValueError(
                    f"{self.name} contains pickled values, which weights_only=True does not unpickle: "
                    f"{', '.join(refused)}. Pass your own values for them as arguments, and env for the spaces"
                )
            data = {name: value for name, value in data.items() if name not in pickled or name in objects}
        return known | json_to_data(json.dumps(data), objects)

    def to_file(self, data: Values, note: Values) -> io.BytesIO:
        """Write a file in memory with these attributes, and with this note, to which the hashes are added."""
        members = {**self.members, DATA: json.dumps(data).encode()}
        members.pop(NOTE, None)
        hashes = {member: sha256(content) for member, content in members.items()}
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            # The note comes first, because damage to the directory of a zip archive can hide the last members.
            archive.writestr(NOTE, json.dumps({"sha256": hashes, **note}), zipfile.ZIP_DEFLATED)
            for member, content in members.items():
                archive.writestr(member, content)
        return file


def read_archive(file: File) -> Archive:
    """Read an open file, or the file at a path with or without the suffix ``.zip``, and check its hashes.

    :raises DamagedFileError: if it is not a zip archive of a model, or a member is damaged, missing or unknown
    """
    is_path = isinstance(file, str | Path)
    opened = open_path(file, "r", suffix="zip")
    name = str(file if is_path else getattr(file, "name", type(file).__name__))
    with opened if is_path else nullcontext():
        opened.seek(0)
        content = opened.read()
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as zipped:
            members = {member: zipped.read(member) for member in zipped.namelist()}
    except Exception as error:  # Decompressors may raise anything.
        fault = f"cannot be read; it is damaged, or wasn't a zip-file: {error!r}"
        raise DamagedFileError(name, "the zip archive", fault) from error
    archive = Archive(name, members)
    if DATA not in members:
        raise DamagedFileError(name, DATA, "is missing")
    hashes = archive.note.get("sha256", {})
    for member in {**hashes, **members}.keys() - {NOTE} if NOTE in members else ():
        if member not in members:
            raise DamagedFileError(name, member, "is missing")
        if hashes.get(member) != sha256(members[member]):
            raise DamagedFileError(name, member, "is not what was saved")
    return archive


def sha256(content: bytes) -> str:
    """Compute the SHA-256 hash of a content, as hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def write_atomically(path: Path, content: bytes) -> None:
    """Create or replace a file in an existing folder, following links and keeping the permissions of the old file.

    :raises OSError: if the file cannot be written; the old file is then unchanged
    """
    target = path.resolve()
    if target.exists() and not target.is_file():
        target.write_bytes(content)  # A device or a pipe has no content to lose.
        return
    with replacing(target) as temporary:
        temporary.write_bytes(content)
        if target.is_file():
            shutil.copymode(target, temporary)


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yield a temporary path. What is there on exit, on disk, gets the name of the target, or nothing changes.

    A process that is killed meanwhile leaves the temporary file or folder, whose name ends in ``.tmp``.

    :raises OSError: if it cannot be written, or the target is a folder with something in it
    """
    # The global random generators are left alone, because a run may depend on their state.
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    try:
        yield temporary
        for path in [*temporary.glob("*"), temporary]:
            _sync(path)
        os.replace(temporary, target)
    except BaseException:
        if temporary.is_dir():
            shutil.rmtree(temporary)
        else:
            temporary.unlink(missing_ok=True)
        raise
    _sync(target.parent)


def _sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk."""
    if path.is_file():
        with path.open("r+b") as file:
            os.fsync(file.fileno())
        return
    with suppress(OSError):  # Windows and some network file systems cannot flush folders.
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
