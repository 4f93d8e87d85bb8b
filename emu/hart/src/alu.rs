//! The arithmetic that Rust has no operator for. Shift amounts are masked as the architecture does: six bits, or five
//! for the word forms.

/// Sign-extends a word.
#[inline(always)]
pub(crate) const fn sext(word: u32) -> u64 {
    word.cast_signed() as i64 as u64
}

#[inline(always)]
pub(crate) const fn mulh(a: u64, b: u64) -> u64 {
    ((a.cast_signed() as i128 * b.cast_signed() as i128) >> 64) as u64
}

#[inline(always)]
pub(crate) const fn mulhsu(a: u64, b: u64) -> u64 {
    ((a.cast_signed() as i128).wrapping_mul(b as i128) >> 64) as u64
}

#[inline(always)]
pub(crate) const fn mulhu(a: u64, b: u64) -> u64 {
    ((a as u128 * b as u128) >> 64) as u64
}

/// Division by zero gives all ones; the overflowing division gives the dividend. Neither traps.
#[inline(always)]
pub(crate) const fn div(a: u64, b: u64) -> u64 {
    if b == 0 { u64::MAX } else { a.cast_signed().wrapping_div(b.cast_signed()).cast_unsigned() }
}

#[inline(always)]
pub(crate) const fn divu(a: u64, b: u64) -> u64 {
    match a.checked_div(b) {
        Some(quotient) => quotient,
        None => u64::MAX,
    }
}

/// The remainder of a division by zero is the dividend, that of the overflowing division is zero.
#[inline(always)]
pub(crate) const fn rem(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { a.cast_signed().wrapping_rem(b.cast_signed()).cast_unsigned() }
}

#[inline(always)]
pub(crate) const fn remu(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { a % b }
}

#[inline(always)]
pub(crate) const fn divw(a: u64, b: u64) -> u64 {
    let (a, b) = (a as i32, b as i32);
    if b == 0 { u64::MAX } else { a.wrapping_div(b) as i64 as u64 }
}

#[inline(always)]
pub(crate) const fn divuw(a: u64, b: u64) -> u64 {
    let (a, b) = (a as u32, b as u32);
    match a.checked_div(b) {
        Some(quotient) => sext(quotient),
        None => u64::MAX,
    }
}

#[inline(always)]
pub(crate) const fn remw(a: u64, b: u64) -> u64 {
    let (a, b) = (a as i32, b as i32);
    if b == 0 { a as i64 as u64 } else { a.wrapping_rem(b) as i64 as u64 }
}

#[inline(always)]
pub(crate) const fn remuw(a: u64, b: u64) -> u64 {
    let (a, b) = (a as u32, b as u32);
    if b == 0 { sext(a) } else { sext(a % b) }
}

/// Each byte becomes all ones if any of its bits is set.
#[inline(always)]
pub(crate) const fn orc_b(value: u64) -> u64 {
    const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    // The top bit of each byte: set if the byte has a low bit set (the addition carries into it) or its own top bit
    // set.
    let top = (((value & LOW) + LOW) | value) & !LOW;
    (top >> 7).wrapping_mul(0xff)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn orc_b_agrees_with_its_definition(value: u64) {
            let expected = value.to_le_bytes().map(|byte| if byte == 0 { 0 } else { 0xff });
            prop_assert_eq!(orc_b(value), u64::from_le_bytes(expected));
        }

        #[test]
        fn high_products_agree_with_long_multiplication(a: u64, b: u64) {
            // The signed products differ from the unsigned one by the operands that stand for themselves less 2^64.
            let unsigned = mulhu(a, b);
            let minus_b = if a >> 63 == 1 { b } else { 0 };
            let minus_a = if b >> 63 == 1 { a } else { 0 };
            prop_assert_eq!(mulhsu(a, b), unsigned.wrapping_sub(minus_b));
            prop_assert_eq!(mulh(a, b), unsigned.wrapping_sub(minus_b).wrapping_sub(minus_a));
            let (al, ah, bl, bh) = (a & 0xffff_ffff, a >> 32, b & 0xffff_ffff, b >> 32);
            let middle = ((al * bl) >> 32) + ((ah * bl) & 0xffff_ffff) + ((al * bh) & 0xffff_ffff);
            prop_assert_eq!(unsigned, ah * bh + ((ah * bl) >> 32) + ((al * bh) >> 32) + (middle >> 32));
        }

        #[test]
        fn quotient_and_remainder_recompose(a: u64, b: u64) {
            prop_assert_eq!(div(a, b).wrapping_mul(b).wrapping_add(rem(a, b)), a);
            prop_assert_eq!(divu(a, b).wrapping_mul(b).wrapping_add(remu(a, b)), a);
            let recomposed = (divw(a, b) as u32).wrapping_mul(b as u32).wrapping_add(remw(a, b) as u32);
            prop_assert_eq!(recomposed, a as u32);
            let recomposed = (divuw(a, b) as u32).wrapping_mul(b as u32).wrapping_add(remuw(a, b) as u32);
            prop_assert_eq!(recomposed, a as u32);
        }
    }
}
