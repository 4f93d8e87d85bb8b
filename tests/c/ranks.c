/* A rank of a job that goes one way, mostly a wrong one. Usage: ranks WAY RANK SIZE HOST:PORT TIMEOUT_MS [ALLGATHER.elf]; prints one line. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "flexcast.h"

static int outcome(const char *what, flexcast_status status)
{
    printf("%s: %d: %s\n", what, (int)status, status == FLEXCAST_OK ? "" : flexcast_last_error());
    return 0;
}

/* Halves of the ranks, in the reverse order, gather at the same time as all do together; then rank 3 stays out of a third. */
static int split(flexcast_bootstrap *ranks, flexcast_comm *all, int rank, int size)
{
    enum { BYTES = 20000 };
    flexcast_comm *half = NULL, *most = NULL;
    flexcast_request *requests[2];
    int own = -1, members = -1, bad = 0;
    unsigned char *send = malloc(BYTES), *together = malloc((size_t)size * BYTES), *of_half = malloc(2 * BYTES);

    memset(send, 65 + rank, BYTES);
    if (flexcast_comm_split(all, ranks, rank / 2, -rank, &half) != FLEXCAST_OK)
        return outcome("split", FLEXCAST_ERROR_OTHER);
    flexcast_comm_rank(half, &own, &members);
    bad |= flexcast_allgather(all, send, together, BYTES, &requests[0]) != FLEXCAST_OK;
    bad |= flexcast_allgather(half, send, of_half, BYTES, &requests[1]) != FLEXCAST_OK;
    /* Both in turn: a rank that waits for one of them only would hold up the others at the other. */
    for (int done[2] = {bad, bad}; !done[0] || !done[1];)
        for (int which = 0; which < 2; which++)
            if (!done[which] && flexcast_test(requests[which], &done[which]) != FLEXCAST_OK)
                return outcome("gathered", FLEXCAST_ERROR_OTHER);
    for (size_t at = 0; at < (size_t)size * BYTES; at++)
        bad |= together[at] != 65 + (int)(at / BYTES);
    for (size_t at = 0; at < 2 * BYTES; at++)
        bad |= of_half[at] != 65 + rank / 2 * 2 + 1 - (int)(at / BYTES);
    bad |= flexcast_comm_split(all, ranks, rank == 3 ? FLEXCAST_UNDEFINED : 0, 0, &most) != FLEXCAST_OK;
    bad |= (most == NULL) != (rank == 3);
    if (most != NULL) {
        bad |= flexcast_broadcast(most, send, BYTES, 2, &requests[0]) != FLEXCAST_OK || flexcast_wait(requests[0]) != FLEXCAST_OK;
        bad |= send[0] != 67 || send[BYTES - 1] != 67;
        bad |= flexcast_comm_free(most) != FLEXCAST_OK;
    }
    bad |= flexcast_comm_free(half) != FLEXCAST_OK;
    printf("split: rank %d of %d: %s\n", own, members, bad ? flexcast_last_error() : "equal");
    return bad; /* the memory goes with the process */
}

/* Begins an operation: a reduction if that is the way, otherwise an Allgather. */
static flexcast_status begin(const char *way, flexcast_comm *comm, const void *send, void *receive, size_t bytes,
                             flexcast_request **request)
{
    if (strncmp(way, "reduces", 7) == 0)
        return flexcast_allreduce(comm, send, receive, bytes / 4, FLEXCAST_INT32, FLEXCAST_SUM, request);
    return flexcast_allgather(comm, send, receive, bytes, request);
}

int main(int argc, char **argv)
{
    flexcast_bootstrap *ranks = NULL;
    flexcast_endpoint_options options;
    flexcast_endpoint *endpoint = NULL;
    flexcast_config config;
    flexcast_comm *comm = NULL;
    flexcast_request *request = NULL;
    flexcast_report report;
    flexcast_status status;

    if (argc < 6)
        return 2;
    const char *way = argv[1];
    int rank = atoi(argv[2]), size = atoi(argv[3]);
    status = flexcast_bootstrap_tcp(argv[4], "a test", NULL, rank, size, strtoull(argv[5], NULL, 10), &ranks);
    if (status != FLEXCAST_OK || strcmp(way, "meet") == 0)
        return outcome("met", status);

    flexcast_endpoint_options_default(&options, sizeof options);
    options.firmware_path = argv[6];
    if ((status = flexcast_endpoint_open(&options, &endpoint)) != FLEXCAST_OK)
        return outcome("opened", status);
    flexcast_config_default(&config, sizeof config);
    /* One operation after another, until one fails or so many are done. */
    const int rounds = strncmp(way, "rounds", 6) == 0    ? atoi(way + 6)
                       : strncmp(way, "reduces", 7) == 0 ? atoi(way + 7)
                                                         : 1;
    if (strcmp(way, "slots") == 0 && rank == 1)
        flexcast_config_set(&config, "slots", "100");
    /* Without a barrier an operation may be over before it is cancelled. */
    if (strcmp(way, "cancel") == 0)
        config.algorithm = FLEXCAST_ALGORITHM_MULTICAST;
    if (strcmp(way, "device") == 0)
        config.control = FLEXCAST_CONTROL_DEVICE;
    if ((status = flexcast_comm_create(endpoint, ranks, &config, &comm)) != FLEXCAST_OK) {
        outcome("made", status);
    } else if (strcmp(way, "split") == 0 || strcmp(way, "device") == 0) {
        flexcast_stats stats;
        if (flexcast_comm_stats(comm, &stats, sizeof stats) == FLEXCAST_OK)
            printf("threads: %u; ", (unsigned)stats.threads);
        if (split(ranks, comm, rank, size) || flexcast_comm_free(comm) != FLEXCAST_OK)
            return 1;
    } else {
        size_t bytes = 30000;
        if (strcmp(way, "sizes") == 0 && rank == 2)
            bytes = 20000;
        unsigned char *send = calloc(1, bytes), *receive = calloc((size_t)size, bytes);
        status = begin(way, comm, send, receive, bytes, &request);
        if (status == FLEXCAST_OK && strcmp(way, "cancel") == 0 && rank == 1)
            status = flexcast_cancel(comm);
        int done;
        if (status == FLEXCAST_OK)
            status = flexcast_wait_for(request, FLEXCAST_NEVER, &done);
        for (int round = 1; round < rounds && status == FLEXCAST_OK; round++) {
            if (round == 1) {
                printf("begun\n");
                fflush(stdout);
            }
            flexcast_request_free(request);
            if ((status = begin(way, comm, send, receive, bytes, &request)) == FLEXCAST_OK)
                status = flexcast_wait_for(request, FLEXCAST_NEVER, &done);
        }
        outcome("gathered", status);
        if (flexcast_request_report(request, &report, sizeof report) == FLEXCAST_OK)
            printf("report: %u %u %u %u\n", report.cause, report.failed_rank, report.detecting_rank, report.memory_held);
        flexcast_request_free(request);
        flexcast_buffer_invalidate(endpoint, send, bytes);
        flexcast_buffer_invalidate(endpoint, receive, bytes * (size_t)size);
        free(send);
        free(receive);
        if (flexcast_comm_free(comm) != FLEXCAST_OK)
            return 1;
    }
    if (flexcast_bootstrap_free(ranks) != FLEXCAST_OK || flexcast_endpoint_close(endpoint) != FLEXCAST_OK)
        return 1;
    return 0;
}
