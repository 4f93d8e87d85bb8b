//! Cost models: what an operation should cost, as closed forms or by counting on paper. Their results are *computed*;
//! nothing here runs or measures anything.
//!
//! Sources: Khalilov et al., *Network-Offloaded Bandwidth-Optimal Broadcast and Allgather for Distributed AI*
//! (multicast, bitmaps, DPA rates, concurrent collectives); Gu et al., *OmNICCL* (sparse AllReduce); Sarkauskas et al.,
//! *Large-Message Nonblocking MPI_Iallgather and MPI_Ibcast Offload via BlueField-2 DPU* (overlap). Where a
//! publication's number does not follow from its own premises, the premises win, and the function says so.
//!
//! Rates are in Gbit/s (10^9 bit per second), times in picoseconds unless a name says otherwise.

pub mod bitmap;
pub mod cache;
pub mod concurrent;
pub mod fabric;
pub mod overlap;
pub mod rate;
pub mod sparse;
pub mod time;
pub mod traffic;

#[cfg(test)]
#[track_caller]
fn near(computed: f64, published: f64, tolerance: f64) {
    assert!((computed - published).abs() <= tolerance, "{computed} is not {published} to within {tolerance}");
}
