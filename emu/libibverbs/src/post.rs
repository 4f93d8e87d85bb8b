//! Posting work requests: work queue entries in the card's byte format, the doorbell record, then the doorbell.

use core::ffi::c_int;

use emu_machine::nic::{PUSHED_BYTES, QpState, Transport, wqe_opcode};
use verbs_sys::*;

use crate::address::Ah;
use crate::card;
use crate::errno::{Errno, Result, input, status};
use crate::handle;
use crate::qp::{Qp, Rings, Send};
use crate::segments::{BLOCK_BYTES, SEGMENT_BYTES, data_segment, receive_entry, segments};
use crate::umr::Umr;
use crate::window;

/// Completion always; without it, on error only.
const COMPLETE_ALWAYS: u8 = 2 << 2;
const SOLICITED: u8 = 1 << 1;
/// Full fence: earlier reads are done before this one starts.
const FENCE: u8 = 4 << 5;
/// A segment with this length bit holds the bytes themselves.
const INLINE: u32 = 1 << 31;
struct Entry {
    bytes: Vec<u8>,
}

/// What one call has posted.
#[derive(Clone, Copy, Debug, Default)]
struct Posted {
    entries: u32,
    /// The last one carries its data and is short enough to be pushed.
    pushable: bool,
}

impl Entry {
    /// Fills in the control segment; the entry has all others.
    fn control(&mut self, qp: &Qp, opcode: u8, position: u32, flags: u32) {
        let segments = self.bytes.len() / SEGMENT_BYTES;
        let control = &mut self.bytes[..SEGMENT_BYTES];
        control[0..4].copy_from_slice(&((position & 0xFFFF) << 8 | u32::from(opcode)).to_be_bytes());
        control[4..8].copy_from_slice(&(qp.number << 8 | segments as u32).to_be_bytes());
        let flag = |condition: bool, bits: u8| if condition { bits } else { 0 };
        control[11] = flag(qp.signal_all || flags & IBV_SEND_SIGNALED != 0, COMPLETE_ALWAYS)
            | flag(flags & IBV_SEND_SOLICITED != 0, SOLICITED)
            | flag(flags & IBV_SEND_FENCE != 0, FENCE);
    }
}

fn opcode(request: &ibv_send_wr, transport: Transport) -> Result<u8> {
    let opcode = match request.opcode {
        IBV_WR_SEND => wqe_opcode::SEND,
        IBV_WR_SEND_WITH_IMM => wqe_opcode::SEND_IMM,
        IBV_WR_RDMA_WRITE if transport != Transport::Ud => wqe_opcode::RDMA_WRITE,
        IBV_WR_RDMA_WRITE_WITH_IMM if transport != Transport::Ud => wqe_opcode::RDMA_WRITE_IMM,
        IBV_WR_RDMA_READ if transport == Transport::Rc => wqe_opcode::RDMA_READ,
        IBV_WR_ATOMIC_CMP_AND_SWP if transport == Transport::Rc => wqe_opcode::ATOMIC_CS,
        IBV_WR_ATOMIC_FETCH_AND_ADD if transport == Transport::Rc => wqe_opcode::ATOMIC_FA,
        IBV_WR_SEND_WITH_INV if transport == Transport::Rc => wqe_opcode::SEND_INVAL,
        IBV_WR_LOCAL_INV if transport != Transport::Ud => wqe_opcode::LOCAL_INVAL,
        other => return Err(Errno::invalid(format!("work request opcode {other} on a {transport} queue pair"))),
    };
    Ok(opcode)
}

/// Builds the entry of one request that starts at block `position`.
///
/// # Safety
/// The request's lists, and inline data, must be readable.
unsafe fn build(qp: &Qp, request: &ibv_send_wr, umr: Option<&Umr>, position: u32) -> Result<Entry> {
    if let Some(umr) = umr {
        let mut entry = Entry { bytes: vec![0; SEGMENT_BYTES] };
        entry.bytes.extend_from_slice(&umr.body);
        entry.control(qp, wqe_opcode::UMR, position, request.send_flags);
        entry.bytes[12..16].copy_from_slice(&umr.key.to_be_bytes());
        return Ok(entry);
    }
    if request.opcode == IBV_WR_BIND_MW && qp.transport != Transport::Ud {
        // SAFETY: the request has this member of the union.
        let bind = unsafe { request.__bindgen_anon_2.bind_mw };
        let umr = window::request(qp.number, bind.mw, bind.rkey, &bind.bind_info)?;
        // SAFETY: as this function's.
        return unsafe { build(qp, request, Some(&umr), position) };
    }
    let opcode = opcode(request, qp.transport)?;
    // SAFETY: the caller vouches for the list.
    let gather = unsafe { segments(request.sg_list, request.num_sge, qp.shape.cap.max_send_sge) }?;
    let mut entry = Entry { bytes: vec![0; SEGMENT_BYTES] };
    if qp.transport == Transport::Ud {
        // SAFETY: the request of a UD queue pair has this member of the union.
        let ud = unsafe { request.wr.ud };
        let ah = handle::get::<Ah>(ud.ah)?;
        if ah.id != qp.context().id() {
            return Err(Errno::invalid("the address handle is on another card, or of another function of this one"));
        }
        entry.bytes.extend_from_slice(&ah.vector(ud.remote_qpn, ud.remote_qkey));
    } else if matches!(opcode, wqe_opcode::RDMA_WRITE | wqe_opcode::RDMA_WRITE_IMM | wqe_opcode::RDMA_READ) {
        // SAFETY: an RDMA request has this member of the union.
        let rdma = unsafe { request.wr.rdma };
        entry.bytes.extend_from_slice(&rdma.remote_addr.to_be_bytes());
        entry.bytes.extend_from_slice(&rdma.rkey.to_be_bytes());
        entry.bytes.extend_from_slice(&[0; 4]);
    }
    let atomic = matches!(opcode, wqe_opcode::ATOMIC_CS | wqe_opcode::ATOMIC_FA);
    if atomic {
        // SAFETY: an atomic request has this member of the union.
        let operands = unsafe { request.wr.atomic };
        entry.bytes.extend_from_slice(&operands.remote_addr.to_be_bytes());
        entry.bytes.extend_from_slice(&operands.rkey.to_be_bytes());
        entry.bytes.extend_from_slice(&[0; 4]);
        let (swap_or_add, compare) = match opcode {
            wqe_opcode::ATOMIC_CS => (operands.swap, operands.compare_add),
            _ => (operands.compare_add, 0),
        };
        entry.bytes.extend_from_slice(&swap_or_add.to_be_bytes());
        entry.bytes.extend_from_slice(&compare.to_be_bytes());
    }
    if opcode == wqe_opcode::LOCAL_INVAL && !gather.is_empty() {
        return Err(Errno::invalid("an invalidation has no scatter/gather entries"));
    }
    if request.send_flags & IBV_SEND_INLINE != 0 {
        let total: u64 = gather.iter().map(|segment| u64::from(segment.length)).sum();
        if total > u64::from(qp.shape.cap.max_inline_data) || opcode == wqe_opcode::RDMA_READ || atomic {
            return Err(Errno::invalid(format!(
                "{total} inline bytes: the queue pair takes {}, reads and atomics take none",
                qp.shape.cap.max_inline_data
            )));
        }
        if total > 0 {
            entry.bytes.extend_from_slice(&(INLINE | total as u32).to_be_bytes());
            for segment in gather.iter().filter(|segment| segment.length > 0) {
                // SAFETY: inline data is read by this call, as the manual page says; the caller vouches for it.
                let data = unsafe { core::slice::from_raw_parts(segment.addr as *const u8, segment.length as usize) };
                entry.bytes.extend_from_slice(data);
            }
            entry.bytes.resize(entry.bytes.len().next_multiple_of(SEGMENT_BYTES), 0);
        }
    } else {
        // A length of 0 means 2 GiB to the card: empty segments are left out.
        for segment in gather.iter().filter(|segment| segment.length > 0) {
            data_segment(&mut entry.bytes, segment.length, segment.lkey, segment.addr);
        }
    }
    entry.control(qp, opcode, position, request.send_flags);
    let control = &mut entry.bytes[..SEGMENT_BYTES];
    if matches!(opcode, wqe_opcode::SEND_IMM | wqe_opcode::RDMA_WRITE_IMM) {
        // SAFETY: both members of the union are plain 32-bit values; the immediate travels as it lies in memory.
        let immediate = unsafe { request.__bindgen_anon_1.imm_data };
        control[12..16].copy_from_slice(&immediate.to_ne_bytes());
    } else if matches!(opcode, wqe_opcode::SEND_INVAL | wqe_opcode::LOCAL_INVAL) {
        // SAFETY: as above; a key is a number, and big-endian in the entry.
        let key = unsafe { request.__bindgen_anon_1.invalidate_rkey };
        control[12..16].copy_from_slice(&key.to_be_bytes());
    }
    Ok(entry)
}

/// Posts one request into the ring, without a doorbell.
///
/// # Safety
/// As [`build`].
unsafe fn post_one(
    qp: &Qp,
    rings: &mut Rings,
    request: &ibv_send_wr,
    umr: Option<&Umr>,
    posted: &mut Posted,
) -> Result<()> {
    let ring_blocks = rings.sends.len() as u32;
    // SAFETY: as this function's.
    let entry = unsafe { build(qp, request, umr, rings.send_head) }?;
    let blocks = entry.bytes.len().div_ceil(BLOCK_BYTES) as u32;
    let used = rings.send_head.wrapping_sub(rings.send_tail);
    if used + blocks > ring_blocks {
        return Err(Errno::new(
            libc::ENOMEM,
            format!("the send ring is full: {used} of {ring_blocks} blocks are in use, {blocks} more are needed"),
        ));
    }
    for (index, chunk) in entry.bytes.chunks(BLOCK_BYTES).enumerate() {
        let block = rings.send_head.wrapping_add(index as u32) & (ring_blocks - 1);
        qp.buffer.write(qp.shape.send_offset + block as usize * BLOCK_BYTES, chunk);
    }
    let first = (rings.send_head & (ring_blocks - 1)) as usize;
    rings.sends[first] = Send { id: request.wr_id, blocks, binds_window: request.opcode == IBV_WR_BIND_MW };
    rings.send_head = rings.send_head.wrapping_add(blocks);
    posted.entries += 1;
    posted.pushable = request.send_flags & IBV_SEND_INLINE != 0 && entry.bytes.len() <= PUSHED_BYTES;
    Ok(())
}

/// Posts requests all together or, if one is wrong or does not fit, not at all.
///
/// # Safety
/// As [`build`], for each.
pub(crate) unsafe fn post_batch(qp: &Qp, requests: &[(&ibv_send_wr, Option<&Umr>)]) -> Result<()> {
    check_state(qp)?;
    let mut rings = qp.lock();
    let head = rings.send_head;
    let mut posted = Posted::default();
    for &(request, umr) in requests {
        // SAFETY: as this function's.
        if let Err(error) = unsafe { post_one(qp, &mut rings, request, umr, &mut posted) } {
            rings.send_head = head;
            return Err(error);
        }
    }
    ring(qp, &rings, posted)
}

fn check_state(qp: &Qp) -> Result<()> {
    let state = qp.state()?;
    if !matches!(state, QpState::Rts | QpState::Err) {
        return Err(Errno::invalid(format!("queue pair {:#x} is in {state}: sends need RTS", qp.number)));
    }
    Ok(())
}

/// Announces to the card what was posted. A single entry that carries its data goes along with the doorbell
/// (BlueFlame), as in mlx5's provider: the card need not fetch it.
fn ring(qp: &Qp, rings: &Rings, posted: Posted) -> Result<()> {
    if posted.entries == 0 {
        return Ok(());
    }
    let counter = rings.send_head & 0xFFFF;
    let pushed = posted.entries == 1 && posted.pushable;
    card::ring(qp.context().id(), qp.number, counter as u16, pushed, || {
        qp.buffer.write(qp.shape.record_offset + 4, &counter.to_be_bytes());
    })
}

pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    let mut next = wr;
    let result = status("ibv_post_send", || {
        let qp = handle::get::<Qp>(qp)?;
        check_state(&qp)?;
        let mut rings = qp.lock();
        let (mut posted, mut result) = (Posted::default(), Ok(()));
        // SAFETY: the manual page asks for a well-formed list; null ends it.
        while let Some(request) = unsafe { next.as_ref() } {
            // SAFETY: as above, with everything the request points at.
            result = unsafe { post_one(&qp, &mut rings, request, None, &mut posted) };
            if result.is_err() {
                break;
            }
            next = request.next;
        }
        // What was posted before a bad request goes out.
        ring(&qp, &rings, posted)?;
        result
    });
    if result != 0 && !bad_wr.is_null() {
        // SAFETY: not null, and writable as the manual page asks.
        unsafe { bad_wr.write(next) };
    }
    result
}

/// Posts one receive into the ring, without the doorbell record.
///
/// # Safety
/// The request's scatter list must be readable.
unsafe fn receive_one(qp: &Qp, rings: &mut Rings, request: &ibv_recv_wr) -> Result<()> {
    let depth = rings.receives.len() as u32;
    // SAFETY: as this function's.
    let scatter = unsafe { segments(request.sg_list, request.num_sge, qp.shape.cap.max_recv_sge) }?;
    let used = rings.receive_head.wrapping_sub(rings.receive_tail);
    if used >= depth {
        return Err(Errno::new(libc::ENOMEM, format!("the receive ring is full: {used} of {depth} are in use")));
    }
    let stride = 1 << qp.shape.log_stride;
    let slot = (rings.receive_head & (depth - 1)) as usize;
    qp.buffer.write(slot * stride, &receive_entry(scatter, stride));
    rings.receives[slot] = request.wr_id;
    rings.receive_head = rings.receive_head.wrapping_add(1);
    Ok(())
}

pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    let mut next = wr;
    let result = status("ibv_post_recv", || {
        let qp = handle::get::<Qp>(qp)?;
        let state = qp.state()?;
        if state == QpState::Reset {
            return Err(Errno::invalid(format!("queue pair {:#x} is in RESET: receives need INIT", qp.number)));
        }
        if qp.srq.is_some() {
            return Err(Errno::invalid(format!(
                "queue pair {:#x} takes its receives from a shared queue: post them with ibv_post_srq_recv",
                qp.number
            )));
        }
        let mut rings = qp.lock();
        let head = rings.receive_head;
        let mut posted = Ok(());
        // SAFETY: the manual page asks for a well-formed list; null ends it.
        while let Some(request) = unsafe { next.as_ref() } {
            // SAFETY: as above, with everything the request points at.
            posted = unsafe { receive_one(&qp, &mut rings, request) };
            if posted.is_err() {
                break;
            }
            next = request.next;
        }
        if rings.receive_head != head {
            // The record is all that the card reads: a receive ring has no doorbell.
            let counter = (rings.receive_head & 0xFFFF).to_be_bytes();
            card::store_receives(qp.context().id(), qp.record_address() as u64, || {
                qp.buffer.write(qp.shape.record_offset, &counter);
            })?;
        }
        posted
    });
    if result != 0 && !bad_wr.is_null() {
        // SAFETY: not null, and writable as the manual page asks.
        unsafe { bad_wr.write(next) };
    }
    result
}

/// Binds a window of type 1, under its next key, which the window has at once; with no bytes it is invalid afterwards.
pub(crate) unsafe extern "C" fn bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, mw_bind: *mut ibv_mw_bind) -> c_int {
    status("ibv_bind_mw", || {
        // SAFETY: null, or initialised as the manual page asks.
        let bind = unsafe { input(mw_bind, "mw_bind") }?;
        let (rkey, shown) = window::next_key(mw)?;
        let mut work = ibv_send_wr {
            wr_id: bind.wr_id,
            send_flags: bind.send_flags,
            opcode: IBV_WR_BIND_MW,
            ..Default::default()
        };
        work.__bindgen_anon_2.bind_mw = ibv_send_wr__bindgen_ty_4__bindgen_ty_1 { mw, rkey, bind_info: bind.bind_info };
        let mut bad = core::ptr::null_mut();
        // SAFETY: the request lies here, and names nothing else.
        match unsafe { post_send(qp, &raw mut work, &raw mut bad) } {
            // SAFETY: it lives as long as the window, which the program must not destroy meanwhile.
            0 => unsafe { shown.write(rkey) },
            errno => return Err(Errno::new(errno, "the request could not be posted")),
        }
        Ok(())
    })
}
