//! Counters of communicators.

use crate::communicator::{Group, flexcast_comm};
use crate::fault::call;
use crate::handle;
use crate::memory::give;
use crate::status::flexcast_status;

/// What a communicator takes of its endpoint's card, and what it has done.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct flexcast_stats {
    /// The own rank.
    pub rank: u32,
    /// Number of ranks.
    pub ranks: u32,
    /// DPA threads.
    pub threads: u32,
    /// Queue pairs: to receive, to send, over the own card, to other ranks.
    pub receive_queue_pairs: u32,
    /// See `receive_queue_pairs`.
    pub send_queue_pairs: u32,
    /// See `receive_queue_pairs`.
    pub loopback_queue_pairs: u32,
    /// See `receive_queue_pairs`.
    pub control_queue_pairs: u32,
    /// 0.
    pub reserved: u32,
    /// Staging slots in DPA memory, in bytes.
    pub staging_bytes: u64,
    /// Bitmaps, contexts and rings, which the DPA's last-level cache should hold, in bytes.
    pub hot_bytes: u64,
    /// Control messages sent: barrier signals, activations, requests for missing blocks, blocks offered, final
    /// messages, failures reported.
    pub barrier_messages: u64,
    /// See `barrier_messages`.
    pub activate_messages: u64,
    /// See `barrier_messages`.
    pub fetch_messages: u64,
    /// See `barrier_messages`.
    pub acknowledge_messages: u64,
    /// See `barrier_messages`.
    pub final_messages: u64,
    /// See `barrier_messages`.
    pub failed_messages: u64,
    /// Receive completions consumed on the DPA, as of the last report, like all that follow up to
    /// `receive_instructions`.
    pub receive_cqes: u64,
    /// Chunks accepted.
    pub accepted_chunks: u64,
    /// Chunks discarded: there already; of no place in the operation; of another or closed operation; of a wrong
    /// length.
    pub duplicate_chunks: u64,
    /// See `duplicate_chunks`.
    pub out_of_range_chunks: u64,
    /// See `duplicate_chunks`.
    pub wrong_id_chunks: u64,
    /// See `duplicate_chunks`.
    pub wrong_length_chunks: u64,
    /// Error completions.
    pub error_cqes: u64,
    /// Instructions that the receive workers have retired.
    pub receive_instructions: u64,
    /// Chunks sent.
    pub sent_chunks: u64,
    /// Doorbells that they took.
    pub send_doorbells: u64,
    /// Registrations of the endpoint's cache that were there when asked for, and that had to be made.
    pub registration_hits: u64,
    /// See `registration_hits`.
    pub registration_misses: u64,
    /// Registrations that are there, and their bytes.
    pub registrations: u64,
    /// See `registrations`.
    pub registered_bytes: u64,
}

/// Fills `stats`, of `size` = sizeof(flexcast_stats) bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_comm_stats(
    comm: *mut flexcast_comm,
    stats: *mut flexcast_stats,
    size: usize,
) -> flexcast_status {
    call(|| {
        let group = handle::get::<Group>(comm)?;
        let value = group.with(|communicator| {
            let (footprint, messages) = (communicator.footprint(), communicator.messages());
            let (receive, send) = (communicator.receive_statistics()?, communicator.send_statistics()?);
            let cache = group.endpoint().cache_statistics();
            Ok(flexcast_stats {
                rank: communicator.rank(),
                ranks: communicator.size(),
                threads: footprint.threads,
                receive_queue_pairs: footprint.receive_queue_pairs,
                send_queue_pairs: footprint.send_queue_pairs,
                loopback_queue_pairs: footprint.loopback_queue_pairs,
                control_queue_pairs: footprint.control_queue_pairs,
                reserved: 0,
                staging_bytes: footprint.staging_bytes,
                hot_bytes: footprint.hot_bytes(),
                barrier_messages: messages.barrier,
                activate_messages: messages.activate,
                fetch_messages: messages.fetch,
                acknowledge_messages: messages.acknowledge,
                final_messages: messages.last,
                failed_messages: messages.failed,
                receive_cqes: receive.cqes,
                accepted_chunks: receive.accepted,
                duplicate_chunks: receive.duplicates,
                out_of_range_chunks: receive.out_of_range,
                wrong_id_chunks: receive.wrong_id,
                wrong_length_chunks: receive.wrong_length,
                error_cqes: receive.error_cqes,
                receive_instructions: receive.instructions,
                sent_chunks: send.posted,
                send_doorbells: send.doorbells,
                registration_hits: cache.hits,
                registration_misses: cache.misses,
                registrations: cache.entries as u64,
                registered_bytes: cache.bytes,
            })
        })?;
        // SAFETY: the caller gives as many bytes as it says.
        unsafe { give(stats, size, value, "stats") }
    })
}
