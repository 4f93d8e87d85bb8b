/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device side of tests/tests/outside/mistakes.rs: sends back the number in each message, plus one, and makes the mistake that its
 * lane names.
 */
#include <dpaintrin.h>
#include <flexio_dev.h>
#include <flexio_dev_queue_access.h>

#include "mistakes.h"

static struct spinlock_s left, right;
static uint64_t sum;
static volatile uint32_t flag;
static uint64_t message;

__attribute__((noinline)) static uint64_t recurse(uint64_t depth, volatile uint64_t *above)
{
	volatile uint64_t here[32];

	for (int i = 0; i < 32; i++)
		here[i] = above ? above[i] + depth : depth;
	return depth ? recurse(depth - 1, here) + here[7] : here[3];
}

static void pause(void)
{
	for (volatile int i = 0; i < 2000; i++)
		;
}

static void post_receives(struct lane *lane, uint32_t from, uint32_t count)
{
	struct flexio_dev_wqe_rcv_data_seg *entries = (void *)lane->receives;

	for (uint32_t i = from; i < from + count; i++) {
		struct flexio_dev_wqe_rcv_data_seg *entry = &entries[i % RING];

		entry->byte_count = cpu_to_be32(MESSAGE);
		entry->lkey = cpu_to_be32(lane->key);
		entry->addr = cpu_to_be64(lane->buffers + i % RING * MESSAGE);
	}
	__dpa_thread_memory_fence(__DPA_W, __DPA_W);
	for (uint32_t i = 0; i < count; i++)
		flexio_dev_dbr_rq_inc_pi((uint32_t *)lane->qp_record);
}

static void answer(struct lane *lane, uint32_t received)
{
	uint64_t *number = (uint64_t *)(lane->buffers + RING * MESSAGE + lane->sent % RING * ANSWER);
	union flexio_dev_sqe_seg *entry = (void *)(lane->sends + lane->sent % RING * 64);

	*number = *(uint64_t *)(lane->buffers + received % RING * MESSAGE) + 1;
	flexio_dev_swqe_seg_ctrl_set(&entry[0], lane->sent, lane->qpn, MLX5_CTRL_SEG_CE_CQE_ALWAYS,
				     lane->mistake == unknown_opcode ? FLEXIO_CTRL_SEG_WAIT_ON_DATA :
								       FLEXIO_CTRL_SEG_SEND_RC);
	flexio_dev_swqe_seg_mem_ptr_data_set(&entry[1], ANSWER, lane->mistake == unknown_key ? 0x1234 : lane->key,
					     (uint64_t)number);
	lane->sent++;
	__dpa_thread_memory_fence(__DPA_W, __DPA_W);
	((volatile uint32_t *)lane->qp_record)[1] = cpu_to_be32(lane->sent & 0xFFFF);
	__dpa_thread_outbox_fence(__DPA_W, __DPA_W);
	flexio_dev_qp_sq_ring_db(lane->sent + (lane->mistake == doorbell_beyond_ring ? 100 : 0), lane->qpn);
	if (lane->mistake != never_posts_again)
		post_receives(lane, received, 1);
}

static void begin(struct lane *lane)
{
	struct flexio_dev_thread_ctx *context;

	if (!lane->configured) {
		flexio_dev_get_thread_ctx(&context);
		flexio_dev_outbox_config(context, lane->outbox);
	}
	lane->configured = 1;
	if (lane->mistake == deep_recursion)
		lane->consumed += recurse(500, 0) == 1;
	if (lane->mistake == two_locks) {
		spin_lock(lane->number ? &right : &left);
		pause();
		spin_lock(lane->number ? &left : &right);
	}
	if (lane->mistake == one_lock) {
		spin_lock(&left);
		spin_lock(&left);
	}
	if (lane->mistake == spins)
		while (!flag)
			;
}

static void race(struct lane *lane)
{
	if (lane->mistake == unlocked_sum)
		for (volatile int i = 0; i < 50; i++)
			sum += 1;
	if (lane->mistake == unfenced_flag) {
		/* The first hands a message to the second, with the fence of neither. */
		if (!lane->number) {
			pause();
			message = 42;
			flag = 1;
		} else {
			for (volatile int i = 0; i < 5000 && !flag; i++)
				;
			sum += message;
		}
	}
}

__dpa_global__ void echo(uint64_t argument)
{
	struct lane *lane = (struct lane *)argument;
	struct flexio_dev_cqe64 *ring = (void *)lane->cq_ring;

	begin(lane);
	for (;;) {
		struct flexio_dev_cqe64 *cqe = &ring[lane->consumed & ((1u << lane->log_cq) - 1)];

		if (flexio_dev_cqe_get_owner(cqe) != (lane->consumed >> lane->log_cq & 1) ||
		    flexio_dev_cqe_get_opcode(cqe) == 15) {
			if (lane->mistake == drains_for_ever)
				continue;
			break;
		}
		__dpa_thread_memory_fence(__DPA_R, __DPA_R);
		/* 2: a message has come; 0: an answer has left. */
		if (flexio_dev_cqe_get_opcode(cqe) == 2) {
			race(lane);
			answer(lane, flexio_dev_cqe_get_wqe_counter(cqe));
		}
		lane->consumed++;
		if (lane->mistake != index_never_reported)
			flexio_dev_dbr_cq_set_ci((uint32_t *)lane->cq_record, lane->consumed);
	}
	__dpa_thread_memory_fence(__DPA_RW, __DPA_RW);
	if (lane->mistake != never_arms_again)
		flexio_dev_cq_arm(lane->consumed, lane->cqn);
	if (lane->mistake == returns)
		return;
	flexio_dev_thread_reschedule();
}

__dpa_rpc__ uint64_t prepare(uint64_t argument)
{
	post_receives((struct lane *)argument, 0, RING);
	return 0;
}

__dpa_rpc__ uint64_t prepare__unpack(void *argbuf, void *func)
{
	return ((flexio_dev_rpc_handler_t *)func)(*(uint64_t *)argbuf);
}
