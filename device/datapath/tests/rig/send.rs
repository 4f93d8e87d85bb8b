//! A send worker with rings in test memory and a card that carries out what it is told: it checks indices, flags and depths.

use datapath::{prepare_send, send_blocks};
use dpa::Next;
use dpa::hw::cqe::{Cqe, CqeOpcode, op_own, owner_of_pass};
use dpa::hw::wqe::FLAG_SIGNALLED;
use dpa::hw::{Be16, Be64, WqeOpcode};
use flexcast_abi::{
    ABI_HASH, ABI_VERSION, ContextFault, ContextMemory, DeviceAddress, HostLine, Queue, SendContext, SendOperation,
    SendReport, SendRun, SendStatus, SendThread, Transport,
};
use zerocopy::IntoBytes;

use super::receive::ControlEnd;
use super::{CHUNK, LKEY, Memory, PSN_BITS, RKEY};

/// A chunk that went out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) context: usize,
    pub(crate) immediate: u32,
    pub(crate) source: u64,
    pub(crate) bytes: u32,
    pub(crate) remote: u64,
    pub(crate) signalled: bool,
}

struct ContextBytes {
    ring: Memory,
    cq: Memory,
    records: Memory,
    run: Memory,
    /// Basic blocks carried out.
    carried: u64,
    /// Blocks of signalled entries whose completion is still to be told.
    untold: Vec<u64>,
    told: u64,
}

pub(crate) struct SendRig {
    pub(crate) thread: SendThread,
    pub(crate) array: Vec<SendContext>,
    contexts: Vec<ContextBytes>,
    pub(crate) control: ControlEnd,
    host: Memory,
    /// The operation.
    line: Memory,
    log_depth: u32,
    blocks: u64,
}

pub(crate) const VECTOR: [u64; 6] = [0x1111, 0x2222, 0x3333, 0x4444, 0x5555, 0x6666];

impl SendRig {
    /// `log_depth`: of each send queue, in basic blocks.
    pub(crate) fn new(transport: Transport, batch: u32, log_depth: u32, contexts: u32) -> Self {
        let blocks = if transport == Transport::Ud { 2u64 } else { 1 };
        let control = ControlEnd::new();
        let (control_cq, control_queue) = control.queues();
        let log_entries = log_depth - blocks.ilog2();
        let memories: Vec<ContextBytes> = (0..contexts)
            .map(|_| {
                let cq = Memory::new(64 << log_entries);
                for index in 0..1usize << log_entries {
                    cq.write(index * 64, Cqe::INITIAL.as_bytes());
                }
                ContextBytes {
                    ring: Memory::new(64 << log_depth),
                    cq,
                    records: Memory::new(128),
                    run: Memory::new(64),
                    carried: 0,
                    untold: Vec::new(),
                    told: 0,
                }
            })
            .collect();
        let mut array: Vec<SendContext> = (0..)
            .zip(&memories)
            .map(|(number, memory)| {
                let at = |memory: &Memory, offset: u64| DeviceAddress::new(memory.address() + offset);
                let (ring, cq, records) = (at(&memory.ring, 0), at(&memory.cq, 0), &memory.records);
                SendContext {
                    send_queue: Queue::new(ring, at(records, 0), 0x50 + number, log_depth),
                    send_cq: Queue::new(cq, at(records, 64), 0x60 + number, log_entries),
                    run: HostLine::new(at(&memory.run, 0)),
                    address_vector: VECTOR,
                    ..Default::default()
                }
            })
            .collect();
        let (host, line) = (Memory::new(64), Memory::new(64));
        let thread = SendThread {
            abi_hash: ABI_HASH,
            abi_version: ABI_VERSION,
            transport: transport as u32,
            batch,
            budget: 1 << 20,
            psn_bits: PSN_BITS,
            contexts: ContextMemory::new(DeviceAddress::new(array.as_mut_ptr() as u64), contexts),
            operation: HostLine::new(DeviceAddress::new(line.address())),
            report_host: host.address(),
            control_cq,
            control_queue,
            ..Default::default()
        };
        Self { thread, array, contexts: memories, control, host, line, log_depth, blocks }
    }

    pub(crate) fn ready(transport: Transport, batch: u32, log_depth: u32, contexts: u32) -> Self {
        let mut rig = Self::new(transport, batch, log_depth, contexts);
        rig.prepare().unwrap();
        assert_eq!(rig.activate(), Next::Reschedule);
        rig
    }

    pub(crate) fn prepare(&mut self) -> Result<(), (ContextFault, u32)> {
        prepare_send(&mut self.thread)
    }

    /// Runs the handler once, then checks that no send queue holds more than it can.
    pub(crate) fn activate(&mut self) -> Next {
        let next = send_blocks(&mut self.thread);
        for (context, memory) in self.array.iter().zip(&self.contexts) {
            let told = memory.told_blocks(context);
            assert!(context.state.produced - told <= 1 << self.log_depth, "more entries than the queue holds");
        }
        next
    }

    /// Writes runs and operation and sends the message.
    pub(crate) fn ask(&mut self, sequence: u64, runs: &[SendRun], lookahead_chunks: u32) {
        for (context, run) in self.contexts.iter().zip(runs) {
            context.run.write(0, run.as_bytes());
        }
        self.write_line(SendOperation {
            sequence,
            chunk_bytes: CHUNK,
            collective_id: 3,
            lkey: LKEY,
            lookahead_chunks,
            sequence_check: sequence,
            ..Default::default()
        });
        self.control.message(CqeOpcode::WriteImmediate);
    }

    /// The operation's line as it is now.
    pub(crate) fn line(&self) -> SendOperation {
        self.line.get(0)
    }

    /// Rewrites the operation's line.
    pub(crate) fn change(&self, change: impl FnOnce(&mut SendOperation)) {
        let mut line = self.line();
        change(&mut line);
        self.write_line(line);
    }

    pub(crate) fn write_line(&self, operation: SendOperation) {
        self.line.write(0, operation.as_bytes());
    }

    pub(crate) fn report(&self) -> SendReport {
        self.host.get(0)
    }

    pub(crate) fn status(&self) -> SendStatus {
        SendStatus::from_raw(self.report().status).unwrap()
    }

    /// Carries out what send context `context` has posted.
    pub(crate) fn carry(&mut self, context: usize) -> Vec<Sent> {
        let number = u64::from(self.array[context].send_queue.number());
        let memory = &mut self.contexts[context];
        let producer = memory.records.be32(4);
        assert!(producer < 0x10000);
        let pending = u64::from((producer as u16).wrapping_sub(memory.carried as u16));
        assert!(pending.is_multiple_of(self.blocks) && pending <= 1 << self.log_depth);
        let mut out = Vec::new();
        while (out.len() as u64) < pending / self.blocks {
            let block = memory.carried;
            let at = (block & ((1 << self.log_depth) - 1)) as usize * 64;
            let (head, qpn_ds) = (memory.ring.be32(at), memory.ring.be32(at + 4));
            assert_eq!(head >> 8, block as u32 & 0xFFFF, "entry index, opcode modifier 0");
            assert_eq!(u64::from(qpn_ds >> 8), number);
            let flags = memory.ring.be32(at + 8);
            assert!(flags == 0 || flags == u32::from(FLAG_SIGNALLED));
            let (data, remote) = if self.blocks == 2 {
                assert_eq!((head as u8, qpn_ds as u8), (WqeOpcode::SendImmediate as u8, 5), "{head:#x} {qpn_ds:#x}");
                let vector: [u64; 6] = std::array::from_fn(|word| memory.ring.get(at + 16 + word * 8));
                assert_eq!(vector, VECTOR);
                (at + 64, 0)
            } else {
                assert_eq!((head as u8, qpn_ds as u8), (WqeOpcode::WriteImmediate as u8, 3));
                assert_eq!(memory.ring.be32(at + 24), RKEY);
                (at + 32, memory.ring.get::<Be64>(at + 16).get())
            };
            assert_eq!(memory.ring.be32(data + 4), LKEY);
            let signalled = flags != 0;
            if signalled {
                memory.untold.push(block);
            }
            out.push(Sent {
                context,
                immediate: memory.ring.be32(at + 12),
                source: memory.ring.get::<Be64>(data + 8).get(),
                bytes: memory.ring.be32(data),
                remote,
                signalled,
            });
            memory.carried += self.blocks;
        }
        out
    }

    /// Tells the next completion of a send context; false if there is none.
    pub(crate) fn tell(&mut self, context: usize, opcode: CqeOpcode) -> bool {
        let memory = &mut self.contexts[context];
        if memory.untold.is_empty() {
            return false;
        }
        let block = memory.untold.remove(0);
        let log_entries = self.array[context].send_cq.log_depth();
        let entry = Cqe {
            wqe_counter: Be16::new(block as u16),
            op_own: op_own(opcode, owner_of_pass(memory.told, log_entries)),
            ..Cqe::INITIAL
        };
        memory.cq.write((memory.told as usize & ((1 << log_entries) - 1)) * 64, entry.as_bytes());
        memory.told += 1;
        true
    }

    /// Completions told of all send contexts, and completions whose entries were given back.
    pub(crate) fn completions(&self) -> (u64, u64) {
        let told = self.contexts.iter().map(|memory| memory.told).sum();
        (told, self.contexts.iter().map(|memory| u64::from(memory.records.be32(64))).sum())
    }
}

impl ContextBytes {
    /// Basic blocks that the worker may know to be complete.
    fn told_blocks(&self, context: &SendContext) -> u64 {
        // All that was carried out less what lies behind the first completion still to be told.
        let untold = self.untold.first().copied().unwrap_or(self.carried);
        if context.state.dead != 0 { context.state.produced } else { untold.min(self.carried) }
    }
}
