/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Test of the MPI adapter: every collective with data, beside PMPI's own on copies. Buffers are compared byte by byte, gaps included.
 *
 * Argument "quick": fewer lengths. "small": every function with few of them. "bottom": absolute types alone. "disagree", "disagree-nonblocking" and "absent": a rank calls another
 * length, or nothing; the others must get an error of MPI. Rank 0 prints on stdout, for each function, how many calls Flexcast should have taken and how
 * many PMPI should have got; the adapter's report says how many it was. The exit status is 1 if anything differs.
 */
#include <mpi.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FUNCTIONS(X) \
	X(Barrier, barrier) X(Bcast, bcast) X(Allgather, allgather) X(Allgatherv, allgatherv) X(Allreduce, allreduce) X(Reduce, reduce) \
	X(Reduce_scatter_block, reduce_scatter_block) X(Reduce_scatter, reduce_scatter) X(Alltoall, alltoall) X(Alltoallv, alltoallv) X(Gather, gather) \
	X(Gatherv, gatherv) X(Scatter, scatter) X(Scatterv, scatterv)

enum function {
#define X(name, small) name,
	FUNCTIONS(X)
#undef X
	ALL
};

/* Forms of a function, the first two as of a flag "non-blocking". */
enum form { BLOCKING, NONBLOCKING, PERSISTENT, FORMS };

static const char *const names[ALL][FORMS] = {
#define X(name, small) {"MPI_" #name, "MPI_I" #small, "MPI_" #name "_init"},
	FUNCTIONS(X)
#undef X
};

enum { MOST_RANKS = 64 };

/* A communicator, and whether the adapter has connected it. */
typedef struct {
	MPI_Comm comm;
	int rank, size;
	bool inter, connected;
} space;

typedef struct job {
	enum function function;
	space *space;
	void *send, *receive;
	int count;
	MPI_Datatype type;
	int send_counts[MOST_RANKS], send_places[MOST_RANKS], receive_counts[MOST_RANKS], receive_places[MOST_RANKS];
	MPI_Op op;
	/* Whether the library has this reduction. */
	bool known;
	int root;
} job;

static int world_rank, failures;
static bool preloaded;
static long checks, expected[ALL][FORMS][2];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void wrong(const char *function, const char *what, size_t at)
{
	pthread_mutex_lock(&lock);
	if (failures++ < 20)
		fprintf(stderr, "rank %d: %s: %s: differs at byte %zu\n", world_rank, function, what, at);
	pthread_mutex_unlock(&lock);
}

static bool is_reduction(enum function function)
{
	return function == Allreduce || function == Reduce || function == Reduce_scatter || function == Reduce_scatter_block;
}

/* Bytes of all blocks, where all ranks know them; 1 where they are taken whatever the length. */
static long measure(const job *job)
{
	int size, all = 0;
	if (job->function == Barrier || job->function == Alltoallv || job->function == Gatherv || job->function == Scatterv)
		return 1;
	MPI_Type_size(job->type, &size);
	for (int rank = 0; rank < job->space->size; rank++)
		all += job->receive_counts[rank];
	return (long)size * (job->function == Allgatherv || job->function == Reduce_scatter ? all : job->count);
}

/* Counts what the adapter should do with a call. */
static void expect(const job *job, bool nonblocking)
{
	space *space = job->space;
	bool taken = !space->inter && space->size > 1 && measure(job) && (job->known || !is_reduction(job->function));
	if (taken && !nonblocking)
		space->connected = true;
	taken = taken && space->connected;
	pthread_mutex_lock(&lock);
	expected[job->function][nonblocking][taken]++;
	pthread_mutex_unlock(&lock);
}

#define CASES(MPI, REQUEST, barrier, bcast, allgather, allgatherv, allreduce, reduce, reduce_scatter_block, reduce_scatter, alltoall, alltoallv, gather, gatherv, scatter, scatterv) \
	switch (job->function) { \
	case Barrier: MPI##barrier(comm REQUEST); break; \
	case Bcast: MPI##bcast(job->receive, job->count, job->type, job->root, comm REQUEST); break; \
	case Allgather: MPI##allgather(job->send, job->count, job->type, job->receive, job->count, job->type, comm REQUEST); break; \
	case Allgatherv: \
		MPI##allgatherv(job->send, job->receive_counts[rank], job->type, job->receive, job->receive_counts, job->receive_places, job->type, comm REQUEST); \
		break; \
	case Allreduce: MPI##allreduce(job->send, job->receive, job->count, job->type, job->op, comm REQUEST); break; \
	case Reduce: MPI##reduce(job->send, job->receive, job->count, job->type, job->op, job->root, comm REQUEST); break; \
	case Reduce_scatter_block: MPI##reduce_scatter_block(job->send, job->receive, job->count, job->type, job->op, comm REQUEST); break; \
	case Reduce_scatter: MPI##reduce_scatter(job->send, job->receive, job->receive_counts, job->type, job->op, comm REQUEST); break; \
	case Alltoall: MPI##alltoall(job->send, job->count, job->type, job->receive, job->count, job->type, comm REQUEST); break; \
	case Alltoallv: \
		MPI##alltoallv(job->send, job->send_counts, job->send_places, job->type, job->receive, job->receive_counts, job->receive_places, job->type, \
		               comm REQUEST); \
		break; \
	case Gather: MPI##gather(job->send, job->count, job->type, job->receive, job->count, job->type, job->root, comm REQUEST); break; \
	case Gatherv: \
		MPI##gatherv(job->send, job->receive_counts[rank], job->type, job->receive, job->receive_counts, job->receive_places, job->type, job->root, \
		             comm REQUEST); \
		break; \
	case Scatter: MPI##scatter(job->send, job->count, job->type, job->receive, job->count, job->type, job->root, comm REQUEST); break; \
	case Scatterv: \
		MPI##scatterv(job->send, job->receive_counts, job->receive_places, job->type, job->receive, job->receive_counts[rank], job->type, job->root, \
		              comm REQUEST); \
		break; \
	default: break; \
	}

#define NO_REQUEST
#define WITH_REQUEST , request

static void reference(const job *job)
{
	MPI_Comm comm = job->space->comm;
	int rank = job->space->rank;
	CASES(PMPI_, NO_REQUEST, Barrier, Bcast, Allgather, Allgatherv, Allreduce, Reduce, Reduce_scatter_block, Reduce_scatter, Alltoall, Alltoallv, Gather, Gatherv, Scatter,
	      Scatterv)
}

static void blocking(const job *job)
{
	MPI_Comm comm = job->space->comm;
	int rank = job->space->rank;
	expect(job, false);
	CASES(MPI_, NO_REQUEST, Barrier, Bcast, Allgather, Allgatherv, Allreduce, Reduce, Reduce_scatter_block, Reduce_scatter, Alltoall, Alltoallv, Gather, Gatherv, Scatter,
	      Scatterv)
}

static void start(const job *job, MPI_Request *request)
{
	MPI_Comm comm = job->space->comm;
	int rank = job->space->rank;
	expect(job, true);
	CASES(MPI_, WITH_REQUEST, Ibarrier, Ibcast, Iallgather, Iallgatherv, Iallreduce, Ireduce, Ireduce_scatter_block, Ireduce_scatter, Ialltoall, Ialltoallv, Igather, Igatherv,
	      Iscatter, Iscatterv)
}

#if MPI_VERSION >= 4
#define WITH_INFO_AND_REQUEST , MPI_INFO_NULL, request

static void make_persistent(const job *job, MPI_Request *request)
{
	MPI_Comm comm = job->space->comm;
	int rank = job->space->rank;
	expected[job->function][PERSISTENT][0]++;
	CASES(MPI_, WITH_INFO_AND_REQUEST, Barrier_init, Bcast_init, Allgather_init, Allgatherv_init, Allreduce_init, Reduce_init, Reduce_scatter_block_init, Reduce_scatter_init,
	      Alltoall_init, Alltoallv_init, Gather_init, Gatherv_init, Scatter_init, Scatterv_init)
}
#endif

static space space_of(MPI_Comm comm)
{
	space space = {.comm = comm};
	int inter;
	MPI_Comm_rank(comm, &space.rank);
	MPI_Comm_size(comm, &space.size);
	MPI_Comm_test_inter(comm, &inter);
	space.inter = inter;
	return space;
}

/* Lengths and places of a job's blocks. Returns elements that a buffer needs. */
static size_t lay(job *job, int count, bool gaps)
{
	int size = job->space->size, rank = job->space->rank, send = 0, receive = 0, gap = gaps ? 3 : 0;
	job->count = count;
	for (int peer = 0; peer < size; peer++) {
		bool pairs = job->function == Alltoallv;
		job->send_counts[peer] = pairs ? (count + 2 * rank + peer) % (count + 1) : 0;
		job->receive_counts[peer] = pairs ? (count + 2 * peer + rank) % (count + 1) : count * (peer + 1) / size;
		job->send_places[peer] = send;
		job->receive_places[peer] = receive;
		send += job->send_counts[peer] + gap;
		receive += job->receive_counts[peer] + gap;
	}
	if (gaps && size > 1) {
		/* Not in the order of ranks either. */
		int first = job->receive_counts[0], last = job->receive_counts[size - 1];
		if (first == last) {
			int place = job->receive_places[0];
			job->receive_places[0] = job->receive_places[size - 1];
			job->receive_places[size - 1] = place;
		}
	}
	return (size_t)size * (size_t)(count + gap + 1);
}

enum kind { BYTES, I8, I16, I32, I64, U8, U16, U32, U64, F32, F64, C32, C64, BOOL, P_FLOAT, P_DOUBLE, P_LONG, P_INT, P_SHORT };

static void put(void *buffer, enum kind kind, size_t at, int value)
{
	switch (kind) {
	case BYTES: case U8: ((uint8_t *)buffer)[at] = (uint8_t)value; break;
	case I8: ((int8_t *)buffer)[at] = (int8_t)value; break;
	case I16: ((int16_t *)buffer)[at] = (int16_t)value; break;
	case U16: ((uint16_t *)buffer)[at] = (uint16_t)value; break;
	case I32: ((int32_t *)buffer)[at] = value; break;
	case U32: ((uint32_t *)buffer)[at] = (uint32_t)value; break;
	case I64: ((int64_t *)buffer)[at] = value; break;
	case U64: ((uint64_t *)buffer)[at] = (uint64_t)value; break;
	case F32: ((float *)buffer)[at] = (float)value; break;
	case F64: ((double *)buffer)[at] = value; break;
	case C32: ((float *)buffer)[2 * at] = (float)value, ((float *)buffer)[2 * at + 1] = (float)(value % 2); break;
	case C64: ((double *)buffer)[2 * at] = value, ((double *)buffer)[2 * at + 1] = value % 2; break;
	case BOOL: ((_Bool *)buffer)[at] = value % 2; break;
#define PAIR(c) { struct { c value; int index; } *pairs = buffer; pairs[at].value = (c)value; pairs[at].index = world_rank; break; }
	case P_FLOAT: PAIR(float)
	case P_DOUBLE: PAIR(double)
	case P_LONG: PAIR(long)
	case P_INT: PAIR(int)
	case P_SHORT: PAIR(short)
#undef PAIR
	}
}

/* One call, beside PMPI's on copies. With `requests` calls are non-blocking, several at once. */
static void check(job *job, int count, enum kind kind, bool values, bool in_place, bool gaps, int in_flight, const char *what)
{
	MPI_Aint lower, extent;
	MPI_Type_get_extent(job->type, &lower, &extent);
	int copies = in_flight ? in_flight : 1;
	size_t elements = lay(job, count, gaps), bytes = elements * (size_t)extent + 64;
	char *send = calloc((size_t)copies, 2 * bytes), *receive = calloc((size_t)copies, 2 * bytes);
	MPI_Request requests[8];
	bool is_root = job->space->rank == job->root;
	bool rooted = job->function == Reduce || job->function == Gather || job->function == Gatherv || job->function == Scatter || job->function == Scatterv;
	bool scatters = job->function == Scatter || job->function == Scatterv;
	if (!send || !receive)
		abort();
	for (int copy = 0; copy < copies; copy++) {
		char *sent = send + 2 * (size_t)copy * bytes, *got = receive + 2 * (size_t)copy * bytes;
		for (size_t at = 0; values && at < elements; at++) {
			int value = 1 + (int)((at * 7 + (size_t)(world_rank * 3 + copy)) % 2);
			put(sent, kind, at, value);
			put(got, kind, at, 3 - value);
		}
		for (size_t at = 0; !values && at < bytes; at++) {
			sent[at] = (char)(at * 31 + (size_t)(world_rank * 7 + copy) + (at >> 8));
			got[at] = (char)(at * 17 + (size_t)(world_rank * 5 + copy) + (at >> 9));
		}
		memcpy(sent + bytes, sent, bytes);
		memcpy(got + bytes, got, bytes);
	}
	for (int copy = 0; copy < copies; copy++)
		for (int other = 0; other < 2; other++) {
			char *sent = send + (2 * (size_t)copy + (size_t)other) * bytes, *got = receive + (2 * (size_t)copy + (size_t)other) * bytes;
			job->send = in_place && !scatters && (is_root || !rooted) ? MPI_IN_PLACE : sent;
			job->receive = in_place && scatters && is_root ? MPI_IN_PLACE : got;
			if (other)
				reference(job);
			else if (in_flight)
				start(job, &requests[copy]);
			else
				blocking(job);
		}
	if (in_flight == 1) {
		for (int done = 0; !done;)
			MPI_Test(requests, &done, MPI_STATUS_IGNORE);
	} else if (in_flight) {
		MPI_Waitall(in_flight, requests, MPI_STATUSES_IGNORE);
	}
	size_t compared = bytes;
	/* Behind the result of a Reduce_scatter in place the input need not stay. */
	if (in_place && job->function == Reduce_scatter)
		compared = (size_t)job->receive_counts[job->space->rank] * (size_t)extent;
	if (in_place && job->function == Reduce_scatter_block)
		compared = (size_t)count * (size_t)extent;
	for (int copy = 0; copy < copies; copy++)
		for (size_t at = 0; at < compared; at++) {
			size_t base = 2 * (size_t)copy * bytes + at;
			if (receive[base] != receive[base + bytes] || send[base] != send[base + bytes]) {
				wrong(names[job->function][in_flight > 0], what, at);
				break;
			}
		}
	pthread_mutex_lock(&lock);
	checks += copies;
	pthread_mutex_unlock(&lock);
	free(send);
	free(receive);
}

static void check_moves(space *space, MPI_Datatype type, const int *counts, int lengths, const char *what)
{
	for (int function = 0; function < ALL; function++)
		for (int at = 0; !is_reduction(function) && at < lengths; at++)
			for (int variant = 0; variant < 4; variant++) {
				job job = {.function = function, .space = space, .type = type, .root = (at + variant) % space->size};
				if (variant % 2 && (function == Bcast || function == Barrier))
					continue;
				/* In place an Alltoallv has blocks as long on the way back. */
				bool in_place = variant % 2 && function != Alltoallv;
				check(&job, counts[at], BYTES, false, in_place, variant > 1, 0, what);
				check(&job, counts[at], BYTES, false, in_place, variant > 1, variant == 3 ? 4 : 1, what);
			}
}

typedef struct {
	MPI_Datatype type;
	enum kind kind;
	/* 1 integers, 2 floating point, 4 complex, 8 truth values, 16 bytes, 32 pairs, 64 for PMPI alone. */
	int class;
} element;

/* With `few`: two types, the first operator of each. */
static void check_reductions(space *space, const int *counts, int lengths, bool few)
{
	const element elements[] = {
		{MPI_SIGNED_CHAR, I8, 1}, {MPI_UNSIGNED_CHAR, U8, 1}, {MPI_SHORT, I16, 1}, {MPI_UNSIGNED_SHORT, U16, 1}, {MPI_INT, I32, 1}, {MPI_UNSIGNED, U32, 1},
		{MPI_LONG, I64, 1}, {MPI_UNSIGNED_LONG, U64, 1}, {MPI_LONG_LONG, I64, 1}, {MPI_UNSIGNED_LONG_LONG, U64, 1}, {MPI_INT8_T, I8, 1}, {MPI_UINT8_T, U8, 1},
		{MPI_INT16_T, I16, 1}, {MPI_UINT16_T, U16, 1}, {MPI_INT32_T, I32, 1}, {MPI_UINT32_T, U32, 1}, {MPI_INT64_T, I64, 1}, {MPI_UINT64_T, U64, 1},
		{MPI_AINT, I64, 1}, {MPI_OFFSET, I64, 1}, {MPI_COUNT, I64, 1}, {MPI_FLOAT, F32, 2}, {MPI_DOUBLE, F64, 2}, {MPI_C_FLOAT_COMPLEX, C32, 4},
		{MPI_C_DOUBLE_COMPLEX, C64, 4}, {MPI_C_BOOL, BOOL, 8}, {MPI_BYTE, BYTES, 16}, {MPI_FLOAT_INT, P_FLOAT, 32}, {MPI_DOUBLE_INT, P_DOUBLE, 32},
		{MPI_LONG_INT, P_LONG, 32}, {MPI_2INT, P_INT, 32}, {MPI_SHORT_INT, P_SHORT, 32},
	};
	const struct {
		MPI_Op op;
		int classes;
	} ops[] = {
		{MPI_SUM, 7}, {MPI_PROD, 7}, {MPI_MIN, 3}, {MPI_MAX, 3}, {MPI_LAND, 9}, {MPI_LOR, 9}, {MPI_LXOR, 9}, {MPI_BAND, 17}, {MPI_BOR, 17}, {MPI_BXOR, 17},
		{MPI_MINLOC, 32}, {MPI_MAXLOC, 32},
	};
	static const enum function functions[] = {Allreduce, Reduce, Reduce_scatter_block, Reduce_scatter};
	for (size_t which = 0; which < 4; which++)
		for (size_t type = 0; type < sizeof elements / sizeof elements[0]; type++)
			for (size_t op = 0; op < sizeof ops / sizeof ops[0]; op++) {
				if (few && (op || (elements[type].type != MPI_INT && elements[type].type != MPI_DOUBLE)))
					continue;
				for (int at = 0; ops[op].classes & elements[type].class && at < lengths; at++)
					for (int variant = 0; variant < 4; variant++) {
						job job = {.function = functions[which], .space = space, .type = elements[type].type, .op = ops[op].op, .known = true,
						           .root = (at + variant) % space->size};
						check(&job, counts[at], elements[type].kind, true, variant % 2, false, variant > 1 ? variant : 0, "reduction");
					}
			}
}

static void add(void *in, void *out, int *length, MPI_Datatype *type)
{
	(void)type;
	for (int at = 0; at < *length; at++)
		((int *)out)[at] += ((int *)in)[at];
}

/* What PMPI gets: operators and types that the library does not know. */
static void check_fallback(space *space)
{
	MPI_Op op;
	MPI_Op_create(add, 1, &op);
	job own = {.function = Allreduce, .space = space, .type = MPI_INT, .op = op};
	check(&own, 100, I32, true, false, false, 0, "operator of the program");
	check(&own, 100, I32, true, false, false, 2, "operator of the program");
	MPI_Op_free(&op);
	job length = {.function = Reduce, .space = space, .type = MPI_LONG_DOUBLE, .op = MPI_MAX};
	check(&length, 9, BYTES, true, false, false, 0, "long double");
}

/* Types of which a rank has one and another rank another, with one signature. */
static void check_mixed(space *space)
{
	MPI_Datatype apart, wide;
	MPI_Type_vector(2, 1, 3, MPI_INT, &apart);
	MPI_Type_create_resized(apart, 0, 5 * sizeof(int), &wide);
	MPI_Type_commit(&wide);
	for (int root = 0; root < space->size; root++)
		for (int count = 1; count < 3000; count = count * 5 + 1) {
			bool mine = space->rank % 2;
			size_t elements = (size_t)count * 5 * (size_t)space->size + 8;
			int *one = calloc(elements, 4 * sizeof *one), *other = one + elements, *from = other + elements, *same = from + elements;
			for (size_t at = 0; at < elements; at++)
				one[at] = other[at] = (int)at * (space->rank + 3), from[at] = same[at] = (int)at - space->rank;
			int number = mine ? count : 2 * count;
			MPI_Datatype type = mine ? wide : MPI_INT;
			job job = {.function = Bcast, .space = space, .receive = one, .count = number, .type = type, .root = root};
			blocking(&job);
			PMPI_Bcast(other, number, type, root, space->comm);
			if (memcmp(one, other, elements * sizeof *one))
				wrong("MPI_Bcast", "different types", 0);
			job.function = Allgather;
			expect(&job, false);
			MPI_Allgather(from, 2 * count, MPI_INT, one, number, type, space->comm);
			PMPI_Allgather(same, 2 * count, MPI_INT, other, number, type, space->comm);
			if (memcmp(one, other, elements * sizeof *one))
				wrong("MPI_Allgather", "different types", 0);
			checks += 2;
			free(one);
		}
	MPI_Type_free(&wide);
	MPI_Type_free(&apart);
}

static void check_types(space *space, const int *counts, int lengths)
{
	MPI_Datatype triple, twice, apart, wide, swapped;
	const int lengths_of[2] = {1, 1}, places[2] = {1, 0};
	MPI_Type_contiguous(3, MPI_INT, &triple);
	MPI_Type_dup(MPI_DOUBLE, &twice);
	MPI_Type_vector(3, 2, 3, MPI_SHORT, &apart);
	MPI_Type_create_resized(apart, 0, 10 * sizeof(short), &wide);
	MPI_Type_indexed(2, lengths_of, places, MPI_INT, &swapped);
	MPI_Datatype types[] = {triple, twice, wide, swapped, MPI_SHORT_INT, MPI_DOUBLE_INT};
	const char *const what[] = {"contiguous type", "duplicated type", "type with gaps", "type out of order", "short and int", "double and int"};
	for (int at = 0; at < 6; at++) {
		if (at < 4)
			MPI_Type_commit(&types[at]);
		/* MPICH 5.0.2 by itself refuses its own Gather of many pairs among four ranks. */
		check_moves(space, types[at], counts, at < 4 ? lengths : 3, what[at]);
		if (at < 4)
			MPI_Type_free(&types[at]);
	}
	MPI_Type_free(&apart);
}

/* The rank and the block whose data lies in a block of this rank afterwards: one element a block, in place if possible. */
static void source(const job *job, int block, int *rank, int *from)
{
	int own = job->space->rank;
	*rank = own, *from = block;
	switch (job->function) {
	case Bcast:
		if (block == 0)
			*rank = job->root;
		break;
	case Allgather: case Allgatherv:
		*rank = block;
		break;
	case Alltoall: case Alltoallv:
		*rank = block, *from = own;
		break;
	case Gather: case Gatherv:
		if (own == job->root && block != own)
			*rank = block, *from = 0;
		break;
	case Scatter: case Scatterv:
		if (own != job->root && block == 0)
			*rank = job->root, *from = own;
		break;
	default:
		break;
	}
}

/*
 * Types with absolute addresses, from MPI_BOTTOM, and types whose blocks lie behind or before where they begin. Compared with
 * what has to be there: some MPIs by themselves do not survive blocks that go backwards.
 */
static void check_bottom(space *space)
{
	enum { BLOCK = 10, LENGTH = BLOCK * MOST_RANKS, VARIANTS = 4 };
	static int data[LENGTH], before[LENGTH];
	static const char *const what[VARIANTS] = {"absolute type", "absolute type, backwards", "lower bound", "lower bound, backwards"};
	const int lengths[2] = {2, 2};
	for (int function = Bcast; preloaded && function < ALL; function++)
		for (int variant = 0; !is_reduction(function) && variant < 2 * VARIANTS; variant++) {
			bool backwards = variant % 2, absolute = variant % VARIANTS < 2, nonblocking = variant >= VARIANTS;
			MPI_Request request = MPI_REQUEST_NULL;
			MPI_Datatype parts, type;
			MPI_Aint base = 0, places[2];
			int *first = data + (backwards ? (space->size - 1) * BLOCK : 0);
			for (int at = 0; at < LENGTH; at++)
				data[at] = before[at] = at * 7 + space->rank * 1000 + variant;
			if (absolute)
				MPI_Get_address(first, &base);
			places[0] = base + 2 * (MPI_Aint)sizeof(int), places[1] = base + 6 * (MPI_Aint)sizeof(int);
			MPI_Type_create_hindexed(2, lengths, places, MPI_INT, &parts);
			MPI_Type_create_resized(parts, places[0], (backwards ? -BLOCK : BLOCK) * (MPI_Aint)sizeof(int), &type);
			MPI_Type_commit(&type);
			void *buffer = absolute ? MPI_BOTTOM : first;
			bool gathers = function == Gather || function == Gatherv, scatters = function == Scatter || function == Scatterv;
			job job = {.function = function, .space = space, .count = 1, .type = type, .root = variant % space->size};
			bool is_root = space->rank == job.root;
			job.send = scatters || (gathers && !is_root) ? buffer : MPI_IN_PLACE;
			job.receive = scatters && is_root ? MPI_IN_PLACE : buffer;
			for (int rank = 0; rank < space->size; rank++)
				job.receive_counts[rank] = 1, job.receive_places[rank] = rank;
			if (nonblocking)
				start(&job, &request), MPI_Wait(&request, MPI_STATUS_IGNORE);
			else
				blocking(&job);
			MPI_Type_free(&type);
			MPI_Type_free(&parts);
			for (int block = 0; block < space->size; block++) {
				int rank, from;
				source(&job, block, &rank, &from);
				for (int at = 0; at < BLOCK; at++) {
					int here = (backwards ? space->size - 1 - block : block) * BLOCK + at, there = (backwards ? space->size - 1 - from : from) * BLOCK + at;
					bool moves = at == 2 || at == 3 || at == 6 || at == 7;
					if (data[here] != (moves ? there * 7 + rank * 1000 + variant : before[here]))
						wrong(names[function][nonblocking], what[variant % VARIANTS], (size_t)here * sizeof(int));
				}
			}
			checks++;
		}
}

/* A type and a communicator that the program frees while an operation goes on. */
static void check_freed(void)
{
	for (int round = 0; round < 5; round++) {
		MPI_Comm comm;
		MPI_Datatype apart;
		MPI_Request requests[3];
		int sent[64], got[2][64], sum[2];
		MPI_Comm_dup(MPI_COMM_WORLD, &comm);
		space space = space_of(comm);
		job job = {.function = Barrier, .space = &space};
		blocking(&job);
		for (int at = 0; at < 64; at++)
			sent[at] = at + 1, got[0][at] = got[1][at] = world_rank ? 0 : at;
		MPI_Type_vector(32, 1, 2, MPI_INT, &apart);
		MPI_Type_commit(&apart);
		job.function = Bcast, job.receive = got[0], job.count = 1, job.type = apart;
		start(&job, &requests[0]);
		job.function = Allreduce, job.send = sent, job.receive = sum, job.type = MPI_INT, job.op = MPI_SUM, job.known = true;
		start(&job, &requests[1]);
		job.function = Barrier;
		start(&job, &requests[2]);
		MPI_Type_free(&apart);
		/* Open MPI 4.1 by itself does not survive this. */
		if (preloaded)
			MPI_Comm_free(&comm);
		if (preloaded && round == 4)
			MPI_Request_free(&requests[2]);
		MPI_Waitall(preloaded && round == 4 ? 2 : 3, requests, MPI_STATUSES_IGNORE);
		if (!preloaded)
			MPI_Comm_free(&comm);
		for (int at = 0; at < 63; at += 2)
			if (got[0][at] != at)
				wrong("MPI_Ibcast", "type and communicator freed", (size_t)at);
		if (sum[0] != space.size)
			wrong("MPI_Iallreduce", "communicator freed", 0);
		checks += 3;
	}
}

/* Communicators that come and go, and those that PMPI gets. */
static void check_communicators(const int *counts, int lengths)
{
	MPI_Comm half, back, dup, inter;
	int size;
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	MPI_Comm_split(MPI_COMM_WORLD, world_rank % 2, 0, &half);
	MPI_Comm_split(MPI_COMM_WORLD, 0, -world_rank, &back);
	space spaces[] = {space_of(half), space_of(back), space_of(MPI_COMM_SELF)};
	for (int at = 0; at < 3; at++)
		check_moves(&spaces[at], MPI_INT, counts, lengths, "communicator");
	MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, !(world_rank % 2), 1, &inter);
	space between = space_of(inter);
	job meet = {.function = Barrier, .space = &between};
	blocking(&meet);
	MPI_Comm_free(&inter);
	MPI_Comm_free(&half);
	MPI_Comm_free(&back);
	for (int round = 0; round < 12; round++) {
		MPI_Comm_dup(MPI_COMM_WORLD, &dup);
		space space = space_of(dup);
		job job = {.function = Allreduce, .space = &space, .type = MPI_INT, .op = MPI_SUM, .known = true};
		/* The first one, non-blocking, goes to PMPI: connecting would wait. */
		check(&job, 5, I32, true, false, false, 1, "first on a communicator");
		check(&job, 5, I32, true, false, false, 0, "second on a communicator");
		check(&job, 5, I32, true, false, false, 2, "third on a communicator");
		MPI_Comm_free(&dup);
	}
	/* Several alive at once, used in turn. */
	MPI_Comm many[6];
	space spaces_of[6];
	for (int at = 0; at < 6; at++) {
		MPI_Comm_dup(MPI_COMM_WORLD, &many[at]);
		spaces_of[at] = space_of(many[at]);
	}
	for (int round = 0; round < 18; round++) {
		job job = {.function = Bcast, .space = &spaces_of[(round * 5) % 6], .type = MPI_DOUBLE, .root = round % size};
		check(&job, 300, F64, true, false, false, round % 3, "many communicators");
	}
	for (int at = 0; at < 6; at++)
		MPI_Comm_free(&many[at]);
}

/* How a program waits for requests. */
enum way { WAITALL, TESTALL, WAITANY, WAITSOME, TESTSOME, WAYS };

static void end_all(enum way way, int count, MPI_Request requests[], MPI_Status statuses[])
{
	enum { MOST = 64 };
	int done = 0, which = 0, ended = 0, indices[MOST];
	MPI_Status some[MOST];
	switch (way) {
	case TESTALL:
		while (!done)
			MPI_Testall(count, requests, &done, statuses);
		break;
	case WAITANY:
		for (;;) {
			MPI_Waitany(count, requests, &which, some);
			if (which == MPI_UNDEFINED)
				return;
			statuses[which] = *some;
		}
	case WAITSOME:
	case TESTSOME:
		for (;;) {
			(way == WAITSOME ? MPI_Waitsome : MPI_Testsome)(count, requests, &ended, indices, some);
			if (ended == MPI_UNDEFINED)
				return;
			for (int at = 0; at < ended; at++)
				statuses[indices[at]] = some[at];
		}
	default:
		MPI_Waitall(count, requests, statuses);
	}
}

/* Requests of ours and of MPI, inactive ones and none, waited for together. */
static void check_waits(space *space)
{
	enum { COUNT = 6 };
	const int left = (space->rank + space->size - 1) % space->size, right = (space->rank + 1) % space->size;
	for (int way = 0; way < WAYS; way++) {
		int one = way, sum = 0, all[MOST_RANKS], got = -1;
		MPI_Request requests[COUNT] = {MPI_REQUEST_NULL};
		MPI_Status statuses[COUNT];
		job job = {.space = space, .send = &one, .receive = &sum, .function = Allreduce, .count = 1, .type = MPI_INT, .op = MPI_SUM, .known = true};
		start(&job, &requests[1]);
		MPI_Irecv(&got, 1, MPI_INT, left, 9, space->comm, &requests[2]);
		job.function = Allgather, job.receive = all;
		start(&job, &requests[3]);
		MPI_Send_init(&one, 1, MPI_INT, right, 10, space->comm, &requests[4]);
		MPI_Isend(&space->rank, 1, MPI_INT, right, 9, space->comm, &requests[5]);
		end_all(way, COUNT, requests, statuses);
		int received = 0;
		MPI_Get_count(&statuses[2], MPI_INT, &received);
		if (got != left || statuses[2].MPI_SOURCE != left || statuses[2].MPI_TAG != 9 || received != 1)
			wrong("MPI_Irecv", "waited for together", (size_t)way);
		if (sum != space->size * way || all[left] != way)
			wrong("MPI_Iallreduce", "waited for together", (size_t)way);
		bool whole = way == WAITALL || way == TESTALL;
		if (whole && (statuses[0].MPI_SOURCE != MPI_ANY_SOURCE || statuses[4].MPI_TAG != MPI_ANY_TAG))
			wrong("MPI_Waitall", "status of no request, or of an inactive one", (size_t)way);
		for (int at = 0; at < COUNT; at++)
			if ((requests[at] == MPI_REQUEST_NULL) == (at == 4))
				wrong("MPI_Waitall", "request afterwards", (size_t)at);
		MPI_Request_free(&requests[4]);
		checks += COUNT;
	}
}

/* Non-blocking operations of many kinds at once, ended in every way. */
static void check_in_flight(space *space, int rounds)
{
	enum { MANY = 12 };
	MPI_Request requests[MANY];
	MPI_Status statuses[MANY];
	static int sent[64], sum[MANY], got[MANY][MOST_RANKS];
	for (int round = 0; round < rounds; round++) {
		for (int at = 0; at < MANY; at++) {
			sent[at] = at + round;
			sum[at] = -1;
			job job = {.space = space, .send = &sent[at], .count = 1, .type = MPI_INT, .op = MPI_SUM, .known = true};
			job.function = at % 3 == 0 ? Allreduce : at % 3 == 1 ? Allgather : Barrier;
			job.receive = at % 3 == 0 ? &sum[at] : got[at];
			start(&job, &requests[at]);
		}
		end_all(round % WAYS, MANY, requests, statuses);
		for (int at = 0; at < MANY; at++) {
			if (at % 3 == 0 && sum[at] != space->size * (at + round))
				wrong("MPI_Iallreduce", "in flight", 0);
			for (int peer = 0; at % 3 == 1 && peer < space->size; peer++)
				if (got[at][peer] != at + round)
					wrong("MPI_Iallgather", "in flight", (size_t)peer);
		}
		checks += MANY;
	}
}

/* A message that must go on while its sender waits in a collective that its receiver calls later. */
static void check_progress(space *space)
{
	enum { LONG = 4 << 20 };
	char *data = calloc(LONG, 1);
	MPI_Request request = MPI_REQUEST_NULL;
	job job = {.function = Barrier, .space = space};
	if (space->rank == 0)
		memset(data, 7, LONG), MPI_Isend(data, LONG, MPI_CHAR, space->size - 1, 5, space->comm, &request);
	else if (space->rank == space->size - 1)
		MPI_Recv(data, LONG, MPI_CHAR, 0, 5, space->comm, MPI_STATUS_IGNORE);
	blocking(&job);
	if (space->rank == space->size - 1 && data[LONG - 1] != 7)
		wrong("MPI_Barrier", "message in the meantime", 0);
	MPI_Wait(&request, MPI_STATUS_IGNORE);
	free(data);
	checks++;
}

static void *thread(void *argument)
{
	space space = space_of(*(MPI_Comm *)argument);
	for (int round = 0; round < 20; round++) {
		job sum = {.function = Allreduce, .space = &space, .type = MPI_INT, .op = MPI_SUM, .known = true};
		check(&sum, 64 + round, I32, true, round % 2, false, 0, "thread");
		job all = {.function = Alltoall, .space = &space, .type = MPI_DOUBLE};
		check(&all, 32 + round, F64, true, false, false, 1 + round % 3, "thread");
	}
	return NULL;
}

static void check_threads(void)
{
	enum { THREADS = 4 };
	int level;
	pthread_t threads[THREADS];
	MPI_Comm comms[THREADS];
	MPI_Query_thread(&level);
	if (level < MPI_THREAD_MULTIPLE) {
		if (!world_rank)
			fprintf(stderr, "skipped: threads, because this MPI has no MPI_THREAD_MULTIPLE\n");
		return;
	}
	for (int at = 0; at < THREADS; at++)
		MPI_Comm_dup(MPI_COMM_WORLD, &comms[at]);
	for (int at = 0; at < THREADS; at++)
		if (pthread_create(&threads[at], NULL, thread, &comms[at]))
			abort();
	for (int at = 0; at < THREADS; at++)
		pthread_join(threads[at], NULL);
	for (int at = 0; at < THREADS; at++)
		MPI_Comm_free(&comms[at]);
}

#if MPI_VERSION >= 4
static void check_large_counts(space *space)
{
	MPI_Count counts[MOST_RANKS];
	MPI_Aint places[MOST_RANKS];
	MPI_Request request;
	long value = space->rank + 1, got[2][MOST_RANKS] = {{0}};
	for (int peer = 0; peer < space->size; peer++)
		counts[peer] = 1, places[peer] = space->size - 1 - peer;
	job job = {.function = Allgatherv, .space = space, .type = MPI_LONG, .receive_counts = {1}};
	expect(&job, false);
	MPI_Allgatherv_c(&value, 1, MPI_LONG, got[0], counts, places, MPI_LONG, space->comm);
	expect(&job, true);
	MPI_Iallgatherv_c(&value, 1, MPI_LONG, got[1], counts, places, MPI_LONG, space->comm, &request);
	MPI_Wait(&request, MPI_STATUS_IGNORE);
	for (int peer = 0; peer < space->size; peer++)
		if (got[0][peer] != space->size - peer || got[1][peer] != space->size - peer)
			wrong("MPI_Allgatherv_c", "large counts", (size_t)peer);
	job.function = Bcast, job.count = 1, job.root = 0;
	expect(&job, false);
	MPI_Bcast_c(&value, 1, MPI_LONG, 0, space->comm);
	if (value != 1)
		wrong("MPI_Bcast_c", "large counts", 0);
	checks += 3;
}
#endif

#if MPI_VERSION >= 4
/* Persistent operations, which are MPI's, started again and again and waited for together with non-blocking ones, which are taken. */
static void check_persistent(space *space)
{
	enum { COUNT = 33, TAKEN = 3, MANY = ALL + TAKEN, LENGTH = (COUNT + 1) * MOST_RANKS };
	static int sent[ALL][LENGTH], got[ALL][LENGTH], right[ALL][LENGTH], sum[TAKEN], one = 1;
	MPI_Request requests[MANY];
	MPI_Status statuses[MANY];
	job jobs[ALL];
	int rounds = WAYS;
#if defined(I_MPI_VERSION)
	/* Intel MPI 2021.18 by itself gives wrong data: Gather at once, Allgather from the second start on. They are made and freed. */
	rounds = 0;
#endif
	for (int function = 0; function < ALL; function++) {
		job *job = &jobs[function];
		*job = (struct job){.function = function, .space = space, .send = sent[function], .receive = got[function], .type = MPI_INT, .op = MPI_SUM, .known = true,
		                    .root = function % space->size};
		lay(job, COUNT, false);
		make_persistent(job, &requests[function]);
	}
	for (int round = 0; round < rounds; round++) {
		for (int function = 0; function < ALL; function++) {
			for (int at = 0; at < LENGTH; at++)
				sent[function][at] = at * 3 + round + space->rank, got[function][at] = right[function][at] = round - at;
			job job = jobs[function];
			job.receive = right[function];
			reference(&job);
		}
		if (round == 1)
			for (int function = 0; function < ALL; function++)
				MPI_Start(&requests[function]);
		else
			MPI_Startall(ALL, requests);
		for (int at = 0; at < TAKEN; at++) {
			job taken = {.function = Allreduce, .space = space, .send = &one, .receive = &sum[at], .count = 1, .type = MPI_INT, .op = MPI_SUM, .known = true};
			start(&taken, &requests[ALL + at]);
		}
		/* MPI_Testall of MPICH 5.0.2 by itself reports an error here. */
		end_all(round == TESTALL && !preloaded ? WAITALL : round, MANY, requests, statuses);
		for (int function = 0; function < ALL; function++)
			if (requests[function] == MPI_REQUEST_NULL || memcmp(got[function], right[function], sizeof got[function]))
				wrong(names[function][PERSISTENT], "started again", 0);
		for (int at = 0; at < TAKEN; at++)
			if (sum[at] != space->size || requests[ALL + at] != MPI_REQUEST_NULL)
				wrong("MPI_Iallreduce", "beside persistent ones", (size_t)round);
		checks += MANY;
	}
	for (int function = 0; function < ALL; function++)
		MPI_Request_free(&requests[function]);
}
#endif

/* A call with a mistake, waited for beside a request of MPI that ends well: the error is that request's, in its status. */
static int wait_for_mistake(void *data, int count)
{
	MPI_Request requests[3] = {MPI_REQUEST_NULL};
	MPI_Status statuses[3];
	MPI_Irecv(NULL, 0, MPI_BYTE, MPI_PROC_NULL, 0, MPI_COMM_WORLD, &requests[1]);
	int code = MPI_Iallgather(MPI_IN_PLACE, 0, MPI_BYTE, data, count, MPI_BYTE, MPI_COMM_WORLD, &requests[2]);
	if (code != MPI_SUCCESS)
		return code;
	code = MPI_Waitall(3, requests, statuses);
	if (code == MPI_SUCCESS)
		return code;
	int kind, told;
	MPI_Error_class(code, &kind);
	MPI_Error_class(statuses[2].MPI_ERROR, &told);
	if (kind != MPI_ERR_IN_STATUS || told != MPI_ERR_OTHER || statuses[0].MPI_ERROR || statuses[1].MPI_ERROR) {
		fprintf(stderr, "rank %d: MPI_Waitall: error class %d, in statuses %d %d %d\n", world_rank, kind, statuses[0].MPI_ERROR, statuses[1].MPI_ERROR, told);
		exit(1);
	}
	return code;
}

/* Mistakes of a program: a rank that gives another length, or does not come. All that wait must get an error. */
static int check_mistake(bool absent, bool nonblocking)
{
	static char data[8192];
	int code = MPI_SUCCESS, rank, size;
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
	/* Where some report errors of requests that belong to no communicator. */
	MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
	MPI_Barrier(MPI_COMM_WORLD);
	bool failed_rank = rank == size - 1, refused = absent && failed_rank;
	if (!refused) {
		int count = failed_rank ? 200 : 100;
		code = nonblocking ? wait_for_mistake(data, count) : MPI_Allgather(MPI_IN_PLACE, 0, MPI_BYTE, data, count, MPI_BYTE, MPI_COMM_WORLD);
		/* A rank that has all that it wanted may not have seen the mistake yet. */
		if (code == MPI_SUCCESS)
			code = MPI_Barrier(MPI_COMM_WORLD);
		refused = code != MPI_SUCCESS;
	}
	printf("{\"rank\":%d,\"refused\":%s}\n", rank, refused ? "true" : "false");
	MPI_Finalize();
	return !refused;
}

static void check_all(space *world, bool quick)
{
	static const int lengths[] = {0, 1, 7, 1021, 16384, 1 << 20};
	int many = quick ? 5 : 6;
	check_moves(world, MPI_INT, lengths, many, "int");
	check_moves(world, MPI_BYTE, lengths, 5, "byte");
	check_types(world, lengths, 4);
	check_mixed(world);
	check_bottom(world);
	check_reductions(world, lengths, quick ? 3 : 4, false);
	job longest = {.function = Allreduce, .space = world, .type = MPI_DOUBLE, .op = MPI_SUM, .known = true};
	check(&longest, 1 << 19, F64, true, false, false, 0, "4 MiB");
	check(&longest, 1 << 19, F64, true, false, false, 2, "4 MiB");
	check_fallback(world);
	check_communicators(lengths, 4);
	check_freed();
	check_in_flight(world, 30);
	check_waits(world);
	check_progress(world);
	check_threads();
#if MPI_VERSION >= 4
	check_large_counts(world);
	check_persistent(world);
#endif
}

/* Every function, few lengths, one communicator more: for emulated cards, and for more ranks than processors. */
static void check_small(space *world)
{
	static const int lengths[] = {0, 7, 1021, 30000};
	MPI_Comm half;
	check_moves(world, MPI_INT, lengths, 4, "int");
	check_bottom(world);
	check_reductions(world, lengths, 3, true);
	check_fallback(world);
	MPI_Comm_split(MPI_COMM_WORLD, world_rank % 2, -world_rank, &half);
	space part = space_of(half);
	check_moves(&part, MPI_DOUBLE, lengths + 1, 2, "communicator");
	MPI_Comm_free(&half);
	check_in_flight(world, WAYS);
	check_waits(world);
#if MPI_VERSION >= 4
	check_large_counts(world);
	check_persistent(world);
#endif
}

int main(int argc, char **argv)
{
	int provided, all;
	const char *preload = getenv("LD_PRELOAD");
	preloaded = preload && strstr(preload, "flexcast") && !getenv("FLEXCAST_MPI") && !getenv("FLEXCAST_MPI_NONBLOCKING");
	bool quick = argc > 1 && !strcmp(argv[1], "quick"), small = argc > 1 && !strcmp(argv[1], "small");
	MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
	MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
	space world = space_of(MPI_COMM_WORLD);
	if (world.size < 2 || world.size > MOST_RANKS) {
		fprintf(stderr, "check: %d ranks: must be 2 to %d\n", world.size, MOST_RANKS);
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	if (argc > 1 && (!strcmp(argv[1], "disagree") || !strcmp(argv[1], "absent") || !strcmp(argv[1], "disagree-nonblocking")))
		return check_mistake(argv[1][0] == 'a', strchr(argv[1], '-'));
	if (argc > 1 && !strcmp(argv[1], "bottom")) {
		job meet = {.function = Barrier, .space = &world};
		blocking(&meet);
		check_bottom(&world);
	} else if (small)
		check_small(&world);
	else
		check_all(&world, quick);
	PMPI_Allreduce(&failures, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	if (!world_rank) {
		for (int function = 0; function < ALL; function++)
			for (int form = 0; form < FORMS; form++)
				printf("{\"function\":\"%s\",\"taken\":%ld,\"fallen_back\":%ld}\n", names[function][form], expected[function][form][1],
				       expected[function][form][0]);
		printf("{\"ranks\":%d,\"checks\":%ld,\"failures\":%d}\n", world.size, checks, all);
	}
	MPI_Finalize();
	return all ? 1 : 0;
}
