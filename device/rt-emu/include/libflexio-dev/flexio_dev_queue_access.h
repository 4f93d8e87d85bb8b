/* SPDX-License-Identifier: Apache-2.0 */
/* Queues, doorbells and entries, all inline. */
#ifndef FLEXIO_DEV_QUEUE_ACCESS_H
#define FLEXIO_DEV_QUEUE_ACCESS_H

#include <stdint.h>

#include "flexio_dev.h"
#include "flexio_dev_dpa_arch.h"
#include "flexio_dev_endianity.h"
#include "flexio_dev_queue_types.h"

#ifndef __FLEXIO_OS_H__
/* What struct flexio_dev_thread_ctx is; in tp. */
struct flexio_os_thread_ctx {
	uint32_t version;
	uint16_t outbox_config_id;
	uint16_t window_config_id;
	uint64_t outbox_base;
	uint64_t window_base;
	uint64_t window_config_base;
	uint64_t metadata_parameter;
#ifdef FLEXCAST_DEV_CONTEXT_FIRST
	uint32_t errno;
#else
	uint32_t dev_errno;
#endif
} __attribute__((packed, aligned(8)));
#endif

/* Context of this thread. */
FLEXIO_DEV_ALWAYS_INLINE struct flexio_os_thread_ctx *__dpa_os_get_thread_ctx(void)
{
	struct flexio_os_thread_ctx *context;

	__asm__("mv %0, tp" : "=r"(context));
	return context;
}

/* Before 24.10 a doorbell takes the thread's context first and reports success; from then on it returns nothing. */
#ifdef FLEXCAST_DEV_CONTEXT_FIRST
#define FLEXCAST_DEV_DOORBELL(name, ...) \
	FLEXIO_DEV_ALWAYS_INLINE flexio_dev_status_t name(struct flexio_dev_thread_ctx *dtctx, __VA_ARGS__)
#define FLEXCAST_DEV_RING(reg, value)                                                        \
	do {                                                                                 \
		outbox_write(((struct flexio_os_thread_ctx *)dtctx)->outbox_base, reg, value); \
		return FLEXIO_DEV_STATUS_SUCCESS;                                            \
	} while (0)
#else
#define FLEXCAST_DEV_DOORBELL(name, ...) FLEXIO_DEV_ALWAYS_INLINE void name(__VA_ARGS__)
#define FLEXCAST_DEV_RING(reg, value) outbox_write(__dpa_os_get_thread_ctx()->outbox_base, reg, value)
#endif

/* Doorbell of a send queue: entries before 64-byte block number `pi` are the hardware's. */
FLEXCAST_DEV_DOORBELL(flexio_dev_qp_sq_ring_db, uint16_t pi, uint32_t qnum)
{
	FLEXCAST_DEV_RING(SXD_DB, OUTBOX_V_SXD_DB(pi, qnum));
}

/* The first completion from number `ci` on triggers the thread of the queue, once. */
FLEXCAST_DEV_DOORBELL(flexio_dev_cq_arm, uint32_t ci, uint32_t qnum)
{
	FLEXCAST_DEV_RING(CQ_DB, OUTBOX_V_CQ_DB(qnum, ci));
}

/* Triggers what is bound to a completion queue without a completion: a thread, or the host by an interrupt. */
#ifdef FLEXCAST_DEV_CONTEXT_FIRST
FLEXCAST_DEV_DOORBELL(flexio_dev_msix_send, uint32_t cqn)
{
	FLEXCAST_DEV_RING(RXT_DB, OUTBOX_V_RXT_DB(cqn));
}
#define flexio_dev_zcqe_gen(dtctx, cqn) flexio_dev_msix_send(dtctx, cqn)
#else
FLEXCAST_DEV_DOORBELL(flexio_dev_zcqe_gen, uint32_t cqn)
{
	FLEXCAST_DEV_RING(RXT_DB, OUTBOX_V_RXT_DB(cqn));
}
#define flexio_dev_msix_send(cqn) flexio_dev_zcqe_gen(cqn)
#endif

/* Doorbell of an event queue, which the emulated DPA does not have. */
FLEXCAST_DEV_DOORBELL(flexio_dev_eq_update_ci, uint32_t ci, uint32_t qnum)
{
	FLEXCAST_DEV_RING(EQ_DB_NO_REARM, OUTBOX_V_EQ_DB_NO_REARM(qnum, ci));
}

/* Doorbells of emulated devices, which the emulated DPA does not have. */
FLEXCAST_DEV_DOORBELL(flexio_dev_db_ctx_arm, uint32_t qnum, uint32_t emu_ctx_id)
{
	FLEXCAST_DEV_RING(EMU_CAP, OUTBOX_V_EMU_CAP(qnum, emu_ctx_id));
}

FLEXCAST_DEV_DOORBELL(flexio_dev_db_ctx_force_trigger, uint32_t cqn, uint32_t emu_ctx_id)
{
	FLEXCAST_DEV_RING(EMU_CAP_TRIGGER, OUTBOX_V_EMU_CAP_TRIGGER(cqn, emu_ctx_id));
}

/* What the card does with a flow after a doorbell of congestion control. */
enum flexio_dev_cc_db_next_act {
	CC_DB_NEXT_ACT_SINGLE = 0,
	CC_DB_NEXT_ACT_MULTIPLE = 1,
	CC_DB_NEXT_ACT_FW = 2,
};
typedef enum flexio_dev_cc_db_next_act flexio_dev_cc_db_next_act_t;

/* Doorbell of congestion control, which the emulated DPA does not have; the fields of its value are not published. */
FLEXCAST_DEV_DOORBELL(flexio_dev_cc_ring_db, uint16_t ccq_id, uint32_t rate, uint32_t rtt_req,
		      enum flexio_dev_cc_db_next_act next_act)
{
	(void)rtt_req;
	(void)next_act;
	FLEXCAST_DEV_RING(CC_DB, (uint64_t)rate << 32 | ccq_id);
}

#ifndef FLEXCAST_DEV_CONTEXT_FIRST
/* The same, with a value that the caller has made. */
FLEXCAST_DEV_DOORBELL(flexio_dev_cc_ring_db_low64bit, uint64_t value)
{
	FLEXCAST_DEV_RING(CC_DB, value);
}

FLEXCAST_DEV_DOORBELL(flexio_dev_cc_ring_db_high64bit, uint64_t value)
{
	FLEXCAST_DEV_RING(CC_DB_MSB, value);
}

/* Value of an emulated device's doorbell. Not emulated, and how a card is asked is not published: ends the process. */
FLEXIO_DEV_ALWAYS_INLINE uint32_t flexio_dev_read_db_value(uint64_t emu_ctx_id)
{
	FLEXCAST_DEV_RING(EMU_CAP, OUTBOX_V_EMU_CAP(0, emu_ctx_id));
	return 0;
}
#endif

#undef FLEXCAST_DEV_DOORBELL
#undef FLEXCAST_DEV_RING

#ifdef FLEXCAST_DEV_CONTEXT_FIRST
/* Of releases before 2.7, and still called: `dbr` is the second word of the queue pair's doorbell record. */
FLEXIO_DEV_ALWAYS_INLINE flexio_dev_status_t flexio_dev_dbr_sq_set_pi(uint32_t *dbr, uint32_t pi)
{
	*(volatile uint32_t *)dbr = cpu_to_be32(pi & 0xFFFF);
	return FLEXIO_DEV_STATUS_SUCCESS;
}
#endif

/* One more receive is posted; `rq_dbr` is the first word of the queue pair's doorbell record. */
FLEXIO_DEV_ALWAYS_INLINE flexio_dev_status_t flexio_dev_dbr_rq_inc_pi(uint32_t *rq_dbr)
{
	volatile uint32_t *record = rq_dbr;

	*record = cpu_to_be32((be32_to_cpu(*record) + 1) & 0xFFFF);
	return FLEXIO_DEV_STATUS_SUCCESS;
}

FLEXIO_DEV_ALWAYS_INLINE flexio_dev_status_t flexio_dev_dbr_cq_set_ci(uint32_t *cq_dbr, uint32_t ci)
{
	*(volatile uint32_t *)cq_dbr = cpu_to_be32(ci & 0xFFFFFF);
	return FLEXIO_DEV_STATUS_SUCCESS;
}

FLEXIO_DEV_ALWAYS_INLINE void *flexio_dev_rwqe_get_addr(struct flexio_dev_wqe_rcv_data_seg *rwqe)
{
	return (void *)be64_to_cpu(rwqe->addr);
}

FLEXIO_DEV_ALWAYS_INLINE uint8_t flexio_dev_cqe_get_owner(struct flexio_dev_cqe64 *cqe)
{
	return cqe->op_own & 1;
}

FLEXIO_DEV_ALWAYS_INLINE uint8_t flexio_dev_cqe_get_opcode(struct flexio_dev_cqe64 *cqe)
{
	return cqe->op_own >> 4;
}

FLEXIO_DEV_ALWAYS_INLINE uint32_t flexio_dev_cqe_get_qpn(struct flexio_dev_cqe64 *cqe)
{
	return be32_to_cpu(cqe->qpn) & 0xFFFFFF;
}

FLEXIO_DEV_ALWAYS_INLINE uint16_t flexio_dev_cqe_get_wqe_counter(struct flexio_dev_cqe64 *cqe)
{
	return be16_to_cpu(cqe->wqe_counter);
}

FLEXIO_DEV_ALWAYS_INLINE uint32_t flexio_dev_cqe_get_byte_cnt(struct flexio_dev_cqe64 *cqe)
{
	return be32_to_cpu(cqe->byte_cnt);
}

FLEXIO_DEV_ALWAYS_INLINE uint32_t flexio_dev_cqe_get_user_index(struct flexio_dev_cqe64 *cqe)
{
	return be32_to_cpu(cqe->srqn_uidx) & 0xFFFFFF;
}

#ifdef FLEXCAST_DEV_CONTEXT_FIRST
FLEXIO_DEV_ALWAYS_INLINE uint8_t flexio_dev_cqe_get_csum_ok(struct flexio_dev_cqe64 *cqe)
{
	return cqe->csum_ok;
}

/* The whole word: syndrome in its lowest byte, the vendor's and the hardware's above. */
FLEXIO_DEV_ALWAYS_INLINE uint32_t flexio_dev_cqe_get_err_synd(struct flexio_dev_cqe64 *cqe)
{
	return be32_to_cpu(cqe->err_syndrome);
}
#else
FLEXIO_DEV_ALWAYS_INLINE uint16_t flexio_dev_cqe_get_csum_ok(struct flexio_dev_cqe64 *cqe)
{
	return be16_to_cpu(cqe->csum_ok);
}

FLEXIO_DEV_ALWAYS_INLINE uint32_t flexio_dev_cqe_get_err_synd(struct flexio_dev_cqe64 *cqe)
{
	return cqe->syndrome;
}

FLEXIO_DEV_ALWAYS_INLINE uint32_t flexio_dev_cqe_get_hw_err_synd(struct flexio_dev_cqe64 *cqe)
{
	return cqe->hw_err_syndrome;
}

FLEXIO_DEV_ALWAYS_INLINE uint32_t flexio_dev_cqe_get_vendor_err_synd(struct flexio_dev_cqe64 *cqe)
{
	return cqe->vendor_err_synd;
}

/* 0: no inline data. 1, 2: inline data of 32, 64 bytes. 3: several completions. */
FLEXIO_DEV_ALWAYS_INLINE uint8_t flexio_dev_cqe_get_type(struct flexio_dev_cqe64 *cqe)
{
	return cqe->op_own >> 2 & 3;
}

/* Entries with several completions. The emulated card leaves none. */
FLEXIO_DEV_ALWAYS_INLINE void flexio_dev_comp_cq_init(struct flexio_dev_cqe64 *cqe, int num_cqes,
						      uint8_t validity_iteration_count)
{
	for (int at = 0; at < num_cqes; at++)
		cqe[at].validity_iteration_count = validity_iteration_count;
}

FLEXIO_DEV_ALWAYS_INLINE uint8_t flexio_dev_comp_cqe_get_validity_byte(struct flexio_dev_cqe64 *cqe)
{
	return cqe->validity_iteration_count;
}

FLEXIO_DEV_ALWAYS_INLINE uint8_t flexio_dev_comp_cqe_is_comp_cqe_array(struct flexio_dev_cqe64 *cqe)
{
	return flexio_dev_cqe_get_type(cqe) == 3;
}

FLEXIO_DEV_ALWAYS_INLINE uint8_t flexio_dev_comp_cqe_get_num_comp_cqes(struct flexio_dev_cqe64 *cqe)
{
	return (cqe->op_own >> 4) + 1;
}

FLEXIO_DEV_ALWAYS_INLINE uint64_t flexio_dev_comp_cqe_get_comp_cqe(struct flexio_dev_cqe64 *cqe, int comp_cqe_index)
{
	return ((struct flexio_dev_mini_cqe64 *)cqe)->mini_cqe[comp_cqe_index];
}

#define FLEXIO_DEV_COMP_CQE_GET_RX_HASH_RESULT(mini_cqe) be32_to_cpu((uint32_t)((mini_cqe) & 0xFFFFFFFFULL))
#endif

FLEXIO_DEV_ALWAYS_INLINE uint8_t flexio_dev_eqe_get_owner(struct flexio_dev_eqe *eqe)
{
	return *(volatile uint8_t *)&eqe->owner & 1;
}

FLEXIO_DEV_ALWAYS_INLINE uint32_t flexio_dev_eqe_get_cqn(struct flexio_dev_eqe *eqe)
{
	return be32_to_cpu(eqe->event_data.cqn) & 0xFFFFFF;
}

/* Opcodes of send entries. */
enum {
	MLX5_CTRL_SEG_OPCODE_NOP = 0x00,
	MLX5_CTRL_SEG_OPCODE_SND_INV = 0x01,
	MLX5_CTRL_SEG_OPCODE_RDMA_WRITE = 0x08,
	MLX5_CTRL_SEG_OPCODE_RDMA_WRITE_WITH_IMMEDIATE = 0x09,
	MLX5_CTRL_SEG_OPCODE_SEND = 0x0A,
	MLX5_CTRL_SEG_OPCODE_SEND_WITH_IMMEDIATE = 0x0B,
	MLX5_CTRL_SEG_OPCODE_LSO = 0x0E,
	MLX5_CTRL_SEG_OPCODE_WAIT = 0x0F,
	MLX5_CTRL_SEG_OPCODE_RDMA_READ = 0x10,
	MLX5_CTRL_SEG_OPCODE_ATOMIC_COMPARE_AND_SWAP = 0x11,
	MLX5_CTRL_SEG_OPCODE_ATOMIC_FETCH_AND_ADD = 0x12,
	MLX5_CTRL_SEG_OPCODE_ATOMIC_MASKED_COMPARE_AND_SWAP = 0x14,
	MLX5_CTRL_SEG_OPCODE_ATOMIC_MASKED_FETCH_AND_ADD = 0x15,
	MLX5_CTRL_SEG_OPCODE_RECEIVE_EN = 0x16,
	MLX5_CTRL_SEG_OPCODE_SEND_EN = 0x17,
	MLX5_CTRL_SEG_OPCODE_SET_PSV = 0x20,
	MLX5_CTRL_SEG_OPCODE_GET_PSV = 0x21,
	MLX5_CTRL_SEG_OPCODE_CHECK_PSV = 0x22,
	MLX5_CTRL_SEG_OPCODE_DUMP = 0x23,
	MLX5_CTRL_SEG_OPCODE_UMR = 0x25,
	MLX5_CTRL_SEG_OPCODE_RGET_PSV = 0x26,
	MLX5_CTRL_SEG_OPCODE_RCHECK_PSV = 0x27,
	MLX5_CTRL_SEG_OPCODE_TAG_MATCHING = 0x28,
	MLX5_CTRL_SEG_OPCODE_ENHANCED_MPSW = 0x29,
	MLX5_CTRL_SEG_OPCODE_QOS_REMAP = 0x2A,
	MLX5_CTRL_SEG_OPCODE_FLOW_TABLE_ACCESS = 0x2C,
	MLX5_CTRL_SEG_OPCODE_ACCESS_ASO = 0x2D,
	MLX5_CTRL_SEG_OPCODE_MMO = 0x2F,
	MLX5_CTRL_SEG_OPCODE_LOAD_REMOTE_MICRO_APP = 0x30,
	MLX5_CTRL_SEG_OPCODE_STORE_REMOTE_MICRO_APP = 0x31,
	MLX5_CTRL_SEG_OPCODE_LOCAL_MMO = 0x32,
};

/* Modifiers of opcodes LOCAL_MMO and WAIT. */
enum {
	MLX5_CTRL_SEGMENT_OPC_MOD_LOCAL_MMO_TRANSPOSE = 0,
	MLX5_CTRL_SEGMENT_OPC_MOD_LOCAL_MMO_LOCAL_DMA = 1,
	MLX5_CTRL_SEGMENT_OPC_MOD_WAIT_ON_DATA = 1,
};

/* Kinds of send entries, for flexio_dev_swqe_seg_ctrl_set. */
enum flexio_ctrl_seg {
#ifdef FLEXCAST_DEV_CONTEXT_FIRST
	FLEXIO_CTRL_SEG_SEND_EN = 0,
	FLEXIO_CTRL_SEG_SEND_RC = 1,
	FLEXIO_CTRL_SEG_LDMA = 2,
	FLEXIO_CTRL_SEG_RDMA_WRITE = 3,
	FLEXIO_CTRL_SEG_RDMA_READ = 4,
	FLEXIO_CTRL_SEG_ATOMIC_COMPARE_AND_SWAP = 5,
	FLEXIO_CTRL_SEG_LSO = 6,
	FLEXIO_CTRL_SEG_NOP = 7,
	FLEXIO_CTRL_SEG_RDMA_WRITE_IMM = 8,
	FLEXIO_CTRL_SEG_TRANSPOSE = 9,
#else
	FLEXIO_CTRL_SEG_SEND_EN = 0,
	FLEXIO_CTRL_SEG_SEND_RC = 1,
	FLEXIO_CTRL_SEG_SEND_UC = 1,
	FLEXIO_CTRL_SEG_SEND_UD = 2,
	FLEXIO_CTRL_SEG_LDMA = 3,
	FLEXIO_CTRL_SEG_RDMA_WRITE = 4,
	FLEXIO_CTRL_SEG_RDMA_READ = 5,
	FLEXIO_CTRL_SEG_LSO = 6,
	FLEXIO_CTRL_SEG_NOP = 7,
	FLEXIO_CTRL_SEG_RDMA_WRITE_IMM = 8,
	FLEXIO_CTRL_SEG_TRANSPOSE = 9,
	FLEXIO_CTRL_SEG_WAIT_ON_DATA = 10,
	FLEXIO_CTRL_SEG_ATOMIC_COMPARE_AND_SWAP = 11,
	FLEXIO_CTRL_SEG_ATOMIC_FETCH_AND_ADD = 12,
#endif
#if FLEXIO_DEV_VER_USED >= FLEXIO_DEV_VER(25, 10, 0)
	FLEXIO_CTRL_SEG_TYPE_SEND_EN = 0,
	FLEXIO_CTRL_SEG_TYPE_SEND_RC = 1,
	FLEXIO_CTRL_SEG_TYPE_SEND_UC = 1,
	FLEXIO_CTRL_SEG_TYPE_SEND_UD = 2,
	FLEXIO_CTRL_SEG_TYPE_LDMA = 3,
	FLEXIO_CTRL_SEG_TYPE_RDMA_WRITE = 4,
	FLEXIO_CTRL_SEG_TYPE_RDMA_READ = 5,
	FLEXIO_CTRL_SEG_TYPE_LSO = 6,
	FLEXIO_CTRL_SEG_TYPE_NOP = 7,
	FLEXIO_CTRL_SEG_TYPE_RDMA_WRITE_IMM = 8,
	FLEXIO_CTRL_SEG_TYPE_TRANSPOSE = 9,
	FLEXIO_CTRL_SEG_TYPE_WAIT_ON_DATA = 10,
	FLEXIO_CTRL_SEG_TYPE_ATOMIC_COMPARE_AND_SWAP = 11,
	FLEXIO_CTRL_SEG_TYPE_ATOMIC_FETCH_AND_ADD = 12,
#endif
};
typedef enum flexio_ctrl_seg flexio_ctrl_seg_t;

/*
 * Fills the control segment of a send entry that begins at 64-byte block `sq_pi`. The entry has the usual number of segments for
 * its kind; a SEND_EN has three: control, Ethernet, data.
 */
FLEXIO_DEV_ALWAYS_INLINE flexio_dev_status_t flexio_dev_swqe_seg_ctrl_set(union flexio_dev_sqe_seg *swqe, uint32_t sq_pi,
									  uint32_t sq_number, uint32_t ce,
									  enum flexio_ctrl_seg ctrl_seg_type)
{
	uint32_t opcode = MLX5_CTRL_SEG_OPCODE_SEND, modifier = 0, segments = 3;

	switch (ctrl_seg_type) {
	case FLEXIO_CTRL_SEG_SEND_EN:
		break;
	case FLEXIO_CTRL_SEG_SEND_RC:
		segments = 2;
		break;
	case FLEXIO_CTRL_SEG_LSO:
		opcode = MLX5_CTRL_SEG_OPCODE_LSO, segments = 4;
		break;
	case FLEXIO_CTRL_SEG_LDMA:
		opcode = MLX5_CTRL_SEG_OPCODE_LOCAL_MMO, segments = 4;
		modifier = MLX5_CTRL_SEGMENT_OPC_MOD_LOCAL_MMO_LOCAL_DMA;
		break;
	case FLEXIO_CTRL_SEG_TRANSPOSE:
		opcode = MLX5_CTRL_SEG_OPCODE_LOCAL_MMO, segments = 4;
		modifier = MLX5_CTRL_SEGMENT_OPC_MOD_LOCAL_MMO_TRANSPOSE;
		break;
	case FLEXIO_CTRL_SEG_RDMA_WRITE:
		opcode = MLX5_CTRL_SEG_OPCODE_RDMA_WRITE;
		break;
	case FLEXIO_CTRL_SEG_RDMA_WRITE_IMM:
		opcode = MLX5_CTRL_SEG_OPCODE_RDMA_WRITE_WITH_IMMEDIATE;
		break;
	case FLEXIO_CTRL_SEG_RDMA_READ:
		opcode = MLX5_CTRL_SEG_OPCODE_RDMA_READ;
		break;
	case FLEXIO_CTRL_SEG_NOP:
		opcode = MLX5_CTRL_SEG_OPCODE_NOP, segments = 1;
		break;
	case FLEXIO_CTRL_SEG_ATOMIC_COMPARE_AND_SWAP:
		opcode = MLX5_CTRL_SEG_OPCODE_ATOMIC_COMPARE_AND_SWAP, segments = 4;
		break;
#ifndef FLEXCAST_DEV_CONTEXT_FIRST
	case FLEXIO_CTRL_SEG_SEND_UD:
		break;
	case FLEXIO_CTRL_SEG_ATOMIC_FETCH_AND_ADD:
		opcode = MLX5_CTRL_SEG_OPCODE_ATOMIC_FETCH_AND_ADD, segments = 4;
		break;
	case FLEXIO_CTRL_SEG_WAIT_ON_DATA:
		opcode = MLX5_CTRL_SEG_OPCODE_WAIT;
		modifier = MLX5_CTRL_SEGMENT_OPC_MOD_WAIT_ON_DATA;
		break;
#endif
	default:
		return FLEXIO_DEV_STATUS_FAILED;
	}
	swqe->ctrl.idx_opcode = cpu_to_be32(modifier << 24 | (sq_pi & 0xFFFF) << 8 | opcode);
	swqe->ctrl.qpn_ds = cpu_to_be32(sq_number << 8 | segments);
	swqe->ctrl.signature_fm_ce_se = cpu_to_be32(ce << 2);
	swqe->ctrl.general_id = 0;
	return FLEXIO_DEV_STATUS_SUCCESS;
}

FLEXIO_DEV_ALWAYS_INLINE flexio_dev_status_t flexio_dev_swqe_seg_eth_set(union flexio_dev_sqe_seg *swqe,
									 uint16_t cs_swp_flags, uint16_t mss,
									 uint16_t inline_hdr_bsz, uint8_t inline_hdrs[2])
{
	swqe->eth.rsvd0 = 0;
	swqe->eth.cs_swp_flags = cpu_to_be16(cs_swp_flags);
	swqe->eth.mss = cpu_to_be16(mss);
	swqe->eth.rsvd2 = 0;
	swqe->eth.inline_hdr_bsz = cpu_to_be16(inline_hdr_bsz);
	if (inline_hdrs) {
		swqe->eth.inline_hdrs[0] = inline_hdrs[0];
		swqe->eth.inline_hdrs[1] = inline_hdrs[1];
	}
	return FLEXIO_DEV_STATUS_SUCCESS;
}

FLEXIO_DEV_ALWAYS_INLINE flexio_dev_status_t flexio_dev_swqe_seg_rdma_set(union flexio_dev_sqe_seg *swqe, uint32_t rkey,
									  uint64_t raddr)
{
	swqe->rdma.raddr = cpu_to_be64(raddr);
	swqe->rdma.rkey = cpu_to_be32(rkey);
	return FLEXIO_DEV_STATUS_SUCCESS;
}

FLEXIO_DEV_ALWAYS_INLINE flexio_dev_status_t flexio_dev_swqe_seg_mem_ptr_data_set(union flexio_dev_sqe_seg *swqe,
										  uint32_t data_sz, uint32_t lkey,
										  uint64_t data_addr)
{
	swqe->mem_ptr_send_data.byte_count = cpu_to_be32(data_sz);
	swqe->mem_ptr_send_data.lkey = cpu_to_be32(lkey);
	swqe->mem_ptr_send_data.addr = cpu_to_be64(data_addr);
	return FLEXIO_DEV_STATUS_SUCCESS;
}

/*
 * Takes three words of `data`, whatever `data_sz` is; longer data goes on in the following segments. Before 24.10 the words are
 * swapped and the entry lacks the bit by which the card knows inline data.
 */
FLEXIO_DEV_ALWAYS_INLINE flexio_dev_status_t flexio_dev_swqe_seg_inline_data_set(union flexio_dev_sqe_seg *swqe,
										 uint32_t data_sz, uint32_t *data)
{
#ifdef FLEXCAST_DEV_CONTEXT_FIRST
	swqe->inline_send_data.byte_count = cpu_to_be32(data_sz);
	for (int at = 0; at < 3; at++)
		swqe->inline_send_data.data_and_padding[at] = cpu_to_be32(data[at]);
#else
	swqe->inline_send_data.byte_count = cpu_to_be32(data_sz | 1u << 31);
	for (int at = 0; at < 3; at++)
		swqe->inline_send_data.data_and_padding[at] = data[at];
#endif
	return FLEXIO_DEV_STATUS_SUCCESS;
}

FLEXIO_DEV_ALWAYS_INLINE flexio_dev_status_t flexio_dev_swqe_seg_atomic_set(union flexio_dev_sqe_seg *swqe,
									    uint64_t swap_or_add_data,
									    uint64_t compare_data)
{
	swqe->atomic.swap_or_add_data = cpu_to_be64(swap_or_add_data);
	swqe->atomic.compare_data = cpu_to_be64(compare_data);
	return FLEXIO_DEV_STATUS_SUCCESS;
}

/* Entry of a shared receive queue; the emulated card has none. */
FLEXIO_DEV_ALWAYS_INLINE flexio_dev_status_t flexio_dev_swqe_seg_shared_receive_set(union flexio_dev_sqe_seg *swqe,
										    uint16_t next_wqe_index,
										    uint8_t signature)
{
	swqe->shared_receive.next_wqe_index = cpu_to_be16(next_wqe_index);
	swqe->shared_receive.signature = signature;
	return FLEXIO_DEV_STATUS_SUCCESS;
}

/* Transposes a matrix, which the emulated card does not. */
FLEXIO_DEV_ALWAYS_INLINE flexio_dev_status_t flexio_dev_swqe_seg_transpose_set(union flexio_dev_sqe_seg *swqe,
									       uint8_t element_size, uint8_t num_of_cols,
									       uint8_t num_of_rows)
{
	swqe->transpose.element_size = element_size;
	swqe->transpose.num_of_cols = num_of_cols;
	swqe->transpose.num_of_rows = num_of_rows;
	return FLEXIO_DEV_STATUS_SUCCESS;
}

#ifndef FLEXCAST_DEV_CONTEXT_FIRST
/* Address vector, bytes 0 to 15. `ext`: the other two thirds follow, without which a datagram goes nowhere on Ethernet. */
static inline void flexio_dev_swqe_seg_av1_set(union flexio_dev_sqe_seg *swqe, uint32_t qkey, uint32_t dqp, uint8_t ext,
					       uint8_t stat_rate_sl, uint8_t fl_mlid, uint16_t rlid)
{
	swqe->adres_vector.s1.key.qkey.qkey = cpu_to_be32(qkey);
	swqe->adres_vector.s1.key.qkey.reserved = 0;
	swqe->adres_vector.s1.ext_dqp_dct = cpu_to_be32((uint32_t)ext << 31 | dqp);
	swqe->adres_vector.s1.stat_rate_sl = stat_rate_sl;
	swqe->adres_vector.s1.fl_mlid = fl_mlid;
	swqe->adres_vector.s1.rlid = cpu_to_be16(rlid);
}

/* Address vector, bytes 16 to 31. */
static inline void flexio_dev_swqe_seg_av2_set(union flexio_dev_sqe_seg *swqe, uint8_t *rmac, uint8_t tclass,
					       uint8_t hop_limit, uint32_t grh_gid_fl)
{
	__builtin_memcpy(swqe->adres_vector.s2.rmac, rmac, 6);
	swqe->adres_vector.s2.tclass = tclass;
	swqe->adres_vector.s2.hop_limit = hop_limit;
	swqe->adres_vector.s2.grh_gid_fl = cpu_to_be32(grh_gid_fl);
}

/* Address vector, bytes 32 to 47. */
static inline void flexio_dev_swqe_seg_av3_set(union flexio_dev_sqe_seg *swqe, uint8_t *rgid)
{
	__builtin_memcpy(swqe->adres_vector.s3.rgid, rgid, 16);
}

/* Waits until memory at `addr` compares as the next segment says; the emulated card does not. */
FLEXIO_DEV_ALWAYS_INLINE flexio_dev_status_t flexio_dev_swqe_seg_wait_on_data_set(union flexio_dev_sqe_seg *swqe,
										  uint8_t operation, uint8_t inv,
										  uint32_t lkey, uint64_t addr,
										  uint8_t action_on_fail)
{
	swqe->wait_on_data.op_inv = inv << 4 | operation;
	swqe->wait_on_data.lkey = cpu_to_be32(lkey);
	swqe->wait_on_data.va_63_32 = cpu_to_be32((uint32_t)(addr >> 32));
	swqe->wait_on_data.va_31_3_fail_act = cpu_to_be32(((uint32_t)addr & ~7u) | action_on_fail);
	return FLEXIO_DEV_STATUS_SUCCESS;
}

/* `data` is stored as it is: its byte order is that of the memory that it is compared with. */
FLEXIO_DEV_ALWAYS_INLINE flexio_dev_status_t flexio_dev_swqe_seg_wait_on_data_data_set(union flexio_dev_sqe_seg *swqe,
										       uint64_t data, uint64_t data_mask)
{
	swqe->wait_on_data_data.data = data;
	swqe->wait_on_data_data.data_mask = cpu_to_be64(data_mask);
	return FLEXIO_DEV_STATUS_SUCCESS;
}
#endif

#endif
