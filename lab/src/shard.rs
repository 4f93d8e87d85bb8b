//! Shards of a list of runs, for job arrays: each job takes every N-th run.

use std::fmt;
use std::str::FromStr;

/// Shard I of N, as `I/N`: of a list the runs number I, I + N, I + 2N, ..., counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    index: u64,
    of: u64,
}

impl Default for Shard {
    /// The only one: all runs.
    fn default() -> Self {
        Self { index: 0, of: 1 }
    }
}

impl Shard {
    /// Whether the run at a position, counted from 0, is of this shard.
    #[must_use]
    pub const fn has(self, position: u64) -> bool {
        position % self.of == self.index
    }

    /// How many of so many runs are of this shard.
    #[must_use]
    pub const fn count(self, all: u64) -> u64 {
        all.saturating_sub(self.index).div_ceil(self.of)
    }

    /// The position, counted from 0, of one of its runs, likewise counted.
    #[must_use]
    pub const fn position(self, number: u64) -> u64 {
        self.index.saturating_add(number.saturating_mul(self.of))
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no shard: give I/N with I from 1 to N, such as 3/8");
        let (index, of) = text.split_once('/').ok_or_else(wrong)?;
        let number = |text: &str| text.parse::<u64>().map_err(|_| wrong());
        let (index, of) = (number(index)?, number(of)?);
        if (1..=of).contains(&index) { Ok(Self { index: index - 1, of }) } else { Err(wrong()) }
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index + 1, self.of)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_no_shard_is_refused() {
        for text in ["", "3", "0/4", "5/4", "1/0", "-1/4", "1/4/2", "a/b", "1/", "/1", "99999999999999999999/1"] {
            assert!(text.parse::<Shard>().is_err(), "{text}");
        }
        assert_eq!("3/8".parse::<Shard>().map(|shard| shard.to_string()), Ok("3/8".to_owned()));
        assert_eq!("1/1".parse(), Ok(Shard::default()));
    }

    proptest! {
        #[test]
        fn every_run_is_of_one_shard(of in 1u64..50, all in 0u64..500) {
            let mut taken = vec![0; all as usize];
            for index in 1..=of {
                let shard: Shard = format!("{index}/{of}").parse().expect("a shard");
                for number in 0..shard.count(all) {
                    let position = shard.position(number);
                    prop_assert!(shard.has(position));
                    taken[position as usize] += 1;
                }
            }
            prop_assert!(taken.iter().all(|times| *times == 1));
        }
    }
}
