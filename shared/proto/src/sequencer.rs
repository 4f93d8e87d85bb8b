//! Multicast sequencer: P ranks in M chains. The members of a chain send one after another, each activated by its
//! predecessor; the chains run side by side, without a common step. So at most M ranks send at any time (Khalilov et
//! al., Allgather as scheduled Broadcasts; generalised to any P and M).

use thiserror::Error;

use crate::ranks::MAX_RANKS;

/// P ranks in M chains of contiguous ranks: the first P mod M chains have one rank more than the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Schedule {
    ranks: u32,
    chains: u32,
}

/// A rank's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Turn {
    /// Its chain, below the number of chains.
    pub chain: u32,
    /// Its position in the chain, from 0: the head, which starts after the barrier.
    pub step: u32,
    /// Who activates it; none for the head.
    pub predecessor: Option<u32>,
    /// Whom it activates; none for the last.
    pub successor: Option<u32>,
}

/// No such schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ScheduleError {
    /// Too few or too many ranks.
    #[error("{ranks} ranks: a schedule is for 1 to {MAX_RANKS}")]
    Ranks {
        /// What was given.
        ranks: u32,
    },
    /// No chain at all.
    #[error("0 chains: at least one rank has to send")]
    NoChain,
}

impl Schedule {
    /// A schedule of `ranks` ranks in `chains` chains; more chains than ranks count as one for each.
    ///
    /// # Errors
    /// No ranks, more than [`MAX_RANKS`], or no chain.
    pub const fn new(ranks: u32, chains: u32) -> Result<Self, ScheduleError> {
        if ranks == 0 || ranks > MAX_RANKS {
            return Err(ScheduleError::Ranks { ranks });
        }
        if chains == 0 {
            return Err(ScheduleError::NoChain);
        }
        Ok(Self { ranks, chains: if chains < ranks { chains } else { ranks } })
    }

    /// Ranks.
    #[must_use]
    pub const fn ranks(self) -> u32 {
        self.ranks
    }

    /// Chains; at most the ranks.
    #[must_use]
    pub const fn chains(self) -> u32 {
        self.chains
    }

    /// Steps: the length of the longest chain.
    #[must_use]
    pub const fn steps(self) -> u32 {
        self.ranks.div_ceil(self.chains)
    }

    /// First rank of a chain, and how many it has; no rank for a chain that is not there.
    #[must_use]
    pub const fn chain(self, chain: u32) -> (u32, u32) {
        if chain >= self.chains {
            return (self.ranks, 0);
        }
        let (share, extra) = (self.ranks / self.chains, self.ranks % self.chains);
        let longer = if chain < extra { chain } else { extra };
        (chain * share + longer, share + (chain < extra) as u32)
    }

    /// The ranks that may send in a step: one of each chain that is long enough.
    pub fn group(self, step: u32) -> impl Iterator<Item = u32> {
        (0..self.chains).filter_map(move |chain| {
            let (first, length) = self.chain(chain);
            (step < length).then_some(first + step)
        })
    }

    /// A rank's turn; none for a rank that the schedule does not have.
    #[must_use]
    pub const fn turn(self, rank: u32) -> Option<Turn> {
        if rank >= self.ranks {
            return None;
        }
        let (share, extra) = (self.ranks / self.chains, self.ranks % self.chains);
        let in_longer = extra * (share + 1);
        let chain = if rank < in_longer { rank / (share + 1) } else { extra + (rank - in_longer) / share };
        let (first, length) = self.chain(chain);
        let step = rank - first;
        Some(Turn {
            chain,
            step,
            predecessor: if step == 0 { None } else { Some(rank - 1) },
            successor: if step + 1 == length { None } else { Some(rank + 1) },
        })
    }
}

/// Where the own turn is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Waiting,
    Sending,
    Done,
}

/// What the sequencer wants done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sequence {
    /// Multicast the own block.
    Send,
    /// Notify this rank that its turn has come. Travels on a reliable connection.
    Activate {
        /// To whom.
        to: u32,
    },
}

/// One rank's part in one operation of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sequencer {
    turn: Turn,
    ready: bool,
    activated: bool,
    stage: Stage,
    pending: Option<Sequence>,
}

/// A message of the sequencer that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SequenceError {
    /// From somebody else than the predecessor, or a second one.
    #[error(
        "activation from rank {from}, which is not due: the predecessor is {predecessor:?}, activated: {activated}"
    )]
    Activation {
        /// Who sent it.
        from: u32,
        /// Whose it should be.
        predecessor: Option<u32>,
        /// Whether it had come before.
        activated: bool,
    },
}

impl Sequencer {
    /// The part of the rank with a turn. Who it is and whom it activates are ranks of the schedule: where not every
    /// rank sends, positions among those that do.
    #[must_use]
    pub const fn new(turn: Turn) -> Self {
        Self { turn, ready: false, activated: turn.step == 0, stage: Stage::Waiting, pending: None }
    }

    /// The turn.
    #[must_use]
    pub const fn turn(&self) -> Turn {
        self.turn
    }

    /// The barrier is passed: every rank can receive.
    pub fn ready(&mut self) {
        self.ready = true;
        self.begin();
    }

    /// An activation has come. One that is ahead of the own barrier is kept.
    ///
    /// # Errors
    /// It is not the predecessor's, or it is the second one.
    pub fn handle_activation(&mut self, from: u32) -> Result<(), SequenceError> {
        if self.turn.predecessor != Some(from) || self.activated {
            let (predecessor, activated) = (self.turn.predecessor, self.activated);
            return Err(SequenceError::Activation { from, predecessor, activated });
        }
        self.activated = true;
        self.begin();
        Ok(())
    }

    fn begin(&mut self) {
        if self.ready && self.activated && self.stage == Stage::Waiting {
            self.stage = Stage::Sending;
            self.pending = Some(Sequence::Send);
        }
    }

    /// The successor may begin: the own block is sent, or all of it but the chunks that hide the activation's latency.
    pub fn sent(&mut self) {
        if self.stage == Stage::Sending && self.pending.is_none() {
            self.stage = Stage::Done;
            self.pending = self.turn.successor.map(|to| Sequence::Activate { to });
        }
    }

    /// What is to be done now.
    pub fn poll(&mut self) -> Option<Sequence> {
        self.pending.take()
    }

    /// Whether the own part is over.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.stage == Stage::Done && self.pending.is_none()
    }

    /// Whose activation is being waited for.
    #[must_use]
    pub fn waiting_for(&self) -> Option<u32> {
        if self.activated { None } else { self.turn.predecessor }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;
    use std::vec::Vec;

    fn groups(ranks: u32, chains: u32) -> Vec<Vec<u32>> {
        let schedule = Schedule::new(ranks, chains).unwrap();
        (0..schedule.steps()).map(|step| schedule.group(step).collect()).collect()
    }

    #[test]
    fn published_examples() {
        assert_eq!(groups(6, 2), [[0, 3], [1, 4], [2, 5]]);
        assert_eq!(groups(7, 3), [vec![0, 3, 5], vec![1, 4, 6], vec![2]]);
        assert_eq!(groups(10, 4), [vec![0, 3, 6, 8], vec![1, 4, 7, 9], vec![2, 5]]);
        assert_eq!(groups(3, 9), [[0, 1, 2]]);
        assert_eq!(Schedule::new(0, 1), Err(ScheduleError::Ranks { ranks: 0 }));
        assert_eq!(Schedule::new(4, 0), Err(ScheduleError::NoChain));
    }

    #[test]
    fn every_rank_sends_once_up_to_256_ranks_in_any_number_of_chains() {
        for ranks in 1..=if cfg!(miri) { 7u32 } else { 256 } {
            for chains in 1..=ranks {
                let schedule = Schedule::new(ranks, chains).unwrap();
                assert_eq!(schedule.steps(), ranks.div_ceil(chains));
                let mut seen = vec![false; ranks as usize];
                for step in 0..schedule.steps() {
                    let mut size = 0;
                    for rank in schedule.group(step) {
                        assert!(!std::mem::replace(&mut seen[rank as usize], true));
                        let turn = schedule.turn(rank).unwrap();
                        assert_eq!(turn.step, step);
                        assert_eq!(turn.predecessor, (step > 0).then(|| rank - 1));
                        if let Some(next) = turn.successor {
                            assert_eq!(schedule.turn(next).unwrap().predecessor, Some(rank));
                            assert_eq!(schedule.turn(next).unwrap().chain, turn.chain);
                        }
                        size += 1;
                    }
                    assert!((1..=chains).contains(&size));
                }
                assert!(seen.iter().all(|seen| *seen), "{ranks} ranks, {chains} chains");
                assert_eq!(schedule.turn(ranks), None);
            }
        }
    }

    #[test]
    fn a_member_starts_after_barrier_and_activation_in_either_order() {
        let schedule = Schedule::new(4, 2).unwrap();
        for barrier_first in [true, false] {
            let mut member = Sequencer::new(schedule.turn(1).unwrap());
            assert_eq!(member.waiting_for(), Some(0));
            if barrier_first {
                member.ready();
                assert_eq!(member.poll(), None);
                member.handle_activation(0).unwrap();
            } else {
                member.handle_activation(0).unwrap();
                assert_eq!(member.poll(), None);
                member.ready();
            }
            assert_eq!((member.poll(), member.poll()), (Some(Sequence::Send), None));
            member.sent();
            assert!(member.is_done(), "the last of its chain activates nobody");
            assert!(member.handle_activation(0).is_err());
        }
        let mut head = Sequencer::new(schedule.turn(2).unwrap());
        assert!(head.handle_activation(1).is_err(), "a head has no predecessor");
        head.sent();
        assert_eq!(head.poll(), None, "nothing is sent before the barrier");
        head.ready();
        head.ready();
        assert_eq!((head.poll(), head.poll()), (Some(Sequence::Send), None));
        head.sent();
        assert!(!head.is_done());
        assert_eq!((head.poll(), head.is_done()), (Some(Sequence::Activate { to: 3 }), true));
    }
}
