"""The zip archive of a saved model, in SB3's format plus a note that SB3 ignores.

The note holds the model's class, the hashes of the other members and the plain forms of attributes; see
:mod:`sb3_ppo_variants.saving.plain`. Files without a note, such as SB3's, can be read too.
"""

import hashlib
import io
import json
import zipfile
from contextlib import nullcontext
from dataclasses import dataclass, field
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
"""Further tensors of SB3's format, of which PPO has none."""
PICKLED = ":serialized:"
"""SB3's key for a pickled value."""

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

    def error(self, part: str, fault: str) -> DamagedFileError:
        """Make an error that names this file and the member or attribute at fault."""
        return DamagedFileError(self.name, part.removesuffix(STATE_SUFFIX), fault)

    def _json(self, member: str) -> Values:
        if member not in self.members:
            raise self.error(member, "is missing")
        try:
            return dict(json.loads(self.members[member]))
        except Exception as error:  # It may be anything.
            raise self.error(member, f"is not a JSON object: {error!r}") from error

    def _tensors(self, member: str) -> Values:
        try:
            return dict(th.load(io.BytesIO(self.members[member]), map_location="cpu", weights_only=True))
        except Exception as error:  # PyTorch may raise anything for damaged bytes.
            raise self.error(member, f"cannot be read: {error!r}") from error

    def to_file(self, data: Values, note: Values) -> io.BytesIO:
        """Write a file in memory with these attributes, and with this note, to which the hashes are added."""
        members = {**self.members, DATA: json.dumps(data).encode()}
        members.pop(NOTE, None)
        hashes = {member: sha256(content) for member, content in members.items()}
        file = io.BytesIO()
        file.name = self.name
        with zipfile.ZipFile(file, "w") as archive:
            # The note comes first, because damage to the directory of a zip archive can hide the last members.
            archive.writestr(NOTE, json.dumps({"sha256": hashes, **note}), zipfile.ZIP_DEFLATED)
            for member, content in members.items():
                archive.writestr(member, content)
        return file


def read_archive(file: File) -> Archive:
    """Read an open file, or the file at a path with or without the suffix ``.zip``, and check its hashes.

    :raises DamagedFileError: if it is not a zip archive, or a member is damaged, missing or unknown
    """
    is_path = isinstance(file, str | Path)
    opened = open_path(file, "r", suffix="zip")
    name = str(file if is_path else getattr(file, "name", type(file).__name__))
    with opened if is_path else nullcontext():
        opened.seek(0)
        content = opened.read()
    part, members = "the zip archive", dict[str, bytes]()
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as zipped:
            for part in zipped.namelist():
                members[part] = zipped.read(part)
    except Exception as error:  # Decompressors may raise anything.
        fault = "cannot be read" if members else "cannot be read; it is damaged, or wasn't a zip-file"
        raise DamagedFileError(name, part.removesuffix(STATE_SUFFIX), f"{fault}: {error!r}") from error
    archive = Archive(name, members)
    hashes = archive.note.get("sha256", {})
    for member in {**hashes, **members}.keys() - {NOTE} if NOTE in members else ():
        if member not in members:
            raise archive.error(member, "is missing")
        if hashes.get(member) != sha256(members[member]):
            raise archive.error(member, "is not what was saved")
    return archive


def sha256(content: bytes) -> str:
    """Compute the SHA-256 hash of a content, as hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()
