//! Specification of a measurement: operation, lengths, repetitions.

use std::fmt;
use std::str::FromStr;

use super::op::Op;
use crate::options::parse_bytes;
use crate::sparse::PatternName;

/// Lengths: some, or all powers of two within a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes(Vec<u64>);

impl Sizes {
    /// The lengths in bytes, in their order.
    pub fn iter(&self) -> std::slice::Iter<'_, u64> {
        self.0.iter()
    }
}

impl Sizes {
    /// One length in bytes.
    #[must_use]
    pub fn one(bytes: u64) -> Self {
        Self(vec![bytes])
    }
}

/// As a list in bytes, which can be given again.
impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.iter().map(u64::to_string).collect::<Vec<_>>().join(","))
    }
}

impl Default for Sizes {
    fn default() -> Self {
        Self((6..=23).map(|power| 1 << power).collect())
    }
}

/// Longest length that may be asked for.
const MOST_BYTES: u64 = 1 << 34;

/// A length such as `64`, `4K` or `8M`.
fn length(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text).filter(|bytes| *bytes <= MOST_BYTES);
    bytes.ok_or_else(|| format!("{text:?} is no length: give bytes, such as 64, 4K or 8MiB, up to 16G"))
}

impl FromStr for Sizes {
    type Err = String;

    /// `64,4K,1M`, or `64:8M`, which doubles from one to the other.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some((least, most)) = text.split_once(':') {
            let (least, most) = (length(least)?, length(most)?);
            if least == 0 || least > most {
                return Err(format!(
                    "{text:?} is no range: give the shortest length, at least 1, first, such as 64:8M"
                ));
            }
            let next = |bytes: &u64| bytes.checked_mul(2);
            return Ok(Self(std::iter::successors(Some(least), next).take_while(|bytes| *bytes <= most).collect()));
        }
        text.split(',').map(length).collect::<Result<_, _>>().map(Self)
    }
}

/// Which blocks of 1 KiB are zero, of a sparse AllReduce.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Zeros {
    /// How many of a hundred, on average.
    pub percent: u32,
    /// How ranks' lie to one another.
    pub pattern: PatternName,
}

/// What is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// The operation.
    pub op: Op,
    /// The lengths; each is made one that fits ([`Op::fitting`]).
    pub sizes: Sizes,
    /// Operations that are timed, of each length.
    pub repetitions: u32,
    /// Operations before those.
    pub warm_up: u32,
    /// With the contribution in the receive buffer, where that can be ([`Op::has_in_place`]).
    pub in_place: bool,
    /// Of a sparse AllReduce.
    pub zeros: Zeros,
}

impl Spec {
    /// Whether the contribution lies in the receive buffer.
    #[must_use]
    pub const fn is_in_place(&self) -> bool {
        self.in_place && self.op.has_in_place()
    }
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            op: Op::default(),
            sizes: Sizes::default(),
            repetitions: 20,
            warm_up: 5,
            in_place: false,
            zeros: Zeros { percent: 90, pattern: PatternName::Identical },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_lists_or_ranges() {
        let sizes = |text: &str| text.parse::<Sizes>().map(|sizes| sizes.0);
        assert_eq!(sizes("64,4K,1m").unwrap(), [64, 4096, 1 << 20]);
        assert_eq!(sizes("0").unwrap(), [0]);
        assert_eq!(sizes("100:1K").unwrap(), [100, 200, 400, 800]);
        assert_eq!(sizes("64:64").unwrap(), [64]);
        for wrong in ["", "x", "1T", "-1", "17G", "8:4", "0:4", "1,,2"] {
            let text = sizes(wrong).unwrap_err();
            assert!(text.contains("give"), "{wrong}: {text}");
        }
    }
}
