/* SPDX-License-Identifier: Apache-2.0 */
/* The smallest Allgather: docs/embed.md says how it is compiled and started. */
#include <stdio.h>
#include <stdlib.h>

#include "flexcast.h"

int main(void)
{
    flexcast_comm *comm;
    flexcast_request *request;
    int rank, size, *ranks = NULL;

    if (flexcast_init(NULL, &comm) || flexcast_comm_rank(comm, &rank, &size) || !(ranks = malloc((size_t)size * sizeof rank)) ||
        flexcast_allgather(comm, &rank, ranks, sizeof rank, &request) || flexcast_wait(request)) {
        fprintf(stderr, "error: %s\n", flexcast_last_error());
        return 1;
    }
    printf("rank %d of %d has gathered 0 to %d\n", rank, size, ranks[size - 1]);
    int bad = flexcast_comm_free(comm) != FLEXCAST_OK;
    free(ranks);
    return bad;
}
