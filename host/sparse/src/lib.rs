//! Sparse AllReduce through aggregators, over reliable connections whose messages carry an immediate.
//!
//! A [`Worker`] has an array, an [`Aggregator`] adds. Either may be in a program without the other, and an aggregator
//! need not be this one: a worker knows of it the queue pairs that its connection information names. Each worker has
//! one queue pair with each aggregator for each shard of it. Messages in both directions are Sends: blocks in the order
//! of their indices, and d indices of 4 bytes behind them ([`flexcast_proto::sparse`]). The immediate of a worker's
//! message is its displacement; that of an answer is 0, or, without any bytes, one more than the number of the worker
//! for whose sake the aggregator has given up.
//!
//! A worker whose array is the processor's has a ring of 2d blocks for each shard: it loads blocks there, scanning
//! them, sends from there and receives sums there. The array is never registered. One whose array is in the memory of
//! an [`Accelerator`] ([`Worker::staged`]) has a buffer there, as long as the array, in which each block has its place;
//! the processor sees a bitmap. An aggregator has a receive slot for each worker and two transmit slots; blocks are
//! added from the ones straight to the other.
//!
//! Set-up has two phases and neither blocks: `prepare` makes queue pairs and returns how they are reached; when all
//! have exchanged that, `connect` takes what the others have sent. Then [`Worker::begin`] and [`Aggregator::begin`]
//! start an operation, and `progress` drives it.
//!
//! ```no_run
//! # use flexcast_sparse::{Aggregator, Arrays, Call, Config, Order, Result, Settings, Worker};
//! # use flexcast_reduce::{DataType, Operator, Reduction};
//! # use flexio::{Device, ProtectionDomain};
//! # fn exchange(_: Vec<u8>) -> Vec<Vec<u8>> { Vec::new() }
//! # fn run(device: &Device, pd: &ProtectionDomain, own: u32, array: &mut [u8], sum: Reduction) -> Result<()> {
//! // Six workers and two aggregators, each with one shard, of blocks of 1 KiB of which 16 go in a message.
//! let settings = Settings::new(6, 2, 1, 1024, 16)?;
//! let (pending, info) = Worker::prepare(pd, settings, own, Config::default())?;
//! let mut worker = pending.connect(&exchange(info))?;
//! worker.begin(Call { bytes: array.len() as u64, shards_of_each: 1, reduction: sum, order: Order::Arrival })?;
//! while !worker.is_complete() {
//!     worker.progress(&mut Arrays { send: None, receive: array })?;
//!     device.provider().relax().relax();
//! }
//! # Ok(())
//! # }
//! ```

mod accelerator;
mod aggregator;
mod arrangement;
mod arrays;
mod connect_info;
mod error;
mod fixed_point;
mod link;
pub mod messages;
mod options;
mod ring;
mod scan;
mod slots;
mod staged;
mod sums;
mod worker;

use flexcast_proto::sparse::{Parameters, Shards};
use flexio::{Bound, Retry};

pub use accelerator::{Accelerator, Stretch};
pub use aggregator::{Aggregator, PendingAggregator};
pub use arrays::{Array, Arrays};
pub use connect_info::{Own, Remote, connect_info_bytes, settings_of};
pub use error::{Error, Party, Result};
pub use fixed_point::FixedPointArray;
pub use flexcast_proto::sparse::{FixedPoint, FixedPointError, Order};
pub use options::{SparseOptions, Split};
pub use ring::Ring;
pub use staged::Staged;
pub use worker::{PendingWorker, Worker};

use flexcast_reduce::Reduction;

/// Most shards of one aggregator.
pub const MAX_SHARDS_OF_EACH: u32 = 64;
/// Most aggregators.
pub const MAX_AGGREGATORS: u32 = 1024;

/// What workers and aggregators agree on when they connect. All give the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    parameters: Parameters,
    aggregators: u32,
    shards_of_each: u32,
    fixed: Option<Call>,
}

/// An operation. All give the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Bytes of the array.
    pub bytes: u64,
    /// Shards of each aggregator, at most those of the [`Settings`].
    pub shards_of_each: u32,
    /// How elements are combined.
    pub reduction: Reduction,
    /// In which order blocks of different workers are added.
    pub order: Order,
}

impl Settings {
    /// Queue pairs and memory for so many workers and aggregators, messages of up to `blocks_per_message` blocks, and
    /// `shards_of_each` shards of each aggregator.
    ///
    /// # Errors
    /// One of them is out of its range.
    pub fn new(
        workers: u32,
        aggregators: u32,
        shards_of_each: u32,
        block_bytes: u32,
        blocks_per_message: u32,
    ) -> Result<Self> {
        let check = |what, value: u32, most: u32| match value {
            value if (1..=most).contains(&value) => Ok(()),
            value => Err(Error::OutOfRange { what, value: value.into(), limit: format!("1 to {most}") }),
        };
        check("the number of aggregators", aggregators, MAX_AGGREGATORS)?;
        check("the number of shards of each aggregator", shards_of_each, MAX_SHARDS_OF_EACH)?;
        // Whether elements fit a block is known with the operation.
        let parameters = Parameters::new(workers, block_bytes, blocks_per_message, 1)?;
        Ok(Self { parameters, aggregators, shards_of_each, fixed: None })
    }

    /// The same for operations that are all like this one: that is compared when they connect.
    ///
    /// # Errors
    /// As [`Worker::begin`] of it.
    pub fn with_call(self, call: Call) -> Result<Self> {
        self.shards(&call)?;
        Ok(Self { fixed: Some(call), ..self })
    }

    /// Sizes that follow from them.
    #[must_use]
    pub const fn parameters(&self) -> Parameters {
        self.parameters
    }

    /// Number of aggregators.
    #[must_use]
    pub const fn aggregators(&self) -> u32 {
        self.aggregators
    }

    /// Shards of each aggregator, at most.
    #[must_use]
    pub const fn shards_of_each(&self) -> u32 {
        self.shards_of_each
    }

    /// Queue pairs of a worker.
    const fn links(&self) -> u32 {
        self.aggregators * self.shards_of_each
    }

    /// The shards of an operation.
    ///
    /// # Errors
    /// It is none on these connections.
    pub fn shards(&self, call: &Call) -> Result<Shards> {
        let Self { parameters, aggregators, shards_of_each, .. } = *self;
        if !(1..=shards_of_each).contains(&call.shards_of_each) {
            let limit = format!("1 to {shards_of_each}, for which these connections are");
            return Err(Error::OutOfRange {
                what: "the number of shards of each aggregator",
                value: call.shards_of_each.into(),
                limit,
            });
        }
        if let Some(fixed) = self.fixed.filter(|fixed| fixed != call) {
            let limit = format!("{fixed:?}, for which these connections are");
            return Err(Error::OutOfRange { what: "the operation's length", value: call.bytes, limit });
        }
        let element = call.reduction.element_bytes();
        Parameters::new(parameters.workers(), parameters.block_bytes(), parameters.blocks_per_message(), element)?;
        if !call.bytes.is_multiple_of(element.into()) {
            let limit = format!("a multiple of {element}, as elements have so many bytes");
            return Err(Error::OutOfRange { what: "the number of bytes", value: call.bytes, limit });
        }
        Ok(Shards::new(call.bytes, parameters, aggregators, 1, call.shards_of_each)?)
    }
}

/// How patient connections are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Patience of the connections with a silent peer. Default: 8.4 ms, 7 times, as a communicator's.
    pub retry: Retry,
    /// Longest time without any progress. Default 10 s.
    pub bound: Bound,
    /// Traffic class. Default 0.
    pub class: u8,
}

impl Default for Config {
    fn default() -> Self {
        Self { retry: Retry { timeout_exponent: 11, count: 7 }, bound: Bound::millis(10_000), class: 0 }
    }
}

/// What a worker or an aggregator has done since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Operations completed.
    pub operations: u64,
    /// Messages posted.
    pub sent_messages: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Messages that have come.
    pub received_messages: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Blocks of messages that have come: sums, or what is added to them.
    pub blocks: u64,
    /// Pieces of memory of a message, or of an answer, at most. Workers count them.
    pub most_pieces: u64,
    /// Bytes of registered memory for blocks.
    pub block_memory_bytes: u64,
    /// Bytes of all registered memory.
    pub memory_bytes: u64,
}

/// When something has last happened, and the polls in vain since.
#[derive(Clone, Copy, Debug, Default)]
struct Patience {
    progress_ps: u64,
    polls: u64,
}

impl Patience {
    fn restart(&mut self, now_ps: u64) {
        (self.progress_ps, self.polls) = (now_ps, 0);
    }

    /// Notes a poll in vain. If that has been too long: microseconds without progress, and polls.
    fn overdue(&mut self, now_ps: u64, bound: Bound) -> Option<(u64, u64)> {
        self.polls += 1;
        let waited_ps = now_ps.saturating_sub(self.progress_ps);
        let is_over = u128::from(waited_ps) >= bound.span.as_nanos() * 1000 || self.polls >= bound.polls;
        is_over.then_some((waited_ps / 1_000_000, self.polls))
    }
}
