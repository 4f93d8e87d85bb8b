//! Capacity planning: the threads, staging, sequence numbers, cache and goodput that a link asks of the DPA.
//!
//! The cost of a completion on one thread comes from a Broadcast between two emulated cards, with chunks of 64 bytes,
//! so that it never waits for the link; the rest is arithmetic on it. UD carries -0/+22 %: by so much the published UD
//! throughput is below what the published cycles give, and nobody knows why. The card's engines and its PCIe link are
//! not considered.

use crate::model::{bitmap, rate};
use flexcast::{Config, MAX_SUBGROUPS, Transport, UNITS_PER_CORE, USABLE_UNITS};
use serde::Serialize;

use crate::evaluate::point::{Point, TputPoint, link_goodput};
use crate::evaluate::spec::Pair;
use crate::images::Images;
use crate::reference as kernel;

/// MTU of the path in bytes.
const MTU_BYTES: u32 = 4096;
/// What the published UD throughput is below its own cycles.
const UD_UNCERTAINTY: f64 = 1.22;
/// Highest line rate that is planned for, in Gbit/s.
pub const MAX_GBIT_PER_S: u32 = 3200;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Line rate in Gbit/s, 1 to [`MAX_GBIT_PER_S`].
    pub gbit_per_s: u32,
    /// Bytes of a chunk: a multiple of 64, with UD at most 4096.
    pub chunk_bytes: u32,
    /// What carries the data.
    pub transport: Transport,
    /// Ranks, 1 to 1024.
    pub ranks: u32,
    /// Bytes that each rank contributes; a rank receives them from all.
    pub buffer_bytes: u64,
}

/// What one thread takes for a completion.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cost {
    /// Cycles.
    pub cycles: f64,
    /// Instructions.
    pub instructions: f64,
    /// Timing model behind the cycles.
    pub model: String,
}

/// A plan that fits.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// Threads that receive.
    pub receive_threads: u32,
    /// With the uncertainty of UD; the same for UC.
    pub receive_threads_most: u32,
    /// All threads, those that send among them.
    pub threads: u32,
    /// Cores that the receiving ones are on, 16 to a core.
    pub cores: u32,
    /// Subgroups: one for each thread, up to 64.
    pub subgroups: u32,
    /// Receives of each subgroup, with a staging slot each (UD).
    pub slots: u32,
    /// Sends in flight of each subgroup.
    pub send_depth: u32,
    /// Staging in bytes; 0 with zero copy.
    pub staging_bytes: u64,
    /// How long the link fills it, in microseconds.
    pub staging_us: f64,
    /// Bits of the immediate that number chunks.
    pub psn_bits: u32,
    /// Collective ids that are left.
    pub collective_ids: u64,
    /// Bitmaps in bytes.
    pub bitmap_bytes: u64,
    /// Bytes that the last-level cache should hold.
    pub cache_bytes: u64,
    /// Bytes that it has.
    pub cache_limit_bytes: u64,
    /// Goodput expected of `receive_threads`, in Gbit/s.
    pub goodput_gbit_s: f64,
    /// Its lower end; with `receive_threads_most` it is as high.
    pub goodput_least_gbit_s: f64,
    /// What the link carries after headers.
    pub link_goodput_gbit_s: f64,
    /// Cost of a completion.
    pub cost: Cost,
    /// Kind of the cost: a run under a timing model.
    pub cost_kind: &'static str,
    /// Kind of everything else.
    pub kind: &'static str,
}

/// What does not fit, and what would.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CapacityError {
    /// A parameter outside its range.
    #[error("{what} {value}: give {range}")]
    Range {
        /// The option.
        what: &'static str,
        /// What was given.
        value: u64,
        /// What would do.
        range: String,
    },
    /// More threads than a process has.
    #[error(
        "{gbit_per_s} Gbit/s in chunks of {chunk_bytes} bytes need {needed} threads that receive, and {limit} can; \
         {next}"
    )]
    Threads {
        /// The link.
        gbit_per_s: u32,
        /// The chunk.
        chunk_bytes: u32,
        /// Threads needed.
        needed: u64,
        /// Threads there are.
        limit: u32,
        /// What would do.
        next: String,
    },
    /// More chunks than sequence numbers.
    #[error(
        "{bytes} bytes in chunks of {chunk_bytes} need more than 31 bits of sequence number; give --chunk {least} or \
         more, or a smaller --buffer"
    )]
    Sequence {
        /// Bytes that a rank receives.
        bytes: u64,
        /// The chunk.
        chunk_bytes: u32,
        /// The least chunk that does.
        least: u64,
    },
    /// More than the cache holds.
    #[error("rings, bitmaps and contexts take {needed} bytes, the DPA's last-level cache has {limit}; {next}")]
    Cache {
        /// Bytes needed.
        needed: u64,
        /// Bytes there are.
        limit: u64,
        /// What would do.
        next: String,
    },
    /// What the library refuses.
    #[error("{0}")]
    Library(String),
    /// The cost could not be found.
    #[error("the run that measures what a completion costs has failed: {0}")]
    Cost(String),
}

/// How chunks arrive.
fn service(zero_copy: bool) -> kernel::Transport {
    if zero_copy { kernel::Transport::Uc } else { kernel::Transport::Ud }
}

/// Runs a Broadcast that one thread receives, and measures what a completion costs it.
///
/// # Errors
/// [`CapacityError::Cost`].
pub fn cost(zero_copy: bool, images: &Images, model: &emu_config::Timing) -> Result<Cost, CapacityError> {
    let point = Point::Tput(TputPoint::of(Pair {
        transport: service(zero_copy),
        threads: 1,
        chunk_bytes: 64,
        // All chunks, so that nothing is lost, and fetched, while the thread is behind.
        slots: 4096,
        bytes: 4096 * 64,
        seed: 1,
        warm_up: 1,
        iterations: 1,
    }));
    let row = point.run(images, model).map_err(CapacityError::Cost)?;
    let number = |column| row.number(column).filter(|value| *value > 0.0);
    match (number("cycles_per_cqe"), number("instructions_per_cqe")) {
        (Some(cycles), Some(instructions)) => Ok(Cost { cycles, instructions, model: row.source }),
        _ => Err(CapacityError::Cost("it reports no cycles".to_owned())),
    }
}

/// Chunks per second of so many threads: those of one times their number, no more than their cores issue.
fn chunks_per_s(threads: u32, cost: &Cost, slower: f64) -> f64 {
    let cores = f64::from(threads.div_ceil(UNITS_PER_CORE));
    let latency = f64::from(threads) * rate::DPA_HZ / (cost.cycles * slower);
    latency.min(cores * rate::core_completions_per_s(cost.instructions))
}

/// The least number of threads for a rate of chunks; `None` if a process has too few.
fn threads(wanted: f64, cost: &Cost, slower: f64, most: u32) -> Option<u32> {
    (1..=most).find(|&threads| chunks_per_s(threads, cost, slower) >= wanted)
}

/// Plans, or says what does not fit and what would.
///
/// # Errors
/// [`CapacityError`].
pub fn plan(ask: &Ask, cost: Cost) -> Result<Plan, CapacityError> {
    let Ask { gbit_per_s, chunk_bytes, transport, ranks, buffer_bytes } = *ask;
    let range = |what, value: u64, from: u64, to: u64| {
        let range = format!("{from} to {to}");
        if (from..=to).contains(&value) { Ok(()) } else { Err(CapacityError::Range { what, value, range }) }
    };
    range("--link", gbit_per_s.into(), 1, MAX_GBIT_PER_S.into())?;
    range("--ranks", ranks.into(), 1, flexcast_proto::MAX_RANKS.into())?;
    range("--buffer", buffer_bytes, 1, 1 << 40)?;
    let wire = service(transport.is_zero_copy());
    let longest =
        if transport.is_zero_copy() { kernel::plan::UC_MAX_CHUNK_BYTES } else { kernel::plan::UD_MAX_CHUNK_BYTES };
    range("--chunk", chunk_bytes.into(), kernel::plan::CHUNK_ALIGN_BYTES, longest)?;
    if u64::from(chunk_bytes) % kernel::plan::CHUNK_ALIGN_BYTES != 0 {
        let range = format!("a multiple of 64, such as {}", chunk_bytes.next_multiple_of(64));
        return Err(CapacityError::Range { what: "--chunk", value: chunk_bytes.into(), range });
    }
    let receive_bytes = buffer_bytes.saturating_mul(ranks.into());
    let Some(psn_bits) = bitmap::psn_bits(receive_bytes, chunk_bytes.into()).filter(|bits| *bits <= 31) else {
        let least = receive_bytes.div_ceil(1 << 31).next_multiple_of(64);
        return Err(CapacityError::Sequence { bytes: receive_bytes, chunk_bytes, least });
    };

    let link_goodput_gbit_s = link_goodput(wire, chunk_bytes.into(), gbit_per_s.into());
    let wanted = rate::chunks_per_s(link_goodput_gbit_s, chunk_bytes.into());
    // One thread sends.
    let most = USABLE_UNITS.saturating_sub(1).min(kernel::plan::MAX_THREADS - 1);
    let slower = if transport.is_zero_copy() { 1.0 } else { UD_UNCERTAINTY };
    let (Some(receive_threads), Some(receive_threads_most)) =
        (threads(wanted, &cost, 1.0, most), threads(wanted, &cost, slower, most))
    else {
        let needed = (wanted * cost.cycles * slower / rate::DPA_HZ).ceil() as u64;
        let can = chunks_per_s(most, &cost, slower);
        let link = can * f64::from(chunk_bytes) * 8.0 / 1e9;
        let least = (link_goodput_gbit_s * 1e9 / 8.0 / can).ceil() as u64;
        let chunk =
            if least <= longest { format!(", or --chunk {}", least.next_multiple_of(64)) } else { String::new() };
        let next = format!("give --link {:.0} or less{chunk}", link.floor());
        return Err(CapacityError::Threads { gbit_per_s, chunk_bytes, needed, limit: most, next });
    };

    let subgroups = receive_threads_most.min(MAX_SUBGROUPS);
    let config = |slots: u32, bytes: u64| {
        Config::default()
            .with_subgroups(subgroups)
            .transport(transport)
            .chunk_bytes(chunk_bytes)
            .slots(slots)
            .receive_batch(64.min(slots / 2))
            // Send rings are the largest of all that the cache should hold.
            .send_depth(slots.min(Config::default().send_depth))
            .max_receive_bytes(bytes)
    };
    let footprint = |slots, bytes| {
        config(slots, bytes).footprint(ranks, MTU_BYTES).map_err(|error| CapacityError::Library(error.to_string()))
    };
    let slots = (1024 / subgroups.next_power_of_two()).max(64);
    let limit = Config::default().cache_bytes;
    let taken = footprint(slots, receive_bytes)?;
    if taken.hot_bytes() > limit {
        return Err(CapacityError::Cache {
            needed: taken.hot_bytes(),
            limit,
            next: smaller(ask, slots, limit, &footprint),
        });
    }
    let goodput = |slower| {
        let chunks = chunks_per_s(receive_threads, &cost, slower);
        (chunks * f64::from(chunk_bytes) * 8.0 / 1e9).min(link_goodput_gbit_s)
    };
    Ok(Plan {
        receive_threads,
        receive_threads_most,
        threads: receive_threads_most + config(slots, receive_bytes).send_threads,
        cores: receive_threads_most.div_ceil(UNITS_PER_CORE),
        subgroups,
        slots,
        send_depth: config(slots, receive_bytes).send_depth,
        staging_bytes: taken.staging_bytes,
        staging_us: taken.staging_bytes as f64 * 8.0 / f64::from(gbit_per_s) / 1e3,
        psn_bits,
        collective_ids: bitmap::collective_ids(psn_bits),
        bitmap_bytes: taken.bitmap_bytes,
        cache_bytes: taken.hot_bytes(),
        cache_limit_bytes: limit,
        goodput_gbit_s: goodput(1.0),
        goodput_least_gbit_s: goodput(slower),
        link_goodput_gbit_s,
        cost,
        cost_kind: "emulated",
        kind: "computed",
    })
}

/// What would fit the cache: the largest contribution at this chunk, or the least chunk for this contribution.
fn smaller(
    ask: &Ask,
    slots: u32,
    limit: u64,
    footprint: &dyn Fn(u32, u64) -> Result<flexcast::Footprint, CapacityError>,
) -> String {
    let fits = |bytes: u64| footprint(slots, bytes).is_ok_and(|taken| taken.hot_bytes() <= limit);
    let ranks = u64::from(ask.ranks);
    let mut buffer = ask.buffer_bytes;
    while buffer > 1 && !fits(buffer.saturating_mul(ranks)) {
        buffer /= 2;
    }
    if fits(buffer.saturating_mul(ranks)) {
        return format!("give --buffer {buffer} or less, or larger chunks");
    }
    if ask.transport == Transport::UcUnicast {
        return "every rank takes a ring of its own with uc-unicast: give fewer --ranks, or --transport ud".to_owned();
    }
    "give a slower --link: each thread has rings of its own".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask() -> Ask {
        Ask { gbit_per_s: 200, chunk_bytes: 4096, transport: Transport::Ud, ranks: 188, buffer_bytes: 8 << 20 }
    }

    /// The published costs.
    fn published(transport: Transport) -> Cost {
        let (cycles, instructions) = if transport.is_zero_copy() { (598.0, 66.0) } else { (1084.0, 113.0) };
        Cost { cycles, instructions, model: "published".to_owned() }
    }

    fn planned(ask: Ask) -> Result<Plan, CapacityError> {
        plan(&ask, published(ask.transport))
    }

    #[test]
    fn threads_are_those_of_the_pocket_calculation() {
        let uc = planned(Ask { transport: Transport::UcMulticast, ..ask() }).unwrap();
        assert_eq!((uc.receive_threads, uc.receive_threads_most, uc.cores, uc.staging_bytes), (2, 2, 1, 0));
        let ud = planned(ask()).unwrap();
        assert_eq!((ud.receive_threads, ud.receive_threads_most, ud.threads), (4, 5, 7));
        assert!((ud.goodput_gbit_s - 195.5).abs() < 0.1 && ud.goodput_least_gbit_s < 0.95 * ud.goodput_gbit_s);
        assert_eq!((ud.psn_bits, ud.collective_ids), (19, 8192), "188 times 8 MiB are 385 024 chunks");
        assert!(ud.bitmap_bytes * 8 >= 385_024 && ud.cache_bytes <= ud.cache_limit_bytes);
        let fast = planned(Ask { gbit_per_s: 1600, ..ask() });
        assert!((29..=37).contains(&fast.unwrap().receive_threads_most));
    }

    #[test]
    fn what_does_not_fit_is_refused_with_what_would() {
        let refused = |change: fn(&mut Ask), words: &[&str]| {
            let mut ask = ask();
            change(&mut ask);
            let text = planned(ask).unwrap_err().to_string();
            for word in words {
                assert!(text.contains(word), "{text:?} lacks {word:?}");
            }
        };
        refused(|ask| ask.gbit_per_s = 0, &["--link 0", "1 to 3200"]);
        refused(|ask| ask.gbit_per_s = 5000, &["--link 5000"]);
        refused(|ask| ask.ranks = 0, &["--ranks 0", "1024"]);
        refused(|ask| ask.ranks = 1025, &["--ranks 1025"]);
        refused(|ask| ask.buffer_bytes = 0, &["--buffer 0"]);
        refused(|ask| ask.chunk_bytes = 8192, &["--chunk 8192", "64 to 4096"]);
        refused(|ask| ask.chunk_bytes = 100, &["--chunk 100", "128"]);
        refused(|ask| (ask.gbit_per_s, ask.chunk_bytes) = (3200, 64), &["threads", "--link", "--chunk"]);
        refused(|ask| (ask.buffer_bytes, ask.ranks) = (1 << 40, 1024), &["--chunk", "31 bits"]);
        refused(|ask| ask.buffer_bytes = 1 << 30, &["cache", "1500000", "--buffer"]);
    }

    #[test]
    fn what_is_said_to_fit_fits() {
        let large = Ask { buffer_bytes: 1 << 30, ..ask() };
        let text = planned(large).unwrap_err().to_string();
        let buffer: u64 = text.split("--buffer ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
        planned(Ask { buffer_bytes: buffer, ..large }).unwrap();
        let fast = Ask { gbit_per_s: 3200, chunk_bytes: 64, ..ask() };
        let text = planned(fast).unwrap_err().to_string();
        let link: u32 = text.split("--link ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
        planned(Ask { gbit_per_s: link, buffer_bytes: 1 << 16, ..fast }).unwrap();
    }
}
