# SPDX-License-Identifier: Apache-2.0
"""Flexcast: collectives over hardware multicast, an RDMA card or plain Ethernet.

flexcast.torch is a backend of torch.distributed.
"""

from ._arguments import IN_PLACE, pair_dtype
from ._library import log, version
from .bootstrap import Bootstrap, Store
from .endpoint import Endpoint
from .communicator import Communicator
from .errors import (
    ArgumentError,
    Broken,
    Busy,
    EndpointError,
    Closed,
    ConfigurationError,
    DataTypeError,
    Error,
    ExchangeFailed,
    Forked,
    InternalError,
    LibraryNotFound,
    NotInstalled,
    NotSupported,
    OperationFailed,
    PeerFailed,
    TimedOut,
    Unsupported,
)
from .failures import Cause, Failure, FailureCode, WaitedFor
from .request import Request

__version__ = "0.1.0"

__all__ = [
    "IN_PLACE",
    "ArgumentError",
    "Bootstrap",
    "Broken",
    "Busy",
    "Endpoint",
    "EndpointError",
    "Cause",
    "Closed",
    "Communicator",
    "ConfigurationError",
    "DataTypeError",
    "Error",
    "ExchangeFailed",
    "Failure",
    "FailureCode",
    "Forked",
    "InternalError",
    "LibraryNotFound",
    "NotInstalled",
    "NotSupported",
    "OperationFailed",
    "PeerFailed",
    "Request",
    "Store",
    "TimedOut",
    "Unsupported",
    "WaitedFor",
    "log",
    "pair_dtype",
    "version",
]
