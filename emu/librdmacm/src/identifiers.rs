//! Identifiers as programs make, move and destroy them, and the devices that they are on.

use core::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use emu_libibverbs::errno::{Errno, Result, number, out, pointer};
use emu_libibverbs::handle::{self, CStruct, Object};
use verbs_sys::*;

use crate::abi::*;
use crate::address::Endpoint;
use crate::channel::Channel;
use crate::device::{self, Device};
use crate::events;
use crate::id::Id;
use crate::manager;
use crate::multicast;
use crate::protocol::service::Space;

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
        // Requests that the program has not taken.
        manager::release(&asked);
        retire(&asked)?;
    }
    events::acknowledge_kept(&id)?;
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
    events::acknowledge_kept(id)?;
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
    pointer("rdma_get_devices", || {
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
