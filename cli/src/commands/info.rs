//! `flexcast info`.

use std::process::ExitCode;

use comfy_table::{CellAlignment, Table, presets};
use flexcast::{Choice, Config, DEFAULT_PORT, Endpoint, SparseCost, Tuning, UdpOptions};
use flexcast_cli::out;
use flexio::Provider;
use serde_json::json;

use super::info_check;
use crate::tune_args::InfoArgs;

/// RDMA devices of this computer, or why there are none.
fn rdma() -> Result<Vec<String>, String> {
    let provider = Provider::rdma().map_err(|error| error.to_string())?;
    let devices = provider.devices().map_err(|error| error.to_string())?;
    let names: Vec<String> = devices.into_iter().map(|device| device.name).collect();
    if names.is_empty() { Err("no RDMA device".to_owned()) } else { Ok(names) }
}

pub(super) fn run(args: &InfoArgs) -> anyhow::Result<ExitCode> {
    let mut options = UdpOptions::from_env()?;
    if let Some(interface) = &args.interface {
        options = options.interface(interface);
    }
    // What a program that begins with these variables would be refused for.
    Config::default().with_environment()?;
    let endpoint = Endpoint::udp(&options)?;
    let Some(interface) = endpoint.interface() else { anyhow::bail!("the datapath udp has no interface") };
    if args.check {
        return info_check::run(args, interface);
    }
    let (buffer, tuning, rdma) = (interface.receive_buffer(), interface.tuning(), rdma());
    let sysctl = format!("sysctl -w net.core.rmem_max={}", buffer.wanted_bytes);
    let is_small = buffer.got_bytes < buffer.wanted_bytes;
    let port = options.port.unwrap_or(DEFAULT_PORT);
    let shares = options.shared_memory != Some(false);
    let of_file = options.tuning.as_ref().map_or(0, |tuning| tuning.choices().len());
    if args.json {
        let choices = |tuning: &Tuning| tuning.choices().iter().map(object).collect::<Vec<_>>();
        let info = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "interface": interface.name(),
            "address": interface.address().to_string(),
            "mtu_bytes": interface.mtu_bytes(),
            "port": port,
            "subgroups": interface.subgroups(),
            "datagram_bytes": interface.datagram_bytes(),
            "authenticated": !options.unauthenticated,
            "shared_memory": shares,
            "receive_buffer": { "wanted_bytes": buffer.wanted_bytes, "got_bytes": buffer.got_bytes },
            "advice": is_small.then_some(&sysctl),
            "rdma_devices": rdma.as_deref().unwrap_or_default(),
            "choices_of_file": of_file,
            "choices": choices(&tuning),
            "choices_of_one_computer": shares.then(|| choices(&interface.tuning_of_computer())),
            "sparse_from_bytes": tuning.sparse_from_bytes(),
            "sparse": tuning.sparse_costs(),
        });
        out!("{info}")?;
        return Ok(ExitCode::SUCCESS);
    }
    out!("flexcast {}", env!("CARGO_PKG_VERSION"))?;
    match &rdma {
        Ok(devices) => out!("RDMA devices: {} (datapaths dpa, with firmware, and verbs)", devices.join(", "))?,
        Err(reason) => out!("RDMA devices: none ({reason}); `auto` takes the datapath udp")?,
    }
    let address = interface.address();
    out!("interface of the datapath udp: {} ({address}), MTU {} bytes", interface.name(), interface.mtu_bytes())?;
    out!("UDP port {port}, datagrams {}", if options.unauthenticated { "without tags" } else { "with tags" })?;
    out!(
        "multicast: up to {} bytes of data in a datagram, {} subgroup{}",
        interface.datagram_bytes(),
        interface.subgroups(),
        if interface.subgroups() == 1 { "" } else { "s, with a port and a thread each beyond the first" }
    )?;
    out!("ranks of one computer share memory: {}", if shares { "yes" } else { "no (FLEXCAST_SHM=0)" })?;
    out!("receive buffer: {} bytes of {} wanted", buffer.got_bytes, buffer.wanted_bytes)?;
    if is_small {
        out!("  more lets senders run further ahead: {sysctl}")?;
    }
    match of_file {
        0 => out!("algorithms, chosen without a file (FLEXCAST_TUNING; `flexcast tune` writes one):")?,
        count => out!("algorithms; the first {count} lines are those of FLEXCAST_TUNING:")?,
    }
    if shares {
        out!("among ranks of several computers:\n{}", table(&tuning))?;
        out!("among ranks of one computer, which share memory:\n{}", table(&interface.tuning_of_computer()))?;
    } else {
        out!("{}", table(&tuning))?;
    }
    print_sparse(&tuning)?;
    Ok(ExitCode::SUCCESS)
}

/// A row of a table, for `--json`.
fn object(choice: &Choice) -> serde_json::Value {
    let Choice { operation, ranks, bytes, algorithm } = choice;
    json!({ "operation": operation.name(), "ranks": ranks, "bytes": bytes, "algorithm": algorithm.name() })
}

/// Which algorithm is taken up to which number of ranks and bytes.
fn table(tuning: &Tuning) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(["operation", "up to ranks", "up to bytes", "algorithm"]);
    for column in [1, 2] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    for Choice { operation, ranks, bytes, algorithm } in tuning.choices() {
        let number = |value: u64, most: u64| if value >= most { "any".to_owned() } else { value.to_string() };
        let (ranks, bytes) = (number((*ranks).into(), u32::MAX.into()), number(*bytes, i64::MAX as u64));
        table.add_row([operation.name().to_owned(), ranks, bytes, algorithm.name().to_owned()]);
    }
    table
}

/// From which length and density on a sparse AllReduce sends the whole array.
fn print_sparse(tuning: &Tuning) -> anyhow::Result<()> {
    if let Some(bytes) = tuning.sparse_from_bytes() {
        out!("sparse AllReduces search for zeros in arrays of {bytes} bytes and more")?;
        return Ok(());
    }
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(["up to ranks", "bytes", "dense us", "sparse us, no zeros", "sparse us, 90 % zeros"]);
    for SparseCost { ranks, bytes, dense_us, full_us, tenth_us } in tuning.sparse_costs() {
        let ranks = if *ranks == u32::MAX { "any".to_owned() } else { ranks.to_string() };
        table.add_row([ranks, bytes.to_string(), dense_us.to_string(), full_us.to_string(), tenth_us.to_string()]);
    }
    out!("times by which a sparse AllReduce searches for zeros or sends everything:\n{table}")?;
    Ok(())
}
