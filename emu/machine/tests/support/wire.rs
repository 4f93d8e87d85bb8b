//! Queue pairs in host memory, driven without a driver.

use emu_machine::nic::{
    Access, Address, CqAttr, CqTarget, Gid, MULTICAST_QPN, MkeyAttr, Mtu, QpAttr, QpModify, QpState, QueueMemory,
    Space, Transport,
};
use emu_machine::{World, address};

const LOG_RING: u8 = 8;
const LOG_CQ: u8 = 10;
const QKEY: u32 = 0x1111;
/// Bytes of a receive.
pub const SLOT: u64 = 4096 + 40;
/// Where what is sent lies in an endpoint's memory; receives come before.
pub const SOURCE: u64 = SLOT * 256;
const BUFFER: u64 = SOURCE + (1 << 20);

/// WQE opcodes.
const WRITE: u8 = 0x08;
const WRITE_IMM: u8 = 0x09;
const SEND: u8 = 0x0A;

struct Cq {
    cqn: u32,
    ring: u64,
    consumed: u32,
}

/// A queue pair with its completion queues and a buffer of 256 receives and 1 MiB to send.
pub struct Endpoint {
    pub card: usize,
    pub qpn: u32,
    pub buffer: u64,
    pub key: u32,
    /// Traffic class of what it sends; a connected queue pair takes it when it is connected.
    pub class: u8,
    transport: Transport,
    sq: u64,
    rq: u64,
    records: u64,
    posted: u16,
    receives: u16,
    cqs: [Cq; 2],
}

/// A completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// 13 and above are errors.
    pub opcode: u8,
    pub bytes: u32,
    pub immediate: u32,
}

/// Where a datagram goes.
#[derive(Clone, Copy)]
pub enum To {
    Peer(usize, u32),
    Group(Gid),
}

fn host(addr: u64) -> QueueMemory {
    QueueMemory { space: Space::Host, addr }
}

fn allocate(world: &mut World, bytes: u64) -> u64 {
    world.host.allocate(bytes.div_ceil(64) as usize)
}

pub fn read(world: &World, addr: u64, bytes: usize) -> Vec<u8> {
    let mut out = vec![0; bytes];
    world.host.read(addr, &mut out).expect("memory of the machine's own");
    out
}

impl Endpoint {
    pub fn new(world: &mut World, card: usize, transport: Transport) -> Self {
        let pd = world.card(card).unwrap().nic.alloc_pd().unwrap();
        let cqs = [(); 2].map(|()| {
            let (ring, record) = (allocate(world, 64 << LOG_CQ), allocate(world, 64));
            for entry in 0..1_u64 << LOG_CQ {
                world.host.write(ring + 64 * entry + 63, &[0xF1]).unwrap();
            }
            let attr = CqAttr {
                ring: host(ring),
                log_depth: LOG_CQ,
                doorbell_record: host(record),
                target: CqTarget::None,
                overrun_ignore: true,
                always_armed: false,
                armed_at_creation: false,
                uar: 1,
            };
            Cq { cqn: world.card(card).unwrap().nic.create_cq(attr).unwrap(), ring, consumed: 0 }
        });
        let (sq, rq, records) = (allocate(world, 64 << LOG_RING), allocate(world, 64 << LOG_RING), allocate(world, 64));
        let attr = QpAttr {
            transport,
            pd,
            send_cq: cqs[0].cqn,
            recv_cq: cqs[1].cqn,
            rq: host(rq),
            log_rq_depth: LOG_RING,
            log_rq_stride: 6,
            sq: host(sq),
            log_sq_depth: LOG_RING,
            no_sq: false,
            no_rq: false,
            srq: None,
            doorbell_record: host(records),
            user_index: 0,
            uar: 1,
        };
        let buffer = allocate(world, BUFFER);
        let nic = &mut world.card(card).unwrap().nic;
        let qpn = nic.create_qp(attr).unwrap();
        let key = MkeyAttr { pd, space: Space::Host, start: buffer, len: BUFFER, access: Access::all(), offset: 0 };
        let key = nic.create_mkey(key).unwrap();
        Self { card, qpn, buffer, key, class: 0, transport, sq, rq, records, posted: 0, receives: 0, cqs }
    }

    /// To RTS, towards a peer; a datagram queue pair needs none.
    pub fn connect(&self, world: &mut World, first_card: usize, peer: (usize, u32)) {
        let Address { mac, gid } = address(first_card + peer.0);
        let base = QpModify {
            access: Some(Access::all()),
            qkey: Some(QKEY),
            path_mtu: Some(Mtu::B1024),
            dest_qpn: Some(peer.1),
            rq_psn: Some(0),
            sq_psn: Some(0),
            rgid: Some(gid),
            dmac: Some(mac),
            traffic_class: Some(self.class),
            max_rd_atomic: Some(4),
            // 67 us.
            timeout: Some(4),
            retry_cnt: Some(7),
            rnr_retry: Some(7),
            min_rnr_timer: Some(1),
            ..QpModify::default()
        };
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let (now_ps, modify) = (world.now_ps(), QpModify { next_state: Some(state), ..base });
            world.nic_call(self.card, |nic, fx| nic.modify_qp(now_ps, self.qpn, &modify, fx)).unwrap().unwrap();
        }
    }

    /// Posts so many receives of 4 KiB and a routing header.
    pub fn receive(&mut self, world: &World, count: u16) {
        for _ in 0..count {
            let slot = u64::from(self.receives % 256);
            let mut entry = segment(self.buffer + slot * SLOT, SLOT as u32, self.key).to_vec();
            entry.extend(segment(0, 0, 0x100));
            world.host.write(self.rq + 64 * slot, &entry).unwrap();
            self.receives = self.receives.wrapping_add(1);
        }
        world.host.write(self.records, &u32::from(self.receives).to_be_bytes()).unwrap();
    }

    /// The bytes of a receive, from behind the routing header of a datagram.
    pub fn received(&self, world: &World, slot: u64, bytes: usize) -> Vec<u8> {
        let header = if self.transport == Transport::Ud { 40 } else { 0 };
        read(world, self.buffer + slot * SLOT + header, bytes)
    }

    /// Puts bytes where they are sent from.
    pub fn source(&self, world: &World, offset: u64, bytes: &[u8]) {
        world.host.write(self.buffer + SOURCE + offset, bytes).unwrap();
    }

    fn post(&mut self, world: &mut World, opcode: u8, immediate: u32, middle: &[u8], (offset, len): (u64, u32)) {
        let mut entry = vec![0; 16];
        entry.extend_from_slice(middle);
        entry.extend(segment(self.buffer + SOURCE + offset, len, self.key));
        let (index, segments) = (self.posted, entry.len() as u32 / 16);
        entry[0..4].copy_from_slice(&(u32::from(index) << 8 | u32::from(opcode)).to_be_bytes());
        entry[4..8].copy_from_slice(&(self.qpn << 8 | segments).to_be_bytes());
        // Signalled.
        entry[11] = 8;
        entry[12..16].copy_from_slice(&immediate.to_be_bytes());
        for (block, bytes) in entry.chunks(64).enumerate() {
            let at = u64::from(self.posted.wrapping_add(block as u16) % (1 << LOG_RING));
            world.host.write(self.sq + 64 * at, bytes).unwrap();
        }
        self.posted = self.posted.wrapping_add(entry.len().div_ceil(64) as u16);
        world.ring_sq(self.card, self.qpn, self.posted).unwrap();
    }

    /// A Send, or a datagram.
    pub fn send(&mut self, world: &mut World, first_card: usize, to: Option<To>, part: (u64, u32)) {
        let mut vector = Vec::new();
        if let Some(to) = to {
            let (mac, gid, qpn) = match to {
                To::Peer(card, qpn) => {
                    let Address { mac, gid } = address(first_card + card);
                    (mac, gid, qpn)
                }
                To::Group(gid) => ([0x33, 0x33, 0, 0, 0, gid.0[15]], gid, MULTICAST_QPN),
            };
            vector.extend(QKEY.to_be_bytes());
            vector.extend([0; 4]);
            vector.extend((1_u32 << 31 | qpn).to_be_bytes());
            vector.extend([0, 0, 0xC0, 0, 0, 0, 0, 0]);
            vector.extend(mac);
            vector.extend([self.class, 64]);
            vector.extend((1_u32 << 30).to_be_bytes());
            vector.extend(gid.0);
        }
        self.post(world, SEND, 0, &vector, part);
    }

    /// An RDMA Write to the peer's receive area, from `offset` of the source on; with an immediate if one is given.
    pub fn write(&mut self, world: &mut World, peer: (u64, u32), immediate: Option<u32>, part: (u64, u32)) {
        let mut remote = peer.0.to_be_bytes().to_vec();
        remote.extend(peer.1.to_be_bytes());
        remote.extend([0; 4]);
        self.post(world, if immediate.is_some() { WRITE_IMM } else { WRITE }, immediate.unwrap_or(0), &remote, part);
    }

    fn poll(&mut self, world: &World, which: usize) -> Option<Done> {
        let cq = &mut self.cqs[which];
        let entry = read(world, cq.ring + u64::from(cq.consumed % (1 << LOG_CQ)) * 64, 64);
        if u32::from(entry[63] & 1) != cq.consumed >> LOG_CQ & 1 || entry[63] >> 4 == 0xF {
            return None;
        }
        cq.consumed += 1;
        let word = |at: usize| u32::from_be_bytes(entry[at..at + 4].try_into().unwrap());
        Some(Done { opcode: entry[63] >> 4, bytes: word(0x2C), immediate: word(0x24) })
    }

    /// Completions of sends since the last call.
    pub fn sent(&mut self, world: &World) -> Vec<Done> {
        std::iter::from_fn(|| self.poll(world, 0)).collect()
    }

    /// Completions of receives since the last call.
    pub fn arrived(&mut self, world: &World) -> Vec<Done> {
        std::iter::from_fn(|| self.poll(world, 1)).collect()
    }

    /// Where a peer may write.
    pub fn target(&self) -> (u64, u32) {
        (self.buffer, self.key)
    }
}

fn segment(addr: u64, len: u32, lkey: u32) -> [u8; 16] {
    let mut segment = [0; 16];
    segment[0..4].copy_from_slice(&len.to_be_bytes());
    segment[4..8].copy_from_slice(&lkey.to_be_bytes());
    segment[8..16].copy_from_slice(&addr.to_be_bytes());
    segment
}

/// Two connected queue pairs on cards 0 and 1.
pub fn pair(world: &mut World, transport: Transport) -> (Endpoint, Endpoint) {
    let ends = [0, 1].map(|card| Endpoint::new(world, card, transport));
    let first = world.config().first_card;
    ends[0].connect(world, first, (1, ends[1].qpn));
    ends[1].connect(world, first, (0, ends[0].qpn));
    let [a, b] = ends;
    (a, b)
}

/// Lets everything happen that is due.
pub fn rest(world: &mut World) {
    world.run_until(10 * emu_machine::time::PS_PER_S, |_| false);
}

pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8).wrapping_add(seed)).collect()
}
