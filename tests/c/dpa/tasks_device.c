/* SPDX-License-Identifier: Apache-2.0 */
/* Tasks of a command queue: each adds up its part of an array. */
#include <dpaintrin.h>
#include <flexio_dev.h>

#include "tasks.h"

static struct tasks *job;

__dpa_rpc__ uint64_t tasks_init(uint64_t data)
{
	job = (struct tasks *)data;
	return 0;
}

__dpa_global__ void tasks_part(uint64_t part)
{
	const uint32_t *numbers = (const uint32_t *)job->numbers + part * PART;
	uint64_t sum = 0;

	for (int i = 0; i < PART; i++)
		sum += numbers[i];
	__atomic_fetch_add(&job->sum, sum, __ATOMIC_RELAXED);
	__atomic_fetch_add(&job->done, 1, __ATOMIC_RELEASE);
}

__dpa_rpc__ uint64_t tasks_done(void)
{
	return __atomic_load_n(&job->done, __ATOMIC_ACQUIRE);
}

__dpa_rpc__ uint64_t tasks_sum(void)
{
	return __atomic_load_n(&job->sum, __ATOMIC_RELAXED);
}
