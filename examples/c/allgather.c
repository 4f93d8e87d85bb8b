/* SPDX-License-Identifier: Apache-2.0
 *
 * An Allgather and a Broadcast among the processes of a job, each with a card.
 *
 * `cargo xtask example allgather --ranks 4 --c` starts four of these on emulated cards. On real ones: one process per card, with
 * FLEXCAST_RANK, FLEXCAST_SIZE and FLEXCAST_STORE (host:port, where rank 0 listens) set, and the path of the image as argument.
 * Without an argument data goes over the Ethernet interface that FLEXCAST_INTERFACE names, or over what FLEXCAST_DATAPATH names.
 *
 * Any C11 compiler: cc -I host/capi/include allgather.c -L target/release -lflexcast
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "flexcast.h"

/* What each rank contributes: some chunks and a part of one. */
enum { BYTES = 100003 };

/* Every function returns a status. The text of the last error of this thread names the value, the limit and the next step. */
static int failed(const char *what, flexcast_status status)
{
    if (status == FLEXCAST_OK)
        return 0;
    fprintf(stderr, "error: %s: %s (%s)\n", what, flexcast_last_error(), flexcast_strerror(status));
    return 1;
}

/* Byte `at` of what rank `rank` contributes: any rank can compute what it must have got from the others. */
static unsigned char byte(size_t rank, size_t at)
{
    return (unsigned char)(at * 7 + at / 251 + rank * 31 + 1);
}

static void contribute(unsigned char *to, size_t rank, size_t bytes)
{
    for (size_t at = 0; at < bytes; at++)
        to[at] = byte(rank, at);
}

/* The first byte that is not rank `rank`'s, or -1. */
static long difference(const unsigned char *bytes, size_t rank, size_t count)
{
    for (size_t at = 0; at < count; at++)
        if (bytes[at] != byte(rank, at))
            return (long)at;
    return -1;
}

/* Waits for an operation as an application does that computes meanwhile, and adds what multicast had lost. flexcast_wait() does without the
 * computing; it and flexcast_test() free the request when the operation is over, while flexcast_wait_for() leaves it for its report. */
static int finish(const char *what, flexcast_request *request, unsigned long long *recovered)
{
    int done = 0;
    flexcast_status status = FLEXCAST_OK;
    while (!done && status == FLEXCAST_OK) {
        status = flexcast_wait_for(request, 0, &done);
        /* The application's own work goes here: the card receives, copies and sends without it. */
    }
    flexcast_report report;
    if (!failed("report", flexcast_request_report(request, &report, sizeof report)))
        *recovered += report.recovered_chunks;
    return failed(what, flexcast_wait(request));
}

/* An Allgather on memory of this program. */
static int allgather(flexcast_endpoint *endpoint, flexcast_comm *comm, int rank, int size, unsigned long long *recovered)
{
    unsigned char *send = malloc(BYTES);
    unsigned char *receive = malloc((size_t)size * BYTES);
    flexcast_request *request = NULL;
    int bad = 1;
    if (send == NULL || receive == NULL) {
        fprintf(stderr, "error: no memory\n");
        goto out;
    }
    contribute(send, (size_t)rank, BYTES);
    memset(receive, 0, (size_t)size * BYTES);
    /* Returns at once. Until the request is over the card uses both buffers: nobody else may touch or free them. */
    if (failed("allgather", flexcast_allgather(comm, send, receive, BYTES, &request)))
        goto out;
    if (finish("allgather", request, recovered))
        goto out;
    bad = 0;
    for (int from = 0; from < size; from++) {
        long at = difference(receive + (size_t)from * BYTES, (size_t)from, BYTES);
        if (at >= 0) {
            fprintf(stderr, "error: rank %d: byte %ld of rank %d is not what it sent\n", rank, at, from);
            bad = 1;
        }
    }
out:
    /* Registrations are kept for the next operation on the same memory. Before it is freed they have to go. */
    bad = failed("invalidating", flexcast_buffer_invalidate(endpoint, send, BYTES)) || bad;
    bad = failed("invalidating", flexcast_buffer_invalidate(endpoint, receive, (size_t)size * BYTES)) || bad;
    free(send);
    free(receive);
    return bad;
}

/* A Broadcast from the last rank: one buffer, read there and written elsewhere. */
static int broadcast(flexcast_endpoint *endpoint, flexcast_comm *comm, int rank, int size, unsigned long long *recovered)
{
    int root = size - 1;
    unsigned char *buffer = calloc(1, BYTES);
    flexcast_request *request = NULL;
    if (buffer == NULL) {
        fprintf(stderr, "error: no memory\n");
        return 1;
    }
    if (rank == root)
        contribute(buffer, (size_t)size, BYTES);
    int bad = failed("broadcast", flexcast_broadcast(comm, buffer, BYTES, root, &request));
    if (!bad)
        bad = finish("broadcast", request, recovered);
    if (!bad && difference(buffer, (size_t)size, BYTES) >= 0) {
        fprintf(stderr, "error: rank %d: the broadcast is not what rank %d sent\n", rank, root);
        bad = 1;
    }
    bad = failed("invalidating", flexcast_buffer_invalidate(endpoint, buffer, BYTES)) || bad;
    free(buffer);
    return bad;
}

int main(int argc, char **argv)
{
    flexcast_endpoint_options endpoint_options = {.size = sizeof endpoint_options};
    flexcast_init_options options = {.size = sizeof options, .endpoint = &endpoint_options};
    flexcast_endpoint *endpoint = NULL;
    flexcast_comm *comm = NULL;
    unsigned long long recovered = 0;
    int rank, size, bad = 1;

    if (argc > 2) {
        fprintf(stderr, "usage: %s [ALLGATHER.elf] (the image for the DPA of a card; over Ethernet there is none)\n", argv[0]);
        return 2;
    }
    if (flexcast_abi_version() < FLEXCAST_ABI_VERSION) {
        fprintf(stderr, "error: libflexcast.so has interface %u, this program was compiled for %u\n",
                (unsigned)flexcast_abi_version(), (unsigned)FLEXCAST_ABI_VERSION);
        return 2;
    }

    /* 1. The endpoint: a card with the firmware on its DPA, by the vendor's libraries, wherever the dynamic loader
     * finds them. The emulator offers the same ones. Without firmware it is an Ethernet interface, unless
     * FLEXCAST_DATAPATH says otherwise. The card is the one that FLEXCAST_DEVICE names, or the first one.
     * The other ranks, by FLEXCAST_RANK and the like; with MPI `exchange` is a function of one line,
     *    return MPI_Allgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, *(MPI_Comm *)user);
     * And the communicator of all of them, with the settings that suit the endpoint; flexcast_config_default() begins a
     * choice of others. */
    endpoint_options.firmware_path = argc == 2 ? argv[1] : NULL;
    if (failed("starting", flexcast_init(&options, &comm)))
        return 1;
    if (failed("endpoint", flexcast_comm_endpoint(comm, &endpoint)) || failed("rank", flexcast_comm_rank(comm, &rank, &size)))
        goto free;

    /* 2. Operations. */
    bad = broadcast(endpoint, comm, rank, size, &recovered);
    if (!bad)
        bad = allgather(endpoint, comm, rank, size, &recovered);
    if (!bad)
        printf("rank %d of %d: broadcast from rank %d and allgather of %d bytes per rank equal; recovered chunks: %llu\n", rank, size,
               size - 1, BYTES, recovered);

    /* 3. The communicator, with its endpoint. */
free:
    bad = failed("freeing the communicator", flexcast_comm_free(comm)) || bad;
    return bad;
}
