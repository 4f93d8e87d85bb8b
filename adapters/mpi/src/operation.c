/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations under way: blocking ones, which are waited for here, and non-blocking ones, which are generalized requests of MPI.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shim.h"

/* How long a blocking call waits at a time before it looks after MPI's own messages: first, for so many times, and then. */
enum { LOOK_NS = 20000, LOOKS = 20, SLEEP_NS = 500000 };

int fail(MPI_Comm comm, enum function function, bool nonblocking, int code, const char *text)
{
	int rank = -1;
	PMPI(Comm_rank)(comm, &rank);
	say(LOG_ERROR, "rank %d: %s: %s", rank, function_name(function, nonblocking), text);
	PMPI(Comm_call_errhandler)(comm, code);
	return code;
}

static void forget(flexcast_endpoint *endpoint, const side *side)
{
	if (side->total && side->memory)
		flexcast_buffer_invalidate(endpoint, side->memory, side->total);
}

/* After the operation: the program gets its data, and the library lets go of the memory. */
static void settle(operation *operation)
{
	if (operation->status == FLEXCAST_OK && operation->unpack && !side_unpack(&operation->receive)) {
		operation->status = FLEXCAST_ERROR_INTERNAL;
		snprintf(operation->text, sizeof operation->text, "MPI_Unpack failed for the received data");
	}
	if (operation->flexcast)
		flexcast_request_free(operation->flexcast);
	operation->flexcast = NULL;
	if (process_registers()) {
		/* The program may give memory back to the system without a word. */
		forget(process_endpoint(), &operation->send);
		forget(process_endpoint(), &operation->receive);
	}
	side_close(&operation->send);
	side_close(&operation->receive);
}

void operation_free(operation *operation)
{
	side_close(&operation->send);
	side_close(&operation->receive);
	communicator_release(operation->communicator);
	free(operation);
}

/* Called by the library when a non-blocking operation has ended, by whichever thread finds out. */
static void ended(void *user, flexcast_request *request, flexcast_status status)
{
	operation *operation = user;
	(void)request;
	operation->status = status;
	if (status)
		snprintf(operation->text, sizeof operation->text, "%s", flexcast_last_error());
	bool outer = in_callback;
	in_callback = true;
	settle(operation);
	communicator_end(operation->communicator);
	/* From here on it may be freed. */
	PMPI(Grequest_complete)(operation->request);
	in_callback = outer;
}

/* Waits as MPI's own functions do: messages that the program has begun to send or to receive go on meanwhile. */
static flexcast_status wait_for(flexcast_request *request)
{
	int done = 0;
	flexcast_status status = flexcast_test(request, &done);
	for (unsigned rounds = 0; !done && !status; rounds++) {
		int found;
		MPI_Status ignored;
		status = flexcast_wait_for(request, rounds < LOOKS ? LOOK_NS : SLEEP_NS, &done);
		if (!done)
			PMPI(Iprobe)(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_SELF, &found, &ignored);
	}
	return status;
}

static int query(void *user, MPI_Status *status)
{
	operation *operation = user;
	PMPI(Status_set_elements)(status, MPI_BYTE, 0);
	PMPI(Status_set_cancelled)(status, 0);
	status->MPI_SOURCE = MPI_UNDEFINED;
	status->MPI_TAG = MPI_UNDEFINED;
	if (operation->status == FLEXCAST_OK || looking_ahead)
		return MPI_SUCCESS;
	if (!atomic_exchange(&operation->told, true)) {
		bool closed = atomic_load(&operation->communicator->closed);
		fail(closed ? MPI_COMM_WORLD : operation->comm, operation->function, true, MPI_ERR_OTHER, operation->text);
	}
	return MPI_ERR_OTHER;
}

static int release(void *user)
{
	operation_free(user);
	return MPI_SUCCESS;
}

/* A collective cannot be cancelled. */
static int cancel(void *user, int complete)
{
	(void)user, (void)complete;
	return MPI_SUCCESS;
}

static int run_blocking(operation *operation)
{
	operation->status = flexcast_start(operation->flexcast);
	if (!operation->status)
		operation->status = wait_for(operation->flexcast);
	if (operation->status)
		snprintf(operation->text, sizeof operation->text, "%s", flexcast_last_error());
	settle(operation);
	int code = MPI_SUCCESS;
	if (operation->status)
		code = fail(operation->comm, operation->function, false, MPI_ERR_OTHER, operation->text);
	operation_free(operation);
	return code;
}

static int run_nonblocking(operation *operation, MPI_Request *request)
{
	MPI_Comm comm = operation->comm;
	enum function function = operation->function;
	char text[sizeof operation->text];
	int code = side_keep(&operation->send) && side_keep(&operation->receive) ? PMPI(Grequest_start)(query, release, cancel, operation, &operation->request) : MPI_ERR_NO_MEM;
	if (code) {
		settle(operation);
		operation_free(operation);
		return fail(comm, function, true, code, "no generalized request could be started");
	}
	MPI_Request started = operation->request;
	communicator_begin(operation->communicator);
	if (!flexcast_start(operation->flexcast)) {
		*request = started;
		return MPI_SUCCESS;
	}
	snprintf(text, sizeof text, "%s", flexcast_last_error());
	settle(operation);
	communicator_end(operation->communicator);
	operation->status = FLEXCAST_OK;
	PMPI(Grequest_complete)(started);
	PMPI(Wait)(&started, MPI_STATUS_IGNORE);
	return fail(comm, function, true, MPI_ERR_OTHER, text);
}

int operation_run(operation *operation, flexcast_collective *collective, MPI_Request *request, bool *refused)
{
	communicator_hold(operation->communicator);
	collective->size = sizeof *collective;
	if (operation->nonblocking) {
		collective->callback = ended;
		collective->user = operation;
	} else {
		collective->flags = FLEXCAST_FLAG_AWAITED;
	}
	flexcast_status status = flexcast_prepare(operation->communicator->flexcast, collective, &operation->flexcast);
	if (status) {
		MPI_Comm comm = operation->comm;
		enum function function = operation->function;
		bool nonblocking = operation->nonblocking;
		char text[sizeof operation->text];
		*refused = status == FLEXCAST_NOT_SUPPORTED || status == FLEXCAST_ERROR_FORKED;
		snprintf(text, sizeof text, "%s", flexcast_last_error());
		operation->flexcast = NULL;
		operation_free(operation);
		return *refused ? MPI_SUCCESS : fail(comm, function, nonblocking, MPI_ERR_OTHER, text);
	}
	return operation->nonblocking ? run_nonblocking(operation, request) : run_blocking(operation);
}
