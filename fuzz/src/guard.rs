//! Memory for C calls: what a call is given ends at an unmapped page, and begins behind a pattern that is checked
//! later, so that a byte too many is noticed without an address sanitizer.
#![allow(unsafe_code)] // maps pages, and writes into what it has mapped

use std::ptr::NonNull;

const PAGE: usize = 4096;
/// Bytes before an object that must stay as they are.
const BEFORE: usize = 64;
const PATTERN: u8 = 0xA5;

/// Pages with an unmapped one behind them. Lives as long as the program.
pub struct Guarded {
    base: NonNull<u8>,
    bytes: usize,
    /// Where the object that is there now begins.
    at: usize,
}

impl Guarded {
    /// Room for objects of up to `bytes`.
    ///
    /// # Panics
    /// The computer has no memory left.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        let bytes = (bytes + BEFORE).next_multiple_of(PAGE);
        // SAFETY: asks for new pages; the last of them, inside the mapping, is taken away from everybody.
        let base = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let base = libc::mmap(std::ptr::null_mut(), bytes + PAGE, access, flags, -1, 0);
            assert!(base != libc::MAP_FAILED, "no pages left");
            assert_eq!(libc::mprotect(base.wrapping_byte_add(bytes), PAGE, libc::PROT_NONE), 0);
            base
        };
        let mut new = Guarded { base: NonNull::new(base.cast()).expect("mapped pages"), bytes, at: bytes };
        new.slot(0);
        new
    }

    /// Checks the pattern before the object that was here and makes room for one of `bytes`, at the very end.
    fn slot(&mut self, bytes: usize) -> *mut u8 {
        self.check();
        self.at = self.bytes - bytes;
        let slot = self.base.as_ptr().wrapping_add(self.at);
        // SAFETY: `at` is inside the mapping, and `new` keeps `BEFORE` bytes before the largest object.
        unsafe { std::ptr::write_bytes(slot.wrapping_sub(BEFORE), PATTERN, BEFORE) };
        slot
    }

    /// The bytes before the object are as they were.
    ///
    /// # Panics
    /// They are not.
    pub fn check(&self) {
        if self.at == self.bytes {
            return;
        }
        // SAFETY: as in `slot`, which wrote them; nobody else has a reference to them.
        let before = unsafe { std::slice::from_raw_parts(self.base.as_ptr().wrapping_add(self.at - BEFORE), BEFORE) };
        assert!(before.iter().all(|&byte| byte == PATTERN), "bytes before an object were overwritten: {before:x?}");
    }

    /// Puts bytes here and gives their address.
    ///
    /// # Panics
    /// There are more than there is room for.
    pub fn bytes(&mut self, bytes: &[u8]) -> *mut u8 {
        assert!(bytes.len() + BEFORE <= self.bytes, "{} bytes are too many", bytes.len());
        let slot = self.slot(bytes.len());
        // SAFETY: `slot` has made this room.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), slot, bytes.len()) };
        slot
    }

    /// Puts a plain structure of C here and gives its address, which is aligned as the end of a page is. Nobody drops
    /// it.
    pub fn put<T>(&mut self, value: T) -> *mut T {
        let slot = self.slot(size_of::<T>()).cast::<T>();
        assert!(slot.is_aligned(), "the size of a structure is a multiple of its alignment");
        // SAFETY: room for it, aligned.
        unsafe { slot.write(value) };
        slot
    }

    /// What is here now.
    #[must_use]
    pub fn contents(&self) -> Vec<u8> {
        let count = self.bytes - self.at;
        let mut out = vec![0; count];
        // SAFETY: mapped; C functions that were given the address have returned.
        unsafe { std::ptr::copy_nonoverlapping(self.base.as_ptr().wrapping_add(self.at), out.as_mut_ptr(), count) };
        out
    }
}

/// Zeroed pages that are always at the same address, for memory that a machine reaches: what firmware or a card
/// computes from addresses is then the same whenever an input is repeated.
pub struct Pages {
    base: NonNull<u8>,
    bytes: usize,
}

impl Pages {
    /// New pages.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        let Guarded { base, bytes, .. } = Guarded::new(bytes);
        Pages { base, bytes: bytes - BEFORE.next_multiple_of(PAGE) }
    }

    /// Address of the first byte.
    #[must_use]
    pub fn addr(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Never.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Sets all bytes.
    pub fn fill(&mut self, value: u8) {
        // SAFETY: all of it is mapped; machines reach it by copies, on this thread, and no reference to it exists.
        unsafe { std::ptr::write_bytes(self.base.as_ptr(), value, self.bytes) };
    }

    /// Copies bytes in.
    ///
    /// # Panics
    /// They do not fit.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.bytes);
        // SAFETY: in range; as in `fill`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.as_ptr().wrapping_add(at), bytes.len()) };
    }

    /// Copies bytes out.
    ///
    /// # Panics
    /// The range is not inside.
    #[must_use]
    pub fn read(&self, at: usize, count: usize) -> Vec<u8> {
        assert!(at + count <= self.bytes);
        let mut out = vec![0; count];
        // SAFETY: in range; as in `fill`.
        unsafe { std::ptr::copy_nonoverlapping(self.base.as_ptr().wrapping_add(at), out.as_mut_ptr(), count) };
        out
    }

    /// Makes the pages reachable for the cards of a machine.
    pub fn register(&self, world: &mut emu_machine::World) {
        // SAFETY: the pages are never unmapped, and no reference to them exists.
        unsafe { world.host.register(self.addr(), self.bytes as u64) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_end_where_the_pages_end() {
        let mut room = Guarded::new(PAGE);
        let end = room.base.as_ptr() as usize + room.bytes;
        let word = room.put(0x1234_5678_u32);
        assert_eq!(word as usize + 4, end);
        assert_eq!(room.contents(), 0x1234_5678_u32.to_ne_bytes());
        assert_eq!(room.bytes(&[1, 2, 3]) as usize + 3, end);
        room.check();
    }

    #[test]
    #[should_panic(expected = "overwritten")]
    fn a_byte_before_is_noticed() {
        let mut room = Guarded::new(PAGE);
        let byte = room.bytes(&[1]);
        // SAFETY: inside the pages, as the room keeps `BEFORE` bytes there.
        unsafe { byte.wrapping_sub(1).write(0) };
        room.check();
    }

    #[test]
    fn pages_hold_what_is_written() {
        let mut pages = Pages::new(2 * PAGE);
        assert!(pages.len() >= 2 * PAGE && !pages.is_empty());
        pages.fill(7);
        pages.write(PAGE, &[1, 2]);
        assert_eq!(pages.read(PAGE - 1, 4), [7, 1, 2, 7]);
    }
}
