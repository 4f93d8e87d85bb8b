# SPDX-License-Identifier: Apache-2.0
"""Backend of torch.distributed: after `import flexcast.torch`, `init_process_group("flexcast")`.

Collectives on tensors in host memory go by Flexcast. What Flexcast does not take (send and receive, sparse tensors, element types or
operators that it does not know) goes by a gloo process group inside. Which of the two is decided by what is alike on all ranks.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from .base import NAME
from .process_group import FlexcastBackend
from .work import FlexcastWork

__all__ = ["NAME", "FlexcastBackend", "FlexcastWork", "register"]


def _create(store: Any, rank: int, size: int, timeout: timedelta) -> FlexcastBackend:
    return FlexcastBackend(store, rank, size, timeout)


def register() -> None:
    """Makes the backend known to torch.distributed; again: nothing. Importing this module does it.

    A name that another package has registered stays that package's: RuntimeError.
    """
    there = dist.Backend._plugins.get(NAME.upper())
    if there is None:
        dist.Backend.register_backend(NAME, _create, devices=["cpu"])
    elif there.creator_fn.__module__ != __name__:
        raise RuntimeError(
            f"torch.distributed has a backend {NAME!r} already, from {there.creator_fn.__module__}: import only one of the two packages"
        )


register()
