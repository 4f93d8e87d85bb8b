//! Votes: lists of block indices that ascend, with a sentinel behind the last. [`dpa::proto::sparse::Votes`] does the
//! same for hosts; its lists are values, which are copied, and a message would cost five times as many instructions,
//! its blocks not counted.
//!
//! How many blocks a shard has is not known here: an index leads nowhere, and workers refuse answers with one that they
//! do not have.

use dpa::abi::{SPARSE_BLOCKS, SparseInstanceState, SparseStatus};
use dpa::proto::sparse::SENTINEL;

use super::Fault;

type List = [u32; SPARSE_BLOCKS];

/// A message's votes, checked as they are read: each is behind the one before it, the first behind the global ones.
struct Ascending<V> {
    votes: V,
    /// The least that the next one may be.
    floor: u64,
    /// The same of the first.
    global: u64,
}

impl<V: Iterator<Item = u32>> Ascending<V> {
    /// The next one; sentinels behind the last.
    #[inline(always)]
    fn next(&mut self) -> Result<u32, Fault> {
        self.read().unwrap_or(Ok(SENTINEL))
    }

    #[inline(always)]
    fn read(&mut self) -> Option<Result<u32, Fault>> {
        let index = self.votes.next()?;
        let next = u64::from(index) + 1;
        if next <= self.floor && index != SENTINEL {
            return Some(Err(self.refused(index)));
        }
        self.floor = next;
        Some(Ok(index))
    }

    #[cold]
    fn refused(&self, index: u32) -> Fault {
        let status = if self.floor == self.global { SparseStatus::Behind } else { SparseStatus::Order };
        Fault::new(status, index, self.floor - 1)
    }
}

/// Takes a message's votes in. There must be none once a list of global indices was not full.
#[inline(always)]
pub(super) fn take(state: &mut SparseInstanceState, width: u32, votes: impl Iterator<Item = u32>) -> Result<(), Fault> {
    let [even, odd] = &mut state.lists;
    let (top, other) = if state.list == 0 { (even, odd) } else { (odd, even) };
    let mut votes = Ascending { votes, floor: state.floor, global: state.floor };
    if state.arrived == 0 {
        for place in top.iter_mut().take(width as usize) {
            *place = votes.next()?;
        }
    } else {
        merge(other, top, width as usize, votes)?;
        state.list ^= 1;
    }
    let first = state.lists[state.list as usize & 1][0];
    if state.blocks != 0 && state.blocks != width && first != SENTINEL {
        return Err(Fault::new(SparseStatus::AfterEnd, first, state.blocks));
    }
    Ok(())
}

/// The `width` smallest of a list and votes, each once.
#[inline(always)]
fn merge(
    merged: &mut List,
    top: &List,
    width: usize,
    mut votes: Ascending<impl Iterator<Item = u32>>,
) -> Result<(), Fault> {
    let mut best = top.iter().take(width);
    let mut next_best = || best.next().copied().unwrap_or(SENTINEL);
    let (mut own, mut vote) = (next_best(), votes.next()?);
    for place in merged.iter_mut().take(width) {
        if own < vote {
            *place = own;
            own = next_best();
        } else if vote < own {
            *place = vote;
            vote = votes.next()?;
        } else {
            *place = vote;
            own = next_best();
            vote = votes.next()?;
        }
    }
    while let Some(vote) = votes.read() {
        vote?;
    }
    Ok(())
}
