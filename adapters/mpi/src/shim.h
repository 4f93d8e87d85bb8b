/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Declarations of the MPI adapter: a call of MPI, its communicator, the decision whether Flexcast takes it, and the operation that follows.
 */
#ifndef FLEXCAST_MPI_SHIM_H
#define FLEXCAST_MPI_SHIM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <flexcast.h>

#include "abi.h"

/* Every function that is interposed: MPI_<name>, MPI_I<small> and MPI_<name>_init, FLEXCAST_OPERATION_<operation>, word in FLEXCAST_MPI_OPERATIONS. */
#define FUNCTIONS(X) \
	X(Barrier, barrier, BARRIER) \
	FUNCTIONS_OF_DATA(X)

/* Those that have counts. */
#define FUNCTIONS_OF_DATA(X) \
	X(Bcast, bcast, BROADCAST) \
	X(Allgather, allgather, ALLGATHER) \
	X(Allgatherv, allgatherv, ALLGATHERV) \
	X(Allreduce, allreduce, ALLREDUCE) \
	X(Reduce, reduce, REDUCE) \
	X(Reduce_scatter_block, reduce_scatter_block, REDUCE_SCATTER_BLOCK) \
	X(Reduce_scatter, reduce_scatter, REDUCE_SCATTER) \
	X(Alltoall, alltoall, ALLTOALL) \
	X(Alltoallv, alltoallv, ALLTOALLV) \
	X(Gather, gather, GATHER) \
	X(Gatherv, gatherv, GATHERV) \
	X(Scatter, scatter, SCATTER) \
	X(Scatterv, scatterv, SCATTERV)

enum function {
#define X(name, small, operation) F_##name,
	FUNCTIONS(X)
#undef X
	F_COUNT
};

/* Forms of a function, the first two as of a flag "non-blocking". */
enum form { BLOCKING, NONBLOCKING, PERSISTENT, FORM_COUNT };

/* Why a call went to PMPI. */
#define REASONS(X) \
	X(OFF, "off") \
	X(OPERATION, "operation not listed") \
	X(COMMUNICATOR, "communicator") \
	X(UNCONNECTED, "not connected yet") \
	X(REFUSED, "connecting failed") \
	X(THREADS, "no MPI_THREAD_MULTIPLE") \
	X(SIZE, "size") \
	X(TYPE, "data type") \
	X(OPERATOR, "operator") \
	X(ARGUMENT, "argument") \
	X(LIBRARY, "not supported by the library") \
	X(PERSISTENT, "persistent")

enum reason {
	TAKEN,
#define X(name, text) REASON_##name,
	REASONS(X)
#undef X
	REASON_COUNT
};

/* A list of counts or displacements of MPI: of int, or of the wide type of the functions with large counts. */
typedef struct {
	const void *entries;
	bool wide;
} list;

/* Arguments of a collective. What a function has not stays 0. */
typedef struct {
	enum function function;
	bool nonblocking;
	MPI_Comm comm;
	const void *send;
	MPI_Count send_count;
	MPI_Datatype send_type;
	list send_counts, send_displacements;
	void *receive;
	MPI_Count receive_count;
	MPI_Datatype receive_type;
	list receive_counts, receive_displacements;
	MPI_Op op;
	int root;
} collective_call;

/* What is kept for an MPI communicator, as its attribute. */
typedef struct communicator {
	enum { FRESH, CONNECTED, REFUSED, UNFIT } state;
	int rank, size;
	/* Operations under way, and one for the attribute. The last one frees. */
	atomic_int references;
	/* Non-blocking operations of those. */
	atomic_int under_way;
	/* The MPI communicator is gone. */
	atomic_bool closed;
	flexcast_comm *flexcast;
	struct communicator *next, *previous;
} communicator;

/* One side of a collective: elements in the program's memory, and the bytes that Flexcast sends or fills. */
typedef struct {
	char *user;
	MPI_Datatype type;
	size_t element;
	MPI_Count extent;
	/* Blocks: elements, and place in bytes behind `user`. */
	int blocks;
	MPI_Count *counts;
	MPI_Count *places;
	size_t *bytes;
	size_t *offsets;
	size_t total;
	/* Where the blocks lie one after another: in the program's memory, or in a copy. */
	char *memory;
	bool copied;
	bool own_type;
} side;

typedef struct {
	enum function function;
	bool nonblocking;
	communicator *communicator;
	MPI_Comm comm;
	flexcast_request *flexcast;
	MPI_Request request;
	side send, receive;
	/* What is copied to the program when the operation has ended well. */
	bool unpack;
	flexcast_status status;
	atomic_bool told;
	char text[768];
} operation;

#include "pmpi.h"

/* settings.c */
typedef struct {
	bool on;
	bool nonblocking;
	bool progress_thread;
	bool early;
	uint32_t functions;
	uint64_t least, most;
	int log;
	const char *report;
} shim_settings;

extern shim_settings settings;
void settings_read(void);
/* A number that is alike on ranks with like settings. */
uint64_t settings_hash(void);

enum { LOG_ERROR = 1, LOG_WARN, LOG_INFO };
void say(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* process.c */
/* Whether collectives can be taken now: MPI runs, and this process is set up. */
bool process_ready(void);
bool process_multiple(void);
/* The endpoint, which is opened by the first call; NULL with a reason in flexcast_last_error(). */
flexcast_endpoint *process_endpoint(void);
/* Whether memory that operations have used stays registered with the card. */
bool process_registers(void);
flexcast_status process_config(flexcast_config *config);

/* statistics.c */
void count_call(enum function function, enum form form, enum reason reason, uint64_t bytes);
const char *function_name(enum function function, enum form form);
const char *function_word(enum function function);
void statistics_print(void);
void statistics_write(int rank);

/* types.c */
bool types_start(void);
bool type_is(MPI_Datatype type);
/* Bytes of an element's data: alike on all ranks for types of one signature. */
bool type_size(MPI_Datatype type, size_t *bytes);
/* Reductions: code, bytes from one element to the next; false if the library has no such type or the operator is not defined for it. */
enum reason type_reduction(MPI_Datatype type, MPI_Op op, uint32_t *code, uint32_t *operator, size_t *bytes);
bool multiply(size_t one, size_t other, size_t *product);

/* sides.c */
/* Describes blocks of a side. False: no memory. */
bool side_open(side *side, const void *user, MPI_Datatype type, int blocks);
void side_block(side *side, int block, MPI_Count count, MPI_Count displacement);
/* Lays the blocks out, one after another; makes a copy where the program's memory is not so. */
bool side_lay(side *side);
bool side_pack(side *side, int first, int blocks);
bool side_unpack(side *side);
/* Keeps the type until side_close(), whatever the program does with it. */
bool side_keep(side *side);
void side_close(side *side);

/* communicator.c */
bool communicators_start(void);
communicator *communicator_of(MPI_Comm comm);
/* With FLEXCAST_MPI_CONNECT=early: connects a communicator that all its ranks are making. */
void communicator_made(MPI_Comm comm);
/* Connects the ranks; collective and blocking. */
void communicator_connect(communicator *communicator, MPI_Comm comm);
void communicator_hold(communicator *communicator);
void communicator_release(communicator *communicator);
void communicators_stop(void);
/* A non-blocking operation begins or ends. */
void communicator_begin(communicator *communicator);
void communicator_end(communicator *communicator);
/* Whether waits have to move non-blocking operations on, because some are under way; and moves them on, with so many nanoseconds for something to
 * come. */
bool communicators_busy(void);
void communicators_progress(uint64_t wait_ns);
extern _Thread_local bool in_callback;

/* collectives.c */
/* Whether the call is Flexcast's: then `code` is what MPI_... returns. Else the caller calls PMPI. */
bool take(const collective_call *call, MPI_Request *request, int *code);

/* waits.c */
/* This thread asks MPI how requests stand, and nobody is told of failed ones yet. */
extern _Thread_local bool looking_ahead;

/* operation.c */
int operation_run(operation *operation, flexcast_collective *collective, MPI_Request *request, bool *refused);
void operation_free(operation *operation);
int fail(MPI_Comm comm, enum function function, bool nonblocking, int code, const char *text);

#endif
