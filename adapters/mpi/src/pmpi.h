/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions of MPI by their names PMPI_..., and objects of Open MPI: looked up in the MPI library that the process has
 * loaded.
 *
 * The object is not linked with MPI, and its own symbols cannot be left to the dynamic loader: a preloaded object sees the
 * global scope alone, and a program such as Python loads an extension, and with it MPI, into a local one (RTLD_LOCAL).
 */
#ifndef FLEXCAST_MPI_PMPI_H
#define FLEXCAST_MPI_PMPI_H

#include "shim.h"

#if ABI_PERSISTENT
#define PMPI_PERSISTENT(X, name) X(name)
#else
#define PMPI_PERSISTENT(X, name)
#endif

/* The forms of a collective, to which calls go that are left to MPI. X is PMPI_X, which each use defines. */
#define PMPI_FORMS(name, small, operation) PMPI_X(name) PMPI_X(I##small) PMPI_PERSISTENT(PMPI_X, name##_init)
#define PMPI_FORMS_C(name, small, operation) PMPI_X(name##_c) PMPI_X(I##small##_c) PMPI_PERSISTENT(PMPI_X, name##_init_c)

#if ABI_LARGE_COUNTS
#define PMPI_LARGE_COUNTS \
	FUNCTIONS_OF_DATA(PMPI_FORMS_C) \
	PMPI_X(Pack_c) PMPI_X(Unpack_c) PMPI_X(Type_get_contents_c) PMPI_X(Type_get_envelope_c)
#else
#define PMPI_LARGE_COUNTS PMPI_X(Unpack) PMPI_X(Type_get_contents) PMPI_X(Type_get_envelope)
#endif

/* Every function that is called. */
#define PMPI_FUNCTIONS \
	FUNCTIONS(PMPI_FORMS) \
	PMPI_LARGE_COUNTS \
	PMPI_X(Comm_call_errhandler) PMPI_X(Comm_create) PMPI_X(Comm_create_keyval) PMPI_X(Comm_dup) PMPI_X(Comm_get_attr) PMPI_X(Comm_rank) \
	PMPI_X(Comm_set_attr) PMPI_X(Comm_size) PMPI_X(Comm_split) PMPI_X(Comm_split_type) PMPI_X(Comm_test_inter) \
	PMPI_X(Finalize) PMPI_X(Finalized) PMPI_X(Get_library_version) PMPI_X(Grequest_complete) PMPI_X(Grequest_start) \
	PMPI_X(Init) PMPI_X(Init_thread) PMPI_X(Initialized) PMPI_X(Iprobe) PMPI_X(Pack) PMPI_X(Query_thread) \
	PMPI_X(Request_get_status) PMPI_X(Status_set_cancelled) PMPI_X(Status_set_elements) \
	PMPI_X(Test) PMPI_X(Testall) PMPI_X(Testany) PMPI_X(Testsome) PMPI_X(Wait) PMPI_X(Waitall) PMPI_X(Waitany) PMPI_X(Waitsome) \
	PMPI_X(Type_commit) PMPI_X(Type_contiguous) PMPI_X(Type_create_hindexed) PMPI_X(Type_create_struct) PMPI_X(Type_free) \
	PMPI_X(Type_get_extent_x) PMPI_X(Type_get_true_extent_x) PMPI_X(Type_size_x)

typedef struct {
#define PMPI_X(name) __typeof__(PMPI_##name) *name;
	PMPI_FUNCTIONS
#undef PMPI_X
} pmpi_functions;

extern pmpi_functions pmpi_found;
extern atomic_bool pmpi_ready;

/* Looks all of them up, once. */
void pmpi_find(void);

static inline const pmpi_functions *pmpi(void)
{
	if (!atomic_load_explicit(&pmpi_ready, memory_order_acquire))
		pmpi_find();
	return &pmpi_found;
}

/*
 * A function of MPI, behind this object's own of the same name. One that the library has not ends the process with a message
 * when it is called.
 */
#define PMPI(name) (pmpi()->name)

#if defined(MPI_OBJECTS)
/* Addresses; NULL where this release of MPI has no such object, and before pmpi_find(). */
extern struct pmpi_objects {
#define X(object) void *object;
	MPI_OBJECTS(X)
#undef X
} pmpi_objects;
#endif

#endif
