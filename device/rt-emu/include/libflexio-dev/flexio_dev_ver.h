/* SPDX-License-Identifier: Apache-2.0 */
/* Versions of the device interface. These headers follow device version 25.1: no thread context as first argument. */
#ifndef FLEXIO_DEV_VER_H
#define FLEXIO_DEV_VER_H

#define FLEXIO_DEV_VER(major, minor, patch) (((major) << 24) + ((minor) << 16) + (patch))
#define FLEXIO_DEV_VER_LATEST FLEXIO_DEV_VER(25, 1, 0)
#ifndef FLEXIO_DEV_VER_USED
#define FLEXIO_DEV_VER_USED FLEXIO_DEV_VER_LATEST
#endif
#if FLEXIO_DEV_VER_USED < FLEXIO_DEV_VER(24, 10, 0)
#error "these headers offer the device interface from 24.10 on: set FLEXIO_DEV_VER_USED to FLEXIO_DEV_VER(24, 10, 0) or later"
#endif

#endif
