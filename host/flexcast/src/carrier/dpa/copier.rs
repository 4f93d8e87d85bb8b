//! Copies within the memory of one rank, carried out by its card.
//!
//! A queue pair connected to itself takes RDMA Writes from one registered buffer to another: the host posts one when
//! the one before is over, and goes on.

use flexio::{
    Access, CompletionQueue, Connection, HostAddr, LocalSlice, MemoryRegion, QueueDepths, QueuePair, RemoteQp,
    SendKind, SendRequest, Transport,
};

use crate::carrier::dpa::card::DpaCard;
use crate::error::Result;

/// Shorter blocks are copied by the host: that takes it less time than a post and a completion.
const MIN_BYTES: u64 = 16 * 1024;
/// Bytes of a Write, of a block as long as what comes from other ranks; of a shorter one less in proportion. There is
/// one Write at a time, which takes some 7 us (emulated) to be posted and completed, so that the copy is over about
/// when the other blocks are there, and leaves the path round the card to others.
const WRITE_BYTES: u64 = 256 * 1024;
/// Least and most bytes of a Write.
const LEAST_WRITE_BYTES: u64 = 16 * 1024;
const MOST_WRITE_BYTES: u64 = 1 << 30;
const FIRST_PSN: u32 = 0;

/// What of a copy has not been posted.
#[derive(Clone, Copy, Debug)]
struct Rest {
    from: HostAddr,
    lkey: u32,
    to: HostAddr,
    rkey: u32,
    bytes: u64,
    /// Of each Write but the last.
    write_bytes: u64,
}

/// Bytes of each Write of a copy of `len` bytes while `foreign_bytes` come from other ranks.
const fn write_bytes(len: u64, foreign_bytes: u64) -> u64 {
    let share = (WRITE_BYTES as u128 * len as u128).checked_div(foreign_bytes as u128);
    match share {
        Some(share) if share <= LEAST_WRITE_BYTES as u128 => LEAST_WRITE_BYTES,
        Some(share) if share < MOST_WRITE_BYTES as u128 => share as u64,
        _ => MOST_WRITE_BYTES,
    }
}

/// The queue pair that copies.
#[derive(Debug)]
pub(crate) struct Copier {
    qp: QueuePair,
    cq: CompletionQueue,
    /// The copy under way.
    rest: Option<Rest>,
}

impl Copier {
    pub(crate) fn new(card: &DpaCard) -> Result<Self> {
        let cq = CompletionQueue::new(card.device(), 1)?;
        let depths = QueueDepths { send: 1, receive: 1 };
        let qp = QueuePair::builder(card.pd(), Transport::Rc, depths).build(&cq, &cq)?;
        qp.init(Access::LOCAL_WRITE | Access::REMOTE_WRITE, 0)?;
        let port = card.device().port();
        let own = RemoteQp { qpn: qp.qpn(), gid: port.gid, mac: card.device().info().mac, first_psn: FIRST_PSN };
        qp.connect(&Connection::to(own).first_psn(FIRST_PSN))?;
        Ok(Self { qp, cq, rest: None })
    }

    /// Whether a copy of so many bytes is the card's: from 16 KiB on.
    pub(crate) const fn takes(bytes: u64) -> bool {
        MIN_BYTES <= bytes
    }

    /// Begins to copy the first `len` bytes of `from` to `offset` of `to`. One copy at a time: only while
    /// [`Copier::is_busy`] is false, and of as many bytes as it [`takes`](Copier::takes). Meanwhile `foreign_bytes`
    /// come from other ranks.
    ///
    /// # Errors
    /// [`Error::Flexio`](crate::Error::Flexio): bytes beyond a region.
    pub(crate) fn copy(
        &mut self,
        (from, len): (&MemoryRegion, u64),
        (to, offset): (&MemoryRegion, u64),
        foreign_bytes: u64,
    ) -> Result<()> {
        // Both ends lie inside, and so does what is between.
        for (region, start) in [(from, 0), (to, offset)] {
            region.slice(start.saturating_add(len), 0)?;
        }
        let rest = Rest {
            from: from.addr(),
            lkey: from.lkey(),
            to: to.addr().offset(offset),
            rkey: to.rkey(),
            bytes: len,
            write_bytes: write_bytes(len, foreign_bytes),
        };
        self.post(rest)
    }

    /// Posts the next Write.
    fn post(&mut self, rest: Rest) -> Result<()> {
        let Rest { from, lkey, to, rkey, bytes, write_bytes } = rest;
        let written = bytes.min(write_bytes);
        self.qp.post_sends(&[SendRequest {
            id: 0,
            kind: SendKind::Write { remote_addr: to.get(), rkey },
            local: Some(LocalSlice { addr: from, len: written as u32, lkey }),
            immediate: None,
            signaled: true,
        }])?;
        let (from, to) = (from.offset(written), to.offset(written));
        self.rest = Some(Rest { from, to, bytes: bytes - written, ..rest });
        Ok(())
    }

    /// Whether the card may still read the source or write to the target of the copy.
    pub(crate) const fn is_busy(&self) -> bool {
        self.rest.is_some()
    }

    /// Moves the copy under way on. Returns its status once it is over: 0, or why the card has not made it (a work
    /// completion status).
    pub(crate) fn poll(&mut self) -> Result<Option<u32>> {
        let Some(rest) = self.rest else { return Ok(None) };
        let mut status = None;
        self.cq.poll_each(|completion| _ = status.get_or_insert(completion.status))?;
        match status {
            Some(0) if rest.bytes > 0 => self.post(rest).map(|()| None),
            Some(_) => {
                self.rest = None;
                Ok(status)
            }
            None => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_as_long_as_the_share_of_the_own_block() {
        assert_eq!(write_bytes(1 << 20, 1 << 20), 256 << 10, "of two ranks");
        assert_eq!(write_bytes(1 << 20, 7 << 20), (256 << 10) / 7, "of eight");
        assert_eq!(write_bytes(1 << 20, 187 << 20), 16 << 10);
        assert_eq!((write_bytes(1 << 20, 0), write_bytes(u64::MAX, 1)), (1 << 30, 1 << 30), "a rank alone");
    }
}
