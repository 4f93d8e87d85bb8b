//! Loops over the elements of buffers, one for each operator and representation.
//!
//! The operator is chosen once for a call, outside of the loop, and each loop is compiled for its operator: the
//! compiler turns those of plain types into vector instructions, several times: with what every processor has, with
//! AVX2 and with AVX-512. Which of them runs is chosen by the processor (`cargo xtask bench` compares one of them with
//! a loop for every processor); NEON belongs to every arm64. Where signed and unsigned integers give the same bits,
//! both have the unsigned loop; bitwise operators have that of bytes.

use half::slice::HalfFloatSliceExt as _;
use half::{bf16, f16};
use pulp::Arch;

use super::elements::{Complex, DoubleInt, Element, FloatInt, LongInt, Ordered, Pair, ShortInt, TwoInt};
use super::{DataType, Operator, Reduction};

/// Where operands are and results go: slices of the same number of whole elements.
pub(super) trait Operands: Sized {
    /// As many bytes of each as are whole blocks of so many, and the rest.
    fn split(self, block_bytes: usize) -> (Self, Self);

    fn each<const N: usize>(self, operator: impl Fn([u8; N], [u8; N]) -> [u8; N]);
}

/// Results replace the left operands.
pub(super) struct InPlace<'b> {
    pub(super) to: &'b mut [u8],
    pub(super) from: &'b [u8],
}

impl Operands for InPlace<'_> {
    fn split(self, block_bytes: usize) -> (Self, Self) {
        let at = self.to.len() - self.to.len() % block_bytes;
        let ((to, to_rest), (from, from_rest)) = (self.to.split_at_mut(at), self.from.split_at(at));
        (Self { to, from }, Self { to: to_rest, from: from_rest })
    }

    #[inline(always)]
    fn each<const N: usize>(self, operator: impl Fn([u8; N], [u8; N]) -> [u8; N]) {
        let (to, _) = self.to.as_chunks_mut();
        let (from, _) = self.from.as_chunks();
        for (to, from) in to.iter_mut().zip(from) {
            *to = operator(*to, *from);
        }
    }
}

/// Results have a place of their own.
pub(super) struct OutOfPlace<'b> {
    pub(super) to: &'b mut [u8],
    pub(super) left: &'b [u8],
    pub(super) right: &'b [u8],
}

impl Operands for OutOfPlace<'_> {
    fn split(self, block_bytes: usize) -> (Self, Self) {
        let at = self.to.len() - self.to.len() % block_bytes;
        let (to, to_rest) = self.to.split_at_mut(at);
        let ((left, left_rest), (right, right_rest)) = (self.left.split_at(at), self.right.split_at(at));
        (Self { to, left, right }, Self { to: to_rest, left: left_rest, right: right_rest })
    }

    #[inline(always)]
    fn each<const N: usize>(self, operator: impl Fn([u8; N], [u8; N]) -> [u8; N]) {
        let (to, _) = self.to.as_chunks_mut();
        let (left, _) = self.left.as_chunks();
        let (right, _) = self.right.as_chunks();
        for (to, (left, right)) in to.iter_mut().zip(left.iter().zip(right)) {
            *to = operator(*left, *right);
        }
    }
}

/// One loop, over elements of one representation.
fn each<E: Element<N>, const N: usize>(operands: impl Operands, operator: impl Fn(E::Value, E::Value) -> E::Value) {
    Arch::new().dispatch(
        #[inline(always)]
        || {
            operands.each(
                #[inline(always)]
                |left, right| E::store(operator(E::load(left), E::load(right))),
            );
        },
    );
}

/// Elements of [`f16`] that are converted at once.
const F16_BLOCK: usize = 64;

/// The loop over elements of [`f16`]: block by block, as slices are converted by the processor's instructions where it
/// has them, one element by many.
fn each_f16(operands: impl Operands, operator: impl Fn(f32, f32) -> f32) {
    let widen = |bytes: [u8; 2 * F16_BLOCK]| {
        let halves: [f16; F16_BLOCK] = std::array::from_fn(|at| f16::from_ne_bytes([bytes[2 * at], bytes[2 * at + 1]]));
        let mut values = [0.0; F16_BLOCK];
        halves.convert_to_f32_slice(&mut values);
        values
    };
    let narrow = |values: [f32; F16_BLOCK]| {
        let mut halves = [f16::ZERO; F16_BLOCK];
        halves.convert_from_f32_slice(&values);
        let mut bytes = [0; 2 * F16_BLOCK];
        bytes.as_chunks_mut().0.iter_mut().zip(halves).for_each(|(bytes, half)| *bytes = half.to_ne_bytes());
        bytes
    };
    let (blocks, rest) = operands.split(2 * F16_BLOCK);
    blocks.each(|left, right| {
        let (left, right) = (widen(left), widen(right));
        narrow(std::array::from_fn(|at| operator(left[at], right[at])))
    });
    each::<f16, _>(rest, operator);
}

/// Combines operands.
pub(super) fn run(reduction: Reduction, operands: impl Operands) {
    let data_type = reduction.data_type();
    match reduction.operator() {
        Operator::Sum => sum(data_type, operands),
        Operator::Product => product(data_type, operands),
        Operator::Min => min(data_type, operands),
        Operator::Max => max(data_type, operands),
        Operator::LogicalAnd => logical(data_type, operands, |left, right| left & right),
        Operator::LogicalOr => logical(data_type, operands, |left, right| left | right),
        Operator::LogicalXor => logical(data_type, operands, |left, right| left ^ right),
        // The same for integers of any length, which are whole bytes.
        Operator::BitAnd => each::<u8, _>(operands, |left, right| left & right),
        Operator::BitOr => each::<u8, _>(operands, |left, right| left | right),
        Operator::BitXor => each::<u8, _>(operands, |left, right| left ^ right),
        Operator::MinLoc => min_loc(data_type, operands),
        Operator::MaxLoc => max_loc(data_type, operands),
    }
}

fn sum(data_type: DataType, operands: impl Operands) {
    match data_type {
        DataType::I8 | DataType::U8 => each::<u8, _>(operands, u8::wrapping_add),
        DataType::I16 | DataType::U16 => each::<u16, _>(operands, u16::wrapping_add),
        DataType::I32 | DataType::U32 => each::<u32, _>(operands, u32::wrapping_add),
        DataType::I64 | DataType::U64 => each::<u64, _>(operands, u64::wrapping_add),
        DataType::F16 => each_f16(operands, |left, right| left + right),
        DataType::BF16 => each::<bf16, _>(operands, |left, right| left + right),
        // Sums of complex numbers are those of their parts.
        DataType::F32 | DataType::C64 => each::<f32, _>(operands, |left, right| left + right),
        DataType::F64 | DataType::C128 => each::<f64, _>(operands, |left, right| left + right),
        _ => not_defined(Operator::Sum, data_type),
    }
}

fn product(data_type: DataType, operands: impl Operands) {
    match data_type {
        DataType::I8 | DataType::U8 => each::<u8, _>(operands, u8::wrapping_mul),
        DataType::I16 | DataType::U16 => each::<u16, _>(operands, u16::wrapping_mul),
        DataType::I32 | DataType::U32 => each::<u32, _>(operands, u32::wrapping_mul),
        DataType::I64 | DataType::U64 => each::<u64, _>(operands, u64::wrapping_mul),
        DataType::F16 => each_f16(operands, |left, right| left * right),
        DataType::BF16 => each::<bf16, _>(operands, |left, right| left * right),
        DataType::F32 => each::<f32, _>(operands, |left, right| left * right),
        DataType::F64 => each::<f64, _>(operands, |left, right| left * right),
        DataType::C64 => each::<Complex<f32>, _>(operands, |left, right| left * right),
        DataType::C128 => each::<Complex<f64>, _>(operands, |left, right| left * right),
        _ => not_defined(Operator::Product, data_type),
    }
}

fn min(data_type: DataType, operands: impl Operands) {
    match data_type {
        DataType::I8 => each::<i8, _>(operands, Ordered::lesser),
        DataType::U8 => each::<u8, _>(operands, Ordered::lesser),
        DataType::I16 => each::<i16, _>(operands, Ordered::lesser),
        DataType::U16 => each::<u16, _>(operands, Ordered::lesser),
        DataType::I32 => each::<i32, _>(operands, Ordered::lesser),
        DataType::U32 => each::<u32, _>(operands, Ordered::lesser),
        DataType::I64 => each::<i64, _>(operands, Ordered::lesser),
        DataType::U64 => each::<u64, _>(operands, Ordered::lesser),
        DataType::F16 => each_f16(operands, Ordered::lesser),
        DataType::BF16 => each::<bf16, _>(operands, Ordered::lesser),
        DataType::F32 => each::<f32, _>(operands, Ordered::lesser),
        DataType::F64 => each::<f64, _>(operands, Ordered::lesser),
        _ => not_defined(Operator::Min, data_type),
    }
}

fn max(data_type: DataType, operands: impl Operands) {
    match data_type {
        DataType::I8 => each::<i8, _>(operands, Ordered::greater),
        DataType::U8 => each::<u8, _>(operands, Ordered::greater),
        DataType::I16 => each::<i16, _>(operands, Ordered::greater),
        DataType::U16 => each::<u16, _>(operands, Ordered::greater),
        DataType::I32 => each::<i32, _>(operands, Ordered::greater),
        DataType::U32 => each::<u32, _>(operands, Ordered::greater),
        DataType::I64 => each::<i64, _>(operands, Ordered::greater),
        DataType::U64 => each::<u64, _>(operands, Ordered::greater),
        DataType::F16 => each_f16(operands, Ordered::greater),
        DataType::BF16 => each::<bf16, _>(operands, Ordered::greater),
        DataType::F32 => each::<f32, _>(operands, Ordered::greater),
        DataType::F64 => each::<f64, _>(operands, Ordered::greater),
        _ => not_defined(Operator::Max, data_type),
    }
}

/// `operator`: of truth values.
fn logical(data_type: DataType, operands: impl Operands, operator: impl Fn(bool, bool) -> bool) {
    match data_type.bytes() {
        1 => each::<u8, _>(operands, |left, right| operator(left != 0, right != 0).into()),
        2 => each::<u16, _>(operands, |left, right| operator(left != 0, right != 0).into()),
        4 => each::<u32, _>(operands, |left, right| operator(left != 0, right != 0).into()),
        _ => each::<u64, _>(operands, |left, right| operator(left != 0, right != 0).into()),
    }
}

fn min_loc(data_type: DataType, operands: impl Operands) {
    match data_type {
        DataType::FloatInt => each::<FloatInt, _>(operands, Pair::lesser),
        DataType::DoubleInt => each::<DoubleInt, _>(operands, Pair::lesser),
        DataType::LongInt => each::<LongInt, _>(operands, Pair::lesser),
        DataType::TwoInt => each::<TwoInt, _>(operands, Pair::lesser),
        DataType::ShortInt => each::<ShortInt, _>(operands, Pair::lesser),
        _ => not_defined(Operator::MinLoc, data_type),
    }
}

fn max_loc(data_type: DataType, operands: impl Operands) {
    match data_type {
        DataType::FloatInt => each::<FloatInt, _>(operands, Pair::greater),
        DataType::DoubleInt => each::<DoubleInt, _>(operands, Pair::greater),
        DataType::LongInt => each::<LongInt, _>(operands, Pair::greater),
        DataType::TwoInt => each::<TwoInt, _>(operands, Pair::greater),
        DataType::ShortInt => each::<ShortInt, _>(operands, Pair::greater),
        _ => not_defined(Operator::MaxLoc, data_type),
    }
}

fn not_defined(operator: Operator, data_type: DataType) {
    unreachable!("there is no reduction of {data_type} by {operator}");
}
