/* SPDX-License-Identifier: Apache-2.0 */
/* Stable Rust cannot define variadic functions: these collect the arguments, the rest is Rust (src/call.rs). */
#include <stdarg.h>
#include <stdint.h>

#define DOCA_ALLOW_EXPERIMENTAL_API
#include <doca_dpa.h>

struct flexcast_doca_call {
	void *argbuf;
	void (*pack)(void *argbuf, va_list arguments);
	uint64_t function;
	uint64_t unpack;
};

/* A launch; none is an RPC. */
struct flexcast_doca_launch {
	struct doca_sync_event *wait_event;
	uint64_t wait_threshold;
	struct doca_sync_event *comp_event;
	uint64_t comp_count;
	unsigned int num_threads;
	unsigned int adds;
};

doca_error_t flexcast_doca_call_begin(struct doca_dpa *dpa, doca_dpa_func_t *func, uint64_t *retval,
				      const struct flexcast_doca_launch *launch, struct flexcast_doca_call *call);
doca_error_t flexcast_doca_call_finish(struct doca_dpa *dpa, uint64_t *retval, const struct flexcast_doca_launch *launch,
				       struct flexcast_doca_call *call);

doca_error_t doca_dpa_rpc(struct doca_dpa *dpa, doca_dpa_func_t *func, uint64_t *retval, ...)
{
	struct flexcast_doca_call call;
	doca_error_t result = flexcast_doca_call_begin(dpa, func, retval, NULL, &call);
	va_list arguments;

	if (result != DOCA_SUCCESS)
		return result;
	va_start(arguments, retval);
	call.pack(call.argbuf, arguments);
	va_end(arguments);
	return flexcast_doca_call_finish(dpa, retval, NULL, &call);
}

doca_error_t doca_dpa_kernel_launch_update_set(struct doca_dpa *dpa, struct doca_sync_event *wait_event,
					       uint64_t wait_threshold, struct doca_sync_event *comp_event,
					       uint64_t comp_count, unsigned int num_threads, doca_dpa_func_t *func, ...)
{
	struct flexcast_doca_launch launch = { wait_event, wait_threshold, comp_event, comp_count, num_threads, 0 };
	struct flexcast_doca_call call;
	doca_error_t result = flexcast_doca_call_begin(dpa, func, NULL, &launch, &call);
	va_list arguments;

	if (result != DOCA_SUCCESS)
		return result;
	va_start(arguments, func);
	call.pack(call.argbuf, arguments);
	va_end(arguments);
	return flexcast_doca_call_finish(dpa, NULL, &launch, &call);
}

doca_error_t doca_dpa_kernel_launch_update_add(struct doca_dpa *dpa, struct doca_sync_event *wait_event,
					       uint64_t wait_threshold, struct doca_sync_event *comp_event,
					       uint64_t comp_count, unsigned int num_threads, doca_dpa_func_t *func, ...)
{
	struct flexcast_doca_launch launch = { wait_event, wait_threshold, comp_event, comp_count, num_threads, 1 };
	struct flexcast_doca_call call;
	doca_error_t result = flexcast_doca_call_begin(dpa, func, NULL, &launch, &call);
	va_list arguments;

	if (result != DOCA_SUCCESS)
		return result;
	va_start(arguments, func);
	call.pack(call.argbuf, arguments);
	va_end(arguments);
	return flexcast_doca_call_finish(dpa, NULL, &launch, &call);
}
