//! Collectives on emulated cards with losses, slow ranks, failed ranks and wrong peers.

mod failing_ranks;
mod recovery;
mod slow_roots;
mod uneven_polls;
mod wrong_peers;
