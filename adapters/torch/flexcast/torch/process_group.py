# SPDX-License-Identifier: Apache-2.0
"""The process group: collectives of Flexcast, and what gloo carries."""

from __future__ import annotations

from typing import Any

import torch

from .moving import Moving
from .reducing import Reducing


class FlexcastBackend(Moving, Reducing):
    """Process group of Flexcast, with one of gloo inside."""

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
