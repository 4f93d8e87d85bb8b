//! `flexcast bench`: instructions per completion, compared with the published kernels, and collectives of ever more
//! ranks.

use std::process::ExitCode;

use serde::Serialize;

use emu_provider::MODEL;
use flexcast::Transport;
use flexcast_cli::out;
use flexcast_cli::stdout::StdoutError;
use flexcast_lab::reference;
use flexcast_lab::tput::plan::{Params, Plan};
use flexcast_lab::tput::run::{Cards, made_up_bytes, names, run as run_plan};

use super::scaling;
use crate::args::BenchArgs;
use crate::inputs::open_provider;
use crate::progress::progress_bar;
use crate::provider_name::ProviderName;

/// Bytes of a chunk: small, so that the link is faster than one thread.
const CHUNK_BYTES: u32 = 1024;

#[derive(Serialize)]
struct Row {
    image: &'static str,
    transport: &'static str,
    /// Completions per doorbell.
    batch: u32,
    published_instructions_per_cqe: f64,
    instructions_per_cqe: f64,
    cycles_per_cqe: f64,
    cqes: u64,
    wall_s: f64,
    /// Completions emulated per second of wall time: the emulator's speed, not the card's.
    emulated_cqes_per_wall_s: f64,
    digest_ok: bool,
}

impl Row {
    fn per_wall_s(mut self, runs: u32) -> Self {
        self.emulated_cqes_per_wall_s = f64::from(runs) * self.cqes as f64 / self.wall_s;
        self
    }
}

pub(super) fn run(args: &BenchArgs) -> anyhow::Result<ExitCode> {
    let datapath = if args.no_datapath { Vec::new() } else { datapath(args)? };
    if !args.json && !datapath.is_empty() {
        print(args, &datapath)?;
    }
    let collectives = if args.no_collectives { Vec::new() } else { scaling::measure(args.images.images.as_deref())? };
    if args.json {
        out!("{}", serde_json::json!({ "datapath": datapath, "collectives": collectives }))?;
    } else if !collectives.is_empty() {
        out!("{}", scaling::table(&collectives))?;
    }
    let ok = datapath.iter().all(|row| row.digest_ok) && collectives.iter().all(|row| row.digest_ok);
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The published kernels, and ours with batches of every size.
fn datapath(args: &BenchArgs) -> anyhow::Result<Vec<Row>> {
    let published = |is_uc| if is_uc { reference::PUBLISHED_UC } else { reference::PUBLISHED_UD }.instructions;
    let kernel = |transport| {
        let params = reference::Params {
            transport,
            chunk_bytes: CHUNK_BYTES.into(),
            warm_up: 1,
            ..reference::Params::default()
        };
        reference::Plan::new(params, args.bytes)
    };
    // Limits before that many bytes are made up.
    kernel(reference::Transport::Uc)?.check_memory()?;
    let source = made_up_bytes(args.bytes, 1)?;
    let bar = progress_bar("runs");
    bar.set_prefix("datapath");
    bar.set_length(10);
    let (images, mut rows) = (args.images.source(), Vec::new());
    let image = images.read("reference")?;
    for transport in [reference::Transport::Uc, reference::Transport::Ud] {
        let plan = kernel(transport)?;
        let provider = open_provider(ProviderName::Emu, 0, 1)?;
        let cards = Cards::open(&provider, None, None)?;
        let report = reference::run(&cards, &image, &plan, &source, MODEL)?;
        let row = Row {
            image: "reference",
            transport: reference::transport::name(transport),
            batch: 1,
            published_instructions_per_cqe: published(transport == reference::Transport::Uc),
            instructions_per_cqe: report.instructions_per_cqe,
            cycles_per_cqe: report.cycles_per_cqe,
            cqes: report.device.cqes,
            wall_s: report.wall_s,
            emulated_cqes_per_wall_s: 0.0,
            digest_ok: true,
        };
        rows.push(row.per_wall_s(2));
        bar.inc(1);
    }
    let image = images.read("allgather")?;
    for transport in [Transport::UcUnicast, Transport::Ud] {
        for batch in [2, 16, 32, 64] {
            // Receives for all chunks, so that nothing is lost while the thread is behind.
            let slots = 4096;
            let params = Params { transport, batch, slots, chunk_bytes: CHUNK_BYTES, warm_up: 1, ..Params::default() };
            let plan = Plan::new(params.with_threads(1), args.bytes)?;
            let provider = open_provider(ProviderName::Emu, 0, 1)?;
            let names = names(&provider, None, None)?;
            let report = run_plan(&provider, &names, &image, &plan, &source, MODEL, &mut |_| ())?;
            let row = Row {
                image: "allgather",
                transport: report.transport,
                batch,
                published_instructions_per_cqe: published(transport == Transport::UcUnicast),
                instructions_per_cqe: report.instructions_per_cqe,
                cycles_per_cqe: report.cycles_per_cqe,
                cqes: report.device.cqes,
                wall_s: report.wall_s,
                emulated_cqes_per_wall_s: 0.0,
                digest_ok: report.digest_ok,
            };
            rows.push(row.per_wall_s(plan.runs()));
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(rows)
}

fn print(args: &BenchArgs, rows: &[Row]) -> Result<(), StdoutError> {
    let mut counts = comfy_table::Table::new();
    counts.load_style(comfy_table::presets::UTF8_FULL_CONDENSED);
    counts.set_header(["image", "transport", "batch", "instr/CQE", "published", "cycles/CQE (emulated)"]);
    let mut speed = comfy_table::Table::new();
    speed.load_style(comfy_table::presets::UTF8_FULL_CONDENSED);
    speed.set_header(["image", "transport", "batch", "CQEs", "wall s (measured)", "CQEs emulated per wall s"]);
    for row in rows {
        let head = [row.image.to_owned(), row.transport.to_owned(), row.batch.to_string()];
        let of = |rest: [String; 3]| head.clone().into_iter().chain(rest).collect::<Vec<_>>();
        counts.add_row(of([
            format!("{:.1}", row.instructions_per_cqe),
            format!("{:.0}", row.published_instructions_per_cqe),
            format!("{:.0}", row.cycles_per_cqe),
        ]));
        speed.add_row(of([
            row.cqes.to_string(),
            format!("{:.2}", row.wall_s),
            format!("{:.0}", row.emulated_cqes_per_wall_s),
        ]));
    }
    out!("one thread, {} bytes in chunks of {CHUNK_BYTES}; cost model {MODEL}", args.bytes)?;
    out!("{counts}\nspeed of the emulator, set-up, warm-up and comparison of all bytes included\n{speed}")
}
