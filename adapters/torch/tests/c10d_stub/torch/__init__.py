# SPDX-License-Identifier: Apache-2.0
"""A stub of the contract between torch and a backend of torch.distributed. Not torch: it computes nothing and trains nothing.

It has what flexcast.torch uses of torch, and what a program needs to drive it: tensors over memory with a type, a shape, strides and a device, futures,
stores, and the path of a collective from torch.distributed to the backend. tests/c10d_conformance.py passes with it and with torch alike, which is what keeps
it true. It follows torch 2.15, and is for computers without torch, as those of continuous integration.
"""

from __future__ import annotations

from types import TracebackType

from ._tensor import (
    Tensor,
    UntypedStorage,
    bfloat16,
    bool,
    cat,
    complex64,
    complex128,
    device,
    dtype,
    empty,
    empty_like,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    split,
    strided,
    tensor,
    uint8,
    uint16,
    uint32,
    uint64,
    zeros,
)

__version__ = "2.15.0+stub"


class no_grad:
    """Nothing here has a gradient."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass


from . import distributed, futures  # noqa: E402

__all__ = [
    "Tensor",
    "UntypedStorage",
    "bfloat16",
    "bool",
    "cat",
    "complex64",
    "complex128",
    "device",
    "distributed",
    "dtype",
    "empty",
    "empty_like",
    "float16",
    "float32",
    "float64",
    "futures",
    "int8",
    "int16",
    "int32",
    "int64",
    "no_grad",
    "split",
    "strided",
    "tensor",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "zeros",
]
