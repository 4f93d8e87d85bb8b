//! Drive of one operation on all ranks, of all communicators, in one thread, with what happens to ranks and workers on
//! the way.

use std::time::Instant;

use emu_machine::with_world;
use flexcast::{Communicator, Outcome, Request, Test};
use flexio::Provider;

use super::SimError;
use super::group::at;
use super::params::{HostFault, SimParams};
use super::party::Party;
use super::polls::Polls;
use super::skew;
use super::work::Meter;

/// A rank of a communicator.
#[derive(Clone, Copy, Debug)]
struct Seat {
    party: usize,
    rank: usize,
    /// The rank of the simulation.
    member: u32,
    /// Its delay before it posts.
    delay_ps: u64,
}

/// An operation under way.
struct Drive<'d, 's> {
    provider: &'d Provider,
    parties: &'d mut [Party<'s>],
    seats: Vec<Seat>,
    requests: Vec<Option<Request>>,
    done: Vec<Option<Outcome>>,
    meter: &'d mut Meter,
    start_ps: u64,
    /// Virtual time that each host computes after its post.
    compute_ps: u64,
    host_calls: u64,
}

/// Ends of an operation on each rank of each communicator; none of a dead one.
pub(super) type Ends = Vec<Vec<Option<Outcome>>>;

/// What came of an operation.
#[derive(Debug)]
pub(super) struct Operated {
    pub(super) done: Ends,
    /// Calls with work to do that all hosts made until the data was there.
    pub(super) host_calls: u64,
}

/// Posts one operation on all ranks, on each when its delay is over, and drives them until all have ended: what came of
/// it, communicator by communicator. A rank whose host has not come to its post does not poll, nor one whose host
/// computes then, for `compute_ps`.
pub(super) fn operate(
    provider: &Provider,
    parties: &mut [Party<'_>],
    params: &SimParams,
    (iteration, compute_ps): (u32, u64),
    meter: &mut Meter,
    until: Option<Instant>,
    ended: &mut dyn FnMut(u32),
) -> Result<Operated, SimError> {
    let mut seats = Vec::new();
    for (party, own) in parties.iter().enumerate() {
        let delays_ps = skew::delays_ps(&own.params, iteration);
        let seat = |(rank, member): (usize, &u32)| Seat { party, rank, member: *member, delay_ps: delays_ps[rank] };
        seats.extend(own.members.iter().enumerate().map(seat));
    }
    let sizes: Vec<usize> = parties.iter().map(|party| party.ranks.len()).collect();
    let (requests, done) = (seats.iter().map(|_| None).collect(), seats.iter().map(|_| None).collect());
    let start_ps = provider.relax().now_ps();
    let mut drive = Drive { provider, parties, seats, requests, done, meter, start_ps, compute_ps, host_calls: 0 };
    drive.run(params, until, ended)?;
    let Drive { done, host_calls, .. } = drive;
    let mut done = done.into_iter();
    let done = sizes.into_iter().map(|size| done.by_ref().take(size).collect()).collect();
    Ok(Operated { done, host_calls })
}

impl Drive<'_, '_> {
    fn run(&mut self, params: &SimParams, until: Option<Instant>, ended: &mut dyn FnMut(u32)) -> Result<(), SimError> {
        self.post(0)?;
        let mut faults = FaultInjector::new(params, self.now_ps());
        // Twice the bound of any operation with a worker that must be waited for: nothing that works takes as long.
        let barrier_ps = u64::try_from(params.config.barrier_timeout.as_nanos() * 1000).unwrap_or(u64::MAX);
        let bound_ps = barrier_ps.saturating_mul(2).saturating_add(20_000_000_000_000);
        let fresh = |seats: &[Seat]| Polls::new(seats.iter().map(|seat| params.card_of(seat.member)));
        let mut polls = fresh(&self.seats);
        loop {
            let now_ps = self.now_ps();
            if faults.inject(now_ps, &mut self.parties[0].ranks)? {
                polls = fresh(&self.seats);
                // Dead before they came to their post.
                for seat in self.seats.iter().filter(|seat| faults.is_dead(seat.member)) {
                    self.parties[seat.party].buffers[seat.rank] = None;
                }
            }
            self.post(now_ps - self.start_ps)?;
            polls.refresh()?;
            for index in 0..self.seats.len() {
                let Seat { member, .. } = self.seats[index];
                if faults.is_dead(member) || !self.has_posted(index) || !polls.is_due(index, now_ps) {
                    continue;
                }
                if self.computes(index, now_ps) || !faults.may_poll(index, member, now_ps) {
                    continue;
                }
                self.poll(index, &mut polls, now_ps, ended)?;
            }
            let is_open = |index: &usize| self.requests[*index].is_some() || !self.has_posted(*index);
            let waiting =
                (0..self.seats.len()).find(|index| is_open(index) && !faults.is_dead(self.seats[*index].member));
            let Some(index) = waiting else { return Ok(()) };
            let (rank, operation) = (self.seats[index].member, params.operation.name());
            if self.now_ps() - faults.begun_ps > bound_ps {
                return Err(SimError::Hang { rank, operation, bound_us: bound_ps / 1_000_000 });
            }
            if until.is_some_and(|until| Instant::now() > until) {
                return Err(SimError::WallLimit { rank, operation, virtual_us: (now_ps - self.start_ps) / 1_000_000 });
            }
            self.provider.relax().relax();
        }
    }

    fn now_ps(&self) -> u64 {
        self.provider.relax().now_ps()
    }

    fn has_posted(&self, index: usize) -> bool {
        let Seat { party, rank, .. } = self.seats[index];
        self.parties[party].buffers[rank].is_none()
    }

    /// Whether the host of a rank that has posted computes.
    fn computes(&self, index: usize, now_ps: u64) -> bool {
        now_ps - self.start_ps < self.seats[index].delay_ps.saturating_add(self.compute_ps)
            && self.requests[index].is_some()
            && self.compute_ps > 0
    }

    /// Posts the operation on ranks that have not and that are due so long after the start.
    fn post(&mut self, since_ps: u64) -> Result<(), SimError> {
        for (index, seat) in self.seats.iter().enumerate().filter(|(_, seat)| seat.delay_ps <= since_ps) {
            let party = &mut self.parties[seat.party];
            if let Some(buffers) = party.buffers[seat.rank].take() {
                self.meter.note(index, self.provider.relax().now_ps(), self.meter.read(index)?);
                self.requests[index] = Some(party.post(seat.rank as u32, buffers)?);
            }
        }
        Ok(())
    }

    /// A rank's host polls.
    fn poll(
        &mut self,
        index: usize,
        polls: &mut Polls,
        now_ps: u64,
        ended: &mut dyn FnMut(u32),
    ) -> Result<(), SimError> {
        let Seat { party, rank, .. } = self.seats[index];
        let (begun_ps, executed) = (self.now_ps(), self.meter.read(index)?);
        let communicator = &self.parties[party].ranks[rank];
        let is_there = self.requests[index].is_none() || communicator.is_flagged().map_err(at(rank as u32))?;
        let moved = communicator.progress().map_err(at(rank as u32))?;
        self.host_calls += u64::from(moved && !is_there);
        if moved {
            self.meter.note(index, begun_ps, executed);
        }
        polls.polled(index, now_ps, moved, communicator.deadline_ps());
        // Without a request of its own its neighbours may still need it.
        let over = |request: &mut Request| communicator.is_done(request);
        let Some(request) = self.requests[index].take_if(over) else { return Ok(()) };
        let outcome = match request.test() {
            Ok(Test::Pending(request)) => {
                self.requests[index] = Some(request);
                return Ok(());
            }
            Ok(Test::Done(done)) => Ok(done),
            // Not the operation has failed, but the library.
            Err(failed) if failed.report.failure.is_none() => return Err(at(rank as u32)(failed.error)),
            Err(failed) => Err(failed),
        };
        self.meter.note(index, begun_ps, executed);
        self.done[index] = Some(outcome);
        ended(self.done.iter().flatten().count() as u32);
        Ok(())
    }
}

/// What is still to happen.
struct FaultInjector<'p> {
    params: &'p SimParams,
    left: Vec<HostFault>,
    dead: Vec<u32>,
    /// The times from which slow hosts poll again, by seat.
    next_polls_ps: Vec<(usize, u64)>,
    begun_ps: u64,
}

impl<'p> FaultInjector<'p> {
    fn new(params: &'p SimParams, begun_ps: u64) -> Self {
        let left = params.host_faults.clone();
        Self { params, left, dead: Vec::new(), next_polls_ps: Vec::new(), begun_ps }
    }

    fn is_dead(&self, rank: u32) -> bool {
        self.dead.contains(&rank)
    }

    /// Whether a rank's host has time for a poll, which then counts as done.
    fn may_poll(&mut self, seat: usize, rank: u32, now_ps: u64) -> bool {
        let slow = |fault: &HostFault| match *fault {
            HostFault::Slow { rank: slow, every_ps } if slow == rank => Some(every_ps),
            _ => None,
        };
        let Some(every_ps) = self.params.host_faults.iter().find_map(slow) else { return true };
        let next_ps = now_ps.saturating_add(every_ps);
        match self.next_polls_ps.iter_mut().find(|(known, _)| *known == seat) {
            Some((_, at_ps)) if now_ps < *at_ps => return false,
            Some((_, at_ps)) => *at_ps = next_ps,
            None => self.next_polls_ps.push((seat, next_ps)),
        }
        true
    }

    /// Lets happen what is due, to cards, hosts, and the ranks of the first communicator; returns whether anything was.
    fn inject(&mut self, now_ps: u64, ranks: &mut [Communicator]) -> Result<bool, SimError> {
        let since_ps = now_ps - self.begun_ps;
        let due = |fault: &mut HostFault| match *fault {
            HostFault::Dead { after_ps, .. }
            | HostFault::Cancel { after_ps, .. }
            | HostFault::Stall { after_ps, .. } => since_ps >= after_ps,
            HostFault::Disagree { .. } | HostFault::Slow { .. } => true,
        };
        let due: Vec<_> = self.left.extract_if(.., due).collect();
        let any = !due.is_empty();
        for fault in due {
            match fault {
                HostFault::Dead { rank, .. } => self.dead.push(rank),
                HostFault::Cancel { rank, .. } => {
                    if let Some(communicator) =
                        ranks.get_mut(rank as usize).filter(|communicator| !communicator.is_idle())
                    {
                        communicator.cancel();
                    }
                }
                HostFault::Stall { rank, unit, for_ps, .. } => {
                    let card = self.params.card_of(rank);
                    with_world(|world| world.stall_unit(card, unit, now_ps + for_ps))??;
                }
                HostFault::Disagree { .. } | HostFault::Slow { .. } => {}
            }
        }
        Ok(any)
    }
}
