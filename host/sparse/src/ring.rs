//! Ring of 2d blocks for each link in the host's memory: the processor loads blocks there, and stores sums from there.

use std::ops::Range;

use flexcast_proto::sparse::{Contribution, Parameters, Slots};
use flexio::{Access, HostBuffer, LocalSlice, MemoryRegion, ProtectionDomain};

use super::arrangement::{Arrangement, Blocks, Portion};
use super::arrays::Array;
use super::scan::{Places, Turn};
use super::{Error, Result};

/// Memory for the blocks of a worker whose arrays are the processor's.
#[derive(Debug)]
pub struct Ring {
    region: MemoryRegion,
    parameters: Parameters,
}

impl Ring {
    pub(super) fn new(pd: &ProtectionDomain, parameters: Parameters, links: u32) -> Result<Self> {
        let memory = HostBuffer::zeroed((parameters.ring_bytes() as usize).saturating_mul(links as usize))?;
        Ok(Self { region: MemoryRegion::register(pd, memory, Access::LOCAL_WRITE)?, parameters })
    }

    fn slot(&self, link: usize, slot: u32) -> usize {
        link * self.parameters.ring_bytes() as usize + slot as usize * self.parameters.block_bytes() as usize
    }

    /// Slots are one piece, or two where they go round the end.
    fn pieces(&self, link: usize, slots: Slots, pieces: &mut Vec<LocalSlice>) -> flexio::Result<()> {
        for range in slots.ranges().into_iter().filter(|range| !range.is_empty()) {
            let bytes = range.len() as u32 * self.parameters.block_bytes();
            pieces.push(self.region.slice(self.slot(link, range.start) as u64, bytes)?);
        }
        Ok(())
    }
}

impl Blocks for Ring {
    fn most_pieces(&self) -> u32 {
        2
    }

    fn memory_bytes(&self) -> u64 {
        self.region.len() as u64
    }

    fn most_bytes(&self) -> u64 {
        u64::MAX
    }

    fn sent(&self, portion: &Portion, message: &Contribution, pieces: &mut Vec<LocalSlice>) -> flexio::Result<()> {
        self.pieces(portion.link, message.send, pieces)
    }

    fn received(&self, portion: &Portion, message: &Contribution, pieces: &mut Vec<LocalSlice>) -> flexio::Result<()> {
        self.pieces(portion.link, message.receive, pieces)
    }

    fn is_busy(&self) -> bool {
        false
    }

    fn poll(&mut self) -> Result<bool> {
        Ok(false)
    }
}

impl<A: Array> Arrangement<A> for Ring {
    fn array_bytes(&self, array: &A) -> u64 {
        array.bytes()
    }

    fn start(&mut self, _: &A, _: &[Portion]) -> Result<()> {
        Ok(())
    }

    fn turn(&mut self, array: &mut A, _: usize, portion: &mut Portion, left: &mut usize) -> Result<Turn> {
        portion.scan.turn(&mut Loader { array, ring: self, link: portion.link }, left)
    }

    fn finish(&mut self, _: &mut A, _: &[Portion]) -> Result<bool> {
        Ok(true)
    }
}

/// What the scan of a shard works on.
struct Loader<'r, A> {
    array: &'r mut A,
    ring: &'r Ring,
    link: usize,
}

fn bytes(range: &Range<u64>) -> Range<usize> {
    range.start as usize..range.end as usize
}

impl<A: Array> Places for Loader<'_, A> {
    type Error = Error;

    fn store(&mut self, block: Range<u64>, slot: u32) -> Result<()> {
        let Self { array, ring, link } = self;
        array.store(bytes(&block), &ring.region, ring.slot(*link, slot))
    }

    fn load(&mut self, block: Range<u64>, slot: u32) -> Result<bool> {
        let Self { array, ring, link } = self;
        let (range, at) = (bytes(&block), ring.slot(*link, slot));
        let (len, whole) = (range.len(), ring.parameters.block_bytes() as usize);
        if len < whole {
            // The array's last block may be short: it travels with zeros behind it.
            ring.region.clear(at + len, whole - len)?;
        }
        array.load(range, &ring.region, at)
    }

    fn skip(&mut self, zeros: Range<u64>) -> Result<()> {
        self.array.clear(bytes(&zeros))
    }

    fn found(&mut self, _: u32) {}
}
