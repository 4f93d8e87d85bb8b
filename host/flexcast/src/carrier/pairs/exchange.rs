//! The collective that is under way between pairs of ranks, from its beginning to its end.

use flexcast_proto::p2p::Operation;
use flexcast_proto::{Cause, Failure, FailureCode, Summary};

use super::sparse::{self, Need, Session};
use super::{NO_NEWS, News, PairCarrier, Pairs};
use crate::engine::end::WIND_UP_PS;
use crate::engine::event::Event;
use crate::engine::{Exchange, Requests, State};
use crate::error::{Error, Result};
use crate::op::aggregation::Aggregation;
use crate::op::buffer::Buffer;
use crate::op::collective::Collective;
use crate::op::outcome::{Done, Failed, Outcome};
use crate::p2p::bound::{Bound, refused};
use crate::p2p::executor::Executor;
use crate::p2p::{self, Group};
use flexcast_sparse::{Call, Error as SessionError};

/// Most bytes of memory for copies that are kept between two operations.
const MOST_KEPT_BYTES: usize = 64 << 20;

/// What the carrier keeps of a collective under way.
#[derive(Debug)]
pub(crate) struct Work {
    collective: Collective,
    kind: WorkKind,
    /// What this rank has found, if a sparse AllReduce has failed here.
    fault: Option<sparse::Fault>,
}

impl Work {
    pub(super) const fn new(collective: Collective, kind: WorkKind) -> Self {
        Self { collective, kind, fault: None }
    }
}

/// What decides which messages a collective takes.
#[derive(Debug)]
pub(super) enum WorkKind {
    /// A schedule that is known before. None: the connections have it.
    Scheduled(Option<Box<Executor>>),
    /// What the ranks' data is. With who adds, the messages that had gone over its connections before, and the bytes
    /// that had come.
    Sparse(Call, Aggregation, [u64; 2]),
}

/// Who is to blame for what connections have met with, as far as that shows.
pub(crate) fn blame(own: u32, error: &p2p::Error) -> (u32, Cause) {
    match error {
        p2p::Error::Connection { peer, source: flexio::Error::Completion { status, .. } } => {
            (*peer, Cause::Connection(FailureCode::of_completion(*status)))
        }
        p2p::Error::WrongPeer { peer, .. } => (*peer, Cause::Connection(FailureCode::WrongPeer)),
        p2p::Error::Mismatch { peer, .. } => (*peer, Cause::Disagrees),
        p2p::Error::Connection { peer, .. } | p2p::Error::Protocol { peer, .. } => {
            (*peer, Cause::Connection(FailureCode::ProtocolViolation))
        }
        _ => (own, Cause::Device(FailureCode::NotStarted)),
    }
}

/// What a peer has called, if that is what connections have met with.
pub(crate) fn called(error: &p2p::Error, own: Summary) -> Option<Event<'static>> {
    let p2p::Error::Mismatch { peer, peer_blocks, peer_call, bytes: [theirs, ours], .. } = error else { return None };
    let blocks = |Summary { kind, root, amount, .. }| Summary { kind, root, amount, ..own };
    // They may differ in what a summary does not show.
    let blocks = (*peer_blocks).map(blocks).filter(|theirs| *theirs != own);
    let rank = *peer;
    (*peer_call).or(blocks).map(|called| {
        if called == own {
            // The two have other lengths for the block between them, which no other rank knows.
            let [theirs, own] = [theirs, ours].map(|bytes| Summary { amount: *bytes, ..own });
            return Event::Disagrees { rank, theirs, own };
        }
        Event::Disagrees { rank, theirs: called, own }
    })
}

fn buffer(of: &Buffer) -> Result<p2p::Buffer<'_>> {
    Ok(p2p::Buffer { region: of.region()?, offset: 0 })
}

/// Why a collective has not begun, or does not go on.
enum Fault {
    Connections(p2p::Error),
    Session(sparse::Fault),
    Here(Error),
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Here(error)
    }
}

impl From<p2p::Error> for Fault {
    fn from(error: p2p::Error) -> Self {
        Self::Connections(error)
    }
}

impl From<sparse::Fault> for Fault {
    fn from(fault: sparse::Fault) -> Self {
        Self::Session(fault)
    }
}

impl Pairs {
    /// What a collective takes, and how many bytes will come from other ranks, as far as that is known.
    ///
    /// # Errors
    /// No connections of a rank alone; lengths that do not fit.
    pub(super) fn bind(
        &mut self,
        collective: &Collective,
        summary: Summary,
        need: Option<Need>,
    ) -> Result<(WorkKind, u64)> {
        let place = self.maker.place;
        if let Some(need) = need {
            if place.ranks() == 1 {
                self.connect_session_alone(&need)?;
            }
            let session = self.sessions[need.aggregation() as usize].as_ref();
            let before = session.map(|session| session.counts(place.rank()));
            return Ok((WorkKind::Sparse(need.call(), need.aggregation(), before.unwrap_or_default()), 0));
        }
        if place.ranks() == 1 {
            self.connect_alone()?;
        }
        let bound = Bound::of_collective(collective, place, summary.algorithm)?;
        let executor = Executor::new(bound, place).map_err(|error| refused(collective.kind().name(), error))?;
        let foreign_bytes = executor.foreign_bytes();
        Ok((WorkKind::Scheduled(Some(Box::new(executor))), foreign_bytes))
    }

    /// Hands a collective to the connections, unless it has failed before.
    pub(super) fn start<C: PairCarrier>(&mut self, exchange: &mut Exchange<C>, now_ps: u64) -> News {
        if !exchange.state.is_active() {
            return NO_NEWS;
        }
        let started = self.hand_over(exchange, now_ps);
        self.news(exchange, started.map(|()| true), now_ps)
    }

    /// Takes what has come of a collective, and sends what may be sent.
    pub(super) fn poll<C: PairCarrier>(&mut self, exchange: &mut Exchange<C>, now_ps: u64) -> News {
        let Self { group, sessions, .. } = self;
        if !exchange.state.is_active() {
            return NO_NEWS;
        }
        let Exchange { work, send, receive, .. } = exchange;
        let moved = match (&work.kind, group) {
            (WorkKind::Scheduled(_), Some(group)) => group.advance().map_err(Fault::Connections),
            (WorkKind::Sparse(_, aggregation, _), _) => match &mut sessions[*aggregation as usize] {
                Some(session) => session.advance(send.as_ref(), receive, now_ps).map_err(Fault::Session),
                None => return NO_NEWS,
            },
            _ => return NO_NEWS,
        };
        self.news(exchange, moved, now_ps)
    }

    fn hand_over<C: PairCarrier>(&mut self, exchange: &mut Exchange<C>, now_ps: u64) -> std::result::Result<(), Fault> {
        let Self { group, sessions, kept, maker, .. } = self;
        let Exchange { work: Work { kind, .. }, send, receive, report, summary, .. } = exchange;
        let (executor, group) = match (kind, group) {
            (WorkKind::Scheduled(executor), Some(group)) => match executor.take() {
                Some(executor) => (*executor, group),
                None => return Ok(()),
            },
            (WorkKind::Sparse(call, aggregation, _), _) => {
                let session = sessions[*aggregation as usize].as_mut();
                let fixed_point = report.decision.fixed_point();
                return Ok(session.map_or(Ok(()), |session| session.begin(*call, fixed_point, now_ps))?);
            }
            _ => return Ok(()),
        };
        let (own, copies) = (buffer(receive)?, send.is_some());
        let contribution = match send {
            Some(send) => buffer(send)?,
            None if matches!(executor.bound().operation, Operation::Alltoall(_)) => {
                let len = receive.len();
                let memory = match kept.take().filter(|kept| kept.len() >= len) {
                    Some(memory) => memory,
                    None => Buffer::registered_with(maker.pd(), len)?,
                };
                let memory = kept.insert(memory);
                memory.copy_from(0, receive, 0, len)?;
                buffer(memory)?
            }
            None => own,
        };
        Ok(group.call(executor, summary, [contribution, own], copies)?)
    }

    /// What has become of the collective under way, if anything has happened.
    fn news<C: PairCarrier>(
        &mut self,
        exchange: &mut Exchange<C>,
        moved: std::result::Result<bool, Fault>,
        now_ps: u64,
    ) -> News {
        let fault = match moved {
            Ok(false) => return NO_NEWS,
            Ok(true) => match self.take_note(exchange, now_ps) {
                Ok(event) => return [event, None],
                Err(fault) => fault,
            },
            Err(fault) => fault,
        };
        let own = self.maker.place.rank();
        let failed = |(failed_rank, cause)| Some(Event::Failed(Failure { failed_rank, detecting_rank: own, cause }));
        match fault {
            Fault::Here(error) => {
                tracing::error!(%error, "a collective between pairs of ranks failed");
                [failed((own, Cause::Device(FailureCode::NotStarted))), None]
            }
            Fault::Session(fault) => {
                tracing::error!(error = %fault, "a sparse AllReduce failed");
                let event = failed((fault.failed_rank().unwrap_or(own), fault.cause()));
                exchange.work.fault = Some(fault);
                [event, None]
            }
            Fault::Connections(error) => {
                tracing::error!(%error, "a collective between pairs of ranks failed");
                [called(&error, exchange.summary), failed(blame(own, &error))]
            }
        }
    }

    /// How far the connections are.
    fn take_note<C: PairCarrier>(
        &mut self,
        exchange: &mut Exchange<C>,
        now_ps: u64,
    ) -> std::result::Result<Option<Event<'static>>, Fault> {
        let own = self.maker.place.rank();
        let Self { group, sessions, .. } = self;
        match (&exchange.work.kind, group) {
            (WorkKind::Sparse(_, aggregation, before), _) => {
                let Some(session) = &sessions[*aggregation as usize] else { return Ok(None) };
                if !session.is_complete() {
                    let awaited = session.awaited(own);
                    return Ok(Some(exchange.transferred(Some(awaited), now_ps)));
                }
                let ([messages, bytes], [sent, came]) = (session.counts(own), *before);
                (exchange.report.messages, exchange.report.foreign_bytes) = (messages - sent, bytes - came);
            }
            (WorkKind::Scheduled(_), Some(group)) => {
                if !group.is_complete() {
                    let awaited = group.awaited().map_or(own, |(rank, _)| rank);
                    return Ok(Some(exchange.transferred(Some(awaited), now_ps)));
                }
                if exchange.work.collective.reduction().is_some() {
                    group.copy_result(&buffer(&exchange.receive)?)?;
                }
            }
            _ => return Ok(None),
        }
        Ok(Some(exchange.transferred(None, now_ps)))
    }

    /// When a collective is to be moved on although nothing has come.
    pub(crate) fn deadline_ps<C: PairCarrier>(&self, exchange: &Exchange<C>) -> u64 {
        match exchange.state {
            State::Deferred | State::Active => {
                let silent_ps = self.group.as_ref().and_then(Group::deadline_ps);
                let sessions_ps = self.sessions.iter().flatten().filter_map(Session::deadline_ps);
                let silent_ps = silent_ps.into_iter().chain(sessions_ps).min();
                exchange.deadline_ps.min(silent_ps.unwrap_or(u64::MAX))
            }
            State::Released => u64::MAX,
            State::Failed(_) => exchange.ended_ps.saturating_add(WIND_UP_PS + 1),
        }
    }

    /// Ends a collective: one that this rank is done with, or one that has failed. With the connections of that ends
    /// what this rank's card still does with the buffers, and by new keys no peer reaches them.
    ///
    /// # Errors
    /// Memory cannot be registered anew.
    pub(crate) fn end<C: PairCarrier>(&mut self, exchange: Exchange<C>, requests: &Requests) -> Result<Outcome> {
        let Exchange { name: operation, send, receive, state, report, work: Work { fault, .. }, .. } = exchange;
        let State::Failed(failure) = state else {
            self.kept.take_if(|kept| kept.len() > MOST_KEPT_BYTES);
            return Ok(Ok(Done { send, receive, report }));
        };
        (self.group, self.sessions) = (None, [None, None]);
        // Peers never know what is not registered.
        let renew = |buffer: Buffer| if buffer.is_registered() { buffer.renewed(self.maker.pd()) } else { Ok(buffer) };
        let (send, receive) = (send.map(renew).transpose()?, Some(renew(receive)?));
        let rank = self.maker.place.rank();
        let error = match (failure.cause, fault) {
            (Cause::Contribution, Some(sparse::Fault::Link(SessionError::FixedPoint(source))))
                if failure.failed_rank == rank =>
            {
                Error::Contribution { operation, rank, source, failure }
            }
            (Cause::Aggregator(named), Some(sparse::Fault::Aggregator { number, reason })) if named == number => {
                requests.failed(operation, failure, Some(reason))
            }
            _ => requests.failed(operation, failure, None),
        };
        Ok(Err(Box::new(Failed { error, send, receive, report })))
    }
}
