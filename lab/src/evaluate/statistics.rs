//! Statistics of samples: never one number alone.

use serde::Serialize;

use super::row::Row;

/// What is reported of a set of samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Statistics {
    /// Number of samples.
    pub samples: usize,
    /// The middle one, or the mean of the middle two.
    pub median: f64,
    /// Mean.
    pub mean: f64,
    /// Least.
    pub min: f64,
    /// Most.
    pub max: f64,
    /// Percentiles, by linear interpolation between samples.
    pub p1: f64,
    /// 5 %.
    pub p5: f64,
    /// 95 %.
    pub p95: f64,
    /// 99 %.
    pub p99: f64,
    /// Standard deviation (of the samples, n - 1) over the mean; 0 for one sample.
    pub variation: f64,
    /// Interval that holds the median with 95 % confidence, by ranks of samples (binomial, normal approximation); all
    /// samples where there are fewer than six.
    pub median_from: f64,
    /// Its upper end.
    pub median_to: f64,
}

impl Statistics {
    /// Of these samples; `None` for none, or for one that is no number.
    #[must_use]
    pub fn of(samples: &[f64]) -> Option<Self> {
        let mut sorted = samples.to_vec();
        if sorted.is_empty() || sorted.iter().any(|sample| !sample.is_finite()) {
            return None;
        }
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len();
        let at = |part: f64| {
            let place = part * (count - 1) as f64;
            let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
            below + (above - below) * place.fract()
        };
        let mean = sorted.iter().sum::<f64>() / count as f64;
        let squares: f64 = sorted.iter().map(|sample| (sample - mean).powi(2)).sum();
        let deviation = if count > 1 { (squares / (count - 1) as f64).sqrt() } else { 0.0 };
        let (low, high) = median_ranks(count);
        Some(Self {
            samples: count,
            median: at(0.5),
            mean,
            min: sorted[0],
            max: sorted[count - 1],
            p1: at(0.01),
            p5: at(0.05),
            p95: at(0.95),
            p99: at(0.99),
            variation: if mean == 0.0 { 0.0 } else { deviation / mean.abs() },
            median_from: sorted[low],
            median_to: sorted[high],
        })
    }
}

impl Statistics {
    /// A row with all of them but the number of samples, in columns whose names begin with `prefix`.
    #[must_use]
    pub fn columns(&self, row: Row, prefix: &str) -> Row {
        let Self { median, mean, min, max, p1, p5, p95, p99, variation, median_from, median_to, .. } = *self;
        [
            ("median", median),
            ("mean", mean),
            ("min", min),
            ("max", max),
            ("p1", p1),
            ("p5", p5),
            ("p95", p95),
            ("p99", p99),
            ("variation", variation),
            ("median_from", median_from),
            ("median_to", median_to),
        ]
        .into_iter()
        .fold(row, |row, (name, value)| row.with(&format!("{prefix}{name}"), value))
    }
}

/// The ranks, from 0, between which the median of what is sampled lies with 95 % confidence.
fn median_ranks(count: usize) -> (usize, usize) {
    if count < 6 {
        return (0, count - 1);
    }
    let (middle, spread) = (count as f64 / 2.0, 0.98 * (count as f64).sqrt());
    let low = (middle - spread).floor().max(1.0) as usize;
    let high = (middle + spread + 1.0).ceil().min(count as f64) as usize;
    (low - 1, high - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_sample_is_all_there_is() {
        let one = Statistics::of(&[3.0]).unwrap();
        assert_eq!((one.samples, one.median, one.min, one.max, one.p99, one.variation), (1, 3.0, 3.0, 3.0, 3.0, 0.0));
        assert_eq!((one.median_from, one.median_to), (3.0, 3.0));
        assert_eq!((Statistics::of(&[]), Statistics::of(&[1.0, f64::NAN])), (None, None));
    }

    #[test]
    fn a_hundred_samples_in_any_order() {
        let samples: Vec<f64> = (0..101).map(|number| f64::from(number * 37 % 101)).collect();
        let all = Statistics::of(&samples).unwrap();
        assert_eq!((all.median, all.mean, all.min, all.max), (50.0, 50.0, 0.0, 100.0));
        assert_eq!((all.p1, all.p5, all.p95, all.p99), (1.0, 5.0, 95.0, 99.0));
        // The table of Le Boudec gives ranks 41 and 61 (from 1) for 101 samples.
        assert_eq!((all.median_from, all.median_to), (39.0, 61.0));
        assert!((all.variation - 0.586).abs() < 0.001);
    }

    #[test]
    fn what_never_varies_has_no_variation() {
        let same = Statistics::of(&[0.0; 7]).unwrap();
        assert_eq!((same.variation, same.median_from, same.median_to), (0.0, 0.0, 0.0));
    }
}
