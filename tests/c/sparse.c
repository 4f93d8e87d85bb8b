/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sparse AllReduces, a thread for each rank: sums to the bit, parameters, refusals, ranks that do not agree, and contributions in memory that cannot be written or is not
 * aligned. Usage: sparse ALLGATHER.elf FOLDER, the folder that of the emulator's libraries, with as many cards as ranks: memory is tested over a network interface and over
 * those cards, all else over the interface. Says "all as promised" at the end.
 */
#define _DEFAULT_SOURCE
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "expect.h"

/* Blocks of 1 KiB, and the last one is short. */
enum { RANKS = 3, BLOCK = 256, BLOCKS = 100, SHORT = 17, COUNT = (BLOCKS - 1) * BLOCK + SHORT };

static pthread_barrier_t meeting;
static unsigned char pieces[RANKS][1 << 16];
static size_t length;

struct rank {
    flexcast_endpoint *endpoint;
    int number, is_ethernet;
};

/* An Allgather of threads. */
static int gather(void *user, const void *mine, size_t bytes, void *all)
{
    const struct rank *rank = user;
    IS(bytes <= sizeof pieces[0]);
    memcpy(pieces[rank->number], mine, bytes);
    length = bytes;
    pthread_barrier_wait(&meeting);
    for (int other = 0; other < RANKS; other++)
        memcpy((char *)all + (size_t)other * length, pieces[other], length);
    pthread_barrier_wait(&meeting);
    return 0;
}

static flexcast_collective sparse(const void *send, void *receive, size_t count, uint32_t data_type, uint32_t reduction)
{
    flexcast_collective given = flexcast_collective_of(FLEXCAST_OPERATION_SPARSE_ALLREDUCE);
    given.send = send;
    given.receive = receive;
    given.count = count;
    given.data_type = data_type;
    given.reduction = reduction;
    return given;
}

static void finish(flexcast_request *request)
{
    OK(flexcast_wait(request));
}

static float of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* What a rank contributes. The kinds of blocks take turns; sums of whole numbers are exact in every order. */
static void fill(float *array, int rank)
{
    for (int at = 0; at < COUNT; at++) {
        float whole = (float)(at % 1000 * (rank + 1));
        switch (at / BLOCK % 7) {
        case 0: /* of all ranks */
            array[at] = whole;
            break;
        case 1: /* of one */
            array[at] = rank == 1 ? whole : 0.0f;
            break;
        case 2: /* -0.0 of one: the others' zeros are not added to it */
            array[at] = rank == 2 ? -0.0f : 0.0f;
            break;
        case 3: /* a NaN with a load */
            array[at] = rank == 0 ? of_bits(0x7fc12345) : 0.0f;
            break;
        case 4: /* -0.0 of two */
            array[at] = rank > 0 ? -0.0f : 0.0f;
            break;
        case 5: /* one element that is not zero, the last */
            array[at] = rank == 2 && at % BLOCK == BLOCK - 1 ? of_bits(1) : 0.0f;
            break;
        default: /* of none */
            array[at] = 0.0f;
        }
    }
}

static void expected(float *array)
{
    for (int at = 0; at < COUNT; at++)
        switch (at / BLOCK % 7) {
        case 0:
            array[at] = (float)(at % 1000 * (1 + 2 + 3));
            break;
        case 1:
            array[at] = (float)(at % 1000 * 2);
            break;
        case 2:
        case 4:
            array[at] = -0.0f;
            break;
        case 3:
            array[at] = of_bits(0x7fc12345);
            break;
        case 5:
            array[at] = at % BLOCK == BLOCK - 1 ? of_bits(1) : 0.0f;
            break;
        default:
            array[at] = 0.0f;
        }
}

static void sums(flexcast_comm *comm, int rank)
{
    float *send = malloc(COUNT * sizeof *send), *receive = malloc(COUNT * sizeof *receive), *wanted = malloc(COUNT * sizeof *wanted);
    flexcast_request *request = NULL;
    flexcast_report report;
    int done;

    expected(wanted);
    fill(send, rank);
    memset(receive, 0xee, COUNT * sizeof *receive);
    OK(flexcast_sparse_allreduce(comm, send, receive, COUNT, FLEXCAST_FLOAT, FLEXCAST_SUM, &request));
    finish(request);
    IS(memcmp(receive, wanted, COUNT * sizeof *receive) == 0);
    OK(flexcast_sparse_allreduce(comm, FLEXCAST_IN_PLACE, send, COUNT, FLEXCAST_FLOAT, FLEXCAST_SUM, &request));
    finish(request);
    IS(memcmp(send, wanted, COUNT * sizeof *send) == 0);

    /* Nothing but zeros; nothing; one element. */
    memset(send, 0, COUNT * sizeof *send);
    memset(receive, 0xee, COUNT * sizeof *receive);
    OK(flexcast_sparse_allreduce(comm, send, receive, COUNT, FLEXCAST_FLOAT, FLEXCAST_SUM, &request));
    OK(flexcast_wait_for(request, FLEXCAST_NEVER, &done));
    OK(flexcast_request_report(request, &report, sizeof report));
    finish(request);
    IS(memcmp(receive, send, COUNT * sizeof *receive) == 0);
    /* Its messages have no blocks. */
    IS(report.foreign_bytes < COUNT);
    OK(flexcast_sparse_allreduce(comm, send, receive, 0, FLEXCAST_FLOAT, FLEXCAST_SUM, &request));
    finish(request);
    int64_t one = rank == 1 ? INT64_MIN : 0;
    OK(flexcast_sparse_allreduce(comm, FLEXCAST_IN_PLACE, &one, 1, FLEXCAST_INT64, FLEXCAST_SUM, &request));
    finish(request);
    IS(one == INT64_MIN);

    /* For maxima a block of zeros is one that the rank does not have. */
    flexcast_collective given = sparse(send, receive, COUNT, FLEXCAST_FLOAT, FLEXCAST_MAX);
    given.block_bytes = 256;
    given.blocks_per_message = 3;
    given.flags = FLEXCAST_FLAG_AWAITED;
    OK(flexcast_prepare(comm, &given, &request));
    for (int round = 1; round <= 2; round++) {
        for (int at = 0; at < COUNT; at++)
            send[at] = at / 64 % RANKS == rank ? (float)-(at + round) : 0.0f;
        OK(flexcast_start(request));
        OK(flexcast_wait(request));
        int differ = 0;
        for (int at = 0; at < COUNT; at++)
            differ += receive[at] != (float)-(at + round);
        IS(differ == 0);
    }
    OK(flexcast_request_free(request));

    /* A program of a header without the parameters: what lies behind its structure is not read. */
    given = sparse(FLEXCAST_IN_PLACE, wanted, COUNT, FLEXCAST_FLOAT, FLEXCAST_SUM);
    given.size = offsetof(flexcast_collective, block_bytes);
    given.block_bytes = given.blocks_per_message = 7777;
    fill(wanted, rank);
    OK(flexcast_post(comm, &given, &request));
    finish(request);
    expected(send);
    IS(memcmp(wanted, send, COUNT * sizeof *wanted) == 0);
    free(send);
    free(receive);
    free(wanted);
}

/* What a rank has of an array of 64-bit integers: a seventh of its blocks is zero at all ranks, another one at all but one. */
static int64_t wide(size_t at, int rank)
{
    size_t block = at / (BLOCK / 2) % 7;
    return block == 0 || (block == 1 && rank != 2) ? 0 : ((int64_t)at - 4000) * (rank + 1) * ((int64_t)1 << 40);
}

/* Contributions in memory that can only be read, results next to other bytes, and neither at an address that suits its
 * elements. */
static void memory(flexcast_comm *comm, int rank)
{
    enum { GUARD = 16, MOST = COUNT * sizeof(float), AFTER = MOST + 3 * GUARD };
    unsigned char *receive = malloc(AFTER), *wanted = malloc(MOST), *own = malloc(MOST);
    unsigned char *page = mmap(NULL, AFTER, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    flexcast_request *request = NULL;

    IS(page != MAP_FAILED);
    for (int kind = 0; kind < 2; kind++)
        for (size_t shift = 0; shift < 9; shift += shift == 3 ? 5 : 1) {
            /* Longer than what is summed up without a scan for zeros, and shorter. */
            const size_t bytes = shift == 2 ? 4000 : MOST / 8 * 8, count = bytes / (kind ? 8 : 4);
            const uint32_t type = kind ? FLEXCAST_INT64 : FLEXCAST_FLOAT;
            unsigned char *send = page + shift, *result = receive + GUARD + (shift * 5 + 1) % 8;
            for (size_t at = 0; at < count; at++) {
                int64_t mine = wide(at, rank), sum = wide(at, 0) + wide(at, 1) + wide(at, 2);
                float narrow_mine = (float)(mine >> 40), narrow_sum = (float)(sum >> 40);
                memcpy(own + at * (kind ? 8 : 4), kind ? (void *)&mine : (void *)&narrow_mine, kind ? 8 : 4);
                memcpy(wanted + at * (kind ? 8 : 4), kind ? (void *)&sum : (void *)&narrow_sum, kind ? 8 : 4);
            }
            memcpy(send, own, bytes);
            memset(receive, 0xee, AFTER);
            IS(mprotect(page, AFTER, PROT_READ) == 0);
            OK(flexcast_sparse_allreduce(comm, send, result, count, type, FLEXCAST_SUM, &request));
            finish(request);
            IS(memcmp(result, wanted, bytes) == 0);
            IS(memcmp(send, own, bytes) == 0);
            int others = 0;
            for (unsigned char *at = receive; at < receive + AFTER; at++)
                others += (at < result || at >= result + bytes) && *at != 0xee;
            IS(others == 0);
            memcpy(result, own, bytes);
            OK(flexcast_sparse_allreduce(comm, FLEXCAST_IN_PLACE, result, count, type, FLEXCAST_SUM, &request));
            finish(request);
            IS(memcmp(result, wanted, bytes) == 0);
            IS(mprotect(page, AFTER, PROT_READ | PROT_WRITE) == 0);
        }
    IS(munmap(page, AFTER) == 0);
    free(receive);
    free(wanted);
    free(own);
}

static void refusals(flexcast_comm *comm)
{
    float send[4] = {1.0f}, receive[4];
    flexcast_request *request = NULL;
    flexcast_collective given = sparse(send, receive, 4, FLEXCAST_FLOAT, FLEXCAST_PRODUCT);

    REFUSED(flexcast_post(comm, &given, &request), FLEXCAST_NOT_SUPPORTED, "use sum");
    REFUSED(flexcast_sparse_allreduce(comm, send, receive, 4, FLEXCAST_FLOAT, FLEXCAST_PRODUCT, &request), FLEXCAST_NOT_SUPPORTED, "use sum");
    REFUSED(flexcast_sparse_allreduce(comm, send, receive, 4, FLEXCAST_FLOAT, FLEXCAST_BIT_OR, &request), FLEXCAST_NOT_SUPPORTED, "not defined");
    REFUSED(flexcast_sparse_allreduce(comm, send, receive, SIZE_MAX, FLEXCAST_FLOAT, FLEXCAST_SUM, &request), FLEXCAST_ERROR_ARGUMENT, "address space");
    REFUSED(flexcast_sparse_allreduce(comm, send, receive, 4, FLEXCAST_FLOAT, FLEXCAST_SUM, NULL), FLEXCAST_ERROR_NULL, "request");
    REFUSED(flexcast_sparse_allreduce(NULL, send, receive, 4, FLEXCAST_FLOAT, FLEXCAST_SUM, &request), FLEXCAST_ERROR_NULL, "comm");
    REFUSED(flexcast_sparse_allreduce(comm, NULL, receive, 4, FLEXCAST_FLOAT, FLEXCAST_SUM, &request), FLEXCAST_ERROR_NULL, "send");
    given.reduction = FLEXCAST_BIT_OR;
    REFUSED(flexcast_post(comm, &given, &request), FLEXCAST_NOT_SUPPORTED, "not defined");
    given.reduction = FLEXCAST_SUM;
    for (uint32_t bytes = 252; bytes < 20000; bytes += 19000) {
        given.block_bytes = bytes;
        REFUSED(flexcast_post(comm, &given, &request), FLEXCAST_ERROR_ARGUMENT, "256 to 16384");
    }
    given.block_bytes = 1026;
    REFUSED(flexcast_post(comm, &given, &request), FLEXCAST_ERROR_ARGUMENT, "multiple of 4");
    given.block_bytes = 1028;
    given.data_type = FLEXCAST_DOUBLE;
    REFUSED(flexcast_post(comm, &given, &request), FLEXCAST_ERROR_ARGUMENT, "1028");
    given.block_bytes = 0;
    given.blocks_per_message = 33;
    REFUSED(flexcast_post(comm, &given, &request), FLEXCAST_ERROR_ARGUMENT, "1 to 32");
    IS(request == NULL);
}

/* The last rank calls it otherwise: that is reported to all, and with what. */
static void disagreements(struct rank *rank, flexcast_bootstrap *bootstrap)
{
    /* Long enough that arrays are scanned for zeros. */
    enum { LONG = 96 * BLOCK };
    static float arrays[RANKS][LONG + BLOCK];
    const int other = rank->number == RANKS - 1;

    for (int way = 0; way < 4; way++) {
        flexcast_comm *comm = NULL;
        flexcast_request *request = NULL;
        flexcast_report report;
        flexcast_collective given = sparse(FLEXCAST_IN_PLACE, arrays[rank->number], LONG, FLEXCAST_FLOAT, FLEXCAST_SUM);

        if (way == 0 && other)
            given.count = LONG + BLOCK;
        if (way == 1 && other)
            given.block_bytes = 512;
        if (way == 2 && other)
            given.reduction = FLEXCAST_MAX;
        if (way == 3 && other)
            given.operation = FLEXCAST_OPERATION_ALLREDUCE;
        OK(flexcast_comm_create(rank->endpoint, bootstrap, NULL, &comm));
        int done = 0;
        OK(flexcast_post(comm, &given, &request));
        REFUSED(flexcast_wait_for(request, FLEXCAST_NEVER, &done), FLEXCAST_ERROR_FAILED, "compare their calls");
        OK(flexcast_request_report(request, &report, sizeof report));
        IS(report.cause == FLEXCAST_CAUSE_DISAGREES && report.memory_held == 0);
        OK(flexcast_request_free(request));
        OK(flexcast_comm_free(comm));
        pthread_barrier_wait(&meeting);
    }
}

static void *run(void *given)
{
    struct rank *rank = given;
    flexcast_bootstrap *bootstrap = NULL;
    flexcast_comm *comm = NULL;

    OK(flexcast_bootstrap_callback(gather, rank, rank->number, RANKS, &bootstrap));
    OK(flexcast_comm_create(rank->endpoint, bootstrap, NULL, &comm));
    memory(comm, rank->number);
    if (rank->is_ethernet) {
        sums(comm, rank->number);
        refusals(comm);
    }
    OK(flexcast_comm_free(comm));
    if (rank->is_ethernet)
        disagreements(rank, bootstrap);
    OK(flexcast_bootstrap_free(bootstrap));
    return NULL;
}

int main(int argc, char **argv)
{
    static const char *datapaths[] = {"udp", "verbs", "dpa"}, *devices[RANKS] = {"mlx5_0", "mlx5_1", "mlx5_2"};
    flexcast_endpoint_options options;
    pthread_t threads[RANKS];
    struct rank ranks[RANKS] = {{NULL, 0, 0}};

    if (argc != 3)
        return 2;
    IS(pthread_barrier_init(&meeting, NULL, RANKS) == 0);
    for (int way = 0; way < 3; way++) {
        OK(flexcast_endpoint_options_default(&options, sizeof options));
        options.datapath = datapaths[way];
        options.interface_name = way == 0 ? "lo" : NULL;
        options.libraries = way == 0 ? NULL : argv[2];
        options.firmware_path = way == 2 ? argv[1] : NULL;
        for (int at = 0; at < RANKS; at++) {
            options.device = way == 0 ? NULL : devices[at];
            ranks[at] = (struct rank){ranks[0].endpoint, at, way == 0};
            /* Ranks share the interface, and have a card each. */
            if ((way > 0 || at == 0) && flexcast_endpoint_open(&options, &ranks[at].endpoint) != FLEXCAST_OK) {
                fprintf(stderr, "%s: %s\n", datapaths[way], flexcast_last_error());
                return 1;
            }
        }
        for (int at = 0; at < RANKS; at++)
            IS(pthread_create(&threads[at], NULL, run, &ranks[at]) == 0);
        for (int at = 0; at < RANKS; at++)
            IS(pthread_join(threads[at], NULL) == 0);
        for (int at = 0; at < RANKS; at++)
            if (way > 0 || at == 0)
                OK(flexcast_endpoint_close(ranks[at].endpoint));
    }
    if (wrong == 0)
        printf("all as promised\n");
    return wrong != 0;
}
