//! `flexcast perf`.

use std::io::IsTerminal as _;
use std::process::ExitCode;

use comfy_table::{CellAlignment, Table, presets};
use flexcast::bootstrap::{Exchange as _, TcpStore};
use flexcast::{Communicator, Config, Control, ThreadOptions};
use flexcast_cli::{note, out};
use flexcast_lab::agreement::agree;
use flexcast_lab::perf::{self, Row};

use crate::perf_args::PerfArgs;

pub(super) fn run(args: &PerfArgs) -> anyhow::Result<ExitCode> {
    let spec = args.spec();
    let mut store = TcpStore::from_env()?;
    agree(&mut store, &spec.options())?;
    // A rank that has no card, or wrong variables, lets the others know.
    let endpoint = or_refuse(&mut store, args.card.open())?;
    let mut config = or_refuse(&mut store, Config::for_endpoint(&endpoint).with_environment())?;
    if let Some(chains) = args.chains {
        config = config.chains(chains);
    }
    if args.progress_thread {
        config = config.progress_thread(Some(ThreadOptions::default()));
    }
    if !args.aggregators.is_empty() {
        config = config.aggregators(args.aggregators.clone());
    }
    let longest = spec.sizes.iter().max().copied().unwrap_or(0);
    let most = longest.saturating_mul(store.size().into()).max(config.max_receive_bytes);
    config = config.max_receive_bytes(most);
    let communicator = Communicator::create(&endpoint, &mut store, config)?;
    let is_first = communicator.rank() == 0;
    if is_first {
        let over = match (endpoint.interface(), endpoint.device()) {
            (Some(interface), _) => {
                format!("{} ({}, MTU {} bytes)", interface.name(), interface.address(), interface.mtu_bytes())
            }
            (None, Some(device)) => {
                format!("{} (MTU {} bytes)", device.info().name, device.port().mtu_bytes())
            }
            (None, None) => "nothing".to_owned(),
        };
        let size = communicator.size();
        let ranks = if size == 1 { "rank" } else { "ranks" };
        note!("{size} {ranks} over {over}, datapath {}; times are measured", endpoint.datapath());
        let control = communicator.control();
        if let Some(reason) = &control.reason {
            note!("the hosts carry the operations out, no service processes: {reason}");
        } else if control.control != Control::Host {
            note!("control: {}", control.control.name());
        }
    }
    // Elsewhere, in a launcher's output or a file, the rows of the table would be there twice.
    let shows_progress = is_first && std::io::stderr().is_terminal();
    let rows = perf::run(&communicator, &mut store, &spec, |row| {
        if shows_progress {
            note!("{} of {} bytes: {:.1} us", row.op, row.bytes, row.median_us);
        }
    })?;
    if is_first {
        print(args, &rows)?;
    }
    let errors: u64 = rows.iter().map(|row| row.errors).sum();
    Ok(if errors == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What a rank has made, or why it cannot go on, which the other ranks learn, too.
pub(super) fn or_refuse<T, E: std::fmt::Display>(store: &mut TcpStore, made: Result<T, E>) -> Result<T, E> {
    made.inspect_err(|error| store.refuse(&error.to_string()))
}

fn print(args: &PerfArgs, rows: &[Row]) -> anyhow::Result<()> {
    if args.json {
        out!("{}", serde_json::json!({ "rows": rows }))?;
        return Ok(());
    }
    let header = [
        "bytes",
        "median us",
        "p95 us",
        "least us",
        "alg GB/s",
        "bus GB/s",
        "by",
        "repaired",
        "late",
        "overflows",
        "errors",
    ];
    let cells = |row: &Row| {
        [
            row.bytes.to_string(),
            format!("{:.1}", row.median_us),
            format!("{:.1}", row.p95_us),
            format!("{:.1}", row.least_us),
            format!("{:.3}", row.algorithm_gb_per_s),
            format!("{:.3}", row.bus_gb_per_s),
            row.algorithm.clone(),
            row.repaired_chunks.to_string(),
            row.late_chunks.to_string(),
            row.overflowed_datagrams.to_string(),
            row.errors.to_string(),
        ]
    };
    if args.csv {
        out!("{}", header.join(","))?;
        return rows.iter().try_for_each(|row| Ok(out!("{}", cells(row).join(","))?));
    }
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(header);
    for column in [0, 1, 2, 3, 4, 5, 7, 8, 9, 10] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    rows.iter().for_each(|row| _ = table.add_row(cells(row)));
    let what = rows.first().map_or_else(String::new, |row| {
        format!("{} among {} rank{}", row.op, row.ranks, if row.ranks == 1 { "" } else { "s" })
    });
    out!("{what}, measured (wall time of the slowest rank)\n{table}")?;
    Ok(())
}
