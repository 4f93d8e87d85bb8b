/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What programs that test the C interface of the collective library expect of a call, and how often they were wrong.
 */
#ifndef FLEXCAST_TESTS_EXPECT_H
#define FLEXCAST_TESTS_EXPECT_H

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "flexcast.h"

static atomic_int wrong;

/* Whether a call returned what it should, and its text has a word; `word` may be NULL. */
static void expect(const char *file, int line, const char *call, flexcast_status got, flexcast_status wanted, const char *word)
{
    const char *text = flexcast_last_error();
    if (got == wanted && (word == NULL || strstr(text, word) != NULL))
        return;
    fprintf(stderr, "%s:%d: %s: %d (%s), not %d; text: \"%s\", wanted: \"%s\"\n", file, line, call, (int)got,
            flexcast_strerror((int)got), (int)wanted, text, word ? word : "");
    wrong++;
}

#define REFUSED(call, status, word) expect(__FILE__, __LINE__, #call, call, status, word)
#define OK(call) REFUSED(call, FLEXCAST_OK, NULL)
#define IS(condition)                                                                                                                    \
    do {                                                                                                                                 \
        if (!(condition)) {                                                                                                              \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                                              \
            wrong++;                                                                                                                     \
        }                                                                                                                                \
    } while (0)

#endif
