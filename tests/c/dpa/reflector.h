/* SPDX-License-Identifier: Apache-2.0 */
/* What both sides of the reflector know. */
#ifndef REFLECTOR_H
#define REFLECTOR_H

#include <stdint.h>

#define LOG_DEPTH 5
#define DEPTH (1 << LOG_DEPTH)
#define FRAME_BYTES 2048

struct reflector {
	uint64_t rq_cq_ring, rq_cq_dbr, rq_ring, rq_dbr, sq_cq_ring, sq_cq_dbr, sq_ring, buffers;
	uint32_t rq_cqn, sq_cqn, sqn, lkey;
	uint32_t reflected, wrong_checksums, tagged;
};

#endif
