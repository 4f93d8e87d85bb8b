/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Team: a communicator, made without blocking by the team's out-of-band Allgather.
 */
#include "tl_flexcast.h"

/* A team whose operations nobody tests is moved on at every so many calls of ucc_context_progress(): neighbours may need it. */
enum { CALLS_BETWEEN_MOVES = 16 };

static int gather_start(void *user, const void *mine, void *all, size_t bytes, void **handle)
{
    ucc_team_oob_coll_t *oob = user;
    return oob->allgather((void *)mine, all, bytes, oob->coll_info, handle) == UCC_OK ? 0 : -1;
}

static int gather_test(void *user, void *handle)
{
    ucc_team_oob_coll_t *oob = user;
    ucc_status_t status      = oob->req_test(handle);
    return status == UCC_OK ? 0 : status > 0 ? 1 : -1;
}

static int gather_free(void *user, void *handle)
{
    ucc_team_oob_coll_t *oob = user;
    return oob->req_free(handle) == UCC_OK ? 0 : -1;
}

static unsigned move_on(void *of)
{
    ucc_tl_flexcast_team_t *team = of;
    int moved                    = 0;

    if (++team->calls % CALLS_BETWEEN_MOVES == 0)
        /* What fails is told by the operation that it fails. */
        flexcast_progress(team->comm, &moved);
    return moved;
}

UCC_CLASS_INIT_FUNC(ucc_tl_flexcast_team_t, ucc_base_context_t *of, const ucc_base_team_params_t *params)
{
    ucc_tl_flexcast_context_t *context     = ucc_derived_of(of, ucc_tl_flexcast_context_t);
    flexcast_allgather_functions functions = {
        .size = sizeof functions, .start = gather_start, .test = gather_test, .free = gather_free};
    ucc_team_oob_coll_t *oob;

    UCC_CLASS_CALL_SUPER_INIT(ucc_tl_team_t, &context->super, params);
    self->bootstrap  = NULL;
    self->comm       = NULL;
    self->ready      = 0;
    self->registered = 0;
    self->calls      = 0;
    self->refused    = 0;
    self->failed     = 0;
    memset(self->carried, 0, sizeof self->carried);

    oob = &UCC_TL_TEAM_OOB(self);
    if (oob->allgather == NULL || oob->n_oob_eps != UCC_TL_TEAM_SIZE(self) || oob->oob_ep != UCC_TL_TEAM_RANK(self)) {
        tl_debug(of->lib, "the team has no out-of-band Allgather of its own ranks");
        return UCC_ERR_NOT_SUPPORTED;
    }
    if ((params->params.mask & UCC_TEAM_PARAM_FIELD_ORDERING) && params->params.ordering == UCC_COLLECTIVE_POST_UNORDERED) {
        tl_debug(of->lib, "ranks of the team may post in any order");
        return UCC_ERR_NOT_SUPPORTED;
    }
    functions.user = oob;
    if (flexcast_bootstrap_allgather(&functions, UCC_TL_TEAM_RANK(self), UCC_TL_TEAM_SIZE(self), &self->bootstrap) != FLEXCAST_OK)
        goto failed;
    if (flexcast_comm_create_begin(context->endpoint, self->bootstrap, &context->config, &self->comm) != FLEXCAST_OK) {
        tl_warn(of->lib, "team of %u ranks left to other layers: %s", UCC_TL_TEAM_SIZE(self), flexcast_last_error());
        flexcast_bootstrap_free(self->bootstrap);
        return UCC_ERR_NO_RESOURCE;
    }
    return UCC_OK;

failed:
    tl_warn(of->lib, "team of %u ranks left to other layers: %s", UCC_TL_TEAM_SIZE(self), flexcast_last_error());
    return UCC_ERR_NO_RESOURCE;
}

UCC_CLASS_CLEANUP_FUNC(ucc_tl_flexcast_team_t)
{
}

UCC_CLASS_DEFINE_DELETE_FUNC(ucc_tl_flexcast_team_t, ucc_base_team_t);
UCC_CLASS_DEFINE(ucc_tl_flexcast_team_t, ucc_tl_team_t);

ucc_status_t ucc_tl_flexcast_team_create_test(ucc_base_team_t *of)
{
    ucc_tl_flexcast_team_t *team       = ucc_derived_of(of, ucc_tl_flexcast_team_t);
    ucc_tl_flexcast_context_t *context = TL_FLEXCAST_CONTEXT(team);
    int ready                          = 0;

    if (team->ready)
        return UCC_OK;
    if (flexcast_comm_test(team->comm, &ready) != FLEXCAST_OK) {
        tl_warn(of->context->lib, "team of %u ranks left to other layers: %s", UCC_TL_TEAM_SIZE(team), flexcast_last_error());
        return UCC_ERR_NO_RESOURCE;
    }
    if (!ready)
        return UCC_INPROGRESS;
    if (!context->config.progress_thread) {
        ucc_status_t status = ucc_context_progress_register(UCC_TL_CORE_CTX(team), move_on, team);
        if (status != UCC_OK)
            return status;
        team->registered = 1;
    }
    team->ready = 1;
    tl_info(of->context->lib, "rank %u of %u: collectives on host memory by libflexcast %s, datapath %s", UCC_TL_TEAM_RANK(team),
            UCC_TL_TEAM_SIZE(team), flexcast_version(), context->datapath);
    return UCC_OK;
}

/* What was done by whom, so that a log shows that this layer carried it. */
static void tell(ucc_tl_flexcast_team_t *team)
{
    char line[512];
    size_t at = 0;

    for (int kind = 0; kind < UCC_COLL_TYPE_NUM && at < sizeof line; kind++)
        if (team->carried[kind] > 0)
            at += snprintf(line + at, sizeof line - at, "%s%s %llu", at > 0 ? ", " : "", ucc_coll_type_str((ucc_coll_type_t)UCC_BIT(kind)),
                           (unsigned long long)team->carried[kind]);
    tl_info(UCC_TL_TEAM_LIB(team), "rank %u of %u: carried: %s; left to other layers: %llu; failed: %llu", UCC_TL_TEAM_RANK(team),
            UCC_TL_TEAM_SIZE(team), at > 0 ? line : "none", (unsigned long long)team->refused, (unsigned long long)team->failed);
}

ucc_status_t ucc_tl_flexcast_team_destroy(ucc_base_team_t *of)
{
    ucc_tl_flexcast_team_t *team = ucc_derived_of(of, ucc_tl_flexcast_team_t);
    flexcast_status status;

    if (team->registered) {
        ucc_context_progress_deregister(UCC_TL_CORE_CTX(team), move_on, team);
        team->registered = 0;
    }
    if (team->comm != NULL) {
        status = flexcast_comm_free(team->comm);
        if (status == FLEXCAST_ERROR_BUSY && team->ready)
            return UCC_INPROGRESS;
        if (status != FLEXCAST_OK)
            tl_warn(of->context->lib, "%s", flexcast_last_error());
        if (team->ready)
            tell(team);
        team->comm = NULL;
    }
    if (team->bootstrap != NULL) {
        status = flexcast_bootstrap_free(team->bootstrap);
        if (status == FLEXCAST_ERROR_BUSY)
            /* A thread that gives up the communicator has it for a moment. */
            return UCC_INPROGRESS;
        if (status != FLEXCAST_OK)
            tl_warn(of->context->lib, "%s", flexcast_last_error());
        team->bootstrap = NULL;
    }
    UCC_CLASS_DELETE_FUNC_NAME(ucc_tl_flexcast_team_t)(of);
    return UCC_OK;
}

ucc_status_t ucc_tl_flexcast_team_get_scores(ucc_base_team_t *of, ucc_coll_score_t **score)
{
    ucc_tl_flexcast_team_t *team    = ucc_derived_of(of, ucc_tl_flexcast_team_t);
    ucc_memory_type_t kinds[]       = {UCC_MEMORY_TYPE_HOST};
    ucc_coll_score_team_info_t info = {.default_score       = UCC_TL_FLEXCAST_DEFAULT_SCORE,
                                       .size                = UCC_TL_TEAM_SIZE(team),
                                       .num_mem_types       = 1,
                                       .supported_mem_types = kinds,
                                       .supported_colls     = TL_FLEXCAST_COLLECTIVES,
                                       .init                = ucc_tl_flexcast_coll_init,
                                       .alg_fn              = NULL};
    const char *tune                = of->context->score_str;
    ucc_status_t status;

    status = ucc_coll_score_build_default(of, UCC_TL_FLEXCAST_DEFAULT_SCORE, ucc_tl_flexcast_coll_init, TL_FLEXCAST_COLLECTIVES, kinds, 1,
                                          score);
    if (status != UCC_OK || tune == NULL || tune[0] == '\0')
        return status;
    status = ucc_coll_score_update_from_str(tune, &info, of, *score);
    /* UCC has told of a text that it does not understand. */
    if (status < 0 && status != UCC_ERR_INVALID_PARAM && status != UCC_ERR_NOT_SUPPORTED) {
        ucc_coll_score_free(*score);
        return status;
    }
    return UCC_OK;
}
