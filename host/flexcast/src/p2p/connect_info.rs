//! Connection information that ranks exchange before they are connected.

use flexcast_proto::session::greeting::{SIDE_NONCE_BYTES, Side};
use flexio::{Gid, Mac};
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Error;
use flexcast_rc::greeting::side;

/// First word of connection information: a name and a version.
const MAGIC: u32 = 0x4643_4204;

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Head {
    magic: U32,
    rank: U32,
    ranks: U32,
    gid: [u8; 16],
    mac: [u8; 6],
    reserved: [u8; 2],
    nonce: [u8; SIDE_NONCE_BYTES],
}

/// The queue pairs of a rank that are for one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct Entry {
    pub(super) peer: U32,
    /// For data: the one that asks, and the one that answers.
    pub(super) data_qpns: [U32; 2],
    /// For control.
    pub(super) control_qpns: [U32; 2],
    /// Messages of that peer for which receives are posted.
    pub(super) accepts: U32,
}

/// A rank's card and queue pairs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ConnectInfo {
    pub(super) rank: u32,
    pub(super) ranks: u32,
    pub(super) gid: Gid,
    pub(super) mac: Mac,
    /// Of greetings.
    pub(super) nonce: [u8; SIDE_NONCE_BYTES],
    /// By peer, ascending.
    pub(super) entries: Vec<Entry>,
}

/// Bytes of the connection information of a rank with so many peers.
pub(crate) const fn connect_info_bytes(peers: u32) -> u64 {
    size_of::<Head>() as u64 + size_of::<Entry>() as u64 * peers as u64
}

impl ConnectInfo {
    pub(super) fn encode(&self) -> Vec<u8> {
        let head = Head {
            magic: U32::new(MAGIC),
            rank: U32::new(self.rank),
            ranks: U32::new(self.ranks),
            gid: self.gid.0,
            mac: self.mac.0,
            reserved: [0; 2],
            nonce: self.nonce,
        };
        [head.as_bytes(), self.entries.as_bytes()].concat()
    }

    /// The connection information of `rank` of `ranks`.
    pub(super) fn decode(bytes: &[u8], rank: u32, ranks: u32) -> Result<Self, Error> {
        let refused = |reason: String| Error::ConnectInfo { rank, reason };
        let (head, rest) = Head::ref_from_prefix(bytes)
            .map_err(|_| refused(format!("{} bytes, but it has at least {}", bytes.len(), size_of::<Head>())))?;
        if head.magic.get() != MAGIC {
            return Err(refused(format!("begins with {:#x}, not {MAGIC:#x}: is it of the same version?", head.magic)));
        }
        if (head.rank.get(), head.ranks.get()) != (rank, ranks) {
            return Err(refused(format!("is of rank {} of {}, not of {ranks}", head.rank, head.ranks)));
        }
        let entries = <[Entry]>::ref_from_bytes(rest)
            .map_err(|_| refused(format!("{} bytes of entries, each of {}", rest.len(), size_of::<Entry>())))?;
        let (gid, mac, nonce) = (Gid(head.gid), Mac(head.mac), head.nonce);
        Ok(Self { rank, ranks, gid, mac, nonce, entries: entries.to_vec() })
    }

    /// It, with these queue pairs for a peer: the greeting on those for control covers those for data.
    pub(super) fn side(&self, [data, control]: [[u32; 2]; 2]) -> Side {
        side(self.rank, self.nonce, self.gid, [data[0], data[1], control[0], control[1]])
    }

    /// Its queue pairs for a peer.
    pub(super) fn entry(&self, peer: u32) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.peer.get() == peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_information_comes_back_and_other_bytes_are_refused() {
        let entry = Entry {
            peer: U32::new(1),
            data_qpns: [6, 7].map(U32::new),
            control_qpns: [8, 9].map(U32::new),
            accepts: U32::new(10),
        };
        let (gid, mac, nonce) = (Gid([3; 16]), Mac([5; 6]), [6; SIDE_NONCE_BYTES]);
        let info = ConnectInfo { rank: 2, ranks: 4, gid, mac, nonce, entries: vec![entry] };
        let bytes = info.encode();
        assert_eq!(bytes.len() as u64, connect_info_bytes(1));
        let back = ConnectInfo::decode(&bytes, 2, 4).unwrap();
        assert_eq!(back, info);
        assert_eq!((back.entry(1), back.entry(2)), (Some(&entry), None));
        for (bytes, rank, ranks, word) in [
            (&bytes[..10], 2, 4, "10 bytes"),
            (&bytes[..56], 2, 4, "4 bytes of entries"),
            (&bytes, 3, 4, "rank 2 of 4"),
            (&bytes, 2, 5, "rank 2 of 4"),
            (&[0; 56], 2, 4, "same version"),
        ] {
            let text = ConnectInfo::decode(bytes, rank, ranks).unwrap_err().to_string();
            assert!(text.contains(word), "{text}");
        }
    }
}
