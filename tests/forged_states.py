"""Small states of optimizers that PyTorch's own safe reader loads into a lot of memory, made of opcodes."""

import io
import pickle
import struct
import zipfile
from collections.abc import Callable
from copy import copy
from typing import Any

from forging import OPTIMIZER, Members, members, unzip, zip_members
from torch.serialization import MAGIC_NUMBER, PROTOCOL_VERSION

MIB = 2**20
N_NAMES = 300


def unzip_state(state: bytes) -> Members:
    """Return the entries of a state without the folder that they are in."""
    return {name.partition("/")[2]: content for name, content in unzip(io.BytesIO(state)).items()}


def zip_state(entries: Members) -> bytes:
    return zip_members({f"archive/{name}": content for name, content in entries.items()}).getvalue()


def with_opcodes(opcodes: bytes, **entries: bytes) -> Members:
    """Return the entries of an optimizer's state to which the opcodes add a value, and further entries."""
    original = unzip_state(members()[OPTIMIZER])
    added = original["data.pkl"].removesuffix(pickle.STOP) + of_string("added") + opcodes + pickle.SETITEM + pickle.STOP
    return {**original, "data.pkl": added, **{f"data/{name}": content for name, content in entries.items()}}


# Opcodes that push values, and those that call functions.


def of_string(string: str) -> bytes:
    return pickle.BINUNICODE + struct.pack("<I", len(string)) + string.encode()


def of_int(number: int) -> bytes:
    return pickle.BININT + struct.pack("<i", number)


def of_global(name: str) -> bytes:
    module, _, attribute = name.rpartition(".")
    return pickle.GLOBAL + f"{module}\n{attribute}\n".encode()


def of_tuple(*items: bytes) -> bytes:
    return pickle.MARK + b"".join(items) + pickle.TUPLE


def of_call(function: str, *arguments: bytes) -> bytes:
    return of_global(function) + of_tuple(*arguments) + pickle.REDUCE


def of_tensor(entry: str, n_stored: int, size: int, stride: int) -> bytes:
    storage = of_tuple(
        of_string("storage"), of_global("torch.FloatStorage"), of_string(entry), of_string("cpu"), of_int(n_stored)
    )
    return of_call(
        "torch._utils._rebuild_tensor_v2", storage + pickle.BINPERSID, of_int(0), of_tuple(of_int(size)),
        of_tuple(of_int(stride)), pickle.NEWFALSE, of_call("collections.OrderedDict"),
    )  # fmt: skip


def as_another_entry() -> bytes:
    """PyTorch finds entries whatever the case of their names."""
    entries = with_opcodes(of_call("builtins.bytearray", of_int(256 * MIB)))
    return zip_state({"data.PKL" if name == "data.pkl" else name: content for name, content in entries.items()})


def as_doubled_text() -> bytes:
    """PyTorch calls ``encode``, for bytes, with any codec."""
    doubled = of_call("_codecs.encode", of_string("x" * 16), of_string("utf-8"))
    for _ in range(24):
        doubled = of_call("_codecs.encode", doubled, of_string("hex"))
    return zip_state(with_opcodes(doubled))


def as_copied_tensor() -> bytes:
    repeated = of_tensor("more", n_stored=1, size=32 * MIB, stride=0)
    double, cpu = of_global("torch.float64"), of_string("cpu")
    copied = of_call("torch._utils._rebuild_device_tensor_from_cpu_tensor", repeated, double, cpu, pickle.NEWFALSE)
    return zip_state(with_opcodes(copied, more=bytes(4)))


def as_tensors(names: list[str]) -> Members:
    """Return the entries of a state with a tensor of 1 MiB for each name, and one of these entries."""
    tensors = of_tuple(*(of_tensor(name, 2**18, 2**18, 1) for name in names))
    return with_opcodes(tensors, **{names[0]: bytes(MIB)})


def as_overlapping_entries() -> bytes:
    file = io.BytesIO(zip_state(as_tensors([f"more{i}" for i in range(N_NAMES)])))
    with zipfile.ZipFile(file, "a") as archive:
        for i in range(1, N_NAMES):
            another = copy(archive.getinfo("archive/data/more0"))
            another.filename = f"archive/data/more{i}"
            archive.filelist.append(another)
        archive.comment = b"changed"  # The directory is only written if something has changed.
    return file.getvalue()


def as_names_with_ends() -> bytes:
    """PyTorch takes the zero for the end of the name."""
    return zip_state(as_tensors(["more", *(f"more\0{i}" for i in range(N_NAMES))]))


def as_old_format() -> bytes:
    """Python finds a zip archive at the end of a file, PyTorch at its beginning."""
    sizes = {"short": 2, "int": 4, "long": 4}
    about = {"protocol_version": PROTOCOL_VERSION, "little_endian": True, "type_sizes": sizes}
    parts: list[Any] = [MAGIC_NUMBER, PROTOCOL_VERSION, about]
    opcodes = of_call("builtins.bytearray", of_int(256 * MIB))
    old = b"".join(pickle.dumps(part, 2) for part in parts) + pickle.PROTO + b"\2" + opcodes + pickle.STOP
    return old + pickle.dumps([], 2) + zip_state({"data.pkl": b""})


def as_copies() -> bytes:
    """Each call copies the same dictionary."""
    items = b"".join(of_int(i) + pickle.NONE for i in range(10_000))
    made = pickle.EMPTY_DICT + pickle.MARK + items + pickle.SETITEMS + pickle.BINPUT + b"\xff"
    copies = [of_call("collections.OrderedDict", pickle.BINGET + b"\xff")] * 400
    return zip_state(with_opcodes(of_tuple(made, *copies)))


def as_zeros() -> bytes:
    """Zeros allow more opcodes, and take little of a file that is compressed."""
    function = of_global("collections.OrderedDict") + pickle.BINPUT + b"\xff"
    call = pickle.BINGET + b"\xff" + pickle.EMPTY_TUPLE + pickle.REDUCE
    return zip_state(with_opcodes(of_tuple(function, call * 300_000), zeros=bytes(40 * MIB)))


# Each takes more than 200 MiB in PyTorch's reader.
STATES: dict[str, Callable[[], bytes]] = {
    "bytes in another entry": as_another_entry,
    "text that doubles": as_doubled_text,
    "a tensor that is copied": as_copied_tensor,
    "entries that overlap": as_overlapping_entries,
    "names of one entry": as_names_with_ends,
    "an old format": as_old_format,
    "a dictionary that is copied": as_copies,
    "many sets": lambda: zip_state(with_opcodes(of_tuple(pickle.EMPTY_SET * MIB))),
    "many lists": lambda: zip_state(with_opcodes(of_tuple(pickle.EMPTY_LIST * 3 * MIB))),
}
