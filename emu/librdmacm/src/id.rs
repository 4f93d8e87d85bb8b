//! Identifiers: what sockets are for IP.

use core::ffi::{c_int, c_void};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use emu_libibverbs::Acknowledged;
use emu_libibverbs::errno::{Errno, Result, number, out};
use emu_libibverbs::handle::{self, CStruct, Object};
use verbs_sys::*;

use crate::abi::*;
use crate::address::Endpoint;
use crate::channel::{self, Channel, Param, Pending};
use crate::device::{self, Device};
use crate::endpoint::Passive;
use crate::manager;
use crate::multicast::{self, Membership};
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

    /// Waits for the event of a call that was just made, where calls wait.
    pub(crate) fn complete(&self) -> Result<()> {
        let (waits, channel) = {
            let inner = self.lock();
            (inner.waits, Arc::clone(&inner.channel))
        };
        if !waits {
            return Ok(());
        }
        self.acknowledge_kept()?;
        let event = channel::next(&channel)?;
        self.show(|public| public.event = event);
        // SAFETY: an event that was just published, and is acknowledged by a later call.
        let (kind, status) = unsafe { ((*event).event, (*event).status) };
        let name = EVENT_NAMES.get(kind as usize).map_or("an event", |name| name.to_str().unwrap_or("an event"));
        match status {
            0 => Ok(()),
            status if kind == RDMA_CM_EVENT_REJECTED => {
                Err(Errno::new(libc::ECONNREFUSED, format!("the other end has refused (reason {status})")))
            }
            status => Err(Errno::new(status.abs(), format!("{name} with status {status}"))),
        }
    }

    /// Acknowledges the event of the last call that waited.
    pub(crate) fn acknowledge_kept(&self) -> Result<()> {
        let kept = self.seen(|public| public.event);
        if kept.is_null() {
            return Ok(());
        }
        self.show(|public| public.event = core::ptr::null_mut());
        channel::acknowledge(kept)
    }
}

/// The port space of a number.
pub(crate) fn space(ps: u32) -> Result<Space> {
    match ps {
        RDMA_PS_TCP => Ok(Space::Tcp),
        RDMA_PS_UDP => Ok(Space::Udp),
        RDMA_PS_IB => Err(Errno::unsupported(
            "port space RDMA_PS_IB (0x13f) is one of InfiniBand: RDMA_PS_TCP and RDMA_PS_UDP are emulated",
        )),
        RDMA_PS_IPOIB => Err(Errno::unsupported(
            "port space RDMA_PS_IPOIB (0x2) is one of IP over InfiniBand: RDMA_PS_TCP and RDMA_PS_UDP are emulated",
        )),
        other => Err(Errno::invalid(format!(
            "port space {other:#x}: RDMA_PS_TCP (0x106) and RDMA_PS_UDP (0x111) are emulated"
        ))),
    }
}

/// A new identifier that reports to a channel, or, with none, has a channel of its own and calls that wait.
pub(crate) fn create(channel: *mut rdma_event_channel, context: *mut c_void, space: Space) -> Result<Arc<Id>> {
    device::devices()?;
    let waits = channel.is_null();
    let channel = if waits { Channel::open()? } else { handle::get::<Channel>(channel)? };
    Ok(Id::make(channel, waits, context, space))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: u32,
) -> c_int {
    number("rdma_create_id", || {
        // SAFETY: the manual page asks for a writable place.
        let id = unsafe { out(id, "id") }?;
        id.write(create(channel, context, space(ps)?)?.c_address());
        Ok(0)
    })
}

/// Destroys an identifier: the other end learns of it, and nothing is reported any more. Waits until the program has
/// acknowledged the events that it has.
pub(crate) fn destroy(call: &str, public: *mut rdma_cm_id) -> Result<()> {
    let id = handle::get::<Id>(public)?;
    let (waits, channel) = {
        let inner = id.lock();
        (inner.waits, Arc::clone(&inner.channel))
    };
    multicast::leave_all(&id);
    let unasked = manager::release(&id);
    for asked in unasked {
        // Requests that the program has not been told of.
        manager::release(&asked);
        retire(&asked)?;
    }
    id.acknowledge_kept()?;
    id.events.close(call, &"an identifier (rdma_ack_cm_event)");
    retire(&id)?;
    if waits {
        let _ = handle::retire::<Channel>(channel.c_address());
    }
    Ok(())
}

fn retire(id: &Id) -> Result<()> {
    handle::retire::<Id>(id.c_address())?;
    id.lock().channel.users.fetch_sub(1, Ordering::Relaxed);
    Ok(())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    number("rdma_destroy_id", || {
        destroy("rdma_destroy_id", id)?;
        Ok(0)
    })
}

/// Has an identifier report to another channel; events that it has not reported go there, too. Waits until the program
/// has acknowledged the events that it has.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int {
    number("rdma_migrate_id", || {
        let id = handle::get::<Id>(id)?;
        if channel.is_null() && id.lock().waits {
            return Err(Errno::invalid("channel is null, and the identifier has a channel of its own already"));
        }
        let to = if channel.is_null() { Channel::open()? } else { handle::get::<Channel>(channel)? };
        migrate(&id, to, channel.is_null())?;
        Ok(0)
    })
}

/// See [`rdma_migrate_id`].
pub(crate) fn migrate(id: &Arc<Id>, to: Arc<Channel>, waits: bool) -> Result<()> {
    id.acknowledge_kept()?;
    let (from, waited) = manager::redirect(id, &to, waits);
    id.show(|public| public.channel = to.c_address());
    if waited {
        let _ = handle::retire::<Channel>(from.c_address());
    }
    Ok(())
}

/// The port, in network order, of a place in the structure.
fn port_in(
    id: *mut rdma_cm_id,
    call: &'static str,
    of: impl FnOnce(&rdma_addr) -> *const libc::sockaddr_storage,
) -> u16 {
    let mut port = 0;
    number(call, || {
        let id = handle::get::<Id>(id)?;
        let at = id.seen(|public| of(&public.route.addr));
        // SAFETY: a part of the structure, which `id` keeps alive; an address that is not set has family 0.
        port = unsafe { Endpoint::read(at.cast(), "the address") }.map_or(0, |endpoint| endpoint.port.to_be());
        Ok(0)
    });
    port
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    port_in(id, "rdma_get_src_port", |addr| &raw const addr.src_storage)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    port_in(id, "rdma_get_dst_port", |addr| &raw const addr.dst_storage)
}

/// The contexts of all cards, and null behind the last. The contexts are the library's.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut ibv_context {
    emu_libibverbs::errno::pointer("rdma_get_devices", || {
        let devices = device::devices()?;
        let contexts = devices.iter().map(Device::verbs).chain([core::ptr::null_mut()]);
        let contexts: Vec<CStruct<*mut ibv_context>> = contexts.map(CStruct::new).collect();
        // SAFETY: null, or writable as the manual page asks.
        if let Ok(num_devices) = unsafe { out(num_devices, "num_devices") } {
            num_devices.write(devices.len() as c_int);
        }
        Ok(handle::publish(&Arc::new(Contexts(contexts.into_boxed_slice()))))
    })
}

/// Addresses of contexts, and null behind the last.
struct Contexts(Box<[CStruct<*mut ibv_context>]>);

impl Object for Contexts {
    const KIND: &'static str = "list of devices (rdma_get_devices)";
    type C = *mut ibv_context;
    fn c_address(&self) -> *mut *mut ibv_context {
        // A cell is nothing but its contents.
        self.0.as_ptr().cast::<*mut ibv_context>().cast_mut()
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    if !list.is_null() {
        number("rdma_free_devices", || {
            handle::retire::<Contexts>(list)?;
            Ok(0)
        });
    }
}
