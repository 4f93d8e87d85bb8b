/* SPDX-License-Identifier: Apache-2.0 */
/* Queue entries as the hardware lays them out: big-endian. Sources: mlx5 provider of rdma-core. */
#ifndef FLEXIO_DEV_QUEUE_TYPES_H
#define FLEXIO_DEV_QUEUE_TYPES_H

#include <stdint.h>

typedef uint16_t __be16;
typedef uint32_t __be32;
typedef uint64_t __be64;

#define cpu_to_be16(value) __builtin_bswap16(value)
#define cpu_to_be32(value) __builtin_bswap32(value)
#define cpu_to_be64(value) __builtin_bswap64(value)
#define be16_to_cpu(value) __builtin_bswap16(value)
#define be32_to_cpu(value) __builtin_bswap32(value)
#define be64_to_cpu(value) __builtin_bswap64(value)

struct flexio_dev_cqe64 {
	uint8_t rsvd0[2];
	__be16 wqe_id;
	uint8_t rsvd4[13];
	uint8_t ml_path;
	uint8_t rsvd18[2];
	__be16 csum_ok;
	__be16 slid;
	__be32 flags_rqpn;
	uint8_t hds_ip_ext;
	uint8_t l4_hdr_type_etc;
	__be16 vlan_info;
	__be32 srqn_uidx;
	__be32 imm_inval_pkey;
	uint8_t app;
	uint8_t app_op;
	__be16 app_info;
	__be32 byte_cnt;
	__be64 timestamp;
	__be32 sop_drop_qpn;
	__be16 wqe_counter;
	uint8_t signature;
	uint8_t op_own;
};
_Static_assert(sizeof(struct flexio_dev_cqe64) == 64, "a completion has 64 bytes");

/* An entry of an event queue. */
struct flexio_dev_eqe {
	uint8_t rsvd0;
	uint8_t type;
	uint8_t rsvd2;
	uint8_t sub_type;
	uint8_t rsvd4[28];
	__be32 event_data[7];
	uint8_t rsvd3c[2];
	uint8_t signature;
	uint8_t owner;
};
_Static_assert(sizeof(struct flexio_dev_eqe) == 64, "an event has 64 bytes");

struct flexio_dev_wqe_ctrl_seg {
	__be32 idx_opcode;
	__be32 qpn_ds;
	__be32 signature_fm_ce_se;
	__be32 general_id;
};

struct flexio_dev_wqe_rdma_seg {
	__be64 raddr;
	__be32 rkey;
	__be32 rsvd;
};

struct flexio_dev_wqe_mem_ptr_send_data_seg {
	__be32 byte_count;
	__be32 lkey;
	__be64 addr;
};

struct flexio_dev_wqe_atomic_seg {
	__be64 swap_or_add_data;
	__be64 compare_data;
};

struct flexio_dev_wqe_eth_seg {
	__be32 rsvd0;
	__be16 cs_swp_flags;
	__be16 mss;
	__be32 rsvd8;
	__be16 inline_hdr_bsz;
	uint8_t inline_hdrs[2];
};

/* Inline data: the bytes go on in the following segments. */
struct flexio_dev_wqe_inline_send_data_seg {
	__be32 byte_count;
	uint32_t data_and_padding[3];
};

struct flexio_dev_wqe_shared_receive_seg {
	uint8_t rsvd0[2];
	__be16 next_wqe_index;
	uint8_t signature;
	uint8_t rsvd5[11];
};

/* A third of the address vector of a datagram. */
struct flexio_dev_wqe_datagram_seg {
	__be32 words[4];
};

/* One of the 16-byte segments of a send entry. */
union flexio_dev_sqe_seg {
	struct flexio_dev_wqe_ctrl_seg ctrl;
	struct flexio_dev_wqe_rdma_seg rdma;
	struct flexio_dev_wqe_mem_ptr_send_data_seg mem_ptr_send_data;
	struct flexio_dev_wqe_atomic_seg atomic;
	struct flexio_dev_wqe_eth_seg eth;
	struct flexio_dev_wqe_inline_send_data_seg inline_send_data;
	struct flexio_dev_wqe_shared_receive_seg shared_receive;
	struct flexio_dev_wqe_datagram_seg datagram;
	uint8_t bytes[16];
};
_Static_assert(sizeof(union flexio_dev_sqe_seg) == 16, "a segment has 16 bytes");

struct flexio_dev_wqe_rcv_data_seg {
	__be32 byte_count;
	__be32 lkey;
	__be64 addr;
};

/* Send entry types (flexio_dev_swqe_seg_ctrl_set); values of device version 25.1. */
typedef enum {
	FLEXIO_CTRL_SEG_SEND_EN = 0,
	FLEXIO_CTRL_SEG_SEND_RC = 1,
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
} flexio_ctrl_seg_t;

/* When a send entry leaves a completion. */
enum {
	FLEXIO_CTRL_SEG_CE_CQE_ON_CQE_ERROR = 0,
	FLEXIO_CTRL_SEG_CE_CQE_ON_FIRST_CQE_ERROR = 1,
	FLEXIO_CTRL_SEG_CE_CQE_ALWAYS = 2,
	FLEXIO_CTRL_SEG_CE_CQE_AND_EQE = 3,
};

/* Completion opcodes. */
enum {
	FLEXIO_DEV_CQE_REQUESTER = 0,
	FLEXIO_DEV_CQE_RESPONDER_WRITE_WITH_IMM = 1,
	FLEXIO_DEV_CQE_RESPONDER_SEND = 2,
	FLEXIO_DEV_CQE_RESPONDER_SEND_WITH_IMM = 3,
	FLEXIO_DEV_CQE_RESPONDER_SEND_WITH_INV = 4,
	FLEXIO_DEV_CQE_REQUESTER_ERROR = 13,
	FLEXIO_DEV_CQE_RESPONDER_ERROR = 14,
	FLEXIO_DEV_CQE_INVALID = 15,
};

#endif
