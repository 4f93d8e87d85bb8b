# SPDX-License-Identifier: Apache-2.0
"""torch.distributed of the stub: checks and calls as torch makes them, from a program's call to the backend's method."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from ._C import _distributed_c10d as _c10d
from ._C._distributed_c10d import AllreduceOptions, BroadcastOptions, FileStore, PrefixStore, ProcessGroup, ReduceOp, Store, Work
from ._tensor import Tensor, device

__all__ = ["AllreduceOptions", "BroadcastOptions", "FileStore", "ReduceOp", "Store", "Work"]


class Backend(str):
    """Names of backends, and who makes them."""

    _BackendPlugin = namedtuple("_BackendPlugin", ["creator_fn", "extended_api"])
    _plugins: dict[str, Any] = {}

    @classmethod
    def register_backend(cls, name: str, func: Callable[..., Any], extended_api: bool = False, devices: list[str] | None = None) -> None:
        """A name that is there already goes over to the new one, without a word: that is torch's way."""
        cls._plugins[name.upper()] = cls._BackendPlugin(func, extended_api)


group = SimpleNamespace(WORLD=None)
_names: dict[Any, str] = {}


def init_process_group(backend: str, *, timeout: timedelta = timedelta(minutes=30), store: Store, rank: int, world_size: int) -> None:
    if group.WORLD is not None:
        raise ValueError("trying to initialize the default process group twice!")
    if backend.upper() not in Backend._plugins:
        raise ValueError(f"Unknown backend name {backend}")
    creator = Backend._plugins[backend.upper()].creator_fn
    made = creator(PrefixStore("default_pg", store), rank, world_size, timeout)
    world = ProcessGroup(rank, world_size)
    world._register_backend(device("cpu"), ProcessGroup.BackendType.CUSTOM, made)
    group.WORLD = world
    _names[world] = backend.lower()


def destroy_process_group() -> None:
    world, group.WORLD = _world(), None
    del _names[world]
    world.shutdown()


def _world() -> ProcessGroup:
    if group.WORLD is None:
        raise ValueError("Default process group has not been initialized, please make sure to call init_process_group.")
    world: ProcessGroup = group.WORLD
    return world


def get_backend() -> str:
    return _names[_world()]


def get_rank() -> int:
    return _world().rank()


def get_world_size() -> int:
    return _world().size()


def _call(method: str, tensor: Tensor | None, async_op: bool, *arguments: Any) -> Work | None:
    """The way through C++: what comes back is held there."""
    backend = _world()._get_backend(device("cpu") if tensor is None else tensor.device)
    work = _c10d.WorkHolder(getattr(backend, method)(*arguments))
    if async_op:
        return work
    work.wait()
    return None


def _options(kind: type[Any], async_op: bool, **fields: Any) -> Any:
    opts = kind()
    opts.asyncOp = async_op
    for name, value in fields.items():
        setattr(opts, name, value)
    return opts


def _same_type(*tensors: Any) -> None:
    flat = [one for tensor in tensors for one in (tensor if isinstance(tensor, list) else [tensor])]
    if len({one.dtype for one in flat}) > 1:
        raise ValueError("Invalid usage of tensors with different dtypes")


def broadcast(tensor: Tensor, src: int = 0, async_op: bool = False) -> Work | None:
    return _call("broadcast", tensor, async_op, [tensor], _options(BroadcastOptions, async_op, rootRank=src))


def all_reduce(tensor: Tensor, op: Any = ReduceOp.SUM, async_op: bool = False) -> Work | None:
    return _call("allreduce", tensor, async_op, [tensor], _options(AllreduceOptions, async_op, reduceOp=op))


def reduce(tensor: Tensor, dst: int = 0, op: Any = ReduceOp.SUM, async_op: bool = False) -> Work | None:
    return _call("reduce", tensor, async_op, [tensor], _options(_c10d.ReduceOptions, async_op, reduceOp=op, rootRank=dst))


def all_gather(tensor_list: list[Tensor], tensor: Tensor, async_op: bool = False) -> Work | None:
    _same_type(tensor_list, tensor)
    return _call("allgather", tensor, async_op, [tensor_list], [tensor], _options(_c10d.AllgatherOptions, async_op))


def all_gather_into_tensor(output: Tensor, input: Tensor, async_op: bool = False) -> Work | None:
    return _call("all_gather_single", input, async_op, output, input, _options(_c10d.AllgatherOptions, async_op))


def reduce_scatter(output: Tensor, input_list: list[Tensor], op: Any = ReduceOp.SUM, async_op: bool = False) -> Work | None:
    _same_type(output, input_list)
    return _call("reduce_scatter", output, async_op, [output], [input_list], _options(_c10d.ReduceScatterOptions, async_op, reduceOp=op))


def reduce_scatter_tensor(output: Tensor, input: Tensor, op: Any = ReduceOp.SUM, async_op: bool = False) -> Work | None:
    return _call("reduce_scatter_single", input, async_op, output, input, _options(_c10d.ReduceScatterOptions, async_op, reduceOp=op))


def all_to_all_single(
    output: Tensor,
    input: Tensor,
    output_split_sizes: list[int] | None = None,
    input_split_sizes: list[int] | None = None,
    async_op: bool = False,
) -> Work | None:
    _same_type(output, input)
    opts = _options(_c10d.AllToAllOptions, async_op)
    return _call("all_to_all_single", input, async_op, output, input, output_split_sizes or [], input_split_sizes or [], opts)


def all_to_all(output_tensor_list: list[Tensor], input_tensor_list: list[Tensor], async_op: bool = False) -> Work | None:
    _same_type(output_tensor_list, input_tensor_list)
    return _call("alltoall", input_tensor_list[0], async_op, output_tensor_list, input_tensor_list, _options(_c10d.AllToAllOptions, async_op))


def gather(tensor: Tensor, gather_list: list[Tensor] | None = None, dst: int = 0, async_op: bool = False) -> Work | None:
    _same_type(tensor, gather_list or [])
    outputs = [gather_list or []] if get_rank() == dst else []
    return _call("gather", tensor, async_op, outputs, [tensor], _options(_c10d.GatherOptions, async_op, rootRank=dst))


def scatter(tensor: Tensor, scatter_list: list[Tensor] | None = None, src: int = 0, async_op: bool = False) -> Work | None:
    _same_type(tensor, scatter_list or [])
    inputs = [scatter_list or []] if get_rank() == src else []
    return _call("scatter", tensor, async_op, [tensor], inputs, _options(_c10d.ScatterOptions, async_op, rootRank=src))


def barrier(async_op: bool = False) -> Work | None:
    return _call("barrier", None, async_op, _options(_c10d.BarrierOptions, async_op, device=device("cpu")))


def send(tensor: Tensor, dst: int, tag: int = 0) -> None:
    _call("send", tensor, False, [tensor], dst, tag)


def recv(tensor: Tensor, src: int, tag: int = 0) -> int:
    _call("recv", tensor, False, [tensor], src, tag)
    return src
