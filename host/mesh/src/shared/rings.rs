//! Two rings of bytes in shared memory, one per direction, each with one writer and one reader.
//!
//! Positions count bytes since the beginning. Of a ring, the writer's process owns the tail and the reader's the head:
//! each keeps its own position in memory of its own and only publishes it, so that what the other process does to the
//! words can make it see a wrong number of bytes, which is found, and nothing else.
//!
//! Whoever is about to sleep sets its word, and then reads once more; whoever publishes a position reads that word
//! afterwards. Between the store and the load of each stands a sequentially consistent fence, so that at least one of
//! the two sees the other's store: either the sleeper sees the bytes, or it is woken.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use crate::memory::{Layout, Memory};

/// Bytes after which a position is published: the other side copies meanwhile.
const STEP_BYTES: usize = 32 << 10;

/// Words of one ring.
#[derive(Clone, Copy, Debug)]
pub(super) enum Word {
    /// Bytes that have been written. Of the writer.
    Tail,
    /// Bytes that have been read. Of the reader.
    Head,
    /// 1: the reader sleeps until there are bytes. Set by the reader; whoever wakes it clears it.
    ReaderSleeps,
    /// 1: the writer sleeps until there is room. Set by the writer; whoever wakes it clears it.
    WriterSleeps,
}

/// Words of each ring.
const WORDS: usize = 4;

/// What two ranks share: a ring for each direction.
pub(super) const fn layout(ring_bytes: usize) -> Layout {
    Layout { words: 2 * WORDS, rings: 2, ring_bytes }
}

/// A word of ring 0 or 1.
pub(super) fn word(memory: &Memory, ring: usize, word: Word) -> &AtomicU64 {
    memory.word(ring * WORDS + word as usize)
}

/// Which end of the connection a process has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Caller,
    Called,
}

/// One end of a connection. Several threads may ask whether it is ready; only one at a time reads and writes.
#[derive(Debug)]
pub struct Rings {
    memory: Memory,
    /// The ring that is read here; the other one is written.
    inward: usize,
    /// Bytes that were read here.
    head: AtomicU64,
    /// Bytes that were written here.
    tail: AtomicU64,
    wants_bytes: AtomicBool,
    wants_room: AtomicBool,
}

fn nonsense() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "a position in shared memory cannot be")
}

impl Rings {
    pub(super) const fn new(memory: Memory, side: Side) -> Self {
        let inward = match side {
            Side::Caller => 1,
            Side::Called => 0,
        };
        let (head, tail) = (AtomicU64::new(0), AtomicU64::new(0));
        let (wants_bytes, wants_room) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { memory, inward, head, tail, wants_bytes, wants_room }
    }

    const fn outward(&self) -> usize {
        1 - self.inward
    }

    /// Bytes between two positions of a ring, of which one is the other process's.
    fn between(&self, tail: u64, head: u64) -> io::Result<usize> {
        usize::try_from(tail.wrapping_sub(head))
            .ok()
            .filter(|bytes| *bytes <= self.memory.ring_bytes())
            .ok_or_else(nonsense)
    }

    /// Bytes that can be read.
    ///
    /// # Errors
    /// The other process has written a position that cannot be.
    pub(crate) fn bytes(&self) -> io::Result<usize> {
        let tail = word(&self.memory, self.inward, Word::Tail).load(Ordering::Acquire);
        self.between(tail, self.head.load(Ordering::Relaxed))
    }

    /// Bytes that can be written.
    ///
    /// # Errors
    /// The other process has written a position that cannot be.
    pub(super) fn room(&self) -> io::Result<usize> {
        let head = word(&self.memory, self.outward(), Word::Head).load(Ordering::Acquire);
        self.between(self.tail.load(Ordering::Relaxed), head).map(|bytes| self.memory.ring_bytes() - bytes)
    }

    /// Whether the other side sleeps and is to be woken; asked after a position was published.
    fn wakes(&self, ring: usize, which: Word) -> bool {
        fence(Ordering::SeqCst);
        let word = word(&self.memory, ring, which);
        word.load(Ordering::Relaxed) != 0 && word.swap(0, Ordering::Relaxed) != 0
    }

    /// Reads what there is, as far as it fits; `wake` wakes the other side.
    pub(super) fn read(&self, parts: &mut [IoSliceMut<'_>], mut wake: impl FnMut()) -> io::Result<usize> {
        let mut left = self.bytes()?;
        let mut total = 0;
        for part in parts {
            let most = part.len().min(left);
            for step in part[..most].chunks_mut(STEP_BYTES) {
                let head = self.head.load(Ordering::Relaxed);
                self.memory.read(self.inward, head, step);
                let head = head.wrapping_add(step.len() as u64);
                self.head.store(head, Ordering::Relaxed);
                word(&self.memory, self.inward, Word::Head).store(head, Ordering::Release);
                // Not for every few bytes: half a ring is worth it.
                left -= step.len();
                total += step.len();
                if left <= self.memory.ring_bytes() / 2 && self.wakes(self.inward, Word::WriterSleeps) {
                    wake();
                }
            }
        }
        Ok(total)
    }

    /// Writes what has room; `wake` wakes the other side.
    pub(super) fn write(&self, parts: &[IoSlice<'_>], mut wake: impl FnMut()) -> io::Result<usize> {
        let mut left = self.room()?;
        let mut tail = self.tail.load(Ordering::Relaxed);
        let (mut total, mut unpublished) = (0, 0);
        let mut publish = |tail: u64| {
            self.tail.store(tail, Ordering::Relaxed);
            word(&self.memory, self.outward(), Word::Tail).store(tail, Ordering::Release);
            if self.wakes(self.outward(), Word::ReaderSleeps) {
                wake();
            }
        };
        for part in parts {
            for step in part[..part.len().min(left)].chunks(STEP_BYTES) {
                self.memory.write(self.outward(), tail, step);
                tail = tail.wrapping_add(step.len() as u64);
                left -= step.len();
                total += step.len();
                unpublished += step.len();
                // A short header goes with what follows it.
                if unpublished >= STEP_BYTES {
                    publish(tail);
                    unpublished = 0;
                }
            }
        }
        if unpublished > 0 {
            publish(tail);
        }
        Ok(total)
    }

    /// What is waited for: bytes to read, room to write.
    pub(crate) fn want(&self, bytes: bool, room: bool) {
        self.wants_bytes.store(bytes, Ordering::Relaxed);
        self.wants_room.store(room, Ordering::Relaxed);
    }

    /// Whether there is what is waited for. So it is with positions that cannot be: whoever reads then finds out.
    pub fn is_ready(&self) -> bool {
        let is_some = |bytes: io::Result<usize>| bytes.map_or(true, |bytes| bytes > 0);
        (self.wants_bytes.load(Ordering::Relaxed) && is_some(self.bytes()))
            || (self.wants_room.load(Ordering::Relaxed) && is_some(self.room()))
    }

    /// Asks to be woken as soon as there is what is waited for. True: there is, and it need not sleep.
    pub fn arm(&self) -> bool {
        let set = |ring, which, wanted: &AtomicBool| {
            word(&self.memory, ring, which).store(u64::from(wanted.load(Ordering::Relaxed)), Ordering::Relaxed);
        };
        set(self.inward, Word::ReaderSleeps, &self.wants_bytes);
        set(self.outward(), Word::WriterSleeps, &self.wants_room);
        fence(Ordering::SeqCst);
        self.is_ready()
    }

    /// Need not be woken any more.
    pub fn disarm(&self) {
        word(&self.memory, self.inward, Word::ReaderSleeps).store(0, Ordering::Relaxed);
        word(&self.memory, self.outward(), Word::WriterSleeps).store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
