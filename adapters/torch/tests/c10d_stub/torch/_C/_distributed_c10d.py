# SPDX-License-Identifier: Apache-2.0
"""Stores, options, works and the base of backends, as C++ gives them to Python."""

from __future__ import annotations

import enum
import fcntl
import struct
import time
from datetime import timedelta
from typing import Any

_UNSET = timedelta(milliseconds=-1)
_PAUSE = 0.002


class DistStoreError(RuntimeError):
    """A store did not answer in time."""


class Store:
    """What all stores have."""

    timeout = timedelta(seconds=300)

    def set(self, key: str, value: str | bytes) -> None:
        raise NotImplementedError

    def check(self, keys: list[str]) -> bool:
        raise NotImplementedError

    def _now(self, key: str) -> bytes:
        raise NotImplementedError

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        limit = self.timeout if timeout is None else timeout
        end = time.monotonic() + limit.total_seconds()
        while not self.check(keys):
            if time.monotonic() > end:
                raise DistStoreError(f"wait timeout after {limit}, keys: {keys}")
            time.sleep(_PAUSE)

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self._now(key)


class FileStore(Store):
    """Keys and values one after another in a file that all ranks can write."""

    def __init__(self, path: str, numWorkers: int = -1) -> None:
        self._path, self._place, self._values = path, 0, {}  # type: ignore[var-annotated]

    def _read(self) -> None:
        try:
            file = open(self._path, "rb")
        except FileNotFoundError:
            return
        with file:
            fcntl.flock(file, fcntl.LOCK_SH)
            file.seek(self._place)
            text = file.read()
        place = 0
        while place < len(text):
            key_bytes, value_bytes = struct.unpack_from("<II", text, place)
            middle = place + 8 + key_bytes
            place = middle + value_bytes
            self._values[text[middle - key_bytes : middle].decode()] = text[middle:place]
        self._place += place

    def set(self, key: str, value: str | bytes) -> None:
        name, text = key.encode(), value.encode() if isinstance(value, str) else bytes(value)
        with open(self._path, "ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(struct.pack("<II", len(name), len(text)) + name + text)

    def check(self, keys: list[str]) -> bool:
        self._read()
        return all(key in self._values for key in keys)

    def _now(self, key: str) -> bytes:
        value: bytes = self._values[key]
        return value


class PrefixStore(Store):
    """Another store, where all keys begin with a prefix."""

    def __init__(self, prefix: str, store: Store) -> None:
        self._prefix, self._store = prefix, store

    def set(self, key: str, value: str | bytes) -> None:
        self._store.set(f"{self._prefix}/{key}", value)

    def check(self, keys: list[str]) -> bool:
        return self._store.check([f"{self._prefix}/{key}" for key in keys])

    def _now(self, key: str) -> bytes:
        return self._store._now(f"{self._prefix}/{key}")


class ReduceOp(enum.Enum):
    """Operators of reductions."""

    SUM = 0
    AVG = 1
    PRODUCT = 2
    MIN = 3
    MAX = 4
    BAND = 5
    BOR = 6
    BXOR = 7

    def __str__(self) -> str:
        return f"<RedOpType.{self.name}: {self.value}>"


class _Options:
    def __init__(self) -> None:
        self.timeout = _UNSET
        self.asyncOp = False


class AllgatherOptions(_Options):
    pass


class AllToAllOptions(_Options):
    pass


class BarrierOptions(_Options):
    def __init__(self) -> None:
        super().__init__()
        self.device_ids: list[int] = []
        self.device: Any = None


class BroadcastOptions(_Options):
    def __init__(self) -> None:
        super().__init__()
        self.rootRank, self.rootTensor = 0, 0


class GatherOptions(_Options):
    def __init__(self) -> None:
        super().__init__()
        self.rootRank = 0


class ScatterOptions(GatherOptions):
    pass


class AllreduceOptions(_Options):
    def __init__(self) -> None:
        super().__init__()
        self.reduceOp: Any = ReduceOp.SUM


class AllreduceCoalescedOptions(AllreduceOptions):
    pass


class ReduceScatterOptions(AllreduceOptions):
    pass


class ReduceOptions(AllreduceOptions):
    def __init__(self) -> None:
        super().__init__()
        self.rootRank, self.rootTensor = 0, 0


class Work:
    """What an operation returns. C++ asks a Work of Python for wait() and get_future() alone."""

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        raise RuntimeError("Work::wait is not implemented by this Work")

    def get_future(self) -> Any:
        raise RuntimeError("Work::getFuture not implemented.")

    def is_completed(self) -> bool:
        return False

    def is_success(self) -> bool:
        return True


class WorkHolder(Work):
    """A Work of Python as it comes back from C++."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        return self._work.wait(timeout)

    def get_future(self) -> Any:
        return self._work.get_future()


class _Group:
    def __init__(self, rank: int, size: int) -> None:
        self._its_rank, self._its_size = rank, size

    def rank(self) -> int:
        return self._its_rank

    def size(self) -> int:
        return self._its_size


class Backend(_Group):
    """Base of backends."""

    def abort(self) -> None:
        pass

    def shutdown(self) -> None:
        pass


class ProcessGroup(_Group):
    """What programs call: it takes the backend of the tensors' device."""

    class BackendType(enum.Enum):
        """Kinds of backends."""

        GLOO = 1
        CUSTOM = 6

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._backends: dict[str, Any] = {}

    def _register_backend(self, device: Any, kind: BackendType, backend: Any) -> None:
        self._backends[device.type] = backend

    def _get_backend(self, device: Any) -> Any:
        if device.type not in self._backends:
            raise RuntimeError(f"No backend type associated with device type {device.type}")
        return self._backends[device.type]

    def shutdown(self) -> None:
        for backend in self._backends.values():
            backend.shutdown()


from ._gloo import ProcessGroupGloo  # noqa: E402

__all__ = [name for name in dict(globals()) if not name.startswith("_")] + ["ProcessGroupGloo"]
