//! The C ABI of libibverbs and of mlx5 direct verbs (rdma-core 44), over the emulated cards.
//!
//! Queue pairs and completion queues of the host lie in the host's memory in the formats of the real card: posting
//! writes work queue entries and rings the emulated network card, polling reads completion entries. Emulated cards move
//! only while somebody lets virtual time pass, so polling an empty queue again and again does; [`relax`] does the same.
//! Cards of a bridged machine (`emu_bridge`) move by themselves.
//!
//! Unlike the real library this one checks every handle against the set of live ones: null, foreign and destroyed
//! handles give `EINVAL`. A panic inside the emulator becomes `EIO` and never reaches the caller's frames.
//!
//! Rust hosts take the functions from [`api`]; C programs link the shared library (see `emu/libflexio/README.md`).
// A C ABI passes raw pointers, and its queues lie in memory that the emulated card shares with the caller.
#![allow(unsafe_code)]

mod acknowledged;
mod address;
mod card;
mod channel;
mod compat;
mod cq;
mod cq_changes;
mod device;
mod devx;
mod devx_alias;
mod devx_create;
mod devx_query;
mod devx_umem;
mod direct;
mod dm;
pub mod errno;
mod events;
mod extended;
mod extended_cq;
mod failures;
pub mod fork;
mod gsi;
pub mod handle;
mod indirect;
mod kernel;
pub mod log;
mod machine;
mod mailbox;
mod memory;
mod multicast;
mod open;
mod pd;
mod pinned;
mod post;
mod prm;
mod qp;
mod refused;
pub mod region;
mod segments;
mod srq;
mod steering;
mod sysfs;
pub mod umem;
mod umr;
mod window;

use verbs_sys::VerbsApi;

pub use acknowledged::Acknowledged;
pub use address::resolve_mac;
pub use card::now_ps;
pub use device::{Context, device_name, functions, gids, listed, mac, port_mtu_code};
pub use gsi::create_gsi;
pub use machine::{is_bridged, relax};
pub use mailbox::Mailbox;
pub use pd::{Pd, access_rights};
pub use steering::Tir;

/// The emulator's functions, under their C names.
#[must_use]
pub fn api() -> VerbsApi {
    log::leave_to_host();
    calls()
}

/// The same for another C library of the emulator: messages stay those of a C program.
#[must_use]
pub fn calls() -> VerbsApi {
    use {
        channel::*, compat::*, cq::*, device::*, devx::*, devx_umem::*, direct::*, events::*, indirect::*,
        multicast::*, open::*, pd::*, qp::*,
    };
    VerbsApi {
        ibv_get_device_list,
        ibv_free_device_list,
        ibv_get_device_name,
        ibv_get_device_guid,
        ibv_open_device,
        ibv_close_device,
        ibv_query_device,
        ibv_query_port,
        ibv_query_gid,
        ibv_query_pkey,
        ibv_alloc_pd,
        ibv_dealloc_pd,
        ibv_reg_mr,
        ibv_reg_mr_iova2,
        ibv_reg_dmabuf_mr,
        ibv_dereg_mr,
        ibv_create_comp_channel,
        ibv_destroy_comp_channel,
        ibv_create_cq,
        ibv_destroy_cq,
        ibv_get_cq_event,
        ibv_ack_cq_events,
        ibv_get_async_event,
        ibv_ack_async_event,
        ibv_event_type_str,
        ibv_create_qp,
        ibv_modify_qp,
        ibv_query_qp,
        ibv_destroy_qp,
        ibv_create_ah: address::ibv_create_ah,
        ibv_destroy_ah: address::ibv_destroy_ah,
        ibv_attach_mcast,
        ibv_detach_mcast,
        ibv_qp_to_qp_ex,
        ibv_wc_status_str,
        mlx5dv_is_supported,
        mlx5dv_open_device,
        mlx5dv_init_obj,
        mlx5dv_create_mkey,
        mlx5dv_destroy_mkey,
        mlx5dv_create_qp,
        mlx5dv_qp_ex_from_ibv_qp_ex,
        mlx5dv_devx_general_cmd,
        mlx5dv_devx_obj_create,
        mlx5dv_devx_obj_query,
        mlx5dv_devx_obj_modify,
        mlx5dv_devx_obj_destroy,
        mlx5dv_devx_umem_reg,
        mlx5dv_devx_umem_dereg,
        mlx5dv_devx_alloc_uar,
        mlx5dv_devx_free_uar,
    }
}
