//! Start of an operation: the own block's way to its place, and the first commands to the card.

use flexcast_proto::wire::Availability;
use flexcast_proto::{Algorithm, Cause, FailureCode};

use super::operation::{Look, OwnBlock, Running, Sending, State};
use super::{Engine, Parts};
use crate::carrier::dpa::copier::Copier;
use crate::carrier::dpa::driver::Posting;
use crate::carrier::pairs::{PairEngine as _, SetupOperation};
use crate::engine::descriptor::{descriptor, silence_ps};
use crate::engine::{Posted, Task};
use crate::error::{Error, Result};
use crate::op::buffer::Buffer;
use crate::op::decision::Decision;
use crate::op::outcome::Failed;
use crate::op::report::{Phases, PhasesPs, Report};
use crate::op::stream::Transport;
use crate::plan::Plan;
use crate::plan::chains::{Order, order};

impl Engine {
    /// Starts a posted operation, ahead of which there is none.
    ///
    /// # Errors
    /// The operation cannot be started: with its buffers.
    pub(super) fn begin(&mut self, posted: Posted<Task>) -> Result<(), Box<Failed>> {
        let now_ps = posted.posted_ps;
        // The card may have carried out the last command since it was last polled, and be free for this one.
        if now_ps > self.polled_ps {
            match self.parts.driver.poll(now_ps) {
                Ok(moved) => self.notified |= moved,
                Err(error) => return Err(posted.refuse(error)),
            }
        }
        self.launch(posted, now_ps)
    }

    /// Makes an operation the current one, and starts it if the card can be given commands now.
    pub(super) fn launch(&mut self, posted: Posted<Task>, now_ps: u64) -> Result<(), Box<Failed>> {
        let Posted { request, plan, send, receive, posted_ps } = posted;
        match plan {
            Task::Blocks(plan) => self.launch_blocks(Posted { request, plan, send, receive, posted_ps }, None, now_ps),
            Task::Collective(plan) => {
                let begun = self.begin_collective(Posted { request, plan, send, receive, posted_ps }, now_ps);
                begun.map(|_| ()).inspect_err(|_| self.end_all(Cause::Device(FailureCode::NotStarted)))
            }
        }
    }

    /// The same for an operation of blocks; `setup`: what it is run for.
    pub(super) fn launch_blocks(
        &mut self,
        mut posted: Posted,
        setup: Option<Box<SetupOperation>>,
        now_ps: u64,
    ) -> Result<(), Box<Failed>> {
        let decision = match &setup {
            None => {
                let avoids = self.backoff.avoids(self.parts.driver.operation());
                self.conditions.decide(&posted.plan.shape(), avoids)
            }
            Some(setup) if setup.is_barrier() => Decision::of(Algorithm::Eager),
            // Connections may be what it makes.
            Some(_) => self.conditions.without_connections().decide(&posted.plan.shape(), true),
        };
        let algorithm = decision.algorithm();
        let (own_block, copied) = match self.place_own_block(&mut posted, algorithm) {
            Ok(placed) => placed,
            Err(error) => return Err(SetupOperation::failed(setup, *posted.refuse(error))),
        };
        let Posted { request, plan, send, receive, posted_ps } = posted;
        let report = Report {
            phases: Phases(PhasesPs { posted_ps, ..PhasesPs::default() }),
            decision,
            foreign_bytes: plan.foreign_bytes(),
            ..Report::default()
        };
        self.current = Some(Running {
            request,
            pieces: plan.pieces(),
            plan,
            send,
            copied,
            receive,
            own_block,
            algorithm,
            setup,
            operation: 0,
            collective_id: 0,
            cutoff_ps: u64::MAX,
            state: State::Deferred,
            ready_ps: 0,
            watch: None,
            posting: None,
            silence_ps: 0,
            turn_ps: 0,
            look: Look::Idle,
            gaps: None,
            missing: None,
            checked_ps: 0,
            deadline_ps: u64::MAX,
            report,
        });
        let started = self.start(now_ps).and_then(|_| self.parts.driver.flush(now_ps));
        started.map_err(|error| self.withdraw(error))
    }

    /// Gives a deferred operation to the card if that can be given commands now. Returns whether it has.
    pub(super) fn start(&mut self, now_ps: u64) -> Result<bool> {
        let Some(running) = self.current.as_mut().filter(|running| matches!(running.state, State::Deferred)) else {
            return Ok(false);
        };
        match running.algorithm {
            Algorithm::Multicast => {}
            Algorithm::Eager => return self.start_eager(now_ps).map(|()| true),
            direct => return self.start_direct(direct, now_ps).map(|()| true),
        }
        let own = self.core.place.rank();
        let parts = &mut self.parts;
        if !parts.receive.is_ready()? || !parts.send.is_free()? {
            return Ok(false);
        }
        // Every id is in use by packets that may still arrive: later.
        let Ok(collective_id) = self.ids.take(now_ps) else { return Ok(false) };
        (running.operation, running.collective_id) = (parts.driver.operation(), collective_id);
        let ids = (running.operation, collective_id);
        parts.driver.expect_losses(self.losses.are_expected());
        // Where a root sends to each rank by itself, streams are many and short.
        let in_groups = self.core.config.transport != Transport::UcUnicast;
        let expects = in_groups && self.losses.are_expected() && !self.stall.reorders();
        let reporting = expects && parts.driver.repairs_beside();
        let with = (self.core.config.chunk_bytes, reporting);
        parts.receive.arm(&running.plan, own, &mut running.receive, ids, with)?;
        let Order { chains, turn, .. } = order(&running.plan, &self.core.config, own);
        let mut descriptor = descriptor(
            &running.plan,
            &self.core.config,
            &self.alpha,
            running.operation,
            (chains, Algorithm::Multicast),
        );
        if let Some(setup) = &running.setup {
            descriptor.summary = setup.summary;
        }
        running.cutoff_ps = descriptor.cutoff_ps;
        self.losses.begin();
        running.silence_ps = silence_ps(&self.core.config, chains);
        running.turn_ps = if self.core.config.transport == Transport::UcUnicast { descriptor.cutoff_ps } else { 0 };
        let region = running.receive.region()?;
        let posting = Posting {
            plan: &running.plan,
            config: &self.core.config,
            descriptor,
            turn,
            source: running.source(own)?,
            here: Availability { address: region.addr().get(), rkey: region.rkey() },
            lkey: region.lkey(),
            collective_id,
            receive_sequence: parts.receive.sequence(),
        };
        let sends = parts.driver.start(&posting, &mut parts.send)?;
        running.state.start(now_ps, if sends { Sending::Posted } else { Sending::Idle });
        Ok(true)
    }

    /// Starts the current operation, whose data rides on the barrier.
    fn start_eager(&mut self, now_ps: u64) -> Result<()> {
        let Some(running) = self.current.as_mut() else { return Ok(()) };
        let driver = &mut self.parts.driver;
        running.operation = driver.operation();
        let plan = &running.plan;
        let mut gathered = std::mem::take(&mut self.gathered);
        gathered.begin(plan, &running.receive)?;
        let Order { chains, .. } = order(plan, &self.core.config, self.core.place.rank());
        let mut descriptor =
            descriptor(plan, &self.core.config, &self.alpha, running.operation, (chains, Algorithm::Eager));
        if let Some(setup) = &running.setup {
            descriptor.summary = setup.summary;
        }
        driver.start_eager(descriptor, gathered, now_ps)?;
        running.state.start_without_workers();
        running.report.phases.0.armed_ps = Some(now_ps);
        self.do_steps(now_ps)
    }

    /// Takes the current operation back after a failure to start it, with its buffers. Other ranks are told that it
    /// fails.
    pub(super) fn withdraw(&mut self, error: Error) -> Box<Failed> {
        self.end_all(Cause::Device(FailureCode::NotStarted));
        let Some(mut running) = self.current.take() else { return Box::new(Failed::of(error)) };
        if running.algorithm.is_direct() {
            self.parts.pairs.group = None;
        }
        self.parts.receive.disarm(&mut running.receive);
        let Running { send, copied, receive, report, own_block, setup, .. } = running;
        self.lost.extend(copied);
        if own_block == OwnBlock::Copying {
            self.lost.extend(send);
            self.lost.push(receive);
            return SetupOperation::failed(setup, Failed { error, send: None, receive: None, report });
        }
        // Some of the commands may have reached the card: by new keys, what they name is out of its reach.
        let renew = |buffer: Buffer| buffer.renewed(self.card.pd()).ok();
        SetupOperation::failed(setup, Failed { error, send: send.and_then(renew), receive: renew(receive), report })
    }

    /// Brings the own block to the receive buffer: long ones by the card, where chunks are not staged and the driver
    /// can wait. Returns where it is, and the copy of it that is sent, if that is neither in the send nor in the
    /// receive buffer.
    fn place_own_block(&mut self, posted: &mut Posted, algorithm: Algorithm) -> Result<(OwnBlock, Option<Buffer>)> {
        let Posted { plan, send, receive, .. } = posted;
        let by_workers = algorithm == Algorithm::Multicast;
        let Some(send) = send else {
            let copied = if by_workers { self.copy_of_source(plan, receive)? } else { None };
            return Ok((OwnBlock::Placed, copied));
        };
        let (at, bytes) = (plan.block(self.core.place.rank()).offset, send.len() as u64);
        let Parts { driver, copier, .. } = &mut self.parts;
        // Where chunks are staged, their copies fill the path round the card.
        let is_free = self.core.config.transport.is_zero_copy();
        let late = is_free && driver.takes_late_copies() && by_workers;
        if late && Copier::takes(bytes) && !copier.is_busy() {
            copier.copy((send.region()?, bytes), (receive.region()?, at), plan.foreign_bytes())?;
            return Ok((OwnBlock::Copying, None));
        }
        receive.copy_from(at as usize, send, 0, send.len())?;
        Ok((OwnBlock::Placed, None))
    }

    /// The own block of an operation in place, copied to where nobody writes, if Writes of this rank come back to the
    /// receive buffer. All of a Broadcast is the root's, whose card gets no key for it.
    fn copy_of_source(&self, plan: &Plan, receive: &Buffer) -> Result<Option<Buffer>> {
        let (own, foreign) = (plan.receive_bytes() - plan.foreign_bytes(), plan.foreign_bytes());
        if own == 0 || foreign == 0 || !self.parts.send.writes_come_back() {
            return Ok(None);
        }
        let block = plan.block(self.core.place.rank());
        let mut copied = Buffer::registered_with(self.card.pd(), block.bytes as usize)?;
        copied.copy_from(0, receive, block.offset as usize, block.bytes as usize)?;
        Ok(Some(copied))
    }
}
