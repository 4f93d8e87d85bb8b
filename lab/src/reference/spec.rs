//! Description of a run of the published kernels: the options of `flexcast reference`, and a run of an experiment.

use flexcast_abi::Transport;
use serde::Serialize;

use super::plan::{CHUNK_ALIGN_BYTES, LAST_UNIT, MAX_THREADS, Params, UC_MAX_CHUNK_BYTES};
use super::transport::transports;
use crate::options::{self, one_of, whole, whole_bytes};

/// What is to be run.
#[derive(Clone, Debug, PartialEq, Serialize, clap::Args)]
pub struct ReferenceSpec {
    /// Transport of the data.
    #[arg(long, value_parser = one_of(transports()), default_value = "uc", value_name = "NAME")]
    #[serde(serialize_with = "super::transport::serialize")]
    pub transport: Transport,
    /// Receive workers: DPA threads with a queue pair each (1 to 190).
    #[arg(long, value_parser = whole::<u32>(1, MAX_THREADS), default_value_t = Self::default().threads)]
    pub threads: u32,
    /// Bytes per chunk: a multiple of 64; UD at most 4096.
    #[arg(long, value_parser = whole_bytes::<u64>(CHUNK_ALIGN_BYTES, UC_MAX_CHUNK_BYTES), default_value_t = Self::default().chunk, value_name = "BYTES")]
    pub chunk: u64,
    /// Bytes to send, made up from the seed; at most 8192 chunks for each thread.
    #[arg(long, value_parser = whole_bytes::<u64>(1, u64::MAX), value_name = "BYTES", default_value_t = Self::default().bytes)]
    pub bytes: u64,
    /// Leave out the counters that the prototype read with every completion when its figures were taken.
    #[arg(long)]
    pub plain: bool,
    /// Measured iterations.
    #[arg(long, value_parser = whole::<u32>(1, u32::MAX), default_value_t = Self::default().iterations, value_name = "N")]
    pub iterations: u32,
    /// Iterations before the measured ones.
    #[arg(long, value_parser = whole::<u32>(0, u32::MAX), default_value_t = Self::default().warm_up, value_name = "N")]
    pub warm_up: u32,
    /// Seed of everything left to chance [default: the machine file's, or 1].
    #[arg(long, value_parser = whole::<u64>(0, u64::MAX))]
    pub seed: Option<u64>,
    /// Execution unit of the first worker; the others follow. Units 16 to 31 are the first core that is whole.
    #[arg(long, value_parser = whole::<u32>(1, LAST_UNIT), default_value_t = Self::default().first_unit, value_name = "N")]
    pub first_unit: u32,
}

impl Default for ReferenceSpec {
    fn default() -> Self {
        let Params { transport, threads, chunk_bytes, counted, iterations, first_unit, .. } = Params::default();
        Self {
            transport,
            threads,
            chunk: chunk_bytes,
            bytes: 8 << 20,
            plain: !counted,
            iterations,
            warm_up: 1,
            seed: None,
            first_unit,
        }
    }
}

impl ReferenceSpec {
    /// The run's parameters, of a machine with this seed; limits are checked by the plan.
    #[must_use]
    pub fn params(&self, seed: u64) -> Params {
        Params {
            transport: self.transport,
            threads: self.threads,
            chunk_bytes: self.chunk,
            counted: !self.plain,
            iterations: self.iterations,
            warm_up: self.warm_up,
            seed,
            first_unit: self.first_unit,
        }
    }

    /// The command that runs it, on a machine that other options describe.
    #[must_use]
    pub fn command(&self) -> String {
        options::command("flexcast reference", options::words(self, &Self::default()))
    }
}
