//! Traffic of the network: payload by priority, and drops.

use derive_more::{AddAssign, Sub};
use emu_machine::fabric::PortCounters;
use emu_machine::with_world;
use serde::Serialize;

use super::SimError;

/// Priority of data packets: that of the default traffic class of communicators and of what they are compared with.
const DATA_PRIORITY: usize = 0;

/// Bytes that have crossed the network: payload of data packets, headers not counted. Control messages, fetched chunks
/// and the announcements of collectives without multicast have another priority and are counted separately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, AddAssign, Sub)]
pub struct Traffic {
    /// Received and sent by all ports of all switches: a link between two switches counts twice, a host's once.
    pub switch_bytes_total: u64,
    /// Sent by the cards.
    pub host_tx_bytes: u64,
    /// Received by the cards.
    pub host_rx_bytes: u64,
    /// Received and sent by all ports of all switches on account of control messages, fetched chunks and announcements.
    pub switch_control_bytes: u64,
    /// Sent by the cards on account of those.
    pub host_tx_control_bytes: u64,
    /// Received by the cards on account of those.
    pub host_rx_control_bytes: u64,
    /// Frames that were lost.
    pub lost_frames: u64,
    /// Datagrams dropped by cards because no receive was posted.
    pub rnr_drops: u64,
    /// Packets dropped by cards for other reasons: wrong key, group, address or check sequence.
    pub card_drops: u64,
    /// Times a reliable connection waited in vain for an answer.
    pub timeouts: u64,
    /// Completions that cards have written, for workers and hosts.
    pub completions: u64,
}

/// The counters of one card that [`Traffic`] ends with.
fn card(counters: &emu_machine::nic::Counters) -> [u64; 4] {
    let other = counters.rx_buffer_drops
        + counters.icrc_drops
        + counters.address_drops
        + counters.multicast_drops
        + counters.qp_drops
        + counters.pkey_drops
        + counters.qkey_drops
        + counters.access_drops;
    [counters.rnr_drops, other, counters.rc_timeouts, counters.cqes]
}

impl Traffic {
    /// What the calling thread's machine has seen so far.
    ///
    /// # Errors
    /// [`SimError::Emulator`].
    pub fn now() -> Result<Self, SimError> {
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
            let tx_bytes = hosts.tx_priority_payload_bytes[DATA_PRIORITY];
            let rx_bytes = hosts.rx_priority_payload_bytes[DATA_PRIORITY];
            let mut cards = [0; 4];
            for counters in
                (0..world.card_count()).filter_map(|index| Some(card(world.card(index).ok()?.nic.counters())))
            {
                cards.iter_mut().zip(counters).for_each(|(sum, count)| *sum += count);
            }
            let [rnr_drops, card_drops, timeouts, completions] = cards;
            Self {
                switch_bytes_total: switches.priority_payload_bytes(DATA_PRIORITY),
                switch_control_bytes: switches.payload_bytes() - switches.priority_payload_bytes(DATA_PRIORITY),
                host_tx_bytes: tx_bytes,
                host_rx_bytes: rx_bytes,
                host_tx_control_bytes: hosts.tx_payload_bytes - tx_bytes,
                host_rx_control_bytes: hosts.rx_payload_bytes - rx_bytes,
                lost_frames: switches.drops.total() + hosts.drops.total(),
                rnr_drops,
                card_drops,
                timeouts,
                completions,
            }
        })?)
    }
}
