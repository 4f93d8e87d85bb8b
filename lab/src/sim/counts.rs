//! Counts of a simulation: time by phase, work of the threads, control messages.

use derive_more::{AddAssign, Sub};
use flexcast::{Communicator, MessageCounts, PhasesPs};
use serde::Serialize;

use super::SimError;

/// The time that a phase, or all of an operation, took, over ranks and operations, in microseconds of virtual time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PhaseTime {
    /// Shortest.
    pub least_us: f64,
    /// Mean.
    pub mean_us: f64,
    /// Longest.
    pub most_us: f64,
    #[serde(skip)]
    count: u64,
}

impl PhaseTime {
    /// Whether any rank had this phase.
    #[must_use]
    pub const fn happened(&self) -> bool {
        self.count > 0
    }

    pub(super) fn add(&mut self, from_ps: Option<u64>, to_ps: Option<u64>) {
        let (Some(from_ps), Some(to_ps)) = (from_ps, to_ps) else { return };
        let us = to_ps.saturating_sub(from_ps) as f64 / 1e6;
        self.least_us = if self.count == 0 { us } else { self.least_us.min(us) };
        self.most_us = self.most_us.max(us);
        self.mean_us += (us - self.mean_us) / (self.count + 1) as f64;
        self.count += 1;
    }
}

/// Where the time went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PhaseTimes {
    /// From posting to armed workers.
    pub arming: PhaseTime,
    /// From armed workers to the own block's turn (roots).
    pub waiting: PhaseTime,
    /// Sending the own block (roots).
    pub sending: PhaseTime,
    /// From armed workers to the last chunk, received or sent, where nothing was lost: the root of a Broadcast only
    /// sends.
    pub receiving: PhaseTime,
    /// From the cutoff to the end of recovery, where something was.
    pub recovering: PhaseTime,
    /// From the last byte, received or sent, to release.
    pub closing: PhaseTime,
}

impl PhaseTimes {
    pub(super) fn add(&mut self, phases: &PhasesPs) {
        self.arming.add(Some(phases.posted_ps), phases.armed_ps);
        self.waiting.add(phases.armed_ps, phases.sending_ps);
        self.sending.add(phases.sending_ps, phases.sent_ps);
        let with_own = |received_ps: Option<u64>| received_ps.max(received_ps.and(phases.sent_ps));
        self.receiving.add(phases.armed_ps, with_own(phases.received_ps));
        self.recovering.add(phases.cut_off_ps, phases.complete_ps);
        self.closing.add(with_own(phases.received_ps.or(phases.complete_ps)), phases.released_ps);
    }
}

/// Counters of the receive and send workers of all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Workers {
    /// Receive completions.
    pub cqes: u64,
    /// Chunks accepted.
    pub accepted: u64,
    /// Chunks that had arrived before.
    pub duplicates: u64,
    /// Chunks of another operation.
    pub wrong_id: u64,
    /// Chunks discarded for other reasons.
    pub discarded: u64,
    /// Instructions retired by receive workers, counted in drain loops.
    pub loop_instructions: u64,
    /// Completions consumed there.
    pub loop_cqes: u64,
    /// Chunks posted.
    pub posted: u64,
    /// Doorbells rung for them.
    pub doorbells: u64,
    /// Instructions retired in posting loops.
    pub posting_instructions: u64,
}

impl Workers {
    /// What the workers of all ranks have counted since they were made, warm-up included.
    ///
    /// # Errors
    /// [`SimError::Rank`].
    pub(super) fn of<'c>(ranks: impl IntoIterator<Item = &'c Communicator>) -> Result<Self, SimError> {
        let mut workers = Self::default();
        for (rank, communicator) in (0..).zip(ranks) {
            let at = |source| SimError::Rank { rank, source };
            let received = communicator.receive_statistics().map_err(at)?;
            let sent = communicator.send_statistics().map_err(at)?;
            workers.cqes += received.cqes;
            workers.accepted += received.accepted;
            workers.duplicates += received.duplicates;
            workers.wrong_id += received.wrong_id;
            workers.discarded +=
                received.out_of_range + received.wrong_length + received.unexpected_opcode + received.error_cqes;
            workers.loop_instructions += received.loop_instructions;
            workers.loop_cqes += received.loop_cqes;
            workers.posted += sent.posted;
            workers.doorbells += sent.doorbells;
            workers.posting_instructions += sent.loop_instructions;
        }
        Ok(workers)
    }

    /// Instructions of a receive worker per completion, in its drain loop; `None` without any.
    #[must_use]
    pub fn instructions_per_cqe(&self) -> Option<f64> {
        ratio(self.loop_instructions, self.loop_cqes)
    }

    /// Instructions of a send worker per chunk posted.
    #[must_use]
    pub fn instructions_per_post(&self) -> Option<f64> {
        ratio(self.posting_instructions, self.posted)
    }
}

pub(super) fn ratio(value: u64, count: u64) -> Option<f64> {
    (count > 0).then(|| value as f64 / count as f64)
}

/// Control messages of all ranks, by their kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, AddAssign, Sub)]
pub struct Control {
    /// Barrier signals.
    pub barrier: u64,
    /// Activations of the next root.
    pub activation: u64,
    /// Requests for missing blocks.
    pub fetch: u64,
    /// Blocks offered to the right neighbour.
    pub acknowledgement: u64,
    /// Final messages.
    #[serde(rename = "final")]
    pub last: u64,
    /// Failures reported.
    pub failure: u64,
    /// Buffers announced: all the control messages of collectives without multicast.
    pub announcement: u64,
}

impl Control {
    /// The messages that a communicator has sent.
    #[must_use]
    pub const fn of(messages: &MessageCounts) -> Self {
        let MessageCounts { barrier, activate, fetch, acknowledge, last, failed } = *messages;
        Self {
            barrier,
            activation: activate,
            fetch,
            acknowledgement: acknowledge,
            last,
            failure: failed,
            announcement: 0,
        }
    }

    /// All of them.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.barrier
            + self.activation
            + self.fetch
            + self.acknowledgement
            + self.last
            + self.failure
            + self.announcement
    }
}
