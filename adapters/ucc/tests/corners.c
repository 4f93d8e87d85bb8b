/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What UCC's own test leaves out, between two ranks: places of an Allgatherv that differ from rank to rank, a Reduce_scatter in place whose count does not divide, and an
 * operation that is given up after its timeout. Each rank says "all as promised" at the end.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucc/api/ucc.h>

enum { RANKS = 2, PLACES = 32 };

static int rank, wrong;
static ucc_context_h context;
static ucc_team_h team;

#define IS(condition)                                                                                                                    \
    do {                                                                                                                                 \
        if (!(condition)) {                                                                                                              \
            fprintf(stderr, "corners.c:%d: rank %d: %s\n", __LINE__, rank, #condition);                                                  \
            wrong++;                                                                                                                     \
        }                                                                                                                                \
    } while (0)

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

static ucc_coll_args_t arguments(ucc_coll_type_t kind)
{
    ucc_coll_args_t args;
    memset(&args, 0, sizeof args);
    args.coll_type         = kind;
    args.mask              = UCC_COLL_ARGS_FIELD_FLAGS;
    args.src.info.datatype = UCC_DT_INT32;
    args.src.info.mem_type = UCC_MEMORY_TYPE_HOST;
    args.dst               = (typeof(args.dst)){.info = {.datatype = UCC_DT_INT32, .mem_type = UCC_MEMORY_TYPE_HOST}};
    args.op                = UCC_OP_SUM;
    return args;
}

/* Ends by itself: every phase of an operation has its bound. */
static ucc_status_t carry_out(ucc_coll_args_t *args)
{
    ucc_coll_req_h request;
    ucc_status_t status;

    IS(ucc_collective_init(args, &request, team) == UCC_OK);
    IS(ucc_collective_post(request) == UCC_OK);
    while ((status = ucc_collective_test(request)) == UCC_INPROGRESS)
        ucc_context_progress(context);
    IS(ucc_collective_finalize(request) == UCC_OK);
    return status;
}

static void places_of_each_rank(void)
{
    int lengths[RANKS] = {3, 5}, places[2][RANKS] = {{2, 20}, {10, 1}}, *own = places[rank];
    for (int in_place = 0; in_place < 2; in_place++) {
        int mine[5], all[PLACES], untouched = 0;
        for (int at = 0; at < PLACES; at++)
            all[at] = -1;
        for (int at = 0; at < lengths[rank]; at++)
            *(in_place ? &all[own[rank] + at] : &mine[at]) = 100 * rank + at;
        ucc_coll_args_t args       = arguments(UCC_COLL_TYPE_ALLGATHERV);
        args.flags                 = in_place ? UCC_COLL_ARGS_FLAG_IN_PLACE : 0;
        args.src.info.buffer       = mine;
        args.src.info.count        = (ucc_count_t)lengths[rank];
        args.dst.info_v.buffer     = all;
        args.dst.info_v.counts     = (ucc_count_t *)lengths;
        args.dst.info_v.displacements = (ucc_aint_t *)own;
        args.dst.info_v.datatype   = UCC_DT_INT32;
        args.dst.info_v.mem_type   = UCC_MEMORY_TYPE_HOST;
        IS(carry_out(&args) == UCC_OK);
        for (int from = 0; from < RANKS; from++)
            for (int at = 0; at < lengths[from]; at++)
                IS(all[own[from] + at] == 100 * from + at);
        for (int at = 0; at < PLACES; at++)
            untouched += all[at] == -1;
        IS(untouched == PLACES - lengths[0] - lengths[1]);
    }
}

static void parts_of_seven(void)
{
    int parts[7];
    for (int at = 0; at < 7; at++)
        parts[at] = 10 * at + rank;
    ucc_coll_args_t args = arguments(UCC_COLL_TYPE_REDUCE_SCATTER);
    args.flags           = UCC_COLL_ARGS_FLAG_IN_PLACE;
    args.dst.info.buffer = parts;
    args.dst.info.count  = 7;
    IS(carry_out(&args) == UCC_OK);
    /* Four are rank 0's, three are rank 1's, each where they were. */
    for (int at = 0; at < 7; at++)
        IS(parts[at] == (at / 4 == rank ? 20 * at + 1 : 10 * at + rank));
}

/* Rank 1 never posts. */
static void given_up(void)
{
    static int bytes[64];
    ucc_coll_args_t args = arguments(UCC_COLL_TYPE_BCAST);
    args.flags           = UCC_COLL_ARGS_FLAG_TIMEOUT;
    args.timeout         = 0.2;
    args.root            = 1;
    args.src.info.buffer = bytes;
    args.src.info.count  = 64;
    if (rank == 0)
        IS(carry_out(&args) == UCC_ERR_TIMED_OUT);
    MPI_Barrier(MPI_COMM_WORLD);
}

int main(int count, char **words)
{
    ucc_lib_params_t of_lib = {.mask = UCC_LIB_PARAM_FIELD_THREAD_MODE, .thread_mode = UCC_THREAD_SINGLE};
    ucc_oob_coll_t oob      = {.allgather = gather_start, .req_test = gather_test, .req_free = gather_free, .n_oob_eps = RANKS};
    ucc_lib_config_h lib_config;
    ucc_context_config_h context_config;
    ucc_lib_h lib;
    ucc_status_t status;
    int size;

    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size != RANKS) {
        fprintf(stderr, "corners.c: %d ranks; start two\n", size);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    oob.oob_ep                     = (uint32_t)rank;
    ucc_context_params_t of_context = {.mask = UCC_CONTEXT_PARAM_FIELD_OOB, .oob = oob};
    ucc_team_params_t of_team       = {.mask = UCC_TEAM_PARAM_FIELD_OOB, .oob = oob};
    if (ucc_lib_config_read(NULL, NULL, &lib_config) != UCC_OK || ucc_init(&of_lib, lib_config, &lib) != UCC_OK ||
        ucc_context_config_read(lib, NULL, &context_config) != UCC_OK ||
        ucc_context_create(lib, &of_context, context_config, &context) != UCC_OK ||
        ucc_team_create_post(&context, 1, &of_team, &team) != UCC_OK) {
        fprintf(stderr, "corners.c: UCC cannot be used\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    ucc_lib_config_release(lib_config);
    ucc_context_config_release(context_config);
    while ((status = ucc_team_create_test(team)) == UCC_INPROGRESS)
        ucc_context_progress(context);
    IS(status == UCC_OK);

    places_of_each_rank();
    parts_of_seven();
    given_up();

    while ((status = ucc_team_destroy(team)) == UCC_INPROGRESS)
        ucc_context_progress(context);
    IS(status == UCC_OK);
    IS(ucc_context_destroy(context) == UCC_OK);
    IS(ucc_finalize(lib) == UCC_OK);
    MPI_Finalize();
    if (wrong == 0)
        printf("rank %d: all as promised\n", rank);
    return wrong != 0;
}
