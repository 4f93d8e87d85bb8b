//! Division of a root's block among subgroups.
//!
//! Runs of chunks, *stripes*, go to one subgroup after the other; roots begin with different subgroups, so that short
//! blocks load them all. Chunks of one subgroup come in the order of their numbers, unless the network reorders them;
//! those of different subgroups come in any order.

/// How blocks are divided: alike on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stripes {
    subgroups: u32,
    /// Chunks of a stripe.
    chunks: u32,
}

impl Default for Stripes {
    /// All chunks are of one subgroup.
    fn default() -> Self {
        Self { subgroups: 1, chunks: u32::MAX }
    }
}

impl Stripes {
    /// Stripes of `chunks` chunks; both numbers are at least 1.
    pub(crate) fn new(subgroups: u32, chunks: u32) -> Self {
        if subgroups <= 1 { Self::default() } else { Self { subgroups, chunks: chunks.max(1) } }
    }

    pub(crate) const fn subgroups(&self) -> u32 {
        self.subgroups
    }

    /// The subgroup of a chunk, by its number in the block of root `rank`.
    pub(crate) const fn subgroup(&self, rank: u32, number: u32) -> u32 {
        (number / self.chunks % self.subgroups + rank % self.subgroups) % self.subgroups
    }

    /// The first chunk of a root that goes to a subgroup.
    pub(crate) const fn first(&self, rank: u32, subgroup: u32) -> u32 {
        ((subgroup + self.subgroups - rank % self.subgroups) % self.subgroups).saturating_mul(self.chunks)
    }

    /// The first chunk behind the stripe of a chunk.
    pub(crate) const fn end(&self, number: u32) -> u32 {
        (number / self.chunks + 1).saturating_mul(self.chunks)
    }

    /// The chunk that follows another in its subgroup.
    pub(crate) const fn after(&self, number: u32) -> u32 {
        let next = number.saturating_add(1);
        if next < self.end(number) { next } else { self.beyond(number) }
    }

    /// The first chunk of the next stripe of the same subgroup.
    const fn beyond(&self, number: u32) -> u32 {
        self.end(number).saturating_add((self.subgroups - 1).saturating_mul(self.chunks))
    }

    /// The chunks of a subgroup from `from`, which is one of them, up to `end`: as ranges.
    pub(crate) fn ranges(self, from: u32, end: u32) -> impl Iterator<Item = std::ops::Range<u32>> {
        let next = move |start: &u32| Some(self.beyond(*start));
        std::iter::successors(Some(from), next)
            .take_while(move |start| *start < end)
            .map(move |start| start..self.end(start).min(end))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn stripes_go_to_one_subgroup_after_the_other() {
        let stripes = Stripes::new(3, 4);
        let of = |rank| (0..24).map(|number| stripes.subgroup(rank, number)).collect::<Vec<_>>();
        assert_eq!(of(0), [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]);
        assert_eq!(of(4)[..8], [1, 1, 1, 1, 2, 2, 2, 2]);
        assert_eq!(stripes.ranges(2, 26).collect::<Vec<_>>(), [2..4, 12..16, 24..26]);
        assert_eq!(stripes.ranges(2, 2).count(), 0);
        assert_eq!(Stripes::new(1, 4), Stripes::default());
        assert!(Stripes::default().ranges(7, 9).eq(std::iter::once(7..9)));
        assert_eq!(Stripes::default().after(u32::MAX - 1), u32::MAX);
    }

    proptest! {
        #[test]
        fn each_subgroup_has_its_chunks_in_order(
            subgroups in 1u32..9, chunks in 1u32..9, rank in 0u32..20, total in 0u32..200,
        ) {
            let stripes = Stripes::new(subgroups, chunks);
            let mut seen = 0;
            for subgroup in 0..stripes.subgroups() {
                let first = stripes.first(rank, subgroup);
                let by_ranges: Vec<u32> = stripes.ranges(first, total).flatten().collect();
                let by_steps: Vec<u32> = std::iter::successors(Some(first), |number| Some(stripes.after(*number)))
                    .take_while(|number| *number < total)
                    .collect();
                let by_numbers: Vec<u32> =
                    (0..total).filter(|number| stripes.subgroup(rank, *number) == subgroup).collect();
                prop_assert_eq!(&by_ranges, &by_numbers);
                prop_assert_eq!(by_steps, by_numbers);
                seen += by_ranges.len();
            }
            prop_assert_eq!(seen, total as usize);
        }
    }
}
