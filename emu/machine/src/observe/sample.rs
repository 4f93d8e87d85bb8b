//! Samples of what the threads of a process access while one of them does not end.

use std::collections::{BTreeMap, BTreeSet};

/// Addresses that are remembered of a thread.
const MOST_ADDRESSES: usize = 64;
/// Accesses to one word after which a thread is taken to wait for it.
const OFTEN: u32 = 8;

/// Accesses to one address.
#[derive(Clone, Copy, Debug)]
struct Accesses {
    count: u32,
    value: u64,
    /// All found the same value.
    same: bool,
}

#[derive(Debug, Default)]
struct Seen {
    loads: BTreeMap<u64, Accesses>,
    atomics: BTreeMap<u64, Accesses>,
}

/// What a thread does over and over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Spin {
    /// An atomic at this address, which finds the same value each time.
    Lock(u64),
    /// Loads from these addresses, which find the same values each time.
    Loads(Vec<u64>),
}

/// Accesses of the threads of one process, but for those to their own stacks.
#[derive(Debug)]
pub(crate) struct Sample {
    /// Card and process.
    pub(crate) whose: (usize, u32),
    /// Card and id of the threads that do not end.
    pub(crate) users: BTreeSet<(usize, u32)>,
    threads: BTreeMap<u32, Seen>,
}

fn note(accesses: &mut BTreeMap<u64, Accesses>, addr: u64, value: u64) {
    if let Some(known) = accesses.get_mut(&addr) {
        known.count = known.count.saturating_add(1);
        known.same &= known.value == value;
    } else if accesses.len() < MOST_ADDRESSES {
        accesses.insert(addr, Accesses { count: 1, value, same: true });
    }
}

fn often(accesses: &BTreeMap<u64, Accesses>) -> impl Iterator<Item = u64> {
    accesses.iter().filter(|(_, of)| of.same && of.count >= OFTEN).map(|(addr, _)| *addr)
}

impl Sample {
    pub(crate) fn new(whose: (usize, u32)) -> Self {
        Sample { whose, users: BTreeSet::new(), threads: BTreeMap::new() }
    }

    pub(crate) fn load(&mut self, (card, process, thread): (usize, u32, u32), addr: u64, value: u64) {
        if self.whose == (card, process) {
            note(&mut self.threads.entry(thread).or_default().loads, addr, value);
        }
    }

    /// An atomic finds a value.
    pub(crate) fn atomic(&mut self, (card, process, thread): (usize, u32, u32), addr: u64, value: u64) {
        if self.whose == (card, process) {
            note(&mut self.threads.entry(thread).or_default().atomics, addr, value);
        }
    }

    /// What a thread does over and over, if it does.
    pub(crate) fn spin(&self, thread: u32) -> Option<Spin> {
        let seen = self.threads.get(&thread)?;
        if let Some(addr) = often(&seen.atomics).next() {
            return Some(Spin::Lock(addr));
        }
        let loads: Vec<u64> = often(&seen.loads).collect();
        (!loads.is_empty()).then_some(Spin::Loads(loads))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_done_over_and_over_is_found() {
        let mut sample = Sample::new((0, 1));
        for value in 0..20 {
            sample.load((0, 1, 5), 0x100, 7);
            sample.load((0, 1, 5), 0x200, value);
            sample.load((0, 2, 5), 0x300, 7);
            sample.load((0, 1, 6), 0x100, 7);
            sample.atomic((0, 1, 6), 0x400, 1);
            sample.atomic((0, 1, 7), 0x400, value);
        }
        assert_eq!(sample.spin(5), Some(Spin::Loads(vec![0x100])));
        assert_eq!(sample.spin(6), Some(Spin::Lock(0x400)));
        assert_eq!((sample.spin(7), sample.spin(8)), (None, None));
    }
}
