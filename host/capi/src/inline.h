
/*
 * One call for each collective: arguments of flexcast_post() in their usual order, as MPI has them, with lengths and displacements in bytes.
 * FLEXCAST_OPERATION_... says what each does. Flags, callbacks and sparse blocks of other lengths take the structure and flexcast_post().
 */

/** A collective of an operation (FLEXCAST_OPERATION_...), with all else zero. */
static inline flexcast_collective flexcast_collective_of(uint32_t operation)
{
    flexcast_collective collective;
    memset(&collective, 0, sizeof collective);
    collective.size = sizeof collective;
    collective.operation = operation;
    return collective;
}

/** Posts FLEXCAST_OPERATION_BARRIER. */
static inline flexcast_status flexcast_barrier(flexcast_comm *comm, flexcast_request **request)
{
    flexcast_collective collective = flexcast_collective_of(FLEXCAST_OPERATION_BARRIER);
    return flexcast_post(comm, &collective, request);
}

/** Posts FLEXCAST_OPERATION_BROADCAST. */
static inline flexcast_status flexcast_broadcast(flexcast_comm *comm, void *buffer, size_t bytes, int root, flexcast_request **request)
{
    flexcast_collective collective = flexcast_collective_of(FLEXCAST_OPERATION_BROADCAST);
    collective.receive = buffer;
    collective.count = bytes;
    collective.root = root;
    return flexcast_post(comm, &collective, request);
}

/** Posts FLEXCAST_OPERATION_ALLGATHER: `bytes` bytes of every rank. */
static inline flexcast_status flexcast_allgather(flexcast_comm *comm, const void *send, void *receive, size_t bytes,
                                                 flexcast_request **request)
{
    flexcast_collective collective = flexcast_collective_of(FLEXCAST_OPERATION_ALLGATHER);
    collective.send = send;
    collective.receive = receive;
    collective.count = bytes;
    return flexcast_post(comm, &collective, request);
}

/** Posts FLEXCAST_OPERATION_ALLGATHERV; `displacements` may be NULL. */
static inline flexcast_status flexcast_allgatherv(flexcast_comm *comm, const void *send, void *receive, const size_t *counts,
                                                  const size_t *displacements, flexcast_request **request)
{
    flexcast_collective collective = flexcast_collective_of(FLEXCAST_OPERATION_ALLGATHERV);
    collective.send = send;
    collective.receive = receive;
    collective.receive_counts = counts;
    collective.receive_displacements = displacements;
    return flexcast_post(comm, &collective, request);
}

/** Posts FLEXCAST_OPERATION_ALLREDUCE of `count` elements. */
static inline flexcast_status flexcast_allreduce(flexcast_comm *comm, const void *send, void *receive, size_t count, uint32_t data_type,
                                                 uint32_t reduction, flexcast_request **request)
{
    flexcast_collective collective = flexcast_collective_of(FLEXCAST_OPERATION_ALLREDUCE);
    collective.send = send;
    collective.receive = receive;
    collective.count = count;
    collective.data_type = data_type;
    collective.reduction = reduction;
    return flexcast_post(comm, &collective, request);
}

/** Posts FLEXCAST_OPERATION_SPARSE_ALLREDUCE of `count` elements, in blocks of 1 KiB. */
static inline flexcast_status flexcast_sparse_allreduce(flexcast_comm *comm, const void *send, void *receive, size_t count,
                                                        uint32_t data_type, uint32_t reduction, flexcast_request **request)
{
    flexcast_collective collective = flexcast_collective_of(FLEXCAST_OPERATION_SPARSE_ALLREDUCE);
    collective.send = send;
    collective.receive = receive;
    collective.count = count;
    collective.data_type = data_type;
    collective.reduction = reduction;
    return flexcast_post(comm, &collective, request);
}

/** Posts FLEXCAST_OPERATION_REDUCE of `count` elements. */
static inline flexcast_status flexcast_reduce(flexcast_comm *comm, const void *send, void *receive, size_t count, uint32_t data_type,
                                              uint32_t reduction, int root, flexcast_request **request)
{
    flexcast_collective collective = flexcast_collective_of(FLEXCAST_OPERATION_REDUCE);
    collective.send = send;
    collective.receive = receive;
    collective.count = count;
    collective.data_type = data_type;
    collective.reduction = reduction;
    collective.root = root;
    return flexcast_post(comm, &collective, request);
}

/** Posts FLEXCAST_OPERATION_REDUCE_SCATTER_BLOCK: each rank gets `count` elements. */
static inline flexcast_status flexcast_reduce_scatter_block(flexcast_comm *comm, const void *send, void *receive, size_t count,
                                                            uint32_t data_type, uint32_t reduction, flexcast_request **request)
{
    flexcast_collective collective = flexcast_collective_of(FLEXCAST_OPERATION_REDUCE_SCATTER_BLOCK);
    collective.send = send;
    collective.receive = receive;
    collective.count = count;
    collective.data_type = data_type;
    collective.reduction = reduction;
    return flexcast_post(comm, &collective, request);
}

/** Posts FLEXCAST_OPERATION_REDUCE_SCATTER: rank r gets `counts[r]` elements. */
static inline flexcast_status flexcast_reduce_scatter(flexcast_comm *comm, const void *send, void *receive, const size_t *counts,
                                                      uint32_t data_type, uint32_t reduction, flexcast_request **request)
{
    flexcast_collective collective = flexcast_collective_of(FLEXCAST_OPERATION_REDUCE_SCATTER);
    collective.send = send;
    collective.receive = receive;
    collective.receive_counts = counts;
    collective.data_type = data_type;
    collective.reduction = reduction;
    return flexcast_post(comm, &collective, request);
}

/** Posts FLEXCAST_OPERATION_ALLTOALL: `bytes` bytes of every rank to every rank. */
static inline flexcast_status flexcast_alltoall(flexcast_comm *comm, const void *send, void *receive, size_t bytes,
                                                flexcast_request **request)
{
    flexcast_collective collective = flexcast_collective_of(FLEXCAST_OPERATION_ALLTOALL);
    collective.send = send;
    collective.receive = receive;
    collective.count = bytes;
    return flexcast_post(comm, &collective, request);
}

/** Posts FLEXCAST_OPERATION_ALLTOALLV; displacements may be NULL. */
static inline flexcast_status flexcast_alltoallv(flexcast_comm *comm, const void *send, const size_t *send_counts,
                                                 const size_t *send_displacements, void *receive, const size_t *receive_counts,
                                                 const size_t *receive_displacements, flexcast_request **request)
{
    flexcast_collective collective = flexcast_collective_of(FLEXCAST_OPERATION_ALLTOALLV);
    collective.send = send;
    collective.send_counts = send_counts;
    collective.send_displacements = send_displacements;
    collective.receive = receive;
    collective.receive_counts = receive_counts;
    collective.receive_displacements = receive_displacements;
    return flexcast_post(comm, &collective, request);
}

/** Posts FLEXCAST_OPERATION_GATHER: `bytes` bytes of every rank. */
static inline flexcast_status flexcast_gather(flexcast_comm *comm, const void *send, void *receive, size_t bytes, int root,
                                              flexcast_request **request)
{
    flexcast_collective collective = flexcast_collective_of(FLEXCAST_OPERATION_GATHER);
    collective.send = send;
    collective.receive = receive;
    collective.count = bytes;
    collective.root = root;
    return flexcast_post(comm, &collective, request);
}

/** Posts FLEXCAST_OPERATION_GATHERV: `bytes` bytes of this rank. The lists are the root's, and `displacements` may be NULL. */
static inline flexcast_status flexcast_gatherv(flexcast_comm *comm, const void *send, size_t bytes, void *receive, const size_t *counts,
                                               const size_t *displacements, int root, flexcast_request **request)
{
    flexcast_collective collective = flexcast_collective_of(FLEXCAST_OPERATION_GATHERV);
    collective.send = send;
    collective.count = bytes;
    collective.receive = receive;
    collective.receive_counts = counts;
    collective.receive_displacements = displacements;
    collective.root = root;
    return flexcast_post(comm, &collective, request);
}

/** Posts FLEXCAST_OPERATION_SCATTER: `bytes` bytes to every rank. */
static inline flexcast_status flexcast_scatter(flexcast_comm *comm, const void *send, void *receive, size_t bytes, int root,
                                               flexcast_request **request)
{
    flexcast_collective collective = flexcast_collective_of(FLEXCAST_OPERATION_SCATTER);
    collective.send = send;
    collective.receive = receive;
    collective.count = bytes;
    collective.root = root;
    return flexcast_post(comm, &collective, request);
}

/** Posts FLEXCAST_OPERATION_SCATTERV: `bytes` bytes for this rank. The lists are the root's, and `displacements` may be NULL. */
static inline flexcast_status flexcast_scatterv(flexcast_comm *comm, const void *send, const size_t *counts, const size_t *displacements,
                                                void *receive, size_t bytes, int root, flexcast_request **request)
{
    flexcast_collective collective = flexcast_collective_of(FLEXCAST_OPERATION_SCATTERV);
    collective.send = send;
    collective.send_counts = counts;
    collective.send_displacements = displacements;
    collective.receive = receive;
    collective.count = bytes;
    collective.root = root;
    return flexcast_post(comm, &collective, request);
}
