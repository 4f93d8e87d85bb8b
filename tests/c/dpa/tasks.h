/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TASKS_H
#define TASKS_H

#include <stdint.h>

#define PARTS 64
#define PART 100

struct tasks {
	uint64_t numbers, sum, done;
};

#endif
