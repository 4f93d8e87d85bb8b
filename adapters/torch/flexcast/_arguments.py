# SPDX-License-Identifier: Apache-2.0
"""Arguments of collectives: what is sent, what receives, lengths, types and places."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Final

from . import _abi, errors
from ._buffers import Buffer, like


class InPlace:
    """Type of IN_PLACE."""

    def __repr__(self) -> str:
        return "flexcast.IN_PLACE"


# As the first argument: the own contribution is in its place in `out` already.
IN_PLACE: Final = InPlace()


def pair_dtype(value: Any) -> Any:
    """numpy's type for "minloc" and "maxloc": a value of type `value` (float32, float64, int16, int32 or int64) and an int32 index, as in C."""
    import numpy

    name = numpy.dtype(value).name
    if name not in _abi.PAIR_TYPES:
        raise errors.DataTypeError(f"value type {name}: pairs have one of {', '.join(_abi.PAIR_TYPES)}")
    return numpy.dtype([("value", value), ("index", "int32")], align=True)


# An address for buffers of no bytes, where NULL is refused.
_nothing = ctypes.create_string_buffer(1)
NOWHERE = ctypes.addressof(_nothing)


def receive_into(out: Any) -> Buffer:
    if out is None or isinstance(out, InPlace):
        raise errors.ArgumentError(f"out = {out}: memory to receive into is needed here")
    return Buffer(out, writable=True, what="out")


def pair(array: Any, out: Any) -> tuple[Buffer | None, Buffer, Any]:
    """What is sent and what is received into, of one length and type; nothing is sent from elsewhere in place."""
    if array is IN_PLACE:
        return None, receive_into(out), out
    send = Buffer(array, writable=False, what="array")
    out = like(send, send.shape) if out is None else out
    receive = receive_into(out)
    length(receive, send.bytes, "as long as array")
    alike(send, receive)
    return (None if send.same_memory(receive) else send), receive, out


def reduced(send: Buffer | None, receive: Buffer) -> dict[str, Any]:
    return {"send": _abi.IN_PLACE if send is None else send.address or NOWHERE, "receive": receive.address or NOWHERE}


def typed(buffer: Buffer, op: str) -> dict[str, Any]:
    reduction = _abi.REDUCTIONS.get(op)
    if reduction is None:
        raise errors.ArgumentError(f"op = {op!r}: it must be one of {', '.join(_abi.REDUCTIONS)}")
    if op in _abi.PAIR_REDUCTIONS:
        pair_type = _abi.PAIR_TYPES.get(buffer.pair or "")
        if pair_type is None:
            known = ", ".join(_abi.PAIR_TYPES)
            raise errors.DataTypeError(
                f"element type {buffer.type or buffer.format}: {op} takes pairs of a value and an int32 index, of a value of {known}: see flexcast.pair_dtype()"
            )
        return {"data_type": pair_type, "reduction": reduction}
    data_type = _abi.DATA_TYPES.get(buffer.type or "")
    if data_type is None:
        known = ", ".join(_abi.DATA_TYPES)
        raise errors.DataTypeError(f"element type {buffer.type or buffer.format}: reductions know {known}, in the byte order of this computer")
    return {"data_type": data_type, "reduction": reduction}


def alike(send: Buffer, receive: Buffer) -> None:
    if (send.type, send.pair) != (receive.type, receive.pair):
        raise errors.DataTypeError(f"out holds {receive.type or receive.format}, and array {send.type or send.format}: they must be alike")


def length(buffer: Buffer, bytes: int, needed: str, what: str = "out") -> None:
    if buffer.bytes != bytes:
        raise errors.ArgumentError(f"{what} of {buffer.bytes} bytes: {bytes} are needed, {needed}")


def part(whole: int, parts: int, what: str, unit: str = "bytes") -> int:
    if whole % parts:
        raise errors.ArgumentError(f"{what} of {whole} {unit}: it cannot be parted among {parts} ranks alike")
    return whole // parts


def positive(number: int | None, what: str) -> int:
    """A size that the library checks; 0 stands for its own choice."""
    if number is None:
        return 0
    if not 0 < number < 1 << 32:
        raise errors.ArgumentError(f"{what} = {number}: a positive number is needed, or None")
    return number


def first_part(buffer: Buffer, parts: int, count: int) -> tuple[int, ...]:
    """Shape of a part: the first dimension is parted where that goes."""
    if buffer.shape and buffer.shape[0] % parts == 0:
        return (buffer.shape[0] // parts, *buffer.shape[1:])
    return (count,)


def one_after_another(counts: Sequence[int]) -> list[int]:
    return [sum(counts[:rank]) for rank in range(len(counts))]


def apart(places: Sequence[int], counts: Sequence[int]) -> None:
    """Blocks that are received must not overlap."""
    blocks = sorted((place, count, rank) for rank, (place, count) in enumerate(zip(places, counts)) if count)
    for (place, count, rank), (following, _, other) in zip(blocks, blocks[1:]):
        if place + count > following:
            raise errors.ArgumentError(f"displacements = {list(places)}: the blocks of ranks {rank} and {other} overlap")


def extent(counts: Sequence[int], displacements: Sequence[int] | None) -> int:
    if displacements is None:
        return sum(counts)
    return max((place + count for place, count in zip(displacements, counts) if count), default=0)
