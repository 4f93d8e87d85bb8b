//! Compile-time checks of the layouts that matter most (rdma-core 44, LP64), against a compiler or a header that
//! arranges them otherwise.

use core::mem::{offset_of, size_of};

use crate::bindings::*;

const _: () = {
    assert!(size_of::<ibv_device>() == 664);
    assert!(size_of::<ibv_device_attr>() == 232);
    assert!(size_of::<ibv_port_attr>() >= 52);
    assert!(size_of::<ibv_pd>() == 16);
    assert!(size_of::<ibv_mr>() == 48);
    assert!(size_of::<ibv_ah_attr>() == 32);
    assert!(size_of::<ibv_wc>() == 48);
    assert!(size_of::<ibv_sge>() == 16);
    assert!(size_of::<ibv_qp_init_attr>() == 64);
    assert!(size_of::<ibv_qp_attr>() == 144);
    assert!(size_of::<ibv_send_wr>() == 128);
    assert!(size_of::<ibv_recv_wr>() == 32);
    assert!(size_of::<ibv_context_ops>() == 256);
    assert!(offset_of!(ibv_context_ops, poll_cq) == 88);
    assert!(offset_of!(ibv_context_ops, req_notify_cq) == 96);
    assert!(offset_of!(ibv_context_ops, post_send) == 200);
    assert!(offset_of!(ibv_context_ops, post_recv) == 208);
    assert!(offset_of!(ibv_context, ops) == 8);
    assert!(offset_of!(ibv_context, cmd_fd) == 264);
    assert!(offset_of!(verbs_context, sz) == 312);
    assert!(offset_of!(verbs_context, context) == 320);
    assert!(offset_of!(ibv_qp, qp_num) == 52);
    assert!(offset_of!(ibv_qp, qp_type) == 60);
    assert!(offset_of!(ibv_send_wr, wr) == 40);
    assert!(size_of::<ibv_async_event>() == 16);
    assert!(offset_of!(ibv_async_event, event_type) == 8);
    assert!(size_of::<mlx5dv_obj>() == 112);
    assert!(size_of::<mlx5dv_qp>() == 96);
    assert!(size_of::<mlx5dv_cq>() == 48);
    assert!(size_of::<mlx5dv_devx_uar>() == 40);
};
