//! Verdicts: what was expected, and what came out.

use serde::Serialize;

use super::row::{Kind, Row};
use super::spec::{Class, Expect};
use crate::figures::{WithLimits, short};

/// How an expectation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ending {
    /// The value is within its limits.
    Passed,
    /// It is not, or no row reaches what was asked for.
    Failed,
    /// The rows that would decide it are not in this run.
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
    /// The other end of the range that came out, of an expectation with two rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other: Option<f64>,
    /// Where the value comes from.
    pub kind: Option<Kind>,
    /// How it ended.
    pub verdict: Ending,
}

impl Verdict {
    /// The limits in words.
    #[must_use]
    pub fn limits(&self) -> String {
        let (least, most) = match self.value.map(|value| self.with_limits(value)) {
            Some(WithLimits { least, most, .. }) => (least, most),
            None => (self.at_least.map(short), self.at_most.map(short)),
        };
        match (least, most) {
            (Some(least), Some(most)) if least == most => least,
            (Some(least), Some(most)) => format!("{least} to {most}"),
            (Some(least), None) => format!("≥ {least}"),
            (None, Some(most)) => format!("≤ {most}"),
            (None, None) => String::new(),
        }
    }

    /// What came out, with as many digits as it takes to compare it with the limits.
    #[must_use]
    pub fn value_text(&self) -> Option<String> {
        let one = self.with_limits(self.value?).value;
        let Some(other) = self.other else { return Some(one) };
        Some(format!("{one} to {}", self.with_limits(other).value))
    }

    fn with_limits(&self, value: f64) -> WithLimits {
        WithLimits::new(value, self.at_least, self.at_most, short)
    }
}

/// Holds an expectation against the rows; published ones are no results. `asked`: what the whole sweep would run, by
/// the columns that are known before. Where a run of it is not among the rows that could have given another verdict,
/// there is none.
#[must_use]
pub fn judge(expect: &Expect, rows: &[Row], asked: &[Row]) -> Verdict {
    if let Some(or) = &expect.or {
        let [one, other] = [&expect.filter, or]
            .map(|filter| judge(&Expect { filter: filter.clone(), or: None, ..expect.clone() }, rows, asked));
        return between(one, &other);
    }
    let within = |value: f64| {
        expect.at_least.is_none_or(|least| value >= least) && expect.at_most.is_none_or(|most| value <= most)
    };
    let results: Vec<&Row> =
        rows.iter().filter(|row| row.kind != Kind::Published && row.fits(&expect.filter)).collect();
    let kind = results.first().map(|row| row.kind);
    let mut missing = false;
    let value = match (&expect.first, expect.reach) {
        (Some(first), Some(reach)) => {
            let reached = results.iter().filter(|row| row.number(&expect.column).is_some_and(|value| value >= reach));
            let found = reached.filter_map(|row| row.number(first)).min_by(f64::total_cmp);
            let has_run = |place: f64| results.iter().any(|row| row.number(first) == Some(place));
            let places = asked.iter().filter(|row| row.fits(&expect.filter)).filter_map(|row| row.number(first));
            let mut others = places.filter(|place| !has_run(*place));
            missing = results.is_empty()
                || match found {
                    Some(found) => others.any(|place| place < found && within(place) != within(found)),
                    None => others.any(within),
                };
            found
        }
        _ if expect.largest => {
            let asked = asked.iter().filter(|row| row.fits(&expect.filter)).count();
            let values = || results.iter().filter_map(|row| row.number(&expect.column));
            let largest = values().max_by(f64::total_cmp);
            // Others might be larger, but not make a failure good.
            missing = largest.is_none_or(|largest| values().count() < asked && within(largest));
            largest
        }
        _ => {
            // What is derived of several runs has a row of its own, next to theirs.
            let value = results.iter().find_map(|row| row.number(&expect.column));
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
        value: value.filter(|value| value.is_finite() && !missing),
        other: None,
        kind: kind.filter(|_| !missing),
        verdict,
    }
}

/// The verdict on the range between what two rows gave.
fn between(one: Verdict, other: &Verdict) -> Verdict {
    let (Some(first), Some(second)) = (one.value, other.value) else {
        let missing = [one.verdict, other.verdict].contains(&Ending::NotRun);
        return Verdict { value: None, verdict: if missing { Ending::NotRun } else { Ending::Failed }, ..one };
    };
    let (least, most) = (first.min(second), first.max(second));
    let meets = one.at_most.is_none_or(|limit| least <= limit) && one.at_least.is_none_or(|limit| most >= limit);
    let verdict = if meets { Ending::Passed } else { Ending::Failed };
    Verdict { value: Some(least), other: Some(most), verdict, ..one }
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
        let verdict = judge(&toml::from_str(&format!("{base}{text}")).unwrap(), &rows(), &[]);
        (verdict.verdict, verdict.value)
    }

    /// Of a sweep over 1, 2, 4, 8, 16, 32 threads these ran; those from `reaching` on reach what was asked for.
    fn judged_of(ran: &[u32], reaching: u32, limits: &str) -> (Ending, Option<f64>) {
        let of = |threads: u32| Row::new(Kind::Emulated, "m").with("threads", threads);
        let row = |&threads: &u32| of(threads).with("share", if threads >= reaching { 99.0 } else { 50.0 });
        let rows: Vec<Row> = ran.iter().map(row).collect();
        let asked: Vec<Row> = [1, 2, 4, 8, 16, 32].map(of).into();
        let text =
            "what = \"w\"\nclass = \"goal\"\ncolumn = \"share\"\nwhere = {}\nfirst = \"threads\"\nreach = 97.0\n";
        let verdict = judge(&toml::from_str(&format!("{text}{limits}")).unwrap(), &rows, &asked);
        (verdict.verdict, verdict.value)
    }

    #[test]
    fn what_was_not_run_neither_fails_nor_passes() {
        let most = "at_most = 2.0";
        // Two threads might have done.
        assert_eq!(judged_of(&[1, 16], 16, most), (Ending::NotRun, None));
        assert_eq!(judged_of(&[1, 16], 99, most), (Ending::NotRun, None));
        // They have not; or one does already.
        assert_eq!(judged_of(&[1, 2, 16], 16, most), (Ending::Failed, Some(16.0)));
        assert_eq!(judged_of(&[1, 2], 99, most), (Ending::Failed, None));
        assert_eq!(judged_of(&[1, 16], 1, most), (Ending::Passed, Some(1.0)));
        // Fewer threads than are allowed might have done, too.
        let least = "at_least = 4.0";
        assert_eq!(judged_of(&[4, 16], 4, least), (Ending::NotRun, None));
        assert_eq!(judged_of(&[1, 2, 16], 16, least), (Ending::Passed, Some(16.0)));
        assert_eq!(judged_of(&[2, 16], 2, least), (Ending::Failed, Some(2.0)));
        assert_eq!(judged_of(&[1, 2, 4], 99, "at_least = 4.0\nat_most = 4.0"), (Ending::Failed, None));
    }

    /// A figure that is shown as it is printed everywhere.
    #[test]
    fn a_failed_value_is_not_shown_as_its_limit() {
        let row = Row::new(Kind::Emulated, "m").with("share", 96.9958);
        let text = "what = \"w\"\nclass = \"goal\"\ncolumn = \"share\"\nwhere = {}\nat_least = 97.0";
        let verdict = judge(&toml::from_str(text).unwrap(), &[row], &[]);
        assert_eq!((verdict.verdict, verdict.limits().as_str()), (Ending::Failed, "≥ 97"));
        assert_eq!(verdict.value_text().as_deref(), Some("96.996"));
    }

    #[test]
    fn the_largest_of_all_rows_counts() {
        let asked: Vec<Row> =
            [1, 2, 4].map(|threads: u32| Row::new(Kind::Emulated, "m").with("threads", threads)).into();
        let judged = |most: f64, asked: &[Row]| {
            let base =
                "what = \"w\"\nclass = \"goal\"\ncolumn = \"share\"\nlargest = true\nwhere = { kind = \"emulated\" }\n";
            let verdict = judge(&toml::from_str(&format!("{base}at_most = {most:.1}")).unwrap(), &rows(), asked);
            (verdict.verdict, verdict.value)
        };
        assert_eq!(judged(99.0, &[]), (Ending::Passed, Some(99.0)));
        assert_eq!(judged(98.5, &[]), (Ending::Failed, Some(99.0)));
        // Of a sweep of three runs all are there; of one of four, the last might be larger.
        assert_eq!(judged(99.0, &asked), (Ending::Passed, Some(99.0)));
        let more = [&asked[..], &asked[..1]].concat();
        assert_eq!((judged(99.0, &more), judged(98.5, &more)), ((Ending::NotRun, None), (Ending::Failed, Some(99.0))));
    }

    #[test]
    fn two_rows_bracket_what_the_publication_leaves_open() {
        let judged = |limits: &str| {
            let base = "what = \"w\"\nclass = \"goal\"\ncolumn = \"share\"\nwhere = { threads = 2 }\n";
            let text = format!("{base}or = {{ threads = 1 }}\n{limits}");
            judge(&toml::from_str(&text).unwrap(), &rows(), &[])
        };
        // 50 to 98.
        for (limits, ending) in [
            ("at_least = 60.0\nat_most = 70.0", Ending::Passed),
            ("at_least = 98.0", Ending::Passed),
            ("at_most = 50.0", Ending::Passed),
            ("at_least = 98.5", Ending::Failed),
            ("at_most = 49.5", Ending::Failed),
        ] {
            let verdict = judged(limits);
            assert_eq!(verdict.verdict, ending, "{limits}");
            assert_eq!((verdict.value, verdict.other), (Some(50.0), Some(98.0)));
            assert_eq!(verdict.value_text().as_deref(), Some("50 to 98"));
        }
        let text = "what = \"w\"\nclass = \"goal\"\ncolumn = \"share\"\nwhere = { threads = 2 }\nor = { threads = 3 \
            }\nat_most = 99.0";
        let verdict = judge(&toml::from_str(text).unwrap(), &rows(), &[]);
        assert_eq!((verdict.verdict, verdict.value), (Ending::NotRun, None), "one of both is missing");
    }

    #[test]
    fn a_derived_value_is_found_among_the_runs() {
        let row = || Row::new(Kind::Emulated, "m").with("by", "service");
        let rows = [row().with("threads", 1u32), row().with("threads", 2u32), row().with("r_squared", 0.99)];
        let text =
            "what = \"w\"\nclass = \"model\"\ncolumn = \"r_squared\"\nwhere = { by = \"service\" }\nat_least = 0.98";
        let verdict = judge(&toml::from_str(text).unwrap(), &rows, &rows[..2]);
        assert_eq!((verdict.verdict, verdict.value), (Ending::Passed, Some(0.99)));
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
