//! Two cards with queues in host memory, driven without a host library: what the targets `packet` and `wqe` abuse, and
//! the proof that the cards are well afterwards.

use emu_machine::nic::{
    Access, CqAttr, CqTarget, MkeyAttr, NicError, QpAttr, QpModify, QpState, QueueMemory, Space, Transport, wqe_opcode,
};
use emu_machine::nic::{Mtu, cqe_opcode};
use emu_machine::{Config, World};

/// Bytes of a CQE, and of a block of a send ring.
pub const BLOCK: usize = 64;
/// First PSN of every connection: close to where it wraps.
pub const FIRST_PSN: u32 = 0xFF_FFF0;
/// Q_Key of every datagram queue pair.
pub const QKEY: u32 = 0x1111;

/// A machine of two cards with memory for queues and messages.
pub struct Fixture<'w> {
    /// The machine.
    pub world: &'w mut World,
    next: u64,
    end: u64,
}

/// A completion queue and how far it has been read.
pub struct Cq {
    /// Index of its card.
    pub card: usize,
    /// Its number.
    pub number: u32,
    ring: u64,
    record: u64,
    log: u8,
    consumed: u32,
}

impl Cq {
    /// Completions read, 24 bits.
    #[must_use]
    pub fn consumed(&self) -> u32 {
        self.consumed & 0xFF_FFFF
    }
}

/// A queue pair and where its parts are.
pub struct Qp {
    /// Index of its card.
    pub card: usize,
    /// Its number.
    pub number: u32,
    /// Its transport.
    pub transport: Transport,
    /// Its protection domain.
    pub pd: u32,
    /// Address of its send ring, of 64 bytes times `sends`.
    pub sq: u64,
    /// Blocks of its send ring.
    pub sends: u16,
    /// Address of its receive ring, of 64 bytes times `receives`.
    pub rq: u64,
    /// Entries of its receive ring.
    pub receives: u16,
    /// Address of its doorbell record.
    pub record: u64,
    /// Receives posted.
    pub posted: u16,
}

/// A queue pair with its completion queues.
pub struct End {
    /// The queue pair.
    pub qp: Qp,
    /// Completions of sends.
    pub sends: Cq,
    /// Completions of receives.
    pub receives: Cq,
}

/// Memory with a key that allows everything.
#[derive(Clone, Copy, Debug)]
pub struct Buffer {
    /// Its first byte.
    pub addr: u64,
    /// Its bytes.
    pub len: u32,
    /// Its memory key.
    pub key: u32,
}

/// A CQE, the parts that the checks need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cqe {
    /// One of [`cqe_opcode`].
    pub opcode: u8,
    /// The queue pair.
    pub qpn: u32,
    /// Bytes of the message.
    pub bytes: u32,
    /// Syndrome of an error.
    pub syndrome: u8,
}

impl Cqe {
    /// Whether the work failed or was flushed.
    #[must_use]
    pub fn failed(&self) -> bool {
        matches!(self.opcode, cqe_opcode::REQUESTER_ERROR | cqe_opcode::RESPONDER_ERROR)
    }
}

/// A machine of two cards.
#[must_use]
pub fn world() -> World {
    World::new(Config { heap_bytes: 4096, ..Config::default() }).expect("two cards")
}

impl<'w> Fixture<'w> {
    const MEMORY_LINES: usize = 2048;

    /// Adds 128 KiB of host memory to a machine of two cards.
    #[must_use]
    pub fn new(world: &'w mut World) -> Self {
        let next = world.host.allocate(Self::MEMORY_LINES);
        Fixture { world, next, end: next + (Self::MEMORY_LINES * 64) as u64 }
    }

    /// Zeroed memory of whole lines.
    pub fn alloc(&mut self, bytes: usize) -> u64 {
        let addr = self.next;
        self.next += (bytes as u64).next_multiple_of(64);
        assert!(self.next <= self.end, "the fixture needs more memory");
        addr
    }

    /// Writes memory that [`Fixture::alloc`] gave.
    pub fn write(&mut self, addr: u64, bytes: &[u8]) {
        self.world.host.write(addr, bytes).expect("memory of the fixture");
    }

    /// Reads it.
    #[must_use]
    pub fn read<const N: usize>(&self, addr: u64) -> [u8; N] {
        let mut out = [0; N];
        self.world.host.read(addr, &mut out).expect("memory of the fixture");
        out
    }

    /// A protection domain.
    pub fn pd(&mut self, card: usize) -> u32 {
        self.world.card(card).map(|card| card.nic.alloc_pd()).expect("a card").expect("a domain")
    }

    /// Memory with a key of a protection domain.
    pub fn buffer(&mut self, card: usize, pd: u32, len: u32) -> Buffer {
        let addr = self.alloc(len as usize);
        let attr = MkeyAttr { pd, space: Space::Host, start: addr, len: len.into(), access: Access::all(), offset: 0 };
        let key = self.world.card(card).expect("a card").nic.create_mkey(attr).expect("a key");
        Buffer { addr, len, key }
    }

    /// A completion queue of 2^`log` entries.
    pub fn cq(&mut self, card: usize, log: u8) -> Cq {
        let ring = self.alloc(BLOCK << log);
        let record = self.alloc(8);
        for entry in 0..1_u64 << log {
            self.write(ring + entry * 64 + 63, &[0xF1]);
        }
        let memory = |addr| QueueMemory { space: Space::Host, addr };
        let attr = CqAttr {
            ring: memory(ring),
            log_depth: log,
            doorbell_record: memory(record),
            target: CqTarget::Channel(1),
            overrun_ignore: false,
            always_armed: false,
            armed_at_creation: false,
            uar: 1,
        };
        let number = self.world.card(card).expect("a card").nic.create_cq(attr).expect("a completion queue");
        Cq { card, number, ring, record, log, consumed: 0 }
    }

    /// A queue pair in RESET with rings of 2^`log` entries of 64 bytes, and completion queues that hold all of them.
    pub fn end(&mut self, card: usize, transport: Transport, log: u8) -> End {
        let pd = self.pd(card);
        // Twice the entries, because a repeated error completes in other ways than the work does.
        let (sends, receives) = (self.cq(card, log + 1), self.cq(card, log + 1));
        let [sq, rq] = [self.alloc(BLOCK << log), self.alloc(BLOCK << log)];
        let record = self.alloc(8);
        let memory = |addr| QueueMemory { space: Space::Host, addr };
        let attr = QpAttr {
            transport,
            pd,
            send_cq: sends.number,
            recv_cq: receives.number,
            rq: memory(rq),
            log_rq_depth: log,
            log_rq_stride: 6,
            sq: memory(sq),
            log_sq_depth: log,
            no_sq: false,
            no_rq: false,
            srq: None,
            doorbell_record: memory(record),
            user_index: 0xABC,
            uar: 1,
        };
        let number = self.world.card(card).expect("a card").nic.create_qp(attr).expect("a queue pair");
        let entries = 1 << log;
        let qp = Qp { card, number, transport, pd, sq, sends: entries, rq, receives: entries, record, posted: 0 };
        End { qp, sends, receives }
    }

    /// Changes a queue pair.
    pub fn modify(&mut self, card: usize, number: u32, modify: &QpModify) -> Result<(), NicError> {
        let now_ps = self.world.now_ps();
        self.world.nic_call(card, |nic, fx| nic.modify_qp(now_ps, number, modify, fx)).expect("a card")
    }

    /// Takes a queue pair from any state to RTS, towards another one. Retries are bounded, so that everything ends.
    pub fn connect(&mut self, qp: &mut Qp, peer: (usize, u32)) {
        let address = self.world.card(peer.0).expect("a card").nic.address();
        let base = QpModify {
            access: Some(Access::all()),
            qkey: Some(QKEY),
            path_mtu: Some(Mtu::B256),
            dest_qpn: Some(peer.1),
            rq_psn: Some(FIRST_PSN),
            sq_psn: Some(FIRST_PSN),
            rgid: Some(address.gid),
            dmac: Some(address.mac),
            max_rd_atomic: Some(4),
            timeout: Some(3),
            retry_cnt: Some(3),
            rnr_retry: Some(3),
            ..QpModify::default()
        };
        self.write(qp.record, &[0; 8]);
        qp.posted = 0;
        for state in [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts] {
            self.modify(qp.card, qp.number, &QpModify { next_state: Some(state), ..base }).expect("a transition");
        }
    }

    /// A connected pair, card 0 and card 1.
    pub fn pair(&mut self, transport: Transport, log: u8) -> [End; 2] {
        let mut ends = [self.end(0, transport, log), self.end(1, transport, log)];
        let numbers = ends.each_ref().map(|end| end.qp.number);
        for (card, end) in ends.iter_mut().enumerate() {
            self.connect(&mut end.qp, (1 - card, numbers[1 - card]));
        }
        ends
    }

    /// Posts a receive into a buffer. The caller sees to it that the ring has room.
    pub fn receive(&mut self, qp: &mut Qp, buffer: Buffer) {
        let mut entry = data_segment(buffer.addr, buffer.len, buffer.key).to_vec();
        entry.extend_from_slice(&data_segment(0, 0, 0x100));
        self.write(qp.rq + u64::from(qp.posted % qp.receives) * 64, &entry);
        qp.posted = qp.posted.wrapping_add(1);
        self.write(qp.record, &u32::from(qp.posted).to_be_bytes());
    }

    /// Writes one block of the send ring.
    pub fn put(&mut self, qp: &Qp, index: u16, block: &[u8; BLOCK]) {
        self.write(qp.sq + u64::from(index % qp.sends) * 64, block);
    }

    /// Rings the send doorbell.
    pub fn ring(&mut self, qp: &Qp, producer: u16) {
        self.world.ring_sq(qp.card, qp.number, producer).expect("a card");
    }

    /// Steps until nothing is due.
    ///
    /// # Panics
    /// More than `limit` things happen: the effects of what was done are not bounded as they should be.
    pub fn settle(&mut self, limit: usize) {
        assert!((0..limit).any(|_| !self.world.step()), "the machine does not come to rest within {limit} steps");
    }

    /// The next CQE of a queue, if there is one.
    pub fn poll(&mut self, cq: &mut Cq) -> Option<Cqe> {
        let entry: [u8; BLOCK] = self.read(cq.ring + u64::from(cq.consumed & ((1 << cq.log) - 1)) * 64);
        let lap = (cq.consumed >> cq.log & 1) as u8;
        if entry[63] >> 4 == 0xF || entry[63] & 1 != lap {
            return None;
        }
        cq.consumed += 1;
        self.write(cq.record, &(cq.consumed & 0xFF_FFFF).to_be_bytes());
        let word = |at: usize| u32::from_be_bytes([entry[at], entry[at + 1], entry[at + 2], entry[at + 3]]);
        let mut cqe = Cqe { opcode: entry[63] >> 4, qpn: word(0x38) & 0xFF_FFFF, bytes: word(0x2C), syndrome: 0 };
        if cqe.failed() {
            // Otherwise a part of the time stamp.
            cqe.syndrome = entry[0x37];
        }
        Some(cqe)
    }

    /// All CQEs of a queue.
    pub fn drain(&mut self, cq: &mut Cq) -> Vec<Cqe> {
        std::iter::from_fn(|| self.poll(cq)).collect()
    }

    /// A send of each end arrives at the other, byte by byte, and completes: the ends must be connected, at rest and
    /// drained.
    ///
    /// # Panics
    /// It does not.
    pub fn assert_talks(&mut self, ends: &mut [End; 2], first: u16) {
        for from in 0..2 {
            let to = 1 - from;
            let source = self.buffer(from, ends[from].qp.pd, 256);
            let target = self.buffer(to, ends[to].qp.pd, 320);
            let message: Vec<u8> = (0..200).map(|byte| byte ^ from as u8).collect();
            self.write(source.addr, &message);
            self.receive(&mut ends[to].qp, target);
            let datagram = ends[to].qp.transport == Transport::Ud;
            let av = datagram.then(|| self.address_vector(to, ends[to].qp.number));
            let wqe = send(&ends[from].qp, first, wqe_opcode::SEND, av.as_ref(), (source.addr, 200, source.key));
            let blocks = wqe.len() as u16;
            for (offset, block) in wqe.iter().enumerate() {
                self.put(&ends[from].qp, first.wrapping_add(offset as u16), block);
            }
            self.ring(&ends[from].qp, first.wrapping_add(blocks));
            self.settle(10_000);
            let sent = self.drain(&mut ends[from].sends);
            let expected = Cqe { opcode: cqe_opcode::REQUESTER, qpn: ends[from].qp.number, bytes: 200, syndrome: 0 };
            assert_eq!(sent, [expected]);
            let header = if datagram { 40 } else { 0 };
            let arrived = self.drain(&mut ends[to].receives);
            let expected =
                Cqe { opcode: cqe_opcode::RESPONDER_SEND, qpn: ends[to].qp.number, bytes: 200 + header, syndrome: 0 };
            assert_eq!(arrived, [expected]);
            assert_eq!(self.read::<200>(target.addr + u64::from(header))[..], message[..]);
        }
    }

    /// New queue pairs work.
    ///
    /// # Panics
    /// They do not.
    pub fn assert_well(&mut self, transport: Transport) {
        let mut fresh = self.pair(transport, 2);
        self.assert_talks(&mut fresh, 0);
        for end in fresh {
            let nic = &mut self.world.card(end.qp.card).expect("a card").nic;
            nic.destroy_qp(end.qp.number).expect("no member of a group");
            nic.destroy_cq(end.sends.number).expect("not in use");
            nic.destroy_cq(end.receives.number).expect("not in use");
        }
    }

    /// The extended address vector of a datagram.
    pub fn address_vector(&mut self, card: usize, qpn: u32) -> [u8; 48] {
        let address = self.world.card(card).expect("a card").nic.address();
        let mut av = [0; 48];
        av[0..4].copy_from_slice(&QKEY.to_be_bytes());
        av[8..12].copy_from_slice(&(1 << 31 | qpn).to_be_bytes());
        av[20..26].copy_from_slice(&address.mac);
        av[27] = 64;
        av[32..48].copy_from_slice(&address.gid.0);
        av
    }
}

/// A data segment.
#[must_use]
pub fn data_segment(addr: u64, len: u32, key: u32) -> [u8; 16] {
    let mut segment = [0; 16];
    segment[0..4].copy_from_slice(&len.to_be_bytes());
    segment[4..8].copy_from_slice(&key.to_be_bytes());
    segment[8..16].copy_from_slice(&addr.to_be_bytes());
    segment
}

/// A signalled WQE of one data segment, in whole blocks; `data` is address, length, key.
#[must_use]
pub fn send(qp: &Qp, index: u16, opcode: u8, av: Option<&[u8; 48]>, data: (u64, u32, u32)) -> Vec<[u8; BLOCK]> {
    let mut bytes = vec![0, (index >> 8) as u8, index as u8, opcode];
    bytes.extend_from_slice(&(qp.number << 8 | if av.is_some() { 5 } else { 2 }).to_be_bytes());
    bytes.extend_from_slice(&[0, 0, 0, 2 << 2, 0, 0, 0, 0]);
    bytes.extend_from_slice(av.map_or(&[], |av| &av[..]));
    bytes.extend_from_slice(&data_segment(data.0, data.1, data.2));
    bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
    bytes.as_chunks().0.to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn untouched_cards_are_well() {
        let mut world = world();
        let mut fixture = Fixture::new(&mut world);
        let mut pairs = [Transport::Rc, Transport::Uc, Transport::Ud].map(|transport| fixture.pair(transport, 3));
        for pair in &mut pairs {
            fixture.assert_talks(pair, 0);
        }
        for transport in [Transport::Rc, Transport::Uc, Transport::Ud] {
            fixture.assert_well(transport);
        }
    }
}
