//! A published point that the model was not fitted to, and what the model makes of it.

use serde::{Serialize, Serializer};

use crate::figures::{WithLimits, thousandths};

/// What became of a prediction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Within what is accepted.
    Pass,
    /// Outside.
    Fail,
    /// Within, but every simple model would be.
    NotDiscriminating,
    /// Nothing is published to hold it against.
    Prediction,
}

impl Verdict {
    /// In words.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "fail",
            Self::NotDiscriminating => "not discriminating",
            Self::Prediction => "prediction",
        }
    }
}

impl Serialize for Verdict {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.name())
    }
}

/// A figure or a band, open at an end that is `None`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Band {
    /// Least.
    pub low: Option<f64>,
    /// Greatest.
    pub high: Option<f64>,
}

impl Band {
    /// One figure.
    #[must_use]
    pub const fn of(value: f64) -> Self {
        Self::between(value, value)
    }

    /// From one to another.
    #[must_use]
    pub const fn between(low: f64, high: f64) -> Self {
        Self { low: Some(low), high: Some(high) }
    }

    /// This or more.
    #[must_use]
    pub const fn least(low: f64) -> Self {
        Self { low: Some(low), high: None }
    }

    /// Less than this, or as much.
    #[must_use]
    pub const fn most(high: f64) -> Self {
        Self { low: None, high: Some(high) }
    }

    /// Some percent more at both ends.
    #[must_use]
    pub fn widened(self, percent: f64) -> Self {
        let scaled = |value: Option<f64>, factor: f64| value.map(|value| value * factor);
        Self { low: scaled(self.low, 1.0 - percent / 100.0), high: scaled(self.high, 1.0 + percent / 100.0) }
    }

    /// The same, absolutely.
    #[must_use]
    pub fn plus_minus(self, by: f64) -> Self {
        Self { low: self.low.map(|low| low - by), high: self.high.map(|high| high + by) }
    }

    /// Whether a value is in it.
    #[must_use]
    pub fn holds(self, value: f64) -> bool {
        self.low.is_none_or(|low| value >= low) && self.high.is_none_or(|high| value <= high)
    }

    /// How far a value is off, in percent of the nearer end; 0 inside.
    #[must_use]
    pub fn error_percent(self, value: f64) -> f64 {
        let end = match (self.low, self.high) {
            (Some(low), _) if value < low => low,
            (_, Some(high)) if value > high => high,
            _ => return 0.0,
        };
        (value / end - 1.0) * 100.0
    }

    /// In words, with as many digits as the figures need.
    #[must_use]
    pub fn text(self) -> String {
        in_words(self.low.map(thousandths), self.high.map(thousandths))
    }

    /// The same for a given value, and that value: with so many digits that they show on which side of an end the value
    /// is.
    #[must_use]
    pub fn text_for(self, value: f64) -> (String, String) {
        let WithLimits { value, least, most } = WithLimits::new(value, self.low, self.high, thousandths);
        (in_words(least, most), value)
    }
}

fn in_words(low: Option<String>, high: Option<String>) -> String {
    match (low, high) {
        (Some(low), Some(high)) if low == high => low,
        (Some(low), Some(high)) => format!("{low} to {high}"),
        (Some(low), None) => format!("at least {low}"),
        (None, Some(high)) => format!("at most {high}"),
        (None, None) => "none".to_owned(),
    }
}

/// One prediction.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HoldOut {
    /// `V-` and a number, and what part of it where there are several.
    pub id: String,
    /// What is compared.
    pub what: String,
    /// Unit of all figures.
    pub unit: &'static str,
    /// What is published, in words.
    pub published: String,
    /// What is accepted, in words.
    pub accepted: String,
    /// What the model says.
    pub predicted: f64,
    /// The same for people, to compare with what is accepted.
    #[serde(rename = "told")]
    pub predicted_text: String,
    /// How far that is from what is published, in percent; 0 inside a band, `None` where nothing is.
    pub error_percent: Option<f64>,
    /// What became of it.
    pub verdict: Verdict,
    /// Threads that only wait for memory; `None` where nobody has published a kernel's cycles.
    pub latency_bound: Option<f64>,
    /// Cores that issue an instruction in every cycle; `None` where nobody has published a kernel's instructions.
    pub issue_bound: Option<f64>,
    /// What a reader has to know.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<&'static str>,
}

impl HoldOut {
    /// A prediction and its verdict.
    #[must_use]
    pub fn new(
        id: impl Into<String>,
        what: impl Into<String>,
        unit: &'static str,
        published: Band,
        accepted: Band,
        predicted: f64,
    ) -> Self {
        let (accepted_text, predicted_text) = accepted.text_for(predicted);
        Self {
            id: id.into(),
            what: what.into(),
            unit,
            published: published.text(),
            accepted: accepted_text,
            predicted,
            predicted_text,
            error_percent: Some(published.error_percent(predicted)),
            verdict: if accepted.holds(predicted) { Verdict::Pass } else { Verdict::Fail },
            latency_bound: None,
            issue_bound: None,
            note: None,
        }
    }

    /// A prediction that nothing is published for.
    #[must_use]
    pub fn prediction(id: impl Into<String>, what: impl Into<String>, unit: &'static str, predicted: f64) -> Self {
        let nothing = Band { low: None, high: None };
        let row = Self::new(id, what, unit, nothing, nothing, predicted);
        Self { verdict: Verdict::Prediction, error_percent: None, ..row }
    }

    /// The same, with the bare bounds.
    #[must_use]
    pub fn bounds(self, latency: Option<f64>, issue: Option<f64>) -> Self {
        Self { latency_bound: latency, issue_bound: issue, ..self }
    }

    /// With a remark.
    #[must_use]
    pub fn note(self, note: &'static str) -> Self {
        Self { note: Some(note), ..self }
    }

    /// A point that simple models reach as well: only a failure says something.
    #[must_use]
    pub fn weak(self) -> Self {
        match self.verdict {
            Verdict::Pass => Self { verdict: Verdict::NotDiscriminating, ..self },
            _ => self,
        }
    }

    /// The hold-out that this is a part of.
    #[must_use]
    pub fn group(&self) -> &str {
        self.id.split('.').next().unwrap_or_default()
    }
}

/// Hold-outs of which all parts pass, and those that can fail. A hold-out that nothing discriminates counts only if it
/// fails.
#[must_use]
pub fn score(rows: &[HoldOut]) -> (usize, usize) {
    let mut groups: Vec<(&str, bool)> = Vec::new();
    for row in rows.iter().filter(|row| matches!(row.verdict, Verdict::Pass | Verdict::Fail)) {
        let passes = row.verdict == Verdict::Pass;
        match groups.iter_mut().find(|(group, _)| *group == row.group()) {
            Some((_, all)) => *all &= passes,
            None => groups.push((row.group(), passes)),
        }
    }
    (groups.iter().filter(|(_, all)| *all).count(), groups.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_measured_from_the_nearer_end_of_a_band() {
        let band = Band::between(1084.0, 1320.0);
        assert_eq!([1084.0, 1200.0, 1320.0].map(|value| band.error_percent(value)), [0.0; 3]);
        assert!((band.error_percent(2640.0) - 100.0).abs() < 1e-9);
        assert!((band.error_percent(542.0) + 50.0).abs() < 1e-9);
        assert!(
            band.widened(20.0).holds(868.0) && !band.widened(20.0).holds(867.0) && !band.widened(20.0).holds(1585.0)
        );
        assert_eq!(Band::least(48.83).error_percent(60.0), 0.0);
        assert!(Band::of(0.92).plus_minus(0.1).holds(0.83));
        assert_eq!((band.text(), Band::of(0.5).text()), ("1084 to 1320".to_owned(), "0.5".to_owned()));
        assert_eq!((Band::least(97.0).text(), Band::most(45.0).text()), ("at least 97".into(), "at most 45".into()));
    }

    #[test]
    fn a_hold_out_passes_if_all_its_parts_do() {
        let row = |id: &str, predicted: f64| HoldOut::new(id, "", "", Band::most(1.0), Band::most(1.0), predicted);
        let rows = [row("V-2", 0.5), row("V-3.uc", 0.5), row("V-3.ud", 2.0), row("V-8", 0.5).weak()];
        assert_eq!(score(&rows), (1, 2));
        assert_eq!(rows[3].verdict, Verdict::NotDiscriminating);
        assert_eq!(score(&[row("V-8", 2.0).weak()]), (0, 1), "what everyone reaches and we do not is a failure");
        assert_eq!(score(&[HoldOut::prediction("V-13", "", "", 1.0)]), (0, 0));
    }
}
