//! Operators of reductions, and the types that MPI defines each for.

use super::data_type::{DataType, Group};

/// What a reduction does with two elements. Every operator is commutative, so that the result does not depend on which
/// operand is whose; sums and products of floating-point and complex numbers round, and so depend on the order in which
/// ranks are combined.
///
/// Codes are stable: they go over the wire and are those of the C interface. Source: MPI 4.1, 6.9.2 and 6.9.4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
#[non_exhaustive]
pub enum Operator {
    /// `MPI_SUM`. Integers wrap: modulo 2 to the number of bits.
    Sum = 1,
    /// `MPI_PROD`. Integers wrap. Complex numbers by the formula of the textbook, in which an infinity may become NaN
    /// (C99, G.5.1).
    Product = 2,
    /// `MPI_MIN`. Of floating-point numbers: NaN if either is NaN, the positive quiet one without a payload; -0 is less
    /// than +0. So the result does not depend on any order (minimum of IEEE 754-2019, 9.6; MPI leaves NaN open).
    Min = 3,
    /// `MPI_MAX`. NaN and zeros as in [`Operator::Min`].
    Max = 4,
    /// `MPI_LAND`. All but 0 is true; results are 0 or 1.
    LogicalAnd = 5,
    /// `MPI_LOR`.
    LogicalOr = 6,
    /// `MPI_LXOR`.
    LogicalXor = 7,
    /// `MPI_BAND`.
    BitAnd = 8,
    /// `MPI_BOR`.
    BitOr = 9,
    /// `MPI_BXOR`.
    BitXor = 10,
    /// `MPI_MINLOC`: the least value and its index; of equal values, among them zeros of both signs, the lower index. A
    /// NaN is less than all else, and of NaNs the one with the lower index is given. Padding of the result is 0.
    MinLoc = 11,
    /// `MPI_MAXLOC`: the greatest value and its index; of equal values the lower index. A NaN is greater than all else.
    /// Otherwise as [`Operator::MinLoc`].
    MaxLoc = 12,
}

impl Operator {
    /// Every operator, in the order of the codes.
    pub const ALL: &[Self] = &[
        Self::Sum,
        Self::Product,
        Self::Min,
        Self::Max,
        Self::LogicalAnd,
        Self::LogicalOr,
        Self::LogicalXor,
        Self::BitAnd,
        Self::BitOr,
        Self::BitXor,
        Self::MinLoc,
        Self::MaxLoc,
    ];

    /// What a code stands for; the code itself when it stands for nothing.
    ///
    /// # Errors
    /// The code.
    pub const fn from_raw(raw: u32) -> Result<Self, u32> {
        // Codes count from 1; a test holds them to that.
        if raw >= 1 && raw as usize <= Self::ALL.len() { Ok(Self::ALL[raw as usize - 1]) } else { Err(raw) }
    }

    /// Name in messages and on command lines: lower case, words joined by hyphens.
    #[must_use]
    pub const fn name(self) -> &'static str {
        // Codes count from 1; a test holds them to that.
        flexcast_proto::OPERATORS[self as usize - 1]
    }

    /// Whether MPI (4.1, 6.9.2 and 6.9.4) defines the operator for elements of the type. [`DataType::F16`] and
    /// [`DataType::BF16`] count as its floating-point types.
    #[must_use]
    pub const fn is_defined_for(self, data_type: DataType) -> bool {
        let group = data_type.group();
        match self {
            Self::Sum | Self::Product => matches!(group, Group::Integer | Group::FloatingPoint | Group::Complex),
            Self::Min | Self::Max => matches!(group, Group::Integer | Group::FloatingPoint),
            Self::LogicalAnd | Self::LogicalOr | Self::LogicalXor => matches!(group, Group::Integer | Group::Logical),
            Self::BitAnd | Self::BitOr | Self::BitXor => matches!(group, Group::Integer | Group::Byte),
            Self::MinLoc | Self::MaxLoc => matches!(group, Group::Pair),
        }
    }
}

impl std::fmt::Display for Operator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_keep_their_codes() {
        assert_eq!(Operator::ALL.len(), 12);
        for (code, &operator) in (1..).zip(Operator::ALL) {
            assert_eq!((operator as u32, Operator::from_raw(code)), (code, Ok(operator)), "{operator}");
        }
        for none in [0, 13, u32::MAX] {
            assert_eq!(Operator::from_raw(none), Err(none));
        }
    }

    /// The tables of MPI 4.1, written out.
    #[test]
    fn operators_are_defined_for_the_types_of_mpi() {
        let integers = "i8 u8 i16 u16 i32 u32 i64 u64";
        let numbers = "i8 u8 i16 u16 i32 u32 i64 u64 f16 bf16 f32 f64";
        let arithmetic = format!("{numbers} c64 c128");
        let (logical, bitwise) = (format!("{integers} bool"), format!("{integers} byte"));
        let pairs = "float-int double-int long-int two-int short-int";
        let tables: [(&[&str], &str); 5] = [
            (&["sum", "product"], &arithmetic),
            (&["min", "max"], numbers),
            (&["logical-and", "logical-or", "logical-xor"], &logical),
            (&["bit-and", "bit-or", "bit-xor"], &bitwise),
            (&["minloc", "maxloc"], pairs),
        ];
        for operator in Operator::ALL {
            let mut with = tables.iter().filter(|(names, _)| names.contains(&operator.name()));
            let (_, expected) = with.next().expect("a table for every operator");
            let defined: Vec<&str> = DataType::ALL
                .iter()
                .filter(|data_type| operator.is_defined_for(**data_type))
                .map(|data_type| data_type.name())
                .collect();
            assert_eq!(defined.join(" "), *expected, "{operator}");
        }
    }
}
