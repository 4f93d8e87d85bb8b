//! Copies within the memory of one rank, carried out by its card.
//!
//! A queue pair connected to itself takes RDMA Writes from one registered buffer to another: the host posts them and goes on.

use flexio::{
    Access, CompletionQueue, LocalSlice, MemoryRegion, Path, QueueDepths, QueuePair, RemoteQp, Retry, SendKind,
    SendRequest, Transport,
};

use crate::api::card::Card;
use crate::error::Result;

/// Shorter blocks are copied by the host: that takes it less time than a post and a completion.
const MIN_BYTES: u64 = 16 * 1024;
/// Longest Write.
const WRITE_BYTES: u64 = 1 << 30;
/// Writes of one copy.
const WRITES: u32 = 64;
const FIRST_PSN: u32 = 0;

/// The queue pair that copies.
#[derive(Debug)]
pub(crate) struct Copier {
    qp: QueuePair,
    cq: CompletionQueue,
    /// What is posted; kept for its room.
    requests: Vec<SendRequest<'static>>,
    busy: bool,
}

impl Copier {
    pub(crate) fn new(card: &Card) -> Result<Self> {
        let cq = CompletionQueue::new(card.device(), WRITES)?;
        let depths = QueueDepths { send: WRITES, receive: 1 };
        let qp = QueuePair::new(card.pd(), Transport::Rc, &cq, &cq, depths)?;
        qp.init(Access::LOCAL_WRITE | Access::REMOTE_WRITE, 0)?;
        let port = card.device().port();
        let own = RemoteQp { qpn: qp.qpn(), gid: port.gid, mac: card.device().info().mac, first_psn: FIRST_PSN };
        qp.connect_with(&own, FIRST_PSN, Path::default(), Retry::default())?;
        Ok(Self { qp, cq, requests: Vec::new(), busy: false })
    }

    /// Whether a copy of so many bytes is the card's: from 16 KiB on, up to 64 GiB.
    pub(crate) const fn takes(bytes: u64) -> bool {
        MIN_BYTES <= bytes && bytes <= WRITES as u64 * WRITE_BYTES
    }

    /// Begins to copy the first `len` bytes of `from` to `offset` of `to`. One copy at a time: only while [`Copier::is_busy`] is false,
    /// and of as many bytes as it [`takes`](Copier::takes).
    ///
    /// # Errors
    /// [`Error::Flexio`](crate::Error::Flexio): bytes beyond a region.
    pub(crate) fn copy(&mut self, from: &MemoryRegion, len: u64, to: &MemoryRegion, offset: u64) -> Result<()> {
        self.requests.clear();
        let mut at = 0;
        while at < len {
            let bytes = (len - at).min(WRITE_BYTES) as u32;
            let local: LocalSlice = from.slice(at, bytes)?;
            let remote = to.slice(offset + at, bytes)?;
            at += u64::from(bytes);
            self.requests.push(SendRequest {
                id: 0,
                kind: SendKind::Write { remote_addr: remote.addr.get(), rkey: to.rkey() },
                local: Some(local),
                immediate: None,
                signaled: at == len,
            });
        }
        self.qp.post_sends(&self.requests)?;
        self.busy = !self.requests.is_empty();
        Ok(())
    }

    /// Whether the card may still read the source or write to the target of the copy.
    pub(crate) const fn is_busy(&self) -> bool {
        self.busy
    }

    /// Polls the copy under way. Returns its status once it is over: 0, or why the card has not made it (a work completion status).
    pub(crate) fn poll(&mut self) -> Result<Option<u32>> {
        if !self.busy {
            return Ok(None);
        }
        let mut status = None;
        // After an error the entries behind it come back, too: the first one says why.
        self.cq.poll_each(|completion| _ = status.get_or_insert(completion.status))?;
        self.busy = status.is_none();
        Ok(status)
    }
}
