//! The sending side: the own block in batches of datagrams, as far as the window and the send queue allow.

use flexcast_proto::{Algorithm, Immediate};

use super::carrier::{ALL, VerbsCarrier, VerbsOperations};
use super::queues::Run;
use crate::carrier::cpu::operation::Sending;
use crate::engine::Operations;
use crate::engine::event::Event;
use crate::error::Result;
use crate::plan::chains::{Order, order};

/// How often the end of a block is sent: a lost one costs the wait for a stall.
pub(super) const ENDS: u32 = 2;
/// How long a root may send nothing before the operation's bound counts: longer than any wait for an acknowledgement.
pub(super) const STUCK_PS: u64 = 20_000_000_000;

/// The own block on its way, with how much of it has been posted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outgoing {
    /// Datagrams that had been posted before it.
    before: u64,
    /// Chunks before the end at which the next root begins.
    lookahead: u64,
    /// The protocol has been notified that the next root may begin.
    is_announced: bool,
    /// Its end has been sent so many times.
    ends: u32,
}

impl Outgoing {
    /// Whether the protocol has been notified that the next root may begin.
    pub(super) const fn is_announced(&self) -> bool {
        self.is_announced
    }
}

impl VerbsCarrier {
    /// It is this rank's turn.
    pub(super) fn begin_to_send(&mut self, ops: &mut VerbsOperations, now_ps: u64) {
        let Operations { current: Some(operation), core, .. } = ops else { return };
        let mut table = Vec::new();
        let (first_psn, chunks) = operation.plan.sent_psns(ALL, &mut table).unwrap_or((0, 0));
        // A rank alone has nobody to send to.
        let chunks = if core.place.ranks() > 1 { chunks as u32 } else { 0 };
        operation.stream.sending =
            Some(Sending { first_psn: first_psn as u32, chunks, sent: 0, moved_ps: now_ps, full_ps: None });
        operation.report.phases.0.sending_ps = Some(now_ps);
        let Order { chains, .. } = order(&operation.plan, &core.config, core.place.rank());
        self.outgoing = Outgoing {
            before: self.queues.posted(),
            lookahead: core.config.lookahead(chains).into(),
            is_announced: false,
            ends: if chunks == 0 { ENDS } else { 0 },
        };
    }

    /// Posts what has room, and takes note of what the card is done with. Returns whether anything has happened.
    pub(super) fn send_some(&mut self, ops: &mut VerbsOperations, now_ps: u64) -> Result<bool> {
        let Self { queues, window, flow, derived, outgoing, sent: report, .. } = self;
        let Operations { current, protocol: conversation, core, .. } = ops;
        let (own, config) = (core.place.rank(), &core.config);
        let Some(operation) = current.as_mut().filter(|operation| operation.algorithm == Algorithm::Multicast) else {
            return Ok(false);
        };
        let (Some(mut sending), Some(collective_id)) = (operation.stream.sending, self.collective_id) else {
            return Ok(false);
        };
        if operation.state.is_failed() {
            return Ok(false);
        }
        let block = operation.plan.block(own);
        let immediate = |psn| derived.layout.encode(Immediate { psn, collective_id }).unwrap_or_default();
        let mut moved = false;
        loop {
            let left = sending.chunks - sending.sent;
            let count = queues.send_batch().min(left).min(window.room(sending.sent));
            if count == 0 || queues.room() < count {
                break;
            }
            let start = u64::from(sending.sent) * u64::from(config.chunk_bytes);
            let bytes = (block.bytes - start).min(u64::from(count) * u64::from(config.chunk_bytes));
            queues.multicast(&Run {
                from: operation.receive.region()?,
                offset: block.offset + start,
                bytes,
                chunk_bytes: config.chunk_bytes,
                immediate: immediate(sending.first_psn + sending.sent),
            })?;
            sending.sent += count;
            report.posted += u64::from(count);
            report.doorbells += 1;
            moved = true;
        }
        if sending.sent < sending.chunks && window.room(sending.sent) == 0 {
            window.wait(sending.sent, now_ps);
        }
        while sending.sent == sending.chunks && outgoing.ends < ENDS && queues.room() > 0 {
            queues.multicast_end(immediate(sending.first_psn + sending.chunks - 1))?;
            outgoing.ends += 1;
            moved = true;
        }
        let completed = queues.completed().saturating_sub(outgoing.before).min(sending.chunks.into());
        let mut is_near_end = u64::from(sending.chunks) - completed <= outgoing.lookahead;
        if flow.is_acknowledged(own) && !outgoing.is_announced {
            // No more of this block waits in a ring then than a window.
            is_near_end &= sending.sent == sending.chunks;
            is_near_end &= !flow.waits(own) || window.have_seen(sending.chunks, now_ps);
        }
        if moved {
            sending.moved_ps = now_ps;
        }
        operation.stream.sending = Some(sending);
        if is_near_end && !outgoing.is_announced {
            outgoing.is_announced = true;
            conversation.handle(now_ps, Event::Sent);
            moved = true;
        }
        let is_sent = sending.sent == sending.chunks && outgoing.ends == ENDS && queues.completed() == queues.posted();
        if is_sent && outgoing.is_announced {
            operation.stream.sending = None;
            operation.report.phases.0.sent_ps = Some(now_ps);
            moved = true;
        }
        Ok(moved)
    }
}
