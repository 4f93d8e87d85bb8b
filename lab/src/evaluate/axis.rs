//! Axes of a plot: from values to places, and where ticks go.

use super::spec::Scale;
use crate::figures::short;

/// One axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    scale: Scale,
    from: f64,
    to: f64,
    /// Places in the drawing, of `from` and `to`.
    start: f64,
    end: f64,
}

impl Axis {
    /// An axis that holds these values, drawn from `start` to `end`. Linear ones begin at zero.
    #[must_use]
    pub fn new(scale: Scale, values: &[f64], start: f64, end: f64) -> Self {
        let finite = values.iter().copied().filter(|value| value.is_finite());
        let most = finite.clone().fold(f64::MIN, f64::max);
        let (from, to) = match scale {
            Scale::Linear => (0.0, if most > 0.0 { most * 1.06 } else { 1.0 }),
            Scale::Log2 | Scale::Log10 => {
                let least = finite.filter(|value| *value > 0.0).fold(f64::MAX, f64::min);
                match () {
                    () if least > most => (1.0, 2.0),
                    // In the middle, if it is alone.
                    () if least == most => (least / 2.0, least * 2.0),
                    () => (least, most),
                }
            }
        };
        Self { scale, from, to, start, end }
    }

    /// Where a value is drawn; within the axis.
    #[must_use]
    pub fn place(&self, value: f64) -> f64 {
        self.start + self.part(value).clamp(0.0, 1.0) * (self.end - self.start)
    }

    /// Where it would be drawn if the axis went on, three times as far at most: for lines that are cut off at its end.
    #[must_use]
    pub fn beyond(&self, value: f64) -> f64 {
        self.start + self.part(value).clamp(0.0, 3.0) * (self.end - self.start)
    }

    fn part(&self, value: f64) -> f64 {
        match self.scale {
            Scale::Linear => (value - self.from) / (self.to - self.from),
            Scale::Log2 | Scale::Log10 => (value.max(self.from) / self.from).ln() / (self.to / self.from).ln(),
        }
    }

    /// Values at which ticks are, with what stands there; at most ten.
    #[must_use]
    pub fn ticks(&self) -> Vec<(f64, String)> {
        let values: Vec<f64> = match self.scale {
            Scale::Linear => {
                let rough = self.to / 6.0;
                let power = 10f64.powf(rough.log10().floor());
                let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|step| step * power).into_iter().find(|step| *step >= rough);
                let step = step.unwrap_or(rough);
                (0..).map(|number| f64::from(number) * step).take_while(|value| *value <= self.to).take(12).collect()
            }
            Scale::Log2 => {
                let all: Vec<f64> = (-40..60)
                    .map(|power| 2f64.powi(power))
                    .filter(|value| (self.from * 0.999..=self.to * 1.001).contains(value))
                    .collect();
                let every = all.len().div_ceil(10).max(1);
                all.into_iter().step_by(every).collect()
            }
            Scale::Log10 => {
                let all = |steps: &[f64]| -> Vec<f64> {
                    let powers = (-12..=18).flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power)));
                    powers.filter(|value| (self.from * 0.999..=self.to * 1.001).contains(value)).collect()
                };
                let fits = |values: &Vec<f64>| (1..=10).contains(&values.len());
                let steps: [&[f64]; 4] = [&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0], &[1.0, 2.0, 5.0], &[1.0, 3.0], &[1.0]];
                let found = steps.into_iter().map(all).find(fits);
                found.unwrap_or_else(|| vec![self.from, self.to])
            }
        };
        values.into_iter().map(|value| (value, label(value))).collect()
    }
}

/// A value as it stands at an axis or a bar: large powers of two, and a few of them, with their prefix, other large
/// numbers with theirs.
#[must_use]
pub fn label(value: f64) -> String {
    // 1024 and 2048 are often counts of something, and short enough.
    for (unit, least, name) in [(f64::from(1 << 30), 1.0, "Gi"), (f64::from(1 << 20), 1.0, "Mi"), (1024.0, 4.0, "Ki")] {
        let units = value / unit;
        if (least..1024.0).contains(&units) && units.fract() == 0.0 {
            return format!("{units} {name}");
        }
    }
    for (unit, name) in [(1e9, "G"), (1e6, "M")] {
        if value >= unit {
            return format!("{} {name}", short(value / unit));
        }
    }
    short(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_within_and_few() {
        for scale in [Scale::Linear, Scale::Log2, Scale::Log10] {
            for most in [0.0, 0.003, 1.0, 23.0, 190.0, 1e9] {
                let axis = Axis::new(scale, &[1.0, most, f64::NAN], 0.0, 100.0);
                let ticks = axis.ticks();
                assert!((1..=12).contains(&ticks.len()), "{scale:?} {most}: {ticks:?}");
                assert!(ticks.iter().all(|(value, _)| (-0.01..=100.01).contains(&axis.place(*value))));
            }
        }
    }

    #[test]
    fn values_have_their_places() {
        let linear = Axis::new(Scale::Linear, &[50.0], 0.0, 106.0);
        assert!((linear.place(25.0) - 50.0).abs() < 1e-9 && linear.place(-1.0) == 0.0 && linear.place(1e9) == 106.0);
        assert!((linear.beyond(100.0) - 200.0).abs() < 1e-9 && (linear.beyond(1e9) - 318.0).abs() < 1e-9);
        let doublings = Axis::new(Scale::Log2, &[1.0, 16.0], 300.0, 0.0);
        assert!((doublings.place(4.0) - 150.0).abs() < 1e-9);
        let tens = Axis::new(Scale::Log10, &[8.0, 12_000.0], 0.0, 100.0);
        let ticks: Vec<String> = tens.ticks().into_iter().map(|(_, text)| text).collect();
        assert_eq!(ticks, ["10", "20", "50", "100", "200", "500", "1000", "2000", "5000", "10000"]);
        let none = Axis::new(Scale::Log2, &[], 0.0, 1.0);
        assert!(none.place(1.0).is_finite());
        assert_eq!(
            (label(1_048_576.0), label(2_097_152.0), label(524_288.0)),
            ("1 Mi".into(), "2 Mi".into(), "512 Ki".into())
        );
        assert_eq!((label(69_599_232.0), label(5e9), label(20_000.0)), ("69.6 M".into(), "5 G".into(), "20000".into()));
        let alone = Axis::new(Scale::Log2, &[64.0], 0.0, 100.0);
        assert!((alone.place(64.0) - 50.0).abs() < 1e-9);
        assert_eq!((label(8_388_608.0), label(4096.0), label(1024.0)), ("8 Mi".into(), "4 Ki".into(), "1024".into()));
    }
}
