//! Options of `flexcast tune` and `flexcast info`.

use std::path::PathBuf;

use clap::Args;
use flexcast_lab::options::whole;
use flexcast_lab::perf::op::Op;
use flexcast_lab::perf::spec::Sizes;
use flexcast_lab::tune::TuneSpec;

#[derive(Debug, Args)]
#[command(after_help = "\
Start one process per rank, as for `flexcast perf`. Rank 0 writes the file. Programs read it where FLEXCAST_TUNING \
    names it; that of rank 0 counts for all ranks. What the table does not have is chosen as without it.")]
pub(crate) struct TuneArgs {
    /// The collectives that have more than one algorithm; of sparse-allreduce, from which length and density on the
    /// whole array is sent.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_values_t = [Op::Allgather, Op::Broadcast, Op::Reduce, Op::Allreduce, Op::ReduceScatter, Op::Alltoall, Op::SparseAllreduce],
        value_name = "LIST"
    )]
    ops: Vec<Op>,
    /// Lengths, as those of `flexcast perf`.
    #[arg(long, default_value = "64,1K,4K,16K,64K,256K,1M,4M", value_name = "LIST|MIN:MAX")]
    sizes: Sizes,
    /// Rounds; in each, every algorithm has its turn. How far they differ is the noise, which a choice has to exceed.
    #[arg(long, value_parser = whole::<u32>(2, 1000), default_value_t = 3, value_name = "N")]
    rounds: u32,
    /// Operations that are timed, of each algorithm and length, in a round.
    #[arg(long, value_parser = whole::<u32>(1, 100_000), default_value_t = 15, value_name = "N")]
    repetitions: u32,
    /// Network interface, by name or address [default: FLEXCAST_INTERFACE, or the first that can multicast].
    #[arg(long, value_name = "NAME|ADDRESS")]
    pub(crate) interface: Option<String>,
    /// File to write.
    #[arg(long, short, value_name = "FILE", default_value = "flexcast-tuning.toml")]
    pub(crate) output: PathBuf,
    /// Print one JSON object with all figures instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

impl TuneArgs {
    pub(crate) fn spec(&self) -> TuneSpec {
        TuneSpec {
            ops: self.ops.clone(),
            sizes: self.sizes.clone(),
            rounds: self.rounds,
            repetitions: self.repetitions,
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
With --check, started as the ranks of a job (as `flexcast perf`) it tests the multicast of each rank to each, \
    otherwise that of this process to itself. It fails if something does not arrive. Switches that snoop remember a \
    new group for some minutes: `--seconds 400` finds one without a querier.")]
pub(crate) struct InfoArgs {
    /// Network interface, by name or address [default: FLEXCAST_INTERFACE, or the first that can multicast].
    #[arg(long, value_name = "NAME|ADDRESS")]
    pub(crate) interface: Option<String>,
    /// Test whether multicast arrives, instead of printing what is set.
    #[arg(long)]
    pub(crate) check: bool,
    /// Seconds that the test takes; those of rank 0 count.
    #[arg(long, requires = "check", value_parser = whole::<u64>(1, 3600), default_value_t = 1, value_name = "N")]
    pub(crate) seconds: u64,
    /// Print one JSON object instead of a text.
    #[arg(long)]
    pub(crate) json: bool,
}
