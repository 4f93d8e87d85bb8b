//! The port's send engine: whose turn it is, and what may stop it.

use std::collections::VecDeque;

use emu_fabric::{Arbiter, PRIORITIES, Priorities};

use crate::dataflow::{LOOPBACK_LANE, PORT_LANE};
use crate::effects::{Effects, Work};
use crate::nic::Nic;
use crate::packet::priority;
use crate::qp::Transport;
use crate::queue_pair::QueuePair;

/// A send engine: the queue pairs of the chosen priority take turns, one packet each.
#[derive(Debug)]
pub(crate) struct Lane {
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
    held: u8,
}

impl Lane {
    pub(crate) fn new(priorities: Priorities, weights: [u32; PRIORITIES]) -> Self {
        Self {
            waiting: Default::default(),
            arbiter: Arbiter::new(priorities, weights),
            busy_until_ps: 0,
            ahead_until_ps: [0; PRIORITIES],
            timer_ps: None,
            held: 0,
        }
    }

    /// The queue of a queue pair: that of its traffic class, of a datagram's sender that of the datagram it sends or has sent last.
    pub(crate) fn queue(&self, qp: &QueuePair) -> usize {
        let class = match &qp.sq.wqe.address {
            Some(address) if qp.attr.transport == Transport::Ud => address.network.traffic_class,
            _ => qp.path.traffic_class,
        };
        self.arbiter.queue(priority(class))
    }

    /// Puts a queue pair at the end of a queue.
    pub(crate) fn push(&mut self, queue: usize, qpn: u32) {
        self.waiting[queue].push_back(qpn);
    }

    fn open(&self) -> impl Iterator<Item = usize> + '_ {
        (0..PRIORITIES).filter(|queue| !self.waiting[*queue].is_empty() && self.held >> queue & 1 == 0)
    }

    /// Takes the queue pair whose turn it is at a time.
    pub(crate) fn pop(&mut self, now_ps: u64) -> Option<u32> {
        let ready = self
            .open()
            .filter(|queue| self.ahead_until_ps[*queue] <= now_ps)
            .fold(0, |ready, queue| ready | 1 << queue);
        self.waiting[self.arbiter.next(ready)?].pop_front()
    }

    /// A packet of so many bytes has been prepared.
    pub(crate) fn sent(&mut self, queue: usize, bytes: u64, busy_until_ps: u64, ahead_until_ps: u64) {
        self.arbiter.served(queue, bytes);
        self.busy_until_ps = busy_until_ps;
        self.ahead_until_ps[queue] = ahead_until_ps;
    }

    /// The time that a timer asked for has come; `false`: it is not that of the next look.
    pub(crate) fn look(&mut self, now_ps: u64) -> bool {
        let due = self.timer_ps == Some(now_ps);
        if due {
            self.timer_ps = None;
        }
        due
    }

    /// When to look next, if no earlier look is planned.
    fn plan(&mut self, now_ps: u64) -> Option<u64> {
        let at_ps = self.open().map(|queue| self.ahead_until_ps[queue].max(self.busy_until_ps).max(now_ps)).min()?;
        if self.timer_ps.is_some_and(|timer_ps| timer_ps <= at_ps) {
            return None;
        }
        self.timer_ps = Some(at_ps);
        Some(at_ps)
    }
}

impl Nic {
    /// How the port's send engine chooses among queue pairs of different traffic class; see [`Priorities`], and
    /// [`SwitchConfig`](emu_fabric::SwitchConfig) for the weights. To be called before anything is sent. Default strict.
    pub fn set_priorities(&mut self, priorities: Priorities, weights: [u32; PRIORITIES]) {
        self.engines.lanes[PORT_LANE] = Lane::new(priorities, weights);
    }

    /// The port is full for some priorities (a bit each): its send engine begins no packet of theirs until
    /// [`release_port`](Self::release_port). Packets that are on their way through the engine still leave, and so do acknowledgements,
    /// which do not pass it.
    pub fn hold_port(&mut self, priorities: u8) {
        let lane = &mut self.engines.lanes[PORT_LANE];
        self.counters.port_holds += u64::from(lane.held & priorities != priorities);
        lane.held |= priorities;
    }

    /// The port takes packets of these priorities again.
    pub fn release_port(&mut self, now_ps: u64, priorities: u8, fx: &mut Effects) {
        self.engines.lanes[PORT_LANE].held &= !priorities;
        self.start_lane(now_ps, PORT_LANE, fx);
    }

    /// Lets a send engine serve what waits for it, as soon as it is free.
    pub(crate) fn start_lane(&mut self, now_ps: u64, index: usize, fx: &mut Effects) {
        if let Some(at_ps) = self.engines.lanes[index].plan(now_ps) {
            fx.timer(at_ps, Work::Send { lane: index as u8 });
        }
    }

    /// When a packet of `bytes` on the wire that is complete at `ready_ps` begins and ends to leave the port.
    ///
    /// What has been given a time has not left: a packet of higher priority passes it, and it leaves later by as much. The packet on its
    /// way out is not interrupted; that is what joins the port to others, which knows it, sees to.
    pub(crate) fn take_port(&mut self, ready_ps: u64, queue: usize, bytes: u64) -> (u64, u64) {
        let took_ps = self.config.timing.port_rate.serialisation_ps(bytes);
        let strict = self.engines.lanes[PORT_LANE].arbiter.is_strict();
        let busy = &mut self.engines.port_busy_ps;
        let start_ps = busy[queue].max(ready_ps);
        busy[queue] = start_ps + took_ps;
        if strict {
            for lower in &mut busy[..queue] {
                *lower = (*lower).max(start_ps) + took_ps;
            }
        }
        (start_ps, start_ps + took_ps)
    }

    /// The queue of the port's engine, or the only one of the loopback path's, that a queue pair is for.
    pub(crate) fn lane_queue(&self, index: usize, qp: &QueuePair) -> usize {
        if index == LOOPBACK_LANE { 0 } else { self.engines.lanes[index].queue(qp) }
    }

    /// The queue of a packet at the port.
    pub(crate) fn port_queue(&self, priority: u8) -> usize {
        self.engines.lanes[PORT_LANE].arbiter.queue(priority)
    }
}
