//! Options of `flexcast perf`.

use clap::Args;
use flexcast_lab::options::whole;
use flexcast_lab::perf::op::Op;
use flexcast_lab::perf::spec::{Sizes, Spec, Zeros};
use flexcast_lab::sparse::PatternName;

use crate::card_args::CardArgs;

#[derive(Debug, Args)]
#[command(after_help = "\
Start one process per rank with a launcher: `mpirun -n 4 flexcast perf`, `torchrun`, `srun`; or by hand, with \
    FLEXCAST_RANK, FLEXCAST_SIZE and FLEXCAST_STORE (host:port of rank 0). On several computers FLEXCAST_SECRET_FILE \
    names a secret of all ranks. FLEXCAST_INTERFACE, FLEXCAST_GROUP, FLEXCAST_PORT and FLEXCAST_TTL say where \
    datagrams go. Other parameters have variables, too, such as FLEXCAST_CHUNK_BYTES. FLEXCAST_LOG says how much of \
    the library's log is shown: off, error, warn (default), info, debug or trace.")]
pub(crate) struct PerfArgs {
    /// The collective.
    #[arg(long, value_enum, default_value_t = Op::Allgather)]
    op: Op,
    /// Lengths, as a list (64,4K,1M) or doubling within a range (64:8M): bytes of the message for broadcast, reduce,
    /// allreduce and sparse-allreduce; those that each rank contributes, or gets of a scatter, for the others.
    /// Shortened to whole numbers of 4 bytes where they are summed, and to equal shares.
    #[arg(long, default_value = "64:8M", value_name = "LIST|MIN:MAX")]
    sizes: Sizes,
    /// Operations that are timed, of each length.
    #[arg(long, value_parser = whole::<u32>(1, 10_000_000), default_value_t = 20, value_name = "N")]
    repetitions: u32,
    /// Operations before those.
    #[arg(long, value_parser = whole::<u32>(0, 100_000), default_value_t = 5, value_name = "N")]
    warm_up: u32,
    /// Of sparse-allreduce: blocks of 1 KiB that are zero, of a hundred.
    #[arg(long, value_parser = whole::<u32>(0, 100), default_value_t = 90, value_name = "PERCENT")]
    zeros: u32,
    /// Of sparse-allreduce: how the zeros of ranks belong together.
    #[arg(long, value_enum, default_value_t = PatternName::Identical)]
    pattern: PatternName,
    /// Of sparse-allreduce: processes flexcast-aggregator that sum up, instead of the ranks [default: what
    /// FLEXCAST_SPARSE_AGGREGATORS says, or none].
    #[arg(long, value_name = "HOST:PORT,...", value_delimiter = ',')]
    pub(crate) aggregators: Vec<String>,
    /// With the contribution in the receive buffer: allgather, reduce, allreduce, sparse-allreduce and alltoall.
    #[arg(long)]
    in_place: bool,
    #[command(flatten)]
    pub(crate) card: CardArgs,
    /// Ranks that multicast at the same time [default: FLEXCAST_CHAINS, or as few as keep the links busy].
    #[arg(long, value_parser = whole::<u32>(0, 1024), value_name = "N")]
    pub(crate) chains: Option<u32>,
    /// Make progress by a thread of its own.
    #[arg(long)]
    pub(crate) progress_thread: bool,
    /// Print one JSON object instead of a table.
    #[arg(long, conflicts_with = "csv")]
    pub(crate) json: bool,
    /// Print comma-separated values instead of a table.
    #[arg(long)]
    pub(crate) csv: bool,
}

impl PerfArgs {
    pub(crate) fn spec(&self) -> Spec {
        Spec {
            op: self.op,
            sizes: self.sizes.clone(),
            repetitions: self.repetitions,
            warm_up: self.warm_up,
            in_place: self.in_place,
            zeros: Zeros { percent: self.zeros, pattern: self.pattern },
        }
    }
}
