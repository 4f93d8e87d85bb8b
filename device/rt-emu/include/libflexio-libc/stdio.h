/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of <stdio.h> that the device library has. They print on the default message stream. */
#ifndef FLEXIO_LIBC_STDIO_H
#define FLEXIO_LIBC_STDIO_H

#include <stddef.h>

#include "../libflexio-dev/flexio_dev.h"

#define printf(...) flexio_dev_print(__VA_ARGS__)

#endif
