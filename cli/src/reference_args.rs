//! Options of `flexcast reference`.

use std::path::PathBuf;

use clap::Args;
use emu_config::Machine;
use flexcast_lab::machine_args::MachineArgs;
use flexcast_lab::options::whole;
use flexcast_lab::reference::plan::{CHUNK_ALIGN_BYTES, LAST_UNIT, MAX_THREADS, Params, Transport, UC_MAX_CHUNK_BYTES};

use crate::pair_args::PairArgs;

#[derive(Debug, Args)]
pub(crate) struct ReferenceArgs {
    /// Transport of the data.
    #[arg(long, value_enum, default_value = "uc")]
    pub(crate) transport: Transport,
    /// Receive workers: DPA threads with a queue pair each (1 to 190).
    #[arg(long, value_parser = whole::<u32>(1, MAX_THREADS), default_value_t = 1)]
    pub(crate) threads: u32,
    /// Bytes per chunk: a multiple of 64; UD at most 4096.
    #[arg(long, value_parser = whole::<u64>(CHUNK_ALIGN_BYTES, UC_MAX_CHUNK_BYTES), default_value_t = 4096, value_name = "BYTES")]
    pub(crate) chunk: u64,
    /// Bytes to send, made up from the seed; at most 8192 chunks for each thread.
    #[arg(long, value_parser = whole::<u64>(1, "what memory has room for"), value_name = "N", default_value_t = 8 << 20)]
    pub(crate) bytes: u64,
    /// Leave out the counters that the prototype read with every completion when its figures were taken.
    #[arg(long)]
    pub(crate) plain: bool,
    /// Measured iterations.
    #[arg(long, value_parser = whole::<u32>(1, u32::MAX), default_value_t = 1, value_name = "N")]
    pub(crate) iterations: u32,
    /// Iterations before the measured ones.
    #[arg(long, value_parser = whole::<u32>(0, u32::MAX), default_value_t = 1, value_name = "N")]
    pub(crate) warm_up: u32,
    /// Seed of everything left to chance [default: the machine file's, or 1].
    #[arg(long, value_parser = whole::<u64>(0, u64::MAX))]
    pub(crate) seed: Option<u64>,
    /// Execution unit of the first worker; the others follow. Units 16 to 31 are the first core that is whole.
    #[arg(long, value_parser = whole::<u32>(1, LAST_UNIT), default_value_t = Params::default().first_unit, value_name = "N")]
    pub(crate) first_unit: u32,
    /// Device image: a file, or the name of an image, which is looked for in target/device/emu of this folder, where `cargo xtask build`
    /// leaves images, and then among those that this program holds.
    #[arg(long, value_name = "ELF|NAME", default_value = "reference")]
    pub(crate) image: PathBuf,
    #[command(flatten)]
    pub(crate) pair: PairArgs,
    #[command(flatten)]
    pub(crate) machine: MachineArgs,
}

impl ReferenceArgs {
    /// The run's parameters on a machine; limits are checked by the plan.
    pub(crate) fn params(&self, machine: &Machine) -> Params {
        Params {
            transport: self.transport,
            threads: self.threads,
            chunk_bytes: self.chunk,
            counted: !self.plain,
            iterations: self.iterations,
            warm_up: self.warm_up,
            seed: machine.seed.unwrap_or_default(),
            first_unit: self.first_unit,
        }
    }
}
