//! Cost model of the algorithms: how long an operation takes by each, as a function of its blocks and of what cards and
//! links report.
//!
//! The times are of one switch without congestion, hosts that poll, and calls at the same instant: what all algorithms
//! have in common does not decide between them. All arithmetic saturates, so that no rate or length that a rank may
//! report makes it panic.

use flexcast_proto::p2p::Broadcast;

use super::{Algorithm, Conditions, Shape, segment_bytes};

/// From the post of an RDMA message that the card reads from host memory to the poll that finds it at the peer.
/// Emulated, model M.2: an eager Allgather of 1 KiB between two ranks, which is one such message, takes 4.75 us.
const MESSAGE_PS: u64 = 4_700_000;
/// The same of a message whose bytes go to the card with its entry. Emulated, model M.2: an eager Allgather of 64 bytes
/// between two ranks takes 1.71 us, one of two such rounds 3.33 us.
const INLINE_PS: u64 = 1_665_000;
/// From the arrival of the last message to the acknowledgement of the own last one. Emulated, model M.2: direct writes
/// of 64 bytes between two ranks take an announcement, which is short, a message and this, 7.2 us.
const ACKNOWLEDGEMENT_PS: u64 = 800_000;
/// What an operation over connections takes in addition to its bytes.
const DIRECT_PS: u64 = INLINE_PS + MESSAGE_PS + ACKNOWLEDGEMENT_PS;
/// Between two posts of a host to different connections, on its card. Emulated, model M.2: direct writes of 64 bytes
/// take 0.78 us longer among 32 ranks than among 2.
const POST_PS: u64 = 26_000;
/// Bytes of a message that go with its entry, and those of them that the message itself takes: a barrier signal of the
/// library's own.
const INLINE_BYTES: u64 = 236;
const SIGNAL_BYTES: u64 = 48;
/// What a packet takes on the wire in addition to its payload: preamble, gap and check sequence of Ethernet (24), and
/// the headers of Ethernet, IPv4, UDP and RDMA Write (14, 20, 8, 28) with the check sequence of InfiniBand (4).
const PACKET_BYTES: u64 = 98;
/// What multicast takes in addition to its data and the rounds of its barrier: arming of the receive contexts, start of
/// the send threads, completion flag, final handshake. Emulated, model M.2: 45 to 48 us for 16 KiB between 2 to 32
/// ranks.
const MULTICAST_PS: u64 = 45_000_000;
/// How far staged chunks lag behind the wire when the last one has come, for each byte received, and at most. Emulated,
/// model M.2, four threads: 8 ranks take 3, 5, 11 and 5 us longer than wire and start for 64 KiB, 256 KiB, 1 MiB and 4
/// MiB.
const LAG_PS_PER_BYTE: u64 = 4;
const LAG_PS: u64 = 10_000_000;
/// The most where one rank sends: 2 to 16 ranks take 1 to 4 us longer than wire and start for 64 KiB to 4 MiB.
const ONE_ROOT_LAG_PS: u64 = 4_000_000;
/// A DPA thread's time for a chunk, staged or not. Khalilov et al. (arXiv 2408.13356), Table I: 1084 and 598 cycles at
/// 1.8 GHz.
const STAGED_CHUNK_PS: u64 = 602_000;
const CHUNK_PS: u64 = 332_000;
/// Segments of each block on the ring: as the baseline has by default.
pub(super) const RING_SEGMENTS: u32 = 4;

/// Time of so many bytes on a link, in messages of one block each.
fn wire_ps(on: &Conditions, bytes: u64) -> u64 {
    let packets = bytes.div_ceil(u64::from(on.mtu_bytes.max(1)));
    let bits = packets.saturating_mul(PACKET_BYTES).saturating_add(bytes).saturating_mul(8);
    // One Gbit/s is a bit in 1000 ps.
    u64::try_from(u128::from(bits) * 1000 / u128::from(on.link_gbit_per_s.max(1))).unwrap_or(u64::MAX)
}

const fn rounds(ranks: u32) -> u32 {
    u32::BITS - ranks.saturating_sub(1).leading_zeros()
}

/// Blocks that a message of a round carries: all that its sender holds, or what its receiver still lacks.
fn carried(on: &Conditions, round: u32) -> u64 {
    let held = 1u64 << round;
    held.min(u64::from(on.ranks).saturating_sub(held))
}

/// How long an operation takes by an algorithm, from its call to its end, in picoseconds.
pub(super) fn predict_ps(algorithm: Algorithm, on: &Conditions, shape: &Shape) -> u64 {
    let others = u64::from(on.ranks.saturating_sub(1));
    if others == 0 {
        return 0;
    }
    // Where blocks differ, the largest keeps its sender's link busy for longest.
    let block = shape.largest_bytes;
    match algorithm {
        Algorithm::Multicast => multicast_ps(on, shape),
        Algorithm::Eager => (0..rounds(on.ranks)).fold(0, |sum: u64, round| {
            let bytes = carried(on, round).saturating_mul(block).min(shape.total_bytes);
            let is_inline = SIGNAL_BYTES.saturating_add(bytes) <= INLINE_BYTES;
            // Longer ones are copied out of the slots, in addition to their time on the wire.
            let message =
                if is_inline { INLINE_PS } else { wire_ps(on, bytes).saturating_mul(2).saturating_add(MESSAGE_PS) };
            sum.saturating_add(message)
        }),
        Algorithm::Linear => wire_ps(on, block).max(POST_PS).saturating_mul(others).saturating_add(DIRECT_PS),
        Algorithm::Bruck | Algorithm::RecursiveDoubling => {
            (0..rounds(on.ranks)).fold(INLINE_PS + ACKNOWLEDGEMENT_PS, |sum, round| {
                let wire = wire_ps(on, carried(on, round).saturating_mul(block));
                sum.saturating_add(wire).saturating_add(MESSAGE_PS)
            })
        }
        Algorithm::Binomial => tree_ps(on, Broadcast::BINOMIAL, block),
        Algorithm::Chain => tree_ps(on, Broadcast::Chain, block),
        // Neither carries blocks to all.
        Algorithm::Dissemination | Algorithm::Pairwise | Algorithm::Sparse => u64::MAX,
        Algorithm::Ring => {
            let segment = wire_ps(on, block.div_ceil(RING_SEGMENTS.into()));
            let hops = segment.saturating_add(MESSAGE_PS).saturating_mul(others);
            let latency = segment.saturating_mul(u64::from(RING_SEGMENTS) - 1).saturating_add(hops);
            let bandwidth = wire_ps(on, block).saturating_mul(others).saturating_add(MESSAGE_PS);
            latency.max(bandwidth).saturating_add(INLINE_PS + ACKNOWLEDGEMENT_PS)
        }
    }
}

/// The last segment leaves the root behind all others, to each of its children, and is passed on.
fn tree_ps(on: &Conditions, tree: Broadcast, bytes: u64) -> u64 {
    let levels = rounds(on.ranks);
    let (children, hops) = match tree {
        Broadcast::Chain => (1, on.ranks.saturating_sub(1)),
        _ => (levels, levels),
    };
    let segment = wire_ps(on, bytes.min(segment_bytes(tree, bytes)));
    let root = wire_ps(on, bytes).max(POST_PS).saturating_mul(children.into());
    let passed_on = segment.saturating_add(MESSAGE_PS).saturating_mul(u64::from(hops.saturating_sub(1)));
    root.saturating_add(passed_on).saturating_add(DIRECT_PS)
}

fn multicast_ps(on: &Conditions, shape: &Shape) -> u64 {
    let received = if shape.gathers {
        shape.total_bytes.min(shape.largest_bytes.saturating_mul(u64::from(on.ranks) - 1))
    } else {
        shape.total_bytes
    };
    let chunk_bytes = u64::from(on.chunk_bytes.max(1));
    let blocks = if shape.gathers { u64::from(on.ranks) - 1 } else { 1 };
    let chunks = received.div_ceil(chunk_bytes).max(if received == 0 { 0 } else { blocks });
    let chunk_ps = if on.staged { STAGED_CHUNK_PS } else { CHUNK_PS };
    let workers = chunks.saturating_mul(chunk_ps) / u64::from(on.receive_threads.max(1));
    let most = if shape.gathers { LAG_PS } else { ONE_ROOT_LAG_PS };
    let lag = if on.staged { received.saturating_mul(LAG_PS_PER_BYTE).min(most) } else { 0 };
    let barrier = u64::from(rounds(on.ranks)) * INLINE_PS;
    wire_ps(on, received).max(workers).saturating_add(lag).saturating_add(MULTICAST_PS + barrier)
}
