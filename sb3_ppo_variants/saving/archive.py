"""The zip archive of a saved model, in SB3's format plus a note that SB3 ignores.

The note holds the model's class, the hashes of the other members and the plain forms of values that SB3 pickles; see
:mod:`sb3_ppo_variants.saving.plain`. Files without a note, such as SB3's, can be read too.
"""

import hashlib
import io
import json
import zipfile
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

import torch as th
from stable_baselines3.common.save_util import open_path

from sb3_ppo_variants.errors import DamagedFileError
from sb3_ppo_variants.saving.plain import Values

NOTE = "sb3_ppo_variants.json"
DATA = "data"
STATE_SUFFIX = ".pth"
VARIABLES = "pytorch_variables.pth"
# The members of every file. A model may have further states.
MEMBERS = (DATA, VARIABLES, "policy.pth", "policy.optimizer.pth", "_stable_baselines3_version")
# SB3's key for a pickled value.
PICKLED = ":serialized:"

File: TypeAlias = str | Path | io.BufferedIOBase


@dataclass(frozen=True)
class Archive:
    """The contents of the members of a file, and the name of the file in error messages."""

    name: str
    members: dict[str, bytes] = field(repr=False)

    @cached_property
    def note(self) -> Values:
        """The note of this package; empty if the file has none."""
        return self._json(NOTE) if NOTE in self.members else {}

    @cached_property
    def data(self) -> Values:
        """The attributes of the model; SB3 wraps pickled ones in a dictionary."""
        return self._json(DATA)

    @cached_property
    def pickled(self) -> list[str]:
        """The names of the attributes that are pickled."""
        return [name for name, value in self.data.items() if isinstance(value, dict) and PICKLED in value]

    @property
    def policy_module(self) -> str:
        """The module of the policy's class, which SB3 writes next to the pickled class; empty if it is not there."""
        recorded = self.data.get("policy_class")
        return str(recorded.get("__module__")) if isinstance(recorded, dict) else ""

    @cached_property
    def states(self) -> dict[str, Values]:
        """The state dictionaries on the CPU, by the names of their owners, such as ``"policy.optimizer"``."""
        states = [member for member in self.members if member.endswith(STATE_SUFFIX) and member != VARIABLES]
        return {member.removesuffix(STATE_SUFFIX): self._tensors(member) for member in states}

    @property
    def variables(self) -> Values:
        """Tensors that SB3 would set in addition to the states; PPO has none."""
        return self._tensors(VARIABLES)

    def error(self, part: str, fault: str) -> DamagedFileError:
        """Make an error that names this file and the member or attribute at fault."""
        return DamagedFileError(self.name, part.removesuffix(STATE_SUFFIX), fault)

    def _json(self, member: str) -> Values:
        try:
            value = json.loads(self.members[member])
        except KeyError:
            raise self.error(member, "is missing") from None
        except (ValueError, RecursionError) as error:
            raise self.error(member, f"is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise self.error(member, "is not a JSON object")
        return value

    def _tensors(self, member: str) -> Values:
        try:
            state = th.load(io.BytesIO(self.members[member]), map_location="cpu", weights_only=True)
        except Exception as error:  # PyTorch may raise anything for damaged bytes.
            raise self.error(member, f"cannot be read: {error!r}") from error
        if not isinstance(state, dict):
            raise self.error(member, f"is a {type(state).__name__}, not a dictionary")
        return state

    def with_data(self, data: Values) -> "Archive":
        """Return the archive with these attributes instead of its own."""
        return replace(self, members={**self.members, DATA: json.dumps(data).encode()})

    def with_note(self, note: Values) -> "Archive":
        """Return the archive with this note, to which the hashes are added."""
        others = {member: content for member, content in self.members.items() if member != NOTE}
        hashes = {member: sha256(content) for member, content in others.items()}
        # The note comes first, because damage to the directory of a zip archive can hide the last members.
        return replace(self, members={NOTE: json.dumps({"sha256": hashes, **note}).encode(), **others})

    def to_file(self) -> io.BytesIO:
        """Write the archive to a file in memory of the same name."""
        file = io.BytesIO()
        file.name = self.name
        with zipfile.ZipFile(file, "w") as archive:
            for member, content in self.members.items():
                archive.writestr(member, content, zipfile.ZIP_DEFLATED if member == NOTE else zipfile.ZIP_STORED)
        return file

    def check(self) -> None:
        """Compare the members with the hashes in the note.

        :raises DamagedFileError: if one is missing, unknown or not what was saved
        """
        if NOTE not in self.members:
            return
        hashes = self.note.get("sha256")
        if not isinstance(hashes, dict):
            raise self.error(NOTE, "has no hashes")
        for member in {**hashes, **self.members}.keys() - {NOTE}:
            if member not in self.members:
                raise self.error(member, "is missing")
            if hashes.get(member) != sha256(self.members[member]):
                raise self.error(member, "is not what was saved")


def read_archive(file: File) -> Archive:
    """Read an open file, or the file at a path with or without the suffix ``.zip``, and check its hashes.

    :raises DamagedFileError: if it is not a zip archive or a member is damaged
    :raises IsADirectoryError: if the path is a folder, and there is no such file with the suffix
    """
    is_path = isinstance(file, str | Path)
    if isinstance(file, str | Path) and Path(file).is_dir():
        folder, file = file, Path(f"{file}.zip")  # save() writes there.
        if not file.is_file():
            raise IsADirectoryError(
                f"{folder} is a folder, not the file of a model: if it is a checkpoint, pass its model.zip, or go on "
                "with resume()"
            )
    opened = open_path(file, "r", suffix="zip")
    name = str(file if is_path else getattr(file, "name", type(file).__name__))
    with opened if is_path else nullcontext():
        opened.seek(0)
        archive = Archive(name, _read_members(name, opened.read()))
    archive.check()
    return archive


def _read_members(name: str, content: bytes) -> dict[str, bytes]:
    part = "the zip archive"
    members: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for part in archive.namelist():
                members[part] = archive.read(part)
    except Exception as error:  # Decompressors may raise anything.
        is_zip = members or not isinstance(error, zipfile.BadZipFile)
        fault = "is damaged" if is_zip else "cannot be read; it wasn't a zip-file, or is truncated"
        raise DamagedFileError(name, part.removesuffix(STATE_SUFFIX), f"{fault}: {error!r}") from error
    return members


def sha256(content: bytes) -> str:
    """Compute the SHA-256 hash of a content, as hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()
