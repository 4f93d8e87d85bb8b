# SPDX-License-Identifier: Apache-2.0
"""Requests: operations under way or over."""

from __future__ import annotations

import asyncio
import concurrent.futures
import ctypes
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

from . import _abi, errors
from ._buffers import Buffer
from ._library import failure, library
from .failures import Failure

if TYPE_CHECKING:
    from .communicator import Communicator

# Longest pause of a wait in asyncio between two tests, where no thread moves the operation on.
_PAUSE = 0.001
# Longest that a wait stays in the library: signals are served between two of these.
_SLICE = 0.05

_numbers = itertools.count(1)
# Requests whose operation is under way, by number: the library writes into their memory, so they stay.
_pending: dict[int, Request] = {}


def _finished(number: int, _handle: Any, status: int) -> None:
    """Called by the library once for every operation, on whichever thread finds out."""
    request = _pending.pop(number, None)
    if request is not None:
        request._finish(status)


# One for the process: the library may call it until the process ends.
_callback = _abi.Finished(_finished)


def _ranges(keep: Any) -> Iterator[tuple[int, int]]:
    """Addresses and bytes of all memory in buffers, tensors, and lists of them."""
    if isinstance(keep, (list, tuple)):
        for one in keep:
            yield from _ranges(one)
    elif isinstance(keep, Buffer):
        yield keep.address, keep.bytes
    elif hasattr(keep, "data_ptr") and keep.is_contiguous():
        # Others were copied: the library has not seen them.
        yield keep.data_ptr(), keep.nbytes


class Request:
    """A non-blocking operation. Its buffers stay until it is over, whether or not the program keeps the request."""

    def __init__(self, communicator: Communicator, collective: _abi.Collective, keep: tuple[Any, ...], result: Any) -> None:
        """Posts an operation. With the flag AWAITED in `collective` the program waits at once."""
        self._communicator = communicator
        self._keep = keep
        self._result = result
        self._error: errors.Error | None = None
        self._over = threading.Event()
        self._lock = threading.Lock()
        # Of threads that wait one moves the operation on.
        self._moving = threading.Lock()
        self._callbacks: list[Callable[[Request], None]] = []
        self._users = 0
        self._handle = ctypes.c_void_p()
        number = next(_numbers)
        collective.size = ctypes.sizeof(collective)
        collective.callback = _callback
        collective.user = number
        live = communicator._live()
        # The operation may be over before the call has returned, which sets the handle first.
        _pending[number] = self
        status = library().flexcast_post(live, ctypes.byref(collective), ctypes.byref(self._handle))
        if status != _abi.OK:
            error = failure(status)
            _pending.pop(number, None)
            raise error

    def _finish(self, status: int) -> None:
        if status != _abi.OK:
            self._error = failure(status)
            # The memory of the report, before the handle is freed.
            report = _abi.Report()
            if library().flexcast_request_report(self._handle, ctypes.byref(report), ctypes.sizeof(report)) == _abi.OK:
                self._error.failure = Failure.of(report.cause, report.code, report.failed_rank, report.detecting_rank)
        with self._lock:
            self._over.set()
            callbacks, self._callbacks = self._callbacks, []
            self._let_go()
        for callback in callbacks:
            self._call(callback)

    def _let_go(self) -> None:
        """Frees what belongs to the operation, once nobody is in a call with its handle. The lock is held."""
        if self._over.is_set() and self._users == 0 and self._handle:
            library().flexcast_request_free(self._handle)
            self._handle = ctypes.c_void_p()
            if self._communicator._forgets:
                # The program frees memory when it likes. While another operation uses it, this is refused, and that one
                # does it.
                endpoint = self._communicator._endpoint._live()
                for address, size in _ranges(self._keep):
                    library().flexcast_buffer_invalidate(endpoint, address, size)
            self._keep = ()

    def _call(self, callback: Callable[[Request], None]) -> None:
        try:
            callback(self)
        except Exception:
            logging.getLogger("flexcast").exception("a callback of a request failed")

    def _forked(self) -> None:
        """In a forked child: the operation is the parent's."""
        self._lock, self._moving = threading.Lock(), threading.Lock()
        self._over = threading.Event()
        self._handle = ctypes.c_void_p()
        self._callbacks = []
        self._error = errors.Forked("the operation is that of the process that this one was forked from, and goes on there alone", 9)
        self._over.set()

    def add_done_callback(self, callback: Callable[[Request], None]) -> None:
        """Calls a function with this request once it is over: at once if it is, else on the thread that finds out. It must not block."""
        with self._lock:
            if not self._over.is_set():
                self._callbacks.append(callback)
                return
        self._call(callback)

    def test(self) -> bool:
        """Whether the operation is over, well or not; moves it on."""
        if self._over.is_set():
            return True
        if not self._communicator.progress_thread:
            self._with_handle(lambda handle: library().flexcast_wait_for(handle, 0, ctypes.byref(ctypes.c_int())))
        return self._over.is_set()

    def wait(self, timeout: float | None = None) -> None:
        """Waits until the operation is over and raises its failure. TimedOut if it takes longer than `timeout` seconds.

        The waiting thread moves the communicator on itself.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while not self._over.is_set():
            left = _SLICE if end is None else min(_SLICE, max(0.0, end - time.monotonic()))
            self._move_on(left)
            if not self._over.is_set() and end is not None and time.monotonic() >= end:
                raise errors.TimedOut(f"the operation is not over after {timeout} s; it goes on: wait again, or cancel the communicator's operations")
        if self._error is not None:
            raise self._error

    def _move_on(self, seconds: float) -> None:
        """Moves the operation on until it is over, so long at most, unless another thread does so."""
        if not self._moving.acquire(blocking=False):
            self._over.wait(seconds)
            return
        done = ctypes.c_int()
        try:
            status = self._with_handle(lambda handle: library().flexcast_wait_for(handle, int(seconds * 1e9), ctypes.byref(done)))
        finally:
            self._moving.release()
        if done.value:
            # Its callback may still be on its way, on the thread that found out.
            self._over.wait(_SLICE)
        elif status not in (None, _abi.OK):
            raise failure(status)

    def _with_handle(self, call: Callable[[ctypes.c_void_p], int]) -> int | None:
        """The status of a call; None once the handle is freed."""
        with self._lock:
            if not self._handle:
                return None
            self._users += 1
        try:
            return call(self._handle)
        finally:
            with self._lock:
                self._users -= 1
                self._let_go()

    def result(self, timeout: float | None = None) -> Any:
        """Waits, and returns what the operation has received: `out`, or new memory; None on ranks that receive nothing."""
        self.wait(timeout)
        return self._result

    def exception(self) -> errors.Error | None:
        """The failure of an operation that is over; None if it went well or is under way."""
        return self._error

    def is_over(self) -> bool:
        """Whether the operation is over, well or not; moves nothing on."""
        return self._over.is_set()

    def future(self) -> concurrent.futures.Future[Any]:
        """The result as a future. Needs the communicator's progress thread, since a future moves nothing on."""
        self._needs_thread("future()")
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        future.set_running_or_notify_cancel()

        def finish(request: Request) -> None:
            if request._error is not None:
                future.set_exception(request._error)
            else:
                future.set_result(request._result)

        self.add_done_callback(finish)
        return future

    def _needs_thread(self, what: str) -> None:
        if not self._communicator.progress_thread:
            raise errors.NotSupported(f"{what} needs a communicator with progress_thread=True")

    def __await__(self) -> Generator[Any, None, Any]:
        return self._arrive().__await__()

    async def _arrive(self) -> Any:
        if self._communicator.progress_thread:
            loop = asyncio.get_running_loop()
            over = asyncio.Event()

            def tell(_request: Request) -> None:
                try:
                    loop.call_soon_threadsafe(over.set)
                except RuntimeError:
                    pass  # The loop was closed before: nobody waits any more.

            self.add_done_callback(tell)
            await over.wait()
        else:
            pause = 0.0
            while not self.test():
                await asyncio.sleep(pause)
                pause = min(_PAUSE, pause + _PAUSE / 64)
        return self.result()


def _after_fork() -> None:
    for request in _pending.values():
        request._forked()
    _pending.clear()


os.register_at_fork(after_in_child=_after_fork)
