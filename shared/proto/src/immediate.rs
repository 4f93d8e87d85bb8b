//! The 32-bit immediate: chunk sequence number (PSN) in the low bits, collective id above. On the wire it is
//! big-endian.

use thiserror::Error;

/// Smallest number of PSN bits.
pub const MIN_PSN_BITS: u32 = 1;
/// Largest number of PSN bits that leaves room for a collective id.
pub const MAX_PSN_BITS: u32 = 31;

/// How a communicator splits the immediate; fixed for its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImmediateLayout {
    psn_bits: u32,
}

/// The two halves of an immediate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Immediate {
    /// Chunk sequence number, below 2^(PSN bits).
    pub psn: u32,
    /// Collective id, below 2^(32 - PSN bits).
    pub collective_id: u32,
}

/// A value does not fit its half of the immediate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ImmediateError {
    /// No such layout.
    #[error(
        "{psn_bits} PSN bits requested, 1 to 31 possible: choose a number that leaves at least one bit to the \
         collective id"
    )]
    PsnBits {
        /// What was asked for.
        psn_bits: u32,
    },
    /// More chunks than any layout can number.
    #[error("{chunks} chunks need more than 31 PSN bits: use larger chunks, more subgroups, or split the operation")]
    TooManyChunks {
        /// What was asked for.
        chunks: u64,
    },
    /// PSN out of range.
    #[error("PSN {psn} does not fit {psn_bits} bits (limit {limit}): split the operation in rounds")]
    Psn {
        /// What was given.
        psn: u32,
        /// Bits of the layout.
        psn_bits: u32,
        /// First value that does not fit.
        limit: u32,
    },
    /// Collective id out of range.
    #[error("collective id {collective_id} does not fit {id_bits} bits (limit {limit}): advance ids with `next_id`")]
    CollectiveId {
        /// What was given.
        collective_id: u32,
        /// Bits of the layout.
        id_bits: u32,
        /// First value that does not fit.
        limit: u64,
    },
}

impl ImmediateLayout {
    /// A layout with `psn_bits` bits for the PSN, 1 to 31.
    pub const fn new(psn_bits: u32) -> Result<Self, ImmediateError> {
        if psn_bits < MIN_PSN_BITS || psn_bits > MAX_PSN_BITS {
            return Err(ImmediateError::PsnBits { psn_bits });
        }
        Ok(Self { psn_bits })
    }

    /// The layout with the fewest PSN bits that number `chunks` chunks: the receive space of one subgroup at the
    /// largest message.
    pub const fn for_chunks(chunks: u64) -> Result<Self, ImmediateError> {
        let bits = if chunks <= 2 { 1 } else { 64 - (chunks - 1).leading_zeros() };
        if bits > MAX_PSN_BITS {
            return Err(ImmediateError::TooManyChunks { chunks });
        }
        Ok(Self { psn_bits: bits })
    }

    /// Bits of the PSN.
    #[must_use]
    pub const fn psn_bits(self) -> u32 {
        self.psn_bits
    }

    /// Bits of the collective id.
    #[must_use]
    pub const fn id_bits(self) -> u32 {
        32 - self.psn_bits
    }

    /// Number of different PSNs.
    #[must_use]
    pub const fn psn_count(self) -> u32 {
        1 << self.psn_bits
    }

    /// Number of different collective ids.
    #[must_use]
    pub const fn id_count(self) -> u64 {
        1 << self.id_bits()
    }

    /// The immediate as a number.
    pub const fn encode(self, immediate: Immediate) -> Result<u32, ImmediateError> {
        if immediate.psn >= self.psn_count() {
            return Err(ImmediateError::Psn { psn: immediate.psn, psn_bits: self.psn_bits, limit: self.psn_count() });
        }
        if immediate.collective_id as u64 >= self.id_count() {
            return Err(ImmediateError::CollectiveId {
                collective_id: immediate.collective_id,
                id_bits: self.id_bits(),
                limit: self.id_count(),
            });
        }
        Ok(immediate.collective_id << self.psn_bits | immediate.psn)
    }

    /// The halves of an immediate; every number is one.
    #[must_use]
    pub const fn decode(self, value: u32) -> Immediate {
        Immediate { psn: value & (self.psn_count() - 1), collective_id: value >> self.psn_bits }
    }

    /// The immediate's bytes on the wire.
    pub fn to_wire(self, immediate: Immediate) -> Result<[u8; 4], ImmediateError> {
        self.encode(immediate).map(u32::to_be_bytes)
    }

    /// The halves of the immediate in wire bytes.
    #[must_use]
    pub const fn from_wire(self, bytes: [u8; 4]) -> Immediate {
        self.decode(u32::from_be_bytes(bytes))
    }

    /// The collective id after `id`, wrapping to 0.
    #[must_use]
    pub const fn next_id(self, id: u32) -> u32 {
        ((id as u64 + 1) % self.id_count()) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn boundaries_of_every_layout() {
        for bits in 1..=31 {
            let layout = ImmediateLayout::new(bits).unwrap();
            let last_psn = layout.psn_count() - 1;
            let last_id = (layout.id_count() - 1) as u32;
            for psn in [0, last_psn] {
                for collective_id in [0, last_id] {
                    let immediate = Immediate { psn, collective_id };
                    assert_eq!(layout.decode(layout.encode(immediate).unwrap()), immediate);
                }
            }
            assert!(layout.encode(Immediate { psn: last_psn + 1, collective_id: 0 }).is_err());
            if bits > 0 && last_id < u32::MAX {
                assert!(layout.encode(Immediate { psn: 0, collective_id: last_id + 1 }).is_err());
            }
            assert_eq!(layout.next_id(last_id), 0);
        }
        assert!(ImmediateLayout::new(0).is_err());
        assert!(ImmediateLayout::new(32).is_err());
    }

    #[test]
    fn fewest_bits_for_a_chunk_count() {
        for (chunks, bits) in [(0, 1), (1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (8192, 13), (8193, 14), (1 << 31, 31)] {
            assert_eq!(ImmediateLayout::for_chunks(chunks).unwrap().psn_bits(), bits, "{chunks} chunks");
        }
        assert!(ImmediateLayout::for_chunks((1 << 31) + 1).is_err());
        assert!(ImmediateLayout::for_chunks(u64::MAX).is_err());
    }

    #[test]
    fn wire_order_is_big_endian() {
        let layout = ImmediateLayout::new(22).unwrap();
        let immediate = Immediate { psn: 1, collective_id: 1 };
        assert_eq!(layout.to_wire(immediate).unwrap(), [0, 0x40, 0, 1]);
    }

    proptest! {
        #[test]
        fn every_number_round_trips(bits in 1u32..=31, value: u32) {
            let layout = ImmediateLayout::new(bits).unwrap();
            let immediate = layout.decode(value);
            prop_assert_eq!(layout.encode(immediate), Ok(value));
            prop_assert_eq!(layout.from_wire(layout.to_wire(immediate).unwrap()), immediate);
        }

        #[test]
        fn for_chunks_is_minimal(chunks in 1u64..=(1 << 31)) {
            let bits = ImmediateLayout::for_chunks(chunks).unwrap().psn_bits();
            prop_assert!(1u64 << bits >= chunks);
            prop_assert!(bits == 1 || 1u64 << (bits - 1) < chunks);
        }
    }
}
