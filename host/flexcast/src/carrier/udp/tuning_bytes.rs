//! Tuning of a communicator as rank 0 sends it behind its connection information: all ranks choose by it.

use flexcast_proto::{Algorithm, Kind};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::op::sparse_cost::SparseCost;
use crate::op::tuning::{Choice, Tuning};

/// What comes first: how much follows.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Head {
    choices: U32,
    sparse_costs: U32,
    /// [`NONE`], or [`Tuning::sparse_from_bytes`].
    sparse_from_bytes: U64,
}

/// That the tuning does not say.
const NONE: u64 = u64::MAX;

/// A [`Choice`].
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Line {
    operation: u8,
    algorithm: u8,
    zero: [u8; 2],
    ranks: U32,
    bytes: U64,
}

/// A [`SparseCost`].
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Point {
    bytes: U64,
    ranks: U32,
    dense_us: U32,
    full_us: U32,
    tenth_us: U32,
}

impl Line {
    fn new(choice: &Choice) -> Self {
        Self {
            operation: choice.operation as u8,
            algorithm: choice.algorithm as u8,
            zero: [0; 2],
            ranks: choice.ranks.into(),
            bytes: choice.bytes.into(),
        }
    }

    fn choice(&self) -> Option<Choice> {
        let operation = Kind::of_code(self.operation)?;
        let algorithm = Algorithm::of_code(self.algorithm)?;
        Some(Choice { operation, algorithm, ranks: self.ranks.get(), bytes: self.bytes.get() })
    }
}

impl Point {
    fn new(cost: &SparseCost) -> Self {
        let SparseCost { ranks, bytes, dense_us, full_us, tenth_us } = *cost;
        let [ranks, dense_us, full_us, tenth_us] = [ranks, dense_us, full_us, tenth_us].map(U32::from);
        Self { bytes: bytes.into(), ranks, dense_us, full_us, tenth_us }
    }

    fn cost(&self) -> SparseCost {
        let [ranks, dense_us, full_us, tenth_us] =
            [self.ranks, self.dense_us, self.full_us, self.tenth_us].map(U32::get);
        SparseCost { ranks, bytes: self.bytes.get(), dense_us, full_us, tenth_us }
    }
}

/// A tuning in bytes. How what is multicast goes is part of the connection information.
pub(super) fn encode(tuning: &Tuning) -> Vec<u8> {
    let lines: Vec<Line> = tuning.choices().iter().map(Line::new).collect();
    let points: Vec<Point> = tuning.sparse_costs().iter().map(Point::new).collect();
    let head = Head {
        choices: (lines.len() as u32).into(),
        sparse_costs: (points.len() as u32).into(),
        sparse_from_bytes: tuning.sparse_from_bytes().map_or(NONE, u64::from).into(),
    };
    [head.as_bytes(), lines.as_bytes(), points.as_bytes()].concat()
}

/// The tuning of such bytes; none if they are not one.
pub(super) fn decode(bytes: &[u8]) -> Option<Tuning> {
    let (head, rest) = Head::read_from_prefix(bytes).ok()?;
    let (lines, rest) = <[Line]>::ref_from_prefix_with_elems(rest, head.choices.get() as usize).ok()?;
    let points = <[Point]>::ref_from_bytes_with_elems(rest, head.sparse_costs.get() as usize).ok()?;
    let tuning = Tuning::new(lines.iter().map(Line::choice).collect::<Option<_>>()?).ok()?;
    let tuning = tuning.with_sparse_costs(points.iter().map(Point::cost).collect()).ok()?;
    match head.sparse_from_bytes.get() {
        NONE => Some(tuning),
        least => Some(tuning.with_sparse_from_bytes(u32::try_from(least).ok()?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_decoded_is_what_was_encoded() {
        let file = Tuning::ethernet();
        for tuning in [Tuning::default(), file.clone(), file.with_sparse_from_bytes(0)] {
            let encoded = encode(&tuning);
            assert_eq!(decode(&encoded), Some(tuning.clone()));
            // Shorter or longer it is none.
            for bytes in [&encoded[..encoded.len() - 1], &[&encoded[..], &[0]].concat()] {
                assert_eq!(decode(bytes), None);
            }
            let mut damaged = encoded;
            damaged[..4].copy_from_slice(&u32::MAX.to_le_bytes());
            assert_eq!(decode(&damaged), None);
        }
    }
}
