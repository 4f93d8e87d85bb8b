# SPDX-License-Identifier: Apache-2.0
"""flexcast.torch by the contract of process groups: with a stub of that contract, and with torch where it is installed."""

from __future__ import annotations

import importlib.util
import os
import tempfile
import unittest
from pathlib import Path

import ranks

STUB = str(Path(__file__).parent / "c10d_stub")
HAS_TORCH = importlib.util.find_spec("torch") is not None


def run(function: str, size: int, stub: bool) -> None:
    path = os.pathsep.join(([STUB] if stub else []) + [part for part in [os.environ.get("PYTHONPATH")] if part])
    with tempfile.TemporaryDirectory() as folder:
        ranks.run(f"c10d_conformance:{function}", size, C10D_STORE=f"{folder}/store", PYTHONPATH=path)


class Stub(unittest.TestCase):
    """With c10d_stub in the place of torch."""

    stub = True

    def test_moving_2(self) -> None:
        run("moving", 2, self.stub)

    def test_moving_3(self) -> None:
        run("moving", 3, self.stub)

    def test_reducing_2(self) -> None:
        run("reducing", 2, self.stub)

    def test_reducing_3(self) -> None:
        run("reducing", 3, self.stub)

    def test_works_2(self) -> None:
        run("works", 2, self.stub)

    def test_works_3(self) -> None:
        run("works", 3, self.stub)

    def test_bad_input_2(self) -> None:
        run("bad_input", 2, self.stub)

    def test_bad_input_3(self) -> None:
        run("bad_input", 3, self.stub)

    def test_unlike_lengths_2(self) -> None:
        run("unlike_lengths", 2, self.stub)

    def test_unlike_lengths_3(self) -> None:
        run("unlike_lengths", 3, self.stub)

    def test_name_taken(self) -> None:
        run("name_taken", 1, self.stub)

    def test_old_release(self) -> None:
        run("old_release", 1, self.stub)


@unittest.skipUnless(HAS_TORCH, "no torch: pip install torch")
class Torch(Stub):
    """With torch."""

    stub = False


if __name__ == "__main__":
    unittest.main()
