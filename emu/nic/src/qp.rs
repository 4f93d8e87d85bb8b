//! Queue pairs: what they are made of, their attributes and their states.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::access::Access;
use crate::address::Gid;
use crate::memory::QueueMemory;
use crate::packet::Network;
use crate::transport::Transport;

/// State of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum QpState {
    /// Just made.
    Reset,
    /// Receives may be posted.
    Init,
    /// Packets are received.
    Rtr,
    /// Packets are received and sent.
    Rts,
    /// Failed, or put here by command: everything is flushed.
    Err,
}

impl fmt::Display for QpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::Rtr => "RTR",
            Self::Rts => "RTS",
            Self::Err => "ERR",
        })
    }
}

/// Path MTU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Mtu {
    /// 256 bytes, code 1.
    B256,
    /// 512 bytes, code 2.
    B512,
    /// 1024 bytes, code 3.
    B1024,
    /// 2048 bytes, code 4.
    B2048,
    /// 4096 bytes, code 5.
    B4096,
}

impl Mtu {
    /// Payload bytes of a full packet.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        match self {
            Self::B256 => 256,
            Self::B512 => 512,
            Self::B1024 => 1024,
            Self::B2048 => 2048,
            Self::B4096 => 4096,
        }
    }

    /// The MTU with this code of verbs and PRM, 1 to 5.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::B256),
            2 => Some(Self::B512),
            3 => Some(Self::B1024),
            4 => Some(Self::B2048),
            5 => Some(Self::B4096),
            _ => None,
        }
    }

    /// Its code, 1 to 5.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::B256 => 1,
            Self::B512 => 2,
            Self::B1024 => 3,
            Self::B2048 => 4,
            Self::B4096 => 5,
        }
    }
}

/// Most Read and atomic requests that a queue pair may have outstanding, as requester and as responder.
pub const MAX_RD_ATOMIC: u8 = 16;

/// How a queue pair is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpAttr {
    /// Transport service.
    pub transport: Transport,
    /// Protection domain.
    pub pd: u32,
    /// Completion queue of sends.
    pub send_cq: u32,
    /// Completion queue of receives.
    pub recv_cq: u32,
    /// Receive ring.
    pub rq: QueueMemory,
    /// log2 of the receive ring's WQEs, 0 to 15.
    pub log_rq_depth: u8,
    /// log2 of a receive WQE's bytes, 4 (one segment) to 10.
    pub log_rq_stride: u8,
    /// Send ring, 64-byte aligned.
    pub sq: QueueMemory,
    /// log2 of the send ring's 64-byte basic blocks, 0 to 15.
    pub log_sq_depth: u8,
    /// There is no send ring: `sq` is ignored and every doorbell refused.
    pub no_sq: bool,
    /// There is no receive ring: `rq` is ignored, and no receive is ever found but those of `srq`.
    pub no_rq: bool,
    /// Shared receive queue that its receives are taken from; needs `no_rq`.
    pub srq: Option<u32>,
    /// The doorbell record, 8-byte aligned: word 0 = receive counter, word 1 = send counter, big-endian.
    pub doorbell_record: QueueMemory,
    /// Index that CQEs carry, 24 bits.
    pub user_index: u32,
    /// The UAR through which the queue may be rung. The card keeps it; whoever decodes doorbells enforces it.
    pub uar: u32,
}

/// Attributes to change; `None` keeps what is there. The same attribute may be given in any transition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpModify {
    /// State to enter; `None` keeps the state.
    pub next_state: Option<QpState>,
    /// Protection domain; must be the one given at creation.
    pub pd: Option<u32>,
    /// What the queue pair allows its peer to do (RC, UC). Needed for INIT.
    pub access: Option<Access>,
    /// Q_Key of received datagrams (UD). Needed for INIT.
    pub qkey: Option<u32>,
    /// Index into the partition key table.
    pub pkey_index: Option<u16>,
    /// Port; a card has port 1 alone.
    pub port: Option<u8>,
    /// Path MTU (RC, UC). Needed for RTR. UD messages are bounded by the port's.
    pub path_mtu: Option<Mtu>,
    /// The peer's queue pair (RC, UC), 24 bits. Needed for RTR.
    pub dest_qpn: Option<u32>,
    /// First PSN to be received (RC, UC), 24 bits. Needed for RTR.
    pub rq_psn: Option<u32>,
    /// First PSN to be sent, 24 bits. Needed for RTS.
    pub sq_psn: Option<u32>,
    /// The peer's identifier (RC, UC). Needed for RTR unless `force_loopback` is set.
    pub rgid: Option<Gid>,
    /// The peer's Ethernet address (RC, UC).
    pub dmac: Option<[u8; 6]>,
    /// Index of the own identifier to send from.
    pub sgid_index: Option<u8>,
    /// UDP source port of sent packets. One that was never given follows from both ends' numbers, when the peer's is
    /// given: see [`entropy_port`](crate::wire::entropy_port).
    pub udp_sport: Option<u16>,
    /// Traffic class of sent packets (RC, UC).
    pub traffic_class: Option<u8>,
    /// Hop limit of sent packets (RC, UC); 0 stands for 64.
    pub hop_limit: Option<u8>,
    /// IPv6 flow label of sent packets (RC, UC), 20 bits.
    pub flow_label: Option<u32>,
    /// Retries when nothing is received or a PSN was lost (RC), 0 to 7.
    pub retry_cnt: Option<u8>,
    /// Retries when the receiver has no receive (RC), 0 to 6; 7 = for ever.
    pub rnr_retry: Option<u8>,
    /// Code of the time that the peer must wait when there is no receive (RC), 0 to 31.
    pub min_rnr_timer: Option<u8>,
    /// Code of the time in which something must be received (RC): 4.096 us times 2 to this power, 0 to 31; 0 = for
    /// ever.
    pub timeout: Option<u8>,
    /// Read and atomic requests that may be outstanding (RC), at most [`MAX_RD_ATOMIC`]; 0 allows none.
    pub max_rd_atomic: Option<u8>,
    /// Read and atomic requests that the peer may have outstanding (RC), that is its `max_rd_atomic`, at most
    /// [`MAX_RD_ATOMIC`]: more are refused, and as many are remembered for repetitions.
    pub max_dest_rd_atomic: Option<u8>,
    /// Packets turn round inside the card, whatever their destination.
    pub force_loopback: Option<bool>,
    /// Datagrams to a group are not delivered to this card's own members of it (`block_lb_mc` of the PRM's QP context).
    pub block_multicast_loopback: Option<bool>,
}

/// What has been settled about a queue pair's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpPath {
    /// What the peer may do.
    pub access: Access,
    /// Q_Key.
    pub qkey: u32,
    /// Index into the partition key table.
    pub pkey_index: u16,
    /// Port.
    pub port: u8,
    /// Path MTU.
    pub path_mtu: Mtu,
    /// The peer's queue pair.
    pub dest_qpn: u32,
    /// The peer's identifier.
    pub rgid: Gid,
    /// The peer's Ethernet address.
    pub dmac: [u8; 6],
    /// Index of the own identifier.
    pub sgid_index: u8,
    /// UDP source port.
    pub udp_sport: u16,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit; 0 stands for 64.
    pub hop_limit: u8,
    /// IPv6 flow label.
    pub flow_label: u32,
    /// Retries.
    pub retry_cnt: u8,
    /// RNR retries.
    pub rnr_retry: u8,
    /// RNR timer code given to the peer.
    pub min_rnr_timer: u8,
    /// Timeout code.
    pub timeout: u8,
    /// Outstanding read and atomic requests.
    pub max_rd_atomic: u8,
    /// Outstanding read and atomic requests of the peer.
    pub max_dest_rd_atomic: u8,
    /// Forced loopback.
    pub force_loopback: bool,
    /// No loopback of datagrams to groups.
    pub block_multicast_loopback: bool,
}

impl QpPath {
    /// The header fields of what the queue pair sends to its peer.
    pub(crate) fn network(&self) -> Network {
        Network {
            traffic_class: self.traffic_class,
            hop_limit: hop_limit(self.hop_limit),
            flow_label: self.flow_label,
            udp_source_port: self.udp_sport,
            ..Network::default()
        }
    }
}

/// A hop limit of 0 would not leave the sender; drivers that resolve the route themselves leave it unset.
pub(crate) fn hop_limit(given: u8) -> u8 {
    if given == 0 { Network::default().hop_limit } else { given }
}

/// Answer to a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpQuery {
    /// How it was made.
    pub attr: QpAttr,
    /// Its state.
    pub state: QpState,
    /// How often it has entered RESET since it was made.
    pub resets: u32,
    /// Its path.
    pub path: QpPath,
    /// Next PSN to be sent.
    pub sq_psn: u32,
    /// Next PSN to be received.
    pub rq_psn: u32,
    /// Receives consumed, modulo 2^16.
    pub rq_counter: u16,
    /// Send blocks completed, modulo 2^16.
    pub sq_counter: u16,
    /// UC and UD messages for it that were dropped because no receive was posted.
    pub rnr_drops: u64,
    /// Datagrams for it that were dropped for their Q_Key.
    pub qkey_drops: u64,
}
