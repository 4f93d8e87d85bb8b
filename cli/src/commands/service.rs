//! `flexcast service`.

use std::process::ExitCode;

use comfy_table::{CellAlignment, Table, presets};
use flexcast_cli::out;
use flexcast_service::Reason;
use flexcast_service::daemon::config::{Bounds, Config};
use flexcast_service::daemon::status::{State, Status, ask};

use crate::service_args::{CheckArgs, StatusArgs};

pub(super) fn status(args: &StatusArgs) -> anyhow::Result<ExitCode> {
    let status = ask(&args.socket)?;
    if args.json {
        out!("{}", serde_json::to_string(&status)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let state = if status.state == State::Serving { "serving" } else { "stopping" };
    let Status { version, pid, uptime_s, device, card, .. } = &status;
    out!("flexcast-service {version}, process {pid}: {state} {device} (card {card}) for {uptime_s} s")?;
    out!("{}", processes(&status))?;
    let limits = Bounds::NUMBERS.iter().zip(status.limits.values());
    let limits: Vec<String> =
        limits.map(|(number, value)| format!("{} {value}", number.key.trim_start_matches("limits."))).collect();
    out!("limits of each process: {}", limits.join(", "))?;
    for (number, process) in status.processes.iter().enumerate() {
        let refused = Reason::ALL.map(|reason| (reason.name(), process.net.refused_for(reason)));
        let refused: Vec<String> =
            refused.iter().filter(|(_, count)| *count > 0).map(|(name, count)| format!("{name} {count}")).collect();
        if !refused.is_empty() {
            out!("process {number} has refused connections: {}", refused.join(", "))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn processes(status: &Status) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    let header = [
        "process",
        "endpoint",
        "programs",
        "processes",
        "groups",
        "collectives",
        "reads",
        "keys",
        "queue pairs",
        "reads so far",
        "bytes",
    ];
    table.set_header(header);
    for column in (0..header.len()).filter(|column| *column != 1) {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    for (number, process) in status.processes.iter().enumerate() {
        let now = process.now;
        let reads = format!("{} of {}", now.active_reads, status.limits.active_reads);
        let groups = match now.multicast_groups {
            0 => now.groups.to_string(),
            some => format!("{} ({some} by multicast)", now.groups),
        };
        let [programs, processes, collectives] =
            [now.programs, now.processes, now.collectives].map(|value| value.to_string());
        let cells = [programs, processes, groups, collectives];
        let rest =
            [now.keys, now.queue_pairs, process.counts.reads, process.counts.read_bytes].map(|value| value.to_string());
        let row = [number.to_string(), process.address.clone()].into_iter().chain(cells).chain([reads]).chain(rest);
        table.add_row(row);
    }
    table
}

pub(super) fn check(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    let config = Config::read(&args.file)?;
    flexcast_service::daemon::read_secret(&config.secret)?;
    let Config { device, listen, port, processes, .. } = config;
    out!(
        "{}: {processes} service processes for {device}, ports {port} and following of {listen}",
        args.file.display()
    )?;
    Ok(ExitCode::SUCCESS)
}
