//! Step 4: every hold-out, each from runs of its own machines.

use emu_machine::DrivenFrom;
use emu_machine::timing::Parameters;
use flexcast_abi::calibration::Kernel;

use super::bounds::{Published, gib_per_s, link_per_us};
use super::echo::Echo;
use super::fixture::{FIRST_UNIT, Probe, measure, span_ns};
use super::holdout::{Band, HoldOut, Verdict};
use super::packets::Packets;
use super::reference::{BUFFER_BYTES, CHUNK_BYTES, Run};
use super::{CalibrateError, Images, Job, PUBLISHED_UC, PUBLISHED_UD};
use crate::reference::{Transport, transport};

/// Share of the wire's goodput that is full throughput, in percent.
const FULL_PERCENT: f64 = 97.0;
/// Chunks per second of 1.6 Tbit/s in chunks of 4 KiB, in millions.
const NEEDED_PER_US: f64 = 48.828_125;
/// Threads of the store, on eleven cores.
const STORE_THREADS: u32 = 176;
/// Workers of SDR-RDMA's scaling curve, and the packets per second that were published, in millions.
const SDR: [(u32, f64); 5] = [(8, 11.6), (16, 22.9), (32, 42.9), (64, 70.5), (128, 92.1)];
/// log2 of the packets of a bitmap chunk on that curve (64 KiB of 4 KiB).
const SDR_LOG_CHUNK: u32 = 4;

/// How much is run for each prediction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Chunks of each worker where 64-byte chunks are received.
    pub(super) small_chunks: u64,
    /// Packets of each worker.
    pub(super) packets: u64,
    /// Operations of each thread of the chain.
    pub(super) operations: u64,
    /// Datagrams of each worker of the echo.
    pub(super) datagrams: u64,
    /// Whether packets are received by workers over all cores as well, which decides nothing.
    pub(super) both_places: bool,
}

impl Sizes {
    /// Of a calibration.
    pub const FULL: Self =
        Self { small_chunks: 2048, packets: 4096, operations: 400, datagrams: 480, both_places: true };
    /// Of a sweep, which has many.
    pub const REDUCED: Self =
        Self { small_chunks: 256, packets: 512, operations: 100, datagrams: 64, both_places: false };
}

fn published(transport: Transport) -> Published {
    match transport {
        Transport::Uc => PUBLISHED_UC,
        Transport::Ud => PUBLISHED_UD,
    }
}

/// Both bounds of the published kernel in units of `scale` per million chunks per second.
fn with_bounds(row: HoldOut, transport: Transport, threads: u32, scale: f64) -> HoldOut {
    let kernel = published(transport);
    row.bounds(Some(kernel.latency_bound(threads) * scale), Some(kernel.issue_bound(threads) * scale))
}

/// All hold-outs under these parameters, as jobs that do not depend on one another.
pub(super) fn jobs<'a>(images: &'a Images, parameters: &'a Parameters, sizes: Sizes) -> Vec<Job<'a, Vec<HoldOut>>> {
    let mut jobs: Vec<Job<'a, Vec<HoldOut>>> = vec![
        Job::new("V-2, V-3, V-4: one thread", move || one_thread(images, parameters)),
        Job::new("V-5: UC threads", move || saturation(images, parameters, Transport::Uc)),
        Job::new("V-6: UD threads", move || saturation(images, parameters, Transport::Ud)),
        Job::new("V-7: one core", move || one_core(images, parameters)),
        Job::new("V-8: UC, 64-byte chunks", move || small(images, parameters, Transport::Uc, sizes)),
        Job::new("V-8: UD, 64-byte chunks", move || small(images, parameters, Transport::Ud, sizes)),
        Job::new("V-9: workers of SDR-RDMA", move || scaling(images, parameters, sizes, false)),
        Job::new("V-10: bitmap chunks of SDR-RDMA", move || chunk_sizes(images, parameters, sizes)),
        Job::new("V-11: chain of loads", move || chain(images, parameters, sizes)),
    ];
    if sizes.both_places {
        jobs.push(Job::new("V-9: the same, over all cores", move || scaling(images, parameters, sizes, true)));
    }
    for (part, per_us, most) in [("one port", 44.9, 45.0), ("two ports", 75.9, 76.0)] {
        jobs.push(Job::new("V-12: echo", move || echo(images, parameters, sizes, part, per_us, most)));
    }
    jobs.push(Job::new("V-13: chunk sizes", move || chunks(images, parameters)));
    jobs
}

fn one_thread(images: &Images, parameters: &Parameters) -> Result<Vec<HoldOut>, CalibrateError> {
    let uc = Run::published(Transport::Uc, 1).report(&images.reference, parameters)?;
    let ud = Run::published(Transport::Ud, 1).report(&images.reference, parameters)?;
    let band = Band::between(1084.0, 1320.0);
    let goodput = |id, what, band: Band, transport, value| {
        let row = HoldOut::new(id, what, "GiB/s", band, band.widened(5.0), value);
        with_bounds(row, transport, 1, gib_per_s(1.0, CHUNK_BYTES))
    };
    let ratio = Band::between(1.8, 2.3);
    Ok(vec![
        HoldOut::new(
            "V-2",
            "UD cycles per completion, one thread",
            "cycles",
            band,
            band.widened(20.0),
            ud.cycles_per_cqe,
        ),
        goodput("V-3.uc", "UC goodput, one thread", Band::between(11.5, 11.9), Transport::Uc, uc.goodput_gib_s),
        goodput("V-3.ud", "UD goodput, one thread", Band::between(5.2, 6.33), Transport::Ud, ud.goodput_gib_s),
        HoldOut::new("V-4", "UD cycles over UC cycles", "", ratio, ratio, ud.cycles_per_cqe / uc.cycles_per_cqe),
    ])
}

/// Goodput in percent of what the wire carries.
fn percent_of_wire(
    images: &Images,
    parameters: &Parameters,
    transport: Transport,
    threads: u32,
) -> Result<f64, CalibrateError> {
    let report = Run::published(transport, threads).report(&images.reference, parameters)?;
    Ok(report.goodput_gib_s / gib_per_s(link_per_us(transport, CHUNK_BYTES), CHUNK_BYTES) * 100.0)
}

fn saturation(images: &Images, parameters: &Parameters, transport: Transport) -> Result<Vec<HoldOut>, CalibrateError> {
    let (id, below, full, between): (_, u32, u32, &[u32]) = match transport {
        Transport::Uc => ("V-5", 1, 4, &[2]),
        Transport::Ud => ("V-6", 4, 16, &[8]),
    };
    let scale = 100.0 / link_per_us(transport, CHUNK_BYTES);
    let name = transport::name(transport).to_uppercase();
    let mut rows = Vec::new();
    for (threads, wanted) in [(below, Band::most(FULL_PERCENT)), (full, Band::least(FULL_PERCENT))] {
        let value = percent_of_wire(images, parameters, transport, threads)?;
        let what = format!("{name} goodput, {threads} thread{}", if threads == 1 { "" } else { "s" });
        let row = HoldOut::new(format!("{id}.{threads}"), what, "% of wire", wanted, wanted, value);
        rows.push(with_bounds(row, transport, threads, scale));
    }
    for &threads in between {
        let value = percent_of_wire(images, parameters, transport, threads)?;
        let what = format!("{name} goodput, {threads} threads: where it lands in between");
        let row = HoldOut::prediction(format!("{id}.{threads}"), what, "% of wire", value);
        rows.push(with_bounds(row, transport, threads, scale));
    }
    Ok(rows)
}

fn one_core(images: &Images, parameters: &Parameters) -> Result<Vec<HoldOut>, CalibrateError> {
    let mut rows = Vec::new();
    for transport in [Transport::Uc, Transport::Ud] {
        let value = percent_of_wire(images, parameters, transport, 16)?;
        let what = format!("{} goodput, 16 threads of one core", transport::name(transport).to_uppercase());
        let wanted = Band::least(FULL_PERCENT);
        let row = HoldOut::new(format!("V-7.{}", transport::name(transport)), what, "% of wire", wanted, wanted, value);
        rows.push(with_bounds(row, transport, 16, 100.0 / link_per_us(transport, CHUNK_BYTES)));
    }
    Ok(rows)
}

fn small(
    images: &Images,
    parameters: &Parameters,
    transport: Transport,
    sizes: Sizes,
) -> Result<Vec<HoldOut>, CalibrateError> {
    const THREADS: u32 = 128;
    let bytes = u64::from(THREADS) * sizes.small_chunks * 64;
    let run = Run { transport, threads: THREADS, chunk_bytes: 64, bytes, counted: true };
    let report = run.report(&images.reference, parameters)?;
    let per_us = report.goodput_gib_s * (1u64 << 30) as f64 / 64.0 * 1e-6;
    let what = format!("{} chunks of 64 bytes, {THREADS} threads", transport::name(transport).to_uppercase());
    let wanted = Band::least(NEEDED_PER_US);
    let row = HoldOut::new(format!("V-8.{}", transport::name(transport)), what, "M/s", wanted, wanted, per_us).weak();
    let row = with_bounds(row, transport, THREADS, 1.0);
    let engine = parameters.get("card", "sends_per_s").map_or(0, |parameter| parameter.value) as f64 * 1e-6;
    Ok(vec![if per_us >= 0.97 * engine { row.note("at the rate of the sending card's engine") } else { row }])
}

/// Each worker's share of the packets per second against the first point's, one core after the other. Where the
/// published threads were is not said, so the other placement is reported as well; it decides nothing.
fn scaling(
    images: &Images,
    parameters: &Parameters,
    sizes: Sizes,
    spread: bool,
) -> Result<Vec<HoldOut>, CalibrateError> {
    const AT_ENGINE: &str = "at the rate of the receive engine, which is from this curve's end";
    const LIGHTER: &str = "this kernel takes fewer cycles per packet than the published workers: it meets the issue \
        slots of a core (one core after the other) and the engine's rate sooner";
    let (first, first_published) = SDR[0];
    let engine = parameters.get("card", "receives_per_s").map_or(0, |parameter| parameter.value) as f64 * 1e-6;
    let (id, place) = if spread { ("V-9.spread", ", over all cores") } else { ("V-9", "") };
    let mut rows = Vec::new();
    let mut first_per_us = 0.0;
    for (threads, published) in SDR {
        let run = Packets { threads, packets: sizes.packets, log_chunk: SDR_LOG_CHUNK, spread };
        let per_us = run.per_s(&images.calibration, parameters)? * 1e-6;
        let latency = first_published / f64::from(first) * f64::from(threads);
        let what = format!("SDR-like packets, {threads} workers{place} (published {published})");
        let rate = HoldOut::prediction(format!("{id}.{threads}.rate"), what, "M/s", per_us);
        let rate = rate.bounds(Some(latency), None);
        rows.push(if threads == first && per_us > first_published { rate.note(LIGHTER) } else { rate });
        if threads == first {
            first_per_us = per_us;
            continue;
        }
        let share = |per_us: f64, of_first: f64| per_us / of_first * f64::from(first) / f64::from(threads);
        let wanted = Band::of((share(published, first_published) * 100.0).round() / 100.0);
        let what = format!("SDR-like efficiency of {threads} workers{place} against {first}");
        let (id, predicted) = (format!("{id}.{threads}"), share(per_us, first_per_us));
        let row = HoldOut::new(id, what, "", wanted, wanted.plus_minus(0.1), predicted).bounds(Some(1.0), None);
        let row = if spread { HoldOut { verdict: Verdict::Prediction, ..row } } else { row };
        rows.push(if per_us >= 0.97 * engine { row.weak().note(AT_ENGINE) } else { row });
    }
    Ok(rows)
}

fn chunk_sizes(images: &Images, parameters: &Parameters, sizes: Sizes) -> Result<Vec<HoldOut>, CalibrateError> {
    const THREADS: u32 = 16;
    let mut rows = Vec::new();
    let mut ns = Vec::new();
    for (log_chunk, published) in [15.0, 17.0, 19.0, 21.0, 23.0, 24.0, 24.5].into_iter().enumerate() {
        let log_chunk = log_chunk as u32;
        let run = Packets { threads: THREADS, packets: sizes.packets, log_chunk, spread: false };
        let per_us = run.per_s(&images.calibration, parameters)? * 1e-6;
        ns.push(f64::from(THREADS) * 1e3 / per_us);
        let what =
            format!("SDR-like packets, {THREADS} workers, {} per bitmap chunk (published {published})", 1 << log_chunk);
        rows.push(HoldOut::prediction(format!("V-10.{}.rate", 1 << log_chunk), what, "M/s", per_us));
    }
    // One update on every packet against one in 64.
    let extra_us = (ns[0] - ns[6]) * 64.0 / 63.0 * 1e-3;
    let wanted = Band::between(0.3, 0.5);
    rows.push(HoldOut::new("V-10", "time of one host update", "us", wanted, wanted, extra_us));
    Ok(rows)
}

fn chain(images: &Images, parameters: &Parameters, sizes: Sizes) -> Result<Vec<HoldOut>, CalibrateError> {
    let probe = Probe {
        kernel: Kernel::Chain,
        threads: STORE_THREADS,
        first_unit: FIRST_UNIT,
        driven_from: DrivenFrom::Host,
        memory_bytes: 32 << 20,
        host_bytes: 8 << 20,
        count: sizes.operations,
    };
    let results = measure(&images.calibration, parameters, &probe)?;
    let per_us = (u64::from(STORE_THREADS) * sizes.operations) as f64 / span_ns(&results) as f64 * 1e3;
    let wanted = Band::between(27.0, 33.0);
    let what = format!("chain of 10 DPA-memory and 2 host loads, {STORE_THREADS} threads");
    let row = HoldOut::new("V-11", what, "M/s", wanted, wanted, per_us).bounds(Some(27.2), None);
    // Two published figures exclude one another here, unless half of the chain's loads were served by caches.
    Ok(vec![row.note(
        "the latency bound is the paper's own: 9 x 465 + 465 + 2 x 910 ns; the read limit of DPA memory (9.8 GB/s, 153 \
         M lines/s, published elsewhere) lets no more than 15.3 M of 10 lines each pass",
    )])
}

fn echo(
    images: &Images,
    parameters: &Parameters,
    sizes: Sizes,
    part: &str,
    per_us: f64,
    most: f64,
) -> Result<Vec<HoldOut>, CalibrateError> {
    let parameters = parameters.with("card", "sends_per_s", (per_us * 1e6) as u64)?;
    let run = Echo { threads: STORE_THREADS, datagrams: sizes.datagrams };
    let rate = run.per_s(&images.calibration, &parameters)? * 1e-6;
    let what = format!("datagram echo, {STORE_THREADS} threads, send engine of {part}");
    let id = if part == "one port" { "V-12.one" } else { "V-12.two" };
    Ok(vec![
        HoldOut::new(id, what, "M/s", Band::of(per_us), Band::most(most), rate).weak().note("checks plumbing only"),
    ])
}

fn chunks(images: &Images, parameters: &Parameters) -> Result<Vec<HoldOut>, CalibrateError> {
    let mut rows = Vec::new();
    for chunk_bytes in [8192, 16384] {
        let run = Run { chunk_bytes, bytes: BUFFER_BYTES, ..Run::published(Transport::Uc, 1) };
        let report = run.report(&images.reference, parameters)?;
        let packets = chunk_bytes / 4096;
        // RDMA Writes of several packets: the address is in the first, the immediate in the last, each has the other
        // headers.
        let wire = chunk_bytes + packets * 82 + 20;
        let line = 25e9 * chunk_bytes as f64 / wire as f64 / (1u64 << 30) as f64;
        let percent = report.goodput_gib_s / line * 100.0;
        let what = format!("UC goodput, one thread, chunks of {} KiB", chunk_bytes / 1024);
        let row = HoldOut::prediction(format!("V-13.{}", chunk_bytes / 1024), what, "% of wire", percent);
        let line_per_us = line * (1u64 << 30) as f64 / chunk_bytes as f64 * 1e-6;
        rows.push(with_bounds(row, Transport::Uc, 1, 100.0 / line_per_us));
    }
    Ok(rows)
}
