/* SPDX-License-Identifier: Apache-2.0 */
/* Prints a line for each frame. */
#include <flexio_dev_ver.h>
#define FLEXIO_DEV_VER_USED FLEXIO_DEV_VER(26, 4, 0)
#include <dpaintrin.h>
#include <flexio_dev.h>
#include <flexio_dev_endianity.h>
#include <flexio_dev_queue_access.h>

#include "printer.h"

/* Opcode of a failed receive, for which the device headers have no name. */
enum { CQE_RESPONDER_ERROR = 14 };

static struct printer *state;
static uint32_t printed;

__dpa_rpc__ uint64_t printer_init(uint64_t data)
{
	state = (struct printer *)data;
	for (uint32_t i = 0; i < DEPTH; i++) {
		flexio_dev_swqe_seg_mem_ptr_data_set((union flexio_dev_sqe_seg *)state->rq_ring + i, FRAME_BYTES, state->lkey,
						     state->frames + i * FRAME_BYTES);
		__dpa_thread_memory_fence(__DPA_W, __DPA_W);
		flexio_dev_dbr_rq_inc_pi((uint32_t *)state->rq_dbr);
	}
	return 0;
}

__dpa_rpc__ uint64_t printer_printed(void)
{
	return __atomic_load_n(&printed, __ATOMIC_RELAXED);
}

__dpa_global__ void printer_event(uint64_t argument)
{
	struct flexio_dev_cqe64 *ring = (struct flexio_dev_cqe64 *)state->cq_ring;
	uint32_t index = __atomic_load_n(&printed, __ATOMIC_RELAXED);

	(void)argument;
	for (;; index++) {
		struct flexio_dev_cqe64 *cqe = &ring[index % DEPTH];
		const uint8_t *frame;

		if (flexio_dev_cqe_get_owner(cqe) != ((index >> LOG_DEPTH) & 1))
			break;
		__dpa_thread_memory_fence(__DPA_R, __DPA_R);
		if (flexio_dev_cqe_get_opcode(cqe) == CQE_RESPONDER_ERROR) {
			flexio_dev_print("the queue has failed, syndrome %u\n", flexio_dev_cqe_get_err_synd(cqe));
			flexio_dev_thread_finish();
		}
		frame = (const uint8_t *)state->frames + flexio_dev_cqe_get_wqe_counter(cqe) % DEPTH * FRAME_BYTES;
		flexio_dev_print("%u bytes to port %u\n", flexio_dev_cqe_get_byte_cnt(cqe), frame[36] << 8 | frame[37]);
		flexio_dev_dbr_cq_set_ci((uint32_t *)state->cq_dbr, index + 1);
		flexio_dev_dbr_rq_inc_pi((uint32_t *)state->rq_dbr);
	}
	__atomic_store_n(&printed, index, __ATOMIC_RELAXED);
	__dpa_thread_memory_fence(__DPA_W, __DPA_W);
	flexio_dev_cq_arm(index, state->cqn);
	flexio_dev_thread_reschedule();
}
