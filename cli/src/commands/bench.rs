//! `flexcast bench`: instructions per completion of `receive` beside `reference`, and collectives of ever more ranks.

use std::process::ExitCode;

use serde::Serialize;

use emu_provider::MODEL;
use flexcast_cli::out;
use flexcast_cli::stdout::StdoutError;
use flexcast_lab::tput::plan::{Params, Plan, Transport};
use flexcast_lab::tput::report::Report;
use flexcast_lab::tput::run::{Cards, made_up_bytes, run as run_plan};

use super::{growth, open_provider, progress_bar, read_image, show};
use crate::args::{BenchArgs, ProviderName};

/// Instructions per completion that the published kernel needs (Khalilov et al., table I).
const PUBLISHED: [(Transport, f64); 2] = [(Transport::Uc, 66.0), (Transport::Ud, 113.0)];

/// The link delivers chunks of this size faster than one thread takes them, so its ring is never empty: what is counted is the
/// loop, not the waiting.
fn saturated() -> Params {
    Params { chunk_bytes: 1024, ring: 1024, warm_up: 1, ..Params::default() }
}

#[derive(Serialize)]
struct Row {
    image: String,
    batch: u32,
    published_instructions_per_cqe: f64,
    #[serde(flatten)]
    report: Report,
    /// Completions emulated per second of wall time: the emulator's speed, not the card's.
    emulated_cqes_per_wall_s: f64,
}

pub(super) fn run(args: &BenchArgs) -> anyhow::Result<ExitCode> {
    let datapath = if args.no_datapath { Vec::new() } else { datapath(args)? };
    if !args.json && !datapath.is_empty() {
        tell(args, &datapath)?;
    }
    let collectives = if args.no_collectives { Vec::new() } else { growth::measure(&args.images)? };
    if args.json {
        out!("{}", serde_json::json!({ "datapath": datapath, "collectives": collectives }))?;
    } else if !collectives.is_empty() {
        out!("{}", growth::table(&collectives))?;
    }
    let ok = datapath.iter().all(|row| row.report.digest_ok) && collectives.iter().all(|row| row.digest_ok);
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Both images and transports, batches of every size.
fn datapath(args: &BenchArgs) -> anyhow::Result<Vec<Row>> {
    // Limits before that many bytes are made up.
    Plan::new(saturated(), args.bytes)?.check_memory()?;
    let source = made_up_bytes(args.bytes, 1)?;
    let bar = progress_bar("chunks");
    let mut rows = Vec::new();
    for name in ["reference", "receive"] {
        let image = read_image(&args.images.join(format!("{name}.elf")))?;
        for (transport, published) in PUBLISHED {
            // The reference rings doorbells with every completion, whatever the batch says.
            let batches: &[u32] = if name == "reference" { &[1] } else { &[1, 16, 32, 64] };
            for &batch in batches {
                let params = Params { transport, batch, ..saturated() };
                let plan = Plan::new(params, args.bytes)?;
                let provider = open_provider(ProviderName::Emu, 0, 1)?;
                let cards = Cards::open(&provider, None, None)?;
                bar.set_prefix(format!("{name} {} /{batch}", transport.name()));
                let report = run_plan(&cards, &image, &plan, &source, MODEL, &mut |tick| show(&bar, tick))?;
                rows.push(Row {
                    image: name.to_owned(),
                    batch,
                    published_instructions_per_cqe: published,
                    emulated_cqes_per_wall_s: f64::from(plan.runs()) * report.device.cqes as f64 / report.wall_s,
                    report,
                });
            }
        }
    }
    bar.finish_and_clear();
    Ok(rows)
}

fn tell(args: &BenchArgs, rows: &[Row]) -> Result<(), StdoutError> {
    let mut counts = comfy_table::Table::new();
    counts.load_style(comfy_table::presets::UTF8_FULL_CONDENSED);
    counts.set_header(["image", "transport", "batch", "instr/CQE", "published", "cycles/CQE (emulated)"]);
    let mut speed = comfy_table::Table::new();
    speed.load_style(comfy_table::presets::UTF8_FULL_CONDENSED);
    speed.set_header(["image", "transport", "batch", "CQEs", "wall s (measured)", "CQEs emulated per wall s"]);
    for row in rows {
        let head = [row.image.clone(), row.report.transport.name().to_owned(), row.batch.to_string()];
        let of = |rest: [String; 3]| head.clone().into_iter().chain(rest).collect::<Vec<_>>();
        counts.add_row(of([
            format!("{:.1}", row.report.instructions_per_cqe),
            format!("{:.0}", row.published_instructions_per_cqe),
            format!("{:.0}", row.report.cycles_per_cqe),
        ]));
        speed.add_row(of([
            row.report.device.cqes.to_string(),
            format!("{:.2}", row.report.wall_s),
            format!("{:.0}", row.emulated_cqes_per_wall_s),
        ]));
    }
    let Params { chunk_bytes, ring, .. } = saturated();
    out!(
        "one thread, {} bytes in chunks of {chunk_bytes}, ring of {ring} never empty; cost model {MODEL}",
        args.bytes
    )?;
    out!("{counts}\nspeed of the emulator, set-up, warm-up and comparison of all bytes included\n{speed}")
}
