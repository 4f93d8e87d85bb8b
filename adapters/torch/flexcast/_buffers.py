# SPDX-License-Identifier: Apache-2.0
"""Memory of the program's objects, by the buffer protocol and without copies."""

from __future__ import annotations

import ctypes
import math
import re
import struct
import sys
from typing import Any

from . import errors

_WRITABLE = 0x0001
_FORMAT = 0x0004
_C_CONTIGUOUS = 0x0020 | 0x0010 | 0x0008


class _View(ctypes.Structure):
    """Py_buffer."""

    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_ssize_t)),
        ("strides", ctypes.POINTER(ctypes.c_ssize_t)),
        ("suboffsets", ctypes.POINTER(ctypes.c_ssize_t)),
        ("internal", ctypes.c_void_p),
    ]


_get = ctypes.pythonapi.PyObject_GetBuffer
_get.argtypes = [ctypes.py_object, ctypes.POINTER(_View), ctypes.c_int]
_get.restype = ctypes.c_int
_release = ctypes.pythonapi.PyBuffer_Release
_release.argtypes = [ctypes.POINTER(_View)]
_release.restype = None

_NATIVE = "<" if sys.byteorder == "little" else ">"
_INTEGERS = {"b": "int", "h": "int", "i": "int", "l": "int", "q": "int", "n": "int"}
_KINDS = {**_INTEGERS, **{code.upper(): "uint" for code in _INTEGERS}, "e": "float", "f": "float", "d": "float"}
# Bytes of the codes in arrays' formats, and of pairs by the type of the value.
_SIZES = {"h": 2, "i": 4, "l": 8, "q": 8, "f": 4, "d": 8}
_PAIR_BYTES = {"float32": 8, "float64": 16, "int64": 16, "int32": 8, "int16": 8}


def _pair_value(format: str, itemsize: int) -> str | None:
    """Name of the value's type of a structure of value and index (`int`), laid out as C does; None: it is none."""
    found = re.fullmatch(r"T\{(.*?):[^:]*:(?:x|\d+x)*(.*?):[^:]*:(?:x|\d+x)*\}", format)
    if found is None:
        return None
    value, index = found.groups()
    order = value[:1] if value[:1] in ("@", "=", "<", ">") else ""
    # An order holds for what follows it, too.
    codes = [(order or "@") + value.removeprefix(order), index if index[:1] in ("@", "=", "<", ">") else (order or "@") + index]
    sizes = [_SIZES.get(code[1:]) for code in codes]
    if None in sizes:
        return None
    names = [_type_name(code, size) for code, size in zip(codes, sizes) if size is not None]
    known = names[0] in _PAIR_BYTES and names[1] == "int32" and itemsize == _PAIR_BYTES[names[0] or ""]
    return names[0] if known else None


def _type_name(format: str, itemsize: int) -> str | None:
    """Name of an element type by its PEP 3118 format; None: none that reductions know."""
    order, code = (format[0], format[1:]) if format[:1] in ("@", "=", "<", ">", "!") else ("@", format)
    if order not in ("@", "=", _NATIVE) and itemsize > 1:
        return None
    if code == "?":
        return "bool" if itemsize == 1 else None
    if code in ("Zf", "Zd"):
        return f"complex{8 * itemsize}"
    kind = _KINDS.get(code)
    # Of some structures ctypes says nothing but "B": then the code is of another size than the element.
    orders = "@" if code in "nN" else "@="
    fits = kind is not None and any(struct.calcsize(order + code) == itemsize for order in orders)
    return f"{kind}{8 * itemsize}" if fits else None


class Buffer:
    """Memory of an object, which cannot be resized or freed until release()."""

    __slots__ = ("address", "bytes", "format", "itemsize", "object", "pair", "shape", "type", "_held", "_view")

    def __init__(self, object: Any, *, writable: bool, what: str) -> None:
        source, named = object, None
        if getattr(getattr(object, "dtype", None), "name", None) == "bfloat16" and hasattr(object, "view"):
            # The buffer protocol has no format for it.
            source, named = object.view("uint16"), "bfloat16"
        self._view = _View()
        self._held = False
        try:
            _get(source, ctypes.byref(self._view), _C_CONTIGUOUS | _FORMAT | (_WRITABLE if writable else 0))
        except (BufferError, ValueError, TypeError) as error:
            raise self._refusal(object, writable, what, error) from error
        self._held = True
        view = self._view
        self.object = object
        self.address = view.buf or 0
        self.bytes = view.len
        self.itemsize = view.itemsize
        self.format = (view.format or b"B").decode()
        self.shape = tuple(view.shape[n] for n in range(view.ndim))
        self.type = named or _type_name(self.format, self.itemsize)
        # Of which type the value is, where the elements are pairs of a value and an index.
        self.pair = _pair_value(self.format, self.itemsize)
        if "O" in self.format:
            self.release()
            raise errors.DataTypeError(f"{what} holds Python objects (format {self.format!r}): only plain data can be moved")

    @staticmethod
    def _refusal(object: Any, writable: bool, what: str, error: Exception) -> errors.Error:
        kind = type(object).__name__
        if isinstance(error, TypeError):
            return errors.DataTypeError(f"{what} of type {kind} has no buffer protocol: pass an array, a bytearray or a memoryview")
        if "ontig" in str(error):
            return errors.ArgumentError(f"{what} of type {kind} is not contiguous in C order: pass a contiguous copy")
        if writable and ("writ" in str(error) or "read" in str(error)):
            return errors.ArgumentError(f"{what} of type {kind} is read-only: what is received needs memory that can be written")
        return errors.DataTypeError(f"{what} of type {kind} cannot be used: {error}")

    @property
    def count(self) -> int:
        """Number of elements."""
        return self.bytes // self.itemsize if self.itemsize else 0

    def same_memory(self, other: Buffer) -> bool:
        """Whether it is the other's memory from the first byte to the last."""
        return (self.address, self.bytes) == (other.address, other.bytes) and self.bytes > 0

    def release(self) -> None:
        """Lets go of the memory."""
        if self._held:
            self._held = False
            _release(ctypes.byref(self._view))

    def __del__(self) -> None:
        self.release()


def like(buffer: Buffer, shape: tuple[int, ...]) -> Any:
    """New memory with the element type of a buffer: a numpy array where it is one, an array of structures of ctypes likewise, else a memoryview."""
    if hasattr(buffer.object, "__array_interface__"):
        import numpy

        return numpy.empty(shape, dtype=buffer.object.dtype)
    count = math.prod(shape)
    kind = getattr(buffer.object, "_type_", None)
    if isinstance(kind, type) and issubclass(kind, ctypes.Structure):
        return (kind * count)()
    memory = memoryview(bytearray(count * buffer.itemsize))
    try:
        return memory.cast(buffer.format)  # type: ignore[arg-type]
    except ValueError:
        return memory
