//! Collective ids are few and come round again: an id must not be used while a packet of its last use may still arrive.
//!
//! Ids count up and wrap. Remembering when each was last used would take a clock value per id; four are enough: the ids form four
//! quarters, and the last release in a quarter stands for all of its ids. Entering a quarter again is allowed when that release
//! is one packet lifetime ago. With fewer than four ids every id is a quarter.

use thiserror::Error;

use crate::immediate::ImmediateLayout;

const QUARTERS: u64 = 4;

/// The id is not free yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "collective id {id} was last used {ago_ps} ps ago, but packets may live for {lifetime_ps} ps: wait until {free_ps} ps, or leave \
     more bits to the id"
)]
pub struct IdInUse {
    /// The id.
    pub id: u32,
    /// Time since the last release in its quarter.
    pub ago_ps: u64,
    /// Longest life of a packet.
    pub lifetime_ps: u64,
    /// When the id is free.
    pub free_ps: u64,
}

/// Hands out a communicator's collective ids, one operation after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CollectiveIds {
    ids: u64,
    next: u32,
    lifetime_ps: u64,
    /// Last release in each quarter; none before the first.
    released_ps: [Option<u64>; QUARTERS as usize],
    /// Ids handed out and not released, in each quarter.
    busy: [u32; QUARTERS as usize],
}

impl CollectiveIds {
    /// All ids of a layout, for packets that live at most `lifetime_ps`.
    #[must_use]
    pub const fn new(layout: ImmediateLayout, lifetime_ps: u64) -> Self {
        Self { ids: layout.id_count(), next: 0, lifetime_ps, released_ps: [None; 4], busy: [0; 4] }
    }

    fn quarter(&self, id: u32) -> usize {
        // Rounding up makes the last quarter the shortest, and an id of its own where there are fewer than four.
        (u64::from(id) / self.ids.div_ceil(QUARTERS)) as usize
    }

    /// The next id, at time `now_ps`.
    ///
    /// # Errors
    /// A packet of an earlier use may still arrive, or one of its quarter is still in use after the ids have come round.
    pub fn take(&mut self, now_ps: u64) -> Result<u32, IdInUse> {
        let id = self.next;
        let quarter = self.quarter(id);
        let begins = id == 0 || self.quarter(id - 1) != quarter;
        if begins {
            // Busy ones count as released now.
            let released_ps = if self.busy[quarter] > 0 { Some(now_ps) } else { self.released_ps[quarter] };
            if let Some(released_ps) = released_ps {
                let free_ps = released_ps.saturating_add(self.lifetime_ps);
                if now_ps < free_ps || self.busy[quarter] > 0 {
                    let ago_ps = now_ps.saturating_sub(released_ps);
                    return Err(IdInUse { id, ago_ps, lifetime_ps: self.lifetime_ps, free_ps });
                }
            }
        }
        self.busy[quarter] += 1;
        self.next = ((u64::from(id) + 1) % self.ids) as u32;
        Ok(id)
    }

    /// The operation with this id is released at time `now_ps`: no rank sends packets of it any more.
    pub fn release(&mut self, id: u32, now_ps: u64) {
        let quarter = self.quarter(id);
        self.busy[quarter] = self.busy[quarter].saturating_sub(1);
        self.released_ps[quarter] = self.released_ps[quarter].max(Some(now_ps));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn an_id_rests_for_the_lifetime_of_packets() {
        for psn_bits in [31, 30, 29, 22] {
            let layout = ImmediateLayout::new(psn_bits).unwrap();
            let mut ids = CollectiveIds::new(layout, 1000);
            for id in 0..layout.id_count() as u32 {
                assert_eq!(ids.take(0), Ok(id));
                ids.release(id, 0);
            }
            let error = ids.take(999).unwrap_err();
            assert_eq!((error.id, error.ago_ps, error.free_ps), (0, 999, 1000));
            assert_eq!(ids.take(1000), Ok(0));
        }
    }

    #[test]
    fn an_id_in_use_is_not_given_again() {
        let mut ids = CollectiveIds::new(ImmediateLayout::new(31).unwrap(), 0);
        assert_eq!((ids.take(0), ids.take(0)), (Ok(0), Ok(1)));
        assert!(ids.take(1 << 60).is_err());
        ids.release(0, 7);
        assert_eq!(ids.take(8), Ok(0));
    }

    proptest! {
        /// However operations come and go, no id is handed out within a lifetime of its release, and none while in use.
        #[test]
        fn never_too_early(psn_bits in 26u32..=31, lifetime in 0u64..5000, steps in proptest::collection::vec((0u64..400, 0u8..3), 1..600)) {
            let mut ids = CollectiveIds::new(ImmediateLayout::new(psn_bits).unwrap(), lifetime);
            let (mut now, mut open, mut last) = (0, std::collections::VecDeque::new(), BTreeMap::<u32, u64>::new());
            for (pause, what) in steps {
                now += pause;
                if what > 0 {
                    if let Ok(id) = ids.take(now) {
                        prop_assert!(!open.contains(&id), "id {} is in use", id);
                        if let Some(released) = last.get(&id) {
                            prop_assert!(now >= released + lifetime);
                        }
                        open.push_back(id);
                    }
                } else if let Some(id) = open.pop_front() {
                    ids.release(id, now);
                    last.insert(id, now);
                }
            }
        }
    }
}
