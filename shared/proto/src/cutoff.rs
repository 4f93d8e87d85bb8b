//! Expected end of multicast: T = N/B + α from the moment the worker is armed. The bound of an operation follows from
//! it, and when send threads that post nothing count as stuck; losses are detected by a stall
//! ([`stall`](crate::stall)), before or after T. α starts as a bound and then follows what operations really took.

/// What α has to cover: everything but the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Overheads {
    /// The barrier, in picoseconds.
    pub barrier_ps: u64,
    /// One activation in a chain, in picoseconds.
    pub activation_ps: u64,
    /// Steps of the schedule, each of which begins with an activation.
    pub steps: u32,
    /// Noise of the network and the workers, in picoseconds.
    pub cutoff_slack_ps: u64,
}

impl Overheads {
    /// The first α, in picoseconds.
    #[must_use]
    pub const fn total_ps(self) -> u64 {
        let activations = self.activation_ps.saturating_mul(self.steps as u64);
        self.barrier_ps.saturating_add(activations).saturating_add(self.cutoff_slack_ps)
    }
}

/// The time that `bytes` need on a link, in picoseconds, rounded up; a link of 0 Gbit/s counts as one of 1.
#[must_use]
pub const fn transfer_ps(bytes: u64, link_gbit_per_s: u64) -> u64 {
    let rate = if link_gbit_per_s == 0 { 1 } else { link_gbit_per_s };
    let ps = (bytes as u128 * 8000).div_ceil(rate as u128);
    if ps > u64::MAX as u128 { u64::MAX } else { ps as u64 }
}

/// A running estimate of α: the 99.9th percentile of what operations took beyond their transfer time.
///
/// The estimate climbs by a share of itself after an operation that exceeded it, and sinks by a 999th part of that
/// after one that did not: it rests where one in a thousand exceeds it, whatever the distribution. It never sinks below
/// a quarter of the first α and never climbs beyond 64 times it: a dead peer must not make barrier timeout endless.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Alpha {
    first_ps: u64,
    ps: u64,
}

impl Alpha {
    /// One operation in so many may exceed α.
    const ONE_IN: u64 = 1000;
    /// An operation that exceeds α raises it by this part of itself.
    const CLIMB: u64 = 8;
    const LEAST: u64 = 4;
    const MOST: u64 = 64;

    /// The estimate before any operation.
    #[must_use]
    pub const fn new(overheads: Overheads) -> Self {
        let first_ps = overheads.total_ps();
        Self { first_ps, ps: first_ps }
    }

    /// α, in picoseconds.
    #[must_use]
    pub const fn ps(self) -> u64 {
        self.ps
    }

    /// The cutoff of an operation that receives `bytes`, in picoseconds after arming.
    #[must_use]
    pub const fn cutoff_ps(self, bytes: u64, link_gbit_per_s: u64) -> u64 {
        transfer_ps(bytes, link_gbit_per_s).saturating_add(self.ps)
    }

    /// Chunks came after the cutoff: it was too early, by nobody knows how much.
    pub const fn came_late(&mut self) {
        let most_ps = self.first_ps.saturating_mul(Self::MOST);
        let ps = self.ps.saturating_add(self.ps / 2);
        self.ps = if ps > most_ps { most_ps } else { ps };
    }

    /// An operation of this many received bytes got its last chunk by multicast `took_ps` after arming.
    pub fn observe(&mut self, bytes: u64, link_gbit_per_s: u64, took_ps: u64) {
        let excess_ps = took_ps.saturating_sub(transfer_ps(bytes, link_gbit_per_s));
        let climb_ps = (self.ps / Self::CLIMB).max(Self::ONE_IN);
        let ps = if excess_ps > self.ps {
            self.ps.saturating_add(climb_ps)
        } else {
            self.ps - climb_ps.min(self.ps) / (Self::ONE_IN - 1)
        };
        let (least_ps, most_ps) = (self.first_ps / Self::LEAST, self.first_ps.saturating_mul(Self::MOST));
        self.ps = ps.clamp(least_ps, most_ps);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OVERHEADS: Overheads =
        Overheads { barrier_ps: 8_000_000, activation_ps: 2_000_000, steps: 4, cutoff_slack_ps: 10_000_000 };

    #[test]
    fn published_transfer_times() {
        assert_eq!(transfer_ps(8 << 20, 200), 335_544_320);
        assert_eq!(transfer_ps(120 << 20, 200), 5_033_164_800);
        assert_eq!(transfer_ps(187 * 65536, 56), 1_750_747_429);
        assert_eq!(transfer_ps(0, 200), 0);
        assert_eq!(transfer_ps(u64::MAX, 0), u64::MAX);
        assert_eq!(OVERHEADS.total_ps(), 26_000_000);
    }

    #[test]
    fn chunks_that_come_late_raise_alpha_within_bounds() {
        let mut alpha = Alpha::new(OVERHEADS);
        alpha.came_late();
        assert_eq!(alpha.ps(), 39_000_000);
        (0..100).for_each(|_| alpha.came_late());
        assert_eq!(alpha.ps(), 64 * 26_000_000);
    }

    #[test]
    fn alpha_follows_what_happens_within_bounds() {
        let mut alpha = Alpha::new(OVERHEADS);
        for _ in 0..200 {
            alpha.observe(4096, 200, u64::MAX);
        }
        assert_eq!(alpha.ps(), 64 * 26_000_000);
        for _ in 0..if cfg!(miri) { 60_000 } else { 200_000 } {
            alpha.observe(4096, 200, 0);
        }
        assert_eq!(alpha.ps(), 26_000_000 / 4);
    }

    proptest! {
        /// Uniform excess between 0 and a limit: about one in a thousand operations ends after its cutoff.
        #[test]
        #[cfg_attr(miri, ignore = "a frequency shows in tens of thousands of operations only")]
        fn one_in_a_thousand_is_late(limit_us in 10u64..200, seed: u64) {
            let mut alpha = Alpha::new(OVERHEADS);
            let (mut state, mut late, mut counted) = (seed | 1, 0u64, 0u64);
            for round in 0..60_000u64 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let excess_ps = (state >> 33) % (limit_us * 1_000_000);
                if round > 20_000 {
                    counted += 1;
                    late += u64::from(excess_ps > alpha.ps());
                }
                alpha.observe(1 << 20, 200, transfer_ps(1 << 20, 200) + excess_ps);
            }
            prop_assert!(late * 1000 < 2 * counted, "{late} of {counted} late at a limit of {limit_us} us");
        }
    }
}
