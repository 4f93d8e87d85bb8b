//! Collective ids are few and come round again: an id must not be used while a packet of its last use may still arrive.
//!
//! Ids count up and wrap. Remembering when each was last used would take a clock value per id; four are enough: the ids
//! form four quarters, and the last release in a quarter stands for all of its ids. Entering a quarter again is allowed
//! when that release is one packet lifetime ago. With fewer than four ids every id is a quarter.
//!
//! Being released oneself does not mean that nobody sends: with three ranks or more, two of them may have fetched the
//! third one's block round the ring and be done before it has multicast. But it is done with that before it enters the
//! next barrier. So the release of the *next* operation, which is after that barrier, is when an id begins to rest;
//! `tests/reuse.rs` finds the packet that is taken for another operation's otherwise.
//!
//! One [`CollectiveIds`] belongs to one communicator, whose operations follow one another: [`CollectiveIds::take`] when
//! an operation is posted, [`CollectiveIds::release`] when it is released, with the clock of this rank alone. All ranks
//! do the same in the same order, so that they have the same ids. Communicators whose data travels through the same
//! multicast group must not have an id in common: [`CollectiveIds::shared`].

use thiserror::Error;

use crate::immediate::ImmediateLayout;

const QUARTERS: u64 = 4;

/// The id is not free yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "collective id {id} was last used {ago_ps} ps ago, but packets may live for {lifetime_ps} ps: wait until {free_ps} \
     ps, or leave more bits to the id"
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
    /// The first id of the share, and how many there are.
    first: u32,
    ids: u64,
    /// Of the ids of the share, counted from 0.
    next: u32,
    lifetime_ps: u64,
    /// Last release in each quarter; none before the first.
    released_ps: [Option<u64>; QUARTERS as usize],
    /// Ids handed out and not released, in each quarter.
    busy: [u32; QUARTERS as usize],
    /// The id that was released last: packets of it may still be sent.
    last: Option<u32>,
}

/// An id field that cannot be shared like this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ShareError {
    /// No such share.
    #[error("share {share} of {shares}: shares run from 0 to {shares} less one")]
    Share {
        /// What was given.
        share: u32,
        /// The shares.
        shares: u32,
    },
    /// Less than two ids each: the next operation needs another one while packets of the last may still be sent.
    #[error(
        "{shares} communicators share {ids} collective ids, but each needs two: give them multicast groups of their \
         own, or leave more bits to the id"
    )]
    TooMany {
        /// The shares.
        shares: u32,
        /// The ids.
        ids: u64,
    },
}

impl CollectiveIds {
    /// All ids of a layout, for packets that live at most `lifetime_ps`.
    #[must_use]
    pub const fn new(layout: ImmediateLayout, lifetime_ps: u64) -> Self {
        Self::of(0, layout.id_count(), lifetime_ps)
    }

    /// Every `shares`th part of the ids, for one of so many communicators that use the same multicast groups.
    ///
    /// # Errors
    /// No such share, or less than two ids in it.
    pub const fn shared(
        layout: ImmediateLayout,
        share: u32,
        shares: u32,
        lifetime_ps: u64,
    ) -> Result<Self, ShareError> {
        if share >= shares {
            return Err(ShareError::Share { share, shares });
        }
        let ids = layout.id_count() / shares as u64;
        if ids < 2 {
            return Err(ShareError::TooMany { shares, ids: layout.id_count() });
        }
        Ok(Self::of((share as u64 * ids) as u32, ids, lifetime_ps))
    }

    const fn of(first: u32, ids: u64, lifetime_ps: u64) -> Self {
        Self { first, ids, next: 0, lifetime_ps, released_ps: [None; 4], busy: [0; 4], last: None }
    }

    /// Of an id of the share, counted from 0.
    fn quarter(&self, id: u32) -> usize {
        // Rounding up makes the last quarter the shortest, and an id of its own where there are fewer than four.
        (u64::from(id) / self.ids.div_ceil(QUARTERS)) as usize
    }

    /// The next id, at time `now_ps`.
    ///
    /// # Errors
    /// A packet of an earlier use may still arrive, or one of its quarter is still in use after the ids have come
    /// round.
    pub fn take(&mut self, now_ps: u64) -> Result<u32, IdInUse> {
        self.check(now_ps)?;
        let id = self.next;
        let quarter = self.quarter(id);
        self.busy[quarter] += 1;
        self.next = ((u64::from(id) + 1) % self.ids) as u32;
        Ok(self.first + id)
    }

    /// Whether [`CollectiveIds::take`] would give an id at time `now_ps`. Takes none.
    ///
    /// # Errors
    /// As [`CollectiveIds::take`].
    pub fn check(&self, now_ps: u64) -> Result<(), IdInUse> {
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
                    let id = self.first + id;
                    return Err(IdInUse { id, ago_ps, lifetime_ps: self.lifetime_ps, free_ps });
                }
            }
        }
        Ok(())
    }

    /// The operation with this id is released here at time `now_ps`. No rank sends packets of the one before it any
    /// more, whose id rests from now on. An id that is none of the share's changes nothing.
    pub fn release(&mut self, id: u32, now_ps: u64) {
        let Some(id) = id.checked_sub(self.first).filter(|id| u64::from(*id) < self.ids) else { return };
        if let Some(before) = self.last.replace(id) {
            let quarter = self.quarter(before);
            self.busy[quarter] = self.busy[quarter].saturating_sub(1);
            self.released_ps[quarter] = self.released_ps[quarter].max(Some(now_ps));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_takes_no_id() {
        let mut ids = CollectiveIds::of(0, 4, 100);
        for id in 0..4 {
            assert_eq!([ids.check(0), ids.check(0)], [Ok(()); 2]);
            assert_eq!(ids.take(0), Ok(id));
        }
        let refused = ids.check(0).expect_err("all are in use");
        assert_eq!(ids.take(0), Err(refused));
    }
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn an_id_rests_for_the_lifetime_of_packets() {
        for psn_bits in if cfg!(miri) { [31, 30, 29, 28] } else { [31, 30, 29, 22] } {
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
    fn an_id_is_in_use_until_the_next_is_released() {
        let mut ids = CollectiveIds::new(ImmediateLayout::new(31).unwrap(), 0);
        assert_eq!((ids.take(0), ids.take(0)), (Ok(0), Ok(1)));
        assert!(ids.take(1 << 60).is_err());
        ids.release(0, 7);
        assert!(ids.take(1 << 60).is_err());
        ids.release(1, 8);
        assert_eq!(ids.take(8), Ok(0));
        assert!(ids.take(1 << 60).is_err(), "the last one's packets may still be sent");
        ids.release(77, 9);
        assert!(ids.take(1 << 60).is_err(), "there is no such id");
    }

    #[test]
    #[cfg_attr(miri, ignore = "a thousand numbers are taken three thousand times")]
    fn shares_have_no_id_in_common() {
        let layout = ImmediateLayout::new(22).unwrap();
        for shares in [1, 2, 3, 7, 64, 512] {
            let mut all = BTreeMap::new();
            for share in 0..shares {
                let mut ids = CollectiveIds::shared(layout, share, shares, 0).unwrap();
                let mut own = BTreeMap::new();
                for time in 0..3000 {
                    let id = ids.take(time).unwrap();
                    assert!(u64::from(id) < layout.id_count());
                    own.insert(id, share);
                    ids.release(id, time);
                }
                assert_eq!(own.len() as u64, layout.id_count() / u64::from(shares), "all of its ids are used");
                own.into_iter().for_each(|(id, share)| assert_eq!(all.insert(id, share), None));
            }
        }
        assert_eq!(CollectiveIds::shared(layout, 3, 3, 0), Err(ShareError::Share { share: 3, shares: 3 }));
        let error = CollectiveIds::shared(layout, 0, 513, 0).unwrap_err();
        assert_eq!(error, ShareError::TooMany { shares: 513, ids: 1024 });
    }

    proptest! {
        /// However operations come and go, no id is handed out within a lifetime of the release of the one after it,
        /// and none while in use.
        #[test]
        fn never_too_early(psn_bits in 26u32..=31, shares in 1u32..4, lifetime in 0u64..5000, steps in proptest::collection::vec((0u64..400, 0u8..3), 1..if cfg!(miri) { 60 } else { 600 })) {
            let layout = ImmediateLayout::new(psn_bits).unwrap();
            let Ok(mut ids) = CollectiveIds::shared(layout, shares - 1, shares, lifetime) else { return Ok(()) };
            let (mut now, mut open, mut rests) = (0, std::collections::VecDeque::new(), BTreeMap::<u32, u64>::new());
            let mut last = None;
            for (pause, what) in steps {
                now += pause;
                if what > 0 {
                    if let Ok(id) = ids.take(now) {
                        prop_assert!(!open.contains(&id) && last != Some(id), "id {} is in use", id);
                        if let Some(since) = rests.get(&id) {
                            prop_assert!(now >= since + lifetime);
                        }
                        open.push_back(id);
                    }
                } else if let Some(id) = open.pop_front() {
                    ids.release(id, now);
                    rests.extend(last.replace(id).map(|before| (before, now)));
                }
            }
        }
    }
}
