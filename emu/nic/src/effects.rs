//! Effects of an input to the card.

use std::fmt;
use std::sync::Arc;

use crate::cq::CqTarget;
use crate::packet::{self, Packet};
use crate::progress::RefusedEntry;

/// Something the card wants to do later. Opaque to the caller, who hands it back at its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timer(pub(crate) Work);

/// What a timer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Work {
    /// A send doorbell has reached the card, with the last entry (`pushed`) or without any.
    Doorbell { qpn: u32, producer_index: u16, pushed: bool, life: u32 },
    /// An arm doorbell has reached the card.
    Arm { cqn: u32, consumer_index: u32, solicited_only: bool },
    /// The period is over that began when a moderated completion queue first held one back.
    Period { cqn: u32, first: u32 },
    /// A send engine is free: 0 serves the port, 1 the loopback path.
    Send { engine: u8 },
    /// A queue pair of limited rate may send its next packet.
    Paced { qpn: u32 },
    /// The receive engine is free.
    Receive,
    /// A packet has turned round inside the card.
    Loopback { slot: u32 },
    /// A CQE reaches its ring.
    Cqe { slot: u32 },
    /// The oldest unacknowledged packet of an RC queue pair may be lost.
    Retransmit { qpn: u32 },
    /// An RC queue pair that met an unready receiver may try again.
    ReceiverReady { qpn: u32, epoch: u32 },
    /// A queue pair was put into the error state by command.
    Flush { qpn: u32 },
    /// A shared receive queue may have fewer receives than its new limit.
    Limit { srqn: u32 },
}

/// A completion-queue event: a CQE arrived in an armed queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqEvent {
    /// The completion queue.
    pub cqn: u32,
    /// Who is to be notified.
    pub target: CqTarget,
}

/// Why a queue pair or completion queue failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureCause {
    /// A peer's access was refused.
    RemoteAccess,
    /// A peer's request was malformed, or too long for the receive.
    InvalidRequest,
    /// A producer index lies beyond the ring.
    BadDoorbell {
        /// Of a send doorbell, or of the receive word of the doorbell record.
        is_send: bool,
        /// The producer index.
        producer_index: u16,
        /// Oldest index in use.
        consumer_index: u16,
        /// Entries of the ring; 64-byte blocks of one for sends. 0 without one.
        depth: u32,
    },
    /// A completion queue of the queue pair failed.
    CompletionQueue {
        /// The completion queue.
        cqn: u32,
    },
    /// A CQE found its ring full.
    Overrun {
        /// Consumer index that the card knows, 24 bits.
        consumer_index: u32,
        /// Entries of the ring.
        depth: u32,
    },
    /// A ring or doorbell record is in memory the card cannot reach.
    QueueMemory {
        /// Where.
        addr: u64,
    },
}

/// Something went wrong that no CQE can report, or not in full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncEvent {
    /// A queue pair went into the error state for a reason that no error CQE of its own reports.
    QpFatal {
        /// The queue pair.
        qpn: u32,
        /// Why.
        cause: FailureCause,
    },
    /// A completion queue takes no more CQEs.
    CqError {
        /// The completion queue.
        cqn: u32,
        /// Why.
        cause: FailureCause,
    },
    /// A shared receive queue takes no more receives.
    SrqError {
        /// The shared receive queue.
        srqn: u32,
        /// Why.
        cause: FailureCause,
    },
    /// A shared receive queue has fewer receives left than its limit, which is 0 from now on.
    SrqLimit {
        /// The shared receive queue.
        srqn: u32,
    },
    /// A queue pair in the error state takes no more receives from its shared queue.
    LastReceive {
        /// The queue pair.
        qpn: u32,
    },
    /// A doorbell named a queue that is not there.
    UnknownQueue {
        /// The number it named.
        number: u32,
    },
}

impl fmt::Display for FailureCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::RemoteAccess => f.write_str(
                "its peer asked for memory that its key does not give it: exchange key, address and rights anew",
            ),
            Self::InvalidRequest => {
                f.write_str("its peer sent a malformed request, or one longer than the receive: post longer receives")
            }
            Self::BadDoorbell { is_send, producer_index, depth: 0, .. } => {
                let side = if is_send { "send" } else { "receive" };
                write!(f, "{side} index {producer_index} was posted, but it was made without a {side} queue")
            }
            Self::BadDoorbell { is_send, producer_index, consumer_index, depth } => {
                let (what, units) = if is_send {
                    ("its send doorbell", "blocks of 64 bytes")
                } else {
                    ("the receive word of its doorbell record", "entries")
                };
                let most = consumer_index.wrapping_add(depth as u16);
                write!(
                    f,
                    "{what} says {producer_index}, but the ring has {depth} {units}, the oldest in use is \
                     {consumer_index}, and so {most} is the most: wait for completions before posting more"
                )
            }
            Self::CompletionQueue { cqn } => write!(f, "its completion queue {cqn:#x} has failed"),
            Self::Overrun { consumer_index, depth } => write!(
                f,
                "it has overrun: all of its {depth} entries are in use, and the last consumer index reported is \
                 {consumer_index}: poll it and report the index before as many complete, or make it larger"
            ),
            Self::QueueMemory { addr } => write!(
                f,
                "the card cannot reach memory of its ring or doorbell record at {addr:#x}: keep that memory until the \
                 queue is destroyed"
            ),
        }
    }
}

impl fmt::Display for AsyncEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::QpFatal { qpn, cause } => write!(f, "QP {qpn:#x} has failed: {cause}"),
            Self::CqError { cqn, cause } => write!(f, "CQ {cqn:#x} has failed: {cause}"),
            Self::SrqError { srqn, cause } => write!(f, "SRQ {srqn:#x} has failed: {cause}"),
            Self::SrqLimit { srqn } => write!(f, "SRQ {srqn:#x} has fewer receives left than its limit: post more"),
            Self::LastReceive { qpn } => write!(f, "QP {qpn:#x} has failed, and takes no more shared receives"),
            Self::UnknownQueue { number } => write!(
                f,
                "a doorbell names queue {number:#x}, which does not exist: ring it with the number of a queue that has \
                 been created and not destroyed"
            ),
        }
    }
}

/// What an input led to. The caller drains it after each call and keeps it for the next, so that nothing is allocated.
///
/// Entries of one time must be handled in the order in which they were pushed, across calls.
#[derive(Debug, Default)]
pub struct Effects {
    /// Hand the timer to `Nic::handle_timer` at this time.
    pub timers: Vec<(u64, Timer)>,
    /// The packet's first bit leaves the port at this time.
    pub packets: Vec<(u64, Packet)>,
    /// The event fires at this time.
    pub events: Vec<(u64, CqEvent)>,
    /// Failures, as of now.
    pub async_events: Vec<AsyncEvent>,
    /// Entries that the card cannot execute.
    pub refused: Vec<RefusedEntry>,
    /// Payload memory of packets that are gone, for those to come.
    spare: Vec<Arc<[u8]>>,
}

/// Most payloads that are kept: packets of one card follow one another so closely, and what has been used last is
/// nearest.
const MOST_SPARE: usize = 8;

impl Effects {
    /// Forgets everything, and keeps the memory.
    pub fn clear(&mut self) {
        self.timers.clear();
        self.packets.clear();
        self.events.clear();
        self.async_events.clear();
        self.refused.clear();
    }

    /// Whether nothing happened.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.timers.is_empty() && self.packets.is_empty() && self.events.is_empty() && self.async_events.is_empty()
    }

    /// Payload memory of any content, which nobody shares: the caller fills it.
    pub(crate) fn payload(&mut self, len: u32) -> Arc<[u8]> {
        let spare = self.spare.pop().filter(|spare| spare.len() == len as usize);
        spare.unwrap_or_else(|| packet::payload(len))
    }

    /// A packet is gone, and its payload of use to the next one if no other packet shares it.
    pub(crate) fn recycle(&mut self, mut payload: Arc<[u8]>) {
        if self.spare.len() < MOST_SPARE && !payload.is_empty() && Arc::get_mut(&mut payload).is_some() {
            self.spare.push(payload);
        }
    }

    pub(crate) fn timer(&mut self, at_ps: u64, work: Work) {
        self.timers.push((at_ps, Timer(work)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_name_queue_index_depth_and_what_helps() {
        let send = FailureCause::BadDoorbell { is_send: true, producer_index: 17, consumer_index: 0xFFFE, depth: 8 };
        let receive = FailureCause::BadDoorbell { is_send: false, producer_index: 5, consumer_index: 0, depth: 4 };
        let overrun = FailureCause::Overrun { consumer_index: 3, depth: 64 };
        for (event, parts) in [
            (
                AsyncEvent::QpFatal { qpn: 0x1902, cause: send },
                [
                    "QP 0x1902",
                    "send doorbell says 17",
                    "8 blocks of 64 bytes",
                    "so 6 is the most",
                    "wait for completions",
                ],
            ),
            (
                AsyncEvent::QpFatal { qpn: 0x1902, cause: receive },
                ["QP 0x1902", "receive word", "says 5", "4 entries", "so 4 is the most"],
            ),
            (
                AsyncEvent::CqError { cqn: 0x401, cause: overrun },
                ["CQ 0x401", "overrun", "64 entries", "reported is 3", "make it larger"],
            ),
        ] {
            let text = event.to_string();
            assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        }
    }
}
