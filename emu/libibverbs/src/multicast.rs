//! Membership of host queue pairs in multicast groups.

use core::ffi::c_int;

use emu_machine::FunctionId;
use emu_machine::nic::Gid;
use verbs_sys::*;

use crate::card::{self, request::Request};
use crate::errno::{Result, input, status};
use crate::handle;
use crate::machine::begin_command;
use crate::qp::Qp;

/// The queue pair's function and number, and the group, for a control operation that begins.
///
/// # Safety
/// `gid` must be null or readable.
unsafe fn member(qp: *mut ibv_qp, gid: *const ibv_gid) -> Result<(FunctionId, u32, Gid)> {
    let qp = handle::get::<Qp>(qp)?;
    // SAFETY: as this function's; any 16 bytes are a GID.
    let gid = unsafe { Gid(input(gid, "gid")?.raw) };
    let id = qp.context().id();
    begin_command(id)?;
    Ok((id, qp.number, gid))
}

/// The LID is of no meaning on RoCE and ignored.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    status("ibv_attach_mcast", || {
        // SAFETY: the manual page asks for a readable GID.
        let (id, qpn, gid) = unsafe { member(qp, gid) }?;
        card::done(id, Request::AttachMulticast { qpn, gid })
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    status("ibv_detach_mcast", || {
        // SAFETY: the manual page asks for a readable GID.
        let (id, qpn, gid) = unsafe { member(qp, gid) }?;
        card::done(id, Request::DetachMulticast { qpn, gid })
    })
}
