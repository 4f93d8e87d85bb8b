//! Accesses of two threads to memory that nothing orders.
//!
//! Vector clocks record the order: each thread counts its own synchronisations, and keeps the latest count that it has
//! seen of each other thread. Two accesses of different threads to the same byte, one of them a
//! store, race unless one was seen by the thread of the other. A thread learns of others
//!
//! - by an atomic that acquires (or a fence behind one that does not) from atomics of the word that release (or follow
//!   a fence);
//! - by a load and a fence from plain stores behind a fence: flags in shared memory;
//! - by the start of an activation or call, and by loading what the card or the host has written, from everything that
//!   threads of its process have given outside: doorbells, stores through windows, activations of other threads,
//!   returns of calls. That is more than need have reached it: what is reported is a race, and not every race is.
//!
//! Atomics do not race with one another. A flag does not race with those who read it, nor with atomics: that is a plain
//! store behind a fence.
//!
//! Accesses of a thread to its own stack are not noted, since no other thread should go there.

use std::collections::BTreeMap;
use std::sync::Arc;

use emu_nic::Space;

use super::{Access, Agent, Range};
use crate::weak::bits;

/// Bytes of a word, whose bytes share an entry.
const WORD: u64 = 8;
/// All bytes of a word.
const WHOLE: u8 = 0xFF;
/// Words of a process that are remembered. With more, all are forgotten, and all threads know of one another.
const MAX_WORDS: usize = 1 << 17;
/// Longest write of the card or the host that is noted of words which no thread has accessed: a completion.
const NOTED_BYTES: u64 = 64;

/// By thread (see [`Process::slot`]), the count of its synchronisations that is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Clock(Vec<u32>);

impl Clock {
    fn of(&self, slot: usize) -> u32 {
        self.0.get(slot).copied().unwrap_or_default()
    }

    fn join(&mut self, other: &Clock) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (own, other) in self.0.iter_mut().zip(&other.0) {
            *own = (*own).max(*other);
        }
    }

    fn tick(&mut self, slot: usize) {
        if self.0.len() <= slot {
            self.0.resize(slot + 1, 0);
        }
        self.0[slot] += 1;
    }
}

/// What a thread does to a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deed {
    /// A plain load.
    Load,
    /// A plain store.
    Store,
    /// An atomic, which stores or does not.
    Atomic {
        /// It acquires what others have released.
        acquire: bool,
        /// It releases.
        release: bool,
        /// It stores.
        stores: bool,
    },
}

impl Deed {
    fn stores(self) -> bool {
        matches!(self, Deed::Store | Deed::Atomic { stores: true, .. })
    }

    fn is_atomic(self) -> bool {
        matches!(self, Deed::Atomic { .. })
    }

    fn action(self) -> &'static str {
        match self {
            Deed::Load => "loaded",
            Deed::Store => "stored",
            Deed::Atomic { stores: true, .. } => "changed by an atomic",
            Deed::Atomic { stores: false, .. } => "loaded by an atomic",
        }
    }
}

/// An access of a thread to bytes of a word.
#[derive(Clone, Copy, Debug)]
struct Past {
    slot: usize,
    thread: u32,
    /// The thread's own count.
    count: u32,
    bytes: u8,
    deed: Deed,
    /// A plain store behind a fence.
    is_flag: bool,
    pc: u64,
    at_ps: u64,
}

impl Past {
    /// Whether two accesses that nothing orders are a race.
    fn races_with(&self, other: &Past) -> bool {
        if !self.deed.stores() && !other.deed.stores() {
            return false;
        }
        match (self.deed.is_atomic(), other.deed.is_atomic()) {
            (true, true) => false,
            (true, false) => other.deed == Deed::Store && !other.is_flag,
            (false, true) => self.deed == Deed::Store && !self.is_flag,
            (false, false) if self.deed == other.deed => true,
            // A flag, and who reads it.
            (false, false) => !(self.is_flag || other.is_flag),
        }
    }

    fn access(&self, (card, process): (usize, u32), word: u64) -> Access {
        let first = u64::from(self.bytes.trailing_zeros());
        let len = u64::from(self.bytes.count_ones());
        let agent = Agent::Thread { process, thread: self.thread, pc: self.pc, symbol: None };
        Range { card, space: Space::Dpa(process), addr: word + first, len }.access(
            agent,
            self.deed.action(),
            self.at_ps,
        )
    }
}

#[derive(Debug, Default)]
struct Word {
    /// The latest accesses to each byte: stores, and each thread's loads since.
    past: Vec<Past>,
    /// What who synchronises by this word learns.
    released: Option<Arc<Clock>>,
    /// The card or the host has written it last: no fence is needed to learn.
    is_foreign: bool,
}

#[derive(Debug, Default)]
struct Thread {
    slot: usize,
    clock: Clock,
    /// The clock at the last fence behind stores in this activation.
    fenced: Option<Arc<Clock>>,
    /// What a fence behind loads makes known.
    loaded: Clock,
}

#[derive(Debug, Default)]
struct Process {
    threads: BTreeMap<u32, Thread>,
    words: BTreeMap<u64, Word>,
    /// What threads have given outside.
    outside: Clock,
}

impl Process {
    fn thread(&mut self, id: u32) -> &mut Thread {
        let slot = self.threads.len();
        self.threads.entry(id).or_insert_with(|| {
            let mut thread = Thread { slot, ..Thread::default() };
            thread.clock.tick(slot);
            thread
        })
    }

    /// Makes room: everybody knows of everything.
    #[cold]
    fn forget_words(&mut self) {
        self.words.clear();
        let mut all = std::mem::take(&mut self.outside);
        for thread in self.threads.values() {
            all.join(&thread.clock);
        }
        for thread in self.threads.values_mut() {
            thread.clock.join(&all);
            thread.clock.tick(thread.slot);
        }
        self.outside = all;
    }
}

/// Order of the accesses of the threads of all processes.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// By card and process id.
    processes: BTreeMap<(usize, u32), Process>,
}

/// The words of a range of at most [`WORD`] bytes, with a bit for each of its bytes.
fn words(addr: u64, len: u64) -> impl Iterator<Item = (u64, u8)> {
    let bits = ((1_u16 << len.min(WORD)) - 1) << (addr % WORD);
    let word = addr - addr % WORD;
    [(word, bits as u8), (word.wrapping_add(WORD), (bits >> WORD) as u8)].into_iter().filter(|(_, bits)| *bits != 0)
}

impl Order {
    fn process(&mut self, card: usize, process: u32) -> &mut Process {
        self.processes.entry((card, process)).or_default()
    }

    /// A thread (card, process, thread) accesses at most 8 bytes. Gives the earlier access that it races with.
    pub(super) fn access(
        &mut self,
        (card, id, thread): (usize, u32, u32),
        deed: Deed,
        (addr, len): (u64, u64),
        (pc, at_ps): (u64, u64),
    ) -> Option<(Access, Access)> {
        let process = self.process(card, id);
        if process.words.len() >= MAX_WORDS {
            process.forget_words();
        }
        process.thread(thread);
        let Process { threads, words: known, .. } = process;
        let own = threads.get_mut(&thread)?;
        let mut found = None;
        for (at, bytes) in words(addr, len) {
            let word = known.entry(at).or_default();
            // A store alone learns nothing.
            if deed != Deed::Store
                && let Some(released) = &word.released
            {
                let learns_at_once = word.is_foreign || matches!(deed, Deed::Atomic { acquire: true, .. });
                if learns_at_once { own.clock.join(released) } else { own.loaded.join(released) }
            }
            let is_flag = deed == Deed::Store && own.fenced.is_some();
            let count = own.clock.of(own.slot);
            let new = Past { slot: own.slot, thread, count, bytes, deed, is_flag, pc, at_ps };
            let unordered =
                |past: &&Past| past.slot != new.slot && past.bytes & bytes != 0 && past.count > own.clock.of(past.slot);
            if found.is_none()
                && let Some(past) = word.past.iter().filter(unordered).find(|past| past.races_with(&new))
            {
                found = Some((past.access((card, id), at), new.access((card, id), at)));
            }
            let stores = deed.stores();
            word.past.retain_mut(|past| {
                if stores || (past.slot == new.slot && !past.deed.stores()) {
                    past.bytes &= !bytes;
                }
                past.bytes != 0
            });
            word.past.push(new);
            if !stores {
                continue;
            }
            let releases = matches!(deed, Deed::Atomic { release: true, .. });
            let given = if releases { Some(Arc::new(own.clock.clone())) } else { own.fenced.clone() };
            // Of an atomic, what others have released before goes on; so it does for the rest of a word.
            word.released = match (word.released.take(), given) {
                (Some(before), Some(given)) if deed.is_atomic() || bytes != WHOLE => {
                    let mut both = (*before).clone();
                    both.join(&given);
                    Some(Arc::new(both))
                }
                (before, None) if deed.is_atomic() || bytes != WHOLE => before,
                (_, given) => given,
            };
            word.is_foreign &= bytes != WHOLE;
        }
        if matches!(deed, Deed::Atomic { release: true, .. }) {
            own.clock.tick(own.slot);
        }
        found
    }

    /// A fence of a thread.
    pub(super) fn fence(&mut self, (card, process, thread): (usize, u32, u32), predecessor: u8, successor: u8) {
        let own = self.process(card, process).thread(thread);
        if predecessor & (bits::R | bits::I) != 0 && successor != 0 {
            own.clock.join(&own.loaded);
        }
        if predecessor & (bits::W | bits::O) != 0 && successor != 0 {
            own.fenced = Some(Arc::new(own.clock.clone()));
            own.clock.tick(own.slot);
        }
    }

    /// An activation or a call of a thread begins.
    pub(super) fn begin(&mut self, (card, process, thread): (usize, u32, u32)) {
        let process = self.process(card, process);
        process.thread(thread);
        let Process { threads, outside, .. } = process;
        if let Some(own) = threads.get_mut(&thread) {
            own.clock.join(outside);
            own.fenced = None;
        }
    }

    /// A thread gives something outside: a doorbell, a store through a window, the activation of another thread, the
    /// result of a call.
    pub(super) fn release(&mut self, (card, process, thread): (usize, u32, u32)) {
        let process = self.process(card, process);
        process.thread(thread);
        let Process { threads, outside, .. } = process;
        if let Some(own) = threads.get_mut(&thread) {
            outside.join(&own.clock);
            own.clock.tick(own.slot);
        }
    }

    /// The card or the host writes memory of a process.
    pub(super) fn write_from_outside(&mut self, (card, process): (usize, u32), addr: u64, len: u64) {
        let Some(process) = self.processes.get_mut(&(card, process)).filter(|_| len > 0) else { return };
        let Process { words, outside, .. } = process;
        let outside = Arc::new(outside.clone());
        let end = addr.saturating_add(len);
        let write = |at: u64, word: &mut Word| {
            let covers = |byte: u64| (addr..end).contains(&(at + byte));
            let bytes = (0..WORD).filter(|byte| covers(*byte)).fold(0, |bytes, byte| bytes | 1 << byte);
            word.past.retain_mut(|past| {
                past.bytes &= !bytes;
                past.bytes != 0
            });
            (word.released, word.is_foreign) = (Some(Arc::clone(&outside)), true);
        };
        let first = addr - addr % WORD;
        if len <= NOTED_BYTES {
            for at in (first..end).step_by(WORD as usize) {
                write(at, words.entry(at).or_default());
            }
        } else {
            for (&at, word) in words.range_mut(first..end) {
                write(at, word);
            }
        }
    }

    /// A process has gone.
    pub(super) fn forget(&mut self, card: usize, process: u32) {
        self.processes.remove(&(card, process));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: (usize, u32, u32) = (0, 1, 1);
    const TWO: (usize, u32, u32) = (0, 1, 2);
    const ACQUIRE: Deed = Deed::Atomic { acquire: true, release: false, stores: true };
    const RELEASE: Deed = Deed::Atomic { acquire: false, release: true, stores: true };
    const RELAXED: Deed = Deed::Atomic { acquire: false, release: false, stores: true };
    const R: u8 = bits::R;
    const W: u8 = bits::W;
    const DATA: u64 = 0x1000;
    const FLAG: u64 = 0x2000;

    fn access(order: &mut Order, who: (usize, u32, u32), deed: Deed, addr: u64, len: u64) -> bool {
        order.access(who, deed, (addr, len), (0x40, 7)).is_some()
    }

    /// One stores data and does something; the other does something and loads the data. Whether that is a race.
    fn handed_over(one: impl Fn(&mut Order), two: impl Fn(&mut Order)) -> bool {
        let mut order = Order::default();
        assert!(!access(&mut order, ONE, Deed::Store, DATA, 8));
        one(&mut order);
        two(&mut order);
        access(&mut order, TWO, Deed::Load, DATA, 8)
    }

    #[test]
    fn what_nothing_orders_is_a_race() {
        let mut order = Order::default();
        let race = |order: &mut Order, who, deed| order.access(who, deed, (DATA, 8), (0x40, 7));
        assert!(race(&mut order, ONE, Deed::Store).is_none());
        assert!(race(&mut order, ONE, Deed::Load).is_none(), "its own");
        let (first, second) = race(&mut order, TWO, Deed::Load).expect("a race");
        assert_eq!((first.action, second.action, first.addr, second.len), ("stored", "loaded", DATA, 8));
        assert!(race(&mut order, TWO, Deed::Store).is_some(), "two stores");
        assert!(race(&mut order, ONE, RELAXED).is_some(), "a plain store and an atomic");
        // Other bytes, another process, loads alone, atomics alone.
        assert!(!access(&mut order, ONE, Deed::Store, DATA + 64, 4));
        assert!(!access(&mut order, TWO, Deed::Store, DATA + 68, 4));
        assert!(!access(&mut order, (0, 2, 3), Deed::Store, DATA, 8));
        for who in [ONE, TWO] {
            assert!(!access(&mut order, who, Deed::Load, DATA + 128, 8));
            assert!(!access(&mut order, who, RELAXED, DATA + 256, 8));
        }
        assert!(access(&mut order, TWO, Deed::Store, DATA + 128, 1), "the other has loaded it");
        assert!(access(&mut order, ONE, Deed::Store, DATA + 64, 8), "it ends in another word's bytes");
    }

    #[test]
    fn atomics_hand_over_as_far_as_they_release_and_acquire() {
        let amo = |who, deed| move |order: &mut Order| assert!(!access(order, who, deed, FLAG, 8));
        assert!(!handed_over(amo(ONE, RELEASE), amo(TWO, ACQUIRE)));
        assert!(handed_over(amo(ONE, RELEASE), amo(TWO, RELAXED)));
        assert!(handed_over(amo(ONE, RELAXED), amo(TWO, ACQUIRE)));
        assert!(handed_over(|_| (), amo(TWO, ACQUIRE)));
        let fenced = |order: &mut Order| {
            order.fence(ONE, W, W);
            amo(ONE, RELAXED)(order);
        };
        assert!(!handed_over(fenced, amo(TWO, ACQUIRE)));
        let then_fence = |order: &mut Order| {
            amo(TWO, RELAXED)(order);
            order.fence(TWO, R, R);
        };
        assert!(!handed_over(fenced, then_fence));
        // Through the atomic of a third.
        assert!(!handed_over(
            |order| {
                amo(ONE, RELEASE)(order);
                amo((0, 1, 3), RELAXED)(order);
            },
            amo(TWO, ACQUIRE)
        ));
    }

    #[test]
    fn flags_hand_over_between_two_fences() {
        let set = |order: &mut Order| _ = access(order, ONE, Deed::Store, FLAG, 4);
        let see = |order: &mut Order| _ = access(order, TWO, Deed::Load, FLAG, 4);
        let fenced = |order: &mut Order| {
            order.fence(ONE, W, W);
            assert!(!access(order, ONE, Deed::Store, FLAG, 4));
        };
        let then_fence = |order: &mut Order| {
            assert!(!access(order, TWO, Deed::Load, FLAG, 4));
            order.fence(TWO, R, R);
        };
        assert!(!handed_over(fenced, then_fence));
        assert!(handed_over(fenced, see));
        assert!(handed_over(set, |order| {
            see(order);
            order.fence(TWO, R, R);
        }));
        // Fenced in an earlier activation is not fenced now.
        let mut order = Order::default();
        order.fence(ONE, W, W);
        order.begin(ONE);
        set(&mut order);
        assert!(access(&mut order, TWO, Deed::Load, FLAG, 4));
    }

    #[test]
    fn doorbells_and_activations_hand_over() {
        let out = |order: &mut Order| order.release(ONE);
        assert!(!handed_over(out, |order| order.begin(TWO)));
        assert!(handed_over(out, |_| ()));
        assert!(handed_over(|_| (), |order| order.begin(TWO)));
        // What it does after the doorbell has not been handed over.
        let mut order = Order::default();
        order.release(ONE);
        assert!(!access(&mut order, ONE, Deed::Store, DATA, 8));
        order.begin(TWO);
        assert!(access(&mut order, TWO, Deed::Load, DATA, 8));
        // A completion that it polls for.
        assert!(!handed_over(out, |order| {
            order.write_from_outside((0, 1), 0x3000, 64);
            assert!(!access(order, TWO, Deed::Load, 0x303F, 1));
        }));
        // What the host writes is nobody's.
        assert!(!handed_over(|order| order.write_from_outside((0, 1), DATA & !0xFFF, 0x2000), |_| ()));
    }

    #[test]
    fn memory_is_bounded_and_nothing_is_accused_for_it() {
        let mut order = Order::default();
        access(&mut order, ONE, Deed::Store, DATA, 8);
        for at in 0..MAX_WORDS as u64 {
            access(&mut order, TWO, Deed::Store, 0x100_0000 + at * WORD, 8);
        }
        assert!(!access(&mut order, TWO, Deed::Store, DATA, 8));
        assert!(order.processes[&(0, 1)].words.len() <= MAX_WORDS);
        order.forget(0, 1);
        assert!(order.processes.is_empty());
    }
}
