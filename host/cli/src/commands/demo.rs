//! `flexcast demo`: the sweep of transport, threads and loss.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context as _;

use flexcast_cli::provider::MODEL;
use flexcast_cli::tput::plan::{Params, Plan, Transport};
use flexcast_cli::tput::report::{Report, table};
use flexcast_cli::tput::run::{Cards, run as run_plan};

use super::{open_provider, progress_bar, read_image, read_source, show};
use crate::args::{DemoArgs, ProviderName};

const THREADS: [u32; 5] = [1, 2, 4, 8, 16];
const LOSS_PPM: [u32; 2] = [0, 10_000];

pub(super) fn run(args: &DemoArgs) -> anyhow::Result<ExitCode> {
    let started = Instant::now();
    let path = match &args.file {
        Some(path) => path.clone(),
        None => std::env::current_exe().context("this program does not know its own file; give one with --file")?,
    };
    let source = read_source(&path)?;
    let image = read_image(&args.images.join("receive.elf"))?;
    let bar = progress_bar();
    let mut reports: Vec<Report> = Vec::new();
    for transport in [Transport::Uc, Transport::Ud] {
        for threads in THREADS {
            for loss_ppm in LOSS_PPM {
                let params = Params { transport, threads, loss_ppm, ..Params::default() };
                let plan = Plan::new(params, source.len() as u64)?;
                // A machine of its own for every run, so that rows do not depend on one another.
                let provider = open_provider(ProviderName::Emu, loss_ppm, params.seed)?;
                let cards = Cards::open(&provider, None, None)?;
                bar.set_prefix(format!("{} x{threads}", transport.name()));
                bar.set_message(if loss_ppm == 0 { "" } else { "with loss" });
                reports.push(run_plan(&cards, &image, &plan, &source, MODEL, &mut |tick| show(&bar, tick))?);
            }
        }
    }
    bar.finish_and_clear();
    if args.json {
        println!("{}", serde_json::to_string(&reports)?);
    } else {
        println!("{} ({} bytes), card 1 to the DPA of card 0, chunks of 4096 bytes", path.display(), source.len());
        println!("{}", table(&reports));
        println!(
            "times and goodput are emulated, cost model {MODEL}; instructions are counted by the device in its drain loops: where \
             threads wait for\nthe link, batches are short and their doorbells weigh more (`cargo xtask bench` keeps the ring full)"
        );
    }
    let ok = reports.iter().all(|report| report.digest_ok && (report.loss_percent > 0.0 || report.missing == 0));
    let verdict = if ok { "all bytes that arrived are those sent" } else { "BYTES DIFFER OR ARE MISSING" };
    eprintln!("{:>12} {} runs in {:.1} s: {verdict}", "Finished", reports.len(), started.elapsed().as_secs_f64());
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
