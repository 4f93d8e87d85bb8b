# SPDX-License-Identifier: Apache-2.0
"""Exceptions: one class for each kind of failure, with the code of the C interface."""

from __future__ import annotations

from .failures import Failure

class Error(Exception):
    """A function of the library failed. `code` is its flexcast_status.

    `failure` says who failed and why, of an operation that has failed on all ranks.
    """

    def __init__(self, message: str, code: int = 0, failure: Failure | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.failure = failure

    def __reduce__(self) -> tuple[type, tuple[str, int, Failure | None]]:
        return (type(self), (str(self), self.code, self.failure))


class LibraryNotFound(Error):
    """libflexcast.so is not there, or of another version."""


class NotSupported(Error):
    """The library does not take this operation, on no rank. Use another one."""


class ArgumentError(Error, ValueError):
    """An argument that cannot be: a buffer, a size, a rank, an operator."""


class DataTypeError(ArgumentError, TypeError):
    """An element type that the operation cannot have."""


class ConfigurationError(Error, ValueError):
    """A parameter or an environment variable has a value that it cannot have."""


class Busy(Error):
    """The object is in use."""


class Closed(Error):
    """The object was closed before."""


class Forked(Error):
    """The process was forked from one that uses the library. It cannot use it until it calls exec()."""


class ExchangeFailed(Error):
    """The ranks did not come together."""


class EndpointError(Error):
    """The card or the network interface cannot be used."""


class NotInstalled(EndpointError):
    """The libraries of the card are not installed."""


class Unsupported(EndpointError):
    """The card has not what the configuration asks for."""


class OperationFailed(Error):
    """An operation has failed, on all ranks."""


class PeerFailed(OperationFailed):
    """Another rank failed, is silent, or does not do what this one does."""


class Broken(OperationFailed):
    """An operation of the communicator has failed before: it cannot be used any more."""


class TimedOut(Error, TimeoutError):
    """Something did not answer within the bound of a wait."""


class InternalError(Error):
    """A mistake of the library."""


OF_CODE: dict[int, type[Error]] = {
    1: ArgumentError,
    2: Closed,
    4: Busy,
    5: LibraryNotFound,
    8: InternalError,
    9: Forked,
    10: NotSupported,
    101: ExchangeFailed,
    102: ConfigurationError,
    106: ArgumentError,
    107: PeerFailed,
    108: ArgumentError,
    109: ArgumentError,
    110: ArgumentError,
    112: PeerFailed,
    113: Broken,
    116: Unsupported,
    117: NotInstalled,
    118: EndpointError,
    119: EndpointError,
    121: EndpointError,
    122: TimedOut,
    124: EndpointError,
    125: EndpointError,
    126: ConfigurationError,
    127: Unsupported,
    128: PeerFailed,
    129: ArgumentError,
    130: Busy,
    131: PeerFailed,
    132: EndpointError,
}


def of_code(code: int, message: str) -> Error:
    """The exception for a code."""
    return OF_CODE.get(code, Error)(message, code)
