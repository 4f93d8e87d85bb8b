# SPDX-License-Identifier: Apache-2.0
"""Element types and operators that Flexcast takes. Of others gloo takes truth values alone."""

from __future__ import annotations

import torch
from torch._C._distributed_c10d import ReduceOp

from .. import _abi, errors

TYPES = {
    torch.int8: "int8",
    torch.uint8: "uint8",
    torch.int16: "int16",
    torch.uint16: "uint16",
    torch.int32: "int32",
    torch.uint32: "uint32",
    torch.int64: "int64",
    torch.uint64: "uint64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
    torch.complex64: "complex64",
    torch.complex128: "complex128",
}
OPERATORS = (
    (ReduceOp.SUM, "sum"),
    (ReduceOp.AVG, "avg"),
    (ReduceOp.PRODUCT, "prod"),
    (ReduceOp.MIN, "min"),
    (ReduceOp.MAX, "max"),
    (ReduceOp.BAND, "bit_and"),
    (ReduceOp.BOR, "bit_or"),
    (ReduceOp.BXOR, "bit_xor"),
)


def name_of(op: object) -> str:
    """The name of an operator, as programs write it."""
    # As text they are "<RedOpType.SUM: 0>".
    return next((str(operator).split(".")[-1].split(":")[0] for operator, _ in OPERATORS if op == operator), str(op))


class NotReduced(errors.DataTypeError, RuntimeError):
    """Neither Flexcast nor gloo reduces this type by this operator. A RuntimeError, too, as gloo's own error is."""


class Reduction:
    """A reduction that Flexcast takes. The average is a sum that is divided afterwards."""

    def __init__(self, name: str, data_type: int, size: int) -> None:
        self.fields = {"reduction": _abi.REDUCTIONS["sum" if name == "avg" else name], "data_type": data_type}
        self._divisor = size if name == "avg" else None

    def finish(self, tensor: torch.Tensor) -> None:
        if self._divisor is not None:
            tensor.div_(self._divisor)
