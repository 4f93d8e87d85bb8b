//! Configuration of switches.

use serde::{Deserialize, Serialize};

use crate::counters::PRIORITIES;

/// When a switch passes a frame on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Forwarding {
    /// When its last bit has arrived.
    StoreAndForward,
    /// When its first 64 bytes have arrived, if the egress link is no faster than the ingress link.
    CutThrough,
}

/// What happens when frames come faster than they leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FlowControl {
    /// A frame is sent only when the switch at the other end has room for it: each direction of a link has credit for a
    /// buffer of its own, which comes back one link latency after the frame has left that switch by all its ways.
    Lossless,
    /// A frame that finds its egress queue full is dropped.
    TailDrop,
}

/// How a switch chooses among equally short ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Routing {
    /// By a hash of the frame's flow: frames of a flow stay in order.
    Ecmp,
    /// The port with the fewest bytes queued; among equals the one that the flow's hash would take or the next after
    /// it. Frames of a flow may overtake one another.
    Adaptive,
}

/// How a port chooses among frames of different [priority](crate::NetworkFrame::priority) that could leave. Frames of
/// one priority always leave in the order in which they came.
///
/// Nothing is interrupted: what is being sent is sent to its end. As long as a network sees one priority only,
/// whichever that is, times are the same with all three.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Priorities {
    /// Not at all: a queue at each port and a buffer behind each link are shared by all.
    Shared,
    /// The highest first. What is left to the others is what the higher ones do not ask for: they must be few.
    #[default]
    Strict,
    /// Each gets the share of the link that [`SwitchConfig::weights`] give it, and those that have nothing to send
    /// leave theirs to the others (enhanced transmission selection, IEEE 802.1Qaz).
    Weighted,
}

impl Priorities {
    /// All, in the order of their declaration.
    pub const ALL: [Self; 3] = [Self::Shared, Self::Strict, Self::Weighted];

    /// The name in files and options.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Strict => "strict",
            Self::Weighted => "weighted",
        }
    }
}

/// How all switches of a network behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SwitchConfig {
    /// When a frame is passed on. Default cut-through.
    pub forwarding: Forwarding,
    /// Back-pressure or drops. Default lossless.
    pub flow_control: FlowControl,
    /// Choice among equal ways. Default by hash.
    pub routing: Routing,
    /// From the moment a frame may be passed on to the first bit that leaves, in picoseconds, when the port is free.
    /// Default 300 000: an assumption of the order that vendors state for their switches, at most 10^13.
    pub latency_ps: u64,
    /// Lossless: bytes of the buffer at each switch port for what comes in. Tail drop: bytes of the queue at each
    /// switch port for what goes out. Default 256 KiB, an assumption: far more than a link of 200 Gbit/s and a few
    /// metres holds.
    pub buffer_bytes: u64,
    /// Whether and how priorities have queues of their own, at the ports of switches and of hosts. Default strict. If
    /// they have, each priority has a buffer of `buffer_bytes` to itself and credit for that (priority flow control, or
    /// virtual lanes).
    pub priorities: Priorities,
    /// Weighted: shares of the priorities, each from 1 to 1000. Default 1 each.
    pub weights: [u32; PRIORITIES],
    /// Changes which of several equal ways a flow or a group takes. Default 0.
    pub hash_seed: u64,
}

impl Default for SwitchConfig {
    fn default() -> Self {
        Self {
            forwarding: Forwarding::CutThrough,
            flow_control: FlowControl::Lossless,
            routing: Routing::Ecmp,
            latency_ps: 300_000,
            buffer_bytes: 256 << 10,
            priorities: Priorities::Strict,
            weights: [1; PRIORITIES],
            hash_seed: 0,
        }
    }
}
