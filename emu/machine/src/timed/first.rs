//! Order of cores: which core of a card goes on first.

use emu_timing::Issue;
use emu_timing::core::THREADS;
use emu_timing::memory::CORES;

use crate::dpa::layout::EXECUTION_UNITS;

/// A cycle that does not come.
const NEVER: u64 = u64::MAX;

/// Of all cores the one whose turn comes first, and when.
pub(super) struct First {
    /// A tree: the turn of each core from place 16 on (its cycle, and in the eight low bits the execution unit of its
    /// thread), and at each place before that the lesser of its two children at twice the place.
    turns: [u64; 2 * CORES],
}

impl First {
    pub(super) fn new() -> Self {
        First { turns: [NEVER; 2 * CORES] }
    }

    #[inline(always)]
    pub(super) fn set(&mut self, core: usize, issue: Option<Issue>) {
        let mut place = CORES + core % CORES;
        let mut turn = issue.map_or(NEVER, |issue| issue.at << 8 | (core * THREADS + issue.thread) as u64);
        self.turns[place] = turn;
        for _ in 0..CORES.ilog2() {
            turn = turn.min(self.turns[(place ^ 1) % (2 * CORES)]);
            place /= 2;
            self.turns[place % (2 * CORES)] = turn;
        }
    }

    /// An execution unit, and the cycle.
    #[inline(always)]
    pub(super) fn get(&self) -> Option<(usize, u64)> {
        let turn = self.turns[1];
        (turn != NEVER).then_some((turn as usize % EXECUTION_UNITS, turn >> 8))
    }
}
