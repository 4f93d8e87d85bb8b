# SPDX-License-Identifier: Apache-2.0
"""Why an operation has failed: cause, code and ranks, as flexcast.h has them."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Cause(enum.IntEnum):
    """What has happened to an operation."""

    SILENT = 1
    CANCELLED = 2
    DISAGREES = 3
    DEVICE = 4
    CONNECTION = 5
    AGGREGATOR = 6
    CONTRIBUTION = 7


class WaitedFor(enum.IntEnum):
    """What a rank waited for in vain (Cause.SILENT)."""

    BARRIER = 1
    ACTIVATION = 2
    OWN_SEND = 3
    BLOCK = 4
    FINAL = 5


class FailureCode(enum.IntEnum):
    """What has happened to a worker or a connection (Cause.DEVICE, Cause.CONNECTION)."""

    LOCAL_LENGTH = 0x0001
    LOCAL_QUEUE_PAIR = 0x0002
    LOCAL_PROTECTION = 0x0004
    FLUSHED = 0x0005
    WINDOW_BIND = 0x0006
    BAD_RESPONSE = 0x0007
    LOCAL_ACCESS = 0x0008
    REMOTE_INVALID_REQUEST = 0x0009
    REMOTE_ACCESS = 0x000a
    REMOTE_OPERATION = 0x000b
    RETRIES_EXCEEDED = 0x000c
    RECEIVER_NOT_READY = 0x000d
    REMOTE_ABORTED = 0x0010
    FATAL = 0x0013
    RESPONSE_TIMEOUT = 0x0014
    COMPLETION = 0x0015
    SYSTEM = 0x1000
    NOT_PERMITTED = 0x1001
    INPUT_OUTPUT = 0x1005
    OUT_OF_MEMORY = 0x100c
    ACCESS_DENIED = 0x100d
    INVALID_ARGUMENT = 0x1016
    SYSTEM_FILES = 0x1017
    PROCESS_FILES = 0x1018
    BROKEN_PIPE = 0x1020
    ADDRESS_IN_USE = 0x1062
    ADDRESS_NOT_AVAILABLE = 0x1063
    NETWORK_DOWN = 0x1064
    NETWORK_UNREACHABLE = 0x1065
    NETWORK_RESET = 0x1066
    CONNECTION_ABORTED = 0x1067
    CONNECTION_RESET = 0x1068
    NO_BUFFERS = 0x1069
    NOT_CONNECTED = 0x106b
    TIMED_OUT = 0x106e
    CONNECTION_REFUSED = 0x106f
    HOST_DOWN = 0x1070
    HOST_UNREACHABLE = 0x1071
    NOT_STARTED = 0x2001
    PROTOCOL_VIOLATION = 0x2002
    WORKER_SILENT = 0x2003
    PROGRESS_THREAD_SILENT = 0x2004
    PROCESS_DIED = 0x2005
    COPY = 0x2006
    DATAGRAMS = 0x2007
    SERVICE_PROCESS = 0x2008
    PROGRAM = 0x2009
    UNKNOWN_CAUSE = 0x200a
    WRONG_PEER = 0x200b
    RECEIVE_QUEUE = 0x2103
    RECEIVE_COPY = 0x2104
    RECEIVE_OPERATION = 0x2105
    RECEIVE_OPCODE = 0x2106
    RECEIVE_CONTROL = 0x2107
    SEND_QUEUE = 0x2204
    SEND_OPERATION = 0x2205
    SEND_CONTROL = 0x2206
    SEND_OPCODE = 0x2207
    PROGRESS_CONTROL = 0x2301
    PROGRESS_COMMAND = 0x2302


@dataclass(frozen=True)
class Failure:
    """Why an operation has failed: alike on all ranks."""

    cause: Cause
    """What has happened."""

    code: FailureCode | WaitedFor | int
    """What exactly: a FailureCode of a worker or a connection, a WaitedFor of silence, an aggregator's number; else 0."""

    failed_rank: int
    """The rank that failed."""

    detecting_rank: int
    """The rank that noticed."""

    @staticmethod
    def of(cause: int, code: int, failed_rank: int, detecting_rank: int) -> Failure | None:
        """The failure of a report; None if it names none."""
        try:
            known = Cause(cause)
        except ValueError:
            return None
        kinds: dict[Cause, type[enum.IntEnum]] = {Cause.SILENT: WaitedFor}
        kinds |= dict.fromkeys((Cause.DEVICE, Cause.CONNECTION), FailureCode)
        kind = kinds.get(known)
        try:
            named = code if kind is None else kind(code)
        except ValueError:
            # Of a later release of the library.
            named = code
        return Failure(known, named, failed_rank, detecting_rank)
