//! Counters of the card.

/// Counters since the card was made. None ever resets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets handed to the port.
    pub tx_packets: u64,
    /// Their bytes, without Ethernet preamble and gap.
    pub tx_bytes: u64,
    /// Times the port's send engine had to rest because the port took no more.
    pub port_holds: u64,
    /// Packets taken from the port.
    pub rx_packets: u64,
    /// Their bytes, without Ethernet preamble and gap.
    pub rx_bytes: u64,
    /// Packets that turned round inside the card.
    pub loopback_packets: u64,
    /// Packets that found the receive buffer full.
    pub rx_buffer_drops: u64,
    /// Packets whose invariant check sequence was wrong, and frames whose check sequence was.
    pub icrc_drops: u64,
    /// Packets addressed to another port.
    pub address_drops: u64,
    /// Ethernet frames that no steering rule led to a receive queue.
    pub steering_drops: u64,
    /// Packets for a multicast group without a member on the card.
    pub multicast_drops: u64,
    /// Copies of packets to groups, one for each member.
    pub multicast_copies: u64,
    /// Packets for a queue pair that is not there, of another transport, or in a state that does not receive.
    pub qp_drops: u64,
    /// Packets of another partition than that of their queue pair.
    pub pkey_drops: u64,
    /// UD packets with a wrong Q_Key.
    pub qkey_drops: u64,
    /// UC and UD messages and Ethernet frames dropped because no receive was posted.
    pub rnr_drops: u64,
    /// RNR NAKs sent (RC).
    pub rnr_naks: u64,
    /// UC packets dropped because an earlier packet of their message was lost.
    pub uc_gap_drops: u64,
    /// UC packets dropped because their remote access was not allowed.
    pub access_drops: u64,
    /// PSN gaps seen by RC responders; each is answered by one NAK.
    pub rc_out_of_sequence: u64,
    /// RC packets that had been seen before.
    pub rc_duplicates: u64,
    /// Atomics executed for peers; a repeated request is answered, but not executed again.
    pub atomics: u64,
    /// Times an RC requester went back to an earlier PSN.
    pub rc_go_backs: u64,
    /// Of those, because nothing was received in time.
    pub rc_timeouts: u64,
    /// Remote accesses refused with a NAK.
    pub remote_access_errors: u64,
    /// CQEs written.
    pub cqes: u64,
    /// Of those, error CQEs.
    pub error_cqes: u64,
    /// Completion events raised.
    pub cq_events: u64,
    /// CQEs that found their ring full.
    pub cq_overruns: u64,
    /// Doorbells refused: unknown queue, or a producer index beyond the ring.
    pub bad_doorbells: u64,
    /// Doorbells of queue pairs that were not in RTS, or had been in RESET since, and so had no effect.
    pub ignored_doorbells: u64,
}
