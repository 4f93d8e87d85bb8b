/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels of DOCA DPA, the DPA's side (DOCA 2.10 and 3.x), written for Flexcast from the public API. The functions
 * are in a library over those of FlexIO, which `flexcast dpacc` compiles with a program that includes this header.
 */
#ifndef DOCA_DPA_DEV_H_
#define DOCA_DPA_DEV_H_

#ifndef DOCA_DPA_DEVICE
#define DOCA_DPA_DEVICE
#endif

#include <stddef.h>
#include <stdint.h>

#include "doca_compat.h"
#include "libflexio-dev/flexio_dev.h"

#ifndef __forceinline
#define __forceinline static inline __attribute__((always_inline))
#endif

typedef enum doca_dpa_dev_log_level {
	DOCA_DPA_DEV_LOG_LEVEL_DISABLE = 10,
	DOCA_DPA_DEV_LOG_LEVEL_ERROR = 30,
	DOCA_DPA_DEV_LOG_LEVEL_WARNING = 40,
	DOCA_DPA_DEV_LOG_LEVEL_INFO = 50,
	DOCA_DPA_DEV_LOG_LEVEL_DEBUG = 60,
} doca_dpa_dev_log_level_t;

/* Handles, as the host's calls give them. */
typedef uint64_t doca_dpa_dev_t;
typedef uint64_t doca_dpa_dev_uintptr_t;
typedef uint64_t doca_dpa_dev_completion_t;
typedef uint64_t doca_dpa_dev_completion_element_t;
typedef uint64_t doca_dpa_dev_async_ops_t;
typedef uint64_t doca_dpa_dev_notification_completion_t;

typedef enum {
	DOCA_DPA_DEV_COMP_SEND = 0x0,
	DOCA_DPA_DEV_COMP_RECV_RDMA_WRITE_IMM = 0x1,
	DOCA_DPA_DEV_COMP_RECV_SEND = 0x2,
	DOCA_DPA_DEV_COMP_RECV_SEND_IMM = 0x3,
	DOCA_DPA_DEV_COMP_SEND_ERR = 0xD,
	DOCA_DPA_DEV_COMP_RECV_ERR = 0xE,
} doca_dpa_dev_completion_type_t;

/*
 * Every entry is handed to the card at once, whether FLUSH is there or not. OPTIMIZE_REPORTS: a completion of errors
 * only.
 */
enum doca_dpa_dev_submit_flag {
	DOCA_DPA_DEV_SUBMIT_FLAG_NONE = 0,
	DOCA_DPA_DEV_SUBMIT_FLAG_FLUSH = 1,
	DOCA_DPA_DEV_SUBMIT_FLAG_OPTIMIZE_REPORTS = 2,
};

/* Nothing: an emulated card shows one function to its DPA. */
DOCA_EXPERIMENTAL void doca_dpa_dev_device_set(doca_dpa_dev_t dpa_handle);
/* Of a kernel that was launched: number of this thread, from 0 on, and how many there are. Else 0 and 1. */
DOCA_EXPERIMENTAL unsigned int doca_dpa_dev_thread_rank(void);
DOCA_EXPERIMENTAL unsigned int doca_dpa_dev_num_threads(void);
/* What the host gave the thread. 0 in other kernels. */
DOCA_EXPERIMENTAL doca_dpa_dev_uintptr_t doca_dpa_dev_thread_get_local_storage(void);
DOCA_EXPERIMENTAL void doca_dpa_dev_yield(void);
/* The next completion starts the thread from the top. */
DOCA_EXPERIMENTAL void doca_dpa_dev_thread_reschedule(void);
DOCA_EXPERIMENTAL void doca_dpa_dev_thread_finish(void);
DOCA_EXPERIMENTAL void doca_dpa_dev_thread_notify(doca_dpa_dev_notification_completion_t comp_handle);

/* Prints on the host's stdout. */
DOCA_EXPERIMENTAL void doca_dpa_dev_log(doca_dpa_dev_log_level_t log_level, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
#define DOCA_DPA_DEV_LOG_ERR(...) doca_dpa_dev_log(DOCA_DPA_DEV_LOG_LEVEL_ERROR, __VA_ARGS__)
#define DOCA_DPA_DEV_LOG_WARN(...) doca_dpa_dev_log(DOCA_DPA_DEV_LOG_LEVEL_WARNING, __VA_ARGS__)
#define DOCA_DPA_DEV_LOG_INFO(...) doca_dpa_dev_log(DOCA_DPA_DEV_LOG_LEVEL_INFO, __VA_ARGS__)
#define DOCA_DPA_DEV_LOG_DBG(...) doca_dpa_dev_log(DOCA_DPA_DEV_LOG_LEVEL_DEBUG, __VA_ARGS__)

/* The next completion that was not given before: 1, or 0. It is there until it is acknowledged. */
DOCA_EXPERIMENTAL int doca_dpa_dev_get_completion(doca_dpa_dev_completion_t dpa_comp_handle,
						  doca_dpa_dev_completion_element_t *comp_element);
DOCA_EXPERIMENTAL doca_dpa_dev_completion_type_t
doca_dpa_dev_get_completion_type(doca_dpa_dev_completion_element_t comp_element);
/* Number of the RDMA connection. */
DOCA_EXPERIMENTAL uint32_t doca_dpa_dev_get_completion_user_data(doca_dpa_dev_completion_element_t comp_element);
DOCA_EXPERIMENTAL uint32_t doca_dpa_dev_get_completion_immediate(doca_dpa_dev_completion_element_t comp_element);
DOCA_EXPERIMENTAL uint32_t
doca_dpa_dev_completion_element_get_received_bytes(doca_dpa_dev_completion_element_t comp_element);
DOCA_EXPERIMENTAL uint32_t
doca_dpa_dev_completion_element_get_error_syndrome(doca_dpa_dev_completion_element_t comp_element);
DOCA_EXPERIMENTAL void doca_dpa_dev_completion_ack(doca_dpa_dev_completion_t dpa_comp_handle, uint64_t num_comp);
/* The next completion that was not given before starts the thread of the queue. */
DOCA_EXPERIMENTAL void doca_dpa_dev_completion_request_notification(doca_dpa_dev_completion_t dpa_comp_handle);

#endif
