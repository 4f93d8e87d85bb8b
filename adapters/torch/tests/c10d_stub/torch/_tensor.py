# SPDX-License-Identifier: Apache-2.0
"""Tensors of the stub: memory with a type, a shape, strides and a device."""

from __future__ import annotations

import ctypes
import itertools
import math
import struct
from collections.abc import Iterator, Sequence
from typing import Any

_bool = bool


class dtype:
    """An element type, with how it lies in memory."""

    def __init__(self, name: str, size: int, format: str, kind: str) -> None:
        self._name, self.itemsize, self._format, self._kind = name, size, "<" + format, kind
        self.is_floating_point = kind == "float"
        self.is_complex = kind == "complex"

    def __repr__(self) -> str:
        return f"torch.{self._name}"

    def _read(self, memory: Any, place: int) -> Any:
        if self._name == "bfloat16":
            return struct.unpack("<f", b"\0\0" + bytes(memory[place : place + 2]))[0]
        found = struct.unpack_from(self._format, memory, place)
        return complex(*found) if self.is_complex else found[0]

    def _write(self, memory: Any, place: int, value: Any) -> None:
        if self._name == "bfloat16":
            bits = struct.unpack("<I", struct.pack("<f", value))[0]
            # To the nearest, and of two to the even one.
            memory[place : place + 2] = struct.pack("<H", (bits + 0x7FFF + (bits >> 16 & 1)) >> 16)
        elif self.is_complex:
            struct.pack_into(self._format, memory, place, complex(value).real, complex(value).imag)
        elif self._kind == "int":
            # Integers wrap.
            whole = int(value) & (1 << 8 * self.itemsize) - 1
            memory[place : place + self.itemsize] = whole.to_bytes(self.itemsize, "little")
        else:
            struct.pack_into(self._format, memory, place, value)


int8 = dtype("int8", 1, "b", "int")
uint8 = dtype("uint8", 1, "B", "int")
int16 = dtype("int16", 2, "h", "int")
uint16 = dtype("uint16", 2, "H", "int")
int32 = dtype("int32", 4, "i", "int")
uint32 = dtype("uint32", 4, "I", "int")
int64 = dtype("int64", 8, "q", "int")
uint64 = dtype("uint64", 8, "Q", "int")
float16 = dtype("float16", 2, "e", "float")
bfloat16 = dtype("bfloat16", 2, "H", "float")
float32 = dtype("float32", 4, "f", "float")
float64 = dtype("float64", 8, "d", "float")
complex64 = dtype("complex64", 8, "ff", "complex")
complex128 = dtype("complex128", 16, "dd", "complex")
bool = dtype("bool", 1, "?", "bool")


class _Layout:
    def __repr__(self) -> str:
        return "torch.strided"


strided = _Layout()


class device:
    """Where memory is. That of "meta" is nowhere."""

    def __init__(self, type: str | device) -> None:
        self.type: str = type.type if isinstance(type, device) else type

    def __eq__(self, other: object) -> _bool:
        return isinstance(other, device) and self.type == other.type

    def __hash__(self) -> int:
        return hash(self.type)

    def __str__(self) -> str:
        return self.type


class UntypedStorage:
    """The memory of tensors."""

    def __init__(self, size: int, where: device) -> None:
        self._size = size
        # No memory has an address that is not 0 where there are no bytes, as in torch.
        self.memory: Any = (ctypes.c_char * size)() if size and where.type == "cpu" else None

    def data_ptr(self) -> int:
        return 0 if self.memory is None else ctypes.addressof(self.memory)

    def nbytes(self) -> int:
        return self._size


def _contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(max(1, length) for length in shape[n + 1 :]) for n in range(len(shape)))


class Tensor:
    """A view of a storage."""

    layout = strided

    def __init__(self, storage: UntypedStorage, offset: int, shape: Sequence[int], strides: Sequence[int], type: dtype, where: device) -> None:
        self._storage, self._offset = storage, offset
        self.shape, self._strides = tuple(shape), tuple(strides)
        self.dtype, self.device = type, where

    @property
    def nbytes(self) -> int:
        return self.numel() * self.dtype.itemsize

    def numel(self) -> int:
        return math.prod(self.shape)

    def dim(self) -> int:
        return len(self.shape)

    def size(self, dimension: int) -> int:
        return self.shape[dimension]

    def stride(self) -> tuple[int, ...]:
        return self._strides

    def is_complex(self) -> _bool:
        return self.dtype.is_complex

    def untyped_storage(self) -> UntypedStorage:
        return self._storage

    def data_ptr(self) -> int:
        base = self._storage.data_ptr()
        return base + self._offset * self.dtype.itemsize if base else 0

    def is_contiguous(self) -> _bool:
        expected = 1
        for length, stride in zip(reversed(self.shape), reversed(self._strides)):
            if length != 1 and stride != expected:
                return self.numel() == 0
            expected *= length
        return True

    def _places(self) -> Iterator[int]:
        """Of all elements, in bytes, in the order of their indices."""
        for index in itertools.product(*(range(length) for length in self.shape)):
            yield (self._offset + sum(n * stride for n, stride in zip(index, self._strides))) * self.dtype.itemsize

    def _view(self, shape: Sequence[int], strides: Sequence[int], offset: int) -> Tensor:
        return Tensor(self._storage, offset, shape, strides, self.dtype, self.device)

    def detach(self) -> Tensor:
        return self._view(self.shape, self._strides, self._offset)

    def as_strided(self, shape: Sequence[int], strides: Sequence[int]) -> Tensor:
        return self._view(shape, strides, self._offset)

    def view(self, shape: Sequence[int]) -> Tensor:
        if math.prod(shape) != self.numel():
            raise RuntimeError(f"shape '{list(shape)}' is invalid for input of size {self.numel()}")
        if tuple(shape) != self.shape and not self.is_contiguous():
            raise RuntimeError("view size is not compatible with input tensor's size and stride")
        return self._view(shape, self._strides if tuple(shape) == self.shape else _contiguous_strides(shape), self._offset)

    def reshape(self, *shape: int) -> Tensor:
        known = math.prod(length for length in shape if length >= 0)
        return self.contiguous().view([length if length >= 0 else self.numel() // max(1, known) for length in shape])

    def t(self) -> Tensor:
        return self._view(self.shape[::-1], self._strides[::-1], self._offset)

    def __getitem__(self, part: slice) -> Tensor:
        """A part along the first dimension."""
        start, stop, step = part.indices(self.shape[0])
        shape = (len(range(start, stop, step)), *self.shape[1:])
        return self._view(shape, (self._strides[0] * step, *self._strides[1:]), self._offset + start * self._strides[0])

    def contiguous(self) -> Tensor:
        return self if self.is_contiguous() else empty(self.shape, dtype=self.dtype, device=self.device).copy_(self)

    def clone(self) -> Tensor:
        return empty_like(self).copy_(self)

    def copy_(self, source: Tensor) -> Tensor:
        if source.shape != self.shape:
            raise RuntimeError(f"a tensor of shape {source.shape} to one of shape {self.shape}: the stub has no broadcasting")
        if any(stride == 0 and length > 1 for length, stride in zip(self.shape, self._strides)):
            raise RuntimeError("unsupported operation: more than one element of the written-to tensor refers to a single memory location")
        if self._storage.memory is None or source._storage.memory is None:
            return self
        if self.dtype is source.dtype and self.is_contiguous() and source.is_contiguous():
            ctypes.memmove(self.data_ptr(), source.data_ptr(), self.nbytes)
            return self
        values = [source.dtype._read(source._storage.memory, place) for place in source._places()]
        for place, value in zip(self._places(), values):
            self.dtype._write(self._storage.memory, place, value)
        return self

    def div_(self, divisor: int) -> Tensor:
        if not (self.dtype.is_floating_point or self.dtype.is_complex):
            raise RuntimeError(f"result type Float can't be cast to the desired output type {self.dtype}")
        for place in self._places():
            self.dtype._write(self._storage.memory, place, self.dtype._read(self._storage.memory, place) / divisor)
        return self

    def tolist(self) -> list[Any]:
        values = iter([self.dtype._read(self._storage.memory, place) for place in self._places()])

        def nested(shape: Sequence[int]) -> Any:
            return [nested(shape[1:]) for _ in range(shape[0])] if shape else next(values)

        found: list[Any] = nested(self.shape)
        return found

    def __repr__(self) -> str:
        return f"tensor({self.tolist() if self.device.type == 'cpu' else '...'}, dtype={self.dtype}, device='{self.device}')"


def _device(where: str | device) -> device:
    return where if isinstance(where, device) else device(where)


def empty(shape: int | Sequence[int], *, dtype: dtype = float32, device: str | device = "cpu") -> Tensor:
    lengths = (shape,) if isinstance(shape, int) else tuple(shape)
    where = _device(device)
    storage = UntypedStorage(math.prod(lengths) * dtype.itemsize, where)
    if storage.memory is not None:
        # What torch leaves there is anything: nothing may rely on zeros.
        ctypes.memset(storage.memory, 0x01 if dtype is bool else 0xA5, storage.nbytes())
    return Tensor(storage, 0, lengths, _contiguous_strides(lengths), dtype, where)


def zeros(shape: int | Sequence[int], *, dtype: dtype = float32, device: str | device = "cpu") -> Tensor:
    made = empty(shape, dtype=dtype, device=device)
    if made._storage.memory is not None:
        ctypes.memset(made._storage.memory, 0, made.nbytes)
    return made


def empty_like(other: Tensor) -> Tensor:
    """With the order of strides of the other one, if that has no gaps."""
    made = empty(other.shape, dtype=other.dtype, device=other.device)
    strides, expected = other.stride(), 1
    for stride, length in sorted(zip(strides, other.shape)):
        if length != 1 and stride != expected:
            return made
        expected *= length
    return made.as_strided(other.shape, strides)


def tensor(values: Sequence[Any], *, dtype: dtype = float32, device: str | device = "cpu") -> Tensor:
    shape, first = [], values
    while isinstance(first, (list, tuple)):
        shape.append(len(first))
        first = first[0] if first else 0
    made = empty(shape, dtype=dtype, device=device)

    def flat(part: Any) -> Iterator[Any]:
        if isinstance(part, (list, tuple)):
            for one in part:
                yield from flat(one)
        else:
            yield part

    if made._storage.memory is not None:
        for place, value in zip(made._places(), flat(values)):
            dtype._write(made._storage.memory, place, value)
    return made


def cat(parts: Sequence[Tensor]) -> Tensor:
    """Along the first dimension, of parts of one type."""
    whole = empty((sum(part.shape[0] for part in parts), *parts[0].shape[1:]), dtype=parts[0].dtype)
    place = 0
    for part in parts:
        whole[place : place + part.shape[0]].copy_(part)
        place += part.shape[0]
    return whole


def split(whole: Tensor, lengths: Sequence[int]) -> tuple[Tensor, ...]:
    if sum(lengths) != whole.shape[0]:
        raise RuntimeError(f"split_with_sizes expects split_sizes to sum exactly to {whole.shape[0]}, and got {list(lengths)}")
    starts = [sum(lengths[:n]) for n in range(len(lengths))]
    return tuple(whole[start : start + length] for start, length in zip(starts, lengths))
