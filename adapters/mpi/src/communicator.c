/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flexcast communicators as attributes of MPI communicators.
 */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "shim.h"

/* Longest that MPI_Finalize waits for operations that the program has not completed. */
#define STOP_SECONDS 10

_Thread_local bool in_callback;

static int key = MPI_KEYVAL_INVALID;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* All that there are; and those to be freed, which ended in a callback of the library. */
static communicator *all, *ended;
/* Non-blocking operations under way on all of them. */
static atomic_int under_way;
/* Communicators that are moved on in one round. */
enum { ROUND = 16 };

static void insert(communicator **head, communicator *one)
{
	one->previous = NULL;
	one->next = *head;
	if (*head)
		(*head)->previous = one;
	*head = one;
}

static void take_out(communicator **head, communicator *one)
{
	if (one->previous)
		one->previous->next = one->next;
	else
		*head = one->next;
	if (one->next)
		one->next->previous = one->previous;
}

static void destroy(communicator *one)
{
	if (one->flexcast && flexcast_comm_free(one->flexcast))
		say(LOG_WARN, "rank %d of %d: a communicator stays: %s", one->rank, one->size, flexcast_last_error());
	free(one);
}

/* Frees what could not be freed where it ended. */
static void reap(void)
{
	for (;;) {
		pthread_mutex_lock(&lock);
		communicator *one = ended;
		if (one)
			take_out(&ended, one);
		pthread_mutex_unlock(&lock);
		if (!one)
			return;
		destroy(one);
	}
}

void communicator_hold(communicator *communicator)
{
	atomic_fetch_add(&communicator->references, 1);
}

void communicator_release(communicator *communicator)
{
	/* Under the lock, so that communicators_progress() holds none that is ending. */
	pthread_mutex_lock(&lock);
	bool last = atomic_fetch_sub(&communicator->references, 1) == 1;
	if (last)
		take_out(&all, communicator);
	if (last && in_callback)
		insert(&ended, communicator);
	pthread_mutex_unlock(&lock);
	if (last && !in_callback)
		destroy(communicator);
}

void communicator_begin(communicator *communicator)
{
	atomic_fetch_add(&communicator->under_way, 1);
	atomic_fetch_add(&under_way, 1);
}

void communicator_end(communicator *communicator)
{
	atomic_fetch_sub(&communicator->under_way, 1);
	atomic_fetch_sub(&under_way, 1);
}

bool communicators_busy(void)
{
	return atomic_load_explicit(&under_way, memory_order_relaxed) > 0;
}

void communicators_progress(uint64_t wait_ns)
{
	communicator *some[ROUND];
	int count = 0;
	pthread_mutex_lock(&lock);
	for (communicator *one = all; one && count < ROUND; one = one->next)
		if (atomic_load(&one->under_way)) {
			communicator_hold(one);
			some[count++] = one;
		}
	pthread_mutex_unlock(&lock);
	for (int at = 0; at < count; at++) {
		/* One can be waited for; among several each would wait for its own. */
		if (wait_ns && count == 1)
			flexcast_progress_for(some[at]->flexcast, wait_ns, NULL);
		else
			flexcast_progress(some[at]->flexcast, NULL);
		communicator_release(some[at]);
	}
}

/* A duplicate makes its own. */
static int copied(MPI_Comm comm, int keyval, void *extra, void *value, void *new_value, int *copy)
{
	(void)comm, (void)keyval, (void)extra, (void)value, (void)new_value;
	*copy = 0;
	return MPI_SUCCESS;
}

/* The MPI communicator is freed. Operations under way go on; the last one frees ours. */
static int deleted(MPI_Comm comm, int keyval, void *value, void *extra)
{
	(void)comm, (void)keyval, (void)extra;
	communicator *communicator = value;
	atomic_store(&communicator->closed, true);
	communicator_release(communicator);
	reap();
	return MPI_SUCCESS;
}

bool communicators_start(void)
{
	return !PMPI(Comm_create_keyval)(copied, deleted, &key, NULL);
}

communicator *communicator_of(MPI_Comm comm)
{
	communicator *one;
	int found, inter;
	if (PMPI(Comm_get_attr)(comm, key, &one, &found))
		return NULL;
	if (found)
		return one;
	one = calloc(1, sizeof *one);
	if (!one)
		return NULL;
	if (PMPI(Comm_test_inter)(comm, &inter) || PMPI(Comm_rank)(comm, &one->rank) || PMPI(Comm_size)(comm, &one->size) || PMPI(Comm_set_attr)(comm, key, one)) {
		free(one);
		return NULL;
	}
	one->state = inter || one->size < 2 ? UNFIT : FRESH;
	atomic_store(&one->references, 1);
	pthread_mutex_lock(&lock);
	insert(&all, one);
	pthread_mutex_unlock(&lock);
	return one;
}

/* Whether all ranks are well and have the same settings. */
static bool agree(MPI_Comm comm, bool well, bool *alike)
{
	uint64_t hash = settings_hash();
	uint64_t words[3] = {!well, hash, ~hash};
	if (PMPI(Allreduce)(MPI_IN_PLACE, words, 3, MPI_UINT64_T, MPI_MAX, comm))
		return false;
	*alike = words[1] == ~words[2];
	return !words[0] && *alike;
}

static int exchange(void *user, const void *mine, size_t bytes, void *gathered)
{
	MPI_Comm comm = *(MPI_Comm *)user;
	return bytes > INT_MAX || PMPI(Allgather)(mine, (int)bytes, MPI_BYTE, gathered, (int)bytes, MPI_BYTE, comm);
}

static void refused(communicator *communicator, bool alike, const char *text)
{
	static atomic_bool told;
	communicator->state = REFUSED;
	if (!alike)
		text = "the settings FLEXCAST_MPI... are not alike on all ranks; set them for all, such as with mpirun -x";
	/* A rank that was well leaves it to the others to tell. */
	int level = text && !atomic_exchange(&told, true) ? LOG_WARN : LOG_INFO;
	say(level, "rank %d of %d: this communicator stays with MPI's own collectives: %s", communicator->rank, communicator->size, text ? text : "another rank cannot connect");
}

void communicator_connect(communicator *communicator, MPI_Comm comm)
{
	char text[768] = "";
	flexcast_bootstrap *bootstrap = NULL;
	flexcast_config config;
	bool alike = true;
	reap();
	flexcast_endpoint *endpoint = process_endpoint();
	flexcast_status status = endpoint ? flexcast_bootstrap_callback(exchange, &comm, communicator->rank, communicator->size, &bootstrap) : FLEXCAST_ERROR_NO_DEVICE;
	if (!status)
		status = process_config(&config);
	if (status)
		snprintf(text, sizeof text, "%s", flexcast_last_error());
	bool connected = agree(comm, !status, &alike);
	if (connected) {
		status = flexcast_comm_create(endpoint, bootstrap, &config, &communicator->flexcast);
		if (status)
			snprintf(text, sizeof text, "%s", flexcast_last_error());
		connected = agree(comm, !status, &alike);
	}
	if (bootstrap)
		flexcast_bootstrap_free(bootstrap);
	if (connected) {
		communicator->state = CONNECTED;
		return;
	}
	if (communicator->flexcast && !status)
		flexcast_comm_free(communicator->flexcast);
	communicator->flexcast = NULL;
	refused(communicator, alike, text[0] ? text : NULL);
}

void communicator_made(MPI_Comm comm)
{
	if (!settings.early || comm == MPI_COMM_NULL || !process_ready())
		return;
	communicator *communicator = communicator_of(comm);
	if (communicator && communicator->state == FRESH)
		communicator_connect(communicator, comm);
}

int MPI_Comm_dup(MPI_Comm comm, MPI_Comm *made)
{
	int code = PMPI(Comm_dup)(comm, made);
	if (code == MPI_SUCCESS)
		communicator_made(*made);
	return code;
}

int MPI_Comm_split(MPI_Comm comm, int color, int rank_key, MPI_Comm *made)
{
	int code = PMPI(Comm_split)(comm, color, rank_key, made);
	if (code == MPI_SUCCESS)
		communicator_made(*made);
	return code;
}

int MPI_Comm_split_type(MPI_Comm comm, int type, int rank_key, MPI_Info info, MPI_Comm *made)
{
	int code = PMPI(Comm_split_type)(comm, type, rank_key, info, made);
	if (code == MPI_SUCCESS)
		communicator_made(*made);
	return code;
}

int MPI_Comm_create(MPI_Comm comm, MPI_Group group, MPI_Comm *made)
{
	int code = PMPI(Comm_create)(comm, group, made);
	if (code == MPI_SUCCESS)
		communicator_made(*made);
	return code;
}

/* Ends what the program has left under way, which is its mistake, within a bound. */
static void stop(communicator *one)
{
	const struct timespec pause = {.tv_nsec = 1000000};
	struct timespec now, end;
	if (!one->flexcast || flexcast_comm_free(one->flexcast) != FLEXCAST_ERROR_BUSY)
		return;
	say(LOG_WARN, "rank %d of %d: operations are under way in MPI_Finalize; they are cancelled", one->rank, one->size);
	flexcast_cancel(one->flexcast);
	clock_gettime(CLOCK_MONOTONIC, &end);
	end.tv_sec += STOP_SECONDS;
	do {
		flexcast_progress(one->flexcast, NULL);
		nanosleep(&pause, NULL);
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (flexcast_comm_free(one->flexcast) == FLEXCAST_ERROR_BUSY && now.tv_sec < end.tv_sec);
}

void communicators_stop(void)
{
	reap();
	for (communicator *one = all; one; one = one->next) {
		stop(one);
		one->flexcast = NULL;
		one->state = REFUSED;
	}
}
