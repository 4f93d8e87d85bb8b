//! Probabilities as thresholds of 64-bit draws, computed by exact or basic arithmetic: the same on every machine.

use rand::Rng;
use rand_chacha::ChaCha8Rng;

/// 2⁶⁴: certain.
const CERTAIN: u128 = 1 << 64;

/// How probable something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chance(u128);

impl Chance {
    /// Parts per million, at most a million.
    pub(super) fn ppm(ppm: u32) -> Self {
        Self(u128::from(ppm) * CERTAIN / 1_000_000)
    }

    /// That at least one of `bits` is wrong when each is with probability `rate`: 1 − (1 − rate)^bits, by doubling,
    /// without the cancellation of that formula and with nothing but additions and multiplications.
    pub(super) fn any_bit(rate: f64, bits: u64) -> Self {
        let mut p = 0.0_f64;
        for bit in (0..64 - bits.leading_zeros()).rev() {
            p = p + p - p * p;
            if bits >> bit & 1 == 1 {
                p = p + rate - p * rate;
            }
        }
        // 2⁶⁴ as a float is exact; the cast saturates and cuts.
        Self(((p * 18_446_744_073_709_551_616.0) as u128).min(CERTAIN))
    }

    /// One draw.
    pub(super) fn happens(self, stream: &mut ChaCha8Rng) -> bool {
        u128::from(stream.next_u64()) < self.0
    }

    #[cfg(test)]
    pub(super) fn probability(self) -> f64 {
        self.0 as f64 / CERTAIN as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::{BIT_ERRORS_1E_12, BIT_ERRORS_1E_15};

    #[test]
    fn bit_error_rates_lose_the_published_share_of_frames() {
        let close = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-3, "{a} is not {b}");
        close(Chance::any_bit(BIT_ERRORS_1E_12, 4096 * 8).probability(), 3.2768e-8);
        // 604 million of 2^64: the threshold itself is exact to nine digits.
        close(Chance::any_bit(BIT_ERRORS_1E_15, 4096 * 8).probability(), 3.2768e-11);
        close(Chance::any_bit(1e-5, 32_768).probability(), 0.279_41);
        close(Chance::any_bit(0.5, 2).probability(), 0.75);
        assert_eq!(Chance::any_bit(1.0, 8), Chance::ppm(1_000_000));
        assert_eq!(Chance::any_bit(0.0, 1 << 40), Chance::ppm(0));
        assert_eq!(Chance::any_bit(1e-3, 0), Chance::ppm(0));
    }

    #[test]
    fn more_bits_are_never_safer() {
        let mut last = 0.0;
        for bits in (0..200_000).step_by(997) {
            let p = Chance::any_bit(1e-6, bits).probability();
            assert!(p >= last && p < 1.0);
            last = p;
        }
    }
}
