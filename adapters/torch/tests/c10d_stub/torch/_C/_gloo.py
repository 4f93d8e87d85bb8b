# SPDX-License-Identifier: Apache-2.0
"""The stub's gloo: all-reduces, sends and receives over the store, of what Flexcast leaves to gloo."""

from __future__ import annotations

import ctypes
import functools
import operator
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from ..futures import Future
from ._distributed_c10d import ReduceOp, Store, Work

_TYPES = ("float32", "float64", "float16", "int8", "uint8", "int32", "int64", "bool")
_OPERATORS: dict[ReduceOp, Callable[[Any, Any], Any]] = {
    ReduceOp.SUM: operator.add,
    ReduceOp.PRODUCT: operator.mul,
    ReduceOp.MIN: min,
    ReduceOp.MAX: max,
    ReduceOp.BAND: operator.and_,
    ReduceOp.BOR: operator.or_,
    ReduceOp.BXOR: operator.xor,
}


def _bytes(tensor: Any) -> bytes:
    memory = tensor.contiguous()
    return ctypes.string_at(memory.data_ptr(), memory.nbytes)


class _Done(Work):
    def __init__(self, result: Any) -> None:
        self._future = Future()
        self._future.set_result(result)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        return True

    def get_future(self) -> Any:
        return self._future

    def is_completed(self) -> bool:
        return True


class ProcessGroupGloo:
    """Every operation ends before it returns."""

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta) -> None:
        self._store, self._rank, self._size, self._timeout = store, rank, size, timeout
        self._number = 0
        self._messages: dict[Any, int] = {}

    def _take(self, key: str) -> bytes:
        self._store.wait([key], self._timeout)
        return self._store.get(key)

    def _check(self, tensor: Any, opts: Any) -> None:
        if repr(tensor.dtype).removeprefix("torch.") not in _TYPES:
            raise RuntimeError(f"Invalid scalar type {tensor.dtype}")
        if opts.reduceOp not in _OPERATORS:
            raise RuntimeError(f"Cannot use {opts.reduceOp} with Gloo")
        if opts.reduceOp in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR) and tensor.dtype.is_floating_point:
            raise RuntimeError(f"Cannot use {opts.reduceOp} with non-integral dtype")

    def reduce(self, tensors: list[Any], opts: Any) -> Work:
        self._check(tensors[0], opts)
        raise NotImplementedError("the stub's gloo has all-reduces alone")

    def reduce_scatter(self, outputs: list[Any], inputs: list[list[Any]], opts: Any) -> Work:
        return self.reduce(outputs, opts)

    def allreduce(self, tensors: list[Any], opts: Any) -> Work:
        tensor = tensors[0]
        self._check(tensor, opts)
        self._number += 1
        self._store.set(f"{self._number}/{self._rank}", _bytes(tensor))
        every = []
        for rank in range(self._size):
            text = self._take(f"{self._number}/{rank}")
            every.append([tensor.dtype._read(text, place) for place in range(0, len(text), tensor.dtype.itemsize)])
        reduced = [functools.reduce(_OPERATORS[opts.reduceOp], values) for values in zip(*every)]
        for place, value in zip(tensor._places(), reduced):
            tensor.dtype._write(tensor.untyped_storage().memory, place, value)
        return _Done(tensors)

    def _key(self, source: int, destination: int, tag: int) -> str:
        message = (source, destination, tag)
        self._messages[message] = self._messages.get(message, 0) + 1
        return f"{source} to {destination}, tag {tag}, message {self._messages[message]}"

    def send(self, tensors: list[Any], destination: int, tag: int) -> Work:
        self._store.set(self._key(self._rank, destination, tag), _bytes(tensors[0]))
        return _Done(tensors)

    def recv(self, tensors: list[Any], source: int, tag: int) -> Work:
        text, tensor = self._take(self._key(source, self._rank, tag)), tensors[0]
        for place, start in zip(tensor._places(), range(0, len(text), tensor.dtype.itemsize)):
            tensor.dtype._write(tensor.untyped_storage().memory, place, tensor.dtype._read(text, start))
        return _Done(tensors)

    def _set_sequence_number_for_group(self) -> None:
        pass
