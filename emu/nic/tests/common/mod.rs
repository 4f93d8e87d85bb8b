//! Two cards, a link, their memories, and an event loop: the smallest machine that can run queue pairs.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part")]

use std::cmp::Reverse;
use std::collections::BTreeMap;

use emu_fabric::{BackToBack, Link, LinkConfig, Rate, SeededDrop};
use emu_nic::*;

pub const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 0xA], [2, 0, 0, 0, 0, 0xB]];
pub const GIDS: [Gid; 2] = [Gid::from_ipv4([10, 0, 0, 1]), Gid::from_ipv4([10, 0, 0, 2])];
pub const HOST_BASE: u64 = 0x7F00_0000_0000;
pub const DPA_BASE: u64 = 0x8000_0000;
pub const DPA: Space = Space::Dpa(3);
const MEMORY_BYTES: usize = 8 << 20;

pub struct Memory {
    host: Vec<u8>,
    dpa: Vec<u8>,
    next: [u64; 2],
}

impl Memory {
    fn new() -> Self {
        Self { host: Vec::new(), dpa: Vec::new(), next: [0; 2] }
    }

    fn slice(&mut self, space: Space, addr: u64, len: usize) -> Result<&mut [u8], DmaFault> {
        let (base, bytes) = match space {
            Space::Host => (HOST_BASE, &mut self.host),
            DPA => (DPA_BASE, &mut self.dpa),
            Space::Arm | Space::Dpa(_) | Space::HostProcess(_) => return Err(DmaFault { addr, len: len as u64 }),
        };
        let start = addr.checked_sub(base).ok_or(DmaFault { addr, len: len as u64 })? as usize;
        start.checked_add(len).and_then(|end| bytes.get_mut(start..end)).ok_or(DmaFault { addr, len: len as u64 })
    }

    /// Fresh memory, 64-byte aligned, with a page of nothing used behind it.
    pub fn alloc(&mut self, space: Space, len: usize) -> u64 {
        let (base, next, bytes) = match space {
            Space::Host => (HOST_BASE, &mut self.next[0], &mut self.host),
            Space::Arm | Space::Dpa(_) | Space::HostProcess(_) => (DPA_BASE, &mut self.next[1], &mut self.dpa),
        };
        let addr = base + *next;
        *next += (len as u64).next_multiple_of(64) + 4096;
        assert!(*next <= MEMORY_BYTES as u64, "the test needs more memory");
        bytes.resize(*next as usize, 0);
        addr
    }

    pub fn get(&mut self, space: Space, addr: u64, len: usize) -> Vec<u8> {
        self.slice(space, addr, len).expect("test memory").to_vec()
    }

    pub fn set(&mut self, space: Space, addr: u64, data: &[u8]) {
        self.slice(space, addr, data.len()).expect("test memory").copy_from_slice(data);
    }
}

impl Dma for Memory {
    fn read(&mut self, space: Space, addr: u64, out: &mut [u8]) -> Result<(), DmaFault> {
        out.copy_from_slice(self.slice(space, addr, out.len())?);
        Ok(())
    }
    fn write(&mut self, space: Space, addr: u64, data: &[u8]) -> Result<(), DmaFault> {
        self.slice(space, addr, data.len())?.copy_from_slice(data);
        Ok(())
    }
}

enum Event {
    Timer(usize, Timer),
    Departure(usize, Packet),
    Arrival(usize, Packet),
    Cq(usize, CqEvent),
}

/// Sees each packet as it leaves a port.
pub type Censor = Box<dyn FnMut(usize, &Packet) -> bool>;

/// Time, node, opcode and PSN of a packet that arrived.
pub type Arrival = (u64, usize, u8, u32);

pub struct World {
    pub now_ps: u64,
    pub nics: [Nic; 2],
    pub mem: [Memory; 2],
    pub link: SeededDrop<BackToBack>,
    queue: std::collections::BinaryHeap<Reverse<(u64, u64)>>,
    events: BTreeMap<u64, Event>,
    sequence: u64,
    pub cq_events: Vec<(u64, usize, CqEvent)>,
    pub async_events: Vec<(usize, AsyncEvent)>,
    /// Packets for which this gives true never arrive.
    pub censor: Option<Censor>,
    pub arrivals: Vec<Arrival>,
    /// State of the generator that delays packets by up to 2 us and delivers one in eight twice; `None` keeps order.
    pub disorder: Option<u64>,
    pub handled: u64,
}

pub struct Cq {
    pub node: usize,
    pub cqn: u32,
    pub space: Space,
    pub ring: u64,
    pub dbr: u64,
    pub log: u8,
    pub ci: u32,
}

pub struct Qp {
    pub node: usize,
    pub qpn: u32,
    pub space: Space,
    pub transport: Transport,
    pub sq: u64,
    pub rq: u64,
    pub dbr: u64,
    pub log_sq: u8,
    pub log_rq: u8,
    pub log_stride: u8,
    pub sq_pi: u16,
    pub rq_pi: u16,
    pub pd: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cqe {
    pub opcode: u8,
    pub qpn: u32,
    pub counter: u16,
    pub byte_count: u32,
    pub immediate: [u8; 4],
    pub syndrome: u8,
    pub vendor: u8,
    pub send_opcode: u8,
    pub source_qpn: u32,
    pub user_index: u32,
    pub solicited: bool,
    pub grh: u8,
}

pub struct Setup {
    pub transport: Transport,
    pub space: Space,
    pub log_sq: u8,
    pub log_rq: u8,
    pub log_stride: u8,
    pub log_cq: u8,
    pub modify: QpModify,
}

impl Setup {
    pub fn new(transport: Transport) -> Self {
        Self {
            transport,
            space: Space::Host,
            log_sq: 4,
            log_rq: 4,
            log_stride: 6,
            log_cq: 7,
            modify: QpModify::default(),
        }
    }
}

/// A queue pair with its completion queues.
pub struct End {
    pub qp: Qp,
    pub scq: Cq,
    pub rcq: Cq,
}

/// Two queue pairs that are connected, with a buffer in host memory and its key at each: what is sent, and where it
/// goes.
pub struct Fixture {
    pub world: World,
    pub a: End,
    pub b: End,
    pub source: (u64, u32),
    pub target: (u64, u32),
}

impl Fixture {
    pub fn new(setup: &Setup, len: usize) -> Self {
        let mut world = World::new();
        let (a, b) = world.pair(setup);
        let source = world.buffer(0, a.qp.pd, Space::Host, len);
        let target = world.buffer(1, b.qp.pd, Space::Host, len);
        Self { world, a, b, source, target }
    }
}

impl World {
    pub fn new() -> Self {
        Self::with(0, 0, |_| {})
    }

    pub fn with(loss_ppm: u32, seed: u64, change: impl Fn(&mut NicConfig)) -> Self {
        let nic = |i: usize| {
            let mut config = NicConfig {
                mac: MACS[i],
                gids: vec![GIDS[i].into()],
                port_mtu: Mtu::B4096,
                timing: NicTiming::default(),
                seed: i as u64,
            };
            change(&mut config);
            Nic::new(config)
        };
        let link = BackToBack::new(LinkConfig { rate: Rate::GBPS_200, latency_ps: 300_000 });
        Self {
            now_ps: 0,
            nics: [nic(0), nic(1)],
            mem: [Memory::new(), Memory::new()],
            link: SeededDrop::new(link, loss_ppm, seed).expect("probability"),
            queue: Default::default(),
            events: BTreeMap::new(),
            sequence: 0,
            cq_events: Vec::new(),
            async_events: Vec::new(),
            censor: None,
            arrivals: Vec::new(),
            disorder: None,
            handled: 0,
        }
    }

    fn push(&mut self, at_ps: u64, event: Event) {
        assert!(at_ps >= self.now_ps, "an effect in the past: {at_ps} < {}", self.now_ps);
        self.sequence += 1;
        self.queue.push(Reverse((at_ps, self.sequence)));
        self.events.insert(self.sequence, event);
    }

    pub fn effects(&mut self, node: usize, fx: Effects) {
        for (at_ps, timer) in fx.timers {
            self.push(at_ps, Event::Timer(node, timer));
        }
        for (at_ps, packet) in fx.packets {
            self.push(at_ps, Event::Departure(node, packet));
        }
        for (at_ps, event) in fx.events {
            self.push(at_ps, Event::Cq(node, event));
        }
        self.async_events.extend(fx.async_events.into_iter().map(|event| (node, event)));
    }

    pub fn act(&mut self, node: usize, act: impl FnOnce(&mut Nic, &mut Memory, u64, &mut Effects)) {
        let mut fx = Effects::default();
        act(&mut self.nics[node], &mut self.mem[node], self.now_ps, &mut fx);
        self.effects(node, fx);
    }

    /// Handles the next event; false when there is none.
    pub fn step(&mut self) -> bool {
        let Some(Reverse((at_ps, sequence))) = self.queue.pop() else { return false };
        self.now_ps = at_ps;
        self.handled += 1;
        match self.events.remove(&sequence).expect("event") {
            Event::Timer(node, timer) => self.act(node, |nic, mem, now, fx| nic.handle_timer(now, timer, mem, fx)),
            Event::Departure(node, packet) => {
                let censored = self.censor.as_mut().is_some_and(|censor| censor(node, &packet));
                let mut out = Vec::new();
                self.link.transmit(at_ps, node, packet, &mut out).expect("port");
                for delivery in out {
                    if censored {
                        continue;
                    }
                    let Some(state) = &mut self.disorder else {
                        self.push(delivery.at_ps, Event::Arrival(delivery.port, delivery.frame));
                        continue;
                    };
                    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let random = *state >> 33;
                    let late_ps = delivery.at_ps + random % 2_000_000;
                    if random % 8 == 0 {
                        self.push(late_ps + 700_000, Event::Arrival(delivery.port, delivery.frame.clone()));
                    }
                    self.push(late_ps, Event::Arrival(delivery.port, delivery.frame));
                }
            }
            Event::Arrival(node, packet) => {
                self.arrivals.push((at_ps, node, packet.opcode(), packet.psn));
                self.act(node, |nic, mem, now, fx| nic.handle_packet(now, packet, mem, fx));
            }
            Event::Cq(node, event) => self.cq_events.push((at_ps, node, event)),
        }
        true
    }

    /// When the next event is due.
    pub fn next_ps(&self) -> Option<u64> {
        self.queue.peek().map(|Reverse((at_ps, _))| *at_ps)
    }

    pub fn run(&mut self) {
        for _ in 0..20_000_000 {
            if !self.step() {
                return;
            }
        }
        panic!("the machine does not come to rest");
    }

    pub fn run_until(&mut self, at_ps: u64) {
        while self.queue.peek().is_some_and(|Reverse((next, _))| *next <= at_ps) {
            self.step();
        }
        self.now_ps = self.now_ps.max(at_ps);
    }

    pub fn key(&mut self, node: usize, pd: u32, space: Space, start: u64, len: u64, access: Access) -> u32 {
        self.nics[node].create_mkey(MkeyAttr { pd, space, start, len, access, offset: 0 }).expect("memory key")
    }

    /// Memory with a key that allows everything.
    pub fn buffer(&mut self, node: usize, pd: u32, space: Space, len: usize) -> (u64, u32) {
        let addr = self.mem[node].alloc(space, len.max(1));
        (addr, self.key(node, pd, space, addr, len.max(1) as u64, Access::all()))
    }

    pub fn cq_with(&mut self, node: usize, space: Space, log: u8, change: impl FnOnce(&mut CqAttr)) -> Cq {
        let ring = self.mem[node].alloc(space, 64 << log);
        let dbr = self.mem[node].alloc(space, 8);
        for i in 0..1_u64 << log {
            self.mem[node].set(space, ring + i * 64 + 63, &[0xF1]);
        }
        let at = |addr| QueueMemory { space, addr };
        let mut attr = CqAttr {
            ring: at(ring),
            log_depth: log,
            doorbell_record: at(dbr),
            target: CqTarget::Channel(9),
            overrun_ignore: false,
            always_armed: false,
            armed_at_creation: false,
            uar: 1,
        };
        change(&mut attr);
        let cqn = self.nics[node].create_cq(attr).expect("completion queue");
        Cq { node, cqn, space, ring, dbr, log, ci: 0 }
    }

    pub fn cq(&mut self, node: usize, space: Space, log: u8) -> Cq {
        self.cq_with(node, space, log, |_| {})
    }

    pub fn qp(&mut self, node: usize, pd: u32, scq: &Cq, rcq: &Cq, setup: &Setup) -> Qp {
        let space = setup.space;
        let sq = self.mem[node].alloc(space, 64 << setup.log_sq);
        let rq = self.mem[node].alloc(space, 1 << (setup.log_rq + setup.log_stride));
        let dbr = self.mem[node].alloc(space, 8);
        let at = |addr| QueueMemory { space, addr };
        let qpn = self.nics[node]
            .create_qp(QpAttr {
                transport: setup.transport,
                pd,
                send_cq: scq.cqn,
                recv_cq: rcq.cqn,
                rq: at(rq),
                log_rq_depth: setup.log_rq,
                log_rq_stride: setup.log_stride,
                sq: at(sq),
                log_sq_depth: setup.log_sq,
                no_sq: false,
                no_rq: false,
                srq: None,
                doorbell_record: at(dbr),
                user_index: 0xABC + node as u32,
                uar: 1,
            })
            .expect("queue pair");
        Qp {
            node,
            qpn,
            space,
            transport: setup.transport,
            sq,
            rq,
            dbr,
            log_sq: setup.log_sq,
            log_rq: setup.log_rq,
            log_stride: setup.log_stride,
            sq_pi: 0,
            rq_pi: 0,
            pd,
        }
    }

    pub fn end(&mut self, node: usize, setup: &Setup) -> End {
        let pd = self.nics[node].alloc_pd().expect("protection domain");
        let scq = self.cq(node, setup.space, setup.log_cq);
        let rcq = self.cq(node, setup.space, setup.log_cq);
        let qp = self.qp(node, pd, &scq, &rcq, setup);
        End { qp, scq, rcq }
    }

    pub fn modify(&mut self, node: usize, qpn: u32, modify: &QpModify) -> Result<(), NicError> {
        let mut fx = Effects::default();
        let result = self.nics[node].modify_qp(self.now_ps, qpn, modify, &mut fx);
        self.effects(node, fx);
        result
    }

    /// Brings a queue pair to RTS, towards `(node, qpn)`.
    pub fn connect(&mut self, qp: &Qp, peer: (usize, u32), extra: &QpModify) {
        let base = QpModify {
            access: Some(extra.access.unwrap_or(Access::all())),
            qkey: Some(extra.qkey.unwrap_or(0x1111)),
            path_mtu: Some(extra.path_mtu.unwrap_or(Mtu::B1024)),
            dest_qpn: Some(peer.1),
            rq_psn: Some(0xFF_FFF0),
            sq_psn: Some(0xFF_FFF0),
            rgid: Some(GIDS[peer.0]),
            dmac: Some(MACS[peer.0]),
            max_rd_atomic: Some(extra.max_rd_atomic.unwrap_or(4)),
            timeout: Some(extra.timeout.unwrap_or(3)),
            ..*extra
        };
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            self.modify(qp.node, qp.qpn, &QpModify { next_state: Some(state), ..base }).expect("transition");
        }
    }

    /// A connected pair, node 0 and node 1.
    pub fn pair(&mut self, setup: &Setup) -> (End, End) {
        let (a, b) = (self.end(0, setup), self.end(1, setup));
        self.connect(&a.qp, (1, b.qp.qpn), &setup.modify);
        self.connect(&b.qp, (0, a.qp.qpn), &setup.modify);
        (a, b)
    }

    /// Writes a WQE into the ring, without ringing.
    pub fn put(&mut self, qp: &mut Qp, wqe: &Wqe) {
        let bytes = wqe.bytes(qp, qp.sq_pi);
        let size = 64_u64 << qp.log_sq;
        for (i, segment) in bytes.chunks(16).enumerate() {
            let offset = (u64::from(qp.sq_pi) * 64 + i as u64 * 16) % size;
            self.mem[qp.node].set(qp.space, qp.sq + offset, segment);
        }
        qp.sq_pi = qp.sq_pi.wrapping_add(bytes.len().div_ceil(64) as u16);
    }

    pub fn ring(&mut self, qp: &Qp) {
        let (qpn, pi) = (qp.qpn, qp.sq_pi);
        self.act(qp.node, |nic, _, now, fx| nic.ring_sq(now, qpn, pi, fx));
    }

    /// Posts an entry that comes with its doorbell.
    pub fn post_pushed(&mut self, qp: &mut Qp, wqe: &Wqe) {
        self.put(qp, wqe);
        let (qpn, pi) = (qp.qpn, qp.sq_pi);
        self.act(qp.node, |nic, _, now, fx| nic.push_sq(now, qpn, pi, fx));
    }

    pub fn post(&mut self, qp: &mut Qp, wqe: &Wqe) {
        self.put(qp, wqe);
        self.ring(qp);
    }

    pub fn receive(&mut self, qp: &mut Qp, segments: &[(u64, u32, u32)]) {
        let stride = 1_u64 << qp.log_stride;
        let mut at = qp.rq + (u64::from(qp.rq_pi) % (1 << qp.log_rq)) * stride;
        let end = at + stride;
        for &(addr, len, lkey) in segments {
            self.mem[qp.node].set(qp.space, at, &data_segment(addr, len, lkey));
            at += 16;
        }
        if at < end {
            self.mem[qp.node].set(qp.space, at, &data_segment(0, 0, 0x100));
        }
        qp.rq_pi = qp.rq_pi.wrapping_add(1);
        self.mem[qp.node].set(qp.space, qp.dbr, &u32::from(qp.rq_pi).to_be_bytes());
    }

    /// Takes the next CQE as software does: by its owner bit.
    pub fn poll(&mut self, cq: &mut Cq) -> Option<Cqe> {
        let slot = u64::from(cq.ci) % (1 << cq.log);
        let bytes = self.mem[cq.node].get(cq.space, cq.ring + slot * 64, 64);
        let lap = (cq.ci >> cq.log) & 1;
        if u32::from(bytes[63] & 1) != lap || bytes[63] >> 4 == 0xF {
            return None;
        }
        cq.ci += 1;
        self.mem[cq.node].set(cq.space, cq.dbr, &(cq.ci & 0xFF_FFFF).to_be_bytes());
        let be32 = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("word"));
        let error = bytes[63] >> 4 >= 13;
        Some(Cqe {
            opcode: bytes[63] >> 4,
            qpn: be32(0x38) & 0xFF_FFFF,
            counter: u16::from_be_bytes([bytes[0x3C], bytes[0x3D]]),
            byte_count: be32(0x2C),
            immediate: bytes[0x24..0x28].try_into().expect("word"),
            syndrome: if error { bytes[0x37] } else { 0 },
            vendor: if error { bytes[0x36] } else { 0 },
            send_opcode: bytes[0x38],
            source_qpn: be32(0x18) & 0xFF_FFFF,
            user_index: be32(0x20),
            solicited: bytes[63] & 2 != 0,
            grh: bytes[0x18] >> 4 & 3,
        })
    }

    pub fn poll_all(&mut self, cq: &mut Cq) -> Vec<Cqe> {
        std::iter::from_fn(|| self.poll(cq)).collect()
    }

    pub fn arm(&mut self, cq: &Cq) {
        let (cqn, ci) = (cq.cqn, cq.ci & 0xFF_FFFF);
        self.act(cq.node, |nic, _, now, fx| nic.arm_cq(now, cqn, ci, fx));
    }

    pub fn state(&self, qp: &Qp) -> QpState {
        self.nics[qp.node].query_qp(qp.qpn).expect("queue pair").state
    }
}

pub fn data_segment(addr: u64, len: u32, lkey: u32) -> [u8; 16] {
    let mut segment = [0; 16];
    segment[0..4].copy_from_slice(&len.to_be_bytes());
    segment[4..8].copy_from_slice(&lkey.to_be_bytes());
    segment[8..16].copy_from_slice(&addr.to_be_bytes());
    segment
}

/// A send WQE in the making.
#[derive(Clone)]
pub struct Wqe {
    pub opcode: u8,
    pub flags: u8,
    pub immediate: [u8; 4],
    pub remote: Option<(u64, u32)>,
    pub av: Option<Av>,
    /// Segments between the remote address and the data.
    pub extra: Vec<u8>,
    pub data: Vec<(u64, u32, u32)>,
    pub inline: Option<Vec<u8>>,
    pub index: Option<u16>,
}

#[derive(Clone, Copy)]
pub struct Av {
    pub qkey: u32,
    pub qpn: u32,
    pub node: usize,
    pub fl: bool,
    pub extended: bool,
    /// A group instead of the node.
    pub group: Option<Gid>,
    pub traffic_class: u8,
    pub hop_limit: u8,
    pub static_rate: u8,
}

impl Av {
    pub fn to(node: usize, qpn: u32) -> Self {
        Self {
            qkey: 0x1111,
            qpn,
            node,
            fl: false,
            extended: true,
            group: None,
            traffic_class: 0,
            hop_limit: 64,
            static_rate: 0,
        }
    }

    pub fn group(gid: Gid) -> Self {
        Self { group: Some(gid), ..Self::to(0, MULTICAST_QPN) }
    }
}

pub const SIGNALLED: u8 = 0x08;

impl Wqe {
    pub fn new(opcode: u8) -> Self {
        Self {
            opcode,
            flags: SIGNALLED,
            immediate: [0; 4],
            remote: None,
            av: None,
            extra: Vec::new(),
            data: Vec::new(),
            inline: None,
            index: None,
        }
    }
    pub fn data(mut self, addr: u64, len: usize, lkey: u32) -> Self {
        self.data.push((addr, len as u32, lkey));
        self
    }
    pub fn remote(mut self, addr: u64, rkey: u32) -> Self {
        self.remote = Some((addr, rkey));
        self
    }
    pub fn to(mut self, av: Av) -> Self {
        self.av = Some(av);
        self
    }
    pub fn immediate(mut self, immediate: [u8; 4]) -> Self {
        self.immediate = immediate;
        self
    }
    pub fn inline(mut self, bytes: &[u8]) -> Self {
        self.inline = Some(bytes.to_vec());
        self
    }
    pub fn operands(mut self, swap_or_add: u64, compare: u64) -> Self {
        self.extra.extend(swap_or_add.to_be_bytes());
        self.extra.extend(compare.to_be_bytes());
        self
    }
    pub fn flags(mut self, flags: u8) -> Self {
        self.flags = flags;
        self
    }
    /// The key that a SEND_INVAL, LOCAL_INVAL or UMR is about.
    pub fn key(self, key: u32) -> Self {
        self.immediate(key.to_be_bytes())
    }
    /// UMR segments that set range, rights (bits of the key context) and list, and leave the key in use.
    pub fn bind(mut self, start: u64, len: u64, rights: u8, entries: &[(u32, u32, u64)]) -> Self {
        let padded = entries.len().next_multiple_of(4);
        let mask = 1_u64 << 0 | 1 << 6 | 1 << 18 | 1 << 19 | 1 << 20 | 1 << 21 | 1 << 29;
        self.extra.extend([0x80 | 0x10, 0, 0, 0]);
        self.extra.extend((padded as u16).to_be_bytes());
        self.extra.extend([0; 2]);
        self.extra.extend(mask.to_be_bytes());
        self.extra.extend([0; 32]);
        let mut context = [0; 64];
        context[2] = rights;
        context[4..8].copy_from_slice(&0xFFFF_FF00_u32.to_be_bytes());
        context[16..24].copy_from_slice(&start.to_be_bytes());
        context[24..32].copy_from_slice(&len.to_be_bytes());
        self.extra.extend(context);
        for (len, key, addr) in entries {
            self.extra.extend(data_segment(*addr, *len, *key));
        }
        self.extra.resize(self.extra.len() + (padded - entries.len()) * 16, 0);
        self
    }
    pub fn unsignalled(mut self) -> Self {
        self.flags = 0;
        self
    }

    pub fn bytes(&self, qp: &Qp, index: u16) -> Vec<u8> {
        let mut bytes = vec![0; 16];
        if let Some((addr, rkey)) = self.remote {
            bytes.extend(addr.to_be_bytes());
            bytes.extend(rkey.to_be_bytes());
            bytes.extend([0; 4]);
        }
        if let Some(av) = self.av {
            bytes.extend(av.qkey.to_be_bytes());
            bytes.extend([0; 4]);
            bytes.extend((u32::from(av.extended) << 31 | av.qpn).to_be_bytes());
            bytes.extend([av.static_rate << 4, u8::from(av.fl) << 7, 0xC0, 0]);
            if av.extended {
                bytes.extend([0; 4]);
                bytes.extend(av.group.map_or(MACS[av.node], |gid| [0x33, 0x33, 0, 0, 0, gid.0[15]]));
                bytes.extend([av.traffic_class, av.hop_limit]);
                bytes.extend((1_u32 << 30).to_be_bytes());
                bytes.extend(av.group.unwrap_or(GIDS[av.node]).0);
            }
        }
        bytes.extend(&self.extra);
        if let Some(inline) = &self.inline {
            bytes.extend((1 << 31 | inline.len() as u32).to_be_bytes());
            bytes.extend(inline);
            bytes.resize(bytes.len().next_multiple_of(16), 0);
        }
        for &(addr, len, lkey) in &self.data {
            bytes.extend(data_segment(addr, len, lkey));
        }
        let ds = (bytes.len() / 16) as u32;
        let index = self.index.unwrap_or(index);
        bytes[0..4].copy_from_slice(&(u32::from(index) << 8 | u32::from(self.opcode)).to_be_bytes());
        bytes[4..8].copy_from_slice(&(qp.qpn << 8 | ds).to_be_bytes());
        bytes[11] = self.flags;
        bytes[12..16].copy_from_slice(&self.immediate);
        bytes
    }
}

/// Bytes that differ from their neighbours and from other patterns.
pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8).wrapping_add(seed)).collect()
}
