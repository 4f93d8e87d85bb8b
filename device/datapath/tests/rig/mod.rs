//! A receive context with rings in test memory and a NIC that does what it is told: it checks what the receive context promises the hardware
//! (slot reuse, producer counters, entry indices) at every step.

// Every test file uses its part.
#![allow(dead_code)]

pub(crate) mod receive;
pub(crate) mod send;

use std::sync::atomic::{AtomicU64, Ordering};

use dpa::hw::cqe::{Cqe, CqeOpcode, op_own, owner_of_pass};
use dpa::hw::{Be16, Be32, GRH_BYTES, WqeOpcode};
use flexcast_abi::memory::QueueKind;
use flexcast_abi::{
    ABI_HASH, ABI_VERSION, BitmapMemory, CompletionFlag, DeviceAddress, FLAG_MAGIC, GroupContext, HostLine, Operation,
    Placement, Queue, ReceiveContext, ReceiveReport, ReceiveStatus, RunRow, Shared, Staging, TableMemory, Transport,
};
use zerocopy::{FromBytes, IntoBytes};

pub(crate) const PSN_BITS: u32 = 12;
pub(crate) const STAGING_STRIDE: u32 = 192;
pub(crate) const CHUNK: u32 = 128;
pub(crate) const RKEY: u32 = 0x77;
pub(crate) const LKEY: u32 = 0x33;

/// The same queue with another depth.
pub(crate) fn of_depth<K: QueueKind>(queue: Queue<K>, log_depth: u32) -> Queue<K> {
    let (ring, record) = (DeviceAddress::new(queue.ring()), DeviceAddress::new(queue.doorbell_record()));
    Queue::new(ring, record, queue.number(), log_depth)
}

/// The same queue with a ring elsewhere.
pub(crate) fn at<K: QueueKind>(queue: Queue<K>, ring: u64) -> Queue<K> {
    let record = DeviceAddress::new(queue.doorbell_record());
    Queue::new(DeviceAddress::new(ring), record, queue.number(), queue.log_depth())
}

#[repr(align(64))]
struct Line([AtomicU64; 8]);

/// 64-byte aligned memory that the firmware and the test's NIC share.
pub(crate) struct Memory(Vec<Line>);

impl Memory {
    pub(crate) fn new(bytes: usize) -> Self {
        Self((0..bytes.div_ceil(64)).map(|_| Line([const { AtomicU64::new(0) }; 8])).collect())
    }

    pub(crate) fn address(&self) -> u64 {
        self.0.as_ptr() as u64
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        &self.0[index / 8].0[index % 8]
    }

    pub(crate) fn bytes(&self) -> usize {
        self.0.len() * 64
    }

    pub(crate) fn read(&self, offset: usize, out: &mut [u8]) {
        let mut at = 0;
        while at < out.len() {
            let (word, first) = ((offset + at) / 8, (offset + at) % 8);
            let bytes = self.word(word).load(Ordering::SeqCst).to_le_bytes();
            let count = (8 - first).min(out.len() - at);
            out[at..at + count].copy_from_slice(&bytes[first..first + count]);
            at += count;
        }
    }

    pub(crate) fn write(&self, offset: usize, data: &[u8]) {
        let mut at = 0;
        while at < data.len() {
            let (word, first) = (self.word((offset + at) / 8), (offset + at) % 8);
            let mut bytes = word.load(Ordering::SeqCst).to_le_bytes();
            let count = (8 - first).min(data.len() - at);
            bytes[first..first + count].copy_from_slice(&data[at..at + count]);
            word.store(u64::from_le_bytes(bytes), Ordering::SeqCst);
            at += count;
        }
    }

    pub(crate) fn get<T: FromBytes>(&self, offset: usize) -> T {
        let mut bytes = vec![0; size_of::<T>()];
        self.read(offset, &mut bytes);
        T::read_from_bytes(&bytes).unwrap()
    }

    pub(crate) fn be32(&self, offset: usize) -> u32 {
        self.get::<Be32>(offset).get()
    }
}

/// A message for the worker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub(crate) opcode: CqeOpcode,
    pub(crate) collective_id: u32,
    pub(crate) psn: u32,
    pub(crate) bytes: u32,
    pub(crate) fill: u8,
}

pub(crate) struct Rig {
    pub(crate) context: Box<ReceiveContext>,
    transport: Transport,
    depth: u64,
    pub(crate) receive_cq: Memory,
    receive_queue: Memory,
    send_cq: Memory,
    send_queue: Memory,
    /// Doorbell records: receive CQ at 0, receive queue at 64, send CQ at 128, send queue at 192.
    records: Memory,
    staging: Memory,
    pub(crate) user: Memory,
    bitmap: Memory,
    group: Memory,
    pub(crate) host: Memory,
    /// Operation and placement.
    lines: Memory,
    /// Rows.
    table: Memory,
    /// Messages delivered.
    pub(crate) delivered: u64,
    /// Copies carried out, and told.
    copied: u64,
    told: u64,
    signalled: Vec<u64>,
    /// Number of the receive context, in its queues' numbers.
    number: u32,
    /// Whether all that is rung in this test's outbox is of this rig.
    pub(crate) alone: bool,
    /// Offset of a PSN's chunk in the user memory.
    pub(crate) offset_of: Box<dyn Fn(u32) -> usize>,
}

impl Rig {
    pub(crate) fn sized(
        transport: Transport,
        batch: u32,
        log_depth: u32,
        chunks: u32,
        (tail_words, user_bytes): (u32, usize),
        receiver: u32,
    ) -> Self {
        let depth = 1u64 << log_depth;
        let ring = |entry: u64| Memory::new((depth * entry) as usize);
        let words = chunks.div_ceil(64).max(1);
        let rig_memory = (ring(64), ring(16), ring(64), ring(64), Memory::new(256));
        let (receive_cq, receive_queue, send_cq, send_queue, records) = rig_memory;
        for index in 0..depth as usize {
            receive_cq.write(index * 64, Cqe::INITIAL.as_bytes());
            send_cq.write(index * 64, Cqe::INITIAL.as_bytes());
        }
        let staging = Memory::new(depth as usize * STAGING_STRIDE as usize);
        let user = Memory::new(user_bytes);
        let bitmap_bytes = (words + tail_words) as usize * 8;
        let bitmap = Memory::new(bitmap_bytes);
        let group = Memory::new(size_of::<GroupContext>());
        let host = Memory::new(64 + size_of::<ReceiveReport>() + bitmap_bytes + 64);
        let rows = tail_words * 64;
        let (lines, table) = (Memory::new(128), Memory::new(rows as usize * size_of::<RunRow>()));
        let at = |memory: &Memory, offset: u64| DeviceAddress::new(memory.address() + offset);
        fn queue<K: QueueKind>(ring: DeviceAddress, record: DeviceAddress, number: u32, log_depth: u32) -> Queue<K> {
            Queue::new(ring, record, number, log_depth)
        }
        let number = |number: u32| number | receiver << 8;
        let context = ReceiveContext {
            abi_hash: ABI_HASH,
            abi_version: ABI_VERSION,
            workers: 1,
            transport: transport as u32,
            batch,
            budget: 1 << 20,
            psn_bits: PSN_BITS,
            user_index: 0x00AB_CDEF,
            receive_cq: queue(at(&receive_cq, 0), at(&records, 0), number(0x11), log_depth),
            receive_queue: queue(at(&receive_queue, 0), at(&records, 64), number(0x22), log_depth),
            send_cq: queue(at(&send_cq, 0), at(&records, 128), number(0x33), log_depth),
            send_queue: queue(at(&send_queue, 0), at(&records, 192), number(0x44), log_depth),
            staging: Staging { address: staging.address(), stride: STAGING_STRIDE, lkey: LKEY },
            bitmap: BitmapMemory::new(at(&bitmap, 0), words),
            tails: BitmapMemory::new(at(&bitmap, u64::from(words) * 8), tail_words),
            rows: TableMemory::new(if rows == 0 { DeviceAddress::default() } else { at(&table, 0) }, rows),
            group: Shared::new(at(&group, 0)),
            operation: HostLine::new(at(&lines, 0)),
            placement: HostLine::new(at(&lines, 64)),
            flag_host: host.address(),
            report_host: host.address() + 64,
            bitmap_host: host.address() + 64 + size_of::<ReceiveReport>() as u64,
            ..Default::default()
        };
        Self {
            context: Box::new(context),
            transport,
            depth,
            receive_cq,
            receive_queue,
            send_cq,
            send_queue,
            records,
            staging,
            user,
            bitmap,
            group,
            host,
            lines,
            table,
            delivered: 0,
            copied: 0,
            told: 0,
            signalled: Vec::new(),
            number: receiver,
            alone: true,
            offset_of: Box::new(|psn| (psn * CHUNK) as usize),
        }
    }

    /// The operation's line as it is now.
    pub(crate) fn line(&self) -> Operation {
        self.lines.get(0)
    }

    pub(crate) fn write_line(&self, operation: Operation) {
        self.lines.write(0, operation.as_bytes());
    }

    pub(crate) fn write_placement(&self, placement: Placement) {
        self.lines.write(64, placement.as_bytes());
    }

    pub(crate) fn write_rows(&self, rows: &[RunRow]) {
        self.table.write(0, rows.as_bytes());
    }

    /// Receives that the worker has posted so far.
    pub(crate) fn receives_posted(&self) -> u64 {
        let record = self.records.be32(64);
        assert!(record < 0x10000, "the record holds 16 bits");
        // The counter has 16 bits; the distance to what was delivered has fewer.
        self.delivered + u64::from((record as u16).wrapping_sub(self.delivered as u16))
    }

    pub(crate) fn check_receives(&self) {
        let posted = self.receives_posted();
        assert!(posted - self.delivered <= self.depth, "{posted} receives posted, {} messages", self.delivered);
        if self.transport == Transport::Ud {
            assert!(posted <= self.told + self.depth, "slot posted before its copy was complete");
        }
        let told = self.report().progress.receives_posted;
        assert!(told <= posted, "{told} receives are told to be posted, {posted} are");
        // A thread whose budget is used up has not settled its receive contexts yet: part of a batch may be untold.
        let untold = self.context.state.consumed.wrapping_sub(u64::from(self.records.be32(0))) & 0xFF_FFFF;
        let most = if self.context.op.unsettled == 0 { 0 } else { u64::from(self.context.batch) - 1 };
        assert!(untold <= most, "consumer record: {untold} completions untold, at most {most} may be");
    }

    pub(crate) fn can_deliver(&self) -> bool {
        self.receives_posted() > self.delivered
    }

    /// A message of the armed kind.
    pub(crate) fn message(&self, collective_id: u32, psn: u32, bytes: u32) -> Message {
        let opcode = if self.transport == Transport::Ud { CqeOpcode::SendImmediate } else { CqeOpcode::WriteImmediate };
        Message { opcode, collective_id, psn, bytes, fill: psn as u8 ^ 0x5A }
    }

    pub(crate) fn deliver(&mut self, message: Message) {
        assert!(self.can_deliver(), "no receive posted");
        let index = self.delivered;
        let header = if self.transport == Transport::Ud { GRH_BYTES } else { 0 };
        match self.transport {
            Transport::Uc => {
                let offset = (self.offset_of)(message.psn);
                if (offset + message.bytes as usize) <= self.user.0.len() * 64 {
                    self.user.write(offset, &vec![message.fill; message.bytes as usize]);
                }
            }
            Transport::Ud => {
                let entry = (index & (self.depth - 1)) as usize * 16;
                let slot = (self.receive_queue.get::<dpa::hw::Be64>(entry + 8).get() - self.staging.address()) as usize;
                assert_eq!(slot as u64, (index & (self.depth - 1)) * u64::from(STAGING_STRIDE));
                assert_eq!(self.receive_queue.be32(entry + 4), LKEY);
                if message.bytes + header <= STAGING_STRIDE {
                    self.staging.write(slot + header as usize, &vec![message.fill; message.bytes as usize]);
                }
            }
        }
        let immediate = message.collective_id << PSN_BITS | message.psn;
        let entry = Cqe {
            user_index: Be32::new(0x00AB_CDEF),
            immediate: Be32::new(immediate),
            byte_count: Be32::new(message.bytes + header),
            wqe_counter: Be16::new(index as u16),
            op_own: op_own(message.opcode, owner_of_pass(index, self.depth.ilog2())),
            ..Cqe::INITIAL
        };
        self.receive_cq.write((index & (self.depth - 1)) as usize * 64, entry.as_bytes());
        self.delivered += 1;
    }

    /// Carries out the copies that the worker has posted, without telling.
    pub(crate) fn copy(&mut self) {
        let producer = self.records.be32(196);
        let pending = u64::from((producer as u16).wrapping_sub(self.copied as u16));
        assert!(pending <= self.depth, "doorbell beyond the ring");
        let rung = dpa::sys::outbox_register(dpa::hw::outbox::SQ_DOORBELL);
        let number = u64::from(0x44 | self.number << 8);
        // Of several receive contexts the register shows the one that rang last.
        if pending != 0 && (self.alone || rung >> 32 == number) {
            assert_eq!(rung >> 32, number);
            assert_eq!(rung as u16, producer as u16, "the doorbell follows the record");
        }
        for index in self.copied..self.copied + pending {
            let at = (index & (self.depth - 1)) as usize * 64;
            let head = self.send_queue.be32(at);
            let (qpn_ds, flags) = (self.send_queue.be32(at + 4), self.send_queue.be32(at + 8) as u8);
            assert_eq!(head >> 8, index as u32 & 0xFFFF, "entry index");
            assert_eq!(u64::from(qpn_ds >> 8), number);
            if head as u8 == WqeOpcode::Nop as u8 {
                assert_eq!(qpn_ds as u8, 1);
            } else {
                assert_eq!((head as u8, qpn_ds as u8), (WqeOpcode::Write as u8, 3));
                assert_eq!((self.send_queue.be32(at + 24), self.send_queue.be32(at + 36)), (RKEY, LKEY));
                let to = self.send_queue.get::<dpa::hw::Be64>(at + 16).get() - self.user.address();
                let bytes = self.send_queue.be32(at + 32);
                let from = self.send_queue.get::<dpa::hw::Be64>(at + 40).get() - self.staging.address();
                assert_eq!(from, (index & (self.depth - 1)) * u64::from(STAGING_STRIDE) + u64::from(GRH_BYTES));
                let mut data = vec![0; bytes as usize];
                self.staging.read(from as usize, &mut data);
                self.user.write(to as usize, &data);
            }
            if flags == dpa::hw::wqe::FLAG_SIGNALLED {
                self.signalled.push(index);
            } else {
                assert_eq!(flags, 0);
            }
        }
        self.copied += pending;
    }

    /// Tells the next signalled copy's completion; false if there is none.
    pub(crate) fn tell(&mut self, opcode: CqeOpcode) -> bool {
        let told_cqes = self.context.state.send_consumed + self.untold_cqes();
        if self.signalled.is_empty() {
            return false;
        }
        let index = self.signalled.remove(0);
        let entry = Cqe {
            wqe_counter: Be16::new(index as u16),
            op_own: op_own(opcode, owner_of_pass(told_cqes, self.depth.ilog2())),
            ..Cqe::INITIAL
        };
        self.send_cq.write((told_cqes & (self.depth - 1)) as usize * 64, entry.as_bytes());
        if opcode == CqeOpcode::Requester {
            self.told = index + 1;
        }
        true
    }

    /// Send completions written but not yet consumed.
    fn untold_cqes(&self) -> u64 {
        let mut count = 0;
        loop {
            let index = self.context.state.send_consumed + count;
            let byte: [u8; 1] = self.send_cq.get((index & (self.depth - 1)) as usize * 64 + 63);
            let ready = byte[0] & 1 == owner_of_pass(index, self.depth.ilog2()) && byte[0] >> 4 != 15;
            if !ready || count == self.depth {
                return count;
            }
            count += 1;
        }
    }

    pub(crate) fn copy_and_tell_all(&mut self) {
        self.copy();
        while self.tell(CqeOpcode::Requester) {}
    }

    pub(crate) fn report(&self) -> ReceiveReport {
        self.host.get(64)
    }

    pub(crate) fn status(&self) -> ReceiveStatus {
        ReceiveStatus::from_raw(self.report().progress.status).unwrap()
    }

    /// Sequence number of the last complete operation, 0 if none.
    pub(crate) fn flag(&self) -> u64 {
        let flag: CompletionFlag = self.host.get(0);
        if flag.value == 0 { 0 } else { flag.value - FLAG_MAGIC }
    }

    pub(crate) fn armed_at(&self) -> u64 {
        dpa::sys::outbox_register(dpa::hw::outbox::CQ_DOORBELL)
    }

    pub(crate) fn bit(&self, psn: u32) -> bool {
        self.bitmap.get::<u64>(psn as usize / 64 * 8) >> (psn % 64) & 1 == 1
    }

    pub(crate) fn group_count(&self) -> u64 {
        self.group.get(0)
    }

    /// Whether the bytes of chunk `psn` are what `deliver` sent.
    pub(crate) fn holds(&self, psn: u32, bytes: u32) -> bool {
        let mut data = vec![0; bytes as usize];
        self.user.read((self.offset_of)(psn), &mut data);
        data.iter().all(|byte| *byte == psn as u8 ^ 0x5A)
    }
}
