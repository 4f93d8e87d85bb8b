//! What a simulation reports: one JSON object, or a few lines.

use emu_machine::fabric::PortCounters;
use emu_machine::with_world;
use flexcast::{Communicator, MessageCounts, Phases};
use flexio::Provider;
use serde::Serialize;

use super::SimError;
use super::params::{Operation, SimParams};
use crate::provider::MODEL;
use crate::tput::report::Kind;

/// Priority of data packets: that of the communicator's default traffic class.
const DATA_PRIORITY: usize = 0;

/// Bytes that have crossed the network: payload of data packets, headers not counted. Control messages and fetched chunks have
/// another priority and are counted apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Traffic {
    /// Received and sent by all ports of all switches: a link between two switches counts twice, a host's once.
    pub switch_bytes_total: u64,
    /// Sent by the cards.
    pub host_tx_bytes: u64,
    /// Received by the cards.
    pub host_rx_bytes: u64,
    /// Received and sent by all ports of all switches on account of control messages and fetched chunks.
    pub switch_control_bytes: u64,
    /// Frames that were lost.
    pub lost_frames: u64,
    /// Datagrams dropped by cards because no receive was posted.
    pub rnr_drops: u64,
    /// Packets dropped by cards for other reasons: wrong key, group, address or check sequence.
    pub card_drops: u64,
    /// Times a reliable connection waited in vain for an answer.
    pub timeouts: u64,
}

/// Drops of one card, as in [`Traffic`].
fn card(counters: &emu_machine::nic::Counters) -> (u64, u64, u64) {
    let other = counters.rx_buffer_drops
        + counters.icrc_drops
        + counters.address_drops
        + counters.multicast_drops
        + counters.qp_drops
        + counters.pkey_drops
        + counters.qkey_drops
        + counters.access_drops;
    (counters.rnr_drops, other, counters.rc_timeouts)
}

impl Traffic {
    /// What the calling thread's machine has seen so far.
    ///
    /// # Errors
    /// [`SimError::Emulator`].
    pub fn now(_provider: &Provider) -> Result<Self, SimError> {
        Ok(with_world(|world| {
            let (mut switches, mut hosts) = (PortCounters::default(), PortCounters::default());
            match world.network() {
                Some(network) => {
                    let totals = network.totals();
                    switches += totals.switches;
                    hosts += totals.hosts;
                }
                None => (0..world.card_count()).for_each(|card| hosts += world.port_counters(card)),
            }
            let (mut rnr_drops, mut card_drops, mut timeouts) = (0, 0, 0);
            for index in 0..world.card_count() {
                let Ok(one) = world.card(index) else { continue };
                let (rnr, other, waited) = card(one.nic.counters());
                rnr_drops += rnr;
                card_drops += other;
                timeouts += waited;
            }
            Self {
                switch_bytes_total: switches.priority_payload_bytes(DATA_PRIORITY),
                switch_control_bytes: switches.payload_bytes() - switches.priority_payload_bytes(DATA_PRIORITY),
                host_tx_bytes: hosts.tx_priority_payload_bytes[DATA_PRIORITY],
                host_rx_bytes: hosts.rx_priority_payload_bytes[DATA_PRIORITY],
                lost_frames: switches.drops.total() + hosts.drops.total(),
                rnr_drops,
                card_drops,
                timeouts,
            }
        })?)
    }

    /// The difference to an earlier state.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            switch_bytes_total: self.switch_bytes_total - before.switch_bytes_total,
            switch_control_bytes: self.switch_control_bytes - before.switch_control_bytes,
            host_tx_bytes: self.host_tx_bytes - before.host_tx_bytes,
            host_rx_bytes: self.host_rx_bytes - before.host_rx_bytes,
            lost_frames: self.lost_frames - before.lost_frames,
            rnr_drops: self.rnr_drops - before.rnr_drops,
            card_drops: self.card_drops - before.card_drops,
            timeouts: self.timeouts - before.timeouts,
        }
    }
}

/// One rank's end of one operation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// The rank was dead before it ended; the rest means nothing then.
    pub dead: bool,
    /// Whether its buffer is what was sent; `None` if the operation failed.
    pub equal: Option<bool>,
    /// Why it failed.
    pub error: Option<String>,
    /// What the library reports.
    pub report: flexcast::Report,
}

/// The time that a phase took, over ranks and operations, in microseconds of virtual time.
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
    fn add(&mut self, from_ps: Option<u64>, to_ps: Option<u64>) {
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
    /// From armed workers to the last chunk, where nothing was lost.
    pub receiving: PhaseTime,
    /// From the cutoff to the end of recovery, where something was.
    pub recovering: PhaseTime,
    /// From the last byte to release.
    pub closing: PhaseTime,
}

impl PhaseTimes {
    fn add(&mut self, phases: &Phases) {
        self.arming.add(Some(phases.posted_ps), phases.armed_ps);
        self.waiting.add(phases.armed_ps, phases.sending_ps);
        self.sending.add(phases.sending_ps, phases.sent_ps);
        self.receiving.add(phases.armed_ps, phases.received_ps);
        self.recovering.add(phases.cut_off_ps, phases.complete_ps);
        self.closing.add(phases.complete_ps.or(phases.received_ps), phases.released_ps);
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

/// A simulation's result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// What was done.
    pub op: Operation,
    /// How.
    pub algorithm: String,
    /// Ranks.
    pub ranks: u32,
    /// Ranks that share a card.
    pub ranks_per_card: u32,
    /// Bytes that a rank contributes.
    pub bytes: u64,
    /// Bytes that every rank has in the end.
    pub receive_bytes: u64,
    /// Operations.
    pub iterations: u32,
    /// Payload on the network, over all operations.
    #[serde(flatten)]
    pub traffic: Traffic,
    /// Virtual time from the first post to the last release, mean of the operations.
    pub virtual_time_us: f64,
    /// Bytes received by the slowest rank per unit of that time, in Gbit/s.
    pub goodput_gbit_s: f64,
    /// Whether every rank's buffer is, byte by byte, what was sent, in every operation.
    pub digest_ok: bool,
    /// Whether the buffers of the ranks that report success are right.
    #[serde(skip)]
    pub bytes_ok: bool,
    /// Operations of ranks that failed, and the errors they gave, each once.
    pub failures: u64,
    /// The errors.
    pub errors: Vec<String>,
    /// Chunks that multicast lost and a neighbour had, over all ranks.
    pub recovered_chunks: u64,
    /// Their bytes.
    pub recovered_bytes: u64,
    /// Reads that fetched them.
    pub recovery_reads: u64,
    /// Control messages of all ranks.
    pub control_messages: u64,
    /// Control messages of each kind: barrier, activation, fetch, acknowledgement, final, failure.
    pub control: [u64; 6],
    /// Where the time went.
    pub phases: PhaseTimes,
    /// What the workers counted.
    pub workers: Workers,
    /// Where the times come from.
    pub kind: Kind,
    /// Cost model behind them.
    pub model: String,
    /// Wall time of the operations in seconds, measured; says nothing of a card.
    pub wall_s: f64,
    /// Wall time of making cards and communicators in seconds, measured.
    pub set_up_s: f64,
    #[serde(skip)]
    took_ps: u64,
}

impl Report {
    pub(super) fn new(params: &SimParams) -> Self {
        Self {
            op: params.operation,
            algorithm: "multicast".to_owned(),
            ranks: params.ranks,
            ranks_per_card: params.ranks_per_card,
            bytes: params.bytes,
            receive_bytes: params.receive_bytes(),
            iterations: params.iterations,
            traffic: Traffic::default(),
            virtual_time_us: 0.0,
            goodput_gbit_s: 0.0,
            digest_ok: true,
            bytes_ok: true,
            failures: 0,
            errors: Vec::new(),
            recovered_chunks: 0,
            recovered_bytes: 0,
            recovery_reads: 0,
            control_messages: 0,
            control: [0; 6],
            phases: PhaseTimes::default(),
            workers: Workers::default(),
            kind: Kind::Emulated,
            model: MODEL.to_owned(),
            wall_s: 0.0,
            set_up_s: 0.0,
            took_ps: 0,
        }
    }

    pub(super) fn add(
        &mut self,
        outcomes: &[Outcome],
        traffic: &Traffic,
        messages: &MessageCounts,
        took_ps: u64,
        wall_s: f64,
    ) {
        self.control_messages += messages.total();
        let MessageCounts { barrier, activate, fetch, acknowledge, last, failed } = *messages;
        for (sum, count) in self.control.iter_mut().zip([barrier, activate, fetch, acknowledge, last, failed]) {
            *sum += count;
        }
        self.traffic.switch_bytes_total += traffic.switch_bytes_total;
        self.traffic.switch_control_bytes += traffic.switch_control_bytes;
        self.traffic.host_tx_bytes += traffic.host_tx_bytes;
        self.traffic.host_rx_bytes += traffic.host_rx_bytes;
        self.traffic.lost_frames += traffic.lost_frames;
        self.traffic.rnr_drops += traffic.rnr_drops;
        self.traffic.card_drops += traffic.card_drops;
        self.traffic.timeouts += traffic.timeouts;
        self.took_ps += took_ps;
        self.wall_s += wall_s;
        for outcome in outcomes.iter().filter(|outcome| !outcome.dead) {
            self.bytes_ok &= outcome.equal.unwrap_or(true);
            if let Some(error) = &outcome.error {
                self.failures += 1;
                if !self.errors.contains(error) {
                    self.errors.push(error.clone());
                }
            }
            self.recovered_chunks += outcome.report.recovered_chunks;
            self.recovered_bytes += outcome.report.recovered_bytes;
            self.recovery_reads += outcome.report.reads;
            self.phases.add(&outcome.report.phases);
        }
    }

    pub(super) fn finish(&mut self, ranks: &[Communicator<'_>], set_up_s: f64) -> Result<(), SimError> {
        self.set_up_s = set_up_s;
        self.digest_ok = self.bytes_ok && self.failures == 0;
        let took_s = self.took_ps as f64 / 1e12 / f64::from(self.iterations);
        self.virtual_time_us = took_s * 1e6;
        let foreign_bytes = self.receive_bytes as f64 * (1.0 - 1.0 / f64::from(self.ranks));
        self.goodput_gbit_s = if took_s > 0.0 { foreign_bytes * 8.0 / took_s / 1e9 } else { 0.0 };
        for (rank, communicator) in (0..).zip(ranks) {
            let at = |source| SimError::Rank { rank, source };
            let received = communicator.receive_statistics().map_err(at)?;
            let sent = communicator.send_statistics().map_err(at)?;
            let workers = &mut self.workers;
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
        Ok(())
    }
}
