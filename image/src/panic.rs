//! Panic record of firmware: the place that crate `dpa` keeps in its process (linker/README.md), found by its symbol.

use std::fmt;
use std::io::{Read, Seek};

use object::LittleEndian;
use object::elf;
use object::read::elf::{FileHeader as _, ProgramHeader as _};
use object::read::{ReadCache, ReadRef};

use crate::Image;

/// Symbol of the record.
pub const PANIC_RECORD: &str = "flexcast_panic_record";

/// Bytes of the record without message, and with it: count and line, 32 bits each; address and length of the file name,
/// and of the message, 64 bits each.
const SHORT_BYTES: u64 = 24;
const RECORD_BYTES: usize = 40;
/// Longest file name or message that is believed.
const TEXT_LIMIT: u64 = 4096;

/// Where the first panic of a DPA process happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PanicPlace {
    /// Source file, as the compiler was given it: relative to the folder `device`.
    pub file: String,
    /// Line, from 1.
    pub line: u32,
    /// What it said, where that was a text without values; others are not kept.
    pub message: Option<String>,
}

impl fmt::Display for PanicPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "panicked at {}:{}", self.file, self.line)?;
        self.message.iter().try_for_each(|message| write!(f, ": {message}"))
    }
}

impl Image {
    /// Whether processes of this image keep a record of panics; programs in C do not.
    #[must_use]
    pub fn records_panics(&self) -> bool {
        self.symbol(PANIC_RECORD).is_some()
    }

    /// Where a process of this image panicked, or `None` if it did not. `read` gives bytes of its memory: true if all
    /// are there.
    pub fn panic_place(&self, mut read: impl FnMut(u64, &mut [u8]) -> bool) -> Option<PanicPlace> {
        let symbol = self.symbols().iter().find(|symbol| symbol.defined && symbol.name == PANIC_RECORD)?;
        let mut record = [0; RECORD_BYTES];
        let known = if symbol.size > SHORT_BYTES { RECORD_BYTES } else { SHORT_BYTES as usize };
        if !read(symbol.addr, &mut record[..known]) {
            return None;
        }
        let word = |at: usize| record[at..at + 8].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        let (count, line) = (word(0) as u32, (word(0) >> 32) as u32);
        if count == 0 {
            return None;
        }
        let mut text = |addr: u64, len: u64| {
            if len == 0 || len > TEXT_LIMIT {
                return None;
            }
            // Texts are constants, and those of the file cannot have been overwritten.
            let constant = self.segments().iter().any(|segment| !segment.write && segment.contains(addr));
            let mut bytes = vec![0; len as usize];
            match self.bytes_at(addr, len).filter(|_| constant) {
                Some(constants) => bytes.copy_from_slice(constants),
                None if read(addr, &mut bytes) => {}
                None => return None,
            }
            Some(String::from_utf8_lossy(&bytes).into_owned())
        };
        Some(PanicPlace { file: text(word(8), word(16))?, line, message: text(word(24), word(32)) })
    }

    /// [`Image::panic_place`] of a process by its core dump, an ELF core file such as `flexio_coredump_create` writes.
    pub fn panic_place_in_core(&self, core: impl Read + Seek) -> Option<PanicPlace> {
        let file = ReadCache::new(core);
        self.panic_place(|addr, out| core_bytes(&file, addr, out).is_some())
    }
}

/// Reads memory from the segments of a core file.
fn core_bytes<'d>(core: impl ReadRef<'d>, addr: u64, out: &mut [u8]) -> Option<()> {
    let header = elf::FileHeader64::<LittleEndian>::parse(core).ok()?;
    let segments = header.program_headers(LittleEndian, core).ok()?;
    let (offset, bytes) =
        segments.iter().filter(|segment| segment.p_type(LittleEndian) == elf::PT_LOAD).find_map(|segment| {
            let at = addr.checked_sub(segment.p_vaddr(LittleEndian))?;
            let end = at.checked_add(out.len() as u64)?;
            let inside = end <= segment.p_filesz(LittleEndian);
            inside.then(|| Some((segment.p_offset(LittleEndian).checked_add(at)?, out.len() as u64)))?
        })?;
    out.copy_from_slice(core.read_bytes_at(offset, bytes).ok()?);
    Some(())
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;
    use crate::testing::{TestElf, section};

    const RECORD_AT: u64 = 0x8000_0000;

    /// An image whose record lies at the begin of its data, and a process's data in which it says `words`.
    fn image(size: u64) -> Image {
        let mut elf = TestElf::image(&[("handler", &[0x8067])]);
        elf.sections.push(section(".data", 1, 3, RECORD_AT, vec![0; 64]));
        elf.segments.push((RECORD_AT, 64, 6, elf.sections.len() - 1));
        elf.symbols.push((PANIC_RECORD, RECORD_AT, size, 1, elf.sections.len() as u16));
        Image::parse(&elf.bytes()).expect("a valid image")
    }

    /// Memory in which the record is followed by both texts.
    fn memory(count: u32, message_len: u64) -> Vec<u8> {
        let mut bytes = u64::from(count).to_le_bytes().to_vec();
        bytes[4] = 18;
        for word in [RECORD_AT + 40, 9, RECORD_AT + 49, message_len] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(b"src/x.rs!no room.");
        bytes
    }

    fn place(size: u64, memory: &[u8]) -> Option<String> {
        let read = |addr: u64, out: &mut [u8]| {
            let from = addr.checked_sub(RECORD_AT).and_then(|at| memory.get(at as usize..)?.get(..out.len()));
            from.is_some_and(|from| {
                out.copy_from_slice(from);
                true
            })
        };
        image(size).panic_place(read).map(|place| place.to_string())
    }

    #[test]
    fn the_record_is_read_with_and_without_message() {
        let text = |size, memory: &[u8]| place(size, memory).expect("a panic");
        assert_eq!(text(40, &memory(1, 8)), "panicked at src/x.rs!:18: no room.");
        assert_eq!(text(40, &memory(2, 0)), "panicked at src/x.rs!:18");
        // An image of a release that kept no message: what follows is something else.
        assert_eq!(text(24, &memory(1, 8)), "panicked at src/x.rs!:18");
    }

    #[test]
    fn what_is_no_record_is_not_believed() {
        assert_eq!(place(40, &memory(0, 8)), None, "no panic");
        assert_eq!(place(40, &memory(1, 8)[..39]), None, "memory that cannot be read");
        let mut wild = memory(1, 8);
        wild[16..24].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(place(40, &wild), None, "a file name without end");
        wild[16..24].copy_from_slice(&9u64.to_le_bytes());
        wild[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(place(40, &wild), None, "a file name beyond all memory");
    }

    #[test]
    fn broken_core_files_hold_no_place() {
        let image = image(40);
        for bytes in [&b""[..], b"no ELF", &[0x7f, b'E', b'L', b'F', 2, 1, 1, 0]] {
            assert_eq!(image.panic_place_in_core(Cursor::new(bytes)), None);
        }
    }
}
