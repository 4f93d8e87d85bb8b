//! Operations by messages between pairs of ranks, over the connections.

use flexcast_proto::p2p::Part;
use flexcast_proto::{Algorithm, Failure, OperationDescriptor, RankSet, Summary};

use super::Engine;
use super::operation::State;
use crate::api::buffer::Buffer;
use crate::api::config::ps;
use crate::api::outcome::{Done, Failed};
use crate::api::report::{Phases, PhasesPs, Report};
use crate::datapath::direct::{Begun, Direct};
use crate::datapath::udp::mesh::{Head, Source};
use crate::datapath::{Posted, Task};
use crate::error::{Error, Result};
use crate::protocol::driver::Notice;
use crate::tuner::Decision;

/// Most bytes of temporary memory that are kept between two operations.
const MOST_SPARE_BYTES: usize = 64 << 20;

/// The operation under way, if it goes by messages between pairs of ranks.
#[derive(Debug)]
pub(super) struct Exchanging {
    pub(super) request: u64,
    pub(super) name: &'static str,
    pub(super) send: Option<Buffer>,
    pub(super) receive: Buffer,
    pub(super) operation: u32,
    pub(super) direct: Direct,
    pub(super) state: State,
    /// A rank has called something else: what comes goes nowhere.
    pub(super) disagrees: bool,
    /// When the protocol's state machine wants to be notified of the time.
    pub(super) deadline_ps: u64,
    pub(super) report: Report,
}

impl Exchanging {
    fn send(&self) -> &[u8] {
        self.send.as_ref().map_or(&[], Buffer::bytes)
    }

    /// A fragment begins to come.
    pub(super) fn begin(&mut self, from: u32, head: &Head) -> Begun {
        let begun = self.direct.begin(from, head.summary, (head.tag, head.total, head.offset));
        self.disagrees |= begun == Begun::Disagrees;
        begun
    }

    pub(super) fn place(&mut self, head: &Head, at: u64) -> &mut [u8] {
        self.direct.place(self.receive.bytes_mut(), head.tag, head.offset + at)
    }

    /// A fragment has come. False: it cannot have.
    pub(super) fn came(&mut self, from: u32, head: &Head) -> bool {
        let send = self.send.as_ref().map_or(&[][..], Buffer::bytes);
        let (end, total) = (head.offset + head.bytes, head.total);
        self.direct.came(from, head.tag, (end, total), send, self.receive.bytes_mut())
    }
}

impl Source for Exchanging {
    fn buffer(&self) -> &[u8] {
        &[]
    }

    fn part(&self, part: Part, at: u64) -> &[u8] {
        self.direct.source(self.send(), self.receive.bytes(), part, at)
    }
}

impl Engine {
    /// Begins an operation that goes by messages between pairs of ranks.
    pub(super) fn begin_direct(&mut self, posted: Posted<Task>, decision: Decision) -> Result<(), Box<Failed>> {
        let Posted { request, plan: task, send, mut receive, posted_ps } = posted;
        let started = self.bind(&task, decision.algorithm(), send.as_ref(), &mut receive);
        let direct = match started {
            Ok(direct) => direct,
            Err(error) => {
                return Err(Box::new(Failed { error, send, receive: Some(receive), report: Report::default() }));
            }
        };
        let phases = Phases(PhasesPs { posted_ps, armed_ps: Some(posted_ps), ..PhasesPs::default() });
        let foreign_bytes = direct.foreign_bytes();
        let report = Report { phases, decision, foreign_bytes, ..Report::default() };
        let operation = self.conversation.participant().operation();
        let bound_ps = ps(self.config.barrier_timeout);
        let descriptor = OperationDescriptor {
            operation,
            roots: RankSet::EMPTY,
            pieces: 1,
            summary: direct.summary(),
            barrier_timeout_ps: bound_ps,
            cutoff_ps: bound_ps,
            bound_ps,
        };
        let now_ps = self.interface.now_ps();
        self.conversation.start_direct(descriptor, now_ps);
        self.exchanging = Some(Exchanging {
            request,
            name: task.name(),
            send,
            receive,
            operation,
            direct,
            state: State::Active,
            disagrees: false,
            deadline_ps: u64::MAX,
            report,
        });
        self.exchange(true, now_ps);
        Ok(())
    }

    /// The schedule of an operation, and the own part of its data in place.
    fn bind(
        &mut self,
        task: &Task,
        algorithm: Algorithm,
        send: Option<&Buffer>,
        receive: &mut Buffer,
    ) -> Result<Direct> {
        let spare = std::mem::take(&mut self.spare);
        let mut direct = match task {
            Task::Blocks(plan) => {
                let operation = self.conversation.participant().operation();
                let own =
                    crate::protocol::engine::descriptor(plan, &self.config, &self.alpha, operation, (1, algorithm));
                if let Some(send) = send {
                    receive.copy_from(plan.block(self.place.rank()).offset as usize, send, 0, send.len())?;
                }
                let Summary { kind, root, amount, .. } = own.summary;
                Direct::of_plan(plan, self.place, Summary::between_pairs(kind, root, amount, 0, algorithm), spare)?
            }
            Task::Collective(collective) => {
                Direct::of_collective(collective, self.place, collective.summary(algorithm), spare)?
            }
        };
        let placed = matches!(task, Task::Blocks(_));
        direct.start(send.filter(|_| !placed).map(Buffer::bytes), receive.bytes_mut(), placed)?;
        Ok(direct)
    }

    /// Sends what may be sent, and notices how far the operation is. `came`: something has come. Returns whether anything moved.
    pub(super) fn exchange(&mut self, came: bool, now_ps: u64) -> bool {
        let Self { exchanging, mesh, conversation, place, .. } = self;
        let Some(exchanging) = exchanging.as_mut().filter(|exchanging| exchanging.state.is_active()) else {
            return false;
        };
        let mut moved = came;
        loop {
            let finished = mesh.take_finished();
            exchanging.direct.sent(finished);
            let mut posted = false;
            while let Some(transfer) = exchanging.direct.poll() {
                let total = exchanging.direct.bytes(transfer.source);
                let head = Head {
                    operation: exchanging.operation,
                    tag: transfer.tag,
                    summary: exchanging.direct.summary(),
                    total,
                    offset: 0,
                    bytes: 0,
                };
                mesh.transfer(transfer.to, head, transfer.source, &*exchanging);
                posted = true;
            }
            moved |= posted | (finished > 0);
            if !mesh.flush(&*exchanging) && !posted && finished == 0 {
                break;
            }
            moved = true;
        }
        if !moved {
            return false;
        }
        let notice = if exchanging.direct.is_complete() {
            let phases = &mut exchanging.report.phases.0;
            phases.received_ps.get_or_insert(now_ps);
            Notice::TransferredAll
        } else {
            // Whoever has got everything may still wait for another one to take what it sends.
            let awaited = exchanging.direct.awaited().or_else(|| mesh.slow_taker());
            Notice::Transferred { awaited: awaited.unwrap_or(place.rank()) }
        };
        conversation.notify(now_ps, notice);
        true
    }

    /// The operation has failed: nothing more of it is sent.
    pub(super) fn fail_direct(&mut self, failure: Failure) {
        let Self { exchanging, mesh, .. } = self;
        if let Some(exchanging) = exchanging {
            exchanging.state.fail(failure);
            exchanging.report.failure = Some(failure);
            mesh.abandon(&*exchanging);
        }
    }

    /// Ends an operation that this rank is done with, or that has failed.
    pub(super) fn release_direct(&mut self, now_ps: u64) -> bool {
        let is_over = self.exchanging.as_ref().is_some_and(|exchanging| !exchanging.state.is_active());
        if !is_over || self.lingers(now_ps) {
            return false;
        }
        let Some(exchanging) = self.exchanging.take() else { return false };
        let Exchanging { request, name, send, receive, state, mut report, direct, .. } = exchanging;
        let spare = direct.into_spare();
        if spare.bytes() <= MOST_SPARE_BYTES {
            self.spare = spare;
        }
        if let State::Failed(failure) = state {
            let error = Error::Failed { operation: name, failure };
            self.requests.finish(request, Err(Box::new(Failed { error, send, receive: Some(receive), report })));
            return true;
        }
        let phases = &mut report.phases.0;
        phases.released_ps = Some(now_ps);
        phases.complete_ps.get_or_insert(phases.received_ps.unwrap_or(now_ps));
        self.requests.finish(request, Ok(Done { send, receive, report }));
        true
    }
}
