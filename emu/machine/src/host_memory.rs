//! The memory of the computer the cards are plugged into, or of a card's Arm cores: the real memory of this process, as
//! far as it was registered there.

use std::cell::{Cell, UnsafeCell};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use emu_nic::DmaFault;

use crate::ranges::Ranges;

/// Registered ranges of host memory, or of Arm memory. The network card reaches either through here only, so an address
/// that was never registered there is a fault of the model and not of this process.
#[derive(Debug, Default)]
pub struct HostMemory {
    ranges: Ranges,
    /// Memory that nobody else has; see [`HostMemory::allocate`].
    own: Vec<Lines>,
    /// By card.
    writers: Vec<Writer>,
}

/// What is known of a card's writes.
#[derive(Debug, Default)]
struct Writer {
    writes: Cell<u64>,
    /// The registered ranges that it wrote to last, from their first byte to behind their last: with a line at most,
    /// and with more. Nearly always the next write is to the same.
    ranges: [Cell<(u64, u64)>; 2],
}

/// A cache line, reached by raw copies only.
#[repr(align(64))]
#[derive(Debug)]
struct Line(#[expect(dead_code, reason = "reached by its address")] UnsafeCell<[u8; LINE_BYTES]>);

const LINE_BYTES: usize = 64;

/// Lines of its own. It has them by the pointer that their address was taken from: a box that is moved ends what was
/// derived from it.
#[derive(Debug)]
struct Lines(NonNull<[Line]>);

// SAFETY: the lines belong to this object, and nothing ties them to a thread.
#[allow(unsafe_code)]
unsafe impl Send for Lines {}

impl Lines {
    fn zeroed(lines: usize) -> Self {
        let memory: Box<[Line]> = (0..lines).map(|_| Line(UnsafeCell::new([0; LINE_BYTES]))).collect();
        Self(NonNull::from(Box::leak(memory)))
    }

    /// Address of the first byte.
    fn addr(&self) -> u64 {
        self.0.as_ptr().cast::<u8>().expose_provenance() as u64
    }
}

impl Drop for Lines {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: the pointer is that of a box, which was leaked in `zeroed` and is made anew here alone.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl HostMemory {
    pub(crate) fn new(cards: usize) -> Self {
        Self { writers: (0..cards).map(|_| Writer::default()).collect(), ..Self::default() }
    }

    /// How often each card, and the threads on it, has written here. While its number stays, the host of a card that
    /// has read everything finds nothing new.
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
        let last = if data.len() <= LINE_BYTES { short } else { long };
        let (start, end) = last.get();
        if addr < start || addr.checked_add(data.len() as u64).is_none_or(|data_end| data_end > end) {
            last.set(self.ranges.find(addr, data.len())?);
        }
        // SAFETY: the range that was found last holds all bytes, and is forgotten when anything is unregistered.
        unsafe { store(addr, data) };
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

    /// Zeroed, registered memory of whole lines that lives as long as the machine; gives its address. Access it
    /// through [`HostMemory::read`] and [`HostMemory::write`].
    #[allow(unsafe_code)]
    pub fn allocate(&mut self, lines: usize) -> u64 {
        let memory = Lines::zeroed(lines);
        let addr = memory.addr();
        self.own.push(memory);
        // SAFETY: the lines are freed with this object and never moved, are cells, and nobody has a reference to them.
        unsafe { self.register(addr, (LINE_BYTES * lines) as u64) };
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

    /// Copies registered memory out. Up to a line of whole words is read as a card reads it: each word at once, and
    /// what the host has written before such a word is found by later reads.
    #[allow(unsafe_code)]
    pub fn read(&self, addr: u64, out: &mut [u8]) -> Result<(), DmaFault> {
        self.ranges.find(addr, out.len())?;
        // SAFETY: `find` found the whole range inside a registration, whose maker vouched in `register` for its
        // validity until it is taken back; `out` is exclusively borrowed and so cannot overlap it.
        unsafe { load(addr, out) };
        Ok(())
    }

    /// Copies bytes into registered memory.
    #[allow(unsafe_code)]
    pub fn write(&self, addr: u64, data: &[u8]) -> Result<(), DmaFault> {
        self.ranges.find(addr, data.len())?;
        // SAFETY: the bytes are all in a registered range.
        unsafe { store(addr, data) };
        Ok(())
    }
}

const WORD_BYTES: usize = size_of::<u64>();

/// Copies bytes to an address, upwards. Threads of the host read the memory meanwhile: who finds the last word
/// there, when that is whole, finds everything that was stored before. A half word, which doorbell records have, is
/// such a word, too.
///
/// # Safety
/// [`Ranges::find`] has found a range with all of them, and nothing has been unregistered since.
#[allow(unsafe_code)]
unsafe fn store(addr: u64, data: &[u8]) {
    let to = std::ptr::with_exposed_provenance_mut::<u8>(addr as usize);
    if data.len() == size_of::<u32>() && addr.is_multiple_of(size_of::<u32>() as u64) {
        let half = u32::from_ne_bytes(std::array::from_fn(|at| data[at]));
        // SAFETY: four bytes of the range, aligned. What the host reads of them at the same time it reads as atomics.
        return unsafe { AtomicU32::from_ptr(to.cast()) }.store(half, Ordering::Release);
    }
    // Bytes that end within a word are nothing that a host waits for.
    let whole = (addr + data.len() as u64).is_multiple_of(WORD_BYTES as u64);
    let last = data.last_chunk::<WORD_BYTES>().filter(|_| whole);
    let first = data.len() - last.map_or(0, |_| WORD_BYTES);
    let (words, rest) = data[..first].as_chunks::<WORD_BYTES>();
    if last.is_some() && rest.is_empty() && first < LINE_BYTES {
        for (at, word) in words.iter().enumerate() {
            // SAFETY: a word of the range: it begins whole words before an aligned end.
            let to = unsafe { AtomicU64::from_ptr(to.cast::<u64>().add(at)) };
            to.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
        }
    } else {
        // SAFETY: bytes of the range; `data` belongs to the machine (a packet or device memory), never to registered
        // memory. The host reads them once it has found what is stored after them.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to, first) };
    }
    if let Some(word) = last {
        // SAFETY: the last word of the range, whose end is aligned.
        unsafe { AtomicU64::from_ptr(to.add(first).cast()) }.store(u64::from_ne_bytes(*word), Ordering::Release);
    }
}

/// Copies bytes from an address; see [`HostMemory::read`].
///
/// # Safety
/// As [`store`], and `out` is not in the range.
#[allow(unsafe_code)]
unsafe fn load(addr: u64, out: &mut [u8]) {
    let from = std::ptr::with_exposed_provenance_mut::<u8>(addr as usize);
    if out.len() == size_of::<u32>() && addr.is_multiple_of(size_of::<u32>() as u64) {
        // SAFETY: four bytes of the range, aligned.
        let half = unsafe { AtomicU32::from_ptr(from.cast()) }.load(Ordering::Acquire);
        return out.copy_from_slice(&half.to_ne_bytes());
    }
    let aligned = addr.is_multiple_of(WORD_BYTES as u64) && out.len() <= LINE_BYTES;
    let (words, rest) = out.as_chunks_mut::<WORD_BYTES>();
    if !aligned || !rest.is_empty() {
        // SAFETY: the caller has checked the range. The host writes it before it rings the card.
        return unsafe { std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len()) };
    }
    for (at, word) in words.iter_mut().enumerate() {
        // SAFETY: an aligned word of the range.
        let from = unsafe { AtomicU64::from_ptr(from.cast::<u64>().add(at)) };
        *word = from.load(Ordering::Relaxed).to_ne_bytes();
    }
    fence(Ordering::Acquire);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_memory_is_whole_lines_of_zeros() {
        let mut memory = HostMemory::default();
        let addr = memory.allocate(3);
        assert!(addr.is_multiple_of(64));
        memory.write(addr + 190, &[1, 2]).unwrap();
        let mut out = [9; 192];
        memory.read(addr, &mut out).unwrap();
        assert_eq!((out[0], &out[189..]), (0, &[0, 1, 2][..]));
        assert!(memory.read(addr + 1, &mut out).is_err());
    }

    /// Every place and length around words and lines, against a plain copy.
    #[test]
    fn bytes_of_any_place_and_length_are_copied() {
        let mut memory = HostMemory::default();
        let addr = memory.allocate(4);
        // Miri takes long.
        let step = if cfg!(miri) { 7 } else { 1 };
        for (start, len) in (0..17).step_by(step).flat_map(|start| (0..150).step_by(step).map(move |len| (start, len)))
        {
            memory.write(addr, &[0xEE; 256]).unwrap();
            let data: Vec<u8> = (0..len).map(|at| at as u8 ^ 0x55).collect();
            memory.write(addr + start, &data).unwrap();
            let (mut all, mut own) = ([0; 256], vec![0; len]);
            memory.read(addr, &mut all).unwrap();
            memory.read(addr + start, &mut own).unwrap();
            let mut expected = [0xEE; 256];
            expected[start as usize..][..len].copy_from_slice(&data);
            assert!(all == expected && own == data, "{len} bytes at {start}");
        }
    }

    /// Memory of the machine's own goes with the object, wherever that has moved, and to whatever thread.
    #[test]
    fn own_memory_stays_where_it_is_when_its_owner_moves() {
        let mut memory = HostMemory::default();
        let addrs: Vec<u64> = (1..40).map(|lines| memory.allocate(lines)).collect();
        let moved = Box::new(memory);
        std::thread::spawn(move || {
            for (addr, value) in addrs.iter().zip(1..) {
                moved.write(*addr, &[value; 64]).unwrap();
            }
            for (addr, value) in addrs.iter().zip(1..) {
                let mut out = [0; 64];
                moved.read(*addr, &mut out).unwrap();
                assert_eq!(out, [value; 64]);
            }
        })
        .join()
        .unwrap();
    }

    /// A host that finds a flag finds the data that the card has written before it, and the other way round.
    #[test]
    #[allow(unsafe_code)]
    fn who_finds_a_word_finds_what_was_written_before_it() {
        const ROUNDS: u64 = if cfg!(miri) { 20 } else { 500 };
        /// A flag, the answer to it, and the data.
        struct Shared([AtomicU64; 2], UnsafeCell<[u8; 100]>);
        // SAFETY: the data goes to and fro between two threads by the two words.
        unsafe impl Sync for Shared {}
        let shared = Shared([AtomicU64::new(0), AtomicU64::new(0)], UnsafeCell::new([0; 100]));
        let addr_of = |word: usize| shared.0[word].as_ptr().expose_provenance() as u64;
        let (flag, answer, data) = (addr_of(0), addr_of(1), shared.1.get().expose_provenance() as u64);
        let mut memory = HostMemory::default();
        // SAFETY: all of it outlives `memory`, and no reference to the data lives while the other thread has it.
        unsafe {
            memory.register(flag, 8);
            memory.register(answer, 8);
            memory.register(data, 100);
        }
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let shared = &shared;
                for round in 1..=ROUNDS {
                    while shared.0[0].load(Ordering::Acquire) != round {
                        std::thread::yield_now();
                    }
                    // SAFETY: the card has written the flag, and waits for the answer.
                    let data = unsafe { &mut *shared.1.get() };
                    assert_eq!(*data, [round as u8; 100]);
                    data.fill(!round as u8);
                    shared.0[1].store(round, Ordering::Release);
                }
            });
            let mut out = [0; 100];
            for round in 1..=ROUNDS {
                memory.write(data, &[round as u8; 100]).unwrap();
                memory.write(flag, &round.to_ne_bytes()).unwrap();
                let mut word = [0; 8];
                while u64::from_ne_bytes(word) != round {
                    std::thread::yield_now();
                    memory.read(answer, &mut word).unwrap();
                }
                memory.read(data, &mut out).unwrap();
                assert_eq!(out, [!round as u8; 100]);
            }
        });
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
