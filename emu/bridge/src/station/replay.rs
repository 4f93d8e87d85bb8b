//! The frames of a capture, sent with the times between them.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufReader, Read, Seek as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use emu_machine::Station;
use emu_machine::nic::{Packet, wire};
use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::blocks::interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption};
use pcap_file::pcapng::{Block, PcapNgReader};
use pcap_file::{DataLink, PcapError};

use crate::error::BridgeError;

/// Most bytes of frames that are played: they are held in memory.
const MOST_BYTES: usize = 1 << 30;

/// A capture that is played once.
#[derive(Debug)]
pub(crate) struct Replay {
    /// When after the first one each frame is sent, and its packet.
    frames: VecDeque<(u64, Packet)>,
    start_ps: Option<u64>,
}

/// A frame with its time.
type Captured = (Duration, Vec<u8>);

impl Replay {
    /// Reads a capture.
    ///
    /// # Errors
    /// It cannot be read, is no capture of Ethernet, or has a frame that no card sends.
    pub(crate) fn read(path: &Path) -> Result<Self, BridgeError> {
        let refused = |reason: String| BridgeError::Replay { path: path.to_owned(), reason };
        let captured = read(path).map_err(|error| refused(in_words(&error)))?;
        let start = captured.first().map(|(at, _)| *at).unwrap_or_default();
        let mut frames = VecDeque::with_capacity(captured.len());
        for (number, (at, frame)) in (1_u64..).zip(captured) {
            let packet = wire::decode_any(&frame).or_else(|error| {
                // RoCEv2 that is damaged is played as it is.
                Packet::ethernet(Arc::from(frame)).ok_or(error)
            });
            let packet = packet.map_err(|error| refused(format!("frame {number}: {error}")))?;
            let after = u64::try_from(at.saturating_sub(start).as_nanos()).unwrap_or(u64::MAX).saturating_mul(1000);
            // Captures of several interfaces need not be in order.
            let after = frames.back().map_or(after, |(before, _)| after.max(*before));
            frames.push_back((after, packet));
        }
        Ok(Self { frames, start_ps: None })
    }
}

/// What is wrong, with what the system says.
fn in_words(error: &PcapError) -> String {
    match error {
        PcapError::IoError(source) => source.to_string(),
        PcapError::IncompleteBuffer => "it ends within a frame".to_owned(),
        PcapError::InvalidField(what) => (*what).to_owned(),
        other => other.to_string(),
    }
}

fn read(path: &Path) -> Result<Vec<Captured>, PcapError> {
    let mut file = File::open(path).map_err(PcapError::IoError)?;
    let mut magic = [0; 4];
    file.read_exact(&mut magic).map_err(PcapError::IoError)?;
    file.rewind().map_err(PcapError::IoError)?;
    let file = BufReader::new(file);
    let mut frames = Vec::new();
    let mut bytes = 0;
    let mut keep = |at: Duration, data: &[u8]| {
        bytes += data.len();
        frames.push((at, data.to_vec()));
        if bytes > MOST_BYTES { Err(PcapError::InvalidField("more than 1 GiB of frames")) } else { Ok(()) }
    };
    let other = PcapError::InvalidField("its frames are not those of Ethernet");
    if magic == [0x0A, 0x0D, 0x0D, 0x0A] {
        let mut reader = PcapNgReader::new(file)?;
        let mut interfaces = Vec::new();
        while let Some(block) = reader.next_block() {
            match block? {
                Block::InterfaceDescription(interface) => {
                    interfaces.push((interface.linktype, resolution(&interface)?));
                }
                Block::EnhancedPacket(packet) => {
                    let unknown = PcapError::InvalidInterfaceId(packet.interface_id);
                    let &(link, decimals): &(DataLink, u8) =
                        interfaces.get(packet.interface_id as usize).ok_or(unknown)?;
                    if link != DataLink::ETHERNET {
                        return Err(other);
                    }
                    // The reader takes its units for nanoseconds.
                    let units = u64::try_from(packet.timestamp.as_nanos()).unwrap_or(u64::MAX);
                    let scale = |decimals: u8| 10_u64.saturating_pow(decimals.into());
                    let ns = units.saturating_mul(scale(9_u8.saturating_sub(decimals)));
                    keep(Duration::from_nanos(ns / scale(decimals.saturating_sub(9))), &packet.data)?;
                }
                _ => {}
            }
        }
    } else {
        let mut reader = PcapReader::new(file)?;
        if reader.header().datalink != DataLink::ETHERNET {
            return Err(other);
        }
        while let Some(packet) = reader.next_packet() {
            let packet = packet?;
            keep(packet.timestamp, &packet.data)?;
        }
    }
    Ok(frames)
}

/// Decimal places of a second in an interface's times.
fn resolution(interface: &InterfaceDescriptionBlock<'_>) -> Result<u8, PcapError> {
    /// Of a resolution in powers of two.
    const BINARY: u8 = 0x80;
    let given = interface.options.iter().find_map(|option| match option {
        InterfaceDescriptionOption::IfTsResol(value) => Some(*value),
        _ => None,
    });
    match given.unwrap_or(6) {
        BINARY.. => Err(PcapError::InvalidField("times in powers of two of a second")),
        decimals => Ok(decimals),
    }
}

impl Station for Replay {
    fn due_ps(&self) -> Option<u64> {
        let (after_ps, _) = self.frames.front()?;
        self.start_ps.map(|start_ps| start_ps.saturating_add(*after_ps))
    }

    fn send(&mut self, now_ps: u64) -> Option<Packet> {
        self.due_ps().filter(|due_ps| *due_ps <= now_ps)?;
        self.frames.pop_front().map(|(_, packet)| packet)
    }

    fn arrive(&mut self, _: u64, _: Packet) {}

    fn steered(&mut self, now_ps: u64, to_queue: bool) {
        if to_queue {
            self.start_ps.get_or_insert(now_ps);
        }
    }
}

#[cfg(test)]
mod tests {
    use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};

    use super::*;

    fn frame(seed: u8) -> Vec<u8> {
        let mut frame = vec![seed; 60];
        frame[12..14].copy_from_slice(&[0x88, 0xB5]);
        frame
    }

    fn written(link: DataLink) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let header = PcapHeader { datalink: link, ..PcapHeader::default() };
        let mut writer = PcapWriter::with_header(file.reopen().expect("it is open"), header).expect("a header");
        for (seed, us) in [(1, 10), (2, 35)] {
            let data = frame(seed);
            writer.write_packet(&PcapPacket::new(Duration::from_micros(us), 60, &data)).expect("a frame");
        }
        file
    }

    #[test]
    fn frames_are_sent_with_the_times_between_them() {
        let file = written(DataLink::ETHERNET);
        let mut replay = Replay::read(file.path()).expect("a capture");
        assert_eq!(replay.due_ps(), None);
        replay.steered(7, true);
        assert_eq!(replay.due_ps(), Some(7));
        assert_eq!(replay.send(7).expect("the first").payload[..], frame(1));
        assert_eq!(replay.due_ps(), Some(7 + 25_000_000));
        assert!(replay.send(8).is_none());
        assert_eq!(replay.send(25_000_007).expect("the second").payload[..], frame(2));
        assert_eq!(replay.due_ps(), None);
    }

    #[test]
    fn what_is_no_capture_of_ethernet_is_named() {
        let wrong = |path: &Path| Replay::read(path).expect_err("none").to_string();
        let text = wrong(Path::new("/no/such/file.pcap"));
        assert!(text.contains("/no/such/file.pcap") && text.contains("No such file or directory"), "{text}");
        let text = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(text.path(), "this is text and no capture at all").expect("written");
        assert!(wrong(text.path()).contains("cannot be played"));
        let other = written(DataLink::IEEE802_11);
        assert!(wrong(other.path()).contains("not those of Ethernet"));
        std::fs::write(text.path(), "").expect("written");
        assert!(wrong(text.path()).contains("cannot be played"));
    }
}
