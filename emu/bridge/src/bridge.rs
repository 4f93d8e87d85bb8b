//! A machine that runs by itself, between the wall clock and a peer.

use std::time::{Duration, Instant};

use emu_machine::time::PS_PER_NS;
use emu_machine::{Driver, Wiring, World};

use crate::driver_thread::{self, Plan};
use crate::flush::Flush;
use crate::limits::IDLE;
use crate::wire::{Wire, WireCounters};

/// Virtual time between two polls of the socket: a reply should not wait longer, and a poll costs about a microsecond.
const SLICE_PS: u64 = 20_000_000;
/// Steps of the machine between two polls.
const SLICE_STEPS: u64 = 2_000;
/// Datagrams between two advances of the machine.
const BATCH: usize = 32;
/// Longest turn, for others that need the machine.
const TURN: Duration = Duration::from_millis(1);
/// Whoever should poll the socket does so within this, or the process was not run: then time stood still, and timers do
/// not notice.
const LATE: Duration = Duration::from_micros(500);
/// What is due within this is not worth a sleep.
const SPIN: Duration = Duration::from_micros(30);
/// Longest that a program's call to poll an empty queue takes: it may have other things to poll.
const POLL: Duration = Duration::from_micros(200);
/// A call polls the socket if nobody has for so long.
const STALE: Duration = Duration::from_micros(100);
/// A machine that stands still because of a peer checks as often whether it is there again.
const HELD: Duration = Duration::from_millis(2);
/// A program that polls is back within this, or its thread is not run: then virtual time goes at a hundredth of the
/// wall clock's pace, so that bounds that the program counts in virtual time do not pass without it. After the longer
/// time it does something else.
const POLLED: Duration = Duration::from_millis(1);
const ELSEWHERE: Duration = Duration::from_secs(1);
/// What a card takes to answer a frame, beyond what cables and switches do: 50 us.
const ANSWER_PS: u64 = 50_000_000;

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
/// Time is not made up for. Whenever the emulator is slower than the wall clock, the process was not run, or a peer
/// that this machine has frames with or talks to is not run (`pace.rs`), virtual time stands still or slows down; so
/// timers of the emulated cards, such as those of retransmission, do not fire because a computer is busy. One thing
/// runs ahead: a FlexIO call is executed to its end at once, and the clock then waits for the wall's.
#[derive(Debug)]
pub struct Bridge {
    wire: Wire,
    plan: Plan,
    /// Wall time that virtual time will never have, in picoseconds.
    lost_ps: u64,
    /// When the socket should be polled next, and when it last was.
    planned: Instant,
    socket_polled: Instant,
    /// When the program called last, if that was to poll.
    polled: Option<Instant>,
    /// What was due next when the call began that is under way.
    due_ps: Option<u64>,
    /// How far virtual time may go before peers have caught up.
    limit_ps: u64,
    /// What an answer takes of virtual time; 0 until the machine has been seen.
    answer_ps: u64,
    flush: Option<Flush>,
}

/// What a machine takes to answer a frame: its way in, the card's work, and the way out.
fn answer_ps(wiring: &Wiring) -> u64 {
    let ways_ps = match wiring {
        Wiring::Cable(link) => link.latency_ps.saturating_mul(2),
        Wiring::Network(network) => {
            let cables = network.topology.cables().iter().map(|cable| cable.config.latency_ps).max().unwrap_or(0);
            // Two levels of switches: four cables and three switches each way.
            cables.saturating_add(network.topology.switching().latency_ps).saturating_mul(8)
        }
    };
    ANSWER_PS.saturating_add(ways_ps)
}

impl Bridge {
    /// Joins the outer end of a machine in virtual time 0 to a wire.
    #[must_use]
    pub fn new(wire: Wire) -> Self {
        let plan = Plan::new();
        let start = plan.start();
        Self {
            wire,
            plan,
            lost_ps: 0,
            planned: start + IDLE,
            socket_polled: start,
            polled: None,
            due_ps: None,
            limit_ps: u64::MAX,
            answer_ps: 0,
            flush: None,
        }
    }

    /// Has a capture written to its file whenever the bridge has nothing else to do.
    pub(crate) fn flushing(self, flush: Option<Flush>) -> Self {
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

    /// How far virtual time may go by the wall clock.
    fn target_ps(&self, now: Instant) -> u64 {
        self.elapsed_ps(now).saturating_sub(self.lost_ps)
    }

    /// The same, and by the peers.
    fn reach_ps(&self, now: Instant) -> u64 {
        self.target_ps(now).min(self.limit_ps)
    }

    /// Virtual time stays where it is.
    fn lose(&mut self, world: &World, now: Instant) {
        self.lost_ps += self.target_ps(now).saturating_sub(world.now_ps());
    }

    /// Wall time that does not count because the program's thread, which polls, is not run.
    fn slowed(&self, now: Instant) -> Duration {
        let Some(polled) = self.polled else { return Duration::ZERO };
        let (from, to) = (self.socket_polled.max(polled + POLLED), now.min(polled + ELSEWHERE));
        to.saturating_duration_since(from) / 100 * 99
    }

    /// Takes what the peer has sent, lets happen what is due by now, and sends what left. `true` if anything came or
    /// left.
    pub fn poll(&mut self, world: &mut World) -> bool {
        let begun = Instant::now();
        let late = begun.saturating_duration_since(self.planned).saturating_sub(LATE);
        let lost = late.max(self.slowed(begun));
        self.lost_ps += (lost.as_nanos() as u64).saturating_mul(PS_PER_NS);
        if self.answer_ps == 0 {
            self.answer_ps = answer_ps(&world.config().wiring);
        }
        let mut moved = false;
        let mut now = begun;
        loop {
            self.wire.set_clock(world.now_ps(), self.answer_ps);
            // Before the clock: an answer that is there already stops the timer that waits for it.
            moved |= self.wire.receive(BATCH, |packet| world.inject(packet)) > 0;
            moved |= self.send(world);
            self.limit_ps = self.wire.limit_ps().unwrap_or(u64::MAX);
            if self.wire.is_full() || self.limit_ps <= world.now_ps() || now.duration_since(begun) > TURN {
                self.lose(world, now);
                break;
            }
            let target_ps = self.reach_ps(now);
            match world.next_due_ps() {
                Some(due_ps) if due_ps <= target_ps => {
                    world.advance(target_ps.min(due_ps.max(world.now_ps()) + SLICE_PS), SLICE_STEPS);
                }
                _ => {
                    world.advance(target_ps, 1);
                    if target_ps == self.limit_ps {
                        self.lose(world, now);
                    }
                    break;
                }
            }
            now = Instant::now();
        }
        self.wire.set_clock(world.now_ps(), self.answer_ps);
        self.wire.keep_pace(now);
        self.socket_polled = now;
        self.schedule(world, now);
        if let Some(flush) = &self.flush {
            flush.now();
        }
        moved
    }

    fn send(&mut self, world: &mut World) -> bool {
        let waiting = self.wire.waiting();
        while let Some((_, packet)) = world.take_departure() {
            self.wire.push(&packet);
        }
        let moved = self.wire.waiting() > waiting;
        self.wire.send();
        moved
    }

    /// Notes when the socket should be polled next.
    fn schedule(&mut self, world: &World, now: Instant) {
        let due_ps = [world.next_due_ps(), self.wire.owed_ps()].into_iter().flatten().min();
        let due = due_ps.map_or(IDLE, |due_ps| {
            Duration::from_nanos(due_ps.saturating_sub(self.target_ps(now)).div_ceil(PS_PER_NS)).min(IDLE)
        });
        // Nothing happens before a peer has caught up.
        let due = if self.limit_ps <= world.now_ps() { HELD } else { due };
        // What waits for the peer is checked sooner: it may have been given up.
        let due = if self.wire.waiting() > 0 { due.min(TURN) } else { due };
        self.planned = now + due;
        self.plan.set(self.planned);
    }
}

impl Driver for Bridge {
    fn before(&mut self, world: &mut World) {
        let now = Instant::now();
        if now >= self.planned || now.duration_since(self.socket_polled) > STALE {
            self.poll(world);
        } else {
            world.advance(self.reach_ps(now), 1);
        }
        self.due_ps = world.next_due_ps();
    }

    fn after(&mut self, world: &mut World) {
        let now = Instant::now();
        if !driver_thread::is_calling() {
            // Who has given the card something to do may do something else meanwhile; who has only polled goes on
            // polling.
            self.polled = self.polled.filter(|_| world.next_due_ps() == self.due_ps).map(|_| now);
        }
        self.schedule(world, now);
        self.plan.wake();
    }

    fn relax(&mut self, world: &mut World) -> Option<Box<dyn FnOnce() + Send>> {
        self.plan.polled();
        let moved = self.poll(world);
        self.polled = Some(self.socket_polled);
        let due = self.planned.saturating_duration_since(Instant::now());
        let sleep = !moved && due > SPIN;
        sleep.then(|| self.plan.sleeper(self.wire.socket(), due.min(POLL))).flatten()
    }

    fn will_sleep(&mut self) {
        self.plan.will_sleep();
        self.polled = None;
    }

    fn is_quiet(&self, world: &World) -> bool {
        let soon_ps = world.now_ps().saturating_add(self.answer_ps);
        // Answers to what has come are due soon; timers of retransmission are not.
        world.departures() == 0
            && self.wire.waiting() == 0
            && self.wire.all_over_ps() <= world.now_ps()
            && world.next_due_ps().is_none_or(|due_ps| due_ps > soon_ps)
    }
}
