# SPDX-License-Identifier: Apache-2.0
"""Runs a function in several processes, one for each rank."""

from __future__ import annotations

import importlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHECKS = "checks: "
total_checks = 0


def port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def run(function: str, size: int, *, limit: float = 150.0, expect: dict[int, int] | None = None, **variables: str) -> list[str]:
    """Calls `module:function`, which takes rank and size and returns how much it checked, in processes; returns what they printed.

    `expect` has the exit codes of ranks that do not end with 0.
    """
    global total_checks
    free = str(port())
    environment = dict(os.environ, FLEXCAST_DATAPATH="udp", FLEXCAST_INTERFACE="lo", OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free, "WORLD_SIZE": str(size)}
    environment |= {"FLEXCAST_STORE": f"127.0.0.1:{free}", "FLEXCAST_SIZE": str(size), "PYTHONFAULTHANDLER": "1", **variables}
    processes = []
    for rank in range(size):
        own = environment | {"RANK": str(rank), "FLEXCAST_RANK": str(rank)}
        command = [sys.executable, str(Path(__file__)), function, str(rank), str(size)]
        processes.append(subprocess.Popen(command, env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    end = time.monotonic() + limit
    printed, wrong = [], []
    try:
        for rank, process in enumerate(processes):
            try:
                text, _ = process.communicate(timeout=max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                text = process.communicate()[0] + f"\n(not over after {limit} s)"
            printed.append(text)
            if process.returncode != (expect or {}).get(rank, 0):
                wrong.append(rank)
    finally:
        for process in processes:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
    if wrong:
        told = "\n".join(f"--- rank {rank}, exit {processes[rank].returncode}\n{printed[rank]}" for rank in range(size))
        raise AssertionError(f"{function}: ranks {wrong} of {size} failed\n{told}")
    for text in printed:
        total_checks += sum(int(line.removeprefix(CHECKS)) for line in text.splitlines() if line.startswith(CHECKS))
    return printed


class Checks:
    """Counts what one rank compares."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size, self.count = rank, size, 0

    def refused(self, kind: type[BaseException], said: str, call: Callable[..., Any], *arguments: Any, **named: Any) -> None:
        """A call, or the work that it begins, fails and says so."""
        self.count += 1
        try:
            work = call(*arguments, **named)
            if work is not None:
                work.wait()
        except kind as error:
            if said not in str(error):
                raise AssertionError(f"{error!r} does not say {said!r}") from error
        else:
            raise AssertionError(f"{call} took {arguments} {named}")


def main() -> None:
    """One rank."""
    name, rank, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    module, function = name.split(":")
    checked = getattr(importlib.import_module(module), function)(rank, size)
    print(f"{CHECKS}{checked}", flush=True)


if __name__ == "__main__":
    main()
