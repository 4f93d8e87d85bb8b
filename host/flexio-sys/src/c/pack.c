/* SPDX-License-Identifier: Apache-2.0 */
/* Stable Rust can call variadic functions but not read a va_list, so this one function is C. */
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

/* Pack function (flexio_func_arg_pack_fn_t) of every RPC with one 64-bit argument. */
void flexcast_pack_u64(void *argbuf, va_list arguments);

void flexcast_pack_u64(void *argbuf, va_list arguments)
{
	uint64_t value = va_arg(arguments, uint64_t);

	memcpy(argbuf, &value, sizeof(value));
}
