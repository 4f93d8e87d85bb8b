/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device library. Signatures follow FlexIO 25.1; the library behind them here is libflexio_dev.a for the emulated DPA. Calls
 * for what the emulated DPA does not have (congestion control tables, other devices' doorbells) fail and set the thread's errno
 * to 95; stores to such registers of the outbox end the process. `cargo xtask coverage` lists all of it.
 */
#ifndef FLEXIO_DEV_H
#define FLEXIO_DEV_H

#include <stddef.h>
#include <stdint.h>

#include "flexio_dev_err.h"
#include "flexio_dev_ver.h"

/* Entries of the image. The symbol stays: hosts name entries by it. */
#ifndef __dpa_global__
#define __dpa_global__ __attribute__((used, noinline, visibility("default")))
#endif
#ifndef __dpa_rpc__
#define __dpa_rpc__ __attribute__((used, noinline, visibility("default")))
#endif

typedef uint64_t flexio_uintptr_t;

typedef enum {
	FLEXIO_DEV_STATUS_SUCCESS = 0,
	FLEXIO_DEV_STATUS_FAILED = 1,
} flexio_dev_status_t;

/* A call from the host; what it returns is the host's result. */
typedef uint64_t(flexio_dev_rpc_handler_t)(uint64_t arg);
/* Takes the arguments out of the buffer that the host packed, and calls the function. */
typedef uint64_t(flexio_dev_arg_unpack_func_t)(void *argbuf, void *func);
/* An event handler; it ends by reschedule, retrigger or finish, never by return. */
typedef void(flexio_dev_event_handler_t)(uint64_t arg);

/* What the runtime tells a thread about itself; in tp. */
struct flexio_dev_thread_ctx {
	uint32_t version;
	uint16_t outbox_config_id;
	uint16_t window_config_id;
	uint64_t outbox_base;
	uint64_t window_base;
	uint64_t window_config_base;
	uint64_t metadata_parameter;
	uint32_t dev_errno;
	uint32_t reserved;
} __attribute__((aligned(8)));

/* The two window slots of a thread. */
enum flexio_window_entity {
	FLEXIO_DEV_WINDOW_ENTITY_0 = 0,
	FLEXIO_DEV_WINDOW_ENTITY_1 = 1,
	FLEXIO_DEV_WINDOW_ENTITY_NUM = 2,
};

/* 0, or -1 for a null pointer. */
int flexio_dev_get_thread_ctx(struct flexio_dev_thread_ctx **dtctx);
uint32_t flexio_dev_get_thread_id(struct flexio_dev_thread_ctx *dtctx);
flexio_uintptr_t flexio_dev_get_thread_local_storage(struct flexio_dev_thread_ctx *dtctx);

/* The handler ends; the next event starts it from the top. */
void flexio_dev_thread_reschedule(void) __attribute__((noreturn));
/* The handler ends and starts again at once. */
void flexio_dev_thread_retrigger(void) __attribute__((noreturn));
/* The thread never runs again. */
void flexio_dev_thread_finish(void) __attribute__((noreturn));
/* All threads of the process end. */
void flexio_dev_process_finish(void) __attribute__((noreturn));
void flexio_dev_yield(struct flexio_dev_thread_ctx *dtctx);
/* Lets others run, then as retrigger. */
void flexio_dev_yield_and_retrigger(void) __attribute__((noreturn));
/* Deprecated names of flexio_dev_thread_reschedule and flexio_dev_thread_finish. */
void flexio_dev_reschedule(void) __attribute__((noreturn));
void flexio_dev_finish(void) __attribute__((noreturn));
/* Name of this thread, as performance tools print it. */
const char *flexio_dev_get_current_thread_name(void);
/* Triggers the event handler with this activation id, as an event would. */
flexio_dev_status_t flexio_dev_event_handler_activate(uint32_t activation_id);

/* Selects the outbox for the doorbells of this thread. Once per thread. */
flexio_dev_status_t flexio_dev_outbox_config(struct flexio_dev_thread_ctx *dtctx, uint16_t outbox_config_id);
void flexio_dev_outbox_config_fast(struct flexio_dev_thread_ctx *dtctx, uint16_t outbox_config_id);
/* Refused: an emulated card shows one function to its DPA. */
flexio_dev_status_t flexio_dev_outbox_config_uar_extension(struct flexio_dev_thread_ctx *dtctx, uint32_t device_id);
/* Refused, as above. */
flexio_dev_status_t flexio_dev_cross_device_ring_db(uint32_t device_id, uint32_t qpn, uint32_t pi);
/* 0: there is no congestion control. */
uint64_t flexio_dev_get_pcc_table_base(uint16_t vhca_id);

/* Counters of the network card's ports: bytes received (0x10 and port) and sent (0x20 and port). The card has port 0. */
void flexio_dev_nic_counters_config(uint32_t *values, uint32_t *counter_ids, uint32_t num_counters);
/* Stores the low 32 bits of each; all ones where there is no such counter. */
void flexio_dev_nic_counters_sample(void);

flexio_dev_status_t flexio_dev_multi_window_config(enum flexio_window_entity entity, uint16_t window_id, uint32_t mkey);
flexio_dev_status_t flexio_dev_multi_window_mkey_config(enum flexio_window_entity entity, uint32_t mkey);
/* Where host address `haddr` appears in the window. Accesses outside the key's memory end the process. */
flexio_dev_status_t flexio_dev_multi_window_ptr_acquire(enum flexio_window_entity entity, uint64_t haddr,
							flexio_uintptr_t *daddr);
/* Copies to host memory and writes back. */
flexio_dev_status_t flexio_dev_multi_window_copy_to_host(enum flexio_window_entity entity, uint64_t haddr,
							 const void *daddr, uint32_t size);
/* Refused, as by the vendor's library. */
flexio_dev_status_t flexio_dev_multi_window_copy_from_host(enum flexio_window_entity entity, void *daddr,
							   uint64_t haddr, uint32_t size);

static inline flexio_dev_status_t flexio_dev_window_config(enum flexio_window_entity entity, uint16_t window_id,
							   uint32_t mkey)
{
	return flexio_dev_multi_window_config(entity, window_id, mkey);
}

static inline flexio_dev_status_t flexio_dev_window_mkey_config(enum flexio_window_entity entity, uint32_t mkey)
{
	return flexio_dev_multi_window_mkey_config(entity, mkey);
}

static inline flexio_dev_status_t flexio_dev_window_ptr_acquire(enum flexio_window_entity entity, uint64_t haddr,
								flexio_uintptr_t *daddr)
{
	return flexio_dev_multi_window_ptr_acquire(entity, haddr, daddr);
}

static inline flexio_dev_status_t flexio_dev_window_copy_to_host(enum flexio_window_entity entity, uint64_t haddr,
								 const void *daddr, uint32_t size)
{
	return flexio_dev_multi_window_copy_to_host(entity, haddr, daddr, size);
}

static inline flexio_dev_status_t flexio_dev_window_copy_from_host(enum flexio_window_entity entity, void *daddr,
								   uint64_t haddr, uint32_t size)
{
	return flexio_dev_multi_window_copy_from_host(entity, daddr, haddr, size);
}

/* A lock in memory of the process. */
struct spinlock_s {
	uint32_t locked;
};

#define spin_init(lock) __atomic_store_n(&(lock)->locked, 0, __ATOMIC_SEQ_CST)
#define spin_lock(lock)                                                                  \
	do {                                                                             \
	} while (__atomic_exchange_n(&(lock)->locked, 1, __ATOMIC_SEQ_CST))
#define spin_trylock(lock) __atomic_exchange_n(&(lock)->locked, 1, __ATOMIC_SEQ_CST)
#define spin_unlock(lock) __atomic_store_n(&(lock)->locked, 0, __ATOMIC_SEQ_CST)

typedef enum {
	FLEXIO_MSG_DEV_NO_PRINT = 0,
	FLEXIO_MSG_DEV_ALWAYS_PRINT = 1,
	FLEXIO_MSG_DEV_ERROR = 2,
	FLEXIO_MSG_DEV_WARN = 3,
	FLEXIO_MSG_DEV_INFO = 4,
	FLEXIO_MSG_DEV_DEBUG = 5,
} flexio_msg_dev_level;

#define FLEXIO_MSG_DEV_DEFAULT_STREAM_ID 0
#define FLEXIO_MSG_DEV_BROADCAST_STREAM 0xFF

/* Prints on a message stream, at most 511 bytes; conversions of integers, texts and pointers. Bytes printed, or -1. */
int flexio_dev_msg(int stream_id, flexio_msg_dev_level level, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
int flexio_dev_puts(struct flexio_dev_thread_ctx *dtctx, char *str);

#define flexio_dev_print(...) flexio_dev_msg(FLEXIO_MSG_DEV_DEFAULT_STREAM_ID, FLEXIO_MSG_DEV_INFO, __VA_ARGS__)
#define flexio_dev_msg_err(strm, ...) flexio_dev_msg(strm, FLEXIO_MSG_DEV_ERROR, __VA_ARGS__)
#define flexio_dev_msg_warn(strm, ...) flexio_dev_msg(strm, FLEXIO_MSG_DEV_WARN, __VA_ARGS__)
#define flexio_dev_msg_info(strm, ...) flexio_dev_msg(strm, FLEXIO_MSG_DEV_INFO, __VA_ARGS__)
#define flexio_dev_msg_dbg(strm, ...) flexio_dev_msg(strm, FLEXIO_MSG_DEV_DEBUG, __VA_ARGS__)

#endif
