//! Arbitrary frames and packets that arrive at a card.
//!
//! The first byte chooses among: a frame as it is; a frame whose lengths and check sequences are made right first, so
//! that the rest of the decoder is reached; and operations (see [`op`]) that send packets of every shape to queue pairs
//! of all transports while real traffic is under way. Checked: decoding and encoding are inverse; every frame is
//! counted once, at the port and in the card; packets write nothing outside what their keys allow; the effects of a
//! packet are bounded; completions are as many as the card counts; and afterwards the same queue pairs talk again, and
//! so do new ones.

mod codec;
mod seeds;

use emu_machine::World;
use emu_machine::nic::wire::{self, MAX_PAYLOAD_BYTES};
use emu_machine::nic::{
    Acknowledgement, Address, DEFAULT_PKEY, Extension, Gid, MULTICAST_QPN, Network, Operation, Packet, Transport,
    wqe_opcode,
};

use crate::fixture::{BLOCK, Buffer, End, Fixture, QKEY, send, world};
use crate::input::Input;
use codec::{decode, fixed};

pub use seeds::seeds;

/// What the first byte chooses.
pub mod mode {
    /// The rest is a frame.
    pub const FRAME: u8 = 0;
    /// The rest is a frame to be made right.
    pub const FIXED: u8 = 1;
    /// The rest are operations.
    pub const OPERATIONS: u8 = 2;
    /// How many there are.
    pub const COUNT: u8 = 3;
}

/// Operations: their operands follow.
pub mod op {
    /// A packet to a queue pair: see the source for its fields.
    pub const PACKET: u8 = 0;
    /// A frame to be made right and sent to a card: card, length in two bytes, bytes.
    pub const FRAME: u8 = 1;
    /// A real work request of a queue pair: which, opcode, length in units of 4 bytes.
    pub const POST: u8 = 2;
    /// A receive of a queue pair: which, length in units of 4 bytes.
    pub const RECEIVE: u8 = 3;
    /// So many things happen.
    pub const STEP: u8 = 4;
    /// The program reads completions.
    pub const DRAIN: u8 = 5;
    /// How many there are.
    pub const COUNT: u8 = 6;
}

const TRANSPORTS: [Transport; 3] = [Transport::Rc, Transport::Uc, Transport::Ud];
const LOG_RING: u8 = 4;
const MAX_OPS: usize = 100;
/// Steps that all of them together may lead to: a read of the whole buffer has 16 answers.
const MAX_STEPS: usize = 200_000;
const BUFFER_BYTES: u32 = 4096;
const GROUP: Address = Address { mac: [0x01, 0, 0x5E, 1, 1, 1], gid: Gid::from_ipv4([239, 1, 1, 1]) };
/// What lies between and behind the buffers.
const CANARY: [u8; BLOCK] = [0xC5; BLOCK];

/// Handles one input.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    match input.u8() % mode::COUNT {
        mode::FRAME => drop(decode(input.rest())),
        mode::FIXED => drop(decode(&fixed(input.rest()))),
        _ => operations(&mut input),
    }
}

struct Abuse<'w> {
    fixture: Fixture<'w>,
    /// In the order of [`TRANSPORTS`]: card 0 and card 1.
    pairs: [[End; 2]; 3],
    buffers: [[Buffer; 2]; 3],
    canaries: Vec<u64>,
    /// Blocks posted to each send ring.
    producers: [[u16; 2]; 3],
    /// Frames put on the wire at each card's port that the card did not send.
    injected: [u64; 2],
    /// CQEs read of each card.
    read: [u64; 2],
}

fn operations(input: &mut Input<'_>) {
    let mut world = world();
    let mut abuse = Abuse::new(&mut world);
    for _ in 0..MAX_OPS {
        if input.is_empty() {
            break;
        }
        abuse.operation(input);
    }
    abuse.finish();
}

impl<'w> Abuse<'w> {
    fn new(world: &'w mut World) -> Self {
        let mut fixture = Fixture::new(world);
        let pairs = TRANSPORTS.map(|transport| fixture.pair(transport, LOG_RING));
        let mut canaries = Vec::new();
        let buffers = pairs.each_ref().map(|pair| {
            pair.each_ref().map(|end| {
                canaries.push(fixture.alloc(BLOCK));
                fixture.buffer(end.qp.card, end.qp.pd, BUFFER_BYTES)
            })
        });
        canaries.push(fixture.alloc(BLOCK));
        for &canary in &canaries {
            fixture.write(canary, &CANARY);
        }
        let member = pairs[2][1].qp.number;
        fixture.world.card(1).expect("a card").nic.attach_multicast(member, GROUP.gid).expect("a datagram queue pair");
        Abuse { fixture, pairs, buffers, canaries, producers: [[0; 2]; 3], injected: [0; 2], read: [0; 2] }
    }

    fn operation(&mut self, input: &mut Input<'_>) {
        match input.u8() % op::COUNT {
            op::PACKET => {
                let (from, packet) = self.packet(input);
                self.inject(from, packet);
            }
            op::FRAME => {
                let from = usize::from(input.u8() % 2);
                let len = usize::from(input.u16()) % 2048;
                if let Some(mut packet) = decode(&fixed(input.bytes(len))) {
                    self.relocate(&mut packet);
                    self.inject(from, packet);
                }
            }
            op::POST => {
                let (pair, card) = (usize::from(input.u8() % 3), usize::from(input.u8() % 2));
                let opcode = input.pick(&[wqe_opcode::SEND, wqe_opcode::SEND_IMM, wqe_opcode::NOP]);
                let len = u32::from(input.u8()) * 4;
                let peer = self.pairs[pair][1 - card].qp.number;
                let av = (pair == 2).then(|| self.fixture.address_vector(1 - card, peer));
                let Buffer { addr, key, .. } = self.buffers[pair][card];
                let qp = &self.pairs[pair][card].qp;
                let index = self.producers[pair][card];
                let wqe = send(qp, index, opcode, av.as_ref(), (addr, len, key));
                for (offset, block) in wqe.iter().enumerate() {
                    self.fixture.put(qp, index.wrapping_add(offset as u16), block);
                }
                let behind = index.wrapping_add(wqe.len() as u16);
                self.producers[pair][card] = behind;
                self.fixture.ring(qp, behind);
            }
            op::RECEIVE => {
                let (pair, card) = (usize::from(input.u8() % 3), usize::from(input.u8() % 2));
                let buffer = Buffer { len: u32::from(input.u8()) * 4, ..self.buffers[pair][card] };
                self.fixture.receive(&mut self.pairs[pair][card].qp, buffer);
            }
            op::STEP => {
                for _ in 0..input.u8() {
                    self.fixture.world.step();
                }
            }
            _ => self.drain(),
        }
    }

    /// A packet, mostly to a queue pair that is there: (card at whose port it enters the wire, packet).
    fn packet(&mut self, input: &mut Input<'_>) -> (usize, Packet) {
        const OPERATIONS: [Operation; 8] = [
            Operation::Send,
            Operation::Write,
            Operation::ReadRequest,
            Operation::ReadResponse,
            Operation::Acknowledge,
            Operation::AtomicAcknowledge,
            Operation::CompareSwap,
            Operation::FetchAdd,
        ];
        let which = input.u8();
        let (pair, to) = (usize::from(which % 3), usize::from(which / 3 % 2));
        let qpn = self.pairs[pair][to].qp.number;
        let operation = input.pick(&OPERATIONS);
        let flags = input.u8();
        let flag = |bit: u8| flags >> bit & 1 == 1;
        let query = self.fixture.world.card(to).expect("a card").nic.query_qp(qpn).expect("it is there");
        let expected = if operation.is_request() { query.rq_psn } else { query.sq_psn };
        let psn = expected.wrapping_add_signed(i32::from(input.u8().cast_signed())) & 0xFF_FFFF;
        let odd = input.u8();
        let own = self.fixture.world.card(to).expect("a card").nic.address();
        let peer = self.fixture.world.card(1 - to).expect("a card").nic.address();
        let multicast = odd & 1 == 1;
        let extension = self.extension(input, pair, to);
        let mut packet = Packet {
            source: peer,
            destination: if multicast { GROUP } else { own },
            network: Network::default(),
            pkey: if odd & 2 == 2 { input.u16() } else { DEFAULT_PKEY },
            transport: if odd & 4 == 4 { input.pick(&TRANSPORTS) } else { TRANSPORTS[pair] },
            operation,
            first: flag(0),
            last: flag(1),
            solicited: flag(2),
            ack_request: flag(3),
            destination_qpn: if multicast { MULTICAST_QPN } else { qpn },
            psn,
            immediate: flag(4).then(|| input.u32().to_be_bytes()),
            invalidate: flag(5).then(|| self.key(input, pair, to)),
            message_number: 0,
            extension,
            payload: vec![odd; usize::from(input.u16()) % (MAX_PAYLOAD_BYTES + 1)].into(),
            damage: None,
        };
        if odd & 8 == 8 {
            packet.destination_qpn = input.u32() & 0xFF_FFFF;
        }
        if odd & 16 == 16 {
            packet.destination.mac[usize::from(input.u8()) % 6] ^= input.u8();
        }
        if odd & 32 == 32 {
            packet.destination.gid.0[usize::from(input.u8()) % 16] ^= input.u8();
        }
        // What the codec can write, it can read.
        let mut frame = Vec::new();
        if wire::encode(&packet, &mut frame).is_ok() {
            assert_eq!(wire::decode(&frame).as_ref(), Ok(&packet));
        }
        (1 - to, packet)
    }

    fn key(&self, input: &mut Input<'_>, pair: usize, card: usize) -> u32 {
        match input.u8() % 4 {
            0 | 1 => self.buffers[pair][card].key,
            2 => self.buffers[(pair + 1) % 3][card].key,
            _ => input.u32(),
        }
    }

    fn extension(&self, input: &mut Input<'_>, pair: usize, to: usize) -> Extension {
        let buffer = self.buffers[pair][to];
        let at = |input: &mut Input<'_>| buffer.addr.wrapping_add(input.number());
        match input.u8() % 10 {
            0 => Extension::None,
            1 => Extension::Datagram { qkey: QKEY, source_qpn: input.u32() & 0xFF_FFFF },
            2 => Extension::Datagram { qkey: input.u32(), source_qpn: input.u32() & 0xFF_FFFF },
            3 => Extension::Remote { address: at(input), rkey: self.key(input, pair, to), len: input.u16().into() },
            4 => Extension::Remote { address: at(input), rkey: self.key(input, pair, to), len: input.u32() },
            5 => Extension::Acknowledge(Acknowledgement::Positive),
            6 => Extension::Acknowledge(Acknowledgement::ReceiverNotReady { timer: input.u8() & 31 }),
            7 => Extension::Acknowledge(input.pick(&[
                Acknowledgement::SequenceError,
                Acknowledgement::InvalidRequest,
                Acknowledgement::RemoteAccess,
                Acknowledgement::RemoteOperation,
            ])),
            8 => Extension::Atomic {
                address: at(input),
                rkey: self.key(input, pair, to),
                swap_or_add: input.u64(),
                compare: input.u64(),
            },
            _ => Extension::AtomicAcknowledge { original: input.u64() },
        }
    }

    /// Addresses of seeds are offsets into the buffer of the queue pair, because memory lies elsewhere in each run.
    fn relocate(&self, packet: &mut Packet) {
        let Some(pair) = TRANSPORTS.iter().position(|&transport| transport == packet.transport) else { return };
        let to = usize::from(packet.destination_qpn == self.pairs[pair][1].qp.number);
        match &mut packet.extension {
            Extension::Remote { address, .. } | Extension::Atomic { address, .. } if *address < 1 << 16 => {
                *address += self.buffers[pair][to].addr;
            }
            _ => {}
        }
    }

    /// Puts a packet on the wire at a card's port.
    fn inject(&mut self, from: usize, packet: Packet) {
        let now_ps = self.fixture.world.now_ps();
        self.fixture.world.nic_call(from, |_, fx| fx.packets.push((now_ps, packet))).expect("a card");
        self.injected[from] += 1;
    }

    fn drain(&mut self) {
        for pair in &mut self.pairs {
            for (card, end) in pair.iter_mut().enumerate() {
                for cqe in self.fixture.drain(&mut end.sends).into_iter().chain(self.fixture.drain(&mut end.receives)) {
                    assert_eq!(cqe.qpn, end.qp.number);
                    assert_eq!(cqe.failed(), cqe.syndrome != 0, "{cqe:?}");
                    self.read[card] += 1;
                }
            }
        }
    }

    fn finish(mut self) {
        self.fixture.settle(MAX_STEPS);
        self.drain();
        for card in 0..2 {
            let counters = *self.fixture.world.card(card).expect("a card").nic.counters();
            let (port, peer) = (self.fixture.world.port_counters(card), self.fixture.world.port_counters(1 - card));
            assert_eq!(port.tx_frames, counters.tx_packets + self.injected[card], "{counters:?}");
            assert_eq!(port.rx_frames, peer.tx_frames, "the link loses nothing");
            let refused = counters.address_drops + counters.multicast_drops + counters.rx_buffer_drops;
            assert_eq!(port.rx_frames, counters.rx_packets + refused, "{counters:?}");
            assert!(counters.error_cqes <= counters.cqes);
            assert_eq!(counters.cqes, self.read[card], "every CQE that the card counts is in a ring: {counters:?}");
        }
        for &canary in &self.canaries {
            assert_eq!(self.fixture.read::<BLOCK>(canary), CANARY, "memory without a key is as it was");
        }
        for pair in &mut self.pairs {
            let queues =
                pair.each_ref().map(|end| [(end.qp.card, end.sends.number), (end.qp.card, end.receives.number)]);
            let dead = queues.as_flattened().iter().any(|&(card, cq)| {
                self.fixture.world.card(card).expect("a card").nic.cq_failed(cq).expect("it is there")
            });
            if dead {
                continue;
            }
            let numbers = pair.each_ref().map(|end| end.qp.number);
            for (card, end) in pair.iter_mut().enumerate() {
                self.fixture.connect(&mut end.qp, (1 - card, numbers[1 - card]));
                self.fixture.drain(&mut end.sends);
                self.fixture.drain(&mut end.receives);
            }
            self.fixture.assert_talks(pair, 0);
        }
        let busiest = usize::from(self.injected[0] as u8 % 3);
        self.fixture.assert_well(TRANSPORTS[busiest]);
    }
}
