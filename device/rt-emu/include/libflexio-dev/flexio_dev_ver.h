/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Versions of the device interface. A program includes this header, defines FLEXIO_DEV_VER_USED, and includes
 * flexio_dev.h; flexio_dev.h has the default.
 */
#ifndef FLEXIO_DEV_VER_H
#define FLEXIO_DEV_VER_H

#include "../libflexio/flexio_ver.h"

#define FLEXIO_DEV_VER(major, minor, patch) FLEXIO_VER(major, minor, patch)
/* The newest version of whatever headers are installed. */
#define FLEXIO_DEV_VER_LATEST FLEXIO_VER_LATEST

#endif
