//! The unit of time inside the model: 1/12 600 ns. A cycle of the 1.8 GHz DPA is 7000 of them, a byte on a link of 56,
//! 100, 200, 400, 800 or 1600 Gbit/s 1800, 1008, 504, 252, 126 or 63: all exact. 64 bits last for 17 days.

/// Units per nanosecond.
pub const UNITS_PER_NS: u64 = 12_600;
/// Units per second.
pub const UNITS_PER_S: u64 = UNITS_PER_NS * 1_000_000_000;
/// Units per cycle of the DPA (1.8 GHz).
pub const UNITS_PER_CYCLE: u64 = 7_000;

/// Cycles to units.
#[must_use]
pub const fn of_cycles(cycles: u64) -> u64 {
    cycles * UNITS_PER_CYCLE
}

/// Units to the first cycle that begins at or after them.
#[must_use]
pub const fn to_cycles(units: u64) -> u64 {
    units.div_ceil(UNITS_PER_CYCLE)
}

/// What one of `per_s` equal services takes; 0 for no limit on them.
#[must_use]
pub const fn service(per_s: u64) -> u64 {
    match UNITS_PER_S.checked_div(per_s) {
        Some(units) => units,
        None => 0,
    }
}

/// What `bytes` take on a link of `gbit_per_s` x 10^9 bit/s, rounded down.
#[must_use]
pub const fn on_link(bytes: u64, gbit_per_s: u64) -> u64 {
    (bytes as u128 * 8 * UNITS_PER_NS as u128 / gbit_per_s as u128) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_is_whole_at_every_rate_of_the_tables() {
        for (rate, units) in [(56, 1800), (100, 1008), (200, 504), (400, 252), (800, 126), (1600, 63)] {
            assert_eq!(on_link(1, rate), units);
            assert_eq!(on_link(4198, rate), 4198 * units);
        }
        assert_eq!(UNITS_PER_CYCLE * 1_800_000_000, UNITS_PER_S);
        assert_eq!(u64::MAX / UNITS_PER_S / 86_400, 16, "full days");
        assert_eq!((to_cycles(0), to_cycles(1), to_cycles(7000), to_cycles(7001)), (0, 1, 1, 2));
        assert_eq!((service(0), service(UNITS_PER_S)), (0, 1));
    }
}
