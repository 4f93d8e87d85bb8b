/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lookup of functions in the MPI library that the process has loaded.
 */
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shim.h"

pmpi_functions pmpi_found;
atomic_bool pmpi_ready;
#if defined(MPI_OBJECTS)
struct pmpi_objects pmpi_objects;
#endif

/* Files that the process has loaded. */
typedef struct {
	char **files;
	size_t count;
} loaded;

static int note_file(struct dl_phdr_info *info, size_t bytes, void *user)
{
	loaded *all = user;
	(void)bytes;
	/* The program itself has no name; what it is linked with is in the global scope. */
	if (!info->dlpi_name || !*info->dlpi_name)
		return 0;
	char **files = realloc(all->files, (all->count + 1) * sizeof *files);
	if (!files)
		return 1;
	all->files = files;
	files[all->count] = strdup(info->dlpi_name);
	all->count += files[all->count] != NULL;
	return 0;
}

/*
 * A handle through which MPI's functions are found: the global scope, or else a library in a local one, or an object that
 * is linked with it. Without any it is the global scope, too, in which none is found.
 */
static void *scope(void)
{
	loaded all = {0};
	void *found = RTLD_DEFAULT;
	if (dlsym(RTLD_DEFAULT, "PMPI_Init"))
		return RTLD_DEFAULT;
	/* The files are asked one by one afterwards: dlopen() is not to be called while the loader lists them. */
	dl_iterate_phdr(note_file, &all);
	for (size_t at = 0; at < all.count; at++) {
		void *handle = found != RTLD_DEFAULT ? NULL : dlopen(all.files[at], RTLD_LAZY | RTLD_NOLOAD);
		if (handle && dlsym(handle, "PMPI_Init"))
			/* It stays open, so that the library stays. */
			found = handle;
		else if (handle)
			dlclose(handle);
		free(all.files[at]);
	}
	free(all.files);
	return found;
}

static bool is_there;

static _Noreturn void absent(const char *name)
{
	Dl_info info;
	if (!is_there)
		fprintf(stderr,
		        "flexcast-mpi: %s is called, and this process has loaded no MPI library that has it: load MPI as a shared "
		        "library, or do not preload libflexcast-mpi-" ABI_NAME ".so\n",
		        name);
	else
		fprintf(stderr,
		        "flexcast-mpi: %s has no %s, which libflexcast-mpi-" ABI_NAME ".so was built for: build the object with the "
		        "mpicc of this MPI\n",
		        dladdr((void *)pmpi_found.Init, &info) && info.dli_fname ? info.dli_fname : "the MPI library", name);
	exit(EXIT_FAILURE);
}

/* What stands for a function that the library has not. */
#define PMPI_X(name) \
	static int absent_##name(void) \
	{ \
		absent("PMPI_" #name); \
	}
PMPI_FUNCTIONS
#undef PMPI_X

static void find_all(void)
{
	void *in = scope();
	is_there = dlsym(in, "PMPI_Init") != NULL;
#define PMPI_X(name) \
	pmpi_found.name = (__typeof__(pmpi_found.name))dlsym(in, "PMPI_" #name); \
	if (!pmpi_found.name) \
		pmpi_found.name = (__typeof__(pmpi_found.name))(void *)absent_##name;
	PMPI_FUNCTIONS
#undef PMPI_X
#if defined(MPI_OBJECTS)
	/* In the global scope a program that is no position-independent code has the copies that count. */
#define X(object) pmpi_objects.object = dlsym(in, #object);
	MPI_OBJECTS(X)
#undef X
#endif
	atomic_store_explicit(&pmpi_ready, true, memory_order_release);
}

void pmpi_find(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, find_all);
}
