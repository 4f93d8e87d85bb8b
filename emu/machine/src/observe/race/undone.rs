//! Stores of DPA threads that are lost, because another thread stores what it made of an older value.
//!
//! A thread loads a byte, another thread stores it, and then the first stores it. The second thread's store is lost, as
//! with a counter that two threads add to without atomics. After an atomic, a fence behind loads, or the start of an
//! activation the first thread may know of the other store: its earlier loads do not count from then on. A store that
//! does not change memory cannot be lost, but another can be lost by it: two threads that add 1 at the same time store
//! the same value.
//!
//! Loads of a thread's own stack are not noted, since no other thread stores there.

use std::collections::BTreeMap;

use super::Access;
use crate::weak::ThreadKey;

/// Bytes of a word, whose bytes share an entry.
const WORD: u64 = 8;
/// Words that are remembered. With more, those that no longer count are forgotten, then all.
const MAX_WORDS: usize = 1 << 16;

/// What a thread has loaded of a word.
#[derive(Debug)]
struct Loaded {
    thread: u32,
    /// The thread's [`Undone::eras`] when it loaded.
    era: u64,
    /// Bytes that the thread has loaded.
    bytes: u8,
    /// Stores of other threads since, each with those of these bytes that it was the last to change.
    since: Vec<(u8, Access)>,
}

/// What threads have loaded, and who has stored it since.
#[derive(Debug, Default)]
pub(super) struct Undone {
    /// By card, process and address of the word.
    words: BTreeMap<(usize, u32, u64), Vec<Loaded>>,
    /// How often each thread's earlier loads have stopped to count.
    eras: BTreeMap<ThreadKey, u64>,
}

/// The words of a range of at most [`WORD`] bytes, with a bit for each of its bytes.
fn words(addr: u64, len: u64) -> impl Iterator<Item = (u64, u8)> {
    let bits = ((1_u16 << len.min(WORD)) - 1) << (addr % WORD);
    let word = addr - addr % WORD;
    [(word, bits as u8), (word.wrapping_add(WORD), (bits >> WORD) as u8)].into_iter().filter(|(_, bits)| *bits != 0)
}

impl Loaded {
    /// The thread knows what these bytes are.
    fn learn(&mut self, bits: u8) {
        self.since.retain_mut(|(changed, _)| {
            *changed &= !bits;
            *changed != 0
        });
    }
}

fn era(eras: &BTreeMap<ThreadKey, u64>, thread: ThreadKey) -> u64 {
    eras.get(&thread).copied().unwrap_or_default()
}

impl Undone {
    /// A thread loads at most 8 bytes.
    pub(super) fn load(&mut self, (card, process, thread): (usize, u32, u32), (addr, len): (u64, u64)) {
        let era = era(&self.eras, (card, thread));
        if self.words.len() >= MAX_WORDS {
            self.make_room();
        }
        for (word, bits) in words(addr, len) {
            let loads = self.words.entry((card, process, word)).or_default();
            let Some(loaded) = loads.iter_mut().find(|loaded| loaded.thread == thread) else {
                loads.push(Loaded { thread, era, bytes: bits, since: Vec::new() });
                continue;
            };
            if loaded.era != era {
                *loaded = Loaded { thread, era, bytes: 0, since: Vec::new() };
            }
            loaded.bytes |= bits;
            loaded.learn(bits);
        }
    }

    /// A thread may have synchronised with all that others have done so far.
    pub(super) fn forget_loads(&mut self, thread: ThreadKey) {
        *self.eras.entry(thread).or_default() += 1;
    }

    /// A store of at most 8 bytes becomes visible, which `changes` memory or not. Gives the store of another thread
    /// that is lost by it.
    pub(super) fn store(
        &mut self,
        (card, process, thread): (usize, u32, u32),
        store: &Access,
        changes: bool,
    ) -> Option<Access> {
        let mut undone = None;
        for (word, bits) in words(store.addr, store.len) {
            let Some(loads) = self.words.get_mut(&(card, process, word)) else { continue };
            loads.retain(|loaded| era(&self.eras, (card, loaded.thread)) == loaded.era);
            for loaded in loads.iter_mut() {
                if loaded.thread == thread {
                    let lost = loaded.since.iter().find(|(changed, _)| changed & bits != 0);
                    undone = undone.or_else(|| lost.map(|(_, store)| store.clone()));
                    loaded.learn(bits);
                } else if changes && loaded.bytes & bits != 0 {
                    // Of bytes that several have stored the last store is the one that is lost.
                    loaded.learn(bits);
                    loaded.since.push((loaded.bytes & bits, store.clone()));
                }
            }
            if loads.is_empty() {
                self.words.remove(&(card, process, word));
            }
        }
        undone
    }

    /// A process has gone.
    pub(super) fn forget(&mut self, card: usize, process: u32) {
        self.words.retain(|&(on, of, _), _| (on, of) != (card, process));
    }

    #[cold]
    fn make_room(&mut self) {
        let eras = &self.eras;
        self.words.retain(|&(card, ..), loads| {
            loads.retain(|loaded| era(eras, (card, loaded.thread)) == loaded.era);
            !loads.is_empty()
        });
        if self.words.len() >= MAX_WORDS {
            self.words.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use emu_nic::Space;

    use super::super::{Agent, Range};
    use super::*;

    const ONE: (usize, u32, u32) = (0, 1, 1);
    const TWO: (usize, u32, u32) = (0, 1, 2);

    fn access((card, process, thread): (usize, u32, u32), addr: u64, len: u64) -> Access {
        let agent = Agent::Thread { process, thread, pc: 0, symbol: None };
        Range { card, space: Space::Dpa(process), addr, len }.access(agent, "stored", 5)
    }

    fn store(undone: &mut Undone, who: (usize, u32, u32), addr: u64, len: u64) -> Option<u64> {
        undone.store(who, &access(who, addr, len), true).map(|lost| lost.addr)
    }

    #[test]
    fn a_store_between_load_and_store_is_undone() {
        let mut undone = Undone::default();
        undone.load(ONE, (0x1000, 8));
        assert_eq!(store(&mut undone, TWO, 0x1004, 4), None);
        assert_eq!(store(&mut undone, ONE, 0x1000, 8), Some(0x1004));
        assert_eq!(store(&mut undone, ONE, 0x1000, 8), None, "once");
        // Each of two threads that have loaded may undo the other.
        undone.load(TWO, (0x1000, 8));
        assert_eq!(store(&mut undone, ONE, 0x1000, 8), None);
        assert_eq!(store(&mut undone, TWO, 0x1000, 8), Some(0x1000));
    }

    #[test]
    fn of_several_stores_the_one_that_is_lost_is_named() {
        let mut undone = Undone::default();
        undone.load(ONE, (0x1000, 8));
        for (addr, len) in [(0x1000, 2), (0x1001, 2), (0x1006, 2)] {
            assert_eq!(store(&mut undone, TWO, addr, len), None);
        }
        for (addr, lost) in [(0x1006, 0x1006), (0x1001, 0x1001), (0x1000, 0x1000)] {
            assert_eq!(store(&mut undone, ONE, addr, 1), Some(lost));
        }
        assert_eq!(store(&mut undone, ONE, 0x1003, 1), None, "nobody else has stored there");
    }

    #[test]
    fn what_a_thread_may_know_is_not_undone() {
        let others = |what: &dyn Fn(&mut Undone)| {
            let mut undone = Undone::default();
            undone.load(ONE, (0x1000, 8));
            assert_eq!(store(&mut undone, TWO, 0x1000, 8), None);
            what(&mut undone);
            store(&mut undone, ONE, 0x1000, 8)
        };
        assert_eq!(others(&|_| {}), Some(0x1000));
        assert_eq!(others(&|undone| undone.load(ONE, (0x1000, 8))), None, "it loads again");
        assert_eq!(others(&|undone| undone.load(ONE, (0x1000, 4))), Some(0x1000), "it loads a part again");
        assert_eq!(others(&|undone| undone.forget_loads((0, 1))), None, "a fence");
        assert_eq!(others(&|undone| undone.forget_loads((0, 2))), Some(0x1000), "another's fence");
        assert_eq!(others(&|undone| undone.forget(0, 1)), None);
        // Other bytes, another process.
        let mut undone = Undone::default();
        undone.load(ONE, (0x1006, 4));
        assert_eq!(store(&mut undone, TWO, 0x100A, 2), None);
        assert_eq!(store(&mut undone, (0, 2, 3), 0x1006, 4), None);
        assert_eq!(store(&mut undone, ONE, 0x1006, 4), None);
        // The other stores what is there.
        undone.load(ONE, (0x1006, 4));
        assert_eq!(undone.store(TWO, &access(TWO, 0x1006, 4), false), None);
        assert_eq!(store(&mut undone, ONE, 0x1006, 4), None);
    }

    #[test]
    fn memory_is_bounded() {
        let mut undone = Undone::default();
        for at in 0..MAX_WORDS as u64 {
            undone.load(ONE, (at * WORD, 8));
        }
        undone.forget_loads((0, 1));
        undone.load(ONE, (0, 8));
        assert_eq!(undone.words.len(), 1, "loads that do not count make room");
        for at in 0..=MAX_WORDS as u64 {
            undone.load(ONE, (at * WORD, 8));
        }
        assert!(undone.words.len() <= MAX_WORDS);
    }
}
