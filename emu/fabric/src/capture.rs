//! Captures: what leaves the ports of a link, as a file that packet analysers read.
//!
//! Format: pcapng (IETF draft-ietf-opsawg-pcapng), one interface per port, timestamps in nanoseconds of virtual time,
//! frames of link type Ethernet without frame check sequence.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, Write};
use std::time::Duration;

use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption};
use pcap_file::{DataLink, PcapError};

use crate::fabric::{Fabric, FabricEffects, FabricError};
use crate::link::{Delivery, Link, LinkError};
use crate::{Frame, PortCounters};

/// `if_tsresol`: timestamps count units of 10^-9 s.
const NANOSECONDS: u8 = 9;
const PS_PER_NS: u64 = 1_000;
/// `epb_flags`, bits 1:0: the frame came in through the interface.
const INBOUND: u32 = 1;
/// `epb_flags`, bits 1:0: the frame left through the interface.
const OUTBOUND: u32 = 2;

/// A frame that can be written as bytes.
pub trait CaptureFrame: Frame {
    /// Why a frame has no bytes.
    type Error: std::error::Error;

    /// Appends the Ethernet frame to `out`: from the destination address on, without frame check sequence.
    ///
    /// # Errors
    /// The frame cannot be written as bytes.
    fn capture_bytes(&self, out: &mut Vec<u8>) -> Result<(), Self::Error>;
}

/// Why a capture ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// The writer failed.
    #[error("writing the capture failed after {frames} frames: is there room, and may the file be written?")]
    Write {
        /// Frames written before.
        frames: u64,
        /// What the writer said.
        source: io::Error,
    },
    /// The capture has no such port.
    #[error("there is no port {port} in the capture: it has {ports} ports, numbered from 0")]
    NoPort {
        /// The port.
        port: usize,
        /// Ports of the capture.
        ports: usize,
    },
}

impl CaptureError {
    fn write(frames: u64, error: PcapError) -> Self {
        let source = match error {
            PcapError::IoError(source) => source,
            other => io::Error::other(other),
        };
        Self::Write { frames, source }
    }
}

/// A capture file that is being written.
pub struct CaptureWriter<W: Write> {
    pcap: PcapNgWriter<W>,
    ports: usize,
    frames: u64,
}

impl<W: Write> CaptureWriter<W> {
    /// Begins a file with interfaces `port 0`, `port 1`, and so on.
    ///
    /// # Errors
    /// The writer failed.
    pub fn new(writer: W, ports: usize) -> Result<Self, CaptureError> {
        let failed = |error| CaptureError::write(0, error);
        let mut pcap = PcapNgWriter::with_endianness(writer, pcap_file::Endianness::Little).map_err(failed)?;
        for port in 0..ports {
            let interface = InterfaceDescriptionBlock {
                linktype: DataLink::ETHERNET,
                snaplen: 0,
                options: vec![
                    InterfaceDescriptionOption::IfName(Cow::Owned(format!("port {port}"))),
                    InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
                ],
            };
            pcap.write_pcapng_block(interface).map_err(failed)?;
        }
        Ok(Self { pcap, ports, frames: 0 })
    }

    /// Writes a frame that left `port` at `at_ps` (cut to whole nanoseconds), with a comment if there is something to
    /// say.
    ///
    /// # Errors
    /// No such port, or the writer failed.
    pub fn frame(&mut self, at_ps: u64, port: usize, bytes: &[u8], comment: Option<&str>) -> Result<(), CaptureError> {
        self.block(at_ps, port, bytes, OUTBOUND, comment)
    }

    /// Writes a frame that arrived at `port` at `at_ps` (cut to whole nanoseconds).
    ///
    /// # Errors
    /// No such port, or the writer failed.
    pub fn arrival(&mut self, at_ps: u64, port: usize, bytes: &[u8]) -> Result<(), CaptureError> {
        self.block(at_ps, port, bytes, INBOUND, None)
    }

    fn block(
        &mut self,
        at_ps: u64,
        port: usize,
        bytes: &[u8],
        direction: u32,
        comment: Option<&str>,
    ) -> Result<(), CaptureError> {
        let interface_id = u32::try_from(port).ok().filter(|_| port < self.ports);
        let interface_id = interface_id.ok_or(CaptureError::NoPort { port, ports: self.ports })?;
        let mut options = vec![EnhancedPacketOption::Flags(direction)];
        options.extend(comment.map(|text| EnhancedPacketOption::Comment(Cow::Borrowed(text))));
        let block = EnhancedPacketBlock {
            interface_id,
            timestamp: Duration::from_nanos(at_ps / PS_PER_NS),
            original_len: bytes.len() as u32,
            data: Cow::Borrowed(bytes),
            options,
        };
        self.pcap.write_pcapng_block(block).map_err(|error| CaptureError::write(self.frames, error))?;
        self.frames += 1;
        Ok(())
    }

    /// Frames written so far.
    #[must_use]
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// Flushes, and gives the writer back.
    ///
    /// # Errors
    /// The writer failed.
    pub fn finish(self) -> Result<W, CaptureError> {
        let mut writer = self.pcap.into_inner();
        writer.flush().map_err(|source| CaptureError::Write { frames: self.frames, source })?;
        Ok(writer)
    }
}

impl<W: Write> fmt::Debug for CaptureWriter<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CaptureWriter")
            .field("ports", &self.ports)
            .field("frames", &self.frames)
            .finish_non_exhaustive()
    }
}

/// A link or fabric whose frames are captured as they leave their ports: the hosts' ports of a fabric. It carries them
/// exactly as the link inside would: nothing that happens to the capture changes what arrives, or when.
///
/// The time of a frame is the one at which its first bit is ready at its port, the time `transmit` is given. A frame
/// that the link inside lost, which its counters show, is written too, with a comment such as `lost: 1 of 1 copies`
/// (`frame.comment contains "lost"` in an analyser).
pub struct Captured<L, W: Write> {
    inner: L,
    state: State<W>,
    bytes: Vec<u8>,
    unwritable: u64,
}

enum State<W: Write> {
    Off,
    On(CaptureWriter<W>),
    Failed(CaptureError),
}

impl<L: fmt::Debug, W: Write> fmt::Debug for Captured<L, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state: &dyn fmt::Debug = match &self.state {
            State::Off => &"off",
            State::On(writer) => writer,
            State::Failed(error) => error,
        };
        f.debug_struct("Captured").field("inner", &self.inner).field("capture", state).finish_non_exhaustive()
    }
}

impl<L, W: Write> Captured<L, W> {
    /// Wraps a link without capturing anything, so that a machine has one type of link whether or not it captures.
    pub fn off(inner: L) -> Self {
        Self { inner, state: State::Off, bytes: Vec::new(), unwritable: 0 }
    }

    /// Wraps a link or fabric of so many `ports` and captures what leaves them from now on.
    ///
    /// # Errors
    /// The writer failed.
    pub fn new(inner: L, ports: usize, writer: W) -> Result<Self, CaptureError> {
        Ok(Self { state: State::On(CaptureWriter::new(writer, ports)?), ..Self::off(inner) })
    }

    /// Captures what leaves the `ports` from now on. A capture under way is given up.
    ///
    /// # Errors
    /// The writer failed; nothing is captured then.
    pub fn start(&mut self, ports: usize, writer: W) -> Result<(), CaptureError> {
        self.state = State::Off;
        self.state = State::On(CaptureWriter::new(writer, ports)?);
        Ok(())
    }

    /// The link inside.
    pub fn inner(&self) -> &L {
        &self.inner
    }

    /// The link inside, to change it.
    pub fn inner_mut(&mut self) -> &mut L {
        &mut self.inner
    }

    /// Why nothing is captured any more, if the writer failed.
    #[must_use]
    pub fn error(&self) -> Option<&CaptureError> {
        match &self.state {
            State::Failed(error) => Some(error),
            State::Off | State::On(_) => None,
        }
    }

    /// Frames in the capture so far; 0 when there is none, or none any more.
    #[must_use]
    pub fn frames(&self) -> u64 {
        match &self.state {
            State::On(writer) => writer.frames(),
            State::Off | State::Failed(_) => 0,
        }
    }

    /// Frames that are not in the capture because they have no bytes ([`CaptureFrame::capture_bytes`] failed).
    #[must_use]
    pub fn unwritable_frames(&self) -> u64 {
        self.unwritable
    }

    /// Ends the capture, and gives the flushed writer back; `None` if there was no capture. The link goes on without.
    ///
    /// # Errors
    /// The writer failed, now or before.
    pub fn finish(&mut self) -> Result<Option<W>, CaptureError> {
        match std::mem::replace(&mut self.state, State::Off) {
            State::Off => Ok(None),
            State::On(writer) => writer.finish().map(Some),
            State::Failed(error) => Err(error),
        }
    }

    /// Captures a frame that arrives at a port, which the link or fabric inside does not report by itself: the caller
    /// knows when its time has come.
    pub fn arrival<F: CaptureFrame>(&mut self, at_ps: u64, port: usize, frame: &F) {
        if self.take_bytes(frame)
            && let State::On(writer) = &mut self.state
            && let Err(error) = writer.arrival(at_ps, port, &self.bytes)
        {
            self.state = State::Failed(error);
        }
    }

    /// Takes the bytes of a frame that is about to move into the link; `false` if nothing is to be written.
    fn take_bytes<F: CaptureFrame>(&mut self, frame: &F) -> bool {
        if !matches!(self.state, State::On(_)) {
            return false;
        }
        self.bytes.clear();
        let written = frame.capture_bytes(&mut self.bytes).is_ok();
        self.unwritable += u64::from(!written);
        written
    }

    /// Writes the bytes that were taken.
    fn write(&mut self, at_ps: u64, port: usize, comment: Option<&str>) {
        if let State::On(writer) = &mut self.state
            && let Err(error) = writer.frame(at_ps, port, &self.bytes, comment)
        {
            self.state = State::Failed(error);
        }
    }
}

/// Frames that the link lost on the way to any port.
fn lost<F: Frame, L: Link<F>>(link: &L) -> u64 {
    (0..link.ports()).map(|port| link.counters(port).lost_frames).sum()
}

impl<F: CaptureFrame, L: Link<F>, W: Write> Link<F> for Captured<L, W> {
    fn transmit(
        &mut self,
        now_ps: u64,
        from_port: usize,
        frame: F,
        out: &mut Vec<Delivery<F>>,
    ) -> Result<(), LinkError> {
        if !self.take_bytes(&frame) {
            return self.inner.transmit(now_ps, from_port, frame, out);
        }
        let (before, lost_before) = (out.len(), lost(&self.inner));
        self.inner.transmit(now_ps, from_port, frame, out)?;
        let lost = lost(&self.inner) - lost_before;
        let copies = lost + (out.len() - before) as u64;
        let comment = (lost > 0).then(|| format!("lost: {lost} of {copies} copies"));
        self.write(now_ps, from_port, comment.as_deref());
        Ok(())
    }

    fn ports(&self) -> usize {
        self.inner.ports()
    }

    fn counters(&self, port: usize) -> PortCounters {
        self.inner.counters(port)
    }
}

/// What happens to a frame within a fabric shows later, so no frame is marked as lost.
impl<F: CaptureFrame, L: Fabric<F>, W: Write> Fabric<F> for Captured<L, W> {
    fn transmit(&mut self, now_ps: u64, port: usize, frame: F, fx: &mut FabricEffects<F>) -> Result<(), FabricError> {
        let taken = self.take_bytes(&frame);
        self.inner.transmit(now_ps, port, frame, fx)?;
        if taken {
            self.write(now_ps, port, None);
        }
        Ok(())
    }

    fn handle_timer(&mut self, now_ps: u64, fx: &mut FabricEffects<F>) {
        self.inner.handle_timer(now_ps, fx);
    }

    fn ports(&self) -> usize {
        self.inner.ports()
    }

    fn counters(&self, port: usize) -> PortCounters {
        self.inner.counters(port)
    }
}

#[cfg(test)]
mod tests {
    use pcap_file::pcapng::{Block, PcapNgReader};

    use super::*;
    use crate::{BackToBack, Direct, LinkConfig, SeededDrop};

    #[derive(Clone, Debug, PartialEq)]
    struct Letters(Vec<u8>);

    impl Frame for Letters {
        fn wire_bytes(&self) -> u64 {
            self.0.len() as u64 + 24
        }
    }

    #[derive(Debug, thiserror::Error)]
    #[error("nothing to say")]
    struct Empty;

    impl CaptureFrame for Letters {
        type Error = Empty;

        fn capture_bytes(&self, out: &mut Vec<u8>) -> Result<(), Empty> {
            out.extend_from_slice(&self.0);
            if self.0.is_empty() { Err(Empty) } else { Ok(()) }
        }
    }

    /// Port, nanoseconds, bytes and comments of every frame.
    fn read(file: &[u8]) -> Vec<(u32, u128, Vec<u8>, Vec<String>)> {
        let mut reader = PcapNgReader::new(file).unwrap();
        let mut frames = Vec::new();
        while let Some(block) = reader.next_block() {
            if let Block::EnhancedPacket(block) = block.unwrap() {
                let comments = block.options.iter().filter_map(|option| match option {
                    EnhancedPacketOption::Comment(text) => Some(text.to_string()),
                    _ => None,
                });
                let comments = comments.collect();
                frames.push((block.interface_id, block.timestamp.as_nanos(), block.data.to_vec(), comments));
            }
        }
        assert_eq!(reader.interfaces().len(), 2);
        frames
    }

    fn lossy(ppm: u32) -> SeededDrop<BackToBack> {
        SeededDrop::new(BackToBack::new(LinkConfig::default()), ppm, 1).unwrap()
    }

    #[test]
    fn frames_of_both_ports_with_their_times() {
        let mut link = Captured::new(lossy(0), 2, Vec::new()).unwrap();
        let mut out = Vec::new();
        link.transmit(1_999, 0, Letters(b"ab".to_vec()), &mut out).unwrap();
        link.transmit(7_000_000_000_123_000, 1, Letters(b"cde".to_vec()), &mut out).unwrap();
        assert_eq!((link.frames(), out.len()), (2, 2));
        let file = link.finish().unwrap().unwrap();
        assert_eq!(
            read(&file),
            [(0, 1, b"ab".to_vec(), vec![]), (1, 7_000_000_000_123, b"cde".to_vec(), vec![])],
            "whole nanoseconds, more than 32 bits of them"
        );
        link.transmit(0, 0, Letters(b"after".to_vec()), &mut out).unwrap();
        assert_eq!((link.frames(), out.len()), (0, 3), "the link goes on without a capture");
        assert!(link.finish().unwrap().is_none());
    }

    #[test]
    fn lost_frames_are_captured_and_marked() {
        let mut link = Captured::new(lossy(1_000_000), 2, Vec::new()).unwrap();
        let mut out = Vec::new();
        link.transmit(0, 1, Letters(b"x".to_vec()), &mut out).unwrap();
        assert!(out.is_empty());
        assert_eq!(Link::<Letters>::counters(&link, 0).lost_frames, 1);
        let file = link.finish().unwrap().unwrap();
        assert_eq!(read(&file), [(1, 0, b"x".to_vec(), vec!["lost: 1 of 1 copies".to_owned()])]);
    }

    #[test]
    fn a_capture_changes_nothing() {
        let (mut plain, mut off) = (lossy(300_000), Captured::<_, Vec<u8>>::off(lossy(300_000)));
        let mut on = Captured::new(lossy(300_000), 2, Full { room: 500 }).unwrap();
        let (mut a, mut b, mut c) = (Vec::new(), Vec::new(), Vec::new());
        for n in 0..100_u8 {
            let frame = Letters(vec![n; usize::from(n)]);
            plain.transmit(n.into(), usize::from(n % 2), frame.clone(), &mut a).unwrap();
            off.transmit(n.into(), usize::from(n % 2), frame.clone(), &mut b).unwrap();
            on.transmit(n.into(), usize::from(n % 2), frame, &mut c).unwrap();
        }
        assert!(a == b && a == c);
        assert_eq!(on.unwritable_frames(), 1, "the frame without letters");
        let error = on.error().expect("the writer is full");
        let source = std::error::Error::source(error).map(ToString::to_string);
        assert!(error.to_string().starts_with("writing the capture failed after 6 frames"), "{error}");
        assert_eq!(source.as_deref(), Some("no room"));
        assert!(matches!(on.finish(), Err(CaptureError::Write { frames: 6, .. })));
    }

    /// A medium with so many bytes of room.
    #[derive(Debug)]
    struct Full {
        room: usize,
    }

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.room = self.room.checked_sub(bytes.len()).ok_or_else(|| io::Error::other("no room"))?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn fabrics_are_captured_at_their_hosts_ports() {
        let mut fabric = Captured::new(Direct(lossy(1_000_000)), 2, Vec::new()).unwrap();
        let mut fx = FabricEffects::default();
        fabric.transmit(5_000, 1, Letters(b"xy".to_vec()), &mut fx).unwrap();
        Fabric::<Letters>::handle_timer(&mut fabric, 6_000, &mut fx);
        assert_eq!(Fabric::<Letters>::counters(&fabric, 0).lost_frames, 1);
        assert_eq!(Fabric::<Letters>::ports(&fabric), 2);
        assert!(fabric.transmit(0, 2, Letters(b"z".to_vec()), &mut fx).is_err());
        assert_eq!(read(&fabric.finish().unwrap().unwrap()), [(1, 5, b"xy".to_vec(), vec![])]);
    }

    #[test]
    fn wrong_ports_are_errors() {
        let mut link = Captured::new(lossy(0), 2, Vec::new()).unwrap();
        let error = link.transmit(0, 2, Letters(b"x".to_vec()), &mut Vec::new()).unwrap_err();
        assert_eq!(error, LinkError::NoPort { port: 2, last: 1 });
        assert_eq!(link.frames(), 0);
        let mut writer = CaptureWriter::new(Vec::new(), 2).unwrap();
        let error = writer.frame(0, 2, b"x", None).unwrap_err().to_string();
        assert_eq!(error, "there is no port 2 in the capture: it has 2 ports, numbered from 0");
    }
}
