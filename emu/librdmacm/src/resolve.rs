//! Addresses and routes: binding, resolving, listening.

use core::ffi::c_int;
use std::net::IpAddr;
use std::sync::Arc;

use emu_libibverbs::errno::{Errno, Result, number};
use emu_libibverbs::{handle, is_bridged, log, resolve_mac};
use emu_machine::nic::Gid;

use crate::abi::*;
use crate::address::Endpoint;
use crate::channel::Param;
use crate::device::{self, Device, devices, listed};
use crate::events;
use crate::id::{Id, Stage};
use crate::manager;
use crate::protocol::agent::gid_of;

/// Requests that may wait for a program that does not say how many, and the most, as in Linux.
const MAX_BACKLOG: usize = 1024;

/// Why an address is none of a card, and what to use instead.
fn no_address(address: IpAddr, devices: &[Device]) -> String {
    format!("{address} is no address of a card: {}", listed(devices))
}

/// Binds an identifier that is not bound.
pub(crate) fn bind(id: &Arc<Id>, wanted: Endpoint) -> Result<()> {
    let wanted = wanted.of_cards();
    let devices = devices()?;
    let (stage, reuse) = {
        let inner = id.lock();
        (inner.stage, inner.reuse)
    };
    if stage != Stage::Idle {
        return Err(Errno::invalid("the identifier has an address already"));
    }
    let port = if wanted.address.is_unspecified() {
        None
    } else {
        let found = device::with_address(devices, wanted.address);
        Some(found.ok_or_else(|| Errno::new(libc::ENODEV, no_address(wanted.address, devices)))?)
    };
    let number = manager::lock()?.bind(id, wanted, reuse)?;
    {
        let mut inner = id.lock();
        inner.local = Some(Endpoint { port: number, ..wanted });
        (inner.owns_port, inner.stage) = (true, Stage::Bound);
    }
    if let Some(port) = port {
        id.use_device(port, &devices[port]);
    }
    id.show_addresses();
    Ok(())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut libc::sockaddr) -> c_int {
    number("rdma_bind_addr", || {
        let id = handle::get::<Id>(id)?;
        // SAFETY: the manual page asks for an address.
        bind(&id, unsafe { Endpoint::read(addr, "addr") }?)?;
        Ok(0)
    })
}

/// The card and the own address from which a destination is reached.
fn route(local: IpAddr, port: Option<usize>, remote: IpAddr, devices: &[Device]) -> Result<(usize, IpAddr)> {
    let from = |port: usize| devices.get(port).and_then(|device| device.address_like(remote)).map(|own| (port, own));
    if let Some(port) = port {
        if local.is_ipv4() == remote.is_ipv4() && !local.is_unspecified() {
            return Ok((port, local));
        }
        let other = || Errno::new(libc::ENETUNREACH, format!("{local} and {remote}: one is IPv4 and one IPv6"));
        return from(port).ok_or_else(other);
    }
    // One's own address is that of another card, if there is one: so the cable is used.
    let own = device::with_address(devices, remote);
    let others = (0..devices.len()).filter(|port| Some(*port) != own);
    let found = others.chain(own).find_map(from);
    found.ok_or_else(|| Errno::new(libc::ENODEV, format!("no card here has an address to reach {remote} from")))
}

/// Finds the way to an address.
fn find(id: &Arc<Id>, remote: Endpoint) -> Result<()> {
    let devices = devices()?;
    let (local, port) = {
        let inner = id.lock();
        (inner.local.unwrap_or(Endpoint::any_like(remote.address, 0)), inner.port)
    };
    if remote.address.is_loopback() && is_bridged() {
        tracing::warn!("{} is the card of this program itself: {}", remote.address, listed(devices));
    }
    // No address, or one of the computer itself, means the own card, as in Linux.
    let remote = remote.of_cards();
    let (port, own) = route(local.address, port, remote.address, devices)?;
    let remote = if remote.address.is_unspecified() { Endpoint { address: own, ..remote } } else { remote };
    if resolve_mac(Gid(gid_of(remote.address))).is_err() {
        return Err(Errno::new(libc::EHOSTUNREACH, no_address(remote.address, devices)));
    }
    {
        let mut inner = id.lock();
        inner.local = Some(Endpoint { address: own, ..local });
        (inner.remote, inner.stage) = (Some(remote), Stage::AddressResolved);
    }
    id.use_device(port, &devices[port]);
    id.show_addresses();
    Ok(())
}

/// Resolves an address. What is wrong with it comes as an event.
pub(crate) fn resolve_address(id: &Arc<Id>, source: Option<Endpoint>, remote: Endpoint) -> Result<()> {
    let stage = id.lock().stage;
    match stage {
        Stage::Idle => bind(id, source.unwrap_or_else(|| Endpoint::any_like(remote.address, 0)))?,
        Stage::Bound | Stage::AddressResolved => {}
        _ => return Err(Errno::invalid("the identifier has come further already: its address is resolved")),
    }
    manager::lock()?.start()?;
    match find(id, remote) {
        Ok(()) => id.report(RDMA_CM_EVENT_ADDR_RESOLVED, 0, Param::Nothing),
        Err(error) => {
            log::refused("rdma_resolve_addr", &error.reason, false);
            id.report(RDMA_CM_EVENT_ADDR_ERROR, -error.value, Param::Nothing);
        }
    }
    events::complete(id)
}

/// The time is not needed: all addresses are known.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    src_addr: *mut libc::sockaddr,
    dst_addr: *mut libc::sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    number("rdma_resolve_addr", || {
        let id = handle::get::<Id>(id)?;
        // SAFETY: the manual page asks for an address, and for another one or null.
        let (source, remote) = unsafe {
            let source = (!src_addr.is_null()).then(|| Endpoint::read(src_addr, "src_addr")).transpose()?;
            (source, Endpoint::read(dst_addr, "dst_addr")?)
        };
        resolve_address(&id, source, remote)?;
        Ok(0)
    })
}

/// Shows the route to an address that is resolved.
pub(crate) fn resolve_route(id: &Arc<Id>) -> Result<()> {
    let stage = id.lock().stage;
    if stage != Stage::AddressResolved {
        return Err(Errno::invalid(
            "the address is not resolved, or the route is already: call rdma_resolve_addr first",
        ));
    }
    let (_, device) = id.device()?;
    id.lock().stage = Stage::RouteResolved;
    id.show_route(device);
    id.report(RDMA_CM_EVENT_ROUTE_RESOLVED, 0, Param::Nothing);
    events::complete(id)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_resolve_route(id: *mut rdma_cm_id, _timeout_ms: c_int) -> c_int {
    number("rdma_resolve_route", || {
        resolve_route(&handle::get::<Id>(id)?)?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    number("rdma_listen", || {
        let id = handle::get::<Id>(id)?;
        if id.lock().stage == Stage::Idle {
            bind(&id, Endpoint { address: IpAddr::from([0, 0, 0, 0]), port: 0 })?;
        }
        let (stage, local) = {
            let inner = id.lock();
            (inner.stage, inner.local)
        };
        let Some(local) = local.filter(|_| stage == Stage::Bound) else {
            return Err(Errno::invalid("the identifier listens already, or has a destination"));
        };
        let backlog = usize::try_from(backlog).ok().filter(|backlog| (1..MAX_BACKLOG).contains(backlog));
        let mut manager = manager::lock()?;
        manager.start()?;
        manager.listen(&id, local, backlog.unwrap_or(MAX_BACKLOG))?;
        id.lock().stage = Stage::Listening;
        Ok(0)
    })
}
