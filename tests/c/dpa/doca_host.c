/* SPDX-License-Identifier: Apache-2.0 */
/* Host side of the test of DOCA DPA: one of its parts, by the first argument. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <doca_argp.h>
#include <doca_ctx.h>
#include <doca_dev.h>
#include <doca_dpa.h>
#include <doca_log.h>
#include <doca_mmap.h>
#include <doca_rdma.h>
#include <doca_sync_event.h>
#include <doca_version.h>
#include <libflexio/flexio.h>

#include "doca.h"

DOCA_LOG_REGISTER(TESTS::DOCA);

extern struct doca_dpa_app *doca;
doca_dpa_func_t add_up, count_in, answer, post_receive, send, on_message, on_notice, write_add_read, host_memory,
	send_nowhere, fault;

#define EXPECT(condition)                                                        \
	do {                                                                     \
		if (!(condition)) {                                              \
			fprintf(stderr, "line %d: %s\n", __LINE__, #condition);  \
			exit(EXIT_FAILURE);                                      \
		}                                                                \
	} while (0)
#define OK(call) GIVES(call, DOCA_SUCCESS)
#define GIVES(call, code)                                                                           \
	do {                                                                                        \
		doca_error_t got = (call);                                                          \
		if (got != (code)) {                                                                \
			fprintf(stderr, "line %d: %s gives %s\n", __LINE__, #call, doca_error_get_name(got)); \
			exit(EXIT_FAILURE);                                                         \
		}                                                                                   \
	} while (0)
#define INVALID(call) GIVES(call, DOCA_ERROR_INVALID_VALUE)
#define BAD_STATE(call) GIVES(call, DOCA_ERROR_BAD_STATE)
#define IN_USE(call) GIVES(call, DOCA_ERROR_IN_USE)
#define UNSUPPORTED(call) GIVES(call, DOCA_ERROR_NOT_SUPPORTED)

#define ALL (DOCA_ACCESS_FLAG_LOCAL_READ_WRITE | DOCA_ACCESS_FLAG_RDMA_READ | DOCA_ACCESS_FLAG_RDMA_WRITE | \
	     DOCA_ACCESS_FLAG_RDMA_ATOMIC)

static struct doca_dev *dev;
static struct doca_dpa *dpa;
static struct doca_devinfo **devices;

static void open_card(void)
{
	enum doca_pci_func_type type;
	uint8_t representors = 1;
	uint32_t count;

	OK(doca_devinfo_create_list(&devices, &count));
	EXPECT(count > 0);
	OK(doca_devinfo_get_pci_func_type(devices[0], &type));
	OK(doca_devinfo_rep_cap_is_filter_net_supported(devices[0], &representors));
	EXPECT(type == DOCA_PCI_FUNC_TYPE_PF && !representors);
	OK(doca_dpa_cap_is_supported(devices[0]));
	OK(doca_rdma_cap_task_send_is_supported(devices[0]));
	OK(doca_rdma_cap_task_receive_is_supported(devices[0]));
	OK(doca_dev_open(devices[0], &dev));
	OK(doca_dpa_create(dev, &dpa));
}

static void open_dpa(void)
{
	open_card();
	OK(doca_dpa_set_app(dpa, doca));
	OK(doca_dpa_set_log_level(dpa, DOCA_DPA_DEV_LOG_LEVEL_WARNING));
	OK(doca_dpa_start(dpa));
}

static void close_all(void)
{
	OK(doca_dpa_destroy(dpa));
	OK(doca_dev_close(dev));
	OK(doca_devinfo_destroy_list(devices));
}

/* Between the host and the DPA, in both directions. */
static struct doca_sync_event *event(doca_dpa_dev_sync_event_t *handle)
{
	struct doca_sync_event *made;

	OK(doca_sync_event_create(&made));
	OK(doca_sync_event_add_publisher_location_cpu(made, dev));
	OK(doca_sync_event_add_publisher_location_dpa(made, dpa));
	OK(doca_sync_event_add_subscriber_location_dpa(made, dpa));
	OK(doca_sync_event_add_subscriber_location_cpu(made, dev));
	OK(doca_sync_event_start(made));
	if (handle)
		OK(doca_sync_event_get_dpa_handle(made, dpa, handle));
	return made;
}

/* Calls, copies and launches. */
static void calls(void)
{
	struct numbers numbers = { 1, { 2, 3, 4 } };
	doca_dpa_dev_uintptr_t memory;
	struct doca_sync_event *begin, *end, *question, *reply;
	doca_dpa_dev_sync_event_t question_handle, reply_handle;
	uint32_t results[8];
	uint64_t value;
	unsigned long long longest;
	unsigned int most;

	open_dpa();
	OK(doca_dpa_rpc(dpa, add_up, &value, (uint64_t)10, numbers, -5));
	EXPECT(value == 95);
	OK(doca_dpa_get_max_threads_per_kernel(dpa, &most));
	EXPECT(most >= 8);
	OK(doca_dpa_get_kernel_max_run_time(dpa, &longest));
	EXPECT(longest == 120);
	OK(doca_dpa_get_total_num_eus_available(dpa, &most));
	EXPECT(most == 256);

	OK(doca_dpa_mem_alloc(dpa, sizeof(results), &memory));
	OK(doca_dpa_memset(dpa, memory, 0xFF, sizeof(results)));
	begin = event(NULL);
	end = event(NULL);
	OK(doca_dpa_kernel_launch_update_set(dpa, begin, 2, end, 5, 8, count_in, memory));
	OK(doca_sync_event_update_set(begin, 2));
	OK(doca_dpa_d2h_memcpy(dpa, results, memory, sizeof(results)));
	EXPECT(results[0] == UINT32_MAX);
	OK(doca_sync_event_update_add(begin, 1, &value));
	EXPECT(value == 2);
	OK(doca_sync_event_wait_gt(end, 4, UINT64_MAX));
	OK(doca_dpa_d2h_memcpy(dpa, results, memory, sizeof(results)));
	for (uint32_t rank = 0; rank < 8; rank++)
		EXPECT(results[rank] == 800 + rank);
	/* Another launch, of fewer, and an event that it adds to. */
	OK(doca_dpa_kernel_launch_update_add(dpa, NULL, 0, end, 5, 1, count_in, memory));
	OK(doca_sync_event_wait_gt_yield(end, 9, UINT64_MAX));
	OK(doca_sync_event_get(end, &value));
	EXPECT(value == 10);

	/* A kernel that waits itself. */
	question = event(&question_handle);
	reply = event(&reply_handle);
	OK(doca_dpa_kernel_launch_update_set(dpa, NULL, 0, NULL, 0, 1, answer, question_handle, reply_handle));
	OK(doca_sync_event_update_set(question, 0x107));
	OK(doca_sync_event_wait_gt(reply, 0, UINT64_MAX));
	OK(doca_sync_event_get(reply, &value));
	EXPECT(value == 0x107);

	OK(doca_dpa_mem_free(dpa, memory));
	OK(doca_sync_event_stop(begin));
	OK(doca_sync_event_destroy(begin));
	OK(doca_sync_event_destroy(end));
	OK(doca_sync_event_destroy(question));
	OK(doca_sync_event_destroy(reply));
	OK(doca_dpa_peek_at_last_error(dpa));
	OK(doca_dpa_stop(dpa));
	close_all();
}

static struct doca_mmap *map(void *address, doca_dpa_dev_uintptr_t device_address, size_t bytes,
			     doca_dpa_dev_mmap_t *handle)
{
	struct doca_mmap *made;
	size_t length;
	void *start;

	OK(doca_mmap_create(&made));
	OK(doca_mmap_set_permissions(made, ALL));
	if (address) {
		OK(doca_mmap_set_memrange(made, address, bytes));
		OK(doca_mmap_add_dev(made, dev));
	} else {
		OK(doca_mmap_set_dpa_memrange(made, dpa, device_address, bytes));
	}
	OK(doca_mmap_start(made));
	OK(doca_mmap_dev_get_dpa_handle(made, dev, handle));
	OK(doca_mmap_get_memrange(made, &start, &length));
	EXPECT(length == bytes && (uint64_t)start == (address ? (uint64_t)address : device_address));
	return made;
}

/* An RDMA context with its completion context, started. */
struct side {
	struct doca_dpa_completion *completion;
	doca_dpa_dev_completion_t completion_handle;
	struct doca_rdma *rdma;
	struct doca_ctx *ctx;
	doca_dpa_dev_rdma_t handle;
	struct doca_rdma_connection *connections[2];
	const void *details[2];
	size_t bytes[2];
};

static void open_side(struct side *side, struct doca_dpa_thread *thread)
{
	enum doca_ctx_states state;
	uint32_t id;

	OK(doca_dpa_completion_create(dpa, 4, &side->completion));
	if (thread)
		OK(doca_dpa_completion_set_thread(side->completion, thread));
	OK(doca_dpa_completion_start(side->completion));
	OK(doca_dpa_completion_get_dpa_handle(side->completion, &side->completion_handle));
	OK(doca_rdma_create(dev, &side->rdma));
	side->ctx = doca_rdma_as_ctx(side->rdma);
	OK(doca_rdma_set_transport_type(side->rdma, DOCA_RDMA_TRANSPORT_TYPE_RC));
	OK(doca_rdma_set_permissions(side->rdma, ALL));
	OK(doca_rdma_set_grh_enabled(side->rdma, 1));
	OK(doca_rdma_set_gid_index(side->rdma, 0));
	OK(doca_rdma_set_mtu(side->rdma, DOCA_MTU_SIZE_4K_BYTES));
	OK(doca_rdma_set_send_queue_size(side->rdma, 16));
	OK(doca_rdma_set_recv_queue_size(side->rdma, 2));
	OK(doca_rdma_task_receive_set_dst_buf_list_len(side->rdma, 1));
	OK(doca_rdma_set_max_num_connections(side->rdma, 2));
	OK(doca_ctx_set_datapath_on_dpa(side->ctx, dpa));
	OK(doca_rdma_dpa_completion_attach(side->rdma, side->completion));
	OK(doca_ctx_start(side->ctx));
	OK(doca_ctx_get_state(side->ctx, &state));
	EXPECT(state == DOCA_CTX_STATE_RUNNING);
	OK(doca_rdma_get_dpa_handle(side->rdma, &side->handle));
	for (uint32_t at = 0; at < 2; at++) {
		OK(doca_rdma_export(side->rdma, &side->details[at], &side->bytes[at], &side->connections[at]));
		OK(doca_rdma_connection_get_id(side->connections[at], &id));
		EXPECT(id == at);
	}
}

static void connect_sides(struct side *one, struct side *other)
{
	for (int at = 0; at < 2; at++) {
		OK(doca_rdma_connect(one->rdma, other->details[at], other->bytes[at], one->connections[at]));
		OK(doca_rdma_connect(other->rdma, one->details[at], one->bytes[at], other->connections[at]));
	}
}

static void close_side(struct side *side)
{
	OK(doca_ctx_stop(side->ctx));
	OK(doca_rdma_destroy(side->rdma));
	OK(doca_dpa_completion_destroy(side->completion));
}

/* Two contexts with two connections: messages that start a thread, one-sided operations, memory of the host. */
static void rdma(void)
{
	doca_dpa_dev_uintptr_t memory, receiver_memory, seen_memory;
	struct doca_dpa_notification_completion *notification;
	struct doca_dpa_thread *receiver, *noticed;
	struct doca_sync_event *end, *signalled;
	struct doca_sync_event_remote_net *remote;
	doca_dpa_dev_sync_event_t end_handle;
	doca_dpa_dev_mmap_t host_key, key, peer_key;
	struct doca_mmap *host_map, *own_map, *peer_map;
	struct side one = { 0 }, other = { 0 };
	struct receiver content = { 0 };
	struct seen seen[4];
	struct exchange with = { 0 };
	uint64_t value = 0, host[2] = { 50, 0 };
	struct doca_dpa_eu_affinity *unit;
	const uint8_t *description;
	const void *exported;
	size_t bytes;

	open_dpa();
	OK(doca_dpa_mem_alloc(dpa, 64, &memory));
	OK(doca_dpa_memset(dpa, memory, 0, 64));
	OK(doca_dpa_mem_alloc(dpa, sizeof(content), &receiver_memory));
	OK(doca_dpa_mem_alloc(dpa, sizeof(seen), &seen_memory));
	end = event(&end_handle);
	own_map = map(NULL, memory, 64, &key);
	host_map = map(host, 0, sizeof(host), &host_key);

	OK(doca_dpa_thread_create(dpa, &receiver));
	OK(doca_dpa_thread_set_func_arg(receiver, on_message, receiver_memory));
	OK(doca_dpa_thread_set_local_storage(receiver, memory + 32));
	OK(doca_dpa_eu_affinity_create(dpa, &unit));
	OK(doca_dpa_eu_affinity_set(unit, 40));
	OK(doca_dpa_thread_set_affinity(receiver, unit));
	OK(doca_dpa_thread_start(receiver));
	OK(doca_dpa_thread_create(dpa, &noticed));
	OK(doca_dpa_thread_set_func_arg(noticed, on_notice, end_handle));
	OK(doca_dpa_thread_start(noticed));
	OK(doca_dpa_notification_completion_create(dpa, noticed, &notification));
	OK(doca_dpa_notification_completion_start(notification));
	OK(doca_dpa_notification_completion_get_dpa_handle(notification, &content.notification));
	OK(doca_dpa_thread_run(noticed));
	open_side(&one, NULL);
	open_side(&other, receiver);
	connect_sides(&one, &other);

	content.completion = other.completion_handle;
	content.rdma = other.handle;
	content.buffer = memory + 48;
	content.seen = seen_memory;
	content.mmap = key;
	content.wanted = 4;
	OK(doca_dpa_h2d_memcpy(dpa, receiver_memory, &content, sizeof(content)));
	OK(doca_dpa_thread_run(receiver));
	/* One receive, which either connection takes; the thread posts the next. */
	OK(doca_dpa_rpc(dpa, post_receive, &value, other.handle, key, content.buffer));
	for (uint32_t at = 0; at < 4; at++) {
		host[0] = 50 + at;
		OK(doca_dpa_rpc(dpa, send, &value, one.handle, at % 2, host_key, host, at < 2 ? 0 : 1000 + at));
	}
	OK(doca_sync_event_wait_gt(end, 6, UINT64_MAX));
	OK(doca_dpa_d2h_memcpy(dpa, seen, seen_memory, sizeof(seen)));
	for (uint32_t at = 0; at < 4; at++) {
		EXPECT(seen[at].value == 50 + at && seen[at].connection == at % 2 && seen[at].bytes == 8);
		EXPECT(seen[at].type == (at < 2 ? 2 : 3) && (at < 2 || seen[at].immediate == 1000 + at));
	}

	/* The peer's memory and event, as it describes them. */
	OK(doca_mmap_export_rdma(own_map, dev, &exported, &bytes));
	OK(doca_mmap_create_from_export(NULL, exported, bytes, dev, &peer_map));
	OK(doca_mmap_dev_get_dpa_handle(peer_map, dev, &peer_key));
	OK(doca_sync_event_create(&signalled));
	OK(doca_sync_event_add_publisher_location_remote_net(signalled));
	OK(doca_sync_event_add_subscriber_location_dpa(signalled, dpa));
	OK(doca_sync_event_start(signalled));
	OK(doca_sync_event_export_to_remote_net(signalled, &description, &bytes));
	OK(doca_sync_event_remote_net_create_from_export(dev, description, bytes, &remote));
	OK(doca_sync_event_remote_net_get_dpa_handle(remote, dpa, &with.remote_event));
	with.rdma = one.handle;
	with.completion = one.completion_handle;
	with.own = memory;
	with.peer = memory + 16;
	with.own_mmap = key;
	with.peer_mmap = peer_key;
	OK(doca_dpa_rpc(dpa, post_receive, &value, other.handle, key, content.buffer));
	OK(doca_dpa_rpc(dpa, write_add_read, &value, with));
	EXPECT(value == 42);
	OK(doca_dpa_d2h_memcpy(dpa, &value, memory + 24, 8));
	EXPECT(value == 42);
	OK(doca_sync_event_wait_gt(signalled, 8, UINT64_MAX));

	host[0] = 60;
	OK(doca_dpa_rpc(dpa, host_memory, &value, host_key, host));
	EXPECT(value == 60 && host[1] == 61);

	IN_USE(doca_dpa_completion_destroy(one.completion));
	IN_USE(doca_dpa_thread_destroy(receiver));
	IN_USE(doca_dpa_destroy(dpa));
	IN_USE(doca_dev_close(dev));
	IN_USE(doca_rdma_destroy(one.rdma));
	BAD_STATE(doca_rdma_set_recv_queue_size(one.rdma, 4));
	BAD_STATE(doca_rdma_connect(one.rdma, other.details[0], other.bytes[0], one.connections[0]));
	INVALID(doca_rdma_connect(other.rdma, one.details[0], one.bytes[0], one.connections[1]));
	INVALID(doca_rdma_connect(one.rdma, one.details[0], 3, one.connections[0]));
	INVALID(doca_rdma_connect(one.rdma, NULL, 0, one.connections[0]));
	GIVES(doca_rdma_export(one.rdma, &exported, &bytes, &one.connections[0]), DOCA_ERROR_FULL);

	OK(doca_sync_event_remote_net_destroy(remote));
	OK(doca_sync_event_destroy(signalled));
	OK(doca_mmap_destroy(peer_map));
	OK(doca_mmap_stop(own_map));
	OK(doca_mmap_destroy(own_map));
	OK(doca_mmap_destroy(host_map));
	close_side(&one);
	close_side(&other);
	OK(doca_dpa_notification_completion_stop(notification));
	OK(doca_dpa_notification_completion_destroy(notification));
	OK(doca_dpa_thread_stop(receiver));
	OK(doca_dpa_thread_destroy(receiver));
	OK(doca_dpa_thread_destroy(noticed));
	OK(doca_dpa_eu_affinity_clear(unit));
	OK(doca_dpa_eu_affinity_destroy(unit));
	OK(doca_sync_event_destroy(end));
	close_all();
}

/* What cannot be, and calls in the wrong order. */
static void refusals(void)
{
	struct doca_dpa_notification_completion *notification;
	struct doca_dpa_completion *completion;
	struct doca_dpa_eu_affinity *unit;
	struct doca_dpa_thread *thread;
	struct doca_sync_event *end;
	struct doca_dpa_thread_group *group;
	struct doca_dpa_async_ops *operations;
	struct flexio_resource *resource = NULL;
	struct doca_rdma *context;
	struct doca_mmap *mmap;
	struct doca_dpa *more;
	doca_dpa_dev_uintptr_t memory;
	doca_dpa_dev_t handle;
	const void *exported;
	uint64_t value;
	uint32_t key;
	size_t bytes;

	INVALID(doca_dpa_cap_is_supported(NULL));
	INVALID(doca_dpa_create(NULL, &more));
	open_card();
	INVALID(doca_dpa_create(dev, NULL));
	BAD_STATE(doca_dpa_start(dpa));
	BAD_STATE(doca_dpa_stop(dpa));
	BAD_STATE(doca_dpa_mem_alloc(dpa, 8, &memory));
	BAD_STATE(doca_dpa_rpc(dpa, add_up, &value, 0));
	INVALID(doca_dpa_set_app(dpa, NULL));
	INVALID(doca_dpa_set_app(dpa, (struct doca_dpa_app *)&value));
	INVALID(doca_dpa_set_log_level(dpa, (doca_dpa_dev_log_level_t)1));
	OK(doca_dpa_set_app(dpa, doca));
	OK(doca_dpa_start(dpa));
	BAD_STATE(doca_dpa_start(dpa));
	BAD_STATE(doca_dpa_set_app(dpa, doca));
	OK(doca_dpa_get_dpa_handle(dpa, &handle));
	EXPECT(handle != 0);

	INVALID(doca_dpa_mem_alloc(dpa, 0, &memory));
	GIVES(doca_dpa_mem_alloc(dpa, (size_t)1 << 40, &memory), DOCA_ERROR_NO_MEMORY);
	INVALID(doca_dpa_mem_free(dpa, 64));
	INVALID(doca_dpa_memset(dpa, 64, 0, 8));
	INVALID(doca_dpa_h2d_memcpy(dpa, 64, &value, 8));
	INVALID(doca_dpa_h2d_memcpy(dpa, 64, NULL, 8));
	INVALID(doca_dpa_d2h_memcpy(dpa, &value, 64, 8));
	INVALID(doca_dpa_d2h_memcpy(dpa, &value, 64, (size_t)1 << 40));

	/* Functions that are no kernels, and launches of too many threads. */
	INVALID(doca_dpa_rpc(dpa, (doca_dpa_func_t *)open_card, &value));
	INVALID(doca_dpa_rpc(dpa, NULL, &value));
	INVALID(doca_dpa_rpc(dpa, add_up, NULL));
	INVALID(doca_dpa_kernel_launch_update_set(dpa, NULL, 0, NULL, 0, 0, count_in, memory));
	INVALID(doca_dpa_kernel_launch_update_set(dpa, NULL, 0, NULL, 0, 129, count_in, memory));
	INVALID(doca_dpa_kernel_launch_update_add(dpa, (struct doca_sync_event *)&value, 0, NULL, 0, 1, count_in, memory));

	OK(doca_sync_event_create(&end));
	BAD_STATE(doca_sync_event_start(end));
	BAD_STATE(doca_sync_event_get(end, &value));
	BAD_STATE(doca_dpa_kernel_launch_update_set(dpa, end, 0, NULL, 0, 1, count_in, memory));
	OK(doca_sync_event_add_publisher_location_cpu(end, dev));
	OK(doca_sync_event_add_subscriber_location_cpu(end, dev));
	UNSUPPORTED(doca_sync_event_start(end));
	UNSUPPORTED(doca_sync_event_set_addr(end, &value));
	OK(doca_sync_event_add_subscriber_location_dpa(end, dpa));
	OK(doca_sync_event_start(end));
	BAD_STATE(doca_sync_event_add_subscriber_location_dpa(end, dpa));
	BAD_STATE(doca_sync_event_export_to_remote_net(end, (const uint8_t **)&exported, &bytes));
	/* A kernel waits for it. */
	OK(doca_dpa_kernel_launch_update_set(dpa, end, 1, NULL, 0, 1, count_in, memory));
	IN_USE(doca_sync_event_destroy(end));
	IN_USE(doca_dpa_stop(dpa));

	OK(doca_dpa_thread_create(dpa, &thread));
	BAD_STATE(doca_dpa_thread_start(thread));
	BAD_STATE(doca_dpa_thread_run(thread));
	BAD_STATE(doca_dpa_thread_stop(thread));
	INVALID(doca_dpa_thread_set_func_arg(thread, (doca_dpa_func_t *)open_card, 0));
	OK(doca_dpa_thread_set_func_arg(thread, fault, 0));
	OK(doca_dpa_eu_affinity_create(dpa, &unit));
	BAD_STATE(doca_dpa_thread_set_affinity(thread, unit));
	INVALID(doca_dpa_eu_affinity_set(unit, 256));
	OK(doca_dpa_eu_affinity_set(unit, 255));
	OK(doca_dpa_thread_set_affinity(thread, unit));
	GIVES(doca_dpa_thread_start(thread), DOCA_ERROR_DRIVER);
	OK(doca_dpa_eu_affinity_set(unit, 7));
	OK(doca_dpa_thread_set_affinity(thread, unit));
	OK(doca_dpa_eu_affinity_destroy(unit));
	INVALID(doca_dpa_eu_affinity_destroy(unit));
	OK(doca_dpa_notification_completion_create(dpa, thread, &notification));
	BAD_STATE(doca_dpa_notification_completion_start(notification));
	OK(doca_dpa_thread_start(thread));
	BAD_STATE(doca_dpa_thread_set_func_arg(thread, fault, 0));
	BAD_STATE(doca_dpa_notification_completion_get_dpa_handle(notification, &value));
	OK(doca_dpa_notification_completion_start(notification));
	BAD_STATE(doca_dpa_notification_completion_start(notification));
	OK(doca_dpa_notification_completion_destroy(notification));

	INVALID(doca_dpa_completion_create(dpa, 0, &completion));
	OK(doca_dpa_completion_create(dpa, 1, &completion));
	BAD_STATE(doca_dpa_completion_get_dpa_handle(completion, &value));
	BAD_STATE(doca_dpa_completion_stop(completion));
	OK(doca_dpa_completion_start(completion));
	BAD_STATE(doca_dpa_completion_start(completion));
	BAD_STATE(doca_dpa_completion_set_thread(completion, thread));
	OK(doca_dpa_completion_stop(completion));

	OK(doca_rdma_create(dev, &context));
	UNSUPPORTED(doca_ctx_start(doca_rdma_as_ctx(context)));
	UNSUPPORTED(doca_rdma_set_transport_type(context, DOCA_RDMA_TRANSPORT_TYPE_DC));
	UNSUPPORTED(doca_rdma_task_receive_set_dst_buf_list_len(context, 2));
	INVALID(doca_rdma_set_recv_queue_size(context, 0));
	INVALID(doca_rdma_set_mtu(context, DOCA_MTU_SIZE_RAW_ETHERNET));
	INVALID(doca_rdma_set_permissions(context, 1 << 20));
	OK(doca_ctx_set_datapath_on_dpa(doca_rdma_as_ctx(context), dpa));
	BAD_STATE(doca_ctx_start(doca_rdma_as_ctx(context)));
	OK(doca_rdma_dpa_completion_attach(context, completion));
	BAD_STATE(doca_ctx_start(doca_rdma_as_ctx(context)));
	OK(doca_dpa_completion_start(completion));
	OK(doca_rdma_set_gid_index(context, 99));
	INVALID(doca_ctx_start(doca_rdma_as_ctx(context)));
	OK(doca_rdma_set_gid_index(context, 0));
	BAD_STATE(doca_rdma_export(context, &exported, &bytes, NULL));
	BAD_STATE(doca_ctx_stop(doca_rdma_as_ctx(context)));
	OK(doca_ctx_start(doca_rdma_as_ctx(context)));
	INVALID(doca_rdma_export(context, &exported, &bytes, NULL));

	OK(doca_mmap_create(&mmap));
	BAD_STATE(doca_mmap_start(mmap));
	BAD_STATE(doca_mmap_get_memrange(mmap, (void **)&exported, &bytes));
	INVALID(doca_mmap_set_memrange(mmap, NULL, 8));
	INVALID(doca_mmap_set_dpa_memrange(mmap, dpa, 64, 8));
	INVALID(doca_mmap_set_permissions(mmap, DOCA_ACCESS_FLAG_RDMA_WRITE));
	OK(doca_mmap_set_memrange(mmap, &value, 8));
	BAD_STATE(doca_mmap_start(mmap));
	OK(doca_mmap_add_dev(mmap, dev));
	IN_USE(doca_mmap_add_dev(mmap, dev));
	BAD_STATE(doca_mmap_stop(mmap));
	BAD_STATE(doca_mmap_dev_get_dpa_handle(mmap, dev, &key));
	OK(doca_mmap_start(mmap));
	BAD_STATE(doca_mmap_start(mmap));
	GIVES(doca_mmap_export_rdma(mmap, dev, &exported, &bytes), DOCA_ERROR_NOT_PERMITTED);
	UNSUPPORTED(doca_mmap_export_pci(mmap, dev, &exported, &bytes));
	INVALID(doca_mmap_create_from_export(NULL, &value, 8, dev, &mmap));
	OK(doca_mmap_destroy(mmap));
	INVALID(doca_mmap_destroy(mmap));

	UNSUPPORTED(doca_dpa_device_extend(dpa, dev, &more));
	UNSUPPORTED(doca_dpa_thread_group_create(dpa, 2, &group));
	UNSUPPORTED(doca_dpa_async_ops_create(dpa, 2, 0, &operations));
	UNSUPPORTED(doca_dpa_log_file_set_path(dpa, "log"));
	UNSUPPORTED(doca_dpa_trace_file_set_path(dpa, "trace"));
	EXPECT(flexio_resources_create("key", "text", 4, &resource) == FLEXIO_STATUS_FAILED);
	EXPECT(flexio_resources_destroy(resource) == FLEXIO_STATUS_FAILED);
	EXPECT(flexio_resources_get_eugs_num(resource) == 0 && flexio_resources_get_eus_num(resource) == 0);
	EXPECT(flexio_resources_get_eus(resource) == NULL);

	/* A kernel that does what cannot be ends the process: waits end, and so do calls. */
	OK(doca_dpa_peek_at_last_error(dpa));
	OK(doca_rdma_get_dpa_handle(context, &handle));
	BAD_STATE(doca_dpa_rpc(dpa, send_nowhere, &value, handle));
	BAD_STATE(doca_dpa_peek_at_last_error(dpa));
	BAD_STATE(doca_sync_event_wait_gt(end, 1, UINT64_MAX));
	BAD_STATE(doca_dpa_rpc(dpa, add_up, &value, 0));
	BAD_STATE(doca_dpa_kernel_launch_update_set(dpa, NULL, 0, NULL, 0, 1, count_in, memory));
	puts("all refused");
}

/* A kernel dies; nothing is left that cannot be ended. */
static void death(void)
{
	struct doca_sync_event *begin, *end;

	open_dpa();
	begin = event(NULL);
	end = event(NULL);
	OK(doca_dpa_kernel_launch_update_set(dpa, begin, 0, end, 1, 2, count_in, (uint64_t)0));
	OK(doca_dpa_kernel_launch_update_set(dpa, NULL, 0, end, 1, 1, count_in, (uint64_t)0));
	BAD_STATE(doca_sync_event_wait_gt(end, 0, UINT64_MAX));
	OK(doca_sync_event_destroy(begin));
	OK(doca_sync_event_destroy(end));
	close_all();
	puts("all ended");
}

static char buffer[256];
static int flushed;

static void flush(char *text)
{
	flushed += strstr(text, "[TESTS::DOCA:") && strstr(text, "to the buffer");
}

struct configuration {
	char name[16];
	int number;
	bool is_set;
	double share;
};

static doca_error_t on_name(void *value, void *configuration)
{
	strncpy(((struct configuration *)configuration)->name, value, 15);
	return DOCA_SUCCESS;
}

static doca_error_t on_number(void *value, void *configuration)
{
	((struct configuration *)configuration)->number = *(int *)value;
	return *(int *)value < 0 ? DOCA_ERROR_TOO_BIG : DOCA_SUCCESS;
}

static doca_error_t on_flag(void *value, void *configuration)
{
	((struct configuration *)configuration)->is_set = *(bool *)value;
	return DOCA_SUCCESS;
}

static doca_error_t on_share(void *value, void *configuration)
{
	((struct configuration *)configuration)->share = *(double *)value;
	return DOCA_SUCCESS;
}

static doca_error_t on_version(void *unused, void *configuration)
{
	(void)unused;
	(void)configuration;
	puts("version 5");
	return DOCA_SUCCESS;
}

static doca_error_t validate(void *configuration)
{
	return strcmp(((struct configuration *)configuration)->name, "wrong") ? DOCA_SUCCESS : DOCA_ERROR_BAD_CONFIG;
}

static void parameter(const char *shorter, const char *longer, enum doca_argp_type type, doca_argp_param_cb_t callback,
		      bool is_mandatory)
{
	struct doca_argp_param *made;

	OK(doca_argp_param_create(&made));
	doca_argp_param_set_short_name(made, shorter);
	doca_argp_param_set_long_name(made, longer);
	doca_argp_param_set_arguments(made, "<value>");
	doca_argp_param_set_description(made, "What it is");
	doca_argp_param_set_callback(made, callback);
	doca_argp_param_set_type(made, type);
	doca_argp_param_set_cli_only(made);
	doca_argp_param_set_multiplicity(made);
	if (is_mandatory)
		doca_argp_param_set_mandatory(made);
	OK(doca_argp_register_param(made));
	INVALID(doca_argp_param_destroy(made));
}

/* Log and command line; the program's own arguments are read. */
static void arguments(int argc, char **argv)
{
	struct doca_log_backend *own, *library, *none;
	struct configuration configuration = { 0 };
	struct doca_argp_param *bad;
	struct doca_argp_cmd *command;
	doca_error_t result;
	int level, source;

	OK(doca_log_backend_create_standard());
	OK(doca_log_backend_create_with_buf(buffer, sizeof(buffer), flush, &own));
	OK(doca_log_backend_set_level_lower_limit(own, DOCA_LOG_LEVEL_WARNING));
	OK(doca_log_backend_set_level_upper_limit(own, DOCA_LOG_LEVEL_WARNING));
	OK(doca_log_backend_create_with_file_sdk(stderr, &library));
	OK(doca_log_backend_set_sdk_level(library, DOCA_LOG_LEVEL_ERROR));
	OK(doca_log_backend_create_with_fd_sdk(2, &library));
	OK(doca_log_backend_create_with_fd(2, &none));
	OK(doca_log_backend_set_level_lower_limit(none, DOCA_LOG_LEVEL_DISABLE));
	OK(doca_log_backend_create_with_file(stderr, &none));
	OK(doca_log_backend_set_level_lower_limit(none, DOCA_LOG_LEVEL_DISABLE));
	INVALID(doca_log_backend_create_with_file(NULL, &none));
	INVALID(doca_log_backend_create_with_fd(-1, &none));
	INVALID(doca_log_backend_create_with_buf(NULL, 1, flush, &none));
	UNSUPPORTED(doca_log_backend_create_with_syslog("name", &none));
	INVALID(doca_log_backend_set_sdk_level(own, DOCA_LOG_LEVEL_ERROR));
	INVALID(doca_log_backend_set_level_lower_limit(own, 45));
	INVALID(doca_log_level_set_global_upper_limit(0));
	OK(doca_log_level_set_global_upper_limit(DOCA_LOG_LEVEL_CRIT));
	OK(doca_log_level_set_global_sdk_limit(DOCA_LOG_LEVEL_WARNING));
	EXPECT(doca_log_level_get_global_sdk_limit() == DOCA_LOG_LEVEL_WARNING);
	EXPECT(doca_log_level_get_global_upper_limit() == DOCA_LOG_LEVEL_CRIT);
	OK(doca_log_register_source("OTHER", &source));
	OK(doca_log_unregister_source(source));
	INVALID(doca_log(DOCA_LOG_LEVEL_INFO, source, "file", 1, "function", "text"));
	INVALID(doca_log_register_source(NULL, &source));
	DOCA_LOG_WARN("%s the buffer", "to");
	DOCA_LOG_ERR("not there");
	EXPECT(flushed == 1);

	BAD_STATE(doca_argp_start(argc, argv));
	BAD_STATE(doca_argp_param_create(&bad));
	OK(doca_argp_init(NULL, &configuration));
	BAD_STATE(doca_argp_init(NULL, &configuration));
	OK(doca_argp_param_create(&bad));
	GIVES(doca_argp_register_param(bad), DOCA_ERROR_INITIALIZATION);
	OK(doca_argp_param_create(&bad));
	OK(doca_argp_param_destroy(bad));
	UNSUPPORTED(doca_argp_cmd_create(&command));
	doca_argp_set_dpdk_program(NULL);
	parameter("nm", "name", DOCA_ARGP_TYPE_STRING, on_name, true);
	parameter("n", "number", DOCA_ARGP_TYPE_INT, on_number, false);
	parameter("f", "flag", DOCA_ARGP_TYPE_BOOLEAN, on_flag, false);
	parameter("s", "share", DOCA_ARGP_TYPE_DOUBLE, on_share, false);
	OK(doca_argp_register_validation_callback(validate));
	OK(doca_argp_register_version_callback(on_version));
	result = doca_argp_start(argc, argv);
	OK(doca_argp_get_log_level(&level));
	EXPECT((uint32_t)level == doca_log_level_get_global_lower_limit());
	OK(doca_argp_get_sdk_log_level(&level));
	EXPECT(level == DOCA_LOG_LEVEL_WARNING);
	if (result != DOCA_SUCCESS)
		doca_argp_usage();
	OK(doca_argp_destroy());
	BAD_STATE(doca_argp_destroy());
	DOCA_LOG_DBG("verbose");
	DOCA_LOG_TRC("nothing");
	printf("%s: %s %d %d %.2f\n", doca_error_get_name(result), configuration.name, configuration.number,
	       configuration.is_set, configuration.share);
}

/* What dpacc and DOCA_LOG_REGISTER have called before `main` has to do with no card. */
static void children(void)
{
	struct doca_devinfo **devices;
	uint32_t count;
	int status;

	EXPECT(DOCA_VERSION_LTE_CURRENT(2, 7, 0) && !DOCA_VERSION_LTE_CURRENT(99, 0, 0));
	EXPECT(!strcmp(doca_version(), doca_version_runtime()));
	for (int number = 0; number < 2; number++) {
		pid_t pid = fork();

		if (pid == 0) {
			OK(doca_devinfo_create_list(&devices, &count));
			EXPECT(count > 0);
			OK(doca_devinfo_destroy_list(devices));
			exit(EXIT_SUCCESS);
		}
		EXPECT(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
	}
	OK(doca_devinfo_create_list(&devices, &count));
	OK(doca_devinfo_destroy_list(devices));
	/* Now the cards are this process's. */
	pid_t pid = fork();

	if (pid == 0)
		_exit(doca_devinfo_create_list(&devices, &count) == DOCA_ERROR_BAD_STATE ? 7 : 1);
	EXPECT(pid > 0 && waitpid(pid, &status, 0) == pid && WEXITSTATUS(status) == 7);
}

int main(int argc, char **argv)
{
	EXPECT(argc >= 2);
	if (!strcmp(argv[1], "calls"))
		calls();
	else if (!strcmp(argv[1], "rdma"))
		rdma();
	else if (!strcmp(argv[1], "death"))
		death();
	else if (!strcmp(argv[1], "refusals"))
		refusals();
	else if (!strcmp(argv[1], "children"))
		children();
	else
		arguments(argc - 1, argv + 1);
	puts("the program ends well");
	return EXIT_SUCCESS;
}
