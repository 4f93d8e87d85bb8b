/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random operations on one team, with nothing between them: mix SEED OPERATIONS THREADS.
 *
 * What follows from the seed is alike on all ranks: kind, lengths and root of each operation. The threads take turns in
 * posting, as a team wants, and each waits for its own operations, of which it has several under way. Every element that an
 * operation may write is compared. Each rank says "all as promised" at the end.
 */
#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucc/api/ucc.h>

/* Most elements of a block; operations that a thread has under way. */
enum { MOST = 20000, UNDER_WAY = 4, MOST_RANKS = 16, MOST_THREADS = 16 };

enum kind { BARRIER, BCAST, ALLGATHER, ALLGATHERV, ALLREDUCE, REDUCE, REDUCE_SCATTER, ALLTOALL, ALLTOALLV, GATHER, GATHERV, SCATTER, SCATTERV, KINDS };

static const ucc_coll_type_t types[KINDS] = {
    UCC_COLL_TYPE_BARRIER, UCC_COLL_TYPE_BCAST,          UCC_COLL_TYPE_ALLGATHER, UCC_COLL_TYPE_ALLGATHERV, UCC_COLL_TYPE_ALLREDUCE,
    UCC_COLL_TYPE_REDUCE,  UCC_COLL_TYPE_REDUCE_SCATTER, UCC_COLL_TYPE_ALLTOALL,  UCC_COLL_TYPE_ALLTOALLV,  UCC_COLL_TYPE_GATHER,
    UCC_COLL_TYPE_GATHERV, UCC_COLL_TYPE_SCATTER,        UCC_COLL_TYPE_SCATTERV};

static const char *const names[KINDS] = {"Barrier",        "Bcast",    "Allgather", "Allgatherv", "Allreduce", "Reduce",
                                         "Reduce_scatter", "Alltoall", "Alltoallv", "Gather",     "Gatherv",   "Scatter",
                                         "Scatterv"};

static int rank, size;
static uint64_t seed, operations;
static int threads;
static ucc_context_h context;
static ucc_team_h team;
/* Whose turn it is to post. */
static atomic_uint_least64_t turn;
static atomic_int wrong;

/* An operation under way. Element e of what rank r gives is value(operation, r, e). */
typedef struct {
    uint64_t number;
    enum kind kind;
    int root, count;
    ucc_coll_req_h request;
    int32_t *send, *receive;
    int send_counts[MOST_RANKS], send_places[MOST_RANKS], receive_counts[MOST_RANKS], receive_places[MOST_RANKS];
    int sent, received;
} operation;

static uint64_t draw(uint64_t number, uint64_t what)
{
    uint64_t x = seed + number * 0x9e3779b97f4a7c15u + what * 0xd1b54a32d192ed03u;
    x          = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x          = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static int32_t value(uint64_t number, int from, int element)
{
    return (int32_t)(uint32_t)(number * 31 + (uint64_t)from * 1009 + (uint64_t)element * 7);
}

/* Elements of the block from one rank to another, where they differ. */
static int length(const operation *of, int from, int to)
{
    return (int)((uint64_t)(of->count + 3 * from + 5 * to) % (uint64_t)(of->count + 1));
}

static void lay(const operation *of, int *counts, int *places, int *all, int sends)
{
    *all = 0;
    for (int peer = 0; peer < size; peer++) {
        int both     = of->kind == ALLTOALLV;
        counts[peer] = both ? (sends ? length(of, rank, peer) : length(of, peer, rank)) : length(of, peer, 0);
        places[peer] = *all;
        *all += counts[peer];
    }
}

static int has_root(enum kind kind)
{
    return kind == BCAST || kind == REDUCE || kind == GATHER || kind == GATHERV || kind == SCATTER || kind == SCATTERV;
}

static void describe(operation *of, ucc_coll_args_t *args)
{
    int is_root = rank == of->root, all = of->count * size;
    memset(args, 0, sizeof *args);
    args->mask             = UCC_COLL_ARGS_FIELD_FLAGS;
    args->coll_type        = types[of->kind];
    args->root             = (uint64_t)of->root;
    args->op               = UCC_OP_SUM;
    of->sent               = of->count;
    of->received           = of->count;
    ucc_coll_buffer_info_t send = {.buffer = of->send, .datatype = UCC_DT_INT32, .mem_type = UCC_MEMORY_TYPE_HOST}, receive = send;
    receive.buffer         = of->receive;
    switch (of->kind) {
    case BARRIER:
        of->sent = of->received = 0;
        return;
    case BCAST:
        of->received = is_root ? 0 : of->count;
        of->sent     = is_root ? of->count : 0;
        send.buffer  = is_root ? of->send : of->receive;
        send.count   = (uint64_t)of->count;
        args->src.info = send;
        return;
    case ALLGATHER:
        of->received = all;
        break;
    case REDUCE:
        of->received = is_root ? of->count : 0;
        break;
    case REDUCE_SCATTER:
        of->sent = all;
        break;
    case ALLTOALL:
        of->sent = of->received = all;
        break;
    case GATHER:
        of->received = is_root ? all : 0;
        break;
    case SCATTER:
        of->sent = is_root ? all : 0;
        break;
    case ALLGATHERV:
    case GATHERV:
        lay(of, of->receive_counts, of->receive_places, &of->received, 0);
        of->sent = of->receive_counts[rank];
        if (of->kind == GATHERV && !is_root)
            of->received = 0;
        break;
    case SCATTERV:
        lay(of, of->send_counts, of->send_places, &of->sent, 1);
        of->received = of->send_counts[rank];
        if (!is_root)
            of->sent = 0;
        break;
    case ALLTOALLV:
        lay(of, of->send_counts, of->send_places, &of->sent, 1);
        lay(of, of->receive_counts, of->receive_places, &of->received, 0);
        break;
    default:
        break;
    }
    ucc_coll_buffer_info_v_t send_v    = {.buffer = of->send, .datatype = UCC_DT_INT32, .mem_type = UCC_MEMORY_TYPE_HOST};
    ucc_coll_buffer_info_v_t receive_v = send_v;
    receive_v.buffer                   = of->receive;
    send_v.counts                      = (ucc_count_t *)of->send_counts;
    send_v.displacements               = (ucc_aint_t *)of->send_places;
    receive_v.counts                   = (ucc_count_t *)of->receive_counts;
    receive_v.displacements            = (ucc_aint_t *)of->receive_places;
    send.count                         = (uint64_t)of->sent;
    receive.count                      = (uint64_t)of->received;
    if (of->kind == SCATTERV || of->kind == ALLTOALLV)
        args->src.info_v = send_v;
    else
        args->src.info = send;
    if (of->kind == ALLGATHERV || of->kind == GATHERV || of->kind == ALLTOALLV)
        args->dst.info_v = receive_v;
    else
        args->dst.info = receive;
}

/* What has to be at a place of the receive buffer. */
static int32_t expected(const operation *of, int at)
{
    int32_t sum = 0;
    switch (of->kind) {
    case BCAST:
        return value(of->number, of->root, at);
    case ALLGATHER:
    case GATHER:
        return value(of->number, at / of->count, at % of->count);
    case ALLREDUCE:
    case REDUCE:
    case REDUCE_SCATTER:
        for (int from = 0; from < size; from++)
            sum = (int32_t)((uint32_t)sum + (uint32_t)value(of->number, from, of->kind == REDUCE_SCATTER ? rank * of->count + at : at));
        return sum;
    case ALLTOALL:
        return value(of->number, at / of->count, rank * of->count + at % of->count);
    case SCATTER:
        return value(of->number, of->root, rank * of->count + at);
    case SCATTERV:
        return value(of->number, of->root, of->send_places[rank] + at);
    default: {
        int from = size - 1;
        while (of->receive_places[from] > at)
            from--;
        int first = 0;
        for (int to = 0; of->kind == ALLTOALLV && to < rank; to++)
            first += length(of, from, to);
        return value(of->number, from, first + at - of->receive_places[from]);
    }
    }
}

static void begin(operation *of, uint64_t number)
{
    ucc_coll_args_t args;
    of->number = number;
    of->kind   = (enum kind)(draw(number, 0) % KINDS);
    of->count  = 1 + (int)(draw(number, 1) % (draw(number, 2) % 200 ? 500 : MOST));
    of->root   = has_root(of->kind) ? (int)(draw(number, 3) % (uint64_t)size) : 0;
    describe(of, &args);
    for (int at = 0; at < of->sent; at++)
        of->send[at] = value(number, rank, at);
    for (int at = 0; at < of->received; at++)
        of->receive[at] = -1;
    while (atomic_load(&turn) != number)
        ucc_context_progress(context);
    if (ucc_collective_init(&args, &of->request, team) != UCC_OK || ucc_collective_post(of->request) != UCC_OK) {
        fprintf(stderr, "mix.c: rank %d: operation %llu, %s, is refused\n", rank, (unsigned long long)number, names[of->kind]);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    atomic_store(&turn, number + 1);
}

static void end(operation *of)
{
    ucc_status_t status;
    while ((status = ucc_collective_test(of->request)) == UCC_INPROGRESS)
        ucc_context_progress(context);
    if (status != UCC_OK || ucc_collective_finalize(of->request) != UCC_OK) {
        fprintf(stderr, "mix.c: rank %d: operation %llu, %s: %s\n", rank, (unsigned long long)of->number, names[of->kind],
                ucc_status_string(status));
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    for (int at = 0; at < of->received; at++)
        if (of->receive[at] != expected(of, at)) {
            fprintf(stderr, "mix.c: rank %d: operation %llu, %s of %d, root %d: element %d is %d, not %d\n", rank, (unsigned long long)of->number,
                    names[of->kind], of->count, of->root, at, of->receive[at], expected(of, at));
            atomic_fetch_add(&wrong, 1);
            return;
        }
}

static void *carry_out(void *argument)
{
    operation under_way[UNDER_WAY];
    uint64_t own = *(int *)argument, begun = 0, ended = 0;
    size_t bytes = sizeof(int32_t) * MOST * (size_t)size;
    for (int at = 0; at < UNDER_WAY; at++) {
        under_way[at].send    = malloc(bytes);
        under_way[at].receive = malloc(bytes);
        if (under_way[at].send == NULL || under_way[at].receive == NULL)
            MPI_Abort(MPI_COMM_WORLD, 2);
    }
    for (uint64_t number = own; number < operations; number += (uint64_t)threads) {
        if (begun - ended == UNDER_WAY)
            end(&under_way[ended++ % UNDER_WAY]);
        begin(&under_way[begun++ % UNDER_WAY], number);
    }
    while (ended < begun)
        end(&under_way[ended++ % UNDER_WAY]);
    for (int at = 0; at < UNDER_WAY; at++) {
        free(under_way[at].send);
        free(under_way[at].receive);
    }
    return NULL;
}

static ucc_status_t gather_start(void *mine, void *all, size_t bytes, void *user, void **handle)
{
    MPI_Request *request = malloc(sizeof *request);
    (void)user;
    MPI_Iallgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, MPI_COMM_WORLD, request);
    *handle = request;
    return UCC_OK;
}

static ucc_status_t gather_test(void *handle)
{
    int done;
    MPI_Test(handle, &done, MPI_STATUS_IGNORE);
    return done ? UCC_OK : UCC_INPROGRESS;
}

static ucc_status_t gather_free(void *handle)
{
    free(handle);
    return UCC_OK;
}

int main(int count, char **words)
{
    ucc_thread_mode_t mode;
    ucc_lib_config_h lib_config;
    ucc_context_config_h context_config;
    ucc_lib_h lib;
    ucc_status_t status;
    pthread_t running[MOST_THREADS];
    int numbers[MOST_THREADS], level;

    MPI_Init_thread(&count, &words, MPI_THREAD_FUNNELED, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (count != 4 || (threads = atoi(words[3])) < 1 || threads > MOST_THREADS || size > MOST_RANKS) {
        fprintf(stderr, "mix.c: mix SEED OPERATIONS THREADS, 1 to %d threads, at most %d ranks\n", MOST_THREADS, MOST_RANKS);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    seed       = strtoull(words[1], NULL, 0);
    operations = strtoull(words[2], NULL, 0);
    mode       = threads > 1 ? UCC_THREAD_MULTIPLE : UCC_THREAD_SINGLE;

    ucc_lib_params_t of_lib         = {.mask = UCC_LIB_PARAM_FIELD_THREAD_MODE, .thread_mode = mode};
    ucc_oob_coll_t oob              = {.allgather = gather_start, .req_test = gather_test, .req_free = gather_free};
    oob.n_oob_eps                   = (uint32_t)size;
    oob.oob_ep                      = (uint32_t)rank;
    ucc_context_params_t of_context = {.mask = UCC_CONTEXT_PARAM_FIELD_OOB, .oob = oob};
    ucc_team_params_t of_team       = {.mask = UCC_TEAM_PARAM_FIELD_OOB, .oob = oob};
    if (ucc_lib_config_read(NULL, NULL, &lib_config) != UCC_OK || ucc_init(&of_lib, lib_config, &lib) != UCC_OK ||
        ucc_context_config_read(lib, NULL, &context_config) != UCC_OK ||
        ucc_context_create(lib, &of_context, context_config, &context) != UCC_OK ||
        ucc_team_create_post(&context, 1, &of_team, &team) != UCC_OK) {
        fprintf(stderr, "mix.c: UCC cannot be used\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    ucc_lib_config_release(lib_config);
    ucc_context_config_release(context_config);
    while ((status = ucc_team_create_test(team)) == UCC_INPROGRESS)
        ucc_context_progress(context);
    if (status != UCC_OK)
        MPI_Abort(MPI_COMM_WORLD, 2);

    for (int number = 0; number < threads; number++) {
        numbers[number] = number;
        if (pthread_create(&running[number], NULL, carry_out, &numbers[number]))
            MPI_Abort(MPI_COMM_WORLD, 2);
    }
    for (int number = 0; number < threads; number++)
        pthread_join(running[number], NULL);

    while ((status = ucc_team_destroy(team)) == UCC_INPROGRESS)
        ucc_context_progress(context);
    if (status != UCC_OK || ucc_context_destroy(context) != UCC_OK || ucc_finalize(lib) != UCC_OK)
        atomic_fetch_add(&wrong, 1);
    MPI_Finalize();
    if (wrong == 0)
        printf("rank %d: all as promised\n", rank);
    return wrong != 0;
}
