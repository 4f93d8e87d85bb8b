/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The FlexIO host ABI of the 2.7 generation (LP64), written for Flexcast from the ABI's names, values and layouts. A
 * program compiled against this file runs on the emulator's libflexio and, where that generation is installed, on the
 * vendor's.
 *
 * A program of a later release includes flexio_ver.h, defines FLEXIO_VER_USED, and then includes this file: it finds
 * that release's names. Their order in the vendor's structures is not public, so such a program runs on the emulator's
 * libflexio alone. For the vendor's of 3.x it is compiled against the vendor's headers; Rust generates bindings from
 * these (feature `sdk` of flexio-sys).
 */
#ifndef LIBFLEXIO_FLEXIO_H
#define LIBFLEXIO_FLEXIO_H

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <libflexio/flexio_ver.h>

/* Whether the program is of this release or a later one. One that names none is of 2.7. */
#ifdef FLEXIO_VER_USED
#define FLEXCAST_SINCE(major, minor) (FLEXIO_VER_USED >= FLEXIO_VER(major, minor, 0))
#else
#define FLEXCAST_SINCE(major, minor) 0
/* Programs hand it to flexio_version_set. */
#define FLEXIO_VER_USED FLEXIO_VER(2, 7, 0)
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- limits ------------------------------------------------------------------------------------------------ */

#define FLEXIO_MAX_NAME_LEN 256

/* Execution units of a card, and those of them that the operating system of the DPA keeps. */
#define PHY_CORES_NUM 16
#define EUS_PER_CORE 16
#define EUS_LIMIT (PHY_CORES_NUM * EUS_PER_CORE)
#define OS_RESERVED_EUS 2
#define USER_EUS_LIMIT (EUS_LIMIT - OS_RESERVED_EUS)
#define EU_BITMASK_LEN (EUS_LIMIT / 8)

#define FLEXIO_MSG_DEV_LOG_DATA_CHUNK_BSIZE 9   /* log2: messages of 512 bytes */
#define FLEXIO_MSG_DEV_MAX_STREAMS_AMOUNT 255
#define FLEXIO_MSG_DEV_DEFAULT_STREAM_ID 0

/* Message levels: a stream passes messages up to its own level. */
#define FLEXIO_MSG_DEV_NO_PRINT 0
#define FLEXIO_MSG_DEV_ALWAYS_PRINT 1
#define FLEXIO_MSG_DEV_ERROR 2
#define FLEXIO_MSG_DEV_WARN 3
#define FLEXIO_MSG_DEV_INFO 4
#define FLEXIO_MSG_DEV_DEBUG 5

/* ---- scalar types and handles ------------------------------------------------------------------------------ */

typedef uint64_t flexio_uintptr_t;              /* an address in a DPA process */
typedef uint32_t flexio_uar_device_id;
typedef uint8_t flexio_msg_dev_level;
typedef void (flexio_func_t)(void);             /* only its address counts: the key of a registered function */
typedef void (flexio_func_arg_pack_fn_t)(void *argbuf, va_list pa);

struct flexio_app;
struct flexio_cmdq;
struct flexio_cq;
struct flexio_event_handler;
struct flexio_mkey;
struct flexio_msg_stream;
struct flexio_outbox;
struct flexio_process;
struct flexio_qp;
struct flexio_resource;
struct flexio_rmp;
struct flexio_rq;
struct flexio_sq;
struct flexio_thread;
struct flexio_uar;
struct flexio_window;

/* ---- enumerations ------------------------------------------------------------------------------------------ */

typedef enum flexio_status {
	FLEXIO_STATUS_SUCCESS = 0,
	FLEXIO_STATUS_FAILED = 1,
	FLEXIO_STATUS_TIMEOUT = 2,
	FLEXIO_STATUS_FATAL_ERR = 3,
} flexio_status;

enum flexio_err_status {
	FLEXIO_DEV_NO_ERROR = 0,
	FLEXIO_DEV_FATAL_ERROR = 1,
	FLEXIO_DEV_USER_ERROR = 2,
};

/* What a completion queue's events go to. */
enum {
	FLEXIO_CQ_ELEMENT_TYPE_DPA_THREAD = 0,
	FLEXIO_CQ_ELEMENT_TYPE_EXT_EQ = 2,
	FLEXIO_CQ_ELEMENT_TYPE_NON_DPA_CQ = 8,
	FLEXIO_CQ_ELEMENT_TYPE_DPA_MSIX_EMULATED_CQ = 9,
};

enum flexio_qp_transport_type {
	FLEXIO_QPC_ST_RC = 0x0,
	FLEXIO_QPC_ST_UC = 0x1,
	FLEXIO_QPC_ST_UD = 0x2,
	FLEXIO_QPC_ST_XRC = 0x3,
	FLEXIO_QPC_ST_IBL2 = 0x4,
	FLEXIO_QPC_ST_DCI = 0x5,
	FLEXIO_QPC_ST_QP0 = 0x7,
	FLEXIO_QPC_ST_QP1 = 0x8,
	FLEXIO_QPC_ST_RAW_DATAGRAM = 0x9,
	FLEXIO_QPC_ST_REG_UMR = 0xc,
	FLEXIO_QPC_ST_DC_CNAK = 0x10,
};

enum flexio_cqe_comp_type {
	FLEXIO_CQE_COMP_NONE = 0,
	FLEXIO_CQE_COMP_BASIC = 1,
	FLEXIO_CQE_COMP_ENH = 2,
};

enum flexio_cq_period_mode {
	FLEXIO_CQ_PERIOD_MODE_EVENT = 0,
	FLEXIO_CQ_PERIOD_MODE_CQE = 1,
};

enum flexio_memtype {
	FLEXIO_MEMTYPE_DPA = 0,
	FLEXIO_MEMTYPE_HOST = 1,
};

enum flexio_wq_type {
	FLEXIO_WQ_TYPE_LINKED_LIST = 0,
	FLEXIO_WQ_TYPE_CYCLIC = 1,
};

enum flexio_affinity_type {
	FLEXIO_AFFINITY_NONE = 0,               /* the runtime picks an execution unit */
	FLEXIO_AFFINITY_STRICT = 1,             /* id is an execution unit */
	FLEXIO_AFFINITY_GROUP = 2,              /* id is an execution-unit group */
};

enum flexio_qp_op_types {
	FLEXIO_QP_WR_RDMA_WRITE = 0x4,
	FLEXIO_QP_WR_RDMA_READ = 0x8,
	FLEXIO_QP_WR_ATOMIC_CMP_AND_SWAP = 0x10,
};

enum flexio_qp_qpc_mtu {
	FLEXIO_QP_QPC_MTU_BYTES_256 = 0x1,
	FLEXIO_QP_QPC_MTU_BYTES_512 = 0x2,
	FLEXIO_QP_QPC_MTU_BYTES_1K = 0x3,
	FLEXIO_QP_QPC_MTU_BYTES_2K = 0x4,
	FLEXIO_QP_QPC_MTU_BYTES_4K = 0x5,
};

enum {
	FLEXIO_QP_QPC_RQ_TYPE_REGULAR = 0x0,
	FLEXIO_QP_QPC_RQ_TYPE_SRQ_RMP_XRC_SRQ_XRQ = 0x1,
	FLEXIO_QP_QPC_RQ_TYPE_ZERO_SIZE_RQ = 0x3,
};

enum flexio_qp_state {
	FLEXIO_QP_STATE_RST = 0x0,
	FLEXIO_QP_STATE_INIT = 0x1,
	FLEXIO_QP_STATE_RTR = 0x2,
	FLEXIO_QP_STATE_RTS = 0x3,
	FLEXIO_QP_STATE_ERR = 0x6,
};

enum flexio_cmdq_state {
	FLEXIO_CMDQ_STATE_PENDING = 0,
	FLEXIO_CMDQ_STATE_RUNNING = 1,
};

#if FLEXCAST_SINCE(25, 7)
typedef enum flexio_msg_dev_sync_mode {
	FLEXIO_MSG_DEV_SYNC_MODE_SYNC = 0,
	FLEXIO_MSG_DEV_SYNC_MODE_ASYNC = 1,
	FLEXIO_MSG_DEV_SYNC_MODE_BATCH = 2,
	FLEXIO_MSG_DEV_SYNC_MODE_TRACER = 3,
} flexio_msg_dev_sync_mode;

enum flexio_msg_transport {
	FLEXIO_MSG_TRANSPORT_QP_RC = 0,
};
#else
typedef enum flexio_log_dev_sync_mode {
	FLEXIO_LOG_DEV_SYNC_MODE_SYNC = 0,
	FLEXIO_LOG_DEV_SYNC_MODE_ASYNC = 1,
	FLEXIO_LOG_DEV_SYNC_MODE_BATCH = 2,
	FLEXIO_LOG_DEV_SYNC_MODE_TRACER = 3,
} flexio_msg_dev_sync_mode;

enum flexio_tracer_transport {
	FLEXIO_TRACER_TRANSPORT_QP = 0,
	FLEXIO_TRACER_TRANSPORT_WINDOW = 1,
};
#endif

enum flexio_hw_model_id {
	FLEXIO_HW_MODEL_DEF = 0,                /* that of the device */
};

typedef enum flexio_log_lvl {
	FLEXIO_LOG_LVL_ERR = 0,
	FLEXIO_LOG_LVL_WARN = 1,
	FLEXIO_LOG_LVL_INFO = 2,
	FLEXIO_LOG_LVL_DBG = 3,
} flexio_log_lvl_t;

/* ---- attribute structures ---------------------------------------------------------------------------------- */

struct flexio_qmem {
	enum flexio_memtype memtype;
	union {
		flexio_uintptr_t daddr;         /* device address */
		uint64_t humem_offset;          /* offset in the host's user memory `umem_id` */
	};
	uint32_t umem_id;
};

struct flexio_heap_mem_info {
	uint64_t base_addr;
	size_t size;
	size_t requested;
	size_t allocated;
};

struct flexio_cq_attr {
	uint8_t log_cq_depth;
	uint8_t element_type;
	union {
		uint32_t emulated_eqn;
		struct flexio_thread *thread;
	};
	uint32_t uar_id;
	void *uar_base_addr;
	enum flexio_cqe_comp_type cqe_comp_type;
	enum flexio_cq_period_mode cq_period_mode;
	uint16_t cq_period;
	uint16_t cq_max_count;
	bool no_arm;
	bool cc;
	uint8_t overrun_ignore;
	uint8_t always_armed;
	struct flexio_qmem cq_ring_qmem;        /* filled by the host, owner bits 1, before creation */
	flexio_uintptr_t cq_dbr_daddr;
};

struct flexio_wq_sq_attr {
	uint8_t allow_multi_pkt_send_wqe;
};

struct flexio_wq_rq_attr {
	enum flexio_wq_type wq_type;
};

struct flexio_wq_attr {
	uint8_t log_wq_stride;                  /* 0 means 4: 16 bytes */
	uint8_t log_wq_depth;
	uint32_t uar_id;
	uint32_t user_index;
	struct ibv_pd *pd;
	union {
		struct flexio_wq_sq_attr sq;
		struct flexio_wq_rq_attr rq;
	};
	struct flexio_qmem wq_ring_qmem;
	struct flexio_qmem wq_dbr_qmem;
};

struct flexio_process_attr {
	struct ibv_pd *pd;                      /* NULL: the library allocates one */
	int en_pcc;
};

struct flexio_affinity {
	enum flexio_affinity_type type;
	uint32_t id;
};

struct flexio_event_handler_attr {
	flexio_func_t *host_stub_func;
	int continuable;
	uint64_t arg;
	flexio_uintptr_t thread_local_storage_daddr;
	struct flexio_affinity affinity;
};

struct flexio_qp_attr_opt_param_mask {
	bool qp_access_mask;
	bool min_rnr_nak_timer;
};

struct flexio_qp_attr {
	uint32_t transport_type;
	uint32_t uar_id;
	uint32_t user_index;
	int qp_access_mask;                     /* IBV_ACCESS_REMOTE_* */
	int ops_flag;
	struct ibv_pd *pd;
	int log_sq_depth;                       /* log2 of 64-byte blocks */
	int no_sq;
	uint32_t sq_cqn;
	int log_rq_depth;                       /* log2 of 16-byte receive entries */
	int rq_type;
	uint32_t rq_cqn;
	uint32_t rmpqn;
	struct flexio_qmem qp_wq_buff_qmem;     /* receive ring first, send ring behind it */
	struct flexio_qmem qp_wq_dbr_qmem;
	enum flexio_qp_state next_state;
	uint32_t remote_qp_num;
	uint8_t gid_table_index;
	uint8_t fl;
	uint8_t *dest_mac;
	union ibv_gid rgid_or_rip;
	uint16_t rlid;
	uint32_t min_rnr_nak_timer;
	enum flexio_qp_qpc_mtu path_mtu;
	uint8_t retry_count;
	uint8_t vhca_port_num;
	uint32_t next_rcv_psn;
	uint32_t next_send_psn;
	uint16_t udp_sport;
	uint8_t grh;
	uint8_t log_rra_max;
	uint8_t log_sra_max;
	uint8_t isolate_vl_tc;
};

struct flexio_mkey_attr {
	struct ibv_pd *pd;
	flexio_uintptr_t daddr;
	size_t len;
	int access;                             /* IBV_ACCESS_* */
};

struct flexio_cmdq_attr {
	int workers;
	int batch_size;
	enum flexio_cmdq_state state;
};

#if !FLEXCAST_SINCE(25, 4)
/*
 * Inside the vendor's library from then on, with other members: dpacc makes the application, flexio_app_get finds it.
 */
struct flexio_app_attr {
	const char *app_name;
	void *app_ptr;                          /* the device ELF, copied by flexio_app_create */
	size_t app_bsize;
	char *app_sig_sec_name;                 /* "" for an unsigned application */
};
#endif

struct flexio_app_select_attr {
	const char *app_name;
	enum flexio_hw_model_id hw_model_id;
	struct ibv_context *ibv_ctx;            /* the device whose model is meant by FLEXIO_HW_MODEL_DEF */
};

#if FLEXCAST_SINCE(25, 7)
typedef struct flexio_msg_stream_attr {
#else
typedef struct flexio_log_dev_attr {
#endif
	struct flexio_uar *uar;                 /* deprecated */
	size_t data_bsize;                      /* power of two, at least 2048 */
	flexio_msg_dev_sync_mode sync_mode;
	char *stream_name;
	flexio_msg_dev_level level;
	struct flexio_affinity mgmt_affinity;
#if FLEXCAST_SINCE(25, 7)
	enum flexio_msg_transport transport_mode;
#else
	enum flexio_tracer_transport tracer_mode;
#endif
	char **tracer_msg_formats;
} flexio_msg_stream_attr_t;

struct flexio_outbox_attr {
	struct flexio_uar *uar;                 /* deprecated */
	uint32_t en_pcc;
};

/* ---- applications and functions ---------------------------------------------------------------------------- */

/* Says of which release the program is, before it makes a process. */
flexio_status flexio_version_set(uint64_t version);
#if !FLEXCAST_SINCE(25, 4)
flexio_status flexio_app_create(struct flexio_app_attr *fattr, struct flexio_app **app);
#endif
flexio_status flexio_app_get(struct flexio_app_select_attr *fattr, struct flexio_app **app);
flexio_status flexio_app_destroy(struct flexio_app *app);
flexio_status flexio_app_get_list(struct flexio_app ***app_list, uint32_t *num_apps);
flexio_status flexio_app_list_free(struct flexio_app **apps_list);
const char *flexio_app_get_name(struct flexio_app *app);
size_t flexio_app_get_elf_size(struct flexio_app *app);
flexio_status flexio_app_get_elf(struct flexio_app *app, uint64_t *elf, size_t bufsz);
flexio_status flexio_func_register(struct flexio_app *app, const char *dev_func_name, flexio_func_t **out_func);
flexio_status flexio_func_pup_register(struct flexio_app *app, const char *dev_func_name, const char *dev_unpack_func_name,
				       flexio_func_t *host_stub_func_addr, size_t argbuf_size,
				       flexio_func_arg_pack_fn_t *host_pack_func);
flexio_status flexio_func_get_register_info(struct flexio_app *app, flexio_func_t *host_stub_func_addr, uint32_t *pup,
					    char *dev_func_name, char *dev_unpack_func_name, size_t func_name_size,
					    size_t *argbuf_size, flexio_func_arg_pack_fn_t **host_pack_func,
					    flexio_uintptr_t *dev_func_addr, flexio_uintptr_t *dev_unpack_func_addr);

/* ---- execution units that dpa-resource-mgmt gives to an application ------------------------------------------ */

flexio_status flexio_resources_create(const char *app_key, char *file, size_t file_bsize, struct flexio_resource **res);
flexio_status flexio_resources_destroy(struct flexio_resource *res);
uint32_t flexio_resources_get_eugs_num(struct flexio_resource *res);
uint32_t flexio_resources_get_eus_num(struct flexio_resource *res);
uint32_t *flexio_resources_get_eus(struct flexio_resource *res);

/* ---- processes and their memory ---------------------------------------------------------------------------- */

flexio_status flexio_process_create(struct ibv_context *ibv_ctx, struct flexio_app *app,
				    const struct flexio_process_attr *process_attr, struct flexio_process **process);
flexio_status flexio_process_destroy(struct flexio_process *process);
flexio_status flexio_process_call(struct flexio_process *process, flexio_func_t *host_stub_func, uint64_t *func_ret, ...);
flexio_status flexio_process_error_handler_set(struct flexio_process *process, flexio_func_t *error_handler);
flexio_status flexio_process_mem_info_get(const struct flexio_process *process, struct flexio_heap_mem_info *info);
struct flexio_uar *flexio_process_get_uar(struct flexio_process *process);
struct ibv_pd *flexio_process_get_pd(struct flexio_process *process);
uint32_t flexio_process_get_dumem_id(struct flexio_process *process);
uint64_t flexio_process_udbg_token_get(struct flexio_process *process);
int flexio_err_handler_fd(struct flexio_process *process);
enum flexio_err_status flexio_err_status_get(struct flexio_process *process);
flexio_status flexio_coredump_create(struct flexio_process *process, const char *outfile);
flexio_status flexio_crash_data(struct flexio_process *process, const char *outfile);
flexio_status flexio_buf_dev_alloc(struct flexio_process *process, size_t buff_bsize, flexio_uintptr_t *dest_daddr_p);
flexio_status flexio_buf_dev_free(struct flexio_process *process, flexio_uintptr_t daddr);
flexio_status flexio_host2dev_memcpy(struct flexio_process *process, void *src_haddr, size_t buff_bsize,
				     flexio_uintptr_t dest_daddr);
flexio_status flexio_buf_dev_memset(struct flexio_process *process, int value, size_t buff_bsize,
				    flexio_uintptr_t dest_daddr);
flexio_status flexio_copy_from_host(struct flexio_process *process, void *src_haddr, size_t buff_bsize,
				    flexio_uintptr_t *dest_daddr_p);
flexio_status flexio_device_mkey_create(struct flexio_process *process, struct flexio_mkey_attr *fattr,
					struct flexio_mkey **mkey);
flexio_status flexio_device_mkey_destroy(struct flexio_mkey *mkey);
uint32_t flexio_mkey_get_id(struct flexio_mkey *mkey);
flexio_log_lvl_t flexio_log_lvl_set(flexio_log_lvl_t lvl);

/* ---- queues (number getters return UINT32_MAX on error) ---------------------------------------------------- */

flexio_status flexio_cq_create(struct flexio_process *process, struct ibv_context *ibv_ctx,
			       const struct flexio_cq_attr *fattr, struct flexio_cq **cq);
flexio_status flexio_cq_destroy(struct flexio_cq *cq);
uint32_t flexio_cq_get_cq_num(struct flexio_cq *cq);
flexio_status flexio_cq_query_moderation(struct flexio_cq *cq, uint16_t *max_count, uint16_t *period, uint16_t *mode);
flexio_status flexio_cq_modify_moderation(struct flexio_cq *cq, uint16_t max_count, uint16_t period, uint16_t mode);
flexio_status flexio_rq_create(struct flexio_process *process, struct ibv_context *ibv_ctx, uint32_t cq_num,
			       const struct flexio_wq_attr *fattr, struct flexio_rq **flexio_rq_ptr);
flexio_status flexio_rq_set_err_state(struct flexio_rq *rq);
flexio_status flexio_rq_destroy(struct flexio_rq *flexio_rq);
uint32_t flexio_rq_get_wq_num(struct flexio_rq *rq);
struct mlx5dv_devx_obj *flexio_rq_get_tir(struct flexio_rq *rq);
flexio_status flexio_sq_create(struct flexio_process *process, struct ibv_context *ibv_ctx, uint32_t cq_num,
			       const struct flexio_wq_attr *fattr, struct flexio_sq **flexio_sq_ptr);
flexio_status flexio_sq_destroy(struct flexio_sq *flexio_sq);
uint32_t flexio_sq_get_wq_num(struct flexio_sq *sq);
flexio_status flexio_rmp_create(struct flexio_process *process, struct ibv_context *ibv_ctx,
				const struct flexio_wq_attr *fattr, struct flexio_rmp **flexio_rmp_ptr);
flexio_status flexio_rmp_destroy(struct flexio_rmp *rmp);
uint32_t flexio_rmp_get_wq_num(struct flexio_rmp *rmp);
flexio_status flexio_qp_create(struct flexio_process *process, struct ibv_context *ibv_ctx, struct flexio_qp_attr *fattr,
			       struct flexio_qp **qp_ptr);
flexio_status flexio_qp_modify(struct flexio_qp *qp, struct flexio_qp_attr *fattr,
			       struct flexio_qp_attr_opt_param_mask *mask);
flexio_status flexio_qp_destroy(struct flexio_qp *qp);
uint32_t flexio_qp_get_qp_num(struct flexio_qp *qp);
enum flexio_qp_state flexio_qp_state_get(struct flexio_qp *qp);

/* ---- threads, windows, outboxes, UARs ---------------------------------------------------------------------- */

flexio_status flexio_event_handler_create(struct flexio_process *process, struct flexio_event_handler_attr *fattr,
					  struct flexio_event_handler **event_handler_ptr);
flexio_status flexio_event_handler_run(struct flexio_event_handler *event_handler, uint64_t user_arg);
flexio_status flexio_event_handler_destroy(struct flexio_event_handler *event_handler);
struct flexio_thread *flexio_event_handler_get_thread(struct flexio_event_handler *event_handler);
uint32_t flexio_event_handler_get_id(struct flexio_event_handler *event_handler);
uint32_t flexio_event_handler_get_obj_id(struct flexio_event_handler *event_handler);
flexio_status flexio_window_create(struct flexio_process *process, struct ibv_pd *pd, struct flexio_window **window);
flexio_status flexio_window_destroy(struct flexio_window *window);
uint32_t flexio_window_get_id(struct flexio_window *window);
flexio_status flexio_outbox_create(struct flexio_process *process, struct flexio_outbox_attr *fattr,
				   struct flexio_outbox **outbox);
flexio_status flexio_outbox_destroy(struct flexio_outbox *outbox);
uint32_t flexio_outbox_get_id(struct flexio_outbox *outbox);
struct flexio_uar *flexio_outbox_get_uar(struct flexio_outbox *outbox);
flexio_status flexio_uar_create(struct flexio_process *process, struct flexio_uar **uar);
flexio_status flexio_uar_destroy(struct flexio_uar *uar);
uint32_t flexio_uar_get_id(struct flexio_uar *uar);
flexio_status flexio_uar_extend(struct flexio_uar *in_uar, struct ibv_context *to_extend, struct flexio_uar **extended);
uint32_t flexio_uar_get_extended_id(struct flexio_uar *uar);

/* ---- command queue ----------------------------------------------------------------------------------------- */

flexio_status flexio_cmdq_create(struct flexio_process *process, struct flexio_cmdq_attr *fattr, struct flexio_cmdq **cmdq);
flexio_status flexio_cmdq_task_add(struct flexio_cmdq *cmdq, flexio_func_t *host_func, uint64_t arg);
flexio_status flexio_cmdq_state_running(struct flexio_cmdq *cmdq);
int flexio_cmdq_is_empty(struct flexio_cmdq *cmdq);
flexio_status flexio_cmdq_destroy(struct flexio_cmdq *cmdq);

/* ---- device messages --------------------------------------------------------------------------------------- */

flexio_status flexio_msg_stream_create(struct flexio_process *process, flexio_msg_stream_attr_t *stream_fattr, FILE *out,
				       pthread_t *ppthread, struct flexio_msg_stream **stream);
flexio_status flexio_msg_stream_destroy(struct flexio_msg_stream *stream);
flexio_status flexio_msg_stream_flush(struct flexio_msg_stream *stream);
int flexio_msg_stream_get_id(struct flexio_msg_stream *stream);
flexio_status flexio_msg_stream_level_set(struct flexio_msg_stream *stream, flexio_msg_dev_level level);
flexio_status flexio_log_dev_init(struct flexio_process *process, flexio_msg_stream_attr_t *log_fattr, FILE *out,
				  pthread_t *ppthread);
flexio_status flexio_log_dev_flush(struct flexio_process *process);
flexio_status flexio_log_dev_destroy(struct flexio_process *process);

/* ---- the layouts this file promises ------------------------------------------------------------------------ */

#if defined(__LP64__) && !defined(__cplusplus)
#define FLEXCAST_LAYOUT(type, bytes) _Static_assert(sizeof(type) == (bytes), "size of " #type)
#define FLEXCAST_OFFSET(type, field, bytes) \
	_Static_assert(offsetof(type, field) == (bytes), "offset of " #field " in " #type)
FLEXCAST_LAYOUT(struct flexio_qmem, 24);
FLEXCAST_OFFSET(struct flexio_qmem, daddr, 8);
FLEXCAST_OFFSET(struct flexio_qmem, umem_id, 16);
FLEXCAST_LAYOUT(struct flexio_heap_mem_info, 32);
FLEXCAST_LAYOUT(struct flexio_cq_attr, 80);
FLEXCAST_OFFSET(struct flexio_cq_attr, element_type, 1);
FLEXCAST_OFFSET(struct flexio_cq_attr, thread, 8);
FLEXCAST_OFFSET(struct flexio_cq_attr, uar_id, 16);
FLEXCAST_OFFSET(struct flexio_cq_attr, uar_base_addr, 24);
FLEXCAST_OFFSET(struct flexio_cq_attr, cqe_comp_type, 32);
FLEXCAST_OFFSET(struct flexio_cq_attr, cq_period_mode, 36);
FLEXCAST_OFFSET(struct flexio_cq_attr, cq_period, 40);
FLEXCAST_OFFSET(struct flexio_cq_attr, cq_max_count, 42);
FLEXCAST_OFFSET(struct flexio_cq_attr, no_arm, 44);
FLEXCAST_OFFSET(struct flexio_cq_attr, cc, 45);
FLEXCAST_OFFSET(struct flexio_cq_attr, overrun_ignore, 46);
FLEXCAST_OFFSET(struct flexio_cq_attr, always_armed, 47);
FLEXCAST_OFFSET(struct flexio_cq_attr, cq_ring_qmem, 48);
FLEXCAST_OFFSET(struct flexio_cq_attr, cq_dbr_daddr, 72);
FLEXCAST_LAYOUT(struct flexio_wq_attr, 80);
FLEXCAST_OFFSET(struct flexio_wq_attr, uar_id, 4);
FLEXCAST_OFFSET(struct flexio_wq_attr, user_index, 8);
FLEXCAST_OFFSET(struct flexio_wq_attr, pd, 16);
FLEXCAST_OFFSET(struct flexio_wq_attr, rq, 24);
FLEXCAST_OFFSET(struct flexio_wq_attr, wq_ring_qmem, 32);
FLEXCAST_OFFSET(struct flexio_wq_attr, wq_dbr_qmem, 56);
FLEXCAST_LAYOUT(struct flexio_process_attr, 16);
FLEXCAST_LAYOUT(struct flexio_affinity, 8);
FLEXCAST_LAYOUT(struct flexio_event_handler_attr, 40);
FLEXCAST_OFFSET(struct flexio_event_handler_attr, continuable, 8);
FLEXCAST_OFFSET(struct flexio_event_handler_attr, arg, 16);
FLEXCAST_OFFSET(struct flexio_event_handler_attr, thread_local_storage_daddr, 24);
FLEXCAST_OFFSET(struct flexio_event_handler_attr, affinity, 32);
FLEXCAST_LAYOUT(struct flexio_qp_attr_opt_param_mask, 2);
FLEXCAST_LAYOUT(struct flexio_qp_attr, 184);
FLEXCAST_OFFSET(struct flexio_qp_attr, pd, 24);
FLEXCAST_OFFSET(struct flexio_qp_attr, log_sq_depth, 32);
FLEXCAST_OFFSET(struct flexio_qp_attr, no_sq, 36);
FLEXCAST_OFFSET(struct flexio_qp_attr, sq_cqn, 40);
FLEXCAST_OFFSET(struct flexio_qp_attr, log_rq_depth, 44);
FLEXCAST_OFFSET(struct flexio_qp_attr, rq_type, 48);
FLEXCAST_OFFSET(struct flexio_qp_attr, rq_cqn, 52);
FLEXCAST_OFFSET(struct flexio_qp_attr, rmpqn, 56);
FLEXCAST_OFFSET(struct flexio_qp_attr, qp_wq_buff_qmem, 64);
FLEXCAST_OFFSET(struct flexio_qp_attr, qp_wq_dbr_qmem, 88);
FLEXCAST_OFFSET(struct flexio_qp_attr, next_state, 112);
FLEXCAST_OFFSET(struct flexio_qp_attr, remote_qp_num, 116);
FLEXCAST_OFFSET(struct flexio_qp_attr, gid_table_index, 120);
FLEXCAST_OFFSET(struct flexio_qp_attr, fl, 121);
FLEXCAST_OFFSET(struct flexio_qp_attr, dest_mac, 128);
FLEXCAST_OFFSET(struct flexio_qp_attr, rgid_or_rip, 136);
FLEXCAST_OFFSET(struct flexio_qp_attr, rlid, 152);
FLEXCAST_OFFSET(struct flexio_qp_attr, min_rnr_nak_timer, 156);
FLEXCAST_OFFSET(struct flexio_qp_attr, path_mtu, 160);
FLEXCAST_OFFSET(struct flexio_qp_attr, retry_count, 164);
FLEXCAST_OFFSET(struct flexio_qp_attr, vhca_port_num, 165);
FLEXCAST_OFFSET(struct flexio_qp_attr, next_rcv_psn, 168);
FLEXCAST_OFFSET(struct flexio_qp_attr, next_send_psn, 172);
FLEXCAST_OFFSET(struct flexio_qp_attr, udp_sport, 176);
FLEXCAST_OFFSET(struct flexio_qp_attr, grh, 178);
FLEXCAST_OFFSET(struct flexio_qp_attr, log_rra_max, 179);
FLEXCAST_OFFSET(struct flexio_qp_attr, log_sra_max, 180);
FLEXCAST_OFFSET(struct flexio_qp_attr, isolate_vl_tc, 181);
FLEXCAST_LAYOUT(struct flexio_mkey_attr, 32);
FLEXCAST_OFFSET(struct flexio_mkey_attr, access, 24);
FLEXCAST_LAYOUT(struct flexio_cmdq_attr, 12);
#if !FLEXCAST_SINCE(25, 4)
FLEXCAST_LAYOUT(struct flexio_app_attr, 32);
FLEXCAST_OFFSET(struct flexio_app_attr, app_sig_sec_name, 24);
#endif
FLEXCAST_LAYOUT(flexio_msg_stream_attr_t, 56);
FLEXCAST_OFFSET(flexio_msg_stream_attr_t, data_bsize, 8);
FLEXCAST_OFFSET(flexio_msg_stream_attr_t, sync_mode, 16);
FLEXCAST_OFFSET(flexio_msg_stream_attr_t, stream_name, 24);
FLEXCAST_OFFSET(flexio_msg_stream_attr_t, level, 32);
FLEXCAST_OFFSET(flexio_msg_stream_attr_t, mgmt_affinity, 36);
#if !FLEXCAST_SINCE(25, 7)
FLEXCAST_OFFSET(flexio_msg_stream_attr_t, tracer_mode, 44);
#endif
FLEXCAST_OFFSET(flexio_msg_stream_attr_t, tracer_msg_formats, 48);
FLEXCAST_LAYOUT(struct flexio_outbox_attr, 16);
#undef FLEXCAST_LAYOUT
#undef FLEXCAST_OFFSET
#endif

#undef FLEXCAST_SINCE

#ifdef __cplusplus
}
#endif

#endif
