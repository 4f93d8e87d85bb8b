//! Structures and numbers of `rdma/rdma_cma.h` (rdma-core 44), with their C names.
#![allow(missing_docs, non_camel_case_types)]

use core::ffi::{c_char, c_int, c_void};

use verbs_sys::*;

pub(crate) const RDMA_PS_IPOIB: u32 = 0x0002;
pub(crate) const RDMA_PS_TCP: u32 = 0x0106;
pub(crate) const RDMA_PS_UDP: u32 = 0x0111;
pub(crate) const RDMA_PS_IB: u32 = 0x013F;

pub(crate) const RDMA_UDP_QKEY: u32 = 0x0123_4567;
/// As many as the card serves.
pub(crate) const RDMA_MAX_RESP_RES: u8 = 0xFF;
/// As many as the card has outstanding.
pub(crate) const RDMA_MAX_INIT_DEPTH: u8 = 0xFF;

pub(crate) type rdma_cm_event_type = u32;
pub(crate) const RDMA_CM_EVENT_ADDR_RESOLVED: rdma_cm_event_type = 0;
pub(crate) const RDMA_CM_EVENT_ADDR_ERROR: rdma_cm_event_type = 1;
pub(crate) const RDMA_CM_EVENT_ROUTE_RESOLVED: rdma_cm_event_type = 2;
pub(crate) const RDMA_CM_EVENT_CONNECT_REQUEST: rdma_cm_event_type = 4;
pub(crate) const RDMA_CM_EVENT_CONNECT_RESPONSE: rdma_cm_event_type = 5;
pub(crate) const RDMA_CM_EVENT_CONNECT_ERROR: rdma_cm_event_type = 6;
pub(crate) const RDMA_CM_EVENT_UNREACHABLE: rdma_cm_event_type = 7;
pub(crate) const RDMA_CM_EVENT_REJECTED: rdma_cm_event_type = 8;
pub(crate) const RDMA_CM_EVENT_ESTABLISHED: rdma_cm_event_type = 9;
pub(crate) const RDMA_CM_EVENT_DISCONNECTED: rdma_cm_event_type = 10;
pub(crate) const RDMA_CM_EVENT_MULTICAST_JOIN: rdma_cm_event_type = 12;
pub(crate) const RDMA_CM_EVENT_MULTICAST_ERROR: rdma_cm_event_type = 13;
pub(crate) const RDMA_CM_EVENT_TIMEWAIT_EXIT: rdma_cm_event_type = 15;

/// Names of the events, in the order of their numbers.
pub(crate) const EVENT_NAMES: [&core::ffi::CStr; 16] = [
    c"RDMA_CM_EVENT_ADDR_RESOLVED",
    c"RDMA_CM_EVENT_ADDR_ERROR",
    c"RDMA_CM_EVENT_ROUTE_RESOLVED",
    c"RDMA_CM_EVENT_ROUTE_ERROR",
    c"RDMA_CM_EVENT_CONNECT_REQUEST",
    c"RDMA_CM_EVENT_CONNECT_RESPONSE",
    c"RDMA_CM_EVENT_CONNECT_ERROR",
    c"RDMA_CM_EVENT_UNREACHABLE",
    c"RDMA_CM_EVENT_REJECTED",
    c"RDMA_CM_EVENT_ESTABLISHED",
    c"RDMA_CM_EVENT_DISCONNECTED",
    c"RDMA_CM_EVENT_DEVICE_REMOVAL",
    c"RDMA_CM_EVENT_MULTICAST_JOIN",
    c"RDMA_CM_EVENT_MULTICAST_ERROR",
    c"RDMA_CM_EVENT_ADDR_CHANGE",
    c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
];

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct rdma_ib_addr {
    pub(crate) sgid: ibv_gid,
    pub(crate) dgid: ibv_gid,
    pub(crate) pkey: u16,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct rdma_addr {
    pub(crate) src_storage: libc::sockaddr_storage,
    pub(crate) dst_storage: libc::sockaddr_storage,
    pub(crate) ibaddr: rdma_ib_addr,
}

/// `infiniband/sa.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ibv_sa_path_rec {
    pub(crate) dgid: [u8; 16],
    pub(crate) sgid: [u8; 16],
    pub(crate) dlid: u16,
    pub(crate) slid: u16,
    pub(crate) raw_traffic: c_int,
    pub(crate) flow_label: u32,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
    pub(crate) reversible: c_int,
    pub(crate) numb_path: u8,
    pub(crate) pkey: u16,
    pub(crate) sl: u8,
    pub(crate) mtu_selector: u8,
    pub(crate) mtu: u8,
    pub(crate) rate_selector: u8,
    pub(crate) rate: u8,
    pub(crate) packet_life_time_selector: u8,
    pub(crate) packet_life_time: u8,
    pub(crate) preference: u8,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct rdma_route {
    pub(crate) addr: rdma_addr,
    pub(crate) path_rec: *mut ibv_sa_path_rec,
    pub(crate) num_paths: c_int,
}

#[repr(C)]
#[derive(Debug)]
pub(crate) struct rdma_event_channel {
    pub(crate) fd: c_int,
}

#[repr(C)]
pub(crate) struct rdma_cm_id {
    pub(crate) verbs: *mut ibv_context,
    pub(crate) channel: *mut rdma_event_channel,
    pub(crate) context: *mut c_void,
    pub(crate) qp: *mut ibv_qp,
    pub(crate) route: rdma_route,
    pub(crate) ps: u32,
    pub(crate) port_num: u8,
    pub(crate) event: *mut rdma_cm_event,
    pub(crate) send_cq_channel: *mut ibv_comp_channel,
    pub(crate) send_cq: *mut ibv_cq,
    pub(crate) recv_cq_channel: *mut ibv_comp_channel,
    pub(crate) recv_cq: *mut ibv_cq,
    pub(crate) srq: *mut ibv_srq,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) qp_type: ibv_qp_type,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct rdma_conn_param {
    pub(crate) private_data: *const c_void,
    pub(crate) private_data_len: u8,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) flow_control: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    pub(crate) srq: u8,
    pub(crate) qp_num: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct rdma_ud_param {
    pub(crate) private_data: *const c_void,
    pub(crate) private_data_len: u8,
    pub(crate) ah_attr: ibv_ah_attr,
    pub(crate) qp_num: u32,
    pub(crate) qkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union rdma_event_param {
    pub(crate) conn: rdma_conn_param,
    pub(crate) ud: rdma_ud_param,
}

#[repr(C)]
pub(crate) struct rdma_cm_event {
    pub(crate) id: *mut rdma_cm_id,
    pub(crate) listen_id: *mut rdma_cm_id,
    pub(crate) event: rdma_cm_event_type,
    pub(crate) status: c_int,
    pub(crate) param: rdma_event_param,
}

pub(crate) const RAI_PASSIVE: c_int = 1;
pub(crate) const RAI_NUMERICHOST: c_int = 2;
pub(crate) const RAI_FAMILY: c_int = 8;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct rdma_addrinfo {
    pub(crate) ai_flags: c_int,
    pub(crate) ai_family: c_int,
    pub(crate) ai_qp_type: c_int,
    pub(crate) ai_port_space: c_int,
    pub(crate) ai_src_len: libc::socklen_t,
    pub(crate) ai_dst_len: libc::socklen_t,
    pub(crate) ai_src_addr: *mut libc::sockaddr,
    pub(crate) ai_dst_addr: *mut libc::sockaddr,
    pub(crate) ai_src_canonname: *mut c_char,
    pub(crate) ai_dst_canonname: *mut c_char,
    pub(crate) ai_route_len: usize,
    pub(crate) ai_route: *mut c_void,
    pub(crate) ai_connect_len: usize,
    pub(crate) ai_connect: *mut c_void,
    pub(crate) ai_next: *mut rdma_addrinfo,
}

pub(crate) const RDMA_CM_JOIN_MC_ATTR_ADDRESS: u32 = 1;
pub(crate) const RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS: u32 = 2;
pub(crate) const RDMA_MC_JOIN_FLAG_FULLMEMBER: u32 = 0;
pub(crate) const RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER: u32 = 1;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct rdma_cm_join_mc_attr_ex {
    pub(crate) comp_mask: u32,
    pub(crate) join_flags: u32,
    pub(crate) addr: *mut libc::sockaddr,
}

pub(crate) const RDMA_OPTION_ID: c_int = 0;
pub(crate) const RDMA_OPTION_IB: c_int = 1;
pub(crate) const RDMA_OPTION_ID_TOS: c_int = 0;
pub(crate) const RDMA_OPTION_ID_REUSEADDR: c_int = 1;
pub(crate) const RDMA_OPTION_ID_AFONLY: c_int = 2;
pub(crate) const RDMA_OPTION_ID_ACK_TIMEOUT: c_int = 3;
pub(crate) const RDMA_OPTION_IB_PATH: c_int = 1;

// As the compiler of C lays them out on 64-bit Linux; `tests/c/connections.c` uses them by the installed header.
const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<ibv_sa_path_rec>() == 64);
    assert!(size_of::<rdma_addr>() == 296 && offset_of!(rdma_addr, ibaddr) == 256);
    assert!(size_of::<rdma_route>() == 312);
    assert!(offset_of!(rdma_cm_id, route) == 32 && offset_of!(rdma_cm_id, ps) == 344);
    assert!(offset_of!(rdma_cm_id, event) == 352 && offset_of!(rdma_cm_id, qp_type) == 408);
    assert!(size_of::<rdma_cm_id>() == 416);
    assert!(size_of::<rdma_conn_param>() == 24 && offset_of!(rdma_conn_param, qp_num) == 16);
    assert!(offset_of!(rdma_ud_param, ah_attr) == 16 && offset_of!(rdma_ud_param, qkey) == 52);
    assert!(size_of::<rdma_cm_event>() == 80);
    assert!(size_of::<rdma_addrinfo>() == 96 && offset_of!(rdma_addrinfo, ai_next) == 88);
    assert!(size_of::<rdma_cm_join_mc_attr_ex>() == 16);
};
