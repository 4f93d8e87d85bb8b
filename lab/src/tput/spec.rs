//! Description of a throughput run: the options of `flexcast tput`, and a run of an experiment.

use flexcast::{MAX_SLOTS, Transport};
use serde::Serialize;

use super::plan::{MAX_CHUNK_BYTES, MAX_THREADS, Params};
use crate::options::{self, by_name, one_of, whole, whole_bytes};
use crate::sim::spec::{ControlName, transports};

/// Bytes to send where nobody says how many.
const DEFAULT_BYTES: u64 = 8 << 20;

/// What is to be run.
#[derive(Clone, Debug, PartialEq, Serialize, clap::Args)]
pub struct TputSpec {
    /// What carries the data.
    #[arg(long, value_parser = one_of(transports()), default_value_t = Self::default().transport, value_name = "NAME")]
    #[serde(serialize_with = "by_name")]
    pub transport: Transport,
    /// Subgroups, and as many DPA threads that receive.
    #[arg(long, value_parser = whole::<u32>(1, MAX_THREADS), default_value_t = Self::default().threads)]
    pub threads: u32,
    /// DPA threads that send.
    #[arg(long, value_parser = whole::<u32>(1, MAX_THREADS), default_value_t = Self::default().send_threads, value_name = "N")]
    pub send_threads: u32,
    /// Bytes per chunk: a multiple of 64; UD at most 4096.
    #[arg(long, value_parser = whole_bytes::<u32>(64, MAX_CHUNK_BYTES), default_value_t = Self::default().chunk, value_name = "BYTES")]
    pub chunk: u32,
    /// Bytes to send, made up from the seed [default: 8 MiB].
    #[arg(long, value_parser = whole_bytes::<u64>(1, u64::MAX), value_name = "BYTES")]
    pub bytes: Option<u64>,
    /// Completions per doorbell of a receive worker: a power of two up to half the slots.
    #[arg(long, value_parser = whole::<u32>(2, MAX_SLOTS / 2), default_value_t = Self::default().batch, value_name = "N")]
    pub batch: u32,
    /// Receives of each subgroup, with UD as many staging slots: a power of two, 16 to 8192.
    #[arg(long, value_parser = whole::<u32>(16, MAX_SLOTS), default_value_t = Self::default().slots, value_name = "N")]
    pub slots: u32,
    /// Where the protocol runs: on the host, or on a DPA thread of the card.
    #[arg(long, value_enum, default_value_t = Self::default().control)]
    pub control: ControlName,
    /// Measured repetitions.
    #[arg(long, value_parser = whole::<u32>(1, u32::MAX), default_value_t = Self::default().iterations, value_name = "N")]
    pub iterations: u32,
    /// Repetitions before the measured ones.
    #[arg(long, value_parser = whole::<u32>(0, u32::MAX), default_value_t = Self::default().warm_up, value_name = "N")]
    pub warm_up: u32,
    /// Seed of everything left to chance: made-up bytes, losses, faults, weak memory [default: the machine file's, or
    /// 1].
    #[arg(long, value_parser = whole::<u64>(0, u64::MAX))]
    pub seed: Option<u64>,
}

impl Default for TputSpec {
    fn default() -> Self {
        let Params { transport, threads, send_threads, chunk_bytes, batch, slots, iterations, warm_up, .. } =
            Params::default();
        Self {
            transport,
            threads,
            send_threads,
            chunk: chunk_bytes,
            bytes: None,
            batch,
            slots,
            control: ControlName::Host,
            iterations,
            warm_up,
            seed: None,
        }
    }
}

impl TputSpec {
    /// Bytes to send.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.unwrap_or(DEFAULT_BYTES)
    }

    /// The run's parameters, on a machine with this seed that loses `loss_ppm` packets of a million; limits are checked
    /// by the plan.
    #[must_use]
    pub fn params(&self, seed: u64, loss_ppm: u32) -> Params {
        Params {
            transport: self.transport,
            threads: self.threads,
            send_threads: self.send_threads,
            chunk_bytes: self.chunk,
            batch: self.batch,
            slots: self.slots,
            control: self.control.into(),
            iterations: self.iterations,
            warm_up: self.warm_up,
            loss_ppm,
            seed,
        }
    }

    /// The command that runs it, on a machine that other options describe.
    #[must_use]
    pub fn command(&self) -> String {
        options::command("flexcast tput", options::words(self, &Self::default()))
    }
}
