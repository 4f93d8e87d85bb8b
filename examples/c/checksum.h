/* SPDX-License-Identifier: Apache-2.0 */
/* What host and device agree on. */
#ifndef CHECKSUM_H
#define CHECKSUM_H

#include <stdint.h>

/* The queue pair has 2^3 receives and 2^3 send blocks; the completion queue serves both. */
enum { LOG_QP_DEPTH = 3, QP_DEPTH = 1 << LOG_QP_DEPTH, LOG_CQ_DEPTH = 4, MESSAGE_BYTES = 256 };

struct checksum_context {
	uint64_t cq_ring;
	uint64_t cq_dbr;
	uint64_t rq_ring;
	uint64_t sq_ring;
	uint64_t qp_dbr;
	/* QP_DEPTH messages, then QP_DEPTH answers of 8 bytes. */
	uint64_t buffers;
	uint32_t lkey;
	uint32_t cqn;
	uint32_t qpn;
	uint32_t outbox_id;
	/* Of the device. */
	uint32_t consumed;
	uint32_t messages;
	uint32_t sent;
	uint32_t configured;
};

#endif
