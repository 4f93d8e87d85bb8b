//! The k-nomial tree: a rank's parent has its number with the lowest digit that is not 0, in base k, made 0. Binomial
//! for k = 2, flat for k = P. ⌈logk P⌉ levels.

/// The lowest digit of `rank` that is not 0, and its weight; the weight beyond all ranks for rank 0.
fn lowest_digit(rank: u32, radix: u32, ranks: u32) -> (u64, u64) {
    let (rank, radix) = (u64::from(rank), u64::from(radix));
    let mut weight = 1;
    while weight < u64::from(ranks) && rank / weight % radix == 0 {
        weight *= radix;
    }
    (rank / weight % radix, weight)
}

pub(super) fn parent(rank: u32, radix: u32, ranks: u32) -> Option<u32> {
    let (digit, weight) = lowest_digit(rank, radix, ranks);
    (rank != 0).then(|| rank - (digit * weight) as u32)
}

/// Child number `index`, largest subtrees first.
pub(super) fn child(rank: u32, mut index: u32, radix: u32, ranks: u32) -> Option<u32> {
    let (_, mut weight) = lowest_digit(rank, radix, ranks);
    while weight > 1 {
        weight /= u64::from(radix);
        let children = (u64::from(ranks - 1 - rank) / weight).min(u64::from(radix) - 1) as u32;
        if index < children {
            return Some(rank + (index + 1) * weight as u32);
        }
        index -= children;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn children(rank: u32, radix: u32, ranks: u32) -> Vec<u32> {
        (0..).map_while(|index| child(rank, index, radix, ranks)).collect()
    }

    #[test]
    fn known_trees() {
        assert_eq!(children(0, 2, 8), [4, 2, 1]);
        assert_eq!(children(4, 2, 8), [6, 5]);
        assert_eq!(children(0, 2, 6), [4, 2, 1]);
        assert_eq!(children(4, 2, 6), [5]);
        assert_eq!(children(0, 4, 20), [16, 4, 8, 12, 1, 2, 3]);
        assert_eq!(children(16, 4, 20), [17, 18, 19]);
        assert_eq!(children(0, 9, 9), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(children(0, 1024, 3), [1, 2]);
        assert_eq!((parent(0, 2, 8), parent(6, 2, 8), parent(13, 4, 20)), (None, Some(4), Some(12)));
    }
}
