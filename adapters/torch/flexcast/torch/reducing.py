# SPDX-License-Identifier: Apache-2.0
"""Collectives that reduce: all-reduce, reduce, reduce-scatter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._C._distributed_c10d import AllreduceOptions

from .. import _abi
from .._arguments import NOWHERE
from .base import Base
from .reductions import OPERATORS, TYPES, NotReduced, Reduction, name_of
from .tensors import contiguous, copy_out, dense, fits, is_sparse, memory_of, on_host, one, one_list, parts_of, same_type
from .work import all_of, done


class Reducing(Base):
    """The collectives that reduce."""

    def _reduction(self, what: str, op: Any, dtype: torch.dtype) -> Reduction | None:
        """None for truth values, which gloo takes.

        What neither takes is refused here, on all ranks alike: gloo would say so by itself, without type and operator.
        """
        name = next((name for operator, name in OPERATORS if op == operator), None)
        data_type = TYPES.get(dtype)
        number = dtype.is_floating_point or dtype.is_complex
        ordered = name in ("min", "max")
        is_undefined = name is not None and (
            name == "avg" and not number or name.startswith("bit_") and number or ordered and dtype.is_complex
        )
        if name is None or is_undefined or data_type is None and dtype is not torch.bool:
            raise NotReduced(
                f"flexcast: {what} of {dtype} by {name_of(op)}: neither Flexcast nor gloo reduces this type by this operator: "
                "convert the tensor, or use another operator"
            )
        return None if data_type is None else Reduction(name, _abi.DATA_TYPES[data_type], self._size)

    def allreduce(self, tensors: list[torch.Tensor], opts: Any) -> Any:
        tensor = one(tensors, "allreduce")
        if is_sparse(tensor):
            return self._gloo.allreduce(tensors, opts)
        reduction = self._reduction("all_reduce", opts.reduceOp, tensor.dtype)
        if reduction is None:
            return self._gloo.allreduce(tensors, opts)
        if tensor.nbytes == 0:
            return done(tensors)
        memory = contiguous(tensor)
        return self._allreduced(memory, tensors, reduction, lambda: self._gloo.allreduce(tensors, opts), copy_out([(tensor, memory)]), opts)

    def _allreduced(
        self,
        memory: torch.Tensor,
        result: list[Any],
        reduction: Reduction,
        forward: Callable[[], Any],
        copy: Callable[[], None],
        opts: Any,
        operation: int = _abi.ALLREDUCE,
        **sizes: int,
    ) -> Any:
        def finish() -> None:
            reduction.finish(memory)
            copy()

        fields = {"send": _abi.IN_PLACE, "receive": memory.data_ptr(), "count": memory.numel(), **reduction.fields}
        return self._start(operation, (result, memory), result, forward, finish, opts=opts, **fields, **sizes)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any) -> Any:
        for tensor in tensors:
            on_host(tensor)
        alike = len({tensor.dtype for tensor in tensors}) == 1 and not any(map(is_sparse, tensors))
        reduction = self._reduction("all_reduce_coalesced", opts.reduceOp, tensors[0].dtype) if alike else None
        if reduction is None:
            return self._gloo.allreduce_coalesced(tensors, opts)
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
        if flat.nbytes == 0:
            return done(tensors)
        copy = copy_out(list(zip(tensors, parts_of(flat, tensors))))
        return self._allreduced(flat, tensors, reduction, lambda: self._gloo.allreduce_coalesced(tensors, opts), copy, opts)

    def allreduce_zeros(self, tensor: torch.Tensor, block_bytes: int = 0, blocks_per_message: int = 0) -> Any:
        """The sum of dense tensors of which much is zero: blocks of zeros are neither sent nor summed. In place, as a Work.

        By the datapath udp; where another one is used, and for types that Flexcast does not sum, it is an all_reduce.
        """
        tensors, opts = [tensor], AllreduceOptions()
        dense("allreduce_zeros", tensor)
        reduction = self._reduction("allreduce_zeros", opts.reduceOp, tensor.dtype)
        forward: Callable[[], Any] = lambda: self.allreduce(tensors, opts)
        if reduction is None or tensor.nbytes == 0:
            return forward()
        memory = contiguous(tensor)
        sizes = {"block_bytes": block_bytes, "blocks_per_message": blocks_per_message}
        copy = copy_out([(tensor, memory)])
        return self._allreduced(memory, tensors, reduction, forward, copy, opts, _abi.SPARSE_ALLREDUCE, **sizes)

    def allreduce_sparse(self, tensors: list[torch.Tensor], opts: Any) -> Any:
        return self._gloo.allreduce(tensors, opts)

    def reduce(self, tensors: list[torch.Tensor], opts: Any) -> Any:
        tensor = one(tensors, "reduce")
        if is_sparse(tensor):
            return self._gloo.reduce(tensors, opts)
        reduction = self._reduction("reduce", opts.reduceOp, tensor.dtype)
        if reduction is None:
            return self._gloo.reduce(tensors, opts)
        if tensor.nbytes == 0:
            return done(tensors)
        memory = contiguous(tensor)
        pointer = memory.data_ptr()
        fields = {"send": pointer, "count": memory.numel(), "root": opts.rootRank, **reduction.fields}
        finish = None
        if self._rank == opts.rootRank:
            fields |= {"send": _abi.IN_PLACE, "receive": pointer}
            copy = copy_out([(tensor, memory)])

            def finish() -> None:
                reduction.finish(memory)
                copy()

        return self._start(_abi.REDUCE, (tensor, memory), tensors, lambda: self._gloo.reduce(tensors, opts), finish, opts=opts, **fields)

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> Any:
        dense("reduce_scatter_single", output, input)
        fits("reduce_scatter_single", input, self._size * output.numel(), "input")
        same_type(output, input)
        reduction = self._reduction("reduce_scatter", opts.reduceOp, input.dtype)
        forward: Callable[[], Any] = lambda: self._gloo._reduce_scatter_base(output, input, opts)
        if reduction is None:
            return forward()
        return self._reduce_scattered(output, input, None, reduction, [output], forward, opts)

    _reduce_scatter_base = reduce_scatter_single

    def _reduce_scattered(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        counts: list[int] | None,
        reduction: Reduction,
        result: list[torch.Tensor],
        forward: Callable[[], Any],
        opts: Any,
    ) -> Any:
        if input.nbytes == 0:
            return done(result)
        send, receive = input.contiguous(), memory_of(output)
        first, end = send.data_ptr(), send.data_ptr() + send.nbytes
        if receive.nbytes and first < receive.data_ptr() + receive.nbytes and receive.data_ptr() < end:
            # The result may be a part of the input: then it comes into memory of its own first.
            receive = torch.empty_like(receive)
        copy = copy_out([(output, receive)])

        def finish() -> None:
            reduction.finish(receive)
            copy()

        fields: dict[str, Any] = {"send": first, "receive": receive.data_ptr() or NOWHERE, **reduction.fields}
        keep = (output, input, send, receive)
        if counts is None:
            return self._start(_abi.REDUCE_SCATTER_BLOCK, keep, result, forward, finish, opts=opts, count=receive.numel(), **fields)
        return self._start(_abi.REDUCE_SCATTER, keep, result, forward, finish, opts=opts, receive_counts=self._sizes(counts), **fields)

    def reduce_scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any) -> Any:
        output, parts = one(outputs, "reduce_scatter"), one_list(inputs, self._size, "reduce_scatter")
        dense("reduce_scatter", output, *parts)
        for part in parts:
            same_type(part, output)
        fits("reduce_scatter", output, parts[self._rank].numel(), "output")
        forward: Callable[[], Any] = lambda: self._gloo.reduce_scatter(outputs, inputs, opts)
        reduction = self._reduction("reduce_scatter", opts.reduceOp, output.dtype)
        if reduction is None:
            return forward()
        counts = [part.numel() for part in parts]
        flat = torch.cat([part.detach().reshape(-1) for part in parts])
        return self._reduce_scattered(output, flat, None if len(set(counts)) == 1 else counts, reduction, outputs, forward, opts)

    def reduce_scatter_single_coalesced(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any) -> Any:
        return all_of([self.reduce_scatter_single(output, input, opts) for output, input in zip(outputs, inputs)], outputs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
