//! Interface of whatever joins cards: frames and times in, deliveries and timers out.

use crate::link::{Delivery, Link, LinkError};
use crate::{Frame, PortCounters};

/// Whether a host should go on sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortRoom {
    /// The port holds more than it should: nothing new until it is free. What is sent all the same is taken, so that a
    /// host may finish what it has begun.
    Full,
    /// The port has room again. It still holds enough to be busy while the host begins.
    Free,
}

/// What a call led to. The caller carries it out and empties it.
#[derive(Clone, Debug)]
pub struct FabricEffects<F> {
    /// Frames that arrive at hosts, in no order of time.
    pub deliveries: Vec<Delivery<F>>,
    /// Times in picoseconds at which to call [`Fabric::handle_timer`].
    pub timers_ps: Vec<u64>,
    /// Ports that have become full or free for some priorities (a bit each), in order, as of now. By turns for each
    /// port and priority, full first.
    pub rooms: Vec<(usize, u8, PortRoom)>,
}

impl<F> Default for FabricEffects<F> {
    fn default() -> Self {
        Self { deliveries: Vec::new(), timers_ps: Vec::new(), rooms: Vec::new() }
    }
}

/// A frame that cannot be sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// No such port.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// It can never enter a switch.
    #[error("a frame of {bytes} bytes does not fit a switch buffer of {limit}: raise buffer_bytes")]
    FrameTooLong {
        /// Its bytes on the wire.
        bytes: u64,
        /// Bytes of a buffer.
        limit: u64,
    },
}

/// Something that joins hosts, each by one port with the host's number.
///
/// Time never goes back from call to call.
pub trait Fabric<F: Frame> {
    /// Takes a frame whose first bit is ready at `now_ps` at a host's port.
    ///
    /// Frames of one port leave in the order of the calls.
    ///
    /// # Errors
    /// No such port, or a frame that fits no buffer.
    fn transmit(&mut self, now_ps: u64, port: usize, frame: F, fx: &mut FabricEffects<F>) -> Result<(), FabricError>;

    /// A time that [`FabricEffects::timers_ps`] asked for has come. A call too many does no harm.
    fn handle_timer(&mut self, now_ps: u64, fx: &mut FabricEffects<F>);

    /// Hosts' ports, numbered from 0.
    fn ports(&self) -> usize;

    /// Counters of a host's port; all zero for a port that is not there.
    fn counters(&self, port: usize) -> PortCounters;
}

/// A link as a fabric: it knows at once when a frame arrives, and asks for no timer.
#[derive(Clone, Debug)]
pub struct Direct<L>(pub L);

impl<F: Frame, L: Link<F>> Fabric<F> for Direct<L> {
    fn transmit(&mut self, now_ps: u64, port: usize, frame: F, fx: &mut FabricEffects<F>) -> Result<(), FabricError> {
        Ok(self.0.transmit(now_ps, port, frame, &mut fx.deliveries)?)
    }

    fn handle_timer(&mut self, _now_ps: u64, _fx: &mut FabricEffects<F>) {}

    fn ports(&self) -> usize {
        self.0.ports()
    }

    fn counters(&self, port: usize) -> PortCounters {
        self.0.counters(port)
    }
}
