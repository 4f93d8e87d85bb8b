//! Posting to a send queue whose entries were built before: per entry only index, immediate and addresses are stored.

use core::marker::PhantomData;
use core::mem::offset_of;

use crate::SendQueue;
use crate::arch::opaque;
use crate::hw::wqe::FLAG_SIGNALLED;
use crate::hw::{Be32, Be64, ControlSegment, DataSegment, DatagramWqe, RemoteAddressSegment, WriteWqe};

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::WriteWqe {}
    impl Sealed for super::DatagramWqe {}
}

/// A send queue entry that carries one chunk.
pub trait PostedEntry: sealed::Sealed + Copy {
    /// Basic blocks that it takes.
    const BLOCKS: u64;
    /// Byte offset of its data segment.
    const DATA: usize;
    /// Byte offset of its remote address segment, if it has one.
    const REMOTE: Option<usize>;
}

impl PostedEntry for WriteWqe {
    const BLOCKS: u64 = 1;
    const DATA: usize = offset_of!(Self, data);
    const REMOTE: Option<usize> = Some(offset_of!(Self, remote));
}

impl PostedEntry for DatagramWqe {
    const BLOCKS: u64 = 2;
    const DATA: usize = offset_of!(Self, data);
    const REMOTE: Option<usize> = None;
}

const _: () = {
    assert!(
        size_of::<WriteWqe>() as u64 == WriteWqe::BLOCKS * 64
            && size_of::<DatagramWqe>() as u64 == DatagramWqe::BLOCKS * 64
    );
    assert!(offset_of!(ControlSegment, flags) == 11 && offset_of!(ControlSegment, immediate) == 12);
};

/// Consecutive entries of a send queue, not beyond the ring's end.
#[derive(Debug)]
pub struct PostCursor<'q, W> {
    at: *mut W,
    end: *mut W,
    queue: PhantomData<&'q SendQueue>,
}

impl SendQueue {
    /// The entries from basic block number `block` on, at most `count` and not beyond the ring's end. A block that an
    /// entry of this kind cannot begin at is rounded down.
    #[inline(always)]
    #[must_use]
    pub fn entries<W: PostedEntry>(&self, block: u64, count: u64) -> PostCursor<'_, W> {
        let position = (block & (self.depth() - 1)) / W::BLOCKS;
        let count = count.min((self.depth() / W::BLOCKS).saturating_sub(position));
        let base = self.slot(0).start().cast::<W>();
        // SAFETY: position + count entries are at most those of the ring.
        let (at, end) = unsafe { (base.add(position as usize), base.add((position + count) as usize)) };
        PostCursor { at, end, queue: PhantomData }
    }
}

impl<W: PostedEntry> PostCursor<'_, W> {
    /// The entry here, none at the end.
    #[inline(always)]
    #[must_use]
    pub fn peek(&self) -> Option<PostSlot<'_, W>> {
        (self.at != self.end).then_some(PostSlot { at: self.at, queue: PhantomData })
    }

    /// Goes to the next entry; stays at the end.
    #[inline(always)]
    pub fn advance(&mut self) {
        if self.at != self.end {
            // SAFETY: not the end, so inside the ring.
            let next = unsafe { self.at.add(1) };
            // Hidden from the compiler, as in `Segment::advance`.
            self.at = opaque(next as u64) as *mut W;
        }
    }

    /// Entries not yet passed.
    #[inline(always)]
    #[must_use]
    pub fn remaining(&self) -> u64 {
        (self.end as u64 - self.at as u64) / size_of::<W>() as u64
    }
}

/// An entry of the send queue.
#[derive(Clone, Copy, Debug)]
pub struct PostSlot<'q, W> {
    at: *mut W,
    queue: PhantomData<&'q SendQueue>,
}

impl<W: PostedEntry> PostSlot<'_, W> {
    #[inline(always)]
    fn field<F>(self, offset: usize) -> *mut F {
        // SAFETY: offsets are those of fields of `W`, which lies inside the ring.
        unsafe { self.at.byte_add(offset).cast() }
    }

    /// Writes the whole entry.
    #[inline]
    pub fn write(self, entry: W) {
        // SAFETY: inside the ring.
        unsafe { self.at.write_volatile(entry) };
    }

    /// Writes the first eight bytes ([`ControlSegment::head`]).
    #[inline(always)]
    pub fn set_head(self, head: u64) {
        // SAFETY: inside the ring, 64-byte aligned.
        unsafe { self.field::<Be64>(0).write_volatile(Be64::new(head)) };
    }

    /// Writes flags and immediate ([`ControlSegment::tail`]).
    #[inline(always)]
    pub fn set_tail(self, tail: u64) {
        // SAFETY: inside the ring, aligned.
        unsafe { self.field::<Be64>(8).write_volatile(Be64::new(tail)) };
    }

    /// Requests a completion for the entry.
    #[inline(always)]
    pub fn set_signalled(self) {
        // SAFETY: inside the ring.
        unsafe { self.field::<u8>(offset_of!(ControlSegment, flags)).write_volatile(FLAG_SIGNALLED) };
    }

    /// Sets the address of the data.
    #[inline(always)]
    pub fn set_source(self, address: u64) {
        // SAFETY: inside the ring, aligned.
        unsafe { self.field::<Be64>(W::DATA + offset_of!(DataSegment, address)).write_volatile(Be64::new(address)) };
    }

    /// Sets length and local key of the data ([`DataSegment::extent`]).
    #[inline(always)]
    pub fn set_extent(self, extent: Be64) {
        // SAFETY: inside the ring, aligned.
        unsafe { self.field::<Be64>(W::DATA).write_volatile(extent) };
    }

    /// Sets the length of the data.
    #[inline]
    pub fn set_byte_count(self, bytes: u32) {
        // SAFETY: inside the ring, aligned.
        unsafe { self.field::<Be32>(W::DATA + offset_of!(DataSegment, byte_count)).write_volatile(Be32::new(bytes)) };
    }

    /// Sets the remote address; nothing happens on an entry that has none.
    #[inline(always)]
    pub fn set_remote(self, address: u64) {
        if let Some(offset) = W::REMOTE {
            let field = self.field::<Be64>(offset + offset_of!(RemoteAddressSegment, address));
            // SAFETY: inside the ring, aligned.
            unsafe { field.write_volatile(Be64::new(address)) };
        }
    }

    /// Sets the remote key; nothing happens on an entry that has none.
    #[inline(always)]
    pub fn set_remote_key(self, rkey: Be32) {
        if let Some(offset) = W::REMOTE {
            let field = self.field::<Be32>(offset + offset_of!(RemoteAddressSegment, rkey));
            // SAFETY: inside the ring, aligned.
            unsafe { field.write_volatile(rkey) };
        }
    }
}

#[cfg(all(test, not(target_arch = "riscv64")))]
mod tests {
    use super::*;
    use crate::abi::{DeviceAddress, SendQueueMemory};

    #[test]
    fn entries_of_two_blocks_end_with_the_ring() {
        let mut ring = [WriteWqe::default(); 8];
        let mut record = 0u64;
        let (at, record) = (ring.as_mut_ptr() as u64, &raw mut record as u64);
        let queue = SendQueue::attach(&SendQueueMemory::new(DeviceAddress::new(at), DeviceAddress::new(record), 5, 3));
        assert_eq!(queue.entries::<WriteWqe>(6, 9).remaining(), 2);
        let mut cursor = queue.entries::<DatagramWqe>(8 + 4, 9);
        assert_eq!(cursor.remaining(), 2);
        cursor.advance();
        let slot = cursor.peek().unwrap();
        slot.write(DatagramWqe::default());
        slot.set_head(ControlSegment::head(14, crate::hw::WqeOpcode::SendImmediate, 5, DatagramWqe::SEGMENTS));
        slot.set_tail(ControlSegment::tail(0, 0xAABB_CCDD));
        slot.set_signalled();
        slot.set_source(0x1122);
        slot.set_extent(DataSegment::extent(99, 0xABC));
        slot.set_byte_count(77);
        slot.set_remote(0x3344);
        slot.set_remote_key(Be32::new(0x5566));
        cursor.advance();
        cursor.advance();
        assert!(cursor.peek().is_none());
        assert_eq!(ring[..6], [WriteWqe::default(); 6]);
        let control = ring[6].control;
        assert_eq!((control.immediate.get(), control.flags), (0xAABB_CCDD, FLAG_SIGNALLED));
        let data: DataSegment = zerocopy::transmute!(ring[7].control);
        assert_eq!((data.byte_count.get(), data.lkey.get(), data.address.get()), (77, 0xABC, 0x1122));
        assert_eq!((ring[6].remote, ring[6].data), Default::default(), "no remote address to set");
    }
}
