/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters of calls, and how they are reported.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shim.h"

static struct {
	atomic_uint_least64_t calls[REASON_COUNT];
	atomic_uint_least64_t bytes;
} counters[F_COUNT][FORM_COUNT];

static const char *const names[F_COUNT][FORM_COUNT] = {
#define X(name, small, operation) {"MPI_" #name, "MPI_I" #small, "MPI_" #name "_init"},
	FUNCTIONS(X)
#undef X
};

static const char *const words[F_COUNT] = {
#define X(name, small, operation) #small,
	FUNCTIONS(X)
#undef X
};

static const char *const reasons[REASON_COUNT] = {
	"taken",
#define X(name, text) text,
	REASONS(X)
#undef X
};

const char *function_name(enum function function, enum form form)
{
	return names[function][form];
}

const char *function_word(enum function function)
{
	return words[function];
}

void count_call(enum function function, enum form form, enum reason reason, uint64_t bytes)
{
	atomic_fetch_add_explicit(&counters[function][form].calls[reason], 1, memory_order_relaxed);
	if (reason == TAKEN)
		atomic_fetch_add_explicit(&counters[function][form].bytes, bytes, memory_order_relaxed);
}

/* Calls that went to PMPI, and the text "reason N, reason N". */
static uint64_t fallen_back(int function, int form, char *text, size_t length)
{
	uint64_t all = 0;
	text[0] = 0;
	for (int reason = TAKEN + 1; reason < REASON_COUNT; reason++) {
		uint64_t calls = atomic_load(&counters[function][form].calls[reason]);
		size_t used = strlen(text);
		if (calls)
			snprintf(text + used, length - used, "%s%s %" PRIu64, used ? ", " : "", reasons[reason], calls);
		all += calls;
	}
	return all;
}

void statistics_print(void)
{
	fprintf(stderr, "flexcast-mpi: calls of rank 0\n%-26s %12s %16s %12s  %s\n", "function", "taken", "bytes", "to PMPI", "why");
	for (int function = 0; function < F_COUNT; function++)
		for (int form = 0; form < FORM_COUNT; form++) {
			char why[512];
			uint64_t others = fallen_back(function, form, why, sizeof why);
			uint64_t taken = atomic_load(&counters[function][form].calls[TAKEN]);
			if (taken || others)
				fprintf(stderr, "%-26s %12" PRIu64 " %16" PRIu64 " %12" PRIu64 "  %s\n", names[function][form], taken,
				        (uint64_t)atomic_load(&counters[function][form].bytes), others, why);
		}
}

/* The file's name with the rank in the place of %r. */
static char *file_name(const char *pattern, int rank)
{
	const char *place = strstr(pattern, "%r");
	size_t length = strlen(pattern) + 16;
	char *name = malloc(length);
	if (name && place)
		snprintf(name, length, "%.*s%d%s", (int)(place - pattern), pattern, rank, place + 2);
	else if (name)
		snprintf(name, length, "%s", pattern);
	return name;
}

void statistics_write(int rank)
{
	if (!settings.report || (rank && !strstr(settings.report, "%r")))
		return;
	char *name = file_name(settings.report, rank);
	FILE *file = name ? fopen(name, "w") : NULL;
	if (!file) {
		say(LOG_ERROR, "the report %s cannot be written: see FLEXCAST_MPI_REPORT", name ? name : settings.report);
		free(name);
		return;
	}
	for (int function = 0; function < F_COUNT; function++)
		for (int form = 0; form < FORM_COUNT; form++) {
			char why[512];
			uint64_t others = fallen_back(function, form, why, sizeof why);
			uint64_t taken = atomic_load(&counters[function][form].calls[TAKEN]);
			if (!taken && !others)
				continue;
			fprintf(file, "{\"rank\":%d,\"function\":\"%s\",\"taken\":%" PRIu64 ",\"bytes\":%" PRIu64 ",\"fallen_back\":%" PRIu64 ",\"reasons\":{", rank, names[function][form],
			        taken, (uint64_t)atomic_load(&counters[function][form].bytes), others);
			const char *comma = "";
			for (int reason = TAKEN + 1; reason < REASON_COUNT; reason++) {
				uint64_t calls = atomic_load(&counters[function][form].calls[reason]);
				if (calls) {
					fprintf(file, "%s\"%s\":%" PRIu64, comma, reasons[reason], calls);
					comma = ",";
				}
			}
			fprintf(file, "}}\n");
		}
	if (ferror(file) | fclose(file))
		say(LOG_ERROR, "the report %s is not complete: see whether the disk is full", name);
	free(name);
}
