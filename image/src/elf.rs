//! From bytes to [`Image`].

use flexcast_isa::{Instruction, decode_all};
use object::elf;
use object::read::elf::{FileHeader as _, ProgramHeader as _, SectionHeader as _};
use object::{LittleEndian, Object as _, ObjectSection as _, ObjectSymbol as _};

use crate::ImageError;
use crate::entry::{self, AbiNote, Entry, EntryKind};
use crate::symbol::{Symbol, SymbolKind, Symbols};
use crate::unserved::Phase;

type File<'a> = object::read::elf::ElfFile64<'a, LittleEndian>;

/// `e_flags`: compressed instructions may occur (RISC-V psABI, file header).
pub(crate) const EF_RISCV_RVC: u32 = 0x1;
/// `e_flags`: mask of the floating-point calling convention; 0 is soft float.
const EF_RISCV_FLOAT_ABI: u32 = 0x6;
/// `e_flags`: 16-register base.
const EF_RISCV_RVE: u32 = 0x8;

/// A part of the image that is mapped into the memory of a DPA process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Virtual address of the first byte.
    pub vaddr: u64,
    /// Bytes from the file; the rest up to [`Segment::mem_size`] is zero.
    pub bytes: Vec<u8>,
    /// Size in memory, in bytes; never less than `bytes.len()`.
    pub mem_size: u64,
    /// May be loaded from.
    pub read: bool,
    /// May be stored to.
    pub write: bool,
    /// May be executed.
    pub execute: bool,
}

impl Segment {
    /// First address behind the segment.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.vaddr + self.mem_size
    }

    /// Whether `addr` lies inside.
    #[must_use]
    pub fn contains(&self, addr: u64) -> bool {
        self.vaddr <= addr && addr < self.end()
    }
}

/// A section, loaded or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// Name, such as `.text`.
    pub name: String,
    /// Virtual address; 0 where the section is not loaded.
    pub addr: u64,
    /// Size in bytes (in memory, for `.bss` too).
    pub size: u64,
    /// Bytes in the file; empty for `.bss`.
    pub bytes: Vec<u8>,
    /// Is part of the loaded image (`SHF_ALLOC`).
    pub alloc: bool,
    /// Is writable at run time (`SHF_WRITE`).
    pub write: bool,
    /// Holds instructions (`SHF_EXECINSTR`).
    pub execute: bool,
    /// Holds relocations (`SHT_REL`, `SHT_RELA`, `SHT_RELR`).
    pub relocations: bool,
    /// The bytes are compressed (`SHF_COMPRESSED`).
    pub compressed: bool,
    /// Holds thread-local variables (`SHF_TLS`).
    pub thread_local: bool,
    /// Lists addresses of functions that start-up code would call, and when.
    pub calls: Option<Phase>,
}

impl Section {
    /// The functions that it lists, if it [`calls`](Self::calls) any; 0 and -1 stand for none.
    pub(crate) fn called_addresses(&self) -> impl Iterator<Item = u64> {
        let bytes = if self.calls.is_some() { &self.bytes[..] } else { &[] };
        let addresses =
            bytes.chunks_exact(8).map(|word| word.iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte)));
        addresses.filter(|addr| ![0, u64::MAX].contains(addr))
    }
}

/// A parsed device image. Owns all that it has read from the file.
#[derive(Debug, Clone)]
pub struct Image {
    start: u64,
    flags: u32,
    position_independent: bool,
    dynamic: Vec<&'static str>,
    has_thread_local_header: bool,
    segments: Vec<Segment>,
    sections: Vec<Section>,
    symbols: Symbols,
    entries: Vec<Entry>,
    abi: Option<AbiNote>,
    arch: Option<String>,
}

impl Image {
    /// Parses a device image: a linked, little-endian, 64-bit RISC-V executable with soft-float ABI and a symbol table.
    ///
    /// The entry table and the ABI note are optional here, so that any bare program can be loaded; they are checked
    /// where they are present. [`Image::expect_abi`] and `verify` insist on them.
    ///
    /// # Errors
    /// [`ImageError`] names what is wrong; no input panics.
    pub fn parse(data: &[u8]) -> Result<Self, ImageError> {
        let image = Self::parse_bare(data)?;
        if image.symbols.is_empty() {
            return Err(ImageError::NoSymbols);
        }
        Ok(image)
    }

    /// Like [`Image::parse`], but accepts a program without symbols, as `flexcast emu run` does.
    ///
    /// # Errors
    /// As [`Image::parse`], except for [`ImageError::NoSymbols`].
    pub fn parse_bare(data: &[u8]) -> Result<Self, ImageError> {
        check_ident(data)?;
        let header = elf::FileHeader64::<LittleEndian>::parse(data).map_err(|e| malformed(&e, "file header"))?;
        check_header(header, data)?;
        let segments = read_segments(header, data)?;
        let file = File::parse(data).map_err(|e| malformed(&e, "section or symbol table"))?;
        let sections = read_sections(&file, data)?;
        let symbols = read_symbols(&file)?;
        let (mut dynamic, mut has_thread_local_header) = (Vec::new(), false);
        for program in program_headers(header, data)? {
            match program.p_type(LittleEndian) {
                elf::PT_DYNAMIC => dynamic.push("PT_DYNAMIC"),
                elf::PT_INTERP => dynamic.push("PT_INTERP"),
                elf::PT_TLS => has_thread_local_header |= program.p_memsz(LittleEndian) > 0,
                _ => {}
            }
        }
        let entries = entry::read_table(&sections, &segments)?;
        let abi = entry::read_note(&sections)?;
        let arch = read_arch(&sections)?;
        Ok(Self {
            start: header.e_entry(LittleEndian),
            flags: header.e_flags(LittleEndian).0,
            position_independent: header.e_type(LittleEndian) == elf::ET_DYN,
            dynamic,
            has_thread_local_header,
            segments,
            sections,
            symbols: Symbols::new(symbols),
            entries,
            abi,
            arch,
        })
    }

    /// What a loader maps, by ascending address; segments do not overlap.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// All sections in file order.
    #[must_use]
    pub fn sections(&self) -> &[Section] {
        &self.sections
    }

    /// The section of this name, if there is one.
    #[must_use]
    pub fn section(&self, name: &str) -> Option<&Section> {
        self.sections.iter().find(|section| section.name == name)
    }

    /// The ELF start address (`e_entry`); device images have none of their own and leave it at 0 or the first function.
    #[must_use]
    pub fn entry(&self) -> u64 {
        self.start
    }

    /// `e_flags`; bit 0 says that compressed instructions may occur.
    #[must_use]
    pub fn flags(&self) -> u32 {
        self.flags
    }

    /// Linked as `ET_DYN`, so that a loader may move it.
    #[must_use]
    pub fn is_position_independent(&self) -> bool {
        self.position_independent
    }

    /// Program headers that only a dynamic linker could serve; empty in a usable image.
    #[must_use]
    pub fn dynamic_headers(&self) -> &[&'static str] {
        &self.dynamic
    }

    /// A program header says that there are thread-local variables.
    pub(crate) fn has_thread_local_header(&self) -> bool {
        self.has_thread_local_header
    }

    /// All symbols by ascending address, undefined ones first.
    #[must_use]
    pub fn symbols(&self) -> &[Symbol] {
        self.symbols.all()
    }

    /// Address of the symbol with this (mangled) name; global symbols win over local ones.
    #[must_use]
    pub fn symbol(&self, name: &str) -> Option<u64> {
        self.symbols.address_of(name)
    }

    /// The function that `addr` lies in, demangled, and the offset into it in bytes.
    #[must_use]
    pub fn symbolize(&self, addr: u64) -> Option<(String, u64)> {
        let segment = self.segments.iter().find(|segment| segment.contains(addr))?;
        let symbol = self.symbols.covering(addr)?;
        (symbol.addr >= segment.vaddr).then(|| (symbol.demangled(), addr - symbol.addr))
    }

    /// The variable that `addr` lies in, demangled.
    #[must_use]
    pub fn variable(&self, addr: u64) -> Option<String> {
        let mut symbols = self.symbols.all().iter();
        let is_around = |symbol: &&Symbol| {
            symbol.defined && symbol.kind == SymbolKind::Data && addr.wrapping_sub(symbol.addr) < symbol.size.max(1)
        };
        symbols.rfind(is_around).map(Symbol::demangled)
    }

    /// The functions that the host may register, by name.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The entry of this name.
    ///
    /// # Errors
    /// [`ImageError::UnknownEntry`] lists the names that exist.
    pub fn entry_named(&self, name: &str) -> Result<&Entry, ImageError> {
        self.entries.iter().find(|entry| entry.name == name).ok_or_else(|| ImageError::UnknownEntry {
            name: name.to_owned(),
            known: self.entries.iter().map(|entry| entry.name.clone()).collect(),
        })
    }

    /// The entry of this name and kind.
    ///
    /// # Errors
    /// [`ImageError::UnknownEntry`], or [`ImageError::WrongEntryKind`] where the name belongs to the other kind.
    pub fn entry_of_kind(&self, name: &str, wanted: EntryKind) -> Result<&Entry, ImageError> {
        let entry = self.entry_named(name)?;
        if entry.kind == wanted {
            Ok(entry)
        } else {
            Err(ImageError::WrongEntryKind { name: name.to_owned(), found: entry.kind, wanted })
        }
    }

    /// The build id in hexadecimal digits, which the linker makes of the image's contents
    /// (`.note.gnu.build-id`); `None` where it was linked without one.
    #[must_use]
    pub fn build_id(&self) -> Option<String> {
        entry::read_build_id(&self.sections)
    }

    /// The ABI note, if the image has one.
    #[must_use]
    pub fn abi(&self) -> Option<AbiNote> {
        self.abi
    }

    /// Checks the ABI note against the version and hash of the host.
    ///
    /// # Errors
    /// [`ImageError::MissingAbiNote`], [`ImageError::AbiVersion`] or [`ImageError::AbiHash`].
    pub fn expect_abi(&self, version: u32, hash: u64) -> Result<(), ImageError> {
        let note = self.abi.ok_or(ImageError::MissingAbiNote)?;
        if !(note.min_version..=note.version).contains(&version) {
            return Err(ImageError::AbiVersion {
                version: note.version,
                min_version: note.min_version,
                wanted: version,
            });
        }
        if note.version == version && note.hash != hash {
            return Err(ImageError::AbiHash { found: note.hash, wanted: hash });
        }
        Ok(())
    }

    /// Checks that entry `name` takes the argument whose layout has this hash (`flexcast_abi::Layout::HASH`): that host
    /// and firmware were built from one definition of it.
    ///
    /// # Errors
    /// [`ImageError::UnknownEntry`], or [`ImageError::ArgumentHash`].
    pub fn expect_argument(&self, name: &str, hash: u64) -> Result<(), ImageError> {
        let found = self.entry_named(name)?.arg_hash;
        if found == hash {
            Ok(())
        } else {
            Err(ImageError::ArgumentHash { name: name.to_owned(), found, wanted: hash })
        }
    }

    /// The ISA string of `.riscv.attributes`, such as `rv64i2p1_m2p0_a2p1_c2p0_zbb1p0_zbs1p0`.
    #[must_use]
    pub fn arch(&self) -> Option<&str> {
        self.arch.as_deref()
    }

    /// The version of the rustc that compiled the image, such as `1.95.0`, from section `.comment`.
    #[must_use]
    pub fn compiler(&self) -> Option<&str> {
        let comments = std::str::from_utf8(&self.section(".comment")?.bytes).ok()?;
        comments.split('\0').find_map(|line| line.strip_prefix("rustc version ")?.split(' ').next())
    }

    /// The instructions of `start..end`; nothing where the file holds no bytes for the range.
    pub fn instructions(&self, start: u64, end: u64) -> impl Iterator<Item = Instruction> {
        let bytes = self.bytes_at(start, end.saturating_sub(start)).unwrap_or_default();
        decode_all(start, bytes)
    }

    /// The bytes at `addr..addr + len`, if the file holds all of them.
    #[must_use]
    pub fn bytes_at(&self, addr: u64, len: u64) -> Option<&[u8]> {
        entry::bytes_at(&self.segments, addr, len)
    }
}

fn malformed(error: &object::Error, where_: &str) -> ImageError {
    ImageError::Malformed { what: format!("{where_}: {error}") }
}

fn check_ident(data: &[u8]) -> Result<(), ImageError> {
    let start = &data[..data.len().min(4)];
    if start != elf::ELFMAG.as_slice() {
        return Err(ImageError::NotElf { start: start.to_vec() });
    }
    // Class, encoding and machine come before the length, so that a cut file of the wrong kind is called wrong.
    let byte = |index: usize| data.get(index).copied();
    if let Some(class) = byte(4).filter(|&class| class != 2) {
        return Err(ImageError::Not64Bit { class });
    }
    if let Some(encoding) = byte(5).filter(|&encoding| encoding != 1) {
        return Err(ImageError::NotLittleEndian { encoding });
    }
    in_file(data, "the file header", 0, 64)
}

fn check_header(header: &elf::FileHeader64<LittleEndian>, data: &[u8]) -> Result<(), ImageError> {
    let machine = header.e_machine(LittleEndian).0;
    if machine != elf::EM_RISCV.0 {
        return Err(ImageError::WrongMachine { machine, name: machine_name(machine) });
    }
    let file_type = header.e_type(LittleEndian).0;
    if file_type != elf::ET_EXEC.0 && file_type != elf::ET_DYN.0 {
        return Err(ImageError::NotExecutable { file_type });
    }
    let flags = header.e_flags(LittleEndian).0;
    if flags & EF_RISCV_FLOAT_ABI != 0 {
        return Err(ImageError::UnsupportedFlags { flags, what: "a hard-float calling convention" });
    }
    if flags & EF_RISCV_RVE != 0 {
        return Err(ImageError::UnsupportedFlags { flags, what: "the 16-register base RVE" });
    }
    let table = |count: u16, size: u16| u64::from(count) * u64::from(size);
    in_file(
        data,
        "the program header table",
        header.e_phoff.get(LittleEndian),
        table(header.e_phnum.get(LittleEndian), header.e_phentsize.get(LittleEndian)),
    )?;
    in_file(
        data,
        "the section header table",
        header.e_shoff.get(LittleEndian),
        table(header.e_shnum.get(LittleEndian), header.e_shentsize.get(LittleEndian)),
    )
}

fn machine_name(machine: u16) -> &'static str {
    match machine {
        3 => "x86",
        40 => "Arm",
        62 => "x86-64",
        183 => "AArch64",
        247 => "BPF",
        _ => "unknown",
    }
}

fn in_file(data: &[u8], what: &str, offset: u64, size: u64) -> Result<(), ImageError> {
    let have = data.len() as u64;
    let end = offset.checked_add(size).ok_or_else(|| ImageError::Malformed {
        what: format!("{what}: offset {offset:#x} and size {size:#x} exceed 64 bits"),
    })?;
    if end > have {
        return Err(ImageError::Truncated { what: what.to_owned(), end, have });
    }
    Ok(())
}

fn program_headers<'a>(
    header: &elf::FileHeader64<LittleEndian>,
    data: &'a [u8],
) -> Result<&'a [elf::ProgramHeader64<LittleEndian>], ImageError> {
    header.program_headers(LittleEndian, data).map_err(|e| malformed(&e, "program header table"))
}

fn read_segments(header: &elf::FileHeader64<LittleEndian>, data: &[u8]) -> Result<Vec<Segment>, ImageError> {
    let mut segments = Vec::new();
    for (index, program) in program_headers(header, data)?.iter().enumerate() {
        if program.p_type(LittleEndian) != elf::PT_LOAD {
            continue;
        }
        let vaddr = program.p_vaddr(LittleEndian);
        let mem_size = program.p_memsz(LittleEndian);
        let file_size = program.p_filesz(LittleEndian);
        if mem_size == 0 {
            continue;
        }
        in_file(data, &format!("segment {index}"), program.p_offset(LittleEndian), file_size)?;
        if file_size > mem_size {
            return Err(ImageError::Malformed {
                what: format!("segment {index} has {file_size} bytes in the file and only {mem_size} in memory"),
            });
        }
        if vaddr.checked_add(mem_size).is_none() {
            return Err(ImageError::Malformed {
                what: format!("segment {index} at {vaddr:#x} of {mem_size:#x} bytes exceeds the address space"),
            });
        }
        let bytes = program
            .data(LittleEndian, data)
            .map_err(|()| ImageError::Malformed { what: format!("segment {index} has no readable bytes") })?;
        let flags = program.p_flags(LittleEndian).0;
        segments.push(Segment {
            vaddr,
            bytes: bytes.to_vec(),
            mem_size,
            read: flags & elf::PF_R.0 != 0,
            write: flags & elf::PF_W.0 != 0,
            execute: flags & elf::PF_X.0 != 0,
        });
    }
    if segments.is_empty() {
        return Err(ImageError::NoSegments);
    }
    segments.sort_by_key(|segment| segment.vaddr);
    for pair in segments.windows(2) {
        if pair[0].end() > pair[1].vaddr {
            return Err(ImageError::Malformed {
                what: format!("segments at {:#x} and {:#x} overlap", pair[0].vaddr, pair[1].vaddr),
            });
        }
    }
    Ok(segments)
}

fn read_sections(file: &File<'_>, data: &[u8]) -> Result<Vec<Section>, ImageError> {
    let mut sections = Vec::new();
    for section in file.sections() {
        let header = section.elf_section_header();
        let name = section.name().map_err(|e| malformed(&e, "section name"))?.to_owned();
        let kind = header.sh_type(LittleEndian);
        let flags = header.sh_flags(LittleEndian).0;
        let size = header.sh_size(LittleEndian);
        let bytes = if kind == elf::SHT_NOBITS {
            &[][..]
        } else {
            in_file(data, &format!("section {name}"), header.sh_offset(LittleEndian), size)?;
            header.data(LittleEndian, data).map_err(|e| malformed(&e, &name))?
        };
        let addr = header.sh_addr(LittleEndian);
        if addr.checked_add(size).is_none() {
            return Err(ImageError::Malformed {
                what: format!("section {name} at {addr:#x} of {size:#x} bytes exceeds the address space"),
            });
        }
        let is_list = |base: &str| name == base || name.strip_prefix(base).is_some_and(|rest| rest.starts_with('.'));
        let calls = match kind {
            elf::SHT_PREINIT_ARRAY | elf::SHT_INIT_ARRAY => Some(Phase::Start),
            elf::SHT_FINI_ARRAY => Some(Phase::End),
            // What compilers wrote before there were section types for it.
            _ if is_list(".ctors") || is_list(".init_array") || is_list(".preinit_array") => Some(Phase::Start),
            _ if is_list(".dtors") || is_list(".fini_array") => Some(Phase::End),
            _ => None,
        };
        sections.push(Section {
            name,
            addr,
            size,
            bytes: bytes.to_vec(),
            alloc: flags & elf::SHF_ALLOC.0 != 0,
            write: flags & elf::SHF_WRITE.0 != 0,
            execute: flags & elf::SHF_EXECINSTR.0 != 0,
            relocations: [elf::SHT_REL, elf::SHT_RELA, elf::SHT_RELR].contains(&kind),
            compressed: flags & elf::SHF_COMPRESSED.0 != 0,
            thread_local: flags & elf::SHF_TLS.0 != 0,
            calls,
        });
    }
    Ok(sections)
}

fn read_symbols(file: &File<'_>) -> Result<Vec<Symbol>, ImageError> {
    let mut symbols = Vec::new();
    for symbol in file.symbols() {
        let name = symbol.name_bytes().map_err(|e| malformed(&e, "symbol name"))?;
        if name.is_empty() {
            continue;
        }
        symbols.push(Symbol {
            name: String::from_utf8_lossy(name).into_owned(),
            addr: symbol.address(),
            size: symbol.size(),
            kind: match symbol.kind() {
                object::SymbolKind::Text => SymbolKind::Function,
                object::SymbolKind::Data => SymbolKind::Data,
                object::SymbolKind::Tls => SymbolKind::ThreadLocal,
                object::SymbolKind::File | object::SymbolKind::Section => continue,
                _ => SymbolKind::Label,
            },
            // A common symbol has no place yet: only a linker gives it one.
            defined: !symbol.is_undefined() && !symbol.is_common(),
            global: symbol.is_global(),
            weak: symbol.is_weak(),
        });
    }
    Ok(symbols)
}

/// The `Tag_RISCV_arch` (5) attribute of the vendor "riscv" (RISC-V psABI, attributes).
fn read_arch(sections: &[Section]) -> Result<Option<String>, ImageError> {
    const TAG_RISCV_ARCH: u64 = 5;
    let Some(section) = sections.iter().find(|section| section.name == ".riscv.attributes") else {
        return Ok(None);
    };
    let bad = |e: object::Error| malformed(&e, ".riscv.attributes");
    let attributes =
        object::read::elf::AttributesSection::<elf::FileHeader64<LittleEndian>>::new(LittleEndian, &section.bytes)
            .map_err(bad)?;
    let mut subsections = attributes.subsections().map_err(bad)?;
    while let Some(subsection) = subsections.next().map_err(bad)? {
        if subsection.vendor() != b"riscv" {
            continue;
        }
        let mut parts = subsection.subsubsections();
        while let Some(part) = parts.next().map_err(bad)? {
            let mut reader = part.attributes();
            while let Some(tag) = reader.read_tag().map_err(bad)? {
                // Odd tags hold a string, even ones a number.
                if tag % 2 == 0 {
                    reader.read_integer().map_err(bad)?;
                    continue;
                }
                let value = reader.read_string().map_err(bad)?;
                if tag == TAG_RISCV_ARCH {
                    return Ok(Some(String::from_utf8_lossy(value).into_owned()));
                }
            }
        }
    }
    Ok(None)
}
