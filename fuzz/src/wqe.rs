//! Arbitrary bytes in the send and receive rings of queue pairs of each transport, with doorbells.
//!
//! Whatever the entries say, the cards come to rest within a bounded number of steps, and what was rung ends: checked
//! are the kinds and numbers of completions against the card's counters, that an error completion leaves the error
//! state behind, that a queue pair that is still in RTS executes the next entry, that both queue pairs talk again after
//! RESET, and that new queue pairs work.
//!
//! The first byte chooses the transport; operations follow, see [`op`].

use emu_machine::World;
use emu_machine::nic::{QpModify, QpState, Transport, cqe_opcode, wqe_opcode};

use crate::fixture::{BLOCK, Buffer, Cq, End, Fixture, QKEY, data_segment, world};
use crate::input::{Input, Script};

/// Operations: their operands follow.
pub mod op {
    /// 64 bytes as they are into the next block of the send ring.
    pub const RAW: u8 = 0;
    /// An entry of segments: opcode, flags, immediate, size error, then segments until [`super::segment::END`].
    pub const WQE: u8 = 1;
    /// Doorbell behind what was written.
    pub const RING: u8 = 2;
    /// Doorbell: two bytes.
    pub const RING_ANY: u8 = 3;
    /// A receive of the other end: its length in units of 4 bytes.
    pub const RECEIVE: u8 = 4;
    /// 64 bytes as they are into the next entry of the other end's receive ring.
    pub const RECEIVE_RAW: u8 = 5;
    /// The other end's doorbell record: four bytes.
    pub const RECORD: u8 = 6;
    /// So many things happen.
    pub const STEP: u8 = 7;
    /// From now on the other end is the sender.
    pub const TURN: u8 = 8;
    /// Arms the sender's completion queue: four bytes.
    pub const ARM: u8 = 9;
    /// The program reads completions.
    pub const DRAIN: u8 = 10;
    /// A state by command: its number.
    pub const STATE: u8 = 11;
    /// A memory key goes: which.
    pub const DESTROY_KEY: u8 = 12;
    /// How many there are.
    pub const COUNT: u8 = 13;
}

/// Segments of an entry: their operands follow.
pub mod segment {
    /// No more.
    pub const END: u8 = 0;
    /// Memory of the sender: offset and length in units of 4 bytes.
    pub const DATA: u8 = 1;
    /// The same with an arbitrary key, length and address.
    pub const DATA_ANY: u8 = 2;
    /// So many inline bytes.
    pub const INLINE: u8 = 3;
    /// Memory of the receiver: offset in units of 4 bytes.
    pub const REMOTE: u8 = 4;
    /// 16 bytes as they are.
    pub const RAW: u8 = 5;
    /// An address vector to the other end.
    pub const ADDRESS: u8 = 6;
    /// The same with arbitrary bytes over it: offset, value.
    pub const ADDRESS_ANY: u8 = 7;
    /// Operands of an atomic.
    pub const ATOMIC: u8 = 8;
    /// Binding of the UMR key: flags, entries, mask bits, length in units of 4 bytes, then the entries of [`DATA`].
    pub const UMR: u8 = 9;
}

const LOG_RING: u8 = 3;
/// The largest entry has 64 segments.
const MAX_SEGMENTS: usize = 64;
/// Longest run of operations.
const MAX_OPS: usize = 200;
/// Steps that all of them together may lead to: messages of 64 KiB in packets of 256 bytes, sent up to four times.
const MAX_STEPS: usize = 1_000_000;

const OPCODES: [u8; 12] = [
    wqe_opcode::NOP,
    wqe_opcode::SEND_INVAL,
    wqe_opcode::RDMA_WRITE,
    wqe_opcode::RDMA_WRITE_IMM,
    wqe_opcode::SEND,
    wqe_opcode::SEND_IMM,
    wqe_opcode::RDMA_READ,
    wqe_opcode::ATOMIC_CS,
    wqe_opcode::ATOMIC_FA,
    wqe_opcode::LOCAL_INVAL,
    wqe_opcode::UMR,
    0x26,
];

struct Abuse<'w> {
    fixture: Fixture<'w>,
    ends: [End; 2],
    /// Per end: memory, and a UMR key.
    buffers: [Buffer; 2],
    umr: [u32; 2],
    /// Blocks written to each send ring.
    producers: [u16; 2],
    /// An error completion since the queue pair was connected.
    failed: [bool; 2],
    /// CQEs read of each card.
    read: [u64; 2],
    /// Completions were reported to the card as read that were not: it may have written over them.
    lied: [bool; 2],
    from: usize,
}

/// Handles one input.
pub fn run(data: &[u8]) {
    Abuse::run(&mut world(), data).finish();
}

impl<'w> Abuse<'w> {
    /// Does what an input says.
    fn run(world: &'w mut World, data: &[u8]) -> Self {
        let mut input = Input::new(data);
        let transport = input.pick(&[Transport::Rc, Transport::Uc, Transport::Ud]);
        let mut fixture = Fixture::new(world);
        let ends = fixture.pair(transport, LOG_RING);
        let buffers = [0, 1].map(|card| fixture.buffer(card, ends[card].qp.pd, 4096));
        let umr = [0, 1].map(|card| {
            let nic = &mut fixture.world.card(card).expect("a card").nic;
            nic.create_umr_mkey(ends[card].qp.pd, 4).expect("a key")
        });
        let mut abuse = Abuse {
            fixture,
            ends,
            buffers,
            umr,
            producers: [0; 2],
            failed: [false; 2],
            read: [0; 2],
            lied: [false; 2],
            from: 0,
        };
        for _ in 0..MAX_OPS {
            if input.is_empty() {
                break;
            }
            abuse.operation(&mut input);
        }
        abuse
    }

    fn operation(&mut self, input: &mut Input<'_>) {
        let (from, to) = (self.from, 1 - self.from);
        match input.u8() % op::COUNT {
            op::RAW => {
                let mut block = [0; BLOCK];
                let bytes = input.bytes(BLOCK);
                block[..bytes.len()].copy_from_slice(bytes);
                self.put(&block);
            }
            op::WQE => self.entry(input),
            op::RING => self.fixture.ring(&self.ends[from].qp, self.producers[from]),
            op::RING_ANY => self.fixture.ring(&self.ends[from].qp, input.u16()),
            op::RECEIVE => {
                let len = u32::from(input.u8()) * 4;
                let buffer = Buffer { len, ..self.buffers[to] };
                self.fixture.receive(&mut self.ends[to].qp, buffer);
            }
            op::RECEIVE_RAW => {
                let qp = &mut self.ends[to].qp;
                self.fixture.write(qp.rq + u64::from(qp.posted % qp.receives) * 64, input.bytes(BLOCK));
                qp.posted = qp.posted.wrapping_add(1);
                self.fixture.write(qp.record, &u32::from(qp.posted).to_be_bytes());
            }
            op::RECORD => self.fixture.write(self.ends[to].qp.record, &input.u32().to_be_bytes()),
            op::STEP => {
                for _ in 0..input.u8() {
                    self.fixture.world.step();
                }
            }
            op::TURN => self.from = to,
            op::ARM => {
                let cq = &self.ends[from].sends;
                let index = input.u32() & 0xFF_FFFF;
                self.lied[from] |= index != cq.consumed();
                self.fixture.world.arm_cq(cq.card, cq.number, index).expect("a card");
            }
            op::DRAIN => self.drain(),
            op::STATE => {
                const STATES: [QpState; 5] = [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Err];
                let state = input.pick(&STATES);
                let modify = QpModify { next_state: Some(state), qkey: Some(QKEY), ..QpModify::default() };
                let number = self.ends[from].qp.number;
                if self.fixture.modify(from, number, &modify).is_ok() && state == QpState::Reset {
                    self.failed[from] = false;
                    self.producers[from] = 0;
                }
            }
            _ => {
                let key = input.pick(&[self.buffers[from].key, self.buffers[to].key, self.umr[from], self.umr[to]]);
                let card = if key == self.buffers[from].key || key == self.umr[from] { from } else { to };
                // It may have gone before.
                let _ = self.fixture.world.card(card).expect("a card").nic.destroy_mkey(key);
            }
        }
    }

    /// Appends a block to the sender's ring.
    fn put(&mut self, block: &[u8; BLOCK]) {
        let producer = &mut self.producers[self.from];
        self.fixture.put(&self.ends[self.from].qp, *producer, block);
        *producer = producer.wrapping_add(1);
    }

    /// Appends an entry of segments.
    fn entry(&mut self, input: &mut Input<'_>) {
        let (from, to) = (self.from, 1 - self.from);
        let opcode = input.pick(&OPCODES);
        let (flags, immediate, size_error) = (input.u8(), input.u32(), input.u8());
        let mut body = Vec::new();
        while body.len() < (MAX_SEGMENTS - 1) * 16 {
            let mine = self.buffers[from];
            match input.u8() {
                segment::DATA => {
                    let (offset, len) = (u64::from(input.u8()) * 4, u32::from(input.u8()) * 4);
                    body.extend(data_segment(mine.addr + offset, len, mine.key));
                }
                segment::DATA_ANY => {
                    let key = input.pick(&[mine.key, self.buffers[to].key, self.umr[from], self.umr[to], 0]);
                    let (len, offset) = (input.u32(), input.number());
                    body.extend(data_segment(mine.addr.wrapping_add(offset), len, key ^ input.u32()));
                }
                segment::INLINE => {
                    let bytes = input.u8();
                    body.extend((1 << 31 | u32::from(bytes)).to_be_bytes());
                    body.extend(input.bytes(bytes.into()));
                    body.resize(body.len().next_multiple_of(16), 0);
                }
                segment::REMOTE => {
                    let theirs = self.buffers[to];
                    body.extend((theirs.addr + u64::from(input.u8()) * 4).to_be_bytes());
                    body.extend(theirs.key.to_be_bytes());
                    body.extend([0; 4]);
                }
                segment::RAW => {
                    body.extend(input.bytes(16));
                    body.resize(body.len().next_multiple_of(16), 0);
                }
                code @ (segment::ADDRESS | segment::ADDRESS_ANY) => {
                    let mut vector = self.fixture.address_vector(to, self.ends[to].qp.number);
                    if code == segment::ADDRESS_ANY {
                        vector[usize::from(input.u8()) % 48] = input.u8();
                    }
                    body.extend(vector);
                }
                segment::ATOMIC => {
                    body.extend(input.u64().to_be_bytes());
                    body.extend(input.u64().to_be_bytes());
                }
                segment::UMR => self.umr_segments(input, &mut body),
                _ => break,
            }
        }
        body.truncate((MAX_SEGMENTS - 1) * 16);
        let number = self.ends[from].qp.number;
        let segments = (1 + body.len() / 16) as u8 ^ size_error;
        let index = self.producers[from].to_be_bytes();
        let mut entry = vec![0, index[0], index[1], opcode];
        entry.extend((number << 8 | u32::from(segments)).to_be_bytes());
        entry.extend([0, 0, 0, flags]);
        let key = matches!(opcode, wqe_opcode::LOCAL_INVAL | wqe_opcode::UMR | wqe_opcode::SEND_INVAL);
        let owner = if opcode == wqe_opcode::SEND_INVAL { to } else { from };
        entry.extend(if key { self.umr[owner] ^ immediate } else { immediate }.to_be_bytes());
        entry.extend(body);
        entry.resize(entry.len().next_multiple_of(BLOCK), 0);
        for block in entry.as_chunks().0 {
            self.put(block);
        }
    }

    /// Control and context of a UMR, and its list.
    fn umr_segments(&mut self, input: &mut Input<'_>, body: &mut Vec<u8>) {
        let mine = self.buffers[self.from];
        let (flags, entries, bits, len) = (input.u8(), input.u8() % 5, input.u16(), u64::from(input.u8()) * 4);
        let mut control = [0; 48];
        control[0] = flags;
        control[3] = entries;
        // Length, start, the rights and the free bit, less those that the input takes away.
        let mask = (1 | 1 << 6 | 0xF << 18 | 1 << 29) ^ u64::from(bits) << 16 ^ u64::from(bits & 0xFF);
        control[8..16].copy_from_slice(&mask.to_be_bytes());
        let mut context = [0; 64];
        context[1] = input.u8();
        context[2] = input.u8();
        context[16..24].copy_from_slice(&mine.addr.to_be_bytes());
        context[24..32].copy_from_slice(&len.to_be_bytes());
        body.extend(control);
        body.extend(context);
        for _ in 0..entries {
            let (offset, len) = (u64::from(input.u8()) * 4, u32::from(input.u8()) * 4);
            let key = input.pick(&[mine.key, self.umr[self.from], 0]);
            body.extend(data_segment(mine.addr + offset, len, key));
        }
        body.resize(body.len().next_multiple_of(64), 0);
    }

    /// Reads all completions and checks them.
    fn drain(&mut self) {
        for (card, end) in self.ends.iter_mut().enumerate() {
            for cqe in self.fixture.drain(&mut end.sends) {
                assert!(matches!(cqe.opcode, cqe_opcode::REQUESTER | cqe_opcode::REQUESTER_ERROR), "{cqe:?}");
                assert_eq!(cqe.qpn, end.qp.number);
                assert_eq!(cqe.failed(), cqe.syndrome != 0, "{cqe:?}");
                self.failed[card] |= cqe.failed();
                self.read[card] += 1;
            }
            for cqe in self.fixture.drain(&mut end.receives) {
                assert!(cqe.opcode != cqe_opcode::REQUESTER && cqe.opcode != cqe_opcode::REQUESTER_ERROR, "{cqe:?}");
                assert_eq!(cqe.qpn, end.qp.number);
                self.failed[card] |= cqe.failed();
                self.read[card] += 1;
            }
        }
    }

    /// Whether a completion queue has failed.
    fn dead(&mut self, cq: (usize, u32)) -> bool {
        self.fixture.world.card(cq.0).expect("a card").nic.cq_failed(cq.1).expect("it is there")
    }

    fn finish(mut self) {
        self.fixture.settle(MAX_STEPS);
        self.drain();
        let key = |cq: &Cq| (cq.card, cq.number);
        let queues = self.ends.each_ref().map(|end| [key(&end.sends), key(&end.receives)]);
        let mut dead = queues.map(|queues| queues.map(|cq| self.dead(cq)));
        for (dead, lied) in dead.iter_mut().zip(self.lied) {
            dead[0] |= lied;
        }
        for (card, dead) in dead.iter().enumerate() {
            let nic = &self.fixture.world.card(card).expect("a card").nic;
            let (counters, query) = (*nic.counters(), nic.query_qp(self.ends[card].qp.number).expect("it is there"));
            let read = self.read[card];
            assert!(
                counters.cqes == read || self.lied[card],
                "every CQE that the card counts is in a ring: {counters:?}"
            );
            assert!(counters.error_cqes <= counters.cqes);
            if query.state == QpState::Rts && !dead[0] {
                assert!(!self.failed[card], "after an error completion the queue pair is in ERR");
                self.assert_goes_on(card, query.sq_counter);
            }
        }
        self.fixture.settle(MAX_STEPS);
        self.drain();
        if dead == [[false; 2]; 2] {
            let numbers = self.ends.each_ref().map(|end| end.qp.number);
            for (card, end) in self.ends.iter_mut().enumerate() {
                self.fixture.connect(&mut end.qp, (1 - card, numbers[1 - card]));
            }
            self.fixture.settle(MAX_STEPS);
            self.drain();
            self.fixture.assert_talks(&mut self.ends, 0);
        }
        self.fixture.assert_well(self.ends[0].qp.transport);
    }

    /// The queue pair executes an entry that is posted now.
    fn assert_goes_on(&mut self, card: usize, position: u16) {
        let number = self.ends[card].qp.number;
        let mut nop = [0; BLOCK];
        nop[1..3].copy_from_slice(&position.to_be_bytes());
        nop[4..8].copy_from_slice(&(number << 8 | 1).to_be_bytes());
        nop[11] = 2 << 2;
        self.fixture.put(&self.ends[card].qp, position, &nop);
        self.fixture.ring(&self.ends[card].qp, position.wrapping_add(1));
        self.fixture.settle(MAX_STEPS);
        let done = self.fixture.drain(&mut self.ends[card].sends);
        self.read[card] += done.len() as u64;
        assert!(
            matches!(done[..], [cqe] if cqe.opcode == cqe_opcode::REQUESTER),
            "it has stopped at {position}: {done:?}"
        );
    }
}

/// One entry of each kind, alone and all of them in a row.
#[must_use]
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    const RC: u8 = 0;
    const UC: u8 = 1;
    const UD: u8 = 2;
    const SIGNALLED: u8 = 2 << 2;
    let wqe = |script: Script, opcode: u8, segments: &[u8]| {
        let choice = OPCODES.iter().position(|&known| known == opcode).unwrap_or(0) as u8;
        script.bytes(&[op::WQE, choice, SIGNALLED]).u32(0).bytes(&[0]).bytes(segments).bytes(&[segment::END])
    };
    let data = [segment::DATA, 0, 100];
    let remote = [segment::REMOTE, 8, segment::DATA, 0, 100];
    let start = |transport: u8| Script::new().bytes(&[transport, op::RECEIVE, 255, op::RECEIVE, 200]);
    let end = |script: Script| script.bytes(&[op::RING, op::STEP, 40]).done();
    let mut inline = vec![segment::INLINE, 20];
    inline.extend([7; 20]);
    let atomic = [&[segment::REMOTE, 0, segment::ATOMIC][..], &[1; 16], &[segment::DATA, 0, 2]].concat();
    let umr = [segment::UMR, 0x80, 2, 0, 0, 100, 0x3C, 0, 0, 50, 0, 60, 50, 0];
    let all = || {
        let script = wqe(start(RC), wqe_opcode::SEND_IMM, &data);
        let script = wqe(script, wqe_opcode::RDMA_WRITE, &remote).bytes(&[op::RING, op::STEP, 60, op::DRAIN]);
        let script = wqe(script, wqe_opcode::RDMA_READ, &remote);
        wqe(script, wqe_opcode::ATOMIC_FA, &atomic).bytes(&[op::RING, op::TURN])
    };
    vec![
        ("send-rc", end(wqe(start(RC), wqe_opcode::SEND, &data))),
        ("send-uc", end(wqe(start(UC), wqe_opcode::SEND_IMM, &data))),
        ("send-ud", end(wqe(start(UD), wqe_opcode::SEND, &[segment::ADDRESS, segment::DATA, 0, 100]))),
        ("inline", end(wqe(start(RC), wqe_opcode::SEND, &inline))),
        ("write", end(wqe(start(UC), wqe_opcode::RDMA_WRITE, &remote))),
        ("write-immediate", end(wqe(start(RC), wqe_opcode::RDMA_WRITE_IMM, &remote))),
        ("read", end(wqe(start(RC), wqe_opcode::RDMA_READ, &remote))),
        ("atomic", end(wqe(start(RC), wqe_opcode::ATOMIC_CS, &atomic))),
        ("umr", end(wqe(wqe(start(RC), wqe_opcode::UMR, &umr), wqe_opcode::LOCAL_INVAL, &[]))),
        ("nop", end(wqe(start(RC), wqe_opcode::NOP, &[]))),
        ("bad-key", end(wqe(start(RC), wqe_opcode::SEND, &[segment::DATA_ANY, 4, 16, 0, 0, 0, 0, 0, 0, 0, 0]))),
        ("bad-doorbell", start(RC).bytes(&[op::RING_ANY]).u16(0x7777).done()),
        ("no-receive", end(wqe(Script::new().bytes(&[RC]), wqe_opcode::SEND, &data))),
        ("raw", Script::new().bytes(&[RC, op::RAW]).bytes(&[0xFF; 64]).bytes(&[op::RING]).done()),
        ("all", end(all())),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The seeds do what their names say; otherwise the fuzzer starts from nothing.
    #[test]
    fn seeds_reach_the_wire() {
        for (name, bytes) in seeds() {
            let quiet = ["nop", "umr", "bad-key", "bad-doorbell", "raw"].contains(&name);
            let mut world = world();
            let mut abuse = Abuse::run(&mut world, &bytes);
            abuse.fixture.settle(MAX_STEPS);
            let sent = abuse.fixture.world.card(0).expect("a card").nic.counters().tx_packets;
            assert_eq!(sent == 0, quiet, "{name}: {sent} packets");
        }
    }
}
