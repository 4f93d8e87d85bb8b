//! The collective that is under way between pairs of ranks, from its beginning to its end.

use flexcast_proto::p2p::{Memory, Operation, Schedule};
use flexcast_proto::{Cause, Failure, FailureCode, OperationDescriptor, RankSet, Summary};

use super::sparse::{self, Need, Session};
use super::{NO_NEWS, News, Pairs};
use crate::carrier::cpu::operation::State;
use crate::engine::notice::Notice;
use crate::engine::{Posted, Requests};
use crate::error::{Error, Result};
use crate::op::aggregation::Aggregation;
use crate::op::buffer::Buffer;
use crate::op::collective::{Collective, Places};
use crate::op::decision::Decision;
use crate::op::outcome::{Done, Failed, Outcome};
use crate::op::report::{Phases, PhasesPs, Report};
use crate::p2p::messages::Bound;
use crate::p2p::sparse::{Call, Error as SessionError};
use crate::p2p::{self, Group};

/// Longest that others are given to hear of a failure before this rank's connections go.
const WIND_UP_PS: u64 = 1_000_000_000_000;
/// Most bytes of memory for copies that are kept between two operations.
const MOST_KEPT_BYTES: usize = 64 << 20;

/// The collective under way.
#[derive(Debug)]
pub(crate) struct Exchange {
    request: u64,
    collective: Collective,
    summary: Summary,
    work: Work,
    send: Option<Buffer>,
    receive: Buffer,
    pub(crate) state: State,
    /// When it failed.
    failed_ps: u64,
    /// When the protocol's state machine wants to be notified of the time.
    pub(crate) deadline_ps: u64,
    pub(crate) report: Report,
    /// What this rank has found, if a sparse AllReduce has failed here.
    fault: Option<sparse::Fault>,
}

/// What decides which messages a collective takes.
#[derive(Debug)]
enum Work {
    /// A schedule that is known before.
    Scheduled(Bound),
    /// What the ranks' data is. With who adds, the messages that had gone over its connections before, and the bytes
    /// that had come.
    Sparse(Call, Aggregation, [u64; 2]),
}

/// A collective that begins, as the protocol takes it: its number, and how long it may wait without any progress, and
/// repair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) operation: u32,
    pub(crate) wait_ps: u64,
    pub(crate) repair_ps: u64,
}

/// Who is to blame for what connections have met with, as far as that tells.
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
pub(crate) fn called(error: &p2p::Error, own: Summary) -> Option<Notice> {
    let p2p::Error::Mismatch { peer, peer_blocks, peer_call, bytes: [theirs, ours], .. } = error else { return None };
    let blocks = |Summary { kind, root, amount, .. }| Summary { kind, root, amount, ..own };
    // They may differ in what a summary does not tell.
    let blocks = (*peer_blocks).map(blocks).filter(|theirs| *theirs != own);
    let rank = *peer;
    (*peer_call).or(blocks).map(|called| {
        if called == own {
            // The two have other lengths for the block between them, which no other rank knows.
            let [theirs, own] = [theirs, ours].map(|bytes| Summary { amount: *bytes, ..own });
            return Notice::Disagrees { rank, theirs, own };
        }
        Notice::Disagrees { rank, theirs: called, own }
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
    /// Makes a collective the one under way; what the protocol takes of it. Nothing is sent before [`Pairs::start`].
    ///
    /// # Errors
    /// It cannot be carried: with its buffers.
    pub(crate) fn begin(
        &mut self,
        posted: Posted<Collective>,
        decision: Decision,
        bounds: Bounds,
        need: Option<Need>,
    ) -> Result<OperationDescriptor, Box<Failed>> {
        let summary = posted.plan.summary(decision.algorithm());
        let (work, foreign_bytes) = match self.bind(&posted.plan, summary, need) {
            Ok(bound) => bound,
            Err(error) => return Err(posted.refuse(error)),
        };
        let Posted { request, plan: collective, send, receive, posted_ps } = posted;
        let phases = Phases(PhasesPs { posted_ps, armed_ps: Some(posted_ps), ..PhasesPs::default() });
        let report = Report { phases, decision, foreign_bytes, ..Report::default() };
        let state = State::Active;
        self.exchange = Some(Exchange {
            request,
            collective,
            summary,
            work,
            send,
            receive,
            state,
            failed_ps: 0,
            deadline_ps: u64::MAX,
            report,
            fault: None,
        });
        let Bounds { operation, wait_ps, repair_ps } = bounds;
        Ok(OperationDescriptor {
            operation,
            roots: RankSet::EMPTY,
            pieces: 1,
            summary,
            barrier_timeout_ps: wait_ps,
            cutoff_ps: wait_ps,
            bound_ps: repair_ps,
        })
    }

    /// What a collective takes, and how many bytes will come from other ranks, as far as that is known.
    fn bind(&mut self, collective: &Collective, summary: Summary, need: Option<Need>) -> Result<(Work, u64)> {
        let place = self.maker.place;
        if let Some(need) = need {
            if place.ranks() == 1 {
                self.connect_session_alone(&need)?;
            }
            let session = self.sessions[need.aggregation() as usize].as_ref();
            let before = session.map(|session| session.counts(place.rank()));
            return Ok((Work::Sparse(need.call(), need.aggregation(), before.unwrap_or_default()), 0));
        }
        if place.ranks() == 1 {
            self.connect_alone()?;
        }
        let bound = Bound::of_collective(collective, place, summary)?;
        let foreign_bytes = Schedule::new(bound.operation, place).map_or(0, |schedule| {
            let bytes = |target: flexcast_proto::p2p::Part| bound.places[target.memory as usize].total(target.blocks);
            schedule.receives().map(|arrival| bytes(arrival.target)).sum()
        });
        Ok((Work::Scheduled(bound), foreign_bytes))
    }

    /// Hands the collective under way to the connections, unless it has failed before.
    pub(crate) fn start(&mut self, now_ps: u64) -> News {
        if !self.exchange.as_ref().is_some_and(|exchange| exchange.state.is_active()) {
            return NO_NEWS;
        }
        let started = self.hand_over(now_ps);
        self.news(started.map(|()| true), now_ps)
    }

    /// Takes what has come, and sends what may be sent.
    pub(crate) fn poll(&mut self, now_ps: u64) -> News {
        let Self { group, sessions, exchange, .. } = self;
        let Some(exchange) = exchange.as_mut().filter(|exchange| exchange.state.is_active()) else { return NO_NEWS };
        let Exchange { work, send, receive, .. } = exchange;
        let moved = match (work, group) {
            (Work::Scheduled(_), Some(group)) => group.advance().map_err(Fault::Connections),
            (Work::Sparse(_, aggregation, _), _) => match &mut sessions[*aggregation as usize] {
                Some(session) => session.advance(send.as_ref(), receive, now_ps).map_err(Fault::Session),
                None => return NO_NEWS,
            },
            _ => return NO_NEWS,
        };
        self.news(moved, now_ps)
    }

    fn hand_over(&mut self, now_ps: u64) -> std::result::Result<(), Fault> {
        let Self { group, sessions, exchange, kept, maker, .. } = self;
        let Some(Exchange { collective, work, send, receive, report, .. }) = exchange else { return Ok(()) };
        let (bound, group) = match (work, group) {
            (Work::Scheduled(bound), Some(group)) => (bound, group),
            (Work::Sparse(call, aggregation, _), _) => {
                let session = sessions[*aggregation as usize].as_mut();
                let fixed_point = report.decision.fixed_point();
                return Ok(session.map_or(Ok(()), |session| session.begin(*call, fixed_point, now_ps))?);
            }
            _ => return Ok(()),
        };
        let (operation, summary) = (bound.operation, &bound.summary);
        let own = buffer(receive)?;
        let contribution = send.as_ref().map_or(Ok(own), buffer)?;
        if let Some(reduction) = bound.reduction {
            let (bytes, ends) = match collective {
                Collective::Reduce { bytes, .. } | Collective::Allreduce { bytes, .. } => (*bytes, Vec::new()),
                Collective::ReduceScatter { shares, .. } => {
                    let mut end = 0;
                    (0, shares.iter().map(|bytes| (end += bytes, end).1).collect())
                }
                _ => (0, Vec::new()),
            };
            let reduced = p2p::Reduced { operation, summary, reduction, bytes, ends, contribution };
            return Ok(group.call_reduction(reduced)?);
        }
        let is_alltoall = matches!(operation, Operation::Alltoall(_));
        let contribution = match send {
            None if is_alltoall => {
                let len = receive.len();
                let memory = match kept.take().filter(|kept| kept.len() >= len) {
                    Some(memory) => memory,
                    None => Buffer::registered_with(maker.pd(), len)?,
                };
                let memory = kept.insert(memory);
                memory.copy_from(0, receive, 0, len)?;
                buffer(memory)?
            }
            _ => contribution,
        };
        let mut places = |memory: Memory| std::mem::take(&mut bound.places[memory as usize]);
        let (sent, received): (Places, Places) = (places(Memory::Send), places(Memory::Receive));
        let (copies, summary) = (send.is_some(), &bound.summary);
        group.call(p2p::Exchange {
            operation,
            summary,
            send: (contribution, sent),
            receive: (own, received),
            copies,
        })?;
        Ok(())
    }

    /// What has become of the collective under way, if anything has happened.
    fn news(&mut self, moved: std::result::Result<bool, Fault>, now_ps: u64) -> News {
        let fault = match moved {
            Ok(false) => return NO_NEWS,
            Ok(true) => match self.take_note(now_ps) {
                Ok(notice) => return [notice, None],
                Err(fault) => fault,
            },
            Err(fault) => fault,
        };
        let own = self.maker.place.rank();
        let failed = |(failed_rank, cause)| Some(Notice::Failed(Failure { failed_rank, detecting_rank: own, cause }));
        match fault {
            Fault::Here(error) => {
                tracing::error!(%error, "a collective between pairs of ranks failed");
                [failed((own, Cause::Device(FailureCode::NotStarted))), None]
            }
            Fault::Session(fault) => {
                tracing::error!(error = %fault, "a sparse AllReduce failed");
                let notice = failed((fault.failed_rank().unwrap_or(own), fault.cause()));
                if let Some(exchange) = &mut self.exchange {
                    exchange.fault = Some(fault);
                }
                [notice, None]
            }
            Fault::Connections(error) => {
                tracing::error!(%error, "a collective between pairs of ranks failed");
                let summary = self.exchange.as_ref().map(|exchange| exchange.summary);
                [summary.and_then(|summary| called(&error, summary)), failed(blame(own, &error))]
            }
        }
    }

    /// How far the connections are.
    fn take_note(&mut self, now_ps: u64) -> std::result::Result<Option<Notice>, Fault> {
        let own = self.maker.place.rank();
        let Self { group, sessions, exchange, .. } = self;
        let Some(exchange) = exchange else { return Ok(None) };
        match (&exchange.work, group) {
            (Work::Sparse(_, aggregation, before), _) => {
                let Some(session) = &sessions[*aggregation as usize] else { return Ok(None) };
                if !session.is_complete() {
                    return Ok(Some(Notice::Transferred { awaited: session.awaited(own) }));
                }
                let ([messages, bytes], [sent, came]) = (session.counts(own), *before);
                (exchange.report.messages, exchange.report.foreign_bytes) = (messages - sent, bytes - came);
            }
            (Work::Scheduled(bound), Some(group)) => {
                if !group.is_complete() {
                    let awaited = group.awaited().map_or(own, |(rank, _)| rank);
                    return Ok(Some(Notice::Transferred { awaited }));
                }
                if bound.reduction.is_some() {
                    group.copy_result(&buffer(&exchange.receive)?)?;
                }
            }
            _ => return Ok(None),
        }
        exchange.report.phases.0.received_ps.get_or_insert(now_ps);
        Ok(Some(Notice::TransferredAll))
    }

    /// When [`Pairs::poll`], or the protocol with the time, is to be called although nothing has come; none while
    /// nothing is under way.
    pub(crate) fn deadline_ps(&self) -> Option<u64> {
        let exchange = self.exchange.as_ref()?;
        Some(match exchange.state {
            State::Active => {
                let silent_ps = self.group.as_ref().and_then(Group::deadline_ps);
                let sessions_ps = self.sessions.iter().flatten().filter_map(Session::deadline_ps);
                let silent_ps = silent_ps.into_iter().chain(sessions_ps).min();
                exchange.deadline_ps.min(silent_ps.unwrap_or(u64::MAX))
            }
            State::Released => u64::MAX,
            State::Failed(_) => exchange.failed_ps.saturating_add(WIND_UP_PS + 1),
        })
    }

    /// The collective under way fails.
    pub(crate) fn fail(&mut self, failure: Failure, now_ps: u64) {
        let Some(exchange) = self.exchange.as_mut().filter(|exchange| exchange.state.is_active()) else { return };
        exchange.state.fail(failure);
        exchange.report.failure = Some(failure);
        exchange.failed_ps = now_ps;
    }

    /// The end of a collective that this rank is done with: the number of its request, and what came of it.
    pub(crate) fn release(&mut self, now_ps: u64) -> Option<(u64, Outcome)> {
        let exchange = self.exchange.take_if(|exchange| matches!(exchange.state, State::Released))?;
        self.kept.take_if(|kept| kept.len() > MOST_KEPT_BYTES);
        let Exchange { request, send, receive, mut report, .. } = exchange;
        let phases = &mut report.phases.0;
        phases.released_ps = Some(now_ps);
        phases.complete_ps.get_or_insert(phases.received_ps.unwrap_or(now_ps));
        Some((request, Ok(Done { send, receive, report })))
    }

    /// The end of a collective that has failed, once the others know why (`is_quiet`), or have had the time to hear it.
    /// With its connections ends what this rank's card still does with the buffers, and by new keys no peer reaches
    /// them.
    ///
    /// # Errors
    /// Memory cannot be registered anew.
    pub(crate) fn wind_up(
        &mut self,
        requests: &Requests,
        is_quiet: bool,
        now_ps: u64,
    ) -> Result<Option<(u64, Outcome)>> {
        let is_over = |exchange: &mut Exchange| {
            let is_late = now_ps.saturating_sub(exchange.failed_ps) > WIND_UP_PS;
            matches!(exchange.state, State::Failed(_)) && (is_quiet || is_late)
        };
        let Some(exchange) = self.exchange.take_if(is_over) else { return Ok(None) };
        let Exchange { request, collective, send, receive, state, report, fault, .. } = exchange;
        let State::Failed(failure) = state else { return Ok(None) };
        (self.group, self.sessions) = (None, [None, None]);
        // Peers never know what is not registered.
        let renew = |buffer: Buffer| if buffer.is_registered() { buffer.renewed(self.maker.pd()) } else { Ok(buffer) };
        let (send, receive) = (send.map(renew).transpose()?, Some(renew(receive)?));
        let (operation, rank) = (collective.kind().name(), self.maker.place.rank());
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
        Ok(Some((request, Err(Box::new(Failed { error, send, receive, report })))))
    }
}
