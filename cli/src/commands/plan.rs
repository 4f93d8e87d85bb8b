//! `flexcast plan`.

use std::process::ExitCode;

use comfy_table::{CellAlignment, Table, presets};
use emu_config::Timing;
use flexcast_cli::out;
use flexcast_lab::capacity::{self, Ask, Cost, Plan};

use crate::plan_args::PlanArgs;

pub(super) fn run(args: &PlanArgs) -> anyhow::Result<ExitCode> {
    let ask = Ask {
        gbit_per_s: args.link,
        chunk_bytes: args.chunk,
        transport: args.transport,
        ranks: args.ranks,
        buffer_bytes: args.buffer,
    };
    let model = Timing { model: Some(args.model.clone()), set: Vec::new() };
    let cost = capacity::cost(ask.transport.is_zero_copy(), &args.images.source(), &model)?;
    let plan = capacity::plan(&ask, cost)?;
    if args.json {
        out!("{}", serde_json::to_string(&plan)?)?;
    } else {
        out!("{}", table(&plan))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn table(plan: &Plan) -> String {
    let Cost { cycles, instructions, model } = &plan.cost;
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    let threads = match (plan.receive_threads, plan.receive_threads_most) {
        (least, most) if least == most => least.to_string(),
        (least, most) => format!("{most} ({least} without the 22 % that UD may lack)"),
    };
    let kib = |bytes: u64| format!("{:.1} KiB", bytes as f64 / 1024.0);
    for (what, value) in [
        ("threads that receive", threads),
        ("all threads, cores", format!("{}, {}", plan.threads, plan.cores)),
        ("subgroups", format!("{}, each of {} receives and {} sends", plan.subgroups, plan.slots, plan.send_depth)),
        ("staging", format!("{}, {:.0} us of the link", kib(plan.staging_bytes), plan.staging_us)),
        ("sequence number", format!("{} bits, which leaves {} collective ids", plan.psn_bits, plan.collective_ids)),
        ("bitmaps", kib(plan.bitmap_bytes)),
        ("last-level cache", format!("{} of {}", kib(plan.cache_bytes), kib(plan.cache_limit_bytes))),
        (
            "goodput expected",
            format!(
                "{:.1} to {:.1} Gbit/s with {} threads; the link carries {:.1}",
                plan.goodput_least_gbit_s, plan.goodput_gbit_s, plan.receive_threads, plan.link_goodput_gbit_s
            ),
        ),
    ] {
        table.add_row([what.to_owned(), value]);
    }
    if let Some(column) = table.column_mut(1) {
        column.set_cell_alignment(CellAlignment::Left);
    }
    format!(
        "{table}\ncomputed from {cycles:.0} cycles and {instructions:.1} instructions per completion of one thread \
         (emulated, model {model});\nthe card's engines and its PCIe link are not considered"
    )
}
