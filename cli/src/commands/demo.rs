//! `flexcast demo`: the sweep of transport, threads and loss, an Allgather among eight ranks compared with the ring,
//! and one while hosts compute.

use std::process::ExitCode;
use std::time::Instant;

use emu_provider::MODEL;
use flexcast::Transport;
use flexcast_cli::stdout::StdoutError;
use flexcast_cli::{note, out};
use flexcast_lab::sim::algorithm::{Algorithm, AlgorithmName, Parameters};
use flexcast_lab::sim::params::Operation;
use flexcast_lab::sim::report::Report as Simulation;
use flexcast_lab::sim::text::comparison;
use flexcast_lab::tput::plan::{Params, Plan};
use flexcast_lab::tput::report::{Report, table, transport_name};
use flexcast_lab::tput::run::{ImageFile, made_up_bytes, names, run as run_plan};
use indicatif::ProgressBar;

use super::{collectives, demo_overlap, demo_sparse};
use crate::args::DemoArgs;
use crate::inputs::{open_provider, read_source};
use crate::progress::{progress_bar, show};
use crate::provider_name::ProviderName;

const THREADS: [u32; 5] = [1, 2, 4, 8, 16];
const LOSS_PPM: [u32; 2] = [0, 10_000];
/// Bytes that are sent where no file is given.
const DEFAULT_BYTES: u64 = 8 << 20;
/// Ranks of the Allgather, and what its links lose.
const RANKS: u32 = 8;
const ALLGATHER_LOSS_PPM: u32 = 1000;

pub(super) fn run(args: &DemoArgs) -> anyhow::Result<ExitCode> {
    let started = Instant::now();
    let (what, source) = match &args.file {
        Some(path) => (path.display().to_string(), read_source(path)?),
        None => ("made-up data".to_owned(), made_up_bytes(DEFAULT_BYTES, 1)?),
    };
    let image = args.images.source().read("allgather")?;
    let bar = progress_bar("repetitions");
    let mut reports: Vec<Report> = Vec::new();
    for transport in [Transport::UcUnicast, Transport::Ud] {
        for threads in THREADS {
            for loss_ppm in LOSS_PPM {
                let params = Params { transport, loss_ppm, ..Params::default() }.with_threads(threads);
                let plan = Plan::new(params, source.len() as u64)?;
                // A machine of its own for every run, so that rows do not depend on one another.
                let provider = open_provider(ProviderName::Emu, loss_ppm, params.seed)?;
                let names = names(&provider, None, None)?;
                bar.set_prefix(format!("{} x{threads}", transport_name(transport)));
                bar.set_message(if loss_ppm == 0 { "" } else { "with loss" });
                reports.push(run_plan(&provider, &names, &image, &plan, &source, MODEL, &mut |tick| show(&bar, tick))?);
            }
        }
    }
    let allgathers = allgathers(&image, &source, &bar)?;
    let overlaps = demo_overlap::run(&image, &bar)?;
    bar.set_prefix("sparse AllReduce");
    let sparse = demo_sparse::run()?;
    bar.finish_and_clear();
    if args.json {
        out!(
            "{}",
            serde_json::json!({ "broadcast": reports, "allgather": allgathers, "overlap": overlaps, "sparse": sparse })
        )?;
    } else {
        out!("{what} ({} bytes) broadcast from card 1 to the DPA of card 0, chunks of 4096 bytes", source.len())?;
        out!("{}", table(&reports))?;
        out!(
            "times are emulated, cost model {MODEL}: of the whole operation, from the first post to the last release, \
             and of its data alone; instructions are\ncounted by the device in its receive loops"
        )?;
        print(&allgathers, source.len())?;
        demo_overlap::print(&overlaps)?;
        demo_sparse::print(&sparse)?;
    }
    let ok = reports.iter().all(|report| report.digest_ok)
        && allgathers.iter().all(|report| report.digest_ok)
        && overlaps.iter().all(|row| row.digest_ok)
        && sparse.iter().all(|row| row.sums_ok);
    let verdict = if ok { "every rank has every byte" } else { "BYTES DIFFER" };
    let runs = reports.len() + allgathers.len() + overlaps.len() + sparse.len();
    note!("{:>12} {runs} runs in {:.1} s: {verdict}", "Finished", started.elapsed().as_secs_f64());
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The bytes gathered by multicast and by the ring, on machines alike.
fn allgathers(image: &ImageFile, source: &[u8], bar: &ProgressBar) -> anyhow::Result<Vec<Simulation>> {
    let machine = emu_config::Machine { loss_ppm: Some(ALLGATHER_LOSS_PPM), seed: Some(1), ..Default::default() };
    let ring = Algorithm::new(Operation::Allgather, Some(AlgorithmName::Ring), Parameters::default())?;
    [Algorithm::Multicast, ring]
        .into_iter()
        .map(|algorithm| {
            let params = collectives::allgather_file(algorithm, RANKS, source.len() as u64);
            Ok(collectives::simulate(&machine, image, &params, Some(source), bar)?)
        })
        .collect()
}

fn print(allgathers: &[Simulation], bytes: usize) -> Result<(), StdoutError> {
    out!(
        "\nthe same bytes cut over {RANKS} ranks, a card each on one switch, {} % loss: every rank gathers all {bytes} \
         bytes",
        f64::from(ALLGATHER_LOSS_PPM) / 1e4
    )?;
    out!("{}", comparison(allgathers))?;
    let [multicast, ring] = allgathers else { return Ok(()) };
    let of = |report: &Simulation| report.traffic.switch_bytes_total + report.traffic.switch_control_bytes;
    out!(
        "the ring loads the switch {:.2} times as much as multicast, all sent again and control included (2 - 2/P = \
         {:.2} of data without loss);\nranks read {} chunks that multicast had lost from their neighbours",
        of(ring) as f64 / of(multicast) as f64,
        2.0 - 2.0 / f64::from(RANKS),
        multicast.recovered_chunks
    )
}
