/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program of version 1 of the interface, with what that version's header said instead of today's: names, codes and sizes of structures. It runs with every later
 * library. Usage: version1; says "all as promised" at the end.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* Sizes on 64-bit computers, and as many bytes behind them that no function may touch. */
enum { ENDPOINT_OPTIONS_BYTES = 80, CONFIG_BYTES = 4160, STATS_BYTES = 208, REPORT_BYTES = 168, COLLECTIVE_BYTES = 112, BEHIND = 64 };
enum { OK = 0, ERROR_HANDLE = 2, OPERATION_ALLGATHER = 3, FLAG_AWAITED = 2 };

/* What the program uses of them: the beginning. */
union endpoint_options {
    struct {
        size_t size;
        const char *libraries, *device, *firmware_path;
        const void *firmware;
        size_t firmware_bytes;
        const char *datapath, *interface_name, *memory_watch, *sparse_firmware_path;
    } fields;
    unsigned char bytes[ENDPOINT_OPTIONS_BYTES + BEHIND];
};

union config {
    struct {
        size_t size;
        uint32_t algorithm, control;
    } fields;
    unsigned char bytes[CONFIG_BYTES + BEHIND];
};

union stats {
    struct {
        uint32_t rank, ranks;
    } fields;
    unsigned char bytes[STATS_BYTES + BEHIND];
};

union report {
    struct {
        int32_t status;
    } fields;
    unsigned char bytes[REPORT_BYTES + BEHIND];
};

union collective {
    struct {
        size_t size;
        uint32_t operation, flags;
        const void *send;
        void *receive;
        size_t count;
    } fields;
    unsigned char bytes[COLLECTIVE_BYTES + BEHIND];
};

uint32_t flexcast_abi_version(void);
const char *flexcast_last_error(void);
int flexcast_endpoint_options_default(void *options, size_t size);
int flexcast_endpoint_open(const void *options, void **endpoint);
int flexcast_endpoint_close(void *endpoint);
int flexcast_bootstrap_callback(int (*exchange)(void *, const void *, size_t, void *), void *user, int rank, int size, void **bootstrap);
int flexcast_bootstrap_free(void *bootstrap);
int flexcast_config_default(void *config, size_t size);
int flexcast_comm_create(void *endpoint, void *bootstrap, const void *config, void **comm);
int flexcast_comm_free(void *comm);
int flexcast_comm_stats(void *comm, void *stats, size_t size);
int flexcast_config_set(void *config, const char *name, const char *value);
int flexcast_post(void *comm, const void *collective, void **request);
int flexcast_prepare(void *comm, const void *collective, void **request);
int flexcast_start(void *request);
int flexcast_wait(void *request);
int flexcast_wait_for(void *request, uint64_t timeout_ns, int *done);
int flexcast_request_report(void *request, void *report, size_t size);
int flexcast_request_free(void *request);

static int wrong;

#define IS(condition)                                                                                                                    \
    do {                                                                                                                                 \
        if (!(condition)) {                                                                                                              \
            fprintf(stderr, "version1.c:%d: %s (%s)\n", __LINE__, #condition, flexcast_last_error());                                    \
            wrong++;                                                                                                                     \
        }                                                                                                                                \
    } while (0)

static int gather(void *user, const void *mine, size_t bytes, void *all)
{
    (void)user;
    memcpy(all, mine, bytes);
    return 0;
}

static int untouched(const unsigned char *bytes)
{
    for (int at = 0; at < BEHIND; at++)
        if (bytes[at] != 0xee)
            return 0;
    return 1;
}

int main(void)
{
    union endpoint_options options;
    union config config;
    union stats stats;
    union report report;
    union collective collective;
    int done = 0;
    void *endpoint = NULL, *bootstrap = NULL, *comm = NULL, *request = NULL;
    const char sent[] = "of version 1";
    char received[sizeof sent];

    memset(&options, 0xee, sizeof options);
    memset(&config, 0xee, sizeof config);
    memset(&stats, 0xee, sizeof stats);
    memset(&report, 0xee, sizeof report);
    IS(flexcast_abi_version() >= 1);
    IS(flexcast_endpoint_options_default(&options, ENDPOINT_OPTIONS_BYTES) == OK && options.fields.size == ENDPOINT_OPTIONS_BYTES);
    options.fields.datapath = "udp";
    options.fields.interface_name = "lo";
    IS(flexcast_endpoint_open(&options, &endpoint) == OK);
    IS(flexcast_bootstrap_callback(gather, NULL, 0, 1, &bootstrap) == OK);
    IS(flexcast_config_default(&config, CONFIG_BYTES) == OK && config.fields.size == CONFIG_BYTES);
    config.fields.control = 0;
    IS(flexcast_config_set(&config, "chunk_bytes", "1024") == OK);
    IS(flexcast_comm_create(endpoint, bootstrap, &config, &comm) == OK);
    memset(&collective, 0, COLLECTIVE_BYTES);
    memset(collective.bytes + COLLECTIVE_BYTES, 0xee, BEHIND);
    collective.fields.size = COLLECTIVE_BYTES;
    collective.fields.operation = OPERATION_ALLGATHER;
    collective.fields.send = sent;
    collective.fields.receive = received;
    collective.fields.count = sizeof sent;
    IS(flexcast_post(comm, &collective, &request) == OK);
    IS(flexcast_wait(request) == OK && memcmp(sent, received, sizeof sent) == 0 && flexcast_wait(request) == ERROR_HANDLE);
    collective.fields.flags = FLAG_AWAITED;
    IS(flexcast_prepare(comm, &collective, &request) == OK);
    for (int round = 0; round < 2; round++) {
        memset(received, 0, sizeof received);
        IS(flexcast_start(request) == OK && flexcast_wait_for(request, UINT64_MAX, &done) == OK && done == 1);
        IS(memcmp(sent, received, sizeof sent) == 0 && flexcast_wait(request) == OK);
    }
    IS(flexcast_request_report(request, &report, REPORT_BYTES) == OK && report.fields.status == OK);
    IS(flexcast_request_free(request) == OK && flexcast_request_free(request) == ERROR_HANDLE);
    IS(flexcast_comm_stats(comm, &stats, STATS_BYTES) == OK && stats.fields.ranks == 1);
    IS(flexcast_comm_free(comm) == OK && flexcast_bootstrap_free(bootstrap) == OK && flexcast_endpoint_close(endpoint) == OK);
    IS(untouched(options.bytes + ENDPOINT_OPTIONS_BYTES) && untouched(config.bytes + CONFIG_BYTES));
    IS(untouched(stats.bytes + STATS_BYTES) && untouched(report.bytes + REPORT_BYTES));
    if (wrong == 0)
        printf("all as promised\n");
    return wrong != 0;
}
