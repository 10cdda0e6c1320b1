"""The zip archive of a saved model, in SB3's format plus a note that SB3 ignores.

The note holds the model's class, the hashes of the other members and the plain forms of values that SB3 pickles; see
:mod:`sb3_ppo_variants.saving.plain`. Files without a note, such as SB3's, can be read too.
"""

import io
import json
import zipfile
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import torch as th
from stable_baselines3.common.save_util import open_path

from sb3_ppo_variants.errors import DamagedFileError
from sb3_ppo_variants.saving.hashes import sha256

NOTE = "sb3_ppo_variants.json"
DATA = "data"
# The module of sb3-contrib's maskable policies.
MASKABLE = "sb3_contrib.common.maskable.policies"
STATE = ".pth"
# SB3 before 0.9 used the second name.
VARIABLES = ("pytorch_variables.pth", "tensors.pth")
# The members of every file, each with its possible names. A model may have further states.
MEMBERS = ((DATA,), VARIABLES, ("policy.pth",), ("policy.optimizer.pth",), ("_stable_baselines3_version",))
# SB3's key for a pickled value.
PICKLED = ":serialized:"
# Stands for the hash of the note while that hash is computed.
NO_HASH = 64 * "0"
# SB3 stores members uncompressed. A file that was zipped again may be compressed, within these bounds on its size.
COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
MOST_BYTES, MOST_TIMES = 2**26, 10

File: TypeAlias = str | Path | io.BufferedIOBase


@dataclass(frozen=True)
class Archive:
    """The contents of the members of a file, and the name of the file in error messages."""

    name: str
    members: dict[str, bytes] = field(repr=False)

    @cached_property
    def note(self) -> dict[str, Any]:
        """The note of this package; empty if the file has none."""
        return self.json(NOTE) if NOTE in self.members else {}

    @cached_property
    def data(self) -> dict[str, Any]:
        """The attributes of the model; SB3 wraps pickled ones in a dictionary."""
        return self.json(DATA)

    @cached_property
    def pickled(self) -> list[str]:
        """The names of the attributes that are pickled."""
        return [name for name, value in self.data.items() if isinstance(value, dict) and PICKLED in value]

    @property
    def not_pickled(self) -> dict[str, Any]:
        """The attributes that are not pickled, as a new dictionary."""
        return {name: value for name, value in self.data.items() if name not in self.pickled}

    @property
    def policy_module(self) -> str:
        """The module of the policy's class, which SB3 writes next to the pickled class; empty if it is not there."""
        recorded = self.data.get("policy_class")
        return str(recorded.get("__module__")) if isinstance(recorded, dict) else ""

    def json(self, member: str) -> dict[str, Any]:
        """Parse a member that is a JSON object.

        :raises DamagedFileError: if the member is missing or is not a JSON object
        """
        if member not in self.members:
            raise DamagedFileError(self.name, member, "is missing")
        try:
            value = json.loads(self.members[member])
        except (ValueError, RecursionError) as error:
            raise DamagedFileError(self.name, member, f"is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise DamagedFileError(self.name, member, "is not a JSON object")
        return value

    def check_is_whole(self) -> None:
        """:raises DamagedFileError: if a member is missing"""
        for names in MEMBERS:
            if self.members.keys().isdisjoint(names):
                raise DamagedFileError(self.name, _part(names[0]), "is missing")

    def states(self, device: th.device | str = "cpu") -> dict[str, Any]:
        """Read the state dictionaries, by the names of their owners, such as ``"policy.optimizer"``.

        :raises DamagedFileError: if a state cannot be read
        """
        states = {member: self._state(member, device) for member in self.members if member.endswith(STATE)}
        return {_part(member): state for member, state in states.items() if member not in VARIABLES}

    @property
    def variables(self) -> dict[str, Any]:
        """Tensors that SB3 would set in addition to the states; PPO has none.

        :raises DamagedFileError: if they cannot be read
        """
        members = [member for member in VARIABLES if member in self.members]
        return {name: value for member in members for name, value in self._state(member, "cpu").items()}

    def _state(self, member: str, device: th.device | str) -> dict[str, Any]:
        try:
            state = th.load(io.BytesIO(self.members[member]), map_location=device, weights_only=True)
        except Exception as error:  # PyTorch may raise anything for damaged bytes.
            raise DamagedFileError(self.name, _part(member), f"cannot be read: {error!r}") from error
        if not isinstance(state, dict):
            raise DamagedFileError(self.name, _part(member), f"is a {type(state).__name__}, not a dictionary")
        return state

    def with_note(self, note: dict[str, Any]) -> bytes:
        """Return the content of the file with this note, to which the hashes are added."""
        hashes = {NOTE: NO_HASH, **{member: sha256(content) for member, content in self.members.items()}}
        content = json.dumps({"sha256": hashes, **note}).encode()
        content = _with_hash(content, NO_HASH, sha256(content))
        # The note comes first, because damage to the directory of a zip archive can hide the last members.
        return _zipped({NOTE: content, **self.members})

    def with_data(self, data: dict[str, Any]) -> io.BytesIO:
        """Return the file with these attributes instead of its own."""
        return io.BytesIO(_zipped({**self.members, DATA: json.dumps(data).encode()}))


def read_archive(file: File) -> Archive:
    """Read a file, and check its members against the hashes in the note.

    :param file: a path, with or without the suffix ``.zip``, or an open file
    :raises DamagedFileError: if it is not a zip archive or a member is damaged
    :raises FileNotFoundError: if there is no such file
    """
    opened = open_path(file, "r", suffix="zip")
    is_path = isinstance(file, str | Path)
    name = str(file if is_path else getattr(file, "name", type(file).__name__))
    with opened if is_path else nullcontext():
        opened.seek(0)
        archive = Archive(name, _members(name, opened.read()))
    _check_hashes(archive)
    return archive


def _members(name: str, content: bytes) -> dict[str, bytes]:
    members: dict[str, bytes] = {}
    part = "the zip archive"
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            _check_sizes(name, archive, MOST_BYTES + MOST_TIMES * len(content))
            for info in archive.infolist():
                part = _part(info.filename)
                if info.filename in members:
                    raise DamagedFileError(name, part, "appears twice")
                with archive.open(info) as member:
                    # Read past the end, because zipfile only compares the checksum there.
                    members[info.filename] = member.read(info.file_size + 1)
    except DamagedFileError:
        raise
    except zipfile.BadZipFile as error:
        fault = "is damaged" if members else "cannot be read; it wasn't a zip-file, or is truncated"
        raise DamagedFileError(name, part, f"{fault}: {error}") from error
    except Exception as error:  # Decompressors may raise anything.
        raise DamagedFileError(name, part, f"is damaged: {error!r}") from error
    return members


def _check_sizes(name: str, archive: zipfile.ZipFile, most: int) -> None:
    for info in archive.infolist():
        if info.compress_type not in COMPRESSIONS:
            # For other methods, Python does not limit the size of a decompressed chunk.
            raise DamagedFileError(name, _part(info.filename), "uses a compression method other than deflate")
    size = sum(info.file_size for info in archive.infolist())
    if size > most:
        raise DamagedFileError(name, "the zip archive", f"would take {size} bytes when decompressed, more than {most}")


def _check_hashes(archive: Archive) -> None:
    if NOTE not in archive.members:
        return
    hashes = archive.note.get("sha256")
    if not isinstance(hashes, dict):
        raise DamagedFileError(archive.name, NOTE, "has no hashes")
    # Earlier versions did not hash the note.
    if NOTE in hashes and sha256(_with_hash(archive.members[NOTE], hashes[NOTE], NO_HASH)) != hashes[NOTE]:
        raise DamagedFileError(archive.name, NOTE, "is not what was saved")
    for member in {**hashes, **archive.members}:
        if member not in archive.members:
            raise DamagedFileError(archive.name, _part(member), "is missing")
        if member != NOTE and hashes.get(member) != sha256(archive.members[member]):
            raise DamagedFileError(archive.name, _part(member), "is not what was saved")


def _with_hash(note: bytes, old: Any, new: str) -> bytes:
    """Replace the note's own hash, which is the first hash in it."""
    return note.replace(json.dumps(old).encode(), json.dumps(new).encode(), 1)


def _zipped(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content, zipfile.ZIP_DEFLATED if member == NOTE else zipfile.ZIP_STORED)
    return buffer.getvalue()


def _part(member: str) -> str:
    return member.removesuffix(STATE)
