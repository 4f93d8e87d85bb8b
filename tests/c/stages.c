/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interface without blocking, over a network interface: endpoints and communicators that are made so, by functions
 * of the program, all ranks in one thread; operations that are made, posted and posted again; callbacks, descriptors to
 * sleep on, and the log. Says "all as promised" at the end.
 */
#define _POSIX_C_SOURCE 200809L
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "expect.h"

enum { RANKS = 3, BYTES = 40000, ROUNDS = 3, PATIENCE_S = 60 };

static double now_s(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* An Allgather of ranks that share a thread: each leaves its piece, and has all of them once the last one has. */
struct board {
    int size, come;
    size_t bytes;
    unsigned char pieces[RANKS][4096];
    int left; /* ranks that have not taken them yet */
};

struct seat {
    struct board *board;
    int rank, fails, handles;
    void *all;
};

static int start(void *user, const void *mine, void *all, size_t bytes, void **handle)
{
    struct seat *seat = user;
    if (seat->fails)
        return 9;
    IS(bytes <= sizeof seat->board->pieces[0]);
    memcpy(seat->board->pieces[seat->rank], mine, bytes);
    seat->board->bytes = bytes;
    if (++seat->board->come == seat->board->size)
        seat->board->left = seat->board->size;
    seat->all = all;
    seat->handles++;
    *handle = seat;
    return 0;
}

static int test(void *user, void *handle)
{
    struct seat *seat = user;
    IS(handle == seat);
    if (seat->board->left == 0)
        return 1;
    for (int rank = 0; rank < seat->board->size; rank++)
        memcpy((char *)seat->all + (size_t)rank * seat->board->bytes, seat->board->pieces[rank], seat->board->bytes);
    if (--seat->board->left == 0)
        seat->board->come = 0;
    return 0;
}

static int end(void *user, void *handle)
{
    struct seat *seat = user;
    IS(handle == seat);
    seat->handles--;
    return 0;
}

static flexcast_bootstrap *bootstrap_of(struct seat *seat, struct board *board, int rank, uint64_t timeout_ms)
{
    flexcast_allgather_functions functions = {.size = sizeof functions, .start = start, .test = test, .free = end, .user = seat};
    flexcast_bootstrap *bootstrap = NULL;
    memset(seat, 0, sizeof *seat);
    seat->board = board;
    seat->rank = rank;
    functions.timeout_ms = timeout_ms;
    OK(flexcast_bootstrap_allgather(&functions, rank, board->size, &bootstrap));
    return bootstrap;
}

/* A key-value store, in a list that threads share. */
struct entry {
    struct entry *next;
    size_t bytes;
    char key[64];
    unsigned char value[4096];
};

static struct entry *entries;
static pthread_mutex_t entries_lock = PTHREAD_MUTEX_INITIALIZER;

static int set(void *user, const char *key, const void *value, size_t bytes)
{
    struct entry *entry = calloc(1, sizeof *entry);
    (void)user;
    IS(strlen(key) < sizeof entry->key && bytes <= sizeof entry->value);
    strcpy(entry->key, key);
    memcpy(entry->value, value, bytes);
    entry->bytes = bytes;
    pthread_mutex_lock(&entries_lock);
    entry->next = entries;
    entries = entry;
    pthread_mutex_unlock(&entries_lock);
    return 0;
}

static int get(void *user, const char *key, void *value, size_t bytes)
{
    int code = 1;
    (void)user;
    pthread_mutex_lock(&entries_lock);
    for (struct entry *entry = entries; entry != NULL; entry = entry->next)
        if (strcmp(entry->key, key) == 0) {
            code = entry->bytes == bytes ? 0 : 2;
            memcpy(value, entry->value, code == 0 ? bytes : 0);
        }
    pthread_mutex_unlock(&entries_lock);
    return code;
}

/* Goes on with all of them until they are ready. */
static void make_ready(flexcast_comm **comms, int count)
{
    double since = now_s();
    for (int ready = 0, left = count; left > 0 && now_s() - since < PATIENCE_S;) {
        left = count;
        for (int rank = 0; rank < count; rank++) {
            OK(flexcast_comm_test(comms[rank], &ready));
            left -= ready;
        }
    }
    IS(now_s() - since < PATIENCE_S);
}

static void wait_all(flexcast_request **requests, int count)
{
    double since = now_s();
    for (int left = count; left > 0 && now_s() - since < PATIENCE_S;) {
        left = count;
        for (int rank = 0; rank < count; rank++) {
            int done = 0;
            OK(flexcast_test(requests[rank], &done));
            left -= done;
        }
    }
    IS(now_s() - since < PATIENCE_S);
}

struct completions {
    flexcast_request *request;
    atomic_int calls, failed;
};

static void count_completion(void *user, flexcast_request *request, flexcast_status status)
{
    struct completions *completions = user;
    IS(completions->request == NULL || completions->request == request);
    completions->failed += status != FLEXCAST_OK;
    completions->calls++;
}

/* Every operation once in steps, among ranks of one thread. */
static void operations(flexcast_comm **comms)
{
    static uint32_t send[RANKS][RANKS * 4], receive[RANKS][RANKS * 4];
    const size_t block = 4 * sizeof send[0][0], counts[RANKS] = {block, block, block};
    const size_t places[RANKS] = {0, block, 2 * block}, elements[RANKS] = {4, 4, 4};

    for (uint32_t operation = FLEXCAST_OPERATION_BARRIER; operation <= FLEXCAST_OPERATION_SCATTERV; operation++) {
        flexcast_request *requests[RANKS];
        struct completions completions[RANKS] = {{NULL, 0, 0}};
        int root = 1;

        for (int rank = 0; rank < RANKS; rank++) {
            flexcast_collective given = flexcast_collective_of(operation);
            for (unsigned at = 0; at < RANKS * 4; at++) {
                send[rank][at] = 100 * (unsigned)rank + at;
                receive[rank][at] = operation == FLEXCAST_OPERATION_BROADCAST && rank == root ? at + 7 : 0;
            }
            given.send = send[rank];
            given.receive = receive[rank];
            given.root = root;
            given.count = block;
            given.send_counts = given.receive_counts = counts;
            given.send_displacements = given.receive_displacements = places;
            given.callback = count_completion;
            given.user = &completions[rank];
            if (operation >= FLEXCAST_OPERATION_ALLREDUCE && operation <= FLEXCAST_OPERATION_REDUCE_SCATTER) {
                given.count = 4;
                given.data_type = FLEXCAST_UINT32;
                given.reduction = FLEXCAST_SUM;
                given.receive_counts = elements;
                given.receive_displacements = NULL;
            }
            OK(flexcast_prepare(comms[rank], &given, &requests[rank]));
            completions[rank].request = requests[rank];
            int done = 0;
            REFUSED(flexcast_test(requests[rank], &done), FLEXCAST_ERROR_ARGUMENT, "not posted");
        }
        for (int rank = 0; rank < RANKS; rank++)
            OK(flexcast_start(requests[rank]));
        wait_all(requests, RANKS);
        for (int rank = 0; rank < RANKS; rank++) {
            const uint32_t *got = receive[rank];
            flexcast_report report;
            IS(completions[rank].calls == 1 && completions[rank].failed == 0);
            OK(flexcast_request_report(requests[rank], &report, sizeof report));
            OK(flexcast_request_free(requests[rank]));
            for (unsigned from = 0; from < RANKS; from++)
                for (unsigned at = 0; at < 4; at++) {
                    unsigned own = (unsigned)rank, here = 4 * from + at;
                    switch (operation) {
                    case FLEXCAST_OPERATION_BROADCAST:
                        IS(from > 0 || got[at] == at + 7);
                        break;
                    case FLEXCAST_OPERATION_ALLGATHER:
                    case FLEXCAST_OPERATION_ALLGATHERV:
                        IS(got[here] == 100 * from + at);
                        break;
                    case FLEXCAST_OPERATION_GATHER:
                    case FLEXCAST_OPERATION_GATHERV:
                        IS(got[here] == (rank == root ? 100 * from + at : 0));
                        break;
                    case FLEXCAST_OPERATION_ALLTOALL:
                    case FLEXCAST_OPERATION_ALLTOALLV:
                        IS(got[here] == 100 * from + 4 * own + at);
                        break;
                    case FLEXCAST_OPERATION_SCATTER:
                    case FLEXCAST_OPERATION_SCATTERV:
                        IS(from > 0 || got[at] == 100 * (unsigned)root + 4 * own + at);
                        break;
                    case FLEXCAST_OPERATION_ALLREDUCE:
                        IS(from > 0 || got[at] == 300 + 3 * at);
                        break;
                    case FLEXCAST_OPERATION_REDUCE:
                        IS(from > 0 || got[at] == (rank == root ? 300 + 3 * at : 0));
                        break;
                    case FLEXCAST_OPERATION_REDUCE_SCATTER_BLOCK:
                    case FLEXCAST_OPERATION_REDUCE_SCATTER:
                        IS(from > 0 || got[at] == 300 + 3 * (4 * own + at));
                        break;
                    default:
                        break;
                    }
                }
        }
    }
}

/* A request that is posted again and again. */
static void persistent(flexcast_comm **comms)
{
    static unsigned char send[RANKS][BYTES], receive[RANKS][RANKS * BYTES];
    flexcast_request *requests[RANKS];
    struct completions completions[RANKS] = {{NULL, 0, 0}};

    for (int rank = 0; rank < RANKS; rank++) {
        flexcast_collective given = flexcast_collective_of(FLEXCAST_OPERATION_ALLGATHER);
        given.send = send[rank];
        given.receive = receive[rank];
        given.count = BYTES;
        given.callback = count_completion;
        given.user = &completions[rank];
        OK(flexcast_prepare(comms[rank], &given, &requests[rank]));
        REFUSED(flexcast_comm_free(NULL), FLEXCAST_ERROR_NULL, NULL);
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (int rank = 0; rank < RANKS; rank++) {
            memset(send[rank], 10 * round + rank + 1, BYTES);
            OK(flexcast_start(requests[rank]));
            if (rank == 0) {
                REFUSED(flexcast_start(requests[rank]), FLEXCAST_ERROR_BUSY, "under way");
                REFUSED(flexcast_request_free(requests[rank]), FLEXCAST_ERROR_BUSY, "under way");
                REFUSED(flexcast_comm_free(comms[rank]), FLEXCAST_ERROR_BUSY, "not over");
            }
        }
        wait_all(requests, RANKS);
        for (int rank = 0; rank < RANKS; rank++) {
            flexcast_report report;
            IS(completions[rank].calls == round + 1);
            OK(flexcast_request_report(requests[rank], &report, sizeof report));
            IS(report.status == FLEXCAST_OK && report.foreign_bytes == (RANKS - 1) * BYTES);
            for (int from = 0; from < RANKS; from++)
                IS(receive[rank][from * BYTES] == 10 * round + from + 1 && receive[rank][(from + 1) * BYTES - 1] == 10 * round + from + 1);
        }
    }
    for (int rank = 0; rank < RANKS; rank++)
        OK(flexcast_request_free(requests[rank]));
}

/* What is not carried is said before anything is posted; what is wrong is named. */
static void refusals(flexcast_comm *comm)
{
    static char bytes[64];
    flexcast_request *request = NULL;
    flexcast_collective given = flexcast_collective_of(FLEXCAST_OPERATION_BROADCAST);
    int descriptor;

    given.receive = bytes;
    given.count = sizeof bytes;
    given.count = (size_t)1 << 60;
    REFUSED(flexcast_prepare(comm, &given, &request), FLEXCAST_NOT_SUPPORTED, "chunks");
    given.count = SIZE_MAX;
    given.operation = FLEXCAST_OPERATION_ALLGATHER;
    REFUSED(flexcast_prepare(comm, &given, &request), FLEXCAST_ERROR_ARGUMENT, "address space");
    given.operation = FLEXCAST_OPERATION_ALLREDUCE;
    given.count = 1;
    given.data_type = FLEXCAST_FLOAT;
    given.reduction = FLEXCAST_BIT_OR;
    REFUSED(flexcast_prepare(comm, &given, &request), FLEXCAST_NOT_SUPPORTED, "not defined for f32");
    given.data_type = 99;
    REFUSED(flexcast_prepare(comm, &given, &request), FLEXCAST_ERROR_ARGUMENT, "data_type is 99");
    given.operation = 99;
    REFUSED(flexcast_prepare(comm, &given, &request), FLEXCAST_ERROR_ARGUMENT, "operation is 99");
    given.operation = FLEXCAST_OPERATION_ALLGATHERV;
    REFUSED(flexcast_prepare(comm, &given, &request), FLEXCAST_ERROR_NULL, "counts");
    given.operation = FLEXCAST_OPERATION_BROADCAST;
    given.flags = 6; /* one that there is, and one that there is not */
    REFUSED(flexcast_prepare(comm, &given, &request), FLEXCAST_ERROR_ARGUMENT, "flags are 0x6");
    given.size = 3;
    REFUSED(flexcast_prepare(comm, &given, &request), FLEXCAST_ERROR_SIZE, "collective has 3 bytes");
    REFUSED(flexcast_prepare(comm, NULL, &request), FLEXCAST_ERROR_NULL, "collective");
    REFUSED(flexcast_comm_event_fd(comm, &descriptor), FLEXCAST_NOT_SUPPORTED, "progress_thread");
    IS(request == NULL);
}

/* A creation that fails on one rank, and one that nobody waits for. */
static void failures(flexcast_endpoint *endpoint)
{
    struct board board = {.size = 2};
    struct seat seats[2];
    flexcast_bootstrap *bootstraps[2];
    flexcast_comm *comms[2] = {NULL, NULL};
    double since = now_s();
    int ready = 0;

    for (int rank = 0; rank < 2; rank++)
        bootstraps[rank] = bootstrap_of(&seats[rank], &board, rank, 300);
    seats[1].fails = 1;
    for (int rank = 0; rank < 2; rank++) {
        OK(flexcast_comm_create_begin(endpoint, bootstraps[rank], NULL, &comms[rank]));
        REFUSED(flexcast_bootstrap_free(bootstraps[rank]), FLEXCAST_ERROR_BUSY, "is being made");
        int number;
        REFUSED(flexcast_comm_rank(comms[rank], &number, NULL), FLEXCAST_ERROR_BUSY, "flexcast_comm_test");
    }
    flexcast_status found[2] = {FLEXCAST_OK, FLEXCAST_OK};
    while ((found[0] == FLEXCAST_OK || found[1] == FLEXCAST_OK) && now_s() - since < PATIENCE_S)
        for (int rank = 0; rank < 2; rank++)
            found[rank] = flexcast_comm_test(comms[rank], &ready);
    REFUSED(flexcast_comm_test(comms[0], &ready), FLEXCAST_ERROR_EXCHANGE, "not all ranks came");
    REFUSED(flexcast_comm_test(comms[1], &ready), FLEXCAST_ERROR_EXCHANGE, "start returned 9");
    for (int rank = 0; rank < 2; rank++) {
        OK(flexcast_comm_free(comms[rank]));
        OK(flexcast_bootstrap_free(bootstraps[rank]));
        IS(seats[rank].handles == 0);
    }

    bootstraps[0] = bootstrap_of(&seats[0], &board, 0, 0);
    OK(flexcast_comm_create_begin(endpoint, bootstraps[0], NULL, &comms[0]));
    OK(flexcast_comm_test(comms[0], &ready));
    IS(ready == 0);
    OK(flexcast_comm_free(comms[0]));
    REFUSED(flexcast_comm_test(comms[0], &ready), FLEXCAST_ERROR_HANDLE, "freed");
    /* Its thread gives the bootstrap back in a moment. */
    flexcast_status freed;
    while ((freed = flexcast_bootstrap_free(bootstraps[0])) == FLEXCAST_ERROR_BUSY && now_s() - since < PATIENCE_S)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    IS(freed == FLEXCAST_OK && seats[0].handles == 0);
}

static void free_slowly(void *user, flexcast_request *request, flexcast_status status)
{
    struct completions *completions = user;
    IS(status == FLEXCAST_OK);
    OK(flexcast_request_free(request));
    nanosleep(&(struct timespec){0, 50000000}, NULL);
    completions->calls++;
}

/* A rank with a thread of its own, a progress thread and a descriptor to sleep on, by a store. */
struct sleeper {
    flexcast_endpoint *endpoint;
    int rank;
};

/* Operations whose poster says that it waits; with a progress thread, which stays away as long as somebody does. */
static void awaited(flexcast_comm *comm, int rank, int descriptor)
{
    flexcast_collective barrier = flexcast_collective_of(FLEXCAST_OPERATION_BARRIER);
    flexcast_request *request = NULL;
    int done = -1, moved = -1;
    uint64_t count = 0;

    barrier.flags = FLEXCAST_FLAG_AWAITED;
    OK(flexcast_prepare(comm, &barrier, &request));
    REFUSED(flexcast_wait_for(request, 1000, &done), FLEXCAST_ERROR_ARGUMENT, "not posted");
    REFUSED(flexcast_wait_for(request, 1000, NULL), FLEXCAST_ERROR_NULL, "done");
    REFUSED(flexcast_progress_for(NULL, 1000, &moved), FLEXCAST_ERROR_NULL, "comm");
    IS(done == -1 && moved == -1);
    /* The last rank comes late: the others wait in vain, for as long as they say. */
    if (rank == RANKS - 1)
        nanosleep(&(struct timespec){0, 50000000}, NULL);
    OK(flexcast_start(request));
    if (rank == 0) {
        double since = now_s();
        OK(flexcast_wait_for(request, 5000000, &done));
        IS(done == 0 && now_s() - since >= 0.005);
        OK(flexcast_wait_for(request, 0, &done));
        IS(done == 0);
    }
    while (OK(flexcast_wait_for(request, 1000000, &done)), !done)
        OK(flexcast_progress_for(comm, 100000, &moved));
    IS(done == 1 && (moved == -1 || moved == 0 || moved == 1));
    OK(flexcast_wait_for(request, 0, &done)); /* over is over */
    OK(flexcast_wait(request));
    IS(read(descriptor, &count, sizeof count) == sizeof count && count == 1);
    /* Nobody waits: the progress thread comes back. */
    OK(flexcast_start(request));
    struct pollfd sleeping = {.fd = descriptor, .events = POLLIN};
    IS(poll(&sleeping, 1, 1000 * PATIENCE_S) == 1);
    IS(read(descriptor, &count, sizeof count) == sizeof count && count == 1);
    OK(flexcast_test(request, &done));
    IS(done == 1);
    OK(flexcast_request_free(request));
}

static void *sleep_until_done(void *given)
{
    struct sleeper *sleeper = given;
    flexcast_store_functions functions = {.size = sizeof functions, .set = set, .get = get, .prefix = "stages"};
    flexcast_bootstrap *bootstrap = NULL;
    flexcast_comm *comm = NULL;
    flexcast_config config;
    flexcast_request *requests[ROUNDS];
    static unsigned char buffers[RANKS][ROUNDS][BYTES];
    struct completions completions = {NULL, 0, 0};
    int descriptor = -1;

    OK(flexcast_bootstrap_store(&functions, sleeper->rank, RANKS, &bootstrap));
    OK(flexcast_config_default(&config, sizeof config));
    OK(flexcast_config_set(&config, "progress_thread", "1"));
    OK(flexcast_comm_create(sleeper->endpoint, bootstrap, &config, &comm));
    OK(flexcast_comm_event_fd(comm, &descriptor));
    for (int round = 0; round < ROUNDS; round++) {
        flexcast_collective given = flexcast_collective_of(FLEXCAST_OPERATION_BROADCAST);
        memset(buffers[sleeper->rank][round], sleeper->rank == round % RANKS ? round + 1 : 0, BYTES);
        given.receive = buffers[sleeper->rank][round];
        given.count = BYTES;
        given.root = round % RANKS;
        given.callback = count_completion;
        given.user = &completions;
        OK(flexcast_post(comm, &given, &requests[round]));
    }
    for (uint64_t ended = 0, count; ended < ROUNDS; ended += count) {
        struct pollfd sleeping = {.fd = descriptor, .events = POLLIN};
        IS(poll(&sleeping, 1, 1000 * PATIENCE_S) == 1);
        count = 0;
        if (read(descriptor, &count, sizeof count) != sizeof count || count == 0) {
            IS(!"nothing has ended");
            break;
        }
    }
    for (int round = 0; round < ROUNDS; round++) {
        OK(flexcast_wait(requests[round]));
        REFUSED(flexcast_request_free(requests[round]), FLEXCAST_ERROR_HANDLE, "freed");
        IS(buffers[sleeper->rank][round][0] == round + 1 && buffers[sleeper->rank][round][BYTES - 1] == round + 1);
    }
    IS(completions.calls == ROUNDS && completions.failed == 0);
    awaited(comm, sleeper->rank, descriptor);
    /* The last one is freed by its own callback, which the progress thread is still in. */
    struct completions last = {NULL, 0, 0};
    flexcast_collective barrier = flexcast_collective_of(FLEXCAST_OPERATION_BARRIER);
    barrier.callback = free_slowly;
    barrier.user = &last;
    OK(flexcast_post(comm, &barrier, &last.request));
    double since = now_s();
    flexcast_status freed;
    while ((freed = flexcast_comm_free(comm)) == FLEXCAST_ERROR_BUSY && now_s() - since < PATIENCE_S)
        nanosleep(&(struct timespec){0, 100000}, NULL);
    IS(freed == FLEXCAST_OK && last.calls == 1);
    OK(flexcast_bootstrap_free(bootstrap));
    return NULL;
}

enum { CHAIN = 20000 };

struct chain {
    flexcast_comm *comm;
    int depth, deepest, calls, refused;
};

/* Posts the next operation, which is over at once: its callback must not run inside of this one. */
static void post_next(void *user, flexcast_request *request, flexcast_status status)
{
    struct chain *chain = user;
    chain->deepest = ++chain->depth > chain->deepest ? chain->depth : chain->deepest;
    IS(status == FLEXCAST_OK);
    OK(flexcast_request_free(request));
    if (++chain->calls < CHAIN) {
        flexcast_collective next = flexcast_collective_of(FLEXCAST_OPERATION_BARRIER);
        next.callback = post_next;
        next.user = chain;
        OK(flexcast_post(chain->comm, &next, &request));
        chain->refused += flexcast_wait(request) == FLEXCAST_ERROR_BUSY;
    }
    chain->depth--;
}

static void chain_of_callbacks(flexcast_endpoint *endpoint)
{
    struct board board = {.size = 1};
    struct seat seat;
    flexcast_bootstrap *bootstrap = bootstrap_of(&seat, &board, 0, 0);
    struct chain chain = {NULL, 0, 0, 0, 0};
    flexcast_request *first = NULL;
    flexcast_collective barrier = flexcast_collective_of(FLEXCAST_OPERATION_BARRIER);

    OK(flexcast_comm_create(endpoint, bootstrap, NULL, &chain.comm));
    barrier.callback = post_next;
    barrier.user = &chain;
    OK(flexcast_post(chain.comm, &barrier, &first));
    IS(chain.calls == CHAIN && chain.deepest == 1 && chain.refused == CHAIN - 1);
    OK(flexcast_comm_free(chain.comm));
    OK(flexcast_bootstrap_free(bootstrap));
}

static void log_line(void *user, int level, const char *target, const char *text)
{
    atomic_int *lines = user;
    IS(level >= FLEXCAST_LOG_ERROR && level <= FLEXCAST_LOG_TRACE && strlen(target) > 0 && text != NULL);
    ++*lines;
}

int main(void)
{
    flexcast_endpoint_options options;
    flexcast_endpoint *endpoint = NULL, *none = NULL;
    struct board board = {.size = RANKS};
    struct seat seats[RANKS];
    flexcast_bootstrap *bootstraps[RANKS];
    flexcast_comm *comms[RANKS] = {NULL}, *parts[RANKS] = {NULL};
    static atomic_int lines;
    double since = now_s();
    int ready = 0, rank, size;

    IS(flexcast_abi_version() == FLEXCAST_ABI_VERSION && FLEXCAST_ABI_VERSION == 1);
    REFUSED(flexcast_log(6, NULL, NULL), FLEXCAST_ERROR_ARGUMENT, "level is 6");
    OK(flexcast_log(FLEXCAST_LOG_TRACE, log_line, &lines));

    OK(flexcast_endpoint_options_default(&options, sizeof options));
    options.datapath = "udp";
    options.interface_name = "no-such-interface";
    OK(flexcast_endpoint_open_begin(&options, &none));
    flexcast_status opened;
    while ((opened = flexcast_endpoint_test(none, &ready)) == FLEXCAST_OK && now_s() - since < PATIENCE_S)
        IS(ready == 0);
    REFUSED(flexcast_endpoint_test(none, &ready), FLEXCAST_ERROR_INTERFACE, "no-such-interface");
    OK(flexcast_endpoint_close(none));
    char name[] = "lo";
    options.interface_name = name;
    OK(flexcast_endpoint_open_begin(&options, &endpoint));
    memset(name, 'x', 2); /* texts need not stay */
    options.interface_name = "lo";
    while (flexcast_endpoint_test(endpoint, &ready) == FLEXCAST_OK && ready == 0 && now_s() - since < PATIENCE_S)
        ;
    IS(ready == 1);

    for (int at = 0; at < RANKS; at++)
        bootstraps[at] = bootstrap_of(&seats[at], &board, at, 0);
    for (int at = 0; at < RANKS; at++)
        OK(flexcast_comm_create_begin(endpoint, bootstraps[at], NULL, &comms[at]));
    REFUSED(flexcast_endpoint_close(endpoint), FLEXCAST_ERROR_BUSY, "communicators");
    make_ready(comms, RANKS);
    for (int at = 0; at < RANKS; at++) {
        OK(flexcast_comm_rank(comms[at], &rank, &size));
        IS(rank == at && size == RANKS && seats[at].handles == 0);
    }
    operations(comms);
    persistent(comms);
    refusals(comms[0]);

    /* Ranks 0 and 2 become a communicator; rank 1 is in none. */
    for (int at = 0; at < RANKS; at++)
        OK(flexcast_comm_split_begin(comms[at], bootstraps[at], at == 1 ? FLEXCAST_UNDEFINED : 4, -at, &parts[at]));
    make_ready(parts, RANKS);
    REFUSED(flexcast_comm_rank(parts[1], &rank, &size), FLEXCAST_ERROR_ARGUMENT, "none of the parts");
    OK(flexcast_comm_rank(parts[2], &rank, &size));
    IS(rank == 0 && size == 2);
    for (int at = 0; at < RANKS; at++)
        OK(flexcast_comm_free(parts[at]));

    /* A request that was made stays refused once its communicator is gone, and keeps no endpoint. */
    flexcast_request *late = NULL;
    flexcast_collective barrier = flexcast_collective_of(FLEXCAST_OPERATION_BARRIER);
    OK(flexcast_prepare(comms[0], &barrier, &late));
    for (int at = 0; at < RANKS; at++) {
        OK(flexcast_comm_free(comms[at]));
        OK(flexcast_bootstrap_free(bootstraps[at]));
    }
    REFUSED(flexcast_start(late), FLEXCAST_ERROR_HANDLE, "freed");
    OK(flexcast_endpoint_close(endpoint));
    OK(flexcast_request_free(late));
    OK(flexcast_endpoint_open(&options, &endpoint));
    failures(endpoint);
    chain_of_callbacks(endpoint);

    pthread_t threads[RANKS];
    struct sleeper sleepers[RANKS];
    for (int at = 0; at < RANKS; at++) {
        sleepers[at] = (struct sleeper){endpoint, at};
        IS(pthread_create(&threads[at], NULL, sleep_until_done, &sleepers[at]) == 0);
    }
    for (int at = 0; at < RANKS; at++)
        IS(pthread_join(threads[at], NULL) == 0);
    IS(lines > 0);
    OK(flexcast_log(FLEXCAST_LOG_WARN, NULL, NULL));
    OK(flexcast_endpoint_close(endpoint));
    if (wrong == 0)
        printf("all as promised\n");
    return wrong != 0;
}
