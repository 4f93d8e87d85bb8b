# SPDX-License-Identifier: Apache-2.0
"""The contract between torch.distributed and a backend, call by call, by what torch and its stub (c10d_stub) both have.

Every result is compared with numbers made here, by Python alone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import ranks
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions

COUNTS = (0, 1, 7, 1009)
MOVED = (torch.float32, torch.int64, torch.uint8, torch.bfloat16, torch.bool, torch.complex64)
REDUCED = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.int32, torch.int64)
REDUCED += (torch.uint8, torch.uint16, torch.uint32, torch.uint64)


class Checks(ranks.Checks):
    """Compares with what was made here."""

    def same(self, what: object, tensors: Any, expected: Any) -> None:
        self.count += 1
        found = [tensor.tolist() for tensor in tensors] if isinstance(tensors, list) else tensors.tolist()
        if found != expected:
            raise AssertionError(f"{what}, rank {self.rank} of {self.size}: {str(found)[:300]}, not {str(expected)[:300]}")

    def true(self, found: object, what: str) -> None:
        self.count += 1
        if not found:
            raise AssertionError(f"{what}, rank {self.rank} of {self.size}")


def numbers(count: int, rank: int, salt: int = 0) -> list[int]:
    """Small whole numbers, whose sums are exact in every type."""
    return [(3 * n + rank + salt) % 5 for n in range(count)]


def spread(values: list[int], dtype: Any) -> Any:
    """A tensor that is not contiguous: every other element of a longer one."""
    made = torch.tensor([number for value in values for number in (value, 77)], dtype=dtype)[::2]
    assert len(values) < 2 or not made.is_contiguous()
    return made


def begin(rank: int, size: int, timeout: float = 60.0) -> Any:
    """The world, over a store that is a file; returns the store."""
    import flexcast.torch

    flexcast.torch.register()  # Again: nothing.
    store = dist.FileStore(os.environ["C10D_STORE"], size)
    dist.init_process_group("flexcast", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout))
    assert dist.get_backend() == "flexcast" and (dist.get_rank(), dist.get_world_size()) == (rank, size)
    return store


def backend() -> Any:
    return dist.group.WORLD._get_backend(torch.device("cpu"))


def moving(rank: int, size: int) -> int:
    """Broadcast, all-gather, all-to-all, gather and scatter, contiguous and not, of no elements and of many."""
    begin(rank, size)
    check = Checks(rank, size)
    for dtype in MOVED:
        cast = (lambda values: [value % 2 == 1 for value in values]) if dtype is torch.bool else list
        for count in COUNTS if dtype is torch.float32 else (0, 13):
            of = [cast(numbers(count, other)) for other in range(size)]
            flat = [value for values in of for value in values]
            for make in (lambda values: torch.tensor(values, dtype=dtype), lambda values: spread(values, dtype)):
                label = f"{count} of {dtype}, {make(of[rank]).is_contiguous()}"
                mine = lambda: make(of[rank])  # noqa: E731
                blank = lambda: make(cast([1] * count))  # noqa: E731
                for root in (0, size - 1):
                    tensor = mine()
                    dist.broadcast(tensor, root)
                    check.same(f"broadcast {label}", tensor, of[root])
                    outputs = [blank() for _ in range(size)] if rank == root else None
                    dist.gather(mine(), outputs, dst=root)
                    if outputs is not None:
                        check.same(f"gather {label}", outputs, of)
                    output = blank()
                    dist.scatter(output, [make(values) for values in of] if rank == root else None, src=root)
                    check.same(f"scatter {label}", output, of[rank])
                outputs = [blank() for _ in range(size)]
                dist.all_gather(outputs, mine())
                check.same(f"all_gather {label}", outputs, of)
                whole = make(cast([1] * size * count))
                dist.all_gather_into_tensor(whole, mine())
                check.same(f"all_gather_into_tensor {label}", whole, flat)
                whole = make(cast([1] * size * count))
                dist.all_to_all_single(whole, make(flat))
                check.same(f"all_to_all_single {label}", whole, of[rank] * size)
                outputs = [blank() for _ in range(size)]
                dist.all_to_all(outputs, [make(values) for values in of])
                check.same(f"all_to_all {label}", outputs, [of[rank]] * size)
    whole = torch.zeros(size * 5)
    whole[rank * 5 : rank * 5 + 5].copy_(torch.tensor([float(rank)] * 5))
    dist.all_gather_into_tensor(whole, whole[rank * 5 : rank * 5 + 5])
    check.same("all_gather_into_tensor in place", whole, [float(other) for other in range(size) for _ in range(5)])
    parts = [torch.zeros(2 * other + 1) for other in range(size)]
    dist.all_gather(parts, torch.tensor([float(rank)] * (2 * rank + 1)))
    check.same("all_gather of different lengths", parts, [[float(other)] * (2 * other + 1) for other in range(size)])
    splits = [rank + other for other in range(size)]
    rows = torch.tensor([[100.0 * rank + other] * 3 for other, count in enumerate(splits) for _ in range(count)]) if sum(splits) else torch.zeros((0, 3))
    received = torch.zeros((sum(splits), 3))
    dist.all_to_all_single(received, rows, splits, splits)
    check.same("all_to_all_single with splits", received, [[100.0 * other + rank] * 3 for other, count in enumerate(splits) for _ in range(count)])
    turned = torch.tensor([[float(rank), 1.0, 2.0], [3.0, 4.0, 5.0]]).t()
    dist.broadcast(turned, size - 1)
    check.same("broadcast of a transposed tensor", turned, [[size - 1.0, 3.0], [1.0, 4.0], [2.0, 5.0]])
    # One element for all: what is only read may be so, and what is received into may not.
    one = lambda value: torch.tensor([value]).as_strided((4,), (0,))  # noqa: E731
    for root in (0, size - 1):
        tensor = one(7.0) if rank == root else torch.zeros(4)
        dist.broadcast(tensor, root)
        check.same("broadcast of an expanded tensor", tensor, [7.0] * 4)
        outputs = [torch.zeros(4) for _ in range(size)] if rank == root else None
        dist.gather(one(float(rank)), outputs, dst=root)
        if outputs is not None:
            check.same("gather of expanded tensors", outputs, [[float(other)] * 4 for other in range(size)])
        tensor = torch.zeros(4)
        dist.scatter(tensor, [one(float(other)) for other in range(size)] if rank == root else None, src=root)
        check.same("scatter of expanded tensors", tensor, [float(rank)] * 4)
        tensor = torch.zeros(4) if rank == root else one(float(rank))
        dist.reduce(tensor, root)
        check.same("reduce of expanded tensors", tensor, [float(sum(range(size)) - root) if rank == root else float(rank)] * 4)
    outputs = [torch.zeros(4) for _ in range(size)]
    dist.all_gather(outputs, one(float(rank)))
    check.same("all_gather of expanded tensors", outputs, [[float(other)] * 4 for other in range(size)])
    dist.barrier()
    dist.destroy_process_group()
    return check.count


def reducing(rank: int, size: int) -> int:
    """All-reduce, reduce and reduce-scatter by each operator, and what is left to gloo."""
    begin(rank, size)
    check = Checks(rank, size)
    ranks = range(size)
    for dtype in REDUCED:
        for count in COUNTS if dtype is torch.float32 else (0, 13):
            of = [numbers(count, other) for other in ranks]
            columns = list(zip(*of))
            cases: list[tuple[Any, Callable[[Any], Any]]] = [(dist.ReduceOp.SUM, sum), (dist.ReduceOp.MIN, min), (dist.ReduceOp.MAX, max)]
            cases.append((dist.ReduceOp.PRODUCT, lambda column: column[0] * column[1] * (column[2] if size == 3 else 1)))
            if not dtype.is_floating_point:
                fold = lambda one: lambda column: one(one(column[0], column[1]), column[-1])  # noqa: E731
                cases += [(dist.ReduceOp.BAND, fold(lambda a, b: a & b)), (dist.ReduceOp.BOR, fold(lambda a, b: a | b))]
                cases += [(dist.ReduceOp.BXOR, lambda column: column[0] ^ column[1] ^ (column[2] if size == 3 else 0))]
            for op, reduced in cases:
                expected = [reduced(column) for column in columns]
                for make in (lambda values: torch.tensor(values, dtype=dtype), lambda values: spread(values, dtype)):
                    tensor = make(of[rank])
                    dist.all_reduce(tensor, op)
                    check.same(f"all_reduce {op}, {count} of {dtype}", tensor, expected)
            sums = [sum(column) for column in columns]
            for root in (0, size - 1):
                tensor = torch.tensor(of[rank], dtype=dtype)
                dist.reduce(tensor, root)
                if rank == root:
                    check.same(f"reduce, {count} of {dtype}", tensor, sums)
            output = torch.tensor([9] * count, dtype=dtype)
            dist.reduce_scatter(output, [torch.tensor(numbers(count, rank, other), dtype=dtype) for other in ranks])
            expected = [sum(column) for column in zip(*(numbers(count, other, rank) for other in ranks))]
            check.same(f"reduce_scatter, {count} of {dtype}", output, expected)
            output = spread([9] * count, dtype)
            dist.reduce_scatter_tensor(output, torch.tensor([value for other in ranks for value in numbers(count, rank, other)], dtype=dtype))
            check.same(f"reduce_scatter_tensor, {count} of {dtype}", output, expected)
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        tensor = torch.tensor([size * value for value in numbers(9, rank)], dtype=dtype)
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        check.same(f"average of {dtype}", tensor, [sum(column) for column in zip(*(numbers(9, other) for other in ranks))])
    lengths = [other + 1 for other in ranks]
    output = torch.zeros(lengths[rank], dtype=torch.int32)
    dist.reduce_scatter(output, [torch.tensor([rank] * length, dtype=torch.int32) for length in lengths])
    check.same("reduce_scatter of different lengths", output, [sum(ranks)] * lengths[rank])
    # Left to gloo, which takes it or refuses it, on all ranks alike.
    truth = torch.tensor([other == rank for other in ranks], dtype=torch.bool)
    dist.all_reduce(truth, dist.ReduceOp.MAX)
    check.same("truth values, by gloo", truth, [True] * size)
    # What nobody reduces is refused on all ranks, with type and operator.
    refused = [(torch.float32, dist.ReduceOp.BAND, "BAND"), (torch.int32, dist.ReduceOp.AVG, "AVG"), (torch.uint32, dist.ReduceOp.AVG, "AVG")]
    for dtype, op, name in refused:
        for kind in (RuntimeError, ValueError):
            check.refused(kind, f"all_reduce of {dtype} by {name}", dist.all_reduce, torch.zeros(3, dtype=dtype), op)
        check.refused(RuntimeError, f"reduce of {dtype} by {name}", dist.reduce, torch.zeros(3, dtype=dtype), 0, op)
        output, inputs = torch.zeros(3, dtype=dtype), [torch.zeros(3, dtype=dtype) for _ in ranks]
        check.refused(RuntimeError, f"reduce_scatter of {dtype} by {name}", dist.reduce_scatter, output, inputs, op)
    message = torch.zeros(4)
    if rank == 0:
        dist.send(torch.tensor([1.0, 2.0, 3.0, 4.0]), 1, tag=3)
    elif rank == 1:
        dist.recv(message, 0, tag=3)
        check.same("recv, by gloo", message, [1.0, 2.0, 3.0, 4.0])
    tensor = torch.tensor([1, 2])
    dist.all_reduce(tensor)
    check.same("after what was refused", tensor, [size, 2 * size])
    dist.destroy_process_group()
    return check.count


def works(rank: int, size: int) -> int:
    """Operations under way: many at a time, their futures, what waits with a bound, and what is over at once."""
    import flexcast

    store = begin(rank, size)
    check = Checks(rank, size)
    tensors = [torch.tensor([rank + number] * 500, dtype=torch.int64) for number in range(12)]
    pending = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for number, (tensor, work) in reversed(list(enumerate(zip(tensors, pending)))):
        check.true(work.wait(), "wait() of an operation that went well")
        check.same("async", tensor, [sum(range(size)) + size * number] * 500)
        check.true(work.get_future().done(), "a future after wait()")
    work = dist.all_reduce(torch.tensor([1, 2]), async_op=True)
    doubled = work.get_future().then(lambda over: [2 * value for value in over.value()[0].tolist()])
    check.true(doubled.wait() == [2 * size, 4 * size], "then() of a future")
    # The backend's own works, which tell whether they are over.
    tensor = torch.tensor([rank, 5])
    work = backend().allreduce([tensor], dist.AllreduceOptions())
    end = time.monotonic() + 30
    while not work.is_completed():
        assert time.monotonic() < end, "is_completed() is never true"
        time.sleep(0.001)
    check.true(work.is_success(), "is_success()")
    check.same("is_completed()", tensor, [sum(range(size)), 5 * size])
    # A wait with a bound, while the others are late.
    tensor = torch.tensor([1.5])
    if rank == 0:
        work = backend().allreduce([tensor], dist.AllreduceOptions())
        check.true(not work.is_completed(), "an operation without the others is over")
        began = time.monotonic()
        check.refused(flexcast.TimedOut, "not over", work.wait, timedelta(milliseconds=100))
        check.true(0.09 < time.monotonic() - began < 20, "a wait ends at its bound")
        store.set("late", "1")
        check.true(work.wait(timedelta(seconds=30)), "the same operation, waited for again")
    else:
        store.wait(["late"], timedelta(seconds=30))
        dist.all_reduce(tensor)
    check.same("after a wait that was over", tensor, [1.5 * size])
    work = dist.broadcast(torch.tensor([]), 0, async_op=True)
    check.true(work.wait() and work.get_future().done(), "nothing to do is over at once")
    work = dist.barrier(async_op=True)
    check.true(work.wait(timedelta(seconds=30)), "barrier")
    dist.destroy_process_group()
    dist_again(check, rank, size)
    return check.count


def dist_again(check: Checks, rank: int, size: int) -> None:
    """A second world of the same processes."""
    os.environ["C10D_STORE"] += "-again"
    begin(rank, size)
    tensor = torch.tensor([rank])
    dist.all_reduce(tensor)
    check.same("a second world", tensor, [sum(range(size))])
    dist.destroy_process_group()


def bad_input(rank: int, size: int) -> int:
    """What is refused, with what is wrong, before anything is sent; at the end what ranks do not agree on."""
    import flexcast

    begin(rank, size)
    check = Checks(rank, size)
    ours = backend()
    away = lambda count=3: torch.empty(count, device="meta")  # noqa: E731
    here = lambda count=3, dtype=torch.float32: torch.zeros(count, dtype=dtype)  # noqa: E731
    reduce, none, root = dist.AllreduceOptions(), AllgatherOptions(), dist.BroadcastOptions()
    # On another device.
    check.refused(ValueError, "meta", ours.allreduce, [away()], reduce)
    check.refused(ValueError, "meta", ours.broadcast, [away()], root)
    check.refused(ValueError, "meta", ours.allgather, [[away() for _ in range(size)]], [here()], none)
    check.refused(ValueError, "meta", ours.all_gather_single, here(3 * size), away(), none)
    check.refused(ValueError, "meta", ours.reduce_scatter_single, away(), here(3 * size), reduce)
    check.refused(ValueError, "meta", ours.all_to_all_single, away(size), here(size), [], [], none)
    # Lengths.
    check.refused(ValueError, f"{3 * size} are needed", ours.all_gather_single, here(3 * size + 1), here(), none)
    check.refused(ValueError, f"{3 * size} are needed", ours.reduce_scatter_single, here(), here(4 * size), reduce)
    check.refused(ValueError, "elements", ours.allgather, [[here(4) for _ in range(size)]], [here()], none)
    check.refused(ValueError, f"one list of {size}", ours.allgather, [[here()]], [here()], none)
    check.refused(ValueError, f"one list of {size}", ours.reduce_scatter, [here()], [[here()] * (size + 1)], reduce)
    check.refused(ValueError, "2 tensors", ours.allreduce, [here(), here()], reduce)
    check.refused(ValueError, "rows", dist.all_to_all_single, here(2 * size + 1), here(2 * size + 1))
    check.refused(ValueError, "add up to", dist.all_to_all_single, here(size), here(size), [2] * size, [1] * size)
    check.refused(ValueError, "add up to", dist.all_to_all_single, here(size), here(size), [size + 1] + [0] * (size - 2) + [-1], [1] * size)
    check.refused(ValueError, "needed", ours.alltoall, [here()], [here()] * size, none)
    # Types.
    check.refused(ValueError, "one type", ours.all_gather_single, here(3 * size, torch.int32), here(), none)
    check.refused(ValueError, "", dist.all_gather, [here(3, torch.int32)] * size, here())
    # Ranks.
    root.rootRank = size
    check.refused(flexcast.ArgumentError, f"{size}", ours.broadcast, [here()], root)
    # Elements that are one in memory.
    one = torch.tensor([1.0]).as_strided((3,), (0,))
    check.refused(ValueError, "clone()", ours.allreduce, [one], reduce)
    check.refused(ValueError, "clone()", ours.all_gather_single, torch.tensor([1.0]).as_strided((3 * size,), (0,)), here(), none)
    check.refused(ValueError, "clone()", ours.all_to_all_single, torch.tensor([1.0]).as_strided((size,), (0,)), here(size), [], [], none)
    # Nothing of this has been sent: the group goes on.
    tensor = torch.tensor([rank])
    dist.all_reduce(tensor)
    check.same("after what was refused", tensor, [sum(range(size))])
    # Ranks that do not agree learn of it, all of them.
    check.refused(flexcast.Error, "", dist.all_reduce, here(1000 + rank))
    check.refused(flexcast.Error, "", dist.all_reduce, here())
    dist.destroy_process_group()
    check.refused(ValueError, "", dist.all_reduce, here())
    check.refused(flexcast.Closed, "destroyed", ours.allreduce, [here()], reduce)
    return check.count


def unlike_lengths(rank: int, size: int) -> int:
    """An all-to-all in which a rank sends what another does not expect: it fails on all ranks, which all name both and their lengths."""
    import flexcast

    begin(rank, size)
    check = Checks(rank, size)
    # Rank 1 sends four rows to rank 0, which expects one.
    sending = [4 if (rank, other) == (1, 0) else 1 for other in range(size)]
    said = "all_to_all_single: rank 1 sends 16 bytes to rank 0, which expects 4 bytes of it: "
    check.refused(flexcast.PeerFailed, said, dist.all_to_all_single, torch.zeros(size), torch.zeros(sum(sending)), [1] * size, sending)
    dist.destroy_process_group()
    # The same in lists, by a call that is waited for later; something comes where nothing is expected.
    os.environ["C10D_STORE"] += "-lists"
    begin(rank, size)
    inputs = [torch.zeros(5, dtype=torch.uint8) for _ in range(size)]
    outputs = [torch.zeros(0 if (rank, other) == (0, 1) else 5, dtype=torch.uint8) for other in range(size)]
    said = "all_to_all: rank 1 sends 5 bytes to rank 0, which expects 0 bytes of it: "
    check.refused(flexcast.PeerFailed, said, dist.all_to_all, outputs, inputs, async_op=True)
    dist.destroy_process_group()
    # What a rank sends to itself, and another mistake.
    os.environ["C10D_STORE"] += "-own"
    begin(rank, size)
    sending = [other + 1 if rank == 1 else 1 for other in range(size)]
    said = f"rank 1 sends 8 bytes to rank 1, which expects 4 bytes of it{'; and 1 more blocks' if size == 3 else ''}: "
    check.refused(flexcast.PeerFailed, said, dist.all_to_all_single, torch.zeros(size), torch.zeros(sum(sending)), [1] * size, sending)
    dist.destroy_process_group()
    return check.count


def name_taken(rank: int, size: int) -> int:
    """A backend of the same name that another package has registered stays, and is named."""
    check = Checks(rank, size)
    dist.Backend.register_backend("flexcast", begin, devices=["cpu"])

    def load() -> None:
        import flexcast.torch  # noqa: F401

    check.refused(RuntimeError, "from c10d_conformance", load)
    check.true(dist.Backend._plugins["FLEXCAST"].creator_fn is begin, "the other backend stays")
    return check.count


def old_release(rank: int, size: int) -> int:
    """Where nothing in Python derives from a Backend, the import says which release does."""
    import torch._C._distributed_c10d as c10d

    check = Checks(rank, size)
    c10d.Backend = type("Backend", (), {})

    def load() -> None:
        import flexcast.torch  # noqa: F401

    check.refused(ImportError, "needs torch 2.14 or later, and this is 2.", load)
    return check.count
