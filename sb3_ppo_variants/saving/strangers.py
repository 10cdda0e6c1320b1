"""Limits on which attributes an untrusted file may set, and on how much memory it may use."""

import io
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, get_origin

import torch as th
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.preprocessing import get_action_dim, get_obs_shape
from torch.nn.modules.module import register_module_parameter_registration_hook

from sb3_ppo_variants.errors import ArgumentError, DamagedFileError
from sb3_ppo_variants.kl import MissingKLError
from sb3_ppo_variants.saving import plain
from sb3_ppo_variants.saving.archive import STATE, Archive
from sb3_ppo_variants.saving.values import MADE_ANEW, PARTS

# Attributes that an untrusted file may not set: those that a model creates itself, and the path that it writes to.
KEPT_OUT = {*PARTS, *MADE_ANEW, "tensorboard_log"}
# Attributes that a model gets from its environment.
OF_ENV = {"observation_space", "action_space", "n_envs"}
# The only type that PyTorch's unpickler allocates at any size that a file asks for.
BYTES = b"bytearray"
# For comparison, an Atari rollout with 256 environments takes 1 GiB.
LARGEST_ROLLOUT = 2**32
# A policy may create networks that it later replaces.
SPARE_TIMES, SPARE_BYTES, SPARE_PARAMETERS = 2, 2**20, 100


def attributes_of(cls: type[BaseAlgorithm], policy_class: type) -> set[str]:
    """Return the names of the attributes of a new model.

    Class attributes with a plain form count too, unless they are declared as ``ClassVar``.
    """
    make: Any = cls  # Create the model as SB3's load() does.
    fresh = OF_ENV | set(vars(make(policy=policy_class, env=None, _init_setup_model=False)))
    for base in cls.__mro__:
        fresh |= {
            name
            for name, value in vars(base).items()
            if not name.startswith("__") and plain.is_plain(value) and not _is_of_class(base, name)
        }
    return fresh


def _is_of_class(cls: type, name: str) -> bool:
    annotation = vars(cls).get("__annotations__", {}).get(name)
    return annotation is ClassVar or get_origin(annotation) is ClassVar or "ClassVar" in str(annotation)


def check_rollout(file: str, values: Mapping[str, Any], n_envs: int) -> None:
    """Check that a rollout fits into memory before its buffer is allocated.

    :param values: attributes that have been checked
    :raises DamagedFileError: if the rollout takes more than ``LARGEST_ROLLOUT`` bytes
    """
    row = 4 * (get_action_dim(values["action_space"]) + 6) + _size(values["observation_space"])
    size = values.get("n_steps", 1) * n_envs * row
    if size > LARGEST_ROLLOUT:
        raise DamagedFileError(
            file,
            "n_steps",
            f"is {values['n_steps']} for {n_envs} environments, whose rollout would take {size / 2**30:.1f} GiB, more "
            f"than the {LARGEST_ROLLOUT / 2**30:.0f} that weights_only=True allows; load(..., n_steps=...) replaces it",
        )


def _size(space: spaces.Space) -> int:
    if isinstance(space, spaces.Dict):
        return sum(map(_size, space.spaces.values()))
    shape: Any = get_obs_shape(space)
    size = space.dtype.itemsize if space.dtype is not None else 4
    for length in shape:
        size *= int(length)  # A Python integer does not overflow.
    return size


def check_tensors(archive: Archive) -> None:
    """Check, before PyTorch reads them, that the tensors in a file take no more memory than the file itself.

    :raises DamagedFileError: if they might take more
    """
    for member, content in archive.members.items():
        if member.endswith(STATE):
            fault = _fault_of_tensors(content)
            if fault is not None:
                raise DamagedFileError(archive.name, member.removesuffix(STATE), fault)


def _fault_of_tensors(content: bytes) -> str | None:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as tensors:
            if any(info.compress_type != zipfile.ZIP_STORED for info in tensors.infolist()):
                return "is compressed, which PyTorch's own files are not"
            pickles = [tensors.read(name) for name in tensors.namelist() if name.endswith(".pkl")]
    except (zipfile.BadZipFile, OSError, EOFError) as error:
        return f"cannot be read: {error}"
    if any(BYTES in pickled for pickled in pickles):
        return "creates byte arrays, which may be of any size and which no state of a model contains"
    return None


@contextmanager
def built_within(archive: Archive) -> Iterator[None]:
    """Refuse networks larger than the policy in a file while the context is active, before their memory is filled.

    :raises DamagedFileError: if the network is larger, or cannot be built
    """
    member, thread = archive.members["policy.pth"], threading.get_ident()
    most_bytes = SPARE_BYTES + SPARE_TIMES * len(member)
    most = SPARE_PARAMETERS + SPARE_TIMES * len(archive.states()["policy"])
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
        raise DamagedFileError(archive.name, "the model", f"cannot be built: {error}") from error
    finally:
        hook.remove()
