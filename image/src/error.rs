//! Errors of reading a device image.

use std::fmt;

use thiserror::Error;

/// A file that cannot be read as a device image, or a question about an image that has no answer.
///
/// Every message names the value found, the value wanted and the next step.
#[derive(Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ImageError {
    /// The first four bytes are not `7f 45 4c 46`.
    #[error(
        "not an ELF file: it starts with {start:02x?} instead of 7f 45 4c 46; give the image that `cargo xtask build` \
         wrote"
    )]
    NotElf {
        /// The first bytes of the file, at most four.
        start: Vec<u8>,
    },
    /// ELFCLASS32 (or an unknown class): the DPA is a 64-bit machine.
    #[error("ELF class {class} is not 64-bit; build for riscv64imac-unknown-none-elf")]
    Not64Bit {
        /// `e_ident[EI_CLASS]`; 1 is 32-bit, 2 is 64-bit.
        class: u8,
    },
    /// Not ELFDATA2LSB: the DPA is little-endian.
    #[error("ELF data encoding {encoding} is not little-endian; build for riscv64imac-unknown-none-elf")]
    NotLittleEndian {
        /// `e_ident[EI_DATA]`; 1 is little-endian, 2 is big-endian.
        encoding: u8,
    },
    /// Another architecture.
    #[error("ELF machine {machine} ({name}) is not RISC-V (243); was a host program given instead of a device image?")]
    WrongMachine {
        /// `e_machine`.
        machine: u16,
        /// Its usual name, where it is a common one.
        name: &'static str,
    },
    /// Not an executable: a relocatable object, a shared library or a core file.
    #[error("ELF type {file_type} is not a linked executable (2, or 3 for position-independent); link the image first")]
    NotExecutable {
        /// `e_type`.
        file_type: u16,
    },
    /// `e_flags` claim a calling convention the DPA has not.
    #[error("ELF flags {flags:#x} ask for {what}; the DPA runs the soft-float lp64 ABI only (flags 0x0 or 0x1)")]
    UnsupportedFlags {
        /// `e_flags`.
        flags: u32,
        /// What the flags ask for.
        what: &'static str,
    },
    /// The file ends before something that its headers promise.
    #[error("truncated: {what} ends at byte {end}, the file has {have}; copy the image again")]
    Truncated {
        /// What is cut off.
        what: String,
        /// Where it should end, in bytes from the start of the file.
        end: u64,
        /// Length of the file in bytes.
        have: u64,
    },
    /// The headers contradict themselves.
    #[error("malformed ELF: {what}; rebuild the image")]
    Malformed {
        /// What contradicts what.
        what: String,
    },
    /// Stripped: the vendor loader and the entry table both need `.symtab`.
    #[error("no symbol table (.symtab); link without --strip-all / `strip = true`")]
    NoSymbols,
    /// Nothing to load.
    #[error("no loadable segment; was the linker script used (linker/*.ld)?")]
    NoSegments,
    /// Its ISA attribute names what the card's processor does not have.
    #[error("{0}")]
    OtherCard(Box<OtherCard>),
    /// Parts that start-up code or a dynamic linker would have to serve, which a DPA has not.
    #[error("{}", sentence(.parts))]
    Unserved {
        /// At least one.
        parts: Vec<crate::Unserved>,
    },
    /// An entry of this name is not in the image.
    #[error("no entry `{name}` in this image; it has: {}", list(.known))]
    UnknownEntry {
        /// The name asked for.
        name: String,
        /// The names the image has, sorted.
        known: Vec<String>,
    },
    /// The entry is of the other kind.
    #[error("entry `{name}` is {found}, not {wanted}")]
    WrongEntryKind {
        /// The name asked for.
        name: String,
        /// The kind it has.
        found: crate::EntryKind,
        /// The kind asked for.
        wanted: crate::EntryKind,
    },
    /// The entry table breaks its own format.
    #[error("entry table (.flexcast.entries): {what}; rebuild with the dpa-macros of this release")]
    BadEntryTable {
        /// What is wrong.
        what: String,
    },
    /// No `.note.flexcast`.
    #[error("no ABI note (.note.flexcast) in this image; link with linker/*.ld and use the dpa crate")]
    MissingAbiNote,
    /// More than one `.note.flexcast`.
    #[error(
        "{count} ABI notes (.note.flexcast) in this image, one is wanted; two versions of the dpa crate are linked"
    )]
    DuplicateAbiNote {
        /// How many were found.
        count: usize,
    },
    /// `.note.flexcast` has another length or magic.
    #[error("ABI note (.note.flexcast): {what}; rebuild with the dpa crate of this release")]
    BadAbiNote {
        /// What is wrong.
        what: String,
    },
    /// The image speaks another version of the host–device ABI.
    #[error(
        "ABI version {version} (accepts {min_version} and later) of the image does not meet {wanted} of this host; \
         rebuild the older one"
    )]
    AbiVersion {
        /// Version of the image.
        version: u32,
        /// The oldest host version that the image accepts.
        min_version: u32,
        /// Version of the host.
        wanted: u32,
    },
    /// Same version, other structures.
    #[error(
        "ABI hash {found:#018x} of the image differs from {wanted:#018x} of this host: the shared structures changed; \
         rebuild both from one source"
    )]
    AbiHash {
        /// Hash in the image.
        found: u64,
        /// Hash of the host.
        wanted: u64,
    },
    /// An entry takes another argument than the host gives.
    #[error(
        "entry `{name}` takes an argument of layout {found:#018x}, the host has {wanted:#018x}: name, order or type of \
         a field differs; rebuild image and host program from one definition"
    )]
    ArgumentHash {
        /// Name of the entry.
        name: String,
        /// Hash in the image.
        found: u64,
        /// Hash of the host.
        wanted: u64,
    },
}

flexcast_error::debug_as_display!(ImageError);

/// An image for a processor that a card does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherCard {
    /// ISA attribute of the image.
    pub arch: String,
    /// The generation that it is for, as far as its extensions show.
    pub generation: &'static str,
    /// What the card's processor lacks.
    pub missing: String,
    /// What the card is.
    pub card: String,
    /// What its processor executes.
    pub isa: flexcast_isa::Isa,
}

impl fmt::Display for OtherCard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { arch, generation, missing, card, isa } = self;
        write!(
            f,
            "the image is for {generation} (ISA attribute {arch}), and {card} is {isa}: it lacks {missing}; build the \
             image for this card (`cargo xtask build`, or `flexcast dpacc` for programs in C)"
        )
    }
}

fn sentence(parts: &[crate::Unserved]) -> String {
    parts.iter().map(crate::Unserved::to_string).collect::<Vec<_>>().join("; also ")
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "no entries at all".to_owned() } else { names.join(", ") }
}
