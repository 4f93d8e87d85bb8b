/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sends each frame back to where it came from. By both generations of the interface: with the thread context as the first
 * argument of doorbells, and without.
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
static uint32_t consumed;

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
	return 0;
}

/* Narrow and wide arguments, to be given back in one number. */
__dpa_rpc__ uint64_t reflector_add(uint8_t small, int number, const void *pointer, uint64_t wide)
{
	return small + (int64_t)number + (uint64_t)pointer + wide;
}

__dpa_rpc__ uint64_t reflector_reflected(void)
{
	return __atomic_load_n(&state->reflected, __ATOMIC_RELAXED);
}

__dpa_rpc__ uint64_t reflector_noticed(void)
{
	return (uint64_t)state->wrong_checksums << 32 | state->tagged;
}

/* A task of the command queue. */
__dpa_global__ void reflector_task(uint64_t counter)
{
	__atomic_fetch_add((uint64_t *)counter, 1, __ATOMIC_RELAXED);
}

static void send(struct flexio_dev_thread_ctx *ctx, char *frame, uint32_t bytes)
{
	union flexio_dev_sqe_seg *entry = (union flexio_dev_sqe_seg *)state->sq_ring + 4 * (state->reflected % DEPTH);
	char source[6];

	(void)ctx;
	memcpy(source, frame + 6, 6);
	memcpy(frame + 6, frame, 6);
	memcpy(frame, source, 6);
	flexio_dev_swqe_seg_ctrl_set(&entry[0], state->reflected, state->sqn, MLX5_CTRL_SEG_CE_CQE_ON_CQE_ERROR,
				     FLEXIO_CTRL_SEG_SEND_EN);
	flexio_dev_swqe_seg_eth_set(&entry[1], 0, 0, 0, NULL);
	flexio_dev_swqe_seg_mem_ptr_data_set(&entry[2], bytes, state->lkey, (uint64_t)frame);
	__dpa_thread_memory_writeback();
	flexio_dev_qp_sq_ring_db(CTX ++state->reflected, state->sqn);
}

__dpa_global__ void reflector_event(uint64_t argument)
{
	struct flexio_dev_cqe64 *ring = (struct flexio_dev_cqe64 *)state->rq_cq_ring;
	struct flexio_dev_thread_ctx *ctx;

	(void)argument;
	flexio_dev_get_thread_ctx(&ctx);
	for (;;) {
		struct flexio_dev_cqe64 *cqe = &ring[consumed % DEPTH];
		/* The bytes of `hds_ip_ext`, `l4_l3_hdr_type` that drivers of the host read. */
		const uint8_t *bytes = (const uint8_t *)cqe;

		if (flexio_dev_cqe_get_owner(cqe) != (consumed / DEPTH & 1))
			break;
		__dpa_thread_memory_fence(__DPA_R, __DPA_R);
		state->wrong_checksums += (bytes[28] & 2) == 0;
		state->tagged += bytes[29] & 1;
		send(ctx, (char *)state->buffers + flexio_dev_cqe_get_wqe_counter(cqe) % DEPTH * FRAME_BYTES,
		     flexio_dev_cqe_get_byte_cnt(cqe));
		consumed++;
		flexio_dev_dbr_cq_set_ci((uint32_t *)state->rq_cq_dbr, consumed);
		flexio_dev_dbr_rq_inc_pi((uint32_t *)state->rq_dbr);
	}
	__dpa_thread_memory_fence(__DPA_W, __DPA_W);
	flexio_dev_cq_arm(CTX consumed, state->rq_cqn);
	flexio_dev_thread_reschedule();
}
