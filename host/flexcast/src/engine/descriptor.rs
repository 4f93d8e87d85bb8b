//! Operation descriptor for the protocol's state machine.

use flexcast_abi::PROGRESS_EVERY;
use flexcast_proto::cutoff::transfer_ps;
use flexcast_proto::{Algorithm, Alpha, OperationDescriptor, Summary};

use crate::op::config::{Config, ps};
use crate::plan::chains::{Order, order};
use crate::plan::{Kind, Plan};

fn summary(plan: &Plan, chunk_bytes: u32, chains: u32) -> Summary {
    match &plan.kind {
        Kind::Broadcast { root, bytes } => Summary::broadcast(*root, *bytes, chunk_bytes),
        Kind::Allgather { bytes } => Summary::allgather(*bytes, chunk_bytes, chains),
        Kind::Allgatherv { bytes } => {
            Summary::allgatherv(bytes.iter().chain(plan.displacements()).copied(), chunk_bytes, chains)
        }
    }
}

/// What a rank has called, of an operation of blocks that goes by messages between pairs of ranks.
pub(crate) fn direct_summary(plan: &Plan, algorithm: Algorithm) -> Summary {
    let Summary { kind, root, amount, .. } = summary(plan, 0, 1);
    Summary::between_pairs(kind, root, amount, 0, algorithm)
}

/// Time that the turns of an operation take beyond the data's own: activations, which queue behind the data of a turn
/// on their way unless they have a higher priority, for which the fabric must have queues of their own.
pub(crate) fn activations_ps(plan: &Plan, config: &Config) -> u64 {
    let Order { chains, steps, .. } = order(plan, config, 0);
    let turn_bytes = plan.receive_bytes() / u64::from(plan.roots().len().max(1)) * u64::from(chains);
    let queued_bytes = if config.control_overtakes() { 0 } else { turn_bytes };
    let turn_ps = ps(config.overheads.activation).saturating_add(transfer_ps(queued_bytes, config.link_gbit_per_s));
    turn_ps.saturating_mul(u64::from(steps.saturating_sub(1)))
}

/// What a thread takes for a chunk, to send or to receive it, in picoseconds, with room: the published kernel takes 598
/// cycles for a completion (Khalilov et al., Table I), which are 0.33 us at 1.8 GHz.
const CHUNK_PS: u64 = 500_000;

/// Time that the chunks of an operation take the threads, beyond the time that their bytes take on the link.
fn chunks_ps(plan: &Plan, config: &Config) -> u64 {
    let bytes = plan.link_bytes(config);
    // A block that is shorter than a chunk is one.
    let block_bytes = plan.receive_bytes().div_ceil(plan.roots().len().max(1).into());
    let chunks = bytes.div_ceil(block_bytes.min(config.chunk_bytes.into()).max(1));
    let threads = config.receive_threads.min(config.send_threads).max(1);
    let threads_ps = chunks.saturating_mul(CHUNK_PS) / u64::from(threads);
    threads_ps.saturating_sub(transfer_ps(bytes, config.link_gbit_per_s))
}

/// A receive thread that a budget or a poll of the host ends publishes nothing until it is activated again: for 25 us
/// at most, in the emulated card's time. A stream stalls after twice this.
const REACTIVATION_PS: u64 = 15_000_000;

/// Longest that the receive threads of a flowing stream publish no progress: while a chunk comes over a link that the
/// roots of all chains share, while a thread takes the completions that it publishes together, or between two
/// activations of it.
pub(crate) fn silence_ps(config: &Config, chains: u32) -> u64 {
    let chunk_bytes = u64::from(config.chunk_bytes).saturating_mul(chains.max(1).into());
    let completions = config.receive_batch.min(PROGRESS_EVERY);
    let thread_ps = u64::from(completions).saturating_mul(CHUNK_PS).max(REACTIVATION_PS);
    transfer_ps(chunk_bytes, config.link_gbit_per_s).max(thread_ps)
}

pub(crate) fn descriptor(
    plan: &Plan,
    config: &Config,
    alpha: &Alpha,
    operation: u32,
    (chains, algorithm): (u32, Algorithm),
) -> OperationDescriptor {
    let cutoff_ps = alpha
        .cutoff_ps(plan.link_bytes(config), config.link_gbit_per_s)
        .saturating_add(activations_ps(plan, config))
        .saturating_add(chunks_ps(plan, config));
    // What all but the root have lost is handed on from neighbour to neighbour all around the ring.
    let hops_ps = ps(config.overheads.activation).saturating_mul(2 * u64::from(plan.ranks()));
    OperationDescriptor {
        operation,
        roots: plan.roots(),
        pieces: plan.pieces().each(),
        summary: summary(plan, config.chunk_bytes, chains).by(algorithm),
        barrier_timeout_ps: ps(config.barrier_timeout),
        cutoff_ps,
        bound_ps: cutoff_ps.saturating_mul(3).saturating_add(ps(config.recovery_timeout)).saturating_add(hops_ps),
    }
}
