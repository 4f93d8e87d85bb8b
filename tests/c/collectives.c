/* A rank that calls every collective once and checks what it gets. Usage: collectives RANK SIZE HOST:PORT [DATAPATH IMAGE], without
   these over a network interface; prints one line. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "flexcast.h"

enum { COUNT = 3000, MOST = 16 };

static int failures;

static void expect(int holds, const char *what)
{
    if (!holds) {
        printf("%s: %s\n", what, flexcast_last_error());
        failures++;
    }
}

/* Waits for an operation that was begun with this status. */
static void finish(flexcast_status status, flexcast_request *request, const char *what)
{
    if (status == FLEXCAST_OK)
        status = flexcast_wait(request);
    expect(status == FLEXCAST_OK, what);
}

static int32_t element(int rank, size_t at)
{
    return (int32_t)(at * 7 + (size_t)rank * 1000003);
}

static void fill(int32_t *to, int rank, size_t count)
{
    for (size_t at = 0; at < count; at++)
        to[at] = element(rank, at);
}

/* Whether so many elements from `from` on are sums over all ranks. */
static int are_sums(const int32_t *of, int size, size_t from, size_t count)
{
    for (size_t at = 0; at < count; at++) {
        uint32_t sum = 0;
        for (int rank = 0; rank < size; rank++)
            sum += (uint32_t)element(rank, from + at);
        if ((uint32_t)of[at] != sum)
            return 0;
    }
    return 1;
}

/* Whether it is what rank `from` sends to rank `to`. */
static int is_block(const int32_t *block, int from, int to)
{
    for (size_t at = 0; at < COUNT; at++)
        if (block[at] != element(from, at + (size_t)to * COUNT))
            return 0;
    return 1;
}

static void reductions(flexcast_comm *comm, int rank, int size)
{
    const size_t all = (size_t)size * COUNT;
    int32_t *send = malloc(all * 4), *receive = malloc(all * 4);
    flexcast_request *request = NULL;
    flexcast_status status;
    size_t counts[MOST];
    int done;

    fill(send, rank, all);
    status = flexcast_allreduce(comm, send, receive, all, FLEXCAST_INT32, FLEXCAST_SUM, &request);
    finish(status, request, "allreduce");
    expect(are_sums(receive, size, 0, all), "sums of allreduce");
    memcpy(receive, send, all * 4);
    status = flexcast_allreduce(comm, FLEXCAST_IN_PLACE, receive, all, FLEXCAST_INT32, FLEXCAST_SUM, &request);
    finish(status, request, "allreduce in place");
    expect(are_sums(receive, size, 0, all), "sums of allreduce in place");
    status = flexcast_reduce(comm, send, rank == 1 ? receive : NULL, all, FLEXCAST_INT32, FLEXCAST_SUM, 1, &request);
    finish(status, request, "reduce");
    expect(rank != 1 || are_sums(receive, size, 0, all), "sums of reduce");
    memcpy(receive, send, all * 4);
    const void *from = rank == 0 ? FLEXCAST_IN_PLACE : send;
    status = flexcast_reduce(comm, from, receive, all, FLEXCAST_INT32, FLEXCAST_SUM, 0, &request);
    finish(status, request, "reduce in place");
    expect(rank != 0 || are_sums(receive, size, 0, all), "sums of reduce in place");
    status = flexcast_reduce_scatter_block(comm, send, receive, COUNT, FLEXCAST_INT32, FLEXCAST_SUM, &request);
    finish(status, request, "reduce_scatter_block");
    expect(are_sums(receive, size, (size_t)rank * COUNT, COUNT), "sums of reduce_scatter_block");
    /* Rank 0 gets nothing, the last one twice as much. */
    for (int other = 0; other < size; other++)
        counts[other] = other == 0 ? 0 : other == size - 1 ? 2 * COUNT : COUNT;
    const size_t start = rank == 0 ? 0 : (size_t)(rank - 1) * COUNT;
    memcpy(receive, send, all * 4);
    status = flexcast_reduce_scatter(comm, FLEXCAST_IN_PLACE, receive, counts, FLEXCAST_INT32, FLEXCAST_SUM, &request);
    finish(status, request, "reduce_scatter");
    expect(are_sums(receive, size, start, counts[rank]), "sums of reduce_scatter");
    expect(flexcast_allreduce(comm, send, receive, 1, FLEXCAST_FLOAT, FLEXCAST_BIT_OR, &request) == FLEXCAST_NOT_SUPPORTED,
           "bits of floating-point numbers are refused");
    expect(flexcast_allreduce(comm, send, receive, 1, 99, FLEXCAST_SUM, &request) == FLEXCAST_ERROR_ARGUMENT,
           "a type that is none is refused");
    status = flexcast_sparse_allreduce(comm, send, receive, COUNT, FLEXCAST_INT32, FLEXCAST_SUM, &request);
    expect(status == FLEXCAST_OK && flexcast_wait_for(request, FLEXCAST_NEVER, &done) == FLEXCAST_OK, "sparse_allreduce");
    flexcast_report report;
    expect(flexcast_request_report(request, &report, sizeof report) == FLEXCAST_OK, "report of sparse_allreduce");
    const char *by = getenv("FLEXCAST_SPARSE_AGGREGATION");
    expect(report.added_by_dpa == (by != NULL && strcmp(by, "dpa") == 0), "who adds in sparse_allreduce");
    finish(FLEXCAST_OK, request, "sparse_allreduce");
    expect(are_sums(receive, size, 0, COUNT), "sums of sparse_allreduce");
    /* Floating-point numbers, which the DPAs add as fixed-point numbers if they have a bound. Quarters are exact either way. */
    float *values = malloc(COUNT * sizeof *values), *sums = malloc(COUNT * sizeof *sums);
    for (size_t i = 0; i < COUNT; i++)
        values[i] = i / 512 % 2 == 0 ? 0 : (float)(i % 23) / 4 - (float)rank;
    status = flexcast_sparse_allreduce(comm, values, sums, COUNT, FLEXCAST_FLOAT, FLEXCAST_SUM, &request);
    expect(status == FLEXCAST_OK && flexcast_wait_for(request, FLEXCAST_NEVER, &done) == FLEXCAST_OK, "sparse_allreduce of floats");
    expect(flexcast_request_report(request, &report, sizeof report) == FLEXCAST_OK, "report of floats");
    const int has_bound = getenv("FLEXCAST_SPARSE_FIXED_POINT") != NULL;
    expect(report.added_by_dpa == (uint32_t)has_bound && (report.sum_error > 0) == has_bound, "who adds floats");
    expect(report.sum_error < 1e-6, "the error of fixed-point numbers");
    finish(FLEXCAST_OK, request, "sparse_allreduce of floats");
    int are_floats = 1;
    for (size_t i = 0; i < COUNT; i++) {
        const float all_ranks = (float)(size * (size - 1) / 2);
        are_floats = are_floats && sums[i] == (i / 512 % 2 == 0 ? 0 : (float)size * (float)(i % 23) / 4 - all_ranks);
    }
    expect(are_floats, "sums of floats");
    free(values);
    free(sums);
    /* Pairs: the largest value, and who has it. */
    struct { double value; int index; } pair = {.value = rank == 2 % size ? 5.5 : -1.0, .index = rank};
    status = flexcast_allreduce(comm, FLEXCAST_IN_PLACE, &pair, 1, FLEXCAST_DOUBLE_INT, FLEXCAST_MAXLOC, &request);
    finish(status, request, "maxloc");
    expect(pair.value == 5.5 && pair.index == 2 % size, "the pair of maxloc");
    free(send);
    free(receive);
}

static void blocks(flexcast_comm *comm, int rank, int size)
{
    const size_t all = (size_t)size * COUNT, bytes = COUNT * 4;
    int32_t *send = malloc(all * 4), *receive = malloc(all * 4);
    flexcast_request *request = NULL;
    flexcast_status status;
    size_t counts[MOST], forwards[MOST], backwards[MOST];
    const int root = size - 1;

    fill(send, rank, all);
    for (int other = 0; other < size; other++) {
        counts[other] = bytes;
        forwards[other] = (size_t)other * bytes;
        backwards[other] = (size_t)(size - 1 - other) * bytes;
    }
    status = flexcast_alltoall(comm, send, receive, bytes, &request);
    finish(status, request, "alltoall");
    for (int other = 0; other < size; other++)
        expect(is_block(receive + (size_t)other * COUNT, other, rank), "block of alltoall");
    memset(receive, 0, all * 4);
    status = flexcast_alltoallv(comm, send, counts, forwards, receive, counts, backwards, &request);
    finish(status, request, "alltoallv");
    for (int other = 0; other < size; other++)
        expect(is_block(receive + (size_t)(size - 1 - other) * COUNT, other, rank), "block of alltoallv");
    status = flexcast_alltoallv(comm, send, counts, NULL, receive, counts, NULL, &request);
    finish(status, request, "alltoallv without displacements");
    for (int other = 0; other < size; other++)
        expect(is_block(receive + (size_t)other * COUNT, other, rank), "block of alltoallv without displacements");
    status = flexcast_gather(comm, send, rank == root ? receive : NULL, bytes, root, &request);
    finish(status, request, "gather");
    for (int other = 0; rank == root && other < size; other++)
        expect(is_block(receive + (size_t)other * COUNT, other, 0), "block of gather");
    status = flexcast_gatherv(comm, send, bytes, receive, counts, backwards, root, &request);
    finish(status, request, "gatherv");
    for (int other = 0; rank == root && other < size; other++)
        expect(is_block(receive + (size_t)(size - 1 - other) * COUNT, other, 0), "block of gatherv");
    status = flexcast_scatter(comm, rank == root ? send : NULL, receive, bytes, root, &request);
    finish(status, request, "scatter");
    expect(is_block(receive, root, rank), "block of scatter");
    void *to = rank == root ? (void *)FLEXCAST_IN_PLACE : receive;
    status = flexcast_scatterv(comm, send, counts, backwards, to, bytes, root, &request);
    finish(status, request, "scatterv");
    expect(rank == root || is_block(receive, root, size - 1 - rank), "block of scatterv");
    status = flexcast_gatherv(comm, send, bytes, receive, counts, NULL, root, &request);
    finish(status, request, "gatherv without displacements");
    for (int other = 0; rank == root && other < size; other++)
        expect(is_block(receive + (size_t)other * COUNT, other, 0), "block of gatherv without displacements");
    status = flexcast_scatterv(comm, send, counts, NULL, receive, bytes, root, &request);
    finish(status, request, "scatterv without displacements");
    expect(is_block(receive, root, rank), "block of scatterv without displacements");
    status = flexcast_allgatherv(comm, send, receive, counts, backwards, &request);
    finish(status, request, "allgatherv");
    for (int other = 0; other < size; other++)
        expect(is_block(receive + (size_t)(size - 1 - other) * COUNT, other, 0), "block of allgatherv");
    /* One rank says by displacements what the others say without. */
    status = flexcast_allgatherv(comm, send, receive, counts, rank == 0 ? forwards : NULL, &request);
    finish(status, request, "allgatherv one after another");
    for (int other = 0; other < size; other++)
        expect(is_block(receive + (size_t)other * COUNT, other, 0), "block of allgatherv one after another");
    status = flexcast_barrier(comm, &request);
    finish(status, request, "barrier");
    free(send);
    free(receive);
}

int main(int argc, char **argv)
{
    flexcast_bootstrap *ranks = NULL;
    flexcast_endpoint_options options;
    flexcast_endpoint *endpoint = NULL;
    flexcast_config config;
    flexcast_comm *comm = NULL;

    if (argc < 4)
        return 2;
    const int rank = atoi(argv[1]), size = atoi(argv[2]);
    if (size < 2 || size > MOST)
        return 2;
    expect(flexcast_bootstrap_tcp(argv[3], "a test", NULL, rank, size, 30000, &ranks) == FLEXCAST_OK, "met");
    expect(flexcast_endpoint_options_default(&options, sizeof options) == FLEXCAST_OK, "options");
    /* NULL: the variables say it, or else it is a network interface. */
    options.datapath = argc > 4 ? argv[4] : NULL;
    options.firmware_path = argc > 5 ? argv[5] : NULL;
    expect(flexcast_endpoint_open(&options, &endpoint) == FLEXCAST_OK, "opened");
    expect(flexcast_config_default(&config, sizeof config) == FLEXCAST_OK, "defaults");
    config.reproducible = 1;
    expect(flexcast_comm_create(endpoint, ranks, &config, &comm) == FLEXCAST_OK, "made");
    if (failures == 0) {
        reductions(comm, rank, size);
        blocks(comm, rank, size);
        expect(flexcast_comm_free(comm) == FLEXCAST_OK, "freed");
    }
    expect(flexcast_bootstrap_free(ranks) == FLEXCAST_OK && flexcast_endpoint_close(endpoint) == FLEXCAST_OK, "closed");
    printf("collectives: rank %d of %d: %s\n", rank, size, failures == 0 ? "equal" : "wrong");
    return failures != 0;
}
