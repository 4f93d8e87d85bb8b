//! Results of `flexcast calibrate --json`: how well the timing model predicts what it was not fitted to.

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
    /// How many hold-outs passed, each with all its points.
    pub passed: Score,
    /// Points that it was not fitted to.
    pub holdouts: Vec<Holdout>,
}

/// Hold-outs that passed, of those that could fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Score {
    /// Passed.
    pub passed: usize,
    /// All.
    pub of: usize,
}

/// A published point that the model was not fitted to.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Holdout {
    /// Its name, such as V-2.
    pub id: String,
    /// What it is.
    #[serde(default)]
    pub what: String,
    /// Unit of the figures.
    #[serde(default)]
    pub unit: String,
    /// What was published, a number or words.
    #[serde(default)]
    pub published: serde_json::Value,
    /// What the model says.
    #[serde(default)]
    pub predicted: serde_json::Value,
    /// The same for people, where it is given.
    #[serde(default, rename = "told")]
    pub predicted_text: Option<String>,
    /// The difference in percent.
    #[serde(default)]
    pub error_percent: Option<f64>,
    /// `pass`, `fail`, or why it is neither.
    pub verdict: String,
    /// What threads × clock ÷ cycles would say.
    #[serde(default)]
    pub latency_bound: Option<f64>,
    /// What cores × clock ÷ instructions would say.
    #[serde(default)]
    pub issue_bound: Option<f64>,
}

impl Holdout {
    /// Whether it passed; nothing if it decides neither way.
    #[must_use]
    pub fn passed(&self) -> Option<bool> {
        match self.verdict.as_str() {
            "pass" => Some(true),
            "fail" => Some(false),
            _ => None,
        }
    }
}

impl Calibration {
    /// Reads one from a file.
    ///
    /// # Errors
    /// [`EvaluateError`].
    pub fn read(path: &Path) -> Result<Self, EvaluateError> {
        let what = "calibration";
        let text = flexcast_files::text(path, flexcast_files::TABLE).map_err(|source| EvaluateError::File {
            what,
            path: path.to_owned(),
            source,
        })?;
        serde_json::from_str(&text).map_err(|error| {
            let reason = format!("{error}; write it with `flexcast calibrate --json`");
            EvaluateError::Format { what, path: path.to_owned(), reason }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibrate::holdout::Verdict;

    #[test]
    fn it_is_what_calibrate_writes() {
        let text = r#"{"model": "M.2", "k": 5.743, "passed": {"passed": 1, "of": 2}, "holdouts": [
            {"id": "V-2", "what": "UD", "published": 1084, "predicted": 1100.5, "error_percent": 1.5, "verdict": "pass"},
            {"id": "V-5", "published": "none", "predicted": 3.5, "verdict": "prediction"},
            {"id": "V-9", "published": "0.50", "predicted": null, "verdict": "fail", "latency_bound": 3.0, "other": 1}]}"#;
        let calibration: Calibration = serde_json::from_str(text).unwrap();
        assert_eq!(calibration.passed, Score { passed: 1, of: 2 });
        let passed: Vec<_> = calibration.holdouts.iter().map(Holdout::passed).collect();
        assert_eq!(passed, [Some(true), None, Some(false)]);
        for (verdict, word) in [(Verdict::Pass, "pass"), (Verdict::Fail, "fail")] {
            assert_eq!(serde_json::to_value(verdict).unwrap(), word);
        }
        assert!(serde_json::from_str::<Calibration>("{}").is_err());
    }
}
