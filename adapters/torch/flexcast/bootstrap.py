# SPDX-License-Identifier: Apache-2.0
"""How ranks find one another: by the environment, over TCP, by a key-value store or by an Allgather of the program."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Protocol

from . import _abi, errors
from ._library import check, failure, library


class Store(Protocol):
    """What a key-value store needs: get() returns None, or raises KeyError, while the key is not there."""

    def set(self, key: str, value: bytes) -> Any:
        """Sets a key."""

    def get(self, key: str) -> bytes | None:
        """Its value."""


class Bootstrap:
    """The ranks of a job before they are connected."""

    def __init__(self, make: Callable[[Any, Any], int], keep: Any = None, raised: list[BaseException] | None = None) -> None:
        self._keep = keep
        self._exceptions = [] if raised is None else raised
        self._raised: BaseException | None = None
        self._handle = ctypes.c_void_p()
        check(make(library(), ctypes.byref(self._handle)))

    @classmethod
    def from_environment(cls) -> Bootstrap:
        """FLEXCAST_RANK, FLEXCAST_SIZE, FLEXCAST_STORE ("host:port"), FLEXCAST_JOB and FLEXCAST_SECRET_FILE say it."""
        return cls(lambda found, handle: found.flexcast_bootstrap_environment(handle))

    @classmethod
    def from_tcp(cls, address: str, rank: int, size: int, *, job: str | None = None, timeout: float = 60.0) -> Bootstrap:
        """Rank 0 listens at `address` ("host:port"), the others connect; encrypted if FLEXCAST_SECRET_FILE names a secret of all ranks."""
        name = None if job is None else job.encode()
        return cls(
            lambda found, handle: found.flexcast_bootstrap_tcp(address.encode(), name, None, rank, size, _milliseconds(timeout), handle)
        )

    @classmethod
    def from_store(cls, store: Store, rank: int, size: int, *, prefix: str = "flexcast", timeout: float = 60.0) -> Bootstrap:
        """A store that all ranks reach. `prefix` begins all keys, and must be another one for each bootstrap of one store."""
        raised: list[BaseException] = []

        def set_value(_user: Any, key: bytes, value: int, size: int) -> int:
            try:
                store.set(key.decode(), ctypes.string_at(value, size))
                return 0
            except BaseException as error:
                raised.append(error)
                return -1

        def get_value(_user: Any, key: bytes, into: int, size: int) -> int:
            try:
                try:
                    value = store.get(key.decode())
                except KeyError:
                    return 1
                if value is None:
                    return 1
                if len(value) != size:
                    raise errors.ExchangeFailed(f"the store has {len(value)} bytes at {key.decode()!r}, and {size} were set there")
                ctypes.memmove(into, bytes(value), size)
                return 0
            except BaseException as error:
                raised.append(error)
                return -1

        functions = _abi.StoreFunctions(
            size=ctypes.sizeof(_abi.StoreFunctions),
            set=_abi.StoreSet(set_value),
            get=_abi.StoreGet(get_value),
            prefix=prefix.encode(),
            timeout_ms=_milliseconds(timeout),
        )
        return cls(
            lambda found, handle: found.flexcast_bootstrap_store(ctypes.byref(functions), rank, size, handle), functions, raised
        )

    @classmethod
    def from_allgather(cls, allgather: Callable[[bytes], Any], rank: int, size: int) -> Bootstrap:
        """`allgather(bytes)` returns a list of the bytes of every rank, as the method of that name of an mpi4py communicator does."""
        raised: list[BaseException] = []

        def exchange(_user: Any, mine: int, size_of_one: int, all: int) -> int:
            try:
                parts = list(allgather(ctypes.string_at(mine, size_of_one)))
                if len(parts) != size or any(len(part) != size_of_one for part in parts):
                    lengths = [len(part) for part in parts]
                    raise errors.ExchangeFailed(f"allgather returned parts of {lengths} bytes: {size} of {size_of_one} are needed")
                ctypes.memmove(all, b"".join(parts), size * size_of_one)
                return 0
            except BaseException as error:
                raised.append(error)
                return -1

        callback = _abi.Exchange(exchange)
        return cls(
            lambda found, handle: found.flexcast_bootstrap_callback(callback, None, rank, size, handle), callback, raised
        )

    @classmethod
    def from_mpi4py(cls, communicator: Any) -> Bootstrap:
        """An mpi4py communicator, or anything with its allgather(), Get_rank() and Get_size()."""
        return cls.from_allgather(communicator.allgather, communicator.Get_rank(), communicator.Get_size())

    def _check(self, status: int) -> None:
        """Raises the failure of a call that exchanges, with the exception of the program's function as its cause."""
        causes = list(self._exceptions)
        self._exceptions.clear()
        if status != _abi.OK:
            raise failure(status) from (causes[0] if causes else None)

    def _live(self) -> ctypes.c_void_p:
        if not self._handle:
            raise errors.Closed("the bootstrap was closed before")
        return self._handle

    @property
    def rank(self) -> int:
        """Who this process is."""
        return self._who()[0]

    @property
    def size(self) -> int:
        """Of how many."""
        return self._who()[1]

    def _who(self) -> tuple[int, int]:
        rank, size = ctypes.c_int(), ctypes.c_int()
        check(library().flexcast_bootstrap_rank(self._live(), ctypes.byref(rank), ctypes.byref(size)))
        return rank.value, size.value

    def close(self) -> None:
        """Ends it; communicators stay, and cannot be split any more."""
        if self._handle:
            check(library().flexcast_bootstrap_free(self._handle))
            self._handle = ctypes.c_void_p()
            # Nothing calls the program's functions any more. Communicators, and requests that the program keeps, must
            # not keep a store alive.
            self._keep = None


def _milliseconds(seconds: float) -> int:
    if not seconds > 0:
        raise errors.ArgumentError(f"timeout of {seconds} s: it must be more than 0")
    return max(1, min(round(seconds * 1000), 2**63))
