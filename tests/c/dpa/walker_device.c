/* SPDX-License-Identifier: Apache-2.0 */
/* A micro-benchmark: follows a chain of pointers through memory of the DPA, and times it. */
#include <dpaintrin.h>
#include <flexio_dev.h>

__dpa_rpc__ uint64_t walker_walk(uint64_t first, uint32_t steps, uint64_t cycles)
{
	volatile uint64_t *place = (volatile uint64_t *)first;
	uint64_t start = __dpa_thread_cycles();

	for (uint32_t i = 0; i < steps; i++)
		place = (volatile uint64_t *)*place;
	*(uint64_t *)cycles = __dpa_thread_cycles() - start;
	return (uint64_t)place;
}

__dpa_rpc__ uint64_t walker_read(uint64_t address)
{
	return *(uint64_t *)address;
}
