//! The card: its objects, its commands, and where its inputs go.

mod flows;
mod groups;
mod keys;
mod port;
mod queues;
pub(crate) mod users;

use crate::address::{Address, GidEntry, MULTICAST_QPN};
use crate::counters::Counters;
use crate::cx::Cx;
use crate::effects::{AsyncEvent, Effects, FailureCause, Timer, Work};
use crate::engine::completions::Completions;
use crate::engine::datapath::Datapath;
use crate::engine::ingress::ReceiveEngine;
use crate::engine::pcie::Pcie;
use crate::engine::port::Port;
use crate::engine::requester::Requester;
use crate::engine::responder::Responder;
use crate::ethernet;
use crate::groups::Groups;
use crate::identity::{Identity, same_partition};
use crate::keys::Keys;
use crate::log::Log;
use crate::memory::Dma;
use crate::mix::mix;
use crate::note::Note;
use crate::packet::{Operation, Packet};
use crate::qp::{Mtu, QpState};
use crate::queue_pair::QueuePair;
use crate::steering::{FlowAction, FlowDirection, Steering};
use crate::table::Table;
use crate::timing::NicTiming;
use crate::transport::Transport;

/// Longest entry that can come with its doorbell: half of a BlueFlame register of 512 bytes, as mlx5's provider uses
/// it.
pub const PUSHED_BYTES: usize = 256;

/// What a card is like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicConfig {
    /// Ethernet address of the port.
    pub mac: [u8; 6],
    /// Identifiers of the port; index 0 is the default one. At least one is needed to be reached.
    pub gids: Vec<GidEntry>,
    /// Largest path MTU, and the largest UD message.
    pub port_mtu: Mtu,
    /// Service times.
    pub timing: NicTiming,
    /// Decides where queue numbers start and which tag a memory key gets, so that two cards do not number alike.
    pub seed: u64,
}

/// An emulated card with one port.
#[derive(Debug)]
pub struct Nic {
    config: NicConfig,
    qps: Table<QueuePair>,
    ingress: ReceiveEngine,
    requester: Requester,
    responder: Responder,
    /// What both engines work with.
    datapath: Datapath,
    log: Log,
}

impl Nic {
    /// A card.
    #[must_use]
    pub fn new(config: NicConfig) -> Self {
        let mixed = mix(config.seed);
        // Far enough from 0 that a number taken for an index, or the reverse, hits nothing.
        let first_cqn = 0x400 + (mixed & 0x3FF) as u32;
        let first_qpn = 0x1000 + (mixed >> 16 & 0xFFF) as u32;
        let first_srqn = 0x800 + (mixed >> 10 & 0x3F) as u32;
        let first_vhca = ((mixed >> 40) as u16 & 0xFF) << 8;
        let timing = config.timing;
        let identity = Identity::new(config.mac, config.gids.clone());
        Self {
            qps: Table::new(first_qpn),
            ingress: ReceiveEngine::new(&timing),
            requester: Requester::new(config.port_mtu),
            responder: Responder::default(),
            datapath: Datapath {
                keys: Keys::new((mixed >> 32) as u8, first_vhca),
                groups: Groups::default(),
                steering: Steering::default(),
                port: Port::new(identity, timing, config.port_mtu),
                pcie: Pcie::new(timing),
                completions: Completions::new(first_cqn, timing.completion_latency_ps),
                shared: Table::new(first_srqn),
                state_changes: 0,
            },
            log: Log::default(),
            config,
        }
    }

    /// How it was made.
    #[must_use]
    pub fn config(&self) -> &NicConfig {
        &self.config
    }

    /// Address of the port, with its default identifier.
    #[must_use]
    pub fn address(&self) -> Address {
        self.datapath.port.identity.address()
    }

    /// What it has counted.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.log.counters
    }

    /// Starts or stops taking notes; see [`Nic::take_notes`].
    pub fn observe(&mut self, on: bool) {
        self.log.observe(on);
    }

    /// What happened since the last call, each with its time in picoseconds; times of packets that leave may lie ahead.
    /// Empty unless [`Nic::observe`] was asked for. The caller takes them after each call, as it does with effects.
    pub fn take_notes(&mut self) -> impl Iterator<Item = (u64, Note)> {
        self.log.take_notes()
    }
}

/// Data plane: doorbells, packets and timers.
impl Nic {
    /// Software rings a send doorbell: WQE blocks before `producer_index` (modulo 2^16) are posted.
    ///
    /// The card acts `doorbell_visible_ps` later; the caller adds no latency of its own for that.
    pub fn ring_sq(&mut self, now_ps: u64, qpn: u32, producer_index: u16, fx: &mut Effects) {
        self.ring(now_ps, qpn, producer_index, false, fx);
    }

    /// Like [`ring_sq`](Self::ring_sq), but software has written the last entry before `producer_index` with the
    /// doorbell (BlueFlame): the card need not fetch it. It lies in the ring, too, and is at most [`PUSHED_BYTES`]
    /// long.
    pub fn push_sq(&mut self, now_ps: u64, qpn: u32, producer_index: u16, fx: &mut Effects) {
        self.ring(now_ps, qpn, producer_index, true, fx);
    }

    fn ring(&mut self, now_ps: u64, qpn: u32, producer_index: u16, pushed: bool, fx: &mut Effects) {
        self.log.note(now_ps, || Note::Doorbell { qpn, producer_index });
        let Some(qp) = self.qps.get(qpn) else {
            self.log.counters.bad_doorbells += 1;
            fx.async_events.push(AsyncEvent::UnknownQueue { number: qpn });
            return;
        };
        let doorbell = Work::Doorbell { qpn, producer_index, pushed, life: qp.life };
        fx.timer(now_ps + self.config.timing.doorbell_visible_ps, doorbell);
    }

    /// Software has consumed CQEs before `consumer_index` (24 bits) and wants one event for the next CQE; if that is in
    /// the ring already, the event is due at once. Acts `doorbell_visible_ps` later.
    pub fn arm_cq(&mut self, now_ps: u64, cqn: u32, consumer_index: u32, fx: &mut Effects) {
        self.arm(now_ps, cqn, consumer_index, false, fx);
    }

    /// Like [`arm_cq`](Self::arm_cq), but only a CQE with the solicited bit or an error counts, among those that are in
    /// the ring already as well, as long as the queue is not armed for every CQE.
    pub fn arm_cq_solicited(&mut self, now_ps: u64, cqn: u32, consumer_index: u32, fx: &mut Effects) {
        self.arm(now_ps, cqn, consumer_index, true, fx);
    }

    fn arm(&mut self, now_ps: u64, cqn: u32, consumer_index: u32, solicited_only: bool, fx: &mut Effects) {
        self.log.note(now_ps, || Note::Arm { cqn, consumer_index });
        if self.datapath.completions.queues.get(cqn).is_none() {
            self.log.counters.bad_doorbells += 1;
            fx.async_events.push(AsyncEvent::UnknownQueue { number: cqn });
            return;
        }
        let at_ps = now_ps + self.config.timing.doorbell_visible_ps;
        fx.timer(at_ps, Work::Arm { cqn, consumer_index, solicited_only });
    }

    /// A timer from [`Effects::timers`] is due.
    pub fn handle_timer(&mut self, now_ps: u64, timer: Timer, mem: &mut dyn Dma, fx: &mut Effects) {
        let Self { qps, requester, datapath, log, .. } = self;
        let cx = &mut Cx { now_ps, mem, fx, log };
        match timer.0 {
            Work::Doorbell { qpn, producer_index, pushed, life } => {
                let Some(qp) = qps.get_mut(qpn) else { return };
                if qp.life == life {
                    qp.sq.pushed = pushed.then_some(producer_index);
                    requester.doorbell(datapath, qp, producer_index, cx);
                } else {
                    cx.log.counters.ignored_doorbells += 1;
                }
            }
            Work::Arm { cqn, consumer_index, solicited_only } => {
                datapath.completions.arm(cqn, consumer_index, solicited_only, cx);
            }
            Work::Send { engine } => self.send(now_ps, usize::from(engine), mem, fx),
            Work::Paced { qpn } => {
                if let Some(qp) = qps.get_mut(qpn) {
                    datapath.port.unpark(now_ps, qp, fx);
                }
            }
            Work::Receive => {
                if let Some(packet) = self.ingress.next() {
                    self.receive(now_ps, &packet, mem, fx);
                    self.ingress.go_on(fx);
                }
            }
            Work::Loopback { slot } => {
                if let Some(packet) = datapath.port.turned_round(slot) {
                    cx.log.note(now_ps, || Note::Arrived { packet: (&packet).into(), loopback: true });
                    self.route(now_ps, &packet, mem, fx);
                    fx.recycle(packet.payload);
                }
            }
            Work::Cqe { slot } => self.write_cqe(now_ps, slot, mem, fx),
            Work::Retransmit { qpn } => {
                if let Some(qp) = qps.get_mut(qpn) {
                    Requester::retransmit_timer(datapath, qp, cx);
                }
            }
            Work::ReceiverReady { qpn, epoch } => {
                if let Some(qp) = qps.get_mut(qpn) {
                    Requester::receiver_ready(datapath, qp, epoch, cx);
                }
            }
            Work::Period { cqn, first } => datapath.completions.period_over(cqn, first, cx),
            Work::Limit { srqn } => datapath.check_limit(srqn, cx),
            Work::Flush { qpn } => {
                if let Some(qp) = qps.get_mut(qpn).filter(|qp| qp.state == QpState::Err) {
                    datapath.flush(qp, cx);
                }
            }
        }
    }

    /// The last bit of a packet has arrived at the port.
    pub fn handle_packet(&mut self, now_ps: u64, packet: Packet, mem: &mut dyn Dma, fx: &mut Effects) {
        let Self { datapath, log, ingress, .. } = self;
        log.note(now_ps, || Note::Arrived { packet: (&packet).into(), loopback: false });
        let to = packet.destination;
        let before = log.before();
        if packet.transport == Transport::Ethernet {
            // Steering decides, whoever it is addressed to.
        } else if to.is_multicast() {
            if !datapath.groups.has_joined(&to.gid) {
                log.counters.multicast_drops += 1;
                log.note_drop(before, now_ps, &packet);
                return;
            }
        } else if !datapath.port.identity.is_own(&to) {
            log.counters.address_drops += 1;
            log.note_drop(before, now_ps, &packet);
            return;
        }
        if packet.damage.is_some() {
            log.counters.icrc_drops += 1;
            return;
        }
        if ingress.is_idle(now_ps) {
            self.receive(now_ps, &packet, mem, fx);
        } else {
            ingress.keep(packet, &mut Cx { now_ps, mem, fx, log });
        }
    }

    /// The receive engine serves a packet from the port.
    fn receive(&mut self, now_ps: u64, packet: &Packet, mem: &mut dyn Dma, fx: &mut Effects) {
        self.log.counters.rx_packets += 1;
        self.log.counters.rx_bytes += packet.frame_bytes();
        let copies = self.route(now_ps, packet, mem, fx);
        self.ingress.served(copies, &self.datapath.pcie, now_ps);
    }

    /// Gives a packet to whom it is for: one queue pair, or each member of a group. Says how many that were.
    fn route(&mut self, now_ps: u64, packet: &Packet, mem: &mut dyn Dma, fx: &mut Effects) -> u64 {
        if packet.transport == Transport::Ethernet {
            let before = self.log.before();
            let fields = ethernet::parse(&packet.payload).fields;
            match self.datapath.steering.decide(FlowDirection::Receive, &fields) {
                Some(FlowAction::Queue(queue)) => self.deliver(now_ps, queue, packet, mem, fx),
                _ => {
                    self.log.counters.steering_drops += 1;
                    self.log.note_drop(before, now_ps, packet);
                }
            }
            return 1;
        }
        if !packet.destination.is_multicast() {
            self.deliver(now_ps, packet.destination_qpn, packet, mem, fx);
            return 1;
        }
        if packet.destination_qpn != MULTICAST_QPN {
            let before = self.log.before();
            self.log.counters.qp_drops += 1;
            self.log.note_drop(before, now_ps, packet);
            return 1;
        }
        let members = self.datapath.groups.members(&packet.destination.gid);
        self.log.counters.multicast_copies += members.len() as u64;
        for &qpn in &members {
            self.deliver(now_ps, qpn, packet, mem, fx);
        }
        members.len() as u64
    }

    fn deliver(&mut self, now_ps: u64, qpn: u32, packet: &Packet, mem: &mut dyn Dma, fx: &mut Effects) {
        let Self { qps, requester, responder, datapath, log, .. } = self;
        let before = log.before();
        let counters = &mut log.counters;
        let receives = |qp: &&mut QueuePair| {
            qp.attr.transport == packet.transport && matches!(qp.state, QpState::Rtr | QpState::Rts)
        };
        match qps.get_mut(qpn).filter(receives) {
            None => counters.qp_drops += 1,
            Some(qp) if !same_partition(packet.pkey, datapath.port.identity.pkey(qp)) => counters.pkey_drops += 1,
            Some(qp) => {
                let cx = &mut Cx { now_ps, mem, fx, log };
                match packet.operation {
                    Operation::ReadResponse | Operation::AtomicAcknowledge => {
                        requester.response(datapath, qp, packet, cx);
                    }
                    Operation::Acknowledge => Requester::acknowledged(datapath, qp, packet, cx),
                    _ => responder.respond(datapath, qp, packet, cx),
                }
            }
        }
        log.note_drop(before, now_ps, packet);
    }

    /// A send engine serves the next queue pair: one packet.
    fn send(&mut self, now_ps: u64, engine: usize, mem: &mut dyn Dma, fx: &mut Effects) {
        let Self { qps, requester, datapath, log, .. } = self;
        if !datapath.port.is_due(engine, now_ps) {
            return;
        }
        let cx = &mut Cx { now_ps, mem, fx, log };
        while let Some(turn) = datapath.port.turn(engine, cx) {
            let Some(qp) = qps.get_mut(turn.qpn) else { continue };
            // Answers go first: a peer waits for them.
            let mut ahead_ps = Responder::send_response(datapath, qp, cx);
            if ahead_ps.is_none() {
                ahead_ps = requester.send_request(datapath, qp, cx);
            }
            qp.sq.queued = ahead_ps.is_some();
            if let Some(until_ps) = qp.sq.paced_until_ps {
                cx.fx.timer(until_ps, Work::Paced { qpn: turn.qpn });
            }
            // One that had nothing to send took no time.
            if let Some(ahead_ps) = ahead_ps {
                let parked = qp.sq.paced_until_ps.is_some();
                datapath.port.end_turn(turn, qp, ahead_ps, parked, cx);
                break;
            }
        }
        datapath.port.start(now_ps, engine, fx);
    }

    /// A CQE reaches its ring. A completion queue that fails takes its queue pairs with it.
    fn write_cqe(&mut self, now_ps: u64, slot: u32, mem: &mut dyn Dma, fx: &mut Effects) {
        let Self { qps, datapath, log, .. } = self;
        let Some(mut pending) = datapath.completions.take(slot) else { return };
        let (qpn, life, cqn) = (pending.qpn, pending.life, pending.cqn);
        if qps.get(qpn).is_some_and(|qp| qp.life != life) {
            return;
        }
        let cx = &mut Cx { now_ps, mem, fx, log };
        let Err(cause) = datapath.completions.write(&mut pending, cx) else { return };
        cx.fx.async_events.push(AsyncEvent::CqError { cqn, cause });
        for qpn in qps.numbers(|qp| qp.attr.send_cq == cqn || qp.attr.recv_cq == cqn) {
            if let Some(qp) = qps.get_mut(qpn) {
                datapath.fail_qp(qp, FailureCause::CompletionQueue { cqn }, cx);
            }
        }
    }
}
