/* The C interface of the collective library, used wrongly in every way that it says it refuses, and rightly, by a single rank.
 *
 * Usage: capi ALLGATHER.elf FOLDER, the folder that of the emulator's libraries; says "all as promised" at the end. */
#define _DEFAULT_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "expect.h"

enum { PAGE_BYTES = 4096 };

struct callback {
    int calls, fails;
    flexcast_bootstrap *bootstrap;
    flexcast_endpoint *endpoint;
};

/* MPI_Allgather among one. */
static int gather(void *user, const void *mine, size_t bytes, void *all)
{
    struct callback *callback = user;
    callback->calls++;
    if (callback->fails)
        return 7;
    memcpy(all, mine, bytes);
    if (callback->bootstrap != NULL) {
        /* From inside: what is in use is refused, nothing else happens. */
        flexcast_comm *comm = NULL;
        REFUSED(flexcast_comm_create(callback->endpoint, callback->bootstrap, NULL, &comm), FLEXCAST_ERROR_BUSY, "is being made");
        REFUSED(flexcast_bootstrap_free(callback->bootstrap), FLEXCAST_ERROR_BUSY, "is being made");
        REFUSED(flexcast_endpoint_close(callback->endpoint), FLEXCAST_ERROR_BUSY, "communicators");
        IS(comm == NULL);
    }
    return 0;
}

struct shared {
    flexcast_endpoint *endpoint;
    flexcast_comm *comm;
    flexcast_request *request;
};

static void *other_thread(void *given)
{
    struct shared *shared = given;
    char byte = 0;
    int done;
    flexcast_request *request = NULL;
    /* Handles are those of the process: another thread may use them, and is refused what everybody is refused. */
    OK(flexcast_broadcast(shared->comm, &byte, 1, 0, &request));
    OK(flexcast_wait(request));
    OK(flexcast_buffer_invalidate(shared->endpoint, &byte, 1));
    OK(flexcast_wait_for(shared->request, FLEXCAST_NEVER, &done));
    OK(flexcast_wait_for(shared->request, 0, &done));
    IS(done == 1);
    OK(flexcast_progress(shared->comm, NULL));
    REFUSED(flexcast_endpoint_close(shared->endpoint), FLEXCAST_ERROR_BUSY, "communicators");
    return NULL;
}

static void options(const char *image, const char *libraries)
{
    flexcast_endpoint_options given;
    flexcast_endpoint *endpoint = NULL;
    REFUSED(flexcast_endpoint_options_default(NULL, sizeof given), FLEXCAST_ERROR_NULL, "options");
    REFUSED(flexcast_endpoint_options_default(&given, sizeof given + 8), FLEXCAST_ERROR_SIZE, "header");
    OK(flexcast_endpoint_options_default(&given, sizeof given));
    given.libraries = libraries;
    REFUSED(flexcast_endpoint_open(&given, &endpoint), FLEXCAST_ERROR_FIRMWARE, "firmware_path");
    given.firmware_path = "/no/such/file.elf";
    REFUSED(flexcast_endpoint_open(&given, &endpoint), FLEXCAST_ERROR_FIRMWARE, "/no/such/file.elf");
    given.firmware = "this is no ELF";
    given.firmware_bytes = 14;
    REFUSED(flexcast_endpoint_open(&given, &endpoint), FLEXCAST_ERROR_IMAGE, "ELF");
    given.firmware = NULL;
    given.firmware_path = image;
    given.device = "mlx5_77";
    REFUSED(flexcast_endpoint_open(&given, &endpoint), FLEXCAST_ERROR_NO_DEVICE, "mlx5_77");
    given.device = "\xff";
    REFUSED(flexcast_endpoint_open(&given, &endpoint), FLEXCAST_ERROR_ARGUMENT, "UTF-8");
    given.device = NULL;
    given.libraries = "/no/such/folder";
    REFUSED(flexcast_endpoint_open(&given, &endpoint), FLEXCAST_ERROR_NOT_INSTALLED, "/no/such/folder");
    given.libraries = libraries;
    given.size = 1;
    REFUSED(flexcast_endpoint_open(&given, &endpoint), FLEXCAST_ERROR_SIZE, "options has 1 bytes");
    given.size = sizeof given;
    given.datapath = "pigeons";
    REFUSED(flexcast_endpoint_open(&given, &endpoint), FLEXCAST_ERROR_ARGUMENT, "pigeons");
    given.datapath = "udp";
    given.interface_name = "no-such-interface";
    REFUSED(flexcast_endpoint_open(&given, &endpoint), FLEXCAST_ERROR_INTERFACE, "no-such-interface");
    given.datapath = given.interface_name = NULL;
    REFUSED(flexcast_endpoint_open(&given, NULL), FLEXCAST_ERROR_NULL, "endpoint is NULL");
    IS(endpoint == NULL);
    /* NULL stands for the defaults: what variables say. */
    IS(setenv("FLEXCAST_DATAPATH", "pigeons", 1) == 0);
    REFUSED(flexcast_endpoint_open(NULL, &endpoint), FLEXCAST_ERROR_ARGUMENT, "FLEXCAST_DATAPATH is \"pigeons\"");
    IS(setenv("FLEXCAST_DATAPATH", "udp", 1) == 0 && setenv("FLEXCAST_INTERFACE", "lo", 1) == 0);
    OK(flexcast_endpoint_open(NULL, &endpoint));
    OK(flexcast_endpoint_close(endpoint));
    IS(unsetenv("FLEXCAST_DATAPATH") == 0 && unsetenv("FLEXCAST_INTERFACE") == 0);
}

static void configurations(flexcast_endpoint *endpoint, flexcast_bootstrap *bootstrap)
{
    flexcast_comm *comm = NULL;
    flexcast_config config;
    REFUSED(flexcast_config_default(&config, 4), FLEXCAST_ERROR_SIZE, "4 bytes");
    REFUSED(flexcast_config_default(&config, sizeof config + 8), FLEXCAST_ERROR_SIZE, "header of this library");
    REFUSED(flexcast_config_default(NULL, sizeof config), FLEXCAST_ERROR_NULL, "config");
    /* A program compiled against a header that ends earlier. */
    memset(&config, 0xee, sizeof config);
    OK(flexcast_config_default(&config, 16));
    IS(config.size == 16 && config.control == FLEXCAST_CONTROL_HOST && config.transport == 0xeeeeeeee);
    REFUSED(flexcast_config_set(&config, "slots", "8"), FLEXCAST_ERROR_SIZE, "slots is not in a configuration of 16 bytes");
    OK(flexcast_config_default(&config, sizeof config));
    IS(config.size == sizeof config && config.max_receive_bytes == 0 && config.progress_thread == 0);
    OK(flexcast_config_set(&config, "slots", "100"));
    REFUSED(flexcast_comm_create(endpoint, bootstrap, &config, &comm), FLEXCAST_ERROR_CONFIG, "slots is 100");
    /* Another value in its place, by the name of the variable. */
    OK(flexcast_config_set(&config, "FLEXCAST_SLOTS", "8192"));
    REFUSED(flexcast_comm_create(endpoint, bootstrap, &config, &comm), FLEXCAST_ERROR_BUDGET, "last-level cache");
    OK(flexcast_config_default(&config, sizeof config));
    OK(flexcast_config_set(&config, "chains", "5000"));
    REFUSED(flexcast_comm_create(endpoint, bootstrap, &config, &comm), FLEXCAST_ERROR_CONFIG, "chains is 5000");
    OK(flexcast_config_default(&config, sizeof config));
    config.algorithm = 9;
    REFUSED(flexcast_comm_create(endpoint, bootstrap, &config, &comm), FLEXCAST_ERROR_CONFIG, "algorithm is 9");
    config.size = sizeof config + 8;
    REFUSED(flexcast_comm_create(endpoint, bootstrap, &config, &comm), FLEXCAST_ERROR_SIZE, "config has");
    /* Zeroed, with its size: the defaults but for the traffic class of control messages. */
    memset(&config, 0, sizeof config);
    config.size = sizeof config;
    OK(flexcast_comm_create(endpoint, bootstrap, &config, &comm));
    OK(flexcast_comm_free(comm));
    comm = NULL;
    memset(config.settings, 'x', sizeof config.settings);
    REFUSED(flexcast_comm_create(endpoint, bootstrap, &config, &comm), FLEXCAST_ERROR_CONFIG, "flexcast_config_default()");
    REFUSED(flexcast_config_set(&config, "slots", "8"), FLEXCAST_ERROR_CONFIG, "flexcast_config_default()");
    OK(flexcast_config_default(&config, sizeof config));
    REFUSED(flexcast_config_set(&config, "placements", "x"), FLEXCAST_ERROR_CONFIG, "the nearest name is \"placement\"");
    REFUSED(flexcast_config_set(&config, "placement", "round"), FLEXCAST_ERROR_CONFIG, "placement is \"round\": must be one of compact, spread");
    REFUSED(flexcast_config_set(&config, "ttl", "3"), FLEXCAST_ERROR_CONFIG, "an option of the endpoint with the datapath udp");
    REFUSED(flexcast_config_set(&config, NULL, "3"), FLEXCAST_ERROR_NULL, "name");
    REFUSED(flexcast_config_set(&config, "slots", "\xff"), FLEXCAST_ERROR_ARGUMENT, "UTF-8");
    REFUSED(flexcast_comm_create(endpoint, bootstrap, NULL, NULL), FLEXCAST_ERROR_NULL, "comm is NULL");
    REFUSED(flexcast_comm_create(endpoint, NULL, NULL, &comm), FLEXCAST_ERROR_NULL, "bootstrap is NULL");
    REFUSED(flexcast_comm_create(NULL, bootstrap, NULL, &comm), FLEXCAST_ERROR_NULL, "endpoint is NULL");
    IS(comm == NULL);
}

/* Structures of arguments that are wrong in every way. */
static void arguments(flexcast_comm *comm, unsigned char *send, unsigned char *receive)
{
    flexcast_request *request = NULL;
    const size_t most = (size_t)-1, one = 1;

    for (uint32_t operation = 0; operation <= FLEXCAST_OPERATION_SPARSE_ALLREDUCE + 1; operation++) {
        flexcast_collective given = flexcast_collective_of(operation);
        given.send = send;
        given.receive = receive;
        given.data_type = FLEXCAST_DOUBLE;
        given.reduction = FLEXCAST_SUM;
        given.count = most;
        given.send_counts = given.receive_counts = &most;
        /* Counts that overflow, and no operation: whatever it is, nothing is posted and nothing panics. */
        flexcast_status status = flexcast_post(comm, &given, &request);
        IS(operation == FLEXCAST_OPERATION_BARRIER ? status == FLEXCAST_OK
                                                   : status == FLEXCAST_ERROR_ARGUMENT || status == FLEXCAST_NOT_SUPPORTED);
        if (status == FLEXCAST_OK)
            OK(flexcast_wait(request));
        else
            IS(request == NULL);
        given.count = 1;
        given.send_counts = given.receive_counts = NULL;
        given.root = -1;
        given.size = sizeof given + 8;
        REFUSED(flexcast_post(comm, &given, &request), FLEXCAST_ERROR_SIZE, "collective has");
        given.size = 4;
        REFUSED(flexcast_prepare(comm, &given, &request), FLEXCAST_ERROR_SIZE, "collective has 4 bytes");
        given.size = sizeof given;
        given.flags = 4;
        REFUSED(flexcast_post(comm, &given, &request), FLEXCAST_ERROR_ARGUMENT, "flags are 0x4");
        given.flags = 0;
        given.reserved = 1;
        REFUSED(flexcast_post(comm, &given, &request), FLEXCAST_ERROR_ARGUMENT, "reserved is 1");
        given.reserved = 0;
    }
    flexcast_collective given = flexcast_collective_of(FLEXCAST_OPERATION_REDUCE_SCATTER);
    given.send = send;
    given.receive = receive;
    given.data_type = FLEXCAST_BYTE;
    given.reduction = FLEXCAST_BIT_OR;
    given.receive_counts = given.receive_displacements = &one;
    REFUSED(flexcast_post(comm, &given, &request), FLEXCAST_ERROR_ARGUMENT, "has no receive_displacements");
    given.receive_displacements = NULL;
    OK(flexcast_post(comm, &given, &request));
    OK(flexcast_wait(request));
    IS(receive[0] == send[0]);
    /* In place by the flag: `send` is not used. */
    given = flexcast_collective_of(FLEXCAST_OPERATION_ALLGATHER);
    given.flags = FLEXCAST_FLAG_IN_PLACE | FLEXCAST_FLAG_AWAITED;
    given.receive = receive;
    given.count = 1;
    OK(flexcast_post(comm, &given, &request));
    OK(flexcast_wait(request));
    REFUSED(flexcast_post(comm, NULL, &request), FLEXCAST_ERROR_NULL, "collective");
    REFUSED(flexcast_post(NULL, &given, &request), FLEXCAST_ERROR_NULL, "communicator");
    REFUSED(flexcast_post(comm, &given, NULL), FLEXCAST_ERROR_NULL, "request");
    REFUSED(flexcast_prepare(comm, NULL, &request), FLEXCAST_ERROR_NULL, "collective");
    REFUSED(flexcast_start(NULL), FLEXCAST_ERROR_NULL, "request");
    REFUSED(flexcast_start((flexcast_request *)comm), FLEXCAST_ERROR_HANDLE, "one of a communicator");
}

static void operations(flexcast_endpoint *endpoint, flexcast_bootstrap *bootstrap, flexcast_comm *comm)
{
    flexcast_comm *again = NULL;
    uint64_t misses;
    /* More than ride on a barrier, so that an operation takes long enough to be cancelled. */
    enum { BYTES = 20000 };
    static const char constant[] = "memory that cannot be written";
    unsigned char *send = malloc(BYTES), *receive = malloc(BYTES);
    flexcast_request *request = NULL, *second = NULL;
    flexcast_report report;
    flexcast_stats stats;
    int done = -1;
    size_t count = BYTES, displacement = 7;

    memset(send, 42, BYTES);
    memset(receive, 0, BYTES);
    REFUSED(flexcast_allgather(comm, NULL, receive, BYTES, &request), FLEXCAST_ERROR_NULL, "send buffer");
    REFUSED(flexcast_allgather(comm, send, NULL, BYTES, &request), FLEXCAST_ERROR_NULL, "receive buffer");
    REFUSED(flexcast_allgather(comm, send, receive, BYTES, NULL), FLEXCAST_ERROR_NULL, "request");
    REFUSED(flexcast_allgatherv(comm, send, receive, NULL, NULL, &request), FLEXCAST_ERROR_NULL, "counts");
    REFUSED(flexcast_allgather(comm, receive + 10, receive, BYTES - 10, &request), FLEXCAST_ERROR_ARGUMENT, "FLEXCAST_IN_PLACE");
    REFUSED(flexcast_broadcast(comm, receive, BYTES, 1, &request), FLEXCAST_ERROR_ARGUMENT, "root 1 of 1");
    REFUSED(flexcast_broadcast(comm, receive, BYTES, -1, &request), FLEXCAST_ERROR_ARGUMENT, "root is -1");
    REFUSED(flexcast_broadcast(comm, receive, (size_t)-1, 0, &request), FLEXCAST_NOT_SUPPORTED, "chunks");
    REFUSED(flexcast_allreduce(comm, send, receive, (size_t)-1, FLEXCAST_DOUBLE, FLEXCAST_SUM, &request), FLEXCAST_ERROR_ARGUMENT, "address space");
    arguments(comm, send, receive);
    REFUSED(flexcast_broadcast((flexcast_comm *)endpoint, receive, BYTES, 0, &request), FLEXCAST_ERROR_HANDLE, "one of an endpoint");
    REFUSED(flexcast_broadcast((flexcast_comm *)&done, receive, BYTES, 0, &request), FLEXCAST_ERROR_HANDLE, "no function");
    IS(request == NULL);

    /* Under way: memory and communicator are in use. */
    OK(flexcast_allgather(comm, send, receive, BYTES, &request));
    REFUSED(flexcast_broadcast(comm, receive + BYTES - 1, 1, 0, &second), FLEXCAST_ERROR_ARGUMENT, "overlaps");
    REFUSED(flexcast_broadcast(comm, send, 1, 0, &second), FLEXCAST_ERROR_ARGUMENT, "overlaps");
    REFUSED(flexcast_buffer_invalidate(endpoint, receive, 1), FLEXCAST_ERROR_BUSY, "in use");
    REFUSED(flexcast_comm_free(comm), FLEXCAST_ERROR_BUSY, "1 operations");
    REFUSED(flexcast_endpoint_close(endpoint), FLEXCAST_ERROR_BUSY, "communicators");
    REFUSED(flexcast_request_free(request), FLEXCAST_ERROR_BUSY, "under way");
    REFUSED(flexcast_request_report(request, &report, sizeof report), FLEXCAST_ERROR_BUSY, "under way");
    REFUSED(flexcast_test(request, NULL), FLEXCAST_ERROR_NULL, "done");
    OK(flexcast_wait_for(request, FLEXCAST_NEVER, &done));
    OK(flexcast_wait_for(request, 0, &done)); /* over is over */
    IS(done == 1 && memcmp(send, receive, BYTES) == 0);
    REFUSED(flexcast_request_report(request, &report, sizeof report + 8), FLEXCAST_ERROR_SIZE, "report");
    OK(flexcast_request_report(request, &report, sizeof report));
    IS(report.status == FLEXCAST_OK && report.memory_held == 0 && report.recovered_chunks == 0);
    IS(report.released_ns != FLEXCAST_NEVER && report.released_ns >= report.posted_ns);
    OK(flexcast_request_free(request));
    REFUSED(flexcast_request_free(request), FLEXCAST_ERROR_HANDLE, "freed");
    REFUSED(flexcast_wait(request), FLEXCAST_ERROR_HANDLE, "freed");

    /* A wait or a test that reports the end frees the request; a test that does not leaves it. */
    OK(flexcast_allgather(comm, send, receive, BYTES, &request));
    OK(flexcast_wait(request));
    REFUSED(flexcast_wait(request), FLEXCAST_ERROR_HANDLE, "freed");
    REFUSED(flexcast_request_report(request, &report, sizeof report), FLEXCAST_ERROR_HANDLE, "freed");
    OK(flexcast_allgather(comm, send, receive, BYTES, &request));
    for (done = 0; !done;)
        OK(flexcast_test(request, &done));
    REFUSED(flexcast_test(request, &done), FLEXCAST_ERROR_HANDLE, "freed");
    /* One that is over is freed by a wait, too. */
    OK(flexcast_allgather(comm, send, receive, BYTES, &request));
    OK(flexcast_wait_for(request, FLEXCAST_NEVER, &done));
    OK(flexcast_wait(request));
    REFUSED(flexcast_request_free(request), FLEXCAST_ERROR_HANDLE, "freed");
    REFUSED(flexcast_start(request), FLEXCAST_ERROR_HANDLE, "freed");

    /* Memory that is constant, in place, of no bytes, with counts. */
    OK(flexcast_allgather(comm, constant, receive, sizeof constant, &request));
    OK(flexcast_wait(request));
    IS(memcmp(constant, receive, sizeof constant) == 0);
    OK(flexcast_allgather(comm, FLEXCAST_IN_PLACE, receive, BYTES, &request));
    OK(flexcast_wait(request));
    IS(memcmp(constant, receive, sizeof constant) == 0);
    OK(flexcast_allgather(comm, NULL, NULL, 0, &request));
    OK(flexcast_wait(request));
    OK(flexcast_allgatherv(comm, send, receive, &count, NULL, &request));
    REFUSED(flexcast_allgatherv(comm, FLEXCAST_IN_PLACE, send, &count, NULL, &second), FLEXCAST_ERROR_ARGUMENT, "overlaps");
    OK(flexcast_wait(request));
    IS(memcmp(send, receive, BYTES) == 0);
    OK(flexcast_allgatherv(comm, FLEXCAST_IN_PLACE, receive, &count, NULL, &request));
    OK(flexcast_wait(request));

    /* With a displacement: what is around the block stays. */
    count = BYTES - 7;
    displacement = (size_t)-1;
    REFUSED(flexcast_allgatherv(comm, send, receive, NULL, &displacement, &request), FLEXCAST_ERROR_NULL, "counts");
    REFUSED(flexcast_allgatherv(comm, send, receive, &count, &displacement, &request), FLEXCAST_ERROR_ARGUMENT, "address space");
    displacement = 7;
    memset(receive, 1, BYTES);
    OK(flexcast_allgatherv(comm, send, receive, &count, &displacement, &request));
    OK(flexcast_wait(request));
    IS(receive[6] == 1 && memcmp(send, receive + 7, count) == 0);
    OK(flexcast_allgatherv(comm, FLEXCAST_IN_PLACE, receive, &count, &displacement, &request));
    OK(flexcast_wait(request));

    /* Registrations are kept, and go before the memory does. */
    REFUSED(flexcast_comm_stats(comm, NULL, sizeof stats), FLEXCAST_ERROR_NULL, "stats");
    OK(flexcast_comm_stats(comm, &stats, sizeof stats));
    IS(stats.rank == 0 && stats.ranks == 1 && stats.threads == 6);
    IS(stats.registration_hits > 0 && stats.registrations > 0);
    OK(flexcast_buffer_invalidate(endpoint, send, BYTES));
    OK(flexcast_buffer_invalidate(endpoint, receive, BYTES));
    OK(flexcast_buffer_invalidate(endpoint, constant, sizeof constant));
    OK(flexcast_buffer_invalidate(endpoint, NULL, 0));
    OK(flexcast_comm_stats(comm, &stats, sizeof stats));
    IS(stats.registrations == 0 && stats.registered_bytes == 0);
    OK(flexcast_register(endpoint, send, BYTES));
    REFUSED(flexcast_register(endpoint, NULL, BYTES), FLEXCAST_ERROR_NULL, "buffer is NULL");
    REFUSED(flexcast_register(endpoint, send, SIZE_MAX), FLEXCAST_ERROR_ARGUMENT, "beyond the address space");
    REFUSED(flexcast_buffer_invalidate(endpoint, NULL, 1), FLEXCAST_ERROR_NULL, "buffer is NULL");
    OK(flexcast_comm_stats(comm, &stats, sizeof stats));
    IS(stats.registrations == 1 && stats.registered_bytes == BYTES);
    OK(flexcast_buffer_invalidate(endpoint, send + BYTES - 1, 1));

    /* Cancelled: over with an error that says so, and the communicator is of no use. */
    OK(flexcast_allgather(comm, send, receive, BYTES, &request));
    OK(flexcast_progress(comm, &done)); /* begun by the post, and far from its end */
    OK(flexcast_test(request, &done));
    IS(done == 0);
    OK(flexcast_cancel(comm));
    REFUSED(flexcast_wait_for(request, FLEXCAST_NEVER, &done), FLEXCAST_ERROR_FAILED, "cancelled");
    IS(done == 1);
    OK(flexcast_request_report(request, &report, sizeof report));
    IS(report.status == FLEXCAST_ERROR_FAILED && report.cause == FLEXCAST_CAUSE_CANCELLED && report.memory_held == 0);
    REFUSED(flexcast_wait(request), FLEXCAST_ERROR_FAILED, "cancelled"); /* again, and the last time */
    REFUSED(flexcast_wait(request), FLEXCAST_ERROR_HANDLE, "freed");
    OK(flexcast_comm_stats(comm, &stats, sizeof stats));
    misses = stats.registration_misses;
    REFUSED(flexcast_allgather(comm, send, receive, BYTES, &request), FLEXCAST_ERROR_BROKEN, "of no use");
    /* Another communicator takes its place. Peers may hold the keys of what has failed: the same memory gets new ones. */
    OK(flexcast_comm_create(endpoint, bootstrap, NULL, &again));
    for (int round = 0; round < 2; round++) {
        OK(flexcast_allgather(again, send, receive, BYTES, &request));
        OK(flexcast_wait(request));
        OK(flexcast_comm_stats(again, &stats, sizeof stats));
        IS(stats.registration_misses == misses + 2);
    }
    OK(flexcast_comm_free(again));
    OK(flexcast_buffer_invalidate(endpoint, send, BYTES));
    OK(flexcast_buffer_invalidate(endpoint, receive, BYTES));
    free(send);
    free(receive);
}

/* Endpoint, bootstrap and communicator by one call. */
static void world(void)
{
    flexcast_endpoint_options endpoint_options;
    flexcast_init_options given;
    flexcast_endpoint *endpoint = NULL;
    flexcast_comm *comm = NULL, *part = NULL;
    flexcast_request *request = NULL;
    struct callback callback = {0, 0, NULL, NULL};
    char sent = 7, received = 0;
    int rank = -1, size = -1;

    memset(&given, 0, sizeof given);
    REFUSED(flexcast_init(&given, &comm), FLEXCAST_ERROR_SIZE, "options has 0 bytes");
    given.size = sizeof given + 8;
    REFUSED(flexcast_init(&given, &comm), FLEXCAST_ERROR_SIZE, "options has");
    given.size = sizeof given;
    REFUSED(flexcast_init(&given, NULL), FLEXCAST_ERROR_NULL, "comm");
    OK(flexcast_endpoint_options_default(&endpoint_options, sizeof endpoint_options));
    endpoint_options.datapath = "udp";
    endpoint_options.interface_name = "lo";
    given.endpoint = &endpoint_options;
    given.exchange = gather;
    given.user = &callback;
    given.rank = 1;
    given.ranks = 1;
    REFUSED(flexcast_init(&given, &comm), FLEXCAST_ERROR_RANK, NULL);
    given.rank = 0;
    callback.fails = 1;
    REFUSED(flexcast_init(&given, &comm), FLEXCAST_ERROR_EXCHANGE, "returned 7");
    IS(comm == NULL);
    callback.fails = 0;
    flexcast_config config;
    OK(flexcast_config_default(&config, sizeof config));
    OK(flexcast_config_set(&config, "slots", "1024"));
    given.config = &config;
    REFUSED(flexcast_init(&given, &comm), FLEXCAST_ERROR_CONFIG, "only endpoints with dpa or verbs use it");
    given.config = NULL;
    OK(flexcast_init(&given, &comm));
    OK(flexcast_comm_rank(comm, &rank, &size));
    IS(rank == 0 && size == 1);
    OK(flexcast_comm_endpoint(comm, &endpoint));
    REFUSED(flexcast_comm_endpoint(comm, NULL), FLEXCAST_ERROR_NULL, "endpoint");
    REFUSED(flexcast_endpoint_close(endpoint), FLEXCAST_ERROR_BUSY, "communicators");
    OK(flexcast_allgather(comm, &sent, &received, 1, &request));
    OK(flexcast_wait(request));
    IS(received == 7);
    OK(flexcast_buffer_invalidate(endpoint, &sent, 1));
    OK(flexcast_comm_split(comm, NULL, 0, 0, &part));
    REFUSED(flexcast_comm_free(comm), FLEXCAST_ERROR_BUSY, "flexcast_init()");
    OK(flexcast_comm_free(part));
    OK(flexcast_comm_free(comm));
    REFUSED(flexcast_comm_free(comm), FLEXCAST_ERROR_HANDLE, "freed");
    REFUSED(flexcast_endpoint_close(endpoint), FLEXCAST_ERROR_HANDLE, "freed");
    /* By variables alone. */
    IS(setenv("FLEXCAST_INTERFACE", "lo", 1) == 0);
    REFUSED(flexcast_init(NULL, &comm), FLEXCAST_ERROR_EXCHANGE, "FLEXCAST_SIZE");
    IS(setenv("FLEXCAST_RANK", "0", 1) == 0 && setenv("FLEXCAST_SIZE", "1", 1) == 0 && setenv("FLEXCAST_STORE", "127.0.0.1:1", 1) == 0);
    OK(flexcast_init(NULL, &comm));
    OK(flexcast_comm_free(comm));
    IS(unsetenv("FLEXCAST_INTERFACE") == 0 && unsetenv("FLEXCAST_RANK") == 0 && unsetenv("FLEXCAST_SIZE") == 0);
    IS(unsetenv("FLEXCAST_STORE") == 0);
}

/* Memory that is unmapped, and other memory in its place, without a word to the library. */
static void watched(const char *image, const char *libraries)
{
    flexcast_endpoint_options given;
    flexcast_endpoint *endpoint = NULL;
    flexcast_bootstrap *bootstrap = NULL;
    flexcast_comm *comm = NULL;
    struct callback callback = {0, 0, NULL, NULL};
    flexcast_stats stats;
    unsigned char *start = NULL;

    OK(flexcast_endpoint_options_default(&given, sizeof given));
    given.libraries = libraries;
    given.firmware_path = image;
    given.device = "mlx5_1";
    given.memory_watch = "always";
    REFUSED(flexcast_endpoint_open(&given, &endpoint), FLEXCAST_ERROR_ARGUMENT, "memory_watch is \"always\"");
    given.memory_watch = "userfaultfd";
    if (flexcast_endpoint_open(&given, &endpoint) == FLEXCAST_ERROR_WATCH) {
        fprintf(stderr, "SKIPPED: %s\n", flexcast_last_error());
        return;
    }
    OK(flexcast_bootstrap_callback(gather, &callback, 0, 1, &bootstrap));
    OK(flexcast_comm_create(endpoint, bootstrap, NULL, &comm));
    for (int round = 0; round < 5; round++) {
        flexcast_request *request = NULL;
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | (start == NULL ? 0 : MAP_FIXED);
        start = mmap(start, 3 * PAGE_BYTES, PROT_READ | PROT_WRITE, flags, -1, 0);
        IS(start != MAP_FAILED);
        memset(start, round + 1, PAGE_BYTES);
        OK(flexcast_allgather(comm, start, start + PAGE_BYTES, PAGE_BYTES, &request));
        OK(flexcast_wait(request));
        IS(start[PAGE_BYTES] == round + 1);
        OK(flexcast_comm_stats(comm, &stats, sizeof stats));
        IS(stats.registrations == 2 && stats.registration_misses == 2 * (uint64_t)(round + 1));
        if (round % 2 == 0)
            IS(munmap(start, 3 * PAGE_BYTES) == 0);
    }
    IS(munmap(start, 3 * PAGE_BYTES) == 0);
    OK(flexcast_comm_stats(comm, &stats, sizeof stats));
    IS(stats.registrations == 0);
    OK(flexcast_comm_free(comm));
    OK(flexcast_bootstrap_free(bootstrap));
    OK(flexcast_endpoint_close(endpoint));
}

int main(int argc, char **argv)
{
    flexcast_endpoint_options given;
    flexcast_endpoint *endpoint = NULL;
    flexcast_bootstrap *bootstrap = NULL, *failing = NULL;
    flexcast_comm *comm = NULL, *part = (flexcast_comm *)&argc, *second = NULL;
    flexcast_request *request = NULL;
    struct callback callback = {0, 0, NULL, NULL}, fails = {0, 1, NULL, NULL};
    pthread_t thread;
    int rank = -1, size = -1;

    if (argc != 3)
        return 2;
    IS(flexcast_abi_version() == FLEXCAST_ABI_VERSION && strlen(flexcast_version()) > 0);
    IS(strcmp(flexcast_strerror(FLEXCAST_ERROR_BUSY), "the object is in use") == 0 && flexcast_strerror(12345) != NULL);
    options(argv[1], argv[2]);
    watched(argv[1], argv[2]);
    world();

    OK(flexcast_endpoint_options_default(&given, sizeof given));
    given.libraries = argv[2];
    given.firmware_path = argv[1];
    OK(flexcast_endpoint_open(&given, &endpoint));
    const char *datapath = NULL;
    OK(flexcast_endpoint_datapath(endpoint, &datapath));
    IS(strcmp(datapath, "dpa") == 0);
    OK(flexcast_bootstrap_callback(gather, &callback, 0, 1, &bootstrap));
    OK(flexcast_bootstrap_callback(gather, &fails, 0, 1, &failing));
    REFUSED(flexcast_comm_create(endpoint, failing, NULL, &comm), FLEXCAST_ERROR_EXCHANGE, "returned 7");
    OK(flexcast_bootstrap_free(failing));
    configurations(endpoint, bootstrap);

    callback.bootstrap = bootstrap;
    callback.endpoint = endpoint;
    OK(flexcast_comm_create(endpoint, bootstrap, NULL, &comm));
    callback.bootstrap = NULL;
    IS(callback.calls >= 3);
    OK(flexcast_comm_rank(comm, &rank, &size));
    IS(rank == 0 && size == 1);
    OK(flexcast_comm_split(comm, bootstrap, FLEXCAST_UNDEFINED, 0, &part));
    IS(part == NULL);
    REFUSED(flexcast_comm_split(comm, bootstrap, -2, 0, &part), FLEXCAST_ERROR_ARGUMENT, "color is -2");
    OK(flexcast_comm_split(comm, bootstrap, 5, -3, &second));
    IS(second != NULL);

    char byte = 1;
    OK(flexcast_broadcast(second, &byte, 1, 0, &request));
    struct shared shared = {endpoint, comm, request};
    IS(pthread_create(&thread, NULL, other_thread, &shared) == 0);
    IS(pthread_join(thread, NULL) == 0);
    OK(flexcast_wait(request));
    OK(flexcast_buffer_invalidate(endpoint, &byte, 1));
    OK(flexcast_comm_free(second));
    REFUSED(flexcast_comm_free(second), FLEXCAST_ERROR_HANDLE, "freed");
    REFUSED(flexcast_comm_rank(second, &rank, &size), FLEXCAST_ERROR_HANDLE, "freed");

    operations(endpoint, bootstrap, comm);
    OK(flexcast_comm_free(comm));
    REFUSED(flexcast_progress(comm, NULL), FLEXCAST_ERROR_HANDLE, "freed");
    OK(flexcast_bootstrap_free(bootstrap));
    OK(flexcast_endpoint_close(endpoint));
    REFUSED(flexcast_endpoint_close(endpoint), FLEXCAST_ERROR_HANDLE, "freed");
    /* Another one in its place. */
    OK(flexcast_endpoint_open(&given, &endpoint));
    OK(flexcast_endpoint_close(endpoint));
    if (wrong == 0)
        printf("all as promised\n");
    return wrong != 0;
}
