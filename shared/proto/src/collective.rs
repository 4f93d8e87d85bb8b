//! One rank's part in one collective operation, from posting to release: barrier, multicast in turn, receiving, cutoff, fetching,
//! final handshake, and a bound on all of it. Broadcast and Allgather differ in the schedule and the blocks alone.
//!
//! Whoever drives it brings events and the time, and carries out what [`Participant::poll`] asks for. Control messages travel on
//! reliable connections that keep their order; data does not concern this machine until a block is whole in the user buffer.
//!
//! A rank is at most one operation ahead of another, because the barrier of the next one needs everybody: a message of the next
//! operation is a barrier signal, and a message of the last one an acknowledgement that has become needless.

use thiserror::Error;

use crate::barrier::{Barrier, BarrierError};
use crate::handshake::{Handshake, HandshakeError};
use crate::ranks::{Place, RankSet};
use crate::recovery::{Recover, Recovery, RecoveryError};
use crate::sequencer::{Schedule, Sequence, SequenceError, Sequencer};

/// A control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Message {
    /// Number of the operation, modulo 2^32.
    pub operation: u32,
    /// What it says.
    pub body: Body,
}

/// What a control message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Body {
    /// The sender and all before it in this round of the barrier can receive.
    Barrier {
        /// Round, from 0.
        round: u8,
    },
    /// It is the receiver's turn to multicast.
    Activate,
    /// The sender misses chunks of these blocks.
    Fetch {
        /// The blocks.
        blocks: RankSet,
    },
    /// A block that was asked for can be read from the sender.
    Acknowledge {
        /// The block.
        block: u32,
    },
    /// The sender has everything and will not read any more.
    Final,
    /// The operation has failed for everybody.
    Failed(Failure),
}

/// Why an operation has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[error("rank {culprit} was silent while rank {witness} waited for it: {waited_for}")]
pub struct Failure {
    /// The rank that was waited for in vain; the own rank if its own worker did not come to an end.
    pub culprit: u32,
    /// The rank that waited.
    pub witness: u32,
    /// What it waited for.
    pub waited_for: WaitedFor,
}

/// What a rank can wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WaitedFor {
    /// A barrier signal.
    Barrier,
    /// The activation by the predecessor.
    Activation,
    /// The end of the own multicast.
    OwnSend,
    /// An acknowledgement, or the own read after it.
    Block,
    /// The right neighbour's final message.
    Final,
}

impl core::fmt::Display for WaitedFor {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            WaitedFor::Barrier => "its barrier signal",
            WaitedFor::Activation => "its activation of the next sender",
            WaitedFor::OwnSend => "the end of its multicast",
            WaitedFor::Block => "a block that was asked for",
            WaitedFor::Final => "its final message",
        })
    }
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Send a control message.
    Send {
        /// To whom.
        to: u32,
        /// What.
        message: Message,
    },
    /// Multicast the own block, then call [`Participant::sent`].
    Multicast,
    /// Read the missing runs of a block from a rank's user buffer, then call [`Participant::read`].
    Read {
        /// From whom.
        from: u32,
        /// The block.
        block: u32,
    },
    /// The operation is over on this rank: its buffers are the user's. Comes once.
    Release,
    /// The operation has failed; nothing more happens. Comes once.
    Fail(Failure),
}

/// What an operation is, alike on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Terms {
    /// Number of the operation, modulo 2^32.
    pub operation: u32,
    /// Ranks that contribute a block; one for Broadcast.
    pub roots: RankSet,
    /// Chains that multicast side by side.
    pub chains: u32,
    /// How long the barrier may take, in picoseconds: ranks may post at very different times.
    pub patience_ps: u64,
    /// Time from the end of the barrier to the cutoff, in picoseconds.
    pub cutoff_ps: u64,
    /// Time from the end of the barrier after which the operation has failed, in picoseconds. More than the cutoff.
    pub bound_ps: u64,
}

/// A message that cannot be. The connection it came on is not to be trusted any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ProtocolError {
    /// Of an operation that is not at hand.
    #[error("message of operation {operation} from rank {from}, but this rank is at {current}")]
    Operation {
        /// Who sent it.
        from: u32,
        /// What it is for.
        operation: u32,
        /// What is current.
        current: u32,
    },
    /// Of the barrier.
    #[error(transparent)]
    Barrier(#[from] BarrierError),
    /// Of the sequencer.
    #[error(transparent)]
    Sequence(#[from] SequenceError),
    /// Of recovery.
    #[error(transparent)]
    Recovery(#[from] RecoveryError),
    /// Of the handshake.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State {
    /// No operation; barrier signals of the next one are kept.
    Idle,
    Running,
    Failed,
}

/// One rank of a communicator: its operations, one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Participant {
    place: Place,
    barrier: Barrier,
    terms: Terms,
    sequencer: Option<Sequencer>,
    recovery: Recovery,
    handshake: Handshake,
    state: State,
    posted_ps: u64,
    passed_ps: Option<u64>,
    now_ps: u64,
    /// Neighbours that have not been told of the failure.
    untold: RankSet,
    failure: Option<Failure>,
    told: bool,
}

impl Participant {
    /// The rank at `place`, before operation number `first`.
    #[must_use]
    pub fn new(place: Place, first: u32) -> Self {
        let [patience_ps, cutoff_ps, bound_ps] = [u64::MAX; 3];
        let terms = Terms { operation: first, roots: RankSet::EMPTY, chains: 1, patience_ps, cutoff_ps, bound_ps };
        Self {
            place,
            barrier: Barrier::new(place, first),
            terms,
            sequencer: None,
            recovery: Recovery::new(place, RankSet::EMPTY),
            handshake: Handshake::new(place),
            state: State::Idle,
            posted_ps: 0,
            passed_ps: None,
            now_ps: 0,
            untold: RankSet::EMPTY,
            failure: None,
            told: false,
        }
    }

    /// The number that the next operation must have, or the current one has.
    #[must_use]
    pub const fn operation(&self) -> u32 {
        self.barrier.operation()
    }

    /// Begins an operation: bitmaps are clear, receives posted, workers awake. Its number must be [`Participant::operation`], and no
    /// other may be under way; otherwise nothing happens and false is returned.
    pub fn post(&mut self, terms: Terms, now_ps: u64) -> bool {
        if self.state != State::Idle || terms.operation != self.barrier.operation() {
            return false;
        }
        let schedule = Schedule::new(terms.roots.len(), terms.chains).ok();
        let position = terms.roots.position(self.place.rank());
        self.terms = terms;
        self.sequencer = schedule.zip(position).and_then(|(all, own)| all.turn(own)).map(Sequencer::new);
        self.recovery = Recovery::new(self.place, terms.roots);
        self.handshake = Handshake::new(self.place);
        self.state = State::Running;
        (self.posted_ps, self.passed_ps, self.now_ps) = (now_ps, None, now_ps);
        self.barrier.enter();
        true
    }

    /// A block is whole in the user buffer: the own one, copied, or one received by multicast.
    pub fn placed(&mut self, block: u32) {
        if self.state == State::Running {
            self.recovery.placed(block);
        }
    }

    /// The read of a block is over.
    pub fn read(&mut self, block: u32) {
        if self.state == State::Running {
            self.recovery.read(block);
        }
    }

    /// The own multicast is over.
    pub fn sent(&mut self) {
        if let Some(sequencer) = &mut self.sequencer {
            sequencer.sent();
        }
    }

    /// A control message has come.
    ///
    /// # Errors
    /// One that no rank that keeps to the protocol can have sent.
    pub fn handle(&mut self, from: u32, message: Message) -> Result<(), ProtocolError> {
        let Message { operation, body } = message;
        if let Body::Barrier { round } = body {
            // Once passed, the barrier is that of the next operation; see `poll`.
            return Ok(self.barrier.handle(from, operation, round)?);
        }
        if let Body::Failed(failure) = body {
            self.fail(failure);
            return Ok(());
        }
        let current = self.terms.operation;
        if operation != current || self.state == State::Idle {
            // A block came by multicast after it was asked for, and the answer after that.
            let needless = matches!(body, Body::Acknowledge { .. }) && operation.wrapping_sub(current) as i32 <= 0;
            return if needless { Ok(()) } else { Err(ProtocolError::Operation { from, operation, current }) };
        }
        match body {
            Body::Activate => match &mut self.sequencer {
                Some(sequencer) => {
                    // A rank without a block has no position, and nobody's predecessor is beyond the last.
                    let position = self.terms.roots.position(from).unwrap_or(u32::MAX);
                    sequencer.handle_activation(position)?;
                }
                None => {
                    let error = SequenceError::Activation { from, predecessor: None, activated: false };
                    return Err(error.into());
                }
            },
            Body::Fetch { blocks } => self.recovery.handle_fetch(from, &blocks)?,
            Body::Acknowledge { block } => self.recovery.handle_acknowledgement(from, block)?,
            Body::Final => self.handshake.handle_final(from)?,
            Body::Barrier { .. } | Body::Failed(_) => {}
        }
        Ok(())
    }

    /// Time has passed: the cutoff or a bound may be reached. To be called before [`Participant::poll`] with the time of the event.
    pub fn handle_time(&mut self, now_ps: u64) {
        self.now_ps = now_ps;
        if self.state != State::Running {
            return;
        }
        let over = match self.passed_ps {
            None => now_ps.saturating_sub(self.posted_ps) >= self.terms.patience_ps,
            Some(passed_ps) => {
                let since_ps = now_ps.saturating_sub(passed_ps);
                if since_ps >= self.terms.cutoff_ps {
                    self.recovery.cut_off();
                }
                since_ps >= self.terms.bound_ps
            }
        };
        if over {
            let (culprit, waited_for) = self.waiting_for();
            self.fail(Failure { culprit, witness: self.place.rank(), waited_for });
        }
    }

    /// When [`Participant::handle_time`] wants to be called next; none while nothing is under way.
    #[must_use]
    pub fn deadline_ps(&self) -> Option<u64> {
        if self.state != State::Running {
            return None;
        }
        let Some(passed_ps) = self.passed_ps else {
            return Some(self.posted_ps.saturating_add(self.terms.patience_ps));
        };
        let wanted = !self.recovery.has_fetched() && !self.recovery.is_complete();
        let span_ps = if wanted { self.terms.cutoff_ps.min(self.terms.bound_ps) } else { self.terms.bound_ps };
        Some(passed_ps.saturating_add(span_ps))
    }

    /// The rank on which this one's progress depends, and for what.
    #[must_use]
    pub fn waiting_for(&self) -> (u32, WaitedFor) {
        let own = self.place.rank();
        if self.passed_ps.is_none() {
            return (self.barrier.waiting_for().unwrap_or(own), WaitedFor::Barrier);
        }
        if let Some(rank) = self.recovery.waiting_for() {
            return (rank, WaitedFor::Block);
        }
        if !self.recovery.is_complete() || self.recovery.is_reading() {
            return (own, WaitedFor::Block);
        }
        if let Some(sequencer) = self.sequencer.filter(|sequencer| !sequencer.is_done()) {
            return match sequencer.waiting_for() {
                Some(position) => (self.terms.roots.nth(position).unwrap_or(own), WaitedFor::Activation),
                None => (own, WaitedFor::OwnSend),
            };
        }
        (self.handshake.waiting_for().unwrap_or(own), WaitedFor::Final)
    }

    /// Whether an operation is under way.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.state == State::Running
    }

    /// The operation cannot be completed any more; the neighbours are told, and pass it on.
    pub fn fail(&mut self, failure: Failure) {
        if self.failure.is_none() {
            self.failure = Some(failure);
            self.state = State::Failed;
            let ring = RankSet::of(self.place.left()).or(&RankSet::of(self.place.right()));
            self.untold = ring.without(&RankSet::of(self.place.rank()));
        }
    }

    /// The next thing to do; to be called until there is none, after every event.
    pub fn poll(&mut self) -> Option<Action> {
        if let Some(failure) = self.failure {
            if let Some(to) = self.untold.first() {
                self.untold.remove(to);
                return Some(self.send(to, Body::Failed(failure)));
            }
            return (!core::mem::replace(&mut self.told, true)).then_some(Action::Fail(failure));
        }
        if self.state != State::Running {
            return None;
        }
        if self.passed_ps.is_none() {
            if let Some(signal) = self.barrier.poll() {
                return Some(self.send(signal.to, Body::Barrier { round: signal.round }));
            }
            if self.barrier.is_passed() {
                self.passed_ps = Some(self.now_ps);
                // Signals that come from here on are of the next operation.
                self.barrier.advance();
                if let Some(sequencer) = &mut self.sequencer {
                    sequencer.ready();
                }
            }
        }
        match self.sequencer.as_mut().and_then(Sequencer::poll) {
            Some(Sequence::Send) => return Some(Action::Multicast),
            Some(Sequence::Activate { to }) => {
                // A successor is a position below the last.
                let to = self.terms.roots.nth(to).unwrap_or(self.place.rank());
                return Some(self.send(to, Body::Activate));
            }
            None => {}
        }
        match self.recovery.poll() {
            Some(Recover::Fetch { to, blocks }) => return Some(self.send(to, Body::Fetch { blocks })),
            Some(Recover::Acknowledge { to, block }) => return Some(self.send(to, Body::Acknowledge { block })),
            Some(Recover::Read { from, block }) => return Some(Action::Read { from, block }),
            None => {}
        }
        // Everything received, everything sent, and nobody ahead of the barrier.
        let passed = self.passed_ps.is_some();
        let received = self.recovery.is_complete() && !self.recovery.is_reading();
        if passed && received && self.sequencer.is_none_or(|sequencer| sequencer.is_done()) {
            self.handshake.complete();
        }
        if let Some(to) = self.handshake.poll() {
            return Some(self.send(to, Body::Final));
        }
        if self.handshake.is_released() {
            self.state = State::Idle;
            return Some(Action::Release);
        }
        None
    }

    fn send(&self, to: u32, body: Body) -> Action {
        Action::Send { to, message: Message { operation: self.terms.operation, body } }
    }
}
