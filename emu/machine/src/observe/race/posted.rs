//! Entries that belong to the card, and the memory that they name.

use emu_nic::{Nic, Transport, wqe_opcode as opcode};

use super::Range;

/// Bytes of a basic block of the send ring.
pub(crate) const BLOCK: u64 = 64;
/// Bytes of a segment; data segments are 4-byte count, 4-byte key, 8-byte address, big-endian.
const SEGMENT: usize = 16;
/// Bytes of the address vector of a datagram.
const ADDRESS_VECTOR: usize = 48;
/// The key that ends a list of receive segments.
const INVALID_KEY: u32 = 0x100;
/// Flags of a send entry; in bits 3:2 when it completes.
const FLAGS_AT: usize = 11;
/// A completion only if it fails, or is flushed as the first.
const ON_FIRST_ERROR: u8 = 1;
/// Set in the count of an inline segment.
const INLINE: u32 = 1 << 31;

/// A posted entry.
#[derive(Clone, Debug, Default)]
pub(crate) struct Posted {
    /// Index that its completion will name.
    pub(crate) index: u16,
    /// The entry itself; in two parts where it wraps.
    pub(crate) entry: Vec<Range>,
    /// Memory that the card reads.
    pub(crate) reads: Vec<Range>,
    /// Memory that the card writes.
    pub(crate) writes: Vec<Range>,
    /// A send that completes without a word behind one that has failed.
    pub(crate) is_silent: bool,
    pub(crate) at_ps: u64,
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]))
}

fn data_segment(card: usize, nic: &Nic, segment: &[u8]) -> Option<Range> {
    let (len, key) = (be32(segment, 0), be32(segment, 4));
    if len == 0 || len & INLINE != 0 || key == INVALID_KEY {
        return None;
    }
    let addr = u64::from(be32(segment, 8)) << 32 | u64::from(be32(segment, 12));
    let space = nic.query_mkey(key)?.space;
    Some(Range { card, space, addr, len: u64::from(len) })
}

/// Blocks that a send entry takes, from its first block.
pub(crate) fn blocks(first: &[u8]) -> u16 {
    (be32(first, 4) & 0x3F).div_ceil(4).max(1) as u16
}

/// Parses a send entry, of which `bytes` are all blocks.
pub(crate) fn parse_send(card: usize, nic: &Nic, transport: Transport, bytes: &[u8], posted: &mut Posted) {
    let head = be32(bytes, 0);
    posted.index = (head >> 8) as u16;
    posted.is_silent = bytes.get(FLAGS_AT).is_some_and(|flags| flags >> 2 & 3 == ON_FIRST_ERROR);
    let size = ((be32(bytes, 4) & 0x3F) as usize * SEGMENT).min(bytes.len());
    let (data, card_writes) = match head as u8 {
        opcode::SEND | opcode::SEND_IMM if transport == Transport::Ud => (SEGMENT + ADDRESS_VECTOR, false),
        opcode::SEND | opcode::SEND_IMM => (SEGMENT, false),
        opcode::RDMA_WRITE | opcode::RDMA_WRITE_IMM => (2 * SEGMENT, false),
        opcode::RDMA_READ => (2 * SEGMENT, true),
        // Atomics, memory-key operations and what is unknown: the entry alone is watched.
        _ => return,
    };
    let mut at = data;
    while at + SEGMENT <= size {
        let segment = &bytes[at..at + SEGMENT];
        let inline = be32(segment, 0) & INLINE != 0;
        if let Some(range) = data_segment(card, nic, segment) {
            if card_writes { posted.writes.push(range) } else { posted.reads.push(range) }
        }
        let inline_bytes = (be32(segment, 0) & !INLINE) as usize + 4;
        at += if inline { inline_bytes.next_multiple_of(SEGMENT) } else { SEGMENT };
    }
}

/// Parses a receive entry.
pub(crate) fn parse_receive(card: usize, nic: &Nic, bytes: &[u8], posted: &mut Posted) {
    for segment in bytes.chunks_exact(SEGMENT) {
        if be32(segment, 4) == INVALID_KEY {
            break;
        }
        posted.writes.extend(data_segment(card, nic, segment));
    }
}
