# SPDX-License-Identifier: Apache-2.0
"""Steps of a training, timed, with the bytes that the interface sends meanwhile."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import network

# Steps that count neither in the times nor in the bytes.
WARM_UP = 2


def run(options: argparse.Namespace, optimizer: Any, loss: Callable[[], Any]) -> list[Any]:
    """Makes `options.steps` steps after the first; `loss` draws a batch. Of each rank: losses, seconds of each step that counts, and bytes. Ends the process group."""
    import torch.distributed as dist

    losses, times = [], []
    begun = 0
    for step in range(WARM_UP + options.steps):
        if step == WARM_UP:
            dist.barrier()
            begun = network.counters()
        start = time.perf_counter()
        value = loss()
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        times.append(time.perf_counter() - start)
        losses.append(value.item())
    dist.barrier()
    moved = network.counters() - begun
    every: list[Any] = [None] * options.ranks
    dist.all_gather_object(every, (losses, times[WARM_UP:], moved))
    dist.destroy_process_group()
    return every
