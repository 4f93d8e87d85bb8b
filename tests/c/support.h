/* SPDX-License-Identifier: Apache-2.0 */
/* Checks that end the program with the place and the text of what did not hold. */
#ifndef SUPPORT_H
#define SUPPORT_H

#include <inttypes.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <libflexio/flexio.h>

#define CHECK(condition)                                                                          \
	do {                                                                                      \
		if (!(condition)) {                                                               \
			fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
			exit(1);                                                                  \
		}                                                                                 \
	} while (0)

#define OK(call) CHECK((call) == FLEXIO_STATUS_SUCCESS)
#define FAILS(call) CHECK((call) == FLEXIO_STATUS_FAILED)

static inline struct ibv_context *open_card(int index)
{
	int count = 0;
	struct ibv_device **list = ibv_get_device_list(&count);
	struct ibv_context *context;

	CHECK(list && index < count && !list[count]);
	context = ibv_open_device(list[index]);
	CHECK(context);
	printf("opened %s\n", ibv_get_device_name(list[index]));
	ibv_free_device_list(list);
	return context;
}

/* The bytes of a file, to be freed. */
static inline void *read_file(const char *path, size_t *bytes)
{
	FILE *file = fopen(path, "rb");
	void *content;
	long end;

	CHECK(file && !fseek(file, 0, SEEK_END));
	end = ftell(file);
	CHECK(end > 0 && !fseek(file, 0, SEEK_SET));
	content = malloc((size_t)end);
	CHECK(content && fread(content, 1, (size_t)end, file) == (size_t)end);
	fclose(file);
	*bytes = (size_t)end;
	return content;
}

static inline struct flexio_app *create_app(char *name, const char *path)
{
	char no_signature[] = "";
	struct flexio_app_attr attr = { .app_name = name, .app_sig_sec_name = no_signature };
	struct flexio_app *app = NULL;
	void *elf = read_file(path, &attr.app_bsize);

	attr.app_ptr = elf;
	OK(flexio_app_create(&attr, &app));
	/* The library has its own copy. */
	memset(elf, 0, attr.app_bsize);
	free(elf);
	return app;
}

/* Every RPC of the images takes one 64-bit argument. */
static inline void pack_u64(void *argbuf, va_list arguments)
{
	uint64_t value = va_arg(arguments, uint64_t);

	memcpy(argbuf, &value, sizeof(value));
}

/* Keys of RPCs: only the addresses count. */
static inline void bring_up(void)
{
}

static inline void echo(void)
{
}

#endif
