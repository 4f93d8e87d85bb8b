# SPDX-License-Identifier: Apache-2.0
"""Hosts as network namespaces at one bridge, and byte counters of interfaces."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from types import TracebackType

INTERFACE = "eth0"


def port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def counters() -> int:
    """Bytes that the interface of this host has sent: that to the bridge, or else loopback."""
    sent = {}
    with open("/proc/self/net/dev") as lines:
        for line in lines:
            name, separator, numbers = line.partition(":")
            if separator:
                sent[name.strip()] = int(numbers.split()[8])
    return sent[os.environ["GLOO_SOCKET_IFNAME"]]


class Hosts:
    """So many hosts, 10.78.0.1 and so on. Their namespaces are removed at the end."""

    def __init__(self, count: int) -> None:
        if os.geteuid() != 0:
            sys.exit("--netns needs root: network namespaces are made")
        if shutil.which("ip") is None:
            sys.exit("--netns needs the program ip: apt-get install iproute2")
        self._prefix = f"flexcast-torch-{os.getpid()}"
        self._count = count

    def address(self, host: int) -> str:
        return f"10.78.0.{host + 1}"

    def on(self, host: int, command: list[str]) -> list[str]:
        """A command on a host."""
        return ["ip", "netns", "exec", self._name(host), *command]

    def _name(self, host: int) -> str:
        return f"{self._prefix}-{host}"

    def _batch(self, lines: list[str], *options: str) -> None:
        subprocess.run(["ip", *options, "-batch", "-"], input="\n".join(lines) + "\n", text=True, check=True)

    def __enter__(self) -> Hosts:
        switch = f"{self._prefix}-switch"
        every = range(self._count)
        try:
            self._batch([f"netns add {name}" for name in [switch, *map(self._name, every)]])
            self._batch([f"link add {INTERFACE} netns {self._name(host)} type veth peer name port{host} netns {switch}" for host in every])
            ports = [f"link set port{host} master br0 up" for host in every]
            bridge = ["link add br0 type bridge mcast_snooping 1 forward_delay 0"]
            # A querier floods before it has waited for answers, ten seconds by default.
            bridge += [f"link set br0 type bridge {option}" for option in ("mcast_query_response_interval 10", "mcast_querier 1")]
            self._batch([*bridge, "link set br0 up", *ports], "-n", switch)
            for host in every:
                lines = ["link set lo up", f"addr add {self.address(host)}/24 dev {INTERFACE}", f"link set {INTERFACE} up"]
                self._batch([*lines, f"route add 224.0.0.0/4 dev {INTERFACE}"], "-n", self._name(host))
        except BaseException:
            self._remove()
            raise
        return self

    def _remove(self) -> None:
        for name in [f"{self._prefix}-switch", *map(self._name, range(self._count))]:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL, check=False)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._remove()
