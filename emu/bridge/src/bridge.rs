//! A machine that runs by itself, between the wall clock and a peer.

use std::time::{Duration, Instant};

use emu_machine::{Driver, World};

use crate::keeper::Plan;
use crate::wire::{Wire, WireCounters};

const PS_PER_NS: u64 = 1_000;
/// Virtual time between two looks at the socket: a reply should not wait longer, and a look costs about a microsecond.
const SLICE_PS: u64 = 20_000_000;
/// Steps of the machine between two looks.
const SLICE_STEPS: u64 = 2_000;
/// Datagrams between two advances of the machine.
const BATCH: usize = 32;
/// Longest turn, for others that need the machine.
const TURN: Duration = Duration::from_millis(1);
/// Whoever should look looks within this, or the process was not run: then time stood still, and timers do not notice.
const LATE: Duration = Duration::from_micros(500);
/// Longest sleep of a machine to which nothing happens.
pub(crate) const IDLE: Duration = Duration::from_millis(50);
/// What is due within this is not worth a sleep.
const SPIN: Duration = Duration::from_micros(30);
/// Longest that a program's call to poll an empty queue takes: it may have other things to look at.
const POLL: Duration = Duration::from_micros(200);
/// A call looks at the socket if nobody has for so long.
const STALE: Duration = Duration::from_micros(100);

/// What a bridge has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BridgeCounters {
    /// At the socket.
    pub wire: WireCounters,
    /// By how much virtual time is behind the wall clock, in picoseconds: the emulator was slower, or the peer was.
    pub behind_ps: u64,
}

/// Drives a machine: virtual time follows the wall clock since the bridge was made, and never overtakes it.
///
/// Time is not made up for. Whenever the emulator is slower than the wall clock, the process was not run, or the peer
/// takes no more frames, virtual time stands still or slows down; so timers of the emulated cards, such as those of
/// retransmission, do not fire because a computer is busy. One thing runs ahead: a FlexIO call is executed to its end at once,
/// and the clock then waits for the wall's.
#[derive(Debug)]
pub struct Bridge {
    wire: Wire,
    plan: Plan,
    /// Wall time that virtual time will never have, in picoseconds.
    lost_ps: u64,
    /// When somebody should look next, and when somebody last did.
    planned: Instant,
    looked: Instant,
    flush: Option<crate::file::Flush>,
}

impl Bridge {
    /// Joins the outer end of a machine in virtual time 0 to a wire.
    #[must_use]
    pub fn new(wire: Wire) -> Self {
        let plan = Plan::new();
        let start = plan.start();
        Self { wire, plan, lost_ps: 0, planned: start + IDLE, looked: start, flush: None }
    }

    /// Has a capture written to its file whenever the bridge has nothing else to do.
    pub(crate) fn flushing(self, flush: Option<crate::file::Flush>) -> Self {
        Self { flush, ..self }
    }

    /// What it has done.
    #[must_use]
    pub fn counters(&self) -> BridgeCounters {
        BridgeCounters { wire: self.wire.counters(), behind_ps: self.lost_ps }
    }

    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    pub(crate) fn wire(&self) -> &Wire {
        &self.wire
    }

    fn elapsed_ps(&self, now: Instant) -> u64 {
        (now.duration_since(self.plan.start()).as_nanos() as u64).saturating_mul(PS_PER_NS)
    }

    /// How far virtual time may go.
    fn target_ps(&self, now: Instant) -> u64 {
        self.elapsed_ps(now).saturating_sub(self.lost_ps)
    }

    /// Virtual time stays where it is.
    fn lose(&mut self, world: &World, now: Instant) {
        self.lost_ps += self.target_ps(now).saturating_sub(world.now_ps());
    }

    /// Takes what the peer has sent, lets happen what is due by now, and sends what left. `true` if anything came or left.
    pub fn turn(&mut self, world: &mut World) -> bool {
        let begun = Instant::now();
        let late = begun.saturating_duration_since(self.planned);
        if late > LATE {
            self.lost_ps += ((late - LATE).as_nanos() as u64).saturating_mul(PS_PER_NS);
        }
        let mut moved = false;
        let mut now = begun;
        loop {
            // Before the clock: an answer that is there already stops the timer that waits for it.
            moved |= self.wire.receive(BATCH, |packet| world.inject(packet)) > 0;
            moved |= self.send(world, now);
            if self.wire.is_full() || now.duration_since(begun) > TURN {
                self.lose(world, now);
                break;
            }
            let target_ps = self.target_ps(now);
            match world.next_due_ps() {
                Some(due_ps) if due_ps <= target_ps => {
                    world.advance(target_ps.min(due_ps.max(world.now_ps()) + SLICE_PS), SLICE_STEPS);
                }
                _ => {
                    world.advance(target_ps, 1);
                    break;
                }
            }
            now = Instant::now();
        }
        self.looked = now;
        self.schedule(world, now);
        if let Some(flush) = &self.flush {
            flush.now();
        }
        moved
    }

    fn send(&mut self, world: &mut World, now: Instant) -> bool {
        let waiting = self.wire.waiting();
        while let Some((_, packet)) = world.take_departure() {
            self.wire.push(&packet);
        }
        let moved = self.wire.waiting() > waiting;
        self.wire.send(now);
        moved
    }

    /// Notes when somebody should look next.
    fn schedule(&mut self, world: &World, now: Instant) {
        let due = world.next_due_ps().map_or(IDLE, |due_ps| {
            Duration::from_nanos(due_ps.saturating_sub(self.target_ps(now)).div_ceil(PS_PER_NS)).min(IDLE)
        });
        // What waits for the peer is looked after sooner: it may have been given up.
        let due = if self.wire.waiting() > 0 { due.min(TURN) } else { due };
        self.planned = now + due;
        self.plan.set(self.planned);
    }
}

impl Driver for Bridge {
    fn before(&mut self, world: &mut World) {
        let now = Instant::now();
        if now >= self.planned || now.duration_since(self.looked) > STALE {
            self.turn(world);
        } else {
            world.advance(self.target_ps(now), 1);
        }
    }

    fn after(&mut self, world: &mut World) {
        self.schedule(world, Instant::now());
        self.plan.wake();
    }

    fn relax(&mut self, world: &mut World) -> Option<Box<dyn FnOnce() + Send>> {
        self.plan.polled();
        let moved = self.turn(world);
        let due = self.planned.saturating_duration_since(Instant::now());
        let sleep = !moved && due > SPIN;
        sleep.then(|| self.plan.sleeper(self.wire.socket(), due.min(POLL))).flatten()
    }

    fn will_sleep(&mut self) {
        self.plan.will_sleep();
    }
}
