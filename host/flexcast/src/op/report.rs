//! Reports of operations: phases, counts.

use std::fmt;
use std::time::Duration;

use flexcast_proto::Failure;

use crate::op::decision::Decision;

/// When an operation got where, by the endpoint's clock; `None` for what did not happen.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Phases(pub(crate) PhasesPs);

impl Phases {
    /// In picoseconds, for figures of emulated cards, whose clocks are that fine.
    #[doc(hidden)]
    #[must_use]
    pub const fn in_ps(&self) -> &PhasesPs {
        &self.0
    }

    /// Posted by the user.
    #[must_use]
    pub fn posted(&self) -> Duration {
        duration(self.0.posted_ps)
    }

    /// Workers armed: bitmaps clear, receives posted.
    #[must_use]
    pub fn armed(&self) -> Option<Duration> {
        self.0.armed_ps.map(duration)
    }

    /// Barrier passed: all ranks can receive.
    #[must_use]
    pub fn ready(&self) -> Option<Duration> {
        self.0.ready_ps.map(duration)
    }

    /// Own block begun to be multicast.
    #[must_use]
    pub fn sending(&self) -> Option<Duration> {
        self.0.sending_ps.map(duration)
    }

    /// Own block sent.
    #[must_use]
    pub fn sent(&self) -> Option<Duration> {
        self.0.sent_ps.map(duration)
    }

    /// All blocks received by multicast.
    #[must_use]
    pub fn received(&self) -> Option<Duration> {
        self.0.received_ps.map(duration)
    }

    /// Cutoff reached.
    #[must_use]
    pub fn cut_off(&self) -> Option<Duration> {
        self.0.cut_off_ps.map(duration)
    }

    /// Everything in the buffer, fetched chunks included.
    #[must_use]
    pub fn complete(&self) -> Option<Duration> {
        self.0.complete_ps.map(duration)
    }

    /// Buffers given back.
    #[must_use]
    pub fn released(&self) -> Option<Duration> {
        self.0.released_ps.map(duration)
    }
}

impl fmt::Debug for Phases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut phases = f.debug_struct("Phases");
        phases.field("posted", &self.posted());
        phases.field("armed", &self.armed());
        phases.field("ready", &self.ready());
        phases.field("sending", &self.sending());
        phases.field("sent", &self.sent());
        phases.field("received", &self.received());
        phases.field("cut_off", &self.cut_off());
        phases.field("complete", &self.complete());
        phases.field("released", &self.released());
        phases.finish()
    }
}

/// A time of the endpoint's clock, to the nanosecond below.
pub(crate) const fn duration(ps: u64) -> Duration {
    Duration::from_nanos(ps / 1000)
}

#[doc(hidden)]
/// [`Phases`] in picoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PhasesPs {
    /// Posted by the user.
    pub posted_ps: u64,
    /// Workers armed: bitmaps clear, receives posted.
    pub armed_ps: Option<u64>,
    /// Barrier passed: all ranks can receive.
    pub ready_ps: Option<u64>,
    /// Own block begun to be multicast.
    pub sending_ps: Option<u64>,
    /// Own block sent.
    pub sent_ps: Option<u64>,
    /// All blocks received by multicast.
    pub received_ps: Option<u64>,
    /// Cutoff reached.
    pub cut_off_ps: Option<u64>,
    /// Everything in the buffer, fetched chunks included.
    pub complete_ps: Option<u64>,
    /// Buffers given back.
    pub released_ps: Option<u64>,
}

/// What an operation did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// When.
    pub phases: Phases,
    /// What carried the data, and why.
    pub decision: Decision,
    /// Bytes that came from other ranks.
    pub foreign_bytes: u64,
    /// Messages that a sparse AllReduce took this rank, and as many answers: of each part of the array one for its
    /// votes, and one for every [`SparseOptions::blocks_per_message`](crate::SparseOptions) blocks that are not zero on
    /// some rank.
    pub messages: u64,
    /// Chunks that multicast lost and the left neighbour had.
    pub recovered_chunks: u64,
    /// Their bytes.
    pub recovered_bytes: u64,
    /// Reads that fetched them.
    pub reads: u64,
    /// Fetch requests of the right neighbour.
    pub fetches_served: u64,
    /// Chunks that came by multicast after they had been given up for lost. The processors' datapaths count them.
    pub late_chunks: u64,
    /// Datagrams for which the socket's receive buffer had no room: a part of what was lost. The datapath `udp` counts
    /// them, other datagrams to the group among them.
    pub overflowed_datagrams: u64,
    /// The rate that limited how fast the own block was multicast, in Mbit/s, if any did: the configuration's, or less
    /// since receivers had no room. Of the datapath `udp`.
    pub pace_mbit_per_s: Option<u32>,
    /// Why it failed, if it did.
    pub failure: Option<Failure>,
}

/// Control messages sent since the communicator was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageCounts {
    /// Barrier signals.
    pub barrier: u64,
    /// Activations of the next root.
    pub activate: u64,
    /// Requests for missing blocks.
    pub fetch: u64,
    /// Blocks offered to the right neighbour.
    pub acknowledge: u64,
    /// Final messages.
    pub last: u64,
    /// Failures reported.
    pub failed: u64,
}

impl MessageCounts {
    /// All of them.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.barrier + self.activate + self.fetch + self.acknowledge + self.last + self.failed
    }
}
