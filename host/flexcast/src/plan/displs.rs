//! Displacements of an Allgatherv: the places of blocks in the receive buffer, where the caller gives them.

/// Checks that blocks of these lengths at these displacements lie in a buffer of `buffer_bytes`, and no two on the same bytes. Gives
/// the displacements, those of empty blocks 0; `None` if the blocks lie one behind the other from the start on.
///
/// # Errors
/// What is wrong, with the ranks whose blocks they are.
pub(crate) fn check(counts: &[u64], displacements: &[u64], buffer_bytes: u64) -> Result<Option<Vec<u64>>, String> {
    let ranks = counts.len();
    if displacements.len() != ranks {
        return Err(format!("{} displacements for {ranks} ranks: give one per rank", displacements.len()));
    }
    let mut blocks = Vec::with_capacity(ranks);
    let mut normal = Vec::with_capacity(ranks);
    let (mut end, mut contiguous) = (0u64, true);
    for (rank, (&count, &at)) in counts.iter().zip(displacements).enumerate() {
        // Nothing is anywhere.
        let at = if count == 0 { 0 } else { at };
        normal.push(at);
        if count == 0 {
            continue;
        }
        let behind = at.checked_add(count).filter(|behind| *behind <= buffer_bytes);
        let Some(behind) = behind else {
            return Err(format!(
                "the block of rank {rank}, {count} bytes at {at}, ends beyond the receive buffer of {buffer_bytes} bytes"
            ));
        };
        contiguous &= at == end;
        end = behind;
        blocks.push((at, behind, rank));
    }
    blocks.sort_unstable();
    for pair in blocks.windows(2) {
        let [(_, end, first), (start, _, second)] = [pair[0], pair[1]];
        if start < end {
            return Err(format!(
                "the blocks of ranks {first} and {second} overlap: one ends at {end}, the other begins at {start}"
            ));
        }
    }
    Ok((!contiguous).then_some(normal))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_lie_in_the_buffer_and_beside_one_another() {
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
