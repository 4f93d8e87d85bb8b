//! Answer queue of an RC responder: read responses, atomic answers and acknowledgements, in the order of the requests.

use std::sync::Arc;

use crate::dataflow::{Touched, read_ranges};
use crate::effects::{Effects, FailureCause};
use crate::memory::Dma;
use crate::mkey::Access;
use crate::nic::Nic;
use crate::packet::{Acknowledgement, Extension, Operation};
use crate::queue_pair::{QueuePair, Response, psn_add};
use crate::requester::{packets, part, payload};

/// Answers of an RC responder.
impl Nic {
    /// Acknowledges, after everything that is still to be sent.
    pub(crate) fn acknowledge(
        &mut self,
        now_ps: u64,
        qp: &mut QueuePair,
        psn: u32,
        acknowledgement: Acknowledgement,
        fx: &mut Effects,
    ) {
        let (extension, message_number) = (Extension::Acknowledge(acknowledgement), qp.rq.message_number);
        if qp.rq.responses.is_empty() {
            self.emit_acknowledgement(now_ps, qp, (psn, message_number), extension, fx);
        } else {
            qp.rq.responses.push_back(Response::Answer { psn, message_number, extension, ready_ps: now_ps });
        }
    }

    /// Sends one packet of a read's answer if there is one; gives the time until which the engine is held.
    pub(crate) fn send_response(
        &mut self,
        now_ps: u64,
        qp: &mut QueuePair,
        mem: &mut dyn Dma,
        fx: &mut Effects,
    ) -> Option<u64> {
        loop {
            match *qp.rq.responses.front()? {
                Response::Answer { psn, message_number, extension, ready_ps } => {
                    qp.rq.responses.pop_front();
                    self.emit_acknowledgement(now_ps.max(ready_ps), qp, (psn, message_number), extension, fx);
                }
                Response::Atomic(atomic) => {
                    qp.rq.responses.pop_front();
                    let (psn, message_number) = (atomic.psn, atomic.message_number);
                    match self.execute_atomic(now_ps, qp, &atomic, mem) {
                        Ok((original, ready_ps)) => {
                            let extension = Extension::AtomicAcknowledge { original };
                            self.emit_acknowledgement(ready_ps, qp, (psn, message_number), extension, fx);
                            qp.rq.fetch_answered(message_number);
                        }
                        Err(acknowledgement) => {
                            self.refuse_late(now_ps, qp, (psn, message_number), acknowledgement, mem, fx);
                            return Some(now_ps);
                        }
                    }
                }
                Response::Read { address, rkey, len, packet, first_psn, message_number } => {
                    let mtu = qp.path.path_mtu.bytes();
                    let psn = psn_add(first_psn, packet);
                    let (offset, count) = part(packet, mtu, len);
                    let last = packet + 1 >= packets(len, mtu);
                    match self.read_remote(qp, rkey, address.wrapping_add(u64::from(offset)), count, mem) {
                        Ok((bytes, touched)) => {
                            if let Some(Response::Read { packet, .. }) = qp.rq.responses.front_mut() {
                                *packet += 1;
                            }
                            if last {
                                qp.rq.responses.pop_front();
                            }
                            let (at, ends) = ((psn, message_number), (packet == 0, last));
                            let engine_ps = self.emit_response(now_ps, qp, at, ends, bytes, touched, fx);
                            if last {
                                qp.rq.fetch_answered(message_number);
                            }
                            return Some(engine_ps);
                        }
                        Err(acknowledgement) => {
                            self.refuse_late(now_ps, qp, (psn, message_number), acknowledgement, mem, fx);
                            return Some(now_ps);
                        }
                    }
                }
            }
        }
    }

    /// The memory has gone since the request was accepted: of the messages up to it, all but it are complete.
    fn refuse_late(
        &mut self,
        now_ps: u64,
        qp: &mut QueuePair,
        (psn, message_number): (u32, u32),
        acknowledgement: Acknowledgement,
        mem: &mut dyn Dma,
        fx: &mut Effects,
    ) {
        qp.rq.responses.clear();
        self.counters.remote_access_errors += 1;
        let before = (psn, psn_add(message_number, u32::MAX));
        self.emit_acknowledgement(now_ps, qp, before, Extension::Acknowledge(acknowledgement), fx);
        self.fail_qp(now_ps, qp, FailureCause::RemoteAccess, mem, fx);
    }

    fn read_remote(
        &self,
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
            self.remote(qp, rkey, addr, count, Access::REMOTE_READ).map_err(|_| Acknowledgement::RemoteAccess)?;
        let mut bytes = payload(count);
        if let Some(out) = Arc::get_mut(&mut bytes) {
            read_ranges(&ranges, out, &mut touched, mem).map_err(|_| Acknowledgement::RemoteOperation)?;
        }
        Ok((bytes, touched))
    }

    #[allow(clippy::too_many_arguments, reason = "one place, and each is a field of the packet or of the call")]
    fn emit_response(
        &mut self,
        now_ps: u64,
        qp: &mut QueuePair,
        (psn, message_number): (u32, u32),
        (first, last): (bool, bool),
        bytes: Arc<[u8]>,
        touched: Touched,
        fx: &mut Effects,
    ) -> u64 {
        let mut packet = self.connected_packet(qp, Operation::ReadResponse, psn);
        packet.first = first;
        packet.last = last;
        if first || last {
            packet.extension = Extension::Acknowledge(Acknowledgement::Positive);
            packet.message_number = message_number;
        }
        packet.payload = bytes;
        let ready_ps = now_ps + self.read_latency(now_ps, touched);
        let loopback = self.turns_round(qp);
        let sent = self.emit(ready_ps, packet, loopback, fx);
        // A loopback packet arrives the PCIe latency after it is done; what follows must not overtake it.
        let latency_ps = if loopback { self.config.timing.pcie_latency_ps } else { 0 };
        qp.rq.last_response_ps = sent.done_ps + latency_ps;
        sent.engine_ps
    }
}
