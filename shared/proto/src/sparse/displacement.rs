//! Displacement: which of the global blocks a message holds.

use thiserror::Error;

use super::votes::Votes;

/// Bit j is set where global block j is zero at the worker and left out of its message. Bits behind the last global
/// block are clear. It is what the 32-bit immediate of a message carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Displacement(u32);

/// A displacement of other blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "displacement {bits:#x} of a message, but the iteration has {blocks} blocks: its bits behind them have to be clear"
)]
pub struct DisplacementError {
    /// What came.
    pub bits: u32,
    /// Global blocks of the iteration.
    pub blocks: u32,
}

/// The candidates of a worker hold a block that its turn has passed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Omitted(pub(super) u32);

impl Displacement {
    /// That of a message without blocks and of no global blocks.
    pub(super) const NOTHING: Self = Self(0);

    /// The displacement in an immediate or a header, of an iteration with these global blocks.
    ///
    /// # Errors
    /// A bit behind the last block is set.
    #[inline]
    pub const fn read(bits: u32, global: &Votes) -> Result<Self, DisplacementError> {
        let blocks = global.len();
        if bits & !lowest(blocks) != 0 {
            return Err(DisplacementError { bits, blocks });
        }
        Ok(Self(bits))
    }

    /// What a worker with these candidates leaves out of `global`, and how many of the candidates, its first ones, it
    /// sends.
    pub(super) fn of(candidates: &Votes, global: &Votes) -> Result<(Self, u32), Omitted> {
        let mut own = candidates.indices().iter().copied().peekable();
        let (mut bits, mut sent) = (0, 0);
        for (place, index) in (0..MOST_PLACES).zip(global.indices()) {
            match own.peek() {
                Some(candidate) if candidate < index => return Err(Omitted(*candidate)),
                Some(candidate) if candidate == index => {
                    own.next();
                    sent += 1;
                }
                _ => bits |= 1 << place,
            }
        }
        match own.next() {
            Some(candidate) if !global.is_full() => Err(Omitted(candidate)),
            _ => Ok((Self(bits), sent)),
        }
    }

    /// As a number.
    #[must_use]
    #[inline]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Bit j is set where global block j is in the message. Packed blocks follow one another in this order.
    #[must_use]
    #[inline]
    pub const fn present(self, global: &Votes) -> u32 {
        !self.0 & lowest(global.len())
    }
}

const MOST_PLACES: u32 = u32::BITS;

/// The lowest `count` bits.
#[inline]
pub(super) const fn lowest(count: u32) -> u32 {
    if count >= u32::BITS { u32::MAX } else { (1 << count) - 1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sparse::Parameters;

    fn votes(width: u32, indices: &[u32]) -> Votes {
        let places = indices.iter().copied().chain(core::iter::repeat(u32::MAX)).take(width as usize);
        Votes::read(Parameters::new(2, 256, width, 4).unwrap(), places).unwrap()
    }

    #[test]
    fn bits_are_set_where_a_block_is_zero() {
        let of = |candidates: &[u32], global: &[u32]| {
            Displacement::of(&votes(4, candidates), &votes(4, global)).map(|(bits, sent)| (bits.bits(), sent))
        };
        assert_eq!(of(&[1, 4, 6, 9], &[1, 2, 4, 5]), Ok((0b1010, 2)));
        assert_eq!(of(&[], &[1, 2, 4, 5]), Ok((0b1111, 0)));
        assert_eq!(of(&[1, 2, 4, 5], &[1, 2, 4, 5]), Ok((0, 4)));
        assert_eq!(of(&[7], &[3, 7]), Ok((0b01, 1)));
        assert_eq!(of(&[1, 3], &[1, 4, 6, 7]), Err(Omitted(3)));
        assert_eq!(of(&[1, 8], &[1, 4]), Err(Omitted(8)), "a list that is not full has everything");
    }

    #[test]
    fn all_32_bits_of_the_immediate() {
        let all: std::vec::Vec<u32> = (0..32).collect();
        let global = votes(32, &all);
        let (none, sent) = Displacement::of(&votes(32, &[]), &global).unwrap();
        assert_eq!((none.bits(), sent, none.present(&global)), (u32::MAX, 0, 0));
        let (whole, sent) = Displacement::of(&global, &global).unwrap();
        assert_eq!((whole.bits(), sent, whole.present(&global)), (0, 32, u32::MAX));
        assert_eq!(Displacement::read(u32::MAX, &global), Ok(none));
    }

    #[test]
    fn bits_behind_the_last_block_are_refused() {
        let global = votes(4, &[3, 7]);
        assert_eq!(Displacement::read(0b10, &global).unwrap().present(&global), 0b01);
        assert_eq!(Displacement::read(0b100, &global), Err(DisplacementError { bits: 4, blocks: 2 }));
        assert_eq!(Displacement::read(1, &votes(4, &[])), Err(DisplacementError { bits: 1, blocks: 0 }));
    }
}
