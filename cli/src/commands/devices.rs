//! `flexcast devices`.

use std::process::ExitCode;

use flexcast_cli::out;
use serde::Serialize;

use crate::args::DevicesArgs;

#[derive(Serialize)]
struct Row {
    name: String,
    pci: String,
    interface: String,
    mac: String,
}

pub(super) fn run(args: &DevicesArgs) -> anyhow::Result<ExitCode> {
    let provider = crate::inputs::open_provider(args.provider, 0, 0)?;
    let rows: Vec<Row> = provider
        .devices()?
        .into_iter()
        .map(|d| Row { name: d.name, pci: d.pci, interface: d.interface, mac: d.mac.to_string() })
        .collect();
    if args.json {
        out!("{}", serde_json::to_string(&rows)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::UTF8_FULL_CONDENSED);
    table.set_header(["device", "PCI", "interface", "MAC"]);
    for row in &rows {
        table.add_row([&row.name, &row.pci, &row.interface, &row.mac]);
    }
    out!("{table}")?;
    Ok(ExitCode::SUCCESS)
}
