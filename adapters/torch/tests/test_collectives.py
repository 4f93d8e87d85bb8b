# SPDX-License-Identifier: Apache-2.0
"""Collectives on arrays, among processes over the datapath `udp` on the loopback interface."""

from __future__ import annotations

import array
import asyncio
import ctypes
import mmap
import os
import select
import signal
import sys
import tempfile
import threading
import time
import unittest
from typing import Any

import flexcast
import ranks

try:
    import numpy
except ImportError:
    numpy = None  # type: ignore[assignment]

SIZES = (0, 1, 7, 127, 4099)
LARGE = 1 << 20


class Pair(ctypes.Structure):
    """`struct { double value; int index; }`."""

    _fields_ = [("value", ctypes.c_double), ("index", ctypes.c_int)]


class Checks:
    """Counts what was compared."""

    def __init__(self) -> None:
        self.count = 0

    def same(self, found: Any, expected: Any, what: object = "") -> None:
        self.count += 1
        wrong = bool((numpy.asarray(found) != numpy.asarray(expected)).any()) if numpy is not None else list(found) != list(expected)
        if wrong or (numpy is not None and numpy.shape(found) != numpy.shape(expected)):
            raise AssertionError(f"{what}: {found!r}, not {expected!r}")

    def true(self, found: object, what: object = "") -> None:
        self.count += 1
        if not found:
            raise AssertionError(str(what))

    def refused(self, kind: type[flexcast.Error] | tuple[type[flexcast.Error], ...], said: str, call: Any, *arguments: Any, **named: Any) -> None:
        self.count += 1
        try:
            call(*arguments, **named)
        except kind as error:
            if said not in str(error):
                raise AssertionError(f"{error!r} does not say {said!r}") from error
        else:
            raise AssertionError(f"{call} took {arguments} {named}")


def every_collective(rank: int, size: int) -> int:
    """Results against numpy, with new memory, `out` and in place."""
    checks = Checks()
    with flexcast.Communicator.from_environment() as comm:
        checks.same((comm.rank, comm.size), (rank, size))
        for count in (*SIZES, LARGE // 4):
            of = [numpy.arange(count, dtype=numpy.int32) * 3 + 1000 * other for other in range(size)]
            mine, stacked = of[rank], numpy.stack(of)
            for root in range(min(size, 2)):
                checks.same(comm.broadcast(mine.copy(), root), of[root], ("broadcast", count))
                expected = stacked if rank == root else None
                gathered = comm.gather(mine, root)
                checks.true(gathered is None) if expected is None else checks.same(gathered, expected, ("gather", count))
                total = comm.reduce(mine, root=root)
                checks.true(total is None) if expected is None else checks.same(total, stacked.sum(0), ("reduce", count))
                source = numpy.concatenate(of) if rank == root else None
                checks.same(comm.scatter(source, root, out=numpy.empty(count, numpy.int32)), of[rank], ("scatter", count))
            out = numpy.empty((size, count), numpy.int32)
            checks.same(comm.allgather(mine), stacked, ("allgather", count))
            checks.true(comm.allgather(mine, out=out) is out)
            checks.same(out, stacked)
            out[...] = 0
            out[rank] = mine
            checks.same(comm.allgather(flexcast.IN_PLACE, out=out), stacked, ("allgather in place", count))
            checks.same(comm.allreduce(mine), stacked.sum(0), ("allreduce", count))
            checks.same(comm.allreduce(mine, "max"), stacked.max(0))
            own = mine.copy()
            checks.same(comm.allreduce(own, out=own), stacked.sum(0), ("allreduce in place", count))
            own = mine.copy()
            checks.same(comm.allreduce(flexcast.IN_PLACE, "bit_xor", out=own), numpy.bitwise_xor.reduce(stacked))
            kept = numpy.where(numpy.arange(count) // 700 % 2 == rank % 2, mine, 0)
            expected = sum(numpy.where(numpy.arange(count) // 700 % 2 == other % 2, of[other], 0) for other in range(size))
            checks.same(comm.sparse_allreduce(kept), expected, ("sparse_allreduce", count))
            wide = numpy.concatenate(of) + rank
            parts = sum(numpy.concatenate(of) + other for other in range(size)).reshape(size, count)
            checks.same(comm.reduce_scatter(wide), parts[rank], ("reduce_scatter", count))
            swapped = numpy.concatenate([of[rank] + other for other in range(size)])
            checks.same(comm.alltoall(wide), swapped, ("alltoall", count))
            own = wide.copy()
            checks.same(comm.alltoall(flexcast.IN_PLACE, out=own), swapped, ("alltoall in place", count))
        counts = [3 * other + 1 for other in range(size)]
        blocks = [numpy.full(number, other, numpy.float64) for other, number in enumerate(counts)]
        for given in (counts, None):
            checks.same(comm.allgatherv(blocks[rank], given), numpy.concatenate(blocks), "allgatherv")
        places = [sum(counts[:other]) + other for other in range(size)]
        spaced = comm.allgatherv(blocks[rank], counts, displacements=places, out=numpy.full(places[-1] + counts[-1], -1.0))
        checks.same(spaced[places[rank] : places[rank] + counts[rank]], blocks[rank])
        checks.true((spaced == -1).sum() == size - 1)
        whole = numpy.arange(sum(counts), dtype=numpy.float32) * (rank + 1)
        expected = sum(numpy.arange(sum(counts), dtype=numpy.float32) * (other + 1) for other in range(size))
        first = sum(counts[:rank])
        checks.same(comm.reduce_scatter(whole, counts=counts), expected[first : first + counts[rank]], "reduce_scatter counts")
        sending = [rank + other for other in range(size)]
        row = numpy.concatenate([numpy.full(number, 100 * rank + other) for other, number in enumerate(sending)])
        expected = numpy.concatenate([numpy.full(rank + other, 100 * other + rank) for other in range(size)])
        checks.same(comm.alltoallv(row, sending, sending), expected, "alltoallv")
        for root in (0, size - 1):
            last = comm.gatherv(blocks[rank], counts if rank == root else None, root)
            checks.true(last is None) if rank != root else checks.same(last, numpy.concatenate(blocks), "gatherv")
            out = numpy.full(places[-1] + counts[-1], -1.0) if rank == root else None
            comm.gatherv(blocks[rank], counts, root, displacements=places, out=out)
            if out is not None:
                checks.true(all((out[place : place + number] == block).all() for place, number, block in zip(places, counts, blocks)), "gatherv at places")
                checks.true((out == -1).sum() == size - 1, "what is between blocks stays")
                own = out.copy()
                own[places[root] - 1 : places[root]] = -2.0
                comm.gatherv(flexcast.IN_PLACE, counts, root, displacements=places, out=own)
                checks.same(own[places[root] : places[root] + counts[root]], blocks[root], "gatherv in place")
            else:
                comm.gatherv(blocks[rank], root=root)
            part = numpy.empty(counts[rank])
            checks.true(comm.scatterv(numpy.concatenate(blocks) if rank == root else None, counts, root, out=part) is part)
            checks.same(part, blocks[rank], "scatterv")
            if rank == root:
                part = comm.scatterv(spaced, counts, root, displacements=places)
                checks.true(comm.scatterv(numpy.concatenate(blocks), counts, root, out=flexcast.IN_PLACE) is None)
            else:
                part = comm.scatterv(root=root, out=numpy.empty(counts[rank]))
                comm.scatterv(root=root, out=numpy.empty(counts[rank]))
            checks.same(part, blocks[rank], "scatterv from places")
        two = numpy.arange(2 * size * 5.0).reshape(2 * size, 5)
        checks.same(comm.reduce_scatter(two), two[2 * rank : 2 * rank + 2] * size)
        comm.barrier()
    return checks.count


def every_type(rank: int, size: int) -> int:
    """Reductions of all element types, sums of small whole numbers, which are exact."""
    checks = Checks()
    with flexcast.Communicator.from_environment() as comm:
        names = "int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64 complex64 complex128".split()
        for name in names:
            mine = (numpy.arange(11) % 5 + rank).astype(name)
            expected = sum((numpy.arange(11) % 5 + other) for other in range(size)).astype(name)
            checks.same(comm.allreduce(mine), expected, name)
        truth = numpy.arange(size) == rank
        checks.same(comm.allreduce(truth, "logical_or"), numpy.ones(size, bool))
        checks.same(comm.allreduce(truth, "logical_and"), numpy.zeros(size, bool) if size > 1 else truth)
        for name in ("float32", "float64", "int16", "int32", "int64"):
            of = [[((3 * n + other) % 4, 100 * other + n) for n in range(9)] for other in range(size)]
            mine = numpy.array(of[rank], flexcast.pair_dtype(name))
            for op, order in (("minloc", lambda pair: pair), ("maxloc", lambda pair: (-pair[0], pair[1]))):
                expected = numpy.array([min(column, key=order) for column in zip(*of)], mine.dtype)
                checks.same(comm.allreduce(mine, op), expected, (name, op))
                found = comm.reduce(mine, op, root=size - 1)
                checks.true(found is None) if rank < size - 1 else checks.same(found, expected, (name, op, "reduce"))
        checks.refused(flexcast.DataTypeError, "pairs", comm.allreduce, numpy.zeros(3), "minloc")
        checks.refused(flexcast.DataTypeError, "pairs", comm.allreduce, numpy.zeros(3, [("value", "f8"), ("index", "i4")]), "maxloc")
        checks.refused(flexcast.DataTypeError, "element type", comm.allreduce, numpy.zeros(3, flexcast.pair_dtype("float32")))
        checks.refused(flexcast.DataTypeError, "uint8", flexcast.pair_dtype, "uint8")
        checks.refused(flexcast.DataTypeError, "alike", comm.allreduce, numpy.zeros(2, flexcast.pair_dtype("f4")), "minloc", out=numpy.zeros(2, "c8"))
        checks.refused(flexcast.DataTypeError, "element type", comm.allreduce, numpy.zeros(3, ">i4"))
        checks.refused(flexcast.ArgumentError, "op = 'mean'", comm.allreduce, numpy.zeros(3), "mean")
        checks.refused(flexcast.NotSupported, "not defined", comm.allreduce, numpy.zeros(3), "bit_and")
        checks.refused(flexcast.ArgumentError, "contiguous", comm.allreduce, numpy.zeros((3, 4)).T)
        checks.refused(flexcast.ArgumentError, "Python objects", comm.broadcast, numpy.array([{}]))
        checks.refused(flexcast.ArgumentError, "out of 16 bytes", comm.allreduce, numpy.zeros(3), out=numpy.zeros(2))
        checks.refused(flexcast.DataTypeError, "alike", comm.allreduce, numpy.zeros(3), out=numpy.zeros(3, numpy.int64))
        checks.refused(flexcast.ArgumentError, f"root {size}", comm.broadcast, numpy.zeros(3), size)
        checks.refused(flexcast.ArgumentError, "alike", comm.alltoall, numpy.zeros(size * 2 + 1, numpy.uint8))
        checks.refused(flexcast.ArgumentError, "counts", comm.allgatherv, numpy.zeros(3), [1])
        read_only = numpy.zeros(3)
        read_only.flags.writeable = False
        checks.same(comm.allreduce(read_only), read_only)
        checks.refused(flexcast.ArgumentError, "read-only", comm.allreduce, numpy.zeros(3), out=read_only)
        # What was refused was refused before anything was sent: the communicator goes on.
        checks.same(comm.allreduce(numpy.ones(3)), numpy.full(3, float(size)))
        dates = numpy.array(["2020-01-01"], "datetime64[D]").view("int64")
        checks.same(comm.broadcast(dates), dates)
    return checks.count


def without_numpy(rank: int, size: int) -> int:
    """Other objects with the buffer protocol."""
    checks = Checks()
    with flexcast.Communicator.from_environment() as comm:
        memory = bytearray([rank] * 5)
        comm.broadcast(memory, size - 1)
        checks.true(memory == bytes([size - 1] * 5), memory)
        checks.true(bytes(comm.allgather(b"%d" % rank)) == b"".join(b"%d" % other for other in range(size)))
        numbers = array.array("q", [rank, 2 * rank])
        whole = sum(range(size))
        checks.true(list(comm.allreduce(numbers)) == [whole, 2 * whole])
        checks.true(comm.allreduce(numbers, out=numbers) is numbers)
        checks.true(list(numbers) == [whole, 2 * whole])
        checks.true(list(comm.allreduce(memoryview(array.array("d", [1.5])))) == [1.5 * size])
        counts = [other + 1 for other in range(size)]
        whole_bytes = b"".join(bytes([other]) * (other + 1) for other in range(size))
        found = comm.gatherv(bytes([rank]) * (rank + 1), counts if rank == 1 else None, 1)
        checks.true(found is None if rank != 1 else bytes(found) == whole_bytes, "gatherv")
        places = [sum(counts[:other]) + other for other in range(size)]
        spaced = array.array("h", [-1] * (places[-1] + counts[-1]))
        comm.gatherv(array.array("h", [rank] * (rank + 1)), counts, 0, displacements=places, out=spaced if rank == 0 else None)
        if rank == 0:
            expected = [value for other in range(size) for value in [other] * (other + 1) + [-1]][:-1]
            checks.true(list(spaced) == expected, "gatherv at places")
        taken = array.array("h", [7] * (rank + 1))
        comm.scatterv(spaced if rank == 0 else None, counts, displacements=places, out=taken)
        checks.true(list(taken) == [rank] * (rank + 1), "scatterv")
        checks.true(comm.iscatterv(spaced if rank == 0 else None, counts, displacements=places, out=taken).result() is taken)
        for call in (comm.gatherv, comm.scatterv):
            checks.refused(flexcast.ArgumentError, "counts", call, b"abc", [1], rank)
            checks.refused(flexcast.ArgumentError, "counts", call, b"abc", None, rank)
            checks.refused(flexcast.ArgumentError, f"root {size}", call, b"abc", counts, size)
        overlapping = [0] * size
        checks.refused(flexcast.ArgumentError, "overlap", comm.gatherv, b"a", [1] * size, rank, displacements=overlapping, out=bytearray(9))
        checks.refused(flexcast.ArgumentError, "reach to byte", comm.gatherv, b"a", [1] * size, rank, out=bytearray(size - 1))
        checks.refused(flexcast.ArgumentError, "reach to byte", comm.scatterv, b"a", [1] * size, rank)
        checks.refused(flexcast.ArgumentError, "are needed", comm.gatherv, b"ab", [1] * size, rank)
        checks.refused(flexcast.ArgumentError, "out", comm.scatterv, None, None, (rank + 1) % size)
        pairs = (Pair * 3)(*((float((number + rank) % size), 10 * rank + number) for number in range(3)))
        found = memoryview(comm.allreduce(pairs, "maxloc")).cast("B")
        first = [(size - 1.0, 10 * ((size - 1 - number) % size) + number) for number in range(3)]
        checks.true([(pair.value, pair.index) for pair in (Pair * 3).from_buffer_copy(found)] == first, "maxloc of structures")
        checks.refused(flexcast.DataTypeError, "pairs", comm.allreduce, numbers, "minloc")
        checks.refused(flexcast.ArgumentError, "read-only", comm.allgather, b"a", out=b"a" * size)
    checks.refused(flexcast.Closed, "closed", comm.allgather, b"a")
    return checks.count


def without_blocking(rank: int, size: int) -> int:
    """Requests, futures, asyncio, the event descriptor, and memory that nobody else keeps."""
    checks = Checks()
    for progress_thread in (True, False):
        with flexcast.Communicator.from_environment(progress_thread=progress_thread) as comm:
            if progress_thread:
                # Before all others: one whose callback has not returned yet would be counted when it has.
                checks.true(select.select([comm], [], [], 0)[0] == [])
                request = comm.ibarrier()
                checks.true(select.select([comm], [], [], 30)[0] == [comm])
                request.wait()
                checks.true(int.from_bytes(os.read(comm.fileno(), 8), sys.byteorder) == 1)
                checks.true(select.select([comm], [], [], 0)[0] == [])
            requests = [comm.iallreduce(array.array("d", [float(number)])) for number in range(20)]
            checks.true([list(request.result())[0] for request in requests] == [float(number * size) for number in range(20)])
            checks.true(all(request.test() and request.exception() is None for request in requests))
            request = comm.iallgather(bytearray(LARGE))
            while not request.test():
                pass
            checks.true(len(request.result()) == size * LARGE)
            request = comm.ibarrier()
            request.wait(30)

            async def gathered() -> list[Any]:
                one, other = comm.iallgather(bytes([rank])), comm.iallreduce(array.array("i", [1]))
                return [bytes(await one), list(await other)]

            checks.true(asyncio.run(gathered()) == [bytes(range(size)), [size]])
            comm._forgets = True
            for number in (1, 100, LARGE):
                checks.true(bytes(comm.allgather(bytes([rank]) * number)) == b"".join(bytes([other]) * number for other in range(size)))
            if progress_thread:
                future = comm.iallreduce(array.array("i", [rank])).future()
                checks.true(list(future.result(30)) == [sum(range(size))])
                # Nobody keeps the request, nor its memory.
                for _ in range(10):
                    comm.iallgather(bytearray(10000))
                called = threading.Event()
                comm.ibarrier().add_done_callback(lambda request: called.set())
                checks.true(called.wait(30))
            else:
                request = comm.ibarrier()
                checks.refused(flexcast.NotSupported, "progress_thread", request.future)
                checks.refused(flexcast.NotSupported, "", comm.fileno)
                request.wait()
    return checks.count


def sparse(rank: int, size: int) -> int:
    """Sums of arrays of which much is zero, to the bit; sizes; refusals. Zeros are looked for, whatever is expected to be faster."""
    checks = Checks()
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as tuning:
        tuning.write("sparse_from_bytes = 65536\n")
        tuning.flush()
        os.environ["FLEXCAST_TUNING"] = tuning.name
        comm = flexcast.Communicator.from_environment()
    with comm:
        for count in (0, 1, 255, 256, 257, 5000, 40_003):
            for sizes in ({}, {"block_bytes": 256, "blocks_per_message": 3}):
                # Blocks of all ranks, of one each, of none, and of one negative zero; sums of small whole numbers are
                # exact.
                of = [array.array("f", bytes(4 * count)) for _ in range(size)]
                for other, mine in enumerate(of):
                    for at in range(count):
                        kind = at // 300 % 5
                        if kind == 0 or kind == 1 and at // 300 % size == other:
                            mine[at] = at % 97 + other
                        elif kind == 3 and other == size - 1:
                            mine[at] = -0.0
                expected = array.array("f", [sum(values[1:], values[0]) for values in zip(*of)])
                found = comm.sparse_allreduce(of[rank], **sizes)
                checks.true(list(found) == list(expected), ("sparse_allreduce", count, sizes))
                own = array.array("f", of[rank])
                checks.true(comm.sparse_allreduce(own, out=own, **sizes) is own)
                checks.true(bytes(own) == bytes(found), ("in place", count, sizes))
                own = array.array("f", of[rank])
                checks.true(comm.isparse_allreduce(flexcast.IN_PLACE, out=own, **sizes).result(60) is own)
                checks.true(bytes(own) == bytes(found), ("IN_PLACE", count, sizes))
        # A block that is zero in its value alone is not zero. Arrays up to 64 KiB are summed up whole.
        minus = array.array("d", [-0.0 if rank == 0 else 0.0] * 10_000)
        checks.true(bytes(comm.sparse_allreduce(minus)) == bytes(array.array("d", [-0.0] * 10_000)))
        nan = comm.sparse_allreduce(array.array("d", [float("nan") if rank == 1 else 0.0] * 128))
        checks.true(all(value != value for value in nan))
        most = comm.sparse_allreduce(array.array("i", [-7 - rank if rank == 1 else 0] * 300), "max")
        checks.true(list(most) == [-8] * 300, "a block of zeros is one that the rank does not have")
        checks.true(list(comm.sparse_allreduce(array.array("i", [1 << rank] * 3), "bit_or")) == [(1 << size) - 1] * 3)

        async def awaited() -> list[Any]:
            return list(await comm.isparse_allreduce(array.array("q", [rank, 0, 1])))

        checks.true(asyncio.run(awaited()) == [sum(range(size)), 0, size])
        checks.true(list(comm.isparse_allreduce(array.array("q", [1])).future().result(60)) == [size])
        # Contributions that can only be read, and elements at odd addresses, of either length.
        for kind in "fq":
            for count in (100, 20_001):
                own, expected = (array.array(kind, (at * factor if at // 500 % 3 else 0 for at in range(count))) for factor in (rank + 1, sum(range(size + 1))))
                with tempfile.TemporaryFile() as file:
                    file.write(b"?" + bytes(own))
                    file.flush()
                    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped)[1:] as page, page.cast(kind) as odd:
                        checks.same(comm.sparse_allreduce(odd), expected, ("read-only", kind, count))
                        checks.refused(flexcast.ArgumentError, "read-only", comm.sparse_allreduce, own, out=odd)
                for shift in (1, 2, 7):
                    room = bytearray(b"!" * (len(bytes(own)) + 16))
                    out = memoryview(room)[shift:][: len(bytes(own))].cast(kind)
                    comm.sparse_allreduce(own, out=out)
                    checks.true(room == b"!" * shift + bytes(expected) + b"!" * (16 - shift), ("odd", kind, count, shift))
                    out[:] = own
                    comm.sparse_allreduce(flexcast.IN_PLACE, out=out)
                    checks.true(room == b"!" * shift + bytes(expected) + b"!" * (16 - shift), ("in place, odd", kind, count, shift))
        ones = array.array("f", [1.0])
        checks.refused(flexcast.NotSupported, "use sum", comm.sparse_allreduce, ones, "prod")
        checks.refused(flexcast.ArgumentError, "256 to 16384", comm.sparse_allreduce, ones, block_bytes=128)
        checks.refused(flexcast.ArgumentError, "multiple of 4", comm.sparse_allreduce, ones, block_bytes=258)
        checks.refused(flexcast.ArgumentError, "1 to 32", comm.sparse_allreduce, ones, blocks_per_message=33)
        for wrong in (0, -1, 1 << 32):
            checks.refused(flexcast.ArgumentError, f"block_bytes = {wrong}", comm.sparse_allreduce, ones, block_bytes=wrong)
        checks.refused(flexcast.ArgumentError, "out of 8 bytes", comm.sparse_allreduce, ones, out=array.array("f", [0.0] * 2))
        # What was refused was refused before anything was sent.
        checks.true(list(comm.sparse_allreduce(ones)) == [size])
        # Lengths that differ are told, by all; who calls when two others have told it finds the communicator broken.
        failed, odd = (flexcast.PeerFailed, flexcast.Broken), array.array("f", [1.0] * (3 + rank // (size - 1)))
        checks.refused(failed, "compare their calls", comm.sparse_allreduce, odd)
    return checks.count


def waiting(rank: int, size: int) -> int:
    """Waits with and without a progress thread: their bound, signals, several threads at one request, callbacks, blocking calls that nobody moves on."""
    checks = Checks()
    late = size - 1
    for progress_thread in (True, False):
        with flexcast.Communicator.from_environment(progress_thread=progress_thread) as comm:
            comm.barrier()
            request = None if rank == late else comm.ibarrier()
            if request is not None:
                for bound in (0.0, 0.02, 0.2):
                    began = time.monotonic()
                    checks.refused(flexcast.TimedOut, f"after {bound} s", request.wait, bound)
                    checks.true(bound <= time.monotonic() - began < bound + 5)
                # A signal comes between two slices, and its handler's exception ends the wait.
                def interrupt(_number: int, _frame: Any) -> None:
                    raise InterruptedError("a signal")

                before = signal.signal(signal.SIGALRM, interrupt)
                signal.setitimer(signal.ITIMER_REAL, 0.2)
                began = time.monotonic()
                try:
                    request.wait()
                except InterruptedError:
                    checks.true(0.1 < time.monotonic() - began < 5)
                else:
                    raise AssertionError("the wait ended by itself")
                signal.signal(signal.SIGALRM, before)
                # The operation goes on. Whoever waits, all are told.
                told: list[int] = []
                request.add_done_callback(lambda request: told.append(0))
                threads = [threading.Thread(target=lambda number=number: (request.wait(60), told.append(number))) for number in range(1, 5)]
                for thread in threads:
                    thread.start()
            else:
                # Bounds, signal and threads of the others come before.
                time.sleep(1.5)
                request, threads, told = comm.ibarrier(), [], [0, 1, 2, 3, 4]
            request.wait()
            for thread in threads:
                thread.join(60)
            checks.true(sorted(told) == [0, 1, 2, 3, 4], told)
            checks.true(request.test() and request.exception() is None)
            # One thread posts and another waits, while more operations are under way on the same communicator.
            requests = [comm.iallreduce(array.array("q", [number, rank])) for number in range(30)]
            found: dict[int, list[int]] = {}
            split = [threading.Thread(target=lambda part=part: found.update({at: list(requests[at].result(60)) for at in part})) for part in (range(0, 30, 2), range(1, 30, 2))]
            for thread in split:
                thread.start()
            for thread in split:
                thread.join(60)
            checks.true(found == {number: [number * size, sum(range(size))] for number in range(30)}, found)
            # Blocking calls say that they wait; others after them are moved on by the progress thread again.
            for _ in range(20):
                checks.true(list(comm.allreduce(array.array("q", [1]))) == [size])
            if progress_thread:
                checks.true(list(comm.iallreduce(array.array("q", [2])).future().result(60)) == [2 * size])
            comm.barrier()
    return checks.count


def bootstraps(rank: int, size: int) -> int:
    """TCP, a key-value store, an Allgather of the program; split()."""
    checks = Checks()
    with flexcast.Endpoint.open("udp", "lo") as endpoint:
        checks.true(endpoint.datapath == "udp")
        with flexcast.Communicator.from_tcp(os.environ["FLEXCAST_STORE"], rank, size, endpoint) as comm:
            checks.refused(flexcast.Busy, "communicators", endpoint.close)

            class Store:
                """Files of a folder."""

                def __init__(self) -> None:
                    self.folder = os.environ["STORE_FOLDER"]

                def set(self, key: str, value: bytes) -> None:
                    path = os.path.join(self.folder, key.replace("/", "+"))
                    with open(path + f".{rank}", "wb") as file:
                        file.write(value)
                    os.rename(path + f".{rank}", path)

                def get(self, key: str) -> bytes | None:
                    try:
                        with open(os.path.join(self.folder, key.replace("/", "+")), "rb") as file:
                            return file.read()
                    except FileNotFoundError:
                        return None

            class Mpi:
                """What mpi4py's communicators have."""

                def allgather(self, value: bytes) -> list[bytes]:
                    parts = bytes(comm.allgather(value))
                    return [parts[n : n + len(value)] for n in range(0, len(parts), len(value))]

                def Get_rank(self) -> int:
                    return rank

                def Get_size(self) -> int:
                    return size

            for make in (lambda: flexcast.Communicator.from_store(Store(), rank, size, endpoint), lambda: flexcast.Communicator.from_mpi4py(Mpi(), endpoint)):
                with make() as other:
                    checks.true(bytes(other.allgather(bytes([rank]))) == bytes(range(size)))
            part = comm.split(rank % 2, -rank)
            assert part is not None
            members = sorted((other for other in range(size) if other % 2 == rank % 2), reverse=True)
            checks.true((part.size, part.rank) == (len(members), members.index(rank)))
            with part:
                checks.true(list(bytes(part.allgather(bytes([rank])))) == members)
            alone = comm.split(None if rank else 0)
            checks.true((alone is None) == bool(rank))
            if alone is not None:
                checks.true(bytes(alone.allgather(b"x")) == b"x")
                alone.close()

            class Broken(Store):
                """Fails when it is asked."""

                def get(self, key: str) -> bytes | None:
                    raise OSError("the disk is gone")

            try:
                flexcast.Communicator.from_store(Broken(), rank, size, endpoint, prefix="broken", timeout=5)
            except flexcast.Error as error:
                checks.true(isinstance(error.__cause__, OSError), repr(error.__cause__))
            else:
                raise AssertionError("a communicator over a store that fails")
            checks.refused(flexcast.ConfigurationError, "no_such", flexcast.Communicator, comm._bootstrap, endpoint, config={"no_such": 1})
            # DPAs alone add fixed-point numbers, and none that is endless.
            for bound, kind, said in (
                (1.5, flexcast.ArgumentError, "sparse.aggregation be dpa"),
                ("inf", flexcast.ConfigurationError, "a number from 1.2e-38"),
            ):
                checks.refused(kind, said, flexcast.Communicator, comm._bootstrap, endpoint, config={"sparse.fixed_point": bound})
    return checks.count


def forked(rank: int, size: int) -> int:
    """A child of fork() is refused by name, and disturbs nothing."""
    checks = Checks()
    with flexcast.Communicator.from_environment() as comm:
        request = comm.ibarrier() if rank == 0 else None
        child = os.fork()
        if child == 0:
            status = 1
            try:
                try:
                    comm.allgather(b"a")
                except flexcast.Forked:
                    if request is None:
                        status = 0
                    else:
                        try:
                            request.wait()
                        except flexcast.Forked:
                            status = 0
            finally:
                os._exit(status)
        checks.true(os.waitpid(child, 0)[1] == 0, "the child was not refused")
        # The barrier is under way until the child of rank 0 has ended.
        mark = os.path.join(os.environ["STORE_FOLDER"], "ended")
        if request is None:
            end = time.monotonic() + 60
            while not os.path.exists(mark):
                checks.true(time.monotonic() < end, "the child of rank 0 has not ended")
                time.sleep(0.01)
            comm.barrier()
        else:
            open(mark, "w").close()
            request.wait()
        checks.true(bytes(comm.allgather(bytes([rank]))) == bytes(range(size)))
    return checks.count


def one_dies(rank: int, size: int) -> int:
    """A rank that is gone fails the others' operation by name, within its bound."""
    comm = flexcast.Communicator.from_environment(config={"barrier_timeout_ns": 2_000_000_000})
    comm.barrier()
    if rank == size - 1:
        os._exit(7)
    checks = Checks()
    checks.refused(flexcast.OperationFailed, "", comm.allgather, bytearray(1000))
    checks.refused(flexcast.OperationFailed, "", comm.allgather, bytearray(1000))
    comm.close()
    return checks.count


def never_closed(rank: int, size: int) -> int:
    """The interpreter ends with a communicator, and with operations under way."""
    comm = flexcast.Communicator.from_environment()
    globals()["kept"] = comm
    comm.barrier()
    if rank == 0:
        comm.iallgather(bytearray(10))
    return 1


@unittest.skipIf(numpy is None, "no numpy: pip install numpy")
class Arrays(unittest.TestCase):
    """numpy."""

    def test_every_collective_2(self) -> None:
        ranks.run("test_collectives:every_collective", 2)

    def test_every_collective_3(self) -> None:
        ranks.run("test_collectives:every_collective", 3)

    def test_every_collective_4(self) -> None:
        ranks.run("test_collectives:every_collective", 4)

    def test_one_rank(self) -> None:
        ranks.run("test_collectives:every_collective", 1)

    def test_every_type(self) -> None:
        ranks.run("test_collectives:every_type", 3)


class Others(unittest.TestCase):
    """Without numpy."""

    def test_buffers(self) -> None:
        ranks.run("test_collectives:without_numpy", 3)

    def test_without_blocking(self) -> None:
        ranks.run("test_collectives:without_blocking", 3)

    def test_sparse_2(self) -> None:
        ranks.run("test_collectives:sparse", 2)

    def test_sparse_3(self) -> None:
        ranks.run("test_collectives:sparse", 3)

    def test_waiting(self) -> None:
        ranks.run("test_collectives:waiting", 3)

    def test_bootstraps(self) -> None:
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            ranks.run("test_collectives:bootstraps", 3, STORE_FOLDER=folder)

    def test_fork(self) -> None:
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            ranks.run("test_collectives:forked", 2, STORE_FOLDER=folder)

    def test_one_dies(self) -> None:
        ranks.run("test_collectives:one_dies", 3, expect={2: 7})

    def test_never_closed(self) -> None:
        ranks.run("test_collectives:never_closed", 2)


if __name__ == "__main__":
    unittest.main()
