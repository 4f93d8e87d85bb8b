//! Identifiers: what sockets are for IP.

use core::ffi::{c_int, c_void};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use emu_libibverbs::Acknowledged;
use emu_libibverbs::errno::{Errno, Result};
use emu_libibverbs::handle::{self, CStruct, Object};
use verbs_sys::*;

use crate::abi::*;
use crate::address::Endpoint;
use crate::channel::{Channel, Param, Pending};
use crate::device::{self, Device};
use crate::protocol::agent::{ConnId, HOP_LIMIT, ListenerId, Path, Terms, gid_of};
use crate::protocol::service::{Service, Space};
use crate::protocol::times;

/// How far an identifier has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Idle,
    Bound,
    AddressResolved,
    RouteResolved,
    Listening,
    /// It has a connection, or a request of one.
    Connected,
}

/// What a listening endpoint gives those that it is asked for.
pub(crate) struct Passive {
    /// Address of the domain, or 0.
    pub(crate) pd: usize,
    pub(crate) attr: ibv_qp_init_attr,
}

// SAFETY: the handles in it are checked by whoever uses them.
unsafe impl Send for Passive {}

/// An identifier's membership in a group.
#[derive(Clone, Debug)]
pub(crate) struct Membership {
    pub(crate) address: IpAddr,
    pub(crate) context: usize,
    /// It receives, too.
    pub(crate) full: bool,
    pub(crate) attached: bool,
}

/// What is known of an identifier.
pub(crate) struct Inner {
    pub(crate) channel: Arc<Channel>,
    /// Calls wait for their events, which the channel brings to nobody else.
    pub(crate) waits: bool,
    pub(crate) stage: Stage,
    /// Index of the card.
    pub(crate) port: Option<usize>,
    /// Its address and port: what it is bound to.
    pub(crate) local: Option<Endpoint>,
    /// The port is its own, and not that of a listener which it comes from.
    pub(crate) owns_port: bool,
    pub(crate) reuse: bool,
    pub(crate) remote: Option<Endpoint>,
    pub(crate) conn: Option<ConnId>,
    pub(crate) listener: Option<ListenerId>,
    /// The other end's terms, and the own ones.
    pub(crate) theirs: Option<Terms>,
    pub(crate) own: Terms,
    pub(crate) traffic_class: u8,
    pub(crate) ack_timeout: Option<u8>,
    /// It has failed to be connected: what follows is not reported.
    pub(crate) failed: bool,
    pub(crate) memberships: Vec<Membership>,
    /// Data that `rdma_getaddrinfo` was given for the connection.
    pub(crate) connect_data: Vec<u8>,
    /// What those who ask are given, for `rdma_get_request`.
    pub(crate) passive: Option<Passive>,
    /// The record that the program's structure points to.
    path_rec: Option<Box<CStruct<ibv_sa_path_rec>>>,
}

/// An identifier.
pub(crate) struct Id {
    public: CStruct<rdma_cm_id>,
    pub(crate) space: Space,
    inner: Mutex<Inner>,
    pub(crate) events: Acknowledged,
    shown: AtomicU32,
}

impl Object for Id {
    const KIND: &'static str = "identifier of connection management (rdma_cm_id)";
    type C = rdma_cm_id;
    fn c_address(&self) -> *mut rdma_cm_id {
        self.public.get()
    }
}

impl Id {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn acknowledge_event(&self) -> Result<()> {
        self.events.acknowledge(1, &self.shown)
    }

    /// Changes what the program sees. Only one call at a time may, by the contract of the C API, and calls do before
    /// they return.
    pub(crate) fn show(&self, change: impl FnOnce(&mut rdma_cm_id)) {
        // SAFETY: the structure lives as long as `self`, and no other reference to it is made.
        change(unsafe { &mut *self.public.get() });
    }

    /// Reads what the program sees, and may have changed.
    pub(crate) fn seen<R>(&self, read: impl FnOnce(&rdma_cm_id) -> R) -> R {
        // SAFETY: as above.
        read(unsafe { &*self.public.get() })
    }

    pub(crate) fn qp(&self) -> *mut ibv_qp {
        self.seen(|public| public.qp)
    }

    /// A new one, a live handle.
    pub(crate) fn make(channel: Arc<Channel>, waits: bool, context: *mut c_void, space: Space) -> Arc<Self> {
        channel.users.fetch_add(1, Ordering::Relaxed);
        // SAFETY: integers and null pointers are valid all-zero.
        let mut public: rdma_cm_id = unsafe { core::mem::zeroed() };
        public.channel = channel.c_address();
        public.context = context;
        public.ps = space.number().into();
        public.qp_type = match space {
            Space::Tcp => IBV_QPT_RC,
            Space::Udp => IBV_QPT_UD,
        };
        let inner = Inner {
            channel,
            waits,
            stage: Stage::Idle,
            port: None,
            local: None,
            owns_port: false,
            reuse: false,
            remote: None,
            conn: None,
            listener: None,
            theirs: None,
            own: Terms::default(),
            traffic_class: 0,
            ack_timeout: None,
            failed: false,
            memberships: Vec::new(),
            connect_data: Vec::new(),
            passive: None,
            path_rec: None,
        };
        let id = Arc::new(Self {
            public: CStruct::new(public),
            space,
            inner: Mutex::new(inner),
            events: Acknowledged::default(),
            shown: AtomicU32::new(0),
        });
        handle::publish(&id);
        id
    }

    /// Puts an event of its own into its channel.
    pub(crate) fn report(self: &Arc<Self>, kind: rdma_cm_event_type, status: c_int, param: Param) {
        let channel = Arc::clone(&self.lock().channel);
        channel.events.push(Pending { id: Arc::clone(self), listener: None, kind, status, param });
    }

    /// It is on a card from now on.
    pub(crate) fn use_device(&self, port: usize, device: &Device) {
        self.lock().port = Some(port);
        self.show(|public| {
            (public.verbs, public.port_num) = (device.verbs(), 1);
            if public.pd.is_null() {
                public.pd = device.pd();
            }
        });
    }

    /// Shows the addresses.
    pub(crate) fn show_addresses(&self) {
        let (local, remote, port) = {
            let inner = self.lock();
            (inner.local, inner.remote, inner.port)
        };
        self.show(|public| {
            let addr = &mut public.route.addr;
            if let Some(local) = local {
                addr.src_storage = local.storage();
                addr.ibaddr.sgid = ibv_gid { raw: gid_of(local.address) };
            }
            if let Some(remote) = remote {
                addr.dst_storage = remote.storage();
                addr.ibaddr.dgid = ibv_gid { raw: gid_of(remote.address) };
            }
            addr.ibaddr.pkey = if port.is_some() { 0xFFFF } else { 0 };
        });
    }

    /// Shows the route.
    pub(crate) fn show_route(&self, device: &Device) {
        let mut inner = self.lock();
        let (Some(local), Some(remote)) = (inner.local, inner.remote) else { return };
        /// The value itself, and not a bound.
        const EXACTLY: u8 = 2;
        let record = ibv_sa_path_rec {
            dgid: gid_of(remote.address),
            sgid: gid_of(local.address),
            hop_limit: HOP_LIMIT,
            traffic_class: inner.traffic_class,
            reversible: 1,
            numb_path: 1,
            pkey: 0xFFFF,
            mtu_selector: EXACTLY,
            mtu: device.mtu_code,
            rate_selector: EXACTLY,
            packet_life_time_selector: EXACTLY,
            packet_life_time: times::PACKET_LIFETIME,
            ..Default::default()
        };
        let record = inner.path_rec.insert(Box::new(CStruct::new(record))).get();
        drop(inner);
        self.show(|public| (public.route.path_rec, public.route.num_paths) = (record, 1));
    }

    /// The card, and its index.
    pub(crate) fn device(&self) -> Result<(usize, &'static Device)> {
        let port = self.lock().port;
        let found = port.and_then(|port| Some((port, device::devices().ok()?.get(port)?)));
        found.ok_or_else(|| {
            Errno::invalid(
                "the identifier is on no card yet: call rdma_resolve_addr, or rdma_bind_addr with an address",
            )
        })
    }

    /// The way to the other end.
    pub(crate) fn path(&self) -> Result<Path> {
        let inner = self.lock();
        let (Some(port), Some(local), Some(remote)) = (inner.port, inner.local, inner.remote) else {
            return Err(Errno::invalid("the addresses of the identifier are not known: call rdma_resolve_addr first"));
        };
        Ok(Path { port, local: local.address, remote: remote.address })
    }

    /// The address vector of the way to an address.
    pub(crate) fn way_to(&self, remote: IpAddr) -> Result<ibv_ah_attr> {
        let (_, device) = self.device()?;
        let inner = self.lock();
        let local = inner.local.map(|local| local.address).filter(|local| !local.is_unspecified());
        let index = local.and_then(|local| device.gid_index(local));
        let index = index.or_else(|| device.address_like(remote).and_then(|own| device.gid_index(own)));
        let sgid_index =
            index.ok_or_else(|| Errno::invalid(format!("the card has no address to reach {remote} from")))?;
        let grh = ibv_global_route {
            dgid: ibv_gid { raw: gid_of(remote) },
            sgid_index,
            hop_limit: HOP_LIMIT,
            traffic_class: inner.traffic_class,
            ..Default::default()
        };
        Ok(ibv_ah_attr { grh, is_global: 1, port_num: 1, ..Default::default() })
    }

    /// The service that its port number stands for.
    pub(crate) fn service(&self, port: u16) -> Service {
        Service { space: self.space, port }
    }
}
