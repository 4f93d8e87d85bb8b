/*
 * The collectives of `mpi_bench.c` by the C interface of Flexcast, called directly: what the preload object adds to is told by comparison with this.
 */
#include <flexcast.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static flexcast_comm *comm;

static int check(flexcast_status status)
{
    if (status == FLEXCAST_OK)
        return MPI_SUCCESS;
    fprintf(stderr, "%s\n", flexcast_last_error());
    return MPI_Abort(MPI_COMM_WORLD, 1);
}

static int exchange(void *user, const void *own, size_t bytes, void *all)
{
    (void)user;
    return PMPI_Allgather(own, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, MPI_COMM_WORLD);
}

int MPI_Init(int *argc, char ***argv)
{
    flexcast_init_options options = {.size = sizeof options, .exchange = exchange};
    int code = PMPI_Init(argc, argv);
    if (code != MPI_SUCCESS)
        return code;
    PMPI_Comm_rank(MPI_COMM_WORLD, &options.rank);
    PMPI_Comm_size(MPI_COMM_WORLD, &options.ranks);
    return check(flexcast_init(&options, &comm));
}

int MPI_Finalize(void)
{
    check(flexcast_comm_free(comm));
    return PMPI_Finalize();
}

/* Waits for what was posted. */
static int done(flexcast_status status, flexcast_request **request)
{
    check(status);
    return check(flexcast_wait(*request));
}

int MPI_Barrier(MPI_Comm of)
{
    flexcast_request *request = NULL;
    (void)of;
    return done(flexcast_barrier(comm, &request), &request);
}

int MPI_Allgather(const void *send, int count, MPI_Datatype type, void *receive, int receive_count, MPI_Datatype receive_type, MPI_Comm of)
{
    flexcast_request *request = NULL;
    (void)type, (void)receive_count, (void)receive_type, (void)of;
    return done(flexcast_allgather(comm, send, receive, (size_t)count, &request), &request);
}

int MPI_Bcast(void *buffer, int count, MPI_Datatype type, int root, MPI_Comm of)
{
    flexcast_request *request = NULL;
    (void)type, (void)of;
    return done(flexcast_broadcast(comm, buffer, (size_t)count, root, &request), &request);
}

int MPI_Allreduce(const void *send, void *receive, int count, MPI_Datatype type, MPI_Op op, MPI_Comm of)
{
    flexcast_request *request = NULL;
    (void)type, (void)op, (void)of;
    if (send == MPI_IN_PLACE)
        send = FLEXCAST_IN_PLACE;
    return done(flexcast_allreduce(comm, send, receive, (size_t)count, FLEXCAST_FLOAT, FLEXCAST_SUM, &request), &request);
}

int MPI_Alltoall(const void *send, int count, MPI_Datatype type, void *receive, int receive_count, MPI_Datatype receive_type, MPI_Comm of)
{
    flexcast_request *request = NULL;
    (void)type, (void)receive_count, (void)receive_type, (void)of;
    return done(flexcast_alltoall(comm, send, receive, (size_t)count, &request), &request);
}
