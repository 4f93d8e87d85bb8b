/* SPDX-License-Identifier: Apache-2.0 */
/* The name of the binary interface, for the Makefile: the last line of what the preprocessor makes of this. */
#include "abi.h"
ABI_NAME
