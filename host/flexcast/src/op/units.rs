//! Assignment of execution units (hardware threads) of the DPA to workers.

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
    taken: [bool; USABLE_UNITS as usize],
    /// Bytes that those who have taken units want in the last-level cache.
    pub(crate) hot_bytes: u64,
}

impl Units {
    pub(crate) const fn new() -> Self {
        let mut taken = [false; USABLE_UNITS as usize];
        taken[0] = true;
        Self { taken, hot_bytes: 0 }
    }

    fn free(&self) -> u32 {
        self.taken.iter().filter(|taken| !**taken).count() as u32
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
        let order: Vec<u32> = match placement {
            ThreadPlacement::Compact => (0..USABLE_UNITS).collect(),
            ThreadPlacement::Spread => (0..UNITS_PER_CORE)
                .flat_map(|thread| (0..CORES).map(move |core| core * UNITS_PER_CORE + thread))
                .filter(|unit| *unit < USABLE_UNITS)
                .collect(),
        };
        let units: Vec<u32> =
            order.into_iter().filter(|unit| !self.taken[*unit as usize]).take(count as usize).collect();
        for unit in &units {
            self.taken[*unit as usize] = true;
        }
        Ok(units)
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
    fn too_many_threads_are_refused_and_none_is_lost() {
        let mut units = Units::new();
        let text = units.take(190, ThreadPlacement::Compact).unwrap_err().to_string();
        assert!(text.contains("190") && text.contains("189") && text.contains("fewer"), "{text}");
        assert_eq!(units.take(189, ThreadPlacement::Spread).unwrap().len(), 189);
        assert!(units.take(1, ThreadPlacement::Compact).is_err());
    }
}
