//! The result of a calibration: one JSON object, or tables.

use comfy_table::{CellAlignment, Table, presets};
use emu_machine::timing::Parameters;
use serde::Serialize;

use super::fit::Fit;
use super::holdout::{HoldOut, score};
use super::micro::MicroRow;
use super::reference::KernelRow;
use super::sensitivity::Sensitivity;
use crate::figures::{deviation, short, thousandths};

/// Hold-outs that passed, and those that could fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Score {
    /// All of whose parts are within what is accepted.
    pub passed: usize,
    /// Of these.
    pub of: usize,
}

/// Everything that was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Calibration {
    /// Name of the model.
    pub model: String,
    /// Kind of all predictions.
    pub kind: &'static str,
    /// The fitted gap in cycles; `None`: the model is rejected.
    pub k: Option<f64>,
    /// How many hold-outs passed.
    pub passed: Score,
    /// Every hold-out.
    pub holdouts: Vec<HoldOut>,
    /// The fit.
    pub fit: Fit,
    /// The micro-benchmarks.
    pub micro: Vec<MicroRow>,
    /// What the published kernels execute here.
    pub kernels: Vec<KernelRow>,
    /// What depends on assumptions; `None` if it was not examined.
    pub sensitivity: Option<Vec<Sensitivity>>,
}

impl Calibration {
    /// Puts the parts together.
    #[must_use]
    pub fn new(
        parameters: &Parameters,
        micro: Vec<MicroRow>,
        kernels: Vec<KernelRow>,
        fit: Fit,
        holdouts: Vec<HoldOut>,
        sensitivity: Option<Vec<Sensitivity>>,
    ) -> Self {
        let (passed, of) = score(&holdouts);
        Self {
            model: parameters.name.clone(),
            kind: "emulated",
            k: fit.gap_millicycles.map(|gap| gap as f64 / 1000.0),
            passed: Score { passed, of },
            holdouts,
            fit,
            micro,
            kernels,
            sensitivity,
        }
    }

    /// Whether the model is what it says it is: its fitted number is the one that the fit finds, and what went into it
    /// comes out. How well it predicts is another question.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.fit.agrees() && self.micro.iter().all(|row| row.ok)
    }

    /// What the fit says, in a line.
    #[must_use]
    pub fn verdict_of_fit(&self) -> String {
        let Fit { gap_millicycles, in_model, cycles_at_66, published_cycles, cycles, instructions, .. } = &self.fit;
        match gap_millicycles {
            None => format!(
                "model rejected: no k from 1 to 7 gives {published_cycles:.0} cycles per completion at 66 \
                 instructions; the nearer end gives {cycles_at_66:.1}"
            ),
            Some(gap) => {
                let agrees = match gap == in_model {
                    true => "the model's file has it".to_owned(),
                    false => format!(
                        "but the model's file has {:.3}: set instructions.gap_millicycles to {gap}, under a new name",
                        *in_model as f64 / 1000.0
                    ),
                };
                format!(
                    "k = {:.3} cycles gives {cycles_at_66:.1} of {published_cycles:.0} cycles at 66 instructions \
                     ({cycles:.1} at the image's own {instructions:.1}); {agrees}",
                    *gap as f64 / 1000.0
                )
            }
        }
    }

    /// All of it, for people.
    #[must_use]
    pub fn text(&self) -> String {
        let mut parts = Vec::new();
        for Section { title, table, notes } in self.sections("\n") {
            let gap = if parts.is_empty() { "" } else { "\n" };
            parts.push(format!("{gap}{title}"));
            parts.extend(table.map(|table| table.to_string()));
            parts.extend(notes.iter().map(|note| format!("  {note}")));
        }
        parts.join("\n")
    }

    /// All of it, as a document (Markdown).
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut parts = vec![
            "# How well the clock predicts".to_owned(),
            "Written by `flexcast calibrate --markdown FILE`; not to be edited. All predictions are *emulated*; \
             nothing was measured on a card."
                .to_owned(),
            "- The model has one fitted number. No number was changed after the points below had been examined.\n\
             - *not discriminating*: any model would pass, or an engine of the emulated card is the limit.\n\
             - *prediction*: nothing was published to compare with.\n\
             - *latency bound*: one thread takes its loads and stores one after the other, and waits for no other \
             thread.\n\
             - *issue bound*: a core executes one instruction per cycle."
                .to_owned(),
        ];
        for Section { title, table, notes } in self.sections("; ") {
            parts.push(format!("## {title}"));
            parts.extend(table.map(|mut table| {
                table.load_style(presets::ASCII_MARKDOWN);
                table.to_string()
            }));
            if !notes.is_empty() {
                parts.push(notes.iter().map(|note| format!("- {note}")).collect::<Vec<_>>().join("\n"));
            }
        }
        parts.join("\n\n") + "\n"
    }

    /// `between`: what is between changes in one cell.
    fn sections(&self, between: &str) -> Vec<Section> {
        let Score { passed, of } = self.passed;
        let mut sections = Vec::new();
        let mut section = |title: String, table, notes| sections.push(Section { title, table, notes });
        if self.k.is_some() {
            let model = &self.model;
            let notes = self.holdouts.iter().filter_map(|row| Some(format!("{}: {}", row.id, row.note?)));
            section(
                format!(
                    "model {model}, fitted on one number; hold-outs passed {passed} of {of} (all predictions emulated, \
                     {model})"
                ),
                Some(self.holdout_table()),
                notes.collect(),
            );
        }
        section(format!("fit: {}", self.verdict_of_fit()), None, Vec::new());
        section(
            "kernels of image reference, for each completion, next to the published ones".to_owned(),
            Some(self.kernel_table()),
            Vec::new(),
        );
        section(
            "micro-benchmarks: what went into the model has to come out".to_owned(),
            Some(self.micro_table()),
            Vec::new(),
        );
        if let Some(sensitivity) = &self.sensitivity {
            section(
                "assumptions at the ends of their ranges, with k as it is: verdicts that change".to_owned(),
                Some(sensitivity_table(sensitivity, between)),
                Vec::new(),
            );
        }
        sections
    }

    fn holdout_table(&self) -> Table {
        let head = [
            "id",
            "what",
            "unit",
            "published",
            "predicted",
            "error %",
            "accepted",
            "verdict",
            "latency bound",
            "issue bound",
        ];
        let mut table = table(&head);
        let optional = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), thousandths);
        for row in &self.holdouts {
            table.add_row([
                row.id.clone(),
                row.what.clone(),
                row.unit.to_owned(),
                row.published.clone(),
                row.predicted_text.clone(),
                row.error_percent.map_or_else(|| "-".to_owned(), |error| format!("{error:+.1}")),
                row.accepted.clone(),
                row.verdict.name().to_owned(),
                optional(row.latency_bound),
                optional(row.issue_bound),
            ]);
        }
        right(&mut table, &[4, 5, 8, 9]);
        table
    }

    fn kernel_table(&self) -> Table {
        let mut table = table(&[
            "transport",
            "own counters",
            "instructions",
            "published",
            "loads",
            "stores",
            "cycles",
            "published",
            "body alone",
            "code misses",
        ]);
        for row in &self.kernels {
            table.add_row([
                crate::reference::transport::name(row.transport).to_owned(),
                if row.counted { "yes" } else { "no" }.to_owned(),
                format!("{:.1}", row.instructions),
                format!("{:.0}", row.published_instructions),
                format!("{:.1}", row.loads),
                format!("{:.1}", row.stores),
                format!("{:.0}", row.cycles),
                format!("{:.0}", row.published_cycles),
                if row.counted {
                    format!("{:.1}, {:.0} cycles", row.body_instructions, row.body_cycles)
                } else {
                    "-".to_owned()
                },
                row.code_misses.to_string(),
            ]);
        }
        right(&mut table, &[2, 3, 4, 5, 6, 7, 9]);
        table
    }

    fn micro_table(&self) -> Table {
        let mut table = table(&["what", "unit", "published", "predicted", "error %", "allowed %", "verdict"]);
        for row in &self.micro {
            table.add_row([
                row.what.clone(),
                row.unit.to_owned(),
                thousandths(row.published),
                thousandths(row.predicted),
                deviation(row.error_percent, row.tolerance_percent),
                short(row.tolerance_percent),
                if row.ok { "pass" } else { "fail" }.to_owned(),
            ]);
        }
        right(&mut table, &[2, 3, 4, 5]);
        table
    }
}

/// A part of the report.
struct Section {
    title: String,
    table: Option<Table>,
    notes: Vec<String>,
}

fn sensitivity_table(rows: &[Sensitivity], between: &str) -> Table {
    let mut table = table(&["assumption", "model", "tried", "V-1 cycles", "verdicts that change"]);
    for row in rows {
        let changes = row.changes.iter().map(|change| {
            let ((before, old), (after, new)) = (change.before, change.after);
            format!("{}: {before} -> {after} ({} -> {})", change.id, thousandths(old), thousandths(new))
        });
        let changes: Vec<String> = changes.collect();
        table.add_row([
            row.parameter.clone(),
            row.value.to_string(),
            row.tried.to_string(),
            format!("{:.0}", row.cycles_at_66),
            if changes.is_empty() { "none".to_owned() } else { changes.join(between) },
        ]);
    }
    right(&mut table, &[1, 2, 3]);
    table
}

fn table(head: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(head.to_vec());
    table
}

fn right(table: &mut Table, columns: &[usize]) {
    for column in columns {
        if let Some(column) = table.column_mut(*column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::holdout::Band;
    use super::*;
    use crate::reference::Transport;

    fn calibration(gap: Option<u64>, in_model: u64) -> Calibration {
        let fit = Fit {
            gap_millicycles: gap,
            in_model,
            cycles_at_66: 598.02,
            cycles: 501.2,
            instructions: 49.1,
            published_cycles: 598.0,
            runs: 15,
        };
        let micro = MicroRow {
            what: "read Arm memory, 190 threads".to_owned(),
            unit: "GB/s",
            published: 20.0,
            predicted: 20.46,
            error_percent: 2.3,
            tolerance_percent: 20.0,
            ok: true,
        };
        let kernel = KernelRow {
            transport: Transport::Uc,
            counted: true,
            body_instructions: 31.0,
            body_cycles: 300.0,
            instructions: 49.1,
            published_instructions: 66.0,
            loads: 6.5,
            stores: 5.3,
            cycles: 501.2,
            published_cycles: 598.0,
            code_misses: 320,
        };
        let band = Band::between(1084.0, 1320.0);
        let rows = vec![
            HoldOut::new("V-2", "UD cycles", "cycles", band, band.widened(20.0), 2047.4).note("weak"),
            HoldOut::new("V-8.uc", "chunks", "M/s", Band::least(48.8), Band::least(48.8), 74.0)
                .weak()
                .bounds(Some(385.3), Some(218.2)),
        ];
        let holdouts = if gap.is_some() { rows } else { Vec::new() };
        Calibration::new(&Parameters::m2(), vec![micro], vec![kernel], fit, holdouts, None)
    }

    #[test]
    fn json_has_the_promised_keys() {
        let json = serde_json::to_value(calibration(Some(5743), 5743)).unwrap();
        assert_eq!(
            (json["model"].as_str(), json["kind"].as_str(), json["k"].as_f64()),
            (Some("M.2"), Some("emulated"), Some(5.743))
        );
        assert_eq!(json["passed"], serde_json::json!({ "passed": 0, "of": 1 }));
        for key in ["holdouts", "fit", "micro", "kernels", "sensitivity"] {
            assert!(json.get(key).is_some(), "no {key}");
        }
        let row = &json["holdouts"][0];
        for key in [
            "id",
            "what",
            "unit",
            "published",
            "accepted",
            "predicted",
            "error_percent",
            "verdict",
            "latency_bound",
            "issue_bound",
        ] {
            assert!(row.get(key).is_some(), "no {key} in {row}");
        }
        assert_eq!((row["verdict"].as_str(), row["published"].as_str()), (Some("fail"), Some("1084 to 1320")));
        assert_eq!(json["holdouts"][1]["verdict"], "not discriminating");
    }

    #[test]
    fn the_text_begins_with_the_score_and_names_what_failed() {
        let text = calibration(Some(5743), 5743).text();
        assert!(text.starts_with("model M.2, fitted on one number; hold-outs passed 0 of 1"), "{text}");
        for word in [
            "V-2",
            "2047",
            "+55.1",
            "fail",
            "867.2 to 1584",
            "not discriminating",
            "385.3",
            "V-2: weak",
            "read Arm memory",
        ] {
            assert!(text.contains(word), "{text} lacks {word}");
        }
        let document = calibration(Some(5743), 5743).markdown();
        for word in
            ["## model M.2, fitted on one number; hold-outs passed 0 of 1", "| V-2", "- V-2: weak", "| read Arm memory"]
        {
            assert!(document.contains(word), "{document} lacks {word}");
        }
        let rows = document.lines().filter(|line| line.starts_with('|'));
        assert!(rows.clone().all(|row| row.ends_with('|')) && rows.count() > 6, "{document}");
    }

    #[test]
    fn a_rejected_model_and_one_with_another_number_say_so_and_are_not_sound() {
        let rejected = calibration(None, 5743);
        assert!(rejected.text().contains("model rejected: no k from 1 to 7") && !rejected.is_sound());
        assert!(!rejected.text().contains("hold-outs passed"));
        assert_eq!(serde_json::to_value(&rejected).unwrap()["k"], serde_json::Value::Null);
        let other = calibration(Some(5743), 5000);
        assert!(other.text().contains("the model's file has 5.000: set instructions.gap_millicycles to 5743"));
        assert!(!other.is_sound() && calibration(Some(5743), 5743).is_sound());
    }
}
