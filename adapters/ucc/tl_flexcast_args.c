/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arguments of a collective: UCC's as the library's.
 *
 * Both count in the same places but for three: in place, UCC leaves a Reduce_scatter's result at the rank's own offset, not at the beginning; displacements of an
 * Allgatherv may differ from rank to rank; and some counts are totals. The first two receive in memory of the task's own and copy at the end.
 */
#include "tl_flexcast.h"

/* In the place of NULL, which programs give with no bytes. */
static char nothing;

typedef struct {
    ucc_tl_flexcast_task_t *task;
    flexcast_collective *to;
    const ucc_coll_args_t *args;
    size_t *lists; /* four, with an entry for each rank */
    ucc_rank_t rank, size;
    int in_place, is_root;
} translation_t;

static uint32_t type_of(ucc_datatype_t type)
{
    switch (type) {
    case UCC_DT_INT8:
        return FLEXCAST_INT8;
    case UCC_DT_INT16:
        return FLEXCAST_INT16;
    case UCC_DT_INT32:
        return FLEXCAST_INT32;
    case UCC_DT_INT64:
        return FLEXCAST_INT64;
    case UCC_DT_UINT8:
        return FLEXCAST_UINT8;
    case UCC_DT_UINT16:
        return FLEXCAST_UINT16;
    case UCC_DT_UINT32:
        return FLEXCAST_UINT32;
    case UCC_DT_UINT64:
        return FLEXCAST_UINT64;
    case UCC_DT_FLOAT16:
        return FLEXCAST_FLOAT16;
    case UCC_DT_BFLOAT16:
        return FLEXCAST_BFLOAT16;
    case UCC_DT_FLOAT32:
        return FLEXCAST_FLOAT;
    case UCC_DT_FLOAT64:
        return FLEXCAST_DOUBLE;
    case UCC_DT_FLOAT32_COMPLEX:
        return FLEXCAST_FLOAT_COMPLEX;
    case UCC_DT_FLOAT64_COMPLEX:
        return FLEXCAST_DOUBLE_COMPLEX;
    default:
        return 0;
    }
}

static uint32_t operator_of(ucc_reduction_op_t op)
{
    switch (op) {
    case UCC_OP_SUM:
        return FLEXCAST_SUM;
    case UCC_OP_PROD:
        return FLEXCAST_PRODUCT;
    case UCC_OP_MAX:
        return FLEXCAST_MAX;
    case UCC_OP_MIN:
        return FLEXCAST_MIN;
    case UCC_OP_LAND:
        return FLEXCAST_LOGICAL_AND;
    case UCC_OP_LOR:
        return FLEXCAST_LOGICAL_OR;
    case UCC_OP_LXOR:
        return FLEXCAST_LOGICAL_XOR;
    case UCC_OP_BAND:
        return FLEXCAST_BIT_AND;
    case UCC_OP_BOR:
        return FLEXCAST_BIT_OR;
    case UCC_OP_BXOR:
        return FLEXCAST_BIT_XOR;
    default:
        return 0;
    }
}

/* Length of a block, and whether the library can take it. */
static ucc_status_t bytes_of(uint64_t count, ucc_datatype_t type, ucc_memory_type_t memory, size_t *bytes)
{
    if (memory != UCC_MEMORY_TYPE_HOST || !UCC_DT_IS_PREDEFINED(type))
        return UCC_ERR_NOT_SUPPORTED;
    return __builtin_mul_overflow(count, ucc_dt_size(type), bytes) ? UCC_ERR_INVALID_PARAM : UCC_OK;
}

static ucc_status_t bytes_in(const ucc_coll_buffer_info_t *info, size_t *bytes)
{
    return bytes_of(info->count, info->datatype, info->mem_type, bytes);
}

/* The rank's part of a buffer of all ranks. */
static ucc_status_t part_of(const ucc_coll_buffer_info_t *info, ucc_rank_t size, size_t *bytes)
{
    if (info->count % size != 0)
        return UCC_ERR_NOT_SUPPORTED;
    return bytes_of(info->count / size, info->datatype, info->mem_type, bytes);
}

/* Lengths and places of blocks in bytes; `end` becomes where the last one ends. Without displacements they lie one after another. */
static ucc_status_t blocks_in(const translation_t *t, const ucc_coll_buffer_info_v_t *info, int displaced, size_t *lengths, size_t *places,
                              size_t *end)
{
    size_t at = 0, behind;

    *end = 0;
    for (ucc_rank_t rank = 0; rank < t->size; rank++) {
        ucc_status_t status = bytes_of(ucc_coll_args_get_count(t->args, info->counts, rank), info->datatype, info->mem_type, &lengths[rank]);
        places[rank]        = at;
        if (status == UCC_OK && displaced && info->displacements != NULL)
            status = bytes_of(ucc_coll_args_get_displacement(t->args, info->displacements, rank), info->datatype, info->mem_type,
                              &places[rank]);
        if (status != UCC_OK)
            return status;
        if (__builtin_add_overflow(at, lengths[rank], &at) || __builtin_add_overflow(places[rank], lengths[rank], &behind))
            return UCC_ERR_INVALID_PARAM;
        if (lengths[rank] > 0 && behind > *end)
            *end = behind;
    }
    return UCC_OK;
}

static void sends(translation_t *t, const void *buffer, size_t bytes)
{
    t->to->send   = bytes == 0 && buffer == NULL ? &nothing : buffer;
    t->task->send = (tl_flexcast_range_t){buffer, bytes};
}

static void receives(translation_t *t, void *buffer, size_t bytes)
{
    t->to->receive   = bytes == 0 && buffer == NULL ? &nothing : buffer;
    t->task->receive = (tl_flexcast_range_t){buffer, bytes};
}

/* `send` of operations that all ranks call in place or not. */
static ucc_status_t sends_own(translation_t *t, size_t bytes)
{
    if (t->in_place) {
        t->to->send = FLEXCAST_IN_PLACE;
        return UCC_OK;
    }
    if (t->args->src.info.mem_type != UCC_MEMORY_TYPE_HOST)
        return UCC_ERR_NOT_SUPPORTED;
    sends(t, t->args->src.info.buffer, bytes);
    return UCC_OK;
}

/* Receives `bytes` in memory of the task's own, for so many blocks of `target`. */
static ucc_status_t receives_aside(translation_t *t, void *target, size_t bytes, size_t blocks, const size_t *lengths, const size_t *places)
{
    ucc_tl_flexcast_task_t *task = t->task;

    task->scratch = ucc_malloc(bytes > 0 ? bytes : 1, "tl_flexcast_scratch");
    task->lengths = ucc_malloc(2 * blocks * sizeof *lengths, "tl_flexcast_blocks");
    if (task->scratch == NULL || task->lengths == NULL)
        return UCC_ERR_NO_MEMORY;
    task->places = task->lengths + blocks;
    task->blocks = blocks;
    task->target = target;
    memcpy(task->lengths, lengths, blocks * sizeof *lengths);
    memcpy(task->places, places, blocks * sizeof *places);
    receives(t, task->scratch, bytes);
    return UCC_OK;
}

static ucc_status_t reduces(translation_t *t, ucc_datatype_t type)
{
    t->to->data_type = type_of(type);
    t->to->reduction = operator_of(t->args->op);
    return t->to->data_type != 0 && t->to->reduction != 0 ? UCC_OK : UCC_ERR_NOT_SUPPORTED;
}

static ucc_status_t broadcast(translation_t *t)
{
    ucc_status_t status = bytes_in(&t->args->src.info, &t->to->count);

    t->to->operation = FLEXCAST_OPERATION_BROADCAST;
    receives(t, t->args->src.info.buffer, t->to->count);
    return status;
}

static ucc_status_t allgather_or_alltoall(translation_t *t, uint32_t operation)
{
    const ucc_coll_buffer_info_t *receive = &t->args->dst.info;
    size_t *part                          = &t->to->count;
    ucc_status_t status                   = part_of(receive, t->size, part);

    if (status != UCC_OK)
        return status;
    t->to->operation = operation;
    receives(t, receive->buffer, *part * t->size);
    return sends_own(t, operation == FLEXCAST_OPERATION_ALLTOALL ? *part * t->size : *part);
}

static ucc_status_t allgatherv(translation_t *t)
{
    const ucc_coll_buffer_info_v_t *receive = &t->args->dst.info_v;
    size_t *lengths = t->lists, *places = t->lists + t->size, end, total = 0;
    ucc_status_t status = blocks_in(t, receive, 1, lengths, places, &end);
    int packed          = 1;

    if (status != UCC_OK)
        return status;
    for (ucc_rank_t rank = 0; rank < t->size; rank++) {
        packed &= lengths[rank] == 0 || places[rank] == total;
        total += lengths[rank];
    }
    t->to->operation      = FLEXCAST_OPERATION_ALLGATHERV;
    t->to->receive_counts = lengths;
    if (packed) {
        receives(t, receive->buffer, total);
        return sends_own(t, lengths[t->rank]);
    }
    status = receives_aside(t, receive->buffer, total, t->size, lengths, places);
    if (status != UCC_OK || !t->in_place)
        return status != UCC_OK ? status : sends_own(t, lengths[t->rank]);
    sends(t, (char *)receive->buffer + places[t->rank], lengths[t->rank]);
    return UCC_OK;
}

static ucc_status_t alltoallv(translation_t *t)
{
    const ucc_coll_buffer_info_v_t *send = &t->args->src.info_v, *receive = &t->args->dst.info_v;
    size_t *lists = t->lists, end;
    ucc_status_t status;

    t->to->operation             = FLEXCAST_OPERATION_ALLTOALLV;
    t->to->receive_counts        = lists;
    t->to->receive_displacements = lists + t->size;
    status                       = blocks_in(t, receive, 1, lists, lists + t->size, &end);
    if (status != UCC_OK)
        return status;
    receives(t, receive->buffer, end);
    if (t->in_place) {
        t->to->send = FLEXCAST_IN_PLACE;
        return UCC_OK;
    }
    t->to->send_counts        = lists + 2 * t->size;
    t->to->send_displacements = lists + 3 * t->size;
    status                    = blocks_in(t, send, 1, lists + 2 * t->size, lists + 3 * t->size, &end);
    sends(t, send->buffer, end);
    return status;
}

static ucc_status_t allreduce(translation_t *t)
{
    const ucc_coll_buffer_info_t *receive = &t->args->dst.info;
    size_t bytes;
    ucc_status_t status = bytes_in(receive, &bytes);

    if (status == UCC_OK)
        status = reduces(t, receive->datatype);
    if (status != UCC_OK)
        return status;
    t->to->operation = FLEXCAST_OPERATION_ALLREDUCE;
    t->to->count     = receive->count;
    receives(t, receive->buffer, bytes);
    return sends_own(t, bytes);
}

static ucc_status_t reduce(translation_t *t)
{
    const ucc_coll_buffer_info_t *info = t->is_root ? &t->args->dst.info : &t->args->src.info;
    size_t bytes;
    ucc_status_t status = bytes_in(info, &bytes);

    if (status == UCC_OK)
        status = reduces(t, info->datatype);
    if (status != UCC_OK)
        return status;
    t->to->operation = FLEXCAST_OPERATION_REDUCE;
    t->to->count     = info->count;
    if (t->is_root)
        receives(t, info->buffer, bytes);
    return sends_own(t, bytes);
}

static ucc_status_t reduce_scatter(translation_t *t)
{
    const ucc_coll_buffer_info_t *receive = &t->args->dst.info;
    size_t unit = ucc_dt_size(receive->datatype), bytes, own, place = 0;
    ucc_status_t status = bytes_in(receive, &bytes);

    if (status == UCC_OK)
        status = reduces(t, receive->datatype);
    if (status != UCC_OK)
        return status;
    if (!t->in_place) {
        t->to->operation = FLEXCAST_OPERATION_REDUCE_SCATTER_BLOCK;
        t->to->count     = receive->count;
        receives(t, receive->buffer, bytes);
        return __builtin_mul_overflow(bytes, t->size, &bytes) ? UCC_ERR_INVALID_PARAM : sends_own(t, bytes);
    }
    /* The count is that of all ranks; what does not divide is spread over the first of them. */
    own = unit * ucc_buffer_block_count(receive->count, t->size, t->rank);
    if (receive->count % t->size == 0) {
        t->to->operation = FLEXCAST_OPERATION_REDUCE_SCATTER_BLOCK;
        t->to->count     = receive->count / t->size;
    } else {
        t->to->operation      = FLEXCAST_OPERATION_REDUCE_SCATTER;
        t->to->receive_counts = t->lists;
        for (ucc_rank_t rank = 0; rank < t->size; rank++)
            t->lists[rank] = ucc_buffer_block_count(receive->count, t->size, rank);
    }
    place = unit * ucc_buffer_block_offset(receive->count, t->size, t->rank);
    sends(t, receive->buffer, bytes);
    return receives_aside(t, receive->buffer, own, 1, &own, &place);
}

static ucc_status_t reduce_scatterv(translation_t *t)
{
    const ucc_coll_buffer_info_v_t *receive = &t->args->dst.info_v;
    size_t *lengths = t->lists, *places = t->lists + t->size, *counts = t->lists + 2 * t->size, end;
    ucc_status_t status = blocks_in(t, receive, 0, lengths, places, &end);

    if (status == UCC_OK)
        status = reduces(t, receive->datatype);
    if (status != UCC_OK)
        return status;
    for (ucc_rank_t rank = 0; rank < t->size; rank++)
        counts[rank] = ucc_coll_args_get_count(t->args, receive->counts, rank);
    t->to->operation      = FLEXCAST_OPERATION_REDUCE_SCATTER;
    t->to->receive_counts = counts;
    if (!t->in_place) {
        receives(t, receive->buffer, lengths[t->rank]);
        return sends_own(t, end);
    }
    sends(t, receive->buffer, end);
    return receives_aside(t, receive->buffer, lengths[t->rank], 1, &lengths[t->rank], &places[t->rank]);
}

static ucc_status_t gather(translation_t *t)
{
    const ucc_coll_buffer_info_t *receive = &t->args->dst.info;
    size_t *part                          = &t->to->count;
    ucc_status_t status = t->is_root ? part_of(receive, t->size, part) : bytes_in(&t->args->src.info, part);

    if (status != UCC_OK)
        return status;
    t->to->operation = FLEXCAST_OPERATION_GATHER;
    if (t->is_root)
        receives(t, receive->buffer, *part * t->size);
    return sends_own(t, *part);
}

static ucc_status_t gatherv(translation_t *t)
{
    const ucc_coll_buffer_info_v_t *receive = &t->args->dst.info_v;
    size_t *lengths = t->lists, *places = t->lists + t->size, end;
    ucc_status_t status = UCC_OK;

    t->to->operation = FLEXCAST_OPERATION_GATHERV;
    if (t->is_root) {
        status = blocks_in(t, receive, 1, lengths, places, &end);
        if (status != UCC_OK)
            return status;
        t->to->receive_counts        = lengths;
        t->to->receive_displacements = places;
        receives(t, receive->buffer, end);
    }
    if (t->in_place)
        t->to->count = lengths[t->rank];
    else
        status = bytes_in(&t->args->src.info, &t->to->count);
    return status != UCC_OK ? status : sends_own(t, t->to->count);
}

/* `receive` of a Scatter, whose root's block may stay where it is. */
static ucc_status_t receives_own(translation_t *t, size_t bytes)
{
    if (t->in_place) {
        t->to->receive = (void *)FLEXCAST_IN_PLACE;
        return UCC_OK;
    }
    if (t->args->dst.info.mem_type != UCC_MEMORY_TYPE_HOST)
        return UCC_ERR_NOT_SUPPORTED;
    receives(t, t->args->dst.info.buffer, bytes);
    return UCC_OK;
}

static ucc_status_t scatter(translation_t *t)
{
    const ucc_coll_buffer_info_t *send = &t->args->src.info;
    size_t *part                       = &t->to->count;
    ucc_status_t status = t->is_root ? part_of(send, t->size, part) : bytes_in(&t->args->dst.info, part);

    if (status != UCC_OK)
        return status;
    t->to->operation = FLEXCAST_OPERATION_SCATTER;
    if (t->is_root)
        sends(t, send->buffer, *part * t->size);
    return receives_own(t, *part);
}

static ucc_status_t scatterv(translation_t *t)
{
    const ucc_coll_buffer_info_v_t *send = &t->args->src.info_v;
    size_t *lengths = t->lists, *places = t->lists + t->size, end;
    ucc_status_t status = UCC_OK;

    t->to->operation = FLEXCAST_OPERATION_SCATTERV;
    if (t->is_root) {
        status = blocks_in(t, send, 1, lengths, places, &end);
        if (status != UCC_OK)
            return status;
        t->to->send_counts        = lengths;
        t->to->send_displacements = places;
        sends(t, send->buffer, end);
    }
    if (t->in_place)
        t->to->count = lengths[t->rank];
    else
        status = bytes_in(&t->args->dst.info, &t->to->count);
    return status != UCC_OK ? status : receives_own(t, t->to->count);
}

ucc_status_t tl_flexcast_translate(ucc_tl_flexcast_task_t *task, ucc_tl_flexcast_team_t *team, tl_flexcast_translation_t *into)
{
    const ucc_coll_args_t *args = &task->super.bargs.args;
    translation_t t             = {.task  = task,
                                   .to    = &into->collective,
                                   .args  = args,
                                   .lists = into->lists,
                                   .rank  = UCC_TL_TEAM_RANK(team),
                                   .size  = UCC_TL_TEAM_SIZE(team)};

    t.to->size = sizeof *t.to;
    /* What has a root is in place on the root alone. */
    t.is_root  = args->root == t.rank;
    t.in_place = UCC_IS_INPLACE(*args);
    switch (args->coll_type) {
    case UCC_COLL_TYPE_BCAST:
    case UCC_COLL_TYPE_REDUCE:
    case UCC_COLL_TYPE_GATHER:
    case UCC_COLL_TYPE_GATHERV:
    case UCC_COLL_TYPE_SCATTER:
    case UCC_COLL_TYPE_SCATTERV:
        if (args->root >= t.size)
            return UCC_ERR_INVALID_PARAM;
        t.to->root = (int)args->root;
        t.in_place &= t.is_root;
        break;
    default:
        break;
    }
    switch (args->coll_type) {
    case UCC_COLL_TYPE_BARRIER:
        t.to->operation = FLEXCAST_OPERATION_BARRIER;
        return UCC_OK;
    case UCC_COLL_TYPE_BCAST:
        return broadcast(&t);
    case UCC_COLL_TYPE_ALLGATHER:
        return allgather_or_alltoall(&t, FLEXCAST_OPERATION_ALLGATHER);
    case UCC_COLL_TYPE_ALLGATHERV:
        return allgatherv(&t);
    case UCC_COLL_TYPE_ALLTOALL:
        return allgather_or_alltoall(&t, FLEXCAST_OPERATION_ALLTOALL);
    case UCC_COLL_TYPE_ALLTOALLV:
        return alltoallv(&t);
    case UCC_COLL_TYPE_ALLREDUCE:
        return allreduce(&t);
    case UCC_COLL_TYPE_REDUCE:
        return reduce(&t);
    case UCC_COLL_TYPE_REDUCE_SCATTER:
        return reduce_scatter(&t);
    case UCC_COLL_TYPE_REDUCE_SCATTERV:
        return reduce_scatterv(&t);
    case UCC_COLL_TYPE_GATHER:
        return gather(&t);
    case UCC_COLL_TYPE_GATHERV:
        return gatherv(&t);
    case UCC_COLL_TYPE_SCATTER:
        return scatter(&t);
    case UCC_COLL_TYPE_SCATTERV:
        return scatterv(&t);
    default:
        return UCC_ERR_NOT_SUPPORTED;
    }
}
