//! The page: one file, no script to read it, nothing from the network, light and dark.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::calibration::{Calibration, Holdout, Score};
use super::expect::{Ending, Verdict};
use super::plot;
use super::row::{Cell, Kind, Row};
use super::run::Outcome;
use crate::figures::short;

/// What stands above the experiments.
#[derive(Clone, Debug, PartialEq)]
pub struct Head {
    /// Timing model behind the emulated figures.
    pub model: String,
    /// The calibration, if one was given.
    pub calibration: Option<Calibration>,
    /// Whether the sweeps are the reduced ones.
    pub reduced: bool,
    /// The commit that the figures were made from.
    pub commit: Option<String>,
}

/// How many expectations ended each way.
#[must_use]
pub fn tally<'a>(verdicts: impl Iterator<Item = &'a Verdict>) -> [usize; 3] {
    verdicts.fold([0; 3], |mut counts, verdict| {
        counts[match verdict.verdict {
            Ending::Passed => 0,
            Ending::Failed => 1,
            Ending::NotRun => 2,
        }] += 1;
        counts
    })
}

/// The first line: how well the model predicts what it was not fitted to.
#[must_use]
pub fn holdouts(head: &Head) -> String {
    match &head.calibration {
        None => format!(
            "Model {}: no calibration was given (flexcast calibrate --json, then --calibration FILE); how well it \
             predicts is not shown here",
            head.model
        ),
        Some(calibration) => {
            let Score { passed, of: all } = calibration.passed;
            format!(
                "Model {}, fitted on one number (k = {} cycles): hold-outs passed {passed} of {all}",
                calibration.model,
                short(calibration.k)
            )
        }
    }
}

/// A page in one file, with nothing from the network, light and dark.
pub(crate) fn document(title: &str, body: &Markup) -> String {
    let markup = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                style { (PreEscaped(include_str!("page.css"))) }
            }
            body { (body) }
        }
    };
    markup.into_string()
}

/// The page.
#[must_use]
pub fn page(head: &Head, outcomes: &[Outcome]) -> String {
    let [passed, failed, not_run] = tally(outcomes.iter().flat_map(|outcome| &outcome.verdicts));
    let body = html! {
                h1 { "Flexcast: evaluation" }
                p.lead #holdouts { (holdouts(head)) }
                p {
                    "Expectations: " span.passed { (passed) " passed" } ", " span.failed { (failed) " failed" } ", "
                    span.not-run { (not_run) " not run" } ". "
                    @if head.reduced { strong { "Reduced sweeps: for checks that nothing has drifted, not for reading." } }
                }
                p.soft {
                    "Emulated figures are virtual time of emulated cards under model " (head.model)
                    "; computed ones are closed forms; published ones were printed elsewhere. No row mixes them. Times \
                     are shown only for runs "
                    "whose every byte was compared with what was sent. Nothing here was measured on a card. UD figures \
                     carry −0/+22 %: the "
                    "publication's own UD throughput is that much below what its cycles give."
                }
                @if let Some(calibration) = &head.calibration { (holdout_table(calibration)) }
                nav { ol { @for outcome in outcomes {
                    @let [passed, failed, not_run] = tally(outcome.verdicts.iter());
                    li {
                        a href=(format!("#{}", outcome.experiment.id)) { (outcome.experiment.title) }
                        span.kind { (passed) " passed, " (failed) " failed" @if not_run > 0 { ", " (not_run) " not run" } }
                    }
                } } }
                @for outcome in outcomes { (experiment(head, outcome)) }
    };
    document("Flexcast: evaluation", &body)
}

/// Text in which names stand between backticks.
fn prose(text: &str) -> Markup {
    // A backtick without its other half is one.
    let pairs = text.matches('`').count() / 2;
    let mut parts = text.splitn(2 * pairs + 1, '`');
    html! {
        (parts.next().unwrap_or_default())
        @while let (Some(name), Some(rest)) = (parts.next(), parts.next()) { code { (name) } (rest) }
    }
}

fn experiment(head: &Head, outcome: &Outcome) -> Markup {
    let spec = &outcome.experiment;
    html! {
        section id=(spec.id) {
            h2 { (spec.title) }
            p.soft { (prose(&spec.paper)) }
            p.question { (prose(&spec.question)) }
            @for (run, reason) in &outcome.failures {
                p.failed { "A run has failed, and no figure of it is shown: " (reason) }
                pre { (run) }
            }
            @if !spec.plot.is_empty() {
                div.plots {
                    @for (number, drawn) in spec.plot.iter().enumerate() {
                        @let bounds = outcome.bounds.get(number).map_or(&[][..], Vec::as_slice);
                        (plot::figure(&format!("{}-{}", spec.id, number + 1), drawn, &plot::series(drawn, &outcome.rows, bounds)))
                    }
                }
            }
            (verdicts(&outcome.verdicts))
            @for note in &spec.notes { p.soft { (prose(note)) } }
            @for (kind, source) in kinds(&outcome.rows) { (table(outcome, kind, &source)) }
            p.soft { "Run it again:" }
            pre { "flexcast report --only " (spec.id) @if head.reduced { " --reduced" } }
        }
    }
}

fn verdicts(verdicts: &[Verdict]) -> Markup {
    html! {
        div.scroll { table.verdicts {
            thead { tr { th { "Expected" } th { "of" } th.number { "published" } th.number { "limits" } th.number { "came out" } th { "kind" } th { "verdict" } } }
            tbody { @for verdict in verdicts { tr {
                td { (prose(&verdict.what)) }
                td { (format!("{:?}", verdict.class).to_lowercase()) }
                td.number { (verdict.published.as_deref().unwrap_or("–")) }
                td.number { (verdict.limits()) }
                td.number { (verdict.value_text().unwrap_or_else(|| "–".to_owned())) }
                td { (verdict.kind.map_or("", Kind::name)) }
                td class=(format!("{}", verdict.verdict.name().replace(' ', "-"))) { (verdict.verdict.name()) }
            } } }
        } }
    }
}

/// Kinds and sources of rows, in order; published rows share one table.
fn kinds(rows: &[Row]) -> Vec<(Kind, String)> {
    let mut kinds = Vec::new();
    for row in rows {
        let source = if row.kind == Kind::Published { String::new() } else { row.source.clone() };
        if !kinds.contains(&(row.kind, source.clone())) {
            kinds.push((row.kind, source));
        }
    }
    kinds
}

fn table(outcome: &Outcome, kind: Kind, source: &str) -> Markup {
    let rows: Vec<&Row> = outcome
        .rows
        .iter()
        .filter(|row| row.kind == kind && (kind == Kind::Published || row.source == source))
        .collect();
    let all = super::output::columns(outcome);
    // What was published can have columns of its own.
    let wanted = if kind == Kind::Emulated { &outcome.experiment.columns } else { &all };
    let columns: Vec<&String> =
        wanted.iter().filter(|column| rows.iter().any(|row| row.get(column).is_some())).collect();
    let numeric = |column: &str| rows.iter().all(|row| !matches!(row.get(column), Some(Cell::Word(_))));
    let body = html! {
        div.scroll { table {
            caption {
                (kind.name())
                @match kind {
                    Kind::Emulated => { ", model " (source) },
                    Kind::Computed | Kind::Measured => { ": " (source) },
                    Kind::Published => {},
                }
            }
            thead { tr {
                @for column in &columns { th class=[numeric(column).then_some("number")] { (heading(column)) } }
                @if kind == Kind::Published { th { "origin" } }
            } }
            tbody { @for row in &rows { tr {
                @for column in &columns {
                    td class=[numeric(column).then_some("number")] { (row.shown(column).unwrap_or_default()) }
                }
                @if kind == Kind::Published { td { (row.source) } }
            } } }
        } }
    };
    html! { @if rows.len() > 36 { details { summary { (rows.len()) " rows, " (kind.name()) ": " (source) } (body) } } @else { (body) } }
}

/// A column's name in words.
#[must_use]
pub fn heading(column: &str) -> String {
    let known = [
        ("goodput_gib_s", "goodput GiB/s"),
        ("goodput_gbit_s", "goodput Gbit/s"),
        ("link_percent", "% of the link's goodput"),
        ("chunks_m_s", "M chunks/s"),
        ("instructions_per_cqe", "instructions/CQE"),
        ("cycles_per_cqe", "cycles/CQE"),
        ("instructions_per_cycle", "instructions/cycle"),
        ("chunk_bytes", "chunk bytes"),
        ("rank_gbit_s_median", "median of ranks Gbit/s"),
        ("rank_gbit_s_p5", "5 %"),
        ("rank_gbit_s_p95", "95 %"),
        ("rank_gbit_s_variation", "coefficient of variation"),
        ("time_us", "µs"),
    ];
    if let Some((_, words)) = known.iter().find(|(name, _)| *name == column) {
        return (*words).to_owned();
    }
    // The unit is at the end of the name.
    let units = [
        ("_gbit_s", " Gbit/s"),
        ("_us", " µs"),
        ("_percent", " %"),
        ("_kib", " KiB"),
        ("_mib", " MiB"),
        ("_gib", " GiB"),
    ];
    let unit = units.iter().find_map(|(name, unit)| Some((column.strip_suffix(name)?, *unit)));
    let (name, unit) = unit.unwrap_or((column, ""));
    name.replace('_', " ") + unit
}

fn holdout_table(calibration: &Calibration) -> Markup {
    let value = |value: &serde_json::Value| match value {
        serde_json::Value::Null => "–".to_owned(),
        serde_json::Value::Number(number) => number.as_f64().map_or_else(|| number.to_string(), short),
        serde_json::Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let number = |number: Option<f64>| number.map_or_else(|| "–".to_owned(), short);
    let class = |holdout: &Holdout| match holdout.passed() {
        Some(true) => "passed",
        Some(false) => "failed",
        None => "soft",
    };
    let table = |holdouts: &[&Holdout]| {
        html! {
            div.scroll { table.holdouts {
                thead { tr {
                    th { "point" } th { "what" } th { "unit" } th.number { "published" } th.number { "predicted" } th.number { "error %" }
                    th.number { "latency bound" } th.number { "issue bound" } th { "verdict" }
                } }
                tbody { @for holdout in holdouts { tr {
                    td { (holdout.id) } td { (holdout.what) } td { (holdout.unit) }
                    td.number { (value(&holdout.published)) } td.number { (holdout.predicted_text.clone().unwrap_or_else(|| value(&holdout.predicted))) }
                    td.number { (number(holdout.error_percent)) }
                    td.number { (number(holdout.latency_bound)) } td.number { (number(holdout.issue_bound)) }
                    td class=(class(holdout)) { (holdout.verdict) }
                } } }
            } }
        }
    };
    let (judged, others): (Vec<&Holdout>, Vec<&Holdout>) =
        calibration.holdouts.iter().partition(|holdout| holdout.passed().is_some());
    html! {
        div #calibration {
            p.soft {
                "Hold-outs: published points that the model was not fitted to, each passed if all its points are. \
                 Predictions are emulated, model "
                (calibration.model) "; bounds are computed."
            }
            (table(&judged))
            @if !others.is_empty() {
                details {
                    summary { (others.len()) " points that decide neither way: nothing was published to compare with, \
                        or any model would pass" }
                    (table(&others))
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluate::{expect, spec};

    fn outcome() -> Outcome {
        let experiment = spec::parse(
            r#"
            id = "x"
            order = 1
            title = "A <title>"
            question = "q?"
            paper = "p"
            columns = ["threads", "goodput_gib_s"]
            expect = [{ what = "w", class = "goal", column = "goodput_gib_s", where = { threads = 1 }, at_least = 99.0 }]
            [[plot]]
            title = "t"
            x = "threads"
            x_label = "threads"
            y = "goodput_gib_s"
            y_label = "GiB/s"
            "#,
            false,
        )
        .unwrap();
        let row = |kind, source: &str| Row::new(kind, source).with("threads", 1u32).with("goodput_gib_s", 11.5);
        let rows = vec![row(Kind::Emulated, "M.2"), row(Kind::Published, "Table I")];
        let verdicts = experiment.expect.iter().map(|wanted| expect::judge(wanted, &rows, &[])).collect();
        Outcome {
            experiment,
            bounds: vec![Vec::new()],
            verdicts,
            rows,
            failures: vec![("run".to_owned(), "why".to_owned())],
        }
    }

    #[test]
    fn kinds_have_tables_of_their_own_and_failures_are_reported() {
        let head = Head { model: "M.2".to_owned(), calibration: None, reduced: false, commit: None };
        let text = page(&head, &[outcome()]);
        assert_eq!(text.matches("<caption>").count(), 2);
        for word in [
            "A &lt;title&gt;",
            "no calibration was given",
            "1 failed",
            "why",
            "flexcast report --only x",
            "emulated, model M.2",
        ] {
            assert!(text.contains(word), "{word} is missing");
        }
        // The figure is as it is: below the limit, and shown.
        assert!(text.contains(">11.5<") && text.contains("class=\"failed\""));
        assert!(!text.contains("http://") && !text.contains("https://"), "nothing from the network");
    }

    #[test]
    fn names_between_backticks_are_code() {
        assert_eq!(prose("`a` and <b> `c d`.").into_string(), "<code>a</code> and &lt;b&gt; <code>c d</code>.");
        assert_eq!(prose("one ` alone").into_string(), "one ` alone");
        assert_eq!(prose("`a` and ` alone").into_string(), "<code>a</code> and ` alone");
    }

    #[test]
    fn headings_have_units() {
        for (column, words) in [
            ("ring_us", "ring µs"),
            ("staging_kib", "staging KiB"),
            ("link_gbit_s", "link Gbit/s"),
            ("rings_llc_percent", "rings llc %"),
            ("two_less_two_over_p", "two less two over p"),
            ("time_us", "µs"),
        ] {
            assert_eq!(heading(column), words);
        }
    }

    #[test]
    fn hold_outs_come_first() {
        let calibration = serde_json::from_str(
            r#"{"model": "M.2", "k": 5.743, "passed": {"passed": 1, "of": 2},
                "holdouts": [{"id": "V-2", "verdict": "pass"}, {"id": "V-6", "verdict": "fail"}, {"id": "V-8", "verdict": "prediction"}]}"#,
        )
        .unwrap();
        let head = Head { model: "M.2".to_owned(), calibration: Some(calibration), reduced: true, commit: None };
        let text = page(&head, &[outcome()]);
        let first = text.find("hold-outs passed 1 of 2").unwrap();
        assert!(first < text.find("Expectations:").unwrap() && text.contains("Reduced sweeps"));
        // What decides neither way is shown as neither.
        assert!(
            text.contains("class=\"soft\">prediction<") && text.contains("1 points that decide neither way"),
            "{text}"
        );
    }
}
