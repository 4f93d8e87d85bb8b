/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sends each frame back to where it came from. By both generations of the interface: with the thread context as the
 * first argument of doorbells, and without.
 *
 * A frame is sent from the buffer that it was received in. So its receive is posted again once the send is complete,
 * and each send asks for a completion. Sends complete in the order of the receives, whose entries stay as they are.
 */
#include <flexio_dev_ver.h>
#ifdef CONTEXT_FIRST
#define FLEXIO_DEV_VER_USED FLEXIO_DEV_VER(24, 7, 0)
#define CTX ctx,
#else
#define FLEXIO_DEV_VER_USED FLEXIO_DEV_VER(25, 1, 0)
#define CTX
#endif
#include <dpaintrin.h>
#include <flexio_dev.h>
#include <flexio_dev_queue_access.h>
#include <libflexio-libc/string.h>

#include "reflector.h"

static struct reflector *state;
static uint32_t received, sent;

__dpa_rpc__ uint64_t reflector_init(uint64_t data)
{
	struct flexio_dev_wqe_rcv_data_seg *ring;

	state = (struct reflector *)data;
	ring = (struct flexio_dev_wqe_rcv_data_seg *)state->rq_ring;
	for (uint32_t i = 0; i < DEPTH; i++) {
		flexio_dev_swqe_seg_mem_ptr_data_set((union flexio_dev_sqe_seg *)&ring[i], FRAME_BYTES, state->lkey,
						     state->buffers + i * FRAME_BYTES);
		__dpa_thread_memory_fence(__DPA_W, __DPA_W);
		flexio_dev_dbr_rq_inc_pi((uint32_t *)state->rq_dbr);
	}
	/* The handler finds what is stored here: a call that returns is no fence. */
	__dpa_thread_memory_fence(__DPA_RW, __DPA_RW);
	return 0;
}

/* Narrow and wide arguments, to be given back in one number. */
__dpa_rpc__ uint64_t reflector_add(uint8_t small, int number, const void *pointer, uint64_t wide)
{
	return small + (int64_t)number + (uint64_t)pointer + wide;
}

__dpa_rpc__ uint64_t reflector_reflected(void)
{
	return __atomic_load_n(&state->reflected, __ATOMIC_ACQUIRE);
}

/* What reflector_reflected has counted. */
__dpa_rpc__ uint64_t reflector_noticed(void)
{
	(void)reflector_reflected();
	return (uint64_t)state->wrong_checksums << 32 | state->tagged;
}

/* A task of the command queue. */
__dpa_global__ void reflector_task(uint64_t counter)
{
	__atomic_fetch_add((uint64_t *)counter, 1, __ATOMIC_RELAXED);
}

/* Opcode of a failed receive, for which the device headers have no name. */
enum { CQE_RESPONDER_ERROR = 14 };

/* Whether the card has written the entry; what it wrote may be read then. */
static int is_written(struct flexio_dev_cqe64 *ring, uint32_t index)
{
	if (flexio_dev_cqe_get_owner(&ring[index % DEPTH]) != (index / DEPTH & 1))
		return 0;
	__dpa_thread_memory_fence(__DPA_R, __DPA_R);
	return 1;
}

static void send(struct flexio_dev_thread_ctx *ctx, char *frame, uint32_t bytes)
{
	uint32_t index = state->reflected;
	union flexio_dev_sqe_seg *entry = (union flexio_dev_sqe_seg *)state->sq_ring + 4 * (index % DEPTH);
	char source[6];

	(void)ctx;
	memcpy(source, frame + 6, 6);
	memcpy(frame + 6, frame, 6);
	memcpy(frame, source, 6);
	flexio_dev_swqe_seg_ctrl_set(&entry[0], index, state->sqn, MLX5_CTRL_SEG_CE_CQE_ALWAYS, FLEXIO_CTRL_SEG_SEND_EN);
	flexio_dev_swqe_seg_eth_set(&entry[1], 0, 0, 0, NULL);
	flexio_dev_swqe_seg_mem_ptr_data_set(&entry[2], bytes, state->lkey, (uint64_t)frame);
	/* Frame and entry before the doorbell. */
	__dpa_thread_memory_writeback();
	flexio_dev_qp_sq_ring_db(CTX index + 1, state->sqn);
	__atomic_store_n(&state->reflected, index + 1, __ATOMIC_RELEASE);
}

static void reflect(struct flexio_dev_thread_ctx *ctx, struct flexio_dev_cqe64 *cqe)
{
	/* The bytes of `hds_ip_ext`, `l4_l3_hdr_type` that drivers of the host read. */
	const uint8_t *bytes = (const uint8_t *)cqe;

	state->wrong_checksums += (bytes[28] & 2) == 0;
	state->tagged += bytes[29] & 1;
	send(ctx, (char *)state->buffers + flexio_dev_cqe_get_wqe_counter(cqe) % DEPTH * FRAME_BYTES,
	     flexio_dev_cqe_get_byte_cnt(cqe));
}

__dpa_global__ void reflector_event(uint64_t argument)
{
	struct flexio_dev_cqe64 *receives = (struct flexio_dev_cqe64 *)state->rq_cq_ring;
	struct flexio_dev_cqe64 *sends = (struct flexio_dev_cqe64 *)state->sq_cq_ring;
	struct flexio_dev_thread_ctx *ctx;
	int found;

	(void)argument;
	flexio_dev_get_thread_ctx(&ctx);
	/* In turn: frames that come as fast as they are sent must not keep receives from being posted. */
	do {
		found = 0;
		if (is_written(receives, received)) {
			/* A queue that has failed, or is being destroyed, gives its receives back. */
			if (flexio_dev_cqe_get_opcode(&receives[received % DEPTH]) == CQE_RESPONDER_ERROR)
				flexio_dev_thread_finish();
			reflect(ctx, &receives[received % DEPTH]);
			flexio_dev_dbr_cq_set_ci((uint32_t *)state->rq_cq_dbr, ++received);
			found = 1;
		}
		if (is_written(sends, sent)) {
			flexio_dev_dbr_rq_inc_pi((uint32_t *)state->rq_dbr);
			flexio_dev_dbr_cq_set_ci((uint32_t *)state->sq_cq_dbr, ++sent);
			found = 1;
		}
	} while (found);
	__dpa_thread_memory_fence(__DPA_W, __DPA_W);
	flexio_dev_cq_arm(CTX received, state->rq_cqn);
	flexio_dev_cq_arm(CTX sent, state->sq_cqn);
	flexio_dev_thread_reschedule();
}
