//! The rest of the calls that programs import: names of codes, and answers for what is not emulated.

use core::ffi::{c_char, c_int, c_void};

use verbs_sys::*;

use crate::errno::{Errno, pointer, status};

fn text(text: &'static core::ffi::CStr) -> *const c_char {
    text.as_ptr()
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_wc_status_str(wc_status: ibv_wc_status) -> *const c_char {
    text(match wc_status {
        IBV_WC_SUCCESS => c"success",
        IBV_WC_LOC_LEN_ERR => c"local length error",
        IBV_WC_LOC_QP_OP_ERR => c"local queue pair operation error",
        IBV_WC_LOC_EEC_OP_ERR => c"local end-to-end context operation error",
        IBV_WC_LOC_PROT_ERR => c"local protection error",
        IBV_WC_WR_FLUSH_ERR => c"work request flushed",
        IBV_WC_MW_BIND_ERR => c"memory window bind error",
        IBV_WC_BAD_RESP_ERR => c"bad response",
        IBV_WC_LOC_ACCESS_ERR => c"local access error",
        IBV_WC_REM_INV_REQ_ERR => c"remote invalid request",
        IBV_WC_REM_ACCESS_ERR => c"remote access error",
        IBV_WC_REM_OP_ERR => c"remote operation error",
        IBV_WC_RETRY_EXC_ERR => c"transport retries exceeded",
        IBV_WC_RNR_RETRY_EXC_ERR => c"receiver-not-ready retries exceeded",
        IBV_WC_LOC_RDD_VIOL_ERR => c"local reliable datagram domain violation",
        IBV_WC_REM_INV_RD_REQ_ERR => c"remote invalid reliable datagram request",
        IBV_WC_REM_ABORT_ERR => c"remote aborted",
        IBV_WC_INV_EECN_ERR => c"invalid end-to-end context number",
        IBV_WC_INV_EEC_STATE_ERR => c"invalid end-to-end context state",
        IBV_WC_FATAL_ERR => c"fatal error",
        IBV_WC_RESP_TIMEOUT_ERR => c"response timeout",
        IBV_WC_GENERAL_ERR => c"general error",
        IBV_WC_TM_ERR => c"tag matching error",
        IBV_WC_TM_RNDV_INCOMPLETE => c"rendezvous incomplete",
        _ => c"unknown",
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_port_state_str(state: ibv_port_state) -> *const c_char {
    text(match state {
        IBV_PORT_NOP => c"no state change",
        IBV_PORT_DOWN => c"down",
        IBV_PORT_INIT => c"init",
        IBV_PORT_ARMED => c"armed",
        IBV_PORT_ACTIVE => c"active",
        IBV_PORT_ACTIVE_DEFER => c"active defer",
        _ => c"unknown",
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_node_type_str(node_type: ibv_node_type) -> *const c_char {
    text(match node_type {
        IBV_NODE_CA => c"channel adapter",
        IBV_NODE_SWITCH => c"switch",
        IBV_NODE_ROUTER => c"router",
        _ => c"unknown",
    })
}

/// Forking is harmless here: nothing is pinned.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// No such files: the devices are not the kernel's.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_read_sysfs_file(
    _dir: *const c_char,
    _file: *const c_char,
    _buf: *mut c_char,
    _size: usize,
) -> c_int {
    -1
}

const ROCE_V2: u32 = 2;

/// Every GID of an emulated port is a RoCEv2 one.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_gid_type(
    context: *mut ibv_context,
    port_num: u8,
    index: core::ffi::c_uint,
    gid_type: *mut u32,
) -> c_int {
    let mut gid = ibv_gid { raw: [0; 16] };
    // SAFETY: the GID is writable; the rest is checked by the call.
    let known = unsafe { crate::device::ibv_query_gid(context, port_num, index as c_int, &raw mut gid) };
    if known == 0 && !gid_type.is_null() {
        // SAFETY: not null, and writable as the caller promises.
        unsafe { gid_type.write(ROCE_V2) };
    }
    known
}

/// Only the extended interface of newer programs asks; there is none.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_qp_to_qp_ex(_qp: *mut ibv_qp) -> *mut c_void {
    pointer("ibv_qp_to_qp_ex", || Err(Errno::unsupported("the extended send interface is not emulated")))
}

macro_rules! unsupported {
    ($($reason:literal: fn $name:ident($($arg:ty),*) -> $kind:ident $ret:ty;)*) => {$(
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name($(_: $arg),*) -> $ret {
            crate::errno::$kind(stringify!($name), || Err(Errno::unsupported($reason)))
        }
    )*};
}

// Programs that are linked against the real library import these whether they call them or not.
unsupported! {
    "shared receive queues are not emulated": fn ibv_create_srq(*mut ibv_pd, *mut c_void) -> pointer *mut ibv_srq;
    "shared receive queues are not emulated": fn ibv_modify_srq(*mut ibv_srq, *mut c_void, c_int) -> status c_int;
    "shared receive queues are not emulated": fn ibv_query_srq(*mut ibv_srq, *mut c_void) -> status c_int;
    "shared receive queues are not emulated": fn ibv_destroy_srq(*mut ibv_srq) -> status c_int;
    "completion queues keep their size": fn ibv_resize_cq(*mut ibv_cq, c_int) -> status c_int;
    "memory regions keep their range; register another one":
        fn ibv_rereg_mr(*mut ibv_mr, c_int, *mut ibv_pd, *mut c_void, usize, c_int) -> status c_int;
    "memory of other devices is not emulated":
        fn ibv_reg_dmabuf_mr(*mut ibv_pd, u64, usize, u64, c_int, c_int) -> pointer *mut ibv_mr;
}

/// The tables of a context call these instead of nothing.
pub(crate) unsafe extern "C" fn bind_mw(_: *mut ibv_qp, _: *mut ibv_mw, _: *mut ibv_mw_bind) -> c_int {
    status("ibv_bind_mw", || Err(Errno::unsupported("memory windows are not emulated")))
}

/// See [`bind_mw`].
pub(crate) unsafe extern "C" fn post_srq_recv(_: *mut ibv_srq, _: *mut ibv_recv_wr, _: *mut *mut ibv_recv_wr) -> c_int {
    status("ibv_post_srq_recv", || Err(Errno::unsupported("shared receive queues are not emulated")))
}
