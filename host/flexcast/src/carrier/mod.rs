//! Carriers: what moves the bytes of operations. Each is a folder: threads of a card's DPA (`dpa`), this process over
//! an RDMA card (`verbs`), or sockets (`udp`); the latter two share `cpu`. `pairs` carries point-to-point collectives
//! over RDMA cards, `service` what service processes carry out.

use std::sync::Arc;

use crate::engine::Datapath;
use crate::engine::datapath::Waiter;
use crate::plan::footprint::Footprint;

pub(crate) mod connect_info;
pub(crate) mod control;
pub(crate) mod cpu;
pub(crate) mod dpa;
pub(crate) mod endpoint;
pub(crate) mod loopback;
pub(crate) mod pairs;
#[cfg(feature = "service")]
pub(crate) mod service;
pub(crate) mod udp;
pub(crate) mod verbs;

/// What a communicator is made of.
pub(crate) struct Parts {
    pub(crate) endpoint: endpoint::Endpoint,
    pub(crate) datapath: Box<dyn Datapath>,
    pub(crate) waiter: Arc<dyn Waiter>,
    pub(crate) footprint: Footprint,
}
