/* SPDX-License-Identifier: Apache-2.0 */
/* Stable Rust cannot define variadic functions: this one makes the text, the rest is Rust (src/log.rs). */
#include <stdarg.h>
#include <stdlib.h>

#define DOCA_ALLOW_EXPERIMENTAL_API
#include <doca_log.h>

doca_error_t flexcast_doca_log(uint32_t level, int source, int line, const char *func, const char *text);
void flexcast_doca_streams(FILE **out, FILE **err);

doca_error_t doca_log(uint32_t level, int source, const char *fname, int line, const char *func, const char *format, ...)
{
	va_list arguments;
	doca_error_t result;
	char *text;
	int length;

	(void)fname;
	if (format == NULL)
		return flexcast_doca_log(level, source, line, func, NULL);
	va_start(arguments, format);
	length = vsnprintf(NULL, 0, format, arguments);
	va_end(arguments);
	text = length < 0 ? NULL : malloc((size_t)length + 1);
	if (text == NULL)
		return DOCA_ERROR_NO_MEMORY;
	va_start(arguments, format);
	vsnprintf(text, (size_t)length + 1, format, arguments);
	va_end(arguments);
	result = flexcast_doca_log(level, source, line, func, text);
	free(text);
	return result;
}

/* The streams are macros of the C library's headers. */
void flexcast_doca_streams(FILE **out, FILE **err)
{
	*out = stdout;
	*err = stderr;
}
