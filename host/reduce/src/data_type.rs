//! Element types of reductions: the basic types of MPI, two of machine learning, and MPI's pairs of value and index.

/// Type of an element. All are as C lays them out on Linux on x86-64 and AArch64, in the byte order of the host, at any
/// alignment.
///
/// Codes are stable: they go over the wire and are those of the C interface. Source: MPI 4.1, tables 3.2 and 6.4.
///
/// `long double` is not here, and neither are `MPI_C_LONG_DOUBLE_COMPLEX` and `MPI_LONG_DOUBLE_INT`: it is the 80-bit
/// format of the x87 on x86-64 and IEEE 754 binary128 on AArch64, and Rust has no arithmetic for either. `MPI_CHAR` and
/// `MPI_WCHAR` are texts, which MPI does not reduce (6.9.3). Fortran's `LOGICAL` has a representation that is its
/// compiler's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
#[non_exhaustive]
pub enum DataType {
    /// Signed integer of 1 byte: `MPI_INT8_T`, `MPI_SIGNED_CHAR`.
    I8 = 1,
    /// Unsigned integer of 1 byte: `MPI_UINT8_T`, `MPI_UNSIGNED_CHAR`.
    U8 = 2,
    /// Signed integer of 2 bytes: `MPI_INT16_T`, `MPI_SHORT`.
    I16 = 3,
    /// Unsigned integer of 2 bytes: `MPI_UINT16_T`, `MPI_UNSIGNED_SHORT`.
    U16 = 4,
    /// Signed integer of 4 bytes: `MPI_INT32_T`, `MPI_INT`, Fortran's `MPI_INTEGER`.
    I32 = 5,
    /// Unsigned integer of 4 bytes: `MPI_UINT32_T`, `MPI_UNSIGNED`.
    U32 = 6,
    /// Signed integer of 8 bytes: `MPI_INT64_T`, `MPI_LONG`, `MPI_LONG_LONG`, `MPI_AINT`, `MPI_OFFSET`, `MPI_COUNT`.
    I64 = 7,
    /// Unsigned integer of 8 bytes: `MPI_UINT64_T`, `MPI_UNSIGNED_LONG`, `MPI_UNSIGNED_LONG_LONG`.
    U64 = 8,
    /// IEEE 754 binary16, 2 bytes: Fortran's `MPI_REAL2`.
    F16 = 9,
    /// The upper half of a binary32, 2 bytes, as processors for machine learning have it. Not of MPI.
    BF16 = 10,
    /// IEEE 754 binary32, 4 bytes: `MPI_FLOAT`, `MPI_REAL`.
    F32 = 11,
    /// IEEE 754 binary64, 8 bytes: `MPI_DOUBLE`, `MPI_DOUBLE_PRECISION`.
    F64 = 12,
    /// Complex number of two binary32, real part first, 8 bytes: `MPI_C_FLOAT_COMPLEX`, `MPI_COMPLEX`.
    C64 = 13,
    /// Complex number of two binary64, real part first, 16 bytes: `MPI_C_DOUBLE_COMPLEX`, `MPI_DOUBLE_COMPLEX`.
    C128 = 14,
    /// Truth value of 1 byte: `MPI_C_BOOL`, `MPI_CXX_BOOL`. Every byte but 0 is true; results are 0 or 1.
    Bool = 15,
    /// 8 bits without a meaning: `MPI_BYTE`.
    Byte = 16,
    /// `struct { float value; int index; }`, 8 bytes: `MPI_FLOAT_INT`.
    FloatInt = 17,
    /// `struct { double value; int index; }`, 16 bytes of which the last 4 are padding: `MPI_DOUBLE_INT`.
    DoubleInt = 18,
    /// `struct { long value; int index; }`, 16 bytes of which the last 4 are padding: `MPI_LONG_INT`.
    LongInt = 19,
    /// `struct { int value; int index; }`, 8 bytes: `MPI_2INT`.
    TwoInt = 20,
    /// `struct { short value; int index; }`, 8 bytes of which the third and fourth are padding: `MPI_SHORT_INT`.
    ShortInt = 21,
}

/// What MPI 4.1 (6.9.2 and 6.9.4) calls the group of a type: each operator is defined for whole groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Group {
    Integer,
    FloatingPoint,
    Complex,
    Logical,
    Byte,
    Pair,
}

impl DataType {
    /// Every type, in the order of the codes.
    pub const ALL: &[Self] = &[
        Self::I8,
        Self::U8,
        Self::I16,
        Self::U16,
        Self::I32,
        Self::U32,
        Self::I64,
        Self::U64,
        Self::F16,
        Self::BF16,
        Self::F32,
        Self::F64,
        Self::C64,
        Self::C128,
        Self::Bool,
        Self::Byte,
        Self::FloatInt,
        Self::DoubleInt,
        Self::LongInt,
        Self::TwoInt,
        Self::ShortInt,
    ];

    /// What a code stands for; the code itself when it stands for nothing.
    ///
    /// # Errors
    /// The code.
    pub const fn from_raw(raw: u32) -> Result<Self, u32> {
        // Codes count from 1; a test holds them to that.
        if raw >= 1 && raw as usize <= Self::ALL.len() { Ok(Self::ALL[raw as usize - 1]) } else { Err(raw) }
    }

    /// Bytes from one element to the next, padding included: 1 to 16.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        match self {
            Self::I8 | Self::U8 | Self::Bool | Self::Byte => 1,
            Self::I16 | Self::U16 | Self::F16 | Self::BF16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 | Self::C64 | Self::FloatInt | Self::TwoInt | Self::ShortInt => 8,
            Self::C128 | Self::DoubleInt | Self::LongInt => 16,
        }
    }

    /// Name in messages and on command lines: lower case, words joined by hyphens.
    #[must_use]
    pub const fn name(self) -> &'static str {
        // Codes count from 1; a test holds them to that.
        flexcast_proto::TYPES[self as usize - 1]
    }

    pub(super) const fn group(self) -> Group {
        match self {
            Self::I8 | Self::U8 | Self::I16 | Self::U16 | Self::I32 | Self::U32 | Self::I64 | Self::U64 => {
                Group::Integer
            }
            Self::F16 | Self::BF16 | Self::F32 | Self::F64 => Group::FloatingPoint,
            Self::C64 | Self::C128 => Group::Complex,
            Self::Bool => Group::Logical,
            Self::Byte => Group::Byte,
            Self::FloatInt | Self::DoubleInt | Self::LongInt | Self::TwoInt | Self::ShortInt => Group::Pair,
        }
    }
}

impl std::fmt::Display for DataType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_keep_their_codes_and_have_the_lengths_of_c() {
        let bytes = [1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 8, 16, 1, 1, 8, 16, 16, 8, 8];
        assert_eq!(DataType::ALL.len(), bytes.len());
        for (code, (&data_type, bytes)) in (1..).zip(DataType::ALL.iter().zip(bytes)) {
            assert_eq!((data_type as u32, data_type.bytes()), (code, bytes), "{data_type}");
            assert_eq!(DataType::from_raw(code), Ok(data_type));
        }
        for none in [0, 22, u32::MAX] {
            assert_eq!(DataType::from_raw(none), Err(none));
        }
    }

    #[test]
    fn names_differ() {
        let names: std::collections::BTreeSet<&str> = DataType::ALL.iter().map(|data_type| data_type.name()).collect();
        assert_eq!(names.len(), DataType::ALL.len());
    }
}
