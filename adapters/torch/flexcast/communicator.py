# SPDX-License-Identifier: Apache-2.0
"""Communicators: collectives among ranks."""

from __future__ import annotations

import atexit
import ctypes
import os
import weakref
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from . import _abi, errors
from ._library import check, library
from .bootstrap import Bootstrap, Store
from .endpoint import Endpoint
from .collectives import Collectives
from .request import _pending

_open: weakref.WeakSet[Communicator] = weakref.WeakSet()


class Communicator(Collectives):
    """Ranks that communicate. All of them call the same collectives in the same order, from any thread."""

    def __init__(
        self,
        bootstrap: Bootstrap,
        endpoint: Endpoint | None = None,
        *,
        progress_thread: bool = True,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        """Connects all ranks of a bootstrap; `endpoint` is opened as the environment says, and closed with the communicator, if it is None.

        `config` sets parameters by name, such as {"reproducible": 1}; the environment's FLEXCAST_... variables set the others.
        Without the progress thread operations move on in calls alone: test(), wait(), progress().
        """
        found = library()
        settings = _abi.Config()
        check(found.flexcast_config_default(ctypes.byref(settings), ctypes.sizeof(settings)))
        # Texts of the configuration stay until the communicator is made.
        texts = [(name.encode(), str(int(value) if isinstance(value, bool) else value).encode()) for name, value in (config or {}).items()]
        for name, value in texts:
            check(found.flexcast_config_set(ctypes.byref(settings), name, value))
        settings.progress_thread = int(progress_thread)
        used = Endpoint.open() if endpoint is None else endpoint
        handle = ctypes.c_void_p()
        try:
            bootstrap._check(found.flexcast_comm_create(used._live(), bootstrap._live(), ctypes.byref(settings), ctypes.byref(handle)))
        except BaseException:
            if endpoint is None:
                used.close()
            raise
        self._adopt(handle, bootstrap, progress_thread, used, endpoint is None)

    def _adopt(self, handle: ctypes.c_void_p, bootstrap: Bootstrap, progress_thread: bool, endpoint: Endpoint, owns_endpoint: bool) -> None:
        self._handle = handle
        self._bootstrap = bootstrap
        self._endpoint = endpoint
        self._owns_endpoint = owns_endpoint
        # A card that registers memory must forget it before it is freed, unless the system tells of that.
        self._forgets = endpoint.datapath != "udp" and not endpoint._watched
        self._owns_bootstrap = False
        self.progress_thread = progress_thread
        rank, size = ctypes.c_int(), ctypes.c_int()
        check(library().flexcast_comm_rank(handle, ctypes.byref(rank), ctypes.byref(size)))
        self.rank: int = rank.value
        self.size: int = size.value
        self._process = os.getpid()
        _open.add(self)

    @classmethod
    def _owning(cls, bootstrap: Bootstrap, endpoint: Endpoint | None, options: dict[str, Any]) -> Communicator:
        try:
            made = cls(bootstrap, endpoint, **options)
        except BaseException:
            bootstrap.close()
            raise
        made._owns_bootstrap = True
        return made

    @classmethod
    def from_environment(cls, endpoint: Endpoint | None = None, **options: Any) -> Communicator:
        """All ranks that FLEXCAST_RANK, FLEXCAST_SIZE and FLEXCAST_STORE name. `options` are those of the class."""
        return cls._owning(Bootstrap.from_environment(), endpoint, options)

    @classmethod
    def from_tcp(cls, address: str, rank: int, size: int, endpoint: Endpoint | None = None, *, timeout: float = 60.0, **options: Any) -> Communicator:
        """Ranks that meet at `address` ("host:port"), where rank 0 listens."""
        return cls._owning(Bootstrap.from_tcp(address, rank, size, timeout=timeout), endpoint, options)

    @classmethod
    def from_store(
        cls, store: Store, rank: int, size: int, endpoint: Endpoint | None = None, *, prefix: str = "flexcast", timeout: float = 60.0, **options: Any
    ) -> Communicator:
        """Ranks that meet in a key-value store with set(key, value) and get(key)."""
        return cls._owning(Bootstrap.from_store(store, rank, size, prefix=prefix, timeout=timeout), endpoint, options)

    @classmethod
    def from_mpi4py(cls, communicator: Any, endpoint: Endpoint | None = None, **options: Any) -> Communicator:
        """The ranks of an mpi4py communicator, or of anything with its allgather(), Get_rank() and Get_size()."""
        return cls._owning(Bootstrap.from_mpi4py(communicator), endpoint, options)

    def _live(self) -> ctypes.c_void_p:
        if not self._handle:
            raise errors.Closed("the communicator was closed before")
        return self._handle

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """Parts the ranks: those of one colour become a communicator, in the order of keys. None for a rank of colour None. All ranks call it."""
        handle = ctypes.c_void_p()
        number = _abi.UNDEFINED if color is None else color
        bootstrap = self._bootstrap
        bootstrap._check(library().flexcast_comm_split(self._live(), bootstrap._live(), number, key, ctypes.byref(handle)))
        if not handle:
            return None
        part = object.__new__(type(self))
        part._adopt(handle, bootstrap, self.progress_thread, self._endpoint, False)
        return part

    def progress(self) -> bool:
        """Moves operations on without blocking; whether anything happened."""
        moved = ctypes.c_int()
        check(library().flexcast_progress(self._live(), ctypes.byref(moved)))
        return bool(moved.value)

    def fileno(self) -> int:
        """An eventfd that counts operations that have ended, for poll and epoll; reading it sets it to 0. Not to be closed."""
        descriptor = ctypes.c_int()
        check(library().flexcast_comm_event_fd(self._live(), ctypes.byref(descriptor)))
        return descriptor.value

    def cancel(self) -> None:
        """Ends all operations as failures, on all ranks; the communicator can only be closed afterwards."""
        check(library().flexcast_cancel(self._live()))

    def close(self) -> None:
        """Frees it, once all operations are over; again: nothing. Close the parts that split() made before."""
        if not self._handle:
            return
        for request in self._under_way():
            try:
                request.wait()
            except errors.Error:
                pass  # Told to whoever asks the request.
        check(library().flexcast_comm_free(self._handle))
        self._handle = ctypes.c_void_p()
        _open.discard(self)
        if self._owns_bootstrap:
            self._bootstrap.close()
        if self._owns_endpoint:
            self._endpoint.close()

    def _under_way(self) -> list[Any]:
        return [request for request in list(_pending.values()) if request._communicator is self]

    def abort(self) -> None:
        """Cancels what is under way and closes."""
        if self._handle:
            if self._under_way():
                self.cancel()
            self.close()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            # The failure that is on its way counts.
            try:
                self.abort()
            except errors.Error:
                pass

    def __repr__(self) -> str:
        state = "" if self._handle else ", closed"
        return f"<flexcast.Communicator rank {self.rank} of {self.size}{state}>"


@atexit.register
def _close_all() -> None:
    """No thread of the library may call Python once the interpreter ends."""
    # Parts are made after what they are parts of.
    for communicator in sorted(_open, key=lambda one: one._handle.value or 0, reverse=True):
        if communicator._process == os.getpid():
            try:
                communicator.abort()
            except errors.Error:
                pass
