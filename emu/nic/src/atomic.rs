//! Atomic operations of a responder: fetch-and-add and compare-and-swap on eight bytes.
//!
//! A request is executed once. Its old value is kept, so that a repeated request gets the same answer (InfiniBand
//! specification, volume 1, 9.4.5 and 9.7.5.1.3: atomic responses are saved in responder resources). Values in memory have
//! the byte order of the host (mlx5 with `atomic_req_8B_endianness_mode` set, as Linux sets it), here little-endian.

use crate::dataflow::{Touched, read_ranges, write_ranges};
use crate::effects::Effects;
use crate::memory::Dma;
use crate::mkey::Access;
use crate::nic::Nic;
use crate::packet::{Acknowledgement, Extension, Operation, Packet};
use crate::queue_pair::{QueuePair, Response};
use crate::responder::{INVALID, Refusal};

/// Operand size; it must lie on a boundary of as many bytes.
pub(crate) const ATOMIC_BYTES: u32 = 8;

/// An atomic request as far as its execution needs it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Atomic {
    pub(crate) psn: u32,
    /// Messages up to and with it, 24 bits.
    pub(crate) message_number: u32,
    operation: Operation,
    address: u64,
    rkey: u32,
    swap_or_add: u64,
    compare: u64,
}

impl Nic {
    /// Accepts an atomic request that is next in sequence: executes and answers it, or lets it wait behind the reads that
    /// came before it, which must not see what it stores.
    pub(crate) fn receive_atomic(
        &mut self,
        now_ps: u64,
        qp: &mut QueuePair,
        packet: &Packet,
        mem: &mut dyn Dma,
        fx: &mut Effects,
    ) -> Result<u32, Refusal> {
        let Extension::Atomic { address, rkey, swap_or_add, compare } = packet.extension else { return Err(INVALID) };
        let aligned = address.is_multiple_of(u64::from(ATOMIC_BYTES));
        let limit = qp.path.max_dest_rd_atomic;
        if !aligned || !packet.payload.is_empty() || qp.rq.fetches_exhausted(now_ps, limit) {
            return Err(INVALID);
        }
        let (psn, operation) = (packet.psn, packet.operation);
        let message_number = qp.rq.remember(psn, 1, limit);
        let atomic = Atomic { psn, message_number, operation, address, rkey, swap_or_add, compare };
        if qp.rq.responses.is_empty() {
            let (original, ready_ps) = self.execute_atomic(now_ps, qp, &atomic, mem).map_err(Refusal::Request)?;
            let extension = Extension::AtomicAcknowledge { original };
            self.emit_acknowledgement(ready_ps, qp, (psn, message_number), extension, fx);
            qp.rq.fetch_answered(message_number);
        } else {
            // A key that forbids it is no reason to let the requester wait.
            self.remote(qp, rkey, address, ATOMIC_BYTES, Access::REMOTE_ATOMIC)?;
            qp.rq.responses.push_back(Response::Atomic(atomic));
        }
        Ok(1)
    }

    /// Executes an atomic; gives the old value, and when the answer may leave.
    pub(crate) fn execute_atomic(
        &mut self,
        now_ps: u64,
        qp: &mut QueuePair,
        atomic: &Atomic,
        mem: &mut dyn Dma,
    ) -> Result<(u64, u64), Acknowledgement> {
        let Atomic { address, rkey, .. } = *atomic;
        let ranges = self
            .remote(qp, rkey, address, ATOMIC_BYTES, Access::REMOTE_ATOMIC)
            .map_err(|_| Acknowledgement::RemoteAccess)?;
        let unreachable = |_| Acknowledgement::RemoteOperation;
        let (mut read, mut written) = (Touched::default(), Touched::default());
        let mut bytes = [0; ATOMIC_BYTES as usize];
        read_ranges(&ranges, &mut bytes, &mut read, mem).map_err(unreachable)?;
        let original = u64::from_le_bytes(bytes);
        let new = match atomic.operation {
            Operation::FetchAdd => original.wrapping_add(atomic.swap_or_add),
            _ if original == atomic.compare => atomic.swap_or_add,
            _ => original,
        };
        write_ranges(&ranges, &new.to_le_bytes(), &mut written, mem).map_err(unreachable)?;
        self.counters.atomics += 1;
        let ready_ps = now_ps + self.read_latency(now_ps, read);
        self.write_traffic(ready_ps, written);
        qp.rq.remember_original(atomic.psn, original);
        Ok((original, ready_ps))
    }
}
