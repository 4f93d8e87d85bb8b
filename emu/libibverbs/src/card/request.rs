//! Requests of a program to a card, and the answers.

use emu_machine::nic::{Access, Gid, GidEntry, QpAttr, QpModify, QpQuery, ReceiveOrder};
use serde::{Deserialize, Serialize};

use super::refusal::{Kind, Refusal};

use crate::errno::{Errno, Result};

/// A request. Addresses are of the memory of the program that makes it, and so are those of queues: their `space` is
/// not read.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// The first of another process: the cards there are. The address of [`PROBE`] in its memory shows that the card
    /// reaches that.
    Open {
        probe: u64,
    },
    /// A protection domain.
    AllocPd,
    DeallocPd {
        pd: u32,
    },
    /// A memory key over a range, which the card reaches from now on.
    RegisterRegion {
        pd: u32,
        addr: u64,
        len: u64,
        access: Access,
        /// Address of the first byte under the key.
        iova: u64,
        /// Pages may be absent: that they are there is found out at each access.
        on_demand: bool,
    },
    /// A region with another range, domain or rights. The old range is not reached any more.
    ChangeRegion {
        key: u32,
        pd: u32,
        addr: u64,
        len: u64,
        access: Access,
        iova: u64,
    },
    DeregisterRegion {
        key: u32,
    },
    /// Memory of a queue.
    RegisterMemory {
        addr: u64,
        len: u64,
    },
    DeregisterMemory {
        addr: u64,
        len: u64,
    },
    /// Memory that commands name.
    RegisterUmem {
        addr: u64,
        len: u64,
    },
    DeregisterUmem {
        id: u32,
        addr: u64,
        len: u64,
    },
    CreateCq {
        ring: u64,
        log_depth: u8,
        record: u64,
        channel: Option<u32>,
    },
    DestroyCq {
        cqn: u32,
    },
    /// Another ring, which entries go to from now on.
    ResizeCq {
        cqn: u32,
        ring: u64,
        log_depth: u8,
    },
    /// An event is raised after so many completions, or so long after the first.
    ModerateCq {
        cqn: u32,
        count: u16,
        period_us: u16,
    },
    /// Whether it has overrun.
    CqFailed {
        cqn: u32,
    },
    CreateSrq(NewSrq),
    /// An event is wanted with fewer receives left.
    ArmSrq {
        srqn: u32,
        limit: u16,
    },
    /// With how few it is.
    SrqLimit {
        srqn: u32,
    },
    DestroySrq {
        srqn: u32,
    },
    CreateQp {
        attr: QpAttr,
    },
    /// The queue pair of the port's general services.
    CreateGsiQp {
        attr: QpAttr,
    },
    ModifyQp {
        qpn: u32,
        modify: Box<QpModify>,
    },
    QueryQp {
        qpn: u32,
    },
    DestroyQp {
        qpn: u32,
    },
    /// A queue pair becomes a member of a multicast group.
    AttachMulticast {
        qpn: u32,
        gid: Gid,
    },
    DetachMulticast {
        qpn: u32,
        gid: Gid,
    },
    /// A key over other keys, with room for so many entries.
    CreateUmrKey {
        pd: u32,
        max_entries: u32,
    },
    /// A memory window.
    CreateWindow {
        pd: u32,
    },
    /// The key is the first that it had.
    DestroyWindow {
        key: u32,
    },
    DestroyUmrKey {
        key: u32,
    },
    /// The Ethernet address behind an identifier.
    ResolveMac {
        gid: Gid,
    },
    /// A command in a mailbox, and the bytes that its answer may have.
    Devx {
        call: DevxCall,
        input: Vec<u8>,
        answer_bytes: usize,
    },
    DestroyDevx {
        kind: Kind,
        number: u32,
    },
    /// Doorbell of a send queue.
    Ring {
        qpn: u32,
        counter: u16,
        pushed: bool,
    },
    /// Doorbell of a completion queue.
    Arm {
        cqn: u32,
        index: u32,
        solicited_only: bool,
    },
    /// Virtual time.
    Now,
    /// Completion events that have come for the process.
    TakeEvents,
}

/// A shared receive queue.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct NewSrq {
    pub(crate) pd: u32,
    pub(crate) ring: u64,
    pub(crate) log_depth: u8,
    pub(crate) log_stride: u8,
    pub(crate) record: u64,
    pub(crate) order: ReceiveOrder,
}

/// What [`Request::Open`] finds at its address.
pub(crate) static PROBE: [u8; 16] = *b"flexcast attach\0";

impl Request {
    /// Whether it is a control operation, which is counted.
    pub(crate) fn is_command(&self) -> bool {
        !matches!(
            self,
            Self::Open { .. }
                | Self::RegisterMemory { .. }
                | Self::DeregisterMemory { .. }
                | Self::CqFailed { .. }
                | Self::QueryQp { .. }
                | Self::SrqLimit { .. }
                | Self::ResolveMac { .. }
                | Self::Ring { .. }
                | Self::Arm { .. }
                | Self::Now
                | Self::TakeEvents
        )
    }

    /// Whether somebody waits for an answer: doorbells have none.
    pub(crate) fn is_answered(&self) -> bool {
        !matches!(self, Self::Ring { .. } | Self::Arm { .. })
    }
}

/// A call with a mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum DevxCall {
    Create,
    General,
    Query { kind: Kind, number: u32 },
    Modify { kind: Kind, number: u32, block_multicast_loopback: bool },
}

/// An object that a command made; of other commands it says nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Made {
    pub(crate) kind: Kind,
    pub(crate) number: u32,
    pub(crate) block_multicast_loopback: bool,
}

/// A card, as a program sees it through the host's function.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CardInfo {
    pub(crate) card: usize,
    pub(crate) mac: [u8; 6],
    pub(crate) gids: Vec<GidEntry>,
    pub(crate) port: PortInfo,
}

/// The port of a card.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PortInfo {
    pub(crate) mtu_code: u8,
    pub(crate) pkeys: Vec<u16>,
    pub(crate) gbit_per_s: u64,
}

/// What comes back.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    Done,
    Number(u32),
    Flag(bool),
    Mac([u8; 6]),
    QueuePair(Box<QpQuery>),
    Cards(Vec<CardInfo>),
    /// The answer's bytes, and what became of the command.
    Devx {
        answer: Vec<u8>,
        result: std::result::Result<Option<Made>, Refusal>,
    },
    TimePs(u64),
    /// Numbers of channels and of completion queues.
    Events(Vec<(u32, u32)>),
    Refused {
        errno: i32,
        reason: String,
    },
}

macro_rules! expected {
    ($(#[$doc:meta] $name:ident: $variant:ident($value:ident) -> $kind:ty = $given:expr;)*) => {$(
        #[$doc]
        pub(crate) fn $name(self) -> Result<$kind> {
            match self {
                Self::$variant($value) => Ok($given),
                other => Err(other.unexpected()),
            }
        }
    )*};
}

impl Answer {
    expected! {
        /// The number of what was made.
        number: Number(number) -> u32 = number;
        /// Yes or no.
        flag: Flag(flag) -> bool = flag;
        /// An Ethernet address.
        mac: Mac(mac) -> [u8; 6] = mac;
        /// What is known of a queue pair.
        queue_pair: QueuePair(query) -> QpQuery = *query;
        /// The cards.
        cards: Cards(cards) -> Vec<CardInfo> = cards;
        /// Virtual time.
        time_ps: TimePs(time_ps) -> u64 = time_ps;
        /// Completion events.
        events: Events(events) -> Vec<(u32, u32)> = events;
    }

    /// Another one than the request has.
    pub(crate) fn unexpected(&self) -> Errno {
        Errno::new(libc::EPROTO, format!("the answer does not fit the request: {self:?}"))
    }
}
