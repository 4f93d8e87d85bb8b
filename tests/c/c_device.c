/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device side of tests/tests/outside/c_device.rs: calls that are refused, registers that end the process, and entries byte by byte.
 */
#include <dpaintrin.h>
#include <flexio_dev.h>
#include <flexio_dev_queue_access.h>

#define RPC(name)                                                        \
	__dpa_rpc__ uint64_t name##__unpack(void *argbuf, void *func)    \
	{                                                                \
		return ((flexio_dev_rpc_handler_t *)func)(*(uint64_t *)argbuf); \
	}

#define EXPECT(condition)                \
	do {                             \
		if (!(condition))        \
			return __LINE__; \
	} while (0)

static struct flexio_dev_thread_ctx *context(void)
{
	struct flexio_dev_thread_ctx *dtctx;

	flexio_dev_get_thread_ctx(&dtctx);
	return dtctx;
}

/* Whether the last call set the error number for what does not exist. */
static int unsupported(void)
{
	return flexio_dev_get_and_rst_errno(context()) == 95;
}

/* 0, or the line of the first call that was not refused. */
__dpa_rpc__ uint64_t refused(uint64_t argument)
{
	uint64_t word = 7;

	EXPECT(flexio_dev_multi_window_copy_from_host(FLEXIO_DEV_WINDOW_ENTITY_0, &word, argument, 8) ==
	       FLEXIO_DEV_STATUS_FAILED);
	EXPECT(unsupported() && word == 7);
	EXPECT(flexio_dev_window_copy_from_host(FLEXIO_DEV_WINDOW_ENTITY_0, &word, argument, 8) ==
	       FLEXIO_DEV_STATUS_FAILED);
	EXPECT(unsupported() && word == 7);
	EXPECT(flexio_dev_get_pcc_table_base(0) == 0 && unsupported());
	EXPECT(flexio_dev_cross_device_ring_db(1, 2, 3) == FLEXIO_DEV_STATUS_FAILED && unsupported());
	EXPECT(flexio_dev_outbox_config_uar_extension(context(), 1) == FLEXIO_DEV_STATUS_FAILED);
	EXPECT(flexio_dev_outbox_config(context(), 99) == FLEXIO_DEV_STATUS_FAILED);
	EXPECT(flexio_dev_event_handler_activate(999) == FLEXIO_DEV_STATUS_FAILED);
	flexio_dev_rst_errno(context());
	return 0;
}
RPC(refused)

/* Rings a doorbell that the emulated card does not have: the process ends. */
__dpa_rpc__ uint64_t ends(uint64_t which)
{
	EXPECT(flexio_dev_outbox_config(context(), 0) == FLEXIO_DEV_STATUS_SUCCESS);
	switch (which) {
	case 0:
		flexio_dev_eq_update_ci(1, 2);
		break;
	case 1:
		flexio_dev_db_ctx_arm(1, 2);
		break;
	case 2:
		flexio_dev_db_ctx_force_trigger(1, 2);
		break;
	case 3:
		flexio_dev_cc_ring_db(1, 2);
		break;
	case 4:
		flexio_dev_zcqe_gen(3);
		break;
	case 5:
		flexio_dev_msix_send(3);
		break;
	default:
		return 1;
	}
	return 0;
}
RPC(ends)

__dpa_rpc__ uint64_t counters(uint64_t argument)
{
	static uint32_t ids[3] = { 0x10, 0x20, 0x11 }, values[3] = { 9, 9, 9 };

	flexio_dev_nic_counters_config(values, ids, 3);
	flexio_dev_rst_errno(context());
	flexio_dev_nic_counters_sample();
	/* Nothing has crossed the port, and there is no port 1. */
	EXPECT(values[0] == 0 && values[1] == 0 && values[2] == UINT32_MAX && unsupported());
	flexio_dev_nic_counters_config(0, ids, 3);
	EXPECT(unsupported());
	values[0] = (uint32_t)argument;
	flexio_dev_nic_counters_sample();
	EXPECT(values[0] == (uint32_t)argument);
	return 0;
}
RPC(counters)

__dpa_rpc__ uint64_t name(uint64_t argument)
{
	const char *name = flexio_dev_get_current_thread_name();

	return argument < 32 ? (uint8_t)name[argument] : 0;
}
RPC(name)

static int equal(const void *left, const uint8_t *right, uint32_t size)
{
	for (uint32_t i = 0; i < size; i++)
		if (((const uint8_t *)left)[i] != right[i])
			return 0;
	return 1;
}

/* 0, or the line of the first entry whose bytes are others than the hardware's. */
__dpa_rpc__ uint64_t entries(uint64_t argument)
{
	union flexio_dev_sqe_seg seg;
	struct flexio_dev_cqe64 cqe = { 0 };
	struct flexio_dev_eqe eqe = { 0 };
	struct spinlock_s lock;
	uint32_t words[4] = { 0x44332211, 0x88776655, 0xCCBBAA99, 0 };
	const uint8_t mac[6] = { 1, 2, 3, 4, 5, 6 };
	const uint8_t gid[16] = { 0xFF, 0x0E, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16 };

	flexio_dev_swqe_seg_ctrl_set(&seg, 0x1234, 0xABCDEF, FLEXIO_CTRL_SEG_CE_CQE_ALWAYS, FLEXIO_CTRL_SEG_LDMA);
	EXPECT(equal(&seg, (const uint8_t[]){ 1, 0x12, 0x34, 0x32, 0xAB, 0xCD, 0xEF, 4, 0, 0, 0, 8, 0, 0, 0, 0 }, 16));
	EXPECT(flexio_dev_swqe_seg_ctrl_set(&seg, 0, 0, 0, (flexio_ctrl_seg_t)13) == FLEXIO_DEV_STATUS_FAILED);
	flexio_dev_swqe_seg_rdma_set(&seg, 0x01020304, 0x1122334455667788);
	EXPECT(equal(&seg, (const uint8_t[]){ 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 1, 2, 3, 4, 0, 0, 0, 0 }, 16));
	flexio_dev_swqe_seg_mem_ptr_data_set(&seg, 5, 6, 7);
	EXPECT(equal(&seg, (const uint8_t[]){ 0, 0, 0, 5, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 7 }, 16));
	flexio_dev_swqe_seg_atomic_set(&seg, 8, 9);
	EXPECT(equal(&seg, (const uint8_t[]){ 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 9 }, 16));
	flexio_dev_swqe_seg_eth_set(&seg, 0xC000, 1500, 2, (uint8_t[]){ 0xAA, 0xBB });
	EXPECT(equal(&seg, (const uint8_t[]){ 0, 0, 0, 0, 0xC0, 0, 5, 0xDC, 0, 0, 0, 0, 0, 2, 0xAA, 0xBB }, 16));
	EXPECT(flexio_dev_swqe_seg_inline_data_set(&seg, 13, words) == FLEXIO_DEV_STATUS_FAILED);
	flexio_dev_swqe_seg_inline_data_set(&seg, 5, words);
	EXPECT(equal(&seg, (const uint8_t[]){ 0x80, 0, 0, 5, 0x11, 0x22, 0x33, 0x44, 0x55, 0, 0, 0, 0, 0, 0, 0 }, 16));
	flexio_dev_swqe_seg_shared_receive_set(&seg, 0x0102, 3);
	EXPECT(equal(&seg, (const uint8_t[]){ 0, 0, 1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }, 16));
	flexio_dev_swqe_seg_av1_set(&seg, 0x11111111, 0xFFFFFF, 1, 0x12, 0x80, 0xC001);
	EXPECT(equal(&seg,
		     (const uint8_t[]){ 0x11, 0x11, 0x11, 0x11, 0, 0, 0, 0, 0x80, 0xFF, 0xFF, 0xFF, 0x12, 0x80, 0xC0, 1 },
		     16));
	flexio_dev_swqe_seg_av2_set(&seg, mac, 0x20, 64, 1u << 30 | 3);
	EXPECT(equal(&seg, (const uint8_t[]){ 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 0x20, 64, 0x40, 0, 0, 3 }, 16));
	flexio_dev_swqe_seg_av3_set(&seg, gid);
	EXPECT(equal(&seg, gid, 16));

	((uint8_t *)&cqe)[0x34] = 1;
	((uint8_t *)&cqe)[0x36] = 2;
	((uint8_t *)&cqe)[0x37] = 3;
	((uint8_t *)&cqe)[0x3F] = 0xD3;
	EXPECT(flexio_dev_cqe_get_hw_err_synd(&cqe) == 1 && flexio_dev_cqe_get_vendor_err_synd(&cqe) == 2);
	EXPECT(flexio_dev_cqe_get_err_synd(&cqe) == 3 && flexio_dev_cqe_get_opcode(&cqe) == 13);
	EXPECT(flexio_dev_cqe_get_owner(&cqe) == 1 && flexio_dev_cqe_get_type(&cqe) == 0);
	((uint8_t *)&cqe)[0x14] = 0x12;
	((uint8_t *)&cqe)[0x15] = 0x34;
	EXPECT(flexio_dev_cqe_get_csum_ok(&cqe) == 0x1234);
	cqe.sop_drop_qpn = cpu_to_be32(0x0A123456);
	cqe.wqe_counter = cpu_to_be16(0x789A);
	cqe.byte_cnt = cpu_to_be32(45);
	cqe.srqn_uidx = cpu_to_be32(0xFF000003);
	cqe.imm_inval_pkey = 0x11223344;
	EXPECT(flexio_dev_cqe_get_qpn(&cqe) == 0x123456 && flexio_dev_cqe_get_wqe_counter(&cqe) == 0x789A);
	EXPECT(flexio_dev_cqe_get_byte_cnt(&cqe) == 45 && flexio_dev_cqe_get_user_index(&cqe) == 3);
	EXPECT(flexio_dev_cqe_get_imm_data(&cqe) == 0x11223344);
	((uint8_t *)&eqe)[0x3B] = 5;
	((uint8_t *)&eqe)[0x3F] = 1;
	EXPECT(flexio_dev_eqe_get_cqn(&eqe) == 5 && flexio_dev_eqe_get_owner(&eqe) == 1);

	flexio_dev_rwqe_mem_ptr_set((struct flexio_dev_wqe_rcv_data_seg *)&seg, 1, 2, (uint64_t)&seg);
	EXPECT(flexio_dev_rwqe_get_addr((struct flexio_dev_wqe_rcv_data_seg *)&seg) == &seg);
	words[3] = cpu_to_be32(0xFFFF);
	flexio_dev_dbr_rq_inc_pi(&words[3]);
	EXPECT(words[3] == 0);
	flexio_dev_dbr_sq_set_pi(&words[3], 0x12345);
	EXPECT(words[3] == cpu_to_be32(0x2345));
	flexio_dev_dbr_cq_set_ci(&words[3], 0x12345678);
	EXPECT(words[3] == cpu_to_be32(0x345678));

	spin_init(&lock);
	spin_lock(&lock);
	EXPECT(spin_trylock(&lock) == 1);
	spin_unlock(&lock);
	EXPECT(spin_trylock(&lock) == 0);
	return argument;
}
RPC(entries)

/* 0, or the line of the first answer that is not what the header says. */
__dpa_rpc__ uint64_t answers(uint64_t thread)
{
	struct flexio_dev_thread_ctx *dtctx = context();
	flexio_uintptr_t window = 0;
	char text[] = "nobody listens";

	EXPECT(flexio_dev_get_thread_ctx(0) == -1);
	EXPECT(flexio_dev_get_thread_id(dtctx) == thread);
	EXPECT(flexio_dev_get_thread_local_storage(dtctx) == 0);
	flexio_dev_yield(dtctx);
	EXPECT(flexio_dev_puts(dtctx, text) == -1 && flexio_dev_puts(dtctx, 0) == -1);
	EXPECT(flexio_dev_msg(3, FLEXIO_MSG_DEV_INFO, "%d", 1) == -1);
	EXPECT(flexio_dev_msg_err(3, "%d", 1) == -1 && flexio_dev_msg_warn(3, "%d", 1) == -1);
	EXPECT(flexio_dev_msg_info(3, "%d", 1) == -1 && flexio_dev_msg_dbg(3, "%d", 1) == -1);
	flexio_dev_outbox_config_fast(dtctx, 0);
	EXPECT(dtctx->outbox_base != 0 && dtctx->outbox_config_id == 0);
	/* Window 0 exists; a key is checked when it is used. */
	EXPECT(flexio_dev_multi_window_mkey_config(FLEXIO_DEV_WINDOW_ENTITY_0, 7) == FLEXIO_DEV_STATUS_FAILED);
	EXPECT(flexio_dev_get_errno(dtctx) == 22);
	flexio_dev_rst_errno(dtctx);
	EXPECT(flexio_dev_get_errno(dtctx) == 0);
	EXPECT(flexio_dev_multi_window_config(FLEXIO_DEV_WINDOW_ENTITY_1, 0, 7) == FLEXIO_DEV_STATUS_SUCCESS);
	EXPECT(flexio_dev_multi_window_config(FLEXIO_DEV_WINDOW_ENTITY_1, 9, 7) == FLEXIO_DEV_STATUS_FAILED);
	EXPECT(flexio_dev_multi_window_config(FLEXIO_DEV_WINDOW_ENTITY_NUM, 0, 7) == FLEXIO_DEV_STATUS_FAILED);
	EXPECT(flexio_dev_window_config(FLEXIO_DEV_WINDOW_ENTITY_0, 0, 7) == FLEXIO_DEV_STATUS_SUCCESS);
	EXPECT(flexio_dev_window_mkey_config(FLEXIO_DEV_WINDOW_ENTITY_0, 8) == FLEXIO_DEV_STATUS_SUCCESS);
	EXPECT(flexio_dev_window_ptr_acquire(FLEXIO_DEV_WINDOW_ENTITY_0, 0x123, &window) == FLEXIO_DEV_STATUS_SUCCESS);
	EXPECT(window == dtctx->window_base + 0x123);
	EXPECT(flexio_dev_window_ptr_acquire(FLEXIO_DEV_WINDOW_ENTITY_NUM, 0, &window) == FLEXIO_DEV_STATUS_FAILED);
	EXPECT(flexio_dev_window_copy_to_host(FLEXIO_DEV_WINDOW_ENTITY_NUM, 0, text, 1) == FLEXIO_DEV_STATUS_FAILED);
	EXPECT(flexio_dev_multi_window_copy_to_host(FLEXIO_DEV_WINDOW_ENTITY_0, UINT64_MAX, text, 1) ==
	       FLEXIO_DEV_STATUS_FAILED);
	return 0;
}
RPC(answers)

/* Every fence, and counters that count. */
__dpa_rpc__ uint64_t fences(uint64_t argument)
{
	uint64_t cycles = __dpa_thread_cycles(), instructions = __dpa_thread_inst_ret(), time = __dpa_thread_time();

	__dpa_thread_memory_fence(__DPA_R, __DPA_R);
	__dpa_thread_memory_fence(__DPA_RW, __DPA_W);
	__dpa_thread_outbox_fence(__DPA_W, __DPA_W);
	__dpa_thread_window_fence(__DPA_RW, __DPA_RW);
	__dpa_thread_system_fence();
	__dpa_thread_window_read_inv();
	__dpa_thread_window_writeback();
	__dpa_thread_memory_writeback();
	__dpa_compiler_barrier();
	EXPECT(__dpa_thread_inst_ret() - instructions >= 8);
	EXPECT(__dpa_thread_cycles() > cycles && __dpa_thread_time() >= time);
	return argument;
}
RPC(fences)

/* Ends the whole process. */
__dpa_rpc__ uint64_t finishes(uint64_t argument)
{
	if (argument)
		flexio_dev_error((uint8_t)argument);
	flexio_dev_process_finish();
}
RPC(finishes)

/* Ends as a call must not, but by names of the headers: each ends the process with its own reason. */
__dpa_rpc__ uint64_t leaves(uint64_t which)
{
	switch (which) {
	case 0:
		flexio_dev_yield_and_retrigger();
	case 1:
		flexio_dev_reschedule();
	case 2:
		flexio_dev_finish();
	case 3:
		flexio_dev_thread_retrigger();
	case 4:
		flexio_dev_thread_finish();
	case 5:
		flexio_dev_thread_reschedule();
	default:
		return 1;
	}
}
RPC(leaves)
