//! What `flexcast calibrate --json` has written: how well the timing model predicts what it was not fitted to.

use std::path::Path;

use serde::Deserialize;

use super::EvaluateError;

/// A calibration.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Calibration {
    /// Name of the timing model.
    pub model: String,
    /// The fitted number: cycles from one ordinary instruction of a thread to its next.
    pub k: f64,
    /// Points that it was not fitted to.
    pub holdouts: Vec<Holdout>,
}

/// A published point that the model was not fitted to.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Holdout {
    /// Its name, such as V-2.
    pub id: String,
    /// What it is.
    #[serde(default)]
    pub what: String,
    /// What was published, a number or words.
    #[serde(default)]
    pub published: serde_json::Value,
    /// What the model says.
    #[serde(default)]
    pub predicted: serde_json::Value,
    /// The difference in percent.
    #[serde(default)]
    pub error_percent: Option<f64>,
    /// `passed` or something else.
    pub verdict: String,
    /// What threads × clock ÷ cycles would say.
    #[serde(default)]
    pub latency_bound: Option<f64>,
    /// What cores × clock ÷ instructions would say.
    #[serde(default)]
    pub issue_bound: Option<f64>,
}

impl Holdout {
    /// Whether it passed.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.verdict.eq_ignore_ascii_case("passed") || self.verdict.eq_ignore_ascii_case("pass")
    }
}

impl Calibration {
    /// Reads one from a file.
    ///
    /// # Errors
    /// [`EvaluateError`].
    pub fn read(path: &Path) -> Result<Self, EvaluateError> {
        let what = "calibration";
        let text = std::fs::read_to_string(path).map_err(|source| EvaluateError::File {
            what,
            path: path.to_owned(),
            source,
        })?;
        serde_json::from_str(&text).map_err(|error| {
            let reason = format!("{error}; write it with `flexcast calibrate --json`");
            EvaluateError::Format { what, path: path.to_owned(), reason }
        })
    }

    /// How many hold-outs passed, of how many.
    #[must_use]
    pub fn passed(&self) -> (usize, usize) {
        (self.holdouts.iter().filter(|holdout| holdout.passed()).count(), self.holdouts.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passed_ones_are_counted() {
        let text = r#"{"model": "M.1", "k": 5.743, "holdouts": [
            {"id": "V-2", "what": "UD", "published": 1084, "predicted": 1100.5, "error_percent": 1.5, "verdict": "passed"},
            {"id": "V-9", "published": "0.50", "predicted": null, "verdict": "failed", "latency_bound": 3.0, "other": 1}]}"#;
        let calibration: Calibration = serde_json::from_str(text).unwrap();
        assert_eq!(calibration.passed(), (1, 2));
        assert!(serde_json::from_str::<Calibration>("{}").is_err());
    }
}
