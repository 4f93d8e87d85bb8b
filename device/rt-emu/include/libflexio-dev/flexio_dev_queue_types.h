/* SPDX-License-Identifier: Apache-2.0 */
/* Queue entries as the hardware lays them out: big-endian. Source: the mlx5 provider of rdma-core. */
#ifndef FLEXIO_DEV_QUEUE_TYPES_H
#define FLEXIO_DEV_QUEUE_TYPES_H

#include <stdint.h>

#include "flexio_dev.h"

/* Segments of 16 bytes in a block of a send queue; depths of send queues are in blocks of 64 bytes. */
#define LOG_SQE_NUM_SEGS 2

typedef uint16_t __be16;
typedef uint32_t __be32;
typedef uint64_t __be64;

#define FLEXCAST_DEV_ENTRY __attribute__((packed, aligned(8)))

/* An entry of an event queue. */
struct flexio_dev_eqe {
	uint8_t rsvd00;
	uint8_t type;
	uint8_t rsvd02;
	uint8_t sub_type;
	uint8_t rsvd4[28];
	struct {
		__be32 rsvd00[6];
		__be32 cqn;
	} event_data;
	__be16 rsvd3c;
	uint8_t signature;
	uint8_t owner;
} FLEXCAST_DEV_ENTRY;

#ifdef FLEXCAST_DEV_CONTEXT_FIRST
struct flexio_dev_cqe64 {
	__be32 rsvd0[7];
	uint8_t csum_ok;
	uint8_t rsvd29[3];
	__be32 srqn_uidx;
	__be32 rsvd36[2];
	__be32 byte_cnt;
	__be32 rsvd48;
	__be32 err_syndrome;
	__be32 qpn;
	__be16 wqe_counter;
	uint8_t signature;
	volatile uint8_t op_own;
} FLEXCAST_DEV_ENTRY;
#else
struct flexio_dev_cqe64 {
	__be32 rsvd00[5];
	__be16 csum_ok;
	uint8_t rsvd22[2];
	__be32 rsvd24[2];
	__be32 srqn_uidx;
	__be32 imm_inval_pkey;
	__be32 rsvd40;
	__be32 byte_cnt;
	__be32 rsvd48;
	uint8_t hw_err_syndrome;
	uint8_t rsvd50;
	uint8_t vendor_err_synd;
	uint8_t syndrome;
	union {
		struct {
			/* Opcode of the send entry, or counter of drops. */
			uint8_t sop_rdrop;
			uint8_t qpn24[3];
		};
		__be32 qpn;
	};
	__be16 wqe_counter;
	union {
		uint8_t signature;
		uint8_t validity_iteration_count;
	};
	volatile uint8_t op_own;
} FLEXCAST_DEV_ENTRY;
#endif

/* Several completions in one entry. */
struct flexio_dev_mini_cqe64 {
	__be64 mini_cqe[7];
	uint8_t rsvd0[6];
	uint8_t validity_iteration_count;
	/* Bits 7:4: entries less one. Bits 3:2: format, 3 for such an entry. */
	uint8_t num_and_type;
} FLEXCAST_DEV_ENTRY;

struct flexio_dev_wqe_mem_ptr_send_data_seg {
	__be32 byte_count;
	__be32 lkey;
	__be64 addr;
} FLEXCAST_DEV_ENTRY;

/* Inline data: the bytes go on in the following segments. */
struct flexio_dev_wqe_inline_send_data_seg {
	__be32 byte_count;
	__be32 data_and_padding[3];
} FLEXCAST_DEV_ENTRY;

struct flexio_dev_wqe_rcv_data_seg {
	__be32 byte_count;
	__be32 lkey;
	__be64 addr;
} FLEXCAST_DEV_ENTRY;

struct flexio_dev_wqe_shared_receive_seg {
	uint8_t rsvd0[2];
	__be16 next_wqe_index;
	uint8_t signature;
	uint8_t rsvd1[11];
} FLEXCAST_DEV_ENTRY;

struct flexio_dev_wqe_ctrl_seg {
	/* Modifier of the opcode, number of the block, opcode. */
	__be32 idx_opcode;
	/* Queue and number of segments. */
	__be32 qpn_ds;
	__be32 signature_fm_ce_se;
	__be32 general_id;
} FLEXCAST_DEV_ENTRY;

/* What the card fills in or finds in the headers of a frame. */
typedef enum {
	FLEXIO_ETH_SEG_L4CS = 0x8000,
	FLEXIO_ETH_SEG_L3CS = 0x4000,
	FLEXIO_ETH_SEG_L4CS_INNER = 0x2000,
	FLEXIO_ETH_SEG_L3CS_INNER = 0x1000,
	FLEXIO_ETH_SEG_TRAILER_ALIGN = 0x0200,
	FLEXIO_ETH_SEG_SWP_OUTER_L4_TYPE = 0x0040,
	FLEXIO_ETH_SEG_SWP_OUTER_L3_TYPE = 0x0020,
	FLEXIO_ETH_SEG_SWP_INNER_L4_TYPE = 0x0002,
	FLEXIO_ETH_SEG_SWP_INNER_L3_TYPE = 0x0001,
} flexio_dev_wqe_eth_seg_cs_swp_flags_t;

struct flexio_dev_wqe_eth_seg {
	__be32 rsvd0;
	__be16 cs_swp_flags;
	__be16 mss;
	__be32 rsvd2;
	__be16 inline_hdr_bsz;
	uint8_t inline_hdrs[2];
} FLEXCAST_DEV_ENTRY;

struct flexio_dev_wqe_inline_data_seg {
	uint8_t inline_data[16];
} FLEXCAST_DEV_ENTRY;

struct flexio_dev_wqe_rdma_seg {
	__be64 raddr;
	__be32 rkey;
	__be32 rsvd0;
} FLEXCAST_DEV_ENTRY;

struct flexio_dev_wqe_atomic_seg {
	__be64 swap_or_add_data;
	__be64 compare_data;
} FLEXCAST_DEV_ENTRY;

struct flexio_dev_wqe_transpose_seg {
	uint8_t rsvd0[3];
	uint8_t element_size;
	uint8_t rsvd1;
	uint8_t num_of_cols;
	uint8_t rsvd2;
	uint8_t num_of_rows;
	uint8_t rsvd4[8];
} FLEXCAST_DEV_ENTRY;

struct flexio_dev_wqe_wait_on_data_seg {
	uint8_t rsvd0[3];
	/* Bits 3:0: how to compare. Bit 4: the other way round. */
	uint8_t op_inv;
	uint32_t lkey;
	uint32_t va_63_32;
	/* Bits 31:3 of the address; bits 2:0: what to do when it fails. */
	uint32_t va_31_3_fail_act;
} FLEXCAST_DEV_ENTRY;

struct flexio_dev_wqe_wait_on_data_data_seg {
	__be64 data;
	__be64 data_mask;
} FLEXCAST_DEV_ENTRY;

/* A third of the address vector of a datagram. */
struct flexio_dev_wqe_datagram_seg {
	union {
		struct {
			union {
				struct {
					__be32 qkey;
					__be32 reserved;
				} qkey;
				__be64 dc_key;
			} key;
			/* Bit 31: the other two thirds follow. */
			__be32 ext_dqp_dct;
			uint8_t stat_rate_sl;
			uint8_t fl_mlid;
			__be16 rlid;
		} s1;
		struct {
			uint8_t reserved0[4];
			uint8_t rmac[6];
			uint8_t tclass;
			uint8_t hop_limit;
			__be32 grh_gid_fl;
		} s2;
		struct {
			uint8_t rgid[16];
		} s3;
	};
} FLEXCAST_DEV_ENTRY;

/* One of the 16-byte segments of a send entry. */
union flexio_dev_sqe_seg {
	struct flexio_dev_wqe_ctrl_seg ctrl;
	struct flexio_dev_wqe_eth_seg eth;
	struct flexio_dev_wqe_inline_data_seg inline_data;
	struct flexio_dev_wqe_rdma_seg rdma;
	struct flexio_dev_wqe_mem_ptr_send_data_seg mem_ptr_send_data;
	struct flexio_dev_wqe_inline_send_data_seg inline_send_data;
	struct flexio_dev_wqe_atomic_seg atomic;
	struct flexio_dev_wqe_transpose_seg transpose;
	struct flexio_dev_wqe_shared_receive_seg shared_receive;
	struct flexio_dev_wqe_wait_on_data_seg wait_on_data;
	struct flexio_dev_wqe_wait_on_data_data_seg wait_on_data_data;
	struct flexio_dev_wqe_datagram_seg adres_vector;
};

_Static_assert(sizeof(struct flexio_dev_eqe) == 64, "an event has 64 bytes");
_Static_assert(sizeof(struct flexio_dev_cqe64) == 64, "a completion has 64 bytes");
_Static_assert(sizeof(struct flexio_dev_mini_cqe64) == 64, "as many completions as there are have 64 bytes");
_Static_assert(sizeof(union flexio_dev_sqe_seg) == 16, "a segment has 16 bytes");

#endif
