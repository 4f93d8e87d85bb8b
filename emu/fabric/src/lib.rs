//! Links and switches between emulated cards. Time is an input; what arrives where and when is the output.
//!
//! The crate knows nothing of what a frame says, only how long it is and where it goes. Times are picoseconds of
//! virtual time. Equal calls in equal order have equal results, on every machine.
//!
//! Two cards joined by a cable need no more than [`BackToBack`]. For anything else a [`Topology`] describes hosts,
//! switches and cables, and a [`Network`] built from it carries frames, under the faults of a [`FaultScript`].

mod arbiter;
mod capture;
mod config;
mod counters;
mod drop;
mod fabric;
mod fault;
mod groups;
mod link;
mod mix;
mod network;
mod routes;
mod topology;

pub use arbiter::Arbiter;
pub use capture::{CaptureError, CaptureFrame, CaptureWriter, Captured};
pub use config::{FlowControl, Forwarding, Priorities, Routing, SwitchConfig};
pub use counters::{Drops, NetworkTotals, PRIORITIES, PortCounters};
pub use drop::SeededDrop;
pub use fabric::{Direct, Fabric, FabricEffects, FabricError, PortRoom};
pub use fault::{
    BIT_ERRORS_1E_12, BIT_ERRORS_1E_15, Direction, Fault, FaultError, FaultEvent, FaultScript, MAX_DELAY_PS,
    MAX_TIME_PS,
};
pub use groups::GroupError;
pub use link::{BackToBack, Delivery, Link, LinkConfig, LinkError, Rate};
pub use network::{Network, PORT_FREE_BYTES, PORT_FULL_BYTES};
pub use topology::{
    Cable, End, FatTree, MAX_HOSTS, MAX_LATENCY_PS, MAX_PORTS, MAX_SWITCHES, Node, Switch, Topology, TopologyBuilder,
    TopologyError,
};

/// What a link needs to know of a frame.
pub trait Frame {
    /// Bytes that occupy the link: the frame with its preamble, check sequence and the gap after it.
    fn wire_bytes(&self) -> u64;
}

/// Where a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Destination {
    /// A host by its number.
    Host(usize),
    /// A host by its link-layer address; see [`Network::set_address`].
    Address(u64),
    /// Every host that has joined a group, but for the sender; see [`Network::join`].
    Group(u128),
    /// One host, added up on the way: the switches of the group's tree keep what comes for a sum and pass on one frame
    /// in place of all that came up their ports. Each member but the host itself sends one frame for each sum.
    ///
    /// A model of computing in the network; no card offers it by these means. It takes no time besides the switch's
    /// own, and wants a network that loses nothing: a sum that lacks a frame waits for ever ([`Network::open_sums`]
    /// counts such), and members must not join or leave while sums are open.
    Sum {
        /// The group whose members add.
        group: u128,
        /// The member that gets the result.
        to: usize,
        /// Which of the sums for this host; free for use again once the result has arrived.
        tag: u64,
    },
}

/// What a network of switches needs to know of a frame. Cloning one should be cheap: each receiver of a multicast gets
/// a clone.
pub trait NetworkFrame: Frame + Clone {
    /// Where it goes.
    fn destination(&self) -> Destination;

    /// What it shares with the frames it must not overtake: for RoCEv2 a hash of addresses, UDP source port and queue
    /// pair.
    fn flow(&self) -> u64;

    /// Bytes of user data in it, for [`PortCounters::tx_payload_bytes`] and its kin.
    fn payload_bytes(&self) -> u64;

    /// Its priority, 0 to 7, by which [`PortCounters`] count payload bytes separately; higher bits are ignored. Whether
    /// it also has a queue of its own is a matter of [`Priorities`]. The default is 0.
    fn priority(&self) -> u8 {
        0
    }

    /// Adds the contents of another frame for the same [`Destination::Sum`]. The default is for frames without
    /// contents: nothing.
    fn add(&mut self, other: &Self) {
        let _ = other;
    }

    /// Makes it arrive with wrong contents, so that the receiver's check finds it. Equal seeds do equal damage.
    fn corrupt(&mut self, seed: u64);
}
