//! The host, the network and the card.

use dpa::ContextArray;
use dpa::hw::wqe::FLAG_SIGNALLED;
use dpa::hw::{Be16, Be32, Cqe, CqeOpcode, GRH_BYTES, cqe::op_own, cqe::owner_of_pass};
use flexcast_abi::memory::QueueKind;
use flexcast_abi::{
    ABI_HASH, ABI_VERSION, BitmapMemory, DeviceAddress, HostLine, Operation, Placement, Queue, ReceiveContext,
    ReceiveState, ReceiveStatus, ReceiveThread, RunRow, Shared, Staging, TableMemory, Transport,
};

use crate::memory::{
    self, BITMAP, CONTROL_CQ, CONTROL_QUEUE, GROUP, LINES, Memory, RECEIVE_CQ, RECEIVE_QUEUE, RECORDS, ROWS, SEND_CQ,
    SEND_QUEUE, TAILS,
};

/// Entries of every ring.
pub(crate) const DEPTH: usize = 1 << LOG_DEPTH;
const LOG_DEPTH: u32 = 8;
/// Entries of the control queue.
pub(crate) const CONTROL_DEPTH: usize = 1 << LOG_CONTROL;
const LOG_CONTROL: u32 = 2;
/// Chunks of the operation.
pub(crate) const CHUNKS: u32 = 2048;
/// Runs of the operation where it has several.
pub(crate) const RUNS: u32 = 8;
/// Bytes between them.
const GAP: u64 = 4096;
const CHUNK_BYTES: u32 = 1024;
const STRIDE: u32 = 1088;
const PSN_BITS: u32 = 12;
const COLLECTIVE_ID: u32 = 5;
const USER_INDEX: u32 = 0x00AB_CDEF;
/// Never dereferenced: the address that the hardware would get.
const STAGING: u64 = 0x1_0000_0000;
const DESTINATION: u64 = 0x7000_0000_0000;

/// In what order and state the chunks arrive.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One after the other.
    InOrder,
    /// Each somewhere else.
    Scattered,
    /// Scattered, of several runs of equal length with gaps between them.
    Runs,
    /// In order, of several runs whose places are in a table, from the last to the first.
    Rows,
    /// Scattered, the last one short, among repetitions, foreign, too high and too long ones.
    Disturbed,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::InOrder => "in order",
            Self::Scattered => "scattered",
            Self::Runs => "runs",
            Self::Rows => "rows",
            Self::Disturbed => "disturbed",
        }
    }

    fn last_chunk_bytes(self) -> u32 {
        if self == Self::Disturbed { 77 } else { CHUNK_BYTES }
    }
}

fn queue<K: QueueKind, const LINES: usize>(
    ring: &'static Memory<LINES>,
    record: usize,
    number: u32,
    log_depth: u32,
) -> Queue<K> {
    let (ring, record) = (DeviceAddress::new(ring.address()), DeviceAddress::new(RECORDS.line(record)));
    Queue::new(ring, record, number, log_depth)
}

/// Sets up a thread with one receive context over freshly reset queues. What belongs to the executor stays: outbox,
/// window, key, where the receive context's context is, and its host addresses of flag and report.
pub(crate) fn set_up(thread: &mut ReceiveThread, transport: Transport, batch: u32) {
    memory::reset();
    thread.abi_hash = ABI_HASH;
    thread.abi_version = ABI_VERSION;
    thread.transport = transport as u32;
    thread.budget = 1 << 20;
    thread.control_cq = queue(&CONTROL_CQ, 4, 0x55, LOG_CONTROL);
    thread.control_queue = queue(&CONTROL_QUEUE, 5, 0x66, LOG_CONTROL);
    thread.state.control_consumed = 0;
    thread.state.prepared = 0;
    for context in ContextArray::attach(&mut thread.contexts).iter_mut() {
        *context = receive_context(context, transport, batch);
    }
}

/// The state of the thread's receive context.
pub(crate) fn state(thread: &mut ReceiveThread) -> ReceiveState {
    ContextArray::attach(&mut thread.contexts).get(0).map_or_else(ReceiveState::default, |context| context.state)
}

fn receive_context(place: &ReceiveContext, transport: Transport, batch: u32) -> ReceiveContext {
    ReceiveContext {
        abi_hash: ABI_HASH,
        abi_version: ABI_VERSION,
        workers: 1,
        transport: transport as u32,
        batch,
        budget: 1 << 20,
        psn_bits: PSN_BITS,
        user_index: USER_INDEX,
        receive_cq: queue(&RECEIVE_CQ, 0, 0x11, LOG_DEPTH),
        receive_queue: queue(&RECEIVE_QUEUE, 1, 0x22, LOG_DEPTH),
        send_cq: queue(&SEND_CQ, 2, 0x33, LOG_DEPTH),
        send_queue: queue(&SEND_QUEUE, 3, 0x44, LOG_DEPTH),
        staging: Staging { address: STAGING, stride: STRIDE, lkey: 0x33 },
        bitmap: BitmapMemory::new(DeviceAddress::new(BITMAP.address()), CHUNKS / 64),
        tails: BitmapMemory::new(DeviceAddress::new(TAILS.address()), 1),
        rows: TableMemory::new(DeviceAddress::new(ROWS.address()), RUNS),
        group: Shared::new(DeviceAddress::new(GROUP.address())),
        operation: HostLine::new(DeviceAddress::new(LINES.line(0))),
        placement: HostLine::new(DeviceAddress::new(LINES.line(1))),
        flag_host: place.flag_host,
        report_host: place.report_host,
        ..Default::default()
    }
}

/// Writes placement and operation, and sends the control message that announces them.
pub(crate) fn arm(kind: Kind) {
    let run_chunks = CHUNKS / RUNS;
    let placement = match kind {
        Kind::Runs => Placement { run_chunks, roots: RUNS, run_gap: GAP, ..Default::default() },
        Kind::Rows => Placement { roots: RUNS, ..Default::default() },
        _ => Placement { run_chunks: CHUNKS, roots: 1, ..Default::default() },
    };
    for index in 0..RUNS / 2 {
        ROWS.put(u64::from(index), &[row(2 * index), row(2 * index + 1)]);
    }
    LINES.put(1, &placement);
    let operation = Operation {
        sequence: 1,
        destination: DESTINATION,
        rkey: 0x77,
        collective_id: COLLECTIVE_ID,
        chunks: CHUNKS,
        chunk_bytes: CHUNK_BYTES,
        last_chunk_bytes: kind.last_chunk_bytes(),
        sequence_check: 1,
        ..Default::default()
    };
    LINES.put(0, &operation);
    let entry = Cqe { op_own: op_own(CqeOpcode::WriteImmediate, owner_of_pass(0, LOG_CONTROL)), ..Cqe::INITIAL };
    CONTROL_CQ.put(0, &entry);
}

fn row(index: u32) -> RunRow {
    let chunks = CHUNKS / RUNS;
    let place = u64::from(RUNS - 1 - index) * (u64::from(chunks * CHUNK_BYTES) + GAP);
    let destination = DESTINATION + place;
    RunRow { destination, first_psn: index * chunks, chunks, last_chunk_bytes: CHUNK_BYTES, ..Default::default() }
}

/// Network and card.
pub(crate) struct Fixture {
    transport: Transport,
    kind: Kind,
    /// Completions written, each with one receive used.
    delivered: u64,
    /// Chunks sent, not counting what disturbs.
    sent: u32,
    /// Copies carried out, completions of copies written.
    copied: u64,
    completed: u64,
    random: u64,
}

impl Fixture {
    pub(crate) fn new(transport: Transport, kind: Kind) -> Self {
        Self { transport, kind, delivered: 0, sent: 0, copied: 0, completed: 0, random: 0x9E37_79B9_7F4A_7C15 }
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % limit
    }

    /// Sequence number of the chunk sent as number `index`.
    fn psn(&self, index: u32) -> u32 {
        // Odd, so that every chunk has its turn.
        if matches!(self.kind, Kind::InOrder | Kind::Rows) { index } else { index.wrapping_mul(1237) % CHUNKS }
    }

    /// Fills the posted receives; returns how many messages that were.
    pub(crate) fn deliver(&mut self) -> u64 {
        let posted = RECORDS.be32(1, 0) as u16;
        let credit = u64::from(posted.wrapping_sub(self.delivered as u16));
        let first = self.delivered;
        while self.delivered - first < credit && self.sent < CHUNKS {
            let disturbs = self.kind == Kind::Disturbed && self.below(4) == 0;
            let (id, psn, bytes) = if disturbs { self.disturbance() } else { self.next_chunk() };
            self.complete(id, psn, bytes);
        }
        self.delivered - first
    }

    fn next_chunk(&mut self) -> (u32, u32, u32) {
        let psn = self.psn(self.sent);
        self.sent += 1;
        (COLLECTIVE_ID, psn, self.bytes(psn))
    }

    fn bytes(&self, psn: u32) -> u32 {
        if psn == CHUNKS - 1 { self.kind.last_chunk_bytes() } else { CHUNK_BYTES }
    }

    /// Something that must be discarded.
    fn disturbance(&mut self) -> (u32, u32, u32) {
        match self.below(4) {
            0 if self.sent != 0 => {
                let earlier = self.below(u64::from(self.sent)) as u32;
                let psn = self.psn(earlier);
                (COLLECTIVE_ID, psn, self.bytes(psn))
            }
            1 => (COLLECTIVE_ID, CHUNKS + self.below(512) as u32, CHUNK_BYTES),
            2 => (COLLECTIVE_ID, self.psn(self.sent), CHUNK_BYTES + 64),
            _ => (COLLECTIVE_ID + 1, self.psn(self.sent), CHUNK_BYTES),
        }
    }

    fn complete(&mut self, id: u32, psn: u32, bytes: u32) {
        let (opcode, header) = match self.transport {
            Transport::Uc => (CqeOpcode::WriteImmediate, 0),
            Transport::Ud => (CqeOpcode::SendImmediate, GRH_BYTES),
        };
        let entry = Cqe {
            user_index: Be32::new(USER_INDEX),
            immediate: Be32::new(id << PSN_BITS | psn),
            byte_count: Be32::new(bytes + header),
            wqe_counter: Be16::new(self.delivered as u16),
            op_own: op_own(opcode, owner_of_pass(self.delivered, LOG_DEPTH)),
            ..Cqe::INITIAL
        };
        RECEIVE_CQ.put(self.delivered, &entry);
        self.delivered += 1;
    }

    /// Carries out the copies that have been handed over, and completes those that are signalled.
    pub(crate) fn copy(&mut self, state: &ReceiveState) {
        if self.transport == Transport::Uc {
            return;
        }
        let producer = RECORDS.be32(3, 4) as u16;
        let until = self.copied + u64::from(producer.wrapping_sub(self.copied as u16));
        debug_assert!(until <= state.consumed);
        while self.copied < until {
            if SEND_QUEUE.be32(self.copied, 8) as u8 == FLAG_SIGNALLED {
                let entry = Cqe {
                    wqe_counter: Be16::new(self.copied as u16),
                    op_own: op_own(CqeOpcode::Requester, owner_of_pass(self.completed, LOG_DEPTH)),
                    ..Cqe::INITIAL
                };
                SEND_CQ.put(self.completed, &entry);
                self.completed += 1;
            }
            self.copied += 1;
        }
    }

    /// Whether everything was sent and dealt with.
    pub(crate) fn is_done(&self, state: &ReceiveState) -> bool {
        let copies_done = self.transport == Transport::Uc || state.completed == self.delivered;
        let complete = state.status == ReceiveStatus::Complete as u32;
        self.sent == CHUNKS && state.consumed == self.delivered && copies_done && complete
    }
}
