//! Work requests of the host: what they say, and how they are posted.

use std::borrow::Borrow;
use std::sync::PoisonError;

use verbs_sys as sys;

use crate::addr::HostAddr;
use crate::device::verbs_ok;
use crate::error::{Error, Result};
use crate::memory::MemoryRegion;
use crate::path::AddressHandle;
use crate::queue_pair::QueuePair;

/// Bytes of a memory region as the source or target of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalSlice {
    /// First byte.
    pub addr: HostAddr,
    /// Length in bytes.
    pub len: u32,
    /// Key of the region.
    pub lkey: u32,
}

impl MemoryRegion {
    /// `len` bytes at `offset` for a work request.
    ///
    /// # Errors
    /// [`Error::RegionRange`].
    pub fn slice(&self, offset: u64, len: u32) -> Result<LocalSlice> {
        if offset.checked_add(u64::from(len)).is_none_or(|end| end > self.len() as u64) {
            return Err(Error::RegionRange {
                offset,
                len: u64::from(len),
                region: self.addr(),
                region_len: self.len() as u64,
            });
        }
        Ok(LocalSlice { addr: self.addr().offset(offset), len, lkey: self.lkey() })
    }
}

/// What a send does.
#[derive(Clone, Copy, Debug)]
pub enum SendKind<'a> {
    /// A message to the connected peer.
    Send,
    /// A datagram.
    Datagram {
        /// Path to the peer's card.
        to: &'a AddressHandle,
        /// The peer's queue pair.
        qpn: u32,
        /// The peer's queue key.
        q_key: u32,
    },
    /// A write into the peer's memory.
    Write {
        /// Address at the peer.
        remote_addr: u64,
        /// Key at the peer.
        rkey: u32,
    },
    /// A read of the peer's memory (RC).
    Read {
        /// Address at the peer.
        remote_addr: u64,
        /// Key at the peer.
        rkey: u32,
    },
}

/// One request of a send queue.
#[derive(Clone, Copy, Debug)]
pub struct SendRequest<'a> {
    /// Comes back in the completion.
    pub id: u64,
    /// What to do.
    pub kind: SendKind<'a>,
    /// The bytes; `None` for an empty message.
    pub local: Option<LocalSlice>,
    /// Immediate for the peer's completion; not for reads.
    pub immediate: Option<u32>,
    /// Whether it completes visibly. A failure always does.
    pub signaled: bool,
}

/// One request of a send queue whose bytes lie in several pieces of memory.
#[derive(Clone, Copy, Debug)]
pub struct GatherRequest<'a> {
    /// Comes back in the completion.
    pub id: u64,
    /// What to do.
    pub kind: SendKind<'a>,
    /// The bytes, piece after piece; at most as many pieces as
    /// [`QueuePairBuilder::lists`](crate::QueuePairBuilder::lists) has set.
    pub pieces: &'a [LocalSlice],
    /// Immediate for the peer's completion; not for reads.
    pub immediate: Option<u32>,
    /// Whether it completes visibly. A failure always does.
    pub signaled: bool,
}

/// One request of a send queue whose bytes travel in its entry: they need no memory key and are the caller's again at
/// once.
#[derive(Clone, Copy, Debug)]
pub struct InlineRequest<'a> {
    /// Comes back in the completion.
    pub id: u64,
    /// What to do; not a read.
    pub kind: SendKind<'a>,
    /// The bytes, at most as many as [`QueuePairBuilder::inline`](crate::QueuePairBuilder::inline) has set; may be
    /// empty.
    pub bytes: &'a [u8],
    /// Immediate for the peer's completion.
    pub immediate: Option<u32>,
    /// Whether it completes visibly. A failure always does.
    pub signaled: bool,
}

/// Receives that [`QueuePair::post_receives`] gives to the card at once.
pub const RECEIVES_AT_ONCE: usize = 32;

/// Requests in C's form. Kept from call to call, so that posting allocates nothing once it has grown.
#[derive(Default)]
pub(crate) struct Scratch {
    gathers: Vec<sys::ibv_sge>,
    list: Vec<sys::ibv_send_wr>,
}

// SAFETY: its pointers point into its own vectors, or at what the caller of `post` has borrowed; each call makes them
// anew before the library reads them.
unsafe impl Send for Scratch {}

impl std::fmt::Debug for Scratch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scratch").field("requests", &self.list.len()).finish_non_exhaustive()
    }
}

impl Scratch {
    /// Starts a new list.
    fn clear(&mut self) {
        self.gathers.clear();
        self.list.clear();
    }

    fn push(&mut self, request: &SendRequest<'_>, flags: u32) -> Result<()> {
        let mut raw = work_request(request)?;
        raw.send_flags |= flags;
        let local = request.local.unwrap_or(LocalSlice { addr: HostAddr(0), len: 0, lkey: 0 });
        self.gathers.push(sys::ibv_sge { addr: local.addr.get(), length: local.len, lkey: local.lkey });
        self.list.push(raw);
        Ok(())
    }

    /// A list of one request with several gather entries.
    fn push_gather(&mut self, request: &GatherRequest<'_>) -> Result<*mut sys::ibv_send_wr> {
        self.clear();
        let GatherRequest { id, kind, pieces, immediate, signaled } = *request;
        let mut raw = work_request(&SendRequest { id, kind, local: None, immediate, signaled })?;
        self.push_pieces(pieces);
        (raw.num_sge, raw.sg_list) = (pieces.len() as i32, self.gathers.as_mut_ptr());
        self.list.push(raw);
        Ok(self.list.as_mut_ptr())
    }

    fn push_pieces(&mut self, pieces: &[LocalSlice]) {
        let entry = |piece: &LocalSlice| sys::ibv_sge { addr: piece.addr.get(), length: piece.len, lkey: piece.lkey };
        self.gathers.extend(pieces.iter().map(entry));
    }

    /// Makes the requests a chain, each with its gather entry. Nothing may be pushed afterwards.
    fn link(&mut self) -> *mut sys::ibv_send_wr {
        let mut next = std::ptr::null_mut();
        for (request, gather) in self.list.iter_mut().zip(&mut self.gathers).rev() {
            request.sg_list = gather;
            request.next = next;
            next = request;
        }
        next
    }
}

impl QueuePair {
    /// Posts one request.
    ///
    /// # Errors
    /// As [`QueuePair::post_sends`].
    pub fn post_send(&self, request: &SendRequest<'_>) -> Result<()> {
        self.post_sends(std::slice::from_ref(request))
    }

    /// Posts requests in order with one doorbell. Allocates nothing, once it has posted as many in one call before.
    ///
    /// # Errors
    /// [`Error::Verbs`] says how many of them were posted; [`Error::OutOfRange`] for a read with an immediate.
    pub fn post_sends<'r>(&self, requests: impl IntoIterator<Item: Borrow<SendRequest<'r>>>) -> Result<()> {
        // Taken, as the iterator is the caller's, who may post meanwhile.
        let mut scratch = std::mem::take(&mut *self.scratch.lock().unwrap_or_else(PoisonError::into_inner));
        scratch.clear();
        let pushed = requests.into_iter().try_for_each(|request| scratch.push(request.borrow(), 0));
        let posted = pushed.and_then(|()| {
            let first = scratch.link();
            // SAFETY: the chain is that of `scratch`; none of its requests is inline.
            unsafe { self.post(&scratch, first) }
        });
        *self.scratch.lock().unwrap_or_else(PoisonError::into_inner) = scratch;
        posted
    }

    /// Posts requests that carry their bytes, in order with one doorbell. Allocates nothing, as
    /// [`QueuePair::post_sends`]. A single short one goes to the card with the doorbell, which saves the card a read
    /// over PCIe.
    ///
    /// # Errors
    /// [`Error::Verbs`], also for more bytes than the queue pair takes; [`Error::OutOfRange`] for a read.
    pub fn post_inline<'b>(&self, requests: impl IntoIterator<Item = InlineRequest<'b>>) -> Result<()> {
        // Taken, as the iterator is the caller's, who may post meanwhile.
        let mut scratch = std::mem::take(&mut *self.scratch.lock().unwrap_or_else(PoisonError::into_inner));
        let posted = self.fill_inline(&mut scratch, requests).and_then(|()| {
            let first = scratch.link();
            // SAFETY: the chain is that of `scratch`; its inline bytes are borrowed for `'b`, which is longer than this
            // call.
            unsafe { self.post(&scratch, first) }
        });
        *self.scratch.lock().unwrap_or_else(PoisonError::into_inner) = scratch;
        posted
    }

    fn fill_inline<'b>(
        &self,
        scratch: &mut Scratch,
        requests: impl IntoIterator<Item = InlineRequest<'b>>,
    ) -> Result<()> {
        scratch.clear();
        for request in requests {
            let len = u32::try_from(request.bytes.len()).unwrap_or(u32::MAX);
            if matches!(request.kind, SendKind::Read { .. }) || len as usize != request.bytes.len() {
                return Err(Error::OutOfRange {
                    what: "bytes carried by a request",
                    value: request.bytes.len() as u64,
                    limit: "those of a send or a write, below 4 GiB".to_owned(),
                });
            }
            let local = (len > 0).then_some(LocalSlice { addr: HostAddr(request.bytes.as_ptr() as u64), len, lkey: 0 });
            let InlineRequest { id, kind, immediate, signaled, .. } = request;
            scratch.push(&SendRequest { id, kind, local, immediate, signaled }, sys::IBV_SEND_INLINE)?;
        }
        Ok(())
    }

    /// Posts one request whose bytes lie in several pieces. Allocates nothing, once it has posted as many pieces
    /// before.
    ///
    /// # Errors
    /// [`Error::Verbs`], also for more pieces than the queue pair takes; [`Error::OutOfRange`] for a read with an
    /// immediate.
    pub fn post_gather(&self, request: &GatherRequest<'_>) -> Result<()> {
        let mut scratch = std::mem::take(&mut *self.scratch.lock().unwrap_or_else(PoisonError::into_inner));
        let posted = scratch.push_gather(request).and_then(|first| {
            // SAFETY: the request and its pieces are in `scratch`; it is not inline.
            unsafe { self.post(&scratch, first) }
        });
        *self.scratch.lock().unwrap_or_else(PoisonError::into_inner) = scratch;
        posted
    }

    /// Posts one receive whose message goes to several pieces of memory, one after the other. Allocates nothing, once
    /// it has posted as many pieces before.
    ///
    /// # Errors
    /// [`Error::Verbs`], also for more pieces than the queue pair takes.
    pub fn post_scatter(&self, id: u64, pieces: &[LocalSlice]) -> Result<()> {
        let mut scratch = std::mem::take(&mut *self.scratch.lock().unwrap_or_else(PoisonError::into_inner));
        scratch.clear();
        scratch.push_pieces(pieces);
        let mut request = sys::ibv_recv_wr {
            wr_id: id,
            num_sge: pieces.len() as i32,
            sg_list: scratch.gathers.as_mut_ptr(),
            ..Default::default()
        };
        let mut bad = std::ptr::null_mut();
        let call = self.device().provider().verbs();
        // SAFETY: the queue pair is live; the request is initialised, and its scatter entries are alive in `scratch`;
        // the call copies both.
        let errno = unsafe { sys::inline::post_recv(self.raw(), &raw mut request, &raw mut bad) };
        drop(call);
        *self.scratch.lock().unwrap_or_else(PoisonError::into_inner) = scratch;
        verbs_ok("ibv_post_recv", errno, || {
            format!("a receive of {} pieces on queue pair {:#x}", pieces.len(), self.qpn())
        })
    }

    /// Posts what has been gathered, from `first` on.
    ///
    /// # Safety
    /// `first` is null, or begins a chain of requests in `scratch` whose gather entries are there, too. Inline bytes
    /// are still borrowed.
    unsafe fn post(&self, scratch: &Scratch, first: *mut sys::ibv_send_wr) -> Result<()> {
        if first.is_null() {
            return Ok(());
        }
        let mut bad = std::ptr::null_mut();
        let call = self.device().provider().verbs();
        // SAFETY: the queue pair is live, and the caller vouches for the chain and what it points at.
        let errno = unsafe { sys::inline::post_send(self.raw(), first, &raw mut bad) };
        drop(call);
        verbs_ok("ibv_post_send", errno, || {
            let list = &scratch.list;
            let posted = list.iter().position(|request| std::ptr::eq(request, bad)).unwrap_or(0);
            format!("{posted} of {} requests posted on queue pair {:#x}", list.len(), self.qpn())
        })
    }

    /// Posts one receive.
    ///
    /// # Errors
    /// [`Error::Verbs`].
    pub fn post_receive(&self, id: u64, into: LocalSlice) -> Result<()> {
        self.post_receives([(id, into)])
    }

    /// Posts receives in order, with one update of the doorbell record for each [`RECEIVES_AT_ONCE`] of them: the id
    /// that comes back in the completion, and where the message is to go. Allocates nothing.
    ///
    /// # Errors
    /// [`Error::Verbs`]; those before the one that was refused are posted.
    pub fn post_receives(&self, receives: impl IntoIterator<Item = (u64, LocalSlice)>) -> Result<()> {
        let mut receives = receives.into_iter();
        let mut scatters = [sys::ibv_sge::default(); RECEIVES_AT_ONCE];
        let mut requests = [sys::ibv_recv_wr::default(); RECEIVES_AT_ONCE];
        loop {
            let mut count = 0;
            for (id, into) in receives.by_ref().take(RECEIVES_AT_ONCE) {
                scatters[count] = sys::ibv_sge { addr: into.addr.get(), length: into.len, lkey: into.lkey };
                requests[count] = sys::ibv_recv_wr { wr_id: id, num_sge: 1, ..Default::default() };
                count += 1;
            }
            let mut next = std::ptr::null_mut();
            for (request, scatter) in requests[..count].iter_mut().zip(&mut scatters).rev() {
                request.sg_list = scatter;
                request.next = next;
                next = request;
            }
            if next.is_null() {
                return Ok(());
            }
            let mut bad = std::ptr::null_mut();
            let call = self.device().provider().verbs();
            // SAFETY: the queue pair is live; `next` begins a chain of initialised requests, which the call copies with
            // their scatter entries.
            let errno = unsafe { sys::inline::post_recv(self.raw(), next, &raw mut bad) };
            drop(call);
            verbs_ok("ibv_post_recv", errno, || format!("{count} receives on queue pair {:#x}", self.qpn()))?;
        }
    }
}

/// The request in C's form, but for its gather list.
fn work_request(request: &SendRequest<'_>) -> Result<sys::ibv_send_wr> {
    let mut raw = sys::ibv_send_wr {
        wr_id: request.id,
        num_sge: i32::from(request.local.is_some()),
        send_flags: if request.signaled { sys::IBV_SEND_SIGNALED } else { 0 },
        ..Default::default()
    };
    if let Some(immediate) = request.immediate {
        raw.__bindgen_anon_1.imm_data = immediate.to_be();
    }
    let with_immediate = request.immediate.is_some();
    raw.opcode = match request.kind {
        SendKind::Send if with_immediate => sys::IBV_WR_SEND_WITH_IMM,
        SendKind::Send => sys::IBV_WR_SEND,
        SendKind::Datagram { to, qpn, q_key } => {
            raw.wr.ud =
                sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_3 { ah: to.raw(), remote_qpn: qpn, remote_qkey: q_key };
            if with_immediate { sys::IBV_WR_SEND_WITH_IMM } else { sys::IBV_WR_SEND }
        }
        SendKind::Write { remote_addr, rkey } => {
            raw.wr.rdma = sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey };
            if with_immediate { sys::IBV_WR_RDMA_WRITE_WITH_IMM } else { sys::IBV_WR_RDMA_WRITE }
        }
        SendKind::Read { remote_addr, rkey } => {
            if with_immediate {
                return Err(Error::OutOfRange {
                    what: "immediate of an RDMA Read",
                    value: u64::from(request.immediate.unwrap_or(0)),
                    limit: "absent: reads carry none".to_owned(),
                });
            }
            raw.wr.rdma = sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey };
            sys::IBV_WR_RDMA_READ
        }
    };
    Ok(raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_a_chain_in_memory_that_is_kept() {
        let mut scratch = Scratch::default();
        let mut build = || {
            scratch.clear();
            for id in 0..5 {
                let local = (id != 3).then_some(LocalSlice { addr: HostAddr(0x1000 + id), len: 8, lkey: 7 });
                let kind = SendKind::Write { remote_addr: 64 * id, rkey: 9 };
                let request = SendRequest { id, kind, local, immediate: Some(1), signaled: id == 4 };
                scratch.push(&request, sys::IBV_SEND_INLINE).expect("a write");
            }
            let first = scratch.link();
            let list = &scratch.list;
            assert_eq!(first.cast_const(), list.as_ptr());
            for (index, request) in list.iter().enumerate() {
                let next = list.get(index + 1).map_or(std::ptr::null(), std::ptr::from_ref);
                assert_eq!(request.next.cast_const(), next);
                assert_eq!(request.sg_list.cast_const(), &raw const scratch.gathers[index]);
                assert_eq!((request.wr_id, request.num_sge), (index as u64, i32::from(index != 3)));
                let signaled = if index == 4 { sys::IBV_SEND_SIGNALED } else { 0 };
                assert_eq!(request.send_flags, sys::IBV_SEND_INLINE | signaled);
            }
            (first, scratch.gathers.as_ptr())
        };
        assert_eq!(build(), build(), "nothing is allocated again");
        let piece = |at| LocalSlice { addr: HostAddr(at), len: 16, lkey: 3 };
        let pieces = [piece(0x10), piece(0x2000), piece(0x30)];
        let gather = GatherRequest { id: 9, kind: SendKind::Send, pieces: &pieces, immediate: Some(5), signaled: true };
        scratch.push_gather(&gather).expect("a send");
        let request = &scratch.list[0];
        assert_eq!((scratch.list.len(), request.num_sge, request.wr_id), (1, 3, 9));
        assert_eq!(request.sg_list.cast_const(), scratch.gathers.as_ptr());
        assert!(request.next.is_null() && request.opcode == sys::IBV_WR_SEND_WITH_IMM);
        assert!(scratch.gathers.iter().map(|entry| entry.addr).eq([0x10, 0x2000, 0x30]));
        scratch.clear();
        assert!(scratch.link().is_null());
        let kind = SendKind::Read { remote_addr: 0, rkey: 0 };
        let read = SendRequest { id: 0, kind, local: None, immediate: Some(5), signaled: true };
        assert!(scratch.push(&read, 0).is_err(), "a read carries no immediate");
    }
}
