//! Poll of the card's workers: failures, and the progress of both sides of the operation under way.

use flexcast_abi::{ReceiveStatus, SendStatus};
use flexcast_proto::{Cause, Failure, FailureCode, ProgressWatch};

use super::operation::{Operation, OwnBlock, Receiving, Sending, Sides};
use super::{DpaCarrier, DpaOperations, WORKER_PS};
use crate::carrier::dpa::card_protocol::CardProtocol;
use crate::engine::event::Event;
use crate::engine::{Engine, Protocol as _, State};
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

impl DpaCarrier {
    /// Polls what the card's workers have reported, and the clock. `moved`: something else has happened since the last
    /// poll. Returns whether anything has.
    pub(super) fn poll(engine: &mut Engine<Self>, now_ps: u64, mut moved: bool) -> Result<bool> {
        let Engine { carrier, ops, .. } = engine;
        moved |= carrier.check(ops, now_ps)? | carrier.poll_copy(ops, now_ps)?;
        if engine.start_deferred(now_ps) {
            // The contexts have just been given the operation: nothing can have come of it.
            return Ok(true);
        }
        let Engine { carrier, ops, .. } = engine;
        let Some(operation) = ops.current.as_ref().filter(|operation| operation.state != State::Deferred) else {
            return Ok(moved);
        };
        match operation.stream.sides.as_ref() {
            None => return Ok(moved),
            Some(Sides { receiving: Receiving::Posted { since_ps }, .. }) if !operation.state.is_failed() => {
                let since_ps = *since_ps;
                return Ok(carrier.poll_armed(ops, now_ps, since_ps)? || moved);
            }
            Some(_) => {}
        }
        moved |= carrier.poll_direct(ops, now_ps) | carrier.poll_receive(ops, now_ps)?;
        moved |= carrier.poll_progress(ops, now_ps)?;
        moved |= carrier.poll_send(ops, now_ps)?;
        carrier.poll_clock(ops, now_ps, moved)
    }

    /// Checks, now and then, whether workers have failed.
    fn check(&mut self, ops: &mut DpaOperations, now_ps: u64) -> Result<bool> {
        let own = ops.core.place.rank();
        let Some(operation) = ops.current.as_mut() else { return Ok(false) };
        if operation.state.is_failed() || now_ps.saturating_sub(operation.stream.checked_ps) < CHECK_PS {
            return Ok(false);
        }
        operation.stream.checked_ps = now_ps;
        if let Err(crash) = self.card.process().check() {
            tracing::error!(%crash, "the process on the card has died");
            let cause = Cause::Device(FailureCode::ProcessDied);
            let failure = Failure { failed_rank: own, detecting_rank: own, cause };
            operation.fail(failure, own, now_ps);
            operation.stream.fail();
            operation.stream.crash = Some(crash);
            ops.protocol.handle(now_ps, Event::Crashed(failure));
            return Ok(true);
        }
        let sends = operation.stream.is_sending();
        let mut moved = false;
        if let Some((context, status, detail)) = self.receive.failure()? {
            tracing::error!(context, ?status, detail, "receive worker failed");
            ops.fail_here(now_ps, Cause::Device(receive_code(status)));
            moved = true;
        }
        if let Some((failed_rank, status)) = self.receive.take_broken()? {
            let failure = Failure {
                failed_rank,
                detecting_rank: own,
                cause: Cause::Connection(FailureCode::of_completion(status)),
            };
            ops.protocol.handle(now_ps, Event::Failed(failure));
            moved = true;
        }
        if sends && let Some((thread, status, detail)) = self.send.failure()? {
            tracing::error!(thread, ?status, detail, "send worker failed");
            ops.fail_here(now_ps, Cause::Device(send_code(status)));
            moved = true;
        }
        Ok(moved)
    }

    /// Polls whether the receive contexts have taken over the operation that they were given at `since_ps`.
    fn poll_armed(&mut self, ops: &mut DpaOperations, now_ps: u64, since_ps: u64) -> Result<bool> {
        if !self.receive.is_armed()? {
            let late = now_ps.saturating_sub(since_ps) > WORKER_PS;
            if late {
                ops.fail_here(now_ps, Cause::Device(FailureCode::WorkerSilent));
            }
            return Ok(late);
        }
        let Some(operation) = ops.current.as_mut() else { return Ok(false) };
        if let Some(sides) = operation.stream.sides.as_mut() {
            sides.receiving = Receiving::Armed;
        }
        operation.report.phases.0.armed_ps = Some(now_ps);
        ops.protocol.handle(now_ps, Event::Armed);
        Self::deliver_own_block(ops, now_ps);
        Ok(true)
    }

    /// Polls whether the card has copied the own block.
    fn poll_copy(&mut self, ops: &mut DpaOperations, now_ps: u64) -> Result<bool> {
        let Some(status) = self.copier.poll()? else { return Ok(false) };
        let Some(operation) = ops.current.as_mut() else { return Ok(false) };
        operation.stream.own_block = OwnBlock::Placed;
        let armed =
            operation.stream.sides.as_ref().is_some_and(|sides| !matches!(sides.receiving, Receiving::Posted { .. }));
        if status != 0 {
            tracing::error!(status, "the card has not copied the own block");
            ops.fail_here(now_ps, Cause::Device(FailureCode::Copy));
        } else if armed {
            Self::deliver_own_block(ops, now_ps);
        }
        Ok(true)
    }

    /// Notifies the protocol of the own block, once it has the operation and the block is in its place.
    fn deliver_own_block(ops: &mut DpaOperations, now_ps: u64) {
        if let Some(operation) = ops.current.as_mut()
            && operation.stream.own_block == OwnBlock::Placed
            && ops.protocol.is_on_host()
        {
            operation.stream.own_block = OwnBlock::Delivered;
            ops.protocol.handle(now_ps, Event::OwnBlock);
        }
    }

    /// Polls whether multicast has brought everything except the own block.
    fn poll_receive(&mut self, ops: &mut DpaOperations, now_ps: u64) -> Result<bool> {
        let copied = |operation: &&mut Operation| operation.stream.own_block != OwnBlock::Copying;
        let Some(operation) = ops.current.as_mut().filter(copied) else { return Ok(false) };
        let Some(sides) = operation.stream.sides.as_mut() else { return Ok(false) };
        if !matches!(sides.receiving, Receiving::Armed) || !self.receive.is_complete()? {
            return Ok(false);
        }
        sides.receiving = Receiving::Complete;
        if operation.stream.gaps.take().is_some_and(|gaps| gaps.lost.len() > 0) {
            // What had been overtaken has come: it was asked for in vain.
            ops.stall.came_late();
        }
        operation.report.phases.0.received_ps = Some(now_ps);
        ops.protocol.handle(now_ps, Event::Received);
        Ok(true)
    }

    /// Polls how far the receive contexts have got, once all ranks can receive. Returns whether multicast has turned
    /// out to be over.
    fn poll_progress(&mut self, ops: &mut DpaOperations, now_ps: u64) -> Result<bool> {
        let Some(operation) = ops.current.as_mut() else { return Ok(false) };
        if operation.stream.is_armed()
            && let Some(ready_ps) = ops.protocol.ready_ps()
        {
            operation.stream.ready_ps = ready_ps;
            let count = self.receive.progress_count()?;
            let watch = operation.stream.watch.get_or_insert_with(|| ProgressWatch::new(count, now_ps));
            watch.poll(count, now_ps);
            if operation.is_held(now_ps)
                && let Some(watch) = &mut operation.stream.watch
            {
                watch.restart(now_ps);
            }
        }
        self.poll_scan(ops, now_ps)
    }

    /// Polls the send threads, and gives them the operation when it is this rank's turn.
    pub(super) fn poll_send(&mut self, ops: &mut DpaOperations, now_ps: u64) -> Result<bool> {
        let own = ops.core.place.rank();
        let Some(operation) = ops.current.as_mut() else { return Ok(false) };
        let source = operation.source(own)?;
        if ops.protocol.ready_ps().is_some() {
            let posted = self.send.posted()?;
            operation.stream.posting.get_or_insert_with(|| ProgressWatch::new(posted, now_ps)).poll(posted, now_ps);
        }
        // While others' chunks come, nobody has given the own ones up.
        let lives = operation.stalled_ps(ops.stall).is_some_and(|stalled_ps| now_ps < stalled_ps);
        let in_vain = operation.stream.posting.is_some() && !lives && !operation.is_posting(now_ps);
        let Some(sides) = operation.stream.sides.as_mut() else { return Ok(false) };
        let phases = &mut operation.report.phases.0;
        let mut moved = false;
        if in_vain && sides.sending == Sending::Requested {
            sides.sending = Sending::Finished;
            phases.sent_ps = Some(now_ps);
            ops.protocol.handle(now_ps, Event::Sent);
            moved = true;
        }
        if sides.sending == Sending::Requested
            && self.send.is_free()?
            && self.receive.are_targets_known(operation.number)?
        {
            let (ids, targets) = ((operation.number, operation.stream.collective_id), self.receive.targets());
            self.send.start(&operation.plan, source, ids, &ops.core.config, targets, false)?;
            sides.sending = Sending::Posted;
            phases.sending_ps = Some(now_ps);
            moved = true;
        }
        if sides.sending == Sending::Posted && self.send.is_announced()? {
            sides.sending = Sending::Announced;
            ops.protocol.handle(now_ps, Event::Sent);
            moved = true;
        }
        let is_released = ops.protocol.card().is_some_and(CardProtocol::is_released);
        if sides.sending.is_under_way() && (is_released || self.send.is_finished()?) {
            Self::finish_sends(ops, now_ps);
            return Ok(true);
        }
        if in_vain && sides.sending.is_under_way() && !self.send.is_closing() && self.send.is_free()? {
            self.send.close()?;
        }
        Ok(moved)
    }

    /// The card is done with the source.
    fn finish_sends(ops: &mut DpaOperations, now_ps: u64) {
        if let Some(operation) = ops.current.as_mut()
            && let Some(sides) = operation.stream.sides.as_mut()
            && sides.sending.is_under_way()
        {
            sides.sending = Sending::Finished;
            let phases = &mut operation.report.phases.0;
            phases.sent_ps = Some(now_ps);
            if let Some(sending_ps) = phases.sending_ps.filter(|_| ops.core.config.transport == Transport::UcUnicast) {
                operation.stream.turn_ps = now_ps.saturating_sub(sending_ps);
            }
            ops.protocol.handle(now_ps, Event::Sent);
        }
    }
}
