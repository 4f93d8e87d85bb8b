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
	flexio_dev_rst_errno(context());
	flexio_dev_event_handler_activate(999);
	EXPECT(flexio_dev_get_and_rst_errno(context()) == 22);
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
		flexio_dev_cc_ring_db(1, 2, 3, CC_DB_NEXT_ACT_SINGLE);
		break;
	case 4:
		flexio_dev_zcqe_gen(3);
		break;
	case 5:
		flexio_dev_msix_send(3);
		break;
	case 6:
		flexio_dev_cc_ring_db_low64bit(1);
		break;
	case 7:
		flexio_dev_cc_ring_db_high64bit(1);
		break;
	case 8:
		return flexio_dev_read_db_value(1);
	default:
		return 1;
	}
	return 0;
}
RPC(ends)

/* Counters of the port; of the other calls each ends the process. */
__dpa_rpc__ uint64_t counters(uint64_t argument)
{
	static uint32_t values[2] = { 9, 9 };
	static uint32_t ids[2] = { FLEXIO_DEV_NIC_COUNTER_PORT0_RX_BYTES, FLEXIO_DEV_NIC_COUNTER_PORT0_TX_BYTES };

	switch (argument) {
	case 0:
		flexio_dev_nic_counters_config(values, ids, 2);
		values[0] = 9;
		flexio_dev_nic_counters_sample();
		/* Nothing has crossed the port. */
		EXPECT(values[0] == 0 && values[1] == 0);
		return 0;
	case 1:
		ids[1] = FLEXIO_DEV_NIC_COUNTER_PORT1_RX_BYTES;
		flexio_dev_nic_counters_config(values, ids, 2);
		return 0;
	case 2:
		flexio_dev_nic_counters_config(0, ids, 2);
		return 0;
	case 3:
		flexio_dev_nic_counters_config(values, 0, 2);
		return 0;
	default:
		flexio_dev_nic_counters_sample();
		return 0;
	}
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
	uint64_t longs[2] = { 5, 6 };
	uint16_t halves[2] = { 7, 8 };
	uint32_t words[4] = { 0x44332211, 0x88776655, 0xCCBBAA99, 0 };
	uint8_t mac[6] = { 1, 2, 3, 4, 5, 6 };
	uint8_t gid[16] = { 0xFF, 0x0E, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16 };

	flexio_dev_swqe_seg_ctrl_set(&seg, 0x1234, 0xABCDEF, MLX5_CTRL_SEG_CE_CQE_ALWAYS, FLEXIO_CTRL_SEG_LDMA);
	EXPECT(equal(&seg, (const uint8_t[]){ 1, 0x12, 0x34, 0x32, 0xAB, 0xCD, 0xEF, 4, 0, 0, 0, 8, 0, 0, 0, 0 }, 16));
	EXPECT(flexio_dev_swqe_seg_ctrl_set(&seg, 0, 0, 0, (flexio_ctrl_seg_t)13) == FLEXIO_DEV_STATUS_FAILED);
	flexio_dev_swqe_seg_ctrl_set(&seg, 1, 2, 0, FLEXIO_CTRL_SEG_SEND_EN);
	EXPECT(equal(&seg, (const uint8_t[]){ 0, 0, 1, 0x0A, 0, 0, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0 }, 16));
	flexio_dev_swqe_seg_ctrl_set(&seg, 1, 2, 0, FLEXIO_CTRL_SEG_WAIT_ON_DATA);
	EXPECT(equal(&seg, (const uint8_t[]){ 1, 0, 1, 0x0F, 0, 0, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0 }, 16));
	seg.rdma.rsvd0 = 0;
	flexio_dev_swqe_seg_rdma_set(&seg, 0x01020304, 0x1122334455667788);
	EXPECT(equal(&seg, (const uint8_t[]){ 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 1, 2, 3, 4, 0, 0, 0, 0 }, 16));
	flexio_dev_swqe_seg_mem_ptr_data_set(&seg, 5, 6, 7);
	EXPECT(equal(&seg, (const uint8_t[]){ 0, 0, 0, 5, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 7 }, 16));
	flexio_dev_swqe_seg_atomic_set(&seg, 8, 9);
	EXPECT(equal(&seg, (const uint8_t[]){ 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 9 }, 16));
	flexio_dev_swqe_seg_eth_set(&seg, 0xC000, 1500, 2, (uint8_t[]){ 0xAA, 0xBB });
	EXPECT(equal(&seg, (const uint8_t[]){ 0, 0, 0, 0, 0xC0, 0, 5, 0xDC, 0, 0, 0, 0, 0, 2, 0xAA, 0xBB }, 16));
	/* Three words, whatever the size: the rest goes on in the next segment. */
	flexio_dev_swqe_seg_inline_data_set(&seg, 300, words);
	EXPECT(equal(&seg, (const uint8_t[]){ 0x80, 0, 1, 0x2C, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xAA,
					      0xBB, 0xCC }, 16));
	__builtin_memset(&seg, 0, sizeof(seg));
	flexio_dev_swqe_seg_shared_receive_set(&seg, 0x0102, 3);
	EXPECT(equal(&seg, (const uint8_t[]){ 0, 0, 1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }, 16));
	__builtin_memset(&seg, 0, sizeof(seg));
	flexio_dev_swqe_seg_transpose_set(&seg, 4, 5, 6);
	EXPECT(equal(&seg, (const uint8_t[]){ 0, 0, 0, 4, 0, 5, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0 }, 16));
	__builtin_memset(&seg, 0, sizeof(seg));
	flexio_dev_swqe_seg_wait_on_data_set(&seg, 2, 1, 3, 0x1122334455667788, 5);
	EXPECT(equal(&seg, (const uint8_t[]){ 0, 0, 0, 0x12, 0, 0, 0, 3, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x8D },
		     16));
	flexio_dev_swqe_seg_wait_on_data_data_set(&seg, 0x0102, 0x0304);
	EXPECT(equal(&seg, (const uint8_t[]){ 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 4 }, 16));
	flexio_dev_swqe_seg_av1_set(&seg, 0x11111111, 0xFFFFFF, 1, 0x12, 0x80, 0xC001);
	EXPECT(equal(&seg,
		     (const uint8_t[]){ 0x11, 0x11, 0x11, 0x11, 0, 0, 0, 0, 0x80, 0xFF, 0xFF, 0xFF, 0x12, 0x80, 0xC0, 1 },
		     16));
	seg.adres_vector.s2.reserved0[0] = seg.adres_vector.s2.reserved0[1] = 0;
	seg.adres_vector.s2.reserved0[2] = seg.adres_vector.s2.reserved0[3] = 0;
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
	cqe.qpn = cpu_to_be32(0x0A123456);
	EXPECT(cqe.sop_rdrop == 0x0A && cqe.qpn24[0] == 0x12);
	cqe.wqe_counter = cpu_to_be16(0x789A);
	cqe.byte_cnt = cpu_to_be32(45);
	cqe.srqn_uidx = cpu_to_be32(0xFF000003);
	cqe.imm_inval_pkey = 0x11223344;
	EXPECT(flexio_dev_cqe_get_qpn(&cqe) == 0x123456 && flexio_dev_cqe_get_wqe_counter(&cqe) == 0x789A);
	EXPECT(flexio_dev_cqe_get_byte_cnt(&cqe) == 45 && flexio_dev_cqe_get_user_index(&cqe) == 3);
	EXPECT(((uint8_t *)&cqe)[0x24] == 0x44);
	((uint8_t *)&cqe)[0x3F] = 0x2D;
	EXPECT(flexio_dev_comp_cqe_is_comp_cqe_array(&cqe) && flexio_dev_comp_cqe_get_num_comp_cqes(&cqe) == 3);
	flexio_dev_comp_cq_init(&cqe, 1, 7);
	EXPECT(flexio_dev_comp_cqe_get_validity_byte(&cqe) == 7 && ((uint8_t *)&cqe)[0x3E] == 7);
	((struct flexio_dev_mini_cqe64 *)&cqe)->mini_cqe[1] = 0xFFFFFFFF01020304;
	EXPECT(FLEXIO_DEV_COMP_CQE_GET_RX_HASH_RESULT(flexio_dev_comp_cqe_get_comp_cqe(&cqe, 1)) == 0x04030201);
	((uint8_t *)&eqe)[0x3B] = 5;
	((uint8_t *)&eqe)[0x3F] = 1;
	EXPECT(flexio_dev_eqe_get_cqn(&eqe) == 5 && flexio_dev_eqe_get_owner(&eqe) == 1);

	flexio_dev_swqe_seg_mem_ptr_data_set(&seg, 1, 2, (uint64_t)&seg);
	EXPECT(flexio_dev_rwqe_get_addr((struct flexio_dev_wqe_rcv_data_seg *)&seg) == &seg);
	words[3] = cpu_to_be32(0xFFFF);
	flexio_dev_dbr_rq_inc_pi(&words[3]);
	EXPECT(words[3] == 0);
	flexio_dev_dbr_cq_set_ci(&words[3], 0x12345678);
	EXPECT(words[3] == cpu_to_be32(0x345678));

	flexio_dev_memcpy64(&longs[1], &longs[0], 8);
	flexio_dev_memcpy32(&words[0], &words[1], 12);
	flexio_dev_memcpy16(&halves[1], &halves[0], 2);
	EXPECT(longs[1] == 5 && words[0] == 0x88776655 && words[1] == 0xCCBBAA99 && halves[1] == 7);
	EXPECT(le32_to_cpu(cpu_to_be32(0x01020304)) == 0x04030201);

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
	struct flexio_os_thread_ctx *os = (struct flexio_os_thread_ctx *)dtctx;
	flexio_uintptr_t window = 0;
	char text[] = "nobody listens";

	EXPECT(flexio_dev_get_thread_ctx(0) == -1);
	EXPECT(flexio_dev_get_thread_id(dtctx) == thread);
	EXPECT(flexio_dev_get_thread_local_storage(dtctx) == 0);
	/* A call is not continuable. */
	flexio_dev_yield(dtctx);
	flexio_dev_yield_and_retrigger();
	EXPECT(flexio_dev_puts(dtctx, text) == -1 && flexio_dev_puts(dtctx, 0) == -1);
	EXPECT(flexio_dev_msg(3, FLEXIO_MSG_DEV_INFO, "%d", 1) == -1);
	EXPECT(flexio_dev_msg_err(3, "%d", 1) == -1 && flexio_dev_msg_warn(3, "%d", 1) == -1);
	EXPECT(flexio_dev_msg_info(3, "%d", 1) == -1 && flexio_dev_msg_dbg(3, "%d", 1) == -1);
	EXPECT(flexio_dev_msg_dflt(4, "%d", 1) == -1 && flexio_dev_msg_broadcast(4, "%d", 1) == -1);
	flexio_dev_outbox_config_fast(dtctx, 0);
	EXPECT(os->outbox_base != 0 && os->outbox_config_id == 0);
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
	EXPECT(window == os->window_base + 0x123);
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
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
	if (argument == 1)
		flexio_dev_finish();
#pragma GCC diagnostic pop
	if (argument)
		flexio_dev_error((uint8_t)argument);
	flexio_dev_process_finish();
	return 0;
}
RPC(finishes)

/* Ends as a call must not, but by names of the headers: each ends the process with its own reason. */
__dpa_rpc__ uint64_t leaves(uint64_t which)
{
	switch (which) {
	case 0:
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
		flexio_dev_reschedule();
#pragma GCC diagnostic pop
		break;
	case 1:
		flexio_dev_thread_retrigger();
		break;
	case 2:
		flexio_dev_thread_finish();
		break;
	case 3:
		flexio_dev_thread_reschedule();
		break;
	}
	return 1;
}
RPC(leaves)

/* Adds 1, 10 and 100 to a number, and yields in between. */
__dpa_global__ void continues(uint64_t argument)
{
	volatile uint64_t *sum = (volatile uint64_t *)argument;
	uint64_t next = 1;

	*sum += next;
	flexio_dev_yield(context());
	*sum += next *= 10;
	flexio_dev_yield_and_retrigger();
	*sum += next *= 10;
	flexio_dev_thread_reschedule();
}

__dpa_rpc__ uint64_t wake(uint64_t activation_id)
{
	flexio_dev_event_handler_activate((uint32_t)activation_id);
	return flexio_dev_get_and_rst_errno(context());
}
RPC(wake)
