/* SPDX-License-Identifier: Apache-2.0 */
/* Stable Rust cannot define variadic functions: this one collects the arguments, the rest is Rust (src/call.rs). */
#include <libflexio/flexio.h>

struct flexcast_emu_call {
	void *argbuf;
	flexio_func_arg_pack_fn_t *pack;
	uint64_t function;
	uint64_t unpack;
};

flexio_status flexcast_emu_call_begin(struct flexio_process *process, flexio_func_t *stub, uint64_t *func_ret,
				      struct flexcast_emu_call *call);
flexio_status flexcast_emu_call_finish(struct flexio_process *process, uint64_t *func_ret,
				       struct flexcast_emu_call *call);

flexio_status flexio_process_call(struct flexio_process *process, flexio_func_t *host_stub_func, uint64_t *func_ret, ...)
{
	struct flexcast_emu_call call;
	flexio_status status = flexcast_emu_call_begin(process, host_stub_func, func_ret, &call);
	va_list arguments;

	if (status != FLEXIO_STATUS_SUCCESS)
		return status;
	va_start(arguments, func_ret);
	call.pack(call.argbuf, arguments);
	va_end(arguments);
	return flexcast_emu_call_finish(process, func_ret, &call);
}
