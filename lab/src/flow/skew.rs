//! Arrival skew: how much later than the first each rank calls, drawn from a distribution or read from a trace.

use std::path::PathBuf;
use std::str::FromStr;

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use thiserror::Error;

/// Offsets of the ranks' arrivals.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Skew {
    /// All call at the same time.
    #[default]
    None,
    /// From 0 to so many microseconds, each as likely.
    Uniform(f64),
    /// Exponential, with this mean in microseconds.
    Exponential(f64),
    /// One rank of so many is late, by so many microseconds: stragglers.
    Stragglers {
        /// One of how many.
        one_of: u32,
        /// By how much.
        us: f64,
    },
    /// Microseconds as measured, rank after rank and iteration after iteration; from the beginning again where they
    /// end.
    Trace(Vec<f64>),
}

/// A skew that cannot be read.
#[derive(Debug, Error)]
pub enum SkewError {
    /// Another form.
    #[error(
        "skew {0:?}: give none, uniform:US, exponential:US, stragglers:ONE_OF:US or trace:FILE, with microseconds from \
         0 to 10000000"
    )]
    Form(String),
    /// A trace that cannot be read.
    #[error("trace {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A trace with something else in it.
    #[error("trace {}, line {line}: {found:?}: give microseconds from 0 to 10000000, one a line", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is there.
        found: String,
    },
}

const MOST_US: f64 = 10_000_000.0;

fn microseconds(text: &str) -> Option<f64> {
    text.trim().parse().ok().filter(|us| (0.0..=MOST_US).contains(us))
}

impl FromStr for Skew {
    type Err = SkewError;

    fn from_str(text: &str) -> Result<Self, SkewError> {
        let form = || SkewError::Form(text.to_owned());
        match text.split_once(':') {
            None if text == "none" => Ok(Self::None),
            Some(("uniform", us)) => microseconds(us).map(Self::Uniform).ok_or_else(form),
            Some(("exponential", us)) => microseconds(us).map(Self::Exponential).ok_or_else(form),
            Some(("stragglers", rest)) => {
                let (one_of, us) = rest.split_once(':').ok_or_else(form)?;
                let one_of = one_of.parse().ok().filter(|one_of| *one_of > 0).ok_or_else(form)?;
                Ok(Self::Stragglers { one_of, us: microseconds(us).ok_or_else(form)? })
            }
            Some(("trace", path)) => trace(path.into()),
            _ => Err(form()),
        }
    }
}

fn trace(path: PathBuf) -> Result<Skew, SkewError> {
    let text = match flexcast_files::text(&path, flexcast_files::TABLE) {
        Ok(text) => text,
        Err(source) => return Err(SkewError::File { path, source }),
    };
    let mut all = Vec::new();
    for (line, found) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let us = microseconds(found);
        all.push(us.ok_or_else(|| SkewError::Line { path: path.clone(), line: line + 1, found: found.to_owned() })?);
    }
    if all.is_empty() {
        return Err(SkewError::Line { path, line: 1, found: String::new() });
    }
    Ok(Skew::Trace(all))
}

impl Skew {
    /// Offset of a rank in an iteration, in picoseconds: the same for the same seed.
    #[must_use]
    pub fn offset_ps(&self, seed: u64, ranks: u32, rank: u32, iteration: u32) -> u64 {
        let place = u64::from(iteration) * u64::from(ranks) + u64::from(rank);
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(place);
        let us = match self {
            Self::None => 0.0,
            Self::Uniform(us) => random.random::<f64>() * us,
            Self::Exponential(us) => -us * (1.0 - random.random::<f64>()).ln(),
            Self::Stragglers { one_of, us } => {
                if random.random_range(0..*one_of) == 0 {
                    *us
                } else {
                    0.0
                }
            }
            Self::Trace(all) => all[(place % all.len() as u64) as usize],
        };
        (us * 1e6) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_drawn() {
        let mean = |text: &str| {
            let skew: Skew = text.parse().unwrap();
            let all: Vec<u64> = (0..40_000).map(|rank| skew.offset_ps(1, 40_000, rank, 0)).collect();
            all.iter().sum::<u64>() as f64 / all.len() as f64 / 1e6
        };
        assert_eq!(mean("none"), 0.0);
        for (text, expected) in [("uniform:100", 50.0), ("exponential:80", 80.0), ("stragglers:4:40", 10.0)] {
            let found = mean(text);
            assert!((found / expected - 1.0).abs() < 0.05, "{text}: {found}");
        }
        let skew = Skew::Exponential(10.0);
        assert_eq!(skew.offset_ps(7, 8, 3, 2), skew.offset_ps(7, 8, 3, 2));
        assert_ne!(skew.offset_ps(7, 8, 3, 2), skew.offset_ps(7, 8, 3, 3));
    }

    #[test]
    fn traces_go_round_and_what_is_wrong_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "1\n2.5\n\n0\n").unwrap();
        let skew: Skew = format!("trace:{}", file.path().display()).parse().unwrap();
        let all: Vec<u64> = (0..5).map(|rank| skew.offset_ps(0, 5, rank, 0)).collect();
        assert_eq!(all, [1_000_000, 2_500_000, 0, 1_000_000, 2_500_000]);
        std::fs::write(file.path(), "1\n-3\n").unwrap();
        let error = format!("trace:{}", file.path().display()).parse::<Skew>().unwrap_err();
        assert!(error.to_string().contains("line 2: \"-3\""), "{error}");
        for wrong in
            ["", "uniform", "uniform:-1", "uniform:x", "stragglers:0:1", "normal:3", "uniform:1e99", "trace:/none"]
        {
            assert!(wrong.parse::<Skew>().is_err(), "{wrong}");
        }
    }
}
