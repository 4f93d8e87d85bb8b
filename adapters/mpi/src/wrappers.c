/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The collectives of MPI: each is Flexcast's, or else that of PMPI.
 *
 * One macro defines all forms of a function: blocking, non-blocking and persistent, each with counts of int and of MPI_Count.
 */
#include "shim.h"

/* A call: the function, whether it blocks, its communicator; then fields of collective_call. */
#define CALL(name, is_nonblocking, ...) \
	int code; \
	const collective_call call = {.function = F_##name, .nonblocking = is_nonblocking, .comm = comm, __VA_ARGS__}

#define UNWRAP(...) __VA_ARGS__
#define LIST(entries, count) {entries, sizeof(count) > sizeof(int)}

/*
 * Persistent forms are counted and left to MPI. A generalized request cannot be started again, so one of ours would have to be changed for another
 * request in every function that takes requests, the program's own included.
 */
#if ABI_PERSISTENT
#define PERSISTENT_FORM(name, suffix, parameters, arguments) \
	int MPI_##name##_init##suffix(UNWRAP parameters, MPI_Info info, MPI_Request *request) \
	{ \
		count_call(F_##name, PERSISTENT, REASON_PERSISTENT, 0); \
		return PMPI(name##_init##suffix)(UNWRAP arguments, info, request); \
	}
#else
#define PERSISTENT_FORM(name, suffix, parameters, arguments)
#endif

/* All forms of a function: parameters and arguments in parentheses, then the call's fields. */
#define FORMS(name, small, suffix, parameters, arguments, ...) \
	int MPI_##name##suffix(UNWRAP parameters) \
	{ \
		CALL(name, false, __VA_ARGS__); \
		return take(&call, NULL, &code) ? code : PMPI(name##suffix) arguments; \
	} \
	int MPI_I##small##suffix(UNWRAP parameters, MPI_Request *request) \
	{ \
		CALL(name, true, __VA_ARGS__); \
		return take(&call, request, &code) ? code : PMPI(I##small##suffix)(UNWRAP arguments, request); \
	} \
	PERSISTENT_FORM(name, suffix, parameters, arguments)

FORMS(Barrier, barrier, , (MPI_Comm comm), (comm), .root = 0)

#define COLLECTIVES(suffix, count, place) \
	FORMS(Bcast, bcast, suffix, (void *buffer, count number, MPI_Datatype type, int root, MPI_Comm comm), (buffer, number, type, root, comm), \
	     .receive = buffer, .receive_count = number, .receive_type = type, .root = root) \
	FORMS(Allgather, allgather, suffix, \
	     (const void *send, count send_count, MPI_Datatype send_type, void *receive, count receive_count, MPI_Datatype receive_type, MPI_Comm comm), \
	     (send, send_count, send_type, receive, receive_count, receive_type, comm), \
	     .send = send, .send_count = send_count, .send_type = send_type, .receive = receive, .receive_count = receive_count, .receive_type = receive_type) \
	FORMS(Allgatherv, allgatherv, suffix, \
	     (const void *send, count send_count, MPI_Datatype send_type, void *receive, const count counts[], const place places[], MPI_Datatype receive_type, \
	      MPI_Comm comm), \
	     (send, send_count, send_type, receive, counts, places, receive_type, comm), \
	     .send = send, .send_count = send_count, .send_type = send_type, .receive = receive, .receive_counts = LIST(counts, count), \
	     .receive_displacements = LIST(places, place), .receive_type = receive_type) \
	FORMS(Allreduce, allreduce, suffix, (const void *send, void *receive, count number, MPI_Datatype type, MPI_Op op, MPI_Comm comm), \
	     (send, receive, number, type, op, comm), .send = send, .receive = receive, .receive_count = number, .receive_type = type, .op = op) \
	FORMS(Reduce, reduce, suffix, (const void *send, void *receive, count number, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm), \
	     (send, receive, number, type, op, root, comm), .send = send, .receive = receive, .receive_count = number, .receive_type = type, .op = op, \
	     .root = root) \
	FORMS(Reduce_scatter_block, reduce_scatter_block, suffix, \
	     (const void *send, void *receive, count number, MPI_Datatype type, MPI_Op op, MPI_Comm comm), (send, receive, number, type, op, comm), \
	     .send = send, .receive = receive, .receive_count = number, .receive_type = type, .op = op) \
	FORMS(Reduce_scatter, reduce_scatter, suffix, \
	     (const void *send, void *receive, const count counts[], MPI_Datatype type, MPI_Op op, MPI_Comm comm), (send, receive, counts, type, op, comm), \
	     .send = send, .receive = receive, .receive_counts = LIST(counts, count), .receive_type = type, .op = op) \
	FORMS(Alltoall, alltoall, suffix, \
	     (const void *send, count send_count, MPI_Datatype send_type, void *receive, count receive_count, MPI_Datatype receive_type, MPI_Comm comm), \
	     (send, send_count, send_type, receive, receive_count, receive_type, comm), \
	     .send = send, .send_count = send_count, .send_type = send_type, .receive = receive, .receive_count = receive_count, .receive_type = receive_type) \
	FORMS(Alltoallv, alltoallv, suffix, \
	     (const void *send, const count send_counts[], const place send_places[], MPI_Datatype send_type, void *receive, const count receive_counts[], \
	      const place receive_places[], MPI_Datatype receive_type, MPI_Comm comm), \
	     (send, send_counts, send_places, send_type, receive, receive_counts, receive_places, receive_type, comm), \
	     .send = send, .send_counts = LIST(send_counts, count), .send_displacements = LIST(send_places, place), .send_type = send_type, .receive = receive, \
	     .receive_counts = LIST(receive_counts, count), .receive_displacements = LIST(receive_places, place), .receive_type = receive_type) \
	FORMS(Gather, gather, suffix, \
	     (const void *send, count send_count, MPI_Datatype send_type, void *receive, count receive_count, MPI_Datatype receive_type, int root, \
	      MPI_Comm comm), \
	     (send, send_count, send_type, receive, receive_count, receive_type, root, comm), \
	     .send = send, .send_count = send_count, .send_type = send_type, .receive = receive, .receive_count = receive_count, .receive_type = receive_type, \
	     .root = root) \
	FORMS(Gatherv, gatherv, suffix, \
	     (const void *send, count send_count, MPI_Datatype send_type, void *receive, const count counts[], const place places[], MPI_Datatype receive_type, \
	      int root, MPI_Comm comm), \
	     (send, send_count, send_type, receive, counts, places, receive_type, root, comm), \
	     .send = send, .send_count = send_count, .send_type = send_type, .receive = receive, .receive_counts = LIST(counts, count), \
	     .receive_displacements = LIST(places, place), .receive_type = receive_type, .root = root) \
	FORMS(Scatter, scatter, suffix, \
	     (const void *send, count send_count, MPI_Datatype send_type, void *receive, count receive_count, MPI_Datatype receive_type, int root, \
	      MPI_Comm comm), \
	     (send, send_count, send_type, receive, receive_count, receive_type, root, comm), \
	     .send = send, .send_count = send_count, .send_type = send_type, .receive = receive, .receive_count = receive_count, .receive_type = receive_type, \
	     .root = root) \
	FORMS(Scatterv, scatterv, suffix, \
	     (const void *send, const count counts[], const place places[], MPI_Datatype send_type, void *receive, count receive_count, \
	      MPI_Datatype receive_type, int root, MPI_Comm comm), \
	     (send, counts, places, send_type, receive, receive_count, receive_type, root, comm), \
	     .send = send, .send_counts = LIST(counts, count), .send_displacements = LIST(places, place), .send_type = send_type, .receive = receive, \
	     .receive_count = receive_count, .receive_type = receive_type, .root = root)

COLLECTIVES(, int, int)
#if ABI_LARGE_COUNTS
COLLECTIVES(_c, MPI_Count, MPI_Aint)
#endif
