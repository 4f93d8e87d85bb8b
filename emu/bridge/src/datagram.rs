//! Datagram of the bridge: a header of 52 bytes, then a frame or nothing.
//!
//! | Bytes | Content, big-endian |
//! |---|---|
//! | 0..4 | `FXB2` |
//! | 4..8 | epoch of the sender: another one after each start |
//! | 8..12 | frames sent in this epoch, one in this datagram included |
//! | 12..16 | epoch of the receiver as far as known, or 0 |
//! | 16..20 | number of the last frame received in that epoch |
//! | 20..24 | number of the last one that is over: the sender's clock has moved on by what an answer takes |
//! | 24..32 | the sender's virtual time in picoseconds |
//! | 32..34 | frames that the sender of this datagram can take before it has reported them |
//! | 34..36 | bytes of the frame that follows, or 0 |
//! | 36..40 | number of the sender's process, or 0 |
//! | 40..48 | start of that process in clock ticks since the start of its computer |
//! | 48..52 | bit 0: the sender waits for a report, at once and when all its frames are over |

use crate::process::Process;

const MAGIC: [u8; 4] = *b"FXB2";
pub(crate) const HEADER_BYTES: usize = 52;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) epoch: u32,
    pub(crate) number: u32,
    pub(crate) peer_epoch: u32,
    pub(crate) received: u32,
    pub(crate) over: u32,
    pub(crate) clock_ps: u64,
    pub(crate) room: u16,
    pub(crate) frame_bytes: u16,
    pub(crate) process: Process,
    pub(crate) asks: bool,
}

impl Header {
    pub(crate) fn bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let mut rest = &mut bytes[..];
        let mut put = |part: &[u8]| {
            let (here, behind) = std::mem::take(&mut rest).split_at_mut(part.len());
            here.copy_from_slice(part);
            rest = behind;
        };
        put(&MAGIC);
        for word in [self.epoch, self.number, self.peer_epoch, self.received, self.over] {
            put(&word.to_be_bytes());
        }
        put(&self.clock_ps.to_be_bytes());
        put(&self.room.to_be_bytes());
        put(&self.frame_bytes.to_be_bytes());
        put(&self.process.pid.to_be_bytes());
        put(&self.process.started.to_be_bytes());
        put(&u32::from(self.asks).to_be_bytes());
        bytes
    }

    /// Header and frame of a datagram; `None` if it is none of the bridge's.
    pub(crate) fn split(datagram: &[u8]) -> Option<(Self, &[u8])> {
        let (header, frame) = datagram.split_first_chunk::<HEADER_BYTES>()?;
        let half = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        let word = |at: usize| u32::from(half(at)) << 16 | u32::from(half(at + 2));
        let long = |at: usize| u64::from(word(at)) << 32 | u64::from(word(at + 4));
        let this = Self {
            epoch: word(4),
            number: word(8),
            peer_epoch: word(12),
            received: word(16),
            over: word(20),
            clock_ps: long(24),
            room: half(32),
            frame_bytes: half(34),
            process: Process { pid: word(36), started: long(40) },
            asks: word(48) & 1 != 0,
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
        let header = Header {
            epoch: 1,
            number: 0x0203_0405,
            peer_epoch: 6,
            received: 7,
            over: 0x0A0B_0C0D,
            clock_ps: 0x0102_0304_0506_0708,
            room: 0x0809,
            frame_bytes: 2,
            process: Process { pid: 0x1112_1314, started: 0x2122_2324_2526_2728 },
            asks: true,
        };
        let mut datagram = header.bytes().to_vec();
        datagram.extend_from_slice(b"ab");
        assert_eq!(Header::split(&datagram), Some((header, &b"ab"[..])));
        assert_eq!(Header::split(&datagram[..53]), None, "cut");
        assert_eq!(Header::split(&datagram[..51]), None, "cut in the header");
        assert_eq!(Header::split(&[]), None);
        datagram[3] = b'1';
        assert_eq!(Header::split(&datagram), None, "another version");
        assert_eq!(Header::split(&Header { epoch: 0, ..header }.bytes()), None);
    }
}
