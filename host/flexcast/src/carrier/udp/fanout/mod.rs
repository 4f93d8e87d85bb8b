//! Fan-out of multicast datagrams among the ranks of one computer: what comes over the network is received once, and
//! what one of them sends does not go over the network to the others.
//!
//! The ranks share memory with one ring of datagrams for each of them, which only that rank writes, and one for each
//! subgroup of the network. All ranks have the same socket of a subgroup: whoever finds datagrams in it has the lock
//! for a moment and takes them to the subgroup's ring. Each rank reads the rings at its own pace. A writer does not
//! overtake the slowest reader; the datagrams wait in the socket, or with their root, and nothing is lost. A rank reads
//! while it is in an operation whose blocks are multicast, and holds nobody up otherwise. A rank that is alone on its
//! computer has such memory for itself where other threads receive for it.
//!
//! Positions count bytes since the beginning. What another process writes to the words can make a rank see other
//! datagrams or none, which the protocol repairs or names, and nothing else: lengths are checked against what a ring
//! holds.

mod handshake;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use flexcast_mesh::memory::{Layout, Memory};

pub(super) use handshake::{Handshake, Member, WakeUp};

/// Bytes of a ring: a power of two. A root is ahead of the slowest reader by less.
pub(super) const RING_BYTES: usize = 1 << 20;
/// Most ranks that share a socket: each reads the positions of all.
pub(super) const MOST_MEMBERS: usize = 128;
/// Position of a rank that does not read.
const AWAY: u64 = u64::MAX;
/// Bytes in front of the datagrams of a record: how many bytes they have together, and each but the last, as two 32-bit
/// numbers.
const HEAD_BYTES: usize = 8;

/// What lies in which word.
#[derive(Clone, Copy, Debug)]
enum Word {
    /// 1: there may be datagrams in a subgroup's socket that nobody has read.
    Pending(usize),
    /// Who takes datagrams from a subgroup's socket: its number plus one; 0: nobody.
    Lock(usize),
    /// 1: this member sleeps until there is something to read. Whoever wakes it clears it.
    Sleeps(usize),
    /// Bytes that have been written to a ring.
    Tail(usize),
    /// Bytes of a ring that a member has read, or [`AWAY`].
    Head(usize, usize),
}

const fn layout(members: usize, subgroups: usize) -> Layout {
    let rings = members + subgroups;
    Layout { words: 2 * subgroups + members + rings + rings * members, rings, ring_bytes: RING_BYTES }
}

/// Datagrams that were written at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    ring: usize,
    /// Position of the first byte of the first datagram.
    at: u64,
    bytes: usize,
    datagram_bytes: usize,
}

impl Record {
    const fn end(&self) -> u64 {
        self.at.wrapping_add(self.bytes.next_multiple_of(HEAD_BYTES) as u64)
    }

    /// First byte and bytes of each datagram.
    pub(super) fn datagrams(&self) -> impl Iterator<Item = (u64, usize)> + use<> {
        let Self { at, bytes, datagram_bytes, .. } = *self;
        (0..bytes).step_by(datagram_bytes).map(move |from| (at + from as u64, datagram_bytes.min(bytes - from)))
    }
}

/// A ring of the memory that a member may write now.
#[derive(Debug)]
pub(super) struct Writing<'f> {
    fanout: &'f Fanout,
    ring: usize,
    at: u64,
}

impl Writing<'_> {
    /// Bytes behind what has been put.
    pub(super) fn put(&mut self, bytes: &[u8]) {
        self.fanout.memory.write(self.ring, self.at, bytes);
        self.at = self.at.wrapping_add(bytes.len() as u64);
    }

    /// Readers may read it.
    fn publish(self) {
        let Self { fanout, ring, at } = self;
        let tail = at.next_multiple_of(HEAD_BYTES as u64);
        fanout.word(Word::Tail(ring)).store(tail, Ordering::Release);
        if ring == fanout.own {
            fanout.tail.store(tail, Ordering::Relaxed);
        }
        fanout.wake_readers();
    }
}

/// The right to take datagrams from a subgroup's socket to its ring.
#[derive(Debug)]
pub(super) struct Pump<'f> {
    fanout: &'f Fanout,
    subgroup: usize,
}

impl Pump<'_> {
    /// Writes a record for all, if it has room: datagrams of `datagram_bytes` each, the last may be shorter.
    pub(super) fn write(&self, datagrams: &[u8], datagram_bytes: usize) -> bool {
        let ring = self.fanout.network(self.subgroup);
        let tail = self.fanout.word(Word::Tail(ring)).load(Ordering::Relaxed);
        self.fanout.write_at(ring, tail, (datagrams.len(), datagram_bytes), |writing| writing.put(datagrams))
    }

    /// Datagrams are left in the socket: whoever reads next tries again.
    pub(super) fn is_not_done(&self) {
        self.fanout.word(Word::Pending(self.subgroup)).store(1, Ordering::Relaxed);
    }
}

impl Drop for Pump<'_> {
    fn drop(&mut self) {
        self.fanout.word(Word::Lock(self.subgroup)).store(0, Ordering::Release);
        // Pairs with the read of `Pending` that follows: whoever has not had the lock has set that before.
        fence(Ordering::SeqCst);
    }
}

/// A rank's part in the fan-out of its computer. Several threads may ask whether there is something to read, and take
/// datagrams to the rings of subgroups; only one at a time reads, and writes to the own ring.
#[derive(Debug)]
pub(crate) struct Fanout {
    memory: Memory,
    /// None: this rank is alone.
    wake_up: Option<WakeUp>,
    /// The members, ascending; of a rank that is alone nobody.
    members: Vec<Member>,
    /// Members, this rank among them.
    count: usize,
    subgroups: usize,
    /// Number of this rank among them, and of its ring.
    own: usize,
    /// They are all ranks of the communicator.
    has_all: bool,
    /// What has been read here of each ring.
    heads: Vec<AtomicU64>,
    /// What has been written here.
    tail: AtomicU64,
    /// This rank reads.
    is_here: AtomicBool,
}

impl Fanout {
    fn new(
        memory: Memory,
        wake_up: Option<WakeUp>,
        (members, own): (Vec<Member>, usize),
        subgroups: usize,
        has_all: bool,
    ) -> Self {
        let count = members.len().max(1);
        let heads = (0..count + subgroups).map(|_| AtomicU64::new(AWAY)).collect();
        let (tail, is_here) = (AtomicU64::new(0), AtomicBool::new(false));
        let fanout = Self { memory, wake_up, members, count, subgroups, own, has_all, heads, tail, is_here };
        fanout.leave();
        fanout
    }

    /// The fan-out of a rank that shares nothing, to the threads that receive for it.
    ///
    /// # Errors
    /// The system gives no memory.
    pub(super) fn alone(subgroups: usize) -> std::io::Result<Self> {
        let (memory, _) = Memory::create(layout(1, subgroups))?;
        Ok(Self::new(memory, None, (Vec::new(), 0), subgroups, false))
    }

    fn word(&self, word: Word) -> &AtomicU64 {
        let Self { count, subgroups, .. } = *self;
        let sleeps = 2 * subgroups;
        let tails = sleeps + count;
        let heads = tails + count + subgroups;
        self.memory.word(match word {
            Word::Pending(subgroup) => subgroup,
            Word::Lock(subgroup) => subgroups + subgroup,
            Word::Sleeps(member) => sleeps + member,
            Word::Tail(ring) => tails + ring,
            Word::Head(ring, member) => heads + ring * count + member,
        })
    }

    /// A subgroup's ring, behind those of the members.
    const fn network(&self, subgroup: usize) -> usize {
        self.count + subgroup
    }

    /// The rings that are read here.
    fn inward(&self) -> impl Iterator<Item = usize> + use<> {
        let own = self.own;
        (0..self.count + self.subgroups).filter(move |ring| *ring != own)
    }

    /// Whether other ranks of this computer read what this one sends.
    pub(super) const fn has_others(&self) -> bool {
        self.count > 1
    }

    /// Whether nothing goes over the network: all ranks are of this computer.
    pub(super) const fn has_all(&self) -> bool {
        self.has_all
    }

    /// The socket that wakes this rank, if it is not alone.
    pub(super) const fn wake_up(&self) -> Option<&WakeUp> {
        self.wake_up.as_ref()
    }

    /// From now on this rank reads what is written.
    pub(super) fn join(&self) {
        for ring in self.inward() {
            loop {
                let tail = self.word(Word::Tail(ring)).load(Ordering::Acquire);
                self.advance(ring, tail);
                // Either the writer of the next record sees this reader, or its tail is seen here.
                fence(Ordering::SeqCst);
                if self.word(Word::Tail(ring)).load(Ordering::Relaxed) == tail {
                    break;
                }
            }
        }
        self.is_here.store(true, Ordering::Relaxed);
    }

    /// This rank reads nothing more: writers do not wait for it.
    pub(super) fn leave(&self) {
        self.is_here.store(false, Ordering::Relaxed);
        self.inward().for_each(|ring| self.advance(ring, AWAY));
    }

    fn advance(&self, ring: usize, head: u64) {
        self.heads[ring].store(head, Ordering::Relaxed);
        self.word(Word::Head(ring, self.own)).store(head, Ordering::Release);
    }

    /// Bytes that can be written to a ring behind `tail`.
    fn room(&self, ring: usize, tail: u64) -> usize {
        // Against `join`.
        fence(Ordering::SeqCst);
        let readers = (0..self.count).filter(|member| *member != ring);
        let heads = readers.map(|member| self.word(Word::Head(ring, member)).load(Ordering::Acquire));
        let used = heads.filter(|head| *head != AWAY).map(|head| tail.wrapping_sub(head)).max().unwrap_or(0);
        // A position that cannot be leaves none.
        usize::try_from(used).ok().and_then(|used| RING_BYTES.checked_sub(used)).unwrap_or(0)
    }

    /// Whether so many records of so many bytes together have room in a subgroup's ring.
    pub(super) fn has_network_room(&self, subgroup: usize, records: usize, bytes: usize) -> bool {
        let ring = self.network(subgroup);
        let tail = self.word(Word::Tail(ring)).load(Ordering::Relaxed);
        self.room(ring, tail) >= records * 2 * HEAD_BYTES + bytes
    }

    /// Whether a record of so many bytes has room in the own ring.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.room(self.own, self.tail.load(Ordering::Relaxed)) >= bytes + 2 * HEAD_BYTES
    }

    /// Writes a record for the others, if it has room: `put` puts `bytes` in all, datagrams of `datagram_bytes` each,
    /// of which the last may be shorter.
    pub(super) fn write(&self, bytes: usize, datagram_bytes: usize, put: impl FnOnce(&mut Writing<'_>)) -> bool {
        self.write_at(self.own, self.tail.load(Ordering::Relaxed), (bytes, datagram_bytes), put)
    }

    fn write_at(
        &self,
        ring: usize,
        tail: u64,
        (bytes, datagram_bytes): (usize, usize),
        put: impl FnOnce(&mut Writing<'_>),
    ) -> bool {
        if bytes == 0 || self.room(ring, tail) < HEAD_BYTES + bytes.next_multiple_of(HEAD_BYTES) {
            return bytes == 0;
        }
        let mut writing = Writing { fanout: self, ring, at: tail };
        let head = (bytes as u64) << 32 | datagram_bytes as u64;
        writing.put(&head.to_ne_bytes());
        put(&mut writing);
        debug_assert_eq!(writing.at, tail.wrapping_add((HEAD_BYTES + bytes) as u64));
        writing.publish();
        true
    }

    /// Wakes the members that sleep; asked after a tail was published.
    fn wake_readers(&self) {
        fence(Ordering::SeqCst);
        let Some(wake_up) = &self.wake_up else { return };
        for (number, member) in self.members.iter().enumerate().filter(|(number, _)| *number != self.own) {
            if self.takes_sleep(number) {
                wake_up.wake(member);
            }
        }
    }

    /// Whether a member has slept that does not any more.
    fn takes_sleep(&self, member: usize) -> bool {
        let word = self.word(Word::Sleeps(member));
        word.load(Ordering::Relaxed) != 0 && word.swap(0, Ordering::Relaxed) != 0
    }

    /// Whether this rank sleeps, asked by another thread of it that has written something: that thread has to wake it,
    /// once.
    pub(super) fn is_to_be_woken(&self) -> bool {
        fence(Ordering::SeqCst);
        self.takes_sleep(self.own)
    }

    /// Whether there is something to read.
    pub(super) fn is_ready(&self) -> bool {
        let is_behind = |ring: usize| {
            self.word(Word::Tail(ring)).load(Ordering::Relaxed) != self.heads[ring].load(Ordering::Relaxed)
        };
        self.is_here.load(Ordering::Relaxed) && self.inward().any(is_behind)
    }

    /// Asks to be woken as soon as there is something to read. True: there is.
    pub(super) fn arm(&self) -> bool {
        self.word(Word::Sleeps(self.own)).store(u64::from(self.is_here.load(Ordering::Relaxed)), Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.is_ready()
    }

    /// Need not be woken any more.
    pub(super) fn disarm(&self) {
        self.word(Word::Sleeps(self.own)).store(0, Ordering::Relaxed);
    }

    /// Reads up to `most` records of each ring. Returns whether there was one.
    pub(super) fn read(&self, most: usize, mut take: impl FnMut(&Self, &Record)) -> bool {
        let mut any = false;
        if !self.is_here.load(Ordering::Relaxed) {
            return false;
        }
        for ring in self.inward() {
            for _ in 0..most {
                let head = self.heads[ring].load(Ordering::Relaxed);
                let tail = self.word(Word::Tail(ring)).load(Ordering::Acquire);
                if head == tail {
                    break;
                }
                any = true;
                match self.record(ring, head, tail) {
                    Some(record) => {
                        take(self, &record);
                        self.advance(ring, record.end());
                    }
                    // Whoever wrote this does not follow the rules: what it has written is lost.
                    None => self.advance(ring, tail),
                }
            }
        }
        any
    }

    /// The record at a position, if it can be.
    fn record(&self, ring: usize, head: u64, tail: u64) -> Option<Record> {
        let available = usize::try_from(tail.wrapping_sub(head)).ok().filter(|bytes| *bytes <= RING_BYTES)?;
        let mut start = [0; HEAD_BYTES];
        self.memory.read(ring, head, &mut start);
        let start = u64::from_ne_bytes(start);
        let (bytes, datagram_bytes) = ((start >> 32) as usize, start as u32 as usize);
        let fits = bytes > 0 && datagram_bytes > 0 && HEAD_BYTES + bytes.next_multiple_of(HEAD_BYTES) <= available;
        fits.then(|| Record { ring, at: head.wrapping_add(HEAD_BYTES as u64), bytes, datagram_bytes })
    }

    /// Copies bytes of a record.
    pub(super) fn copy(&self, record: &Record, at: u64, to: &mut [u8]) {
        self.memory.read(record.ring, at, to);
    }

    /// There may be datagrams in a subgroup's socket.
    pub(super) fn has_come(&self, subgroup: usize) {
        self.word(Word::Pending(subgroup)).store(1, Ordering::Relaxed);
        // Pairs with the end of [`Pump`]: either the lock is free now, or whoever has it reads again.
        fence(Ordering::SeqCst);
    }

    /// Whether there may be datagrams in a subgroup's socket that nobody has read.
    pub(super) fn is_pending(&self, subgroup: usize) -> bool {
        // What was read here may have made room: see `Pump::is_not_done`.
        fence(Ordering::SeqCst);
        self.word(Word::Pending(subgroup)).load(Ordering::Relaxed) != 0
    }

    /// Takes the right to read a subgroup's socket, if there may be datagrams in it and nobody has the right.
    pub(super) fn pump(&self, subgroup: usize) -> Option<Pump<'_>> {
        if !self.is_pending(subgroup) {
            return None;
        }
        let lock = self.word(Word::Lock(subgroup));
        lock.compare_exchange(0, self.own as u64 + 1, Ordering::Acquire, Ordering::Relaxed).ok()?;
        self.word(Word::Pending(subgroup)).store(0, Ordering::Relaxed);
        Some(Pump { fanout: self, subgroup })
    }
}

impl Drop for Fanout {
    /// Others go on without this rank.
    fn drop(&mut self) {
        self.leave();
        self.disarm();
    }
}

#[cfg(test)]
mod tests;
