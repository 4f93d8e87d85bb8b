/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waits and tests of the program while non-blocking operations are under way.
 *
 * MPI knows how they end without this: they are generalized requests, which the library's progress thread completes. But a wait of MPI keeps its
 * processor busy without moving them on, and where there are no more processors than ranks the progress thread would get little of them.
 */
#include <time.h>

#include "shim.h"

/* How long a wait lets something come at a time; and after so many rounds in vain it sleeps between them. */
enum { LOOK_NS = 20000, LOOKS = 50, SLEEP_NS = 50000 };

/* Moves on what is under way, if anything is; whether it is. */
static bool drive(uint64_t wait_ns)
{
	if (!communicators_busy())
		return false;
	communicators_progress(wait_ns);
	return true;
}

_Thread_local bool looking_ahead;

/* Whether all have ended, without ending them: what MPI's own function is then to do, statuses and errors included. Those before `*first` are known to. */
static enum { NOT_YET, ENDED, MISTAKEN } look_ahead(int count, const MPI_Request requests[], int *first)
{
	int done = 1, code = requests || count < 1 ? MPI_SUCCESS : MPI_ERR_REQUEST;
	looking_ahead = true;
	while (!code && *first < count) {
		code = PMPI(Request_get_status)(requests[*first], &done, MPI_STATUS_IGNORE);
		if (code || !done)
			break;
		++*first;
	}
	looking_ahead = false;
	return code ? MISTAKEN : done ? ENDED : NOT_YET;
}

static void pause_after(unsigned rounds)
{
	const struct timespec pause = {.tv_nsec = SLEEP_NS};
	if (rounds > LOOKS)
		nanosleep(&pause, NULL);
}

/* Tests until done, for as long as an operation of ours is under way; then MPI waits. */
#define WAIT(test, done, wait) \
	for (unsigned rounds = 0; drive(LOOK_NS); rounds++) { \
		int code = test; \
		if (code != MPI_SUCCESS || (done)) \
			return code; \
		pause_after(rounds); \
	} \
	return wait

int MPI_Wait(MPI_Request *request, MPI_Status *status)
{
	int done = 0;
	WAIT(PMPI(Test)(request, &done, status), done, PMPI(Wait)(request, status));
}

/* Not by PMPI_Testall, which in MPICH 5.0.2 and Intel MPI 2021.18 reports an error for persistent collectives that have ended well. */
int MPI_Waitall(int count, MPI_Request requests[], MPI_Status *statuses)
{
	int first = 0;
	for (unsigned rounds = 0; drive(LOOK_NS) && look_ahead(count, requests, &first) == NOT_YET; rounds++)
		pause_after(rounds);
	return PMPI(Waitall)(count, requests, statuses);
}

int MPI_Waitany(int count, MPI_Request requests[], int *which, MPI_Status *status)
{
	int done = 0;
	WAIT(PMPI(Testany)(count, requests, which, &done, status), done, PMPI(Waitany)(count, requests, which, status));
}

int MPI_Waitsome(int count, MPI_Request requests[], int *ended, int which[], MPI_Status *statuses)
{
	WAIT(PMPI(Testsome)(count, requests, ended, which, statuses), *ended, PMPI(Waitsome)(count, requests, ended, which, statuses));
}

int MPI_Test(MPI_Request *request, int *done, MPI_Status *status)
{
	drive(0);
	return PMPI(Test)(request, done, status);
}

int MPI_Testall(int count, MPI_Request requests[], int *done, MPI_Status *statuses)
{
	int first = 0;
	drive(0);
	switch (done ? look_ahead(count, requests, &first) : MISTAKEN) {
	case NOT_YET:
		*done = 0;
		return MPI_SUCCESS;
	case ENDED:
		*done = 1;
		return PMPI(Waitall)(count, requests, statuses);
	default:
		return PMPI(Testall)(count, requests, done, statuses);
	}
}

int MPI_Testany(int count, MPI_Request requests[], int *which, int *done, MPI_Status *status)
{
	drive(0);
	return PMPI(Testany)(count, requests, which, done, status);
}

int MPI_Testsome(int count, MPI_Request requests[], int *ended, int which[], MPI_Status *statuses)
{
	drive(0);
	return PMPI(Testsome)(count, requests, ended, which, statuses);
}
