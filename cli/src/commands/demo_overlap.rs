//! Overlap table of `flexcast demo`: one Allgather while the hosts compute, carried out by hosts, by the DPA, and by
//! service processes on Arm cores.

use emu_provider::Emulated;
use flexcast_lab::overlap::Overlap;
use flexcast_lab::sim::params::Operation;
use flexcast_lab::sim::run::{run as run_sim, source};
use flexcast_lab::sim::spec::{CommunicatorArgs, DatapathName, DeliveryName, SimControlName, SimSpec, StagedArgs};
use flexcast_lab::sim::text::table;
use flexcast_lab::{service, tput::run::ImageFile};
use indicatif::ProgressBar;
use serde::Serialize;

use flexcast_cli::out;
use flexcast_cli::stdout::StdoutError;

/// Ranks, how many of them share a card, and what each contributes.
const RANKS: u32 = 8;
const RANKS_PER_CARD: u32 = 2;
const BYTES: u64 = 64 << 10;
/// Operations that are counted, of each kind.
const ITERATIONS: u32 = 8;

/// One way to carry the Allgather out.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    carried_out_by: &'static str,
    #[serde(flatten)]
    overlap: Overlap,
    /// Whether every rank has every byte.
    pub(super) digest_ok: bool,
    /// What runs it alone.
    command: String,
}

fn spec(communicator: CommunicatorArgs, delivery: Option<DeliveryName>) -> SimSpec {
    let staged = StagedArgs { delivery, ..StagedArgs::default() };
    let is_of_service = communicator.control == SimControlName::Service;
    SimSpec {
        ranks: RANKS,
        ranks_per_card: RANKS_PER_CARD,
        op: Operation::Allgather,
        bytes: BYTES,
        overlap: !is_of_service,
        iterations: if is_of_service { 1 } else { ITERATIONS },
        communicator,
        staged,
        ..SimSpec::default()
    }
}

/// Runs all of them, each on a machine of its own.
pub(super) fn run(image: &ImageFile, bar: &ProgressBar) -> anyhow::Result<Vec<Row>> {
    let default = CommunicatorArgs::default;
    let service = || CommunicatorArgs { control: SimControlName::Service, ..default() };
    let ways = [
        ("hosts' processors", CommunicatorArgs { datapath: DatapathName::Verbs, ..default() }, None),
        ("DPA, protocol on the host", default(), None),
        ("DPA, protocol on the DPA", CommunicatorArgs { control: SimControlName::Device, ..default() }, None),
        ("service processes, staged", service(), Some(DeliveryName::Flat)),
        ("service processes, alias keys", service(), Some(DeliveryName::Direct)),
    ];
    let run = |(carried_out_by, communicator, delivery)| {
        bar.set_prefix("overlap");
        bar.set_message(carried_out_by);
        let spec = spec(communicator, delivery);
        let (overlap, digest_ok) = if spec.is_of_service() {
            let (params, machine) = spec.service()?;
            let report = service::run(machine.config_of(params.shape.hosts as usize)?, &params, &mut |_| {})?;
            // They are handed a call, and find a flag.
            let calls = report.host_calls_between_post_and_flag as f64 / f64::from(RANKS * report.iterations);
            (Overlap::new(report.pure_us, report.pure_us, report.overall_us, calls), report.digest_ok)
        } else {
            let (params, machine) = spec.resolve(None)?;
            let cards = Emulated::new(machine.config_of(params.cards())?)?;
            let image = Some(image).filter(|_| params.needs_image());
            let report = run_sim(&cards.provider, image, &params, &source(&params)?, &mut |_| {})?;
            (report.overlap.unwrap_or_default(), report.digest_ok)
        };
        Ok(Row { carried_out_by, overlap, digest_ok, command: spec.command() })
    };
    ways.into_iter().map(run).collect()
}

/// Prints the table.
pub(super) fn print(rows: &[Row]) -> Result<(), StdoutError> {
    let mut table =
        table(&["carried out by", "us alone", "us with computing", "overlap %", "host's calls", "every rank"]);
    for Row { carried_out_by, overlap, digest_ok, .. } in rows {
        let Overlap { pure_us, overall_us, overlap_percent, host_calls, .. } = overlap;
        table.add_row([
            (*carried_out_by).to_owned(),
            format!("{pure_us:.1}"),
            format!("{overall_us:.1}"),
            format!("{overlap_percent:.1}"),
            format!("{host_calls:.1}"),
            if *digest_ok { "equal" } else { "DIFFERS" }.to_owned(),
        ]);
    }
    out!(
        "\na non-blocking Allgather of {BYTES} bytes from each of {RANKS} ranks, {RANKS_PER_CARD} on a card, whose \
         hosts then compute as long as it takes alone"
    )?;
    out!("{table}")?;
    out!(
        "times are emulated; those of hosts' processors and Arm cores take none, those of the DPA are of the model. \
         host's calls: what is left to call, with work\nto do, once a host has computed. By the DPA's protocol and \
         service processes it polls a flag in its memory. One alone:\n{}",
        rows.last().map_or("", |row| &row.command)
    )
}
