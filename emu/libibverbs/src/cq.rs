//! Completion queues of the host: rings in host memory, polled entry by entry.

use core::ffi::{c_int, c_void};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::ThreadId;

use emu_bridge::Seldom;
use emu_machine::FunctionId;
use verbs_sys::*;

use crate::acknowledged::Acknowledged;
use crate::card;
use crate::card::request::Request;
use crate::channel::Channel;
use crate::device::{Context, MAX_CQE};
use crate::errno::{Errno, Result, number, pointer, status};
use crate::failures;
use crate::handle::{self, CStruct, Object};
use crate::machine::{self, begin_command};
use crate::memory::QueueBuffer;
use crate::qp::{Qp, Send};

const CQE_BYTES: usize = 64;
/// Opcode INVALID and owner bit 1: an entry the card has not written.
const INITIAL_OP_OWN: u8 = 0xF1;

/// Offsets in a completion queue entry (mlx5, big-endian).
mod field {
    pub(super) const FLAGS_RQPN: usize = 0x18;
    pub(super) const IMMEDIATE: usize = 0x24;
    pub(super) const BYTE_COUNT: usize = 0x2C;
    pub(super) const VENDOR_SYNDROME: usize = 0x36;
    pub(super) const SYNDROME: usize = 0x37;
    pub(super) const SOP_QPN: usize = 0x38;
    pub(super) const WQE_COUNTER: usize = 0x3C;
    pub(super) const OP_OWN: usize = 0x3F;
    /// Its last byte is that of `OP_OWN`.
    pub(super) const LAST_WORD: usize = 0x38;
    pub(super) const TIME_STAMP: usize = 0x30;
}

pub(crate) struct Cq {
    /// It begins as an `ibv_cq`, and is one where the program did not ask for an extended queue.
    pub(crate) public: CStruct<ibv_cq_ex>,
    pub(crate) number: u32,
    log_depth: u8,
    /// Keeps the address in `public.context` valid.
    pub(crate) context: Arc<Context>,
    pub(crate) channel: Option<Arc<Channel>>,
    pub(crate) completion_events: Acknowledged,
    async_events: Acknowledged,
    /// The ring that it was made with, and behind it the doorbell record.
    buffer: QueueBuffer,
    inner: Mutex<Consumer>,
    pub(crate) polling: Polling,
}

#[derive(Default)]
pub(crate) struct Consumer {
    /// Entries consumed, modulo 2^32.
    pub(crate) index: u32,
    /// The ring of a queue that was resized.
    pub(crate) later: Option<Ring>,
    /// Queue pairs that complete here.
    pub(crate) queue_pairs: BTreeMap<u32, Weak<Qp>>,
    /// Entries of queue pairs that have been reset or destroyed since.
    stale: BTreeSet<u32>,
    /// When the queue was last found empty.
    empty_at_ps: Option<u64>,
    /// When another process was last asked whether it has failed.
    asked: Seldom,
}

/// Who polls an extended queue, and the completion that polling stands at. Another thread waits for its turn, as behind
/// the lock of the real library.
#[derive(Default)]
pub(crate) struct Polling {
    state: Mutex<Option<(ThreadId, Completion)>>,
    pub(crate) ended: Condvar,
}

/// A completion, and the card's time at it, in ticks of its clock. Those in error have none.
#[derive(Clone, Copy, Default)]
pub(crate) struct Completion {
    pub(crate) wc: ibv_wc,
    pub(crate) ticks: u64,
}

impl Polling {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Option<(ThreadId, Completion)>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Object for Cq {
    const KIND: &'static str = "completion queue";
    type C = ibv_cq;
    fn c_address(&self) -> *mut ibv_cq {
        self.public.get().cast()
    }
}

impl failures::Source for Cq {
    fn take(&self, event: &mut ibv_async_event) -> bool {
        event.element.cq = self.c_address();
        self.async_events.take()
    }
}

impl Cq {
    /// The number in the public structure that `field` finds.
    fn shown(&self, field: impl FnOnce(*mut ibv_cq_ex) -> *mut u32) -> &AtomicU32 {
        // SAFETY: a field of the structure, which lives as long as `self` and is aligned. This library accesses it as
        // an atomic alone, and programs read it.
        unsafe { AtomicU32::from_ptr(field(self.public.get())) }
    }

    pub(crate) fn acknowledge_completion_events(&self, events: u32) -> Result<()> {
        // SAFETY: only the address of a field is taken.
        let shown = self.shown(|public| unsafe { &raw mut (*public).comp_events_completed });
        self.completion_events.acknowledge(events, shown)
    }

    pub(crate) fn acknowledge_async_event(&self) -> Result<()> {
        // SAFETY: only the address of a field is taken.
        let shown = self.shown(|public| unsafe { &raw mut (*public).async_events_completed });
        self.async_events.acknowledge(1, shown)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Consumer> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The ring in use: its memory, and log2 of its entries.
    fn ring<'r>(&'r self, inner: &'r Consumer) -> (&'r QueueBuffer, u8) {
        inner.later.as_ref().map_or((&self.buffer, self.log_depth), |ring| (&ring.buffer, ring.log_depth))
    }

    /// Entries of the ring.
    pub(crate) fn depth(&self, inner: &Consumer) -> usize {
        1 << self.ring(inner).1
    }

    /// What direct verbs shows: the ring, the doorbell record and the number of entries.
    pub(crate) fn addresses(&self) -> (*mut u8, *mut u8, u32) {
        let inner = self.lock();
        (self.ring(&inner).0.at(0), self.buffer.at(self.doorbell_record()), self.depth(&inner) as u32)
    }

    fn doorbell_record(&self) -> usize {
        CQE_BYTES << self.log_depth
    }

    /// Up to `most` entries from an index on.
    pub(crate) fn entries(&self, inner: &Consumer, first: u32, most: usize) -> Result<Vec<[u8; CQE_BYTES]>> {
        let ring = self.ring(inner);
        card::access_shared(|| (0..most).map_while(|ahead| entry(ring, first.wrapping_add(ahead as u32))).collect())
    }

    /// Entries of a queue pair that are there now will not be reported any more.
    pub(crate) fn forget(&self, qpn: u32) -> Result<()> {
        let mut inner = self.lock();
        let first = inner.index;
        let entries = self.entries(&inner, first, self.depth(&inner))?;
        let stale = entries.iter().zip(0..).filter(|(entry, _)| be32(entry, field::SOP_QPN) & 0xFF_FFFF == qpn);
        let qp = inner.queue_pairs.get(&qpn).and_then(Weak::upgrade);
        for (entry, ahead) in stale {
            let is_new = inner.stale.insert(first.wrapping_add(ahead));
            // Its receive is one of the others again.
            if let Some(srq) = qp.as_ref().and_then(|qp| qp.srq.as_ref()).filter(|_| is_new && !of_send(entry)) {
                srq.retire(counter(entry));
            }
        }
        Ok(())
    }

    /// Takes up to `wanted` completions; `report` gets each.
    fn take(&self, wanted: usize, mut report: impl FnMut(Completion)) -> Result<usize> {
        let mut inner = self.lock();
        let first = inner.index;
        let mut taken = 0;
        loop {
            let entries = self.entries(&inner, inner.index, wanted - taken)?;
            for entry in &entries {
                let index = inner.index;
                inner.index = index.wrapping_add(1);
                if inner.stale.remove(&index) {
                    continue;
                }
                let qpn = be32(entry, field::SOP_QPN) & 0xFF_FFFF;
                // Completions of queue pairs that are gone are dropped, as the real library does.
                let Some(qp) = inner.queue_pairs.get(&qpn).and_then(Weak::upgrade) else { continue };
                report(Completion { wc: completion(entry, qpn, &qp), ticks: be64(entry, field::TIME_STAMP) });
                taken += 1;
            }
            if entries.is_empty() || taken == wanted {
                break;
            }
        }
        if inner.index != first {
            self.buffer.store(self.doorbell_record(), &(inner.index & 0xFF_FFFF).to_be_bytes())?;
        }
        Ok(taken)
    }
}

impl Cq {
    /// Found empty now: whether it was, too, when the clock was last read here, and the clock has not moved since.
    fn is_waited_for(&self) -> bool {
        if machine::is_elsewhere().is_ok_and(|elsewhere| elsewhere) {
            // The process with the card needs the processor.
            return true;
        }
        let now_ps = card::now_ps();
        self.lock().empty_at_ps.replace(now_ps) == Some(now_ps)
    }
}

/// The entry at an index of a ring, if the card has written it in this lap. Called under the machine's lock, or while a
/// card in another process may write: its last byte comes last.
fn entry((buffer, log_depth): (&QueueBuffer, u8), index: u32) -> Option<[u8; CQE_BYTES]> {
    let slot = index as usize & ((1 << log_depth) - 1);
    let [.., op_own] = buffer.load(slot * CQE_BYTES + field::LAST_WORD).to_ne_bytes();
    let lap = (index >> log_depth & 1) as u8;
    (op_own >> 4 != 0xF && op_own & 1 == lap).then(|| buffer.read::<CQE_BYTES>(slot * CQE_BYTES))
}

/// A ring of entries that the card has not written, with room for something behind it.
fn empty_ring(id: FunctionId, log_depth: u8, behind: usize) -> Result<QueueBuffer> {
    let buffer = QueueBuffer::new(id, (CQE_BYTES << log_depth) + behind)?;
    for slot in 0..1_usize << log_depth {
        buffer.write(slot * CQE_BYTES + field::OP_OWN, &[INITIAL_OP_OWN]);
    }
    Ok(buffer)
}

/// log2 of the entries of a queue of which `cqe` can be used.
pub(crate) fn log_depth(cqe: u32) -> Result<u8> {
    if !(1..=MAX_CQE.cast_unsigned()).contains(&cqe) {
        return Err(Errno::invalid(format!("{cqe} completion queue entries: 1 to {MAX_CQE} are possible")));
    }
    Ok((cqe + 1).next_power_of_two().trailing_zeros() as u8)
}

/// The ring of a queue that was resized.
pub(crate) struct Ring {
    buffer: QueueBuffer,
    log_depth: u8,
}

impl Ring {
    pub(crate) fn new(id: FunctionId, log_depth: u8) -> Result<Self> {
        Ok(Self { buffer: empty_ring(id, log_depth, 0)?, log_depth })
    }

    pub(crate) fn addr(&self) -> u64 {
        self.buffer.addr()
    }

    /// Stores entries of another ring from an index on, as the card would have written them into this one.
    pub(crate) fn put(&self, first: u32, entries: &[[u8; CQE_BYTES]]) {
        for (entry, ahead) in entries.iter().zip(0..) {
            let index = first.wrapping_add(ahead);
            let mut entry = *entry;
            entry[field::OP_OWN] = entry[field::OP_OWN] & !1 | (index >> self.log_depth & 1) as u8;
            let slot = index as usize & ((1 << self.log_depth) - 1);
            self.buffer.write(slot * CQE_BYTES, &entry);
        }
    }
}

fn be32(entry: &[u8; CQE_BYTES], at: usize) -> u32 {
    u32::from_be_bytes([entry[at], entry[at + 1], entry[at + 2], entry[at + 3]])
}

fn counter(entry: &[u8; CQE_BYTES]) -> u16 {
    u16::from_be_bytes([entry[field::WQE_COUNTER], entry[field::WQE_COUNTER + 1]])
}

fn of_send(entry: &[u8; CQE_BYTES]) -> bool {
    use emu_machine::nic::cqe_opcode as cqe;
    matches!(entry[field::OP_OWN] >> 4, cqe::REQUESTER | cqe::REQUESTER_ERROR)
}

fn be64(entry: &[u8; CQE_BYTES], at: usize) -> u64 {
    u64::from(be32(entry, at)) << 32 | u64::from(be32(entry, at + 4))
}

fn completion(entry: &[u8; CQE_BYTES], qpn: u32, qp: &Qp) -> ibv_wc {
    use emu_machine::nic::{cqe_opcode as cqe, wqe_opcode as wqe};
    let opcode = entry[field::OP_OWN] >> 4;
    let (counter, of_send) = (counter(entry), of_send(entry));
    let send = if of_send { qp.retire_send(counter) } else { Send::default() };
    let wr_id = if of_send { send.id } else { qp.retire_receive(counter) };
    let mut wc = ibv_wc { wr_id, qp_num: qpn, byte_len: be32(entry, field::BYTE_COUNT), ..Default::default() };
    if matches!(opcode, cqe::REQUESTER_ERROR | cqe::RESPONDER_ERROR) {
        wc.status = status_of(entry[field::SYNDROME]);
        wc.vendor_err = entry[field::VENDOR_SYNDROME].into();
        wc.byte_len = 0;
        wc.opcode = if of_send { IBV_WC_SEND } else { IBV_WC_RECV };
        return wc;
    }
    if of_send {
        wc.opcode = match (be32(entry, field::SOP_QPN) >> 24) as u8 {
            wqe::RDMA_WRITE | wqe::RDMA_WRITE_IMM => IBV_WC_RDMA_WRITE,
            wqe::RDMA_READ => IBV_WC_RDMA_READ,
            wqe::ATOMIC_CS => IBV_WC_COMP_SWAP,
            wqe::ATOMIC_FA => IBV_WC_FETCH_ADD,
            wqe::LOCAL_INVAL => IBV_WC_LOCAL_INV,
            wqe::UMR if send.binds_window => IBV_WC_BIND_MW,
            wqe::UMR => IBV_WC_DRIVER1,
            _ => IBV_WC_SEND,
        };
        return wc;
    }
    let flags = be32(entry, field::FLAGS_RQPN);
    wc.src_qp = flags & 0xFF_FFFF;
    wc.sl = (flags >> 24 & 0xF) as u8;
    if flags >> 28 & 3 != 0 {
        wc.wc_flags |= IBV_WC_GRH;
    }
    wc.opcode = if opcode == cqe::RESPONDER_WRITE_IMMEDIATE { IBV_WC_RECV_RDMA_WITH_IMM } else { IBV_WC_RECV };
    if matches!(opcode, cqe::RESPONDER_WRITE_IMMEDIATE | cqe::RESPONDER_SEND_IMMEDIATE) {
        wc.wc_flags |= IBV_WC_WITH_IMM;
        // As the sender stored it: network order is a convention of the programs.
        let at = field::IMMEDIATE;
        let bytes = [entry[at], entry[at + 1], entry[at + 2], entry[at + 3]];
        wc.__bindgen_anon_1.imm_data = u32::from_ne_bytes(bytes);
    }
    if opcode == cqe::RESPONDER_SEND_INVALIDATE {
        wc.wc_flags |= IBV_WC_WITH_INV;
        // A key, not opaque bytes: the library turns it into host order.
        wc.__bindgen_anon_1.invalidated_rkey = be32(entry, field::IMMEDIATE);
    }
    wc
}

fn status_of(syndrome: u8) -> ibv_wc_status {
    match syndrome {
        0x01 => IBV_WC_LOC_LEN_ERR,
        0x02 => IBV_WC_LOC_QP_OP_ERR,
        0x04 => IBV_WC_LOC_PROT_ERR,
        0x05 => IBV_WC_WR_FLUSH_ERR,
        0x06 => IBV_WC_MW_BIND_ERR,
        0x10 => IBV_WC_BAD_RESP_ERR,
        0x11 => IBV_WC_LOC_ACCESS_ERR,
        0x12 => IBV_WC_REM_INV_REQ_ERR,
        0x13 => IBV_WC_REM_ACCESS_ERR,
        0x14 => IBV_WC_REM_OP_ERR,
        0x15 => IBV_WC_RETRY_EXC_ERR,
        0x16 => IBV_WC_RNR_RETRY_EXC_ERR,
        0x22 => IBV_WC_REM_ABORT_ERR,
        _ => IBV_WC_GENERAL_ERR,
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    pointer("ibv_create_cq", || {
        let wanted = ibv_cq_init_attr_ex {
            cqe: u32::try_from(cqe).unwrap_or(0),
            cq_context,
            channel,
            comp_vector: comp_vector.cast_unsigned(),
            ..Default::default()
        };
        Ok(handle::publish(&create(context, &wanted, ibv_cq_ex::default())?))
    })
}

/// Makes a completion queue, without publishing it; `operations` are those of an extended one.
pub(crate) fn create(
    context: *mut ibv_context,
    wanted: &ibv_cq_init_attr_ex,
    operations: ibv_cq_ex,
) -> Result<Arc<Cq>> {
    let &ibv_cq_init_attr_ex { cqe, cq_context, channel, comp_vector, .. } = wanted;
    let context = handle::get::<Context>(context)?;
    let log_depth = log_depth(cqe)?;
    if comp_vector != 0 {
        return Err(Errno::invalid(format!("completion vector {comp_vector}: a device has vector 0 alone")));
    }
    let channel = if channel.is_null() { None } else { Some(handle::get::<Channel>(channel)?) };
    if channel.as_ref().is_some_and(|channel| !Arc::ptr_eq(&channel.context, &context)) {
        return Err(Errno::invalid("the completion channel belongs to another device context"));
    }
    let ring_bytes = CQE_BYTES << log_depth;
    let buffer = empty_ring(context.id(), log_depth, CQE_BYTES)?;
    let (ring, record) = (buffer.place(0).addr, buffer.place(ring_bytes).addr);
    let channel_id = channel.as_ref().map(|channel| channel.id);
    begin_command(context.id())?;
    let request = Request::CreateCq { ring, log_depth, record, channel: channel_id };
    let number = card::call(context.id(), request)?.number()?;
    let public = ibv_cq_ex {
        context: context.c_address(),
        channel: channel.as_ref().map_or(core::ptr::null_mut(), |channel| channel.c_address()),
        cq_context,
        handle: number,
        cqe: (1 << log_depth) - 1,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        ..operations
    };
    let cq = Arc::new(Cq {
        public: CStruct::new(public),
        number,
        log_depth,
        context,
        channel,
        completion_events: Acknowledged::default(),
        async_events: Acknowledged::default(),
        buffer,
        inner: Mutex::default(),
        polling: Polling::default(),
    });
    if let Some(channel) = &cq.channel {
        channel.add(&cq);
    }
    failures::watch(&cq.context, cq.buffer.addr(), &cq);
    Ok(cq)
}

/// Waits until the program has acknowledged the events of the queue that it has taken.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    const CALL: &str = "ibv_destroy_cq";
    status(CALL, || {
        let queue = handle::get::<Cq>(cq)?;
        begin_command(queue.context.id())?;
        card::done(queue.context.id(), Request::DestroyCq { cqn: queue.number })?;
        if let Some(channel) = &queue.channel {
            channel.remove(&queue);
        }
        let name = |with: &str| format!("completion queue {:#x} ({with})", queue.number);
        queue.completion_events.close(CALL, &name("ibv_ack_cq_events"));
        queue.async_events.close(CALL, &name("ibv_ack_async_event"));
        handle::retire::<Cq>(cq)?;
        Ok(())
    })
}

impl Cq {
    /// Takes completions. A queue that is found empty twice at the same time is all that its program polls, or one of
    /// a few: then virtual time passes, and the queue is polled again, so that a program that only polls makes its
    /// cards move. Once is not enough: hosts that poll one after another in one process stand for hosts that poll at
    /// the same time.
    pub(crate) fn poll(&self, wanted: usize, mut report: impl FnMut(Completion)) -> Result<usize> {
        let mut taken = self.take(wanted, &mut report)?;
        if taken == 0 && self.is_waited_for() {
            machine::relax();
            taken = self.take(wanted, &mut report)?;
            self.lock().empty_at_ps = Some(card::now_ps());
        }
        if taken == 0 && failed(self)? {
            return Err(Errno::new(libc::EIO, format!("completion queue {:#x} has overrun", self.number)));
        }
        Ok(taken)
    }
}

pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    number("ibv_poll_cq", || {
        let queue = handle::get::<Cq>(cq)?;
        let wanted = usize::try_from(num_entries).map_err(|_| Errno::invalid("a negative number of entries"))?;
        if wanted == 0 {
            return Ok(0);
        }
        if wc.is_null() {
            return Err(Errno::invalid("wc is null"));
        }
        let mut to = wc;
        let taken = queue.poll(wanted, |completion| {
            // SAFETY: the caller's array has room for `num_entries`; `poll` reports at most as many.
            unsafe { to.write(completion.wc) };
            to = to.wrapping_add(1);
        })?;
        Ok(taken as c_int)
    })
}

/// Whether the queue has overrun. Of another process's card that is asked once in a while.
fn failed(queue: &Cq) -> Result<bool> {
    if machine::is_elsewhere()? && !queue.lock().asked.is_due() {
        return Ok(false);
    }
    card::call(queue.context.id(), Request::CqFailed { cqn: queue.number })?.flag()
}

pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    status("ibv_req_notify_cq", || {
        let queue = handle::get::<Cq>(cq)?;
        if queue.channel.is_some() {
            emu_bridge::will_sleep()?;
        }
        let index = queue.lock().index & 0xFF_FFFF;
        card::arm(queue.context.id(), queue.number, index, solicited_only != 0)
    })
}
