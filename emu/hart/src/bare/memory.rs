//! The memory of a bare-metal program.

use super::board::{RAM, RAM_BYTES};
use super::{BareError, Board, Options, Program};
use crate::bus::{Fault, Width};

/// The most memory that a program may ask for, all parts together.
const LIMIT_BYTES: u64 = 4 << 30;
const PAGE: u64 = 4096;

/// Address, bytes, length in memory.
type Segment<'a> = (u64, &'a [u8], u64);

/// Address ranges backed by bytes.
#[derive(Debug)]
pub(super) struct Memory {
    /// Ascending, without overlap.
    regions: Vec<Region>,
    /// Where the last access was; the next is likely there too.
    last: usize,
}

#[derive(Debug)]
struct Region {
    base: u64,
    bytes: Vec<u8>,
}

/// Where things were put.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) stack_base: u64,
    pub(super) stack_end: u64,
    pub(super) heap_base: u64,
    pub(super) heap_end: u64,
}

impl Memory {
    pub(super) fn new(program: &Program<'_>, options: &Options) -> Result<(Memory, Layout), BareError> {
        let segments = check(program)?;
        match options.board {
            Board::Flat => Self::flat(&segments, options),
            Board::Virt => Self::virt(&segments),
        }
    }

    /// The RAM of the `virt` machine with the program in it.
    fn virt(segments: &[Segment<'_>]) -> Result<(Memory, Layout), BareError> {
        let mut ram = vec![0; RAM_BYTES as usize];
        for &(base, bytes, len) in segments {
            if base < RAM || base + len > RAM + RAM_BYTES {
                return Err(BareError::OutsideRam { base, len, ram: RAM, ram_bytes: RAM_BYTES });
            }
            let at = (base - RAM) as usize;
            ram[at..at + bytes.len()].copy_from_slice(bytes);
        }
        let end = RAM + RAM_BYTES;
        let layout = Layout { stack_base: end, stack_end: end, heap_base: end, heap_end: end };
        Ok((Memory { regions: vec![Region { base: RAM, bytes: ram }], last: 0 }, layout))
    }

    /// The program's segments, a heap and a stack.
    fn flat(segments: &[Segment<'_>], options: &Options) -> Result<(Memory, Layout), BareError> {
        let &(highest, _, highest_len) = &segments[segments.len() - 1];
        let needed = segments
            .iter()
            .map(|&(_, _, len)| len)
            .chain([options.stack_bytes, options.heap_bytes])
            .fold(0, u64::saturating_add);
        if needed > LIMIT_BYTES {
            return Err(BareError::TooLarge { needed, limit: LIMIT_BYTES });
        }

        // Above the program where there is room, with a page between that is not there, to catch overruns; below it
        // otherwise.
        let stack_bytes = options.stack_bytes.next_multiple_of(16);
        let heap_base = (highest + highest_len).checked_next_multiple_of(PAGE);
        let above = heap_base.and_then(|heap_base| {
            let heap_end = heap_base.checked_add(options.heap_bytes)?.checked_next_multiple_of(PAGE)?;
            let stack_base = heap_end.checked_add(PAGE)?;
            let stack_end = stack_base.checked_add(stack_bytes)?;
            Some(Layout { stack_base, stack_end, heap_base, heap_end: heap_base + options.heap_bytes })
        });
        let below = || {
            let stack_end = (segments[0].0.checked_sub(PAGE)?) & !15;
            let stack_base = stack_end.checked_sub(stack_bytes).filter(|&base| base >= PAGE)?;
            Some(Layout { stack_base, stack_end, heap_base: 0, heap_end: 0 })
        };
        let layout = above.or_else(below).ok_or(BareError::NoRoomForStack { bytes: stack_bytes })?;

        let mut regions: Vec<Region> = segments
            .iter()
            .map(|&(base, bytes, len)| {
                let mut memory = vec![0; len as usize];
                memory[..bytes.len()].copy_from_slice(bytes);
                Region { base, bytes: memory }
            })
            .collect();
        for (base, end) in [(layout.heap_base, layout.heap_end), (layout.stack_base, layout.stack_end)] {
            if end > base {
                regions.push(Region { base, bytes: vec![0; (end - base) as usize] });
            }
        }
        // Ranges that touch make one, so that an access may span both.
        regions.sort_by_key(|region| region.base);
        regions.dedup_by(|next, region| {
            let joins = region.base + region.bytes.len() as u64 == next.base;
            if joins {
                region.bytes.append(&mut next.bytes);
            }
            joins
        });
        Ok((Memory { regions, last: 0 }, layout))
    }

    /// The `len` bytes at `addr`, if all of them are in one region.
    #[inline]
    pub(super) fn bytes(&mut self, addr: u64, len: u64) -> Option<&mut [u8]> {
        let inside = |region: &Region| {
            let offset = addr.wrapping_sub(region.base);
            let size = region.bytes.len() as u64;
            offset < size && len <= size - offset
        };
        if !inside(&self.regions[self.last]) {
            self.last = self.regions.iter().position(inside)?;
        }
        let region = &mut self.regions[self.last];
        let offset = (addr - region.base) as usize;
        Some(&mut region.bytes[offset..offset + len as usize])
    }

    pub(super) fn load(&mut self, addr: u64, width: Width) -> Result<u64, Fault> {
        let bytes = self.bytes(addr, width.bytes()).ok_or(Fault::load_access(addr))?;
        let mut value = [0; 8];
        value[..bytes.len()].copy_from_slice(bytes);
        Ok(u64::from_le_bytes(value))
    }

    pub(super) fn store(&mut self, addr: u64, width: Width, value: u64) -> Result<(), Fault> {
        let bytes = self.bytes(addr, width.bytes()).ok_or(Fault::store_access(addr))?;
        let len = bytes.len();
        bytes.copy_from_slice(&value.to_le_bytes()[..len]);
        Ok(())
    }

    pub(super) fn fetch16(&mut self, addr: u64) -> Result<u16, Fault> {
        let bytes = self.bytes(addr, 2).ok_or(Fault::instruction_access(addr))?;
        Ok(u16::from_le_bytes([bytes[0], bytes[1]]))
    }
}

/// The segments that hold anything, ascending, checked.
fn check<'a>(program: &Program<'a>) -> Result<Vec<Segment<'a>>, BareError> {
    let mut segments = program.segments.clone();
    segments.retain(|&(_, _, len)| len > 0);
    segments.sort_by_key(|&(base, _, _)| base);
    if segments.is_empty() {
        return Err(BareError::NoSegments { entry: program.entry });
    }
    for &(base, bytes, len) in &segments {
        if bytes.len() as u64 > len {
            return Err(BareError::SegmentTooShort { base, bytes: bytes.len() as u64, len });
        }
        if base.checked_add(len).is_none() {
            return Err(BareError::SegmentWraps { base, len });
        }
    }
    for pair in segments.windows(2) {
        if pair[0].0 + pair[0].2 > pair[1].0 {
            return Err(BareError::SegmentsOverlap { first: pair[0].0, second: pair[1].0 });
        }
    }
    Ok(segments)
}

/// Puts the arguments on the stack as the Linux process start-up convention lays them out; gives the stack pointer.
pub(super) fn place_arguments(memory: &mut Memory, layout: &Layout, arguments: &[String]) -> Result<u64, BareError> {
    let text_bytes: u64 = arguments.iter().map(|argument| argument.len() as u64 + 1).sum();
    // The number, the pointers and their end, the end of the environment, and an empty auxiliary vector of two words.
    let words = 1 + arguments.len() as u64 + 1 + 1 + 2;
    let needed = text_bytes.next_multiple_of(16) + (words * 8).next_multiple_of(16);
    let available = layout.stack_end - layout.stack_base;
    if needed > available {
        return Err(BareError::ArgumentsTooLong { needed, available });
    }
    let sp = layout.stack_end - needed;
    let mut text_at = layout.stack_end - text_bytes.next_multiple_of(16);
    let mut block = vec![arguments.len() as u64];
    for argument in arguments {
        block.push(text_at);
        if let Some(bytes) = memory.bytes(text_at, argument.len() as u64) {
            bytes.copy_from_slice(argument.as_bytes());
        }
        text_at += argument.len() as u64 + 1;
    }
    let block: Vec<u8> = block.into_iter().flat_map(u64::to_le_bytes).collect();
    if let Some(bytes) = memory.bytes(sp, block.len() as u64) {
        bytes.copy_from_slice(&block);
    }
    Ok(sp)
}
