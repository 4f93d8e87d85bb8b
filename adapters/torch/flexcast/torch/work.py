# SPDX-License-Identifier: Apache-2.0
"""Operations as torch waits for them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import Work
from torch.futures import Future

from .. import errors
from ..request import Request


class FlexcastWork(Work):
    """An operation under way or over. Its wait() raises what failed, which that of a Work made of a future does not."""

    def __init__(self, request: Request | None = None) -> None:
        super().__init__()
        self._request = request
        self._error: BaseException | None = None
        self._source: Future[Any] = Future()
        # An exception that is set stays a value to C++; one that a continuation raises is an error there, too.
        self._future = self._source.then(lambda source: source.value())

    def _succeed(self, result: Any) -> None:
        self._source.set_result(result)

    def _fail(self, error: Any) -> None:
        self._error = error
        self._source.set_exception(error)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits, at most so long if it is not 0."""
        if self._request is not None:
            try:
                self._request.wait((timeout.total_seconds() if timeout else 0.0) or None)
            except errors.Error:
                # That of an operation that is over is raised below: more may be known of it than it says by itself.
                if not self._request.is_over():
                    raise
        # What is done with the result may still be under way, on the thread that found the end.
        try:
            self._future.wait()
        except RuntimeError:
            if self._error is not None:
                raise self._error from None
            raise
        return True

    def get_future(self) -> Any:
        return self._future

    def is_completed(self) -> bool:
        return self._future.done()

    def is_success(self) -> bool:
        return self._future.done() and self._error is None


def done(result: Any) -> FlexcastWork:
    """A Work that is over: there was nothing to do, on any rank."""
    work = FlexcastWork()
    work._succeed(result)
    return work


def all_of(works: list[Any], result: Any) -> FlexcastWork:
    """A Work that is over when all are."""
    whole = FlexcastWork()

    def over(waited: Any) -> None:
        try:
            for future in waited.value():
                future.value()
        except Exception as failed:
            whole._fail(failed)
        else:
            whole._succeed(result)

    torch.futures.collect_all([work.get_future() for work in works]).then(over)
    return whole
