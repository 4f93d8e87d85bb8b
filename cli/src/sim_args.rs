//! Arguments of `flexcast sim` and `flexcast soak`.

use std::path::PathBuf;

use clap::Args;
use flexcast_lab::options::whole;
use flexcast_lab::shard::Shard;
use flexcast_lab::sim::spec::SimSpec;

use crate::observe_args::ObserveArgs;

#[derive(Debug, Args)]
pub(crate) struct SimArgs {
    /// Gather this file instead of made-up bytes, cut evenly over the ranks, or broadcast it.
    #[arg(long, value_name = "FILE", conflicts_with = "bytes")]
    pub(crate) file: Option<PathBuf>,
    /// Device image: a file, or the name of an image, which is searched for in target/device/emu of this folder, where
    /// `cargo xtask build` leaves images, and then among those that this program holds.
    #[arg(long, value_name = "ELF|NAME", default_value = "allgather")]
    pub(crate) image: PathBuf,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) spec: SimSpec,
    #[command(flatten)]
    pub(crate) observe: ObserveArgs,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct SoakArgs {
    /// Number of cases.
    #[arg(long, value_parser = whole::<u64>(1, u64::MAX), default_value_t = 200, value_name = "N")]
    pub(crate) seeds: u64,
    /// Seed of the first case; the others follow [default: drawn anew for each run; 1 where the variable CI is set].
    #[arg(long, value_parser = whole::<u64>(0, u64::MAX), value_name = "SEED")]
    pub(crate) first: Option<u64>,
    /// Only every N-th of these seeds, from the I-th on: for N jobs side by side, each with another I from 1 to N.
    #[arg(long, value_name = "I/N", requires = "first")]
    pub(crate) shard: Option<Shard>,
    /// Threads, each with a machine of its own [default: one per core].
    #[arg(long, value_parser = whole::<u64>(1, u64::MAX), value_name = "N")]
    pub(crate) jobs: Option<u64>,
    /// Go on after a case that came out wrong. Each such case is printed to stderr when it ends, and all of them at the
    /// end.
    #[arg(long)]
    pub(crate) keep_going: bool,
    /// Begin no further seed after so much wall time.
    #[arg(long, value_parser = whole::<u64>(1, u64::MAX), value_name = "SECONDS")]
    pub(crate) wall_limit: Option<u64>,
    /// Where stderr is no terminal, report progress every so many seconds; 0 never.
    #[arg(long, value_parser = whole::<u64>(0, u64::MAX), value_name = "SECONDS", default_value_t = 5)]
    pub(crate) progress: u64,
    /// Print what each case is before it runs.
    #[arg(long)]
    pub(crate) show: bool,
    /// Device image: a file, or the name of an image, which is searched for in target/device/emu of this folder, where
    /// `cargo xtask build` leaves images, and then among those that this program holds.
    #[arg(long, value_name = "ELF|NAME", default_value = "allgather")]
    pub(crate) image: PathBuf,
    /// The command that runs this one, by which one seed is run again; `cargo xtask sim` says it.
    #[arg(long, hide = true, value_name = "COMMAND")]
    pub(crate) within: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}
