/* SPDX-License-Identifier: Apache-2.0 */
/* What both sides of the test of DOCA DPA have. */
#ifndef FLEXCAST_TESTS_DOCA_H
#define FLEXCAST_TESTS_DOCA_H

#include <stdint.h>

/* Larger than what registers hold, and not of whole words. */
struct numbers {
	uint64_t first;
	uint32_t others[3];
} __dpa_global__;

/* Of the thread that receives: handles, where it receives and where it counts. */
struct receiver {
	uint64_t completion, rdma, notification;
	uint64_t buffer, seen;
	uint32_t mmap, wanted;
};

/* A completion of that thread. */
struct seen {
	uint64_t value;
	uint32_t type, connection, immediate, bytes;
};

/* What a call exchanges with a peer: handles of both sides. */
struct exchange {
	uint64_t rdma, completion, remote_event;
	uint64_t own, peer;
	uint32_t own_mmap, peer_mmap;
} __dpa_global__;

#endif
