//! The sending side: host queue pairs of the other card.

use flexio::{
    Access, AddressHandle, CompletionQueue, Device, HostBuffer, MemoryRegion, ProtectionDomain, QueueDepths, QueuePair,
    RemoteQp, SendKind, SendRequest,
};

use super::TputError;
use super::plan::{Plan, Share, Transport};
use super::server::{Q_KEY, WorkerEndpoint};

/// Most send entries of one queue pair; deeper rings would only hold what the credit does not allow anyway.
const MAX_SEND_DEPTH: u32 = 1024;

/// A provisioned sender: one queue pair per worker.
pub struct Client<'a> {
    plan: &'a Plan,
    queue_pairs: Vec<QueuePair>,
    completions: &'a CompletionQueue,
    path: Option<AddressHandle>,
    source: &'a MemoryRegion,
    lanes: Vec<Lane>,
    depth: u64,
}

/// What has gone to one worker.
#[derive(Clone, Copy, Debug, Default)]
struct Lane {
    /// Messages posted since set-up.
    posted: u64,
    /// Of those, known to have left.
    completed: u64,
    /// Messages given up as lost since set-up: they use no receive.
    lost: u64,
    /// Next chunk of the operation.
    next: u64,
}

/// Provisions a sender for the plan on `device`, with a copy of `source`, and calls `body` with it.
///
/// # Errors
/// [`TputError`] of any step, or of `body`.
pub fn connect<R>(
    device: &Device,
    plan: &Plan,
    source: &[u8],
    body: impl FnOnce(&mut Client<'_>) -> Result<R, TputError>,
) -> Result<R, TputError> {
    let pd = ProtectionDomain::new(device)?;
    let source = MemoryRegion::register(&pd, HostBuffer::from_bytes(source)?, Access::empty())?;
    let depth = plan.params.ring.min(MAX_SEND_DEPTH);
    let workers = plan.shares.len() as u32;
    let completions = CompletionQueue::new(device, workers * (depth / plan.params.batch + 1) * 2)?;
    let transport = match plan.params.transport {
        Transport::Uc => flexio::Transport::Uc,
        Transport::Ud => flexio::Transport::Ud,
    };
    let mut queue_pairs = Vec::new();
    for _ in &plan.shares {
        let depths = QueueDepths { send: depth, receive: 1 };
        let qp = QueuePair::new(&pd, transport, &completions, &completions, depths)?;
        qp.init(Access::empty(), Q_KEY)?;
        queue_pairs.push(qp);
    }
    let lanes = vec![Lane::default(); queue_pairs.len()];
    let depth = u64::from(depth);
    let mut client = Client { plan, queue_pairs, completions: &completions, path: None, source: &source, lanes, depth };
    body(&mut client)
}

impl<'a> Client<'a> {
    /// How the receiver reaches each queue pair.
    #[must_use]
    pub fn endpoints(&self, device: &Device) -> Vec<RemoteQp> {
        let (gid, mac) = (device.port().gid, device.info().mac);
        self.queue_pairs.iter().map(|qp| RemoteQp { qpn: qp.qpn(), gid, mac, first_psn: 0 }).collect()
    }

    /// Brings the queue pairs to RTS towards the workers.
    ///
    /// # Errors
    /// [`TputError::Flexio`].
    pub fn connect(&mut self, workers: &[WorkerEndpoint]) -> Result<(), TputError> {
        match self.plan.params.transport {
            Transport::Uc => {
                for (qp, worker) in self.queue_pairs.iter().zip(workers) {
                    qp.connect(&worker.qp, 0)?;
                }
            }
            Transport::Ud => {
                for qp in &self.queue_pairs {
                    qp.activate(0)?;
                }
                // All workers share one port, so one path leads to all.
                if let Some(worker) = workers.first() {
                    self.path = Some(AddressHandle::new(self.source.pd(), worker.qp.gid)?);
                }
            }
        }
        Ok(())
    }

    /// Starts the next operation at its first chunk.
    pub fn restart(&mut self) {
        for lane in &mut self.lanes {
            lane.next = 0;
        }
    }

    /// Whether every chunk of the operation has been posted.
    #[must_use]
    pub fn all_posted(&self) -> bool {
        self.lanes.iter().zip(&self.plan.shares).all(|(lane, share)| lane.next == share.chunks)
    }

    /// Chunks of the operation posted so far.
    #[must_use]
    pub fn chunks_posted(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.next).sum()
    }

    /// Posts one batch to one worker if its credit (`receives_posted`) and the send queue allow; returns the chunks posted.
    ///
    /// # Errors
    /// [`TputError::Flexio`].
    pub fn post_batch(
        &mut self,
        worker: usize,
        to: &WorkerEndpoint,
        collective_id: u32,
        receives_posted: u64,
    ) -> Result<u64, TputError> {
        let (share, lane) = (&self.plan.shares[worker], self.lanes[worker]);
        let count = u64::from(self.plan.params.batch).min(share.chunks - lane.next);
        let credit = (receives_posted + lane.lost).saturating_sub(lane.posted);
        let room = self.depth - (lane.posted - lane.completed);
        if count == 0 || credit < count || room < count {
            return Ok(0);
        }
        let requests = (0..count)
            .map(|i| {
                self.request(share, to, collective_id, lane.next + i, (i + 1 == count).then_some(lane.posted + count))
            })
            .collect::<Result<Vec<_>, TputError>>()?;
        self.queue_pairs[worker].post_sends(&requests)?;
        let lane = &mut self.lanes[worker];
        lane.next += count;
        lane.posted += count;
        Ok(count)
    }

    /// The send of chunk `psn`; the last of a batch is signalled and carries the number of messages posted up to it.
    fn request(
        &self,
        share: &Share,
        to: &WorkerEndpoint,
        collective_id: u32,
        psn: u64,
        signal: Option<u64>,
    ) -> Result<SendRequest<'_>, TputError> {
        let params = &self.plan.params;
        let offset = psn * params.chunk_bytes;
        let len = share.chunk_len(psn, params.chunk_bytes) as u32;
        let kind = match &self.path {
            None => SendKind::Write { remote_addr: to.remote_addr + offset, rkey: to.rkey },
            Some(path) => SendKind::Datagram { to: path, qpn: to.qp.qpn, q_key: to.q_key },
        };
        Ok(SendRequest {
            id: u64::from(share.worker) << 48 | signal.unwrap_or(0),
            kind,
            local: Some(self.source.slice(share.offset + offset, len)?),
            immediate: Some(immediate(collective_id, psn, params.psn_bits)),
            signaled: signal.is_some(),
        })
    }

    /// Takes completions of sends; returns how many there were.
    ///
    /// # Errors
    /// [`TputError::Flexio`] when a send failed.
    pub fn reap(&mut self) -> Result<usize, TputError> {
        let done = self.completions.poll()?;
        for completion in &done {
            self.completions.check(completion, "a chunk")?;
            let lane = &mut self.lanes[(completion.id >> 48) as usize];
            lane.completed = lane.completed.max(completion.id & ((1 << 48) - 1));
        }
        Ok(done.len())
    }

    /// Chunks sent to a worker that it has not told to have consumed, given the receives it has posted: a ring more than that.
    #[must_use]
    pub fn in_flight(&self, worker: usize, receives_posted: u64) -> u64 {
        let lane = &self.lanes[worker];
        let consumed = receives_posted.saturating_sub(u64::from(self.plan.params.ring));
        (lane.posted - lane.lost).saturating_sub(consumed)
    }

    /// Counts what is in flight to a worker as lost, because nothing moves any more; returns how many.
    pub fn give_up_in_flight(&mut self, worker: usize, receives_posted: u64) -> u64 {
        let in_flight = self.in_flight(worker, receives_posted);
        self.lanes[worker].lost += in_flight;
        in_flight
    }
}

/// The 32-bit immediate: collective id above, sequence number below.
#[must_use]
pub fn immediate(collective_id: u32, psn: u64, psn_bits: u32) -> u32 {
    (u64::from(collective_id) << psn_bits | psn) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_immediate_holds_id_and_sequence_number() {
        assert_eq!(immediate(0, 5, 22), 5);
        assert_eq!(immediate(3, 5, 22), 3 << 22 | 5);
        assert_eq!(immediate(1, (1 << 31) - 1, 31), u32::MAX);
        assert_eq!(immediate(1023, (1 << 22) - 1, 22), u32::MAX);
    }
}
