//! The machine that runs an algorithm on one rank.

use thiserror::Error;

use super::bruck::Bruck;
use super::dissemination::Dissemination;
use super::doubling::Doubling;
use super::exchange::Exchange;
use super::linear::Linear;
use super::plan::{Arrival, Plan, Transfer};
use super::reduce_doubling::ReduceDoubling;
use super::reduce_exchange::{Complete, ReduceExchange};
use super::reduce_ring::ReduceRing;
use super::reduce_tree::{ReduceTree, levels};
use super::reduction::{Reduction, Start};
use super::relay::{Relay, Tree};
use super::ring::Ring;
use super::rooted::{Rooted, Way};
use super::scatter_ring::ScatterRing;
use super::{Allgather, Allreduce, Broadcast, Operation, Reduce, ReduceScatter};
use crate::ranks::{MAX_RANKS, RankError, RankInfo, RankSet};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Algorithm {
    Ring(Ring),
    Linear(Linear),
    Doubling(Doubling),
    Bruck(Bruck),
    Relay(Relay),
    ScatterRing(ScatterRing),
    Exchange(Exchange),
    ReduceRing(ReduceRing),
    ReduceTree(ReduceTree),
    ReduceDoubling(ReduceDoubling),
    ReduceExchange(ReduceExchange),
    Rooted(Rooted),
    Dissemination(Dissemination),
}

/// How far ahead of the first missing message others may arrive: all that a rank may get from peers of which each has a
/// connection of its own, in two steps.
const WINDOW: u32 = 2 * MAX_RANKS;

/// One rank's part in one operation: which messages may be sent now, and when it is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Schedule {
    algorithm: Algorithm,
    place: RankInfo,
    /// Messages given out by `poll`, and those of them that are sent.
    polled: u32,
    sent: u32,
    /// Messages with lower tags have all arrived.
    arrived: u32,
    /// Of the [`WINDOW`] tags from `arrived` on, those that have, by tag modulo [`WINDOW`].
    ahead: [RankSet; 2],
    /// Reductions given out by `reduce`.
    reduced: u32,
}

/// No such schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ScheduleError {
    /// A root that is none of the ranks.
    #[error("the root: {0}")]
    Root(RankError),
    /// A tree that does not end.
    #[error("a k-nomial tree of radix {radix}: the radix is at least 2")]
    Radix {
        /// What was given.
        radix: u32,
    },
    /// Another number of blocks than the algorithm works on.
    #[error("{blocks} blocks: {algorithm:?} works on {wanted}")]
    Blocks {
        /// The algorithm.
        algorithm: Broadcast,
        /// What was given.
        blocks: u32,
        /// What would be right.
        wanted: u32,
    },
    /// No segment, or more than can be counted.
    #[error("{segments} segments to {children} children: at least 1, and less than 2^32 messages in all")]
    Segments {
        /// What was given.
        segments: u32,
        /// To how many ranks each goes.
        children: u32,
    },
}

/// A message that is not due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MessageError {
    /// This rank gets fewer messages.
    #[error("message {tag} from rank {from}: {receives} messages are expected in all")]
    Tag {
        /// Who sent it.
        from: u32,
        /// Its number.
        tag: u32,
        /// Messages to be received.
        receives: u32,
    },
    /// Somebody else is to send it.
    #[error("message {tag} from rank {from}: rank {expected} is to send it")]
    Sender {
        /// Who sent it.
        from: u32,
        /// Its number.
        tag: u32,
        /// Who should.
        expected: u32,
    },
    /// It has arrived before.
    #[error("message {tag} from rank {from} came twice")]
    Repeated {
        /// Who sent it.
        from: u32,
        /// Its number.
        tag: u32,
    },
    /// So far ahead that the connection must have lost or reordered messages.
    #[error("message {tag} from rank {from} before message {missing}")]
    Order {
        /// Who sent it.
        from: u32,
        /// Its number.
        tag: u32,
        /// What is missing.
        missing: u32,
    },
    /// More messages are said to be sent than were to be.
    #[error("a message was reported as sent, but none is under way")]
    NotPolled,
}

impl Schedule {
    /// The schedule of one rank. All ranks must give the same operation.
    ///
    /// # Errors
    /// A root that is no rank, a radix below 2, or a number of blocks that the algorithm does not work on.
    pub fn new(operation: Operation, place: RankInfo) -> Result<Self, ScheduleError> {
        let algorithm = match operation {
            Operation::Allgather(algorithm @ (Allgather::Ring | Allgather::PipelinedRing { .. })) => {
                let (segments, children) = (algorithm.segments(), 1);
                if segments == 0 || place.ranks().checked_mul(segments).is_none() {
                    return Err(ScheduleError::Segments { segments, children });
                }
                Algorithm::Ring(Ring { place, segments })
            }
            Operation::Allgather(Allgather::Linear) => Algorithm::Linear(Linear(place)),
            Operation::Allgather(Allgather::RecursiveDoubling) => Algorithm::Doubling(Doubling(place)),
            Operation::Allgather(Allgather::Bruck) => Algorithm::Bruck(Bruck(place)),
            Operation::Broadcast { algorithm, root, blocks } => {
                broadcast(algorithm, place, root_of(place, root)?, blocks)?
            }
            Operation::Alltoall(algorithm) => Algorithm::Exchange(Exchange { place, algorithm }),
            Operation::ReduceScatter(ReduceScatter::Ring) => Algorithm::ReduceRing(ReduceRing { place, gather: false }),
            Operation::ReduceScatter(ReduceScatter::Exchange) => {
                Algorithm::ReduceExchange(ReduceExchange { place, complete: Complete::Kept })
            }
            Operation::Allreduce(Allreduce::Ring) => Algorithm::ReduceRing(ReduceRing { place, gather: true }),
            Operation::Allreduce(Allreduce::Tree { segments }) => tree(place, 0, segments, true)?,
            Operation::Allreduce(Allreduce::RecursiveDoubling) => Algorithm::ReduceDoubling(ReduceDoubling(place)),
            Operation::Allreduce(Allreduce::Exchange) => {
                Algorithm::ReduceExchange(ReduceExchange { place, complete: Complete::ToAll })
            }
            Operation::Reduce { algorithm: Reduce::Tree { segments }, root } => tree(place, root, segments, false)?,
            Operation::Reduce { algorithm: Reduce::Exchange, root } => {
                let complete = Complete::ToRoot(root_of(place, root)?.rank());
                Algorithm::ReduceExchange(ReduceExchange { place, complete })
            }
            Operation::Gather { root } => {
                Algorithm::Rooted(Rooted { place, root: root_of(place, root)?, way: Way::ToRoot })
            }
            Operation::Scatter { root } => {
                Algorithm::Rooted(Rooted { place, root: root_of(place, root)?, way: Way::FromRoot })
            }
            Operation::Barrier => Algorithm::Dissemination(Dissemination(place)),
        };
        Ok(Self { algorithm, place, polled: 0, sent: 0, arrived: 0, ahead: [RankSet::EMPTY; 2], reduced: 0 })
    }

    fn plan(&self) -> &dyn Plan {
        match &self.algorithm {
            Algorithm::Ring(plan) => plan,
            Algorithm::Linear(plan) => plan,
            Algorithm::Doubling(plan) => plan,
            Algorithm::Bruck(plan) => plan,
            Algorithm::Relay(plan) => plan,
            Algorithm::ScatterRing(plan) => plan,
            Algorithm::Exchange(plan) => plan,
            Algorithm::ReduceRing(plan) => plan,
            Algorithm::ReduceTree(plan) => plan,
            Algorithm::ReduceDoubling(plan) => plan,
            Algorithm::ReduceExchange(plan) => plan,
            Algorithm::Rooted(plan) => plan,
            Algorithm::Dissemination(plan) => plan,
        }
    }

    /// The rank's place.
    #[must_use]
    pub const fn place(&self) -> RankInfo {
        self.place
    }

    /// Whether every rank gets a block from every other one.
    #[must_use]
    pub const fn is_allgather(&self) -> bool {
        matches!(
            self.algorithm,
            Algorithm::Ring(_) | Algorithm::Linear(_) | Algorithm::Doubling(_) | Algorithm::Bruck(_)
        )
    }

    /// All messages that this rank sends, in order, sent or not.
    pub fn sends(&self) -> impl Iterator<Item = Transfer> {
        (0..self.plan().sends()).map(|index| self.plan().send(index))
    }

    /// All messages that this rank receives, by their tags.
    pub fn receives(&self) -> impl Iterator<Item = Arrival> {
        (0..self.plan().receives()).map(|tag| self.plan().receive(tag))
    }

    /// One of the messages that this rank receives; none with such a tag.
    #[must_use]
    pub fn receive(&self, tag: u32) -> Option<Arrival> {
        (tag < self.plan().receives()).then(|| self.plan().receive(tag))
    }

    /// Ranks that this one sends to.
    #[must_use]
    pub fn targets(&self) -> RankSet {
        set(self.one_round().sends().map(|transfer| transfer.to))
    }

    /// Ranks that send to this one.
    #[must_use]
    pub fn sources(&self) -> RankSet {
        set(self.one_round().receives().map(|arrival| arrival.from))
    }

    /// The same for a single segment: with the same peers and fewer messages.
    fn one_round(&self) -> Self {
        let algorithm = match self.algorithm {
            Algorithm::Relay(relay) => Algorithm::Relay(relay.with_segments(1)),
            Algorithm::Ring(ring) => Algorithm::Ring(Ring { segments: 1, ..ring }),
            Algorithm::ReduceTree(tree) => Algorithm::ReduceTree(tree.with_segments(1)),
            other => other,
        };
        Self { algorithm, ..*self }
    }

    /// The part of the own contribution that is copied to the own result before anything else; none if nothing of it
    /// goes there as it is.
    #[must_use]
    pub fn start(&self) -> Option<Start> {
        self.plan().start()
    }

    /// The next reduction; none until more has arrived. After each [`Schedule::arrived`] the executor calls this until
    /// there is none, and makes each before the next call; before that, [`Schedule::poll`] gives nothing.
    pub fn reduce(&mut self) -> Option<Reduction> {
        let step = self.plan().reduction(self.reduced).filter(|step| step.after <= self.arrived)?;
        self.reduced += 1;
        Some(step.reduction)
    }

    /// Reductions that this rank makes in all.
    pub fn reductions(&self) -> impl Iterator<Item = Reduction> {
        (0..).map_while(|index| self.plan().reduction(index)).map(|step| step.reduction)
    }

    /// The next message to post. It holds until [`Schedule::sent`] is called for it.
    pub fn poll(&mut self) -> Option<Transfer> {
        if self.polled == self.plan().sends() {
            return None;
        }
        let transfer = self.plan().send(self.polled);
        let reduces = self.plan().reduction(self.reduced).is_some_and(|step| step.after <= self.arrived);
        if transfer.after > self.arrived || reduces {
            return None;
        }
        self.polled += 1;
        Some(transfer)
    }

    /// A message that was polled has been sent: the peer holds it, and the blocks may be overwritten as far as that
    /// message goes.
    ///
    /// # Errors
    /// None is under way.
    pub fn sent(&mut self) -> Result<(), MessageError> {
        if self.sent == self.polled {
            return Err(MessageError::NotPolled);
        }
        self.sent += 1;
        Ok(())
    }

    /// A message has arrived.
    ///
    /// # Errors
    /// It is not one that can be due; then nothing changes.
    pub fn arrived(&mut self, from: u32, tag: u32) -> Result<(), MessageError> {
        let receives = self.plan().receives();
        if tag >= receives {
            return Err(MessageError::Tag { from, tag, receives });
        }
        let expected = self.plan().receive(tag).from;
        if from != expected {
            return Err(MessageError::Sender { from, tag, expected });
        }
        let Some(ahead) = tag.checked_sub(self.arrived) else { return Err(MessageError::Repeated { from, tag }) };
        if ahead >= WINDOW {
            return Err(MessageError::Order { from, tag, missing: self.arrived });
        }
        if !ahead_of(&mut self.ahead, tag).insert(tag % MAX_RANKS) {
            return Err(MessageError::Repeated { from, tag });
        }
        while ahead_of(&mut self.ahead, self.arrived).remove(self.arrived % MAX_RANKS) {
            self.arrived += 1;
        }
        Ok(())
    }

    /// Whether everything has arrived, is combined and sent: the result is complete, and no message of this operation
    /// will touch a buffer.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.sent == self.plan().sends()
            && self.arrived == self.plan().receives()
            && self.plan().reduction(self.reduced).is_none()
    }

    /// Who owes the first message that is missing; none if all have arrived.
    #[must_use]
    pub fn waiting_for(&self) -> Option<u32> {
        (self.arrived < self.plan().receives()).then(|| self.plan().receive(self.arrived).from)
    }
}

fn set(ranks: impl Iterator<Item = u32>) -> RankSet {
    ranks.fold(RankSet::EMPTY, |mut set, rank| {
        set.insert(rank);
        set
    })
}

/// The set that has a tag's place.
fn ahead_of(ahead: &mut [RankSet; 2], tag: u32) -> &mut RankSet {
    let [low, high] = ahead;
    if tag % WINDOW < MAX_RANKS { low } else { high }
}

fn root_of(place: RankInfo, root: u32) -> Result<RankInfo, ScheduleError> {
    RankInfo::new(root, place.ranks()).map_err(ScheduleError::Root)
}

/// A tree to the root, and down again if it broadcasts.
fn tree(place: RankInfo, root: u32, segments: u32, broadcast: bool) -> Result<Algorithm, ScheduleError> {
    let children = levels(place.ranks()) + 1;
    if segments == 0 || children.checked_mul(segments).is_none() {
        return Err(ScheduleError::Segments { segments, children });
    }
    Ok(Algorithm::ReduceTree(ReduceTree::new(place, root_of(place, root)?, segments, broadcast)))
}

fn broadcast(algorithm: Broadcast, place: RankInfo, root: RankInfo, blocks: u32) -> Result<Algorithm, ScheduleError> {
    let tree = match algorithm {
        Broadcast::Knomial { radix } if radix < 2 => return Err(ScheduleError::Radix { radix }),
        Broadcast::Knomial { radix } => Tree::Knomial { radix },
        Broadcast::Heap => Tree::Heap,
        Broadcast::InOrder => Tree::InOrder,
        Broadcast::Chain => Tree::Chain,
        Broadcast::ScatterAllgather => {
            let wanted = place.ranks();
            if blocks != wanted {
                return Err(ScheduleError::Blocks { algorithm, blocks, wanted });
            }
            return Ok(Algorithm::ScatterRing(ScatterRing::new(place.rank(), root)));
        }
    };
    let relay = Relay::new(tree, place.rank(), root, blocks);
    if blocks == 0 || relay.children().checked_mul(blocks).is_none() {
        return Err(ScheduleError::Segments { segments: blocks, children: relay.children() });
    }
    Ok(Algorithm::Relay(relay))
}
