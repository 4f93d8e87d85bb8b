/* SPDX-License-Identifier: Apache-2.0 */
/* Host side of the walker: a ring of 1,024 pointers, each a line of 64 bytes, in an order of no use to a prefetcher. */
#include "host.h"

extern struct flexio_app *walker;
extern flexio_func_t walker_walk, walker_read;

enum { LINES = 1024, STEPS = 3000, STRIDE = 389, LINE_WORDS = 8 };

int main(void)
{
	static uint64_t chain[LINES * LINE_WORDS];
	struct host host = start(walker);
	uint64_t lines = device_zeros(&host, sizeof chain), cycles = device_zeros(&host, 8), end, taken;

	for (uint64_t line = 0; line < LINES; line++)
		chain[line * LINE_WORDS] = lines + (line + STRIDE) % LINES * 64;
	OK(flexio_host2dev_memcpy(host.process, chain, sizeof chain, lines));
	OK(flexio_process_call(host.process, &walker_walk, &end, lines, (uint32_t)STEPS, cycles));
	EXPECT(end == lines + (uint64_t)STEPS * STRIDE % LINES * 64);
	OK(flexio_process_call(host.process, &walker_read, &taken, cycles));
	/* A load and a branch at least. */
	EXPECT(taken >= 2 * STEPS);
	printf("%d steps of %lu cycles each\n", STEPS, (unsigned long)(taken / STEPS));
	OK(flexio_buf_dev_free(host.process, lines));
	OK(flexio_buf_dev_free(host.process, cycles));
	stop(&host);
	puts("the walker ends well");
	return EXIT_SUCCESS;
}
