/* SPDX-License-Identifier: Apache-2.0 */
/* Versions of the interfaces of host and device. */
#ifndef FLEXIO_VER_H
#define FLEXIO_VER_H

#define FLEXIO_VER_MAJOR_OFFS 24
#define FLEXIO_VER_MINOR_OFFS 16

#define FLEXIO_VER(major, minor, patch) \
	(((major) << FLEXIO_VER_MAJOR_OFFS) | ((minor) << FLEXIO_VER_MINOR_OFFS) | (patch))
#define FLEXIO_VER_LATEST FLEXIO_VER(0xFFU, 0xFF, 0xFFFF)

#endif
