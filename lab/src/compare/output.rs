//! A comparison as a table and as JSON.

use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Value, json};

use super::run::{Comparison, Settings};
use super::{Op, Row, System};
use crate::figures::short;

/// What the figures are of, in one line each.
#[must_use]
pub fn heading(settings: &Settings, rows: &[Row]) -> Vec<String> {
    let Settings {
        ranks_per_host,
        mtu,
        offloads,
        udp_loss_percent,
        in_place,
        repetitions,
        warm_up,
        kernel,
        processor,
        cores,
        versions,
        ..
    } = settings;
    let ranks = rows.iter().map(|row| row.ranks).max().unwrap_or_default();
    let crowded = if ranks as usize > *cores {
        format!("; up to {ranks} ranks share them: trust ratios, not times")
    } else {
        String::new()
    };
    let mut lines =
        vec![
        "measured: wall time of real programs on network namespaces at one Linux bridge, not of a card and not of a \
         network".to_owned(),
        format!("{kernel}, {processor}, {cores} cores{crowded}"),
        format!("ranks on each host: {ranks_per_host}, MTU {mtu}, offloads {}, UDP loss {udp_loss_percent} %, \
            {repetitions} repetitions after {warm_up}", offloads.name()),
        "time: the slowest rank's; bytes and processor time: per operation, over all ranks".to_owned(),
    ];
    lines.extend(in_place.then(|| "in place: contributions lie in the receive buffers".to_owned()));
    lines.extend(versions.iter().map(|(system, version)| format!("{system}: {version}")));
    let has = |op| rows.iter().any(|row| row.op == op);
    lines.extend(
        Op::all().into_iter().filter(|op| has(*op)).map(|op| format!("{}: sizes are {}", op.name(), op.size_of())),
    );
    lines
}

/// The table, with its heading and what was not measured.
#[must_use]
pub fn table(comparison: &Comparison) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(COLUMNS);
    for column in 1..COLUMNS.len() {
        if let Some(column) = (column != 3).then(|| table.column_mut(column)).flatten() {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    for row in &comparison.rows {
        table.add_row(cells(row, &comparison.rows));
    }
    let mut text = heading(&comparison.settings, &comparison.rows).join("\n");
    text.push_str(&format!("\n{table}"));
    for problem in &comparison.problems {
        text.push_str(&format!("\nnot measured: {problem}"));
    }
    text
}

/// Columns of the table.
pub(super) const COLUMNS: [&str; 10] = [
    "operation",
    "ranks",
    "bytes",
    "system",
    "median us (measured)",
    "95 % us",
    "of flexcast",
    "bytes into the switch",
    "bytes over all ports",
    "CPU ms",
];

/// The cells of a row.
pub(super) fn cells(row: &Row, rows: &[Row]) -> [String; COLUMNS.len()] {
    let ours = |other: &&Row| {
        other.system == System::Flexcast && (other.op, other.ranks, other.bytes) == (row.op, row.ranks, row.bytes)
    };
    let ratio = rows.iter().find(ours).map(|ours| short(row.median_us / ours.median_us));
    let or_dash = |number: Option<f64>| number.map_or_else(|| "-".to_owned(), short);
    [
        row.op.name().to_owned(),
        row.ranks.to_string(),
        row.bytes.to_string(),
        row.system.name().to_owned(),
        short(row.median_us),
        short(row.p95_us),
        ratio.unwrap_or_else(|| "-".to_owned()),
        or_dash(row.switch_bytes),
        or_dash(row.port_bytes),
        or_dash(row.cpu_s.map(|cpu_s| cpu_s * 1e3)),
    ]
}

/// Everything as one object: `settings`, `rows`, `problems`.
#[must_use]
pub fn json(comparison: &Comparison) -> Value {
    json!(comparison)
}

/// The object of a comparison that could not be made here: no rows, and why.
#[must_use]
pub fn skipped(reason: &str) -> Value {
    json!({"settings": {"kind": "measured"}, "rows": [], "problems": [], "skipped": reason})
}

impl Op {
    /// All of them.
    #[must_use]
    pub const fn all() -> [Self; 5] {
        [Self::Allgather, Self::Bcast, Self::Allreduce, Self::SparseAllreduce, Self::Alltoall]
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::run::Problem;
    use super::super::spec::Offloads;
    use super::*;

    /// A small comparison.
    pub(in super::super) fn comparison() -> Comparison {
        let row = |system, op, bytes, median_us| Row {
            system,
            op,
            ranks: 4,
            bytes,
            median_us,
            p95_us: 2.0 * median_us,
            switch_bytes: Some(1000.0),
            port_bytes: Some(4000.0),
            cpu_s: Some(0.001_25),
        };
        Comparison {
            settings: Settings {
                kind: "measured",
                ranks_per_host: 1,
                mtu: 1500,
                offloads: Offloads::On,
                udp_loss_percent: 0.0,
                in_place: false,
                repetitions: 30,
                warm_up: 3,
                kernel: "Linux 6.1".to_owned(),
                processor: "processor <1>".to_owned(),
                cores: 2,
                versions: [("openmpi", "Open MPI 4.1.4, TCP".to_owned())].into(),
            },
            rows: vec![
                row(System::Flexcast, Op::Allgather, 64, 50.0),
                row(System::OpenMpi, Op::Allgather, 64, 100.0),
                row(System::Flexcast, Op::Allgather, 65_536, 300.0),
                row(System::OpenMpi, Op::Allgather, 65_536, 385.0),
                row(System::Bound, Op::Allgather, 65_536, 280.0),
                Row { switch_bytes: None, port_bytes: None, cpu_s: None, ..row(System::Mpich, Op::Alltoall, 64, 33.0) },
            ],
            problems: vec![Problem { system: System::Gloo, places: Vec::new(), reason: "no <torch>".to_owned() }],
        }
    }

    #[test]
    fn the_table_says_what_is_measured_and_how_it_compares() {
        let text = table(&comparison());
        assert!(text.starts_with("measured: wall time"), "{text}");
        assert!(text.contains("up to 4 ranks share them"), "{text}");
        assert!(text.contains("MTU 1500, offloads on, UDP loss 0 %, 30 repetitions after 3"), "{text}");
        assert!(
            text.contains("alltoall: sizes are bytes that each rank sends in all") && !text.contains("bcast:"),
            "{text}"
        );
        assert!(text.ends_with("not measured: gloo: no <torch>"), "{text}");
        let line = |words: [&str; 3]| {
            let found = text.lines().find(|line| words.iter().all(|word| line.contains(word))).unwrap();
            found.split(['│', '┆']).map(|cell| cell.trim().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(
            line(["allgather", " 64 ", "openmpi"])[4..11],
            ["openmpi", "100", "200", "2", "1000", "4000", "1.25"]
        );
        assert_eq!(line(["alltoall", " 64 ", "mpich"])[7..11], ["-", "-", "-", "-"]);
    }

    #[test]
    fn json_has_the_fields_of_its_readers() {
        let json = json(&comparison());
        let names = |value: &Value| {
            value.as_object().map(|object| object.keys().cloned().collect::<Vec<_>>()).unwrap_or_default()
        };
        assert_eq!(names(&json), ["problems", "rows", "settings"]);
        let fields = ["bytes", "cpu_s", "median_us", "op", "p95_us", "port_bytes", "ranks", "switch_bytes", "system"];
        assert_eq!(names(&json["rows"][1]), fields);
        assert_eq!((&json["rows"][1]["system"], &json["rows"][1]["op"]), (&json!("openmpi"), &json!("allgather")));
        assert_eq!(json["rows"][5]["cpu_s"], Value::Null);
        assert_eq!(json["settings"]["offloads"], "on");
        assert_eq!((&json["settings"]["kind"], &json["settings"]["mtu"]), (&json!("measured"), &json!(1500)));
        let skipped = skipped("not permitted");
        assert_eq!((&skipped["rows"], &skipped["skipped"]), (&json!([]), &json!("not permitted")));
    }
}
