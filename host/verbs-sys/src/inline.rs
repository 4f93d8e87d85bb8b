//! The calls that `infiniband/verbs.h` defines as inline functions: they go through the tables inside the context.

use core::ffi::c_int;

use crate::api::VerbsApi;
use crate::bindings::*;

/// The `verbs_context` around a context, if the provider has one (`abi_compat` is all ones).
///
/// # Safety
/// `context` must be a live context.
#[must_use]
pub unsafe fn verbs_get_ctx(context: *mut ibv_context) -> Option<*mut verbs_context> {
    // SAFETY: the caller vouches for the context.
    let extended = unsafe { (*context).abi_compat as usize == usize::MAX };
    extended.then(|| context.wrapping_byte_sub(core::mem::offset_of!(verbs_context, context)).cast())
}

/// `ibv_create_qp_ex`: the queue pair, or null and errno. None where the provider has no such call.
///
/// # Safety
/// As the C function: `context` must be live, `attr` initialised and writable, with live objects.
pub unsafe fn create_qp_ex(context: *mut ibv_context, attr: *mut ibv_qp_init_attr_ex) -> Option<*mut ibv_qp> {
    // SAFETY: the caller vouches for the context.
    let extended = unsafe { verbs_get_ctx(context) }?;
    // SAFETY: the structure is there, and at least as long as it says.
    let (create, len) = unsafe { ((*extended).create_qp_ex, (*extended).sz) };
    // Its slots lie in front of the context, from the newest on: an old provider's structure is short.
    let behind = size_of::<verbs_context>() - core::mem::offset_of!(verbs_context, create_qp_ex);
    // SAFETY: the provider's function, with the caller's arguments.
    create.filter(|_| len >= behind).map(|create| unsafe { create(context, attr) })
}

/// `ibv_post_send`: 0, or an errno value with `bad_wr` set to the first request that was not posted.
///
/// # Safety
/// As the C function: `qp` must be live, the list well formed, `bad_wr` writable.
pub unsafe fn post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: a live queue pair has a live context; the caller vouches for the rest.
    match unsafe { (*(*qp).context).ops.post_send } {
        // SAFETY: the provider's function, with the caller's arguments.
        Some(post_send) => unsafe { post_send(qp, wr, bad_wr) },
        None => libc::EOPNOTSUPP,
    }
}

/// `ibv_post_recv`: 0, or an errno value with `bad_wr` set to the first request that was not posted.
///
/// # Safety
/// As the C function: `qp` must be live, the list well formed, `bad_wr` writable.
pub unsafe fn post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: a live queue pair has a live context; the caller vouches for the rest.
    match unsafe { (*(*qp).context).ops.post_recv } {
        // SAFETY: the provider's function, with the caller's arguments.
        Some(post_recv) => unsafe { post_recv(qp, wr, bad_wr) },
        None => libc::EOPNOTSUPP,
    }
}

/// `ibv_poll_cq`: the number of completions written to `wc` (at most `num_entries`), negative on error.
///
/// # Safety
/// As the C function: `cq` must be live and `wc` have room for `num_entries`.
pub unsafe fn poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: a live completion queue has a live context; the caller vouches for the rest.
    match unsafe { (*(*cq).context).ops.poll_cq } {
        // SAFETY: the provider's function, with the caller's arguments.
        Some(poll_cq) => unsafe { poll_cq(cq, num_entries, wc) },
        None => -1,
    }
}

/// `ibv_req_notify_cq`: 0 or an errno value.
///
/// # Safety
/// As the C function: `cq` must be live.
pub unsafe fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: a live completion queue has a live context.
    match unsafe { (*(*cq).context).ops.req_notify_cq } {
        // SAFETY: the provider's function, with the caller's arguments.
        Some(req_notify_cq) => unsafe { req_notify_cq(cq, solicited_only) },
        None => libc::EOPNOTSUPP,
    }
}

/// `ibv_query_port`: fills the whole structure where the provider can, else the part older libraries know.
///
/// # Safety
/// As the C function: `context` must be live and `attr` writable.
pub unsafe fn query_port(api: &VerbsApi, context: *mut ibv_context, port_num: u8, attr: *mut ibv_port_attr) -> c_int {
    // SAFETY: the caller vouches for context and attr; a context says in `sz` which operations its table reaches to.
    unsafe {
        if let Some(extended) = verbs_get_ctx(context)
            && (*extended).sz >= size_of::<verbs_context>()
            && let Some(query) = (*extended).query_port
        {
            return query(context, port_num, attr, size_of::<ibv_port_attr>());
        }
        attr.write(core::mem::zeroed());
        (api.ibv_query_port)(context, port_num, attr.cast())
    }
}

/// `ibv_wr_start`: begins a batch of work requests; false where the provider has no such call.
///
/// # Safety
/// As the C function: `qp` must be a live queue pair of the extended interface.
pub unsafe fn wr_start(qp: *mut ibv_qp_ex) -> bool {
    // SAFETY: the caller vouches for the queue pair, whose provider filled the slot.
    unsafe { (*qp).wr_start.map(|start| start(qp)) }.is_some()
}

/// `ibv_wr_complete`: posts the batch; 0, or an errno value and nothing is posted.
///
/// # Safety
/// As the C function: `qp` must be live, with a batch that this thread has begun.
pub unsafe fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the caller vouches for the queue pair and the batch.
    unsafe { (*qp).wr_complete.map_or(libc::EOPNOTSUPP, |complete| complete(qp)) }
}

/// `ibv_wr_abort`: forgets the batch.
///
/// # Safety
/// As the C function: `qp` must be live, with a batch that this thread has begun.
pub unsafe fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller vouches for the queue pair and the batch.
    unsafe { (*qp).wr_abort.map(|abort| abort(qp)) };
}

/// `ibv_wr_local_inv`: adds to the batch a request that frees a key; false where the queue pair was not made for it.
///
/// # Safety
/// As the C function: `qp` must be live, with a batch that this thread has begun.
pub unsafe fn wr_local_inv(qp: *mut ibv_qp_ex, key: u32) -> bool {
    // SAFETY: the caller vouches for the queue pair and the batch.
    unsafe { (*qp).wr_local_inv.map(|add| add(qp, key)) }.is_some()
}

/// `mlx5dv_wr_mr_list`: adds to the batch a request that binds a key over other keys to a list; false where the
/// provider has no such call. What is wrong with the request is returned by [`wr_complete`].
///
/// # Safety
/// As the C function: `direct` must be of a live queue pair with a batch that this thread has begun, `mkey` live, and
/// `list` hold `count` initialised entries.
pub unsafe fn wr_mr_list(
    direct: *mut mlx5dv_qp_ex,
    mkey: *mut mlx5dv_mkey,
    access: u32,
    list: *mut ibv_sge,
    count: u16,
) -> bool {
    // SAFETY: the caller vouches for all of it.
    unsafe { (*direct).wr_mr_list.map(|add| add(direct, mkey, access, count, list)) }.is_some()
}
