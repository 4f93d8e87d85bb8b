//! The entry table (`.flexcast.entries`) and the ABI note (`.note.flexcast`) that `dpa-macros` and `dpa` leave in an
//! image.

use std::collections::BTreeSet;
use std::fmt;

use crate::ImageError;
use crate::elf::{Section, Segment};

/// Bytes of one record: function, unpack function, name address (u64 each), name length, kind (u32 each), hash (u64).
const RECORD_BYTES: usize = 40;
/// Bytes of the ABI note: magic, version and minimum version (u32 each), hash (u64).
const NOTE_BYTES: usize = 24;
const NOTE_MAGIC: &[u8; 8] = b"FLXCAST\0";
/// Longest entry name; the vendor loader finds functions by name.
const NAME_LIMIT_BYTES: u32 = 255;

/// How an entry is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum EntryKind {
    /// By a completion or another event; must end in reschedule, finish or retrigger.
    EventHandler,
    /// By a synchronous call of the host; returns a `u64`.
    Rpc,
}

impl fmt::Display for EntryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::EventHandler => "an event handler",
            Self::Rpc => "an RPC",
        })
    }
}

/// A device function that host code may register.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Name of the Rust function.
    pub name: String,
    /// How it is started.
    pub kind: EntryKind,
    /// Address of the function.
    pub addr: u64,
    /// Address of the function that unpacks RPC arguments; 0 for an event handler.
    pub unpack: u64,
    /// Hash of the argument type, compared with that of the host's call.
    pub arg_hash: u64,
}

/// Which host–device ABI the image was built with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AbiNote {
    /// Version of the structures in the image.
    pub version: u32,
    /// Oldest host version that the image accepts.
    pub min_version: u32,
    /// Hash over the layout of all shared structures.
    pub hash: u64,
}

pub(crate) fn bytes_at(segments: &[Segment], addr: u64, len: u64) -> Option<&[u8]> {
    let segment = segments.iter().find(|segment| segment.contains(addr))?;
    let start = usize::try_from(addr - segment.vaddr).ok()?;
    let end = start.checked_add(usize::try_from(len).ok()?)?;
    segment.bytes.get(start..end)
}

fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[offset..offset + 4]);
    u32::from_le_bytes(word)
}

fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[offset..offset + 8]);
    u64::from_le_bytes(word)
}

/// Reads the entry table, sorted by name; empty where the section is absent.
pub(crate) fn read_table(sections: &[Section], segments: &[Segment]) -> Result<Vec<Entry>, ImageError> {
    let bad = |what: String| ImageError::BadEntryTable { what };
    let mut entries = Vec::new();
    for section in sections.iter().filter(|section| section.name == ".flexcast.entries") {
        let (records, rest) = section.bytes.as_chunks::<RECORD_BYTES>();
        if !rest.is_empty() {
            return Err(bad(format!(
                "{} bytes are not a multiple of the {RECORD_BYTES}-byte record",
                section.bytes.len()
            )));
        }
        for (index, record) in records.iter().enumerate() {
            entries.push(read_record(index, record, segments)?);
        }
    }
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    let mut seen = BTreeSet::new();
    for entry in &entries {
        if !seen.insert(entry.name.as_str()) {
            return Err(bad(format!("two entries are named `{}`", entry.name)));
        }
    }
    Ok(entries)
}

fn read_record(index: usize, record: &[u8; RECORD_BYTES], segments: &[Segment]) -> Result<Entry, ImageError> {
    let bad = |what: String| ImageError::BadEntryTable { what: format!("record {index}: {what}") };
    let name_addr = u64_at(record, 16);
    let name_len = u32_at(record, 24);
    if name_len == 0 || name_len > NAME_LIMIT_BYTES {
        return Err(bad(format!("name of {name_len} bytes, 1 to {NAME_LIMIT_BYTES} are allowed")));
    }
    let name = bytes_at(segments, name_addr, u64::from(name_len))
        .ok_or_else(|| bad(format!("name at {name_addr:#x} (+{name_len}) lies outside the image")))?;
    let name = std::str::from_utf8(name).map_err(|e| bad(format!("name is not UTF-8: {e}")))?.to_owned();
    let kind = match u32_at(record, 28) {
        1 => EntryKind::EventHandler,
        2 => EntryKind::Rpc,
        other => {
            return Err(bad(format!("kind {other} of `{name}` is neither 1 (event handler) nor 2 (RPC)")));
        }
    };
    let entry = Entry { name, kind, addr: u64_at(record, 0), unpack: u64_at(record, 8), arg_hash: u64_at(record, 32) };
    if (entry.kind == EntryKind::Rpc) != (entry.unpack != 0) {
        return Err(bad(format!("`{}` is {} with unpack function {:#x}", entry.name, entry.kind, entry.unpack)));
    }
    Ok(entry)
}

/// Name and type of the note that holds a build id (`NT_GNU_BUILD_ID`).
const BUILD_ID_NOTE: (&[u8; 4], u32) = (b"GNU\0", 3);
/// Longest build id that is read: that of SHA-512.
const MAX_BUILD_ID_BYTES: usize = 64;

/// Reads the build id; `None` where there is no such note, or one of another form.
pub(crate) fn read_build_id(sections: &[Section]) -> Option<String> {
    let bytes = &sections.iter().find(|section| section.name == ".note.gnu.build-id")?.bytes;
    let (header, rest) = (bytes.get(..12)?, bytes.get(12..)?);
    let length = u32_at(header, 4) as usize;
    let is_ours = (u32_at(header, 0), u32_at(header, 8)) == (4, BUILD_ID_NOTE.1) && rest.starts_with(BUILD_ID_NOTE.0);
    let id = rest.get(4..4 + length).filter(|_| is_ours && (1..=MAX_BUILD_ID_BYTES).contains(&length))?;
    Some(id.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Reads the one ABI note; `None` where the section is absent.
pub(crate) fn read_note(sections: &[Section]) -> Result<Option<AbiNote>, ImageError> {
    let notes: Vec<&Section> = sections.iter().filter(|section| section.name == ".note.flexcast").collect();
    let bytes: Vec<u8> = notes.iter().flat_map(|section| section.bytes.iter().copied()).collect();
    if notes.is_empty() || bytes.is_empty() {
        return Ok(None);
    }
    if !bytes.len().is_multiple_of(NOTE_BYTES) {
        return Err(ImageError::BadAbiNote { what: format!("{} bytes instead of {NOTE_BYTES}", bytes.len()) });
    }
    let count = bytes.len() / NOTE_BYTES;
    if count > 1 {
        return Err(ImageError::DuplicateAbiNote { count });
    }
    if &bytes[..8] != NOTE_MAGIC {
        return Err(ImageError::BadAbiNote {
            what: format!("magic {:02x?} instead of {NOTE_MAGIC:02x?}", &bytes[..8]),
        });
    }
    let note = AbiNote { version: u32_at(&bytes, 8), min_version: u32_at(&bytes, 12), hash: u64_at(&bytes, 16) };
    if note.min_version > note.version {
        return Err(ImageError::BadAbiNote {
            what: format!("minimum version {} is above version {}", note.min_version, note.version),
        });
    }
    Ok(Some(note))
}
