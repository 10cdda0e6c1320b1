"""Reads the states in a file from a stranger: tensors, numbers, strings, and containers of them.

PyTorch's own safe reader runs no code, but a small file can make it fill the memory: it calls functions that return
more than they take, and finds one entry of a zip archive under many names. Here, the opcodes that ``torch.save`` writes
are interpreted instead. No tensor has more memory than the file stores for it.
"""

import io
import pickletools
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import torch as th

# Opcodes make objects that take up to a hundred times as much memory, so there is a limit on their bytes: this number,
# plus a part of the bytes of the whole state. For comparison, the Adam of a policy with 13 tensors has 3 KiB of them.
MOST_OPCODES, PART_OF_STATE = 2**18, 1 / 32
# The types of numbers, by the names that files give to the memory of their tensors.
STORAGES = {
    "Double": th.float64, "Float": th.float32, "Half": th.float16, "BFloat16": th.bfloat16, "Long": th.int64,
    "Int": th.int32, "Short": th.int16, "Char": th.int8, "Byte": th.uint8, "Bool": th.bool,
    "ComplexDouble": th.complex128, "ComplexFloat": th.complex64,
}  # fmt: skip


class UntrustedStateError(ValueError):
    """A state could take much more memory than its file, or is not one of a network or an optimizer."""


def read_state(content: bytes) -> Any:
    """Read what ``torch.save`` wrote.

    :raises UntrustedStateError: if it is not what ``torch.save`` writes for a state of a model
    :raises Exception: of any class, if it is damaged
    """
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        infos = archive.infolist()
        if any(info.compress_type != zipfile.ZIP_STORED for info in infos):
            raise UntrustedStateError("is compressed, which PyTorch's own files are not")
        if sum(info.file_size for info in infos) > len(content):
            raise UntrustedStateError("has entries that overlap, which those of PyTorch's own files do not")
        # All names begin with the name of the same folder.
        entries = {info.filename.partition("/")[2]: archive.read(info) for info in infos}
    opcodes, most = entries["data.pkl"], MOST_OPCODES + int(PART_OF_STATE * len(content))
    if len(opcodes) > most:
        raise UntrustedStateError(f"has {len(opcodes)} bytes besides the numbers of its tensors, more than {most}")
    return _Interpreter(entries, most).run(opcodes)


def _build_tensor(
    storage: th.Tensor, offset: int, size: tuple[int, ...], stride: tuple[int, ...], requires_grad: bool, _: object
) -> th.Tensor:
    return storage.as_strided(size, stride, offset).requires_grad_(requires_grad)


def _build_parameter(data: th.Tensor, requires_grad: bool, _: object) -> th.nn.Parameter:
    return th.nn.Parameter(data, requires_grad)


# What a state may name. The functions do what PyTorch's of these names do, but only that.
GLOBALS: Mapping[str, Any] = {
    "collections OrderedDict": lambda: OrderedDict(),
    "torch._utils _rebuild_tensor_v2": _build_tensor,
    "torch._utils _rebuild_parameter": _build_parameter,
    **{f"torch {name}Storage": dtype for name, dtype in STORAGES.items()},
}


def _measure(value: Any) -> int:
    """Count the values and the characters in a value, also the empty ones, because visiting them takes time too."""
    if isinstance(value, list | dict):
        raise UntrustedStateError(
            f"contains the same {type(value).__name__} twice, which weights_only=True does not read"
        )
    return 1 + (sum(map(_measure, value)) if isinstance(value, tuple) else len(value) if isinstance(value, str) else 0)


class _Interpreter:
    """Interprets the opcodes of a state, on a stack of values.

    :param entries: the contents of the zip archive
    :param most: the largest number of values and characters that may repeat others
    """

    def __init__(self, entries: Mapping[str, bytes], most: int):
        self._entries, self._most = entries, most
        self._repeated = 0
        self._storages: dict[str, th.Tensor] = {}
        self._memo: dict[int, Any] = {}
        self._stack: list[Any] = []
        self._below_marks: list[list[Any]] = []

    def run(self, opcodes: bytes) -> Any:
        """Return what the opcodes make."""
        for opcode, argument, _ in pickletools.genops(opcodes):
            if opcode.name not in OPCODES:
                raise UntrustedStateError(f"has the opcode {opcode.name}, which torch.save does not write")
            OPCODES[opcode.name](self, argument)
        return self._stack.pop()

    def push(self, value: Any) -> None:
        """Put a value on the stack."""
        self._stack.append(value)

    def pop(self, number: int) -> list[Any]:
        """Take the last values from the stack."""
        popped = self._stack[-number:]
        del self._stack[-number:]
        return popped

    def pop_to_mark(self) -> list[Any]:
        """Take all values since the last mark."""
        popped, self._stack = self._stack, self._below_marks.pop()
        return popped

    def mark(self) -> None:
        """Begin a new part of the stack."""
        self._below_marks.append(self._stack)
        self._stack = []

    def remember(self, index: int) -> None:
        """Keep the value on top of the stack for :meth:`recall`."""
        self._memo[index] = self._stack[-1]

    def recall(self, index: int) -> None:
        """Push a value that was there before."""
        value = self._memo[index]
        self._repeated += _measure(value)
        if self._repeated > self._most:
            raise UntrustedStateError(f"repeats more than {self._most} values and characters")
        self.push(value)

    def extend(self, items: list[Any]) -> None:
        """Append items to the list on top of the stack."""
        self._stack[-1].extend(items)

    def update(self, items: list[Any]) -> None:
        """Add keys, each followed by its value, to the dictionary on top of the stack."""
        self._stack[-1].update(zip(items[::2], items[1::2], strict=True))

    def find(self, name: str) -> None:
        """Push what ``GLOBALS`` has under a name."""
        if name not in GLOBALS:
            raise UntrustedStateError(f"contains {name.replace(' ', '.')}, which weights_only=True does not read")
        self.push(GLOBALS[name])

    def call(self) -> None:
        """Call a function of ``GLOBALS``; nothing else that may be on the stack can be called."""
        function, arguments = self.pop(2)
        self.push(function(*arguments))

    def set_attributes(self) -> None:
        """Set attributes of an ordered dictionary, in which PyTorch keeps the versions of modules."""
        owner, attributes = self.pop(2)
        if type(owner) is not OrderedDict:
            raise UntrustedStateError(
                f"sets attributes of a {type(owner).__name__}, which weights_only=True does not read"
            )
        vars(owner).update(attributes)
        self.push(owner)

    def load_storage(self) -> None:
        """Read the numbers of tensors, once for all tensors that share them."""
        ((_, dtype, key, *_),) = self.pop(1)
        name = f"data/{key}"
        if name not in self._storages:
            content = bytearray(self._entries[name])
            storage = th.frombuffer(content, dtype=dtype) if content else th.empty(0, dtype=dtype)
            if self._entries.get("byteorder", b"little").decode() != sys.byteorder:
                storage.untyped_storage().byteswap(dtype)  # type: ignore[no-untyped-call]
            self._storages[name] = storage
        self.push(self._storages[name])


def _pushing(make: Callable[[], object]) -> Callable[[_Interpreter, Any], None]:
    return lambda interpreter, _: interpreter.push(make())


OPCODES: Mapping[str, Callable[[_Interpreter, Any], None]] = {
    **dict.fromkeys(("PROTO", "STOP"), lambda interpreter, _: None),
    **dict.fromkeys(("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE"), _Interpreter.push),
    "NONE": _pushing(lambda: None),
    "NEWTRUE": _pushing(lambda: True),
    "NEWFALSE": _pushing(lambda: False),
    "EMPTY_TUPLE": _pushing(tuple),
    "EMPTY_LIST": _pushing(list),
    "EMPTY_DICT": _pushing(dict),
    "MARK": lambda interpreter, _: interpreter.mark(),
    "TUPLE": lambda interpreter, _: interpreter.push(tuple(interpreter.pop_to_mark())),
    "TUPLE1": lambda interpreter, _: interpreter.push(tuple(interpreter.pop(1))),
    "TUPLE2": lambda interpreter, _: interpreter.push(tuple(interpreter.pop(2))),
    "TUPLE3": lambda interpreter, _: interpreter.push(tuple(interpreter.pop(3))),
    "APPEND": lambda interpreter, _: interpreter.extend(interpreter.pop(1)),
    "APPENDS": lambda interpreter, _: interpreter.extend(interpreter.pop_to_mark()),
    "SETITEM": lambda interpreter, _: interpreter.update(interpreter.pop(2)),
    "SETITEMS": lambda interpreter, _: interpreter.update(interpreter.pop_to_mark()),
    **dict.fromkeys(("BINPUT", "LONG_BINPUT"), _Interpreter.remember),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), _Interpreter.recall),
    "GLOBAL": _Interpreter.find,
    "REDUCE": lambda interpreter, _: interpreter.call(),
    "BUILD": lambda interpreter, _: interpreter.set_attributes(),
    "BINPERSID": lambda interpreter, _: interpreter.load_storage(),
}
