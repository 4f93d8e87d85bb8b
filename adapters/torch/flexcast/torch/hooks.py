# SPDX-License-Identifier: Apache-2.0
"""Communication hooks of DistributedDataParallel for gradients of which much is zero, or may be.

    from flexcast.torch.hooks import TopK, sparse_hook, topk_hook

    model.register_comm_hook(None, sparse_hook)
    model.register_comm_hook(TopK(0.01), topk_hook)
"""

# Without annotations of __future__: torch compares those of hooks with its own types.

import math
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket

from .process_group import FlexcastBackend


class Sparse:
    """State of sparse_hook: the process group, and how gradients are cut into blocks."""

    def __init__(self, process_group: Any = None, *, block_bytes: int = 1024, blocks_per_message: int = 32) -> None:
        """`process_group` is that of the model, the default one if it is None. Sizes are alike on all ranks: see Communicator.sparse_allreduce()."""
        if not 256 <= block_bytes <= 16384 or block_bytes % 16:
            raise ValueError(f"block_bytes = {block_bytes}: 256 to 16384 and a multiple of 16 is needed")
        if not 1 <= blocks_per_message <= 32:
            raise ValueError(f"blocks_per_message = {blocks_per_message}: 1 to 32 is needed")
        self.process_group = process_group
        self.block_bytes = block_bytes
        self.blocks_per_message = blocks_per_message

    def average(self, tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """The mean of all ranks' tensors, in place."""
        group: Any = dist.group.WORLD if self.process_group is None else self.process_group
        backend = group._get_backend(torch.device("cpu"))
        if not isinstance(backend, FlexcastBackend):
            raise ValueError(f'the process group has the backend {backend.name()}: hooks of Flexcast need init_process_group("flexcast")')
        # What DDP does without a hook, to the last bit.
        tensor.mul_(1.0 / group.size())
        work = backend.allreduce_zeros(tensor, self.block_bytes, self.blocks_per_message)
        future: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda done: done.value()[0])
        return future


class TopK(Sparse):
    """State of topk_hook: which part of the gradients is sent, and what was not sent yet."""

    def __init__(
        self, fraction: float, error_feedback: bool = True, process_group: Any = None, *, block_bytes: int = 1024, blocks_per_message: int = 32
    ) -> None:
        """`fraction` of the blocks of each bucket is sent, at least one. Without error feedback the rest is dropped."""
        super().__init__(process_group, block_bytes=block_bytes, blocks_per_message=blocks_per_message)
        if not 0.0 < fraction <= 1.0:
            raise ValueError(f"fraction = {fraction}: more than 0 and at most 1 is needed")
        self.fraction = fraction
        self.error_feedback = error_feedback
        # What of each bucket was not sent, with the bucket's parameters, and the part of each parameter therein.
        self._buckets: dict[int, tuple[list[torch.Tensor], torch.Tensor]] = {}
        self._parts: dict[torch.Tensor, torch.Tensor] = {}

    def residual(self, parameter: torch.Tensor) -> torch.Tensor | None:
        """What of a parameter's gradients this rank has not sent yet; None before its first gradient."""
        return self._parts.get(parameter)

    def _residual_of(self, bucket: GradBucket) -> torch.Tensor:
        """What was not sent of a bucket, whose parameters DDP may have changed."""
        parameters, buffer = bucket.parameters(), bucket.buffer()
        known = self._buckets.get(bucket.index())
        if known is not None and len(known[0]) == len(parameters) and all(one is other for one, other in zip(known[0], parameters)):
            return known[1]
        flat = torch.zeros_like(buffer)
        for parameter, gradient in zip(parameters, bucket.gradients()):
            part = flat.as_strided(gradient.size(), gradient.stride(), gradient.storage_offset() - buffer.storage_offset())
            if parameter in self._parts:
                part.copy_(self._parts[parameter])
            self._parts[parameter] = part
        self._buckets[bucket.index()] = (parameters, flat)
        return flat

    def _choose(self, buffer: torch.Tensor, residual: torch.Tensor | None) -> None:
        """Leaves the blocks with the largest norms in the buffer, and what else was in it in the residual."""
        elements = self.block_bytes // buffer.itemsize
        whole, rest = _blocks(buffer, elements)
        # Halves would overflow.
        kind = torch.float32 if buffer.dtype in (torch.float16, torch.bfloat16) else None
        norms = torch.linalg.vector_norm(whole, dim=1, dtype=kind)
        if rest.numel():
            norms = torch.cat([norms, torch.linalg.vector_norm(rest, dtype=kind).reshape(1)])
        chosen = norms.topk(max(1, math.ceil(self.fraction * norms.numel()))).indices
        keeps_rest = bool((chosen == whole.size(0)).any())
        chosen = chosen[chosen < whole.size(0)]
        if residual is not None:
            residual.copy_(buffer)
            left, left_rest = _blocks(residual, elements)
            left.index_fill_(0, chosen, 0)
            if keeps_rest:
                left_rest.zero_()
        kept = whole.index_select(0, chosen)
        whole.zero_().index_copy_(0, chosen, kept)
        if not keeps_rest:
            rest.zero_()


def _blocks(flat: torch.Tensor, elements: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Whole blocks, one in each row, and the short one behind them."""
    whole = flat.numel() // elements
    return flat[: whole * elements].view(whole, elements), flat[whole * elements :]


def sparse_hook(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages a bucket as it is: for gradients that are zero in whole blocks by themselves, such as those of rows of an embedding that no rank used.

    `state` is a Sparse, or the model's process group, or None.
    """
    averaging: Sparse = state if isinstance(state, Sparse) else Sparse(state)
    return averaging.average(bucket.buffer())


def topk_hook(state: TopK, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages the blocks of a bucket with the largest norms; what is left is added to the gradients of the next step, if `state` says so."""
    buffer = bucket.buffer()
    residual = state._residual_of(bucket) if state.error_feedback else None
    if residual is not None:
        buffer.add_(residual)
    state._choose(buffer, residual)
    return state.average(buffer)
