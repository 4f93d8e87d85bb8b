/* A rank of a job that goes wrong in one way. Usage: ranks WAY RANK SIZE HOST:PORT TIMEOUT_MS [ALLGATHER.elf]; prints one line. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "flexcast.h"

static int told(const char *what, flexcast_status status)
{
    printf("%s: %d: %s\n", what, (int)status, status == FLEXCAST_OK ? "" : flexcast_last_error());
    return 0;
}

int main(int argc, char **argv)
{
    flexcast_bootstrap *ranks = NULL;
    flexcast_card_options options;
    flexcast_card *card = NULL;
    flexcast_config config;
    flexcast_comm *comm = NULL;
    flexcast_request *request = NULL;
    flexcast_report report;
    flexcast_status status;

    if (argc < 6)
        return 2;
    const char *way = argv[1];
    int rank = atoi(argv[2]), size = atoi(argv[3]);
    status = flexcast_bootstrap_tcp(argv[4], "a test", rank, size, strtoull(argv[5], NULL, 10), &ranks);
    if (status != FLEXCAST_OK || strcmp(way, "meet") == 0)
        return told("met", status);

    flexcast_card_options_default(&options, sizeof options);
    options.firmware_path = argv[6];
    if ((status = flexcast_card_open(&options, &card)) != FLEXCAST_OK)
        return told("opened", status);
    flexcast_config_default(&config, sizeof config);
    config.margin_ps = 100000000000;
    if (strcmp(way, "slots") == 0 && rank == 1)
        config.slots = 100;
    if ((status = flexcast_comm_create(card, ranks, &config, &comm)) != FLEXCAST_OK) {
        told("made", status);
    } else {
        size_t bytes = 30000;
        if (strcmp(way, "sizes") == 0 && rank == 2)
            bytes = 20000;
        unsigned char *send = calloc(1, bytes), *receive = calloc((size_t)size, bytes);
        status = flexcast_allgather(comm, send, receive, bytes, &request);
        if (status == FLEXCAST_OK && strcmp(way, "cancel") == 0 && rank == 1)
            status = flexcast_cancel(comm);
        if (status == FLEXCAST_OK)
            status = flexcast_wait(request);
        told("gathered", status);
        if (flexcast_request_report(request, &report, sizeof report) == FLEXCAST_OK)
            printf("report: %u %u %u %u\n", report.cause, report.culprit, report.witness, report.memory_held);
        flexcast_request_free(request);
        flexcast_buffer_invalidate(card, send, bytes);
        flexcast_buffer_invalidate(card, receive, bytes * (size_t)size);
        free(send);
        free(receive);
        if (flexcast_comm_free(comm) != FLEXCAST_OK)
            return 1;
    }
    if (flexcast_bootstrap_free(ranks) != FLEXCAST_OK || flexcast_card_close(card) != FLEXCAST_OK)
        return 1;
    return 0;
}
