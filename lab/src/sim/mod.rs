//! Collectives among many ranks, each on an emulated card with the real firmware, all in one thread.

pub mod algorithm;
mod baseline;
mod buffers;
pub mod counts;
mod drive;
mod expected;
pub mod failure;
pub mod group;
pub mod params;
mod party;
mod polls;
pub mod report;
pub mod run;
pub mod settings;
pub mod side;
pub mod skew;
pub mod sparse;
pub mod spec;
pub mod text;
pub mod traffic;
mod turns;
pub mod work;

/// A simulation that cannot be made or has failed.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// A parameter outside its range.
    #[error("{what}: {reason}")]
    Parameter {
        /// The option.
        what: &'static str,
        /// What is wrong with it, and what would do.
        reason: String,
    },
    /// Memory has no room for the buffers.
    #[error(transparent)]
    Memory(#[from] crate::memory::MemoryError),
    /// An algorithm that does not do this.
    #[error("--algorithm {algorithm} does no {operation}: give {fits}")]
    Algorithm {
        /// The algorithm.
        algorithm: String,
        /// What it was to do.
        operation: &'static str,
        /// Algorithms that do.
        fits: &'static str,
    },
    /// A collective without multicast was refused on a rank.
    #[error("rank {rank}: {source}")]
    Baseline {
        /// The rank.
        rank: u32,
        /// Why.
        source: Box<flexcast::p2p::Error>,
    },
    /// The machine has found races for memory.
    #[error(
        "races for memory: {count}, the first: {}; between two accesses a fence, a writeback or a completion is missing", first.kind
    )]
    Races {
        /// How many.
        count: u64,
        /// The first.
        first: Box<emu_machine::Race>,
    },
    /// The machine cannot be made as asked.
    #[error(transparent)]
    Machine(#[from] emu_config::ConfigError),
    /// The emulated machine refused something.
    #[error(transparent)]
    Emulator(#[from] emu_machine::MachineError),
    /// A worker or an aggregator of a sparse AllReduce has failed.
    #[error("card {rank}: {source}")]
    Sparse {
        /// Its card: workers come first.
        rank: u32,
        /// Why.
        source: flexcast::p2p::sparse::Error,
    },
    /// A shard has stopped on the DPA of a card.
    #[error("card {rank}: {failure}")]
    Dpa {
        /// Its card.
        rank: u32,
        /// Why.
        failure: flexcast::AggregatorFailure,
    },
    /// The collective library refused something on a rank.
    #[error("rank {rank}: {source}")]
    Rank {
        /// The rank.
        rank: u32,
        /// Why.
        source: flexcast::Error,
    },
    /// A rank never ended.
    #[error("rank {rank} has not ended {operation} within {bound_us} us of virtual time: this is a bug of the library")]
    Hang {
        /// The rank.
        rank: u32,
        /// What it was doing.
        operation: &'static str,
        /// How long it was waited for.
        bound_us: u64,
    },
    /// It takes more wall time than it was given.
    #[error(
        "rank {rank} has not ended {operation} within the wall time given, {virtual_us} us of virtual time after the \
         post: give it longer, or find what keeps the emulator busy"
    )]
    WallLimit {
        /// The rank.
        rank: u32,
        /// What it was doing.
        operation: &'static str,
        /// How far it has come.
        virtual_us: u64,
    },
}
