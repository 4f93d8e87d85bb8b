/* SPDX-License-Identifier: Apache-2.0 */
// Programs of a sparse AllReduce's worker: one that scans and copies an array, and one that copies sums back. Compiled at run time by NVRTC.
// Both get the first byte of a stretch of blocks, of which the last may be short, and its place in the buffer. A block is the work of one thread block at a time.
// Written in what C and C++ have in common, so that a C compiler can check them without a GPU (tests/c/gpu_programs.c).

#ifndef PROGRAM
#define PROGRAM extern "C" __global__ void
#define PART static __device__ unsigned
#endif

// Copies `len` bytes, and returns bits that are all zero only if all those are that this thread has copied. 16 bytes at a time where both places allow it.
PART copy(unsigned char *to, const unsigned char *from, unsigned len)
{
	unsigned aligned = (((unsigned long long)to | (unsigned long long)from) & 15) == 0;
	unsigned vectors = aligned ? len / 16 : 0;
	unsigned any = 0;
	for (unsigned i = threadIdx.x; i < vectors; i += blockDim.x) {
		uint4 vector = ((const uint4 *)from)[i];
		((uint4 *)to)[i] = vector;
		any |= vector.x | vector.y | vector.z | vector.w;
	}
	for (unsigned i = 16 * vectors + threadIdx.x; i < len; i += blockDim.x) {
		unsigned char byte = from[i];
		to[i] = byte;
		any |= byte;
	}
	return any;
}

// One pass over the array: each block goes to its place in the buffer, with zeros behind a short one, and its bit of `found`, which is zero before, is set if any bit of it is.
PROGRAM flexcast_scan(const unsigned char *array, unsigned char *buffer, unsigned long long bytes,
		      unsigned block_bytes, unsigned *found)
{
	unsigned long long blocks = (bytes + block_bytes - 1) / block_bytes;
	for (unsigned long long block = blockIdx.x; block < blocks; block += gridDim.x) {
		unsigned long long first = block * block_bytes;
		unsigned len = bytes - first < block_bytes ? (unsigned)(bytes - first) : block_bytes;
		unsigned any = copy(buffer + first, array + first, len);
		for (unsigned i = len + threadIdx.x; i < block_bytes; i += blockDim.x)
			buffer[first + i] = 0;
		if (__syncthreads_or(any != 0) && threadIdx.x == 0)
			atomicOr(found + block / 32, 1u << block % 32);
	}
}

// Copies the blocks that have a bit in `sums` from the buffer to the array, as far as they are in it. The others become zero there if `clears`, and stay as they are if not.
PROGRAM flexcast_copy_back(unsigned char *array, const unsigned char *buffer, unsigned long long bytes,
			   unsigned block_bytes, const unsigned *sums, unsigned clears)
{
	unsigned long long blocks = (bytes + block_bytes - 1) / block_bytes;
	for (unsigned long long block = blockIdx.x; block < blocks; block += gridDim.x) {
		unsigned long long first = block * block_bytes;
		unsigned len = bytes - first < block_bytes ? (unsigned)(bytes - first) : block_bytes;
		if (sums[block / 32] >> block % 32 & 1) {
			copy(array + first, buffer + first, len);
		} else if (clears) {
			for (unsigned i = threadIdx.x; i < len; i += blockDim.x)
				array[first + i] = 0;
		}
	}
}
