//! A receive thread: several rigs, and a host that writes operations and control messages.

use datapath::{prepare_receive, receive};
use dpa::Next;
use dpa::hw::cqe::{Cqe, CqeOpcode, op_own, owner_of_pass};
use dpa::hw::{Be16, Be32};
use flexcast_abi::{
    ABI_HASH, ABI_VERSION, CompletionQueueMemory, ContextFault, ContextMemory, DeviceAddress, OPERATION_CLOSED,
    Operation, Placement, Queue, ReceiveContext, ReceiveQueueMemory, ReceiveReport, ReceiveThread, Transport,
};
use zerocopy::IntoBytes;

use super::{CHUNK, Memory, RKEY, Rig};

const LOG_CONTROL: u32 = 3;

/// The control connection's end in DPA memory.
pub(crate) struct ControlEnd {
    cq: Memory,
    queue: Memory,
    records: Memory,
    sent: u64,
}

impl ControlEnd {
    pub(crate) fn new() -> Self {
        let depth = 1usize << LOG_CONTROL;
        let cq = Memory::new(depth * 64);
        for index in 0..depth {
            cq.write(index * 64, Cqe::INITIAL.as_bytes());
        }
        Self { cq, queue: Memory::new(depth * 16), records: Memory::new(128), sent: 0 }
    }

    pub(crate) fn queues(&self) -> (CompletionQueueMemory, ReceiveQueueMemory) {
        let at = |memory: &Memory, offset: u64| DeviceAddress::new(memory.address() + offset);
        (
            Queue::new(at(&self.cq, 0), at(&self.records, 0), 0xC1, LOG_CONTROL),
            Queue::new(at(&self.queue, 0), at(&self.records, 64), 0xC2, LOG_CONTROL),
        )
    }

    /// A message, or an error, comes.
    pub(crate) fn message(&mut self, opcode: CqeOpcode) {
        let posted = self.records.be32(64) as u16;
        assert!(posted.wrapping_sub(self.sent as u16) != 0, "no control receive posted");
        assert!(posted.wrapping_sub(self.sent as u16) <= 1 << LOG_CONTROL, "more receives than entries");
        let entry = Cqe {
            immediate: Be32::new(0xFFFF_FFFF),
            wqe_counter: Be16::new(self.sent as u16),
            op_own: op_own(opcode, owner_of_pass(self.sent, LOG_CONTROL)),
            ..Cqe::INITIAL
        };
        let depth = 1 << LOG_CONTROL;
        self.cq.write((self.sent as usize & (depth - 1)) * 64, entry.as_bytes());
        self.sent += 1;
    }

    /// Messages that came, and those the thread has given back.
    pub(crate) fn counts(&self) -> (u64, u32) {
        (self.sent, self.records.be32(0))
    }
}

/// What the host asks of a receive context.
#[derive(Clone, Copy, Default)]
pub(crate) struct Ask {
    pub(crate) sequence: u64,
    pub(crate) collective_id: u32,
    pub(crate) chunks: u32,
    pub(crate) last_chunk_bytes: u32,
}

pub(crate) struct ReceiveRig {
    pub(crate) thread: ReceiveThread,
    pub(crate) receivers: Vec<Rig>,
    array: Vec<ReceiveContext>,
    transport: Transport,
    pub(crate) control: ControlEnd,
}

impl ReceiveRig {
    pub(crate) fn new(transport: Transport, mut receivers: Vec<Rig>) -> Self {
        let alone = receivers.len() == 1;
        receivers.iter_mut().for_each(|receiver| receiver.alone = alone);
        let control = ControlEnd::new();
        let (control_cq, control_queue) = control.queues();
        let mut array: Vec<ReceiveContext> = receivers.iter().map(|receiver| *receiver.context).collect();
        let thread = ReceiveThread {
            abi_hash: ABI_HASH,
            abi_version: ABI_VERSION,
            transport: transport as u32,
            budget: 1 << 20,
            contexts: ContextMemory::new(DeviceAddress::new(array.as_mut_ptr() as u64), receivers.len() as u32),
            control_cq,
            control_queue,
            ..Default::default()
        };
        Self { thread, receivers, array, transport, control }
    }

    /// `count` receive contexts that the thread has accepted, in one group.
    pub(crate) fn ready(
        transport: Transport,
        batch: u32,
        count: u32,
        (chunks, tail_words, user_bytes): (u32, u32, usize),
    ) -> Self {
        let rigs =
            (0..count).map(|receiver| Rig::sized(transport, batch, 4, chunks, (tail_words, user_bytes), receiver));
        let mut rig = Self::new(transport, rigs.collect());
        let first = (rig.receivers[0].context.group, rig.receivers[0].context.flag_host);
        for (number, receiver) in rig.receivers.iter_mut().enumerate() {
            (receiver.context.group, receiver.context.flag_host) = first;
            receiver.context.worker = number as u32;
            receiver.context.workers = count;
        }
        rig.prepare().unwrap();
        rig.activate();
        rig
    }

    pub(crate) fn prepare(&mut self) -> Result<(), (ContextFault, u32)> {
        self.enter(prepare_receive)
    }

    /// Runs `body` with the contexts in one array, as the thread sees them.
    fn enter<R>(&mut self, body: impl FnOnce(&mut ReceiveThread) -> R) -> R {
        for (context, receiver) in self.array.iter_mut().zip(&self.receivers) {
            *context = *receiver.context;
        }
        let result = body(&mut self.thread);
        for (context, receiver) in self.array.iter().zip(&mut self.receivers) {
            *receiver.context = *context;
        }
        result
    }

    pub(crate) fn activate(&mut self) -> Next {
        let transport = self.transport;
        let next = self.enter(|thread| receive(thread, transport));
        for receiver in &self.receivers {
            receiver.check_receives();
        }
        next
    }

    /// Writes operation and placement of a receive context, without a message.
    pub(crate) fn write(&mut self, receiver: usize, ask: Ask, placement: Placement) {
        let rig = &mut self.receivers[receiver];
        let report_request = rig.line().report_request;
        rig.write_placement(placement);
        rig.write_line(Operation {
            sequence: ask.sequence,
            destination: rig.user.address(),
            rkey: RKEY,
            collective_id: ask.collective_id,
            chunks: ask.chunks,
            chunk_bytes: CHUNK,
            last_chunk_bytes: ask.last_chunk_bytes,
            report_request,
            sequence_check: ask.sequence,
            ..Default::default()
        });
    }

    /// Writes the operation of every receive context, sends the message and lets the thread take it over.
    pub(crate) fn start(&mut self, ask: Ask, placement: Placement) {
        for receiver in 0..self.receivers.len() {
            self.write(receiver, ask, placement);
        }
        self.control.message(CqeOpcode::WriteImmediate);
        assert_eq!(self.activate(), Next::Reschedule);
        for receiver in &self.receivers {
            assert_eq!(receiver.report().progress.sequence, ask.sequence);
        }
    }

    /// Closes the operation of a receive context and asks for its report; returns the request's number.
    pub(crate) fn close(&mut self, receiver: usize) -> u64 {
        let line = self.receivers[receiver].line();
        let request = line.report_request + 1;
        self.receivers[receiver].write_line(Operation { flags: OPERATION_CLOSED, report_request: request, ..line });
        self.control.message(CqeOpcode::WriteImmediate);
        request
    }

    /// Runs until the thread sleeps and no copy is left to do.
    pub(crate) fn settle(&mut self) {
        for _ in 0..100 {
            let next = self.activate();
            let mut busy = next == Next::Retrigger;
            for receiver in &mut self.receivers {
                receiver.copy_and_tell_all();
                let state = &receiver.context.state;
                busy |= state.consumed != receiver.delivered
                    || (self.transport == Transport::Ud && state.completed != receiver.delivered);
            }
            if !busy {
                self.activate();
                return;
            }
        }
        panic!("the thread does not come to rest");
    }

    /// The copies of bitmap and tail bitmap in host memory.
    pub(crate) fn copied_words(&self, receiver: usize) -> (Vec<u64>, Vec<u64>) {
        let context = &self.receivers[receiver].context;
        let (words, tails) = (context.bitmap.count() as usize, context.tails.count() as usize);
        let at = 64 + size_of::<ReceiveReport>();
        let word = |index: usize| self.receivers[receiver].host.get::<u64>(at + index * 8);
        ((0..words).map(word).collect(), (words..words + tails).map(word).collect())
    }
}
