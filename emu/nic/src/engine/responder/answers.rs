//! Answer queue of an RC responder: read responses, atomic answers and acknowledgements, in the order of the requests.

use std::sync::Arc;

use super::{Responder, remote};
use crate::access::Access;
use crate::cx::Cx;
use crate::effects::FailureCause;
use crate::engine::datapath::Datapath;
use crate::keys::{Touched, read_ranges};
use crate::memory::Dma;
use crate::packet::{Acknowledgement, Extension, Operation, payload};
use crate::psn::{packets, part, psn_add};
use crate::queue_pair::QueuePair;
use crate::queue_pair::receive_queue::Response;

/// Acknowledges, after everything that is still to be sent.
pub(super) fn acknowledge(
    dp: &mut Datapath,
    qp: &mut QueuePair,
    psn: u32,
    acknowledgement: Acknowledgement,
    cx: &mut Cx<'_>,
) {
    let (extension, message_number) = (Extension::Acknowledge(acknowledgement), qp.rq.message_number);
    if qp.rq.responses.is_empty() {
        dp.port.emit_acknowledgement(cx.now_ps, qp, (psn, message_number), extension, cx);
    } else {
        qp.rq.responses.push_back(Response::Answer { psn, message_number, extension, ready_ps: cx.now_ps });
    }
}

/// One packet of a read's answer.
struct Part {
    psn: u32,
    /// Messages up to and with the Read, 24 bits.
    message_number: u32,
    first: bool,
    last: bool,
    bytes: Arc<[u8]>,
    touched: Touched,
}

impl Responder {
    /// Sends one packet of a read's answer if there is one; gives the time until which the engine is held.
    pub(crate) fn send_response(dp: &mut Datapath, qp: &mut QueuePair, cx: &mut Cx<'_>) -> Option<u64> {
        loop {
            match *qp.rq.responses.front()? {
                Response::Answer { psn, message_number, extension, ready_ps } => {
                    qp.rq.responses.pop_front();
                    dp.port.emit_acknowledgement(cx.now_ps.max(ready_ps), qp, (psn, message_number), extension, cx);
                }
                Response::Atomic(atomic) => {
                    qp.rq.responses.pop_front();
                    let (psn, message_number) = (atomic.psn, atomic.message_number);
                    match Self::execute_atomic(dp, qp, &atomic, cx) {
                        Ok((original, ready_ps)) => {
                            let extension = Extension::AtomicAcknowledge { original };
                            dp.port.emit_acknowledgement(ready_ps, qp, (psn, message_number), extension, cx);
                            qp.rq.fetch_answered(message_number);
                        }
                        Err(acknowledgement) => {
                            Self::refuse_late(dp, qp, (psn, message_number), acknowledgement, cx);
                            return Some(cx.now_ps);
                        }
                    }
                }
                Response::Read { address, rkey, len, packet, first_psn, message_number } => {
                    let mtu = qp.path.path_mtu.bytes();
                    let psn = psn_add(first_psn, packet);
                    let (offset, count) = part(packet, mtu, len);
                    let last = packet + 1 >= packets(len, mtu);
                    match read_remote(dp, qp, rkey, address.wrapping_add(u64::from(offset)), count, cx.mem) {
                        Ok((bytes, touched)) => {
                            if let Some(Response::Read { packet, .. }) = qp.rq.responses.front_mut() {
                                *packet += 1;
                            }
                            if last {
                                qp.rq.responses.pop_front();
                            }
                            let part = Part { psn, message_number, first: packet == 0, last, bytes, touched };
                            let engine_ps = Self::emit_response(dp, qp, part, cx);
                            if last {
                                qp.rq.fetch_answered(message_number);
                            }
                            return Some(engine_ps);
                        }
                        Err(acknowledgement) => {
                            Self::refuse_late(dp, qp, (psn, message_number), acknowledgement, cx);
                            return Some(cx.now_ps);
                        }
                    }
                }
            }
        }
    }

    /// The memory has gone since the request was accepted: of the messages up to it, all but it are complete.
    fn refuse_late(
        dp: &mut Datapath,
        qp: &mut QueuePair,
        (psn, message_number): (u32, u32),
        acknowledgement: Acknowledgement,
        cx: &mut Cx<'_>,
    ) {
        qp.rq.responses.clear();
        cx.log.counters.remote_access_errors += 1;
        let before = (psn, psn_add(message_number, u32::MAX));
        dp.port.emit_acknowledgement(cx.now_ps, qp, before, Extension::Acknowledge(acknowledgement), cx);
        dp.fail_qp(qp, FailureCause::RemoteAccess, cx);
    }

    fn emit_response(dp: &mut Datapath, qp: &mut QueuePair, part: Part, cx: &mut Cx<'_>) -> u64 {
        let Part { psn, message_number, first, last, bytes, touched } = part;
        let mut packet = dp.port.identity.packet(qp, Operation::ReadResponse, psn);
        packet.first = first;
        packet.last = last;
        if first || last {
            packet.extension = Extension::Acknowledge(Acknowledgement::Positive);
            packet.message_number = message_number;
        }
        packet.payload = bytes;
        let ready_ps = cx.now_ps + dp.pcie.read_latency(cx.now_ps, touched);
        let loopback = dp.port.identity.turns_round(qp);
        let sent = dp.port.emit(ready_ps, packet, loopback, cx);
        qp.rq.last_response_ps = sent.behind_ps;
        sent.engine_ps
    }
}

fn read_remote(
    dp: &Datapath,
    qp: &QueuePair,
    rkey: u32,
    addr: u64,
    count: u32,
    mem: &mut dyn Dma,
) -> Result<(Arc<[u8]>, Touched), Acknowledgement> {
    let mut touched = Touched::default();
    if count == 0 {
        return Ok((Arc::default(), touched));
    }
    let ranges =
        remote(&dp.keys, qp, rkey, addr, count, Access::REMOTE_READ).map_err(|_| Acknowledgement::RemoteAccess)?;
    let mut bytes = payload(count);
    if let Some(out) = Arc::get_mut(&mut bytes) {
        read_ranges(&ranges, out, &mut touched, mem).map_err(|_| Acknowledgement::RemoteOperation)?;
    }
    Ok((bytes, touched))
}
