//! The memory of one DPA process: image segments, heap, thread blocks. Windows and MMIO are the bus's affair.

use emu_nic::DmaFault;
use flexcast_image::Image;

use crate::dpa::layout::{
    CONTEXT_OFFSET, EXECUTION_UNITS, HEAP, IMAGE_RANGE, STACK_OFFSET, THREAD_BACKED, THREAD_BLOCK, THREADS,
};
use crate::error::MachineError;

/// Longest segment: the code and data regions of the linker scripts are 128 MiB each.
const MAX_SEGMENT_BYTES: u64 = 128 << 20;
/// Most bytes of all segments: both regions.
const MAX_IMAGE_BYTES: u64 = 2 * MAX_SEGMENT_BYTES;

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
    heap: Vec<u8>,
    /// One block per execution unit that ever had a thread.
    threads: Vec<Option<Box<[u8]>>>,
}

impl ProcessMemory {
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
        Ok(ProcessMemory { segments, heap: vec![0; heap_bytes as usize], threads: vec![None; EXECUTION_UNITS] })
    }

    /// The loaded segments, by ascending address.
    pub(crate) fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Backs the stack and the context page of a thread slot with zeroed memory.
    pub fn map_thread(&mut self, slot: usize) {
        self.threads[slot] = Some(vec![0; THREAD_BACKED as usize].into_boxed_slice());
    }

    /// The bytes at `[addr, addr + len)`, if they are all memory of one region and readable.
    #[inline(always)]
    #[must_use]
    pub fn bytes(&self, addr: u64, len: usize) -> Option<&[u8]> {
        if addr >= HEAP {
            let at = (addr - HEAP) as usize;
            return self.heap.get(at..at.checked_add(len)?);
        }
        if let Some((slot, at)) = thread_offset(addr) {
            return self.threads.get(slot)?.as_deref()?.get(at..at.checked_add(len)?);
        }
        self.image_bytes(addr, len)
    }

    /// The word of `W` bytes at an address, as [`ProcessMemory::bytes`] finds it.
    #[inline(always)]
    pub(crate) fn word<const W: usize>(&self, addr: u64) -> Option<&[u8; W]> {
        if addr >= HEAP {
            return self.heap.get((addr - HEAP) as usize..)?.first_chunk();
        }
        if let Some((slot, at)) = thread_offset(addr) {
            return self.threads.get(slot)?.as_deref()?.get(at..)?.first_chunk();
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
            let at = (addr - HEAP) as usize;
            return self.heap.get_mut(at..at.checked_add(len)?);
        }
        if let Some((slot, at)) = thread_offset(addr) {
            return self.threads.get_mut(slot)?.as_deref_mut()?.get_mut(at..at.checked_add(len)?);
        }
        self.image_bytes_mut(addr, len)
    }

    /// The same for writing.
    #[inline(always)]
    pub(crate) fn word_mut<const W: usize>(&mut self, addr: u64) -> Option<&mut [u8; W]> {
        if addr >= HEAP {
            return self.heap.get_mut((addr - HEAP) as usize..)?.first_chunk_mut();
        }
        if let Some((slot, at)) = thread_offset(addr) {
            return self.threads.get_mut(slot)?.as_deref_mut()?.get_mut(at..)?.first_chunk_mut();
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
