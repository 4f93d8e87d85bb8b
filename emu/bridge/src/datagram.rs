//! What a datagram of the bridge says: a header of 24 bytes, then a frame or nothing.
//!
//! | Bytes | Content, big-endian |
//! |---|---|
//! | 0..4 | `FXB1` |
//! | 4..8 | epoch of the sender: another one after each start |
//! | 8..12 | frames sent in this epoch, one in this datagram included |
//! | 12..16 | epoch of the receiver as far as known, or 0 |
//! | 16..20 | number of the last frame received in that epoch |
//! | 20..22 | frames that the sender of this datagram can take before it has told of them |
//! | 22..24 | bytes of the frame that follows, or 0 |

const MAGIC: [u8; 4] = *b"FXB1";
pub(crate) const HEADER_BYTES: usize = 24;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) epoch: u32,
    pub(crate) number: u32,
    pub(crate) peer_epoch: u32,
    pub(crate) received: u32,
    pub(crate) room: u16,
    pub(crate) frame_bytes: u16,
}

impl Header {
    pub(crate) fn bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        for (at, word) in [self.epoch, self.number, self.peer_epoch, self.received].into_iter().enumerate() {
            bytes[4 + 4 * at..8 + 4 * at].copy_from_slice(&word.to_be_bytes());
        }
        bytes[20..22].copy_from_slice(&self.room.to_be_bytes());
        bytes[22..].copy_from_slice(&self.frame_bytes.to_be_bytes());
        bytes
    }

    /// Header and frame of a datagram; `None` if it is none of the bridge's.
    pub(crate) fn split(datagram: &[u8]) -> Option<(Self, &[u8])> {
        let (header, frame) = datagram.split_first_chunk::<HEADER_BYTES>()?;
        let word = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let half = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        let this = Self {
            epoch: word(4),
            number: word(8),
            peer_epoch: word(12),
            received: word(16),
            room: half(20),
            frame_bytes: half(22),
        };
        let right = header[..4] == MAGIC && this.epoch != 0 && usize::from(this.frame_bytes) == frame.len();
        right.then_some((this, frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_as_it_was_written_and_nothing_else_is() {
        let header = Header { epoch: 1, number: 0x0203_0405, peer_epoch: 6, received: 7, room: 0x0809, frame_bytes: 2 };
        let mut datagram = header.bytes().to_vec();
        datagram.extend_from_slice(b"ab");
        assert_eq!(Header::split(&datagram), Some((header, &b"ab"[..])));
        assert_eq!(Header::split(&datagram[..25]), None, "cut");
        assert_eq!(Header::split(&datagram[..23]), None, "cut in the header");
        assert_eq!(Header::split(&[]), None);
        datagram[3] = b'2';
        assert_eq!(Header::split(&datagram), None, "another version");
        assert_eq!(Header::split(&Header { epoch: 0, ..header }.bytes()), None);
    }
}
