/* SPDX-License-Identifier: Apache-2.0 */
/* What the host sides of the small programs have in common. */
#ifndef DPA_HOST_H
#define DPA_HOST_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <libflexio/flexio.h>

#define EXPECT(condition)                                                        \
	do {                                                                     \
		if (!(condition)) {                                              \
			fprintf(stderr, "line %d: %s\n", __LINE__, #condition);  \
			exit(EXIT_FAILURE);                                      \
		}                                                                \
	} while (0)
#define OK(call) EXPECT((call) == FLEXIO_STATUS_SUCCESS)

struct host {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct flexio_process *process;
};

/* The first device, without a process. */
static inline struct host open_first(void)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	struct host host;

	memset(&host, 0, sizeof host);
	EXPECT(devices && devices[0]);
	host.context = ibv_open_device(devices[0]);
	EXPECT(host.context);
	host.pd = ibv_alloc_pd(host.context);
	EXPECT(host.pd);
	ibv_free_device_list(devices);
	return host;
}

/* The first device, and a process of the application on it. */
static inline struct host start(struct flexio_app *app)
{
	struct host host = open_first();

	OK(flexio_process_create(host.context, app, NULL, &host.process));
	return host;
}

static inline void stop(struct host *host)
{
	EXPECT(flexio_err_status_get(host->process) == FLEXIO_DEV_NO_ERROR);
	OK(flexio_process_destroy(host->process));
	EXPECT(ibv_dealloc_pd(host->pd) == 0 && ibv_close_device(host->context) == 0);
}

static inline uint64_t device_copy(struct host *host, void *bytes, size_t size)
{
	flexio_uintptr_t daddr;

	OK(flexio_copy_from_host(host->process, bytes, size, &daddr));
	return daddr;
}

static inline uint64_t device_zeros(struct host *host, size_t size)
{
	flexio_uintptr_t daddr;

	OK(flexio_buf_dev_alloc(host->process, size, &daddr));
	OK(flexio_buf_dev_memset(host->process, 0, size, daddr));
	return daddr;
}

/* A completion queue of 2 to the power of `log_depth` entries; its ring and doorbell record. `thread` may be null. */
static inline struct flexio_cq *device_cq(struct host *host, struct flexio_thread *thread, int log_depth,
					  uint64_t *ring, uint64_t *dbr)
{
	size_t bytes = (size_t)64 << log_depth;
	uint8_t *entries = (uint8_t *)calloc(1, bytes);
	struct flexio_cq_attr attr;
	struct flexio_cq *cq;

	memset(&attr, 0, sizeof attr);
	for (size_t at = 63; at < bytes; at += 64)
		entries[at] = 1;
	*ring = device_copy(host, entries, bytes);
	*dbr = device_zeros(host, 8);
	attr.log_cq_depth = (uint8_t)log_depth;
	attr.element_type = thread ? FLEXIO_CQ_ELEMENT_TYPE_DPA_THREAD : FLEXIO_CQ_ELEMENT_TYPE_NON_DPA_CQ;
	attr.thread = thread;
	attr.uar_id = flexio_uar_get_id(flexio_process_get_uar(host->process));
	attr.cq_ring_qmem.daddr = *ring;
	attr.cq_dbr_daddr = *dbr;
	OK(flexio_cq_create(host->process, NULL, &attr, &cq));
	free(entries);
	return cq;
}

/* A memory key for memory of the process. */
static inline struct flexio_mkey *device_mkey(struct host *host, uint64_t daddr, size_t bytes)
{
	struct flexio_mkey_attr attr;
	struct flexio_mkey *mkey;

	memset(&attr, 0, sizeof attr);
	attr.pd = host->pd;
	attr.daddr = daddr;
	attr.len = bytes;
	attr.access = IBV_ACCESS_LOCAL_WRITE;
	OK(flexio_device_mkey_create(host->process, &attr, &mkey));
	return mkey;
}

#endif
