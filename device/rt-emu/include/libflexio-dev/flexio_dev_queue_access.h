/* SPDX-License-Identifier: Apache-2.0 */
/* Queues, doorbells and entries, all inline. */
#ifndef FLEXIO_DEV_QUEUE_ACCESS_H
#define FLEXIO_DEV_QUEUE_ACCESS_H

#include "flexio_dev.h"
#include "flexio_dev_queue_types.h"

/* Registers of the outbox page. */
#define FLEXCAST_OUTBOX_CQ_DB 0x100
#define FLEXCAST_OUTBOX_SXD_DB 0x1C0
#define FLEXCAST_OUTBOX_RXT_DB 0x280
/* These exist on a card; stores to them end the process here and say which. */
#define FLEXCAST_OUTBOX_EQ_DB_REARM 0x140
#define FLEXCAST_OUTBOX_EMU_CAP 0x200
#define FLEXCAST_OUTBOX_EMU_CAP_TRIGGER 0x240
#define FLEXCAST_OUTBOX_CC_DB 0x340

static inline void flexcast_outbox_store(unsigned int offset, uint64_t value)
{
	struct flexio_dev_thread_ctx *dtctx;

	flexio_dev_get_thread_ctx(&dtctx);
	*(volatile uint64_t *)(dtctx->outbox_base + offset) = value;
}

/* Doorbell of a send queue: entries before 64-byte block number `pi` are the hardware's. */
static inline flexio_dev_status_t flexio_dev_qp_sq_ring_db(uint16_t pi, uint32_t qpn)
{
	flexcast_outbox_store(FLEXCAST_OUTBOX_SXD_DB, (uint64_t)(qpn & 0xFFFFFF) << 32 | pi);
	return FLEXIO_DEV_STATUS_SUCCESS;
}

/* The first completion from number `ci` on triggers the thread of the queue, once. */
static inline flexio_dev_status_t flexio_dev_cq_arm(uint32_t ci, uint32_t cqn)
{
	flexcast_outbox_store(FLEXCAST_OUTBOX_CQ_DB, (uint64_t)(ci & 0xFFFFFF) << 32 | (cqn & 0xFFFFFF));
	return FLEXIO_DEV_STATUS_SUCCESS;
}

/* Triggers the thread of a completion queue without a completion. */
static inline flexio_dev_status_t flexio_dev_msix_send(uint32_t cqn)
{
	flexcast_outbox_store(FLEXCAST_OUTBOX_RXT_DB, cqn & 0xFFFFFF);
	return FLEXIO_DEV_STATUS_SUCCESS;
}

/* The same: the vendor's headers have both names. */
static inline flexio_dev_status_t flexio_dev_zcqe_gen(uint32_t cqn)
{
	return flexio_dev_msix_send(cqn);
}

/* Doorbell of an event queue, which the emulated DPA does not have. */
static inline flexio_dev_status_t flexio_dev_eq_update_ci(uint32_t ci, uint32_t eqn)
{
	flexcast_outbox_store(FLEXCAST_OUTBOX_EQ_DB_REARM, (uint64_t)(ci & 0x3FFFFFF) << 32 | (eqn & 0xFFFFFF));
	return FLEXIO_DEV_STATUS_SUCCESS;
}

/* Doorbells of emulated devices, which the emulated DPA does not have. */
static inline flexio_dev_status_t flexio_dev_db_ctx_arm(uint32_t qnum, uint32_t emu_ctx_id)
{
	flexcast_outbox_store(FLEXCAST_OUTBOX_EMU_CAP, (uint64_t)(emu_ctx_id & 0x3FFFFFF) << 32 | (qnum & 0xFFFFFF));
	return FLEXIO_DEV_STATUS_SUCCESS;
}

static inline flexio_dev_status_t flexio_dev_db_ctx_force_trigger(uint32_t cqn, uint32_t emu_ctx_id)
{
	flexcast_outbox_store(FLEXCAST_OUTBOX_EMU_CAP_TRIGGER,
			      (uint64_t)(emu_ctx_id & 0x3FFFFFF) << 32 | (cqn & 0xFFFFFF));
	return FLEXIO_DEV_STATUS_SUCCESS;
}

/* Doorbell of congestion control, which the emulated DPA does not have; the fields of its value are not published. */
static inline flexio_dev_status_t flexio_dev_cc_ring_db(uint16_t ccq_id, uint32_t rp_id)
{
	flexcast_outbox_store(FLEXCAST_OUTBOX_CC_DB, (uint64_t)rp_id << 32 | ccq_id);
	return FLEXIO_DEV_STATUS_SUCCESS;
}

/* `dbr` is the second word of the queue pair's doorbell record. */
static inline flexio_dev_status_t flexio_dev_dbr_sq_set_pi(uint32_t *dbr, uint32_t pi)
{
	*(volatile uint32_t *)dbr = cpu_to_be32(pi & 0xFFFF);
	return FLEXIO_DEV_STATUS_SUCCESS;
}

/* One more receive is posted; `rq_dbr` is the first word of the queue pair's doorbell record. */
static inline flexio_dev_status_t flexio_dev_dbr_rq_inc_pi(uint32_t *rq_dbr)
{
	volatile uint32_t *record = rq_dbr;

	*record = cpu_to_be32((be32_to_cpu(*record) + 1) & 0xFFFF);
	return FLEXIO_DEV_STATUS_SUCCESS;
}

static inline flexio_dev_status_t flexio_dev_dbr_cq_set_ci(uint32_t *cq_dbr, uint32_t ci)
{
	*(volatile uint32_t *)cq_dbr = cpu_to_be32(ci & 0xFFFFFF);
	return FLEXIO_DEV_STATUS_SUCCESS;
}

static inline void *flexio_dev_rwqe_get_addr(struct flexio_dev_wqe_rcv_data_seg *rwqe)
{
	return (void *)be64_to_cpu(rwqe->addr);
}

static inline uint8_t flexio_dev_cqe_get_owner(struct flexio_dev_cqe64 *cqe)
{
	return *(volatile uint8_t *)&cqe->op_own & 1;
}

static inline uint8_t flexio_dev_cqe_get_opcode(struct flexio_dev_cqe64 *cqe)
{
	return cqe->op_own >> 4;
}

static inline uint8_t flexio_dev_cqe_get_type(struct flexio_dev_cqe64 *cqe)
{
	return cqe->op_own >> 2 & 3;
}

static inline uint32_t flexio_dev_cqe_get_qpn(struct flexio_dev_cqe64 *cqe)
{
	return be32_to_cpu(cqe->sop_drop_qpn) & 0xFFFFFF;
}

static inline uint16_t flexio_dev_cqe_get_wqe_counter(struct flexio_dev_cqe64 *cqe)
{
	return be16_to_cpu(cqe->wqe_counter);
}

static inline uint32_t flexio_dev_cqe_get_byte_cnt(struct flexio_dev_cqe64 *cqe)
{
	return be32_to_cpu(cqe->byte_cnt);
}

static inline uint32_t flexio_dev_cqe_get_user_index(struct flexio_dev_cqe64 *cqe)
{
	return be32_to_cpu(cqe->srqn_uidx) & 0xFFFFFF;
}

/* The immediate, in the bytes of the sender. */
static inline uint32_t flexio_dev_cqe_get_imm_data(struct flexio_dev_cqe64 *cqe)
{
	return cqe->imm_inval_pkey;
}

static inline uint8_t flexio_dev_cqe_get_err_synd(struct flexio_dev_cqe64 *cqe)
{
	return ((uint8_t *)cqe)[0x37];
}

static inline uint8_t flexio_dev_cqe_get_hw_err_synd(struct flexio_dev_cqe64 *cqe)
{
	return ((uint8_t *)cqe)[0x34];
}

static inline uint8_t flexio_dev_cqe_get_vendor_err_synd(struct flexio_dev_cqe64 *cqe)
{
	return ((uint8_t *)cqe)[0x36];
}

static inline uint16_t flexio_dev_cqe_get_csum_ok(struct flexio_dev_cqe64 *cqe)
{
	return be16_to_cpu(cqe->csum_ok);
}

static inline uint8_t flexio_dev_eqe_get_owner(struct flexio_dev_eqe *eqe)
{
	return *(volatile uint8_t *)&eqe->owner & 1;
}

static inline uint32_t flexio_dev_eqe_get_cqn(struct flexio_dev_eqe *eqe)
{
	return be32_to_cpu(eqe->event_data[6]) & 0xFFFFFF;
}

/* Fills the control segment of a send entry that begins at 64-byte block `sq_pi`; the entry has the usual number of segments. */
static inline flexio_dev_status_t flexio_dev_swqe_seg_ctrl_set(union flexio_dev_sqe_seg *swqe, uint32_t sq_pi,
							       uint32_t sq_number, uint32_t ce, flexio_ctrl_seg_t type)
{
	static const struct {
		uint8_t opcode, opmod, ds;
	} types[] = {
		[FLEXIO_CTRL_SEG_SEND_EN] = { 0x17, 0, 3 },	  [FLEXIO_CTRL_SEG_SEND_RC] = { 0x0A, 0, 2 },
		[FLEXIO_CTRL_SEG_SEND_UD] = { 0x0A, 0, 3 },	  [FLEXIO_CTRL_SEG_LDMA] = { 0x32, 1, 4 },
		[FLEXIO_CTRL_SEG_RDMA_WRITE] = { 0x08, 0, 3 },	  [FLEXIO_CTRL_SEG_RDMA_READ] = { 0x10, 0, 3 },
		[FLEXIO_CTRL_SEG_LSO] = { 0x0E, 0, 4 },		  [FLEXIO_CTRL_SEG_NOP] = { 0x00, 0, 1 },
		[FLEXIO_CTRL_SEG_RDMA_WRITE_IMM] = { 0x09, 0, 3 }, [FLEXIO_CTRL_SEG_TRANSPOSE] = { 0x32, 0, 4 },
		[FLEXIO_CTRL_SEG_WAIT_ON_DATA] = { 0x0F, 1, 2 },
		[FLEXIO_CTRL_SEG_ATOMIC_COMPARE_AND_SWAP] = { 0x11, 0, 4 },
		[FLEXIO_CTRL_SEG_ATOMIC_FETCH_AND_ADD] = { 0x12, 0, 4 },
	};

	if ((unsigned int)type >= sizeof(types) / sizeof(types[0]))
		return FLEXIO_DEV_STATUS_FAILED;
	swqe->ctrl.idx_opcode =
		cpu_to_be32((uint32_t)types[type].opmod << 24 | (sq_pi & 0xFFFF) << 8 | types[type].opcode);
	swqe->ctrl.qpn_ds = cpu_to_be32(sq_number << 8 | types[type].ds);
	swqe->ctrl.signature_fm_ce_se = cpu_to_be32(ce << 2);
	swqe->ctrl.general_id = 0;
	return FLEXIO_DEV_STATUS_SUCCESS;
}

static inline flexio_dev_status_t flexio_dev_swqe_seg_rdma_set(union flexio_dev_sqe_seg *swqe, uint32_t rkey,
							       uint64_t raddr)
{
	swqe->rdma.raddr = cpu_to_be64(raddr);
	swqe->rdma.rkey = cpu_to_be32(rkey);
	swqe->rdma.rsvd = 0;
	return FLEXIO_DEV_STATUS_SUCCESS;
}

static inline flexio_dev_status_t flexio_dev_swqe_seg_mem_ptr_data_set(union flexio_dev_sqe_seg *swqe,
								       uint32_t data_sz, uint32_t lkey,
								       uint64_t data_addr)
{
	swqe->mem_ptr_send_data.byte_count = cpu_to_be32(data_sz);
	swqe->mem_ptr_send_data.lkey = cpu_to_be32(lkey);
	swqe->mem_ptr_send_data.addr = cpu_to_be64(data_addr);
	return FLEXIO_DEV_STATUS_SUCCESS;
}

static inline flexio_dev_status_t flexio_dev_swqe_seg_atomic_set(union flexio_dev_sqe_seg *swqe,
								 uint64_t swap_or_add_data, uint64_t compare_data)
{
	swqe->atomic.swap_or_add_data = cpu_to_be64(swap_or_add_data);
	swqe->atomic.compare_data = cpu_to_be64(compare_data);
	return FLEXIO_DEV_STATUS_SUCCESS;
}

/* Raw Ethernet; no queue of the emulated card executes it. */
static inline flexio_dev_status_t flexio_dev_swqe_seg_eth_set(union flexio_dev_sqe_seg *swqe, uint16_t cs_swp_flags,
							      uint16_t mss, uint16_t inline_hdr_bsz,
							      uint8_t inline_hdrs[2])
{
	swqe->eth.rsvd0 = 0;
	swqe->eth.cs_swp_flags = cpu_to_be16(cs_swp_flags);
	swqe->eth.mss = cpu_to_be16(mss);
	swqe->eth.rsvd8 = 0;
	swqe->eth.inline_hdr_bsz = cpu_to_be16(inline_hdr_bsz);
	swqe->eth.inline_hdrs[0] = inline_hdrs ? inline_hdrs[0] : 0;
	swqe->eth.inline_hdrs[1] = inline_hdrs ? inline_hdrs[1] : 0;
	return FLEXIO_DEV_STATUS_SUCCESS;
}

/* At most 12 bytes, which fit in one segment; longer data goes on behind it. */
static inline flexio_dev_status_t flexio_dev_swqe_seg_inline_data_set(union flexio_dev_sqe_seg *swqe, uint32_t data_sz,
								      uint32_t *data)
{
	if (data_sz > sizeof(swqe->inline_send_data.data_and_padding))
		return FLEXIO_DEV_STATUS_FAILED;
	swqe->inline_send_data.byte_count = cpu_to_be32(data_sz | 1u << 31);
	for (uint32_t at = 0; at < 3; at++)
		swqe->inline_send_data.data_and_padding[at] = 0;
	__builtin_memcpy(swqe->inline_send_data.data_and_padding, data, data_sz);
	return FLEXIO_DEV_STATUS_SUCCESS;
}

/* Entry of a shared receive queue; the emulated card has none. */
static inline flexio_dev_status_t flexio_dev_swqe_seg_shared_receive_set(union flexio_dev_sqe_seg *swqe,
									 uint16_t next_wqe_index, uint8_t signature)
{
	for (uint32_t at = 0; at < sizeof(swqe->bytes); at++)
		swqe->bytes[at] = 0;
	swqe->shared_receive.next_wqe_index = cpu_to_be16(next_wqe_index);
	swqe->shared_receive.signature = signature;
	return FLEXIO_DEV_STATUS_SUCCESS;
}

/* Address vector, bytes 0 to 15. `ext`: the other two thirds follow, without which a datagram goes nowhere on Ethernet. */
static inline flexio_dev_status_t flexio_dev_swqe_seg_av1_set(union flexio_dev_sqe_seg *swqe, uint32_t qkey, uint32_t dqp,
							      uint8_t ext, uint8_t stat_rate_sl, uint8_t fl_mlid,
							      uint16_t rlid_udp_sport)
{
	swqe->datagram.words[0] = cpu_to_be32(qkey);
	swqe->datagram.words[1] = 0;
	swqe->datagram.words[2] = cpu_to_be32((uint32_t)(ext & 1) << 31 | (dqp & 0xFFFFFF));
	swqe->datagram.words[3] =
		cpu_to_be32((uint32_t)stat_rate_sl << 24 | (uint32_t)fl_mlid << 16 | rlid_udp_sport);
	return FLEXIO_DEV_STATUS_SUCCESS;
}

/* Address vector, bytes 16 to 31. */
static inline flexio_dev_status_t flexio_dev_swqe_seg_av2_set(union flexio_dev_sqe_seg *swqe, const uint8_t *rmac,
							      uint8_t tclass, uint8_t hop_limit, uint32_t grh_gid_fl)
{
	swqe->datagram.words[0] = 0;
	for (uint32_t at = 0; at < 6; at++)
		swqe->bytes[4 + at] = rmac[at];
	swqe->bytes[10] = tclass;
	swqe->bytes[11] = hop_limit;
	swqe->datagram.words[3] = cpu_to_be32(grh_gid_fl);
	return FLEXIO_DEV_STATUS_SUCCESS;
}

/* Address vector, bytes 32 to 47. */
static inline flexio_dev_status_t flexio_dev_swqe_seg_av3_set(union flexio_dev_sqe_seg *swqe, const uint8_t *rgid_rip)
{
	for (uint32_t at = 0; at < 16; at++)
		swqe->bytes[at] = rgid_rip[at];
	return FLEXIO_DEV_STATUS_SUCCESS;
}

/* Fills a receive entry of one segment. */
static inline flexio_dev_status_t flexio_dev_rwqe_mem_ptr_set(struct flexio_dev_wqe_rcv_data_seg *rwqe, uint32_t size,
							      uint32_t lkey, uint64_t addr)
{
	rwqe->byte_count = cpu_to_be32(size);
	rwqe->lkey = cpu_to_be32(lkey);
	rwqe->addr = cpu_to_be64(addr);
	return FLEXIO_DEV_STATUS_SUCCESS;
}

#endif
