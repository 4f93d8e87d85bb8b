//! The extended interface (rdma-core since 23): attributes of a device beyond the first version, and queue pairs that
//! take work requests piece by piece (`ibv_wr_start`, one call per request, `ibv_wr_complete`).

use core::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, ThreadId};

use emu_machine::nic::Transport;
use verbs_sys::*;

use crate::device::{self, Context};
use crate::errno::{Errno, Result, input, pointer, status};
use crate::handle;
use crate::pd::Pd;
use crate::post;
use crate::qp::{self, Extras, Qp};
use crate::segments::segments;
use crate::umr::Umr;

/// What may be named in regions whose pages may be absent, as BlueField-3's driver reports it.
fn on_demand_paging() -> ibv_odp_caps {
    let rc = IBV_ODP_SUPPORT_SEND
        | IBV_ODP_SUPPORT_RECV
        | IBV_ODP_SUPPORT_WRITE
        | IBV_ODP_SUPPORT_READ
        | IBV_ODP_SUPPORT_ATOMIC
        | IBV_ODP_SUPPORT_SRQ_RECV;
    let mut caps = ibv_odp_caps { general_caps: IBV_ODP_SUPPORT.into(), ..Default::default() };
    caps.per_transport_caps.rc_odp_caps = rc;
    caps.per_transport_caps.ud_odp_caps = IBV_ODP_SUPPORT_SEND;
    caps
}

/// Rate of the clock that time stamps are of: they count nanoseconds.
const CLOCK_KHZ: u64 = 1_000_000;

pub(crate) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    asked: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    bytes: usize,
) -> c_int {
    status("ibv_query_device_ex", || {
        let id = handle::get::<Context>(context)?.id();
        // SAFETY: null, or initialised as the manual page asks.
        if unsafe { asked.as_ref() }.is_some_and(|asked| asked.comp_mask != 0) {
            return Err(Errno::invalid("comp_mask of the input: no bit is known"));
        }
        if attr.is_null() {
            return Err(Errno::invalid("attr is null"));
        }
        let orig_attr = device::attributes(id)?;
        let phys_port_cnt_ex = orig_attr.phys_port_cnt.into();
        let answer = ibv_device_attr_ex {
            orig_attr,
            odp_caps: on_demand_paging(),
            completion_timestamp_mask: u64::MAX,
            hca_core_clock: CLOCK_KHZ,
            max_dm_size: device::MAX_DM_BYTES,
            phys_port_cnt_ex,
            ..Default::default()
        };
        // SAFETY: the caller says how long its structure is, which may be that of an older or newer header.
        unsafe {
            core::ptr::write_bytes(attr.cast::<u8>(), 0, bytes);
            let known = bytes.min(size_of_val(&answer));
            core::ptr::copy_nonoverlapping((&raw const answer).cast::<u8>(), attr.cast::<u8>(), known);
        }
        Ok(())
    })
}

/// What the transports can do; a queue pair may ask for these operations and no others.
const SEND: u32 = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
const WRITE: u32 = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
const RELIABLE: u32 = IBV_QP_EX_WITH_RDMA_READ
    | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
    | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
    | IBV_QP_EX_WITH_SEND_WITH_INV;

fn operations(qp_type: ibv_qp_type) -> u64 {
    u64::from(match qp_type {
        IBV_QPT_RC => SEND | WRITE | RELIABLE | IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW,
        IBV_QPT_UC => SEND | WRITE | IBV_QP_EX_WITH_LOCAL_INV,
        _ => SEND,
    })
}

/// `IBV_QP_CREATE_BLOCK_SELF_MCAST_LB`: what the queue pair sends to a group does not come back to its card.
const CREATE_BLOCK_SELF_MCAST_LB: u32 = 1 << 1;

pub(crate) unsafe extern "C" fn create_qp_ex(context: *mut ibv_context, attr: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp {
    pointer("ibv_create_qp_ex", || {
        let context = handle::get::<Context>(context)?;
        // SAFETY: null, or initialised and writable as the manual page asks.
        let attr = unsafe { attr.as_mut() }.ok_or_else(|| Errno::invalid("qp_attr is null"))?;
        Ok(handle::publish(&make(&context, attr, false)?))
    })
}

/// Makes a queue pair, without publishing it. `mr_lists`: it is to bind keys over other keys.
pub(crate) fn make(context: &Context, attr: &mut ibv_qp_init_attr_ex, mr_lists: bool) -> Result<Arc<Qp>> {
    let known = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    if attr.comp_mask & !known != 0 || attr.comp_mask & IBV_QP_INIT_ATTR_PD == 0 {
        return Err(Errno::unsupported(format!(
            "comp_mask {:#x}: a protection domain ({IBV_QP_INIT_ATTR_PD:#x}) is needed, and besides {known:#x} \
                 nothing is known",
            attr.comp_mask
        )));
    }
    let flags = if attr.comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS != 0 { attr.create_flags } else { 0 };
    if flags & !CREATE_BLOCK_SELF_MCAST_LB != 0 {
        return Err(Errno::unsupported(format!(
            "create_flags {flags:#x}: of them IBV_QP_CREATE_BLOCK_SELF_MCAST_LB ({CREATE_BLOCK_SELF_MCAST_LB}) is \
             emulated"
        )));
    }
    let send_ops = (attr.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0).then_some(attr.send_ops_flags);
    qp::transport(attr.qp_type)?;
    let excess = send_ops.unwrap_or(0) & !operations(attr.qp_type);
    if excess != 0 {
        return Err(Errno::unsupported(format!("send_ops_flags {excess:#x} on queue pairs of this type")));
    }
    let pd = handle::get::<Pd>(attr.pd)?;
    if pd.context.id() != context.id() {
        return Err(Errno::invalid("the protection domain is on another card, or of another function of this one"));
    }
    let mut plain = ibv_qp_init_attr {
        qp_context: attr.qp_context,
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        srq: attr.srq,
        cap: attr.cap,
        qp_type: attr.qp_type,
        sq_sig_all: attr.sq_sig_all,
    };
    let extras = Extras { send_ops, block_multicast_loopback: flags != 0, mr_lists, ..Extras::default() };
    let qp = qp::create(pd, &mut plain, extras)?;
    attr.cap = plain.cap;
    Ok(qp)
}

/// The structure of a new queue pair. All slots are filled: programs call through them without a check, and an
/// operation that the queue pair was not made for is an error of [`wr_complete`].
pub(crate) fn interface(qp_base: ibv_qp) -> ibv_qp_ex {
    let mut new = ibv_qp_ex { qp_base, ..Default::default() };
    new.wr_atomic_cmp_swp = Some(wr_atomic_cmp_swp);
    new.wr_atomic_fetch_add = Some(wr_atomic_fetch_add);
    new.wr_bind_mw = Some(wr_bind_mw);
    new.wr_local_inv = Some(wr_local_inv);
    new.wr_rdma_read = Some(wr_rdma_read);
    new.wr_rdma_write = Some(wr_rdma_write);
    new.wr_rdma_write_imm = Some(wr_rdma_write_imm);
    new.wr_send = Some(wr_send);
    new.wr_send_imm = Some(wr_send_imm);
    new.wr_send_inv = Some(wr_send_inv);
    new.wr_send_tso = Some(wr_send_tso);
    new.wr_atomic_write = Some(wr_atomic_write);
    new.wr_set_ud_addr = Some(wr_set_ud_addr);
    new.wr_set_xrc_srqn = Some(wr_set_xrc_srqn);
    new.wr_set_inline_data = Some(wr_set_inline_data);
    new.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    new.wr_set_sge = Some(wr_set_sge);
    new.wr_set_sge_list = Some(wr_set_sge_list);
    new.wr_start = Some(wr_start);
    new.wr_complete = Some(wr_complete);
    new.wr_abort = Some(wr_abort);
    new
}

/// Requests between start and completion. The real library holds a lock meanwhile; here each thread has a batch of its
/// own, which is posted at once, so that a thread that forgets to complete stops nobody.
#[derive(Default)]
pub(crate) struct Batches(Mutex<Vec<(ThreadId, Batch)>>);

#[derive(Default)]
struct Batch {
    requests: Vec<Request>,
    failed: Option<Errno>,
}

struct Request {
    work: ibv_send_wr,
    gather: Vec<ibv_sge>,
    /// Bytes copied when they were given: inline data may change right after the call.
    inline: Vec<u8>,
    /// Of a request that binds a key over other keys.
    umr: Option<Umr>,
}

// SAFETY: the pointers in a request are opaque numbers until it is posted, by the thread that made it.
unsafe impl Send for Request {}

impl Batches {
    /// Calls `f` with the calling thread's batch; outside of a batch nothing happens, as nothing can be reported.
    fn with(&self, f: impl FnOnce(&mut Batch)) {
        let mut batches = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let thread = thread::current().id();
        if let Some((_, batch)) = batches.iter_mut().find(|(of, _)| *of == thread) {
            f(batch);
        }
    }

    fn start(&self) {
        self.end();
        let batch = (thread::current().id(), Batch::default());
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(batch);
    }

    fn end(&self) -> Option<Batch> {
        let mut batches = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let thread = thread::current().id();
        let position = batches.iter().position(|(of, _)| *of == thread)?;
        Some(batches.swap_remove(position).1)
    }
}

/// The queue pair behind the extended interface. Errors of these calls are reported by `ibv_wr_complete`.
fn with_batch(call: &'static str, qp: *mut ibv_qp_ex, f: impl FnOnce(&Qp, &mut Batch) -> Result<()>) {
    status(call, || {
        let queue_pair = handle::get::<Qp>(qp.cast())?;
        queue_pair.batches.with(|batch| {
            if let Err(error) = f(&queue_pair, batch) {
                batch.failed.get_or_insert(error);
            }
        });
        Ok(())
    });
}

/// Adds a request with the id and flags that stand in the structure, if the queue pair was made for the operation.
fn add(
    call: &'static str,
    qp: *mut ibv_qp_ex,
    (operation, opcode): (u32, ibv_wr_opcode),
    fill: impl FnOnce(&mut ibv_send_wr),
) {
    with_batch(call, qp, |queue_pair, batch| {
        let made_for = queue_pair.send_ops.unwrap_or(0);
        if made_for & u64::from(operation) == 0 {
            return Err(Errno::unsupported(format!(
                "{call} is operation {operation:#x}, but send_ops_flags of the queue pair is {made_for:#x}: name all \
                 operations when it is made"
            )));
        }
        // SAFETY: the queue pair is alive; its user writes the two fields before this call.
        let (wr_id, send_flags) = unsafe { ((*qp).wr_id, (*qp).wr_flags) };
        let mut work = ibv_send_wr { wr_id, send_flags, opcode, ..Default::default() };
        fill(&mut work);
        batch.requests.push(Request { work, gather: Vec::new(), inline: Vec::new(), umr: None });
        Ok(())
    });
}

/// Adds a request that binds a key over other keys, which `make` gives for the queue pair and the flags that stand in
/// the structure.
pub(crate) fn add_umr(call: &'static str, qp: *mut ibv_qp_ex, make: impl FnOnce(&Qp, u32) -> Result<Umr>) {
    with_batch(call, qp, |queue_pair, batch| {
        // SAFETY: the queue pair is alive; its user writes the two fields before this call.
        let (wr_id, send_flags) = unsafe { ((*qp).wr_id, (*qp).wr_flags) };
        let umr = make(queue_pair, send_flags)?;
        let work = ibv_send_wr { wr_id, send_flags, opcode: IBV_WR_DRIVER1, ..Default::default() };
        batch.requests.push(Request { work, gather: Vec::new(), inline: Vec::new(), umr: Some(umr) });
        Ok(())
    });
}

/// Changes the request added last.
fn set(call: &'static str, qp: *mut ibv_qp_ex, f: impl FnOnce(&mut Request) -> Result<()>) {
    with_batch(call, qp, |_, batch| match batch.requests.last_mut() {
        Some(request) => f(request),
        None => Err(Errno::invalid("a setter before the first request of the batch")),
    });
}

/// An operation that is not emulated: the batch fails.
pub(crate) fn refuse(call: &'static str, qp: *mut ibv_qp_ex, reason: &str) {
    with_batch(call, qp, |_, _| Err(Errno::unsupported(format!("{call}: {reason}"))));
}

unsafe extern "C" fn wr_bind_mw(qp: *mut ibv_qp_ex, mw: *mut ibv_mw, rkey: u32, info: *const ibv_mw_bind_info) {
    // SAFETY: null, or initialised as the manual page asks.
    let bind_info = unsafe { info.as_ref() }.copied().unwrap_or_default();
    add("ibv_wr_bind_mw", qp, (IBV_QP_EX_WITH_BIND_MW, IBV_WR_BIND_MW), |work| {
        work.__bindgen_anon_2.bind_mw = ibv_send_wr__bindgen_ty_4__bindgen_ty_1 { mw, rkey, bind_info }
    });
}

unsafe extern "C" fn wr_send_tso(qp: *mut ibv_qp_ex, _: *mut c_void, _: u16, _: u16) {
    refuse("ibv_wr_send_tso", qp, "raw packets are not emulated");
}

unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut ibv_qp_ex, _: u32) {
    refuse("ibv_wr_set_xrc_srqn", qp, "extended reliable connections (XRC) are not emulated");
}

unsafe extern "C" fn wr_atomic_write(qp: *mut ibv_qp_ex, _: u32, _: u64, _: *const c_void) {
    refuse("ibv_wr_atomic_write", qp, "atomic writes are not emulated: use a write of 8 bytes");
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    status("ibv_wr_start", || {
        handle::get::<Qp>(qp.cast())?.batches.start();
        Ok(())
    });
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    status("ibv_wr_abort", || {
        handle::get::<Qp>(qp.cast())?.batches.end();
        Ok(())
    });
}

/// Posts the whole batch, or nothing of it.
unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    status("ibv_wr_complete", || {
        let queue_pair = handle::get::<Qp>(qp.cast())?;
        let batch = queue_pair.batches.end().ok_or_else(|| Errno::invalid("no batch was started by this thread"))?;
        if let Some(error) = batch.failed {
            return Err(error);
        }
        let mut requests = batch.requests;
        for request in &mut requests {
            if !request.inline.is_empty() {
                let (addr, length) = (request.inline.as_ptr() as u64, request.inline.len() as u32);
                request.gather = vec![ibv_sge { addr, length, lkey: 0 }];
            }
            request.work.sg_list = request.gather.as_mut_ptr();
            request.work.num_sge = request.gather.len() as c_int;
        }
        let work: Vec<_> = requests.iter().map(|request| (&request.work, request.umr.as_ref())).collect();
        // SAFETY: the lists are those of `requests`, which lives until the end of this call.
        unsafe { post::post_batch(&queue_pair, &work) }
    })
}

unsafe extern "C" fn wr_send(qp: *mut ibv_qp_ex) {
    add("ibv_wr_send", qp, (IBV_QP_EX_WITH_SEND, IBV_WR_SEND), |_| ());
}

unsafe extern "C" fn wr_send_imm(qp: *mut ibv_qp_ex, imm_data: u32) {
    add("ibv_wr_send_imm", qp, (IBV_QP_EX_WITH_SEND_WITH_IMM, IBV_WR_SEND_WITH_IMM), |work| {
        work.__bindgen_anon_1.imm_data = imm_data
    });
}

unsafe extern "C" fn wr_send_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    add("ibv_wr_send_inv", qp, (IBV_QP_EX_WITH_SEND_WITH_INV, IBV_WR_SEND_WITH_INV), |work| {
        work.__bindgen_anon_1.invalidate_rkey = rkey
    });
}

unsafe extern "C" fn wr_local_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    add("ibv_wr_local_inv", qp, (IBV_QP_EX_WITH_LOCAL_INV, IBV_WR_LOCAL_INV), |work| {
        work.__bindgen_anon_1.invalidate_rkey = rkey
    });
}

fn remote(work: &mut ibv_send_wr, rkey: u32, remote_addr: u64) {
    work.wr.rdma.remote_addr = remote_addr;
    work.wr.rdma.rkey = rkey;
}

unsafe extern "C" fn wr_rdma_read(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) {
    add("ibv_wr_rdma_read", qp, (IBV_QP_EX_WITH_RDMA_READ, IBV_WR_RDMA_READ), |work| remote(work, rkey, remote_addr));
}

unsafe extern "C" fn wr_rdma_write(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) {
    add("ibv_wr_rdma_write", qp, (IBV_QP_EX_WITH_RDMA_WRITE, IBV_WR_RDMA_WRITE), |work| {
        remote(work, rkey, remote_addr)
    });
}

unsafe extern "C" fn wr_rdma_write_imm(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, imm_data: u32) {
    add("ibv_wr_rdma_write_imm", qp, (IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_WRITE_WITH_IMM), |work| {
        remote(work, rkey, remote_addr);
        work.__bindgen_anon_1.imm_data = imm_data;
    });
}

unsafe extern "C" fn wr_atomic_cmp_swp(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, compare: u64, swap: u64) {
    add("ibv_wr_atomic_cmp_swp", qp, (IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_CMP_AND_SWP), |work| {
        work.wr.atomic.remote_addr = remote_addr;
        work.wr.atomic.rkey = rkey;
        work.wr.atomic.compare_add = compare;
        work.wr.atomic.swap = swap;
    });
}

unsafe extern "C" fn wr_atomic_fetch_add(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, add_value: u64) {
    add("ibv_wr_atomic_fetch_add", qp, (IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_FETCH_AND_ADD), |work| {
        work.wr.atomic.remote_addr = remote_addr;
        work.wr.atomic.rkey = rkey;
        work.wr.atomic.compare_add = add_value;
    });
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32) {
    const CALL: &str = "ibv_wr_set_ud_addr";
    if handle::get::<Qp>(qp.cast()).is_ok_and(|queue_pair| queue_pair.transport != Transport::Ud) {
        return refuse(CALL, qp, "a connected queue pair sends to its peer alone");
    }
    set(CALL, qp, |request| {
        // SAFETY: the union's members are plain values, and this is the one that a UD queue pair's request has.
        let ud = unsafe { &mut request.work.wr.ud };
        (ud.ah, ud.remote_qpn, ud.remote_qkey) = (ah, remote_qpn, remote_qkey);
        Ok(())
    });
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    set("ibv_wr_set_sge", qp, |request| {
        request.gather = vec![ibv_sge { addr, length, lkey }];
        Ok(())
    });
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, num_sge: usize, list: *const ibv_sge) {
    set("ibv_wr_set_sge_list", qp, |request| {
        // SAFETY: null, or as many initialised entries as the caller says.
        request.gather = unsafe { segments(list, c_int::try_from(num_sge).unwrap_or(-1), device::MAX_SGE) }?.to_vec();
        Ok(())
    });
}

/// Appends inline bytes.
///
/// # Safety
/// `addr` must be readable for `length` bytes.
unsafe fn copy_inline(request: &mut Request, addr: *const c_void, length: usize) -> Result<()> {
    if request.inline.len().saturating_add(length) > qp::MAX_INLINE_BYTES as usize {
        return Err(Errno::invalid(format!("{length} more inline bytes: at most {} in all", qp::MAX_INLINE_BYTES)));
    }
    if length > 0 {
        // SAFETY: as this function's; null is refused.
        let bytes = unsafe { core::slice::from_raw_parts(input(addr.cast::<u8>(), "addr")?, length) };
        request.inline.extend_from_slice(bytes);
    }
    request.work.send_flags |= IBV_SEND_INLINE;
    Ok(())
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    set("ibv_wr_set_inline_data", qp, |request| {
        request.inline.clear();
        // SAFETY: the manual page asks for readable data.
        unsafe { copy_inline(request, addr, length) }
    });
}

unsafe extern "C" fn wr_set_inline_data_list(qp: *mut ibv_qp_ex, num_buf: usize, list: *const ibv_data_buf) {
    set("ibv_wr_set_inline_data_list", qp, |request| {
        request.inline.clear();
        for index in 0..num_buf.min(device::MAX_SGE as usize + 1) {
            // SAFETY: the manual page asks for so many readable entries, and for readable data behind them.
            unsafe {
                let buffer = input(list.wrapping_add(index), "buf_list")?;
                copy_inline(request, buffer.addr, buffer.length)?;
            }
        }
        if num_buf > device::MAX_SGE as usize {
            return Err(Errno::invalid(format!("{num_buf} inline buffers: at most {} are", device::MAX_SGE)));
        }
        Ok(())
    });
}
