# SPDX-License-Identifier: Apache-2.0
"""The backend of torch.distributed: each collective beside gloo's result."""

from __future__ import annotations

import importlib.util
import os
import unittest
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import flexcast
import ranks

HAS_TORCH = importlib.util.find_spec("torch") is not None

if HAS_TORCH:
    import torch
    import torch.distributed as dist

# Elements; the last is a MiB of bytes.
SIZES = (0, 1, 2, 7, 127, 1009)
LARGE = 1 << 18


class Conformance(ranks.Checks):
    """Runs operations in a group of flexcast and in one of gloo, and compares what all tensors hold afterwards."""

    def __init__(self, rank: int, size: int, members: list[int] | None = None) -> None:
        super().__init__(rank, size)
        self.members = list(range(size)) if members is None else members
        self.group = dist.new_group(self.members, backend="flexcast") if members is not None else dist.group.WORLD
        self.gloo = dist.new_group(self.members, backend="gloo")

    def both(self, what: str, operation: Callable[..., Any], tensors: list[Any], group_name: str = "group", **named: Any) -> None:
        """`tensors` are the arguments, tensors or lists of them, which are copied for gloo with their strides."""
        theirs = [_copy(one) for one in tensors]
        work = operation(*tensors, **{group_name: self.group}, **named)
        if work is not None:
            work.wait()
        work = operation(*theirs, **{group_name: self.gloo}, **named)
        if work is not None:
            work.wait()
        self.same(what, tensors, theirs)

    def same(self, what: str, found: Any, expected: Any) -> None:
        if isinstance(found, (list, tuple)):
            for one, other in zip(found, expected, strict=True):
                self.same(what, one, other)
            return
        self.count += 1
        if not torch.equal(found, expected):
            raise AssertionError(f"{what}, rank {self.rank}: {found}, and gloo has {expected}")


def _copy(one: Any) -> Any:
    if isinstance(one, list):
        return [_copy(part) for part in one]
    return one.clone(memory_format=torch.preserve_format) if isinstance(one, torch.Tensor) else one


def _values(count: int, dtype: Any, rank: int, salt: int = 0) -> Any:
    """Small whole numbers, whose sums are exact in every type."""
    numbers = (torch.arange(count) * 3 + rank + salt) % 5
    return (numbers % 2 == 0) if dtype is torch.bool else numbers.to(dtype)


def _every(check: Conformance, count: int, dtype: Any, reductions: bool = True, spread: bool = False) -> None:
    """All collectives with one number of elements and one type."""
    size, rank = len(check.members), check.members.index(check.rank)
    label = f"{count} of {dtype}{', not contiguous' if spread else ''}"

    def fresh(elements: int, salt: int = 0) -> Any:
        values = _values(elements, dtype, rank, salt)
        if not spread:
            return values
        # Every other element of longer memory.
        wide = torch.zeros(2 * elements, dtype=dtype)[::2]
        return wide.copy_(values)

    for root in (check.members[0], check.members[-1]):
        check.both(f"broadcast {label}", dist.broadcast, [fresh(count)], src=root)
        outputs = [fresh(count, 9) for _ in range(size)] if check.rank == root else None
        check.both(f"gather {label}", dist.gather, [fresh(count), outputs or []] if outputs else [fresh(count)], dst=root)
        inputs = [fresh(count, other) for other in range(size)] if check.rank == root else None
        check.both(f"scatter {label}", dist.scatter, [fresh(count), inputs] if inputs else [fresh(count)], src=root)
    check.both(f"all_gather {label}", dist.all_gather, [[fresh(count, 9) for _ in range(size)], fresh(count)])
    flat = list(torch.zeros(size * count, dtype=dtype).chunk(size)) if count else [fresh(0) for _ in range(size)]
    check.both(f"all_gather into chunks {label}", dist.all_gather, [flat, fresh(count)])
    if not spread:
        check.both(f"all_gather_into_tensor {label}", dist.all_gather_into_tensor, [fresh(size * count), fresh(count)])
        whole = fresh(size * count)
        whole[rank * count : (rank + 1) * count] = _values(count, dtype, rank)
        check.both(f"in place {label}", lambda whole, group: dist.all_gather_into_tensor(whole, whole[rank * count : (rank + 1) * count], group), [whole])
        check.both(f"all_to_all_single {label}", dist.all_to_all_single, [fresh(size * count), fresh(size * count)])
    if not reductions:
        return
    operators = [dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT] + ([] if dtype.is_complex else [dist.ReduceOp.MIN, dist.ReduceOp.MAX])
    for op in operators:
        check.both(f"all_reduce {op} {label}", dist.all_reduce, [fresh(count)], op=op)
    if not dtype.is_floating_point and not dtype.is_complex:
        for op in (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR):
            check.both(f"all_reduce {op} {label}", dist.all_reduce, [fresh(count)], op=op)
    for root in (check.members[0], check.members[-1]):
        mine = fresh(count)
        theirs = mine.clone()
        dist.reduce(mine, root, group=check.group)
        dist.reduce(theirs, root, group=check.gloo)
        if check.rank == root:
            # Elsewhere the tensor is nobody's result.
            check.same(f"reduce {label}", mine, theirs)
    # Beside an all_reduce of gloo, whose reduce_scatter has not all types.
    for form in ("list", "single"):
        if form == "single" and spread:
            continue
        parts = [fresh(count, other) for other in range(size)]
        expected = torch.cat([part.reshape(-1) for part in parts])
        dist.all_reduce(expected, group=check.gloo)
        output = fresh(count, 9)
        if form == "list":
            dist.reduce_scatter(output, parts, group=check.group)
        else:
            dist.reduce_scatter_tensor(output, torch.cat(parts), group=check.group)
        check.same(f"reduce_scatter {form} {label}", output, expected[rank * count : (rank + 1) * count])


def conformance(rank: int, size: int) -> int:
    """Sizes, types, strides, subgroups."""
    _begin()
    check = Conformance(rank, size)
    assert dist.get_backend() == "flexcast" and dist.get_backend(check.gloo) == "gloo"
    for count in SIZES:
        _every(check, count, torch.float32)
    _every(check, LARGE, torch.float32)
    for dtype in (torch.int8, torch.uint8, torch.int32, torch.int64, torch.float16, torch.float64):
        _every(check, 13, dtype)
    # gloo takes these in what moves bytes, not in all reductions: see types().
    for dtype in (torch.bfloat16, torch.bool, torch.int16, torch.complex64, torch.complex128):
        _bytes_only(check, 13, dtype)
    for count in (1, 13, 1009):
        _every(check, count, torch.float32, spread=True)
    check.both("two dimensions", dist.all_reduce, [torch.arange(12.0).reshape(3, 4).t() + rank])
    check.both("channels last", dist.broadcast, [(torch.arange(24.0).reshape(1, 2, 3, 4) + rank).to(memory_format=torch.channels_last)], src=0)
    # A subgroup of all but the first, and one of one rank.
    for members in (list(range(1, size)), [size - 1]):
        if rank in members:
            part = Conformance.__new__(Conformance)
            Conformance.__init__(part, rank, size, members)
            for count in (1, 127):
                _every(part, count, torch.float32)
            check.count += part.count
        else:
            dist.new_group(members, backend="flexcast")
            dist.new_group(members, backend="gloo")
    dist.barrier()
    dist.destroy_process_group()
    return check.count


def _bytes_only(check: Conformance, count: int, dtype: Any) -> None:
    """What moves bytes, against what it should be: gloo lacks some types."""
    size, rank = check.size, check.rank
    of = [_values(count, dtype, other) for other in range(size)]
    tensor = of[rank].clone()
    dist.broadcast(tensor, size - 1)
    check.same(f"broadcast {dtype}", tensor, of[size - 1])
    outputs = [torch.zeros(count, dtype=dtype) for _ in range(size)]
    dist.all_gather(outputs, of[rank])
    check.same(f"all_gather {dtype}", outputs, of)
    flat = torch.zeros(size * count, dtype=dtype)
    dist.all_gather_into_tensor(flat, of[rank])
    check.same(f"all_gather_into_tensor {dtype}", flat, torch.cat(of))
    dist.all_to_all_single(flat, torch.cat(of))
    check.same(f"all_to_all_single {dtype}", flat, of[rank].repeat(size))


def types(rank: int, size: int) -> int:
    """Reductions that Flexcast has and gloo has not, and those that go to gloo."""
    _begin()
    check = Conformance(rank, size)
    for dtype in (torch.bfloat16, torch.float16, torch.int16, torch.complex64, torch.complex128):
        of = [_values(9, dtype, other) for other in range(size)]
        tensor = of[rank].clone()
        dist.all_reduce(tensor)
        check.same(f"all_reduce {dtype}", tensor, torch.stack(of).sum(0).to(dtype))
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        of = [_values(8, dtype, other) * size for other in range(size)]
        tensor = of[rank].clone()
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        check.same(f"average of {dtype}", tensor, torch.stack(of).sum(0).div(size).to(dtype))
        output = torch.zeros(8, dtype=dtype)
        dist.reduce_scatter_tensor(output, of[rank].repeat(size), dist.ReduceOp.AVG)
        check.same(f"average of {dtype}", output, torch.stack(of).sum(0).div(size).to(dtype))
    # Truth values are gloo's, on both sides.
    for op in (dist.ReduceOp.MAX, dist.ReduceOp.MIN):
        both = torch.arange(size) == rank
        check.both(f"bool {op}", dist.all_reduce, [both], op=op)
    premultiplied = dist._make_nccl_premul_sum(2.0) if hasattr(dist, "_make_nccl_premul_sum") else None
    if premultiplied is not None:
        check.refused(RuntimeError, "", dist.all_reduce, torch.ones(3), premultiplied)
    check.both("after what was refused", dist.all_reduce, [torch.ones(3)])
    dist.destroy_process_group()
    return check.count


def interface(rank: int, size: int) -> int:
    """Forms of operations, objects, send and receive, errors, groups."""
    _begin()
    import flexcast.torch  # noqa: F401

    flexcast.torch.register()  # Again: nothing.
    check = Conformance(rank, size)
    # Operations under way at the same time, and their futures.
    tensors = [torch.full((1000,), float(rank + number)) for number in range(16)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for number, (work, tensor) in enumerate(zip(works, tensors)):
        work.wait()
        check.same("async", tensor, torch.full((1000,), float(sum(range(size)) + size * number)))
        assert work.get_future().done()
    work = dist.all_reduce(torch.ones(3), async_op=True)
    doubled = work.get_future().then(lambda done: done.value()[0] * 2)
    check.same("future", doubled.wait(), torch.full((3,), 2.0 * size))
    # Forms with blocks of different lengths.
    counts = [2 * other + 1 for other in range(size)]
    parts = [torch.zeros(count) for count in counts]
    dist.all_gather(parts, torch.full((counts[rank],), float(rank)))
    check.same("all_gather of different lengths", parts, [torch.full((count,), float(other)) for other, count in enumerate(counts)])
    output = torch.zeros(counts[rank])
    dist.reduce_scatter(output, [torch.full((count,), float(rank)) for count in counts])
    check.same("reduce_scatter of different lengths", output, torch.full((counts[rank],), float(sum(range(size)))))
    sending = [rank + other for other in range(size)]
    rows = torch.cat([torch.full((number, 3), float(10 * rank + other)) for other, number in enumerate(sending)])
    check.both("all_to_all_single with splits", dist.all_to_all_single, [torch.zeros(sum(sending), 3), rows], output_split_sizes=sending, input_split_sizes=sending)
    outputs = [torch.zeros(number) for number in sending]
    dist.all_to_all(outputs, [torch.full((number,), float(10 * rank + other)) for other, number in enumerate(sending)])
    check.same("all_to_all", outputs, [torch.full((number,), float(10 * other + rank)) for other, number in enumerate(sending)])
    several = [torch.ones(3) * rank, torch.ones(2, 2) * rank]
    check.both("all_reduce_coalesced", dist.all_reduce_coalesced, [several])
    # Functional collectives, which DTensor and compiled programs use.
    import torch.distributed._functional_collectives as functional

    mine = torch.full((2, 3), float(rank))
    whole = torch.cat([torch.full((2, 3), float(other)) for other in range(size)])
    check.same("functional all_gather", functional.all_gather_tensor(mine, 0, check.group), whole)
    check.same("functional all_reduce", functional.all_reduce(mine, "sum", check.group), torch.full((2, 3), float(sum(range(size)))))
    check.same("functional reduce_scatter", functional.reduce_scatter_tensor(whole, "sum", 0, check.group), mine * size)
    found = functional.all_gather_into_tensor_coalesced([mine, mine + 1], check.group)
    check.same("functional all_gather coalesced", found, [whole, whole + 1])
    found = functional.reduce_scatter_tensor_coalesced([whole, whole + 1], "sum", [0, 0], check.group)
    check.same("functional reduce_scatter coalesced", found, [mine * size, (mine + 1) * size])
    # What gloo carries.
    check.both("objects", lambda group: None, [])
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": other} for other in range(size)]
    objects = ["from 0", 1] if rank == 0 else [None, None]
    dist.broadcast_object_list(objects, 0)
    assert objects == ["from 0", 1]
    received = torch.zeros(4)
    if rank == 0:
        dist.send(torch.arange(4.0), 1, tag=3)
    elif rank == 1:
        dist.recv(received, 0, tag=3)
        check.same("recv", received, torch.arange(4.0))
    dist.monitored_barrier(timeout=timedelta(seconds=30))
    sparse = torch.sparse_coo_tensor([[rank]], [1.0], (size,))
    dist.all_reduce(sparse)
    check.same("sparse", sparse.to_dense(), torch.ones(size))
    check.count += 4
    # What cannot be.
    check.refused(ValueError, "cpu", _backend().allreduce, [torch.ones(3, device="meta")], dist.AllreduceOptions())
    check.refused(ValueError, "elements", _backend().all_gather_single, torch.zeros(3), torch.zeros(3), None)
    check.refused(ValueError, "one type", _backend().all_gather_single, torch.zeros(3 * size, dtype=torch.int32), torch.zeros(3), None)
    check.refused(ValueError, "rows", dist.all_to_all_single, torch.zeros(size * 2 + 1), torch.zeros(size * 2 + 1))
    # Several groups at once; their operations do not meet.
    groups = [dist.new_group(list(range(size)), backend="flexcast") for _ in range(3)]
    pending = []
    for turn in range(10):
        for number, group in enumerate(groups if rank % 2 else reversed(groups)):
            tensor = torch.full((100,), float(turn))
            pending.append((turn, tensor, dist.all_reduce(tensor, group=group, async_op=True)))
    for turn, tensor, work in pending:
        work.wait()
        check.same("several groups", tensor, torch.full((100,), float(turn * size)))
    for group in groups:
        dist.destroy_process_group(group)
    check.both("after groups were destroyed", dist.all_reduce, [torch.ones(5)])
    child = os.fork()
    if child == 0:
        try:
            _backend()._communicator.allgather(b"a")
        except flexcast.Forked:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0, "the child of fork() was not refused"
    check.both("after fork", dist.all_reduce, [torch.ones(5)])
    dist.destroy_process_group()
    # Once more, as after a failure that was recovered from.
    os.environ["MASTER_PORT"] = str(int(os.environ["FLEXCAST_STORE"].rsplit(":", 1)[1]) ^ 1)
    _begin()
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    check.same("a second world", tensor, torch.full((2,), float(size)))
    return check.count  # Without destroy_process_group(): the interpreter ends all the same.


def rounds(rank: int, size: int) -> int:
    """Groups that are made and destroyed one after the other, at one port, while the program keeps works of those before."""
    kept = []
    for turn in range(20):
        _begin(timeout=timedelta(seconds=20))
        tensor = torch.full((10,), float(rank + turn))
        kept.append(dist.all_reduce(tensor, async_op=True))
        kept[-1].wait()
        assert (tensor == size * turn + sum(range(size))).all(), tensor
        dist.destroy_process_group()
    return len(kept)


def one_dies(rank: int, size: int) -> int:
    """The group's timeout ends what waits for a rank that is gone."""
    import time

    _begin(timeout=timedelta(seconds=5))
    dist.barrier()
    if rank == size - 1:
        os._exit(7)
    began = time.monotonic()
    try:
        dist.all_reduce(torch.ones(10))
    except Exception as error:
        assert isinstance(error, flexcast.PeerFailed) and "rank 2" in str(error), repr(error)
    else:
        raise AssertionError("an all_reduce without one rank")
    assert time.monotonic() - began < 30
    dist.destroy_process_group()
    return 1


def _backend() -> Any:
    return dist.group.WORLD._get_backend(torch.device("cpu"))


def _begin(timeout: timedelta = timedelta(seconds=60)) -> None:
    import flexcast.torch  # noqa: F401

    torch.set_num_threads(1)
    dist.init_process_group("flexcast", timeout=timeout)


def _train(rank: int, wrap: Callable[[Any], Any], backend: str) -> tuple[list[float], list[Any]]:
    """Losses and parameters of a small model after some steps."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(16, 33), torch.nn.GELU(), torch.nn.LayerNorm(33), torch.nn.Linear(33, 7))
    model = wrap(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(100 + rank)
    losses = []
    for _ in range(6):
        data, target = torch.randn(8, 16, generator=generator), torch.randn(8, 7, generator=generator)
        loss = torch.nn.functional.mse_loss(model(data), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [parameter.detach() for parameter in model.parameters()]


def training(rank: int, size: int) -> int:
    """DDP, FSDP1 and FSDP2 train as with gloo."""
    _begin()
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.nn.parallel import DistributedDataParallel

    check = Conformance(rank, size)

    def sharded(model: Any, group: Any) -> Any:
        mesh = DeviceMesh.from_group(group, "cpu")
        for layer in model:
            fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    wrappers: dict[str, Callable[[Any, Any], Any]] = {
        "DDP": lambda model, group: DistributedDataParallel(model, process_group=group),
        "FSDP1": lambda model, group: FullyShardedDataParallel(model, process_group=group, device_id=torch.device("cpu")),
        "FSDP2": sharded,
    }
    for name, wrap in wrappers.items():
        ours, _ = _train(rank, lambda model: wrap(model, check.group), "flexcast")
        theirs, _ = _train(rank, lambda model: wrap(model, check.gloo), "gloo")
        assert ours[-1] != ours[0] and all(map(lambda one, other: abs(one - other) < 1e-4, ours, theirs)), (name, ours, theirs)
        print(name, "identical" if ours == theirs else "alike", ours, theirs)
        check.count += len(ours)
    dist.destroy_process_group()
    return check.count


@unittest.skipUnless(HAS_TORCH, "no torch: pip install torch")
class Torch(unittest.TestCase):
    """The process group among processes over the datapath `udp` on the loopback interface."""

    def test_conformance_2(self) -> None:
        ranks.run("test_torch:conformance", 2)

    def test_conformance_4(self) -> None:
        ranks.run("test_torch:conformance", 4, limit=240)

    def test_types(self) -> None:
        ranks.run("test_torch:types", 3)

    def test_interface(self) -> None:
        ranks.run("test_torch:interface", 3)

    def test_rounds(self) -> None:
        ranks.run("test_torch:rounds", 3)

    def test_one_dies(self) -> None:
        ranks.run("test_torch:one_dies", 3, expect={2: 7})

    def test_training(self) -> None:
        for line in ranks.run("test_torch:training", 4, limit=240)[0].splitlines():
            if line.startswith(("DDP", "FSDP")):
                print(line.split("[")[0], flush=True)


if __name__ == "__main__":
    unittest.main()
