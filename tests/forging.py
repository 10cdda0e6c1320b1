"""Saved files, altered by someone who knows the format."""

import hashlib
import io
import json
import zipfile
from collections.abc import Callable
from typing import Any

import torch as th

NOTE = "sb3_ppo_variants.json"
Members = dict[str, bytes]


def unzip(file: io.BytesIO) -> Members:
    with zipfile.ZipFile(file) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def zip_members(members: Members, method: int = zipfile.ZIP_STORED) -> io.BytesIO:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file


def seal(changed: Members) -> io.BytesIO:
    """Zip members with correct hashes, which an attacker can compute too."""
    if NOTE in changed:
        note = json.loads(changed[NOTE])
        note["sha256"] = {name: hashlib.sha256(each).hexdigest() for name, each in changed.items() if name != NOTE}
        changed = {**changed, NOTE: json.dumps(note).encode()}
    return zip_members(changed)


def change_state(original: Members, member: str, change: Callable[[Any], object]) -> Members:
    state = th.load(io.BytesIO(original[member]), weights_only=True)
    change(state)
    return {**original, member: serialize(state)}


def serialize(state: Any) -> bytes:
    file = io.BytesIO()
    th.save(state, file)
    return file.getvalue()
