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

static doca_error_t call_with(struct doca_dpa *dpa, doca_dpa_func_t *func, uint64_t *retval,
			      const struct flexcast_doca_launch *launch, va_list arguments)
{
	struct flexcast_doca_call call;
	doca_error_t result = flexcast_doca_call_begin(dpa, func, retval, launch, &call);

	if (result != DOCA_SUCCESS)
		return result;
	call.pack(call.argbuf, arguments);
	return flexcast_doca_call_finish(dpa, retval, launch, &call);
}

/* The body of a variadic function whose arguments for the kernel come after `last`. */
#define CALL_WITH(last, dpa, func, retval, launch)                            \
	do {                                                                  \
		doca_error_t result;                                          \
		va_list arguments;                                            \
									      \
		va_start(arguments, last);                                    \
		result = call_with(dpa, func, retval, launch, arguments);     \
		va_end(arguments);                                            \
		return result;                                                \
	} while (0)

doca_error_t doca_dpa_rpc(struct doca_dpa *dpa, doca_dpa_func_t *func, uint64_t *retval, ...)
{
	CALL_WITH(retval, dpa, func, retval, NULL);
}

doca_error_t doca_dpa_kernel_launch_update_set(struct doca_dpa *dpa, struct doca_sync_event *wait_event,
					       uint64_t wait_threshold, struct doca_sync_event *comp_event,
					       uint64_t comp_count, unsigned int num_threads, doca_dpa_func_t *func, ...)
{
	struct flexcast_doca_launch launch = { wait_event, wait_threshold, comp_event, comp_count, num_threads, 0 };

	CALL_WITH(func, dpa, func, NULL, &launch);
}

doca_error_t doca_dpa_kernel_launch_update_add(struct doca_dpa *dpa, struct doca_sync_event *wait_event,
					       uint64_t wait_threshold, struct doca_sync_event *comp_event,
					       uint64_t comp_count, unsigned int num_threads, doca_dpa_func_t *func, ...)
{
	struct flexcast_doca_launch launch = { wait_event, wait_threshold, comp_event, comp_count, num_threads, 1 };

	CALL_WITH(func, dpa, func, NULL, &launch);
}
