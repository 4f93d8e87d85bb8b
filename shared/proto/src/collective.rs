//! One rank's part in one collective operation, from posting to release: barrier, multicast in turn, receiving, cutoff,
//! fetching, final handshake, and a bound on all of it. Broadcast and Allgather differ in the schedule and the blocks
//! alone.
//!
//! Whoever drives it brings events and the time, and carries out what [`Participant::poll`] asks for. Control messages
//! travel on reliable connections that keep their order; data does not concern this machine until a block is whole in
//! the user buffer.
//!
//! A rank is at most one operation ahead of another, because the barrier of the next one needs everybody: a message of
//! the next operation is a barrier signal or its failure, and a message of the last one an acknowledgement that has
//! become needless.

mod failing;

use crate::agreement::{Agreement, Disagreement, Summary};
use crate::barrier::{Barrier, Signal};
use crate::failure::{Cause, Failure, WaitedFor};
use crate::handshake::Handshake;
use crate::message::{Action, Body, Message, OperationDescriptor, ProtocolError};
use crate::pieces::{PieceSet, Pieces};
use crate::ranks::{RankInfo, RankSet};
use crate::recovery::{Recover, Recovery};
use crate::sequencer::{Schedule, Sequence, SequenceError, Sequencer, Turn};
use crate::verdict::Verdict;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State {
    /// No operation; barrier signals of the next one are kept.
    Idle,
    Running,
    /// Somebody is silent; who it is may still turn out, until [`Participant::settling_ps`] has passed.
    Failing,
    Failed,
}

/// An operation whose data goes over connections of its own ([`Participant::post_direct`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Direct {
    /// All bytes are there, and all others have this rank's.
    over: bool,
    /// Whose message is missing.
    awaited: u32,
}

/// One rank of a communicator: its operations, one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Participant {
    place: RankInfo,
    barrier: Barrier,
    agreement: Agreement,
    descriptor: OperationDescriptor,
    sequencer: Option<Sequencer>,
    recovery: Recovery,
    handshake: Handshake,
    /// The data rides on the barrier's signals ([`eager`](crate::eager)).
    eager: bool,
    /// The data goes over connections of its own, and the operation has no barrier.
    direct: Option<Direct>,
    state: State,
    posted_ps: u64,
    passed_ps: Option<u64>,
    /// When data was last known to have come; 0: not since the barrier.
    progressed_ps: u64,
    now_ps: u64,
    /// Connected ranks that have not been notified of the failure as it is believed now.
    unnotified: RankSet,
    failure: Option<Verdict>,
    /// What two ranks have called that differ, as another rank says of the failure.
    learned: Option<Disagreement>,
    /// Ranks that have reported a failure.
    reported_by: RankSet,
    /// When a rank was first said to be silent, as far as this one knows the time: none until it is given the time
    /// again. Messages come without.
    failing_ps: Option<u64>,
    reported: bool,
}

impl Participant {
    /// The rank at `place`, before operation number `first`.
    #[must_use]
    pub fn new(place: RankInfo, first: u32) -> Self {
        let [barrier_timeout_ps, cutoff_ps, bound_ps] = [u64::MAX; 3];
        let descriptor = OperationDescriptor {
            operation: first,
            roots: RankSet::EMPTY,
            pieces: 1,
            summary: Summary::allgather(0, 0, 1),
            barrier_timeout_ps,
            cutoff_ps,
            bound_ps,
        };
        Self {
            place,
            barrier: Barrier::new(place, first),
            agreement: Agreement::new(),
            descriptor,
            sequencer: None,
            recovery: Recovery::new(place, Pieces::new(RankSet::EMPTY, 1)),
            handshake: Handshake::new(place),
            eager: false,
            direct: None,
            state: State::Idle,
            posted_ps: 0,
            passed_ps: None,
            progressed_ps: 0,
            now_ps: 0,
            unnotified: RankSet::EMPTY,
            failure: None,
            learned: None,
            reported_by: RankSet::EMPTY,
            failing_ps: None,
            reported: false,
        }
    }

    /// The number that the next operation must have, or the current one has.
    #[must_use]
    pub const fn operation(&self) -> u32 {
        self.barrier.operation()
    }

    /// Begins an operation: bitmaps are clear, receives posted, workers awake. Its number must be
    /// [`Participant::operation`], and no other may be under way; otherwise nothing happens and false is returned.
    pub fn post(&mut self, descriptor: OperationDescriptor, now_ps: u64) -> bool {
        let schedule = Schedule::new(descriptor.roots.len(), descriptor.summary.chains).ok();
        let position = descriptor.roots.position(self.place.rank());
        let turn = schedule.zip(position).and_then(|(all, own)| all.turn(own));
        self.post_with(&descriptor, turn, now_ps)
    }

    /// [`Participant::post`] with a turn of the caller's, as [`turn_in`](crate::turn_in) gives it, instead of one in
    /// contiguous chains; none for a rank that is no root. Ranks in it are positions among the roots. Turns of all
    /// ranks must fit each other.
    pub fn post_with(&mut self, descriptor: &OperationDescriptor, turn: Option<Turn>, now_ps: u64) -> bool {
        if !self.describe(descriptor, turn) {
            return false;
        }
        (self.eager, self.direct) = (false, None);
        self.begin(now_ps);
        true
    }

    /// Takes over all of a descriptor. False if its operation is not the next.
    fn describe(&mut self, descriptor: &OperationDescriptor, turn: Option<Turn>) -> bool {
        if self.state != State::Idle || descriptor.operation != self.barrier.operation() {
            return false;
        }
        // Firmware pays for every store: the roots are mostly those of the operation before.
        let OperationDescriptor { operation, roots, pieces, summary, barrier_timeout_ps, cutoff_ps, bound_ps } =
            descriptor;
        let own = &mut self.descriptor;
        if own.roots != *roots {
            own.roots = *roots;
        }
        (own.operation, own.pieces, own.summary) = (*operation, *pieces, *summary);
        (own.barrier_timeout_ps, own.cutoff_ps, own.bound_ps) = (*barrier_timeout_ps, *cutoff_ps, *bound_ps);
        // A rank alone has nobody to multicast to.
        self.sequencer = turn.filter(|_| self.place.ranks() > 1).map(Sequencer::new);
        self.recovery.restart(&descriptor.roots, descriptor.pieces);
        self.handshake = Handshake::new(self.place);
        true
    }

    /// [`Participant::post`] of an operation to which every rank contributes, whose data goes over connections of its
    /// own by one of the algorithms of [`p2p`](crate::p2p). It has no barrier and no final handshake: a rank cannot
    /// have everything before every rank has posted it, so that a rank is at most one operation ahead here, too. The
    /// connections compare what is called; a rank that signals the barrier of such an operation has called something
    /// else. On all ranks alike.
    pub fn post_direct(&mut self, descriptor: OperationDescriptor, now_ps: u64) -> bool {
        if !self.describe(&descriptor, None) {
            return false;
        }
        (self.eager, self.direct) = (false, Some(Direct { over: false, awaited: self.place.left() }));
        self.run(now_ps);
        self.agreement.post(descriptor.summary);
        self.agreement.advance();
        self.barrier.skip();
        self.compare();
        true
    }

    /// Data of a direct operation has come or gone, and the next is to come from `awaited`.
    pub fn transferred(&mut self, awaited: u32, now_ps: u64) {
        if let Some(direct) = &mut self.direct {
            direct.awaited = awaited;
            self.progressed_ps = now_ps;
        }
    }

    /// What this rank has called, of the operation under way or the last one.
    #[must_use]
    pub const fn summary(&self) -> Summary {
        self.descriptor.summary
    }

    /// The connections of a direct operation have found that a rank called something else (`theirs`) than this one
    /// (`own`), as far as the two have to agree.
    pub fn disagrees(&mut self, rank: u32, theirs: Summary, own: Summary) {
        if self.state == State::Running {
            self.agreement.refuse(rank, theirs, own);
            self.compare();
        }
    }

    /// A direct operation has all its bytes, and nobody waits for any of this rank.
    pub const fn transferred_all(&mut self) {
        if let Some(direct) = &mut self.direct {
            direct.over = true;
        }
    }

    /// [`Participant::post`] of an operation whose data rides on the barrier's signals, as [`eager`](crate::eager) has
    /// it: who passes the barrier has everything, and is released. On all ranks alike. Nothing is fetched, and no final
    /// message sent, so that an operation is its number, its summary and how long its barrier may take.
    pub fn post_eager(
        &mut self,
        operation: u32,
        summary: Summary,
        (barrier_timeout_ps, bound_ps): (u64, u64),
        now_ps: u64,
    ) -> bool {
        if self.state != State::Idle || operation != self.barrier.operation() {
            return false;
        }
        let descriptor = &mut self.descriptor;
        (descriptor.operation, descriptor.summary) = (operation, summary);
        (descriptor.barrier_timeout_ps, descriptor.bound_ps) = (barrier_timeout_ps, bound_ps);
        self.sequencer = None;
        (self.eager, self.direct) = (true, None);
        self.begin(now_ps);
        true
    }

    /// The operation that has just been described begins.
    fn begin(&mut self, now_ps: u64) {
        self.run(now_ps);
        self.barrier.enter();
        self.agreement.post(self.descriptor.summary);
        self.compare();
    }

    fn run(&mut self, now_ps: u64) {
        self.state = State::Running;
        (self.posted_ps, self.passed_ps, self.progressed_ps, self.now_ps) = (now_ps, None, 0, now_ps);
    }

    /// A rank's block is whole in the user buffer: the own one, copied, or one received by multicast.
    pub fn delivered(&mut self, rank: u32) {
        if self.state == State::Running {
            self.recovery.delivered_block(rank);
        }
    }

    /// Pieces are whole in the user buffer.
    pub fn delivered_pieces(&mut self, pieces: &PieceSet) {
        if self.state == State::Running {
            self.recovery.delivered(pieces);
        }
    }

    /// All pieces but these are whole in the user buffer.
    pub fn delivered_all_but(&mut self, incomplete: &PieceSet) {
        if self.state == State::Running {
            self.recovery.delivered_all_but(incomplete);
        }
    }

    /// All blocks are whole in the user buffer: received by multicast, and the own one copied.
    pub fn delivered_all(&mut self) {
        if self.state == State::Running {
            self.recovery.delivered_all();
        }
    }

    /// The read of a piece is over.
    pub fn read(&mut self, piece: u32) {
        if self.state == State::Running {
            self.recovery.read(piece);
        }
    }

    /// Whether multicast is over for the right neighbour: it has everything, or asks for all that it has lost. Then
    /// nothing more is on its way to this rank either, except what the network holds just now.
    #[must_use]
    pub fn is_over_for_neighbour(&self) -> bool {
        self.state == State::Running && !self.eager && (self.recovery.was_asked() || self.handshake.has_received())
    }

    /// Whether the right neighbour waits for pieces that are not known to be whole here.
    #[must_use]
    pub fn owes(&self) -> bool {
        self.state == State::Running && self.recovery.owes()
    }

    /// Data has come until now: what remains of the operation has its full bound.
    pub const fn progressed(&mut self, now_ps: u64) {
        self.progressed_ps = now_ps;
    }

    /// Multicast brings nothing more of these pieces: they are to be asked for at once. `last`: nor does it of others,
    /// which have come and may not be in their place yet. What is to be done, if anything, in addition to what
    /// [`Participant::poll`] says.
    #[must_use]
    pub fn lost(&mut self, pieces: &PieceSet, last: bool) -> Option<Action> {
        if self.state != State::Running || self.passed_ps.is_none() {
            return None;
        }
        match self.recovery.lost(pieces, last)? {
            Recover::Fetch { to, pieces, last } => Some(self.send(to, Body::Fetch { pieces, last })),
            Recover::Acknowledge { .. } | Recover::Read { .. } => None,
        }
    }

    /// Multicast has stalled, before its cutoff or behind it: whatever is missing now is asked for.
    pub fn cut_off(&mut self, now_ps: u64) {
        if self.state == State::Running && self.passed_ps.is_some() {
            self.progressed(now_ps);
            self.recovery.cut_off();
        }
    }

    /// The own multicast is over.
    pub fn sent(&mut self) {
        if let Some(sequencer) = &mut self.sequencer {
            sequencer.sent();
        }
    }

    /// The latest operation of which messages can be taken now. Where operations without a barrier are among others,
    /// ranks may be further ahead: what they say waits on its connection until this rank has come so far.
    #[must_use]
    pub const fn latest(&self) -> u32 {
        self.barrier.latest()
    }

    /// A control message has come.
    ///
    /// # Errors
    /// One that no rank that keeps to the protocol can have sent.
    pub fn handle(&mut self, from: u32, message: Message) -> Result<(), ProtocolError> {
        let Message { operation, body } = message;
        if let Body::Failed { failure, calls } = body {
            self.failed(Some(from), operation, failure);
            self.learn(&failure, calls);
            return Ok(());
        }
        if matches!(self.state, State::Failing | State::Failed) {
            // It does not matter any more.
            return Ok(());
        }
        if let Body::Barrier { round, summary } = body {
            // Once passed, the barrier is that of the next operation; see `poll`.
            let next = operation != self.barrier.operation();
            if self.direct.is_some() && self.state == State::Running && operation == self.descriptor.operation {
                self.agreement.refuse(from, summary, self.descriptor.summary);
                self.compare();
                return Ok(());
            }
            self.barrier.handle(from, operation, round)?;
            self.agreement.handle(from, summary, next);
            self.compare();
            return Ok(());
        }
        let current = self.descriptor.operation;
        // An eager operation has no message but the signals of its barrier.
        if operation != current || self.state == State::Idle || self.eager {
            // A piece came by multicast after it was asked for, and the answer after that.
            let needless = matches!(body, Body::Acknowledge { .. }) && operation.wrapping_sub(current) as i32 <= 0;
            return if needless { Ok(()) } else { Err(ProtocolError::Operation { from, operation, current }) };
        }
        match body {
            Body::Activate => match &mut self.sequencer {
                Some(sequencer) => {
                    // A rank without a block has no position, and nobody's predecessor is beyond the last.
                    let position = self.descriptor.roots.position(from).unwrap_or(u32::MAX);
                    sequencer.handle_activation(position)?;
                }
                None => {
                    let error = SequenceError::Activation { from, predecessor: None, activated: false };
                    return Err(error.into());
                }
            },
            Body::Fetch { pieces, last } => self.recovery.handle_fetch(from, &pieces, last)?,
            Body::Acknowledge { pieces } => self.recovery.handle_acknowledgement(from, &pieces)?,
            Body::Final => self.handshake.handle_final(from)?,
            Body::Barrier { .. } | Body::Failed { .. } => {}
        }
        Ok(())
    }

    /// Whether the barrier of the operation under way is all that there is to do: it is not left yet, and nothing has
    /// failed.
    #[must_use]
    #[inline]
    pub fn is_in_barrier(&self) -> bool {
        self.state == State::Running && self.passed_ps.is_none() && self.failure.is_none()
    }

    /// Whether all signals of the barrier have been sent and have come: [`Participant::poll`] leaves it.
    #[must_use]
    #[inline]
    pub fn is_barrier_passed(&self) -> bool {
        self.barrier.is_passed()
    }

    /// [`Participant::handle`] of a signal of the operation under way whose sender has called the same, to be called
    /// only while [`Participant::is_in_barrier`]. Firmware sees that from the bytes, without decoding them.
    ///
    /// # Errors
    /// One that no rank that keeps to the protocol can have sent.
    #[inline]
    pub fn handle_agreed(&mut self, from: u32, round: u8) -> Result<(), ProtocolError> {
        Ok(self.barrier.handle(from, self.barrier.operation(), round)?)
    }

    /// [`Participant::poll`] of the signals of the barrier alone, to be called only while
    /// [`Participant::is_in_barrier`].
    #[inline]
    pub fn poll_signal(&mut self) -> Option<Signal> {
        self.barrier.poll()
    }

    /// Time has passed: the cutoff or a bound may be reached. To be called before [`Participant::poll`] with the time
    /// of the event, and when [`Participant::deadline_ps`] is reached; it need not be called otherwise.
    pub fn handle_time(&mut self, now_ps: u64) {
        self.now_ps = now_ps;
        if self.state == State::Failing
            && now_ps.saturating_sub(*self.failing_ps.get_or_insert(now_ps)) >= self.settling_ps()
        {
            self.state = State::Failed;
            // This rank goes now: whoever may see its connections break must know before why.
            self.place.for_each_connected(|rank| _ = self.unnotified.insert(rank));
        }
        if self.state != State::Running {
            return;
        }
        let over = match self.passed_ps {
            None if self.direct.is_some() => now_ps >= self.direct_bound_ps(),
            None => now_ps.saturating_sub(self.posted_ps) >= self.descriptor.barrier_timeout_ps,
            Some(passed_ps) => {
                if now_ps.saturating_sub(passed_ps) >= self.descriptor.cutoff_ps {
                    self.recovery.cut_off();
                }
                now_ps.saturating_sub(passed_ps.max(self.progressed_ps)) >= self.descriptor.bound_ps
            }
        };
        if over {
            let (failed_rank, waited_for) = self.waiting_for();
            self.fail(Failure { failed_rank, detecting_rank: self.place.rank(), cause: Cause::Silent(waited_for) });
        }
    }

    /// When [`Participant::handle_time`] wants to be called next; none while nothing is under way.
    #[must_use]
    pub fn deadline_ps(&self) -> Option<u64> {
        if self.state == State::Failing {
            return Some(self.failing_ps.map_or(self.now_ps, |since_ps| since_ps.saturating_add(self.settling_ps())));
        }
        if self.state != State::Running {
            return None;
        }
        if self.direct.is_some() {
            return Some(self.direct_bound_ps());
        }
        let Some(passed_ps) = self.passed_ps else {
            return Some(self.posted_ps.saturating_add(self.descriptor.barrier_timeout_ps));
        };
        let bound_ps = passed_ps.max(self.progressed_ps).saturating_add(self.descriptor.bound_ps);
        let wanted = !self.recovery.has_fetched() && !self.recovery.is_complete();
        let cutoff_ps = passed_ps.saturating_add(self.descriptor.cutoff_ps);
        Some(if wanted { cutoff_ps.min(bound_ps) } else { bound_ps })
    }

    /// When a direct operation has waited for too long: ranks may post at very different times.
    fn direct_bound_ps(&self) -> u64 {
        self.posted_ps.max(self.progressed_ps).saturating_add(self.descriptor.barrier_timeout_ps)
    }

    /// The rank on which this one's progress depends, and for what.
    #[must_use]
    pub fn waiting_for(&self) -> (u32, WaitedFor) {
        let own = self.place.rank();
        if let Some(direct) = &self.direct {
            return (direct.awaited, WaitedFor::Block);
        }
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
                Some(position) => (self.descriptor.roots.nth(position).unwrap_or(own), WaitedFor::Activation),
                None => (own, WaitedFor::OwnSend),
            };
        }
        (self.handshake.waiting_for().unwrap_or(own), WaitedFor::Final)
    }

    /// The rank that has to send a message before this one can go on; none if it waits for itself, or for nothing. Not
    /// of a direct operation, whose connections know better. That rank has its part still before it: if it is gone, the
    /// operation cannot end.
    #[must_use]
    pub fn awaited(&self) -> Option<u32> {
        let waits = self.state == State::Running && self.direct.is_none();
        let (rank, _) = waits.then(|| self.waiting_for())?;
        (rank != self.place.rank()).then_some(rank)
    }

    /// When the barrier of the operation under way, or of the last one, was passed: every rank could receive.
    #[must_use]
    pub const fn ready_ps(&self) -> Option<u64> {
        self.passed_ps
    }

    /// Whether every block of the operation under way is whole in the user buffer.
    #[must_use]
    pub fn has_everything(&self) -> bool {
        self.state == State::Running && !self.eager && self.recovery.is_complete() && !self.recovery.is_reading()
    }

    /// Whether an operation is under way.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.state == State::Running
    }

    /// The next thing to do; to be called until there is none, after every event.
    pub fn poll(&mut self) -> Option<Action> {
        if let Some(Verdict { operation, failure, .. }) = self.failure {
            if let Some(to) = self.unnotified.first() {
                self.unnotified.remove(to);
                let calls = self.calls_of(&failure);
                return Some(Action::Send {
                    to,
                    message: Message { operation, body: Body::Failed { failure, calls } },
                });
            }
            if self.state == State::Failed {
                return (!core::mem::replace(&mut self.reported, true)).then_some(Action::Fail(failure));
            }
        }
        if self.state != State::Running {
            return None;
        }
        if let Some(direct) = self.direct {
            if !direct.over {
                return None;
            }
            self.recovery.delivered_all();
            self.state = if self.failure.is_some() { State::Failed } else { State::Idle };
            return Some(Action::Release);
        }
        if self.passed_ps.is_none() {
            if let Some(signal) = self.barrier.poll() {
                let summary = self.descriptor.summary;
                return Some(self.send(signal.to, Body::Barrier { round: signal.round, summary }));
            }
            if self.barrier.is_passed() {
                self.leave_barrier();
                if let Some(sequencer) = &mut self.sequencer {
                    sequencer.ready();
                }
            }
        }
        if self.eager {
            self.passed_ps?;
            self.state = if self.failure.is_some() { State::Failed } else { State::Idle };
            return Some(Action::Release);
        }
        match self.sequencer.as_mut().and_then(Sequencer::poll) {
            Some(Sequence::Send) => return Some(Action::Multicast),
            Some(Sequence::Activate { to }) => {
                // A successor is a position below the last.
                let to = self.descriptor.roots.nth(to).unwrap_or(self.place.rank());
                return Some(self.send(to, Body::Activate));
            }
            None => {}
        }
        match self.recovery.poll() {
            Some(Recover::Fetch { to, pieces, last }) => return Some(self.send(to, Body::Fetch { pieces, last })),
            Some(Recover::Acknowledge { to, pieces }) => return Some(self.send(to, Body::Acknowledge { pieces })),
            Some(Recover::Read { from, pieces }) => return Some(Action::Read { from, pieces }),
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
            self.state = if self.failure.is_some() { State::Failed } else { State::Idle };
            return Some(Action::Release);
        }
        None
    }

    fn leave_barrier(&mut self) {
        self.passed_ps = Some(self.now_ps);
        // Signals that come from here on are of the next operation.
        self.barrier.advance();
        self.agreement.advance();
    }

    /// [`Participant::poll`] of an eager operation whose barrier is passed, at the time `now_ps`: it is released, if
    /// nothing has failed. False, and nothing happens, if that is not how it stands.
    #[inline]
    pub fn release_eager(&mut self, now_ps: u64) -> bool {
        let over = self.eager && self.is_in_barrier() && self.barrier.is_passed();
        if over {
            self.now_ps = now_ps;
            self.leave_barrier();
            self.state = State::Idle;
        }
        over
    }

    fn send(&self, to: u32, body: Body) -> Action {
        Action::Send { to, message: Message { operation: self.descriptor.operation, body } }
    }
}
