//! Registered ranges of a memory.

use std::collections::BTreeMap;

use emu_nic::DmaFault;

/// start -> lengths, each as often as this very start and length is registered
#[derive(Debug, Default)]
pub(crate) struct Ranges(BTreeMap<u64, Vec<u64>>);

impl Ranges {
    /// Registers `[addr, addr + len)` once more.
    pub(crate) fn add(&mut self, addr: u64, len: u64) {
        self.0.entry(addr).or_default().push(len);
    }

    /// Takes one registration of exactly this range back; `false` if there was none.
    pub(crate) fn remove(&mut self, addr: u64, len: u64) -> bool {
        let Some(lengths) = self.0.get_mut(&addr) else { return false };
        let Some(at) = lengths.iter().position(|&l| l == len) else { return false };
        lengths.swap_remove(at);
        if lengths.is_empty() {
            self.0.remove(&addr);
        }
        true
    }

    /// A registered range that all of `[addr, addr + len)` is in, from its first byte to behind its last.
    pub(crate) fn find(&self, addr: u64, len: usize) -> Result<(u64, u64), DmaFault> {
        let fault = DmaFault { addr, len: len as u64 };
        let end = addr.checked_add(len as u64).ok_or(fault)?;
        let ends = |(&start, lengths): (&u64, &Vec<u64>)| {
            let behind = lengths.iter().map(|&len| start.saturating_add(len)).find(|&behind| behind >= end)?;
            Some((start, behind))
        };
        self.0.range(..=addr).rev().find_map(ends).ok_or(fault)
    }

    /// Registrations.
    pub(crate) fn count(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }
}
