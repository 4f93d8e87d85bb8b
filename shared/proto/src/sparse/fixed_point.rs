//! Fixed-point numbers, for aggregators that add integers alone, such as a card's DPA: workers turn pairs of `f32` into
//! 64-bit words before an operation, and back after it.
//!
//! A number x is x · 2^e, rounded to the next integer, with one e for all. It is as large as lets no sum of n
//! contributions of magnitude up to a bound leave 32 bits. Two numbers are in a word as the integer high · 2^32 + low,
//! low being signed: the sum of such words is the word of the sums, so that one 64-bit addition adds both. Sums do not
//! depend on the order in which words are added. A pair of zeros is the word 0; so is one of numbers below half of
//! 2^-e.
//!
//! **Error.** Each contribution is off by at most 2^-(e+1), the sum by at most n · 2^-(e+1), and by the rounding of the
//! result to `f32`: half a unit in its last place ([`FixedPoint::error`]). Where a sum is exact in integers nothing
//! else is lost.

use thiserror::Error;

use crate::ranks::MAX_RANKS;

/// Bits of the magnitude of a sum.
const SUM_BITS: i32 = 30;

/// How `f32` numbers of up to a bound become integers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FixedPoint {
    workers: u32,
    bound: f32,
    exponent: i32,
}

/// A bound is never a NaN.
impl Eq for FixedPoint {}

/// A number that is no fixed-point number here.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
pub enum FixedPointError {
    /// Too few or too many.
    #[error("{workers} workers: fixed-point numbers are for 1 to {MAX_RANKS}, so split the group")]
    Workers {
        /// What was given.
        workers: u32,
    },
    /// No bound.
    #[error(
        "bound {bound} of the magnitude of a contribution: give a finite number above 0, from {:e} on",
        f32::MIN_POSITIVE
    )]
    Bound {
        /// What was given.
        bound: f32,
    },
    /// A contribution beyond the bound, or none.
    #[error(
        "contribution {value} at place {place}: its magnitude must be at most {bound}; raise the bound, or sum up as \
         f32 on processors"
    )]
    Beyond {
        /// The contribution.
        value: f32,
        /// Its place in the array.
        place: usize,
        /// The bound.
        bound: f32,
    },
    /// Arrays of other lengths.
    #[error("{words} words for {values} numbers: give a word for each two, and one for the last of an odd number")]
    Length {
        /// Numbers.
        values: usize,
        /// Words.
        words: usize,
    },
}

impl FixedPoint {
    /// For so many workers, none of whose contributions is larger in magnitude than `bound`.
    ///
    /// # Errors
    /// There are too many, or the bound is not finite and above 0.
    pub fn new(workers: u32, bound: f32) -> Result<Self, FixedPointError> {
        if workers == 0 || workers > MAX_RANKS {
            return Err(FixedPointError::Workers { workers });
        }
        if !bound.is_normal() || bound < 0.0 {
            return Err(FixedPointError::Bound { bound });
        }
        // The bound is below 2^(k + 1), and the workers are at most 2^c.
        let k = (bound.to_bits() >> 23) as i32 - 127;
        let c = workers.next_power_of_two().ilog2() as i32;
        Ok(Self { workers, bound, exponent: SUM_BITS - c - (k + 1) })
    }

    /// Greatest magnitude of a contribution.
    #[must_use]
    pub const fn bound(&self) -> f32 {
        self.bound
    }

    /// e: a unit is 2^-e.
    #[must_use]
    pub const fn exponent(&self) -> i32 {
        self.exponent
    }

    /// Largest difference between a sum, before it is rounded to `f32`, and that of the contributions.
    #[must_use]
    pub fn error(&self) -> f64 {
        f64::from(self.workers) * power(-self.exponent - 1)
    }

    /// Turns numbers into words.
    ///
    /// # Errors
    /// A number is beyond the bound, or there are not as many words as pairs. Then no word is written.
    pub fn encode(&self, values: &[f32], words: &mut [u64]) -> Result<(), FixedPointError> {
        self.check(values.len(), words.len())?;
        // Without a branch for each number, this and what follows take several at a time. NaN is beyond any bound.
        let is_within = |value: f32| value.abs() <= self.bound;
        if !values.iter().fold(true, |all, value| all & is_within(*value)) {
            let beyond = values.iter().enumerate().find(|(_, value)| !is_within(**value));
            let error =
                |(place, value): (usize, &f32)| FixedPointError::Beyond { value: *value, place, bound: self.bound };
            return beyond.map(error).map_or(Ok(()), Err);
        }
        let scale = power(self.exponent);
        let (pairs, last) = values.as_chunks::<2>();
        let word = |[low, high]: [f32; 2]| ((integer(high, scale) << 32) + integer(low, scale)) as u64;
        for (pair, to) in pairs.iter().zip(&mut *words) {
            *to = word(*pair);
        }
        if let ([value], Some(to)) = (last, words.last_mut()) {
            *to = word([*value, 0.0]);
        }
        Ok(())
    }

    /// Turns words into numbers.
    ///
    /// # Errors
    /// There are not as many words as pairs.
    pub fn decode(&self, words: &[u64], values: &mut [f32]) -> Result<(), FixedPointError> {
        self.check(values.len(), words.len())?;
        let unit = power(-self.exponent);
        for (word, pair) in words.iter().zip(values.chunks_mut(2)) {
            let low = *word as i32;
            let high = (word.wrapping_sub(i64::from(low) as u64) >> 32) as i32;
            for (value, integer) in pair.iter_mut().zip([low, high]) {
                *value = (f64::from(integer) * unit) as f32;
            }
        }
        Ok(())
    }

    fn check(&self, values: usize, words: usize) -> Result<(), FixedPointError> {
        if words == values.div_ceil(2) { Ok(()) } else { Err(FixedPointError::Length { values, words }) }
    }
}

/// The integer next to value · scale, of two as near the even one. Its magnitude is at most 2^30.
fn integer(value: f32, scale: f64) -> i64 {
    // From 2^52 to 2^53 the integers are all numbers that there are, and the lower half of their bits counts them.
    const ALL_ARE_INTEGERS: f64 = 1.5 * (1u64 << 52) as f64;
    let moved = f64::from(value) * scale + ALL_ARE_INTEGERS;
    i64::from(moved.to_bits() as u32 as i32)
}

/// 2^exponent, which is between 2^-200 and 2^200 here.
fn power(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::string::ToString;
    use std::vec;
    use std::vec::Vec;

    #[test]
    fn what_cannot_be_is_refused_with_the_limit() {
        assert_eq!(FixedPoint::new(0, 1.0), Err(FixedPointError::Workers { workers: 0 }));
        assert_eq!(FixedPoint::new(1025, 1.0), Err(FixedPointError::Workers { workers: 1025 }));
        for bound in [0.0, -1.0, f32::INFINITY, 1e-40] {
            assert_eq!(FixedPoint::new(2, bound), Err(FixedPointError::Bound { bound }));
        }
        let format = FixedPoint::new(4, 1.5).unwrap();
        let mut words = [0; 2];
        for value in [1.6, -1.6, f32::NAN, f32::INFINITY] {
            let error = format.encode(&[0.0, 0.0, value], &mut words).unwrap_err();
            assert!(error.to_string().contains("place 2: its magnitude must be at most 1.5"), "{error}");
        }
        assert_eq!(format.encode(&[0.0; 3], &mut words[..1]), Err(FixedPointError::Length { values: 3, words: 1 }));
        assert_eq!(format.decode(&words, &mut [0.0; 5]), Err(FixedPointError::Length { values: 5, words: 2 }));
    }

    #[test]
    fn a_number_becomes_the_next_integer() {
        // e is 27: a unit is 2^-27.
        let format = FixedPoint::new(4, 1.0).unwrap();
        let unit = power(-27) as f32;
        for (units, integer) in [
            (0.0, 0),
            (-0.0, 0),
            (0.5, 0),
            (-0.5, 0),
            (0.75, 1),
            (-0.75, -1),
            (1.5, 2),
            (2.5, 2),
            (-7.0, -7),
            (7.25, 7),
        ] {
            let mut words = [9; 2];
            format.encode(&[units * unit, 1.0, units * unit], &mut words).unwrap();
            assert_eq!(words, [((1i64 << 27 << 32) + integer) as u64, integer as u64], "{units}");
        }
        let mut words = [9];
        for values in [[1.0, 1.5], [f32::NAN, 1.0]] {
            assert!(format.encode(&values, &mut words).is_err());
            assert_eq!(words, [9], "nothing is written");
        }
    }

    #[test]
    fn the_largest_sums_fit() {
        for (workers, bound) in [(1, f32::MAX), (1024, f32::MAX), (1024, f32::MIN_POSITIVE), (3, 0.75), (7, 1.0)] {
            let format = FixedPoint::new(workers, bound).unwrap();
            for signs in [[1.0, 1.0], [-1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]] {
                let mut word = [0];
                format.encode(&signs.map(|sign| sign * bound), &mut word).unwrap();
                let sum = (0..workers).fold(0u64, |sum, _| sum.wrapping_add(word[0]));
                let mut values = [0.0; 2];
                format.decode(&[sum], &mut values).unwrap();
                for (value, sign) in values.into_iter().zip(signs) {
                    let expected = f64::from(sign) * f64::from(bound) * f64::from(workers);
                    let expected = expected as f32;
                    assert!(
                        value == expected || (f64::from(value) - f64::from(expected)).abs() <= 2.0 * format.error(),
                        "{workers} x {bound}: {value}"
                    );
                }
            }
        }
    }

    proptest! {
        #[test]
        fn sums_are_within_the_error_and_do_not_depend_on_the_order(
            bound in 1e-3f32..1e6,
            columns in proptest::collection::vec(proptest::collection::vec(-1.0f32..=1.0, 1..9), 1..7),
        ) {
            let len = columns.iter().map(Vec::len).min().unwrap();
            let workers: Vec<Vec<f32>> =
                columns.iter().map(|column| column[..len].iter().map(|part| part * bound).collect()).collect();
            let format = FixedPoint::new(workers.len() as u32, bound).unwrap();
            let encoded: Vec<Vec<u64>> = workers
                .iter()
                .map(|values| {
                    let mut words = vec![0; len.div_ceil(2)];
                    format.encode(values, &mut words).unwrap();
                    words
                })
                .collect();
            let add = |mut sum: Vec<u64>, more: &Vec<u64>| {
                sum.iter_mut().zip(more).for_each(|(sum, more)| *sum = sum.wrapping_add(*more));
                sum
            };
            let sum = encoded.iter().fold(vec![0; len.div_ceil(2)], add);
            prop_assert_eq!(&sum, &encoded.iter().rev().fold(vec![0; len.div_ceil(2)], add));
            let mut values = vec![0.0; len];
            format.decode(&sum, &mut values).unwrap();
            for (at, value) in values.iter().enumerate() {
                let exact: f64 = workers.iter().map(|worker| f64::from(worker[at])).sum();
                let rounding = f64::from(value.abs()) * f64::from(f32::EPSILON) / 2.0;
                prop_assert!((f64::from(*value) - exact).abs() <= format.error() + rounding, "{value} for {exact}");
            }
        }
    }
}
