//! Errors of the machine's control path.

use emu_fabric::FaultError;
use flexcast_image::ImageError;

use crate::numbering::{LAST_CARD, MAX_CARDS};

/// An error of a control-path call. Datapath errors are completions, crash records or asynchronous events instead.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// Out of room in a command queue.
    #[error("{limit} tasks wait in the command queue: let some run first")]
    TooManyTasks {
        /// The limit.
        limit: usize,
    },
    /// The configuration asks for a topology this machine does not have.
    #[error("{0} cards asked for: a cable joins 1 or 2, and a network (Wiring::Network) up to {MAX_CARDS}")]
    Cards(usize),
    /// The cards' numbers pass the last address there is.
    #[error("{cards} cards from number {first} on: the last number of a card is {LAST_CARD}, so begin lower")]
    FirstCard {
        /// Number of the first card.
        first: usize,
        /// How many there are.
        cards: usize,
    },
    /// No port is left to end outside.
    #[error(
        "this machine has {cards} cards and no free end of a cable: give it one card (cards = 1), or a network with \
         more hosts than cards"
    )]
    NoOutsidePort {
        /// How many cards there are.
        cards: usize,
    },
    /// The shared machine could not be made when it was first needed.
    #[error("{0}")]
    NotMade(String),
    /// The link between the cards cannot be built as configured.
    #[error("the link: {0}")]
    Link(String),
    /// The faults of the links cannot happen in this topology.
    #[error("the faults: {0}")]
    Faults(#[from] FaultError),
    /// A card is to be at a host that the topology does not have.
    #[error("card {card} is to be at host {host}, but the topology {topology:?} has hosts 0 to {}: give fewer cards, \
        or a larger topology", hosts - 1)]
    NoHost {
        /// The card.
        card: usize,
        /// The host.
        host: usize,
        /// Name of the topology.
        topology: String,
        /// How many hosts it has.
        hosts: usize,
    },
    /// Two cards are to be at one host.
    #[error(
        "cards {first} and {second} are both to be at host {host}, which has one port: give each a host of its own"
    )]
    SharedHost {
        /// The one.
        first: usize,
        /// The other.
        second: usize,
        /// The host.
        host: usize,
    },
    /// A switch cannot hold the longest packet of a card.
    #[error("switch buffers of {bytes} bytes: a packet has up to {least}, so give buffer_bytes of at least that")]
    SwitchBuffer {
        /// Bytes of a buffer.
        bytes: u64,
        /// Bytes of the longest packet on the wire.
        least: u64,
    },
    /// The capture of packets cannot be written.
    #[error("the capture of packets: {0}")]
    Capture(String),
    /// Second functions are asked for on cards that the Arm cores drive.
    #[error(
        "arm_functions with driven_from \"arm\": the program is then at the Arm cores alone, so take \
         driven_from \"host\" for a machine with programs at both"
    )]
    ArmFunctionsOfArm,
    /// The machine was made without functions for the cards' Arm cores.
    #[error("card {card} has no function for its Arm cores: configure the machine with arm_functions")]
    NoArmFunction {
        /// The card.
        card: usize,
    },
    /// The function of a card's Arm cores could not be made.
    #[error("the function of a card's Arm cores: {0}")]
    Function(#[source] emu_nic::NicError),
    /// No such card.
    #[error("card {index} does not exist; this machine has {cards}")]
    NoCard {
        /// The index asked for.
        index: usize,
        /// How many there are.
        cards: usize,
    },
    /// The ELF cannot be loaded.
    #[error("the device image cannot be loaded")]
    Image(#[from] ImageError),
    /// A segment lies outside the address range of process images.
    #[error(
        "segment at {addr:#x} of {bytes} bytes lies outside 0x10000000..0xc0000000; link with the script of this \
         toolchain"
    )]
    Segment {
        /// Virtual address of the segment.
        addr: u64,
        /// Its length in memory.
        bytes: u64,
    },
    /// The segments are each of an allowed size, but too many.
    #[error("the image takes {bytes} bytes of memory; a process has {limit} for it: make its static data smaller")]
    ImageSize {
        /// Bytes of all segments in memory.
        bytes: u64,
        /// The most there may be.
        limit: u64,
    },
    /// No such process.
    #[error("process {0} does not exist or has been destroyed")]
    NoProcess(u32),
    /// The process has crashed or finished and runs nothing any more.
    #[error("process {process} has stopped: {reason}")]
    ProcessStopped {
        /// Process id.
        process: u32,
        /// Why it stopped, in one line.
        reason: String,
    },
    /// No such thread.
    #[error("thread {0} does not exist or has been destroyed")]
    NoThread(u32),
    /// The execution unit asked for is not free.
    #[error("execution unit {eu} is {why}; units {first} to {last} may be asked for")]
    ExecutionUnit {
        /// The unit asked for.
        eu: u32,
        /// What is wrong with it.
        why: &'static str,
        /// The first that may be asked for.
        first: u32,
        /// The last.
        last: u32,
    },
    /// Every execution unit has its thread.
    #[error("all {units} execution units have a thread; destroy an event handler first")]
    NoFreeExecutionUnit {
        /// How many may be asked for.
        units: usize,
    },
    /// A partition of units that event handlers cannot have.
    #[error("execution units {first} to {last}: a partition is a range of units 0 to 254")]
    Partition {
        /// The first.
        first: u32,
        /// The last.
        last: u32,
    },
    /// The heap cannot hold the allocation.
    #[error(
        "the DPA heap has no {bytes} bytes left ({allocated} of {limit} bytes are in use; an emulated one may \
         have more: heap_mib of the machine file)"
    )]
    HeapFull {
        /// Bytes asked for.
        bytes: u64,
        /// Bytes in use.
        allocated: u64,
        /// Bytes in all.
        limit: u64,
    },
    /// The address was not returned by an allocation that is still alive.
    #[error("{addr:#x} is not the start of a live heap allocation")]
    NotAllocated {
        /// The address given.
        addr: u64,
    },
    /// The range is not inside the memory of the process.
    #[error("{bytes} bytes at device address {addr:#x} are not memory of process {process}")]
    BadDeviceRange {
        /// Process id.
        process: u32,
        /// Device address.
        addr: u64,
        /// Length.
        bytes: u64,
    },
    /// No such window, outbox or stream.
    #[error("{what} {id} does not exist in process {process}")]
    NoObject {
        /// Kind of object.
        what: &'static str,
        /// Its id.
        id: u32,
        /// Process id.
        process: u32,
    },
    /// An RPC did not come back: its thread crashed.
    #[error("the call did not return: {0}")]
    Crashed(String),
    /// The process has no cards of its own, and this is not to be had of those of another.
    #[error(
        "the cards belong to the process behind {0} ([attach] of the machine file), and this is not to be had from \
         here: memory, queues and keys of the host's functions are"
    )]
    Elsewhere(String),
    /// The process with the cards is not there, or does not let this one use them.
    #[error("{0}")]
    NotAttached(String),
    /// Timing parameters that cannot be.
    #[error("timing: {0}")]
    Timing(#[from] emu_timing::ParametersError),
    /// A timing model together with checks of the order of accesses.
    #[error(
        "timing model {model} has strong memory and no observer: for weak memory or races leave the timing model out"
    )]
    TimingWatched {
        /// Its name.
        model: String,
    },
    /// A timing model together with a debugger.
    #[error(
        "timing model {model} issues threads side by side, which a debugger cannot stop: leave the timing model out"
    )]
    TimingDebugged {
        /// Its name.
        model: String,
    },
    /// An RPC is already running (they are synchronous).
    #[error("process {0}, or the execution unit for calls, is already executing a call")]
    CallInProgress(u32),
}

impl MachineError {
    /// The sentence with those of its causes, which say why an image or a call was refused.
    #[must_use]
    pub fn with_causes(&self) -> String {
        let causes = std::iter::successors(std::error::Error::source(self), |cause| cause.source());
        std::iter::once(self.to_string()).chain(causes.map(ToString::to_string)).collect::<Vec<_>>().join(": ")
    }
}
