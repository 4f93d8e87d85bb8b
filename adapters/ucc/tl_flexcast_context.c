/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Context: the endpoint that this process's teams share, and the settings of their communicators.
 */
#include "tl_flexcast.h"

/* NULL where nothing is set. */
static const char *text(const char *set)
{
    return set != NULL && set[0] != '\0' ? set : NULL;
}

static ucc_status_t open_endpoint(ucc_tl_flexcast_context_t *self, const ucc_tl_flexcast_context_config_t *set)
{
    flexcast_endpoint_options options;

    if (flexcast_endpoint_options_default(&options, sizeof options) != FLEXCAST_OK ||
        flexcast_config_default(&self->config, sizeof self->config) != FLEXCAST_OK)
        goto failed;
    options.datapath       = text(set->datapath);
    options.interface_name = text(set->interface_name);
    options.device         = text(set->device);
    options.firmware_path  = text(set->firmware);
    if (text(set->progress_thread) != NULL && flexcast_config_set(&self->config, "progress_thread", set->progress_thread) != FLEXCAST_OK)
        goto failed;
    if (flexcast_endpoint_open(&options, &self->endpoint) != FLEXCAST_OK)
        goto failed;
    if (flexcast_endpoint_datapath(self->endpoint, &self->datapath) != FLEXCAST_OK)
        goto opened;
    /* Sockets register nothing. */
    self->forget = !set->keep_registrations && strcmp(self->datapath, "udp") != 0;
    return UCC_OK;

opened:
    flexcast_endpoint_close(self->endpoint);
failed:
    /* UCC goes on without this layer, on all ranks: it asks them which layers they have. */
    tl_warn(self->super.super.lib, "not used: %s", flexcast_last_error());
    return UCC_ERR_NO_RESOURCE;
}

UCC_CLASS_INIT_FUNC(ucc_tl_flexcast_context_t, const ucc_base_context_params_t *params, const ucc_base_config_t *config)
{
    const ucc_tl_flexcast_context_config_t *set = ucc_derived_of(config, ucc_tl_flexcast_context_config_t);
    ucc_status_t status;

    UCC_CLASS_CALL_SUPER_INIT(ucc_tl_context_t, &set->super, params->context);
    status = ucc_mpool_init(&self->tasks, 0, sizeof(ucc_tl_flexcast_task_t), 0, UCC_CACHE_LINE_SIZE, 8, UINT_MAX, &ucc_coll_task_mpool_ops,
                            params->thread_mode, "tl_flexcast_tasks");
    if (status != UCC_OK) {
        tl_error(self->super.super.lib, "no memory for tasks");
        return status;
    }
    status = open_endpoint(self, set);
    if (status != UCC_OK) {
        ucc_mpool_cleanup(&self->tasks, 0);
        return status;
    }
    tl_debug(self->super.super.lib, "context over datapath %s, progress thread %u", self->datapath, self->config.progress_thread);
    return UCC_OK;
}

UCC_CLASS_CLEANUP_FUNC(ucc_tl_flexcast_context_t)
{
    if (flexcast_endpoint_close(self->endpoint) != FLEXCAST_OK)
        tl_warn(self->super.super.lib, "%s", flexcast_last_error());
    ucc_mpool_cleanup(&self->tasks, 1);
}

UCC_CLASS_DEFINE(ucc_tl_flexcast_context_t, ucc_tl_context_t);

void tl_flexcast_forget(ucc_tl_flexcast_team_t *team, tl_flexcast_range_t range)
{
    ucc_tl_flexcast_context_t *context = TL_FLEXCAST_CONTEXT(team);

    if (!context->forget || range.bytes == 0)
        return;
    /* Busy where another operation uses the memory, too: that one forgets it. */
    flexcast_status status = flexcast_buffer_invalidate(context->endpoint, range.start, range.bytes);
    if (status != FLEXCAST_OK && status != FLEXCAST_ERROR_BUSY)
        tl_warn(UCC_TL_TEAM_LIB(team), "%s", flexcast_last_error());
}
