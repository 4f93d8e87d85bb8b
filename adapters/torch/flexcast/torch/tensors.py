# SPDX-License-Identifier: Apache-2.0
"""Checks of tensors, and their memory as the library takes it: one piece after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch


def one(tensors: list[torch.Tensor], what: str) -> torch.Tensor:
    if len(tensors) != 1:
        raise ValueError(f"flexcast: {what}: {len(tensors)} tensors: one for each rank is needed")
    on_host(tensors[0])
    return tensors[0]


def one_list(lists: list[list[torch.Tensor]], size: int, what: str) -> list[torch.Tensor]:
    if len(lists) != 1 or len(lists[0]) != size:
        raise ValueError(f"flexcast: {what}: lists of {[len(parts) for parts in lists]} tensors: one list of {size} is needed, a tensor for each rank")
    return lists[0]


def on_host(tensor: torch.Tensor) -> None:
    if tensor.device.type != "cpu":
        raise ValueError(f"flexcast: a tensor is on {tensor.device}: this backend takes tensors in host memory (cpu) alone")


def is_sparse(tensor: torch.Tensor) -> bool:
    return tensor.layout is not torch.strided


def dense(what: str, *tensors: torch.Tensor) -> None:
    for tensor in tensors:
        on_host(tensor)
        if is_sparse(tensor):
            raise ValueError(f"flexcast: {what}: a tensor of layout {tensor.layout}: only dense ones are taken")


def fits(what: str, tensor: torch.Tensor, elements: int, name: str) -> None:
    if tensor.numel() != elements:
        raise ValueError(f"flexcast: {what}: {name} has {tensor.numel()} elements: {elements} are needed")


def same_type(tensor: torch.Tensor, other: torch.Tensor) -> None:
    if tensor.dtype != other.dtype:
        raise ValueError(f"flexcast: tensors of {tensor.dtype} and {other.dtype}: one operation takes one type")


def contiguous(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's memory with its contents, or a copy if it is not contiguous."""
    return tensor.detach().contiguous()


def memory_of(output: torch.Tensor) -> torch.Tensor:
    """Memory to receive into: the tensor's own if it is contiguous."""
    return output.detach() if output.is_contiguous() else torch.empty(output.shape, dtype=output.dtype)


def shares_elements(tensor: torch.Tensor) -> bool:
    """Whether several elements are one in memory, as expand() makes them."""
    return any(stride == 0 and length > 1 for length, stride in zip(tensor.shape, tensor.stride())) and tensor.numel() > 0


def copy_out(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> Callable[[], None]:
    """Copies what was received to tensors that were not received into.

    ValueError, before anything is sent, for a tensor that cannot be written to.
    """
    needed = [(to, source) for to, source in pairs if to.numel() and to.data_ptr() != source.data_ptr()]
    for to, _ in pairs:
        if shares_elements(to):
            raise ValueError(
                f"flexcast: a tensor of shape {tuple(to.shape)} with strides {to.stride()} is to be received into, and several of "
                "its elements are one in memory, as after expand(): pass a clone()"
            )

    def copy() -> None:
        for to, source in needed:
            to.detach().copy_(source.view(to.shape))

    return copy


def parts_of(flat: torch.Tensor, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Parts of a flat tensor, each as long as one of `like`."""
    return list(torch.split(flat, [tensor.numel() for tensor in like]))


def gathered(parts: list[torch.Tensor], like: torch.Tensor) -> tuple[torch.Tensor, Callable[[], None]]:
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
    return flat, copy_out(list(zip(parts, parts_of(flat, parts))))


def starts(sizes: list[int]) -> list[int]:
    return [sum(sizes[:rank]) for rank in range(len(sizes))]
