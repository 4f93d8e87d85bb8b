# SPDX-License-Identifier: Apache-2.0
"""Futures of the stub, as torch.futures has them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any


class Future:
    """A value, or a failure, that comes once."""

    def __class_getitem__(cls, _kind: Any) -> type[Future]:
        return cls

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._over = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[], None]] = []

    def _end(self, value: Any, error: BaseException | None) -> None:
        with self._lock:
            if self._over:
                raise RuntimeError("Future can only be marked completed once")
            self._over, self._value, self._error = True, value, error
            callbacks, self._callbacks = self._callbacks, []
            self._lock.notify_all()
        for callback in callbacks:
            callback()

    def set_result(self, value: Any) -> None:
        self._end(value, None)

    def set_exception(self, error: BaseException) -> None:
        self._end(None, error)

    def done(self) -> bool:
        return self._over

    def value(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._value

    def wait(self) -> Any:
        with self._lock:
            if not self._lock.wait_for(lambda: self._over, 120):
                raise TimeoutError("a future has no value after 120 s")
        return self.value()

    def then(self, callback: Callable[[Future], Any]) -> Future:
        """A failure of the callback is a RuntimeError to whoever waits, as in torch, where it has been through C++."""
        after = Future()

        def run() -> None:
            try:
                value = callback(self)
            except Exception as failed:
                after._end(None, RuntimeError(f"{type(failed).__name__}: {failed}"))
            else:
                after._end(value, None)

        with self._lock:
            if not self._over:
                self._callbacks.append(run)
                return after
        run()
        return after


def collect_all(futures: Sequence[Future]) -> Future:
    """Over when all are; its value is their list."""
    whole = Future()
    left, lock = len(futures), threading.Lock()

    def one(_future: Future) -> None:
        nonlocal left
        with lock:
            left -= 1
            last = left == 0
        if last:
            whole.set_result(list(futures))

    for future in futures:
        future.then(one)
    if not futures:
        whole.set_result([])
    return whole
