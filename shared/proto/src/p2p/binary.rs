//! Binary trees: heap-shaped and in-order. Both have about log2 P levels; they differ in who is near whom.

/// The heap: children of v are 2v + 1 and 2v + 2. Neighbours by rank are far from each other in the tree, so that
/// nearly every message crosses the fabric when ranks are placed in order.
pub(super) mod heap {
    pub(in super::super) fn parent(rank: u32) -> Option<u32> {
        rank.checked_sub(1).map(|before| before / 2)
    }

    pub(in super::super) fn child(rank: u32, index: u32, ranks: u32) -> Option<u32> {
        let child = 2 * rank + 1 + index;
        (index < 2 && child < ranks).then_some(child)
    }
}

/// In-order: what is below a rank on its left has lower numbers, on its right higher ones, so that subtrees are
/// contiguous ranks. The shape is that of NCCL's trees, and is read off the bits: a rank whose lowest set bit is b is
/// at height log2 b, between its children at distance b / 2; rank 0 is above the root of this tree and has that as its
/// one child.
pub(super) mod in_order {
    pub(in super::super) fn parent(rank: u32, ranks: u32) -> Option<u32> {
        let bit = rank & rank.wrapping_neg();
        let above = (rank ^ bit) | bit << 1;
        (rank != 0).then_some(if above < ranks { above } else { rank ^ bit })
    }

    pub(in super::super) fn child(rank: u32, index: u32, ranks: u32) -> Option<u32> {
        if rank == 0 {
            return (index == 0 && ranks > 1).then(|| ranks.next_power_of_two() / 2);
        }
        let mut distance = (rank & rank.wrapping_neg()) / 2;
        let left = rank - distance;
        // A right child that is not there is replaced by the root of what is there of its subtree.
        while distance > 0 && rank + distance >= ranks {
            distance /= 2;
        }
        let right = (distance > 0).then_some(rank + distance);
        match index {
            0 => (left != rank).then_some(left),
            1 => right,
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn known_trees() {
        let heap = |rank, ranks| (0..3).filter_map(|index| heap::child(rank, index, ranks)).collect::<Vec<_>>();
        assert_eq!((heap(0, 6), heap(2, 6), heap(3, 6)), (std::vec![1, 2], std::vec![5], std::vec![]));
        let in_order = |rank, ranks| (0..3).filter_map(|index| in_order::child(rank, index, ranks)).collect::<Vec<_>>();
        assert_eq!(in_order(0, 8), [4]);
        assert_eq!(in_order(4, 8), [2, 6]);
        assert_eq!(in_order(4, 6), [2, 5]);
        assert_eq!(in_order(0, 5), [4]);
        assert_eq!(in_order(4, 5), [2]);
        assert!(in_order(0, 1).is_empty());
    }

    /// In-order: everything below a rank on its left is lower, on its right higher, and both sides are contiguous with
    /// it.
    #[test]
    fn subtrees_of_the_in_order_tree_are_contiguous() {
        fn covered(rank: u32, ranks: u32) -> (u32, u32) {
            let mut range = (rank, rank + 1);
            for below in (0..2).filter_map(|index| in_order::child(rank, index, ranks)) {
                let (low, high) = covered(below, ranks);
                assert!(high == range.0 || low == range.1, "{rank} of {ranks}: {low}..{high} next to {range:?}");
                range = (range.0.min(low), range.1.max(high));
            }
            range
        }
        for ranks in 1..=if cfg!(miri) { 20 } else { 300 } {
            assert_eq!(covered(0, ranks), (0, ranks));
        }
    }
}
