//! The sending side: host queue pairs of the other card.

use flexio::{
    Access, AddressHandle, CompletionQueue, Connection, Device, HostBuffer, MemoryRegion, ProtectionDomain,
    QueueDepths, QueuePair, RemoteQp, SendKind, SendRequest,
};

use super::Transport;
use super::plan::{Plan, Share};
use super::receiver::{Q_KEY, WorkerEndpoint};
use crate::tput::TputError;

/// Most entries of a send queue.
const MAX_SEND_DEPTH: u64 = 1024;
/// Sends per doorbell; the last of them is signalled.
const BATCH: u64 = 32;

/// A provisioned sender: one queue pair per worker.
pub(super) struct Sender<'a> {
    plan: &'a Plan,
    queue_pairs: Vec<QueuePair>,
    completions: &'a CompletionQueue,
    path: Option<AddressHandle>,
    source: &'a MemoryRegion,
    streams: Vec<Stream>,
    depth: u64,
}

/// What has gone to one worker.
#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// Messages posted since set-up.
    posted: u64,
    /// Of those, known to have left.
    completed: u64,
    /// Next chunk of the iteration.
    next: u64,
}

/// Provisions a sender for the plan on `device`, with a copy of `source`, and calls `body` with it.
pub(super) fn connect<R>(
    device: &Device,
    plan: &Plan,
    source: &[u8],
    body: impl FnOnce(&mut Sender<'_>) -> Result<R, TputError>,
) -> Result<R, TputError> {
    let pd = ProtectionDomain::new(device)?;
    let source = MemoryRegion::register(&pd, HostBuffer::from_bytes(source)?, Access::empty())?;
    let depth = plan.ring.clamp(2 * BATCH, MAX_SEND_DEPTH);
    let workers = plan.shares.len() as u32;
    let completions = CompletionQueue::new(device, workers * (depth / BATCH + 1) as u32 * 2)?;
    let transport = match plan.params.transport {
        Transport::Uc => flexio::Transport::Uc,
        Transport::Ud => flexio::Transport::Ud,
    };
    let mut queue_pairs = Vec::new();
    for _ in &plan.shares {
        let depths = QueueDepths { send: depth as u32, receive: 1 };
        let qp = QueuePair::builder(&pd, transport, depths).build(&completions, &completions)?;
        qp.init(Access::empty(), Q_KEY)?;
        queue_pairs.push(qp);
    }
    let streams = vec![Stream::default(); queue_pairs.len()];
    let mut sender =
        Sender { plan, queue_pairs, completions: &completions, path: None, source: &source, streams, depth };
    body(&mut sender)
}

impl Sender<'_> {
    /// How the receiver reaches each queue pair.
    pub(super) fn endpoints(&self, device: &Device) -> Vec<RemoteQp> {
        let (gid, mac) = (device.port().gid, device.info().mac);
        self.queue_pairs.iter().map(|qp| RemoteQp { qpn: qp.qpn(), gid, mac, first_psn: 0 }).collect()
    }

    /// Brings the queue pairs to RTS towards the workers.
    pub(super) fn connect(&mut self, workers: &[WorkerEndpoint]) -> Result<(), TputError> {
        match self.plan.params.transport {
            Transport::Uc => {
                for (qp, worker) in self.queue_pairs.iter().zip(workers) {
                    qp.connect(&Connection::to(worker.qp))?;
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

    /// Starts the next iteration at its first chunk.
    pub(super) fn restart(&mut self) {
        for stream in &mut self.streams {
            stream.next = 0;
        }
    }

    /// Posts one batch to one worker if the send queue has room; returns the chunks posted.
    pub(super) fn post_batch(&mut self, worker: usize, to: &WorkerEndpoint) -> Result<u64, TputError> {
        let (share, stream) = (&self.plan.shares[worker], self.streams[worker]);
        let count = BATCH.min(share.chunks - stream.next);
        if count == 0 || self.depth - (stream.posted - stream.completed) < count {
            return Ok(0);
        }
        let requests = (0..count)
            .map(|i| self.request(share, to, stream.next + i, (i + 1 == count).then_some(stream.posted + count)))
            .collect::<Result<Vec<_>, TputError>>()?;
        self.queue_pairs[worker].post_sends(&requests)?;
        let stream = &mut self.streams[worker];
        stream.next += count;
        stream.posted += count;
        Ok(count)
    }

    /// The send of a chunk; the last of a batch is signalled and carries the number of messages posted up to it.
    fn request(
        &self,
        share: &Share,
        to: &WorkerEndpoint,
        chunk: u64,
        signal: Option<u64>,
    ) -> Result<SendRequest<'_>, TputError> {
        let offset = chunk * self.plan.params.chunk_bytes;
        let len = share.chunk_len(chunk, self.plan.params.chunk_bytes) as u32;
        let kind = match &self.path {
            None => SendKind::Write { remote_addr: to.remote_addr + offset, rkey: to.rkey },
            Some(path) => SendKind::Datagram { to: path, qpn: to.qp.qpn, q_key: to.q_key },
        };
        Ok(SendRequest {
            id: u64::from(share.worker) << 48 | signal.unwrap_or(0),
            kind,
            local: Some(self.source.slice(share.offset + offset, len)?),
            // The published kernels load the number without a swap: its bytes go out in the order of their memory.
            immediate: Some((chunk as u32).swap_bytes()),
            signaled: signal.is_some(),
        })
    }

    /// Takes completions of sends; returns how many there were.
    pub(super) fn reap(&mut self) -> Result<usize, TputError> {
        let done = self.completions.poll()?;
        for completion in &done {
            self.completions.check(completion, "a chunk")?;
            let stream = &mut self.streams[(completion.id >> 48) as usize];
            stream.completed = stream.completed.max(completion.id & ((1 << 48) - 1));
        }
        Ok(done.len())
    }
}
