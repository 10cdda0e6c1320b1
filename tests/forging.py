"""Saved files, altered by someone who knows the format."""

import hashlib
import io
import json
import zipfile
from collections.abc import Callable
from functools import cache
from typing import Any

import torch as th

from helpers import BOX, noise_envs, save
from sb3_ppo_variants import PPOAdaptiveKL
from sb3_ppo_variants.saving import plain

NOTE, OPTIMIZER = "sb3_ppo_variants.json", "policy.optimizer.pth"
Members = dict[str, bytes]


@cache
def members(cls: Any = PPOAdaptiveKL, **arguments: Any) -> Members:
    env = noise_envs(BOX)
    model = cls("MlpPolicy", env, n_steps=16, batch_size=16, n_epochs=1, device="cpu", **arguments).learn(64)
    return unzip(save(model))


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
        note["sha256"] = {
            name: hashlib.sha256(content).hexdigest() for name, content in changed.items() if name != NOTE
        }
        changed = {**changed, NOTE: json.dumps(note).encode()}
    return zip_members(changed)


def with_optimizer(state: bytes) -> io.BytesIO:
    return seal({**members(), OPTIMIZER: state})


def with_values(original: Members, **values: Any) -> io.BytesIO:
    """Return the file with some attributes replaced."""
    data, note = json.loads(original["data"]), json.loads(original[NOTE])
    for name, value in values.items():
        data[name] = {":serialized:": ""}
        note["plain"][name] = value if isinstance(value, dict) and "@" in value else plain.encode(value)
    return seal({**original, "data": json.dumps(data).encode(), NOTE: json.dumps(note).encode()})


def change_state(original: Members, member: str, change: Callable[[Any], object]) -> Members:
    state = th.load(io.BytesIO(original[member]), weights_only=True)
    change(state)
    return {**original, member: serialize(state)}


def serialize(state: Any) -> bytes:
    file = io.BytesIO()
    th.save(state, file)
    return file.getvalue()


def load(file: io.BytesIO, cls: Any = PPOAdaptiveKL, **arguments: Any) -> Any:
    return cls.load(file, weights_only=True, device="cpu", **arguments)
