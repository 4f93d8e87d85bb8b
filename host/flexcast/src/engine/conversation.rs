//! Conversation of a rank with its peers: the protocol's state machine, and what it sends and receives as bytes.
//! Whatever connects the peers carries the bytes.

use std::collections::{BTreeMap, VecDeque};

use flexcast_proto::sequencer::Turn;
use flexcast_proto::wire::{Availability, Codec, Encoded, split_eager};
use flexcast_proto::{
    Action, Body, Cause, Disagreement, Failure, FailureCode, Message, OperationDescriptor, Participant, PieceSet,
    RankInfo,
};

use crate::engine::calls::{packed, unpacked};
use crate::engine::eager::{Eager, Gathered};
use crate::engine::event::Event;
use crate::op::report::{MessageCounts, Report};
use crate::plan::tuner::Note;

/// Most signals of operations far ahead that wait: each rank that this one receives from in a barrier has sent one at
/// most.
const MOST_EARLY: usize = 64;

/// What is known of the current operation outside the state machine.
#[derive(Debug, Default)]
struct Current {
    /// The operation, until its receives are posted.
    posting: Option<(OperationDescriptor, Option<Turn>)>,
    /// Where peers may read from this rank.
    here: Availability,
    /// Where the left neighbour has the pieces that it has acknowledged.
    offer: Option<Availability>,
    /// Pieces that are read together, by the first of them.
    groups: BTreeMap<u32, PieceSet>,
    /// Pieces of the other ranks' blocks.
    foreign: PieceSet,
    /// Fetch requests of the right neighbour.
    fetches: u64,
    /// The note that rides on the barrier, and what has come of those of the other ranks; with the operation's number.
    note: Option<(u32, Note)>,
    /// A rank whose note, which came before the operation began, cannot be.
    wrong_note: Option<u32>,
}

/// The protocol of a communicator, on the host.
#[derive(Debug)]
pub(crate) struct Conversation {
    place: RankInfo,
    participant: Participant,
    codec: Codec,
    eager: Eager,
    current: Current,
    messages: MessageCounts,
    /// What is to be done besides what the state machine asks for.
    asks: VecDeque<Action>,
    /// Signals of operations further ahead than the state machine takes them, with their senders and numbers. Where
    /// operations have no barrier, a rank whose part is over goes on to others while this one waits.
    early: Vec<(u32, u32, Vec<u8>)>,
    /// Something of the operation under way has come or gone since the protocol was last notified of the time.
    moved: bool,
    /// When it was last notified of progress. Earlier times follow, while it must not see its deadline pass.
    progressed_ps: u64,
}

impl Conversation {
    /// Before operation number `first`. Blocks of up to `eager_bytes` in all may ride on the barrier.
    pub(crate) fn new(place: RankInfo, first: u32, eager_bytes: u64) -> Self {
        Self {
            place,
            participant: Participant::new(place, first),
            codec: Codec::new(0, place.ranks()),
            eager: Eager::new(place, eager_bytes),
            current: Current::default(),
            messages: MessageCounts::default(),
            asks: VecDeque::new(),
            early: Vec::new(),
            moved: false,
            progressed_ps: 0,
        }
    }

    /// The number of the communicator is known, which all messages carry.
    pub(crate) const fn connect(&mut self, communicator: u64) {
        self.codec = Codec::new(communicator, self.place.ranks());
    }

    pub(crate) const fn participant(&self) -> &Participant {
        &self.participant
    }

    /// An operation whose receives are not posted yet ([`Event::Armed`]). `here`: where peers may read from this rank.
    pub(crate) fn start(
        &mut self,
        posting: (OperationDescriptor, Option<Turn>),
        here: Availability,
        foreign: PieceSet,
    ) {
        self.current = Current { posting: Some(posting), here, foreign, ..Current::default() };
        self.moved = false;
        self.eager.forget();
    }

    /// [`Conversation::start`] of an operation with a note, which rides on its barrier to all ranks, as theirs do to
    /// this one; all ranks start it so.
    pub(crate) fn start_with_note(
        &mut self,
        posting: (OperationDescriptor, Option<Turn>),
        here: Availability,
        foreign: PieceSet,
        mut note: Note,
    ) {
        let operation = posting.0.operation;
        let mut wrong = None;
        for (from, data) in self.eager.early(operation) {
            match Note::decode(self.place, data) {
                Some(theirs) => note.add(&theirs),
                None => wrong = Some(from),
            }
        }
        self.start(posting, here, foreign);
        (self.current.note, self.current.wrong_note) = (Some((operation, note)), wrong);
    }

    /// The notes of all ranks, once the barrier of the operation under way is passed.
    pub(crate) fn notes(&self) -> Note {
        self.current.note.as_ref().map_or_else(Note::default, |(_, note)| note.clone())
    }

    /// Most bytes of all blocks of an operation that ride on the barrier.
    pub(crate) const fn eager_bytes(&self) -> u64 {
        self.eager.limit()
    }

    /// See [`Protocol::start_eager`](super::protocol::Protocol::start_eager).
    pub(crate) fn start_eager(&mut self, descriptor: OperationDescriptor, gathered: Gathered, now_ps: u64) {
        self.current = Current::default();
        let fits = self.eager.start(descriptor.operation, gathered);
        let OperationDescriptor { operation, summary, barrier_timeout_ps, bound_ps, .. } = descriptor;
        self.participant.post_eager(operation, summary, (barrier_timeout_ps, bound_ps), now_ps);
        if !fits {
            // Where calls differ, the state machine has found that by itself, and names the rank.
            let own = self.place.rank();
            self.participant.fail(Failure {
                failed_rank: own,
                detecting_rank: own,
                cause: Cause::Connection(FailureCode::ProtocolViolation),
            });
        }
    }

    /// See [`Protocol::start_direct`](super::protocol::Protocol::start_direct).
    pub(crate) fn start_direct(&mut self, descriptor: OperationDescriptor, now_ps: u64) {
        self.current = Current::default();
        self.eager.forget();
        self.participant.post_direct(descriptor, now_ps);
    }

    /// Eager data of [`Conversation::encode`] that has been sent, whose memory may be used again.
    pub(crate) fn give_back(&mut self, data: Vec<u8>) {
        self.eager.give_back(data);
    }

    /// The blocks of an eager operation that is over.
    pub(crate) fn take_eager(&mut self) -> Option<Gathered> {
        self.eager.finish()
    }

    /// Takes note of what has happened.
    pub(crate) fn handle(&mut self, now_ps: u64, event: Event<'_>) {
        let participant = &mut self.participant;
        match event {
            Event::Message { from, bytes } => self.receive(from, bytes),
            Event::Read { tag } => self.read(tag),
            Event::Broken { rank, status } => self.broken(rank, FailureCode::of_completion(status)),
            Event::Wrong { rank, came } => {
                tracing::error!(rank, came, "the other end of a connection is not the rank that was meant");
                self.broken(rank, FailureCode::WrongPeer);
            }
            Event::Armed => {
                if let Some((descriptor, turn)) = self.current.posting.take() {
                    participant.post_with(&descriptor, turn, now_ps);
                }
                if let Some(from) = self.current.wrong_note.take() {
                    // Where calls differ, the state machine has found that by itself, and names the rank.
                    let (own, cause) = (self.place.rank(), Cause::Connection(FailureCode::ProtocolViolation));
                    participant.fail(Failure { failed_rank: from, detecting_rank: own, cause });
                }
            }
            Event::Received => {
                participant.progressed(now_ps);
                participant.delivered_all();
            }
            Event::Lost { pieces, last } => self.asks.extend(participant.lost(&pieces, last)),
            Event::Placed { pieces } => participant.delivered_pieces(&pieces),
            Event::CutOff { lost } => {
                participant.delivered_pieces(&self.current.foreign.without(&lost));
                participant.cut_off(now_ps);
            }
            Event::OwnBlock => participant.delivered(self.place.rank()),
            Event::Transferred { awaited } => participant.transferred(awaited, now_ps),
            Event::TransferredAll => participant.transferred_all(),
            Event::Disagrees { rank, theirs, own } => participant.disagrees(rank, theirs, own),
            Event::Progressed => self.progress(now_ps),
            Event::Sent => {
                participant.sent();
                self.progress(now_ps);
            }
            Event::Failed(failure) | Event::Crashed(failure) => participant.fail(failure),
            Event::Time => {
                if std::mem::take(&mut self.moved) {
                    self.progress(now_ps);
                }
                self.participant.handle_time(now_ps);
            }
        }
    }

    fn progress(&mut self, now_ps: u64) {
        if now_ps > self.progressed_ps {
            self.progressed_ps = now_ps;
            self.participant.progressed(now_ps);
        }
    }

    /// Bytes that a peer was asked for have come, or some that it has asked for have gone: the operation's bound counts
    /// from the next [`Event::Time`] on, and not from the end of all reads.
    pub(crate) const fn moved(&mut self) {
        self.moved = true;
    }

    /// Takes a message of a peer. One that cannot be fails the operation.
    pub(crate) fn receive(&mut self, from: u32, bytes: &[u8]) {
        if let Err(error) = self.take(from, bytes) {
            tracing::error!(from, error, "message refused");
            let cause = Cause::Connection(FailureCode::ProtocolViolation);
            self.participant.fail(Failure { failed_rank: from, detecting_rank: self.place.rank(), cause });
        }
    }

    /// Whether signals of an operation are to wait until this rank has come so far.
    const fn is_far_ahead(&self, operation: u32) -> bool {
        operation.wrapping_sub(self.participant.latest()).cast_signed() > 0
    }

    /// Takes the signals that have waited, and need not any more.
    fn take_early(&mut self) {
        while let Some(at) = self.early.iter().position(|(operation, ..)| !self.is_far_ahead(*operation)) {
            let (_, from, bytes) = self.early.remove(at);
            self.receive(from, &bytes);
        }
    }

    fn take(&mut self, from: u32, whole: &[u8]) -> Result<(), String> {
        let (bytes, data) = split_eager(whole);
        let control = self.codec.decode(bytes).map_err(|error| error.to_string())?;
        let message = unpacked(control.message).ok_or("a call of a kind that is not known")?;
        let operation = message.operation;
        if matches!(message.body, Body::Barrier { .. }) && self.is_far_ahead(operation) {
            if self.early.len() == MOST_EARLY {
                return Err(format!("{MOST_EARLY} signals of operations far ahead wait, and more come"));
            }
            self.early.push((operation, from, whole.to_vec()));
            return Ok(());
        }
        match (message.body, control.availability) {
            (Body::Acknowledge { .. }, Some(at)) => self.current.offer = Some(at),
            (Body::Fetch { .. }, _) => self.current.fetches += 1,
            _ => {}
        }
        self.participant.handle(from, message).map_err(|error| error.to_string())?;
        self.moved |= matches!(message.body, Body::Fetch { .. } | Body::Acknowledge { .. } | Body::Activate);
        match message.body {
            Body::Barrier { round, .. } if !data.is_empty() => self.take_data(operation, from, round, data),
            _ => Ok(()),
        }
    }

    /// Takes what rides on a signal of the barrier.
    fn take_data(&mut self, operation: u32, from: u32, round: u8, data: &[u8]) -> Result<(), String> {
        if let Some((_, note)) = self.current.note.as_mut().filter(|(of, _)| *of == operation) {
            let theirs = Note::decode(self.place, data);
            note.add(&theirs.ok_or_else(|| format!("{} bytes on a signal, which are no note", data.len()))?);
            return Ok(());
        }
        if self.eager.take(operation, from, round, data) {
            return Ok(());
        }
        Err(format!("{} bytes of eager data, which are not those of its blocks", data.len()))
    }

    /// The connection to a peer has broken.
    pub(crate) fn broken(&mut self, rank: u32, code: FailureCode) {
        let cause = Cause::Connection(code);
        self.participant.fail(Failure { failed_rank: rank, detecting_rank: self.place.rank(), cause });
    }

    /// Pieces are to be read together, under the number of the first; none of their bytes are missing if there are no
    /// `reads`.
    pub(crate) fn fetch(&mut self, pieces: PieceSet, reads: usize) {
        match (pieces.first(), reads) {
            (_, 0) => pieces.iter().for_each(|piece| self.participant.read(piece)),
            (Some(first), _) => _ = self.current.groups.insert(first, pieces),
            (None, _) => {}
        }
    }

    /// All reads of a group of pieces are over.
    pub(crate) fn read(&mut self, first: u32) {
        let pieces = self.current.groups.remove(&first).unwrap_or(PieceSet::EMPTY);
        self.moved();
        pieces.iter().for_each(|piece| self.participant.read(piece));
    }

    /// The next thing to do; to be called until there is none, after everything that has happened.
    pub(crate) fn next(&mut self) -> Option<Action> {
        if !self.early.is_empty() {
            self.take_early();
        }
        self.asks.pop_front().or_else(|| self.participant.poll())
    }

    /// Where the left neighbour has the pieces that it has acknowledged; none if it has not sent that.
    pub(crate) const fn offer(&self) -> Option<Availability> {
        self.current.offer
    }

    /// A message of the state machine as bytes, and the eager data that follows it.
    pub(crate) fn encode(&mut self, message: &Message) -> (Encoded, Vec<u8>) {
        let counts = &mut self.messages;
        *match message.body {
            Body::Barrier { .. } => &mut counts.barrier,
            Body::Activate => &mut counts.activate,
            Body::Fetch { .. } => &mut counts.fetch,
            Body::Acknowledge { .. } => &mut counts.acknowledge,
            Body::Final => &mut counts.last,
            Body::Failed { .. } => &mut counts.failed,
        } += 1;
        let encoded = self.codec.encode(&packed(message), self.current.here);
        let data = match (message.body, &self.current.note) {
            (Body::Barrier { .. }, Some((operation, note))) if *operation == message.operation => {
                let mut data = Vec::new();
                note.encode(self.place.ranks(), &mut data);
                data
            }
            (Body::Barrier { round, .. }, _) => self.eager.data(message.operation, round),
            _ => Vec::new(),
        };
        (encoded, data)
    }

    /// Enters what the protocol knows of the current operation into its report.
    pub(crate) fn note(&self, now_ps: u64, report: &mut Report) {
        let phases = &mut report.phases.0;
        phases.ready_ps = self.participant.ready_ps();
        if self.participant.has_everything() {
            phases.complete_ps.get_or_insert(now_ps);
        }
        report.fetches_served = self.current.fetches;
    }

    /// Control messages sent so far.
    pub(crate) const fn messages(&self) -> MessageCounts {
        self.messages
    }

    /// What two ranks have called, if an operation has failed because that differs.
    pub(crate) fn disagreement(&self) -> Option<Disagreement> {
        self.participant.disagreement()
    }
}
