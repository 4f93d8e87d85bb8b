//! Index from memory to the queue pairs that have ever named it: of all queue pairs an access concerns a few.

use std::collections::{BTreeMap, BTreeSet};

use emu_nic::Space;

use super::Range;
use super::posted::Posted;

/// Bytes of memory that share an entry: a power of two, 2^12.
const LOG_PAGE: u32 = 12;
/// A range of more pages than this is not noted page by page.
const MOST_PAGES: u64 = 64;

/// A queue pair: its card and number.
pub(super) type QueueId = (usize, u32);
/// A memory: its card, 0 for that of the host, which is one for all cards.
pub(super) type Memory = (usize, Space);

pub(super) fn memory(range: &Range) -> Memory {
    (if range.space == Space::Host { 0 } else { range.card }, range.space)
}

/// First and last page of a range; `None` for one without bytes.
fn pages(range: &Range) -> Option<(u64, u64)> {
    let last = range.addr.saturating_add(range.len.checked_sub(1)?);
    Some((range.addr >> LOG_PAGE, last >> LOG_PAGE))
}

/// Queue pairs by the pages that their entries have named. It forgets nothing but queue pairs as a whole.
#[derive(Debug, Default)]
pub(super) struct Reach {
    pages: BTreeMap<(Memory, u64), BTreeSet<QueueId>>,
    /// Queue pairs with ranges of many pages.
    wide: BTreeMap<Memory, BTreeSet<QueueId>>,
}

impl Reach {
    /// A queue pair has posted an entry.
    pub(super) fn add(&mut self, queue: QueueId, posted: &Posted) {
        for range in posted.entry.iter().chain(&posted.reads).chain(&posted.writes) {
            let Some((first, last)) = pages(range) else { continue };
            let memory = memory(range);
            if last - first >= MOST_PAGES {
                self.wide.entry(memory).or_default().insert(queue);
                continue;
            }
            for page in first..=last {
                self.pages.entry((memory, page)).or_default().insert(queue);
            }
        }
    }

    /// All queue pairs that may have named something of a range, in order.
    pub(super) fn of(&self, range: &Range) -> BTreeSet<QueueId> {
        let Some((first, last)) = pages(range) else { return BTreeSet::new() };
        let memory = memory(range);
        let mut found = self.wide.get(&memory).cloned().unwrap_or_default();
        for (_, queues) in self.pages.range((memory, first)..=(memory, last)) {
            found.extend(queues);
        }
        found
    }

    /// Forgets all queue pairs but these.
    pub(super) fn retain(&mut self, keep: impl Fn(&QueueId) -> bool) {
        let prune = |queues: &mut BTreeSet<QueueId>| {
            queues.retain(&keep);
            !queues.is_empty()
        };
        self.pages.retain(|_, queues| prune(queues));
        self.wide.retain(|_, queues| prune(queues));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LARGE: u64 = (MOST_PAGES + 3) << LOG_PAGE;

    fn range() -> impl Strategy<Value = Range> {
        let space = prop_oneof![Just(Space::Host), Just(Space::Dpa(1)), Just(Space::Dpa(2))];
        let len = prop_oneof![0..200_u64, 4000..9000_u64, LARGE..2 * LARGE];
        (0..3_usize, space, 0..1_u64 << 20, len).prop_map(|(card, space, addr, len)| Range { card, space, addr, len })
    }

    proptest! {
        #[test]
        fn whoever_has_named_a_byte_is_found(posts in prop::collection::vec((0..3_usize, 0..9_u32, range()), 0..40), access in range()) {
            let mut reach = Reach::default();
            for &(card, qpn, range) in &posts {
                reach.add((card, qpn), &Posted { reads: vec![range], ..Posted::default() });
            }
            let found = reach.of(&access);
            for (card, qpn, _) in posts.iter().filter(|(.., range)| range.len > 0 && access.len > 0 && range.overlaps(&access)) {
                prop_assert!(found.contains(&(*card, *qpn)), "({card}, {qpn}) is not in {found:?}");
            }
            reach.retain(|&(card, _)| card == 1);
            let kept: Vec<_> = found.into_iter().filter(|&(card, _)| card == 1).collect();
            prop_assert_eq!(kept, reach.of(&access).into_iter().collect::<Vec<_>>());
        }
    }

    /// What an access costs does not grow with the queue pairs of other cards, processes and pages.
    #[test]
    fn nobody_else_is_checked() {
        let mut reach = Reach::default();
        let slot = |card, space, addr| Range { card, space, addr, len: 64 };
        for card in 0..50 {
            for qpn in 0..50 {
                let entry = vec![slot(card, Space::Dpa(1), u64::from(qpn) << 13)];
                reach.add((card, qpn), &Posted { entry, ..Posted::default() });
            }
        }
        assert_eq!(reach.of(&slot(7, Space::Dpa(1), (3 << 13) + 100)).into_iter().collect::<Vec<_>>(), [(7, 3)]);
        assert!(reach.of(&slot(7, Space::Dpa(1), (3 << 13) + 4096)).is_empty(), "the page after it");
        assert!(reach.of(&slot(7, Space::Dpa(2), 3 << 13)).is_empty(), "another process");
        // Host memory is one for all cards.
        reach.add((7, 1), &Posted { reads: vec![slot(7, Space::Host, 0)], ..Posted::default() });
        assert_eq!(reach.of(&slot(2, Space::Host, 5)).len(), 1);
    }
}
