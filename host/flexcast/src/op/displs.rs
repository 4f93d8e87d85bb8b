//! Displacements of an Allgatherv: the places of blocks in the receive buffer, where the caller gives them.

use crate::op::lists::{List, ListPool};

/// Ranks of two blocks that have bytes in common, first the one that begins first. Blocks of no bytes lie nowhere; none
/// ends beyond 2^64 bytes.
pub(crate) fn overlapping(lists: &ListPool, bytes: &[u64], offsets: &[u64]) -> Option<(usize, usize)> {
    let mut order = lists.list((0..).zip(bytes).filter(|(_, bytes)| **bytes > 0).map(|(rank, _)| rank));
    order.sort_unstable_by_key(|rank| (offsets[*rank as usize], bytes[*rank as usize], *rank));
    let mut pairs = order.windows(2).map(|pair| (pair[0] as usize, pair[1] as usize));
    pairs.find(|(first, second)| offsets[*first] + bytes[*first] > offsets[*second])
}

/// Checks that blocks of these lengths at these displacements lie in a buffer of `buffer_bytes`, and no two on the same
/// bytes. Gives the displacements, those of empty blocks 0; `None` if the blocks lie one behind the other from the
/// start on.
///
/// # Errors
/// What is wrong, with the ranks whose blocks they are.
pub(crate) fn check(
    lists: &ListPool,
    counts: &[u64],
    displacements: &[u64],
    buffer_bytes: u64,
) -> Result<Option<List>, String> {
    let ranks = counts.len();
    if displacements.len() != ranks {
        return Err(format!("{} displacements for {ranks} ranks: give one per rank", displacements.len()));
    }
    // Nothing is anywhere.
    let place = |(&count, &at): (&u64, &u64)| if count == 0 { 0 } else { at };
    let normal = lists.list(counts.iter().zip(displacements).map(place));
    let (mut end, mut contiguous) = (0u64, true);
    for (rank, (&count, &at)) in counts.iter().zip(&*normal).enumerate().filter(|(_, (count, _))| **count > 0) {
        let behind = at.checked_add(count).filter(|behind| *behind <= buffer_bytes);
        let Some(behind) = behind else {
            return Err(format!(
                "the block of rank {rank}, {count} bytes at {at}, ends beyond the receive buffer of {buffer_bytes} \
                 bytes"
            ));
        };
        contiguous &= at == end;
        end = behind;
    }
    if let Some((first, second)) = overlapping(lists, counts, &normal) {
        let (end, start) = (normal[first] + counts[first], normal[second]);
        return Err(format!(
            "the blocks of ranks {first} and {second} overlap: one ends at {end}, the other begins at {start}"
        ));
    }
    Ok((!contiguous).then_some(normal))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(counts: &[u64], displacements: &[u64], buffer_bytes: u64) -> Result<Option<Vec<u64>>, String> {
        let lists = ListPool::new(counts.len() as u32);
        let checked = super::check(&lists, counts, displacements, buffer_bytes)?;
        Ok(checked.map(|displacements| displacements.to_vec()))
    }

    #[test]
    fn blocks_lie_in_the_buffer_and_do_not_overlap() {
        assert_eq!(check(&[3, 0, 5], &[0, 3, 3], 8), Ok(None), "one behind the other");
        assert_eq!(check(&[3, 0, 5], &[0, u64::MAX, 3], 9), Ok(None), "an empty block is nowhere");
        assert_eq!(check(&[3, 0, 5], &[5, 9, 0], 8), Ok(Some(vec![5, 0, 0])));
        assert_eq!(check(&[3, 5], &[1, 4], 9), Ok(Some(vec![1, 4])), "a gap before the first");
        assert_eq!(check(&[], &[], 0), Ok(None));
        let refused = |counts: &[u64], displacements: &[u64], bytes, words: &str| {
            let text = check(counts, displacements, bytes).unwrap_err();
            assert!(text.contains(words), "{text}");
        };
        refused(&[3, 5], &[0], 8, "1 displacements for 2 ranks");
        refused(&[3, 5], &[0, 4], 8, "rank 1, 5 bytes at 4, ends beyond the receive buffer of 8 bytes");
        refused(&[3, 5], &[u64::MAX, 0], 8, "rank 0");
        refused(&[3, 5], &[4, 0], 8, "ranks 1 and 0 overlap: one ends at 5, the other begins at 4");
        refused(&[3, 3], &[2, 2], 8, "ranks 0 and 1 overlap");
    }
}
