/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The decision whether Flexcast takes a collective, and what it is asked for then.
 *
 * The decision follows from what MPI wants alike on all ranks: the communicator and what was called on it before, the operator and the type of a
 * reduction, the root, and lengths in bytes of data that has one type signature on all ranks. It does not follow from addresses, from
 * displacements, or from how a rank's types lay data out.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shim.h"

_Static_assert(sizeof(MPI_Count) == sizeof(MPI_Aint) && sizeof(MPI_Count) == sizeof(size_t), "lists of functions with large counts are read as MPI_Count");

static MPI_Count entry(list list, int at)
{
	return list.wide ? ((const MPI_Count *)list.entries)[at] : ((const int *)list.entries)[at];
}

static bool is_reduction(enum function function)
{
	return function == F_Allreduce || function == F_Reduce || function == F_Reduce_scatter || function == F_Reduce_scatter_block;
}

static bool has_root(enum function function)
{
	return function == F_Bcast || function == F_Reduce || function == F_Gather || function == F_Gatherv || function == F_Scatter || function == F_Scatterv;
}

/* Functions whose lengths no rank knows all of: these are taken whatever their length. */
static bool is_measured(enum function function)
{
	return function != F_Barrier && function != F_Alltoallv && function != F_Gatherv && function != F_Scatterv;
}

/* Sum of the counts of all ranks. */
static bool sum(list counts, int size, size_t *total)
{
	*total = 0;
	for (int rank = 0; rank < size; rank++) {
		MPI_Count count = counts.entries ? entry(counts, rank) : -1;
		if (count < 0 || __builtin_add_overflow(*total, (size_t)count, total))
			return false;
	}
	return true;
}

/* Bytes of all blocks together, alike on all ranks. */
static enum reason measure(const collective_call *call, const communicator *communicator, size_t element, uint64_t *bytes)
{
	bool is_root = communicator->rank == call->root;
	MPI_Count count = call->receive_count;
	MPI_Datatype type = call->receive_type;
	size_t elements, all, blocks = (size_t)communicator->size;
	switch (call->function) {
	case F_Bcast:
	case F_Allreduce:
	case F_Reduce:
		blocks = 1;
		break;
	case F_Gather:
		if (!is_root) {
			count = call->send_count;
			type = call->send_type;
		}
		break;
	case F_Scatter:
		if (is_root) {
			count = call->send_count;
			type = call->send_type;
		}
		break;
	case F_Allgatherv:
	case F_Reduce_scatter:
		if (!sum(call->receive_counts, communicator->size, &elements))
			return REASON_ARGUMENT;
		count = (MPI_Count)elements;
		blocks = 1;
		break;
	default:
		break;
	}
	if (count < 0 || (!element && !type_size(type, &element)))
		return REASON_ARGUMENT;
	if (!multiply((size_t)count, blocks, &elements) || !multiply(elements, element, &all))
		return REASON_SIZE;
	*bytes = all;
	return all < settings.least || all > settings.most || !all ? REASON_SIZE : TAKEN;
}

/* Whether the call is taken; connects the communicator if it is the first one. */
static enum reason decide(const collective_call *call, communicator **communicator, flexcast_collective *collective, size_t *element, uint64_t *bytes)
{
	if (!process_ready())
		return REASON_OFF;
	if (!(settings.functions & 1u << call->function))
		return REASON_OPERATION;
	if (call->comm == MPI_COMM_NULL)
		return REASON_ARGUMENT;
	struct communicator *of = *communicator = communicator_of(call->comm);
	if (!of)
		return REASON_ARGUMENT;
	if (of->state == UNFIT)
		return REASON_COMMUNICATOR;
	if (of->state == REFUSED)
		return REASON_REFUSED;
	if (has_root(call->function) && (call->root < 0 || call->root >= of->size))
		return REASON_ARGUMENT;
	*element = 0;
	if (is_reduction(call->function)) {
		enum reason reason = type_reduction(call->receive_type, call->op, &collective->data_type, &collective->reduction, element);
		if (reason)
			return reason;
	}
	if (is_measured(call->function)) {
		enum reason reason = measure(call, of, *element, bytes);
		if (reason)
			return reason;
	}
	if (call->nonblocking && !process_multiple())
		return REASON_THREADS;
	/* Connecting waits for all ranks, which a non-blocking call must not do. */
	if (call->nonblocking && of->state == FRESH)
		return REASON_UNCONNECTED;
	if (of->state == FRESH)
		communicator_connect(of, call->comm);
	return of->state == CONNECTED ? TAKEN : REASON_REFUSED;
}

/* A side of one block. */
static bool one_block(side *side, const void *user, MPI_Count count, MPI_Datatype type)
{
	if (!side_open(side, user, type, 1))
		return false;
	side_block(side, 0, count, 0);
	return side_lay(side);
}

/* A side of a block for each rank, equally long and one after another. */
static bool equal_blocks(side *side, const void *user, MPI_Count count, MPI_Datatype type, int size)
{
	if (!side_open(side, user, type, size))
		return false;
	for (int rank = 0; rank < size; rank++)
		side_block(side, rank, count, count * rank);
	return side_lay(side);
}

/* A side of a block for each rank, as the lists say. */
static bool listed_blocks(side *side, const void *user, list counts, list displacements, MPI_Datatype type, int size)
{
	if (!counts.entries || !displacements.entries || !side_open(side, user, type, size))
		return false;
	for (int rank = 0; rank < size; rank++)
		side_block(side, rank, entry(counts, rank), entry(displacements, rank));
	return side_lay(side);
}

/* Memory of a reduction, which needs no layout: its types are those of C. */
static void plain(side *side, const void *user, size_t bytes)
{
	static char nothing;
	memset(side, 0, sizeof *side);
	side->memory = bytes ? (char *)user : &nothing;
	side->total = bytes;
}

/* Why the arguments of this rank do not fit one another; NULL if they do. */
static const char *const NOT_LAID = "a count is negative, a list or the data type is missing, or memory for a copy of the data is not there";
static const char *const UNEQUAL = "the bytes that this rank sends to itself are not those that it receives from itself: see counts and types";
static const char *const NOT_PACKED = "the data cannot be packed: see the data type";

static const char *prepare_reduction(const collective_call *call, operation *operation, flexcast_collective *collective, size_t element)
{
	communicator *communicator = operation->communicator;
	size_t total, own;
	bool in_place = call->send == MPI_IN_PLACE;
	bool receives = call->function != F_Reduce || communicator->rank == call->root;
	collective->count = (size_t)call->receive_count;
	total = own = collective->count * element;
	if (call->function == F_Reduce_scatter_block) {
		total = own * (size_t)communicator->size;
	} else if (call->function == F_Reduce_scatter) {
		sum(call->receive_counts, communicator->size, &total);
		total *= element;
		own = (size_t)entry(call->receive_counts, communicator->rank) * element;
	}
	plain(&operation->send, call->send, in_place ? 0 : total);
	plain(&operation->receive, call->receive, !receives ? 0 : in_place ? total : own);
	if (call->function == F_Reduce_scatter) {
		MPI_Count *counts = calloc((size_t)communicator->size, sizeof *counts);
		if (!counts)
			return NOT_LAID;
		for (int rank = 0; rank < communicator->size; rank++)
			counts[rank] = entry(call->receive_counts, rank);
		operation->receive.counts = counts;
		collective->receive_counts = (const size_t *)counts;
	}
	collective->send = in_place ? FLEXCAST_IN_PLACE : operation->send.memory;
	collective->receive = operation->receive.memory;
	return NULL;
}

static const char *prepare_all(const collective_call *call, operation *operation, flexcast_collective *collective)
{
	communicator *communicator = operation->communicator;
	side *send = &operation->send, *receive = &operation->receive;
	int rank = communicator->rank, size = communicator->size;
	bool in_place = call->send == MPI_IN_PLACE;
	bool gathers = call->function == F_Allgather || call->function == F_Allgatherv;
	bool listed = call->function == F_Allgatherv || call->function == F_Alltoallv;
	bool laid = listed ? listed_blocks(receive, call->receive, call->receive_counts, call->receive_displacements, call->receive_type, size) :
	                     equal_blocks(receive, call->receive, call->receive_count, call->receive_type, size);
	if (laid && !in_place)
		laid = gathers ? one_block(send, call->send, call->send_count, call->send_type) :
		       listed  ? listed_blocks(send, call->send, call->send_counts, call->send_displacements, call->send_type, size) :
		                 equal_blocks(send, call->send, call->send_count, call->send_type, size);
	if (!laid)
		return NOT_LAID;
	if (!in_place && (gathers ? send->total : send->bytes[rank]) != receive->bytes[rank])
		return UNEQUAL;
	bool packed = !in_place ? side_pack(send, 0, send->blocks) : gathers ? side_pack(receive, rank, 1) : side_pack(receive, 0, size);
	if (!packed)
		return NOT_PACKED;
	operation->unpack = true;
	collective->send = in_place ? FLEXCAST_IN_PLACE : send->memory;
	collective->receive = receive->memory;
	collective->count = receive->bytes[0];
	if (listed) {
		collective->receive_counts = receive->bytes;
		collective->receive_displacements = call->function == F_Alltoallv ? receive->offsets : NULL;
	}
	if (call->function == F_Alltoallv && !in_place) {
		collective->send_counts = send->bytes;
		collective->send_displacements = send->offsets;
	}
	return NULL;
}

static const char *prepare_gather(const collective_call *call, operation *operation, flexcast_collective *collective)
{
	communicator *communicator = operation->communicator;
	side *send = &operation->send, *receive = &operation->receive;
	int rank = communicator->rank, size = communicator->size;
	bool is_root = rank == call->root, in_place = is_root && call->send == MPI_IN_PLACE, listed = call->function == F_Gatherv;
	if (!in_place && !one_block(send, call->send, call->send_count, call->send_type))
		return NOT_LAID;
	if (is_root && !(listed ? listed_blocks(receive, call->receive, call->receive_counts, call->receive_displacements, call->receive_type, size) :
	                          equal_blocks(receive, call->receive, call->receive_count, call->receive_type, size)))
		return NOT_LAID;
	if (is_root && !in_place && send->total != receive->bytes[rank])
		return UNEQUAL;
	if (!(in_place ? side_pack(receive, rank, 1) : side_pack(send, 0, 1)))
		return NOT_PACKED;
	operation->unpack = is_root;
	collective->send = in_place ? FLEXCAST_IN_PLACE : send->memory;
	collective->count = in_place ? receive->bytes[rank] : send->total;
	if (is_root) {
		collective->receive = receive->memory;
		collective->receive_counts = listed ? receive->bytes : NULL;
		collective->receive_displacements = listed ? receive->offsets : NULL;
	}
	return NULL;
}

static const char *prepare_scatter(const collective_call *call, operation *operation, flexcast_collective *collective)
{
	communicator *communicator = operation->communicator;
	side *send = &operation->send, *receive = &operation->receive;
	int rank = communicator->rank, size = communicator->size;
	bool is_root = rank == call->root, in_place = is_root && call->receive == MPI_IN_PLACE, listed = call->function == F_Scatterv;
	if (!in_place && !one_block(receive, call->receive, call->receive_count, call->receive_type))
		return NOT_LAID;
	if (is_root && !(listed ? listed_blocks(send, call->send, call->send_counts, call->send_displacements, call->send_type, size) :
	                          equal_blocks(send, call->send, call->send_count, call->send_type, size)))
		return NOT_LAID;
	if (is_root && !in_place && receive->total != send->bytes[rank])
		return UNEQUAL;
	if (is_root && !side_pack(send, 0, size))
		return NOT_PACKED;
	operation->unpack = !in_place;
	collective->receive = in_place ? (void *)FLEXCAST_IN_PLACE : receive->memory;
	collective->count = in_place ? send->bytes[rank] : receive->total;
	if (is_root) {
		collective->send = send->memory;
		collective->send_counts = listed ? send->bytes : NULL;
		collective->send_displacements = listed ? send->offsets : NULL;
	}
	return NULL;
}

static const char *prepare_broadcast(const collective_call *call, operation *operation, flexcast_collective *collective)
{
	side *buffer = &operation->receive;
	bool is_root = operation->communicator->rank == call->root;
	if (!one_block(buffer, call->receive, call->receive_count, call->receive_type))
		return NOT_LAID;
	if (is_root && !side_pack(buffer, 0, 1))
		return NOT_PACKED;
	operation->unpack = !is_root;
	collective->receive = buffer->memory;
	collective->count = buffer->total;
	return NULL;
}

static const char *prepare(const collective_call *call, operation *operation, flexcast_collective *collective, size_t element)
{
	static const uint32_t codes[] = {
#define X(name, small, operation) FLEXCAST_OPERATION_##operation,
		FUNCTIONS(X)
#undef X
	};
	collective->operation = codes[call->function];
	collective->root = call->root;
	switch (call->function) {
	case F_Barrier:
		return NULL;
	case F_Bcast:
		return prepare_broadcast(call, operation, collective);
	case F_Gather:
	case F_Gatherv:
		return prepare_gather(call, operation, collective);
	case F_Scatter:
	case F_Scatterv:
		return prepare_scatter(call, operation, collective);
	case F_Allgather:
	case F_Allgatherv:
	case F_Alltoall:
	case F_Alltoallv:
		return prepare_all(call, operation, collective);
	default:
		return prepare_reduction(call, operation, collective, element);
	}
}

bool take(const collective_call *call, MPI_Request *request, int *code)
{
	flexcast_collective collective = {0};
	communicator *communicator = NULL;
	uint64_t bytes = 0;
	size_t element = 0;
	enum reason reason = decide(call, &communicator, &collective, &element, &bytes);
	if (reason) {
		count_call(call->function, call->nonblocking, reason, 0);
		return false;
	}
	operation *operation = calloc(1, sizeof *operation);
	if (!operation) {
		*code = fail(call->comm, call->function, call->nonblocking, MPI_ERR_NO_MEM, "no memory for the operation");
		return true;
	}
	operation->function = call->function;
	operation->nonblocking = call->nonblocking;
	operation->communicator = communicator;
	operation->comm = call->comm;
	const char *mistake = prepare(call, operation, &collective, element);
	if (mistake) {
		/* Others may take it, so this rank cannot leave it to PMPI: the program's mistake is named here, and by the library's bound there. */
		side_close(&operation->send);
		side_close(&operation->receive);
		free(operation);
		*code = fail(call->comm, call->function, call->nonblocking, MPI_ERR_ARG, mistake);
		return true;
	}
	if (!bytes)
		bytes = operation->send.total > operation->receive.total ? operation->send.total : operation->receive.total;
	bool refused = false;
	*code = operation_run(operation, &collective, request, &refused);
	count_call(call->function, call->nonblocking, refused ? REASON_LIBRARY : TAKEN, bytes);
	return !refused;
}
