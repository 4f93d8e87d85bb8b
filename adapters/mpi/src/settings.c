/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings of the environment.
 */
#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "shim.h"

shim_settings settings = {.on = true, .nonblocking = true, .progress_thread = true, .functions = UINT32_MAX, .least = 1, .most = UINT64_MAX, .log = LOG_WARN};

void say(int level, const char *format, ...)
{
	if (level > settings.log)
		return;
	char text[1024];
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(text, sizeof text, format, arguments);
	va_end(arguments);
	fprintf(stderr, "flexcast-mpi: %s\n", text);
}

/* A value that it cannot have ends the program before MPI starts: to go on without it would be something else than what was asked for. */
static _Noreturn void refuse(const char *name, const char *value, const char *allowed)
{
	fprintf(stderr, "flexcast-mpi: %s is \"%s\": must be %s; unset it for the default\n", name, value, allowed);
	exit(EXIT_FAILURE);
}

static const char *value_of(const char *name)
{
	const char *value = getenv(name);
	return value && *value ? value : NULL;
}

static void read_switch(const char *name, bool *value)
{
	const char *text = value_of(name);
	if (!text)
		return;
	if (!strcasecmp(text, "on") || !strcmp(text, "1"))
		*value = true;
	else if (!strcasecmp(text, "off") || !strcmp(text, "0"))
		*value = false;
	else
		refuse(name, text, "on or off");
}

static void read_bytes(const char *name, uint64_t *value)
{
	const char *text = value_of(name);
	if (!text)
		return;
	const char *allowed = "a number of bytes, which may end in K, M or G";
	if (!isdigit((unsigned char)*text))
		refuse(name, text, allowed);
	char *end;
	errno = 0;
	unsigned long long number = strtoull(text, &end, 10);
	int shift = 0;
	switch (toupper((unsigned char)*end)) {
	case 'K':
		shift = 10;
		break;
	case 'M':
		shift = 20;
		break;
	case 'G':
		shift = 30;
		break;
	}
	end += shift != 0;
	if (shift && !strcasecmp(end, "iB"))
		end += 2;
	if (errno || *end || number > UINT64_MAX >> shift)
		refuse(name, text, allowed);
	*value = (uint64_t)number << shift;
}

static void read_operations(void)
{
	const char *name = "FLEXCAST_MPI_OPERATIONS";
	const char *text = value_of(name);
	if (!text)
		return;
	settings.functions = 0;
	while (*text) {
		size_t length = strcspn(text, ",");
		int found = F_COUNT;
		for (int function = 0; function < F_COUNT; function++) {
			const char *word = function_word(function);
			if (strlen(word) == length && !strncasecmp(text, word, length))
				found = function;
		}
		if (found == F_COUNT)
			refuse(name, text,
			       "a list of barrier, bcast, allgather, allgatherv, allreduce, reduce, reduce_scatter_block, reduce_scatter, alltoall, "
			       "alltoallv, gather, gatherv, scatter and scatterv, with commas between them");
		settings.functions |= 1u << found;
		text += length;
		text += *text == ',';
	}
}

static void read_connect(void)
{
	const char *text = value_of("FLEXCAST_MPI_CONNECT");
	if (text && !strcasecmp(text, "early"))
		settings.early = true;
	else if (text && strcasecmp(text, "lazy"))
		refuse("FLEXCAST_MPI_CONNECT", text, "early or lazy");
}

static void read_log(void)
{
	static const char *const words[] = {"off", "error", "warn", "info", "debug", "trace"};
	const char *text = value_of("FLEXCAST_LOG");
	for (int level = 0; text && level < 6; level++)
		if (!strcasecmp(text, words[level]))
			settings.log = level;
}

void settings_read(void)
{
	read_log();
	read_switch("FLEXCAST_MPI", &settings.on);
	read_switch("FLEXCAST_MPI_NONBLOCKING", &settings.nonblocking);
	read_connect();
	read_operations();
	read_bytes("FLEXCAST_MPI_MIN_BYTES", &settings.least);
	read_bytes("FLEXCAST_MPI_MAX_BYTES", &settings.most);
	settings.report = value_of("FLEXCAST_MPI_REPORT");
}

uint64_t settings_hash(void)
{
	const uint64_t words[] = {settings.on, settings.nonblocking, process_multiple(), settings.progress_thread, settings.early, settings.functions, settings.least, settings.most, FLEXCAST_ABI_VERSION};
	/* FNV-1a. */
	uint64_t hash = 0xcbf29ce484222325u;
	for (size_t byte = 0; byte < sizeof words; byte++)
		hash = (hash ^ ((const unsigned char *)words)[byte]) * 0x100000001b3u;
	return hash;
}
