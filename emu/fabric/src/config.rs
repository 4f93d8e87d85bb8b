//! How switches behave.

use serde::{Deserialize, Serialize};

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
    /// The port with the fewest bytes queued; among equals the one that the flow's hash would take or the next after it.
    /// Frames of a flow may overtake one another.
    Adaptive,
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
    /// Lossless: bytes of the buffer at each switch port for what comes in. Tail drop: bytes of the queue at each switch port
    /// for what goes out. Default 256 KiB, an assumption: far more than a link of 200 Gbit/s and a few metres holds.
    pub buffer_bytes: u64,
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
            hash_seed: 0,
        }
    }
}
