# SPDX-License-Identifier: Apache-2.0
"""Collectives that move bytes: broadcast, all-gather, all-to-all, gather, scatter, and the barrier."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._C._distributed_c10d import AllgatherOptions, BarrierOptions

from .. import _abi, errors
from .._arguments import NOWHERE
from .base import Base
from .lengths import Lengths
from .tensors import contiguous, copy_out, dense, fits, gathered, is_sparse, memory_of, one, one_list, same_type, starts
from .work import all_of, done


class Moving(Base):
    """The collectives that move bytes. Releases of torch differ in which of them are called without options."""

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> Any:
        tensor = one(tensors, "broadcast")
        if is_sparse(tensor):
            return self._gloo.broadcast(tensors, opts)
        if tensor.nbytes == 0:
            return done(tensors)
        memory = contiguous(tensor)
        # The root's tensor is only read.
        copy = None if self._rank == opts.rootRank else copy_out([(tensor, memory)])
        return self._start(
            _abi.BROADCAST,
            (tensor, memory),
            tensors,
            lambda: self._gloo.broadcast(tensors, opts),
            copy,
            opts=opts,
            receive=memory.data_ptr(),
            count=memory.nbytes,
            root=opts.rootRank,
        )

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Any:
        dense("all_gather_single", output, input)
        fits("all_gather_single", output, self._size * input.numel(), "output")
        same_type(output, input)
        if input.nbytes == 0:
            return done([output])
        send, receive = input.contiguous(), memory_of(output)
        return self._start(
            _abi.ALLGATHER,
            (input, output, send, receive),
            [output],
            lambda: self._gloo._allgather_base(output, input, opts or AllgatherOptions()),
            copy_out([(output, receive)]),
            opts=opts,
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

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None) -> Any:
        input, parts = one(inputs, "allgather"), one_list(outputs, self._size, "allgather")
        dense("allgather", input, *parts)
        for part in parts:
            same_type(part, input)
        fits("allgather", parts[self._rank], input.numel(), f"output {self._rank}")
        counts = [part.nbytes for part in parts]
        if sum(counts) == 0:
            return done(outputs)
        receive, copy = gathered(parts, input)
        send = input.contiguous()
        forward: Callable[[], Any] = lambda: self._gloo.allgather(outputs, inputs, opts or AllgatherOptions())
        keep = (input, send, receive, parts)
        fields: dict[str, Any] = {"send": send.data_ptr() or NOWHERE, "receive": receive.data_ptr()}
        if len(set(counts)) == 1:
            fields["send"] = self._sent(send, receive, self._rank * counts[0])
            return self._start(_abi.ALLGATHER, keep, outputs, forward, copy, opts=opts, count=counts[0], **fields)
        return self._start(_abi.ALLGATHERV, keep, outputs, forward, copy, opts=opts, receive_counts=self._sizes(counts), **fields)

    def allgather_coalesced(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None) -> Any:
        # outputs[i][r] is the i-th tensor of rank r.
        return all_of([self.allgather([parts], [input], opts) for parts, input in zip(outputs, inputs)], outputs)

    def all_gather_single_coalesced(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None) -> Any:
        return all_of([self.all_gather_single(output, input, opts) for output, input in zip(outputs, inputs)], outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def all_to_all_single(
        self, output: torch.Tensor, input: torch.Tensor, output_splits: list[int], input_splits: list[int], opts: Any
    ) -> Any:
        dense("all_to_all_single", output, input)
        same_type(output, input)
        sending = self._split(input, input_splits, "input")
        receiving = self._split(output, output_splits, "output")
        # A rank with nothing to send or receive takes part: it cannot know of the others.
        send, receive = input.contiguous(), memory_of(output)
        if send.nbytes and send.data_ptr() == receive.data_ptr():
            send = send.clone()
        forward: Callable[[], Any] = lambda: self._gloo.alltoall_base(output, input, output_splits, input_splits, opts)
        finish = copy_out([(output, receive)])
        return self._exchanged("all_to_all_single", [output], send, sending, receive, receiving, (input, output), forward, finish, opts)

    alltoall_base = all_to_all_single

    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any) -> Any:
        for tensors, what in ((outputs, "output"), (inputs, "input")):
            if len(tensors) != self._size:
                raise ValueError(f"flexcast: alltoall: {len(tensors)} {what} tensors: {self._size} are needed, one for each rank")
        dense("alltoall", *outputs, *inputs)
        for tensor in outputs + inputs:
            same_type(tensor, outputs[0])
        send = torch.cat([tensor.detach().reshape(-1) for tensor in inputs])
        receive, copy = gathered(outputs, send)
        sending, receiving = [tensor.nbytes for tensor in inputs], [tensor.nbytes for tensor in outputs]
        forward: Callable[[], Any] = lambda: self._gloo.alltoall(outputs, inputs, opts)
        return self._exchanged("all_to_all", outputs, send, sending, receive, receiving, (inputs, outputs), forward, copy, opts)

    def _exchanged(
        self,
        what: str,
        result: list[torch.Tensor],
        send: torch.Tensor,
        sending: list[int],
        receive: torch.Tensor,
        receiving: list[int],
        keep: tuple[Any, ...],
        forward: Callable[[], Any],
        finish: Callable[[], None],
        opts: Any,
    ) -> Any:
        # Of a block only its two ranks know the length. All ranks compare all lengths, so that a mistake fails on each
        # of them, with its numbers.
        try:
            lengths = Lengths(self._group(), self._size, sending, receiving)
        except errors.NotSupported:
            return forward()
        send_places, receive_places = self._sizes(starts(sending)), self._sizes(starts(receiving))
        if sending[self._rank] != receiving[self._rank]:
            # The library would refuse it here, and the others would wait: without that block it is carried out, and
            # fails by its lengths.
            sending, receiving = list(sending), list(receiving)
            sending[self._rank] = receiving[self._rank] = 0
        return self._start(
            _abi.ALLTOALLV,
            (send, receive, *keep),
            result,
            forward,
            finish,
            opts=opts,
            send=send.data_ptr() or NOWHERE,
            send_counts=self._sizes(sending),
            send_displacements=send_places,
            receive=receive.data_ptr() or NOWHERE,
            receive_counts=self._sizes(receiving),
            receive_displacements=receive_places,
            before=lengths.request,
            verify=lambda: lengths.verify(what),
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

    def gather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any) -> Any:
        input = one(inputs, "gather")
        dense("gather", input)
        send = input.contiguous()
        fields: dict[str, Any] = {"send": send.data_ptr(), "count": send.nbytes, "root": opts.rootRank}
        keep: tuple[Any, ...] = (input, send)
        copy = None
        if self._rank == opts.rootRank:
            parts = one_list(outputs, self._size, "gather")
            dense("gather", *parts)
            for rank, part in enumerate(parts):
                same_type(part, input)
                fits("gather", part, input.numel(), f"output {rank}")
            receive, copy = gathered(parts, input)
            fields["receive"] = receive.data_ptr()
            keep += (parts, receive)
        elif outputs:
            raise ValueError(f"flexcast: gather: rank {self._rank} has outputs, and only the root {opts.rootRank} receives")
        if input.nbytes == 0:
            return done(outputs)
        return self._start(_abi.GATHER, keep, outputs, lambda: self._gloo.gather(outputs, inputs, opts), copy, opts=opts, **fields)

    def scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any) -> Any:
        output = one(outputs, "scatter")
        dense("scatter", output)
        receive = memory_of(output)
        fields: dict[str, Any] = {"receive": receive.data_ptr(), "count": receive.nbytes, "root": opts.rootRank}
        keep: tuple[Any, ...] = (output, receive)
        if self._rank == opts.rootRank:
            parts = one_list(inputs, self._size, "scatter")
            dense("scatter", *parts)
            for rank, part in enumerate(parts):
                same_type(part, output)
                fits("scatter", part, output.numel(), f"input {rank}")
            send = torch.cat([part.detach().reshape(-1) for part in parts])
            fields["send"] = send.data_ptr()
            keep += (send,)
        elif inputs:
            raise ValueError(f"flexcast: scatter: rank {self._rank} has inputs, and only the root {opts.rootRank} sends")
        if output.nbytes == 0:
            return done(outputs)
        finish = copy_out([(output, receive)])
        return self._start(_abi.SCATTER, keep, outputs, lambda: self._gloo.scatter(outputs, inputs, opts), finish, opts=opts, **fields)

    def barrier(self, opts: Any = None) -> Any:
        return self._start(_abi.BARRIER, (), [], lambda: self._gloo.barrier(opts or BarrierOptions()), opts=opts)
