//! Types of elements and operators of reductions.

use flexcast_rust::reduce::{DataType, Operator, Reduction};

use crate::fault::Fault;
use crate::status::flexcast_status::*;

/// Element `int8_t`; this and the other types are those of C, on the computer that the library was built for.
pub const FLEXCAST_INT8: u32 = 1;
/// Element `uint8_t`.
pub const FLEXCAST_UINT8: u32 = 2;
/// Element `int16_t`.
pub const FLEXCAST_INT16: u32 = 3;
/// Element `uint16_t`.
pub const FLEXCAST_UINT16: u32 = 4;
/// Element `int32_t`.
pub const FLEXCAST_INT32: u32 = 5;
/// Element `uint32_t`.
pub const FLEXCAST_UINT32: u32 = 6;
/// Element `int64_t`.
pub const FLEXCAST_INT64: u32 = 7;
/// Element `uint64_t`.
pub const FLEXCAST_UINT64: u32 = 8;
/// IEEE 754 binary16.
pub const FLEXCAST_FLOAT16: u32 = 9;
/// The upper half of a binary32.
pub const FLEXCAST_BFLOAT16: u32 = 10;
/// `float`.
pub const FLEXCAST_FLOAT: u32 = 11;
/// `double`.
pub const FLEXCAST_DOUBLE: u32 = 12;
/// `float _Complex`.
pub const FLEXCAST_FLOAT_COMPLEX: u32 = 13;
/// `double _Complex`.
pub const FLEXCAST_DOUBLE_COMPLEX: u32 = 14;
/// `_Bool`.
pub const FLEXCAST_BOOL: u32 = 15;
/// Eight bits without a meaning.
pub const FLEXCAST_BYTE: u32 = 16;
/// `struct { float value; int index; }`.
pub const FLEXCAST_FLOAT_INT: u32 = 17;
/// `struct { double value; int index; }`.
pub const FLEXCAST_DOUBLE_INT: u32 = 18;
/// `struct { long value; int index; }`.
pub const FLEXCAST_LONG_INT: u32 = 19;
/// `struct { int value; int index; }`.
pub const FLEXCAST_2INT: u32 = 20;
/// `struct { short value; int index; }`.
pub const FLEXCAST_SHORT_INT: u32 = 21;

/// Sum, for integers, which wrap, floating-point and complex numbers.
pub const FLEXCAST_SUM: u32 = 1;
/// Product, for the same types as FLEXCAST_SUM.
pub const FLEXCAST_PRODUCT: u32 = 2;
/// Least value, for integers and floating-point numbers.
pub const FLEXCAST_MIN: u32 = 3;
/// Largest value, for the same types as FLEXCAST_MIN.
pub const FLEXCAST_MAX: u32 = 4;
/// Logical and, for integers and truth values.
pub const FLEXCAST_LOGICAL_AND: u32 = 5;
/// Logical or, for the same types.
pub const FLEXCAST_LOGICAL_OR: u32 = 6;
/// Logical exclusive or, for the same types.
pub const FLEXCAST_LOGICAL_XOR: u32 = 7;
/// Bitwise and, for integers and bytes.
pub const FLEXCAST_BIT_AND: u32 = 8;
/// Bitwise or, for integers and bytes.
pub const FLEXCAST_BIT_OR: u32 = 9;
/// Bitwise exclusive or, for integers and bytes.
pub const FLEXCAST_BIT_XOR: u32 = 10;
/// For pairs of value and index: the pair of the least value, and of those the least index.
pub const FLEXCAST_MINLOC: u32 = 11;
/// The pair of the largest value, and of those the least index.
pub const FLEXCAST_MAXLOC: u32 = 12;

/// The reduction of two codes. An operator that is not defined for a type is left to the program.
pub(crate) fn reduction(data_type: u32, op: u32) -> Result<Reduction, Fault> {
    let wrong = |what: &str, code: u32, last: u32| {
        let text = format!("{what} is {code}: must be one of the codes 1 to {last} of flexcast.h");
        Fault::new(FLEXCAST_ERROR_ARGUMENT, text)
    };
    let data_type = DataType::from_raw(data_type).map_err(|code| wrong("data_type", code, FLEXCAST_SHORT_INT))?;
    let operator = Operator::from_raw(op).map_err(|code| wrong("reduction", code, FLEXCAST_MAXLOC))?;
    Reduction::new(operator, data_type)
        .map_err(|error| Fault::new(FLEXCAST_NOT_SUPPORTED, format!("reduction: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_the_library_s() {
        let types = [
            (FLEXCAST_INT8, DataType::I8),
            (FLEXCAST_UINT8, DataType::U8),
            (FLEXCAST_INT16, DataType::I16),
            (FLEXCAST_UINT16, DataType::U16),
            (FLEXCAST_INT32, DataType::I32),
            (FLEXCAST_UINT32, DataType::U32),
            (FLEXCAST_INT64, DataType::I64),
            (FLEXCAST_UINT64, DataType::U64),
            (FLEXCAST_FLOAT16, DataType::F16),
            (FLEXCAST_BFLOAT16, DataType::BF16),
            (FLEXCAST_FLOAT, DataType::F32),
            (FLEXCAST_DOUBLE, DataType::F64),
            (FLEXCAST_FLOAT_COMPLEX, DataType::C64),
            (FLEXCAST_DOUBLE_COMPLEX, DataType::C128),
            (FLEXCAST_BOOL, DataType::Bool),
            (FLEXCAST_BYTE, DataType::Byte),
            (FLEXCAST_FLOAT_INT, DataType::FloatInt),
            (FLEXCAST_DOUBLE_INT, DataType::DoubleInt),
            (FLEXCAST_LONG_INT, DataType::LongInt),
            (FLEXCAST_2INT, DataType::TwoInt),
            (FLEXCAST_SHORT_INT, DataType::ShortInt),
        ];
        assert!(types.iter().map(|(code, data_type)| (*code, *data_type)).eq((1..).zip(DataType::ALL.iter().copied())));
        let operators = [
            (FLEXCAST_SUM, Operator::Sum),
            (FLEXCAST_PRODUCT, Operator::Product),
            (FLEXCAST_MIN, Operator::Min),
            (FLEXCAST_MAX, Operator::Max),
            (FLEXCAST_LOGICAL_AND, Operator::LogicalAnd),
            (FLEXCAST_LOGICAL_OR, Operator::LogicalOr),
            (FLEXCAST_LOGICAL_XOR, Operator::LogicalXor),
            (FLEXCAST_BIT_AND, Operator::BitAnd),
            (FLEXCAST_BIT_OR, Operator::BitOr),
            (FLEXCAST_BIT_XOR, Operator::BitXor),
            (FLEXCAST_MINLOC, Operator::MinLoc),
            (FLEXCAST_MAXLOC, Operator::MaxLoc),
        ];
        assert!(operators.iter().map(|(code, op)| (*code, *op)).eq((1..).zip(Operator::ALL.iter().copied())));
    }

    #[test]
    fn codes_that_are_none_are_named() {
        let names = |fault: Fault, words: &str| assert!(fault.text.contains(words), "{}", fault.text);
        names(reduction(0, FLEXCAST_SUM).unwrap_err(), "data_type is 0");
        names(reduction(FLEXCAST_INT8, 13).unwrap_err(), "reduction is 13: must be one of the codes 1 to 12");
        names(reduction(FLEXCAST_FLOAT, FLEXCAST_BIT_OR).unwrap_err(), "not defined for f32");
        let status = |made: Result<Reduction, Fault>| made.map(drop).unwrap_err().status;
        assert_eq!(status(reduction(FLEXCAST_FLOAT, FLEXCAST_BIT_OR)), FLEXCAST_NOT_SUPPORTED);
        assert_eq!(status(reduction(FLEXCAST_FLOAT, 99)), FLEXCAST_ERROR_ARGUMENT);
    }
}
