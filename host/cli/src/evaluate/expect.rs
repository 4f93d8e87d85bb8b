//! Verdicts: what was expected beside what came out.

use serde::Serialize;

use super::row::{Kind, Row, short};
use super::spec::{Class, Expect};

/// How an expectation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ending {
    /// The value is within its limits.
    Passed,
    /// It is not, or no row reaches what was asked for.
    Failed,
    /// The rows that would tell are not in this run.
    NotRun,
}

impl Ending {
    /// In words.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::NotRun => "not run",
        }
    }
}

/// An expectation and its end.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// The expectation in words.
    pub what: String,
    /// Whose it is.
    pub class: Class,
    /// What was published.
    pub published: Option<String>,
    /// Least value that will do.
    pub at_least: Option<f64>,
    /// Largest.
    pub at_most: Option<f64>,
    /// What came out.
    pub value: Option<f64>,
    /// Where the value comes from.
    pub kind: Option<Kind>,
    /// How it ended.
    pub verdict: Ending,
}

impl Verdict {
    /// The limits in words.
    #[must_use]
    pub fn limits(&self) -> String {
        match (self.at_least, self.at_most) {
            (Some(least), Some(most)) => format!("{} to {}", short(least), short(most)),
            (Some(least), None) => format!("≥ {}", short(least)),
            (None, Some(most)) => format!("≤ {}", short(most)),
            (None, None) => String::new(),
        }
    }
}

/// Holds an expectation against the rows; published ones are no results.
#[must_use]
pub fn judge(expect: &Expect, rows: &[Row]) -> Verdict {
    let results: Vec<&Row> =
        rows.iter().filter(|row| row.kind != Kind::Published && row.fits(&expect.filter)).collect();
    let kind = results.first().map(|row| row.kind);
    let mut missing = false;
    let value = match (&expect.first, expect.reach) {
        (Some(first), Some(reach)) => {
            let reached = results.iter().filter(|row| row.number(&expect.column).is_some_and(|value| value >= reach));
            missing = results.is_empty();
            reached.filter_map(|row| row.number(first)).min_by(f64::total_cmp)
        }
        _ => {
            let value = results.first().and_then(|row| row.number(&expect.column));
            missing |= value.is_none();
            value
        }
    };
    let value = match &expect.over {
        None => value,
        Some(over) => {
            // Kinds are not mixed.
            let base = rows.iter().find(|row| Some(row.kind) == kind && row.fits(over));
            missing |= base.is_none();
            base.and_then(|base| base.number(&expect.column)).and_then(|base| Some(value? / base))
        }
    };
    let within = |value: f64| {
        expect.at_least.is_none_or(|least| value >= least) && expect.at_most.is_none_or(|most| value <= most)
    };
    let verdict = match value {
        _ if missing => Ending::NotRun,
        Some(value) if within(value) => Ending::Passed,
        _ => Ending::Failed,
    };
    Verdict {
        what: expect.what.clone(),
        class: expect.class,
        published: expect.published.clone(),
        at_least: expect.at_least,
        at_most: expect.at_most,
        value: value.filter(|value| value.is_finite()),
        kind: kind.filter(|_| !missing),
        verdict,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<Row> {
        let row = |kind, threads: u32, share: f64| Row::new(kind, "m").with("threads", threads).with("share", share);
        vec![
            row(Kind::Published, 1, 99.0),
            row(Kind::Emulated, 1, 50.0),
            row(Kind::Emulated, 2, 98.0),
            row(Kind::Emulated, 4, 99.0),
            row(Kind::Computed, 9, 99.0),
        ]
    }

    fn judged(text: &str) -> (Ending, Option<f64>) {
        let base = "what = \"w\"\nclass = \"goal\"\ncolumn = \"share\"\n";
        let verdict = judge(&toml::from_str(&format!("{base}{text}")).unwrap(), &rows());
        (verdict.verdict, verdict.value)
    }

    #[test]
    fn values_ratios_and_first_places() {
        assert_eq!(judged("where = { threads = 1 }\nat_least = 50.0"), (Ending::Passed, Some(50.0)));
        assert_eq!(judged("where = { threads = 1 }\nat_most = 49.9"), (Ending::Failed, Some(50.0)));
        assert_eq!(judged("where = { threads = 3 }\nat_most = 49.9"), (Ending::NotRun, None));
        assert_eq!(
            judged("where = { threads = 2 }\nover = { threads = 1 }\nat_least = 1.9"),
            (Ending::Passed, Some(1.96))
        );
        // Of another kind, or of none.
        assert_eq!(judged("where = { threads = 2 }\nover = { threads = 8 }\nat_least = 1.9"), (Ending::NotRun, None));
        assert_eq!(judged("where = { threads = 2 }\nover = { threads = 9 }\nat_least = 1.9"), (Ending::NotRun, None));
        assert_eq!(
            judged("where = { kind = \"emulated\" }\nfirst = \"threads\"\nreach = 97.0\nat_most = 2.0"),
            (Ending::Passed, Some(2.0))
        );
        assert_eq!(
            judged("where = { kind = \"emulated\" }\nfirst = \"threads\"\nreach = 99.5\nat_most = 2.0"),
            (Ending::Failed, None)
        );
    }
}
