//! `flexcast tune`.

use std::io::IsTerminal as _;
use std::path::Path;
use std::process::ExitCode;

use comfy_table::{CellAlignment, Table, presets};
use emu_observe::new_file;
use flexcast::bootstrap::{Exchange as _, TcpStore};
use flexcast::{Config, Endpoint, Selection, UdpOptions};
use flexcast_cli::{note, out};
use flexcast_lab::agreement::agree;
use flexcast_lab::tune::{self, Figure, Tuned, Way, WayFigure};

use super::perf::or_refuse;
use crate::tune_args::TuneArgs;

pub(super) fn run(args: &TuneArgs) -> anyhow::Result<ExitCode> {
    let mut store = TcpStore::from_env()?;
    let (is_first, ranks) = (store.rank() == 0, store.size());
    // What has been measured is not to be lost at the end.
    if is_first {
        or_refuse(&mut store, writable(&args.output, new_file::attempt(&args.output)))?;
    }
    agree(&mut store, &args.spec().options())?;
    let mut options = or_refuse(&mut store, UdpOptions::from_env())?;
    if let Some(interface) = &args.interface {
        options = options.interface(interface);
    }
    // They are measured.
    options.subgroups = None;
    options.tuning = None;
    let endpoint = or_refuse(&mut store, Endpoint::udp(&options))?;
    // What is measured is the choice of algorithms: one that is named leaves none.
    let base =
        or_refuse(&mut store, Config::for_endpoint(&endpoint).with_environment())?.algorithm(Selection::Automatic);
    let shows_progress = is_first && std::io::stderr().is_terminal();
    let tuned = tune::run(&endpoint, &base, &mut store, &args.spec(), |text| {
        if shows_progress {
            note!("{text}");
        }
    })?;
    if !is_first {
        return Ok(ExitCode::SUCCESS);
    }
    let head = format!(
        "# Fastest algorithms among {ranks} ranks, measured by `flexcast tune` (flexcast {}).\n# Read where \
         FLEXCAST_TUNING names this file.\n\n",
        env!("CARGO_PKG_VERSION")
    );
    let written = writable(&args.output, new_file::write(&args.output, head + &tuned.tuning.to_toml()));
    // The figures are there even where the file is not.
    print(args, &tuned)?;
    written?;
    note!("{} written: FLEXCAST_TUNING={} makes programs read it", args.output.display(), args.output.display());
    Ok(ExitCode::SUCCESS)
}

/// Why the table cannot be written, and what helps.
fn writable(path: &Path, attempt: std::io::Result<()>) -> anyhow::Result<()> {
    attempt.map_err(|error| {
        anyhow::anyhow!(
            "{} cannot be written: {error}; name with --output a file in a folder that you may write to and that has \
             room",
            path.display()
        )
    })
}

fn print(args: &TuneArgs, tuned: &Tuned) -> anyhow::Result<()> {
    if args.json {
        let (subgroups, chunk_bytes) = (tuned.tuning.subgroups(), tuned.tuning.chunk_bytes());
        let chosen = serde_json::json!({ "subgroups": subgroups, "chunk_bytes": chunk_bytes });
        out!("{}", serde_json::json!({ "rows": tuned.figures, "multicast": tuned.ways, "chosen": chosen }))?;
        return Ok(());
    }
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(["operation", "bytes", "algorithm", "median us", "of rounds", "in the table"]);
    for column in [1, 3, 4] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    for Figure { op, bytes, algorithm, median_us, low_us, high_us, fastest, usual, chosen } in &tuned.figures {
        let mark = match (chosen, usual, fastest) {
            (true, true, true) => "as without it",
            (true, true, false) => "as without it: others are within the noise",
            (true, false, _) => "yes",
            (false, ..) => "",
        };
        table.add_row([
            op.to_string(),
            bytes.to_string(),
            algorithm.clone(),
            format!("{median_us:.1}"),
            format!("{low_us:.1} to {high_us:.1}"),
            mark.to_owned(),
        ]);
    }
    let rounds = args.spec().rounds;
    out!(
        "measured (wall time of the slowest rank; the middle one of {rounds} rounds' medians, and their range)\n{table}"
    )?;
    out!(
        "an algorithm is in the table if it was faster in all rounds than what the library takes without it, by 5 % \
         and more; lengths that were not measured go as without it"
    )?;
    if tuned.ways.is_empty() {
        return Ok(());
    }
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(["operation", "bytes", "subgroups", "bytes a datagram", "median us", "of rounds"]);
    for column in 1..6 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    for WayFigure { op, bytes, way, median_us, low_us, high_us } in &tuned.ways {
        let Way { subgroups, chunk_bytes } = way;
        table.add_row([
            op.to_string(),
            bytes.to_string(),
            subgroups.to_string(),
            chunk_bytes.to_string(),
            format!("{median_us:.1}"),
            format!("{low_us:.1} to {high_us:.1}"),
        ]);
    }
    let (subgroups, chunk_bytes) = (tuned.tuning.subgroups(), tuned.tuning.chunk_bytes());
    let chosen = match (subgroups, chunk_bytes) {
        (None, None) => "one subgroup and whole datagrams stay, no other way is 5 % faster beyond the noise".to_owned(),
        (subgroups, Some(bytes)) => {
            format!("{} subgroups and {bytes} bytes a datagram are taken", subgroups.unwrap_or(1))
        }
        (Some(subgroups), None) => format!("{subgroups} subgroups are taken"),
    };
    out!("what is multicast: {chosen}\n{table}")?;
    Ok(())
}
