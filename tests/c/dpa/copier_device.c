/* SPDX-License-Identifier: Apache-2.0 */
/* Reads memory of the host through a window, changes it, and writes it back. */
#include <dpaintrin.h>
#include <flexio_dev.h>

#include "copier.h"

__dpa_rpc__ uint64_t copier_invert(uint64_t data)
{
	const struct copier *job = (const struct copier *)data;
	static uint8_t bytes[COPIED_BYTES];
	flexio_uintptr_t from;

	if (flexio_dev_window_config(FLEXIO_DEV_WINDOW_ENTITY_0, job->window, job->mkey) != FLEXIO_DEV_STATUS_SUCCESS)
		return 1;
	if (flexio_dev_window_ptr_acquire(FLEXIO_DEV_WINDOW_ENTITY_0, job->from, &from) != FLEXIO_DEV_STATUS_SUCCESS)
		return 2;
	/* The vendor's library does not copy from the host by itself. */
	for (unsigned i = 0; i < sizeof bytes; i++)
		bytes[i] = (uint8_t)~((const volatile uint8_t *)from)[i];
	if (flexio_dev_window_copy_to_host(FLEXIO_DEV_WINDOW_ENTITY_0, job->to, bytes, sizeof bytes) !=
	    FLEXIO_DEV_STATUS_SUCCESS)
		return 3;
	__dpa_thread_window_writeback();
	flexio_dev_print("copied %d bytes of %s\n", (int)sizeof bytes, "the host");
	flexio_dev_msg_err(job->stream, "and one line for stream %d\n", job->stream);
	return 0;
}
