/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device library. FLEXIO_DEV_VER_USED chooses the generation of its interface: before 24.10 the thread's context comes first
 * in calls for windows and doorbells; from 24.10 on doorbells return nothing; from 25.10 on some constants have other names.
 *
 * The library behind it here is libflexio_dev.a for the emulated DPA. Calls for what the emulated DPA does not have (congestion
 * control tables, other devices' doorbells) fail and set the thread's errno to 95; stores to such registers of the outbox end
 * the process. `cargo xtask coverage` lists all of it.
 */
#ifndef FLEXIO_DEV_H
#define FLEXIO_DEV_H

#include <stddef.h>
#include <stdint.h>

#include "flexio_dev_err.h"
#include "flexio_dev_ver.h"

/* The generation that a program has which asks for none: that of the SDK that it is written for (flexcast dpacc --dev-ver). */
#ifndef FLEXCAST_DEV_VER
#define FLEXCAST_DEV_VER FLEXIO_DEV_VER(25, 1, 0)
#endif
#define FLEXIO_DEV_CURRENT_VERSION FLEXCAST_DEV_VER
#define FLEXIO_DEV_LAST_SUPPORTED_VERSION FLEXIO_DEV_VER(0, 0, 0)

#ifndef FLEXIO_DEV_VER_USED
#define FLEXIO_DEV_VER_USED FLEXIO_DEV_CURRENT_VERSION
#elif FLEXIO_DEV_VER_USED == FLEXIO_DEV_VER_LATEST
#undef FLEXIO_DEV_VER_USED
#define FLEXIO_DEV_VER_USED FLEXIO_DEV_CURRENT_VERSION
#endif

#if FLEXIO_DEV_VER_USED < FLEXIO_DEV_VER(24, 10, 0)
#define FLEXCAST_DEV_CONTEXT_FIRST 1
#endif

#define FLEXIO_DEV_STABLE __attribute__((visibility("default"), used))
/* Most of the interface may change, says the vendor: a program that defines no FLEXIO_DEV_ALLOW_EXPERIMENTAL_API is warned. */
#if defined(FLEXIO_DEV_ALLOW_EXPERIMENTAL_API) || defined(FLEXCAST_DEV_CONTEXT_FIRST)
#define FLEXIO_DEV_EXPERIMENTAL
#else
#define FLEXIO_DEV_EXPERIMENTAL __attribute__((deprecated("Symbol is defined as experimental")))
#endif
#ifndef FLEXIO_DEV_ALWAYS_INLINE
#define FLEXIO_DEV_ALWAYS_INLINE static inline __attribute__((always_inline))
#endif

#ifdef FLEXCAST_DEV_CONTEXT_FIRST
#define __unused __attribute__((__unused__))
/* With the vendor's compiler entries between these are in a section of their own; here they need none. */
#define __FLEXIO_ENTRY_POINT_START
#define __FLEXIO_ENTRY_POINT_END
#endif

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

/* A device behind the same card, as flexio_uar_extend names it to the host. */
typedef uint32_t flexio_uar_device_id;

/* When a send entry leaves a completion. */
enum cq_ce_mode {
	MLX5_CTRL_SEG_CE_CQE_ON_CQE_ERROR = 0,
	MLX5_CTRL_SEG_CE_CQE_ON_FIRST_CQE_ERROR = 1,
	MLX5_CTRL_SEG_CE_CQE_ALWAYS = 2,
	MLX5_CTRL_SEG_CE_CQE_AND_EQE = 3,
#if FLEXIO_DEV_VER_USED >= FLEXIO_DEV_VER(25, 10, 0)
	FLEXIO_CTRL_SEG_CE_CQE_ON_CQE_ERROR = 0,
	FLEXIO_CTRL_SEG_CE_CQE_ON_FIRST_CQE_ERROR = 1,
	FLEXIO_CTRL_SEG_CE_CQE_ALWAYS = 2,
	FLEXIO_CTRL_SEG_CE_CQE_AND_EQE = 3,
#endif
};

/* Counters of bytes at the network card's ports. */
enum flexio_dev_nic_counter_ids {
	FLEXIO_DEV_NIC_COUNTER_PORT0_RX_BYTES = 0x10,
	FLEXIO_DEV_NIC_COUNTER_PORT1_RX_BYTES = 0x11,
	FLEXIO_DEV_NIC_COUNTER_PORT2_RX_BYTES = 0x12,
	FLEXIO_DEV_NIC_COUNTER_PORT3_RX_BYTES = 0x13,

	FLEXIO_DEV_NIC_COUNTER_PORT0_TX_BYTES = 0x20,
	FLEXIO_DEV_NIC_COUNTER_PORT1_TX_BYTES = 0x21,
	FLEXIO_DEV_NIC_COUNTER_PORT2_TX_BYTES = 0x22,
	FLEXIO_DEV_NIC_COUNTER_PORT3_TX_BYTES = 0x23,
};

/* The two window slots of a thread. */
enum flexio_window_entity {
	FLEXIO_DEV_WINDOW_ENTITY_0 = 0,
	FLEXIO_DEV_WINDOW_ENTITY_1 = 1,
	FLEXIO_DEV_WINDOW_ENTITY_NUM = 2,
};

/* A call from the host; what it returns is the host's result. */
typedef uint64_t(flexio_dev_rpc_handler_t)(uint64_t arg);
/* Takes the arguments out of the buffer that the host packed, and calls the function. */
typedef uint64_t(flexio_dev_arg_unpack_func_t)(void *argbuf, void *func);
/* A call from the host that has no result, by a command queue. */
typedef void(flexio_dev_async_rpc_handler_t)(uint64_t arg);
/* An event handler; it ends by reschedule, retrigger or finish, never by return. */
typedef void(flexio_dev_event_handler_t)(uint64_t thread_arg);

/* What a thread knows of itself. Its members are the library's. */
struct flexio_dev_thread_ctx;

/* 0, or -1 for a null pointer. */
FLEXIO_DEV_EXPERIMENTAL int flexio_dev_get_thread_ctx(struct flexio_dev_thread_ctx **dtctx);
#if FLEXIO_DEV_VER_USED >= FLEXIO_DEV_VER(26, 1, 0)
FLEXIO_DEV_EXPERIMENTAL uint32_t flexio_dev_get_thread_id(void *dtctx);
#else
FLEXIO_DEV_EXPERIMENTAL uint32_t flexio_dev_get_thread_id(struct flexio_dev_thread_ctx *dtctx);
#endif
FLEXIO_DEV_EXPERIMENTAL flexio_uintptr_t flexio_dev_get_thread_local_storage(struct flexio_dev_thread_ctx *dtctx);

/* The handler ends; the next event starts it from the top. None of the next four returns. */
FLEXIO_DEV_EXPERIMENTAL void flexio_dev_thread_reschedule(void);
/* The handler ends and starts again at once. */
FLEXIO_DEV_EXPERIMENTAL void flexio_dev_thread_retrigger(void);
/* The thread never runs again. */
FLEXIO_DEV_EXPERIMENTAL void flexio_dev_thread_finish(void);
/* All threads of the process end. */
FLEXIO_DEV_EXPERIMENTAL void flexio_dev_process_finish(void);
/* Former names of flexio_dev_thread_reschedule and flexio_dev_process_finish. */
void flexio_dev_reschedule(void) __attribute__((deprecated));
void flexio_dev_finish(void) __attribute__((deprecated));
/* A continuable handler goes on behind this call at the next event. In any other it has no effect. */
FLEXIO_DEV_EXPERIMENTAL void flexio_dev_yield(struct flexio_dev_thread_ctx *dtctx);
/* As flexio_dev_yield, and the handler triggers itself. */
FLEXIO_DEV_EXPERIMENTAL void flexio_dev_yield_and_retrigger(void);
/* Name of this thread, as performance tools print it. */
FLEXIO_DEV_EXPERIMENTAL const char *flexio_dev_get_current_thread_name(void);
/* Triggers the event handler of this process with this activation id, as an event would. */
FLEXIO_DEV_EXPERIMENTAL void flexio_dev_event_handler_activate(uint32_t activation_id);

/* Selects the outbox for the doorbells of this thread. Once per thread. */
FLEXIO_DEV_EXPERIMENTAL flexio_dev_status_t flexio_dev_outbox_config(struct flexio_dev_thread_ctx *dtctx,
								     uint16_t outbox_config_id);
FLEXIO_DEV_EXPERIMENTAL void flexio_dev_outbox_config_fast(struct flexio_dev_thread_ctx *dtctx,
							   uint16_t outbox_config_id);
/* Refused: an emulated card shows one function to its DPA. */
FLEXIO_DEV_EXPERIMENTAL flexio_dev_status_t
flexio_dev_outbox_config_uar_extension(struct flexio_dev_thread_ctx *dtctx, flexio_uar_device_id device_id);
/* Refused, as above. */
FLEXIO_DEV_EXPERIMENTAL flexio_dev_status_t flexio_dev_cross_device_ring_db(flexio_uar_device_id device_id,
									    uint32_t qpn, uint32_t pi);
/* 0: there is no congestion control. */
FLEXIO_DEV_EXPERIMENTAL uint64_t flexio_dev_get_pcc_table_base(uint16_t vhca_id);

/*
 * Which counters (enum flexio_dev_nic_counter_ids) flexio_dev_nic_counters_sample stores, and where. The process ends for a
 * counter that does not exist, for an array that is not memory of the process, and for a sample without configuration.
 */
FLEXIO_DEV_EXPERIMENTAL void flexio_dev_nic_counters_config(uint32_t *counter_values, uint32_t *counter_ids,
							    uint32_t num_counters);
/* Stores the low 32 bits of each. */
FLEXIO_DEV_EXPERIMENTAL void flexio_dev_nic_counters_sample(void);

FLEXIO_DEV_EXPERIMENTAL flexio_dev_status_t flexio_dev_multi_window_config(enum flexio_window_entity win_entity,
									   uint16_t window_config_id, uint32_t mkey);
FLEXIO_DEV_EXPERIMENTAL flexio_dev_status_t flexio_dev_multi_window_mkey_config(enum flexio_window_entity win_entity,
										uint32_t mkey);
/* Where host address `haddr` appears in the window. Accesses outside the key's memory end the process. */
FLEXIO_DEV_EXPERIMENTAL flexio_dev_status_t flexio_dev_multi_window_ptr_acquire(enum flexio_window_entity win_entity,
										uint64_t haddr,
										flexio_uintptr_t *daddr);
/* Copies to host memory and writes back. */
FLEXIO_DEV_EXPERIMENTAL flexio_dev_status_t flexio_dev_multi_window_copy_to_host(enum flexio_window_entity win_entity,
										 uint64_t haddr, const void *daddr,
										 uint32_t size);
/* Refused, as by the vendor's library. */
FLEXIO_DEV_EXPERIMENTAL flexio_dev_status_t
flexio_dev_multi_window_copy_from_host(enum flexio_window_entity win_entity, void *daddr, uint64_t haddr, uint32_t size);

/* Before 24.10 a thread has one window, which is the first of two now. */
#ifdef FLEXCAST_DEV_CONTEXT_FIRST
#define FLEXCAST_DEV_WINDOW struct flexio_dev_thread_ctx *dtctx
#define FLEXCAST_DEV_SLOT ((void)dtctx, FLEXIO_DEV_WINDOW_ENTITY_0)
#else
#define FLEXCAST_DEV_WINDOW enum flexio_window_entity win_entity
#define FLEXCAST_DEV_SLOT win_entity
#endif

static inline flexio_dev_status_t flexio_dev_window_config(FLEXCAST_DEV_WINDOW, uint16_t window_config_id, uint32_t mkey)
{
	return flexio_dev_multi_window_config(FLEXCAST_DEV_SLOT, window_config_id, mkey);
}

static inline flexio_dev_status_t flexio_dev_window_mkey_config(FLEXCAST_DEV_WINDOW, uint32_t mkey)
{
	return flexio_dev_multi_window_mkey_config(FLEXCAST_DEV_SLOT, mkey);
}

static inline flexio_dev_status_t flexio_dev_window_ptr_acquire(FLEXCAST_DEV_WINDOW, uint64_t haddr,
								flexio_uintptr_t *daddr)
{
	return flexio_dev_multi_window_ptr_acquire(FLEXCAST_DEV_SLOT, haddr, daddr);
}

static inline flexio_dev_status_t flexio_dev_window_copy_to_host(FLEXCAST_DEV_WINDOW, uint64_t haddr, const void *daddr,
								 uint32_t size)
{
	return flexio_dev_multi_window_copy_to_host(FLEXCAST_DEV_SLOT, haddr, daddr, size);
}

static inline flexio_dev_status_t flexio_dev_window_copy_from_host(FLEXCAST_DEV_WINDOW, void *daddr, uint64_t haddr,
								   uint32_t size)
{
	return flexio_dev_multi_window_copy_from_host(FLEXCAST_DEV_SLOT, daddr, haddr, size);
}

/* Copies `n` bytes in units of 2, 4 and 8 bytes, of which addresses and `n` are multiples. */
#define FLEXCAST_DEV_MEMCPY(bits)                                                                                      \
	FLEXIO_DEV_EXPERIMENTAL static inline void flexio_dev_memcpy##bits(                                            \
		uint##bits##_t *dest, const uint##bits##_t *src, uint64_t n)                                           \
	{                                                                                                              \
		for (n /= sizeof(*dest); n > 0; n--)                                                                   \
			*dest++ = *src++;                                                                              \
	}
FLEXCAST_DEV_MEMCPY(16)
FLEXCAST_DEV_MEMCPY(32)
FLEXCAST_DEV_MEMCPY(64)
#undef FLEXCAST_DEV_MEMCPY

/* A lock in memory of the process. With SPINLOCK_DEBUG it says who holds it: a thread, or all ones for none. */
struct spinlock_s {
	uint32_t locked;
#ifdef SPINLOCK_DEBUG
	uint32_t locker_tid;
#endif
};

#ifdef SPINLOCK_DEBUG
static inline uint32_t flexcast_dev_own_thread_id(void)
{
	struct flexio_dev_thread_ctx *dtctx;

	flexio_dev_get_thread_ctx(&dtctx);
	return flexio_dev_get_thread_id(dtctx);
}
#define FLEXCAST_DEV_LOCKER(lock, id) __atomic_store_n(&(lock)->locker_tid, (id), __ATOMIC_SEQ_CST)
#else
#define FLEXCAST_DEV_LOCKER(lock, id) ((void)0)
#endif

#define spin_init(lock)                                                   \
	do {                                                              \
		__atomic_store_n(&(lock)->locked, 0, __ATOMIC_SEQ_CST);   \
		FLEXCAST_DEV_LOCKER(lock, UINT32_MAX);                    \
	} while (0)
#define spin_lock(lock)                                                                  \
	do {                                                                             \
		while (__atomic_exchange_n(&(lock)->locked, 1, __ATOMIC_SEQ_CST)) {      \
		}                                                                        \
		FLEXCAST_DEV_LOCKER(lock, flexcast_dev_own_thread_id());                 \
	} while (0)
/* 0: the lock is taken. */
#define spin_trylock(lock) __atomic_exchange_n(&(lock)->locked, 1, __ATOMIC_SEQ_CST)
#define spin_unlock(lock)                                                 \
	do {                                                              \
		FLEXCAST_DEV_LOCKER(lock, UINT32_MAX);                    \
		__atomic_store_n(&(lock)->locked, 0, __ATOMIC_SEQ_CST);   \
	} while (0)

#define FLEXIO_MSG_DEV_BROADCAST_STREAM 0xff
#define FLEXIO_MSG_DEV_MAX_STREAMS_AMOUNT 255
#define FLEXIO_MSG_DEV_DEFAULT_STREAM_ID 0

typedef uint8_t flexio_msg_dev_level;

/* Nobody sees a message of this level. */
#define FLEXIO_MSG_DEV_NO_PRINT 0
#define FLEXIO_MSG_DEV_ALWAYS_PRINT 1
#define FLEXIO_MSG_DEV_ERROR 2
#define FLEXIO_MSG_DEV_WARN 3
#define FLEXIO_MSG_DEV_INFO 4
#define FLEXIO_MSG_DEV_DEBUG 5

/* Prints on a message stream, at most 511 bytes; conversions of integers, texts and pointers. Bytes printed, or -1. */
FLEXIO_DEV_EXPERIMENTAL int flexio_dev_msg(int stream_id, flexio_msg_dev_level level, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
FLEXIO_DEV_EXPERIMENTAL int flexio_dev_puts(struct flexio_dev_thread_ctx *dtctx, char *str);

#define flexio_dev_msg_err(strm_id, ...) flexio_dev_msg(strm_id, FLEXIO_MSG_DEV_ERROR, __VA_ARGS__)
#define flexio_dev_msg_warn(strm_id, ...) flexio_dev_msg(strm_id, FLEXIO_MSG_DEV_WARN, __VA_ARGS__)
#define flexio_dev_msg_info(strm_id, ...) flexio_dev_msg(strm_id, FLEXIO_MSG_DEV_INFO, __VA_ARGS__)
#define flexio_dev_msg_dbg(strm_id, ...) flexio_dev_msg(strm_id, FLEXIO_MSG_DEV_DEBUG, __VA_ARGS__)
#define flexio_dev_msg_dflt(lvl, ...) flexio_dev_msg(FLEXIO_MSG_DEV_DEFAULT_STREAM_ID, lvl, __VA_ARGS__)
#define flexio_dev_msg_broadcast(lvl, ...) flexio_dev_msg(FLEXIO_MSG_DEV_BROADCAST_STREAM, lvl, __VA_ARGS__)
#define flexio_dev_print(...) flexio_dev_msg_dflt(FLEXIO_MSG_DEV_INFO, __VA_ARGS__)

#endif
