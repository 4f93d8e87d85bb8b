# SPDX-License-Identifier: Apache-2.0
"""The collectives of a communicator, blocking and not, on anything with the buffer protocol."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from . import _abi, errors
from ._arguments import (
    IN_PLACE,
    NOWHERE,
    alike,
    apart,
    extent,
    first_part,
    length,
    one_after_another,
    pair,
    part,
    positive,
    receive_into,
    reduced,
    typed,
)
from ._buffers import Buffer, like
from .request import Request


class Collectives:
    """What Communicator has of collectives.

    The first argument is what this rank contributes, or IN_PLACE. `out` receives; without it the result is new memory: a numpy array if the
    contribution is one, else a memoryview. Counts and displacements are in elements. Methods that begin with `i` return a Request.
    """

    rank: int
    size: int

    if TYPE_CHECKING:

        def _live(self) -> ctypes.c_void_p:
            """The handle."""

    def _start(self, operation: int, keep: Sequence[Buffer | None], result: Any, **fields: Any) -> Request:
        collective = _abi.Collective(operation=operation, **fields)
        return Request(self, collective, tuple(keep), result)  # type: ignore[arg-type]

    def _awaiting(self) -> Collectives:
        """The same for operations that are waited for at once."""
        return _Awaiting(self)

    def _root(self, root: int) -> int:
        if not 0 <= root < self.size:
            raise errors.ArgumentError(f"root {root}: ranks are 0 to {self.size - 1}")
        return root

    def _list(self, numbers: Sequence[int], what: str) -> tuple[list[int], Any]:
        values = [int(number) for number in numbers]
        if len(values) != self.size or min(values, default=0) < 0:
            raise errors.ArgumentError(f"{what} = {values}: {self.size} numbers of 0 or more are needed, one for each rank")
        return values, (ctypes.c_size_t * self.size)

    def _bytes(self, numbers: Sequence[int], itemsize: int) -> Any:
        return (ctypes.c_size_t * self.size)(*(number * itemsize for number in numbers))

    def ibarrier(self) -> Request:
        """barrier() that does not block."""
        return self._start(_abi.BARRIER, (), None)

    def barrier(self) -> None:
        """Returns once all ranks have called it."""
        self._awaiting().ibarrier().wait()

    def ibroadcast(self, array: Any, root: int = 0) -> Request:
        """broadcast() that does not block."""
        buffer = Buffer(array, writable=self.rank != self._root(root), what="array")
        return self._start(_abi.BROADCAST, (buffer,), array, receive=buffer.address or NOWHERE, count=buffer.bytes, root=root)

    def broadcast(self, array: Any, root: int = 0) -> Any:
        """The root's `array` to that of all ranks, which is returned."""
        return self._awaiting().ibroadcast(array, root).result()

    def iallgather(self, array: Any, *, out: Any = None) -> Request:
        """allgather() that does not block."""
        if array is IN_PLACE:
            receive = receive_into(out)
            count = part(receive.bytes, self.size, "out")
            return self._start(_abi.ALLGATHER, (receive,), out, send=_abi.IN_PLACE, receive=receive.address or NOWHERE, count=count)
        send = Buffer(array, writable=False, what="array")
        out = like(send, (self.size, *send.shape)) if out is None else out
        receive = receive_into(out)
        length(receive, self.size * send.bytes, f"{self.size} times as long as array")
        return self._start(_abi.ALLGATHER, (send, receive), out, send=send.address or NOWHERE, receive=receive.address or NOWHERE, count=send.bytes)

    def allgather(self, array: Any, *, out: Any = None) -> Any:
        """`array` of every rank, as long on all, to all: shape (size, *array.shape). IN_PLACE: the own part is at its place in `out`."""
        return self._awaiting().iallgather(array, out=out).result()

    def iallgatherv(self, array: Any, counts: Sequence[int], *, displacements: Sequence[int] | None = None, out: Any = None) -> Request:
        """allgatherv() that does not block."""
        values, _ = self._list(counts, "counts")
        if array is IN_PLACE:
            send, receive = None, receive_into(out)
        else:
            send = Buffer(array, writable=False, what="array")
            length(send, values[self.rank] * send.itemsize, f"counts[{self.rank}] = {values[self.rank]} elements", "array")
            out = like(send, (extent(values, displacements),)) if out is None else out
            receive = receive_into(out)
        item = send.itemsize if send is not None else receive.itemsize
        fields: dict[str, Any] = {"receive_counts": self._bytes(values, item)}
        if displacements is None:
            length(receive, sum(values) * item, "the sum of counts")
        else:
            places = self._places(values, displacements, "displacements", receive, "out", item)
            fields["receive_displacements"] = self._bytes(places, item)
        sent = _abi.IN_PLACE if send is None else send.address or NOWHERE
        return self._start(_abi.ALLGATHERV, (send, receive), out, send=sent, receive=receive.address or NOWHERE, **fields)

    def allgatherv(
        self, array: Any, counts: Sequence[int] | None = None, *, displacements: Sequence[int] | None = None, out: Any = None
    ) -> Any:
        """`array` of every rank, of counts[rank] elements, to all, one after another or at displacements. Without counts the ranks tell them first."""
        if counts is None:
            if array is IN_PLACE:
                raise errors.ArgumentError("counts: they are needed with IN_PLACE")
            send = Buffer(array, writable=False, what="array")
            mine = memoryview(bytearray(8)).cast("Q")
            mine[0] = send.count
            counts = list(self.allgather(mine))
        return self._awaiting().iallgatherv(array, counts, displacements=displacements, out=out).result()

    def iallreduce(self, array: Any, op: str = "sum", *, out: Any = None) -> Request:
        """allreduce() that does not block."""
        send, receive, out = pair(array, out)
        buffer = receive if send is None else send
        return self._start(_abi.ALLREDUCE, (send, receive), out, **reduced(send, receive), **typed(buffer, op), count=buffer.count)

    def allreduce(self, array: Any, op: str = "sum", *, out: Any = None) -> Any:
        """The reduction of all ranks' `array`, element by element, to all.

        "minloc" and "maxloc" take pairs of a value and an index (pair_dtype()): the pair of the least or largest value, of those with the least index.
        """
        return self._awaiting().iallreduce(array, op, out=out).result()

    def isparse_allreduce(
        self, array: Any, op: str = "sum", *, out: Any = None, block_bytes: int | None = None, blocks_per_message: int | None = None
    ) -> Request:
        """sparse_allreduce() that does not block."""
        sizes = {"block_bytes": positive(block_bytes, "block_bytes"), "blocks_per_message": positive(blocks_per_message, "blocks_per_message")}
        send, receive, out = pair(array, out)
        buffer = receive if send is None else send
        fields = {**reduced(send, receive), **typed(buffer, op), **sizes}
        return self._start(_abi.SPARSE_ALLREDUCE, (send, receive), out, **fields, count=buffer.count)

    def sparse_allreduce(
        self, array: Any, op: str = "sum", *, out: Any = None, block_bytes: int | None = None, blocks_per_message: int | None = None
    ) -> Any:
        """allreduce() for arrays of which much is zero: blocks of zeros are neither sent nor summed.

        `op` is sum, min, max, bit_or, bit_xor, logical_or or logical_xor; for min and max a block of zeros is one that the rank does not have. -0.0 is not
        zero; but short or full arrays may be summed whole where that is expected to be faster. Sizes are alike on all ranks: bytes of a block, 256 to 16384 and a multiple of 4 (1024 without), and most blocks of a message, 1 to 32 (32).
        """
        return self._awaiting().isparse_allreduce(array, op, out=out, block_bytes=block_bytes, blocks_per_message=blocks_per_message).result()

    def ireduce(self, array: Any, op: str = "sum", root: int = 0, *, out: Any = None) -> Request:
        """reduce() that does not block."""
        if self.rank == self._root(root):
            send, receive, out = pair(array, out)
            buffer = receive if send is None else send
            fields = reduced(send, receive)
        else:
            buffer = send = Buffer(array, writable=False, what="array")
            receive, out, fields = None, None, {"send": send.address or NOWHERE}
        return self._start(_abi.REDUCE, (send, receive), out, **fields, **typed(buffer, op), count=buffer.count, root=root)

    def reduce(self, array: Any, op: str = "sum", root: int = 0, *, out: Any = None) -> Any:
        """The same to the root alone; None elsewhere."""
        return self._awaiting().ireduce(array, op, root, out=out).result()

    def ireduce_scatter(self, array: Any, op: str = "sum", *, counts: Sequence[int] | None = None, out: Any = None) -> Request:
        """reduce_scatter() that does not block."""
        send = None if array is IN_PLACE else Buffer(array, writable=False, what="array")
        whole = receive_into(out) if send is None else send
        if counts is None:
            count = part(whole.count, self.size, "array", "elements")
            fields: dict[str, Any] = {"count": count}
            operation, shape = _abi.REDUCE_SCATTER_BLOCK, first_part(whole, self.size, count)
        else:
            values, numbers = self._list(counts, "counts")
            if sum(values) != whole.count:
                raise errors.ArgumentError(f"array of {whole.count} elements: counts add up to {sum(values)}")
            count = values[self.rank]
            fields = {"receive_counts": numbers(*values)}
            operation, shape = _abi.REDUCE_SCATTER, (count,)
        if send is None:
            receive = whole
        else:
            out = like(send, shape) if out is None else out
            receive = receive_into(out)
            length(receive, count * send.itemsize, f"{count} elements")
            alike(send, receive)
        return self._start(operation, (send, receive), out, **reduced(send, receive), **typed(whole, op), **fields)

    def reduce_scatter(self, array: Any, op: str = "sum", *, counts: Sequence[int] | None = None, out: Any = None) -> Any:
        """The reduction of all ranks' `array`, of which each rank gets its part: as much as the others, or counts[rank] elements."""
        return self._awaiting().ireduce_scatter(array, op, counts=counts, out=out).result()

    def ialltoall(self, array: Any, *, out: Any = None) -> Request:
        """alltoall() that does not block."""
        send, receive, out = pair(array, out)
        count = part(receive.bytes, self.size, "array")
        return self._start(_abi.ALLTOALL, (send, receive), out, **reduced(send, receive), count=count)

    def alltoall(self, array: Any, *, out: Any = None) -> Any:
        """The r-th part of `array` to rank r, where it becomes the part of this rank."""
        return self._awaiting().ialltoall(array, out=out).result()

    def ialltoallv(
        self,
        array: Any,
        send_counts: Sequence[int] | None,
        receive_counts: Sequence[int],
        *,
        send_displacements: Sequence[int] | None = None,
        receive_displacements: Sequence[int] | None = None,
        out: Any = None,
    ) -> Request:
        """alltoallv() that does not block."""
        receiving, _ = self._list(receive_counts, "receive_counts")
        fields: dict[str, Any] = {}
        if array is IN_PLACE:
            send, receive = None, receive_into(out)
            item = receive.itemsize
            sent = _abi.IN_PLACE
        else:
            send = Buffer(array, writable=False, what="array")
            item = send.itemsize
            sending, _ = self._list([] if send_counts is None else send_counts, "send_counts")
            places = self._places(sending, send_displacements, "send_displacements", send, "array", item)
            fields = {"send_counts": self._bytes(sending, item), "send_displacements": self._bytes(places, item)}
            out = like(send, (extent(receiving, receive_displacements),)) if out is None else out
            receive = receive_into(out)
            sent = send.address or NOWHERE
        places = self._places(receiving, receive_displacements, "receive_displacements", receive, "out", item)
        fields["receive_counts"] = self._bytes(receiving, item)
        fields["receive_displacements"] = self._bytes(places, item)
        return self._start(_abi.ALLTOALLV, (send, receive), out, send=sent, receive=receive.address or NOWHERE, **fields)

    def _places(self, counts: list[int], given: Sequence[int] | None, name: str, buffer: Buffer, what: str, item: int) -> list[int]:
        """Displacements, checked against the memory."""
        places = one_after_another(counts) if given is None else self._list(given, name)[0]
        end = max((place + count for place, count in zip(places, counts) if count), default=0)
        if end * item > buffer.bytes:
            raise errors.ArgumentError(f"{what} of {buffer.bytes} bytes: its blocks reach to byte {end * item}")
        return places

    def alltoallv(
        self,
        array: Any,
        send_counts: Sequence[int] | None,
        receive_counts: Sequence[int],
        *,
        send_displacements: Sequence[int] | None = None,
        receive_displacements: Sequence[int] | None = None,
        out: Any = None,
    ) -> Any:
        """send_counts[r] elements of `array` to rank r, and receive_counts[r] from it."""
        return self._awaiting().ialltoallv(
            array, send_counts, receive_counts, send_displacements=send_displacements, receive_displacements=receive_displacements, out=out
        ).result()

    def igather(self, array: Any, root: int = 0, *, out: Any = None) -> Request:
        """gather() that does not block."""
        if self.rank != self._root(root):
            send = Buffer(array, writable=False, what="array")
            return self._start(_abi.GATHER, (send,), None, send=send.address or NOWHERE, count=send.bytes, root=root)
        if array is IN_PLACE:
            receive = receive_into(out)
            count = part(receive.bytes, self.size, "out")
            return self._start(_abi.GATHER, (receive,), out, send=_abi.IN_PLACE, receive=receive.address or NOWHERE, count=count, root=root)
        send = Buffer(array, writable=False, what="array")
        out = like(send, (self.size, *send.shape)) if out is None else out
        receive = receive_into(out)
        length(receive, self.size * send.bytes, f"{self.size} times as long as array")
        fields = {"send": send.address or NOWHERE, "receive": receive.address or NOWHERE}
        return self._start(_abi.GATHER, (send, receive), out, **fields, count=send.bytes, root=root)

    def gather(self, array: Any, root: int = 0, *, out: Any = None) -> Any:
        """`array` of every rank, as long on all, to the root: shape (size, *array.shape). None elsewhere."""
        return self._awaiting().igather(array, root, out=out).result()

    def igatherv(
        self,
        array: Any,
        counts: Sequence[int] | None = None,
        root: int = 0,
        *,
        displacements: Sequence[int] | None = None,
        out: Any = None,
    ) -> Request:
        """gatherv() that does not block."""
        if self.rank != self._root(root):
            send = Buffer(array, writable=False, what="array")
            return self._start(_abi.GATHERV, (send,), None, send=send.address or NOWHERE, count=send.bytes, root=root)
        values, _ = self._list([] if counts is None else counts, "counts")
        mine = values[root]
        if array is IN_PLACE:
            sent, receive = None, receive_into(out)
            item = receive.itemsize
        else:
            sent = Buffer(array, writable=False, what="array")
            item = sent.itemsize
            length(sent, mine * item, f"counts[{root}] = {mine} elements", "array")
            out = like(sent, (extent(values, displacements),)) if out is None else out
            receive = receive_into(out)
        places = self._places(values, displacements, "displacements", receive, "out", item)
        apart(places, values)
        fields = {"send": _abi.IN_PLACE if sent is None else sent.address or NOWHERE, "receive": receive.address or NOWHERE}
        lists = {"receive_counts": self._bytes(values, item), "receive_displacements": self._bytes(places, item)}
        return self._start(_abi.GATHERV, (sent, receive), out, **fields, **lists, count=mine * item, root=root)

    def gatherv(
        self,
        array: Any,
        counts: Sequence[int] | None = None,
        root: int = 0,
        *,
        displacements: Sequence[int] | None = None,
        out: Any = None,
    ) -> Any:
        """`array` of every rank, of counts[rank] elements, to the root, one after another or at displacements. None elsewhere.

        counts, displacements and `out` are the root's. IN_PLACE on the root: its part is at its place in `out`.
        """
        return self._awaiting().igatherv(array, counts, root, displacements=displacements, out=out).result()

    def iscatterv(
        self,
        array: Any = None,
        counts: Sequence[int] | None = None,
        root: int = 0,
        *,
        displacements: Sequence[int] | None = None,
        out: Any = None,
    ) -> Request:
        """scatterv() that does not block."""
        if self.rank != self._root(root):
            receive = receive_into(out)
            return self._start(_abi.SCATTERV, (receive,), out, receive=receive.address or NOWHERE, count=receive.bytes, root=root)
        send = Buffer(array, writable=False, what="array")
        values, _ = self._list([] if counts is None else counts, "counts")
        item, mine = send.itemsize, values[root]
        places = self._places(values, displacements, "displacements", send, "array", item)
        lists = {"send_counts": self._bytes(values, item), "send_displacements": self._bytes(places, item)}
        fields: dict[str, Any] = {"send": send.address or NOWHERE, **lists, "count": mine * item, "root": root}
        if out is IN_PLACE:
            return self._start(_abi.SCATTERV, (send,), None, receive=_abi.IN_PLACE, **fields)
        out = like(send, (mine,)) if out is None else out
        receive = receive_into(out)
        length(receive, mine * item, f"counts[{root}] = {mine} elements")
        return self._start(_abi.SCATTERV, (send, receive), out, receive=receive.address or NOWHERE, **fields)

    def scatterv(
        self,
        array: Any = None,
        counts: Sequence[int] | None = None,
        root: int = 0,
        *,
        displacements: Sequence[int] | None = None,
        out: Any = None,
    ) -> Any:
        """counts[r] elements of the root's `array`, one block after another or at displacements, to rank r.

        array, counts and displacements are the root's. Elsewhere `out` is needed, as long as the own block; on the root it may be IN_PLACE.
        """
        return self._awaiting().iscatterv(array, counts, root, displacements=displacements, out=out).result()

    def iscatter(self, array: Any = None, root: int = 0, *, out: Any = None) -> Request:
        """scatter() that does not block."""
        if self.rank != self._root(root):
            receive = receive_into(out)
            return self._start(_abi.SCATTER, (receive,), out, receive=receive.address or NOWHERE, count=receive.bytes, root=root)
        send = Buffer(array, writable=False, what="array")
        count = part(send.bytes, self.size, "array")
        if out is IN_PLACE:
            fields: dict[str, Any] = {"send": send.address or NOWHERE, "receive": _abi.IN_PLACE}
            return self._start(_abi.SCATTER, (send,), None, **fields, count=count, root=root)
        out = like(send, first_part(send, self.size, count // send.itemsize if send.itemsize else 0)) if out is None else out
        receive = receive_into(out)
        length(receive, count, f"a {self.size}-th of array")
        fields = {"send": send.address or NOWHERE, "receive": receive.address or NOWHERE}
        return self._start(_abi.SCATTER, (send, receive), out, **fields, count=count, root=root)

    def scatter(self, array: Any = None, root: int = 0, *, out: Any = None) -> Any:
        """The r-th part of the root's `array` to rank r. Elsewhere `out` is needed, and `array` is not used; on the root `out` may be IN_PLACE."""
        return self._awaiting().iscatter(array, root, out=out).result()


class _Awaiting(Collectives):
    """Collectives whose caller waits at once: the communicator's progress thread is not woken for them."""

    def __init__(self, communicator: Collectives) -> None:
        self._communicator = communicator
        self.rank, self.size = communicator.rank, communicator.size

    def _start(self, operation: int, keep: Sequence[Buffer | None], result: Any, **fields: Any) -> Request:
        return self._communicator._start(operation, keep, result, flags=_abi.AWAITED, **fields)
