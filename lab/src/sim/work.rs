//! DPA work by phase of an operation: instructions and cycles of all threads of a rank's card.

use emu_machine::{Executed, with_world};
use flexcast::{Outcome, PhasesPs};
use serde::Serialize;

use super::SimError;

/// A count over ranks and operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// Least.
    pub least: u64,
    /// Mean.
    pub mean: f64,
    /// Most.
    pub most: u64,
    #[serde(skip)]
    count: u64,
}

impl Spread {
    fn add(&mut self, value: u64) {
        self.least = if self.count == 0 { value } else { self.least.min(value) };
        self.most = self.most.max(value);
        self.mean += (value as f64 - self.mean) / (self.count + 1) as f64;
        self.count += 1;
    }
}

/// What threads have executed in a phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PhaseWork {
    /// Instructions retired.
    pub instructions: Spread,
    /// Cycles in which threads were executing, summed over threads, waits for memory included: asleep a thread has
    /// none.
    pub cycles: Spread,
}

/// Work by phase. Each phase begins where the one before it ends, so that their sum is all between post and release. A
/// thread that runs is up to 512 cycles ahead of the clock, so that so much of it may be counted for the phase before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Work {
    /// From the post to armed workers.
    pub arming: PhaseWork,
    /// From there until the first root of all begins to send.
    pub barrier: PhaseWork,
    /// From there to the last chunk, received or sent, or to the cutoff where something was lost.
    pub data: PhaseWork,
    /// From the cutoff to the last byte, where something was lost; nothing elsewhere.
    pub recovery: PhaseWork,
    /// From the last byte to the release.
    pub closing: PhaseWork,
}

impl Work {
    /// Its phases, by name.
    #[must_use]
    pub const fn phases(&self) -> [(&'static str, &PhaseWork); 5] {
        let Self { arming, barrier, data, recovery, closing } = self;
        [("arming", arming), ("barrier", barrier), ("data", data), ("recovery", recovery), ("closing", closing)]
    }

    pub(super) fn add(&mut self, ranks: &[[Executed; 5]]) {
        for executed in ranks {
            let Self { arming, barrier, data, recovery, closing } = self;
            for (phase, executed) in [arming, barrier, data, recovery, closing].into_iter().zip(executed) {
                phase.instructions.add(executed.instructions);
                phase.cycles.add(executed.cycles);
            }
        }
    }
}

/// Reads the counters of each rank's card while an operation is under way.
#[derive(Debug)]
pub(super) struct Meter {
    /// Time and counters of polls in which something happened, by rank; none where ranks or communicators share cards,
    /// whose counters are of all of them.
    polls: Vec<Vec<(u64, Executed)>>,
}

impl Meter {
    /// Of the first so many ranks: none where communicators or ranks share cards.
    pub(super) fn new(ranks: usize) -> Self {
        Self { polls: vec![Vec::new(); ranks] }
    }

    /// The counters of a rank's card now, to be given to [`Meter::note`] if that turns out to be of interest.
    pub(super) fn read(&self, rank: usize) -> Result<Executed, SimError> {
        if self.polls.is_empty() {
            return Ok(Executed::default());
        }
        Ok(with_world(|world| world.executed(rank))?)
    }

    /// Something has happened to a rank in a poll that began at `now_ps`, when its counters were `executed`.
    pub(super) fn note(&mut self, rank: usize, now_ps: u64, executed: Executed) {
        if let Some(polls) = self.polls.get_mut(rank) {
            polls.push((now_ps, executed));
        }
    }

    /// What ranks that have ended well have executed in each phase.
    pub(super) fn by_phase(&self, done: &[Option<Outcome>]) -> Vec<[Executed; 5]> {
        let phases = |done: &Option<Outcome>| Some(*done.as_ref()?.as_ref().ok()?.report.phases.in_ps());
        let phases: Vec<Option<PhasesPs>> = done.iter().map(phases).collect();
        let first_sending_ps = phases.iter().flatten().filter_map(|phases| phases.sending_ps).min();
        let of = |(polls, phases): (&Vec<(u64, Executed)>, &Option<PhasesPs>)| {
            let ends_ps = ends_ps((*phases).as_ref()?, first_sending_ps);
            let at = ends_ps.map(|ps| counters_at(polls, ps));
            Some(std::array::from_fn(|phase| at[phase + 1].since(at[phase])))
        };
        self.polls.iter().zip(&phases).filter_map(of).collect()
    }
}

/// When an operation was posted, and when each of its phases ended, in order.
fn ends_ps(phases: &PhasesPs, first_sending_ps: Option<u64>) -> [u64; 6] {
    let PhasesPs { posted_ps, armed_ps, sent_ps, received_ps, cut_off_ps, complete_ps, released_ps, .. } = *phases;
    let received_ps = received_ps.max(received_ps.and(sent_ps));
    let data_ps = received_ps.or(cut_off_ps);
    let recovered_ps = if received_ps.is_some() { None } else { complete_ps };
    let mut at_ps = posted_ps;
    let mut next = |end_ps: Option<u64>| {
        at_ps = at_ps.max(end_ps.unwrap_or_default());
        at_ps
    };
    [Some(posted_ps), armed_ps, first_sending_ps, data_ps, recovered_ps, released_ps].map(&mut next)
}

/// Counters of the first poll from a time on: a phase ends in a poll of the host, or, where the card reports it, before
/// the poll in which the host receives the report.
fn counters_at(polls: &[(u64, Executed)], ps: u64) -> Executed {
    let from = polls.partition_point(|(at_ps, _)| *at_ps < ps);
    polls.get(from).or(polls.last()).map_or_else(Executed::default, |(_, executed)| *executed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn executed(instructions: u64) -> Executed {
        Executed { instructions, cycles: 10 * instructions }
    }

    #[test]
    fn phases_follow_one_another_whatever_has_happened() {
        let well = PhasesPs {
            posted_ps: 10,
            armed_ps: Some(20),
            sending_ps: Some(35),
            sent_ps: Some(60),
            received_ps: Some(50),
            complete_ps: Some(50),
            released_ps: Some(70),
            ..PhasesPs::default()
        };
        assert_eq!(ends_ps(&well, Some(30)), [10, 20, 30, 60, 60, 70]);
        // Armed behind the first root's turn: no barrier of its own.
        assert_eq!(ends_ps(&well, Some(15)), [10, 20, 20, 60, 60, 70]);
        let lost = PhasesPs { received_ps: None, cut_off_ps: Some(55), complete_ps: Some(65), ..well };
        assert_eq!(ends_ps(&lost, Some(30)), [10, 20, 30, 55, 65, 70]);
        // A rank alone neither sends nor receives.
        assert_eq!(
            ends_ps(&PhasesPs { posted_ps: 5, released_ps: Some(9), ..PhasesPs::default() }, None),
            [5, 5, 5, 5, 5, 9]
        );
    }

    #[test]
    fn counters_are_those_of_the_poll_that_ended_the_phase() {
        let polls: Vec<_> = [(10, 0), (20, 7), (30, 9)].map(|(ps, instructions)| (ps, executed(instructions))).into();
        for (ps, instructions) in [(0, 0), (10, 0), (11, 7), (20, 7), (21, 9), (30, 9), (99, 9)] {
            assert_eq!(counters_at(&polls, ps), executed(instructions), "{ps}");
        }
        assert_eq!(counters_at(&[], 5), executed(0));
    }

    #[test]
    fn counts_have_their_range() {
        let mut work = Work::default();
        work.add(&[[executed(4); 5], [executed(8); 5]]);
        for (name, PhaseWork { instructions, cycles }) in work.phases() {
            assert_eq!((instructions.least, instructions.mean, instructions.most), (4, 6.0, 8), "{name}");
            assert_eq!((cycles.least, cycles.mean, cycles.most), (40, 60.0, 80), "{name}");
        }
    }
}
