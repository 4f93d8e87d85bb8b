//! Accesses of DPA threads by the level of memory that served them, and by what they went to; timing models count them.

use std::collections::BTreeMap;
use std::fmt;

use derive_more::{AddAssign, Sub};
use emu_machine::timing::cache::LINE_BYTES;
use emu_machine::timing::{Counts, unit};
use emu_machine::{MachineError, with_world};
use serde::Serialize;

/// Name of what no range has been named for: stacks, globals, code.
const OTHER: &str = "other";

/// A part of the DPA memory of a process, named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// What lies there.
    pub name: &'static str,
    /// First address.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
}

/// Counts accesses to these parts of the memory of each card's youngest process by their names from now on, too.
/// Nothing changes with the simple cost model.
///
/// # Errors
/// There is no machine.
pub fn label(ranges: &[Range]) -> Result<(), MachineError> {
    with_world(|world| {
        for card in 0..world.card_count() {
            let Ok(card) = world.card(card) else { continue };
            let Some(process) = card.processes.keys().next_back().copied() else { continue };
            for Range { name, addr, len } in ranges {
                card.label_range(process, *addr, *len, name);
            }
        }
    })
}

/// Accesses by the level that served them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, AddAssign, Sub)]
pub struct Levels(Numbers);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, AddAssign, Sub, Serialize)]
struct Numbers {
    l1: u64,
    l2: u64,
    l3: u64,
    dpa_memory: u64,
    window: u64,
    store_hits: u64,
    store_new_lines: u64,
    stores_beyond_l2: u64,
    code_misses: u64,
    /// In units of time, of which sums are exact.
    #[serde(skip)]
    waited: u64,
}

impl Levels {
    /// Loads that hit the thread's L1.
    #[must_use]
    pub const fn l1(&self) -> u64 {
        self.0.l1
    }

    /// Loads, atomic operations and lines of code beyond L1, that L2, L3 and the DPA's memory served.
    #[must_use]
    pub const fn beyond_l1(&self) -> [u64; 3] {
        [self.0.l2, self.0.l3, self.0.dpa_memory]
    }

    /// Bytes of the lines that threads loaded or stored and that L2 did not have.
    #[must_use]
    pub const fn bytes_beyond_l2(&self) -> u64 {
        (self.0.l3 + self.0.dpa_memory + self.0.stores_beyond_l2) * LINE_BYTES
    }

    /// Cycles that threads waited for shared paths.
    #[must_use]
    pub const fn waited_cycles(&self) -> u64 {
        unit::to_cycles(self.0.waited)
    }

    /// Of what was beyond L1 and not behind a window, the share that L2 or L3 had; `None` if there was nothing.
    #[must_use]
    pub fn llc_hit_rate(&self) -> Option<f64> {
        let Numbers { l2, l3, dpa_memory, .. } = self.0;
        let all = l2 + l3 + dpa_memory;
        (all > 0).then(|| (l2 + l3) as f64 / all as f64)
    }
}

impl From<Counts> for Levels {
    fn from(counts: Counts) -> Self {
        let Counts {
            l1,
            l2,
            l3,
            dpa_memory,
            window,
            store_hits,
            store_new_lines,
            stores_beyond_l2,
            code_misses,
            waited,
        } = counts;
        Self(Numbers {
            l1,
            l2,
            l3,
            dpa_memory,
            window,
            store_hits,
            store_new_lines,
            stores_beyond_l2,
            code_misses,
            waited,
        })
    }
}

impl Serialize for Levels {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Shown {
            #[serde(flatten)]
            numbers: Numbers,
            waited_cycles: u64,
            llc_hit_rate: Option<f64>,
        }
        Shown { numbers: self.0, waited_cycles: self.waited_cycles(), llc_hit_rate: self.llc_hit_rate() }
            .serialize(serializer)
    }
}

/// Accesses of all cards' threads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Accesses {
    /// All.
    #[serde(flatten)]
    pub all: Levels,
    /// By what they went to, where that is known.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub by: BTreeMap<String, Levels>,
}

impl Accesses {
    /// Those of the calling thread's machine so far; `None` with the simple cost model, which has no levels.
    ///
    /// # Errors
    /// There is no machine.
    pub fn now() -> Result<Option<Self>, MachineError> {
        with_world(|world| {
            let mut sum: Option<Self> = None;
            for card in 0..world.card_count() {
                let card = world.card(card)?;
                let Some(counts) = card.access_counts() else { continue };
                let sum = sum.get_or_insert_default();
                sum.all += counts.into();
                for (name, counts) in card.labelled_access_counts() {
                    *sum.by.entry(name.to_owned()).or_default() += counts.into();
                }
            }
            if let Some(Self { all, by }) = sum.as_mut().filter(|sum| !sum.by.is_empty()) {
                let other = by.values().fold(*all, |rest, levels| rest - *levels);
                by.insert(OTHER.to_owned(), other);
            }
            Ok(sum)
        })?
    }

    /// What has been added since `before`, added to a sum.
    ///
    /// # Errors
    /// There is no machine.
    pub fn add_since(sum: &mut Option<Self>, before: Option<&Self>) -> Result<(), MachineError> {
        let (Some(now), Some(before)) = (Self::now()?, before) else { return Ok(()) };
        let sum = sum.get_or_insert_default();
        sum.all += now.all - before.all;
        for (name, levels) in now.by {
            let earlier = before.by.get(&name).copied().unwrap_or_default();
            *sum.by.entry(name).or_default() += levels - earlier;
        }
        Ok(())
    }
}

impl fmt::Display for Accesses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Numbers { l1, l2, l3, dpa_memory, window, .. } = self.all.0;
        write!(f, "loads: {l1} L1, {l2} L2, {l3} L3, {dpa_memory} DPA memory, {window} windows")?;
        if let Some(rate) = self.all.llc_hit_rate() {
            write!(f, "; beyond L1 {:.2} % hit L2 or L3", 100.0 * rate)?;
        }
        for (name, levels) in &self.by {
            if let Some(rate) = levels.llc_hit_rate() {
                write!(f, ", {name} {:.2} %", 100.0 * rate)?;
            }
        }
        Ok(())
    }
}
