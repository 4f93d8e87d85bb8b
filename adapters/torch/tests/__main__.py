# SPDX-License-Identifier: Apache-2.0
"""All tests, and a line of totals: `python tests [NAME...]`."""

from __future__ import annotations

import sys
import unittest
from pathlib import Path

import ranks


def main() -> int:
    loader = unittest.TestLoader()
    names = sys.argv[1:]
    suite = loader.loadTestsFromNames(names) if names else loader.discover(str(Path(__file__).parent))
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    failed = len(result.failures) + len(result.errors)
    reasons = "".join(f" ({reason})" for reason in sorted({reason for _, reason in result.skipped}))
    passed = result.testsRun - failed - len(result.skipped)
    print(f"{passed} passed, {failed} failed, {len(result.skipped)} skipped{reasons}; {ranks.total_checks} comparisons by ranks")
    return int(failed > 0 or result.testsRun == 0)


sys.exit(main())
