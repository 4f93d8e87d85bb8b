/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects of the transport layer, and how they call one another.
 */
#ifndef UCC_TL_FLEXCAST_H
#define UCC_TL_FLEXCAST_H

#include "compat.h"

#include "coll_score/ucc_coll_score.h"
#include "components/tl/ucc_tl_log.h"
#include "core/ucc_progress_queue.h"
#include "schedule/ucc_schedule.h"
#include "utils/ucc_mpool.h"

#include <flexcast.h>

/* Above tl/ucp (10) and below tl/sharp (30), which reduces in switches. No two layers may have the same. */
#define UCC_TL_FLEXCAST_DEFAULT_SCORE 25

#define TL_FLEXCAST_COLLECTIVES                                                                                                          \
    (UCC_COLL_TYPE_ALLGATHER | UCC_COLL_TYPE_ALLGATHERV | UCC_COLL_TYPE_ALLREDUCE | UCC_COLL_TYPE_ALLTOALL | UCC_COLL_TYPE_ALLTOALLV |   \
     UCC_COLL_TYPE_BARRIER | UCC_COLL_TYPE_BCAST | UCC_COLL_TYPE_GATHER | UCC_COLL_TYPE_GATHERV | UCC_COLL_TYPE_REDUCE |                 \
     UCC_COLL_TYPE_REDUCE_SCATTER | UCC_COLL_TYPE_REDUCE_SCATTERV | UCC_COLL_TYPE_SCATTER | UCC_COLL_TYPE_SCATTERV)

typedef struct {
    ucc_tl_iface_t super;
} ucc_tl_flexcast_iface_t;
/* UCC looks for this name. */
extern ucc_tl_flexcast_iface_t ucc_tl_flexcast;

typedef struct {
    ucc_tl_lib_config_t super;
} ucc_tl_flexcast_lib_config_t;

/* Variables UCC_TL_FLEXCAST_*; an empty text leaves it to the library, which has variables of its own. */
typedef struct {
    ucc_tl_context_config_t super;
    char *datapath;
    char *interface_name;
    char *device;
    char *firmware;
    char *progress_thread;
    int keep_registrations;
} ucc_tl_flexcast_context_config_t;

typedef struct ucc_tl_flexcast_lib {
    ucc_tl_lib_t super;
} ucc_tl_flexcast_lib_t;
UCC_CLASS_DECLARE(ucc_tl_flexcast_lib_t, const ucc_base_lib_params_t *, const ucc_base_config_t *);

typedef struct ucc_tl_flexcast_context {
    ucc_tl_context_t super;
    flexcast_endpoint *endpoint;
    const char *datapath;
    flexcast_config config;
    /* Whether memory that an operation has used is to be forgotten after it: UCC does not say when the program frees it. */
    int forget;
    ucc_mpool_t tasks;
} ucc_tl_flexcast_context_t;
UCC_CLASS_DECLARE(ucc_tl_flexcast_context_t, const ucc_base_context_params_t *, const ucc_base_config_t *);

typedef struct ucc_tl_flexcast_team {
    ucc_tl_team_t super;
    flexcast_bootstrap *bootstrap;
    flexcast_comm *comm;
    /* Ready, and moved on with UCC's context. */
    int ready, registered;
    uint32_t calls;
    /* For the line at the end: operations over by kind, and those left to another layer. */
    uint64_t carried[UCC_COLL_TYPE_NUM], refused, failed;
} ucc_tl_flexcast_team_t;
UCC_CLASS_DECLARE(ucc_tl_flexcast_team_t, ucc_base_context_t *, const ucc_base_team_params_t *);

#define TL_FLEXCAST_CONTEXT(_team) ucc_derived_of((_team)->super.super.context, ucc_tl_flexcast_context_t)

/* Memory that an operation uses. */
typedef struct {
    const void *start;
    size_t bytes;
} tl_flexcast_range_t;

typedef struct {
    ucc_coll_task_t super;
    flexcast_request *request;
    tl_flexcast_range_t send, receive;
    /* Where the operation receives in memory of its own, and what goes where in `target` at the end: `blocks` of them, that lie in `scratch` one after another. */
    char *scratch, *target;
    size_t blocks, *lengths, *places;
} ucc_tl_flexcast_task_t;

/* An operation as the library takes it, and the lists that it points at until flexcast_prepare() has copied them. */
typedef struct {
    flexcast_collective collective;
    size_t *lists;
} tl_flexcast_translation_t;

/* UCC's arguments as the library's. UCC_ERR_NOT_SUPPORTED depends on what is alike on all ranks alone. */
ucc_status_t tl_flexcast_translate(ucc_tl_flexcast_task_t *task, ucc_tl_flexcast_team_t *team, tl_flexcast_translation_t *into);

ucc_status_t ucc_tl_flexcast_coll_init(ucc_base_coll_args_t *args, ucc_base_team_t *team, ucc_coll_task_t **task);
ucc_status_t tl_flexcast_status(flexcast_status status);
/* Forgets what the card knows of the memory. */
void tl_flexcast_forget(ucc_tl_flexcast_team_t *team, tl_flexcast_range_t range);

#endif
