# SPDX-License-Identifier: Apache-2.0
"""Constants, structures and functions of the C interface, as flexcast.h has them."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any

IN_PLACE = c_void_p(-1).value
UNDEFINED = -1
OK = 0
NOT_SUPPORTED = 10

BARRIER = 1
BROADCAST = 2
ALLGATHER = 3
ALLGATHERV = 4
ALLREDUCE = 5
REDUCE = 6
REDUCE_SCATTER_BLOCK = 7
REDUCE_SCATTER = 8
ALLTOALL = 9
ALLTOALLV = 10
GATHER = 11
GATHERV = 12
SCATTER = 13
SCATTERV = 14
SPARSE_ALLREDUCE = 15

AWAITED = 2
SETTINGS_BYTES = 4096

DATA_TYPES = {
    "int8": 1,
    "uint8": 2,
    "int16": 3,
    "uint16": 4,
    "int32": 5,
    "uint32": 6,
    "int64": 7,
    "uint64": 8,
    "float16": 9,
    "bfloat16": 10,
    "float32": 11,
    "float64": 12,
    "complex64": 13,
    "complex128": 14,
    "bool": 15,
}

# Pairs of a value and an index, by the type of the value, as C lays them out: the index is an int.
PAIR_TYPES = {"float32": 17, "float64": 18, "int64": 19, "int32": 20, "int16": 21}

REDUCTIONS = {
    "sum": 1,
    "prod": 2,
    "min": 3,
    "max": 4,
    "logical_and": 5,
    "logical_or": 6,
    "logical_xor": 7,
    "bit_and": 8,
    "bit_or": 9,
    "bit_xor": 10,
    "minloc": 11,
    "maxloc": 12,
}

# Those of pairs.
PAIR_REDUCTIONS = ("minloc", "maxloc")

LOG_LEVELS = {"off": 0, "error": 1, "warn": 2, "info": 3, "debug": 4, "trace": 5}

Exchange = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t, c_void_p)
StoreSet = ctypes.CFUNCTYPE(c_int, c_void_p, c_char_p, c_void_p, c_size_t)
StoreGet = ctypes.CFUNCTYPE(c_int, c_void_p, c_char_p, c_void_p, c_size_t)
Finished = ctypes.CFUNCTYPE(None, c_void_p, c_void_p, c_int)
Log = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_char_p, c_char_p)


class EndpointOptions(ctypes.Structure):
    """flexcast_endpoint_options."""

    _fields_ = [
        ("size", c_size_t),
        ("libraries", c_char_p),
        ("device", c_char_p),
        ("firmware_path", c_char_p),
        ("firmware", c_void_p),
        ("firmware_bytes", c_size_t),
        ("datapath", c_char_p),
        ("interface_name", c_char_p),
        ("memory_watch", c_char_p),
        ("sparse_firmware_path", c_char_p),
    ]


def _words(kind: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


class Config(ctypes.Structure):
    """flexcast_config."""

    _fields_ = [
        ("size", c_size_t),
        *_words(c_uint32, "algorithm control transport reproducible progress_thread progress_cpu data_class control_class"),
        *_words(c_uint64, "max_receive_bytes barrier_timeout_ns recovery_timeout_ns"),
        ("settings", c_char * SETTINGS_BYTES),
    ]


class StoreFunctions(ctypes.Structure):
    """flexcast_store_functions."""

    _fields_ = [
        ("size", c_size_t),
        ("set", StoreSet),
        ("get", StoreGet),
        ("user", c_void_p),
        ("prefix", c_char_p),
        ("timeout_ms", c_uint64),
    ]


class Collective(ctypes.Structure):
    """flexcast_collective."""

    _fields_ = [
        ("size", c_size_t),
        ("operation", c_uint32),
        ("flags", c_uint32),
        ("send", c_void_p),
        ("receive", c_void_p),
        ("count", c_size_t),
        ("send_counts", POINTER(c_size_t)),
        ("send_displacements", POINTER(c_size_t)),
        ("receive_counts", POINTER(c_size_t)),
        ("receive_displacements", POINTER(c_size_t)),
        ("data_type", c_uint32),
        ("reduction", c_uint32),
        ("root", c_int),
        ("reserved", c_uint32),
        ("callback", Finished),
        ("user", c_void_p),
        ("block_bytes", c_uint32),
        ("blocks_per_message", c_uint32),
    ]


class Report(ctypes.Structure):
    """flexcast_report."""

    _fields_ = [
        ("status", c_int32),
        ("memory_held", c_uint32),
        *(
            (name, c_uint64)
            for name in (
                "posted_ns armed_ns ready_ns sending_ns sent_ns received_ns cut_off_ns complete_ns released_ns foreign_bytes "
                "recovered_chunks recovered_bytes reads fetches_served late_chunks overflowed_datagrams"
            ).split()
        ),
        *((name, c_uint32) for name in "cause code failed_rank detecting_rank pace_mbit_per_s added_by_dpa".split()),
        ("sum_error", c_double),
    ]


# Functions that return a flexcast_status, with the types of their arguments. Handles are pointers that are never
# followed.
STATUS_FUNCTIONS: dict[str, list[Any]] = {
    "flexcast_endpoint_options_default": [POINTER(EndpointOptions), c_size_t],
    "flexcast_endpoint_open": [POINTER(EndpointOptions), POINTER(c_void_p)],
    "flexcast_endpoint_datapath": [c_void_p, POINTER(c_char_p)],
    "flexcast_endpoint_close": [c_void_p],
    "flexcast_buffer_invalidate": [c_void_p, c_void_p, c_size_t],
    "flexcast_bootstrap_callback": [Exchange, c_void_p, c_int, c_int, POINTER(c_void_p)],
    "flexcast_bootstrap_tcp": [c_char_p, c_char_p, c_char_p, c_int, c_int, c_uint64, POINTER(c_void_p)],
    "flexcast_bootstrap_environment": [POINTER(c_void_p)],
    "flexcast_bootstrap_store": [POINTER(StoreFunctions), c_int, c_int, POINTER(c_void_p)],
    "flexcast_bootstrap_rank": [c_void_p, POINTER(c_int), POINTER(c_int)],
    "flexcast_bootstrap_free": [c_void_p],
    "flexcast_config_default": [POINTER(Config), c_size_t],
    "flexcast_config_set": [POINTER(Config), c_char_p, c_char_p],
    "flexcast_comm_create": [c_void_p, c_void_p, POINTER(Config), POINTER(c_void_p)],
    "flexcast_comm_split": [c_void_p, c_void_p, c_int, c_int64, POINTER(c_void_p)],
    "flexcast_comm_free": [c_void_p],
    "flexcast_comm_rank": [c_void_p, POINTER(c_int), POINTER(c_int)],
    "flexcast_comm_event_fd": [c_void_p, POINTER(c_int)],
    "flexcast_progress": [c_void_p, POINTER(c_int)],
    "flexcast_cancel": [c_void_p],
    "flexcast_post": [c_void_p, POINTER(Collective), POINTER(c_void_p)],
    "flexcast_wait_for": [c_void_p, c_uint64, POINTER(c_int)],
    "flexcast_request_free": [c_void_p],
    "flexcast_request_report": [c_void_p, POINTER(Report), c_size_t],
    "flexcast_log": [c_int, Log, c_void_p],
}

# The others: what they return, and the types of their arguments.
OTHER_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "flexcast_abi_version": (c_uint32, []),
    "flexcast_version": (c_char_p, []),
    "flexcast_strerror": (c_char_p, [c_int32]),
    "flexcast_last_error": (c_char_p, []),
}
