//! Atomic operations of a responder: fetch-and-add and compare-and-swap on eight bytes.
//!
//! A request is executed once. Its old value is kept, so that a repeated request gets the same answer (InfiniBand
//! specification, volume 1, 9.4.5 and 9.7.5.1.3: atomic responses are saved in responder resources). Values in memory
//! have the byte order of the host (mlx5 with `atomic_req_8B_endianness_mode` set, as Linux sets it), here
//! little-endian.

use super::{INVALID, Refusal, Responder, remote};
use crate::access::Access;
use crate::cx::Cx;
use crate::engine::datapath::Datapath;
use crate::keys::{Touched, read_ranges, write_ranges};
use crate::packet::{Acknowledgement, Extension, Operation, Packet};
use crate::queue_pair::QueuePair;
use crate::queue_pair::receive_queue::{Atomic, Response};
use crate::wqe::ATOMIC_BYTES;

impl Responder {
    /// Accepts an atomic request that is next in sequence: executes and answers it, or lets it wait behind the reads
    /// that came before it, which must not see what it stores.
    pub(super) fn receive_atomic(
        dp: &mut Datapath,
        qp: &mut QueuePair,
        packet: &Packet,
        cx: &mut Cx<'_>,
    ) -> Result<u32, Refusal> {
        let Extension::Atomic { address, rkey, swap_or_add, compare } = packet.extension else { return Err(INVALID) };
        let aligned = address.is_multiple_of(u64::from(ATOMIC_BYTES));
        let limit = qp.path.max_dest_rd_atomic;
        if !aligned || !packet.payload.is_empty() || qp.rq.fetches_exhausted(cx.now_ps, limit) {
            return Err(INVALID);
        }
        let (psn, operation) = (packet.psn, packet.operation);
        let message_number = qp.rq.remember(psn, 1, limit);
        let atomic = Atomic { psn, message_number, operation, address, rkey, swap_or_add, compare };
        if qp.rq.responses.is_empty() {
            let (original, ready_ps) = Self::execute_atomic(dp, qp, &atomic, cx).map_err(Refusal::Request)?;
            let extension = Extension::AtomicAcknowledge { original };
            dp.port.emit_acknowledgement(ready_ps, qp, (psn, message_number), extension, cx);
            qp.rq.fetch_answered(message_number);
        } else {
            // A key that forbids it is no reason to let the requester wait.
            remote(&dp.keys, qp, rkey, address, ATOMIC_BYTES, Access::REMOTE_ATOMIC)?;
            qp.rq.responses.push_back(Response::Atomic(atomic));
        }
        Ok(1)
    }

    /// Executes an atomic; gives the old value, and when the answer may leave.
    pub(super) fn execute_atomic(
        dp: &mut Datapath,
        qp: &mut QueuePair,
        atomic: &Atomic,
        cx: &mut Cx<'_>,
    ) -> Result<(u64, u64), Acknowledgement> {
        let Atomic { address, rkey, .. } = *atomic;
        let ranges = remote(&dp.keys, qp, rkey, address, ATOMIC_BYTES, Access::REMOTE_ATOMIC)
            .map_err(|_| Acknowledgement::RemoteAccess)?;
        let unreachable = |_| Acknowledgement::RemoteOperation;
        let (mut read, mut written) = (Touched::default(), Touched::default());
        let mut bytes = [0; ATOMIC_BYTES as usize];
        read_ranges(&ranges, &mut bytes, &mut read, cx.mem).map_err(unreachable)?;
        let original = u64::from_le_bytes(bytes);
        let new = match atomic.operation {
            Operation::FetchAdd => original.wrapping_add(atomic.swap_or_add),
            _ if original == atomic.compare => atomic.swap_or_add,
            _ => original,
        };
        write_ranges(&ranges, &new.to_le_bytes(), &mut written, cx.mem).map_err(unreachable)?;
        cx.log.counters.atomics += 1;
        let ready_ps = cx.now_ps + dp.pcie.read_latency(cx.now_ps, read);
        dp.pcie.write_traffic(ready_ps, written);
        qp.rq.remember_original(atomic.psn, original);
        Ok((original, ready_ps))
    }
}
