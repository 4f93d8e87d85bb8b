/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PRINTER_H
#define PRINTER_H

#include <stdint.h>

#define LOG_DEPTH 4
#define DEPTH (1 << LOG_DEPTH)
#define FRAME_BYTES 2048

struct printer {
	uint64_t cq_ring, cq_dbr, rq_ring, rq_dbr, frames;
	uint32_t cqn, lkey;
};

#endif
