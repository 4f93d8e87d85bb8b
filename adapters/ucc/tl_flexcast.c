/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Interface that UCC loads, its settings, and the library object.
 */
#include "tl_flexcast.h"

static ucc_config_field_t ucc_tl_flexcast_lib_config_table[] = {
    {"", "", NULL, ucc_offsetof(ucc_tl_flexcast_lib_config_t, super), UCC_CONFIG_TYPE_TABLE(ucc_tl_lib_config_table)},
    {NULL}};

static ucc_config_field_t ucc_tl_flexcast_context_config_table[] = {
    {"", "", NULL, ucc_offsetof(ucc_tl_flexcast_context_config_t, super), UCC_CONFIG_TYPE_TABLE(ucc_tl_context_config_table)},

    {"DATAPATH", "",
     "What moves the data: dpa (threads of the card's DPA), verbs (this process over an RDMA card), udp (IP multicast over a network "
     "interface) or auto; alike on all ranks. Empty: what FLEXCAST_DATAPATH says, or else udp.",
     ucc_offsetof(ucc_tl_flexcast_context_config_t, datapath), UCC_CONFIG_TYPE_STRING},

    {"INTERFACE", "",
     "Network interface of the datapath udp, by name or address. Empty: what FLEXCAST_INTERFACE says, or else the first that can multicast.",
     ucc_offsetof(ucc_tl_flexcast_context_config_t, interface_name), UCC_CONFIG_TYPE_STRING},

    {"DEVICE", "", "RDMA device of the datapaths dpa and verbs, such as mlx5_0. Empty: the first.",
     ucc_offsetof(ucc_tl_flexcast_context_config_t, device), UCC_CONFIG_TYPE_STRING},

    {"FIRMWARE", "", "File of the image for the datapath dpa.", ucc_offsetof(ucc_tl_flexcast_context_config_t, firmware),
     UCC_CONFIG_TYPE_STRING},

    {"PROGRESS_THREAD", "",
     "Whether (1 or 0) a thread of the library moves operations on while the program computes. Empty: what FLEXCAST_PROGRESS_THREAD says, "
     "or else 0.",
     ucc_offsetof(ucc_tl_flexcast_context_config_t, progress_thread), UCC_CONFIG_TYPE_STRING},

    {"KEEP_REGISTRATIONS", "n",
     "Keep memory registered with an RDMA card after an operation. Faster, and for programs alone that free or unmap no buffer of a "
     "collective before they end.",
     ucc_offsetof(ucc_tl_flexcast_context_config_t, keep_registrations), UCC_CONFIG_TYPE_BOOL},

    {NULL}};

UCC_CLASS_INIT_FUNC(ucc_tl_flexcast_lib_t, const ucc_base_lib_params_t *params, const ucc_base_config_t *config)
{
    const ucc_tl_flexcast_lib_config_t *own = ucc_derived_of(config, ucc_tl_flexcast_lib_config_t);

    UCC_CLASS_CALL_SUPER_INIT(ucc_tl_lib_t, &ucc_tl_flexcast.super, &own->super);
    if (flexcast_abi_version() < FLEXCAST_ABI_VERSION) {
        tl_error(&self->super, "libflexcast.so serves version %u of its interface, not %u: install the one that this layer was built with",
                 flexcast_abi_version(), (unsigned)FLEXCAST_ABI_VERSION);
        return UCC_ERR_NOT_SUPPORTED;
    }
    tl_debug(&self->super, "libflexcast %s", flexcast_version());
    return UCC_OK;
}

UCC_CLASS_CLEANUP_FUNC(ucc_tl_flexcast_lib_t)
{
    tl_debug(&self->super, "library object freed");
}

UCC_CLASS_DEFINE(ucc_tl_flexcast_lib_t, ucc_tl_lib_t);
UCC_CLASS_DEFINE_NEW_FUNC(ucc_tl_flexcast_lib_t, ucc_base_lib_t, const ucc_base_lib_params_t *, const ucc_base_config_t *);
UCC_CLASS_DEFINE_DELETE_FUNC(ucc_tl_flexcast_lib_t, ucc_base_lib_t);
UCC_CLASS_DEFINE_NEW_FUNC(ucc_tl_flexcast_context_t, ucc_base_context_t, const ucc_base_context_params_t *, const ucc_base_config_t *);
UCC_CLASS_DEFINE_DELETE_FUNC(ucc_tl_flexcast_context_t, ucc_base_context_t);
UCC_CLASS_DEFINE_NEW_FUNC(ucc_tl_flexcast_team_t, ucc_base_team_t, ucc_base_context_t *, const ucc_base_team_params_t *);

enum { SMALLEST_TEAM = 2 };

ucc_status_t ucc_tl_flexcast_get_lib_attr(const ucc_base_lib_t *lib, ucc_base_lib_attr_t *attr)
{
    attr->flags            = 0;
    attr->attr.thread_mode = UCC_THREAD_MULTIPLE;
    attr->attr.coll_types  = TL_FLEXCAST_COLLECTIVES;
    if (attr->mask & UCC_BASE_LIB_ATTR_FIELD_MIN_TEAM_SIZE)
        attr->min_team_size = SMALLEST_TEAM;
    if (attr->mask & UCC_BASE_LIB_ATTR_FIELD_MAX_TEAM_SIZE)
        attr->max_team_size = UCC_RANK_MAX;
    return UCC_OK;
}

ucc_status_t ucc_tl_flexcast_get_lib_properties(ucc_base_lib_properties_t *properties)
{
    properties->default_team_size = SMALLEST_TEAM;
    properties->min_team_size     = SMALLEST_TEAM;
    properties->max_team_size     = UCC_RANK_MAX;
    return UCC_OK;
}

ucc_status_t ucc_tl_flexcast_get_context_attr(const ucc_base_context_t *context, ucc_base_ctx_attr_t *attr)
{
    tl_flexcast_clear_attr(attr);
    return UCC_OK;
}

ucc_status_t ucc_tl_flexcast_team_create_test(ucc_base_team_t *team);
ucc_status_t ucc_tl_flexcast_team_destroy(ucc_base_team_t *team);
ucc_status_t ucc_tl_flexcast_team_get_scores(ucc_base_team_t *team, ucc_coll_score_t **score);

TL_FLEXCAST_MEMORY_MAPS
UCC_TL_IFACE_DECLARE(flexcast, FLEXCAST);
