//! `flexcast devices`.

use std::process::ExitCode;

use flexcast_cli::out;
use flexio::{CardKind, Provider};
use serde::Serialize;

use crate::args::DevicesArgs;
use crate::provider_name::ProviderName;

/// What `--provider system` finds.
fn real() -> String {
    let found = Provider::system().and_then(|provider| {
        let kind = if provider.kind() == CardKind::Emulated { ", emulated, too" } else { "" };
        Ok((provider.devices()?, kind))
    });
    match found {
        Ok((devices, kind)) if !devices.is_empty() => {
            let names: Vec<String> = devices.into_iter().map(|device| device.name).collect();
            format!("--provider system has {}{kind}", names.join(", "))
        }
        Ok(_) => "--provider system has none".to_owned(),
        Err(_) => "no libraries of real cards are installed (--provider system says which)".to_owned(),
    }
}

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
    if args.provider == ProviderName::Emu {
        out!("emulated cards, which the other commands use by default; {}", real())?;
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
