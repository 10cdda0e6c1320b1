"""The files of models: SB3's zip archives with a note that SB3 ignores, and writes that leave no half files.

The note holds the model's class, the hashes of the other members, and the plain forms of attributes, which are read
without running any code from a file. Besides JSON's own types, they have words for NumPy arrays and numbers, tuples,
deques, spaces, SB3's schedules and the classes of SB3, sb3-contrib and PyTorch that models are made of.
:func:`register_plain` adds words for dataclasses. A file can use these words and no others. Files without a note, such
as SB3's, can be read too.
"""

import base64
import hashlib
import io
import json
import os
import secrets
import shutil
import warnings
import zipfile
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, fields
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

import cloudpickle
import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.save_util import data_to_json, json_to_data, open_path
from stable_baselines3.common.utils import ConstantSchedule, FloatSchedule, LinearSchedule

from sb3_ppo_variants.arguments import Values
from sb3_ppo_variants.errors import ArgumentError, DamagedFileError, OtherClassError, PickledValueError
from sb3_ppo_variants.processes import EPISODES

NOTE = "sb3_ppo_variants.json"
DATA = "data"
PICKLED = ":serialized:"
"""SB3's key for a pickled value."""
CLASSES = "sb3_ppo_variants"
"""The key of the model's class among the attributes, where SB3 keeps it if it writes a file of ours again."""
OF_PPO = ("n_steps", "batch_size", "n_epochs", "gae_lambda")
"""Attributes of SB3's PPO. None of SB3's other algorithms has all of them."""
NOT_NEEDED = ("_last_obs", "_last_original_obs", "_last_episode_starts", "lr_schedule", "tensorboard_log", *EPISODES)
"""What a model does without: a reset makes the last observations, and learning_rate the schedule."""
File: TypeAlias = str | Path | io.BufferedIOBase

WORD = "@"
# The type that a word stands for, a function that returns the parts of a value, and one that rebuilds it.
Word: TypeAlias = tuple[type, Callable[[Any], Values], Callable[..., Any]]
# Classes that a file may name: those of these modules, which are imported for it, that derive from one of the bases.
MODULES = (
    "stable_baselines3.common.",
    "sb3_contrib.common.",
    "sb3_ppo_variants.policies.",
    "torch.nn.modules.",
    "torch.optim.",
)
NAMED_BASES = (th.nn.Module, th.optim.Optimizer, RolloutBuffer)


def encode(value: object) -> object:
    """Convert a value to its plain form for ``json.dumps``, or raise a ``ValueError``."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is list:
        return [encode(item) for item in value]
    for word, (cls, get_parts, _) in WORDS.items():
        # A subclass of another type may have additional state.
        if type(value) is cls or (cls in (type, np.generic) and isinstance(value, cls)):
            return {WORD: word, **{name: encode(part) for name, part in get_parts(value).items()}}
    raise ValueError(f"a {type(value).__name__} has no plain form")


def is_plain(value: object) -> bool:
    """Whether a value has a plain form."""
    try:
        encode(value)
    except (ValueError, RecursionError):
        return False
    return True


def decode(value: Any) -> Any:
    """Convert a plain form to its value, the inverse of :func:`encode`. Other forms may raise anything."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    parts = {name: decode(part) for name, part in value.items()}
    _, _, make = WORDS[parts.pop(WORD)]
    return make(**parts)


def serialize(values: Values, needed: Collection[str]) -> tuple[Values, Values]:
    """Convert attributes to the JSON that SB3 reads, and to plain forms. Those without a plain form are pickled.

    :param needed: the names of those without which a model cannot be loaded
    :raises ArgumentError: if one of them cannot be pickled. Others are left out, with a warning
    """
    # JSON alone would turn tuples into lists, and NumPy's numbers into Python's.
    forms = {name: encode(value) for name, value in values.items() if is_plain(value)}
    data: Values = {}
    for name, value in values.items():
        if name in forms:
            with suppress(TypeError):  # JSON has few types of keys.
                data[name] = json.loads(data_to_json({name: value}))[name]
                continue
        try:
            # This is never read here, because that would redefine the classes of a script.
            data[name] = {":type:": str(type(value)), PICKLED: base64.b64encode(cloudpickle.dumps(value)).decode()}
        except Exception as error:  # Pickling may raise anything.
            fault = (
                f"the attribute {name!r} cannot be saved, because a {type(value).__name__} cannot be pickled: {error}"
            )
            if name in needed and name not in NOT_NEEDED:
                raise ArgumentError(fault) from error
            warnings.warn(f"{fault}. The file does not contain it")
    return data, {name: form for name, form in forms.items() if not name.startswith("_last")}


def find_unreadable(name: str, state: object) -> str | None:
    """Find a value in the state of a network or an optimizer that can be written but not read, and name it."""
    file = io.BytesIO()
    with suppress(Exception):  # PyTorch may raise anything.
        th.save(state, file)
        th.load(io.BytesIO(file.getvalue()), map_location="cpu", weights_only=True)
        return None
    parts = state.items() if isinstance(state, Mapping) else enumerate(state) if isinstance(state, list | tuple) else ()
    found = (find_unreadable(f"{name}[{key!r}]", part) for key, part in parts)
    return next(filter(None, found), f"{name} is a {type(state).__name__}")


def _get_name(cls: type) -> Values:
    name = f"{cls.__module__}.{cls.__qualname__}"
    if not cls.__module__.startswith(MODULES) or not issubclass(cls, NAMED_BASES) or "." in cls.__qualname__:
        raise ValueError(f"the class {name} has no plain form")
    return {"name": name}


def _find_class(name: str) -> type:
    module, _, attribute = name.rpartition(".")
    cls = getattr(import_module(module), attribute) if module.startswith(MODULES) else None
    if not isinstance(cls, type) or not issubclass(cls, NAMED_BASES):
        raise ValueError(f"{name} is not a class that a file may name")
    return cls


def _get_array(array: np.ndarray) -> Values:
    if array.dtype.kind not in "biuf":
        raise ValueError(f"an array of {array.dtype} has no plain form")
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {"dtype": array.dtype.str, "shape": list(array.shape), "data": data}


def _make_array(dtype: str, shape: list[int], data: str) -> np.ndarray:
    # NumPy refuses to make objects of bytes.
    return np.frombuffer(base64.b64decode(data), dtype).reshape(shape).copy()


def _get_items(value: Mapping[object, object]) -> Values:
    return {"items": [[key, item] for key, item in value.items()]}


def _attributes(cls: type, *names: str) -> Word:
    """Make the entry of a class whose instances are made of the attributes with these names."""
    return cls, lambda value: {name: getattr(value, name) for name in names}, cls


WORDS: dict[str, Word] = {
    "tuple": (tuple, lambda value: {"items": [*value]}, lambda items: tuple(items)),
    "dict": (dict, _get_items, lambda items: dict(items)),
    "OrderedDict": (OrderedDict, _get_items, lambda items: OrderedDict(items)),
    "deque": (
        deque,
        lambda value: {"items": [*value], "maxlen": value.maxlen},
        lambda items, maxlen: deque(items, maxlen),
    ),
    "class": (type, _get_name, _find_class),
    "number": (np.generic, lambda number: {"array": np.asarray(number)}, lambda array: array[()]),
    "array": (np.ndarray, _get_array, _make_array),
    "Dict": (spaces.Dict, lambda space: _get_items(space.spaces), lambda items: spaces.Dict(items)),
    "Tuple": (spaces.Tuple, lambda space: {"items": [*space.spaces]}, lambda items: spaces.Tuple(items)),
    "Box": (
        spaces.Box,
        lambda space: {"low": space.low, "high": space.high},
        lambda low, high: spaces.Box(low, high, dtype=low.dtype.type),
    ),
    "Discrete": _attributes(spaces.Discrete, "n", "start"),
    "MultiBinary": _attributes(spaces.MultiBinary, "n"),
    "MultiDiscrete": (
        spaces.MultiDiscrete,
        lambda space: {"nvec": space.nvec, "start": space.start},
        lambda nvec, start: spaces.MultiDiscrete(nvec, dtype=nvec.dtype.type, start=start),
    ),
    "FloatSchedule": _attributes(FloatSchedule, "value_schedule"),
    "ConstantSchedule": _attributes(ConstantSchedule, "val"),
    "LinearSchedule": _attributes(LinearSchedule, "start", "end", "end_fraction"),
}


def register_plain(*classes: type) -> None:
    """Register dataclasses whose instances are saved as their fields, without pickle, by the name of the class.

    Loading a file calls the class with the values in the file, so its constructor must be harmless, and take a value
    with a plain form for each field.
    """
    WORDS.update({cls.__name__: _attributes(cls, *(field.name for field in fields(cls))) for cls in classes})


@dataclass(frozen=True)
class Archive:
    """The contents of a file, which an error message calls by its name.

    :param note: the note of this package; empty if the file has none
    :param data: the attributes of the model; SB3 wraps pickled ones in a dictionary
    :param members: the contents of the other members
    """

    name: str
    note: Values
    data: Values
    members: dict[str, bytes] = field(repr=False)

    def check_class(self, names: Collection[str], reads_sb3s_ppo: bool, converts: bool = False) -> None:
        """Check that a class can load the file, whose class must have the same objective.

        :param names: the names of the class and of its bases that have an objective
        :param reads_sb3s_ppo: whether the class can also load files of SB3's and sb3-contrib's PPO
        :param converts: whether to allow all classes of this package, and SB3's and sb3-contrib's PPO
        :raises OtherClassError: if it is of another class
        """
        own, *_ = names
        how = f"set_parameters() reads its parameters, and {own}.from_ppo() also reads its hyperparameters"
        kept = self.data.get(CLASSES, ())
        if classes := self.note.get("classes"):
            if not converts and set(names).isdisjoint(classes):
                raise OtherClassError(self.name, NOTE, f"says that this is a {classes[0]}, not a {own}; {how}")
        elif missing := [name for name in OF_PPO if name not in self.data]:
            raise OtherClassError(self.name, DATA, f"has no {', '.join(missing)}, so it is not a file of PPO")
        elif not (converts or reads_sb3s_ppo or not set(names).isdisjoint(kept)):
            of = f"a {kept[0]} that SB3 wrote" if kept else "SB3 or sb3-contrib"
            raise OtherClassError(self.name, DATA, f"is of {of}, not of {own}; {how}")

    def attributes(self, objects: Values, given: Collection[str], weights_only: bool) -> Values:
        """Read the attributes, from plain forms or else from pickles.

        :param objects: values that replace those in the file
        :param given: the names of attributes that are set anyway
        :param weights_only: whether to unpickle nothing
        :raises PickledValueError: with ``weights_only``, if values are only pickled, naming them all
        """
        forms = self.note.get("plain", {})
        known = {name: decode(form) for name, form in forms.items() if name in self.data and name not in objects}
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

    def to_file(self) -> io.BytesIO:
        """Write the file in memory, with the hashes in its note."""
        members = {DATA: json.dumps(self.data).encode(), **self.members}
        hashes = {name: sha256(content) for name, content in members.items()}
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            # The note comes first, because damage to the directory of a zip archive can hide the last members.
            archive.writestr(NOTE, json.dumps({**self.note, "sha256": hashes}), zipfile.ZIP_DEFLATED)
            for name, content in members.items():
                archive.writestr(name, content)
        return file


def read_archive(file: File) -> Archive:
    """Read an open file, or the file at a path with or without the suffix ``.zip``, and check its hashes.

    :raises DamagedFileError: if it is not a zip archive of a model, or a member is damaged, missing or unknown
    """
    opened = open_path(file, "r", suffix="zip")
    is_path = isinstance(file, str | Path)
    name = str(file if is_path else getattr(file, "name", type(file).__name__))
    try:
        with opened if is_path else nullcontext(), zipfile.ZipFile(opened) as zipped:
            members = {member: zipped.read(member) for member in zipped.namelist()}
    except Exception as error:  # Decompressors may raise anything.
        fault = f"cannot be read; it is damaged, or wasn't a zip-file: {error!r}"
        raise DamagedFileError(name, "the zip archive", fault) from error
    note: Values = json.loads(members.pop(NOTE, b"{}"))
    hashes: Mapping[str, str] | None = note.get("sha256")
    for member in (DATA, *(hashes or ())):
        if member not in members:
            raise DamagedFileError(name, member, "is missing")
    for member, content in members.items():
        if hashes is not None and hashes.get(member) != sha256(content):
            raise DamagedFileError(name, member, "is not what was saved")
    return Archive(name, note, json.loads(members.pop(DATA)), members)


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
