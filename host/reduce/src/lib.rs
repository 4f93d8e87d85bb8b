//! Reductions on the host: element types, operators, and the loops that combine buffers.
//!
//! ```
//! # fn main() -> Result<(), flexcast_reduce::Undefined> {
//! use flexcast_reduce::{DataType, Operator, Reduction};
//!
//! let sum = Reduction::new(Operator::Sum, DataType::I32)?;
//! let mut to = [1_i32, 2].map(i32::to_ne_bytes).concat();
//! sum.combine(&mut to, &[10_i32, 20].map(i32::to_ne_bytes).concat());
//! assert_eq!(to, [11_i32, 22].map(i32::to_ne_bytes).concat());
//! # Ok(())
//! # }
//! ```

mod data_type;
mod elements;
mod kernels;
mod operator;
#[cfg(test)]
mod tests;

pub use data_type::DataType;
pub use operator::Operator;

use std::fmt;

/// An operator that is not defined for elements of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Undefined {
    /// The operator.
    pub operator: Operator,
    /// The type.
    pub data_type: DataType,
}

impl fmt::Display for Undefined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operator, data_type } = *self;
        let has = Operator::ALL.iter().filter(|operator| operator.is_defined_for(data_type));
        let has: Vec<&str> = has.map(|operator| operator.name()).collect();
        write!(f, "{operator} is not defined for {data_type}, which has {}", has.join(", "))
    }
}

impl std::error::Error for Undefined {}

/// An operator on elements of a type for which it is defined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reduction {
    operator: Operator,
    data_type: DataType,
}

impl Reduction {
    /// An operator on elements of a type.
    ///
    /// # Errors
    /// [`Undefined`] where the operator is not defined for the type ([`Operator::is_defined_for`]): it names
    /// both, and the operators that the type has.
    pub fn new(operator: Operator, data_type: DataType) -> Result<Self, Undefined> {
        Self::of(operator, data_type).ok_or(Undefined { operator, data_type })
    }

    /// As [`Reduction::new`], for constants; `None` where the operator is not defined for the type.
    #[must_use]
    pub const fn of(operator: Operator, data_type: DataType) -> Option<Self> {
        if operator.is_defined_for(data_type) { Some(Self { operator, data_type }) } else { None }
    }

    /// What is done.
    #[must_use]
    pub const fn operator(self) -> Operator {
        self.operator
    }

    /// With what.
    #[must_use]
    pub const fn data_type(self) -> DataType {
        self.data_type
    }

    /// Bytes of an element, 1 to 16.
    #[must_use]
    pub const fn element_bytes(self) -> u32 {
        self.data_type.bytes()
    }

    /// Code of both, never 0: the operator's in the upper 16 bits, the type's in the lower. Ranks compare it on the
    /// wire.
    #[must_use]
    pub const fn code(self) -> u32 {
        (self.operator as u32) << 16 | self.data_type as u32
    }

    /// What a code stands for; the code itself when it stands for nothing.
    ///
    /// # Errors
    /// The code.
    pub const fn from_code(code: u32) -> Result<Self, u32> {
        let (Ok(operator), Ok(data_type)) = (Operator::from_raw(code >> 16), DataType::from_raw(code & 0xffff)) else {
            return Err(code);
        };
        match Self::of(operator, data_type) {
            Some(reduction) => Ok(reduction),
            None => Err(code),
        }
    }

    /// Combines the elements of `from` into those of `to`: `to[i] = to[i] op from[i]`. `to` is the operand of the lower
    /// rank. Both start with an element, at any alignment. As many whole elements are combined as both have; what is
    /// behind them in `to` stays.
    pub fn combine(self, to: &mut [u8], from: &[u8]) {
        let len = self.whole(to.len().min(from.len()));
        kernels::run(self, kernels::InPlace { to: &mut to[..len], from: &from[..len] });
    }

    /// Combines out of place: `to[i] = left[i] op right[i]`. `left` is the operand of the lower rank. Lengths and
    /// alignments as in [`Reduction::combine`]: as many whole elements as all three have.
    pub fn combine_into(self, to: &mut [u8], left: &[u8], right: &[u8]) {
        let len = self.whole(to.len().min(left.len()).min(right.len()));
        kernels::run(self, kernels::OutOfPlace { to: &mut to[..len], left: &left[..len], right: &right[..len] });
    }

    /// Bytes of the whole elements in so many bytes.
    const fn whole(self, bytes: usize) -> usize {
        bytes - bytes % self.element_bytes() as usize
    }
}

impl std::fmt::Display for Reduction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {}", self.operator, self.data_type)
    }
}
