# SPDX-License-Identifier: Apache-2.0
"""What torch has in C++."""
