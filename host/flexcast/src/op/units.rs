//! Assignment of execution units (hardware threads) of the DPA to workers.
//!
//! An administrator divides the units into partitions, and other processes have units as well. No call reports which
//! ones a process may have. So units are asked for in an order, and the next one replaces one that the card refuses.

use crate::error::{Error, Result};

/// Execution units of the DPA: 16 cores with 16 threads each. Unit `n` is thread `n % 16` of core `n / 16`.
pub const UNITS: u32 = 256;
/// Threads of a core.
pub const UNITS_PER_CORE: u32 = 16;
/// Units that a process can count on: the rest hold the card's own services (unit 0 is one of them).
pub const USABLE_UNITS: u32 = 190;
const CORES: u32 = USABLE_UNITS.div_ceil(UNITS_PER_CORE);

/// In what order units are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ThreadPlacement {
    /// All threads of a core before the next one, as published measurements do.
    #[default]
    Compact,
    /// One thread of each core in turn.
    Spread,
}

/// The units of a card that are taken.
#[derive(Debug)]
pub(crate) struct Units {
    taken: [bool; UNITS as usize],
    /// Refused when they were last asked for: they come behind all others.
    refused: [bool; UNITS as usize],
    /// Bytes that those who have taken units want in the last-level cache.
    pub(crate) hot_bytes: u64,
}

impl Units {
    pub(crate) const fn new() -> Self {
        let mut taken = [false; UNITS as usize];
        taken[0] = true;
        Self { taken, refused: [false; UNITS as usize], hot_bytes: 0 }
    }

    /// How many may be taken still: a process can count on no more than [`USABLE_UNITS`], whichever they are.
    fn free(&self) -> u32 {
        USABLE_UNITS.saturating_sub(self.taken.iter().filter(|taken| **taken).count() as u32)
    }

    /// Units that nobody has, in the order in which they are asked for: those beyond the usable ones, which the card
    /// may have for its own services, come behind these, and those that it has refused at the end.
    fn order(&self, placement: ThreadPlacement) -> impl Iterator<Item = u32> + '_ {
        let usable: Vec<u32> = match placement {
            ThreadPlacement::Compact => (0..USABLE_UNITS).collect(),
            ThreadPlacement::Spread => (0..UNITS_PER_CORE)
                .flat_map(|thread| (0..CORES).map(move |core| core * UNITS_PER_CORE + thread))
                .filter(|unit| *unit < USABLE_UNITS)
                .collect(),
        };
        let mut units: Vec<u32> = usable.into_iter().chain(USABLE_UNITS..UNITS).collect();
        units.sort_by_key(|unit| self.refused[*unit as usize]);
        units.into_iter().filter(|unit| !self.taken[*unit as usize])
    }

    /// Takes `count` units.
    ///
    /// # Errors
    /// [`Error::Budget`] when there are not so many; then none is taken.
    pub(crate) fn take(&mut self, count: u32, placement: ThreadPlacement) -> Result<Vec<u32>> {
        if count > self.free() {
            return Err(Error::Budget {
                what: "DPA threads",
                needed: u64::from(count),
                limit: u64::from(self.free()),
                next: "ask for fewer receive or send threads, or free another communicator of this card",
            });
        }
        let units: Vec<u32> = self.order(placement).take(count as usize).collect();
        for unit in &units {
            self.taken[*unit as usize] = true;
        }
        Ok(units)
    }

    /// The card has refused a unit that was taken: gives the next in its place, unless all were tried.
    pub(crate) fn replace(&mut self, unit: u32, placement: ThreadPlacement, tried: &[u32]) -> Option<u32> {
        self.refused[unit as usize] = true;
        let next = self.order(placement).find(|next| *next != unit && !tried.contains(next))?;
        self.taken[unit as usize] = false;
        self.taken[next as usize] = true;
        Some(next)
    }

    /// The card has let us have a unit.
    pub(crate) fn accepted(&mut self, unit: u32) {
        self.refused[unit as usize] = false;
    }

    pub(crate) fn give_back(&mut self, units: &[u32]) {
        for unit in units {
            self.taken[*unit as usize] = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compact_fills_cores_and_spread_fills_threads() {
        let mut units = Units::new();
        assert_eq!(units.take(17, ThreadPlacement::Compact).unwrap(), (1..18).collect::<Vec<_>>());
        let spread = units.take(13, ThreadPlacement::Spread).unwrap();
        assert_eq!(spread[..4], [32, 48, 64, 80]);
        assert!(spread.iter().all(|unit| *unit < USABLE_UNITS));
        units.give_back(&spread);
        assert_eq!(units.take(13, ThreadPlacement::Spread).unwrap(), spread);
    }

    #[test]
    fn a_refused_unit_is_replaced_and_comes_last_from_then_on() {
        let mut units = Units::new();
        assert_eq!(units.take(2, ThreadPlacement::Compact).unwrap(), [1, 2]);
        assert_eq!(units.replace(1, ThreadPlacement::Compact, &[1]), Some(3));
        assert_eq!(units.replace(2, ThreadPlacement::Spread, &[2]), Some(16));
        assert_eq!(units.take(2, ThreadPlacement::Compact).unwrap(), [4, 5]);
        let rest = units.take(185, ThreadPlacement::Compact).unwrap();
        assert!(rest.ends_with(&[190, 191]) && !rest.contains(&1), "behind the usable ones: {rest:?}");
        // Each is tried once, the refused ones at the end.
        let mut tried = vec![3];
        while let Some(next) = units.replace(*tried.last().unwrap(), ThreadPlacement::Compact, &tried) {
            tried.push(next);
        }
        assert_eq!(tried.len() as u32, UNITS - 1 - 188);
        assert!(tried.ends_with(&[1, 2]), "{tried:?}");
        units.give_back(&[*tried.last().unwrap()]);
        units.accepted(1);
        assert_eq!(units.take(1, ThreadPlacement::Compact).unwrap(), [1]);
    }

    #[test]
    fn too_many_threads_are_refused_and_none_is_lost() {
        let mut units = Units::new();
        let text = units.take(190, ThreadPlacement::Compact).unwrap_err().to_string();
        assert!(text.contains("190") && text.contains("189") && text.contains("fewer"), "{text}");
        assert_eq!(units.take(189, ThreadPlacement::Spread).unwrap().len(), 189);
        assert!(units.take(1, ThreadPlacement::Compact).is_err());
    }
}
