//! Send and receive WQEs, parsed from the bytes of their rings (mlx5 layouts of rdma-core; big-endian).

mod segment;
pub(crate) mod umr;

pub(crate) use segment::WqeFault;

use crate::address::{Address, Gid};
use crate::cqe::vendor;
use crate::ethernet::Offloads;
use crate::packet::Network;
use crate::qp::hop_limit;
use crate::transport::Transport;
use segment::{SIZE, be16, be32, be64, take};
use umr::Umr;

/// Bytes of a basic block: send rings and producer indices count these.
pub(crate) const BLOCK_BYTES: usize = 64;
/// The size field has six bits.
pub(crate) const MAX_WQE_BYTES: usize = 64 * SEGMENT_BYTES;
/// Bytes of a segment: the size field counts these.
pub(crate) const SEGMENT_BYTES: usize = 16;
/// Operand of an atomic; it must lie on a boundary of as many bytes.
pub(crate) const ATOMIC_BYTES: u32 = 8;
/// A message has at most 1 GiB, whatever its transport.
pub(crate) const MAX_MESSAGE_BYTES: u64 = 1 << 30;
/// Ends a list of receive segments that is shorter than the stride.
const END_OF_LIST_KEY: u32 = 0x100;
/// In the Ethernet segment: the next two bytes are a VLAN tag to insert.
const INSERT_VLAN: u16 = 1 << 15;
/// A data segment's length with this bit is that of inline data.
const INLINE: u32 = 1 << 31;

/// Send opcodes that the card executes.
pub mod opcode {
    /// Nothing.
    pub const NOP: u8 = 0x00;
    /// Send that invalidates a memory key of the receiver.
    pub const SEND_INVAL: u8 = 0x01;
    /// RDMA Write.
    pub const RDMA_WRITE: u8 = 0x08;
    /// RDMA Write with immediate.
    pub const RDMA_WRITE_IMM: u8 = 0x09;
    /// Send.
    pub const SEND: u8 = 0x0A;
    /// Send with immediate.
    pub const SEND_IMM: u8 = 0x0B;
    /// RDMA Read.
    pub const RDMA_READ: u8 = 0x10;
    /// Compare and swap, 8 bytes.
    pub const ATOMIC_CS: u8 = 0x11;
    /// Fetch and add, 8 bytes.
    pub const ATOMIC_FA: u8 = 0x12;
    /// Invalidation of a memory key of one's own.
    pub const LOCAL_INVAL: u8 = 0x1B;
    /// Binding of a UMR key.
    pub const UMR: u8 = 0x25;
}

/// The control segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Control {
    pub(crate) opcode: u8,
    /// Operation modifier, which has a meaning for opcodes alone that the card does not execute.
    pub(crate) modifier: u8,
    /// What the requester CQE gives back as `wqe_counter`.
    pub(crate) index: u16,
    pub(crate) qpn: u32,
    /// Segments, this one included.
    pub(crate) segments: usize,
    pub(crate) completion: Completion,
    pub(crate) solicited: bool,
    pub(crate) fence: Fence,
    /// Immediate, or the key that the WQE is about.
    pub(crate) immediate: [u8; 4],
}

/// When a WQE leads to a CQE: the CE field of the control segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Completion {
    /// Only if it fails or is flushed.
    #[default]
    OnError,
    /// Only if it fails, or is flushed and no WQE of its queue has reported an error before.
    OnFirstError,
    Always,
    /// Always, and with an event even if the completion queue is not armed.
    AlwaysWithEvent,
}

/// What a WQE waits for: the fence mode of the control segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Fence {
    #[default]
    None,
    /// Initiator small fence, fence, or both: earlier reads and atomics have their answers. What the card executes by
    /// itself (UMR, invalidation) is done in order anyway.
    Answers,
    /// Strong ordering: all earlier WQEs are complete.
    All,
}

impl Control {
    /// Parses the first 16 bytes of `bytes`.
    pub(crate) fn parse(bytes: &[u8; SEGMENT_BYTES]) -> Self {
        let flags = bytes[11];
        Self {
            opcode: bytes[3],
            modifier: bytes[0],
            index: be16(bytes, 1),
            qpn: be32(bytes, 4) >> 8,
            segments: usize::from(bytes[7] & 0x3F),
            completion: match flags >> 2 & 3 {
                0 => Completion::OnError,
                1 => Completion::OnFirstError,
                2 => Completion::Always,
                _ => Completion::AlwaysWithEvent,
            },
            solicited: flags & 0x02 != 0,
            fence: match flags >> 5 {
                0 => Fence::None,
                3 => Fence::All,
                _ => Fence::Answers,
            },
            immediate: [bytes[12], bytes[13], bytes[14], bytes[15]],
        }
    }

    pub(crate) fn is_atomic(&self) -> bool {
        matches!(self.opcode, opcode::ATOMIC_CS | opcode::ATOMIC_FA)
    }

    /// Whether data comes back.
    pub(crate) fn is_fetch(&self) -> bool {
        self.opcode == opcode::RDMA_READ || self.is_atomic()
    }

    /// Whether the card executes it by itself, without a packet.
    pub(crate) fn is_local(&self) -> bool {
        matches!(self.opcode, opcode::NOP | opcode::LOCAL_INVAL | opcode::UMR)
    }

    /// The memory key that an invalidation or a UMR is about.
    pub(crate) fn key(&self) -> u32 {
        u32::from_be_bytes(self.immediate)
    }

    /// Basic blocks of the WQE; at least one, so that a walk over a broken ring ends.
    pub(crate) fn blocks(&self) -> u16 {
        (self.segments * SEGMENT_BYTES).div_ceil(BLOCK_BYTES).max(1) as u16
    }
}

/// Local memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DataSegment {
    pub(crate) len: u32,
    pub(crate) lkey: u32,
    pub(crate) addr: u64,
}

impl DataSegment {
    fn parse(bytes: &[u8]) -> Self {
        Self { len: be32(bytes, 0), lkey: be32(bytes, 4), addr: be64(bytes, 8) }
    }
}

/// One stretch of what a WQE sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Memory(DataSegment),
    /// A stretch of `Wqe::inline`.
    Inline {
        start: usize,
        len: usize,
    },
}

impl Piece {
    /// Where it lies, if it is not inline.
    pub(crate) fn memory(&self) -> Option<DataSegment> {
        match self {
            Self::Memory(segment) => Some(*segment),
            Self::Inline { .. } => None,
        }
    }

    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Memory(segment) => u64::from(segment.len),
            Self::Inline { len, .. } => *len as u64,
        }
    }
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AddressVector {
    pub(crate) qkey: u32,
    pub(crate) qpn: u32,
    pub(crate) force_loopback: bool,
    pub(crate) source_gid_index: usize,
    pub(crate) destination: Address,
    pub(crate) network: Network,
    /// Code of the static rate; 0 for the port's.
    pub(crate) static_rate: u8,
}

/// A parsed send WQE; kept and filled again, so that its vectors are not allocated each time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wqe {
    pub(crate) control: Control,
    pub(crate) remote_address: u64,
    pub(crate) rkey: u32,
    pub(crate) address: Option<AddressVector>,
    pub(crate) pieces: Vec<Piece>,
    pub(crate) inline: Vec<u8>,
    /// Bytes of the message.
    pub(crate) len: u32,
    pub(crate) swap_or_add: u64,
    pub(crate) compare: u64,
    pub(crate) umr: Option<Box<Umr>>,
    /// What the card adds to an Ethernet frame.
    pub(crate) offloads: Offloads,
}

impl Wqe {
    /// Parses the WQE that `bytes` starts with. `bytes` holds at least the segments of the control segment's size field
    /// unless the WQE is malformed.
    pub(crate) fn parse(&mut self, bytes: &[u8], transport: Transport) -> Result<(), WqeFault> {
        self.remote_address = 0;
        self.rkey = 0;
        self.address = None;
        self.pieces.clear();
        self.inline.clear();
        self.len = 0;
        self.umr = None;
        self.offloads = Offloads::default();

        let head: &[u8; SEGMENT_BYTES] = bytes.first_chunk().ok_or(SIZE)?;
        self.control = Control::parse(head);
        let size = self.control.segments * SEGMENT_BYTES;
        if size == 0 {
            return Err(SIZE);
        }
        let mut rest = bytes.get(SEGMENT_BYTES..size).ok_or(SIZE)?;
        let allowed = match self.control.opcode {
            opcode::NOP => return Ok(()),
            opcode::SEND => true,
            opcode::SEND_IMM => transport != Transport::Ethernet,
            opcode::RDMA_WRITE | opcode::RDMA_WRITE_IMM => matches!(transport, Transport::Rc | Transport::Uc),
            opcode::RDMA_READ | opcode::ATOMIC_CS | opcode::ATOMIC_FA | opcode::SEND_INVAL => {
                transport == Transport::Rc
            }
            opcode::LOCAL_INVAL | opcode::UMR => matches!(transport, Transport::Rc | Transport::Uc),
            _ => false,
        };
        // The operation modifier has no meaning for any of these.
        if !allowed || bytes[0] != 0 {
            return Err(WqeFault::operation(vendor::OPCODE));
        }
        match self.control.opcode {
            opcode::LOCAL_INVAL => return Ok(()),
            opcode::UMR => {
                self.umr = Some(Box::new(Umr::parse(&mut rest)?));
                return Ok(());
            }
            opcode::ATOMIC_CS | opcode::ATOMIC_FA => {
                let segments = take(&mut rest, 2 * SEGMENT_BYTES)?;
                self.remote_address = be64(segments, 0);
                self.rkey = be32(segments, 8);
                self.swap_or_add = be64(segments, 16);
                self.compare = be64(segments, 24);
            }
            opcode::RDMA_WRITE | opcode::RDMA_WRITE_IMM | opcode::RDMA_READ => {
                let segment = take(&mut rest, SEGMENT_BYTES)?;
                self.remote_address = be64(segment, 0);
                self.rkey = be32(segment, 8);
            }
            _ if transport == Transport::Ud => self.address = Some(address_vector(&mut rest)?),
            _ if transport == Transport::Ethernet => self.ethernet(&mut rest)?,
            _ => {}
        }
        self.data(rest)
    }

    /// The Ethernet segment: which checksums to compute, and either a VLAN tag to insert or the first bytes of the
    /// frame (`mlx5_wqe_eth_seg` of rdma-core).
    fn ethernet(&mut self, rest: &mut &[u8]) -> Result<(), WqeFault> {
        /// Bytes of the frame that the segment itself has room for.
        const ROOM: usize = 2;
        let head = take(rest, SEGMENT_BYTES)?;
        let flags = head[4];
        self.offloads = Offloads { layer_3: flags & 0x40 != 0, layer_4: flags & 0x80 != 0, vlan: None };
        let word = be16(head, 12);
        if word & INSERT_VLAN != 0 {
            self.offloads.vlan = Some(be16(head, 14));
            return Ok(());
        }
        let len = usize::from(word & 0x3FF);
        if len > 0 {
            let more = len.saturating_sub(ROOM);
            let behind = take(rest, more.next_multiple_of(SEGMENT_BYTES))?;
            self.inline.extend_from_slice(&head[14..14 + len.min(ROOM)]);
            self.inline.extend_from_slice(&behind[..more]);
            self.pieces.push(Piece::Inline { start: 0, len });
        }
        Ok(())
    }

    fn data(&mut self, mut rest: &[u8]) -> Result<(), WqeFault> {
        let mut total = self.pieces.iter().map(Piece::len).sum::<u64>();
        while !rest.is_empty() {
            let word = be32(rest, 0);
            let piece = if word & INLINE != 0 {
                if self.control.is_fetch() {
                    // There is nowhere to put what comes back.
                    return Err(SIZE);
                }
                let len = (word & !INLINE) as usize;
                let padded = len.checked_add(4).ok_or(SIZE)?.next_multiple_of(SEGMENT_BYTES);
                let segment = take(&mut rest, padded)?;
                let start = self.inline.len();
                self.inline.extend_from_slice(&segment[4..4 + len]);
                Piece::Inline { start, len }
            } else {
                Piece::Memory(DataSegment::parse(take(&mut rest, SEGMENT_BYTES)?))
            };
            total += piece.len();
            if piece.len() > 0 {
                self.pieces.push(piece);
            }
        }
        if total > MAX_MESSAGE_BYTES {
            return Err(WqeFault::length());
        }
        self.len = total as u32;
        if self.control.is_atomic() {
            if total < u64::from(ATOMIC_BYTES) {
                return Err(WqeFault::length());
            }
            self.len = ATOMIC_BYTES;
        }
        Ok(())
    }
}

/// The extended address vector. The compact form has neither GID nor Ethernet address and so goes nowhere on RoCE.
fn address_vector(rest: &mut &[u8]) -> Result<AddressVector, WqeFault> {
    let head = take(rest, SEGMENT_BYTES)?;
    let destination_word = be32(head, 8);
    if destination_word & (1 << 31) == 0 {
        return Err(WqeFault::operation(vendor::ADDRESS));
    }
    let tail = take(rest, 2 * SEGMENT_BYTES)?;
    let mut destination = Address::default();
    destination.mac.copy_from_slice(&tail[4..10]);
    let mut gid = [0; 16];
    gid.copy_from_slice(&tail[16..32]);
    destination.gid = Gid(gid);
    Ok(AddressVector {
        qkey: be32(head, 0),
        qpn: destination_word & 0xFF_FFFF,
        force_loopback: head[13] & 0x80 != 0,
        source_gid_index: (be32(tail, 12) >> 20 & 0x3FF) as usize,
        destination,
        static_rate: head[12] >> 4,
        network: Network {
            traffic_class: tail[10],
            hop_limit: hop_limit(tail[11]),
            flow_label: be32(tail, 12) & 0xF_FFFF,
            // Where InfiniBand has the destination LID; 0 leaves the choice to the card.
            udp_source_port: match be16(head, 14) {
                0 => Network::default().udp_source_port,
                port => port,
            },
            ..Network::default()
        },
    })
}

/// Parses a receive WQE: `bytes` is one stride. Gives the bytes that it can hold.
pub(crate) fn parse_receive(bytes: &[u8], segments: &mut Vec<DataSegment>) -> u64 {
    segments.clear();
    let mut capacity = 0;
    for bytes in bytes.chunks_exact(SEGMENT_BYTES) {
        let segment = DataSegment::parse(bytes);
        if segment.lkey == END_OF_LIST_KEY && segment.len == 0 {
            break;
        }
        if segment.len > 0 {
            capacity += u64::from(segment.len);
            segments.push(segment);
        }
    }
    capacity
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn random_bytes_never_panic_and_never_promise_more_than_they_hold(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..1024),
            opcode in prop_oneof![Just(0x00), Just(0x08), Just(0x09), Just(0x0A), Just(0x0B), Just(0x10), Just(0x11), Just(0x12), Just(0x25), any::<u8>()],
            transport in prop_oneof![
                Just(Transport::Rc), Just(Transport::Uc), Just(Transport::Ud), Just(Transport::Ethernet)
            ],
            small_inline in any::<bool>(),
        ) {
            if bytes.len() >= 8 {
                bytes[0] = 0;
                bytes[3] = opcode;
            }
            if small_inline {
                for segment in bytes.chunks_exact_mut(16).skip(1) {
                    segment[1..3].fill(0);
                }
            }
            let mut wqe = Wqe::default();
            if wqe.parse(&bytes, transport).is_ok() {
                let size = wqe.control.segments * SEGMENT_BYTES;
                prop_assert!(size <= bytes.len());
                prop_assert!(wqe.inline.len() <= size);
                let listed = wqe.pieces.iter().map(Piece::len).sum::<u64>();
                prop_assert!(listed == u64::from(wqe.len) || (wqe.control.is_atomic() && listed >= 8));
                prop_assert!(u64::from(wqe.len) <= MAX_MESSAGE_BYTES);
                for piece in &wqe.pieces {
                    if let Piece::Inline { start, len } = piece {
                        prop_assert!(start + len <= wqe.inline.len());
                    }
                }
            }
        }

        #[test]
        fn receive_lists_hold_what_their_segments_hold(bytes in proptest::collection::vec(any::<u8>(), 0..1024)) {
            let mut segments = Vec::new();
            let capacity = parse_receive(&bytes, &mut segments);
            prop_assert_eq!(segments.iter().map(|segment| u64::from(segment.len)).sum::<u64>(), capacity);
        }
    }

    #[test]
    fn a_control_segment_is_read_field_by_field() {
        let bytes = [0, 0x12, 0x34, 0x0B, 0xAB, 0xCD, 0xEF, 0x05, 0, 0, 0, 0x8A, 1, 2, 3, 4];
        let control = Control::parse(&bytes);
        assert_eq!(
            control,
            Control {
                opcode: 0x0B,
                modifier: 0,
                index: 0x1234,
                qpn: 0xAB_CDEF,
                segments: 5,
                completion: Completion::Always,
                solicited: true,
                fence: Fence::Answers,
                immediate: [1, 2, 3, 4],
            }
        );
        assert_eq!(control.blocks(), 2);
    }
}
