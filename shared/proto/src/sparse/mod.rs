//! Sparse AllReduce through aggregators (OmNICCL; Gu, Fei, Canini).
//!
//! An array is viewed as blocks and split into shards ([`Shards`]). One coroutine of each worker and one of an
//! aggregator sum up a shard, separately from all other shards. A worker sends only blocks that are not zero, in
//! iterations of at most d blocks. Its message holds its blocks among the d global ones of this iteration, a bitmap of
//! those that it leaves out ([`Displacement`]), and its votes for the next iteration: its next d non-zero blocks
//! ([`Votes`]). The aggregator adds blocks as they come and merges votes into the d smallest; when all n messages are
//! there, it sends the sums and the next global indices to all. The first message only votes. The shard is complete
//! when there is no further index: after ⌈U/d⌉ + 1 messages and as many answers for each worker, U blocks being
//! non-zero somewhere.
//!
//! Nothing here adds or moves blocks: machines say which block goes where, and the caller has memory and arithmetic.
//! Whether a block is zero is the caller's to say as well: by its bits, so that -0.0 and NaN travel.
//!
//! **A worker** ([`Worker`]). Ask [`Worker::poll`] and do what it says until it says [`Step::Wait`]: write sums from
//! their slots to the array, load blocks into a slot until one is not zero ([`Worker::found`]), send
//! [`Worker::message`]. Post the receive for the answer, into [`Contribution::receive`], before sending. When the
//! answer has come, give it to [`Worker::answer`], and ask `poll` again. Over datagrams the slots are only places in
//! memory; sums may go from the datagram straight to the array. A [`Retry`] next to the worker says when to send the
//! message again and when to give up.
//!
//! **An aggregator** ([`Aggregator`]). For each message call [`Aggregator::handle_reliable`] (a connection that keeps
//! order and repeats nothing) or [`Aggregator::handle`] (datagrams), with what [`split`] or [`SparseCodec::decode`]
//! makes of its bytes. [`Received`] says what to do. [`Additions::apply`] calls the caller's [`PartialSums`] for each
//! block: from the receive slot straight into the transmit slot. Then send the [`Answer`], if there is one, from its
//! transmit slot. Receives for a worker's next message go into the same receive slot and are posted before the answer
//! is sent. With [`Order::Rank`], messages wait in their receive slots: after each, take [`Aggregator::next_rank`] and
//! [`Aggregator::add_held`] until there is none. Call [`Aggregator::poll`] at [`Aggregator::deadline_ps`], and
//! [`Aggregator::lose`] when a connection ends; they name a lost worker, of whom all others are to be notified. The
//! array of a worker is part old and part new then.
//!
//! **A simulation, or firmware that keeps account of arrivals by itself**, can use a [`Summation`] alone. Its size
//! depends on nothing. No machine allocates, divides or uses floating point after it is made.
//!
//! Why few buffers are enough: whoever sends a message of iteration i + 1 has the answer of iteration i, for which
//! everybody has sent a message of iteration i, for which everybody had the answer of iteration i - 1. So the transmit
//! slot of iteration i - 1 is free as soon as the first message of iteration i + 1 comes: two take turns. A worker's
//! message comes after the answer to the one before, so that one receive slot each is enough, and sums can be received
//! where blocks were sent from. (A card may read a slot again, to repeat a message whose acknowledgement is late; the
//! receiver drops that repeat by its packet numbers, whatever its bytes are by then.) For the same reason an aggregator
//! can answer whoever has lost an answer: its transmit slot still has it.

mod aggregator;
mod budget;
mod displacement;
mod fixed_point;
mod parameters;
mod retry;
mod ring;
mod shards;
mod summation;
mod votes;
mod wire;
mod worker;

pub use aggregator::{Aggregator, AggregatorError, AggregatorLimits, LostWorker, Order, Received};
pub use budget::{BudgetError, CacheBudget};
pub use displacement::{Displacement, DisplacementError};
pub use fixed_point::{FixedPoint, FixedPointError};
pub use parameters::{
    DEFAULT_BLOCK_BYTES, DEFAULT_BLOCKS_PER_MESSAGE, INDEX_BYTES, MAX_BLOCK_BYTES, MAX_BLOCKS, MAX_BLOCKS_PER_MESSAGE,
    MIN_BLOCK_BYTES, ParameterError, Parameters,
};
pub use retry::{Due, Retry, RetryLimits, Silent};
pub use ring::Slots;
pub use shards::{Shard, ShardError, Shards};
pub use summation::{Added, Additions, Answer, Incoming, PartialSums, Summation, SummationError};
pub use votes::{SENTINEL, Votes, VotesError};
pub use wire::{Datagram, HEADER_BYTES, Kind, MAX_DATAGRAM_BYTES, SparseCodec, SparseWireError, VERSION, split};
pub use worker::{Answered, Contribution, Step, Worker, WorkerError};
