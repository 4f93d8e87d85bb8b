# SPDX-License-Identifier: Apache-2.0
"""What a process communicates through: cards and network interfaces."""

from __future__ import annotations

import ctypes
import os
from types import TracebackType

from . import _abi, errors
from ._library import check, library


class Endpoint:
    """A card, or a network interface. To be closed after the communicators that were made with it."""

    def __init__(self, handle: ctypes.c_void_p) -> None:
        self._handle = handle
        self._watched = False

    @classmethod
    def open(
        cls,
        datapath: str | None = None,
        interface: str | None = None,
        *,
        device: str | None = None,
        libraries: str | os.PathLike[str] | None = None,
        firmware: str | os.PathLike[str] | None = None,
        memory_watch: str | None = None,
        sparse_firmware: str | os.PathLike[str] | None = None,
    ) -> Endpoint:
        """Opens one. `datapath` is "udp", "verbs", "dpa" or "auto"; what is None follows FLEXCAST_DATAPATH, FLEXCAST_INTERFACE and FLEXCAST_MEMORY_WATCH.

        `sparse_firmware` is the image `sparse`, started on the card's DPA for sparse.aggregation=dpa; None follows FLEXCAST_SPARSE_FIRMWARE.

        Memory that an operation has used is registered with an RDMA card, and forgotten when the operation is over, since Python may free it. With
        memory_watch="userfaultfd" the system tells when it is freed, and registrations stay until then.
        """
        found = library()
        options = _abi.EndpointOptions()
        check(found.flexcast_endpoint_options_default(ctypes.byref(options), ctypes.sizeof(options)))
        options.datapath = _text(datapath)
        options.interface_name = _text(interface)
        options.device = _text(device)
        options.libraries = _text(libraries)
        options.firmware_path = _text(firmware)
        options.memory_watch = _text(memory_watch)
        options.sparse_firmware_path = _text(sparse_firmware)
        handle = ctypes.c_void_p()
        check(found.flexcast_endpoint_open(ctypes.byref(options), ctypes.byref(handle)))
        endpoint = cls(handle)
        endpoint._watched = (memory_watch or os.environ.get("FLEXCAST_MEMORY_WATCH")) == "userfaultfd"
        return endpoint

    def _live(self) -> ctypes.c_void_p:
        if not self._handle:
            raise errors.Closed("the endpoint was closed before")
        return self._handle

    @property
    def datapath(self) -> str:
        """What moves the data: "udp", "verbs" or "dpa"."""
        name = ctypes.c_char_p()
        check(library().flexcast_endpoint_datapath(self._live(), ctypes.byref(name)))
        return (name.value or b"").decode()

    def close(self) -> None:
        """Closes it; again: nothing. Busy while it has communicators."""
        if self._handle:
            check(library().flexcast_endpoint_close(self._handle))
            self._handle = ctypes.c_void_p()

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _text(value: str | os.PathLike[str] | None) -> bytes | None:
    return None if value is None else os.fsencode(value)
