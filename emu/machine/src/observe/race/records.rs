//! Index of doorbell records: where those of all queue pairs lie, and which have been touched.

use std::collections::BTreeSet;

use emu_nic::QueueMemory;

use super::Range;
use super::reach::{Memory, QueueId, memory};

/// Bytes of a queue pair's record: receive word, send word.
const RECORD_BYTES: u64 = 8;

/// Doorbell records.
#[derive(Debug, Default)]
pub(crate) struct Records {
    /// Memory, address, and whose it is.
    places: BTreeSet<(Memory, u64, QueueId)>,
    /// Writes and reads of records that have not been examined yet, with their times in picoseconds.
    touched: Vec<(Range, u64)>,
}

impl Records {
    pub(super) fn add(&mut self, card: usize, record: QueueMemory, qpn: u32) {
        let range = Range { card, space: record.space, addr: record.addr, len: RECORD_BYTES };
        self.places.insert((memory(&range), record.addr, (card, qpn)));
    }

    /// Forgets all queue pairs but these.
    pub(super) fn retain(&mut self, keep: impl Fn(&QueueId) -> bool) {
        self.places.retain(|(.., id)| keep(id));
    }

    /// Queue pairs of whose records a range has a byte.
    pub(super) fn touched_by(&self, range: &Range) -> BTreeSet<QueueId> {
        let memory = memory(range);
        let Some(last) = range.len.checked_sub(1).map(|more| range.addr.saturating_add(more)) else {
            return BTreeSet::new();
        };
        let first = (memory, range.addr.saturating_sub(RECORD_BYTES - 1), (0, 0));
        self.places.range(first..=(memory, last, (usize::MAX, u32::MAX))).map(|&(.., id)| id).collect()
    }

    /// Notes an access while the card, whose keys show what entries name, is at work.
    pub(crate) fn touch(&mut self, range: Range, at_ps: u64) {
        if !self.touched_by(&range).is_empty() {
            self.touched.push((range, at_ps));
        }
    }

    /// Whether there is anything to examine.
    pub(crate) fn is_touched(&self) -> bool {
        !self.touched.is_empty()
    }

    /// What is to be examined, each with the cards whose queue pairs it concerns.
    pub(crate) fn take_touched(&mut self) -> Vec<(Range, u64, BTreeSet<usize>)> {
        let touched = std::mem::take(&mut self.touched);
        let cards = |range: &Range| self.touched_by(range).into_iter().map(|(card, _)| card).collect();
        touched.into_iter().map(|(range, at_ps)| (range, at_ps, cards(&range))).collect()
    }
}

#[cfg(test)]
mod tests {
    use emu_nic::Space;

    use super::*;

    #[test]
    fn records_are_found_by_any_of_their_bytes() {
        let mut records = Records::default();
        records.add(2, QueueMemory { space: Space::Dpa(1), addr: 0x1000 }, 7);
        records.add(3, QueueMemory { space: Space::Host, addr: 0x1000 }, 8);
        let touched = |card, space, addr, len| {
            records.touched_by(&Range { card, space, addr, len }).into_iter().collect::<Vec<_>>()
        };
        assert_eq!(touched(2, Space::Dpa(1), 0x1007, 1), [(2, 7)]);
        assert_eq!(touched(2, Space::Dpa(1), 0xF00, 0x101), [(2, 7)]);
        for (card, addr, len) in [(2, 0xF00, 0x100), (2, 0x1008, 8), (2, 0x1000, 0), (1, 0x1000, 8)] {
            assert_eq!(touched(card, Space::Dpa(1), addr, len), [], "card {card}, {len} bytes at {addr:#x}");
        }
        // Host memory is one for all cards.
        assert_eq!(touched(0, Space::Host, 0x1004, 4), [(3, 8)]);
        records.touch(Range { card: 0, space: Space::Host, addr: 0x1000, len: 4 }, 5);
        records.touch(Range { card: 0, space: Space::Host, addr: 0x2000, len: 4 }, 6);
        let taken = records.take_touched();
        assert_eq!(taken.iter().map(|(.., at_ps, cards)| (*at_ps, cards.len())).collect::<Vec<_>>(), [(5, 1)]);
        assert!(!records.is_touched());
        records.retain(|id| *id != (3, 8));
        assert!(records.touched_by(&Range { card: 3, space: Space::Host, addr: 0x1000, len: 4 }).is_empty());
    }
}
