//! Poll of the card's workers: failures, and the progress of both sides of the operation under way.

use flexcast_abi::{ReceiveStatus, SendStatus};
use flexcast_proto::{Cause, Failure, FailureCode, ProgressWatch};

use super::operation::{Fault, OwnBlock, Receiving, Running, Sending, Sides};
use super::{Engine, WORKER_PS};
use crate::engine::notice::Notice;
use crate::error::Result;
use crate::op::stream::Transport;

/// Time between two checks for failures of workers.
pub(super) const CHECK_PS: u64 = 10_000_000;

/// The code of a receive worker that has failed.
const fn receive_code(status: ReceiveStatus) -> FailureCode {
    match status {
        ReceiveStatus::ReceiveError => FailureCode::ReceiveQueue,
        ReceiveStatus::CopyError => FailureCode::ReceiveCopy,
        ReceiveStatus::InvalidOperation => FailureCode::ReceiveOperation,
        ReceiveStatus::UnexpectedOpcode => FailureCode::ReceiveOpcode,
        ReceiveStatus::ControlError => FailureCode::ReceiveControl,
        ReceiveStatus::Idle | ReceiveStatus::Armed | ReceiveStatus::Complete => FailureCode::UnknownCause,
    }
}

/// The code of a send worker that has failed.
const fn send_code(status: SendStatus) -> FailureCode {
    match status {
        SendStatus::SendError => FailureCode::SendQueue,
        SendStatus::InvalidOperation => FailureCode::SendOperation,
        SendStatus::ControlError => FailureCode::SendControl,
        SendStatus::UnexpectedOpcode => FailureCode::SendOpcode,
        SendStatus::Idle | SendStatus::Sending | SendStatus::Finished | SendStatus::Closed => FailureCode::UnknownCause,
    }
}

impl Engine {
    /// Polls what the card's workers have reported, and the clock. `moved`: something else has happened since the last
    /// poll. Returns whether anything has.
    pub(super) fn poll(&mut self, now_ps: u64, mut moved: bool) -> Result<bool> {
        moved |= self.check(now_ps)? | self.poll_copy(now_ps)?;
        match self.start(now_ps) {
            // The contexts have just been given the operation: nothing can have come of it.
            Ok(true) => return Ok(true),
            Ok(false) => {}
            Err(error) => {
                self.end_unstarted(error);
                return Ok(true);
            }
        }
        let Some(running) = self.current.as_ref() else { return Ok(moved) };
        match running.state.sides() {
            None => return Ok(moved),
            Some(Sides { receiving: Receiving::Posted { since_ps }, .. }) if !running.state.is_failing() => {
                return Ok(self.poll_armed(now_ps, *since_ps)? || moved);
            }
            Some(_) => {}
        }
        moved |= self.poll_direct(now_ps) | self.poll_receive(now_ps)?;
        moved |= self.poll_progress(now_ps)?;
        moved |= self.poll_send(now_ps)?;
        self.poll_clock(now_ps, moved)
    }

    fn device_failure(&self, code: FailureCode) -> Failure {
        let own = self.core.place.rank();
        Failure { failed_rank: own, detecting_rank: own, cause: Cause::Device(code) }
    }

    pub(super) fn fail_device(&mut self, now_ps: u64, code: FailureCode) {
        let failure = self.device_failure(code);
        self.parts.driver.notify(now_ps, Notice::Failed(failure));
    }

    /// Checks, now and then, whether workers have failed.
    fn check(&mut self, now_ps: u64) -> Result<bool> {
        let failure = self.device_failure(FailureCode::ProcessDied);
        let Some(running) = self.current.as_mut() else { return Ok(false) };
        if running.state.is_failing() || now_ps.saturating_sub(running.checked_ps) < CHECK_PS {
            return Ok(false);
        }
        running.checked_ps = now_ps;
        if let Err(crash) = self.card.process().check() {
            tracing::error!(%crash, "the process on the card has died");
            running.state.fail(Fault { failure, since_ps: now_ps, crash: Some(crash) });
            running.report.failure = Some(failure);
            self.parts.driver.notify(now_ps, Notice::Crashed(failure));
            return Ok(true);
        }
        let sends = running.state.is_sending();
        let mut moved = false;
        if let Some((context, status, detail)) = self.parts.receive.failure()? {
            tracing::error!(context, ?status, detail, "receive worker failed");
            self.fail_device(now_ps, receive_code(status));
            moved = true;
        }
        if let Some((failed_rank, status)) = self.parts.receive.take_broken()? {
            let failure = Failure {
                failed_rank,
                detecting_rank: self.core.place.rank(),
                cause: Cause::Connection(FailureCode::of_completion(status)),
            };
            self.parts.driver.notify(now_ps, Notice::Failed(failure));
            moved = true;
        }
        if sends && let Some((thread, status, detail)) = self.parts.send.failure()? {
            tracing::error!(thread, ?status, detail, "send worker failed");
            self.fail_device(now_ps, send_code(status));
            moved = true;
        }
        Ok(moved)
    }

    /// Polls whether the receive contexts have taken over the operation that they were given at `since_ps`.
    fn poll_armed(&mut self, now_ps: u64, since_ps: u64) -> Result<bool> {
        if !self.parts.receive.is_armed()? {
            let late = now_ps.saturating_sub(since_ps) > WORKER_PS;
            if late {
                self.fail_device(now_ps, FailureCode::WorkerSilent);
            }
            return Ok(late);
        }
        let Some(running) = self.current.as_mut() else { return Ok(false) };
        if let Some(sides) = running.state.sides_mut() {
            sides.receiving = Receiving::Armed;
        }
        running.report.phases.0.armed_ps = Some(now_ps);
        self.parts.driver.notify(now_ps, Notice::Armed);
        self.deliver_own_block(now_ps);
        Ok(true)
    }

    /// Polls whether the card has copied the own block.
    fn poll_copy(&mut self, now_ps: u64) -> Result<bool> {
        let Some(status) = self.parts.copier.poll()? else { return Ok(false) };
        let Some(running) = self.current.as_mut() else { return Ok(false) };
        running.own_block = OwnBlock::Placed;
        let armed = running.state.sides().is_some_and(|sides| !matches!(sides.receiving, Receiving::Posted { .. }));
        if status != 0 {
            tracing::error!(status, "the card has not copied the own block");
            self.fail_device(now_ps, FailureCode::Copy);
        } else if armed {
            self.deliver_own_block(now_ps);
        }
        Ok(true)
    }

    /// Notifies the driver of the own block, once it has the operation and the block is in its place.
    fn deliver_own_block(&mut self, now_ps: u64) {
        if let Some(running) = self.current.as_mut()
            && running.own_block == OwnBlock::Placed
            && self.parts.driver.takes_late_copies()
        {
            running.own_block = OwnBlock::Delivered;
            self.parts.driver.notify(now_ps, Notice::OwnBlock);
        }
    }

    /// Polls whether multicast has brought everything beside the own block.
    fn poll_receive(&mut self, now_ps: u64) -> Result<bool> {
        let copied = |running: &&mut Running| running.own_block != OwnBlock::Copying;
        let Some(running) = self.current.as_mut().filter(copied) else { return Ok(false) };
        let Some(sides) = running.state.sides_mut() else { return Ok(false) };
        if !matches!(sides.receiving, Receiving::Armed) || !self.parts.receive.is_complete()? {
            return Ok(false);
        }
        sides.receiving = Receiving::Complete;
        if running.gaps.take().is_some_and(|gaps| gaps.lost.len() > 0) {
            // What had been overtaken has come: it was asked for in vain.
            self.stall.came_late();
        }
        running.report.phases.0.received_ps = Some(now_ps);
        self.parts.driver.notify(now_ps, Notice::Received);
        Ok(true)
    }

    /// Polls how far the receive contexts have got, once all ranks can receive. Returns whether multicast has turned
    /// out to be over.
    fn poll_progress(&mut self, now_ps: u64) -> Result<bool> {
        let Some(running) = self.current.as_mut() else { return Ok(false) };
        let receives = |sides: &Sides| matches!(sides.receiving, Receiving::Armed);
        if running.state.sides().is_some_and(receives)
            && let Some(ready_ps) = self.parts.driver.ready_ps()
        {
            running.ready_ps = ready_ps;
            let count = self.parts.receive.progress_count()?;
            let watch = running.watch.get_or_insert_with(|| ProgressWatch::new(count, now_ps));
            watch.poll(count, now_ps);
            if running.is_held(now_ps)
                && let Some(watch) = &mut running.watch
            {
                watch.restart(now_ps);
            }
        }
        self.poll_look(now_ps)
    }

    /// Polls the send threads, and gives them the operation when it is this rank's turn.
    pub(super) fn poll_send(&mut self, now_ps: u64) -> Result<bool> {
        let own = self.core.place.rank();
        let Some(running) = self.current.as_mut() else { return Ok(false) };
        let source = running.source(own)?;
        let parts = &mut self.parts;
        if parts.driver.ready_ps().is_some() {
            let posted = parts.send.posted()?;
            running.posting.get_or_insert_with(|| ProgressWatch::new(posted, now_ps)).poll(posted, now_ps);
        }
        // While others' chunks come, nobody has given the own ones up.
        let lives = running.stalled_ps(self.stall).is_some_and(|stalled_ps| now_ps < stalled_ps);
        let in_vain = running.posting.is_some() && !lives && !running.is_posting(now_ps);
        let Some(sides) = running.state.sides_mut() else { return Ok(false) };
        let phases = &mut running.report.phases.0;
        let mut moved = false;
        if in_vain && sides.sending == Sending::Requested {
            sides.sending = Sending::Finished;
            phases.sent_ps = Some(now_ps);
            parts.driver.notify(now_ps, Notice::Sent);
            moved = true;
        }
        if sides.sending == Sending::Requested
            && parts.send.is_free()?
            && parts.receive.are_targets_known(running.operation)?
        {
            let (ids, targets) = ((running.operation, running.collective_id), parts.receive.targets());
            parts.send.start(&running.plan, source, ids, &self.core.config, targets, false)?;
            sides.sending = Sending::Posted;
            phases.sending_ps = Some(now_ps);
            moved = true;
        }
        if sides.sending == Sending::Posted && parts.send.is_announced()? {
            sides.sending = Sending::Announced;
            parts.driver.notify(now_ps, Notice::Sent);
            moved = true;
        }
        if sides.sending.is_under_way() && parts.send.is_finished()? {
            self.finish_sends(now_ps);
            return Ok(true);
        }
        if in_vain && sides.sending.is_under_way() && !parts.send.is_closing() && parts.send.is_free()? {
            parts.send.close()?;
        }
        Ok(moved)
    }

    /// The card is done with the source.
    pub(super) fn finish_sends(&mut self, now_ps: u64) {
        if let Some(running) = self.current.as_mut()
            && let Some(sides) = running.state.sides_mut()
            && sides.sending.is_under_way()
        {
            sides.sending = Sending::Finished;
            let phases = &mut running.report.phases.0;
            phases.sent_ps = Some(now_ps);
            if let Some(sending_ps) = phases.sending_ps.filter(|_| self.core.config.transport == Transport::UcUnicast) {
                running.turn_ps = now_ps.saturating_sub(sending_ps);
            }
            self.parts.driver.notify(now_ps, Notice::Sent);
        }
    }
}
