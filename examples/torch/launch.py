# SPDX-License-Identifier: Apache-2.0
"""Starts all ranks of a training, and returns what rank 0 tells."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

import network


def launch(what: str, script: str, arguments: list[str], ranks: int, limit: float, netns: bool, variables: Mapping[str, str] = {}) -> dict[str, Any]:
    """Runs `script --rank R arguments` for each rank, with `netns` each in a network namespace of its own at one bridge; `what` names it in errors."""
    if netns:
        with network.Hosts(ranks) as hosts:
            return _launch(what, script, arguments, ranks, limit, hosts, variables)
    return _launch(what, script, arguments, ranks, limit, None, variables)


def _launch(
    what: str, script: str, arguments: list[str], ranks: int, limit: float, hosts: network.Hosts | None, variables: Mapping[str, str]
) -> dict[str, Any]:
    port = str(network.port())
    running: list[subprocess.Popen[str]] = []
    try:
        for rank in range(ranks):
            environment = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(ranks), OMP_NUM_THREADS="1", MASTER_PORT=port)
            environment["MASTER_ADDR"] = hosts.address(0) if hosts else "127.0.0.1"
            interface = network.INTERFACE if hosts else "lo"
            environment |= {"FLEXCAST_DATAPATH": "udp", "FLEXCAST_INTERFACE": interface, "GLOO_SOCKET_IFNAME": interface, **variables}
            command = [sys.executable, script, "--rank", str(rank), *arguments]
            command = hosts.on(rank, command) if hosts else command
            running.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
        end = time.monotonic() + limit
        told = [process.communicate(timeout=max(1.0, end - time.monotonic()))[0] for process in running]
    except subprocess.TimeoutExpired:
        sys.exit(f"the training with {what} is not over after {limit} s: see --limit")
    finally:
        for process in running:
            process.kill()
            process.wait()
    if any(process.returncode for process in running):
        sys.exit(f"the training with {what} failed: exit codes {[process.returncode for process in running]}")
    result: dict[str, Any] = json.loads(told[0])
    return result


def differences(results: list[dict[str, Any]]) -> str:
    """How the losses of two trainings differ, on all ranks."""
    first, second = ([rank[0] for rank in result["ranks"]] for result in results)
    steps = len(first[0])
    alike = next((step for step in range(steps) if any(a[step] != b[step] for a, b in zip(first, second))), steps)
    if alike == steps:
        return "identical to the last bit"
    largest = max(abs(x - y) for a, b in zip(first, second) for x, y in zip(a, b))
    return f"identical to the last bit in the first {alike} steps; largest difference {largest:.2g}"
