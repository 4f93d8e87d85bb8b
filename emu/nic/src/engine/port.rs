//! The port: its send engines, when its packets leave, and packets that turn round inside the card.

use std::collections::VecDeque;

use emu_fabric::{Arbiter, Frame as _, NetworkFrame as _, PRIORITIES, Priorities};

use crate::cx::Cx;
use crate::effects::{Effects, Work};
use crate::identity::Identity;
use crate::packet::{Extension, Operation, Packet, priority};
use crate::qp::Mtu;
use crate::queue_pair::QueuePair;
use crate::table::Slots;
use crate::timing::NicTiming;
use crate::transport::Transport;

/// The send engine of the port, and that of the loopback path.
const PORT: usize = 0;
const LOOPBACK: usize = 1;

/// A send engine: the queue pairs of the chosen priority take turns, one packet each.
#[derive(Debug)]
pub(crate) struct SendEngine {
    /// By queue of the arbiter.
    waiting: [VecDeque<u32>; PRIORITIES],
    arbiter: Arbiter,
    /// The engine works on a packet until then.
    busy_until_ps: u64,
    /// Earliest time at which the next packet of each priority may be prepared.
    ahead_until_ps: [u64; PRIORITIES],
    /// Time of the engine's next timer; timers of other times have become obsolete.
    timer_ps: Option<u64>,
    /// Priorities paused by flow control, one bit each.
    paused: u8,
}

impl SendEngine {
    fn new(priorities: Priorities, weights: [u32; PRIORITIES]) -> Self {
        Self {
            waiting: Default::default(),
            arbiter: Arbiter::new(priorities, weights),
            busy_until_ps: 0,
            ahead_until_ps: [0; PRIORITIES],
            timer_ps: None,
            paused: 0,
        }
    }

    /// The queue of a queue pair: that of its traffic class, of a datagram's sender that of the datagram it sends or
    /// has sent last.
    fn queue(&self, qp: &QueuePair) -> usize {
        let class = match &qp.sq.wqe.address {
            Some(address) if qp.attr.transport == Transport::Ud => address.network.traffic_class,
            _ => qp.path.traffic_class,
        };
        self.arbiter.queue(priority(class))
    }

    /// Puts a queue pair at the end of a queue.
    fn push(&mut self, queue: usize, qpn: u32) {
        self.waiting[queue].push_back(qpn);
    }

    fn open(&self) -> impl Iterator<Item = usize> + '_ {
        (0..PRIORITIES).filter(|queue| !self.waiting[*queue].is_empty() && self.paused >> queue & 1 == 0)
    }

    /// Takes the queue pair whose turn it is at a time.
    fn pop(&mut self, now_ps: u64) -> Option<u32> {
        let ready = self
            .open()
            .filter(|queue| self.ahead_until_ps[*queue] <= now_ps)
            .fold(0, |ready, queue| ready | 1 << queue);
        self.waiting[self.arbiter.next(ready)?].pop_front()
    }

    /// A packet of so many bytes has been prepared.
    fn sent(&mut self, queue: usize, bytes: u64, busy_until_ps: u64, ahead_until_ps: u64) {
        self.arbiter.served(queue, bytes);
        self.busy_until_ps = busy_until_ps;
        self.ahead_until_ps[queue] = ahead_until_ps;
    }

    /// A timer has come; `false`: it is not the engine's next one.
    fn is_due(&mut self, now_ps: u64) -> bool {
        let due = self.timer_ps == Some(now_ps);
        if due {
            self.timer_ps = None;
        }
        due
    }

    /// The next timer, unless an earlier one is under way.
    fn next_timer(&mut self, now_ps: u64) -> Option<u64> {
        let at_ps = self.open().map(|queue| self.ahead_until_ps[queue].max(self.busy_until_ps).max(now_ps)).min()?;
        if self.timer_ps.is_some_and(|timer_ps| timer_ps <= at_ps) {
            return None;
        }
        self.timer_ps = Some(at_ps);
        Some(at_ps)
    }
}

/// A queue pair's turn at a send engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    pub(crate) qpn: u32,
    engine: usize,
    /// The engine works on a packet until then.
    busy_until_ps: u64,
    /// Bytes sent before.
    tx_bytes: u64,
}

/// What became of a packet handed to a path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    /// Its last bit has left.
    pub(crate) done_ps: u64,
    /// The engine should not prepare the next packet earlier.
    pub(crate) engine_ps: u64,
    /// What takes no engine and must not overtake it may be sent now.
    pub(crate) behind_ps: u64,
}

/// The port of the card, and the loopback path.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) identity: Identity,
    timing: NicTiming,
    engines: [SendEngine; 2],
    /// When the port is free again, for a packet of each priority.
    busy_ps: [u64; PRIORITIES],
    loopback_busy_ps: u64,
    /// Packets that turn round inside the card.
    loopback: Slots<Packet>,
    /// How much earlier than a packet leaves the next one may be prepared.
    ahead_ps: u64,
}

impl Port {
    pub(crate) fn new(identity: Identity, timing: NicTiming, mtu: Mtu) -> Self {
        // A WQE's fetch, its payload's read and a few payloads queueing for PCIe are in flight together; further ahead
        // the engine would only fill the port's queue.
        let queueing_ps = 4 * timing.pcie_ps(u64::from(mtu.bytes()));
        let engines =
            [Priorities::Strict, Priorities::Shared].map(|priorities| SendEngine::new(priorities, [1; PRIORITIES]));
        Self {
            identity,
            timing,
            engines,
            busy_ps: [0; PRIORITIES],
            loopback_busy_ps: 0,
            loopback: Slots::new(),
            ahead_ps: 2 * timing.pcie_latency_ps.max(timing.dpa_latency_ps) + queueing_ps,
        }
    }

    /// How the port's send engine chooses among queue pairs of different traffic class.
    pub(crate) fn set_priorities(&mut self, priorities: Priorities, weights: [u32; PRIORITIES]) {
        self.engines[PORT] = SendEngine::new(priorities, weights);
    }

    /// The send engine begins no packet of these priorities (a bit each); returns whether it would have begun one of
    /// any before.
    pub(crate) fn pause(&mut self, priorities: u8) -> bool {
        let engine = &mut self.engines[PORT];
        let news = engine.paused & priorities != priorities;
        engine.paused |= priorities;
        news
    }

    /// Packets of these priorities may leave again.
    pub(crate) fn resume(&mut self, now_ps: u64, priorities: u8, fx: &mut Effects) {
        self.engines[PORT].paused &= !priorities;
        self.start(now_ps, PORT, fx);
    }

    /// Puts a queue pair with something to send into its engine's queue.
    pub(crate) fn wake(&mut self, now_ps: u64, qp: &mut QueuePair, fx: &mut Effects) {
        if qp.sq.queued {
            return;
        }
        qp.sq.queued = true;
        let engine = if self.identity.turns_round(qp) { LOOPBACK } else { PORT };
        let queue = self.queue(engine, qp);
        self.engines[engine].push(queue, qp.qpn);
        self.start(now_ps, engine, fx);
    }

    /// A queue pair's rate lets it send again, unless it has been reset since, or has sent again.
    pub(crate) fn unpark(&mut self, now_ps: u64, qp: &mut QueuePair, fx: &mut Effects) {
        if qp.sq.paced_until_ps.is_some_and(|until_ps| until_ps <= now_ps) {
            qp.sq.paced_until_ps = None;
            qp.sq.queued = false;
            self.wake(now_ps, qp, fx);
        }
    }

    /// Lets a send engine serve what waits for it, as soon as it is free.
    pub(crate) fn start(&mut self, now_ps: u64, engine: usize, fx: &mut Effects) {
        if let Some(at_ps) = self.engines[engine].next_timer(now_ps) {
            fx.timer(at_ps, Work::Send { engine: engine as u8 });
        }
    }

    /// A timer of a send engine has come; `false`: another one has taken its place.
    pub(crate) fn is_due(&mut self, engine: usize, now_ps: u64) -> bool {
        self.engines[engine].is_due(now_ps)
    }

    /// Takes the queue pair whose turn it is.
    pub(crate) fn turn(&mut self, engine: usize, cx: &Cx<'_>) -> Option<Turn> {
        let qpn = self.engines[engine].pop(cx.now_ps)?;
        let busy_until_ps = cx.now_ps + self.timing.send_service_ps;
        Some(Turn { qpn, engine, busy_until_ps, tx_bytes: cx.log.counters.tx_bytes })
    }

    /// A queue pair has prepared a packet in its turn, and the engine should prepare no other of its priority before
    /// `ahead_ps`. A parked one takes its next turn later.
    pub(crate) fn end_turn(&mut self, turn: Turn, qp: &QueuePair, ahead_ps: u64, parked: bool, cx: &Cx<'_>) {
        let queue = self.queue(turn.engine, qp);
        let engine = &mut self.engines[turn.engine];
        if !parked {
            engine.push(queue, turn.qpn);
        }
        engine.sent(queue, cx.log.counters.tx_bytes - turn.tx_bytes, turn.busy_until_ps, ahead_ps);
    }

    /// The queue of the port's engine, or the only one of the loopback path's, that a queue pair is for.
    fn queue(&self, engine: usize, qp: &QueuePair) -> usize {
        if engine == LOOPBACK { 0 } else { self.engines[engine].queue(qp) }
    }

    /// When a packet of `bytes` on the wire that is complete at `ready_ps` begins and ends to leave the port.
    ///
    /// What has been given a time has not left: a packet of higher priority passes it, and it leaves later by as much.
    /// The packet on its way out is not interrupted; that is what joins the port to others, which knows it, sees to.
    fn take(&mut self, ready_ps: u64, queue: usize, bytes: u64) -> (u64, u64) {
        let took_ps = self.timing.port_rate.serialisation_ps(bytes);
        let strict = self.engines[PORT].arbiter.is_strict();
        let busy = &mut self.busy_ps;
        let start_ps = busy[queue].max(ready_ps);
        busy[queue] = start_ps + took_ps;
        if strict {
            for lower in &mut busy[..queue] {
                *lower = (*lower).max(start_ps) + took_ps;
            }
        }
        (start_ps, start_ps + took_ps)
    }

    /// Sends a packet that is complete at `ready_ps`, through the port or round inside the card.
    pub(crate) fn emit(&mut self, ready_ps: u64, packet: Packet, loopback: bool, cx: &mut Cx<'_>) -> Sent {
        let (done_ps, behind_ps) = if loopback {
            let took_ps = self.timing.pcie_ps(packet.payload.len() as u64);
            let done_ps = self.loopback_busy_ps.max(ready_ps) + took_ps;
            self.loopback_busy_ps = done_ps;
            let back_ps = done_ps + self.timing.pcie_latency_ps;
            self.turn_round((done_ps, back_ps), packet, cx);
            (done_ps, back_ps)
        } else {
            let queue = self.engines[PORT].arbiter.queue(packet.priority());
            let (start_ps, done_ps) = self.take(ready_ps, queue, packet.wire_bytes());
            Self::leave((start_ps, done_ps), packet, cx);
            (done_ps, done_ps)
        };
        Sent { done_ps, engine_ps: done_ps.saturating_sub(self.ahead_ps), behind_ps }
    }

    /// Sends an acknowledgement or an atomic's answer at `ready_ps`, but not before what the responder sent earlier. It
    /// takes no engine: the link orders it among the port's packets.
    pub(crate) fn emit_acknowledgement(
        &mut self,
        ready_ps: u64,
        qp: &mut QueuePair,
        (psn, message_number): (u32, u32),
        extension: Extension,
        cx: &mut Cx<'_>,
    ) {
        let at_ps = ready_ps.max(qp.rq.last_response_ps);
        let operation = match extension {
            Extension::AtomicAcknowledge { .. } => Operation::AtomicAcknowledge,
            _ => Operation::Acknowledge,
        };
        let mut packet = self.identity.packet(qp, operation, psn);
        packet.extension = extension;
        packet.message_number = message_number;
        if self.identity.turns_round(qp) {
            self.turn_round((at_ps, at_ps), packet, cx);
        } else {
            Self::leave((at_ps, at_ps), packet, cx);
        }
        qp.rq.last_response_ps = at_ps;
    }

    /// A packet leaves the port, from its first bit to its last.
    #[inline]
    fn leave((start_ps, done_ps): (u64, u64), packet: Packet, cx: &mut Cx<'_>) {
        cx.log.counters.tx_packets += 1;
        cx.log.counters.tx_bytes += packet.frame_bytes();
        cx.log.note_sent(start_ps, done_ps, &packet, false);
        cx.fx.packets.push((start_ps, packet));
    }

    /// A packet is sent at one time and is back at another.
    #[inline]
    fn turn_round(&mut self, (sent_ps, back_ps): (u64, u64), packet: Packet, cx: &mut Cx<'_>) {
        cx.log.counters.loopback_packets += 1;
        cx.log.note_sent(sent_ps, back_ps, &packet, true);
        let slot = self.loopback.insert(packet);
        cx.fx.timer(back_ps, Work::Loopback { slot });
    }

    /// A packet has turned round.
    pub(crate) fn turned_round(&mut self, slot: u32) -> Option<Packet> {
        self.loopback.take(slot)
    }
}
