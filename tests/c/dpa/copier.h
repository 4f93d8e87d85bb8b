/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COPIER_H
#define COPIER_H

#include <stdint.h>

#define COPIED_BYTES 1000

struct copier {
	uint64_t from, to;
	uint32_t mkey, window;
	int32_t stream;
};

#endif
