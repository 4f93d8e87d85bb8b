//! Calls that programs import and the emulated card has no feature for: each fails with `EOPNOTSUPP` and says why in
//! the log.
//!
//! Their arguments are not read, so they are declared without: in the C calling conventions of Linux the caller
//! cleans up after its arguments. A program linked against rdma-core finds every name it may ask for.

use core::ffi::{c_char, c_int, c_long, c_void};

use verbs_sys::*;

use crate::errno::{self, Errno};

macro_rules! status {
    ($reason:literal: $($name:ident),* $(,)?) => {$(
        #[unsafe(no_mangle)]
        pub(crate) extern "C" fn $name() -> c_int {
            errno::status(stringify!($name), || Err(Errno::unsupported($reason)))
        }
    )*};
}

macro_rules! pointer {
    ($reason:literal: $($name:ident),* $(,)?) => {$(
        #[unsafe(no_mangle)]
        pub(crate) extern "C" fn $name() -> *mut c_void {
            errno::pointer(stringify!($name), || Err(Errno::unsupported($reason)))
        }
    )*};
}

macro_rules! nothing {
    ($reason:literal: $($name:ident),* $(,)?) => {$(
        #[unsafe(no_mangle)]
        pub(crate) extern "C" fn $name() {
            errno::status(stringify!($name), || Err(Errno::unsupported($reason)));
        }
    )*};
}

// ---- verbs

pointer! {
    "objects of another process are not emulated":
    ibv_import_device, ibv_import_dm, ibv_import_mr, ibv_import_pd
}

nothing! {
    "objects of another process are not emulated":
    ibv_unimport_dm, ibv_unimport_mr, ibv_unimport_pd
}

// ---- operation tables of a context
//
// The header's inline functions call through these tables. Where a slot is empty they answer EOPNOTSUPP by themselves,
// and nobody learns why.

/// A function for a slot that programs call with arguments, and take a pointer or an `int` from.
macro_rules! slot {
    (pointer $call:literal $reason:expr) => {{
        unsafe extern "C" fn refuse() -> *mut c_void {
            errno::pointer($call, || Err(Errno::unsupported($reason)))
        }
        Some(refuse)
    }};
    (status $call:literal $reason:expr) => {{
        unsafe extern "C" fn refuse() -> *mut c_void {
            let errno = errno::status($call, || Err(Errno::unsupported($reason)));
            // An `int` is returned in the low half of the register of a pointer, on x86-64 and on AArch64.
            std::ptr::without_provenance_mut(errno as usize)
        }
        Some(refuse)
    }};
}

const XRC: &str = "extended reliable connections (XRC) are not emulated";
const COUNTERS: &str = "counters of flows are not emulated";
const STEERING: &str =
    "this part of steering is not emulated: tables, matchers and rules to a TIR, a table, the port or nowhere are";
const RAW_QUEUES: &str = "work queues of raw packets are not emulated";

unsafe extern "C" fn open_qp(_: *mut ibv_context, _: *mut ibv_qp_open_attr) -> *mut ibv_qp {
    errno::pointer("ibv_open_qp", || Err(Errno::unsupported(XRC)))
}

unsafe extern "C" fn open_xrcd(_: *mut ibv_context, _: *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd {
    errno::pointer("ibv_open_xrcd", || Err(Errno::unsupported(XRC)))
}

unsafe extern "C" fn close_xrcd(_: *mut ibv_xrcd) -> c_int {
    errno::status("ibv_close_xrcd", || Err(Errno::unsupported(XRC)))
}

/// Fills the slots of operations that are not emulated. rdma-core itself leaves those empty that have a place holder's
/// name.
pub(crate) fn fill(table: &mut verbs_context) {
    table.alloc_null_mr = slot!(pointer "ibv_alloc_null_mr" "memory regions without memory are not emulated");
    table.read_counters = slot!(status "ibv_read_counters" COUNTERS);
    table.attach_counters_point_flow = slot!(status "ibv_attach_counters_point_flow" COUNTERS);
    table.create_counters = slot!(pointer "ibv_create_counters" COUNTERS);
    table.destroy_counters = slot!(status "ibv_destroy_counters" COUNTERS);
    table.modify_flow_action_esp = slot!(status "ibv_modify_flow_action_esp" STEERING);
    table.destroy_flow_action = slot!(status "ibv_destroy_flow_action" STEERING);
    table.create_flow_action_esp = slot!(pointer "ibv_create_flow_action_esp" STEERING);
    table.modify_qp_rate_limit = slot!(status "ibv_modify_qp_rate_limit" "pacing of queue pairs is not emulated");
    table.post_srq_ops = slot!(status "ibv_post_srq_ops" "shared receive queues do not match tags");
    table.destroy_rwq_ind_table = slot!(status "ibv_destroy_rwq_ind_table" RAW_QUEUES);
    table.create_rwq_ind_table = slot!(pointer "ibv_create_rwq_ind_table" RAW_QUEUES);
    table.destroy_wq = slot!(status "ibv_destroy_wq" RAW_QUEUES);
    table.modify_wq = slot!(status "ibv_modify_wq" RAW_QUEUES);
    table.create_wq = slot!(pointer "ibv_create_wq" RAW_QUEUES);
    table.ibv_destroy_flow = slot!(status "ibv_destroy_flow" STEERING);
    table.ibv_create_flow = slot!(pointer "ibv_create_flow" STEERING);
    table.open_qp = Some(open_qp);
    table.open_xrcd = Some(open_xrcd);
    table.close_xrcd = Some(close_xrcd);
}

// ---- mlx5 direct verbs

pointer! {
    "DevX event channels, event queues, asynchronous commands and commands on verbs objects are not emulated":
    mlx5dv_devx_alloc_msi_vector, mlx5dv_devx_create_cmd_comp, mlx5dv_devx_create_eq,
    mlx5dv_devx_create_event_channel, mlx5dv_devx_umem_reg_ex
}

pointer! {
    "inline encryption is not emulated":
    mlx5dv_crypto_login_create, mlx5dv_dek_create
}

pointer! {
    "memory on the card is not emulated":
    mlx5dv_alloc_dm, mlx5dv_dm_map_op_addr
}

pointer! {
    "scheduling, pacing and link aggregation are not emulated":
    mlx5dv_pp_alloc, mlx5dv_sched_leaf_create, mlx5dv_sched_node_create
}

pointer! {
    "this part of steering is not emulated: tables, matchers and rules to a TIR, a table, the port or nowhere are":
    mlx5dv_create_flow, mlx5dv_create_flow_action_esp, mlx5dv_create_flow_action_modify_header,
    mlx5dv_create_flow_action_packet_reformat, mlx5dv_create_flow_matcher, mlx5dv_create_steering_anchor,
    mlx5dv_dr_action_create_aso, mlx5dv_dr_action_create_default_miss, mlx5dv_dr_action_create_dest_array,
    mlx5dv_dr_action_create_dest_ibv_qp, mlx5dv_dr_action_create_dest_root_table,
    mlx5dv_dr_action_create_flow_counter, mlx5dv_dr_action_create_flow_meter, mlx5dv_dr_action_create_flow_sampler,
    mlx5dv_dr_action_create_modify_header, mlx5dv_dr_action_create_packet_reformat,
    mlx5dv_dr_action_create_pop_vlan, mlx5dv_dr_action_create_push_vlan, mlx5dv_dr_action_create_tag
}

pointer! {
    "this part of mlx5 direct verbs is not emulated":
    mlx5dv_alloc_var, mlx5dv_create_cq, mlx5dv_create_wq, mlx5dv_get_vfio_device_list
}

status! {
    "DevX event channels, event queues, asynchronous commands and commands on verbs objects are not emulated":
    mlx5dv_devx_cq_modify, mlx5dv_devx_cq_query, mlx5dv_devx_destroy_eq, mlx5dv_devx_free_msi_vector,
    mlx5dv_devx_get_async_cmd_comp, mlx5dv_devx_ind_tbl_modify, mlx5dv_devx_ind_tbl_query,
    mlx5dv_devx_obj_query_async, mlx5dv_devx_qp_modify, mlx5dv_devx_qp_query, mlx5dv_devx_query_eqn,
    mlx5dv_devx_srq_modify, mlx5dv_devx_srq_query, mlx5dv_devx_subscribe_devx_event,
    mlx5dv_devx_subscribe_devx_event_fd, mlx5dv_devx_wq_modify, mlx5dv_devx_wq_query
}

status! {
    "inline encryption is not emulated":
    mlx5dv_crypto_login, mlx5dv_crypto_login_destroy, mlx5dv_crypto_login_query, mlx5dv_crypto_login_query_state,
    mlx5dv_crypto_logout, mlx5dv_dek_destroy, mlx5dv_dek_query
}

status! {
    "keys have no signatures that could be checked":
    _mlx5dv_mkey_check
}

status! {
    "scheduling, pacing and link aggregation are not emulated":
    mlx5dv_modify_qp_lag_port, mlx5dv_modify_qp_sched_elem, mlx5dv_query_qp_lag_port, mlx5dv_sched_leaf_destroy,
    mlx5dv_sched_leaf_modify, mlx5dv_sched_node_destroy, mlx5dv_sched_node_modify
}

status! {
    "this part of steering is not emulated: tables, matchers and rules to a TIR, a table, the port or nowhere are":
    mlx5dv_destroy_flow_matcher, mlx5dv_destroy_steering_anchor,
    mlx5dv_dr_action_modify_aso, mlx5dv_dr_action_modify_flow_meter, mlx5dv_dr_aso_other_domain_link,
    mlx5dv_dr_aso_other_domain_unlink, mlx5dv_dump_dr_domain,
    mlx5dv_dump_dr_matcher, mlx5dv_dump_dr_rule, mlx5dv_dump_dr_table
}

status! {
    "this part of mlx5 direct verbs is not emulated":
    _mlx5dv_query_port, mlx5dv_dci_stream_id_reset, mlx5dv_get_clock_info, mlx5dv_map_ah_to_qp,
    mlx5dv_modify_qp_udp_sport, mlx5dv_qp_cancel_posted_send_wrs, mlx5dv_reserved_qpn_alloc,
    mlx5dv_reserved_qpn_dealloc, mlx5dv_set_context_attr, mlx5dv_vfio_get_events_fd, mlx5dv_vfio_process_events
}

nothing! {
    "DevX event channels, event queues, asynchronous commands and commands on verbs objects are not emulated":
    mlx5dv_devx_destroy_cmd_comp, mlx5dv_devx_destroy_event_channel
}

nothing! {
    "scheduling, pacing and link aggregation are not emulated":
    mlx5dv_pp_free
}

nothing! {
    "this part of steering is not emulated: tables, matchers and rules to a TIR, a table, the port or nowhere are":
    mlx5dv_dr_domain_set_reclaim_device_memory
}

nothing! {
    "this part of mlx5 direct verbs is not emulated":
    mlx5dv_free_var
}

/// A number of bytes, or -1.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn mlx5dv_devx_get_event() -> c_long {
    c_long::from(errno::number("mlx5dv_devx_get_event", || {
        Err(Errno::unsupported("DevX event channels are not emulated"))
    }))
}

// ---- what provider libraries import
//
// Programs such as perftest load providers of other vendors (libefa). Those register themselves and are then never
// asked: the only devices are the emulated ones.

status! {
    "there is no kernel driver behind the emulated cards":
    execute_ioctl, ibv_cmd_advise_mr, ibv_cmd_alloc_dm, ibv_cmd_alloc_mw, ibv_cmd_alloc_pd, ibv_cmd_attach_mcast,
    ibv_cmd_close_xrcd, ibv_cmd_create_ah, ibv_cmd_create_counters, ibv_cmd_create_cq, ibv_cmd_create_cq_ex,
    ibv_cmd_create_flow, ibv_cmd_create_flow_action_esp, ibv_cmd_create_qp, ibv_cmd_create_qp_ex,
    ibv_cmd_create_qp_ex2, ibv_cmd_create_rwq_ind_table, ibv_cmd_create_srq, ibv_cmd_create_srq_ex,
    ibv_cmd_create_wq, ibv_cmd_dealloc_mw, ibv_cmd_dealloc_pd, ibv_cmd_dereg_mr, ibv_cmd_destroy_ah,
    ibv_cmd_destroy_counters, ibv_cmd_destroy_cq, ibv_cmd_destroy_flow, ibv_cmd_destroy_flow_action,
    ibv_cmd_destroy_qp, ibv_cmd_destroy_rwq_ind_table, ibv_cmd_destroy_srq, ibv_cmd_destroy_wq,
    ibv_cmd_detach_mcast, ibv_cmd_free_dm, ibv_cmd_get_context, ibv_cmd_modify_cq, ibv_cmd_modify_flow_action_esp,
    ibv_cmd_modify_qp, ibv_cmd_modify_qp_ex, ibv_cmd_modify_srq, ibv_cmd_modify_wq, ibv_cmd_open_qp,
    ibv_cmd_open_xrcd, ibv_cmd_poll_cq, ibv_cmd_post_recv, ibv_cmd_post_send, ibv_cmd_post_srq_recv,
    ibv_cmd_query_context, ibv_cmd_query_device_any, ibv_cmd_query_mr, ibv_cmd_query_port, ibv_cmd_query_qp,
    ibv_cmd_query_srq, ibv_cmd_read_counters, ibv_cmd_reg_dm_mr, ibv_cmd_reg_dmabuf_mr, ibv_cmd_reg_mr,
    ibv_cmd_req_notify_cq, ibv_cmd_rereg_mr, ibv_cmd_resize_cq
}

pointer! {
    "there is no kernel driver behind the emulated cards":
    _verbs_init_and_alloc_context, verbs_open_device
}

status! {
    "there is no kernel driver behind the emulated cards":
    verbs_init_cq
}

nothing! {
    "there is no kernel driver behind the emulated cards":
    verbs_set_ops, verbs_uninit_context
}

/// Reads a file below a device's folder: emulated devices have none.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_read_ibdev_sysfs_file() -> c_int {
    errno::number("ibv_read_ibdev_sysfs_file", || {
        Err(Errno::new(libc::ENOENT, "emulated devices have no folder of files"))
    })
}

/// A provider announces itself when it is loaded. It will not be asked.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn verbs_register_driver_34(_provider: *const c_void) {}

/// Where providers log; the format and its arguments are not read.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn __verbs_log(_context: *mut c_void, _level: u32, _format: *const c_char) {}

/// Attributes of a command beyond those given; there are no commands.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn __ioctl_final_num_attrs(given: u32, _chain: *const c_void) -> u32 {
    given
}

/// Whether objects of a device that is gone may be destroyed. Emulated devices stay.
#[unsafe(no_mangle)]
pub(crate) static verbs_allow_disassociate_destroy: bool = false;
