//! Requests that come again: what an RC responder remembers of Reads and atomics, and how it answers repetitions.
//!
//! Of Reads and atomics as many are remembered as the peer may have outstanding (InfiniBand specification, volume 1, 9.7.5: responder
//! resources). An answer says how many messages are complete up to its PSN, no more: of a Read that is still to be answered, or whose
//! answer may have been lost, nobody learns by the answer to something else.

use crate::effects::Effects;
use crate::nic::Nic;
use crate::packet::{Acknowledgement, Extension, Operation, Packet};
use crate::queue_pair::{QueuePair, ReceiveQueue, Response, psn_add, psn_ahead};
use crate::requester::packets;

/// A Read or an atomic that was accepted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fetched {
    first_psn: u32,
    /// PSNs of its answer.
    packets: u32,
    /// Messages up to and with it, 24 bits.
    message_number: u32,
    /// What an atomic found, once it has been executed.
    original: Option<u64>,
    /// When the last packet of its answer has left, or will have.
    answered_ps: Option<u64>,
}

impl Fetched {
    fn end_psn(&self) -> u32 {
        psn_add(self.first_psn, self.packets)
    }
}

impl ReceiveQueue {
    /// Whether the peer has as many Reads and atomics outstanding as it may: it knows `limit`, and must not ask for another. Repetitions
    /// are none of the peer's asking where the network makes them, and do not count.
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
    fn place(&self, psn: u32, mtu: u32) -> usize {
        self.responses.iter().take_while(|response| psn_ahead(psn, response.end_psn(mtu)).is_some()).count()
    }
}

impl Nic {
    /// A request that has been executed before: its answer was lost, or the network has doubled it.
    pub(crate) fn respond_again(&mut self, now_ps: u64, qp: &mut QueuePair, packet: &Packet, fx: &mut Effects) {
        self.counters.rc_duplicates += 1;
        let psn = packet.psn;
        match (packet.operation, packet.extension) {
            (Operation::ReadRequest, Extension::Remote { address, rkey, len }) => {
                self.read_again(now_ps, qp, psn, (address, rkey, len), fx);
            }
            (Operation::CompareSwap | Operation::FetchAdd, _) => {
                let found = qp.rq.fetched.iter().rev().find(|fetched| fetched.first_psn == psn).copied();
                // One that still waits is answered when its turn comes.
                if let Some(Fetched { message_number, original: Some(original), .. }) = found {
                    let extension = Extension::AtomicAcknowledge { original };
                    self.answer_again(now_ps, qp, (psn, message_number), extension, fx);
                }
            }
            _ if packet.ack_request => {
                // A Read behind it is acknowledged by its own answer alone.
                let behind = qp.rq.fetched.iter().find(|fetched| psn_ahead(fetched.first_psn, psn).is_some());
                let (next_psn, next_number) = match behind {
                    Some(fetched) => (fetched.first_psn, fetched.message_number),
                    None => (qp.rq.expected_psn, psn_add(qp.rq.message_number, 1)),
                };
                let last = (psn_add(next_psn, u32::MAX), psn_add(next_number, u32::MAX));
                self.answer_again(now_ps, qp, last, Extension::Acknowledge(Acknowledgement::Positive), fx);
            }
            _ => {}
        }
    }

    /// A Read, or what is missing at its end, is asked for again. One that is not remembered is of no use to the peer any more, and no
    /// request of it reaches further than the Read did.
    fn read_again(
        &mut self,
        now_ps: u64,
        qp: &mut QueuePair,
        psn: u32,
        (address, rkey, len): (u64, u32, u32),
        fx: &mut Effects,
    ) {
        let mtu = qp.path.path_mtu.bytes();
        let end = psn_add(psn, packets(len, mtu));
        let covers = |fetched: &Fetched| {
            let (before, beyond) = (psn_ahead(psn, fetched.first_psn), psn_ahead(end, fetched.end_psn()));
            before.is_some_and(|before| before < fetched.packets) && beyond.is_none_or(|beyond| beyond == 0)
        };
        let Some(&Fetched { message_number, .. }) = qp.rq.fetched.iter().rev().find(|of| covers(of)) else {
            return;
        };
        // The peer starts again from here, so what was still to be sent of this Read is of no use to it.
        let same = |response: &Response| matches!(response, Response::Read { message_number: number, .. } if *number == message_number);
        qp.rq.responses.retain(|response| !same(response));
        let at = qp.rq.place(psn, mtu);
        for later in qp.rq.responses.range_mut(at..) {
            // It has not taken what came of later Reads without this one.
            if let Response::Read { packet, .. } = later {
                *packet = 0;
            }
        }
        let again = Response::Read { address, rkey, len, packet: 0, first_psn: psn, message_number };
        qp.rq.responses.insert(at, again);
        self.wake(now_ps, qp, fx);
    }

    /// Answers a repetition, before what is still to be sent for later requests.
    fn answer_again(
        &mut self,
        ready_ps: u64,
        qp: &mut QueuePair,
        (psn, message_number): (u32, u32),
        extension: Extension,
        fx: &mut Effects,
    ) {
        if qp.rq.responses.is_empty() {
            self.emit_acknowledgement(ready_ps, qp, (psn, message_number), extension, fx);
        } else {
            let at = qp.rq.place(psn, qp.path.path_mtu.bytes());
            qp.rq.responses.insert(at, Response::Answer { psn, message_number, extension, ready_ps });
        }
    }
}
