/* SPDX-License-Identifier: Apache-2.0 */
/* Errors of a DPA process and of its threads. */
#ifndef FLEXIO_DEV_ERR_H
#define FLEXIO_DEV_ERR_H

#include <stdint.h>

struct flexio_dev_thread_ctx;

/*
 * How a process has ended, as the host reads it: 0 well, 1 to 63 by the runtime or the card, 64 to 127 by the SDK, 128 to 255 by
 * the user's code.
 */
typedef enum flexio_dev_errors {
	/* flexio_dev_error was called with a code that is not the user's. */
	FLEXIO_DEV_ERROR_ILLEGAL_ERR = 0x42,
} flexio_dev_error_t;

/* Ends the process with a code from 128 to 255; with any other it ends with FLEXIO_DEV_ERROR_ILLEGAL_ERR. */
void flexio_dev_error(uint8_t error) __attribute__((noreturn));
/* Number of the last failed call of this thread; 0: none. */
uint64_t flexio_dev_get_errno(struct flexio_dev_thread_ctx *dtctx);
void flexio_dev_rst_errno(struct flexio_dev_thread_ctx *dtctx);
uint64_t flexio_dev_get_and_rst_errno(struct flexio_dev_thread_ctx *dtctx);

#endif
