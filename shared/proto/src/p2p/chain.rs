//! The chain: each rank passes segments on to the next. Only segments make it fast: P - 1 hops, which they share as in
//! a pipeline.

pub(super) fn parent(rank: u32) -> Option<u32> {
    rank.checked_sub(1)
}

pub(super) fn child(rank: u32, index: u32, ranks: u32) -> Option<u32> {
    (index == 0 && rank + 1 < ranks).then_some(rank + 1)
}
