"""Batches of CIFAR's Python version: pickles, read without running them.

A pickle is a program for a stack machine that may call anything. This reads its instructions as data: it knows those
that plain values and arrays are written with, carries them out on values alone, and calls nothing that a file names.
"""

from __future__ import annotations

import io
import pickletools
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from prism_bench.base.text import brief, short

LARGEST = 2**28
"""Bytes of a file; CIFAR-100's larger one has 155 million."""

STEPS = 1_000_000
"""Instructions of a file: each may cost more memory than its byte. CIFAR-100 has a few hundred thousand."""

MADE = 3
"""So many times its own bytes may a file make: a text becomes bytes, and bytes an array, each once."""

ENCODE = ("_codecs", "encode")
DTYPE = ("numpy", "dtype")
NDARRAY = ("numpy", "ndarray")
ARRAY = tuple((f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core"))
"""Where a new array begins, in either generation of NumPy."""

NUMBERS = ("u1", "i4", "i8")
VALUES = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG1", "NONE", "NEWTRUE", "NEWFALSE", "BINFLOAT"),
    *("BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
    *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
}
FIXED = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
EMPTY: Mapping[str, Callable[[], Any]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}


class _Name(tuple[str, str]):
    """What a file calls by a module and a name; only ever compared."""


class _Number:
    """A type of numbers, before and after its byte order is known."""

    def __init__(self, code: str) -> None:
        self.dtype = np.dtype(code)


class _Array:
    """An array, before and after its content is known."""

    value: np.ndarray | None = None


_MARK = object()


def read(file: Path) -> dict[bytes, Any]:
    """A batch: plain values and arrays by byte strings. Anything that is no such file is a ValueError that says why."""
    status = file.stat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST:
        raise ValueError(f"it is no file of at most {LARGEST:,} bytes")
    content = file.read_bytes()
    batch = _Machine(MADE * len(content)).run(content)
    if not isinstance(batch, dict):
        raise ValueError(f"it holds a {type(batch).__name__} and no dictionary")
    for key, value in batch.items():
        # A list within itself, or many times within another, has no end.
        if any(isinstance(item, (list, tuple, dict)) for item in (value if isinstance(value, list) else [])):
            raise ValueError(f"{short(key)} is a list of lists")
    return {key: value.value if isinstance(value, _Array) else value for key, value in batch.items()}


class _Machine:
    def __init__(self, limit: int) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.left = limit
        """So many bytes may still be made: a few instructions could make the same large ones again and again."""

    def run(self, content: bytes) -> Any:
        for step, (code, argument, _) in enumerate(pickletools.genops(io.BytesIO(content))):
            if step > STEPS:
                raise ValueError(f"it has more than {STEPS:,} instructions")
            if code.name == "STOP":
                break
            try:
                self.step(code.name, argument)
            except (IndexError, KeyError, TypeError) as error:
                raise ValueError(f"{code.name} finds other values than it needs") from error
        return self.stack[-1]

    def step(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in VALUES:
            # The strings of Python 2 are bytes.
            value = FIXED.get(name, argument)
            stack.append(value.encode("latin1") if name in ("BINSTRING", "SHORT_BINSTRING") else value)
        elif name in EMPTY:
            stack.append(EMPTY[name]())
        elif name == "MARK":
            stack.append(_MARK)
        elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self.memo[len(self.memo) if name == "MEMOIZE" else argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self.memo[argument])
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            stack.append(tuple(self.pop(int(name[-1]))))
        elif name == "TUPLE":
            stack.append(tuple(self.marked()))
        elif name in ("APPEND", "APPENDS"):
            items = self.pop(1) if name == "APPEND" else self.marked()
            _checked(stack[-1], list).extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = self.pop(2) if name == "SETITEM" else self.marked()
            keys = [_checked(key, bytes, str) for key in items[::2]]
            self.spend(sum(map(len, keys)))
            pairs = zip((key.encode() if isinstance(key, str) else key for key in keys), items[1::2], strict=True)
            _checked(stack[-1], dict).update(pairs)
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            module, attribute = self.pop(2) if name == "STACK_GLOBAL" else argument.split(" ")
            if (module, attribute) not in (ENCODE, DTYPE, NDARRAY, *ARRAY):
                raise ValueError(f"it asks for {brief(f'{module}.{attribute}')}")
            stack.append(_Name((module, attribute)))
        elif name == "REDUCE":
            called, given = self.pop(2)
            if called == ENCODE:
                self.spend(len(given[0]))
            stack.append(_made(called, *given))
        elif name == "BUILD":
            [state] = self.pop(1)
            if isinstance(stack[-1], _Array):
                self.spend(len(state[4]))
            _fill(stack[-1], *state)
        elif name not in ("PROTO", "FRAME"):
            raise ValueError(f"it has the instruction {name}, which such files don't need")

    def spend(self, count: int) -> None:
        """Count bytes that are about to be made."""
        self.left -= count
        if self.left < 0:
            raise ValueError("it makes more bytes than a batch of its size holds")

    def pop(self, count: int) -> list[Any]:
        """The last values of the stack, taken off it."""
        if len(self.stack) < count:
            raise IndexError
        taken = self.stack[-count:]
        del self.stack[-count:]
        return taken

    def marked(self) -> list[Any]:
        """What is on the stack above the last mark, taken off it."""
        place = len(self.stack) - 1
        while self.stack[place] is not _MARK:
            place -= 1
            if place < 0:
                raise IndexError
        taken = self.stack[place + 1 :]
        del self.stack[place:]
        return taken


def _made(called: Any, *given: Any) -> Any:
    """What a call that arrays are written with would give."""
    if called == ENCODE:
        text, _ = given
        made: bytes = _checked(text, str).encode("latin1")
        return made
    if called == DTYPE and given[0] in (*NUMBERS, *(number.encode() for number in NUMBERS)):
        return _Number(given[0] if isinstance(given[0], str) else given[0].decode())
    if called in ARRAY and given[0] == NDARRAY:
        return _Array()
    raise ValueError("it makes something else than plain values and arrays of whole numbers")


def _fill(made: Any, *state: Any) -> None:
    """Give a type of numbers its byte order, or an array its content: as many bytes as its shape says."""
    if isinstance(made, _Number):
        if state[1] in (">", b">"):
            made.dtype = made.dtype.newbyteorder(">")
    elif isinstance(made, _Array):
        _, shape, number, fortran, content = state
        flat = np.frombuffer(_checked(content, bytes), _checked(number, _Number).dtype)
        made.value = np.array(flat.reshape([_checked(size, int) for size in shape], order="F" if fortran else "C"))
    else:
        raise ValueError(f"it changes a {type(made).__name__}")


def _checked(value: Any, *kinds: type) -> Any:
    if not isinstance(value, kinds):
        raise TypeError
    return value
