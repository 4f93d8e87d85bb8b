//! The memory of one DPA process: image segments, heap, thread blocks. Windows and MMIO are the bus's affair.

use emu_nic::DmaFault;
use flexcast_image::Image;

use crate::dpa::layout::{
    CONTEXT_OFFSET, EXECUTION_UNITS, HEAP, IMAGE_RANGE, STACK_OFFSET, THREAD_BACKED, THREAD_BLOCK, THREADS,
};
use crate::error::MachineError;
use crate::near;

/// Longest segment: the code and data regions of the linker scripts are 128 MiB each.
const MAX_SEGMENT_BYTES: u64 = 128 << 20;
/// Most bytes of all segments: both regions.
const MAX_IMAGE_BYTES: u64 = 2 * MAX_SEGMENT_BYTES;

const _: () = assert!(EXECUTION_UNITS.is_multiple_of(64));

/// Bytes that back all thread blocks.
const ALL_THREADS_BACKED: usize = EXECUTION_UNITS * THREAD_BACKED as usize;
const _: () = assert!(ALL_THREADS_BACKED % near::LARGE_PAGE_BYTES == near::LARGE_PAGE_BYTES / 2);

/// A loaded segment.
#[derive(Debug)]
pub(crate) struct Segment {
    /// Device address of the first byte.
    pub(crate) base: u64,
    /// Its bytes, zero-extended to the size in memory.
    pub(crate) bytes: Vec<u8>,
    /// Whether stores are allowed.
    pub(crate) writable: bool,
    /// Whether instruction fetch is allowed.
    pub(crate) executable: bool,
}

/// All memory of a process that is reached by plain loads and stores.
#[derive(Debug)]
pub struct ProcessMemory {
    segments: Vec<Segment>,
    /// The backed parts of the thread blocks, the first one last, and the heap behind them: in one piece, so that what
    /// is used of both shares a large page of the machine that runs the emulator.
    backing: Vec<u8>,
    heap_at: usize,
    /// By execution unit, a bit each: whether it ever had a thread. Read at each access to a stack, of hundreds
    /// of processes in turn.
    mapped: [u64; EXECUTION_UNITS / 64],
    /// An access that was not aligned has been reported.
    reported_misaligned: bool,
}

impl ProcessMemory {
    /// Whether no access that was not aligned has been reported.
    pub(crate) fn first_misaligned(&mut self) -> bool {
        !std::mem::replace(&mut self.reported_misaligned, true)
    }

    /// Loads the segments of an image and makes a zeroed heap.
    pub fn load(image: &Image, heap_bytes: u64) -> Result<Self, MachineError> {
        // They do not overlap, so the sum is less than the address space.
        let image_bytes = image.segments().iter().map(|segment| segment.mem_size).sum::<u64>();
        let mut segments = Vec::new();
        for segment in image.segments() {
            let end = segment.vaddr.checked_add(segment.mem_size);
            let inside = segment.vaddr >= IMAGE_RANGE.start && end.is_some_and(|end| end <= IMAGE_RANGE.end);
            if !inside || segment.mem_size > MAX_SEGMENT_BYTES {
                return Err(MachineError::Segment { addr: segment.vaddr, bytes: segment.mem_size });
            }
            if image_bytes > MAX_IMAGE_BYTES {
                return Err(MachineError::ImageSize { bytes: image_bytes, limit: MAX_IMAGE_BYTES });
            }
            let mut bytes = segment.bytes.clone();
            bytes.resize(segment.mem_size as usize, 0);
            segments.push(Segment { base: segment.vaddr, bytes, writable: segment.write, executable: segment.execute });
        }
        let mut backing = vec![0; near::LARGE_PAGE_BYTES + ALL_THREADS_BACKED + heap_bytes as usize];
        // Half of the page in which the heap begins is for the blocks of the first 36 execution units.
        let heap_at = near::to_large_page(&backing) + ALL_THREADS_BACKED;
        backing.truncate(heap_at + heap_bytes as usize);
        if heap_bytes as usize >= near::LARGE_PAGE_BYTES {
            near::ask_for_large_pages(&mut backing);
        }
        Ok(ProcessMemory { segments, backing, heap_at, mapped: [0; EXECUTION_UNITS / 64], reported_misaligned: false })
    }

    /// The loaded segments, by ascending address.
    pub(crate) fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Backs the stack and the context page of a thread slot with zeroed memory.
    pub fn map_thread(&mut self, slot: usize) {
        let start = self.block(slot);
        self.backing[start..start + THREAD_BACKED as usize].fill(0);
        self.mapped[slot / 64] |= 1 << (slot % 64);
    }

    /// Where in the backing the block of a thread slot begins.
    #[inline(always)]
    fn block(&self, slot: usize) -> usize {
        self.heap_at - (slot + 1) * THREAD_BACKED as usize
    }

    /// Where in the backing `len` bytes of a thread block are, if it is mapped and has them.
    #[inline(always)]
    fn in_block(&self, slot: usize, at: usize, len: usize) -> Option<usize> {
        let inside = self.mapped[slot / 64] >> (slot % 64) & 1 == 1 && len <= THREAD_BACKED as usize - at;
        inside.then(|| self.block(slot) + at)
    }

    /// The bytes at `[addr, addr + len)`, if they are all memory of one region and readable.
    #[inline(always)]
    #[must_use]
    pub fn bytes(&self, addr: u64, len: usize) -> Option<&[u8]> {
        if addr >= HEAP {
            let at = self.heap_at.checked_add((addr - HEAP) as usize)?;
            return self.backing.get(at..at.checked_add(len)?);
        }
        if let Some((slot, at)) = thread_offset(addr) {
            let at = self.in_block(slot, at, len)?;
            return self.backing.get(at..at + len);
        }
        self.image_bytes(addr, len)
    }

    /// The word of `W` bytes at an address, as [`ProcessMemory::bytes`] finds it.
    #[inline(always)]
    pub(crate) fn word<const W: usize>(&self, addr: u64) -> Option<&[u8; W]> {
        if addr >= HEAP {
            let at = self.heap_at.checked_add((addr - HEAP) as usize)?;
            return self.backing.get(at..)?.first_chunk();
        }
        if let Some((slot, at)) = thread_offset(addr) {
            return self.backing.get(self.in_block(slot, at, W)?..)?.first_chunk();
        }
        self.image_bytes(addr, W)?.first_chunk()
    }

    #[inline(never)]
    fn image_bytes(&self, addr: u64, len: usize) -> Option<&[u8]> {
        let segment = self.segments.iter().find(|s| addr.wrapping_sub(s.base) < s.bytes.len() as u64)?;
        let at = (addr - segment.base) as usize;
        segment.bytes.get(at..at.checked_add(len)?)
    }

    /// The same for writing.
    #[inline(always)]
    pub fn bytes_mut(&mut self, addr: u64, len: usize) -> Option<&mut [u8]> {
        if addr >= HEAP {
            let at = self.heap_at.checked_add((addr - HEAP) as usize)?;
            return self.backing.get_mut(at..at.checked_add(len)?);
        }
        if let Some((slot, at)) = thread_offset(addr) {
            let at = self.in_block(slot, at, len)?;
            return self.backing.get_mut(at..at + len);
        }
        self.image_bytes_mut(addr, len)
    }

    /// The same for writing.
    #[inline(always)]
    pub(crate) fn word_mut<const W: usize>(&mut self, addr: u64) -> Option<&mut [u8; W]> {
        if addr >= HEAP {
            let at = self.heap_at.checked_add((addr - HEAP) as usize)?;
            return self.backing.get_mut(at..)?.first_chunk_mut();
        }
        if let Some((slot, at)) = thread_offset(addr) {
            let at = self.in_block(slot, at, W)?;
            return self.backing.get_mut(at..)?.first_chunk_mut();
        }
        self.image_bytes_mut(addr, W)?.first_chunk_mut()
    }

    #[inline(never)]
    fn image_bytes_mut(&mut self, addr: u64, len: usize) -> Option<&mut [u8]> {
        let segment =
            self.segments.iter_mut().find(|s| s.writable && addr.wrapping_sub(s.base) < s.bytes.len() as u64)?;
        let at = (addr - segment.base) as usize;
        segment.bytes.get_mut(at..at.checked_add(len)?)
    }

    /// Two instruction bytes, if they are executable.
    #[must_use]
    pub fn fetch16(&self, addr: u64) -> Option<u16> {
        let segment =
            self.segments.iter().find(|s| s.executable && addr.wrapping_sub(s.base) < s.bytes.len() as u64)?;
        let at = (addr - segment.base) as usize;
        let bytes = segment.bytes.get(at..at + 2)?;
        Some(u16::from_le_bytes([bytes[0], bytes[1]]))
    }

    /// DMA read by the network card.
    pub fn dma_read(&self, addr: u64, out: &mut [u8]) -> Result<(), DmaFault> {
        let bytes = self.bytes(addr, out.len()).ok_or(DmaFault { addr, len: out.len() as u64 })?;
        out.copy_from_slice(bytes);
        Ok(())
    }

    /// DMA write by the network card.
    pub fn dma_write(&mut self, addr: u64, data: &[u8]) -> Result<(), DmaFault> {
        let bytes = self.bytes_mut(addr, data.len()).ok_or(DmaFault { addr, len: data.len() as u64 })?;
        bytes.copy_from_slice(data);
        Ok(())
    }
}

/// Slot and offset of an address in a thread block, if it is backed (stack or context page, not the guard).
#[inline(always)]
fn thread_offset(addr: u64) -> Option<(usize, usize)> {
    let at = addr.wrapping_sub(THREADS);
    if at >= EXECUTION_UNITS as u64 * THREAD_BLOCK {
        return None;
    }
    let offset = at % THREAD_BLOCK;
    let in_stack = (STACK_OFFSET..STACK_OFFSET + crate::dpa::layout::STACK_BYTES).contains(&offset);
    let in_context = (CONTEXT_OFFSET..THREAD_BACKED).contains(&offset);
    // A block that is not backed keeps its address range, so neighbours' overflows fault instead of corrupting.
    (in_stack || in_context).then_some(((at / THREAD_BLOCK) as usize, offset as usize))
}

/// The number that `W` bytes (8 at most) hold. A length that the compiler knows: one instruction, and no call to copy.
#[inline(always)]
pub(crate) fn number<const W: usize>(bytes: &[u8; W]) -> u64 {
    let mut wide = [0; 8];
    wide[..W].copy_from_slice(bytes);
    u64::from_le_bytes(wide)
}

/// Sets it.
#[inline(always)]
pub(crate) fn set_number<const W: usize>(bytes: &mut [u8; W], value: u64) {
    bytes.copy_from_slice(&value.to_le_bytes()[..W]);
}

/// The word of `width` bytes (1, 2, 4 or 8) that `bytes` begin with.
#[inline(always)]
pub(crate) fn word(bytes: &[u8], width: usize) -> u64 {
    match width {
        1 => u64::from(bytes[0]),
        2 => bytes.first_chunk().map_or(0, number::<2>),
        4 => bytes.first_chunk().map_or(0, number::<4>),
        _ => bytes.first_chunk().map_or(0, number::<8>),
    }
}

/// Sets it.
#[inline(always)]
pub(crate) fn set_word(bytes: &mut [u8], width: usize, value: u64) {
    match width {
        1 => bytes[0] = value as u8,
        2 => bytes[..2].copy_from_slice(&(value as u16).to_le_bytes()),
        4 => bytes[..4].copy_from_slice(&(value as u32).to_le_bytes()),
        _ => bytes[..8].copy_from_slice(&value.to_le_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dpa::layout::STACK_BYTES;

    fn memory(heap_bytes: u64) -> ProcessMemory {
        let image = Image::parse(&flexcast_image::testing::TestElf::image(&[("nothing", &[0x8067])]).bytes()).unwrap();
        ProcessMemory::load(&image, heap_bytes).unwrap()
    }

    #[test]
    fn blocks_and_heap_share_no_byte_and_end_where_they_end() {
        let mut memory = memory(4096);
        let block = |slot: usize| THREADS + slot as u64 * THREAD_BLOCK;
        assert!(memory.bytes(block(3) + STACK_OFFSET, 8).is_none(), "no thread has been there");
        let slots = [0, 1, 3, EXECUTION_UNITS - 1];
        slots.into_iter().for_each(|slot| memory.map_thread(slot));
        let places: Vec<u64> = slots
            .into_iter()
            .flat_map(|slot| [STACK_OFFSET, CONTEXT_OFFSET, THREAD_BACKED - 8].map(|at| block(slot) + at))
            .chain([HEAP, HEAP + 4088])
            .collect();
        for (&place, value) in places.iter().zip(1..) {
            assert_eq!(memory.word::<8>(place).map(number), Some(0), "{place:#x}");
            set_number(memory.word_mut::<8>(place).unwrap(), value);
        }
        for (&place, value) in places.iter().zip(1..) {
            assert_eq!(memory.word::<8>(place).map(number), Some(value), "{place:#x}");
            assert_eq!(memory.bytes(place, 8).map(|bytes| word(bytes, 8)), Some(value), "{place:#x}");
        }
        let beyond = [
            block(2) + STACK_OFFSET,
            block(0) + STACK_OFFSET - 8,
            block(0) + STACK_OFFSET + STACK_BYTES,
            block(0) + THREAD_BACKED,
            block(0) + THREAD_BACKED - 4,
            block(EXECUTION_UNITS - 1) + THREAD_BACKED - 4,
            HEAP + 4089,
            HEAP + 4096,
            u64::MAX - 7,
        ];
        for place in beyond {
            let found = (memory.word::<8>(place).is_some(), memory.bytes(place, 8).is_some());
            assert_eq!(found, (false, false), "{place:#x}");
            let found = (memory.word_mut::<8>(place).is_some(), memory.bytes_mut(place, 8).is_some());
            assert_eq!(found, (false, false), "{place:#x}");
        }
        memory.map_thread(3);
        assert_eq!(memory.word::<8>(block(3) + STACK_OFFSET).map(number), Some(0), "a new thread finds zeros");
        assert_eq!(memory.word::<8>(block(1) + STACK_OFFSET).map(number), Some(4), "its neighbour has what it had");
    }
}
