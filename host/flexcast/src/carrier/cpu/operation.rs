//! Stream of an operation: what a carrier on processors keeps of its multicast.

use flexcast_proto::{Algorithm, ProgressWatch, StallWindow};

use crate::engine::{Carrier, Operation};

/// The own block on its way to the group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sending {
    pub(crate) first_psn: u32,
    pub(crate) chunks: u32,
    /// Chunks that the system has.
    pub(crate) sent: u32,
    /// When it last took any.
    pub(crate) moved_ps: u64,
    /// When the system would take no more.
    pub(crate) full_ps: Option<u64>,
}

/// Multicast of the operation under way. `R`: what has been asked of a peer, where the carrier keeps count of that
/// itself.
#[derive(Debug)]
pub(crate) struct Stream<R> {
    /// Chunks of each root that may be under way.
    pub(crate) window_chunks: u32,
    /// It is this rank's turn.
    pub(crate) sending: Option<Sending>,
    /// How data comes, from the barrier on.
    pub(crate) watch: Option<ProgressWatch>,
    /// Multicast has stalled, and all that is missing has been asked for.
    pub(crate) given_up: bool,
    /// Pieces have been given up.
    pub(crate) repairs: bool,
    pub(crate) reads: R,
}

impl<R: Default> Default for Stream<R> {
    fn default() -> Self {
        Self {
            window_chunks: u32::MAX,
            sending: None,
            watch: None,
            given_up: false,
            repairs: false,
            reads: R::default(),
        }
    }
}

/// When the multicast of an operation counts as stalled; none before the barrier, and once that has been found.
pub(crate) fn stalled_ps<C, R>(operation: &Operation<C>, window: StallWindow) -> Option<u64>
where
    C: Carrier<Stream = Stream<R>>,
{
    let Stream { watch, given_up, .. } = &operation.stream;
    let watch = watch.filter(|_| !given_up && operation.algorithm == Algorithm::Multicast)?;
    Some(watch.stalled_ps(window, 0))
}
