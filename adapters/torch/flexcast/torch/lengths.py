# SPDX-License-Identifier: Apache-2.0
"""Lengths of the blocks of an all-to-all, which all ranks compare."""

from __future__ import annotations

import torch

from .. import _abi, errors
from ..communicator import Communicator
from ..request import Request


class Lengths:
    """An Allgather of what each rank sends to each and expects of each, in bytes.

    It is posted before the data, which does not wait for it.
    """

    def __init__(self, communicator: Communicator, size: int, sending: list[int], receiving: list[int]) -> None:
        self._size = size
        mine = torch.tensor([*sending, *receiving], dtype=torch.int64)
        self._all = torch.zeros(2 * size * size, dtype=torch.int64)
        collective = _abi.Collective(operation=_abi.ALLGATHER, send=mine.data_ptr(), receive=self._all.data_ptr(), count=mine.nbytes)
        self.request = Request(communicator, collective, (mine, self._all), None)

    def verify(self, what: str) -> errors.Error | None:
        """The failure of all ranks, if a rank sends what another does not expect. For a request that has ended well."""
        wrong, lengths = [], self._all.tolist()
        for source in range(self._size):
            for target in range(self._size):
                sent = lengths[2 * self._size * source + target]
                expected = lengths[2 * self._size * target + self._size + source]
                if sent != expected:
                    wrong.append(f"rank {source} sends {sent} bytes to rank {target}, which expects {expected} bytes of it")
        if not wrong:
            return None
        more = f"; and {len(wrong) - 1} more blocks" if len(wrong) > 1 else ""
        hint = "compare the input splits of the one with the output splits of the other"
        return errors.PeerFailed(f"flexcast: {what}: {wrong[0]}{more}: {hint}", _DISAGREES)


# FLEXCAST_ERROR_... of an operation in which ranks call different things.
_DISAGREES = 112
