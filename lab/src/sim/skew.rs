//! Skew between the posts of ranks, and each rank's delay.

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

use super::params::SimParams;

/// Most skew that can be asked for, in microseconds: a tenth of what ranks wait for one another unless configured
/// otherwise.
pub const MAX_SKEW_US: u64 = 1_000_000;

/// Skew between the posts of ranks, as an option, a parameter of a run, and in its report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, clap::Args)]
pub struct PostSkew {
    /// Ranks post each operation at times of their own, drawn from 0 to so many microseconds; 0: all at once. A rank's
    /// time runs from its own post to its release (rank_time of --json), the operation's from the first post to the
    /// last release (virtual_time_us).
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = whole_us, allow_negative_numbers = true)]
    pub skew_us: u64,
}

impl PostSkew {
    /// A skew of so many microseconds, at most [`MAX_SKEW_US`].
    #[must_use]
    pub const fn of_us(skew_us: u64) -> Self {
        Self { skew_us }
    }
}

fn whole_us(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("no whole number of microseconds: give 0 to {MAX_SKEW_US}"))
}

const PS_PER_US: u64 = 1_000_000;

/// How much later than the first each rank posts an operation (`iteration`, the warm-up's included), in picoseconds. Of
/// every rank and operation a delay of its own is drawn, uniformly from 0 to the skew asked for; the same seed gives
/// the same. The operation begins with the first post, so the least is 0.
pub(super) fn delays_ps(params: &SimParams, iteration: u32) -> Vec<u64> {
    if params.skew.skew_us == 0 {
        return vec![0; params.ranks as usize];
    }
    let mut random = ChaCha8Rng::seed_from_u64(params.seed);
    // An operation has the same delays however many there are before it.
    random.set_stream(u64::from(iteration) + 1);
    let most_ps = params.skew.skew_us.saturating_mul(PS_PER_US);
    let drawn: Vec<u64> = (0..params.ranks).map(|_| random.random_range(0..=most_ps)).collect();
    let first_ps = drawn.iter().min().copied().unwrap_or_default();
    drawn.into_iter().map(|delay_ps| delay_ps - first_ps).collect()
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::sim::params::Operation;

    fn params(ranks: u32, skew_us: u64, seed: u64) -> SimParams {
        SimParams {
            ranks,
            operation: Operation::Broadcast,
            bytes: 1,
            warm_up: 0,
            seed,
            skew: PostSkew::of_us(skew_us),
            ..SimParams::default()
        }
    }

    #[test]
    fn delays_are_of_their_seed_and_operation_and_fill_their_range() {
        let of = |seed, iteration| delays_ps(&params(1000, 20, seed), iteration);
        assert_eq!(of(1, 0), of(1, 0));
        assert_ne!(of(1, 0), of(1, 1));
        assert_ne!(of(1, 0), of(2, 0));
        for iteration in 0..5 {
            let all = of(7, iteration);
            let (least, most) = (*all.iter().min().unwrap(), *all.iter().max().unwrap());
            assert_eq!(least, 0);
            assert!((19 * PS_PER_US..=20 * PS_PER_US).contains(&most), "{most}");
            let mean = all.iter().sum::<u64>() / all.len() as u64;
            assert!((9 * PS_PER_US..=11 * PS_PER_US).contains(&mean), "{mean}");
        }
    }

    #[test]
    fn without_skew_and_alone_ranks_post_at_once() {
        assert_eq!(delays_ps(&params(3, 0, 1), 4), [0, 0, 0]);
        assert_eq!(delays_ps(&params(1, 20, 1), 4), [0]);
    }
}
