//! Frames: decoding and encoding, and frames made right.

use emu_machine::nic::wire::{self, MIN_FRAME_BYTES};
use emu_machine::nic::{Packet, RoceVersion, icrc};

const ETHERNET: usize = 14;

/// Decodes a frame. What can be decoded can be encoded, and is the same afterwards.
pub(super) fn decode(frame: &[u8]) -> Option<Packet> {
    let packet = match wire::decode(frame) {
        Ok(packet) => packet,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return None;
        }
    };
    let mut again = vec![0xEE; 3];
    match wire::encode(&packet, &mut again) {
        Ok(()) => {
            let again = &again[3..];
            assert_eq!(wire::decode(again).as_ref(), Ok(&packet));
            assert_eq!(again.len() as u64 + 4, packet.frame_bytes(), "but for the frame check sequence");
            assert_eq!(frame.len().max(MIN_FRAME_BYTES), again.len());
        }
        Err(error) => {
            // A card sends no packet from an IPv6 source to an IPv4 destination, and no frame can say so.
            panic!("{error}: {packet:?}");
        }
    }
    Some(packet)
}

/// The frame with the lengths, the header checksum and the check sequence that its bytes ask for.
pub(super) fn fixed(frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let (v6, header, version) = match frame.get(12..14) {
        Some([0x86, 0xDD]) => (true, 40, RoceVersion::V2),
        Some([0x89, 0x15]) => (true, 40, RoceVersion::V1),
        _ => (false, 20, RoceVersion::V2),
    };
    if frame.len() < ETHERNET + header + 24 || frame.len() > 1 << 15 {
        return frame;
    }
    let (_, datagram) = frame.split_at_mut(ETHERNET);
    let udp_bytes = ((datagram.len() - header) as u16).to_be_bytes();
    if v6 {
        datagram[4..6].copy_from_slice(&udp_bytes);
    } else {
        let total = (datagram.len() as u16).to_be_bytes();
        datagram[2..4].copy_from_slice(&total);
        datagram[10..12].fill(0);
        let words = datagram[..20].chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
        let sum: u32 = words.sum();
        let sum = (sum & 0xFFFF) + (sum >> 16);
        let sum = (sum & 0xFFFF) + (sum >> 16);
        datagram[10..12].copy_from_slice(&(!sum as u16).to_be_bytes());
    }
    if version == RoceVersion::V2 {
        datagram[header + 4..header + 6].copy_from_slice(&udp_bytes);
    }
    let covered = datagram.len() - 4;
    if let Some(check) = icrc(version, &datagram[..covered]) {
        datagram[covered..].copy_from_slice(&check.to_le_bytes());
    }
    frame
}
