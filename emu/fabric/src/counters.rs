//! Port counters, and sums of them.

use std::ops::AddAssign;

/// Priorities that ports distinguish.
pub const PRIORITIES: usize = 8;

/// Frames that ended before their destination, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops {
    /// An egress queue had no room (tail drop only).
    pub queue_full: u64,
    /// Nobody has the address, or no host but the sender is in the group.
    pub no_receiver: u64,
    /// A fault dropped it at random.
    pub random: u64,
    /// A fault dropped it as part of a burst.
    pub burst: u64,
    /// At least one of its bits was wrong, so that its check sequence failed.
    pub bit_error: u64,
    /// The link was down while it was sent.
    pub link_down: u64,
    /// A fault dropped it by its number.
    pub named: u64,
}

impl Drops {
    /// All causes together.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.queue_full + self.no_receiver + self.on_the_wire()
    }

    /// Those that a fault of a link destroyed.
    #[must_use]
    pub fn on_the_wire(&self) -> u64 {
        self.random + self.burst + self.bit_error + self.link_down + self.named
    }
}

impl AddAssign for Drops {
    fn add_assign(&mut self, other: Self) {
        self.queue_full += other.queue_full;
        self.no_receiver += other.no_receiver;
        self.random += other.random;
        self.burst += other.burst;
        self.bit_error += other.bit_error;
        self.link_down += other.link_down;
        self.named += other.named;
    }
}

/// What a port has seen.
///
/// Bytes are those on the wire ([`Frame::wire_bytes`](crate::Frame::wire_bytes)); payload bytes are what the frame
/// counts as such ([`NetworkFrame::payload_bytes`](crate::NetworkFrame::payload_bytes)), and stay 0 on links outside a
/// network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Frames that left through the port.
    pub tx_frames: u64,
    /// Their bytes on the wire.
    pub tx_bytes: u64,
    /// Their payload bytes.
    pub tx_payload_bytes: u64,
    /// Frames that arrived at the port.
    pub rx_frames: u64,
    /// Their bytes on the wire.
    pub rx_bytes: u64,
    /// Their payload bytes.
    pub rx_payload_bytes: u64,
    /// Frames on their way to the port that a fault destroyed.
    pub lost_frames: u64,
    /// Frames that ended here: on their way to the port, at its egress queue, or for want of a receiver.
    pub drops: Drops,
    /// Frames on their way to the port that a fault doubled.
    pub duplicated_frames: u64,
    /// Frames on their way to the port that a fault corrupted; they arrive.
    pub corrupted_frames: u64,
    /// Most bytes that waited for the port or were on their way out of it at one time.
    pub queue_high_water_bytes: u64,
    /// [`tx_payload_bytes`](Self::tx_payload_bytes) by the frames' [priority](crate::NetworkFrame::priority).
    pub tx_priority_payload_bytes: [u64; PRIORITIES],
    /// [`rx_payload_bytes`](Self::rx_payload_bytes) by the frames' priority.
    pub rx_priority_payload_bytes: [u64; PRIORITIES],
}

impl AddAssign for PortCounters {
    /// Sums everything but the high-water mark, of which the larger stays.
    fn add_assign(&mut self, other: Self) {
        self.tx_frames += other.tx_frames;
        self.tx_bytes += other.tx_bytes;
        self.tx_payload_bytes += other.tx_payload_bytes;
        self.rx_frames += other.rx_frames;
        self.rx_bytes += other.rx_bytes;
        self.rx_payload_bytes += other.rx_payload_bytes;
        self.lost_frames += other.lost_frames;
        self.drops += other.drops;
        self.duplicated_frames += other.duplicated_frames;
        self.corrupted_frames += other.corrupted_frames;
        self.queue_high_water_bytes = self.queue_high_water_bytes.max(other.queue_high_water_bytes);
        for priority in 0..PRIORITIES {
            self.tx_priority_payload_bytes[priority] += other.tx_priority_payload_bytes[priority];
            self.rx_priority_payload_bytes[priority] += other.rx_priority_payload_bytes[priority];
        }
    }
}

impl PortCounters {
    /// Payload bytes received and sent: the measure of traffic on switch ports in which a link between two switches
    /// counts twice and a host's link once.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        self.rx_payload_bytes + self.tx_payload_bytes
    }

    /// [`payload_bytes`](Self::payload_bytes) of one priority; 0 for one above 7.
    #[must_use]
    pub fn priority_payload_bytes(&self, priority: usize) -> u64 {
        let of = |bytes: &[u64; PRIORITIES]| bytes.get(priority).copied().unwrap_or(0);
        of(&self.rx_priority_payload_bytes) + of(&self.tx_priority_payload_bytes)
    }
}

/// Sums over a network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkTotals {
    /// Over all ports of all switches.
    pub switches: PortCounters,
    /// Over all hosts' ports.
    pub hosts: PortCounters,
}

impl NetworkTotals {
    /// Times a frame was put on a link.
    #[must_use]
    pub fn link_traversals(&self) -> u64 {
        self.switches.tx_frames + self.hosts.tx_frames
    }
}
