//! Send queue of a queue pair: WQEs that are posted, sent and not yet complete.

use std::collections::VecDeque;

use crate::psn::{psn_add, psn_ahead};
use crate::wqe::{Completion, DataSegment, Wqe, WqeFault};

/// What kind of answer a sent WQE waits for.
#[derive(Debug)]
pub(crate) enum Awaited {
    Acknowledgement,
    /// Read responses or an atomic's answer, and where they go.
    Response(Vec<DataSegment>),
    /// Nothing: it has failed, and waits for the earlier ones to complete.
    Failed(WqeFault),
}

/// A send WQE that has been fetched and is not complete. RC only: the others complete when they are sent.
#[derive(Debug)]
pub(crate) struct Outstanding {
    /// Its first block's index in the ring, modulo 2^16.
    pub(crate) position: u16,
    pub(crate) blocks: u16,
    /// Index field of the control segment.
    pub(crate) index: u16,
    pub(crate) opcode: u8,
    pub(crate) completion: Completion,
    pub(crate) first_psn: u32,
    /// PSNs it takes; none for a NOP or a failure.
    pub(crate) packets: u32,
    pub(crate) len: u32,
    pub(crate) awaited: Awaited,
}

/// The WQE being sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sending {
    /// Next packet of the message.
    pub(crate) packet: u32,
    pub(crate) packets: u32,
    pub(crate) first_psn: u32,
    /// Latency of the WQE's fetch, charged to its first packet.
    pub(crate) fetch_latency_ps: u64,
}

#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    /// Index behind the last block that software has posted.
    pub(crate) producer: u16,
    /// Index of the next block to fetch.
    pub(crate) fetch: u16,
    /// Index behind an entry that came with its doorbell, and is fetched in no time.
    pub(crate) pushed: Option<u16>,
    /// Index of the oldest block that is not complete.
    pub(crate) retired: u16,
    /// In a send engine's queue, or waits until its rate lets it join.
    pub(crate) queued: bool,
    /// Its rate lets it send no earlier, once it has sent with a limit.
    pub(crate) paced_until_ps: Option<u64>,
    pub(crate) wqe: Wqe,
    pub(crate) sending: Option<Sending>,
    pub(crate) outstanding: VecDeque<Outstanding>,
    /// Reads and atomics without an answer.
    pub(crate) reads: u32,
    /// Positions of outstanding WQEs that the card has executed by itself (UMR, invalidation): going back does not
    /// execute them again.
    pub(crate) executed: Vec<u16>,
    /// An error CQE has been written since RESET.
    pub(crate) error_reported: bool,
    /// PSN of the next WQE's first packet.
    pub(crate) next_psn: u32,
    /// Oldest PSN not acknowledged.
    pub(crate) unacknowledged: u32,
    /// Packets of the next WQE that need not be sent again.
    pub(crate) skip: u32,
    /// A failed WQE waits for earlier ones; nothing more is fetched.
    pub(crate) stalled: bool,
    pub(crate) retries_left: u8,
    pub(crate) rnr_retries_left: u8,
    pub(crate) waits_for_receiver: bool,
    /// Distinguishes waits, so that the timer of an earlier one is harmless.
    pub(crate) epoch: u32,
    /// Where the last gap made us go back to; once is enough.
    pub(crate) went_back_to: Option<u32>,
    pub(crate) deadline_ps: u64,
    pub(crate) deadline_timer: bool,
    /// CQEs of one queue stay in order.
    pub(crate) last_cqe_ps: u64,
}

impl SendQueue {
    /// PSN behind the last packet sent.
    pub(crate) fn sent_psn(&self) -> u32 {
        match self.sending {
            Some(sending) => psn_add(sending.first_psn, sending.packet),
            None => self.next_psn,
        }
    }

    /// Where acknowledgements must stop: reads complete by their responses only.
    pub(crate) fn read_barrier(&self) -> Option<u32> {
        let read = self.outstanding.iter().find(|wqe| matches!(wqe.awaited, Awaited::Response(_)))?;
        Some(match psn_ahead(self.unacknowledged, read.first_psn) {
            Some(_) => self.unacknowledged,
            None => read.first_psn,
        })
    }

    /// Prepares to send again from the oldest unacknowledged PSN: forgets the WQEs from there on; they are fetched
    /// again.
    pub(crate) fn rewind(&mut self) {
        let unacknowledged = self.unacknowledged;
        let holds =
            |wqe: &Outstanding| psn_ahead(unacknowledged, wqe.first_psn).is_some_and(|ahead| ahead < wqe.packets);
        let Some(at) = self.outstanding.iter().position(holds) else { return };
        let wqe = &self.outstanding[at];
        self.fetch = wqe.position;
        self.next_psn = wqe.first_psn;
        self.skip = psn_ahead(unacknowledged, wqe.first_psn).unwrap_or(0);
        self.sending = None;
        self.stalled = false;
        self.outstanding.truncate(at);
        self.reads = self.outstanding.iter().filter(|wqe| matches!(wqe.awaited, Awaited::Response(_))).count() as u32;
    }

    pub(crate) fn has_work(&self) -> bool {
        self.sending.is_some() || (self.fetch != self.producer && !self.stalled)
    }
}
