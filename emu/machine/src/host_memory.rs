//! The memory of the computer the cards are plugged into, or of a card's Arm cores: the real memory of this process, as far as it was
//! registered there.

use std::cell::{Cell, UnsafeCell};

use emu_nic::DmaFault;

use crate::ranges::Ranges;

/// Registered ranges of host memory, or of Arm memory. The network card reaches either through here only, so an address that was
/// never registered there is a fault of the model and not of this process.
#[derive(Debug, Default)]
pub struct HostMemory {
    ranges: Ranges,
    /// Memory that nobody else has; see [`HostMemory::lend`].
    own: Vec<Box<[Line]>>,
    /// By card.
    writers: Vec<Writer>,
}

/// What is known of a card's writes.
#[derive(Debug, Default)]
struct Writer {
    writes: Cell<u64>,
    /// The registered ranges that it wrote to last, from their first byte to behind their last: with a line at most, and with more. Nearly
    /// always the next write is to the same.
    ranges: [Cell<(u64, u64)>; 2],
}

/// A cache line, reached by raw copies only.
#[repr(align(64))]
#[derive(Debug)]
struct Line(#[expect(dead_code, reason = "reached by its address")] UnsafeCell<[u8; 64]>);

impl HostMemory {
    pub(crate) fn new(cards: usize) -> Self {
        Self { writers: (0..cards).map(|_| Writer::default()).collect(), ..Self::default() }
    }

    /// How often each card, and the threads on it, has written here. While its number stays, the host of a card that has looked at
    /// everything finds nothing new.
    pub fn writes(&self) -> impl ExactSizeIterator<Item = u64> {
        self.writers.iter().map(|writer| writer.writes.get())
    }

    /// Copies what a card writes into registered memory.
    #[allow(unsafe_code)]
    pub(crate) fn write_by(&self, card: usize, addr: u64, data: &[u8]) -> Result<(), DmaFault> {
        let Some(Writer { writes, ranges: [short, long] }) = self.writers.get(card) else {
            return self.write(addr, data);
        };
        writes.set(writes.get() + 1);
        let last = if data.len() <= size_of::<Line>() { short } else { long };
        let (start, end) = last.get();
        if addr < start || addr.checked_add(data.len() as u64).is_none_or(|data_end| data_end > end) {
            last.set(self.ranges.find(addr, data.len())?);
        }
        // SAFETY: the range that was found last holds all bytes, and is forgotten when anything is unregistered.
        unsafe { Self::store(addr, data) };
        Ok(())
    }

    /// Makes `[addr, addr + len)` reachable for the cards until [`HostMemory::unregister`].
    ///
    /// # Safety
    /// The range must be valid for reads and writes for as long as it is registered, and no Rust reference to it may be
    /// live while the machine runs: the rule that `ibv_reg_mr` imposes on its caller.
    #[allow(unsafe_code)]
    pub unsafe fn register(&mut self, addr: u64, len: u64) {
        self.ranges.add(addr, len);
    }

    /// Zeroed, registered memory of whole lines that lives as long as the machine; gives its address. Look at it through
    /// [`HostMemory::read`] and [`HostMemory::write`].
    #[allow(unsafe_code)]
    pub fn lend(&mut self, lines: usize) -> u64 {
        let memory: Box<[Line]> = (0..lines).map(|_| Line(UnsafeCell::new([0; 64]))).collect();
        let addr = memory.as_ptr() as u64;
        self.own.push(memory);
        // SAFETY: the lines are freed with this object and never moved, are cells, and nobody has a reference to them.
        unsafe { self.register(addr, 64 * lines as u64) };
        addr
    }

    /// Takes one registration of exactly this range back; `false` if there was none.
    pub fn unregister(&mut self, addr: u64, len: u64) -> bool {
        if !self.ranges.remove(addr, len) {
            return false;
        }
        self.writers.iter().flat_map(|writer| &writer.ranges).for_each(|range| range.set((0, 0)));
        true
    }

    /// Copies registered memory out.
    #[allow(unsafe_code)]
    pub fn read(&self, addr: u64, out: &mut [u8]) -> Result<(), DmaFault> {
        self.ranges.find(addr, out.len())?;
        // SAFETY: `find` found the whole range inside a registration, whose maker vouched in `register` for its
        // validity until it is taken back; `out` is exclusively borrowed and so cannot overlap it.
        unsafe { std::ptr::copy_nonoverlapping(addr as *const u8, out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    /// Copies bytes into registered memory.
    #[allow(unsafe_code)]
    pub fn write(&self, addr: u64, data: &[u8]) -> Result<(), DmaFault> {
        self.ranges.find(addr, data.len())?;
        // SAFETY: the bytes are all in a registered range.
        unsafe { Self::store(addr, data) };
        Ok(())
    }

    /// Copies bytes to an address.
    ///
    /// # Safety
    /// [`Ranges::find`] has found a range with all of them, and nothing has been unregistered since.
    #[allow(unsafe_code)]
    unsafe fn store(addr: u64, data: &[u8]) {
        // SAFETY: as in `read`; `data` belongs to the machine (a packet or device memory), never to registered memory.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), addr as *mut u8, data.len()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lent_memory_is_whole_lines_of_zeros() {
        let mut memory = HostMemory::default();
        let addr = memory.lend(3);
        assert!(addr.is_multiple_of(64));
        memory.write(addr + 190, &[1, 2]).unwrap();
        let mut out = [9; 192];
        memory.read(addr, &mut out).unwrap();
        assert_eq!((out[0], &out[189..]), (0, &[0, 1, 2][..]));
        assert!(memory.read(addr + 1, &mut out).is_err());
    }

    #[test]
    #[allow(unsafe_code)]
    fn only_registered_bytes_are_reached() {
        let mut memory = HostMemory::default();
        let mut buffer = vec![7u8; 128];
        let addr = buffer.as_mut_ptr() as u64;
        let mut out = [0u8; 16];
        assert!(memory.read(addr, &mut out).is_err());
        // SAFETY: `buffer` outlives the registration and is not touched while the memory is used.
        unsafe { memory.register(addr, 128) };
        memory.read(addr + 112, &mut out).unwrap();
        assert_eq!(out, [7; 16]);
        assert!(memory.read(addr + 113, &mut out).is_err());
        memory.write(addr, &[1, 2]).unwrap();
        assert!(memory.unregister(addr, 128));
        assert!(!memory.unregister(addr, 128));
        assert!(memory.write(addr, &[1]).is_err());
        assert_eq!(&buffer[..3], &[1, 2, 7]);
    }
}
