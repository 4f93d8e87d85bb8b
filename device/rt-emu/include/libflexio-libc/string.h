/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of <string.h> that public programs call. */
#ifndef FLEXIO_LIBC_STRING_H
#define FLEXIO_LIBC_STRING_H

#include <stddef.h>

/* In the device library: compilers call them, too. */
void *memcpy(void *dest, const void *source, size_t size);
void *memmove(void *dest, const void *source, size_t size);
void *memset(void *dest, int byte, size_t size);
int memcmp(const void *left, const void *right, size_t size);
size_t strlen(const char *text);

static inline int strncmp(const char *left, const char *right, size_t size)
{
	for (; size > 0; left++, right++, size--)
		if (*left != *right || !*left)
			return (unsigned char)*left - (unsigned char)*right;
	return 0;
}

static inline int strcmp(const char *left, const char *right)
{
	return strncmp(left, right, (size_t)-1);
}

static inline char *strncpy(char *dest, const char *source, size_t size)
{
	for (size_t at = 0; at < size; at++) {
		dest[at] = *source;
		source += *source != 0;
	}
	return dest;
}

static inline char *strcpy(char *dest, const char *source)
{
	return memcpy(dest, source, strlen(source) + 1);
}

static inline char *strchr(const char *text, int byte)
{
	for (; *text != (char)byte; text++)
		if (!*text)
			return NULL;
	return (char *)text;
}

static inline char *strrchr(const char *text, int byte)
{
	const char *found = NULL;

	for (; *text; text++)
		if (*text == (char)byte)
			found = text;
	return (char *)((char)byte ? found : text);
}

#endif
