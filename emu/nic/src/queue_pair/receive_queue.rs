//! Receive queue of a queue pair: the message being received, and what an RC responder has to answer and remembers.

use std::collections::{BTreeMap, VecDeque};

use crate::address::Gid;
use crate::packet::{Extension, Operation};
use crate::progress::NotReady;
use crate::psn::{packets, psn_add, psn_ahead};
use crate::wqe::DataSegment;

/// An atomic request as far as its execution needs it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Atomic {
    pub(crate) psn: u32,
    /// Messages up to and with it, 24 bits.
    pub(crate) message_number: u32,
    pub(crate) operation: Operation,
    pub(crate) address: u64,
    pub(crate) rkey: u32,
    pub(crate) swap_or_add: u64,
    pub(crate) compare: u64,
}

/// Who sends to a group, as far as its packets show.
pub(crate) type Sender = (Gid, u16);

/// Where a member is in the packets of one sender.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sequence {
    pub(crate) expected_psn: u32,
    pub(crate) inbound: Option<Inbound>,
}

/// A Read or an atomic that was accepted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fetched {
    pub(crate) first_psn: u32,
    /// PSNs of its answer.
    pub(crate) packets: u32,
    /// Messages up to and with it, 24 bits.
    pub(crate) message_number: u32,
    /// What an atomic found, once it has been executed.
    pub(crate) original: Option<u64>,
    /// When the last packet of its answer has left, or will have.
    answered_ps: Option<u64>,
}

impl Fetched {
    pub(crate) fn end_psn(&self) -> u32 {
        psn_add(self.first_psn, self.packets)
    }
}

/// The message being received.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Inbound {
    Send { received: u64, capacity: u64 },
    Write { address: u64, rkey: u32, len: u32, received: u32 },
}

/// What an RC responder still has to send.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Response {
    Read {
        address: u64,
        rkey: u32,
        len: u32,
        packet: u32,
        first_psn: u32,
        /// Messages up to and with the Read, 24 bits.
        message_number: u32,
    },
    Answer {
        psn: u32,
        /// Messages up to this PSN.
        message_number: u32,
        extension: Extension,
        ready_ps: u64,
    },
    /// To be executed when the reads before it have been answered.
    Atomic(Atomic),
}

impl Response {
    /// PSN behind the request.
    pub(crate) fn end_psn(&self, mtu: u32) -> u32 {
        match self {
            Self::Read { first_psn, len, .. } => psn_add(*first_psn, packets(*len, mtu)),
            Self::Answer { psn, .. } | Self::Atomic(Atomic { psn, .. }) => psn_add(*psn, 1),
        }
    }
}

/// Whom a queue pair without receives of its own takes them from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    /// The shared receive queue.
    pub(crate) queue: u32,
    /// Index of one that this queue pair has taken, and that has not completed.
    pub(crate) own: Option<u16>,
}

#[derive(Debug, Default)]
pub(crate) struct ReceiveQueue {
    /// Of a queue pair that takes its receives from a shared queue.
    pub(crate) shared: Option<Share>,
    /// Receive counter as last read from the doorbell record.
    pub(crate) producer: u16,
    /// Next receive to be consumed; of a shared queue, the one taken last.
    pub(crate) consumer: u16,
    pub(crate) expected_psn: u32,
    /// Messages accepted, 24 bits. Answers report those up to their own PSN: Reads among the accepted ones may still be
    /// unanswered.
    pub(crate) message_number: u32,
    /// A NAK is out; nothing but the expected PSN is of interest.
    pub(crate) nak_sent: bool,
    pub(crate) inbound: Option<Inbound>,
    /// Of a member of groups (UC): where it is in the packets of each sender.
    pub(crate) senders: BTreeMap<Sender, Sequence>,
    /// Segments of the receive that a Send is going into.
    pub(crate) segments: Vec<DataSegment>,
    pub(crate) responses: VecDeque<Response>,
    /// The latest Reads and atomics, oldest first: what a repeated request is answered with.
    pub(crate) fetched: VecDeque<Fetched>,
    /// Datagrams and messages that found no receive.
    pub(crate) rnr_drops: u64,
    /// RNR NAKs since a message last found a receive (RC).
    pub(crate) not_ready: Option<NotReady>,
    /// Datagrams with a wrong Q_Key.
    pub(crate) qkey_drops: u64,
    /// Responses of one queue pair stay in order.
    pub(crate) last_response_ps: u64,
    pub(crate) last_cqe_ps: u64,
}

impl ReceiveQueue {
    /// Whether the peer has as many Reads and atomics outstanding as it may: it knows `limit`, and must not ask for
    /// another. Repetitions are none of the peer's asking where the network makes them, and do not count.
    pub(crate) fn fetches_exhausted(&self, now_ps: u64, limit: u8) -> bool {
        let outstanding = |fetched: &&Fetched| fetched.answered_ps.is_none_or(|at_ps| at_ps > now_ps);
        self.fetched.iter().filter(outstanding).count() >= usize::from(limit)
    }

    /// The last packet of an answer, the latest of the queue pair's, is on its way.
    pub(crate) fn fetch_answered(&mut self, message_number: u32) {
        let at_ps = self.last_response_ps;
        if let Some(fetched) = self.fetched.iter_mut().rev().find(|of| of.message_number == message_number) {
            fetched.answered_ps.get_or_insert(at_ps);
        }
    }

    /// Remembers a Read or an atomic, and forgets the oldest beyond `limit`; gives the number of messages with it.
    pub(crate) fn remember(&mut self, first_psn: u32, packets: u32, limit: u8) -> u32 {
        while self.fetched.len() >= usize::from(limit.max(1)) {
            self.fetched.pop_front();
        }
        let message_number = psn_add(self.message_number, 1);
        self.fetched.push_back(Fetched { first_psn, packets, message_number, original: None, answered_ps: None });
        message_number
    }

    /// Remembers what an atomic found.
    pub(crate) fn remember_original(&mut self, psn: u32, original: u64) {
        if let Some(fetched) = self.fetched.iter_mut().rev().find(|fetched| fetched.first_psn == psn) {
            fetched.original = Some(original);
        }
    }

    /// Where an answer of this PSN belongs among those that are still to be sent.
    pub(crate) fn place(&self, psn: u32, mtu: u32) -> usize {
        self.responses.iter().take_while(|response| psn_ahead(psn, response.end_psn(mtu)).is_some()).count()
    }
}
