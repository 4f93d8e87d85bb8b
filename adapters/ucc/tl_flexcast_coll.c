/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tasks: operations that are made, posted, moved on and freed.
 */
#include "tl_flexcast.h"

ucc_status_t tl_flexcast_status(flexcast_status status)
{
    switch (status) {
    case FLEXCAST_OK:
        return UCC_OK;
    case FLEXCAST_NOT_SUPPORTED:
        return UCC_ERR_NOT_SUPPORTED;
    case FLEXCAST_ERROR_NULL:
    case FLEXCAST_ERROR_ARGUMENT:
    case FLEXCAST_ERROR_BUFFER_LENGTH:
    case FLEXCAST_ERROR_RANK:
        return UCC_ERR_INVALID_PARAM;
    case FLEXCAST_ERROR_LIMIT:
    case FLEXCAST_ERROR_BUDGET:
    case FLEXCAST_ERROR_BUSY:
        return UCC_ERR_NO_RESOURCE;
    case FLEXCAST_ERROR_TIMEOUT:
        return UCC_ERR_TIMED_OUT;
    default:
        return UCC_ERR_NO_MESSAGE;
    }
}

#define TASK_TEAM(_task) ucc_derived_of((_task)->super.team, ucc_tl_flexcast_team_t)

static void count(uint64_t *counter)
{
    __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
}

static void forget(ucc_tl_flexcast_task_t *task)
{
    tl_flexcast_forget(TASK_TEAM(task), task->send);
    tl_flexcast_forget(TASK_TEAM(task), task->receive);
}

static void release(ucc_tl_flexcast_task_t *task)
{
    ucc_free(task->scratch);
    ucc_free(task->lengths);
    ucc_mpool_put(task);
}

static void unpack(const ucc_tl_flexcast_task_t *task)
{
    const char *from = task->scratch;

    for (size_t block = 0; block < task->blocks; from += task->lengths[block++])
        memcpy(task->target + task->places[block], from, task->lengths[block]);
}

static void progress(ucc_coll_task_t *of)
{
    ucc_tl_flexcast_task_t *task = ucc_derived_of(of, ucc_tl_flexcast_task_t);
    ucc_tl_flexcast_team_t *team = TASK_TEAM(task);
    int done                     = 0;
    flexcast_status status       = flexcast_test(task->request, &done);

    if (status == FLEXCAST_OK && !done) {
        of->status = UCC_INPROGRESS;
        return;
    }
    if (status == FLEXCAST_OK) {
        unpack(task);
        count(&team->carried[ucc_ilog2(of->bargs.args.coll_type)]);
    } else {
        tl_error(UCC_TASK_LIB(task), "%s: %s", ucc_coll_type_str(of->bargs.args.coll_type), flexcast_last_error());
        count(&team->failed);
    }
    /* The program may free the buffers as soon as it sees the end. */
    if (!UCC_IS_PERSISTENT(of->bargs.args))
        forget(task);
    of->status = tl_flexcast_status(status);
}

static ucc_status_t post(ucc_coll_task_t *of)
{
    ucc_tl_flexcast_task_t *task = ucc_derived_of(of, ucc_tl_flexcast_task_t);
    flexcast_status status       = flexcast_start(task->request);

    if (status != FLEXCAST_OK) {
        tl_error(UCC_TASK_LIB(task), "%s: %s", ucc_coll_type_str(of->bargs.args.coll_type), flexcast_last_error());
        count(&TASK_TEAM(task)->failed);
        of->status = tl_flexcast_status(status);
        return of->status;
    }
    of->status = UCC_INPROGRESS;
    return ucc_progress_queue_enqueue(UCC_TASK_CORE_CTX(task)->pq, of);
}

static ucc_status_t triggered_post(ucc_ee_h engine, ucc_ev_t *event, ucc_coll_task_t *of)
{
    tl_error(UCC_TASK_LIB(of), "%s cannot be posted by an execution engine: UCC_TL_FLEXCAST_TUNE=0 leaves it to other layers",
             ucc_coll_type_str(of->bargs.args.coll_type));
    return UCC_ERR_NOT_SUPPORTED;
}

static ucc_status_t finalize(ucc_coll_task_t *of)
{
    ucc_tl_flexcast_task_t *task = ucc_derived_of(of, ucc_tl_flexcast_task_t);
    ucc_tl_flexcast_team_t *team = TASK_TEAM(task);
    flexcast_status status       = flexcast_request_free(task->request);

    if (status == FLEXCAST_ERROR_BUSY) {
        /* UCC has given it up, after the program's timeout: the memory is free once the operation has ended on all ranks. */
        tl_warn(UCC_TASK_LIB(task), "%s is given up: the team's operations end", ucc_coll_type_str(of->bargs.args.coll_type));
        count(&team->failed);
        flexcast_cancel(team->comm);
        flexcast_wait(task->request);
        status = flexcast_request_free(task->request);
    }
    if (status != FLEXCAST_OK)
        tl_error(UCC_TASK_LIB(task), "%s", flexcast_last_error());
    forget(task);
    release(task);
    return tl_flexcast_status(status);
}

/* Whether the library would have to do more than it does. Alike on all ranks. */
static int is_foreign(const ucc_coll_args_t *args)
{
    return UCC_COLL_ARGS_ACTIVE_SET(args) ||
           ((args->mask & UCC_COLL_ARGS_FIELD_FLAGS) && (args->flags & UCC_COLL_ARGS_FLAG_MEM_MAPPED_BUFFERS));
}

static ucc_status_t make(ucc_tl_flexcast_task_t *task, ucc_tl_flexcast_team_t *team)
{
    tl_flexcast_translation_t into = {.lists = NULL};
    ucc_status_t status;

    into.lists = ucc_malloc(4 * UCC_TL_TEAM_SIZE(team) * sizeof *into.lists, "tl_flexcast_lists");
    if (into.lists == NULL)
        return UCC_ERR_NO_MEMORY;
    status = tl_flexcast_translate(task, team, &into);
    if (status == UCC_OK) {
        status = tl_flexcast_status(flexcast_prepare(team->comm, &into.collective, &task->request));
        if (status == UCC_ERR_NOT_SUPPORTED)
            tl_debug(UCC_TL_TEAM_LIB(team), "%s left to other layers: %s", ucc_coll_type_str(task->super.bargs.args.coll_type),
                     flexcast_last_error());
        else if (status != UCC_OK)
            tl_error(UCC_TL_TEAM_LIB(team), "%s: %s", ucc_coll_type_str(task->super.bargs.args.coll_type), flexcast_last_error());
    }
    ucc_free(into.lists);
    return status;
}

ucc_status_t ucc_tl_flexcast_coll_init(ucc_base_coll_args_t *args, ucc_base_team_t *of, ucc_coll_task_t **made)
{
    ucc_tl_flexcast_team_t *team = ucc_derived_of(of, ucc_tl_flexcast_team_t);
    ucc_tl_flexcast_task_t *task = NULL;
    ucc_status_t status          = UCC_ERR_NOT_SUPPORTED;

    if (!is_foreign(&args->args)) {
        task = ucc_mpool_get(&TL_FLEXCAST_CONTEXT(team)->tasks);
        if (task == NULL)
            return UCC_ERR_NO_MEMORY;
        ucc_coll_task_init(&task->super, args, of);
        task->request = NULL;
        task->send = task->receive = (tl_flexcast_range_t){NULL, 0};
        task->scratch = task->target = NULL;
        task->lengths = task->places = NULL;
        task->blocks  = 0;
        status        = make(task, team);
    }
    if (status != UCC_OK) {
        if (status == UCC_ERR_NOT_SUPPORTED)
            count(&team->refused);
        if (task != NULL)
            release(task);
        return status;
    }
    task->super.post           = post;
    task->super.progress       = progress;
    task->super.finalize       = finalize;
    task->super.triggered_post = triggered_post;
    *made                      = &task->super;
    return UCC_OK;
}
