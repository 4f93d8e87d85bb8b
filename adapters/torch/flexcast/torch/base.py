# SPDX-License-Identifier: Apache-2.0
"""What all collectives of the process group stand on: a communicator, a group of gloo, and the choice between them."""

from __future__ import annotations

import ctypes
import os
import threading
import types
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import Backend, PrefixStore, ProcessGroupGloo

from .. import _abi, errors
from ..bootstrap import Bootstrap
from ..endpoint import Endpoint
from ..communicator import Communicator
from ..request import Request
from .work import FlexcastWork

NAME = "flexcast"

# Longest that one question to the store blocks.
_STORE_WAIT = timedelta(seconds=2)
# Longest that ranks wait for one another when a group is destroyed.
_LEAVING_WAIT = timedelta(seconds=1)

if isinstance(Backend.__init__, types.WrapperDescriptorType):
    # Before that release nothing in Python derives from a Backend.
    raise ImportError(f"flexcast.torch needs torch 2.14 or later, and this is {torch.__version__}: `pip install --upgrade torch`")


class StoreOfGroup:
    """A store of c10d as Bootstrap needs it."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def set(self, key: str, value: bytes) -> None:
        self._store.set(key, value)

    def get(self, key: str) -> bytes | None:
        try:
            self._store.wait([key], _STORE_WAIT)
        except RuntimeError:
            # A wait that is over looks the same in all kinds of stores but in its text; a store that is gone fails
            # here, too.
            if not self._store.check([key]):
                return None
        value: bytes = self._store.get(key)
        return value


class _SharedEndpoint:
    """The endpoint of the process, open while a group uses it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._endpoint: Endpoint | None = None
        self._users = 0

    def take(self) -> Endpoint:
        with self._lock:
            if self._endpoint is None:
                self._endpoint = Endpoint.open()
            self._users += 1
            return self._endpoint

    def give_back(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._endpoint is not None:
                self._endpoint.close()
                self._endpoint = None


_endpoint = _SharedEndpoint()


class Base(Backend):
    """A communicator and a process group of gloo, and how an operation goes to one of the two."""

    supports_coalescing = False
    _communicator: Communicator | None = None
    _store: Any = None
    _gloo: Any = None

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._rank, self._size = rank, size
        self._gloo = ProcessGroupGloo(PrefixStore("gloo", store), rank, size, timeout=timeout)
        self._store = PrefixStore("flexcast", store)
        seconds = timeout.total_seconds()
        bootstrap = Bootstrap.from_store(StoreOfGroup(self._store), rank, size, timeout=seconds)
        nanoseconds = max(1, min(int(seconds * 1e9), 2**62))
        config = {"barrier_timeout_ns": nanoseconds, "recovery_timeout_ns": nanoseconds}
        try:
            endpoint = _endpoint.take()
            try:
                self._communicator = Communicator(bootstrap, endpoint, config=config)
            except BaseException:
                _endpoint.give_back()
                raise
        finally:
            bootstrap.close()

    # What torch asks of every backend.

    def getBackendName(self) -> str:
        return NAME

    def name(self) -> str:
        return NAME

    def _group(self) -> Communicator:
        if self._communicator is None:
            raise errors.Closed("the process group was destroyed before")
        return self._communicator

    def shutdown(self) -> None:
        """Ends the group, when what is under way is over.

        All ranks leave together: the next group of a program may be made at the port that the store of this one still has.
        """
        self._end(Communicator.close)
        store, self._store = self._store, None
        if store is not None:
            try:
                self._leave(store)
            except RuntimeError:
                pass  # The store is gone, and so is its rank.
        # Nothing may keep the store alive: it listens as long as anything does.
        self._gloo = None

    def abort(self) -> None:
        """Ends the group at once: what is under way fails, on all ranks."""
        self._end(Communicator.abort)

    def _leave(self, store: Any) -> None:
        """Waits, not for long, until rank 0, which may have the store in its process, has nothing else to do than to end it."""
        if self._rank != 0:
            store.set(f"leaving/{self._rank}", b"1")
            store.wait(["left"], _LEAVING_WAIT)
            return
        self._gloo = None
        if self._size > 1:
            store.wait([f"leaving/{rank}" for rank in range(1, self._size)], _LEAVING_WAIT)
        store.set("left", b"1")
        # Until it is answered the store may not have taken what was set.
        store.check(["left"])

    def _end(self, how: Callable[[Communicator], None]) -> None:
        communicator, self._communicator = self._communicator, None
        if communicator is not None and communicator._process == os.getpid():
            how(communicator)
            _endpoint.give_back()

    def __del__(self) -> None:
        try:
            self.abort()
        except errors.Error:
            pass

    # How an operation goes.

    def _start(
        self,
        operation: int,
        keep: Sequence[Any],
        result: list[Any],
        forward: Callable[[], Any],
        finish: Callable[[], None] | None = None,
        opts: Any = None,
        before: Request | None = None,
        verify: Callable[[], errors.Error | None] | None = None,
        **fields: Any,
    ) -> Any:
        """Starts an operation, or forwards it, and returns a Work whose result is `result`.

        `before`: an operation that was posted before it. Once both are over `verify` says whether the program has made a
        mistake, which the operation itself may not have met on this rank.
        """
        # Whether the caller waits at once; releases of torch that do not say so are taken at the slower word.
        flags = 0 if getattr(opts, "asyncOp", True) else _abi.AWAITED
        collective = _abi.Collective(operation=operation, flags=flags, **fields)
        try:
            request = Request(self._group(), collective, tuple(keep), None)
        except errors.NotSupported:
            return forward()
        work = FlexcastWork(request)

        def over(request: Request) -> None:
            failed: BaseException | None = None
            if before is not None:
                failed = before.exception()
                if failed is None and verify is not None:
                    failed = verify()
            failed = failed or request.exception()
            if failed is not None:
                work._fail(failed)
                return
            try:
                if finish is not None:
                    with torch.no_grad():
                        finish()
            except Exception as failed:
                work._fail(failed)
            else:
                work._succeed(result)

        if before is None:
            request.add_done_callback(over)
        else:
            first = before
            request.add_done_callback(lambda request: first.add_done_callback(lambda _: over(request)))
        return work

    def _sizes(self, numbers: Sequence[int]) -> Any:
        return (ctypes.c_size_t * self._size)(*numbers)
