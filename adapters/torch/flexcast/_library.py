# SPDX-License-Identifier: Apache-2.0
"""The shared library: where it is, its functions, its errors and its log."""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import threading
from pathlib import Path
from typing import Any

from . import _abi, errors

# The library's version of the interface must be no less.
ABI_VERSION = 1
NAMES = ("libflexcast.so", "libflexcast.so.1")

_lock = threading.Lock()
_loaded: Any = None
_log_callback: Any = None


def _candidates() -> list[str]:
    """Paths and names that are tried, in order."""
    named = os.environ.get("FLEXCAST_LIBRARY")
    if named:
        return [named]
    folder = Path(__file__).parent
    return [str(folder / name) for name in NAMES if (folder / name).exists()] + list(NAMES)


def _open() -> ctypes.CDLL:
    refused = []
    for name in _candidates():
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            refused.append(str(error))
    raise errors.LibraryNotFound(
        f"libflexcast.so cannot be loaded ({'; '.join(refused)}): set FLEXCAST_LIBRARY to its path, or install a wheel that carries it"
    )


def _declare(library: Any) -> None:
    absent = []
    functions = {name: (ctypes.c_int, types) for name, types in _abi.STATUS_FUNCTIONS.items()}
    for name, (result, arguments) in {**functions, **_abi.OTHER_FUNCTIONS}.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            absent.append(name)
            continue
        function.restype, function.argtypes = result, arguments
    if absent:
        raise errors.LibraryNotFound(
            f"the library found has no {', '.join(absent)}: it is of an older release; set FLEXCAST_LIBRARY to the path of a newer one"
        )


def library() -> Any:
    """The library, loaded at the first call."""
    global _loaded
    with _lock:
        if _loaded is None:
            found = _open()
            _declare(found)
            version = found.flexcast_abi_version()
            if version < ABI_VERSION:
                raise errors.LibraryNotFound(
                    f"the library has version {version} of the C interface; this package needs {ABI_VERSION}: set FLEXCAST_LIBRARY to a newer one"
                )
            _loaded = found
    return _loaded


def text(code: int) -> str:
    """What went wrong in the last call of this thread."""
    found = library()
    said: bytes = found.flexcast_last_error() or found.flexcast_strerror(code)
    return said.decode(errors="replace")


def failure(code: int) -> errors.Error:
    """The exception for the last call of this thread, which returned `code`."""
    return errors.of_code(code, text(code))


def check(code: int) -> None:
    """Raises what a call returned, unless it went well."""
    if code != _abi.OK:
        raise failure(code)


def version() -> str:
    """The library's release."""
    release: bytes = library().flexcast_version()
    return release.decode()


def log(level: str = "warn", logger: logging.Logger | str | None = "flexcast") -> None:
    """Sends the library's log to a logger of the `logging` module; None: to stderr. `level`: off, error, warn, info, debug or trace."""
    global _log_callback
    if level not in _abi.LOG_LEVELS:
        raise errors.ArgumentError(f"log level {level!r}: it must be one of {', '.join(_abi.LOG_LEVELS)}")
    to = logging.getLogger(logger) if isinstance(logger, str) else logger
    number = _abi.LOG_LEVELS[level]
    # The library may be calling the former one: it stays until the new one is there.
    callback = _abi.Log() if to is None else _abi.Log(_to_logger(to))
    check(library().flexcast_log(number, callback, None))
    if _log_callback is None and to is not None:
        # No thread of the library may call Python once the interpreter ends.
        atexit.register(lambda: library().flexcast_log(number, _abi.Log(), None))
    _log_callback = callback


def _to_logger(logger: logging.Logger) -> Any:
    levels = {1: logging.ERROR, 2: logging.WARNING, 3: logging.INFO, 4: logging.DEBUG, 5: logging.DEBUG}

    def write(_user: Any, level: int, target: bytes | None, said: bytes | None) -> None:
        name = (target or b"").decode(errors="replace")
        logger.log(levels.get(level, logging.DEBUG), "%s: %s", name, (said or b"").decode(errors="replace"))

    return write
