//! Collectives of 8 to 1024 ranks: what they cost in time and memory. Each runs in a process of its own, so that its
//! memory can be measured.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use comfy_table::{CellAlignment, Table, presets};
use serde::{Deserialize, Serialize};

use crate::progress::progress_bar;

/// What is run: algorithm, ranks, bytes from each, topology, and whether the first operation is not counted: in that
/// one rings are built and keys handed out, which the large ones show, too, but would take twice as long without.
const CASES: [(&str, u32, u64, &str, bool); 6] = [
    ("multicast", 8, 64 << 10, "switch-8", true),
    ("ring", 8, 64 << 10, "switch-8", true),
    ("multicast", 32, 64 << 10, "switch-32", true),
    ("ring", 32, 64 << 10, "switch-32", true),
    ("multicast", 188, 64 << 10, "fat-tree-188", false),
    ("multicast", 1024, 4 << 10, "fat-tree-1024", false),
];

/// The part of a simulation's report that is shown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Row {
    algorithm: String,
    ranks: u32,
    bytes: u64,
    warm_up: u32,
    /// Name of the topology: not part of the report's first level.
    #[serde(default)]
    topology: String,
    switch_bytes_total: u64,
    recovered_chunks: u64,
    virtual_time_us: f64,
    goodput_gbit_s: f64,
    wall_s: f64,
    set_up_s: f64,
    completions: u64,
    #[serde(default)]
    completions_per_wall_s: f64,
    peak_memory_bytes: Option<u64>,
    pub(super) digest_ok: bool,
    kind: String,
    model: String,
}

/// Runs all cases, one operation each that counts. `images`: the folder of the images, if not the usual places.
pub(super) fn measure(images: Option<&Path>) -> anyhow::Result<Vec<Row>> {
    let tool = std::env::current_exe().context("this program does not know its own file")?;
    let bar = progress_bar("cases");
    bar.set_length(CASES.len() as u64);
    let mut rows = Vec::new();
    for (algorithm, ranks, bytes, topology, warm) in CASES {
        bar.set_prefix("collectives");
        bar.set_message(format!("{algorithm}, {ranks} ranks"));
        let mut command = Command::new(&tool);
        command.args([
            "sim",
            "--json",
            "--warm-up",
            if warm { "1" } else { "0" },
            "--algorithm",
            algorithm,
            "--topology",
            topology,
        ]);
        command.args(["--ranks", &ranks.to_string(), "--bytes", &bytes.to_string()]);
        if let Some(folder) = images {
            command.arg("--image").arg(folder.join("allgather.elf"));
        }
        command.stderr(Stdio::inherit());
        let output = command.output().with_context(|| format!("`{}` cannot be started", tool.display()))?;
        ensure!(!output.stdout.is_empty(), "the simulation by {algorithm} of {ranks} ranks has failed");
        let mut row: Row = serde_json::from_slice(&output.stdout).context("a simulation's report cannot be read")?;
        row.topology = topology.to_owned();
        row.completions_per_wall_s = if row.wall_s > 0.0 { row.completions as f64 / row.wall_s } else { 0.0 };
        rows.push(row);
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(rows)
}

/// The rows, for people.
pub(super) fn table(rows: &[Row]) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header([
        "algorithm",
        "ranks",
        "bytes each",
        "topology",
        "operation",
        "us (emulated)",
        "data at switch ports",
        "wall s (measured)",
        "set-up s",
        "CQEs per wall s",
        "peak MiB (measured)",
        "every rank",
    ]);
    for row in rows {
        table.add_row([
            row.algorithm.clone(),
            row.ranks.to_string(),
            row.bytes.to_string(),
            row.topology.clone(),
            if row.warm_up == 0 { "first".to_owned() } else { "second".to_owned() },
            format!("{:.1}", row.virtual_time_us),
            row.switch_bytes_total.to_string(),
            format!("{:.2}", row.wall_s),
            format!("{:.2}", row.set_up_s),
            format!("{:.0}", row.completions_per_wall_s),
            row.peak_memory_bytes.map_or("-".to_owned(), |bytes| (bytes >> 20).to_string()),
            if row.digest_ok { "equal".to_owned() } else { "DIFFERS".to_owned() },
        ]);
    }
    for column in [1, 2, 5, 6, 7, 8, 9, 10] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let model = rows.first().map_or("", |row| row.model.as_str());
    format!("Allgather among ranks on cards of their own, cost model {model}\n{table}")
}
