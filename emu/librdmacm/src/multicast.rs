//! Multicast groups of IP addresses, as Linux maps them for RoCE: the group of an IPv4 address has the mapped address
//! as its GID, that of an IPv6 address the address itself.

use core::ffi::{c_int, c_void};
use std::net::IpAddr;
use std::sync::Arc;

use emu_libibverbs::errno::{Errno, Result, input, number};
use emu_libibverbs::{calls, handle, log};
use verbs_sys::*;

use crate::abi::*;
use crate::address::Endpoint;
use crate::channel::{Param, Pending, Way};
use crate::events;
use crate::id::{Id, Membership};
use crate::protocol::agent::gid_of;

/// Queue pair number of datagrams to groups.
pub(crate) const GROUP_QPN: u32 = 0xFF_FFFF;
/// What stands for the group's LID on RoCE.
const GROUP_LID: u16 = 0xC000;

fn join(id: &Arc<Id>, address: IpAddr, full: bool, context: *mut c_void) -> Result<()> {
    id.device()?;
    if !address.is_multicast() {
        return Err(Errno::invalid(format!("{address} is no multicast address: 224.0.0.0/4 and ff00::/8 are")));
    }
    {
        let mut inner = id.lock();
        if inner.memberships.iter().any(|member| member.address == address) {
            return Err(Errno::new(libc::EADDRINUSE, format!("the identifier is a member of {address} already")));
        }
        inner.memberships.push(Membership { address, context: context as usize, full, attached: false });
    }
    let ah = ibv_ah_attr { dlid: GROUP_LID, ..id.way_to(address)? };
    let param = Param::Group { ah: Way(ah), context: context as usize };
    id.report(RDMA_CM_EVENT_MULTICAST_JOIN, 0, param);
    events::complete(id)
}

/// The event of a membership comes: the queue pair receives what is sent to the group from now on.
pub(crate) fn joined(pending: &mut Pending) {
    let Param::Group { ah, context } = &pending.param else { return };
    let (id, gid) = (&pending.id, ah.0.grh.dgid);
    let qp = id.qp();
    if qp.is_null() {
        return;
    }
    let member = |member: &&mut Membership| {
        // SAFETY: any 16 bytes are a GID.
        member.context == *context && gid_of(member.address) == unsafe { gid.raw }
    };
    let full = id.lock().memberships.iter_mut().find(member).is_some_and(|member| member.full);
    if !full {
        return;
    }
    // SAFETY: the program's queue pair, whose handle is checked, and an initialised GID.
    match unsafe { (calls().ibv_attach_mcast)(qp, &raw const gid, GROUP_LID) } {
        0 => {
            if let Some(member) = id.lock().memberships.iter_mut().find(member) {
                member.attached = true;
            }
        }
        value => {
            log::refused("rdma_join_multicast", &"the queue pair cannot be attached to the group", false);
            (pending.kind, pending.status) = (RDMA_CM_EVENT_MULTICAST_ERROR, -value);
        }
    }
}

fn detach(id: &Id, member: &Membership) -> Result<()> {
    let (qp, gid) = (id.qp(), ibv_gid { raw: gid_of(member.address) });
    if !member.attached || qp.is_null() {
        return Ok(());
    }
    // SAFETY: the program's queue pair, whose handle is checked, and an initialised GID.
    match unsafe { (calls().ibv_detach_mcast)(qp, &raw const gid, GROUP_LID) } {
        0 => Ok(()),
        value => Err(Errno::new(value, "the queue pair cannot be detached from the group")),
    }
}

/// Ends all memberships of an identifier.
pub(crate) fn leave_all(id: &Id) {
    let members = std::mem::take(&mut id.lock().memberships);
    for member in members {
        if let Err(error) = detach(id, &member) {
            tracing::debug!(reason = error.reason, "a membership has outlived its queue pair");
        }
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_join_multicast(
    id: *mut rdma_cm_id,
    addr: *mut libc::sockaddr,
    context: *mut c_void,
) -> c_int {
    number("rdma_join_multicast", || {
        let id = handle::get::<Id>(id)?;
        // SAFETY: the manual page asks for an address.
        let group = unsafe { Endpoint::read(addr, "addr") }?;
        join(&id, group.address, true, context)?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_join_multicast_ex(
    id: *mut rdma_cm_id,
    mc_join_attr: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    number("rdma_join_multicast_ex", || {
        let id = handle::get::<Id>(id)?;
        // SAFETY: null, or initialised as the manual page asks.
        let attr = unsafe { input(mc_join_attr, "mc_join_attr") }?;
        let known = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
        if attr.comp_mask & !known != 0 || attr.comp_mask & RDMA_CM_JOIN_MC_ATTR_ADDRESS == 0 {
            return Err(Errno::invalid(format!(
                "comp_mask {:#x}: 1 (address) is needed, and 2 (flags) is known",
                attr.comp_mask
            )));
        }
        let flags = if attr.comp_mask & RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS != 0 { attr.join_flags } else { 0 };
        let full = match flags {
            RDMA_MC_JOIN_FLAG_FULLMEMBER => true,
            RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER => false,
            other => {
                return Err(Errno::invalid(format!(
                    "join_flags {other}: 0 (full member) and 1 (sends only) are known"
                )));
            }
        };
        // SAFETY: the manual page asks for an address.
        let group = unsafe { Endpoint::read(attr.addr, "addr") }?;
        join(&id, group.address, full, context)?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_leave_multicast(id: *mut rdma_cm_id, addr: *mut libc::sockaddr) -> c_int {
    number("rdma_leave_multicast", || {
        let id = handle::get::<Id>(id)?;
        // SAFETY: the manual page asks for an address.
        let group = unsafe { Endpoint::read(addr, "addr") }?.address;
        let member = {
            let mut inner = id.lock();
            let index = inner.memberships.iter().position(|member| member.address == group);
            let index = index
                .ok_or_else(|| Errno::new(libc::EADDRNOTAVAIL, format!("the identifier is no member of {group}")))?;
            inner.memberships.remove(index)
        };
        detach(&id, &member)?;
        Ok(0)
    })
}
