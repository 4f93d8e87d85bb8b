/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of the mlx5 direct-verbs ABI (rdma-core 44, LP64) that Flexcast uses: DevX commands, user memory, UARs, keys over other
 * keys and the work requests that bind them, and the look inside a verbs object. Written for Flexcast from the ABI's layouts, names and values.
 */
#ifndef _MLX5DV_H_
#define _MLX5DV_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <infiniband/verbs.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- looking inside verbs objects -------------------------------------------------------------------------- */

struct mlx5dv_qp {
	__be32 *dbrec;                        /* [0] receive counter, [1] send counter */
	struct {
		void *buf;
		uint32_t wqe_cnt;
		uint32_t stride;
	} sq;
	struct {
		void *buf;
		uint32_t wqe_cnt;
		uint32_t stride;
	} rq;
	struct {
		void *reg;
		uint32_t size;
	} bf;
	uint64_t comp_mask;
	off_t uar_mmap_offset;
	uint32_t tirn;
	uint32_t tisn;
	uint32_t rqn;
	uint32_t sqn;
	uint64_t tir_icm_addr;
};

struct mlx5dv_cq {
	void *buf;
	__be32 *dbrec;                        /* [0] consumer index, [1] arm word */
	uint32_t cqe_cnt;
	uint32_t cqe_size;
	void *cq_uar;
	uint32_t cqn;
	uint64_t comp_mask;
};

struct mlx5dv_pd {
	uint32_t pdn;
	uint64_t comp_mask;
};

struct mlx5_wqe_av;

struct mlx5dv_ah {
	struct mlx5_wqe_av *av;
	uint64_t comp_mask;
};

struct mlx5dv_srq;
struct mlx5dv_rwq;
struct mlx5dv_dm;
struct ibv_wq;
struct ibv_dm;

struct mlx5dv_obj {
	struct {
		struct ibv_qp *in;
		struct mlx5dv_qp *out;
	} qp;
	struct {
		struct ibv_cq *in;
		struct mlx5dv_cq *out;
	} cq;
	struct {
		struct ibv_srq *in;
		struct mlx5dv_srq *out;
	} srq;
	struct {
		struct ibv_wq *in;
		struct mlx5dv_rwq *out;
	} rwq;
	struct {
		struct ibv_dm *in;
		struct mlx5dv_dm *out;
	} dm;
	struct {
		struct ibv_ah *in;
		struct mlx5dv_ah *out;
	} ah;
	struct {
		struct ibv_pd *in;
		struct mlx5dv_pd *out;
	} pd;
};

enum mlx5dv_obj_type {
	MLX5DV_OBJ_QP = 1 << 0,
	MLX5DV_OBJ_CQ = 1 << 1,
	MLX5DV_OBJ_SRQ = 1 << 2,
	MLX5DV_OBJ_RWQ = 1 << 3,
	MLX5DV_OBJ_DM = 1 << 4,
	MLX5DV_OBJ_AH = 1 << 5,
	MLX5DV_OBJ_PD = 1 << 6,
};

int mlx5dv_init_obj(struct mlx5dv_obj *obj, uint64_t obj_type);

/* ---- opening a device for DevX ----------------------------------------------------------------------------- */

enum {
	MLX5DV_CONTEXT_FLAGS_DEVX = 1 << 0,
};

struct mlx5dv_context_attr {
	uint32_t flags;
	uint64_t comp_mask;
};

bool mlx5dv_is_supported(struct ibv_device *device);
struct ibv_context *mlx5dv_open_device(struct ibv_device *device, struct mlx5dv_context_attr *attr);

/* ---- DevX -------------------------------------------------------------------------------------------------- */

struct mlx5dv_devx_obj;

struct mlx5dv_devx_umem {
	uint32_t umem_id;
};

struct mlx5dv_devx_uar {
	void *reg_addr;
	void *base_addr;
	uint32_t page_id;
	off_t mmap_off;
	uint64_t comp_mask;
};

/*
 * `in` and `out` are command mailboxes of the device's programming interface: big-endian, status in the first byte of
 * `out` and the syndrome in its second dword. A command the device refuses gives EREMOTEIO (or a NULL object with that
 * errno) and leaves both in `out`.
 */
int mlx5dv_devx_general_cmd(struct ibv_context *context, const void *in, size_t inlen, void *out, size_t outlen);
struct mlx5dv_devx_obj *mlx5dv_devx_obj_create(struct ibv_context *context, const void *in, size_t inlen, void *out,
					       size_t outlen);
int mlx5dv_devx_obj_query(struct mlx5dv_devx_obj *obj, const void *in, size_t inlen, void *out, size_t outlen);
int mlx5dv_devx_obj_modify(struct mlx5dv_devx_obj *obj, const void *in, size_t inlen, void *out, size_t outlen);
int mlx5dv_devx_obj_destroy(struct mlx5dv_devx_obj *obj);
struct mlx5dv_devx_umem *mlx5dv_devx_umem_reg(struct ibv_context *context, void *addr, size_t size, uint32_t access);
int mlx5dv_devx_umem_dereg(struct mlx5dv_devx_umem *umem);
struct mlx5dv_devx_uar *mlx5dv_devx_alloc_uar(struct ibv_context *context, uint32_t flags);
void mlx5dv_devx_free_uar(struct mlx5dv_devx_uar *devx_uar);

/* ---- keys over other keys, and the work requests that bind them ---------------------------------------------- */

struct mlx5dv_mkey {
	uint32_t lkey;
	uint32_t rkey;
};

enum mlx5dv_mkey_init_attr_flags {
	MLX5DV_MKEY_INIT_ATTR_FLAGS_INDIRECT = 1 << 0,
};

struct mlx5dv_mkey_init_attr {
	struct ibv_pd *pd;
	uint32_t create_flags;
	uint16_t max_entries;                 /* out: as many as there is room for */
};

struct mlx5dv_mkey *mlx5dv_create_mkey(struct mlx5dv_mkey_init_attr *mkey_init_attr);
int mlx5dv_destroy_mkey(struct mlx5dv_mkey *mkey);

enum mlx5dv_qp_init_attr_mask {
	MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS = 1 << 0,
	MLX5DV_QP_INIT_ATTR_MASK_DC = 1 << 1,
	MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS = 1 << 2,
	MLX5DV_QP_INIT_ATTR_MASK_DCI_STREAMS = 1 << 3,
};

enum mlx5dv_qp_create_send_ops_flags {
	MLX5DV_QP_EX_WITH_MR_INTERLEAVED = 1 << 0,
	MLX5DV_QP_EX_WITH_MR_LIST = 1 << 1,
	MLX5DV_QP_EX_WITH_MKEY_CONFIGURE = 1 << 2,
	MLX5DV_QP_EX_WITH_RAW_WQE = 1 << 3,
};

struct mlx5dv_qp_init_attr {
	uint64_t comp_mask;
	uint32_t create_flags;
	struct {
		uint32_t dc_type;
		uint64_t dct_access_key;
	} dc_init_attr;
	uint64_t send_ops_flags;
};

struct ibv_qp *mlx5dv_create_qp(struct ibv_context *context, struct ibv_qp_init_attr_ex *qp_attr,
				struct mlx5dv_qp_init_attr *mlx5_qp_attr);

/* The calls behind the one for lists are of no use here. */
struct mlx5dv_qp_ex {
	uint64_t comp_mask;
	void (*wr_set_dc_addr)(struct mlx5dv_qp_ex *mqp, struct ibv_ah *ah, uint32_t remote_dctn, uint64_t remote_dc_key);
	void (*wr_mr_interleaved)(struct mlx5dv_qp_ex *mqp, struct mlx5dv_mkey *mkey, uint32_t access_flags,
				  uint32_t repeat_count, uint16_t num_interleaved, void *data);
	void (*wr_mr_list)(struct mlx5dv_qp_ex *mqp, struct mlx5dv_mkey *mkey, uint32_t access_flags, uint16_t num_sges,
			   struct ibv_sge *sge);
	/* Nobody here calls these: they are declared with their first argument alone. */
	void (*wr_mkey_configure)(struct mlx5dv_qp_ex *mqp);
	void (*wr_set_mkey_access_flags)(struct mlx5dv_qp_ex *mqp);
	void (*wr_set_mkey_layout_list)(struct mlx5dv_qp_ex *mqp);
	void (*wr_set_mkey_layout_interleaved)(struct mlx5dv_qp_ex *mqp);
	void (*wr_set_mkey_sig_block)(struct mlx5dv_qp_ex *mqp);
	void (*wr_raw_wqe)(struct mlx5dv_qp_ex *mqp);
	void (*wr_set_dc_addr_stream)(struct mlx5dv_qp_ex *mqp);
	void (*wr_memcpy)(struct mlx5dv_qp_ex *mqp);
	void (*wr_set_mkey_crypto)(struct mlx5dv_qp_ex *mqp);
};

struct mlx5dv_qp_ex *mlx5dv_qp_ex_from_ibv_qp_ex(struct ibv_qp_ex *qp);

/* Steering of Ethernet frames: what programs on the DPA use. */

struct mlx5dv_dr_domain;
struct mlx5dv_dr_table;
struct mlx5dv_dr_matcher;
struct mlx5dv_dr_rule;
struct mlx5dv_dr_action;

enum mlx5dv_dr_domain_type {
	MLX5DV_DR_DOMAIN_TYPE_NIC_RX,
	MLX5DV_DR_DOMAIN_TYPE_NIC_TX,
	MLX5DV_DR_DOMAIN_TYPE_FDB,
};

struct mlx5dv_flow_match_parameters {
	size_t match_sz;
	uint64_t match_buf[];
};

struct mlx5dv_dr_matcher_layout {
	uint32_t flags;
	uint32_t log_num_of_rules_hint;
};

struct mlx5dv_dr_domain *mlx5dv_dr_domain_create(struct ibv_context *ctx, enum mlx5dv_dr_domain_type type);
int mlx5dv_dr_domain_destroy(struct mlx5dv_dr_domain *domain);
int mlx5dv_dr_domain_sync(struct mlx5dv_dr_domain *domain, uint32_t flags);
void mlx5dv_dr_domain_allow_duplicate_rules(struct mlx5dv_dr_domain *domain, bool allow);
struct mlx5dv_dr_table *mlx5dv_dr_table_create(struct mlx5dv_dr_domain *domain, uint32_t level);
int mlx5dv_dr_table_destroy(struct mlx5dv_dr_table *table);
struct mlx5dv_dr_matcher *mlx5dv_dr_matcher_create(struct mlx5dv_dr_table *table, uint16_t priority,
						   uint8_t match_criteria_enable,
						   struct mlx5dv_flow_match_parameters *mask);
int mlx5dv_dr_matcher_destroy(struct mlx5dv_dr_matcher *matcher);
int mlx5dv_dr_matcher_set_layout(struct mlx5dv_dr_matcher *matcher, struct mlx5dv_dr_matcher_layout *layout);
struct mlx5dv_dr_rule *mlx5dv_dr_rule_create(struct mlx5dv_dr_matcher *matcher,
					     struct mlx5dv_flow_match_parameters *value, size_t num_actions,
					     struct mlx5dv_dr_action *actions[]);
int mlx5dv_dr_rule_destroy(struct mlx5dv_dr_rule *rule);
struct mlx5dv_dr_action *mlx5dv_dr_action_create_dest_table(struct mlx5dv_dr_table *table);
struct mlx5dv_dr_action *mlx5dv_dr_action_create_dest_vport(struct mlx5dv_dr_domain *domain, uint32_t vport);
struct mlx5dv_dr_action *mlx5dv_dr_action_create_dest_ib_port(struct mlx5dv_dr_domain *domain, uint32_t ib_port);
struct mlx5dv_dr_action *mlx5dv_dr_action_create_dest_devx_tir(struct mlx5dv_devx_obj *devx_obj);
struct mlx5dv_dr_action *mlx5dv_dr_action_create_drop(void);
int mlx5dv_dr_action_destroy(struct mlx5dv_dr_action *action);

#if defined(__LP64__) && !defined(__cplusplus)
_Static_assert(sizeof(struct mlx5dv_mkey_init_attr) == 16, "size of struct mlx5dv_mkey_init_attr");
_Static_assert(sizeof(struct mlx5dv_qp_init_attr) == 40, "size of struct mlx5dv_qp_init_attr");
_Static_assert(sizeof(struct mlx5dv_qp) == 96, "size of struct mlx5dv_qp");
_Static_assert(sizeof(struct mlx5dv_cq) == 48, "size of struct mlx5dv_cq");
_Static_assert(sizeof(struct mlx5dv_obj) == 112, "size of struct mlx5dv_obj");
_Static_assert(sizeof(struct mlx5dv_devx_uar) == 40, "size of struct mlx5dv_devx_uar");
#endif

#ifdef __cplusplus
}
#endif

#endif
