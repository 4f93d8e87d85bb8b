//! Arguments of `flexcast plan`.

use clap::Args;
use flexcast::Transport;
use flexcast_lab::capacity::MAX_GBIT_PER_S;
use flexcast_lab::options::{one_of, whole, whole_bytes};
use flexcast_lab::sim::spec::transports;
use flexcast_proto::MAX_RANKS;

use crate::images_args::ImagesArgs;

#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    /// Line rate of the link, in Gbit/s.
    #[arg(long, value_parser = whole::<u32>(1, MAX_GBIT_PER_S), value_name = "GBIT/S", default_value_t = 200)]
    pub(crate) link: u32,
    /// Bytes per chunk; at most 4096 with ud.
    #[arg(long, value_parser = whole_bytes::<u32>(64, 4096), value_name = "BYTES", default_value_t = 4096)]
    pub(crate) chunk: u32,
    /// What carries the data.
    #[arg(long, value_parser = one_of(transports()), default_value_t = Transport::Ud, value_name = "NAME")]
    pub(crate) transport: Transport,
    /// Ranks, 1 to 1024.
    #[arg(long, value_parser = whole::<u32>(1, MAX_RANKS), value_name = "P", default_value_t = 16)]
    pub(crate) ranks: u32,
    /// Bytes that each rank contributes to an Allgather.
    #[arg(long, value_parser = whole_bytes::<u64>(1, u64::MAX), value_name = "BYTES", default_value_t = 8 << 20)]
    pub(crate) buffer: u64,
    /// Image `allgather` is run to learn what a completion costs.
    #[command(flatten)]
    pub(crate) images: ImagesArgs,
    /// Timing model of that run: m2, uncalibrated-1, or a file of a timing model's numbers.
    #[arg(long, value_name = "NAME|FILE", default_value = "m2")]
    pub(crate) model: String,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}
