/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device library of DOCA DPA, over the functions of FlexIO. What a handle points at the host's library writes
 * (emu/libdoca_dpa/src/layout.rs), and this one counts in it.
 */
#include <stdarg.h>

#include "doca_dpa_dev.h"
#include "doca_dpa_dev_buf.h"
#include "doca_dpa_dev_rdma.h"
#include "doca_dpa_dev_sync_event.h"
#include "libflexio-dev/dpaintrin.h"
#include "libflexio-dev/flexio_dev_queue_access.h"

/* Of the runtime: flexio_dev_msg with a list of arguments. */
int flexcast_dev_vmsg(int stream, flexio_msg_dev_level level, const char *format, va_list arguments);

/* What the host has a thread know of itself. */
struct thread {
	uint64_t local_storage;
	uint32_t rank;
	uint32_t count;
	/* Of a kernel that was launched: what it calls, threads that have not ended yet, and what the last one does. */
	uint64_t unpack;
	uint64_t function;
	uint64_t arguments;
	uint64_t *running;
	uint64_t *event;
	uint64_t event_value;
	uint64_t event_adds;
};

struct completion {
	struct flexio_dev_cqe64 *ring;
	uint32_t *record;
	uint32_t number;
	uint32_t log_depth;
	/* Completions that kernels have got, and those that they have acknowledged. */
	uint32_t given;
	uint32_t acknowledged;
};

struct connection {
	union flexio_dev_sqe_seg *ring;
	uint32_t number;
	uint32_t log_depth;
	uint32_t posted;
	uint32_t is_connected;
};

struct rdma {
	struct flexio_dev_wqe_rcv_data_seg *ring;
	uint32_t *record;
	uint32_t log_depth;
	uint32_t posted;
	/* Where atomics put what was there before. */
	uint64_t scratch;
	uint32_t scratch_key;
	uint32_t connections;
	struct connection connection[];
};

struct remote_event {
	uint64_t address;
	uint32_t key;
	uint32_t reserved;
};

_Static_assert(sizeof(struct thread) == 72, "as the host writes it");
_Static_assert(sizeof(struct completion) == 32, "as the host writes it");
_Static_assert(sizeof(struct connection) == 24, "as the host writes it");
_Static_assert(sizeof(struct rdma) == 40, "as the host writes it");

/* Code of a user's error by which a process ends that asks for what cannot be. */
#define REFUSED 0xD0

static void refuse(const char *call, const char *why)
{
	flexio_dev_msg_err(FLEXIO_MSG_DEV_DEFAULT_STREAM_ID, "%s: %s\n", call, why);
	flexio_dev_error(REFUSED);
}

static struct thread *own(void)
{
	return (struct thread *)flexio_dev_get_thread_local_storage(NULL);
}

void doca_dpa_dev_device_set(doca_dpa_dev_t dpa_handle)
{
	(void)dpa_handle;
}

unsigned int doca_dpa_dev_thread_rank(void)
{
	return own() ? own()->rank : 0;
}

unsigned int doca_dpa_dev_num_threads(void)
{
	return own() ? own()->count : 1;
}

doca_dpa_dev_uintptr_t doca_dpa_dev_thread_get_local_storage(void)
{
	return own() ? own()->local_storage : 0;
}

void doca_dpa_dev_yield(void)
{
	flexio_dev_yield(NULL);
}

void doca_dpa_dev_thread_reschedule(void)
{
	flexio_dev_thread_reschedule();
}

void doca_dpa_dev_thread_finish(void)
{
	flexio_dev_thread_finish();
}

void doca_dpa_dev_thread_notify(doca_dpa_dev_notification_completion_t comp_handle)
{
	if (comp_handle == 0 || comp_handle > UINT32_MAX)
		refuse(__func__, "this is no handle of a notification completion");
	__dpa_thread_system_fence();
	flexio_dev_event_handler_activate((uint32_t)comp_handle - 1);
}

void doca_dpa_dev_log(doca_dpa_dev_log_level_t log_level, const char *format, ...)
{
	flexio_msg_dev_level level = FLEXIO_MSG_DEV_NO_PRINT;
	va_list arguments;

	if (log_level >= DOCA_DPA_DEV_LOG_LEVEL_DEBUG)
		level = FLEXIO_MSG_DEV_DEBUG;
	else if (log_level >= DOCA_DPA_DEV_LOG_LEVEL_INFO)
		level = FLEXIO_MSG_DEV_INFO;
	else if (log_level >= DOCA_DPA_DEV_LOG_LEVEL_WARNING)
		level = FLEXIO_MSG_DEV_WARN;
	else if (log_level >= DOCA_DPA_DEV_LOG_LEVEL_ERROR)
		level = FLEXIO_MSG_DEV_ERROR;
	va_start(arguments, format);
	flexcast_dev_vmsg(FLEXIO_MSG_DEV_DEFAULT_STREAM_ID, level, format, arguments);
	va_end(arguments);
}

/* A kernel that was launched. */
__attribute__((used)) void flexcast_doca_kernel(uint64_t arg)
{
	struct thread *thread = (struct thread *)arg;
	flexio_dev_arg_unpack_func_t *unpack = (flexio_dev_arg_unpack_func_t *)thread->unpack;

	unpack((void *)thread->arguments, (void *)thread->function);
	if (__atomic_sub_fetch(thread->running, 1, __ATOMIC_SEQ_CST) == 0 && thread->event) {
		if (thread->event_adds)
			doca_dpa_dev_sync_event_update_add((uint64_t)thread->event, thread->event_value);
		else
			doca_dpa_dev_sync_event_update_set((uint64_t)thread->event, thread->event_value);
	}
	flexio_dev_thread_finish();
}

void doca_dpa_dev_sync_event_get(doca_dpa_dev_sync_event_t dpa_dev_se_handle, uint64_t *value)
{
	*value = __atomic_load_n((uint64_t *)dpa_dev_se_handle, __ATOMIC_SEQ_CST);
}

void doca_dpa_dev_sync_event_update_add(doca_dpa_dev_sync_event_t dpa_dev_se_handle, uint64_t value)
{
	__dpa_thread_system_fence();
	__atomic_add_fetch((uint64_t *)dpa_dev_se_handle, value, __ATOMIC_SEQ_CST);
}

void doca_dpa_dev_sync_event_update_set(doca_dpa_dev_sync_event_t dpa_dev_se_handle, uint64_t value)
{
	__dpa_thread_system_fence();
	__atomic_store_n((uint64_t *)dpa_dev_se_handle, value, __ATOMIC_SEQ_CST);
	__dpa_thread_memory_writeback();
}

void doca_dpa_dev_sync_event_wait_gt(doca_dpa_dev_sync_event_t dpa_dev_se_handle, uint64_t value, uint64_t mask)
{
	while ((__atomic_load_n((uint64_t *)dpa_dev_se_handle, __ATOMIC_SEQ_CST) & mask) <= value) {
	}
}

int doca_dpa_dev_get_completion(doca_dpa_dev_completion_t dpa_comp_handle,
				doca_dpa_dev_completion_element_t *comp_element)
{
	struct completion *queue = (struct completion *)dpa_comp_handle;
	struct flexio_dev_cqe64 *entry = &queue->ring[queue->given & ((1u << queue->log_depth) - 1)];

	if (flexio_dev_cqe_get_opcode(entry) == 0xF ||
	    flexio_dev_cqe_get_owner(entry) != (queue->given >> queue->log_depth & 1))
		return 0;
	/* What the card wrote before the owner's bit. */
	__dpa_thread_fence(__DPA_MEMORY, __DPA_R, __DPA_R);
	queue->given++;
	*comp_element = (doca_dpa_dev_completion_element_t)entry;
	return 1;
}

doca_dpa_dev_completion_type_t doca_dpa_dev_get_completion_type(doca_dpa_dev_completion_element_t comp_element)
{
	return (doca_dpa_dev_completion_type_t)flexio_dev_cqe_get_opcode((struct flexio_dev_cqe64 *)comp_element);
}

uint32_t doca_dpa_dev_get_completion_user_data(doca_dpa_dev_completion_element_t comp_element)
{
	return flexio_dev_cqe_get_user_index((struct flexio_dev_cqe64 *)comp_element);
}

uint32_t doca_dpa_dev_get_completion_immediate(doca_dpa_dev_completion_element_t comp_element)
{
	return be32_to_cpu(((struct flexio_dev_cqe64 *)comp_element)->imm_inval_pkey);
}

uint32_t doca_dpa_dev_completion_element_get_received_bytes(doca_dpa_dev_completion_element_t comp_element)
{
	return flexio_dev_cqe_get_byte_cnt((struct flexio_dev_cqe64 *)comp_element);
}

uint32_t doca_dpa_dev_completion_element_get_error_syndrome(doca_dpa_dev_completion_element_t comp_element)
{
	return flexio_dev_cqe_get_err_synd((struct flexio_dev_cqe64 *)comp_element);
}

void doca_dpa_dev_completion_ack(doca_dpa_dev_completion_t dpa_comp_handle, uint64_t num_comp)
{
	struct completion *queue = (struct completion *)dpa_comp_handle;

	if (num_comp > queue->given - queue->acknowledged)
		refuse(__func__, "more completions than there were");
	queue->acknowledged += (uint32_t)num_comp;
	__dpa_thread_memory_writeback();
	flexio_dev_dbr_cq_set_ci(queue->record, queue->acknowledged);
}

void doca_dpa_dev_completion_request_notification(doca_dpa_dev_completion_t dpa_comp_handle)
{
	struct completion *queue = (struct completion *)dpa_comp_handle;

	__dpa_thread_system_fence();
	flexio_dev_cq_arm(queue->given, queue->number);
}

doca_dpa_dev_uintptr_t doca_dpa_dev_mmap_get_external_ptr(doca_dpa_dev_mmap_t mmap_handle, uint64_t addr)
{
	flexio_uintptr_t seen = 0;

	/* The host makes one window, the first, over all memory that it maps. */
	if (flexio_dev_window_config(FLEXIO_DEV_WINDOW_ENTITY_0, 0, mmap_handle) != FLEXIO_DEV_STATUS_SUCCESS ||
	    flexio_dev_window_ptr_acquire(FLEXIO_DEV_WINDOW_ENTITY_0, addr, &seen) != FLEXIO_DEV_STATUS_SUCCESS)
		refuse(__func__, "there is no such window");
	return seen;
}

void doca_dpa_dev_rdma_post_receive(doca_dpa_dev_rdma_t rdma, doca_dpa_dev_mmap_t mmap_handle, uint64_t addr,
				    size_t length)
{
	struct rdma *context = (struct rdma *)rdma;
	struct flexio_dev_wqe_rcv_data_seg *entry = &context->ring[context->posted & ((1u << context->log_depth) - 1)];

	entry->byte_count = cpu_to_be32((uint32_t)length);
	entry->lkey = cpu_to_be32(mmap_handle);
	entry->addr = cpu_to_be64(addr);
	context->posted++;
	__dpa_thread_memory_writeback();
	flexio_dev_dbr_rq_inc_pi(context->record);
}

void doca_dpa_dev_rdma_receive_ack(doca_dpa_dev_rdma_t rdma, uint32_t num_acked)
{
	(void)rdma;
	(void)num_acked;
}

static struct connection *connection(const char *call, doca_dpa_dev_rdma_t rdma, uint32_t id)
{
	struct rdma *context = (struct rdma *)rdma;

	if (id >= context->connections || !context->connection[id].is_connected)
		refuse(call, "there is no connection of this number");
	return &context->connection[id];
}

/* The four segments of the next entry of a connection. */
static union flexio_dev_sqe_seg *entry(struct connection *to)
{
	return &to->ring[4 * (to->posted & ((1u << to->log_depth) - 1))];
}

/* Fills the control segment and hands the entry to the card. */
static void post(struct connection *to, uint32_t opcode, uint32_t segments, uint32_t immediate, uint32_t flags)
{
	union flexio_dev_sqe_seg *control = entry(to);
	uint32_t report = flags & DOCA_DPA_DEV_SUBMIT_FLAG_OPTIMIZE_REPORTS ? MLX5_CTRL_SEG_CE_CQE_ON_CQE_ERROR :
									      MLX5_CTRL_SEG_CE_CQE_ALWAYS;

	control->ctrl.idx_opcode = cpu_to_be32((to->posted & 0xFFFF) << 8 | opcode);
	control->ctrl.qpn_ds = cpu_to_be32(to->number << 8 | segments);
	control->ctrl.signature_fm_ce_se = cpu_to_be32(report << 2);
	control->ctrl.general_id = cpu_to_be32(immediate);
	to->posted++;
	__dpa_thread_system_fence();
	flexio_dev_qp_sq_ring_db((uint16_t)to->posted, to->number);
}

static void data(union flexio_dev_sqe_seg *segment, doca_dpa_dev_mmap_t key, uint64_t address, size_t length)
{
	flexio_dev_swqe_seg_mem_ptr_data_set(segment, (uint32_t)length, key, address);
}

void doca_dpa_dev_rdma_post_send(doca_dpa_dev_rdma_t rdma, uint32_t connection_id, doca_dpa_dev_mmap_t mmap_handle,
				 uint64_t addr, size_t length, uint32_t flags)
{
	struct connection *to = connection(__func__, rdma, connection_id);

	data(&entry(to)[1], mmap_handle, addr, length);
	post(to, MLX5_CTRL_SEG_OPCODE_SEND, 2, 0, flags);
}

void doca_dpa_dev_rdma_post_send_imm(doca_dpa_dev_rdma_t rdma, uint32_t connection_id, doca_dpa_dev_mmap_t mmap_handle,
				     uint64_t addr, size_t length, uint32_t immediate, uint32_t flags)
{
	struct connection *to = connection(__func__, rdma, connection_id);

	data(&entry(to)[1], mmap_handle, addr, length);
	post(to, MLX5_CTRL_SEG_OPCODE_SEND_WITH_IMMEDIATE, 2, immediate, flags);
}

/* A Read or Write: `remote` is the peer's memory. */
static void transfer(struct connection *to, uint32_t opcode, doca_dpa_dev_mmap_t remote_key, uint64_t remote,
		     doca_dpa_dev_mmap_t key, uint64_t address, size_t length, uint32_t immediate, uint32_t flags)
{
	flexio_dev_swqe_seg_rdma_set(&entry(to)[1], remote_key, remote);
	data(&entry(to)[2], key, address, length);
	post(to, opcode, 3, immediate, flags);
}

void doca_dpa_dev_rdma_post_write(doca_dpa_dev_rdma_t rdma, uint32_t connection_id, doca_dpa_dev_mmap_t dst_mmap_handle,
				  uint64_t dst_addr, doca_dpa_dev_mmap_t src_mmap_handle, uint64_t src_addr,
				  size_t length, uint32_t flags)
{
	transfer(connection(__func__, rdma, connection_id), MLX5_CTRL_SEG_OPCODE_RDMA_WRITE, dst_mmap_handle, dst_addr,
		 src_mmap_handle, src_addr, length, 0, flags);
}

void doca_dpa_dev_rdma_post_write_imm(doca_dpa_dev_rdma_t rdma, uint32_t connection_id,
				      doca_dpa_dev_mmap_t dst_mmap_handle, uint64_t dst_addr,
				      doca_dpa_dev_mmap_t src_mmap_handle, uint64_t src_addr, size_t length,
				      uint32_t immediate, uint32_t flags)
{
	transfer(connection(__func__, rdma, connection_id), MLX5_CTRL_SEG_OPCODE_RDMA_WRITE_WITH_IMMEDIATE,
		 dst_mmap_handle, dst_addr, src_mmap_handle, src_addr, length, immediate, flags);
}

void doca_dpa_dev_rdma_post_read(doca_dpa_dev_rdma_t rdma, uint32_t connection_id, doca_dpa_dev_mmap_t dst_mmap_handle,
				 uint64_t dst_addr, doca_dpa_dev_mmap_t src_mmap_handle, uint64_t src_addr,
				 size_t length, uint32_t flags)
{
	transfer(connection(__func__, rdma, connection_id), MLX5_CTRL_SEG_OPCODE_RDMA_READ, src_mmap_handle, src_addr,
		 dst_mmap_handle, dst_addr, length, 0, flags);
}

static void fetch_add(struct rdma *context, struct connection *to, uint32_t key, uint64_t address, uint64_t value,
		      uint32_t flags)
{
	flexio_dev_swqe_seg_rdma_set(&entry(to)[1], key, address);
	flexio_dev_swqe_seg_atomic_set(&entry(to)[2], value, 0);
	data(&entry(to)[3], context->scratch_key, context->scratch, 8);
	post(to, MLX5_CTRL_SEG_OPCODE_ATOMIC_FETCH_AND_ADD, 4, 0, flags);
}

void doca_dpa_dev_rdma_post_atomic_fetch_add(doca_dpa_dev_rdma_t rdma, uint32_t connection_id,
					     doca_dpa_dev_mmap_t dst_mmap_handle, uint64_t dst_addr, uint64_t value,
					     uint32_t flags)
{
	fetch_add((struct rdma *)rdma, connection(__func__, rdma, connection_id), dst_mmap_handle, dst_addr, value, flags);
}

void doca_dpa_dev_rdma_signal_set(doca_dpa_dev_rdma_t rdma, uint32_t connection_id,
				  doca_dpa_dev_sync_event_remote_net_t remote_sync_event, uint64_t count)
{
	struct remote_event *event = (struct remote_event *)remote_sync_event;
	struct connection *to = connection(__func__, rdma, connection_id);
	union flexio_dev_sqe_seg *segments = entry(to);

	flexio_dev_swqe_seg_rdma_set(&segments[1], event->key, event->address);
	segments[2].inline_send_data.byte_count = cpu_to_be32(8 | 1u << 31);
	__builtin_memcpy(segments[2].inline_send_data.data_and_padding, &count, 8);
	post(to, MLX5_CTRL_SEG_OPCODE_RDMA_WRITE, 3, 0, DOCA_DPA_DEV_SUBMIT_FLAG_OPTIMIZE_REPORTS);
}

void doca_dpa_dev_rdma_signal_add(doca_dpa_dev_rdma_t rdma, uint32_t connection_id,
				  doca_dpa_dev_sync_event_remote_net_t remote_sync_event, uint64_t count)
{
	struct remote_event *event = (struct remote_event *)remote_sync_event;

	fetch_add((struct rdma *)rdma, connection(__func__, rdma, connection_id), event->key, event->address, count,
		  DOCA_DPA_DEV_SUBMIT_FLAG_OPTIMIZE_REPORTS);
}
