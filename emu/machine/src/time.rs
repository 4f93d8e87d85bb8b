//! Virtual time: picoseconds for everything outside the cores, cycles of the 1.8 GHz DPA clock inside them.
//!
//! One cycle is 5000/9 ps, so a cycle count is exact and a picosecond count is rounded down; conversions go through
//! `u128` and never drift, because both directions start from the absolute count.

/// The DPA core clock (BlueField-3: 1.8 GHz).
pub const DPA_CLOCK_HZ: u64 = 1_800_000_000;

/// Picoseconds per nanosecond.
pub const PS_PER_NS: u64 = 1_000;
/// Picoseconds per microsecond.
pub const PS_PER_US: u64 = 1_000_000;
/// Picoseconds per second.
pub const PS_PER_S: u64 = 1_000_000_000_000;

/// Absolute cycles to absolute picoseconds, rounded down.
#[must_use]
pub const fn cycles_to_ps(cycles: u64) -> u64 {
    // In the first two weeks, without a division of 128 bits.
    if cycles < 1 << 51 {
        return cycles * 5000 / 9;
    }
    (cycles as u128 * 5000 / 9) as u64
}

/// Absolute picoseconds to the first cycle that starts at or after them.
#[must_use]
pub const fn ps_to_cycles(ps: u64) -> u64 {
    if ps < 1 << 60 {
        return (ps * 9).div_ceil(5000);
    }
    ((ps as u128 * 9).div_ceil(5000)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_is_the_clock_rate() {
        assert_eq!(ps_to_cycles(PS_PER_S), DPA_CLOCK_HZ);
        assert_eq!(cycles_to_ps(DPA_CLOCK_HZ), PS_PER_S);
    }

    #[test]
    fn round_trips_never_run_backwards() {
        for cycles in [0, 1, 2, 8, 9, 10, 598, 1_234_567, u64::from(u32::MAX) * 1000] {
            assert_eq!(ps_to_cycles(cycles_to_ps(cycles)), cycles);
        }
        for ps in [0, 1, 555, 556, 999_999_999_999] {
            assert!(cycles_to_ps(ps_to_cycles(ps)) >= ps.saturating_sub(1));
        }
        // Where the short way ends.
        for at in [1 << 51, 1 << 60] {
            for x in at - 2..at + 2 {
                assert_eq!(cycles_to_ps(x), (u128::from(x) * 5000 / 9) as u64);
                assert_eq!(ps_to_cycles(x), (u128::from(x) * 9).div_ceil(5000) as u64);
            }
        }
    }
}
