//! Buffer of an accelerator in which each block of an array has its own place.

use std::convert::Infallible;
use std::ops::Range;

use flexcast_proto::sparse::{Contribution, Parameters, Shard};
use flexio::LocalSlice;

use super::accelerator::{Accelerator, Bitmap, Stretch};
use super::arrangement::{Arrangement, Blocks, Portion};
use super::scan::{Places, Turn};
use super::{Error, Result};

/// Memory for the blocks of a worker whose arrays are an accelerator's.
#[derive(Debug)]
pub struct Staged<D> {
    accelerator: D,
    parameters: Parameters,
    most_pieces: u32,
    /// By portion of the operation under way.
    maps: Vec<Maps>,
    /// Portions whose scan is over: the first ones.
    scanned: usize,
    copies: Copies,
}

/// What is known of the blocks of a portion.
#[derive(Debug)]
struct Maps {
    stretch: Stretch,
    /// Blocks of which any bit is set.
    found: Bitmap,
    /// Blocks whose sums have come.
    sums: Bitmap,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Copies {
    No,
    UnderWay,
    Over,
}

impl<D: Accelerator> Staged<D> {
    pub(super) fn new(accelerator: D, parameters: Parameters) -> Result<Self> {
        let d = parameters.blocks_per_message();
        let most = accelerator.staging().pd().device().max_pieces()?;
        // A piece for each block, and one for indices.
        if d >= most {
            let least = most.saturating_sub(1);
            let limit = format!(
                "at most {least} with an accelerator, as the card takes {most} pieces of memory in a message and \
                 indices are one"
            );
            return Err(Error::OutOfRange { what: "the number of blocks per message", value: d.into(), limit });
        }
        let (bytes, block_bytes) = (accelerator.staging().len() as u64, u64::from(parameters.block_bytes()));
        if bytes < block_bytes {
            let limit = format!("at least {block_bytes}, those of a block");
            return Err(Error::OutOfRange { what: "the bytes of the accelerator's buffer", value: bytes, limit });
        }
        Ok(Self { accelerator, parameters, most_pieces: d, maps: Vec::new(), scanned: 0, copies: Copies::No })
    }

    pub(super) const fn accelerator(&self) -> &D {
        &self.accelerator
    }

    /// Blocks of a shard at their places; neighbours are one piece.
    fn pieces(
        &self,
        shard: &Shard,
        blocks: impl Iterator<Item = u32>,
        pieces: &mut Vec<LocalSlice>,
    ) -> flexio::Result<()> {
        let bytes = self.parameters.block_bytes();
        // The first of neighbours, and how many they are.
        let mut first: Option<(u32, u32)> = None;
        let mut add = |(block, count): (u32, u32)| {
            let offset = shard.range().start + u64::from(block) * u64::from(bytes);
            pieces.push(self.accelerator.staging().slice(offset, count * bytes)?);
            Ok(())
        };
        for block in blocks {
            first = match first {
                Some((start, count)) if start + count == block => Some((start, count + 1)),
                Some(before) => {
                    add(before)?;
                    Some((block, 1))
                }
                None => Some((block, 1)),
            };
        }
        first.map_or(Ok(()), add)
    }
}

impl<D: Accelerator> Blocks for Staged<D> {
    fn most_pieces(&self) -> u32 {
        self.most_pieces
    }

    fn memory_bytes(&self) -> u64 {
        self.accelerator.staging().len() as u64
    }

    fn most_bytes(&self) -> u64 {
        // In whole blocks: a short one has zeros behind it.
        let bytes = self.accelerator.staging().len() as u64;
        bytes - bytes % u64::from(self.parameters.block_bytes())
    }

    fn sent(&self, portion: &Portion, message: &Contribution, pieces: &mut Vec<LocalSlice>) -> flexio::Result<()> {
        let global = portion.scan.worker.global();
        let present = message.displacement.present(global);
        let own = (0..).zip(global.indices()).filter(|(place, _)| present >> place & 1 != 0);
        self.pieces(&portion.scan.shard, own.map(|(_, block)| *block), pieces)
    }

    fn received(&self, portion: &Portion, _: &Contribution, pieces: &mut Vec<LocalSlice>) -> flexio::Result<()> {
        self.pieces(&portion.scan.shard, portion.scan.worker.global().indices().iter().copied(), pieces)
    }

    fn is_busy(&self) -> bool {
        self.scanned < self.maps.len() || self.copies == Copies::UnderWay
    }

    fn poll(&mut self) -> Result<bool> {
        let mut moved = false;
        while let Some(maps) = self.maps.get_mut(self.scanned) {
            if maps.stretch.bytes > 0 && !self.accelerator.scanned(maps.found.words_mut())? {
                break;
            }
            self.scanned += 1;
            moved = true;
        }
        if self.copies == Copies::UnderWay && self.accelerator.is_copied()? {
            self.copies = Copies::Over;
            moved = true;
        }
        Ok(moved)
    }
}

impl<D: Accelerator> Arrangement<D::Array> for Staged<D> {
    fn array_bytes(&self, array: &D::Array) -> u64 {
        self.accelerator.bytes(array)
    }

    fn start(&mut self, array: &D::Array, portions: &[Portion]) -> Result<()> {
        (self.scanned, self.copies) = (0, Copies::No);
        self.maps.clear();
        for portion in portions {
            let Range { start, end } = portion.scan.shard.range();
            let stretch = Stretch { first_byte: start, bytes: end - start, block_bytes: self.parameters.block_bytes() };
            if stretch.bytes > 0 {
                self.accelerator.scan(array, stretch)?;
            }
            self.maps.push(Maps { stretch, found: Bitmap::new(stretch), sums: Bitmap::new(stretch) });
        }
        Ok(())
    }

    fn turn(&mut self, _: &mut D::Array, number: usize, portion: &mut Portion, left: &mut usize) -> Result<Turn> {
        let Some(maps) = self.maps.get_mut(number).filter(|_| number < self.scanned) else { return Ok(Turn::Idle) };
        let Ok(turn) = portion.scan.turn(maps, left);
        Ok(turn)
    }

    fn finish(&mut self, array: &mut D::Array, _: &[Portion]) -> Result<bool> {
        if self.copies == Copies::No {
            for Maps { stretch, sums, .. } in self.maps.iter().filter(|maps| maps.stretch.bytes > 0) {
                self.accelerator.copy_back(array, *stretch, sums.words())?;
            }
            self.copies = Copies::UnderWay;
        }
        Ok(self.copies == Copies::Over)
    }
}

impl Maps {
    /// The block of this portion that starts with a byte of the array.
    const fn block(&self, bytes: &Range<u64>) -> u32 {
        ((bytes.start - self.stretch.first_byte) / self.stretch.block_bytes as u64) as u32
    }
}

/// Each block is where it travels from and to: slots of a ring mean nothing here.
impl Places for Maps {
    type Error = Infallible;

    fn store(&mut self, block: Range<u64>, _: u32) -> std::result::Result<(), Infallible> {
        let block = self.block(&block);
        self.sums.set(block);
        Ok(())
    }

    fn load(&mut self, block: Range<u64>, _: u32) -> std::result::Result<bool, Infallible> {
        Ok(self.found.has(self.block(&block)))
    }

    fn skip(&mut self, _: Range<u64>) -> std::result::Result<(), Infallible> {
        Ok(())
    }

    fn found(&mut self, _: u32) {}
}
