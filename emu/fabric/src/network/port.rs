//! One port: what leaves through it and what it has counted.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::arbiter::Arbiter;
use crate::counters::{PRIORITIES, PortCounters};
use crate::fault::{DropCause, Line};
use crate::link::Rate;

/// No place, no port, no time.
pub(super) const NONE: u32 = u32::MAX;
pub(super) const NEVER_PS: u64 = u64::MAX;

/// A frame that waits for credit, or for its turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) slot: u32,
    pub(super) hold: u32,
    pub(super) ready_ps: u64,
    pub(super) bytes: u64,
}

/// What a frame counts as payload, and for which priority.
#[derive(Clone, Copy, Debug)]
pub(super) struct Payload {
    pub(super) bytes: u64,
    pub(super) priority: u8,
}

impl Payload {
    #[inline]
    pub(super) fn priority(self) -> usize {
        usize::from(self.priority) % PRIORITIES
    }
}

/// Room in the buffer at the other end of a link.
#[derive(Clone, Debug)]
pub(super) struct Credit {
    available_bytes: u64,
    /// All of it.
    buffer_bytes: u64,
    /// When how much comes back.
    returns: BinaryHeap<Reverse<(u64, u64)>>,
}

impl Credit {
    pub(super) fn new(buffer_bytes: u64) -> Self {
        Self { available_bytes: buffer_bytes, buffer_bytes, returns: BinaryHeap::new() }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Port {
    pub(super) rate: Rate,
    pub(super) latency_ps: u64,
    /// The port at the other end; `NONE` without a cable.
    pub(super) peer: u32,
    /// The switch it belongs to; `NONE` for a host.
    pub(super) switch: u32,
    /// When everything that was given a time is sent.
    pub(super) busy_until_ps: u64,
    /// Frames that have no time yet, in order, by queue.
    pub(super) waiting: [VecDeque<Waiting>; PRIORITIES],
    /// When each frame with a time is sent, its bytes and its queue.
    leaving: VecDeque<(u64, u64, usize)>,
    /// Bytes of both.
    queued_bytes: u64,
    /// The same by queue.
    pub(super) class_bytes: [u64; PRIORITIES],
    /// `None` where nothing limits what may be sent.
    pub(super) credit: Option<Box<[Credit; PRIORITIES]>>,
    /// When the next event for returned credit is due.
    pub(super) wake_ps: u64,
    /// When the next event for a free port is due.
    pub(super) serve_ps: u64,
    pub(super) arbiter: Arbiter,
    /// Queues that have been reported full to the host, a bit each.
    pub(super) full: u8,
    /// When the next check for room is due.
    pub(super) room_ps: u64,
    pub(super) line: Option<Box<Line>>,
    pub(super) counters: PortCounters,
}

impl Port {
    pub(super) fn new(switch: u32, arbiter: Arbiter) -> Self {
        Self {
            rate: Rate::GBPS_200,
            latency_ps: 0,
            peer: NONE,
            switch,
            busy_until_ps: 0,
            waiting: Default::default(),
            leaving: VecDeque::new(),
            queued_bytes: 0,
            class_bytes: [0; PRIORITIES],
            credit: None,
            wake_ps: NEVER_PS,
            serve_ps: NEVER_PS,
            arbiter,
            full: 0,
            room_ps: NEVER_PS,
            line: None,
            counters: PortCounters::default(),
        }
    }

    /// Bytes that wait or are being sent.
    #[inline]
    pub(super) fn backlog_bytes(&mut self, now_ps: u64) -> u64 {
        while let Some(&(end_ps, bytes, class)) = self.leaving.front() {
            if end_ps > now_ps {
                break;
            }
            self.queued_bytes -= bytes;
            self.class_bytes[class] -= bytes;
            self.leaving.pop_front();
        }
        self.queued_bytes
    }

    #[inline]
    pub(super) fn enqueue(&mut self, class: usize, bytes: u64) {
        self.queued_bytes += bytes;
        self.class_bytes[class] += bytes;
        self.counters.queue_high_water_bytes = self.counters.queue_high_water_bytes.max(self.queued_bytes);
    }

    /// Gives a queued frame its time on the wire: start and end.
    #[inline]
    pub(super) fn depart(&mut self, ready_ps: u64, class: usize, bytes: u64, payload: Payload) -> (u64, u64) {
        let mut start_ps = ready_ps.max(self.busy_until_ps);
        if let Some(line) = &self.line {
            start_ps = line.release_ps(start_ps);
        }
        let end_ps = start_ps + self.rate.serialisation_ps(bytes);
        self.busy_until_ps = end_ps;
        self.leaving.push_back((end_ps, bytes, class));
        self.counters.tx_frames += 1;
        self.counters.tx_bytes += bytes;
        self.counters.tx_payload_bytes += payload.bytes;
        self.counters.tx_priority_payload_bytes[payload.priority()] += payload.bytes;
        (start_ps, end_ps)
    }

    #[inline]
    pub(super) fn receive(&mut self, bytes: u64, payload: Payload) {
        self.counters.rx_frames += 1;
        self.counters.rx_bytes += bytes;
        self.counters.rx_payload_bytes += payload.bytes;
        self.counters.rx_priority_payload_bytes[payload.priority()] += payload.bytes;
    }

    /// Counts a frame that was lost on its way to this port.
    pub(super) fn lose(&mut self, cause: DropCause) {
        self.counters.lost_frames += 1;
        let drops = &mut self.counters.drops;
        match cause {
            DropCause::Random => drops.random += 1,
            DropCause::Burst => drops.burst += 1,
            DropCause::BitError => drops.bit_error += 1,
            DropCause::LinkDown => drops.link_down += 1,
            DropCause::Named => drops.named += 1,
        }
    }

    /// Whether there is credit for a frame.
    #[inline]
    pub(super) fn has_credit(&mut self, now_ps: u64, class: usize, bytes: u64) -> bool {
        let Some(credit) = &mut self.credit else { return true };
        let credit = &mut credit[class];
        while let Some(&Reverse((at_ps, returned))) = credit.returns.peek() {
            if at_ps > now_ps {
                break;
            }
            credit.available_bytes += returned;
            debug_assert!(credit.available_bytes <= credit.buffer_bytes, "credit that nobody took");
            credit.returns.pop();
        }
        credit.available_bytes >= bytes
    }

    /// Takes credit for a frame if there is enough.
    #[inline]
    pub(super) fn take_credit(&mut self, now_ps: u64, class: usize, bytes: u64) -> bool {
        let enough = self.has_credit(now_ps, class, bytes);
        if enough && let Some(credit) = &mut self.credit {
            credit[class].available_bytes -= bytes;
        }
        enough
    }

    /// When no more than so many bytes will be in a queue, by what is known now; `None` while too many have no time
    /// yet.
    pub(super) fn drained_ps(&self, now_ps: u64, class: usize, bytes: u64) -> Option<u64> {
        let mut queued_bytes = self.class_bytes[class];
        if queued_bytes <= bytes {
            return Some(now_ps);
        }
        for &(end_ps, left_bytes, _) in self.leaving.iter().filter(|(.., of)| *of == class) {
            queued_bytes -= left_bytes;
            if queued_bytes <= bytes {
                return Some(end_ps);
            }
        }
        None
    }

    /// Credit comes back at a time.
    #[inline]
    pub(super) fn give_credit(&mut self, at_ps: u64, class: usize, bytes: u64) {
        if let Some(credit) = &mut self.credit {
            credit[class].returns.push(Reverse((at_ps, bytes)));
        }
    }

    /// When to check again, if the first frame of a queue lacks credit and no earlier check is planned. Remembers the
    /// answer.
    #[inline]
    pub(super) fn plan_wake(&mut self, now_ps: u64) -> Option<u64> {
        let mut next_ps = None;
        for class in 0..PRIORITIES {
            let Some(&Waiting { bytes, .. }) = self.waiting[class].front() else { continue };
            // Credit that is back is no reason to check again: a frame that has it and has not come far enough waits
            // for that alone.
            if !self.has_credit(now_ps, class, bytes)
                && let Some(credit) = &self.credit
                && let Some(&Reverse((at_ps, _))) = credit[class].returns.peek()
            {
                next_ps = Some(next_ps.map_or(at_ps, |next_ps: u64| next_ps.min(at_ps)));
            }
        }
        let at_ps = next_ps.filter(|at_ps| *at_ps < self.wake_ps)?;
        self.wake_ps = at_ps;
        Some(at_ps)
    }

    /// The queue whose first frame leaves now, if the port is free.
    pub(super) fn choose(&mut self, now_ps: u64) -> Option<usize> {
        let mut ready = 0;
        for class in 0..PRIORITIES {
            if let Some(&Waiting { ready_ps, bytes, .. }) = self.waiting[class].front()
                && ready_ps <= now_ps
                && self.has_credit(now_ps, class, bytes)
            {
                ready |= 1 << class;
            }
        }
        self.arbiter.next(ready)
    }

    /// When to check again for a frame that could leave, if no earlier check is planned: when the port is free, or when
    /// the first of a queue has come far enough. Remembers the answer.
    pub(super) fn plan_serve(&mut self, now_ps: u64) -> Option<u64> {
        let heads = self.waiting.iter().filter_map(VecDeque::front).map(|head| head.ready_ps.max(self.busy_until_ps));
        // A head that could have left but for credit waits for that alone.
        let at_ps = heads.filter(|&at_ps| at_ps > now_ps).min()?;
        if at_ps >= self.serve_ps {
            return None;
        }
        self.serve_ps = at_ps;
        Some(at_ps)
    }
}
