/* A rank whose collectives service processes carry out, or its host where there are none.
 *
 * Usage: service RANK SIZE HOST:PORT ENDPOINTS SECRET; prints a line "service: rank R of N: control C (reason): equal". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "flexcast.h"

enum { ROUNDS = 6 };

static int failed(const char *what, flexcast_status status)
{
    printf("%s: %d: %s\n", what, (int)status, flexcast_last_error());
    return 1;
}

static unsigned char content(int round, int from, int to, size_t at)
{
    return (unsigned char)(at * 7 + at / 251 + (size_t)(from * 31 + to * 17 + round * 3));
}

static void fill(unsigned char *block, size_t bytes, int round, int from, int to)
{
    for (size_t at = 0; at < bytes; at++)
        block[at] = content(round, from, to, at);
}

static int differs(const unsigned char *block, size_t bytes, int round, int from, int to)
{
    for (size_t at = 0; at < bytes; at++)
        if (block[at] != content(round, from, to, at))
            return 1;
    return 0;
}

/* Waits for an operation. The request is read after the call that gives it. */
static int over(flexcast_status begun, flexcast_request *const *request)
{
    return begun != FLEXCAST_OK || flexcast_wait(*request) != FLEXCAST_OK;
}

/* An Alltoall, an Allgather, a Broadcast and what the host always carries out itself, of memory of the program's. */
static int round_of(flexcast_comm *comm, int round, int rank, int size, size_t bytes)
{
    unsigned char *send = malloc(bytes * (size_t)size), *receive = malloc(bytes * (size_t)size);
    flexcast_request *request = NULL;
    int32_t one = rank + round, sum = 0, expected = 0;
    int bad = 0;

    for (int to = 0; to < size; to++) {
        fill(send + bytes * (size_t)to, bytes, round, rank, to);
        expected += to + round;
    }
    bad |= over(flexcast_alltoall(comm, send, receive, bytes, &request), &request);
    for (int from = 0; from < size && !bad; from++)
        bad |= differs(receive + bytes * (size_t)from, bytes, round, from, rank);
    fill(send, bytes, round, rank, 99);
    bad = bad || over(flexcast_allgather(comm, send, receive, bytes, &request), &request);
    for (int from = 0; from < size && !bad; from++)
        bad |= differs(receive + bytes * (size_t)from, bytes, round, from, 99);
    if (rank == round % size)
        fill(send, bytes, round, rank, 98);
    bad = bad || over(flexcast_broadcast(comm, send, bytes, round % size, &request), &request);
    bad = bad || differs(send, bytes, round, round % size, 98);
    bad = bad || over(flexcast_allreduce(comm, &one, &sum, 1, FLEXCAST_INT32, FLEXCAST_SUM, &request), &request);
    bad = bad || sum != expected;
    free(send);
    free(receive);
    return bad;
}

int main(int argc, char **argv)
{
    flexcast_bootstrap *ranks = NULL;
    flexcast_endpoint_options options;
    flexcast_endpoint *endpoint = NULL;
    flexcast_config config;
    flexcast_comm *comm = NULL;
    flexcast_status status;
    uint32_t control = 99;
    const char *reason = NULL;
    int bad = 0;

    if (argc < 6)
        return 2;
    const int rank = atoi(argv[1]), size = atoi(argv[2]);
    const char *settings[][2] = {{"control", "service"},        {"service.endpoints", argv[4]}, {"service.secret", argv[5]},
                                 {"service.processes", "2"},    {"service.bound_keys", "4"},    {"service.connect_ns", "20000000000"},
                                 {"service.delivery", "auto"}};
    if ((status = flexcast_bootstrap_tcp(argv[3], "a test", NULL, rank, size, 60000, &ranks)) != FLEXCAST_OK)
        return failed("met", status);
    flexcast_endpoint_options_default(&options, sizeof options);
    options.datapath = "verbs";
    options.device = "mlx5_0";
    if ((status = flexcast_endpoint_open(&options, &endpoint)) != FLEXCAST_OK)
        return failed("opened", status);
    if ((status = flexcast_config_default(&config, sizeof config)) != FLEXCAST_OK)
        return failed("defaults", status);
    for (size_t at = 0; at < sizeof settings / sizeof *settings; at++)
        if ((status = flexcast_config_set(&config, settings[at][0], settings[at][1])) != FLEXCAST_OK)
            return failed(settings[at][0], status);
    if (config.control != FLEXCAST_CONTROL_SERVICE || strstr(config.settings, "service.processes=2\n") == NULL)
        return failed("the fields", FLEXCAST_ERROR_OTHER);
    if (flexcast_config_set(&config, "service.processes", "many") != FLEXCAST_ERROR_CONFIG ||
        strstr(flexcast_last_error(), "service.processes is \"many\": must be a whole number from 1 to 64") == NULL)
        return failed("a value that cannot be", FLEXCAST_ERROR_OTHER);
    if (flexcast_config_set(&config, "service.speed", "high") != FLEXCAST_ERROR_CONFIG ||
        strstr(flexcast_last_error(), "no setting \"service.speed\" (value \"high\"): the nearest name is \"service.") == NULL)
        return failed("a name that there is not", FLEXCAST_ERROR_OTHER);
    if ((status = flexcast_comm_create(endpoint, ranks, &config, &comm)) != FLEXCAST_OK)
        return failed("made", status);
    if ((status = flexcast_comm_control(comm, &control, &reason)) != FLEXCAST_OK)
        return failed("control", status);
    /* Nothing, a byte, a chunk, and more than a message. */
    const size_t lengths[ROUNDS] = {0, 1, 4096, 70000, 1000, 300001};
    for (int round = 0; round < ROUNDS && !bad; round++)
        if ((bad = round_of(comm, round, rank, size, lengths[round])) != 0)
            printf("round %d: %s\n", round, flexcast_last_error());
    printf("service: rank %d of %d: control %u (%s): %s\n", rank, size, (unsigned)control, reason ? reason : "as asked",
           bad ? "different" : "equal");
    fflush(stdout);
    bad |= flexcast_comm_free(comm) != FLEXCAST_OK;
    bad |= flexcast_bootstrap_free(ranks) != FLEXCAST_OK || flexcast_endpoint_close(endpoint) != FLEXCAST_OK;
    return bad;
}
