/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RDMA in kernels of DOCA DPA, written for Flexcast from the public API. Connections are numbered from 0 on, in the
 * order of the host's doca_rdma_export; `flags` is of enum doca_dpa_dev_submit_flag. What a call cannot do it reports
 * as an error message, and ends the process.
 */
#ifndef DOCA_DPA_DEV_RDMA_H_
#define DOCA_DPA_DEV_RDMA_H_

#include "doca_dpa_dev.h"
#include "doca_dpa_dev_buf.h"
#include "doca_dpa_dev_sync_event.h"

typedef uint64_t doca_dpa_dev_rdma_t;

DOCA_EXPERIMENTAL void doca_dpa_dev_rdma_post_receive(doca_dpa_dev_rdma_t rdma, doca_dpa_dev_mmap_t mmap_handle,
						      uint64_t addr, size_t length);
/* Nothing: a receive's room is free again when it has completed. */
DOCA_EXPERIMENTAL void doca_dpa_dev_rdma_receive_ack(doca_dpa_dev_rdma_t rdma, uint32_t num_acked);
DOCA_EXPERIMENTAL void doca_dpa_dev_rdma_post_send(doca_dpa_dev_rdma_t rdma, uint32_t connection_id,
						   doca_dpa_dev_mmap_t mmap_handle, uint64_t addr, size_t length,
						   uint32_t flags);
DOCA_EXPERIMENTAL void doca_dpa_dev_rdma_post_send_imm(doca_dpa_dev_rdma_t rdma, uint32_t connection_id,
						       doca_dpa_dev_mmap_t mmap_handle, uint64_t addr, size_t length,
						       uint32_t immediate, uint32_t flags);
DOCA_EXPERIMENTAL void doca_dpa_dev_rdma_post_write(doca_dpa_dev_rdma_t rdma, uint32_t connection_id,
						    doca_dpa_dev_mmap_t dst_mmap_handle, uint64_t dst_addr,
						    doca_dpa_dev_mmap_t src_mmap_handle, uint64_t src_addr,
						    size_t length, uint32_t flags);
DOCA_EXPERIMENTAL void doca_dpa_dev_rdma_post_write_imm(doca_dpa_dev_rdma_t rdma, uint32_t connection_id,
							doca_dpa_dev_mmap_t dst_mmap_handle, uint64_t dst_addr,
							doca_dpa_dev_mmap_t src_mmap_handle, uint64_t src_addr,
							size_t length, uint32_t immediate, uint32_t flags);
DOCA_EXPERIMENTAL void doca_dpa_dev_rdma_post_read(doca_dpa_dev_rdma_t rdma, uint32_t connection_id,
						   doca_dpa_dev_mmap_t dst_mmap_handle, uint64_t dst_addr,
						   doca_dpa_dev_mmap_t src_mmap_handle, uint64_t src_addr, size_t length,
						   uint32_t flags);
/* What was there before goes nowhere. */
DOCA_EXPERIMENTAL void doca_dpa_dev_rdma_post_atomic_fetch_add(doca_dpa_dev_rdma_t rdma, uint32_t connection_id,
							       doca_dpa_dev_mmap_t dst_mmap_handle, uint64_t dst_addr,
							       uint64_t value, uint32_t flags);
/* A peer's sync event. */
DOCA_EXPERIMENTAL void doca_dpa_dev_rdma_signal_set(doca_dpa_dev_rdma_t rdma, uint32_t connection_id,
						    doca_dpa_dev_sync_event_remote_net_t remote_sync_event,
						    uint64_t count);
DOCA_EXPERIMENTAL void doca_dpa_dev_rdma_signal_add(doca_dpa_dev_rdma_t rdma, uint32_t connection_id,
						    doca_dpa_dev_sync_event_remote_net_t remote_sync_event,
						    uint64_t count);

#endif
