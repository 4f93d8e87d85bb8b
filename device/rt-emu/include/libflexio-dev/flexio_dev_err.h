/* SPDX-License-Identifier: Apache-2.0 */
/* Errors of a DPA thread. */
#ifndef FLEXIO_DEV_ERR_H
#define FLEXIO_DEV_ERR_H

#include <stdint.h>

struct flexio_dev_thread_ctx;

/* First error code that belongs to the user; those below belong to the runtime. */
#define FLEXIO_DEV_ERROR_USER 0x80

/* Ends the process with a code from FLEXIO_DEV_ERROR_USER to 0xFF. */
void flexio_dev_error(uint8_t code) __attribute__((noreturn));
/* Number of the last failed call of this thread; 0: none. */
uint64_t flexio_dev_get_errno(struct flexio_dev_thread_ctx *dtctx);
void flexio_dev_rst_errno(struct flexio_dev_thread_ctx *dtctx);
uint64_t flexio_dev_get_and_rst_errno(struct flexio_dev_thread_ctx *dtctx);

#endif
