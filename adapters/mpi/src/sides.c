/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of the program as blocks of bytes one after another: itself, where it is so, or a packed copy.
 *
 * Whether a copy is made is a matter of this rank alone: what Flexcast is asked for depends on the bytes of the blocks, and those are alike on
 * all ranks, however each lays out its data.
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "shim.h"

/* Pieces that PMPI_Pack, which counts in int, gets at a time. */
#define PIECE_BYTES ((size_t)1 << 30)

static bool is_bare(MPI_Datatype type, int depth);

/* The type that a contiguous or duplicated one is made of. */
static bool part_is_bare(MPI_Datatype type, int depth)
{
	MPI_Datatype part;
	bool bare, predefined;
	int integers, addresses, parts, combiner;
#if ABI_LARGE_COUNTS
	MPI_Count many_integers, many_addresses, counts, many_parts, of[2];
	int lengths[2];
	MPI_Aint places[2];
	if (PMPI(Type_get_envelope_c)(type, &many_integers, &many_addresses, &counts, &many_parts, &combiner) || many_integers > 2 || many_addresses > 2 || counts > 2 || many_parts != 1 ||
	    PMPI(Type_get_contents_c)(type, many_integers, many_addresses, counts, many_parts, lengths, places, of, &part))
		return false;
	predefined = !PMPI(Type_get_envelope_c)(part, &many_integers, &many_addresses, &counts, &many_parts, &combiner) && combiner == MPI_COMBINER_NAMED;
	(void)integers, (void)addresses, (void)parts;
#else
	int lengths[2];
	MPI_Aint places[2];
	if (PMPI(Type_get_envelope)(type, &integers, &addresses, &parts, &combiner) || integers > 2 || addresses > 2 || parts != 1 ||
	    PMPI(Type_get_contents)(type, integers, addresses, parts, lengths, places, &part))
		return false;
	predefined = !PMPI(Type_get_envelope)(part, &integers, &addresses, &parts, &combiner) && combiner == MPI_COMBINER_NAMED;
#endif
	bare = is_bare(part, depth + 1);
	if (!predefined)
		PMPI(Type_free)(&part);
	return bare;
}

/* Whether the bytes of elements lie one after another, from the element's address on, in the order in which they are packed. */
static bool is_bare(MPI_Datatype type, int depth)
{
	MPI_Count size, lower, extent, true_lower, true_extent;
	int combiner;
	if (depth > 8 || PMPI(Type_size_x)(type, &size) || PMPI(Type_get_extent_x)(type, &lower, &extent) || PMPI(Type_get_true_extent_x)(type, &true_lower, &true_extent))
		return false;
	if (size != extent || true_lower || true_extent != extent)
		return false;
#if ABI_LARGE_COUNTS
	MPI_Count integers, addresses, counts, parts;
	if (PMPI(Type_get_envelope_c)(type, &integers, &addresses, &counts, &parts, &combiner))
		return false;
#else
	int integers, addresses, parts;
	if (PMPI(Type_get_envelope)(type, &integers, &addresses, &parts, &combiner))
		return false;
#endif
	if (combiner == MPI_COMBINER_NAMED)
		return true;
	return (combiner == MPI_COMBINER_CONTIGUOUS || combiner == MPI_COMBINER_DUP) && part_is_bare(type, depth);
}

bool side_open(side *side, const void *user, MPI_Datatype type, int blocks)
{
	MPI_Count lower;
	memset(side, 0, sizeof *side);
	side->user = (char *)user;
	side->type = type;
	side->blocks = blocks;
	if (!type_size(type, &side->element) || PMPI(Type_get_extent_x)(type, &lower, &side->extent))
		return false;
	side->counts = calloc((size_t)blocks, 2 * sizeof *side->counts + 2 * sizeof *side->bytes);
	if (!side->counts)
		return false;
	side->places = side->counts + blocks;
	side->bytes = (size_t *)(side->places + blocks);
	side->offsets = side->bytes + blocks;
	return true;
}

void side_block(side *side, int block, MPI_Count count, MPI_Count displacement)
{
	side->counts[block] = count;
	side->places[block] = displacement;
}

bool side_lay(side *side)
{
	bool together = true, first = true;
	MPI_Count start = 0, next = 0;
	for (int block = 0; block < side->blocks; block++) {
		MPI_Count count = side->counts[block], place, length;
		if (count < 0 || !multiply((size_t)count, side->element, &side->bytes[block]) || __builtin_mul_overflow(side->places[block], side->extent, &place) ||
		    __builtin_mul_overflow(count, side->extent, &length) || __builtin_add_overflow(side->total, side->bytes[block], &side->total))
			return false;
		side->places[block] = place;
		side->offsets[block] = side->total - side->bytes[block];
		if (!side->bytes[block])
			continue;
		if (first)
			start = place;
		else
			together = together && place == next;
		first = false;
		next = place + length;
	}
	if (side->total > PTRDIFF_MAX)
		return false;
	if (!side->total) {
		/* Lists of nothing still have an address. */
		static char nothing;
		side->memory = &nothing;
		return true;
	}
	if (together && is_bare(side->type, 0)) {
		side->memory = side->user + start;
		return true;
	}
	side->memory = malloc(side->total);
	side->copied = side->memory != NULL;
	return side->copied;
}

typedef int convert(char *user, MPI_Count count, MPI_Datatype type, char *packed, size_t bytes);

static int pack(char *user, MPI_Count count, MPI_Datatype type, char *packed, size_t bytes)
{
#if ABI_LARGE_COUNTS
	MPI_Count position = 0;
	return PMPI(Pack_c)(user, count, type, packed, (MPI_Count)bytes, &position, MPI_COMM_SELF) || position != (MPI_Count)bytes;
#else
	int position = 0;
	return bytes > INT_MAX || PMPI(Pack)(user, (int)count, type, packed, (int)bytes, &position, MPI_COMM_SELF) || position != (int)bytes;
#endif
}

static int unpack(char *user, MPI_Count count, MPI_Datatype type, char *packed, size_t bytes)
{
#if ABI_LARGE_COUNTS
	MPI_Count position = 0;
	return PMPI(Unpack_c)(packed, (MPI_Count)bytes, &position, user, count, type, MPI_COMM_SELF);
#else
	int position = 0;
	return bytes > INT_MAX || PMPI(Unpack)(packed, (int)bytes, &position, user, (int)count, type, MPI_COMM_SELF);
#endif
}

/*
 * Elements whose type has the addresses (MPI_BOTTOM): the same bytes, from the lowest of these addresses on. MPICH 4.0
 * refuses to pack from a null pointer, whatever the type.
 */
static int convert_absolute(convert *convert, MPI_Count count, MPI_Datatype type, char *packed, size_t bytes)
{
	MPI_Count lowest, extent;
	MPI_Datatype moved;
	/* A piece has no more elements than bytes. */
	const int all = (int)count;
	if (PMPI(Type_get_true_extent_x)(type, &lowest, &extent))
		return 1;
	const MPI_Aint place = (MPI_Aint)-lowest;
	if (PMPI(Type_create_hindexed)(1, &all, &place, type, &moved))
		return 1;
	int failed = PMPI(Type_commit)(&moved) || convert((char *)(uintptr_t)lowest, 1, moved, packed, bytes);
	PMPI(Type_free)(&moved);
	return failed;
}

static bool copy(side *side, int first, int blocks, convert *convert)
{
	if (!side->copied)
		return true;
	MPI_Count most = side->element < PIECE_BYTES ? (MPI_Count)(PIECE_BYTES / side->element) : 1;
	for (int block = first; block < first + blocks; block++) {
		MPI_Count left = side->bytes[block] ? side->counts[block] : 0;
		/* An integer: with MPI_BOTTOM it is no address in an object of C. */
		uintptr_t user = (uintptr_t)side->user + (uintptr_t)side->places[block];
		char *packed = side->memory + side->offsets[block];
		while (left) {
			MPI_Count count = left < most ? left : most;
			size_t bytes = (size_t)count * side->element;
			int failed = user ? convert((char *)user, count, side->type, packed, bytes) :
			                    convert_absolute(convert, count, side->type, packed, bytes);
			if (failed)
				return false;
			user += (uintptr_t)(count * side->extent);
			packed += bytes;
			left -= count;
		}
	}
	return true;
}

bool side_pack(side *side, int first, int blocks)
{
	return copy(side, first, blocks, pack);
}

bool side_unpack(side *side)
{
	return copy(side, 0, side->blocks, unpack);
}

bool side_keep(side *side)
{
	MPI_Datatype kept;
	if (!side->copied)
		return true;
	/* Not a duplicate, which would call functions of the program that copy attributes. */
	if (PMPI(Type_contiguous)(1, side->type, &kept))
		return false;
	if (PMPI(Type_commit)(&kept)) {
		PMPI(Type_free)(&kept);
		return false;
	}
	side->type = kept;
	side->own_type = true;
	return true;
}

void side_close(side *side)
{
	if (side->copied)
		free(side->memory);
	if (side->own_type)
		PMPI(Type_free)(&side->type);
	free(side->counts);
	memset(side, 0, sizeof *side);
}
