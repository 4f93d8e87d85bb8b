//! Requests that come again: what an RC responder remembers of Reads and atomics, and how it answers repetitions.
//!
//! Of Reads and atomics as many are remembered as the peer may have outstanding (InfiniBand specification, volume 1,
//! 9.7.5: responder resources). An answer says how many messages are complete up to its PSN, no more: of a Read that is
//! still to be answered, or whose answer may have been lost, nobody learns by the answer to something else.

use super::Responder;
use crate::cx::Cx;
use crate::engine::datapath::Datapath;
use crate::packet::{Acknowledgement, Extension, Operation, Packet};
use crate::psn::{packets, psn_add, psn_ahead};
use crate::queue_pair::QueuePair;
use crate::queue_pair::receive_queue::{Fetched, Response};

impl Responder {
    /// A request that has been executed before: its answer was lost, or the network has doubled it.
    pub(super) fn respond_again(dp: &mut Datapath, qp: &mut QueuePair, packet: &Packet, cx: &mut Cx<'_>) {
        cx.log.counters.rc_duplicates += 1;
        let psn = packet.psn;
        match (packet.operation, packet.extension) {
            (Operation::ReadRequest, Extension::Remote { address, rkey, len }) => {
                Self::read_again(dp, qp, psn, (address, rkey, len), cx);
            }
            (Operation::CompareSwap | Operation::FetchAdd, _) => {
                let found = qp.rq.fetched.iter().rev().find(|fetched| fetched.first_psn == psn).copied();
                // One that still waits is answered when its turn comes.
                if let Some(Fetched { message_number, original: Some(original), .. }) = found {
                    let extension = Extension::AtomicAcknowledge { original };
                    Self::answer_again(dp, qp, (psn, message_number), extension, cx);
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
                Self::answer_again(dp, qp, last, Extension::Acknowledge(Acknowledgement::Positive), cx);
            }
            _ => {}
        }
    }

    /// A Read, or what is missing at its end, is asked for again. One that is not remembered is of no use to the peer
    /// any more, and no request of it reaches further than the Read did.
    fn read_again(
        dp: &mut Datapath,
        qp: &mut QueuePair,
        psn: u32,
        (address, rkey, len): (u64, u32, u32),
        cx: &mut Cx<'_>,
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
        dp.port.wake(cx.now_ps, qp, cx.fx);
    }

    /// Answers a repetition, before what is still to be sent for later requests.
    fn answer_again(
        dp: &mut Datapath,
        qp: &mut QueuePair,
        (psn, message_number): (u32, u32),
        extension: Extension,
        cx: &mut Cx<'_>,
    ) {
        if qp.rq.responses.is_empty() {
            dp.port.emit_acknowledgement(cx.now_ps, qp, (psn, message_number), extension, cx);
        } else {
            let at = qp.rq.place(psn, qp.path.path_mtu.bytes());
            qp.rq.responses.insert(at, Response::Answer { psn, message_number, extension, ready_ps: cx.now_ps });
        }
    }
}
