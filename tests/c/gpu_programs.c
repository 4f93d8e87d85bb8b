/* SPDX-License-Identifier: Apache-2.0 */
// The GPU's programs of a sparse AllReduce's worker (host/cuda/src/programs.cu), run by threads of a processor: one
// thread for each of a thread block, one thread block after another. Every byte and bit is checked against loops, for
// lengths, block sizes, zeros and addresses of all kinds.

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct three {
	unsigned x;
};

static _Thread_local struct three threadIdx, blockIdx;
static struct three blockDim, gridDim;

typedef struct {
	unsigned x, y, z, w;
} __attribute__((aligned(16))) uint4;

static pthread_barrier_t together;
static atomic_uint any_of[2];

static int __syncthreads_or(int predicate)
{
	static _Thread_local unsigned turn;
	atomic_uint *any = &any_of[turn++ % 2];
	if (predicate)
		atomic_store(any, 1);
	pthread_barrier_wait(&together);
	int result = (int)atomic_load(any);
	// The other one is used next: nobody is late for this one behind the second barrier.
	pthread_barrier_wait(&together);
	atomic_store(any, 0);
	return result;
}

static void atomicOr(unsigned *word, unsigned bits)
{
	__atomic_fetch_or(word, bits, __ATOMIC_RELAXED);
}

#define PROGRAM static void
#define PART static unsigned
#include "../../host/cuda/src/programs.cu"

enum { MOST = 70000, THREADS = 5, THREAD_BLOCKS = 3 };

// One launch.
static struct {
	int scans;
	unsigned char *array, *buffer;
	unsigned long long bytes;
	unsigned block_bytes;
	unsigned *bits;
	unsigned clears;
} job;

static void *thread(void *number)
{
	threadIdx.x = (unsigned)(size_t)number;
	for (unsigned block = 0; block < gridDim.x; block++) {
		blockIdx.x = block;
		if (job.scans)
			flexcast_scan(job.array, job.buffer, job.bytes, job.block_bytes, job.bits);
		else
			flexcast_copy_back(job.array, job.buffer, job.bytes, job.block_bytes, job.bits, job.clears);
	}
	return NULL;
}

static void launch(void)
{
	pthread_t threads[THREADS];
	for (size_t i = 0; i < THREADS; i++)
		if (pthread_create(&threads[i], NULL, thread, (void *)i))
			exit(2);
	for (size_t i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
}

static unsigned draw(void)
{
	static unsigned long long state = 88172645463325252ull;
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (unsigned)(state >> 16);
}

static int fails(const char *what, unsigned long long at)
{
	printf("%s at %llu: %llu bytes, blocks of %u, array %zu, clears %u\n", what, at, job.bytes, job.block_bytes,
	       (size_t)job.array % 16, job.clears);
	return 1;
}

// An array `shift` bytes behind a multiple of 16.
static int check(unsigned long long bytes, unsigned block_bytes, unsigned shift, unsigned zeros, unsigned clears)
{
	static unsigned char arrays[MOST + 64] __attribute__((aligned(16))), before[MOST + 64];
	static unsigned char buffer[MOST + 64] __attribute__((aligned(16)));
	static unsigned bits[MOST / 4 / 32 + 1];
	unsigned char *array = arrays + shift;
	unsigned long long blocks = (bytes + block_bytes - 1) / block_bytes, whole = blocks * block_bytes;
	memset(buffer, 0xe7, sizeof buffer);
	memset(bits, 0, sizeof bits);
	for (unsigned long long i = 0; i < sizeof arrays; i++)
		arrays[i] = 0xa5;
	for (unsigned long long block = 0; block < blocks; block++) {
		unsigned long long first = block * block_bytes, end = first + block_bytes < bytes ? first + block_bytes : bytes;
		memset(array + first, 0, end - first);
		// One bit somewhere is enough.
		if (draw() % 100 >= zeros)
			array[first + draw() % (end - first)] = (unsigned char)(1u << draw() % 8);
	}
	memcpy(before, arrays, sizeof before);
	job.scans = 1, job.array = array, job.buffer = buffer, job.bytes = bytes, job.block_bytes = block_bytes;
	job.bits = bits, job.clears = clears;
	launch();
	if (memcmp(before, arrays, sizeof before))
		return fails("the scan has changed the array", 0);
	for (unsigned long long i = 0; i < sizeof buffer; i++)
		if (buffer[i] != (i < bytes ? array[i] : i < whole ? 0 : 0xe7))
			return fails("the buffer differs", i);
	for (unsigned long long block = 0; block < sizeof bits / 4 * 32; block++) {
		unsigned any = 0;
		for (unsigned long long i = block * block_bytes; i < (block + 1) * block_bytes && i < bytes; i++)
			any |= array[i];
		if ((bits[block / 32] >> block % 32 & 1) != (any != 0))
			return fails("a bit differs", block);
	}
	// Sums come for some blocks.
	for (unsigned long long i = 0; i < whole; i++)
		buffer[i] = (unsigned char)draw();
	memset(bits, 0, sizeof bits);
	for (unsigned long long block = 0; block < blocks; block++)
		bits[block / 32] |= (draw() % 2) << block % 32;
	job.scans = 0;
	launch();
	for (unsigned long long i = 0; i < sizeof arrays; i++) {
		unsigned long long at = i - shift;
		unsigned char expected = before[i];
		if (i >= shift && at < bytes) {
			unsigned long long block = at / block_bytes;
			if (bits[block / 32] >> block % 32 & 1)
				expected = buffer[at];
			else if (clears)
				expected = 0;
		}
		if (arrays[i] != expected)
			return fails("the array differs", i);
	}
	return 0;
}

int main(void)
{
	static const unsigned long long lengths[] = { 1, 15, 16, 255, 256, 257, 1000, 8191, 8192, 33000, 65536 };
	static const unsigned block_sizes[] = { 4, 12, 16, 256, 1024, 4096 };
	int failures = 0, cases = 0;
	blockDim.x = THREADS, gridDim.x = THREAD_BLOCKS;
	pthread_barrier_init(&together, NULL, THREADS);
	for (size_t length = 0; length < sizeof lengths / sizeof *lengths; length++)
		for (size_t size = 0; size < sizeof block_sizes / sizeof *block_sizes; size++)
			for (unsigned kind = 0; kind < 4; kind++) {
				// Thread blocks of a GPU pass over many blocks; here barriers take their time.
				if (lengths[length] / block_sizes[size] > 600)
					continue;
				unsigned shift = kind % 2 ? 4 + 3 * (kind / 2) : 0;
				failures += check(lengths[length], block_sizes[size], shift, 30 * kind, kind / 2);
				cases++;
			}
	if (!failures)
		printf("%d cases right\n", cases);
	return failures != 0;
}
