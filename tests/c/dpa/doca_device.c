/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of the test of DOCA DPA. */
#include <doca_dpa_dev.h>
#include <doca_dpa_dev_buf.h>
#include <doca_dpa_dev_rdma.h>
#include <doca_dpa_dev_sync_event.h>
#include <dpaintrin.h>

#include "doca.h"

__dpa_rpc__ uint64_t add_up(uint64_t scale, struct numbers numbers, int last)
{
	uint64_t sum = numbers.first;

	for (int at = 0; at < 3; at++)
		sum += numbers.others[at];
	DOCA_DPA_DEV_LOG_ERR("an error of %s\n", __func__);
	DOCA_DPA_DEV_LOG_DBG("nobody reads this\n");
	return scale * sum + last + doca_dpa_dev_thread_rank() + doca_dpa_dev_thread_get_local_storage();
}

/* Each thread of a launch leaves its number, and how many there are. */
__dpa_global__ void count_in(uint64_t results)
{
	unsigned int rank = doca_dpa_dev_thread_rank();

	((uint32_t *)results)[rank] = 100 * doca_dpa_dev_num_threads() + rank;
}

/* Waits on the DPA for one event and adds to another. */
__dpa_global__ void answer(doca_dpa_dev_sync_event_t question, doca_dpa_dev_sync_event_t reply)
{
	uint64_t value;

	doca_dpa_dev_sync_event_wait_gt(question, 6, 0xFF);
	doca_dpa_dev_sync_event_get(question, &value);
	doca_dpa_dev_sync_event_update_add(reply, value);
}

__dpa_rpc__ uint64_t post_receive(uint64_t rdma, uint32_t mmap, uint64_t buffer)
{
	doca_dpa_dev_rdma_post_receive(rdma, mmap, buffer, 8);
	return 0;
}

__dpa_rpc__ uint64_t send(uint64_t rdma, uint32_t connection, uint32_t mmap, uint64_t buffer, uint32_t immediate)
{
	if (immediate)
		doca_dpa_dev_rdma_post_send_imm(rdma, connection, mmap, buffer, 8, immediate,
						DOCA_DPA_DEV_SUBMIT_FLAG_OPTIMIZE_REPORTS);
	else
		doca_dpa_dev_rdma_post_send(rdma, connection, mmap, buffer, 8, DOCA_DPA_DEV_SUBMIT_FLAG_OPTIMIZE_REPORTS);
	return 0;
}

/* Started by each completion; the last one wakes the other thread. */
__dpa_global__ void on_message(uint64_t arg)
{
	struct receiver *own = (struct receiver *)arg;
	doca_dpa_dev_completion_element_t element;
	uint32_t *count = (uint32_t *)doca_dpa_dev_thread_get_local_storage();
	struct seen *seen;

	if (!doca_dpa_dev_get_completion(own->completion, &element))
		doca_dpa_dev_thread_reschedule();
	seen = &((struct seen *)own->seen)[*count];
	seen->value = *(uint64_t *)own->buffer;
	seen->type = doca_dpa_dev_get_completion_type(element);
	seen->connection = doca_dpa_dev_get_completion_user_data(element);
	seen->immediate = doca_dpa_dev_get_completion_immediate(element);
	seen->bytes = doca_dpa_dev_completion_element_get_received_bytes(element);
	doca_dpa_dev_rdma_receive_ack(own->rdma, 1);
	doca_dpa_dev_completion_ack(own->completion, 1);
	if (++*count == own->wanted) {
		doca_dpa_dev_thread_notify(own->notification);
		doca_dpa_dev_thread_finish();
	}
	doca_dpa_dev_rdma_post_receive(own->rdma, own->mmap, own->buffer, 8);
	doca_dpa_dev_completion_request_notification(own->completion);
	doca_dpa_dev_thread_reschedule();
}

__dpa_global__ void on_notice(uint64_t event)
{
	doca_dpa_dev_sync_event_update_set(event, 7);
	doca_dpa_dev_thread_finish();
}

static void await_one(uint64_t completion)
{
	doca_dpa_dev_completion_element_t element;

	while (!doca_dpa_dev_get_completion(completion, &element)) {
	}
	if (doca_dpa_dev_get_completion_type(element) != DOCA_DPA_DEV_COMP_SEND)
		DOCA_DPA_DEV_LOG_ERR("syndrome %u\n", doca_dpa_dev_completion_element_get_error_syndrome(element));
	doca_dpa_dev_completion_ack(completion, 1);
}

/* Writes, adds and reads over connection 0, waiting for each completion: what is read back. */
__dpa_rpc__ uint64_t write_add_read(struct exchange with)
{
	uint64_t *own = (uint64_t *)with.own;

	doca_dpa_dev_device_set(0);
	own[0] = 30;
	doca_dpa_dev_rdma_post_write(with.rdma, 0, with.peer_mmap, with.peer, with.own_mmap, with.own, 8, 0);
	await_one(with.completion);
	doca_dpa_dev_rdma_post_atomic_fetch_add(with.rdma, 0, with.peer_mmap, with.peer, 12, 0);
	await_one(with.completion);
	doca_dpa_dev_rdma_post_read(with.rdma, 0, with.own_mmap, with.own + 8, with.peer_mmap, with.peer, 8,
				    DOCA_DPA_DEV_SUBMIT_FLAG_FLUSH);
	await_one(with.completion);
	doca_dpa_dev_rdma_signal_set(with.rdma, 0, with.remote_event, 4);
	doca_dpa_dev_rdma_signal_add(with.rdma, 0, with.remote_event, 5);
	doca_dpa_dev_rdma_post_write_imm(with.rdma, 0, with.peer_mmap, with.peer + 8, with.own_mmap, with.own + 8, 8, 77, 0);
	await_one(with.completion);
	return own[1];
}

/* Loads from memory of the host, and stores behind that. */
__dpa_rpc__ uint64_t host_memory(uint32_t mmap, uint64_t address)
{
	uint64_t *seen = (uint64_t *)doca_dpa_dev_mmap_get_external_ptr(mmap, address);

	seen[1] = seen[0] + 1;
	__dpa_thread_window_writeback();
	doca_dpa_dev_yield();
	return seen[0];
}

__dpa_rpc__ uint64_t send_nowhere(uint64_t rdma)
{
	doca_dpa_dev_rdma_post_send(rdma, 9, 0, 0, 8, 0);
	return 0;
}

__dpa_global__ void fault(void)
{
	uint64_t *volatile nowhere = NULL;

	*nowhere = 1;
}
