//! Queue pairs and shared receive queues of identifiers.

use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use std::sync::Arc;
use std::time::Duration;

use emu_libibverbs::errno::{Errno, Result, number, set};
use emu_libibverbs::handle::{self, Object as _};
use emu_libibverbs::{calls, is_bridged, now_ps};
use verbs_sys::*;

use crate::abi::*;
use crate::id::Id;
use crate::protocol::service::Space;
use crate::states::bring;

unsafe extern "C" {
    fn ibv_create_srq(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq;
    fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int;
}

/// The `errno` of a call of libibverbs that has given null.
fn last(what: &str) -> Errno {
    let value = std::io::Error::last_os_error().raw_os_error().filter(|value| *value != 0);
    Errno::new(value.unwrap_or(libc::EIO), what)
}

/// A completion channel and a queue for one direction, of the library's own.
fn queue(id: &Arc<Id>, depth: u32) -> Result<(*mut ibv_comp_channel, *mut ibv_cq)> {
    let verbs = id.seen(|public| public.verbs);
    // SAFETY: the identifier's open context.
    let channel = unsafe { (calls().ibv_create_comp_channel)(verbs) };
    if channel.is_null() {
        return Err(last("no completion channel for the identifier"));
    }
    let depth = c_int::try_from(depth).map_err(|_| Errno::invalid(format!("{depth} work requests")))?;
    // SAFETY: as above; the inline functions of rdma_verbs.h expect the identifier as the queue's context.
    let cq = unsafe { (calls().ibv_create_cq)(verbs, depth, id.c_address().cast::<c_void>(), channel, 0) };
    if cq.is_null() {
        let error = last("no completion queue for the identifier");
        // SAFETY: just made, and not used.
        unsafe { (calls().ibv_destroy_comp_channel)(channel) };
        return Err(error);
    }
    Ok((channel, cq))
}

/// Makes the completion queues that the program does not bring.
fn make_queues(id: &Arc<Id>, send: (*mut ibv_cq, u32), recv: (*mut ibv_cq, u32)) -> Result<()> {
    let (own_send, own_recv) = id.seen(|public| (public.send_cq, public.recv_cq));
    if recv.0.is_null() && own_recv.is_null() && recv.1 > 0 {
        let (channel, cq) = queue(id, recv.1)?;
        id.show(|public| (public.recv_cq_channel, public.recv_cq) = (channel, cq));
    }
    if send.0.is_null() && own_send.is_null() && send.1 > 0 {
        let (channel, cq) = queue(id, send.1).inspect_err(|_| destroy_queues(id))?;
        id.show(|public| (public.send_cq_channel, public.send_cq) = (channel, cq));
    }
    Ok(())
}

fn destroy_queues(id: &Id) {
    let queues = id.seen(|public| [(public.recv_cq, public.recv_cq_channel), (public.send_cq, public.send_cq_channel)]);
    for (cq, channel) in queues {
        if !cq.is_null() {
            // SAFETY: the handle is checked; only the library puts it there.
            unsafe { (calls().ibv_destroy_cq)(cq) };
        }
        if !channel.is_null() {
            // SAFETY: as above.
            unsafe { (calls().ibv_destroy_comp_channel)(channel) };
        }
    }
    id.show(|public| {
        (public.recv_cq, public.recv_cq_channel) = (null_mut(), null_mut());
        (public.send_cq, public.send_cq_channel) = (null_mut(), null_mut());
    });
}

/// Brings a new queue pair as far as it goes before there is a connection.
fn begin(id: &Id, qp: *mut ibv_qp) -> Result<()> {
    let states: &[ibv_qp_state] = match id.space {
        Space::Tcp => &[IBV_QPS_INIT],
        Space::Udp => &[IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS],
    };
    states.iter().try_for_each(|state| bring(id, qp, *state))
}

/// Makes the queue pair of an identifier. `attr` has its completion queues and its domain afterwards.
pub(crate) fn create(id: &Arc<Id>, attr: &mut ibv_qp_init_attr_ex) -> Result<()> {
    id.device()?;
    if !id.qp().is_null() {
        return Err(Errno::invalid("the identifier has a queue pair already"));
    }
    let (verbs, own_pd, qp_type) = id.seen(|public| (public.verbs, public.pd, public.qp_type));
    if attr.qp_type != qp_type {
        return Err(Errno::invalid(format!(
            "qp_type is {}: identifiers of RDMA_PS_TCP have RC queue pairs ({IBV_QPT_RC}), those of RDMA_PS_UDP UD \
             ({IBV_QPT_UD})",
            attr.qp_type
        )));
    }
    if attr.comp_mask & IBV_QP_INIT_ATTR_PD == 0 || attr.pd.is_null() {
        attr.comp_mask |= IBV_QP_INIT_ATTR_PD;
        attr.pd = own_pd;
    }
    let (own_send, own_recv, own_srq) = id.seen(|public| (public.send_cq, public.recv_cq, public.srq));
    for (name, own, given) in [("send_cq", own_send, attr.send_cq), ("recv_cq", own_recv, attr.recv_cq)] {
        if !own.is_null() && !given.is_null() && own != given {
            return Err(Errno::invalid(format!("{name} is another one than the identifier has already")));
        }
    }
    make_queues(id, (attr.send_cq, attr.cap.max_send_wr), (attr.recv_cq, attr.cap.max_recv_wr))?;
    let (own_send, own_recv) = id.seen(|public| (public.send_cq, public.recv_cq));
    if attr.send_cq.is_null() {
        attr.send_cq = own_send;
    }
    if attr.recv_cq.is_null() {
        attr.recv_cq = own_recv;
    }
    if attr.srq.is_null() {
        attr.srq = own_srq;
    }
    // SAFETY: an open context; the structure is initialised, and its handles are checked.
    let made = unsafe { inline::create_qp_ex(verbs, &raw mut *attr) };
    let qp = made.unwrap_or(null_mut());
    if qp.is_null() {
        let error = last("the queue pair cannot be made");
        destroy_queues(id);
        return Err(error);
    }
    if let Err(error) = begin(id, qp) {
        // SAFETY: just made, and not used.
        unsafe { (calls().ibv_destroy_qp)(qp) };
        destroy_queues(id);
        return Err(error);
    }
    let pd = attr.pd;
    id.show(|public| (public.qp, public.pd) = (qp, pd));
    Ok(())
}

/// The same for the plain structure.
pub(crate) fn create_plain(id: &Arc<Id>, pd: *mut ibv_pd, attr: &mut ibv_qp_init_attr) -> Result<()> {
    let own_pd = id.seen(|public| public.pd);
    let mut extended = ibv_qp_init_attr_ex {
        qp_context: attr.qp_context,
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        srq: attr.srq,
        cap: attr.cap,
        qp_type: attr.qp_type,
        sq_sig_all: attr.sq_sig_all,
        comp_mask: IBV_QP_INIT_ATTR_PD,
        pd: if pd.is_null() { own_pd } else { pd },
        ..Default::default()
    };
    create(id, &mut extended)?;
    let ibv_qp_init_attr_ex { send_cq, recv_cq, srq, cap, .. } = extended;
    (attr.send_cq, attr.recv_cq, attr.srq, attr.cap) = (send_cq, recv_cq, srq, cap);
    Ok(())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    number("rdma_create_qp", || {
        let id = handle::get::<Id>(id)?;
        // SAFETY: null, or initialised and writable as the manual page asks.
        let attr = unsafe { qp_init_attr.as_mut() }.ok_or_else(|| Errno::invalid("qp_init_attr is null"))?;
        create_plain(&id, pd, attr)?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_create_qp_ex(
    id: *mut rdma_cm_id,
    qp_init_attr: *mut ibv_qp_init_attr_ex,
) -> c_int {
    number("rdma_create_qp_ex", || {
        let id = handle::get::<Id>(id)?;
        // SAFETY: null, or initialised and writable as the manual page asks.
        let attr = unsafe { qp_init_attr.as_mut() }.ok_or_else(|| Errno::invalid("qp_init_attr is null"))?;
        create(&id, attr)?;
        Ok(0)
    })
}

/// A card has sent what was posted by the time at which a command has destroyed the queue pair, which takes a kernel a
/// millisecond: programs that do not wait for the completions of their datagrams rely on it.
const LEAVING_PS: u64 = 1_000_000_000;
const NAP: Duration = Duration::from_micros(200);
/// Most naps, for a computer that has no time for the cards.
const LEAVING_NAPS: u32 = 500;

fn let_datagrams_leave() -> Result<()> {
    if !is_bridged() {
        emu_bridge::with_world(|world| world.run_until(LEAVING_PS, |_| false))?;
        return Ok(());
    }
    let end_ps = now_ps().saturating_add(LEAVING_PS);
    for _ in 0..LEAVING_NAPS {
        if now_ps() >= end_ps {
            break;
        }
        std::thread::sleep(NAP);
    }
    Ok(())
}

/// Destroys the queue pair of an identifier, and the completion queues that the library has made.
pub(crate) fn destroy(id: &Id) -> Result<()> {
    let qp = id.qp();
    if qp.is_null() {
        return Err(Errno::invalid("the identifier has no queue pair"));
    }
    if id.space == Space::Udp {
        let_datagrams_leave()?;
    }
    // SAFETY: the handle is checked.
    match unsafe { (calls().ibv_destroy_qp)(qp) } {
        0 => {}
        value => return Err(Errno::new(value, "the queue pair cannot be destroyed")),
    }
    id.show(|public| public.qp = null_mut());
    destroy_queues(id);
    Ok(())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    number("rdma_destroy_qp", || {
        destroy(&*handle::get::<Id>(id)?)?;
        Ok(0)
    });
}

fn take_srq(id: &Id, srq: *mut ibv_srq, pd: *mut ibv_pd) -> Result<c_int> {
    if srq.is_null() {
        return Err(last("the shared receive queue cannot be made"));
    }
    id.show(|public| (public.srq, public.pd) = (srq, pd));
    Ok(0)
}

fn check_srq(id: &Id) -> Result<()> {
    id.device()?;
    if id.seen(|public| !public.srq.is_null()) {
        return Err(Errno::invalid("the identifier has a shared receive queue already"));
    }
    set(0);
    Ok(())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> c_int {
    number("rdma_create_srq", || {
        let id = handle::get::<Id>(id)?;
        check_srq(&id)?;
        let pd = if pd.is_null() { id.seen(|public| public.pd) } else { pd };
        // SAFETY: the library checks what it is given; the manual page asks for an initialised structure.
        take_srq(&id, unsafe { ibv_create_srq(pd, attr) }, pd)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_create_srq_ex(id: *mut rdma_cm_id, attr: *mut ibv_srq_init_attr_ex) -> c_int {
    number("rdma_create_srq_ex", || {
        let id = handle::get::<Id>(id)?;
        check_srq(&id)?;
        // SAFETY: null, or initialised and writable as the manual page asks.
        let given = unsafe { attr.as_mut() }.ok_or_else(|| Errno::invalid("attr is null"))?;
        if given.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 || given.pd.is_null() {
            given.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
            given.pd = id.seen(|public| public.pd);
        }
        let (pd, verbs) = (given.pd, id.seen(|public| public.verbs));
        // SAFETY: an open context of the emulator; the slot is empty, or has a function.
        let create = unsafe { inline::verbs_get_ctx(verbs).and_then(|extended| (*extended).create_srq_ex) };
        let create = create.ok_or_else(|| Errno::unsupported("the device has no ibv_create_srq_ex"))?;
        // SAFETY: the slot's function takes the context and the caller's structure.
        take_srq(&id, unsafe { create(verbs, attr) }, pd)
    })
}

/// Destroys the shared receive queue of an identifier.
pub(crate) fn destroy_srq(id: &Id) -> Result<()> {
    let srq = id.seen(|public| public.srq);
    if srq.is_null() {
        return Err(Errno::invalid("the identifier has no shared receive queue"));
    }
    // SAFETY: the library checks the handle.
    match unsafe { ibv_destroy_srq(srq) } {
        0 => id.show(|public| public.srq = null_mut()),
        value => return Err(Errno::new(value, "the shared receive queue cannot be destroyed")),
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    number("rdma_destroy_srq", || {
        destroy_srq(&*handle::get::<Id>(id)?)?;
        Ok(0)
    });
}
