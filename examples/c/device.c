/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device side: answers each message with the sum of its bytes. `prepare` posts the receives; `checksum` runs when a completion
 * arrives.
 */
#include <dpaintrin.h>
#include <flexio_dev.h>
#include <flexio_dev_queue_access.h>

#include "checksum.h"

/* Opcodes of completions, for which the device headers have no names. */
enum {
	CQE_REQUESTER = 0,
	CQE_RESPONDER_SEND = 2,
	CQE_INVALID = 15,
};

/* How this process ends by itself: codes of the user are 128 to 255. */
enum {
	ERROR_NO_OUTBOX = 0x81,
	ERROR_COMPLETION = 0x82,
};

static uint64_t message_address(const struct checksum_context *context, uint32_t index)
{
	return context->buffers + (index % QP_DEPTH) * MESSAGE_BYTES;
}

static uint64_t answer_address(const struct checksum_context *context, uint32_t index)
{
	return context->buffers + QP_DEPTH * MESSAGE_BYTES + (index % QP_DEPTH) * sizeof(uint64_t);
}

/* Unpacks the one argument that the host packs. */
static uint64_t unpack(void *argbuf, void *func)
{
	return ((flexio_dev_rpc_handler_t *)func)(*(uint64_t *)argbuf);
}

__dpa_rpc__ uint64_t prepare(uint64_t argument)
{
	struct checksum_context *context = (struct checksum_context *)argument;
	/* A receive entry is one data segment, as a send entry has them. */
	union flexio_dev_sqe_seg *ring = (union flexio_dev_sqe_seg *)context->rq_ring;

	for (uint32_t i = 0; i < QP_DEPTH; i++) {
		flexio_dev_swqe_seg_mem_ptr_data_set(&ring[i], MESSAGE_BYTES, context->lkey, message_address(context, i));
		__dpa_thread_memory_fence(__DPA_W, __DPA_W);
		flexio_dev_dbr_rq_inc_pi((uint32_t *)context->qp_dbr);
	}
	flexio_dev_print("checksum: %d receives of %d bytes on queue pair %#x\n", QP_DEPTH, MESSAGE_BYTES, context->qpn);
	return 0;
}

__dpa_rpc__ uint64_t prepare__unpack(void *argbuf, void *func)
{
	return unpack(argbuf, func);
}

static void answer(struct checksum_context *context, struct flexio_dev_cqe64 *cqe)
{
	uint32_t index = flexio_dev_cqe_get_wqe_counter(cqe), length = flexio_dev_cqe_get_byte_cnt(cqe);
	const uint8_t *message = (const uint8_t *)message_address(context, index);
	union flexio_dev_sqe_seg *entry =
		(union flexio_dev_sqe_seg *)(context->sq_ring + (context->sent % QP_DEPTH) * 64);
	uint64_t *sum = (uint64_t *)answer_address(context, context->sent);

	*sum = 0;
	for (uint32_t i = 0; i < length; i++)
		*sum += message[i];
	flexio_dev_swqe_seg_ctrl_set(&entry[0], context->sent, context->qpn, MLX5_CTRL_SEG_CE_CQE_ALWAYS,
				     FLEXIO_CTRL_SEG_SEND_RC);
	flexio_dev_swqe_seg_mem_ptr_data_set(&entry[1], sizeof(*sum), context->lkey, (uint64_t)sum);
	context->sent++;
	context->messages++;

	/* Entry and answer before the record, the record before the doorbell. */
	__dpa_thread_memory_fence(__DPA_W, __DPA_W);
	((volatile uint32_t *)context->qp_dbr)[1] = cpu_to_be32(context->sent & 0xFFFF);
	__dpa_thread_outbox_fence(__DPA_W, __DPA_W);
	flexio_dev_qp_sq_ring_db(context->sent, context->qpn);
	flexio_dev_dbr_rq_inc_pi((uint32_t *)context->qp_dbr);
}

__dpa_global__ void checksum(uint64_t argument)
{
	struct checksum_context *context = (struct checksum_context *)argument;
	struct flexio_dev_cqe64 *ring = (struct flexio_dev_cqe64 *)context->cq_ring;
	struct flexio_dev_thread_ctx *dtctx;

	flexio_dev_get_thread_ctx(&dtctx);
	if (!context->configured) {
		if (flexio_dev_outbox_config(dtctx, context->outbox_id) != FLEXIO_DEV_STATUS_SUCCESS)
			flexio_dev_error(ERROR_NO_OUTBOX);
		context->configured = 1;
	}
	for (;;) {
		struct flexio_dev_cqe64 *cqe = &ring[context->consumed % (1 << LOG_CQ_DEPTH)];

		/* In the first pass of the ring entries of the hardware have owner bit 1, then 0, and so on. */
		if (flexio_dev_cqe_get_owner(cqe) != (context->consumed >> LOG_CQ_DEPTH & 1) ||
		    flexio_dev_cqe_get_opcode(cqe) == CQE_INVALID)
			break;
		__dpa_thread_memory_fence(__DPA_R, __DPA_R);
		switch (flexio_dev_cqe_get_opcode(cqe)) {
		case CQE_RESPONDER_SEND:
			answer(context, cqe);
			break;
		case CQE_REQUESTER:
			break;
		default:
			flexio_dev_print("checksum: completion %u has opcode %u, syndrome %#x\n", context->consumed,
					 flexio_dev_cqe_get_opcode(cqe), flexio_dev_cqe_get_err_synd(cqe));
			flexio_dev_error(ERROR_COMPLETION);
		}
		context->consumed++;
		flexio_dev_dbr_cq_set_ci((uint32_t *)context->cq_dbr, context->consumed);
	}
	__dpa_thread_memory_fence(__DPA_RW, __DPA_RW);
	flexio_dev_cq_arm(context->consumed, context->cqn);
	flexio_dev_thread_reschedule();
}
