/* fork() in a program that uses the collective library, with threads that do so too: what the child may and may not do.
 *
 * Usage: forked ALLGATHER.elf FOLDER, the folder that of the emulator's libraries; says "all as promised" at the end. A child that does not
 * end by itself is ended by its alarm, which its parent reports. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "expect.h"

enum { BYTES = 5000, CHILD_SECONDS = 30, FORKS = 4 };

static atomic_int stop, ready, idle;
static const char *image, *libraries;

#define FORKED(call) REFUSED(call, FLEXCAST_ERROR_FORKED, "was forked from process")

static int gather(void *user, const void *mine, size_t bytes, void *all)
{
    (void)user;
    memcpy(all, mine, bytes);
    return 0;
}

/* What a rank has. */
struct rank {
    flexcast_endpoint *endpoint;
    flexcast_bootstrap *bootstrap;
    flexcast_comm *comm;
};

static void begin(struct rank *rank, const char *device)
{
    flexcast_endpoint_options options;
    OK(flexcast_endpoint_options_default(&options, sizeof options));
    options.libraries = libraries;
    options.device = device;
    options.firmware_path = image;
    OK(flexcast_endpoint_open(&options, &rank->endpoint));
    OK(flexcast_bootstrap_callback(gather, NULL, 0, 1, &rank->bootstrap));
    OK(flexcast_comm_create(rank->endpoint, rank->bootstrap, NULL, &rank->comm));
}

static void end(struct rank *rank)
{
    OK(flexcast_comm_free(rank->comm));
    OK(flexcast_bootstrap_free(rank->bootstrap));
    OK(flexcast_endpoint_close(rank->endpoint));
}

/* Leaves the processor to the thread that forks: its operations have bounds. */
static void rest(void)
{
    struct timespec time = {0, 200000};
    nanosleep(&time, NULL);
}

/* Uses the library, with the other card, while the first thread forks. Both cards are in one emulated machine: calls that reach the card,
 * and hold its locks, let time go on, and wait until no operation of the first thread is under way. */
static void *busy(void *unused)
{
    struct rank rank = {NULL, NULL, NULL};
    (void)unused;
    begin(&rank, "mlx5_1");
    ready++;
    do {
        flexcast_stats stats;
        void *buffer = malloc(BYTES);
        int number = -1, size = -1;
        OK(flexcast_comm_rank(rank.comm, &number, &size));
        IS(number == 0 && size == 1);
        if (idle) {
            OK(flexcast_register(rank.endpoint, buffer, BYTES));
            OK(flexcast_comm_stats(rank.comm, &stats, sizeof stats));
            IS(stats.ranks == 1);
            OK(flexcast_buffer_invalidate(rank.endpoint, buffer, BYTES));
        }
        free(buffer);
        rest();
    } while (!stop);
    end(&rank);
    return NULL;
}

/* Holds the allocator's locks now and then. */
static void *allocating(void *unused)
{
    (void)unused;
    ready++;
    while (!stop) {
        for (int i = 0; i < 100; i++)
            free(malloc(BYTES));
        rest();
    }
    return NULL;
}

struct all {
    struct rank rank;
    flexcast_request *request;
};

/* Every function of the header, in the child. */
static void *refused(void *given)
{
    struct all *all = given;
    struct rank *rank = &all->rank;
    flexcast_endpoint_options options;
    flexcast_config config;
    flexcast_stats stats;
    flexcast_report report;
    flexcast_endpoint *endpoint = NULL;
    flexcast_bootstrap *bootstrap = NULL;
    flexcast_comm *comm = NULL;
    flexcast_request *request = NULL;
    char bytes[16];
    const char *reason = NULL;
    uint32_t control = 0;
    int number = -1, other = -1;
    size_t count = sizeof bytes, displacement = 0;

    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.libraries = libraries;
    options.firmware_path = image;
    FORKED(flexcast_endpoint_options_default(&options, sizeof options));
    FORKED(flexcast_endpoint_open(&options, &endpoint));
    const char *datapath = NULL;
    FORKED(flexcast_endpoint_open_begin(&options, &endpoint));
    FORKED(flexcast_endpoint_test(rank->endpoint, &number));
    FORKED(flexcast_log(FLEXCAST_LOG_WARN, NULL, NULL));
    FORKED(flexcast_endpoint_datapath(rank->endpoint, &datapath));
    FORKED(flexcast_register(rank->endpoint, bytes, sizeof bytes));
    FORKED(flexcast_buffer_invalidate(rank->endpoint, bytes, sizeof bytes));
    FORKED(flexcast_bootstrap_callback(gather, NULL, 0, 1, &bootstrap));
    FORKED(flexcast_bootstrap_tcp("127.0.0.1:1", NULL, NULL, 0, 1, 1000, &bootstrap));
    FORKED(flexcast_bootstrap_environment(&bootstrap));
    FORKED(flexcast_bootstrap_allgather(NULL, 0, 1, &bootstrap));
    FORKED(flexcast_bootstrap_store(NULL, 0, 1, &bootstrap));
    FORKED(flexcast_bootstrap_rank(rank->bootstrap, &number, &other));
    FORKED(flexcast_config_default(&config, sizeof config));
    FORKED(flexcast_config_set(&config, "control", "host"));
    FORKED(flexcast_comm_create(rank->endpoint, rank->bootstrap, NULL, &comm));
    FORKED(flexcast_comm_split(rank->comm, rank->bootstrap, 0, 0, &comm));
    FORKED(flexcast_comm_create_begin(rank->endpoint, rank->bootstrap, NULL, &comm));
    FORKED(flexcast_comm_split_begin(rank->comm, rank->bootstrap, 0, 0, &comm));
    FORKED(flexcast_comm_test(rank->comm, &number));
    FORKED(flexcast_comm_event_fd(rank->comm, &number));
    FORKED(flexcast_init(NULL, &comm));
    FORKED(flexcast_comm_endpoint(rank->comm, &endpoint));
    FORKED(flexcast_post(rank->comm, NULL, &request));
    FORKED(flexcast_prepare(rank->comm, NULL, &request));
    FORKED(flexcast_comm_rank(rank->comm, &number, &other));
    FORKED(flexcast_comm_control(rank->comm, &control, &reason));
    FORKED(flexcast_comm_stats(rank->comm, &stats, sizeof stats));
    FORKED(flexcast_progress(rank->comm, &number));
    FORKED(flexcast_progress_for(rank->comm, 1, &number));
    FORKED(flexcast_broadcast(rank->comm, bytes, sizeof bytes, 0, &request));
    FORKED(flexcast_allgather(rank->comm, bytes, bytes, sizeof bytes, &request));
    FORKED(flexcast_allgatherv(rank->comm, bytes, bytes, &count, &displacement, &request));
    FORKED(flexcast_barrier(rank->comm, &request));
    FORKED(flexcast_allreduce(rank->comm, bytes, bytes, 1, FLEXCAST_INT32, FLEXCAST_SUM, &request));
    FORKED(flexcast_sparse_allreduce(rank->comm, bytes, bytes, 1, FLEXCAST_INT32, FLEXCAST_SUM, &request));
    FORKED(flexcast_reduce(rank->comm, bytes, bytes, 1, FLEXCAST_INT32, FLEXCAST_SUM, 0, &request));
    FORKED(flexcast_reduce_scatter(rank->comm, bytes, bytes, &count, FLEXCAST_BYTE, FLEXCAST_BIT_OR, &request));
    FORKED(flexcast_reduce_scatter_block(rank->comm, bytes, bytes, 1, FLEXCAST_INT32, FLEXCAST_SUM, &request));
    FORKED(flexcast_alltoall(rank->comm, bytes, bytes, sizeof bytes, &request));
    FORKED(flexcast_alltoallv(rank->comm, bytes, &count, &displacement, bytes, &count, &displacement, &request));
    FORKED(flexcast_gather(rank->comm, bytes, bytes, sizeof bytes, 0, &request));
    FORKED(flexcast_gatherv(rank->comm, bytes, sizeof bytes, bytes, &count, &displacement, 0, &request));
    FORKED(flexcast_scatter(rank->comm, bytes, bytes, sizeof bytes, 0, &request));
    FORKED(flexcast_scatterv(rank->comm, bytes, &count, &displacement, bytes, sizeof bytes, 0, &request));
    FORKED(flexcast_start(all->request));
    FORKED(flexcast_test(all->request, &number));
    FORKED(flexcast_wait(all->request));
    FORKED(flexcast_wait_for(all->request, 1, &number));
    FORKED(flexcast_request_report(all->request, &report, sizeof report));
    FORKED(flexcast_cancel(rank->comm));
    FORKED(flexcast_request_free(all->request));
    FORKED(flexcast_comm_free(rank->comm));
    FORKED(flexcast_bootstrap_free(rank->bootstrap));
    FORKED(flexcast_endpoint_close(rank->endpoint));
    IS(endpoint == NULL && bootstrap == NULL && comm == NULL && request == NULL && number == -1 && other == -1);
    IS(flexcast_abi_version() == FLEXCAST_ABI_VERSION && strlen(flexcast_version()) > 0);
    IS(strstr(flexcast_strerror(FLEXCAST_ERROR_FORKED), "forked") != NULL);
    return NULL;
}

/* Waits for a child, which must have ended by itself and found nothing wrong. */
static void reap(pid_t child)
{
    int status = 0;
    IS(child > 0 && waitpid(child, &status, 0) == child);
    if (WIFSIGNALED(status))
        fprintf(stderr, "the child was ended by signal %d\n", WTERMSIG(status));
    IS(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* A child of a process that uses the library. */
static pid_t child(struct all *all)
{
    pid_t child = fork();
    if (child == 0) {
        pthread_t thread;
        alarm(CHILD_SECONDS);
        refused(all);
        IS(pthread_create(&thread, NULL, refused, all) == 0);
        IS(pthread_join(thread, NULL) == 0);
        /* With exit(): what is done at the end of a process must not disturb the parent either. */
        exit(wrong != 0);
    }
    return child;
}

/* A child of a process that has not used the library: its own to use. */
static void before_first_use(void)
{
    pid_t child = fork();
    if (child == 0) {
        struct rank rank = {NULL, NULL, NULL};
        alarm(CHILD_SECONDS);
        begin(&rank, "mlx5_0");
        end(&rank);
        exit(wrong != 0);
    }
    reap(child);
}

int main(int argc, char **argv)
{
    static unsigned char send[BYTES], receive[BYTES];
    struct all all = {{NULL, NULL, NULL}, NULL};
    pthread_t threads[2];

    if (argc != 3)
        return 2;
    image = argv[1];
    libraries = argv[2];
    before_first_use();

    begin(&all.rank, "mlx5_0");
    IS(pthread_create(&threads[0], NULL, busy, NULL) == 0);
    IS(pthread_create(&threads[1], NULL, allocating, NULL) == 0);
    while (ready < 2 && wrong == 0)
        sched_yield();

    memset(send, 42, BYTES);
    for (int round = 0; round < FORKS; round++) {
        /* An operation is under way when the process forks, and is none of the child's. It ends while the child runs:
         * its bounds go on. */
        memset(receive, 0, BYTES);
        OK(flexcast_allgather(all.rank.comm, send, receive, BYTES, &all.request));
        pid_t forked = child(&all);
        int done = 0;
        OK(flexcast_wait_for(all.request, FLEXCAST_NEVER, &done));
        IS(done == 1 && memcmp(send, receive, BYTES) == 0);
        reap(forked);
        if (round + 1 < FORKS)
            OK(flexcast_request_free(all.request));
    }
    idle = 1;
    for (int round = 0; round < FORKS; round++)
        reap(child(&all));

    stop = 1;
    for (int i = 0; i < 2; i++)
        IS(pthread_join(threads[i], NULL) == 0);
    OK(flexcast_request_free(all.request));
    end(&all.rank);
    if (wrong == 0)
        printf("all as promised\n");
    return wrong != 0;
}
