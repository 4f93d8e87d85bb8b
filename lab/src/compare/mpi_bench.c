/*
 * One rank of `flexcast compare`: collectives of an MPI library.
 *
 *   mpi_bench OP REPETITIONS WARM_UP INTERFACE SIZE...
 *
 * Per repetition: a barrier, the operation, which every rank times, and another barrier: with fewer cores than ranks, whoever compares its
 * buffer would take the core of one that is not done yet. The largest time over the ranks counts. Every buffer is compared byte by byte,
 * outside of what is timed. The bytes that crossed INTERFACE are those of the repetitions less those of as many barriers alone. Rank 0
 * prints one JSON object a size. OP is a name below, or `allreduce-in-place`.
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SHIFTS = 4096 };

static int rank, ranks;
static const char *interface_name;
static unsigned char *pattern;

static void fail(const char *what)
{
    fprintf(stderr, "rank %d: %s\n", rank, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}

static void *memory(size_t bytes)
{
    void *found = calloc(bytes, 1);
    if (found == NULL)
        fail("not enough memory for the buffers; give smaller --sizes");
    return found;
}

/* Bytes that `from` has for `to` in a repetition: a part of one table, which starts elsewhere each time. */
static const unsigned char *bytes_of(int from, int to, int repetition)
{
    return pattern + (unsigned)(from * 1031 + to * 257 + repetition * 17) % SHIFTS;
}

static double cpu_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Bytes received and sent over the interface, of this network namespace. */
static void count_bytes(double counts[2])
{
    char line[512];
    size_t length = strlen(interface_name);
    FILE *file = fopen("/proc/self/net/dev", "r");
    if (file == NULL)
        fail("/proc/self/net/dev cannot be read");
    while (fgets(line, sizeof line, file) != NULL) {
        unsigned long long received, sent;
        char *name = line + strspn(line, " ");
        if (strncmp(name, interface_name, length) != 0 || name[length] != ':')
            continue;
        if (sscanf(name + length + 1, "%llu %*u %*u %*u %*u %*u %*u %*u %llu", &received, &sent) == 2) {
            fclose(file);
            counts[0] = (double)received;
            counts[1] = (double)sent;
            return;
        }
    }
    fail("the interface is not in /proc/self/net/dev");
}

enum op { ALLGATHER, BCAST, ALLREDUCE, ALLTOALL, ALLREDUCE_IN_PLACE };
static const char *const names[] = {"allgather", "bcast", "allreduce", "alltoall", "allreduce-in-place"};

struct buffers {
    unsigned char *send, *receive;
};

/* Roots take turns, so that no repetition is under way before the last one is over. */
static int root_of(int repetition)
{
    return repetition % ranks;
}

static void fill(enum op op, struct buffers *buffers, size_t bytes, int repetition)
{
    float *values = (float *)(op == ALLREDUCE_IN_PLACE ? buffers->receive : buffers->send);
    const unsigned char *own = bytes_of(rank, 0, repetition);
    size_t block = bytes / (size_t)ranks;
    switch (op) {
    case ALLGATHER:
        memcpy(buffers->send, own, bytes);
        break;
    case BCAST:
        if (rank == root_of(repetition))
            memcpy(buffers->receive, own, bytes);
        break;
    case ALLREDUCE:
    case ALLREDUCE_IN_PLACE:
        for (size_t i = 0; i < bytes / sizeof *values; i++)
            values[i] = own[i];
        break;
    case ALLTOALL:
        for (int to = 0; to < ranks; to++)
            memcpy(buffers->send + (size_t)to * block, bytes_of(rank, to, repetition), block);
        break;
    }
}

static void run(enum op op, struct buffers *buffers, size_t bytes, int repetition)
{
    int count = (int)bytes, block = (int)(bytes / (size_t)ranks);
    switch (op) {
    case ALLGATHER:
        MPI_Allgather(buffers->send, count, MPI_BYTE, buffers->receive, count, MPI_BYTE, MPI_COMM_WORLD);
        break;
    case BCAST:
        MPI_Bcast(buffers->receive, count, MPI_BYTE, root_of(repetition), MPI_COMM_WORLD);
        break;
    case ALLREDUCE:
        MPI_Allreduce(buffers->send, buffers->receive, count / (int)sizeof(float), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
    case ALLREDUCE_IN_PLACE:
        MPI_Allreduce(MPI_IN_PLACE, buffers->receive, count / (int)sizeof(float), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
    case ALLTOALL:
        MPI_Alltoall(buffers->send, block, MPI_BYTE, buffers->receive, block, MPI_BYTE, MPI_COMM_WORLD);
        break;
    }
}

static void check(enum op op, const struct buffers *buffers, size_t bytes, int repetition)
{
    const unsigned char *own = buffers->receive;
    const float *values = (const float *)buffers->receive;
    size_t block = bytes / (size_t)ranks;
    int right = 1;
    switch (op) {
    case ALLGATHER:
        for (int from = 0; from < ranks; from++)
            right &= memcmp(own + (size_t)from * bytes, bytes_of(from, 0, repetition), bytes) == 0;
        break;
    case BCAST:
        right = memcmp(own, bytes_of(root_of(repetition), 0, repetition), bytes) == 0;
        break;
    case ALLREDUCE:
    case ALLREDUCE_IN_PLACE:
        /* Sums of small whole numbers, which are exact in any order. */
        for (size_t i = 0; i < bytes / sizeof *values; i++) {
            unsigned sum = 0;
            for (int from = 0; from < ranks; from++)
                sum += bytes_of(from, 0, repetition)[i];
            right &= values[i] == (float)sum;
        }
        break;
    case ALLTOALL:
        for (int from = 0; from < ranks; from++)
            right &= memcmp(own + (size_t)from * block, bytes_of(from, rank, repetition), block) == 0;
        break;
    }
    if (!right)
        fail("the received bytes are not those sent");
}

static void measure(enum op op, size_t bytes, int repetitions, int warm_up)
{
    size_t all = bytes * (op == ALLGATHER ? (size_t)ranks : 1);
    struct buffers buffers = {memory(bytes), memory(all)};
    double *times = memory((size_t)repetitions * sizeof *times), *largest = memory((size_t)repetitions * sizeof *times);
    double cpu = 0, counts[3][2], own[3], sums[3];

    pattern = memory(bytes + SHIFTS);
    uint32_t state = 1;
    for (size_t i = 0; i < bytes + SHIFTS; i++) {
        state = state * 1664525u + 1013904223u;
        pattern[i] = (unsigned char)(state >> 24);
    }
    for (int repetition = -warm_up; repetition < repetitions; repetition++) {
        fill(op, &buffers, bytes, repetition + warm_up);
        if (repetition == 0) {
            MPI_Barrier(MPI_COMM_WORLD);
            count_bytes(counts[0]);
        }
        MPI_Barrier(MPI_COMM_WORLD);
        double cpu_before = cpu_seconds(), begin = MPI_Wtime();
        run(op, &buffers, bytes, repetition + warm_up);
        double end = MPI_Wtime(), cpu_after = cpu_seconds();
        MPI_Barrier(MPI_COMM_WORLD);
        check(op, &buffers, bytes, repetition + warm_up);
        if (repetition >= 0) {
            times[repetition] = 1e6 * (end - begin);
            cpu += cpu_after - cpu_before;
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
    count_bytes(counts[1]);
    for (int barrier = 0; barrier < 2 * repetitions; barrier++)
        MPI_Barrier(MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    count_bytes(counts[2]);

    double sent = counts[1][1] - counts[0][1] - (counts[2][1] - counts[1][1]);
    double received = counts[1][0] - counts[0][0] - (counts[2][0] - counts[1][0]);
    own[0] = sent / repetitions;
    own[1] = (sent + received) / repetitions;
    own[2] = cpu / repetitions;
    MPI_Reduce(own, sums, 3, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    MPI_Reduce(times, largest, repetitions, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        printf("{\"bytes\":%zu,\"switch_bytes\":%.1f,\"port_bytes\":%.1f,\"cpu_s\":%.9f,\"samples_us\":[", bytes, sums[0], sums[1],
               sums[2]);
        for (int repetition = 0; repetition < repetitions; repetition++)
            printf("%s%.3f", repetition == 0 ? "" : ",", largest[repetition]);
        printf("]}\n");
        fflush(stdout);
    }
    free(pattern);
    free(times);
    free(largest);
    free(buffers.send);
    free(buffers.receive);
}

int main(int argc, char **argv)
{
    int op = ALLGATHER;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc < 6)
        fail("give OP REPETITIONS WARM_UP INTERFACE SIZE...");
    while (op <= ALLREDUCE_IN_PLACE && strcmp(argv[1], names[op]) != 0)
        op++;
    int repetitions = atoi(argv[2]), warm_up = atoi(argv[3]);
    interface_name = argv[4];
    if (op > ALLREDUCE_IN_PLACE || repetitions < 1 || warm_up < 0)
        fail("no such operation, or no repetition");
    for (int i = 5; i < argc; i++)
        measure((enum op)op, strtoull(argv[i], NULL, 10), repetitions, warm_up);
    MPI_Finalize();
    return 0;
}
