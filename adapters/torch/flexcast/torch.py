# SPDX-License-Identifier: Apache-2.0
"""Backend of torch.distributed: after `import flexcast.torch`, `init_process_group("flexcast")`.

Collectives on tensors in host memory go by Flexcast. What Flexcast does not take (send and receive, sparse tensors, element types or
operators that it does not know) goes by a gloo process group inside. Which of the two is decided by what is alike on all ranks.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend as C10dBackend
from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo, ReduceOp, Work
from torch.futures import Future

from . import _abi, errors
from .bootstrap import Bootstrap
from .card import Card
from .collectives import _NOWHERE
from .communicator import Communicator
from .request import Request

NAME = "flexcast"

# Longest that one question to the store blocks.
_STORE_WAIT = timedelta(seconds=2)

_TYPES = {
    torch.int8: "int8",
    torch.uint8: "uint8",
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
    torch.complex64: "complex64",
    torch.complex128: "complex128",
}
_OPERATORS = (
    (ReduceOp.SUM, "sum"),
    (ReduceOp.AVG, "avg"),
    (ReduceOp.PRODUCT, "prod"),
    (ReduceOp.MIN, "min"),
    (ReduceOp.MAX, "max"),
    (ReduceOp.BAND, "bit_and"),
    (ReduceOp.BOR, "bit_or"),
    (ReduceOp.BXOR, "bit_xor"),
)


class _Store:
    """A store of c10d as Bootstrap needs it."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def set(self, key: str, value: bytes) -> None:
        self._store.set(key, value)

    def get(self, key: str) -> bytes | None:
        try:
            self._store.wait([key], _STORE_WAIT)
        except RuntimeError:
            # A wait that is over looks the same in all kinds of stores but in its text; a store that is gone fails here, too.
            if not self._store.check([key]):
                return None
        value: bytes = self._store.get(key)
        return value


class _SharedCard:
    """The card of the process, open while a group uses it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._card: Card | None = None
        self._users = 0

    def take(self) -> Card:
        with self._lock:
            if self._card is None:
                self._card = Card.open()
            self._users += 1
            return self._card

    def give_back(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._card is not None:
                self._card.close()
                self._card = None


_card = _SharedCard()


class _Reduction:
    """A reduction that Flexcast takes. The average is a sum that is divided afterwards."""

    def __init__(self, name: str, data_type: int, size: int) -> None:
        self.fields = {"reduction": _abi.REDUCTIONS["sum" if name == "avg" else name], "data_type": data_type}
        self._divisor = size if name == "avg" else None

    def finish(self, tensor: torch.Tensor) -> None:
        if self._divisor is not None:
            tensor.div_(self._divisor)


class FlexcastWork(Work):
    """An operation under way or over. Its wait() raises what failed, which that of a Work made of a future does not."""

    def __init__(self, request: Request | None = None) -> None:
        super().__init__()
        self._request = request
        self._error: BaseException | None = None
        self._source: Future[Any] = Future()
        # An exception that is set stays a value to C++; one that a continuation raises is an error there, too.
        self._future = self._source.then(lambda source: source.value())

    def _succeed(self, result: Any) -> None:
        self._source.set_result(result)

    def _fail(self, error: Any) -> None:
        self._error = error
        self._source.set_exception(error)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits, at most so long if it is not 0."""
        seconds = timeout.total_seconds() if timeout else 0.0
        if seconds > 0 and self._request is not None and self._request.exception() is None:
            self._request.wait(seconds)
        try:
            self._future.wait()
        except RuntimeError:
            if self._error is not None:
                raise self._error from None
            raise
        return True

    def get_future(self) -> Any:
        return self._future

    def is_completed(self) -> bool:
        return self._future.done()

    def is_success(self) -> bool:
        return self._future.done() and self._error is None


class FlexcastBackend(C10dBackend):
    """Process group of Flexcast, with one of gloo inside."""

    supports_coalescing = False

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._rank, self._size = rank, size
        self._communicator: Communicator | None = None
        self._gloo: Any = ProcessGroupGloo(PrefixStore("gloo", store), rank, size, timeout=timeout)
        seconds = timeout.total_seconds()
        bootstrap = Bootstrap.from_store(_Store(PrefixStore("flexcast", store)), rank, size, timeout=seconds)
        nanoseconds = max(1, min(int(seconds * 1e9), 2**62))
        config = {"barrier_timeout_ns": nanoseconds, "recovery_timeout_ns": nanoseconds}
        try:
            card = _card.take()
            try:
                self._communicator = Communicator(bootstrap, card, config=config)
            except BaseException:
                _card.give_back()
                raise
        finally:
            bootstrap.close()

    # What torch asks of every backend.

    def getBackendName(self) -> str:
        return NAME

    def name(self) -> str:
        return NAME

    def _group(self) -> Communicator:
        if self._communicator is None:
            raise errors.Closed("the process group was destroyed before")
        return self._communicator

    def shutdown(self) -> None:
        """Ends the group, when what is under way is over."""
        self._end(Communicator.close)

    def abort(self) -> None:
        """Ends the group at once: what is under way fails, on all ranks."""
        self._end(Communicator.abort)

    def _end(self, how: Callable[[Communicator], None]) -> None:
        communicator, self._communicator = self._communicator, None
        if communicator is not None and communicator._process == os.getpid():
            how(communicator)
            _card.give_back()

    def __del__(self) -> None:
        try:
            self.abort()
        except errors.Error:
            pass

    # How an operation goes.

    def _start(
        self,
        operation: int,
        keep: Sequence[Any],
        result: list[Any],
        forward: Callable[[], Any],
        finish: Callable[[], None] | None = None,
        **fields: Any,
    ) -> Any:
        """Starts an operation, or forwards it, and returns a Work whose result is `result`."""
        collective = _abi.Collective(operation=operation, **fields)
        try:
            request = Request(self._group(), collective, tuple(keep), None)
        except errors.NotSupported:
            return forward()
        work = FlexcastWork(request)

        def over(request: Request) -> None:
            if request.exception() is not None:
                work._fail(request.exception())
                return
            try:
                if finish is not None:
                    with torch.no_grad():
                        finish()
            except Exception as failed:
                work._fail(failed)
            else:
                work._succeed(result)

        request.add_done_callback(over)
        return work

    def _reduction(self, op: Any, dtype: torch.dtype) -> _Reduction | None:
        """None: gloo takes it, or refuses it."""
        name = next((name for operator, name in _OPERATORS if op == operator), None)
        data_type = _TYPES.get(dtype)
        if name is None or data_type is None:
            return None
        number = dtype.is_floating_point or dtype.is_complex
        if name == "avg" and not number or name.startswith("bit_") and number or name in ("min", "max") and dtype.is_complex:
            return None
        return _Reduction(name, _abi.DATA_TYPES[data_type], self._size)

    # Collectives.

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> Any:
        tensor = _one(tensors, "broadcast")
        if _is_sparse(tensor):
            return self._gloo.broadcast(tensors, opts)
        if tensor.nbytes == 0:
            return _done(tensors)
        memory = _contiguous(tensor)
        return self._start(
            _abi.BROADCAST,
            (tensor, memory),
            tensors,
            lambda: self._gloo.broadcast(tensors, opts),
            _copy_out([(tensor, memory)]),
            receive=memory.data_ptr(),
            count=memory.nbytes,
            root=opts.rootRank,
        )

    def allreduce(self, tensors: list[torch.Tensor], opts: Any) -> Any:
        tensor = _one(tensors, "allreduce")
        if _is_sparse(tensor):
            return self._gloo.allreduce(tensors, opts)
        reduction = self._reduction(opts.reduceOp, tensor.dtype)
        if reduction is None:
            return self._gloo.allreduce(tensors, opts)
        if tensor.nbytes == 0:
            return _done(tensors)
        memory = _contiguous(tensor)
        return self._allreduced(memory, tensors, reduction, lambda: self._gloo.allreduce(tensors, opts), _copy_out([(tensor, memory)]))

    def _allreduced(
        self, memory: torch.Tensor, result: list[Any], reduction: _Reduction, forward: Callable[[], Any], copy: Callable[[], None]
    ) -> Any:
        def finish() -> None:
            reduction.finish(memory)
            copy()

        fields = {"send": _abi.IN_PLACE, "receive": memory.data_ptr(), "count": memory.numel(), **reduction.fields}
        return self._start(_abi.ALLREDUCE, (result, memory), result, forward, finish, **fields)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any) -> Any:
        for tensor in tensors:
            _on_host(tensor)
        alike = len({tensor.dtype for tensor in tensors}) == 1 and not any(map(_is_sparse, tensors))
        reduction = self._reduction(opts.reduceOp, tensors[0].dtype) if alike else None
        if reduction is None:
            return self._gloo.allreduce_coalesced(tensors, opts)
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
        if flat.nbytes == 0:
            return _done(tensors)
        copy = _copy_out(list(zip(tensors, _parts(flat, tensors))))
        return self._allreduced(flat, tensors, reduction, lambda: self._gloo.allreduce_coalesced(tensors, opts), copy)

    def allreduce_sparse(self, tensors: list[torch.Tensor], opts: Any) -> Any:
        return self._gloo.allreduce(tensors, opts)

    def reduce(self, tensors: list[torch.Tensor], opts: Any) -> Any:
        tensor = _one(tensors, "reduce")
        reduction = None if _is_sparse(tensor) else self._reduction(opts.reduceOp, tensor.dtype)
        if reduction is None:
            return self._gloo.reduce(tensors, opts)
        if tensor.nbytes == 0:
            return _done(tensors)
        memory = _contiguous(tensor)
        pointer = memory.data_ptr()
        fields = {"send": pointer, "count": memory.numel(), "root": opts.rootRank, **reduction.fields}
        finish = None
        if self._rank == opts.rootRank:
            fields |= {"send": _abi.IN_PLACE, "receive": pointer}
            copy = _copy_out([(tensor, memory)])

            def finish() -> None:
                reduction.finish(memory)
                copy()

        return self._start(_abi.REDUCE, (tensor, memory), tensors, lambda: self._gloo.reduce(tensors, opts), finish, **fields)

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> Any:
        _dense("all_gather_single", output, input)
        _fits("all_gather_single", output, self._size * input.numel(), "output")
        _same_type(output, input)
        if input.nbytes == 0:
            return _done([output])
        send, receive = input.contiguous(), _memory_of(output)
        return self._start(
            _abi.ALLGATHER,
            (input, output, send, receive),
            [output],
            lambda: self._gloo._allgather_base(output, input, opts),
            _copy_out([(output, receive)]),
            send=self._sent(send, receive, self._rank * send.nbytes),
            receive=receive.data_ptr(),
            count=send.nbytes,
        )

    _allgather_base = all_gather_single

    def _sent(self, send: torch.Tensor, receive: torch.Tensor, place: int) -> int:
        """What is sent: in place, if the own part lies where it is received."""
        pointer = send.data_ptr()
        assert _abi.IN_PLACE is not None
        return _abi.IN_PLACE if pointer == receive.data_ptr() + place else pointer

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any) -> Any:
        input, parts = _one(inputs, "allgather"), _one_list(outputs, self._size, "allgather")
        _dense("allgather", input, *parts)
        for part in parts:
            _same_type(part, input)
        _fits("allgather", parts[self._rank], input.numel(), f"output {self._rank}")
        counts = [part.nbytes for part in parts]
        if sum(counts) == 0:
            return _done(outputs)
        receive, copy = _gathered(parts, input)
        send = input.contiguous()
        forward: Callable[[], Any] = lambda: self._gloo.allgather(outputs, inputs, opts)
        keep = (input, send, receive, parts)
        fields: dict[str, Any] = {"send": send.data_ptr() or _NOWHERE, "receive": receive.data_ptr()}
        if len(set(counts)) == 1:
            fields["send"] = self._sent(send, receive, self._rank * counts[0])
            return self._start(_abi.ALLGATHER, keep, outputs, forward, copy, count=counts[0], **fields)
        return self._start(_abi.ALLGATHERV, keep, outputs, forward, copy, receive_counts=self._sizes(counts), **fields)

    def allgather_coalesced(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any) -> Any:
        # outputs[i][r] is the i-th tensor of rank r.
        return _all([self.allgather([parts], [input], opts) for parts, input in zip(outputs, inputs)], outputs)

    def all_gather_single_coalesced(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any) -> Any:
        return _all([self.all_gather_single(output, input, opts) for output, input in zip(outputs, inputs)], outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> Any:
        _dense("reduce_scatter_single", output, input)
        _fits("reduce_scatter_single", input, self._size * output.numel(), "input")
        _same_type(output, input)
        reduction = self._reduction(opts.reduceOp, input.dtype)
        forward: Callable[[], Any] = lambda: self._gloo._reduce_scatter_base(output, input, opts)
        if reduction is None:
            return forward()
        return self._reduce_scattered(output, input, None, reduction, [output], forward)

    _reduce_scatter_base = reduce_scatter_single

    def _reduce_scattered(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        counts: list[int] | None,
        reduction: _Reduction,
        result: list[torch.Tensor],
        forward: Callable[[], Any],
    ) -> Any:
        if input.nbytes == 0:
            return _done(result)
        send, receive = input.contiguous(), _memory_of(output)
        first, end = send.data_ptr(), send.data_ptr() + send.nbytes
        if receive.nbytes and first < receive.data_ptr() + receive.nbytes and receive.data_ptr() < end:
            # The result may be a part of the input: then it comes into memory of its own first.
            receive = torch.empty_like(receive)
        copy = _copy_out([(output, receive)])

        def finish() -> None:
            reduction.finish(receive)
            copy()

        fields: dict[str, Any] = {"send": first, "receive": receive.data_ptr() or _NOWHERE, **reduction.fields}
        keep = (output, input, send, receive)
        if counts is None:
            return self._start(_abi.REDUCE_SCATTER_BLOCK, keep, result, forward, finish, count=receive.numel(), **fields)
        return self._start(_abi.REDUCE_SCATTER, keep, result, forward, finish, receive_counts=self._sizes(counts), **fields)

    def reduce_scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any) -> Any:
        output, parts = _one(outputs, "reduce_scatter"), _one_list(inputs, self._size, "reduce_scatter")
        _dense("reduce_scatter", output, *parts)
        for part in parts:
            _same_type(part, output)
        _fits("reduce_scatter", output, parts[self._rank].numel(), "output")
        forward: Callable[[], Any] = lambda: self._gloo.reduce_scatter(outputs, inputs, opts)
        reduction = self._reduction(opts.reduceOp, output.dtype)
        if reduction is None:
            return forward()
        counts = [part.numel() for part in parts]
        flat = torch.cat([part.detach().reshape(-1) for part in parts])
        return self._reduce_scattered(output, flat, None if len(set(counts)) == 1 else counts, reduction, outputs, forward)

    def reduce_scatter_single_coalesced(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any) -> Any:
        return _all([self.reduce_scatter_single(output, input, opts) for output, input in zip(outputs, inputs)], outputs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def all_to_all_single(
        self, output: torch.Tensor, input: torch.Tensor, output_splits: list[int], input_splits: list[int], opts: Any
    ) -> Any:
        _dense("all_to_all_single", output, input)
        _same_type(output, input)
        sending = self._split(input, input_splits, "input")
        receiving = self._split(output, output_splits, "output")
        # A rank with nothing to send or receive takes part: it cannot know of the others.
        send, receive = input.contiguous(), _memory_of(output)
        if send.nbytes and send.data_ptr() == receive.data_ptr():
            send = send.clone()
        forward: Callable[[], Any] = lambda: self._gloo.alltoall_base(output, input, output_splits, input_splits, opts)
        return self._exchanged([output], send, sending, receive, receiving, (input, output), forward, _copy_out([(output, receive)]))

    alltoall_base = all_to_all_single

    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any) -> Any:
        for tensors, what in ((outputs, "output"), (inputs, "input")):
            if len(tensors) != self._size:
                raise ValueError(f"flexcast: alltoall: {len(tensors)} {what} tensors: {self._size} are needed, one for each rank")
        _dense("alltoall", *outputs, *inputs)
        for tensor in outputs + inputs:
            _same_type(tensor, outputs[0])
        send = torch.cat([tensor.detach().reshape(-1) for tensor in inputs])
        receive, copy = _gathered(outputs, send)
        sending, receiving = [tensor.nbytes for tensor in inputs], [tensor.nbytes for tensor in outputs]
        forward: Callable[[], Any] = lambda: self._gloo.alltoall(outputs, inputs, opts)
        return self._exchanged(outputs, send, sending, receive, receiving, (inputs, outputs), forward, copy)

    def _exchanged(
        self,
        result: list[torch.Tensor],
        send: torch.Tensor,
        sending: list[int],
        receive: torch.Tensor,
        receiving: list[int],
        keep: tuple[Any, ...],
        forward: Callable[[], Any],
        finish: Callable[[], None],
    ) -> Any:
        return self._start(
            _abi.ALLTOALLV,
            (send, receive, *keep),
            result,
            forward,
            finish,
            send=send.data_ptr() or _NOWHERE,
            send_counts=self._sizes(sending),
            send_displacements=self._sizes(_starts(sending)),
            receive=receive.data_ptr() or _NOWHERE,
            receive_counts=self._sizes(receiving),
            receive_displacements=self._sizes(_starts(receiving)),
        )

    def _split(self, tensor: torch.Tensor, splits: list[int], what: str) -> list[int]:
        """Bytes of each rank's part: splits are along the first dimension."""
        rows = tensor.size(0) if tensor.dim() else tensor.numel()
        if not splits:
            if rows % self._size:
                raise ValueError(f"flexcast: all_to_all_single: {what} of {rows} rows cannot be parted among {self._size} ranks alike")
            splits = [rows // self._size] * self._size
        if len(splits) != self._size or sum(splits) != rows or min(splits) < 0:
            raise ValueError(f"flexcast: all_to_all_single: {what} splits {splits}: {self._size} numbers that add up to {rows} are needed")
        row = tensor.nbytes // rows if rows else 0
        return [split * row for split in splits]

    def _sizes(self, numbers: Sequence[int]) -> Any:
        return (ctypes.c_size_t * self._size)(*numbers)

    def gather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any) -> Any:
        input = _one(inputs, "gather")
        _dense("gather", input)
        send = input.contiguous()
        fields: dict[str, Any] = {"send": send.data_ptr(), "count": send.nbytes, "root": opts.rootRank}
        keep: tuple[Any, ...] = (input, send)
        copy = None
        if self._rank == opts.rootRank:
            parts = _one_list(outputs, self._size, "gather")
            _dense("gather", *parts)
            for rank, part in enumerate(parts):
                _same_type(part, input)
                _fits("gather", part, input.numel(), f"output {rank}")
            receive, copy = _gathered(parts, input)
            fields["receive"] = receive.data_ptr()
            keep += (parts, receive)
        elif outputs:
            raise ValueError(f"flexcast: gather: rank {self._rank} has outputs, and only the root {opts.rootRank} receives")
        if input.nbytes == 0:
            return _done(outputs)
        return self._start(_abi.GATHER, keep, outputs, lambda: self._gloo.gather(outputs, inputs, opts), copy, **fields)

    def scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any) -> Any:
        output = _one(outputs, "scatter")
        _dense("scatter", output)
        receive = _memory_of(output)
        fields: dict[str, Any] = {"receive": receive.data_ptr(), "count": receive.nbytes, "root": opts.rootRank}
        keep: tuple[Any, ...] = (output, receive)
        if self._rank == opts.rootRank:
            parts = _one_list(inputs, self._size, "scatter")
            _dense("scatter", *parts)
            for rank, part in enumerate(parts):
                _same_type(part, output)
                _fits("scatter", part, output.numel(), f"input {rank}")
            send = torch.cat([part.detach().reshape(-1) for part in parts])
            fields["send"] = send.data_ptr()
            keep += (send,)
        elif inputs:
            raise ValueError(f"flexcast: scatter: rank {self._rank} has inputs, and only the root {opts.rootRank} sends")
        if output.nbytes == 0:
            return _done(outputs)
        finish = _copy_out([(output, receive)])
        return self._start(_abi.SCATTER, keep, outputs, lambda: self._gloo.scatter(outputs, inputs, opts), finish, **fields)

    def barrier(self, opts: Any) -> Any:
        return self._start(_abi.BARRIER, (), [], lambda: self._gloo.barrier(opts))

    # What gloo carries.

    def send(self, tensors: list[torch.Tensor], destination: int, tag: int) -> Any:
        return self._gloo.send(tensors, destination, tag)

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int) -> Any:
        return self._gloo.recv(tensors, source, tag)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int) -> Any:
        return self._gloo.recv_anysource(tensors, tag)

    def monitored_barrier(self, opts: Any, wait_all_ranks: bool = False) -> None:
        self._gloo.monitored_barrier(opts.timeout, wait_all_ranks)

    def _set_sequence_number_for_group(self) -> None:
        self._gloo._set_sequence_number_for_group()

    def _get_sequence_number_for_group(self) -> int:
        number: int = self._gloo._get_sequence_number_for_group()
        return number


def _done(result: Any) -> FlexcastWork:
    """A Work that is over: there was nothing to do, on any rank."""
    work = FlexcastWork()
    work._succeed(result)
    return work


def _all(works: list[Any], result: Any) -> FlexcastWork:
    """A Work that is over when all are."""
    whole = FlexcastWork()

    def over(waited: Any) -> None:
        try:
            for future in waited.value():
                future.value()
        except Exception as failed:
            whole._fail(failed)
        else:
            whole._succeed(result)

    torch.futures.collect_all([work.get_future() for work in works]).then(over)
    return whole


def _one(tensors: list[torch.Tensor], what: str) -> torch.Tensor:
    if len(tensors) != 1:
        raise ValueError(f"flexcast: {what}: {len(tensors)} tensors: one for each rank is needed")
    _on_host(tensors[0])
    return tensors[0]


def _one_list(lists: list[list[torch.Tensor]], size: int, what: str) -> list[torch.Tensor]:
    if len(lists) != 1 or len(lists[0]) != size:
        raise ValueError(f"flexcast: {what}: lists of {[len(parts) for parts in lists]} tensors: one list of {size} is needed, a tensor for each rank")
    return lists[0]


def _on_host(tensor: torch.Tensor) -> None:
    if tensor.device.type != "cpu":
        raise ValueError(f"flexcast: a tensor is on {tensor.device}: this backend takes tensors in host memory (cpu) alone")


def _is_sparse(tensor: torch.Tensor) -> bool:
    return tensor.layout is not torch.strided


def _dense(what: str, *tensors: torch.Tensor) -> None:
    for tensor in tensors:
        _on_host(tensor)
        if _is_sparse(tensor):
            raise ValueError(f"flexcast: {what}: a tensor of layout {tensor.layout}: only dense ones are taken")


def _fits(what: str, tensor: torch.Tensor, elements: int, name: str) -> None:
    if tensor.numel() != elements:
        raise ValueError(f"flexcast: {what}: {name} has {tensor.numel()} elements: {elements} are needed")


def _same_type(tensor: torch.Tensor, other: torch.Tensor) -> None:
    if tensor.dtype != other.dtype:
        raise ValueError(f"flexcast: tensors of {tensor.dtype} and {other.dtype}: one operation takes one type")


def _contiguous(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's memory with its contents, or a copy if it is not contiguous."""
    return tensor.detach().contiguous()


def _memory_of(output: torch.Tensor) -> torch.Tensor:
    """Memory to receive into: the tensor's own if it is contiguous."""
    return output.detach() if output.is_contiguous() else torch.empty(output.shape, dtype=output.dtype)


def _copy_out(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> Callable[[], None]:
    """Copies what was received to tensors that were not received into."""
    needed = [(to, source) for to, source in pairs if to.numel() and to.data_ptr() != source.data_ptr()]

    def copy() -> None:
        for to, source in needed:
            to.detach().copy_(source.view(to.shape))

    return copy


def _parts(flat: torch.Tensor, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Parts of a flat tensor, each as long as one of `like`."""
    return list(torch.split(flat, [tensor.numel() for tensor in like]))


def _gathered(parts: list[torch.Tensor], like: torch.Tensor) -> tuple[torch.Tensor, Callable[[], None]]:
    """Memory for all parts one after another: their own, if they lie like that; and what copies it to them otherwise."""
    total = sum(part.numel() for part in parts)
    first = parts[0]
    place = first.data_ptr()
    for part in parts:
        if not part.is_contiguous() or part.data_ptr() != place or part.nbytes == 0:
            break
        place += part.nbytes
    else:
        if first.untyped_storage().data_ptr() + first.untyped_storage().nbytes() >= place:
            return first.detach().as_strided((total,), (1,)), lambda: None
    flat = torch.empty(total, dtype=like.dtype)
    return flat, _copy_out(list(zip(parts, _parts(flat, parts))))


def _starts(sizes: list[int]) -> list[int]:
    return [sum(sizes[:rank]) for rank in range(len(sizes))]


def _create(store: Any, rank: int, size: int, timeout: timedelta) -> FlexcastBackend:
    return FlexcastBackend(store, rank, size, timeout)


def register() -> None:
    """Makes the backend known to torch.distributed; again: nothing. Importing this module does it."""
    if NAME.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(NAME, _create, devices=["cpu"])


register()
