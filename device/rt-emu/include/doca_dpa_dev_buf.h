/* SPDX-License-Identifier: Apache-2.0 */
/* Memory maps in kernels of DOCA DPA, written for Flexcast from the public API. */
#ifndef DOCA_DPA_DEV_BUF_H_
#define DOCA_DPA_DEV_BUF_H_

#include "doca_dpa_dev.h"

typedef uint32_t doca_dpa_dev_mmap_t;

/*
 * Where an address in the map's memory of the host appears to the kernel. One map at a time: the next call takes it
 * away. Stores are in the host's memory behind __dpa_thread_window_writeback() (dpaintrin.h).
 */
DOCA_EXPERIMENTAL doca_dpa_dev_uintptr_t doca_dpa_dev_mmap_get_external_ptr(doca_dpa_dev_mmap_t mmap_handle,
									    uint64_t addr);

#endif
