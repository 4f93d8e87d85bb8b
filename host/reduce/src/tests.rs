//! Tests of reductions: every operator on every type against element by element in wide arithmetic, and what order may
//! not change.

use half::{bf16, f16};
use proptest::prelude::*;

use super::{DataType, Operator, Reduction, Undefined};

fn all() -> impl Iterator<Item = Reduction> {
    DataType::ALL
        .iter()
        .flat_map(|data_type| Operator::ALL.iter().filter_map(|operator| Reduction::of(*operator, *data_type)))
}

/// An element as numbers that hold every value of every type.
#[derive(Clone, Copy, Debug)]
enum Wide {
    Integer(i128),
    /// Of half and single precision, whose sums and products are rounded as if at once when double precision is rounded
    /// to them, as it has more than twice their digits and two; of double precision itself.
    Real(f64),
    Complex32(f32, f32),
    Complex64(f64, f64),
    Located(i64, i32),
    LocatedReal(f64, i32),
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes[..N].try_into().expect("as many")
}

fn widen(data_type: DataType, bytes: &[u8]) -> Wide {
    match data_type {
        DataType::I8 => Wide::Integer((bytes[0] as i8).into()),
        DataType::U8 | DataType::Bool | DataType::Byte => Wide::Integer(bytes[0].into()),
        DataType::I16 => Wide::Integer(i16::from_ne_bytes(array(bytes)).into()),
        DataType::U16 => Wide::Integer(u16::from_ne_bytes(array(bytes)).into()),
        DataType::I32 => Wide::Integer(i32::from_ne_bytes(array(bytes)).into()),
        DataType::U32 => Wide::Integer(u32::from_ne_bytes(array(bytes)).into()),
        DataType::I64 => Wide::Integer(i64::from_ne_bytes(array(bytes)).into()),
        DataType::U64 => Wide::Integer(u64::from_ne_bytes(array(bytes)).into()),
        DataType::F16 => Wide::Real(f16::from_ne_bytes(array(bytes)).to_f64()),
        DataType::BF16 => Wide::Real(bf16::from_ne_bytes(array(bytes)).to_f64()),
        DataType::F32 => Wide::Real(f32::from_ne_bytes(array(bytes)).into()),
        DataType::F64 => Wide::Real(f64::from_ne_bytes(array(bytes))),
        DataType::C64 => Wide::Complex32(f32::from_ne_bytes(array(bytes)), f32::from_ne_bytes(array(&bytes[4..]))),
        DataType::C128 => Wide::Complex64(f64::from_ne_bytes(array(bytes)), f64::from_ne_bytes(array(&bytes[8..]))),
        DataType::FloatInt => {
            Wide::LocatedReal(f32::from_ne_bytes(array(bytes)).into(), i32::from_ne_bytes(array(&bytes[4..])))
        }
        DataType::DoubleInt => {
            Wide::LocatedReal(f64::from_ne_bytes(array(bytes)), i32::from_ne_bytes(array(&bytes[8..])))
        }
        DataType::LongInt => Wide::Located(i64::from_ne_bytes(array(bytes)), i32::from_ne_bytes(array(&bytes[8..]))),
        DataType::TwoInt => {
            Wide::Located(i32::from_ne_bytes(array(bytes)).into(), i32::from_ne_bytes(array(&bytes[4..])))
        }
        DataType::ShortInt => {
            Wide::Located(i16::from_ne_bytes(array(bytes)).into(), i32::from_ne_bytes(array(&bytes[4..])))
        }
    }
}

/// The number of a format of 2 bytes that is nearest to another, of two that are the one with the even bits; found by
/// bisection. Bits count up to those of infinity in the order of magnitudes.
fn nearest(value: f64, infinity: u16, number: impl Fn(u16) -> f64) -> Vec<u8> {
    // What is rounded to infinity lies nearer to where the next number would be.
    let number = |bits| {
        let greatest = number(infinity - 1);
        if bits == infinity { greatest + (greatest - number(infinity - 2)) } else { number(bits) }
    };
    let (magnitude, sign) = (value.abs(), if value.is_sign_negative() { 0x8000 } else { 0 });
    let (mut low, mut high) = (0, infinity);
    while high - low > 1 {
        let middle = low.midpoint(high);
        *(if number(middle) <= magnitude { &mut low } else { &mut high }) = middle;
    }
    let (below, above) = (magnitude - number(low), number(high) - magnitude);
    let is_up = above < below || above == below && low % 2 == 1;
    (if is_up { high } else { low } | sign).to_be_bytes().to_vec()
}

/// The bytes of an element; every NaN is the same.
fn narrow(data_type: DataType, wide: Wide) -> Vec<u8> {
    let real = |value: f64| if value.is_nan() { f64::NAN } else { value };
    let single = |value: f32| if value.is_nan() { f32::NAN } else { value };
    match wide {
        Wide::Integer(value) => value.to_le_bytes()[..data_type.bytes() as usize].iter().copied().rev().collect(),
        Wide::Real(value) => match data_type {
            DataType::F16 if value.is_nan() => f16::NAN.to_be_bytes().to_vec(),
            DataType::F16 => nearest(value, f16::INFINITY.to_bits(), |bits| f16::from_bits(bits).to_f64()),
            DataType::BF16 if value.is_nan() => bf16::NAN.to_be_bytes().to_vec(),
            DataType::BF16 => nearest(value, bf16::INFINITY.to_bits(), |bits| bf16::from_bits(bits).to_f64()),
            DataType::F32 => (real(value) as f32).to_be_bytes().to_vec(),
            _ => real(value).to_be_bytes().to_vec(),
        },
        Wide::Complex32(re, im) => [single(re), single(im)].iter().flat_map(|part| part.to_be_bytes()).collect(),
        Wide::Complex64(re, im) => [real(re), real(im)].iter().flat_map(|part| part.to_be_bytes()).collect(),
        Wide::Located(value, index) => [value.to_be_bytes(), i64::from(index).to_be_bytes()].concat(),
        Wide::LocatedReal(value, index) => [real(value).to_be_bytes(), i64::from(index).to_be_bytes()].concat(),
    }
}

/// Order of reals for Min and Max; `nan`: where a NaN is.
fn key(value: f64, nan: i128) -> i128 {
    // The order of IEEE 754's totalOrder on numbers: magnitude with a sign, and -0 below +0.
    let magnitude = i128::from(value.abs().to_bits());
    if value.is_nan() {
        nan
    } else if value.is_sign_negative() {
        -1 - magnitude
    } else {
        magnitude
    }
}

/// What MPI says, for one pair of elements.
fn expected(reduction: Reduction, left: Wide, right: Wide) -> Wide {
    let least = i128::MIN;
    let (is_min, nan) = match reduction.operator() {
        Operator::Min | Operator::MinLoc => (true, least),
        _ => (false, i128::MAX),
    };
    match (left, right) {
        (Wide::Integer(l), Wide::Integer(r)) => Wide::Integer(match reduction.operator() {
            Operator::Sum => l + r,
            // Modulo 2^128, of which the lower bits are those of the product.
            Operator::Product => l.wrapping_mul(r),
            Operator::Min => l.min(r),
            Operator::Max => l.max(r),
            Operator::LogicalAnd => i128::from(l != 0 && r != 0),
            Operator::LogicalOr => i128::from(l != 0 || r != 0),
            Operator::LogicalXor => i128::from((l != 0) != (r != 0)),
            Operator::BitAnd => l & r,
            Operator::BitOr => l | r,
            Operator::BitXor => l ^ r,
            Operator::MinLoc | Operator::MaxLoc => panic!("{reduction}"),
        }),
        (Wide::Real(l), Wide::Real(r)) => Wide::Real(match reduction.operator() {
            Operator::Sum => l + r,
            Operator::Product => l * r,
            Operator::Min if key(r, nan) < key(l, nan) => r,
            Operator::Max if key(r, nan) > key(l, nan) => r,
            _ => l,
        }),
        (Wide::Complex32(a, b), Wide::Complex32(c, d)) => match reduction.operator() {
            Operator::Sum => Wide::Complex32(a + c, b + d),
            _ => Wide::Complex32(a * c - b * d, a * d + b * c),
        },
        (Wide::Complex64(a, b), Wide::Complex64(c, d)) => match reduction.operator() {
            Operator::Sum => Wide::Complex64(a + c, b + d),
            _ => Wide::Complex64(a * c - b * d, a * d + b * c),
        },
        (Wide::Located(l, i), Wide::Located(r, j)) => {
            let (value, others) = if (l < r) == is_min { (l, r) } else { (r, l) };
            let index = if value == others {
                i.min(j)
            } else if value == l {
                i
            } else {
                j
            };
            Wide::Located(value, index)
        }
        (Wide::LocatedReal(l, i), Wide::LocatedReal(r, j)) => {
            let is_left = if is_min { key(l, nan) < key(r, nan) } else { key(l, nan) > key(r, nan) };
            let tie = l == r || l.is_nan() && r.is_nan();
            let index = if tie {
                i.min(j)
            } else if is_left {
                i
            } else {
                j
            };
            Wide::LocatedReal(if is_left { l } else { r }, index)
        }
        _ => panic!("elements of one type"),
    }
}

/// A buffer in which every NaN is the same.
fn normal(data_type: DataType, buffer: &[u8]) -> Vec<u8> {
    let element = |bytes| narrow(data_type, widen(data_type, bytes));
    buffer.chunks_exact(data_type.bytes() as usize).flat_map(element).collect()
}

/// Elements of every type that make a difference: zeros of both signs, infinities, NaNs of all kinds, the least and the
/// greatest. They are tiled from words of 2, 4 and 8 bytes, so that each is somewhere an element, or the value or index
/// of one.
fn word() -> impl Strategy<Value = [u8; 8]> {
    let halves = prop::sample::select(vec![0_u16, 1, 0x8000, 0x7fff, 0xffff, 0x7c00, 0xfc00, 0x7f80, 0xff80, 0x3c00]);
    let singles = prop::sample::select(vec![0_u32, 1 << 31, 0x7f80_0000, 0xff80_0000, 0x7fc0_0001, 0xffa0_0000, 2, 7]);
    let doubles = prop::sample::select(vec![
        0.0_f64.to_bits(),
        (-0.0_f64).to_bits(),
        f64::INFINITY.to_bits(),
        f64::NEG_INFINITY.to_bits(),
        f64::NAN.to_bits() | 5 | 1 << 63,
        i64::MIN as u64,
        i64::MAX as u64,
        u64::MAX,
        1.5_f64.to_bits(),
    ]);
    prop_oneof![
        3 => any::<[u8; 8]>(),
        1 => any::<[i8; 2]>().prop_map(|small| {
            let [value, index] = small.map(|part| i32::from(part % 4));
            [value.to_ne_bytes(), index.to_ne_bytes()].concat().try_into().expect("8 bytes")
        }),
        1 => any::<[i8; 2]>().prop_map(|small| {
            let [real, imaginary] = small.map(|part| f32::from(part % 4));
            [real.to_ne_bytes(), imaginary.to_ne_bytes()].concat().try_into().expect("8 bytes")
        }),
        1 => prop::array::uniform4(halves)
            .prop_map(|parts| parts.map(u16::to_ne_bytes).concat().try_into().expect("8 bytes")),
        1 => prop::array::uniform2(singles)
            .prop_map(|parts| parts.map(u32::to_ne_bytes).concat().try_into().expect("8 bytes")),
        1 => doubles.prop_map(u64::to_ne_bytes),
    ]
}

/// Bytes of `N` operands, equally long and not always whole elements.
fn operands<const N: usize>() -> impl Strategy<Value = [Vec<u8>; N]> {
    let words = prop::collection::vec(std::array::from_fn::<_, N, _>(|_| word()), 0..40);
    (words, 0_usize..8).prop_map(|(words, less): (Vec<[[u8; 8]; N]>, usize)| {
        let len = (words.len() * 8).saturating_sub(less);
        std::array::from_fn(|operand| {
            let mut bytes: Vec<u8> = words.iter().flat_map(|word| word[operand]).collect();
            bytes.truncate(len);
            bytes
        })
    })
}

/// What a reduction makes of two buffers, both ways of calling it.
fn combined(reduction: Reduction, left: &[u8], right: &[u8], shifts: [usize; 3]) -> Vec<u8> {
    let shifted = |bytes: &[u8], shift: usize| {
        let mut at = vec![0xa5; shift];
        at.extend_from_slice(bytes);
        at
    };
    let [mut in_place, right] = [shifted(left, shifts[0]), shifted(right, shifts[1])];
    let mut out_of_place = vec![0x5a; shifts[2] + left.len()];
    reduction.combine_into(&mut out_of_place[shifts[2]..], &in_place[shifts[0]..], &right[shifts[1]..]);
    reduction.combine(&mut in_place[shifts[0]..], &right[shifts[1]..]);
    let whole = left.len() - left.len() % reduction.element_bytes() as usize;
    let result = in_place.split_off(shifts[0]);
    assert!(in_place.iter().all(|byte| *byte == 0xa5), "{reduction}: bytes before the first element");
    assert_eq!(result[whole..], left[whole..], "{reduction}: bytes behind the last element");
    assert!(out_of_place[shifts[2] + whole..].iter().all(|byte| *byte == 0x5a), "{reduction}: the same");
    let result = result[..whole].to_vec();
    // Which NaN comes of two is the processor's choice, which may be another in another loop.
    let out_of_place = &out_of_place[shifts[2]..shifts[2] + whole];
    assert_eq!(normal(reduction.data_type(), out_of_place), normal(reduction.data_type(), &result), "{reduction}");
    result
}

proptest! {
    // Each case runs all reductions.
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_reduction_is_what_wide_arithmetic_says([left, right] in operands(), shifts in prop::array::uniform3(0_usize..8)) {
        for reduction in all() {
            let data_type = reduction.data_type();
            let bytes = data_type.bytes() as usize;
            let expected: Vec<u8> = left
                .chunks_exact(bytes)
                .zip(right.chunks_exact(bytes))
                .map(|(left, right)| expected(reduction, widen(data_type, left), widen(data_type, right)))
                .flat_map(|wide| narrow(data_type, wide))
                .collect();
            let got = normal(data_type, &combined(reduction, &left, &right, shifts));
            prop_assert_eq!(got, expected, "{}", reduction);
        }
    }

    #[test]
    fn operands_may_change_sides([left, right] in operands()) {
        for reduction in all() {
            let [one, other] = [combined(reduction, &left, &right, [0; 3]), combined(reduction, &right, &left, [0; 3])];
            if matches!(reduction.operator(), Operator::Sum | Operator::Product) {
                let data_type = reduction.data_type();
                prop_assert_eq!(normal(data_type, &one), normal(data_type, &other), "{}", reduction);
            } else {
                prop_assert_eq!(one, other, "{}", reduction);
            }
        }
    }

    /// All but sums and products that round give the same bits in whatever order ranks are combined, NaNs included.
    #[test]
    fn what_does_not_round_does_not_depend_on_the_order([a, b, c] in operands()) {
        let rounds = |reduction: &Reduction| {
            use DataType::{BF16, C64, C128, F16, F32, F64};
            matches!(reduction.operator(), Operator::Sum | Operator::Product)
                && matches!(reduction.data_type(), F16 | BF16 | F32 | F64 | C64 | C128)
        };
        for reduction in all().filter(|reduction| !rounds(reduction)) {
            let of = |left: &[u8], right: &[u8]| combined(reduction, left, right, [0; 3]);
            let whole = a.len() - a.len() % reduction.element_bytes() as usize;
            let [a, b, c] = [&a[..whole], &b[..whole], &c[..whole]];
            prop_assert_eq!(of(&of(a, b), c), of(a, &of(b, c)), "{}", reduction);
        }
    }
}

fn of(operator: Operator, data_type: DataType) -> Reduction {
    Reduction::new(operator, data_type).expect("it is defined")
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

#[test]
fn there_are_116_reductions_and_all_others_are_refused() {
    let mut defined = 0;
    for &data_type in DataType::ALL {
        for &operator in Operator::ALL {
            match Reduction::new(operator, data_type) {
                Ok(reduction) => {
                    defined += 1;
                    assert_eq!((reduction.operator(), reduction.data_type()), (operator, data_type));
                    assert_eq!(Reduction::of(operator, data_type), Some(reduction));
                    assert_eq!(Reduction::from_code(reduction.code()), Ok(reduction));
                }
                Err(error) => {
                    assert!(error == (Undefined { operator, data_type }), "{error}");
                    let text = error.to_string();
                    assert!(text.contains(&format!("{operator} is not defined for {data_type}")), "{text}");
                    assert_eq!(Reduction::of(operator, data_type), None);
                    let code = (operator as u32) << 16 | data_type as u32;
                    assert_eq!(Reduction::from_code(code), Err(code));
                }
            }
        }
    }
    // Arithmetic 14 types, 2 operators; order 12, 2; logical 9, 3; bitwise 9, 3; pairs 5, 2.
    assert_eq!(defined, 14 * 2 + 12 * 2 + 9 * 3 + 9 * 3 + 5 * 2);
    let error = Reduction::new(Operator::BitAnd, DataType::F32).expect_err("bits of a number").to_string();
    assert_eq!(error, "bit-and is not defined for f32, which has sum, product, min, max");
    for code in [0, 1, 1 << 16, 0x000d_0001, 0x0001_0016, u32::MAX] {
        assert_eq!(Reduction::from_code(code), Err(code));
    }
}

#[test]
fn nan_and_zeros_of_both_signs_have_a_place_in_min_and_max() {
    let [left, right] = [
        floats(&[f32::NAN, 1.0, -0.0, 0.0, f32::INFINITY, -f32::NAN]),
        floats(&[1.0, f32::NAN, 0.0, -0.0, 3.0, -f32::NAN]),
    ];
    let of = |operator| {
        let mut to = left.clone();
        of(operator, DataType::F32).combine(&mut to, &right);
        to
    };
    assert_eq!(of(Operator::Min), floats(&[f32::NAN, f32::NAN, -0.0, -0.0, 3.0, f32::NAN]));
    assert_eq!(of(Operator::Max), floats(&[f32::NAN, f32::NAN, 0.0, 0.0, f32::INFINITY, f32::NAN]));
}

#[test]
fn minloc_and_maxloc_give_the_lower_index_of_equal_values_and_nans() {
    let pairs = |pairs: &[(f64, i32)]| -> Vec<u8> {
        pairs
            .iter()
            .flat_map(|(value, index)| [&value.to_ne_bytes()[..], &index.to_ne_bytes(), &[0; 4]].concat())
            .collect()
    };
    let mut left = pairs(&[(1.0, 7), (2.0, 9), (0.0, 2), (f64::NAN, 8), (f64::NAN, 8), (4.0, -1)]);
    let right = pairs(&[(1.0, 3), (-2.0, 1), (-0.0, 5), (1.0, 1), (f64::NAN, 6), (5.0, i32::MIN)]);
    // Padding is no part of an element.
    left[12..16].fill(0xff);
    let mut to = vec![0xff; left.len()];
    of(Operator::MinLoc, DataType::DoubleInt).combine_into(&mut to, &left, &right);
    assert_eq!(to, pairs(&[(1.0, 3), (-2.0, 1), (-0.0, 2), (f64::NAN, 8), (f64::NAN, 6), (4.0, -1)]));
    of(Operator::MaxLoc, DataType::DoubleInt).combine_into(&mut to, &left, &right);
    assert_eq!(to, pairs(&[(1.0, 3), (2.0, 9), (0.0, 2), (f64::NAN, 8), (f64::NAN, 6), (5.0, i32::MIN)]));
}

#[test]
fn half_precision_is_rounded_once_to_the_nearest_even() {
    let sum = of(Operator::Sum, DataType::F16);
    // 2048 + 1 lies between 2048 and 2050, 2050 + 1 between 2050 and 2052, 65504 + 16 between the greatest and
    // infinity.
    let halves =
        |values: &[f32]| -> Vec<u8> { values.iter().flat_map(|value| f16::from_f32(*value).to_ne_bytes()).collect() };
    let mut to = halves(&[2048.0, 2050.0, 65504.0, 1.0]);
    sum.combine(&mut to, &halves(&[1.0, 1.0, 16.0, -1.0]));
    assert_eq!(to, halves(&[2048.0, 2052.0, f32::INFINITY, 0.0]));
}

#[test]
fn operands_of_different_lengths_are_combined_as_far_as_all_go() {
    let sum = of(Operator::Sum, DataType::U16);
    let mut to = [1, 0, 2, 0, 3, 0, 4];
    let mut short = [0; 5];
    sum.combine_into(&mut short, &to, &[1; 7]);
    assert_eq!(short, [2, 1, 3, 1, 0]);
    sum.combine(&mut to, &[1; 5]);
    assert_eq!(to, [2, 1, 3, 1, 3, 0, 4]);
    sum.combine(&mut to, &[]);
    assert_eq!(to, [2, 1, 3, 1, 3, 0, 4]);
}
