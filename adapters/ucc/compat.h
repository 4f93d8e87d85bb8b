/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What differs between releases of UCC. The internal headers have no version of their own; they follow UCC_API_VERSION, which is the release's.
 */
#ifndef FLEXCAST_UCC_COMPAT_H
#define FLEXCAST_UCC_COMPAT_H

#include "components/tl/ucc_tl.h"

#if UCC_API_VERSION < UCC_VERSION(1, 3)
#error "this transport layer needs UCC 1.3 or later: give cargo xtask ucc the source tree of such a release"
#endif

/* From 1.4 on a layer clears what the core did not. */
static inline void tl_flexcast_clear_attr(ucc_base_ctx_attr_t *attr)
{
#if UCC_API_VERSION >= UCC_VERSION(1, 4)
    ucc_base_ctx_attr_clear(attr);
#endif
    /* No address: the bootstrap gathers what communicators need. */
    if (attr->attr.mask & UCC_CONTEXT_ATTR_FIELD_CTX_ADDR_LEN)
        attr->attr.ctx_addr_len = 0;
    if (attr->attr.mask & UCC_CONTEXT_ATTR_FIELD_WORK_BUFFER_SIZE)
        attr->attr.global_work_buffer_size = 0;
    attr->topo_required = 0;
}

/* From 1.5 on a layer maps memory for one-sided operations, or says that it does not; to be expanded once, before the interface is declared. */
#if UCC_API_VERSION >= UCC_VERSION(1, 5)
#define TL_FLEXCAST_MEMORY_MAPS                                                                                                          \
    static ucc_status_t ucc_tl_flexcast_mem_map(const ucc_base_context_t *context, ucc_mem_map_mode_t mode, ucc_mem_map_memh_t *memory,  \
                                                ucc_mem_map_tl_t *handle)                                                                \
    {                                                                                                                                    \
        return UCC_ERR_NOT_SUPPORTED;                                                                                                    \
    }                                                                                                                                    \
    static ucc_status_t ucc_tl_flexcast_mem_unmap(const ucc_base_context_t *context, ucc_mem_map_mode_t mode, ucc_mem_map_tl_t *handle)  \
    {                                                                                                                                    \
        return UCC_ERR_NOT_SUPPORTED;                                                                                                    \
    }                                                                                                                                    \
    static ucc_status_t ucc_tl_flexcast_memh_pack(const ucc_base_context_t *context, ucc_mem_map_mode_t mode, ucc_mem_map_tl_t *handle,  \
                                                  void **packed)                                                                         \
    {                                                                                                                                    \
        return UCC_ERR_NOT_SUPPORTED;                                                                                                    \
    }
#else
#define TL_FLEXCAST_MEMORY_MAPS
#endif

#endif
