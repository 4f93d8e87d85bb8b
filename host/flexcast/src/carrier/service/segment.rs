//! Memory that the ranks of a host share: with hierarchical delivery data comes there once per host, and each rank
//! copies it from there.
//!
//! The first rank of a host makes it, without a name in the file system, and sends its process and descriptor. The
//! others open the descriptor of that process, which the system allows to programs of the same user that see each
//! other's processes. A token in the memory shows that it is the one that was meant.
#![allow(unsafe_code)] // A card is given the memory by its address.

use std::fs::{OpenOptions, read_link};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::atomic::Ordering;

use flexcast_mesh::memory::{Layout, Memory};
use flexcast_service::MemoryId;
use flexio::{Access, MemoryRegion, ProtectionDomain};

/// Bytes of a page: rings are whole pages.
const PAGE_BYTES: u64 = 4096;
/// What the link of a descriptor of such memory begins with; anything else is not opened.
const LINK: &str = "/memfd:flexcast";
/// Bytes of [`Handle::encode`].
const HANDLE_BYTES: usize = 24;

/// Where the first rank of a host has the memory, and what it begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Handle {
    process: u32,
    descriptor: u32,
    token: [u64; 2],
}

impl Handle {
    pub(super) fn encode(&self) -> Vec<u8> {
        let Self { process, descriptor, token: [one, two] } = self;
        [&process.to_le_bytes()[..], &descriptor.to_le_bytes(), &one.to_le_bytes(), &two.to_le_bytes()].concat()
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; HANDLE_BYTES] = bytes.try_into().ok()?;
        let small = |at: usize| u32::from_le_bytes(std::array::from_fn(|index| bytes[at + index]));
        let large = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| bytes[at + index]));
        Some(Self { process: small(0), descriptor: small(4), token: [large(8), large(16)] })
    }
}

/// The memory, as one rank has it.
#[derive(Debug)]
pub(super) struct Segment {
    /// On ranks other than the first: what they copy from. It ends before the mapping that it is of.
    region: Option<MemoryRegion>,
    /// On the first rank: what its service process and others write to. The region is the client's, which must end
    /// before this does.
    pub(super) id: Option<MemoryId>,
    bytes: u64,
    /// By what the others open it, until they have.
    file: Option<OwnedFd>,
    _memory: Memory,
}

/// Memory that the others of the host have not opened yet. Whoever has a region of it keeps it for as long as that.
#[derive(Debug)]
pub(super) struct Made {
    memory: Memory,
    file: OwnedFd,
    token: [u64; 2],
}

/// Words for the token, and the segment as a ring that nobody goes round.
fn layout(bytes: u64) -> Result<Layout, String> {
    let ring_bytes = bytes.max(PAGE_BYTES).checked_next_power_of_two().and_then(|bytes| usize::try_from(bytes).ok());
    let ring_bytes = ring_bytes.ok_or_else(|| format!("{bytes} bytes of a segment are more than there can be"))?;
    Ok(Layout { words: 2, rings: 1, ring_bytes })
}

/// Registers a segment with a card.
fn register(memory: &Memory, pd: &ProtectionDomain, access: Access) -> Result<MemoryRegion, String> {
    let (start, len) = memory.ring();
    // SAFETY: the ring is mapped until `memory` is dropped, which whoever has the region does after it. This process
    // accesses it by the region alone; the card and other processes write to it before flags that say so, and read it
    // after them.
    unsafe { MemoryRegion::register_raw(pd, start, len, access) }.map_err(|error| error.to_string())
}

impl Made {
    /// Memory of at least so many bytes, all zeros.
    pub(super) fn new(bytes: u64) -> Result<Self, String> {
        let (memory, file) = Memory::create(layout(bytes)?).map_err(|error| format!("no memory to share: {error}"))?;
        let mut token = [0; 16];
        getrandom::fill(&mut token).map_err(|error| error.to_string())?;
        let token = [0, 8].map(|at| u64::from_le_bytes(std::array::from_fn(|index| token[at + index])));
        (0..).zip(token).for_each(|(number, word)| memory.word(number).store(word, Ordering::Release));
        Ok(Self { memory, file, token })
    }

    pub(super) fn handle(&self) -> Handle {
        Handle { process: std::process::id(), descriptor: self.file.as_raw_fd().unsigned_abs(), token: self.token }
    }

    /// What the card writes to.
    pub(super) fn region(&self, pd: &ProtectionDomain) -> Result<MemoryRegion, String> {
        register(&self.memory, pd, Access::LOCAL_WRITE | Access::REMOTE_WRITE)
    }

    /// The first rank's part. `id`: its region, as the service process knows it.
    pub(super) fn shared(self, id: MemoryId) -> Segment {
        let bytes = self.memory.ring().1 as u64;
        Segment { region: None, id: Some(id), bytes, file: Some(self.file), _memory: self.memory }
    }
}

impl Segment {
    /// Memory that the first rank of the host has made, of as many bytes as this rank's settings say.
    pub(super) fn open(handle: &Handle, bytes: u64, pd: &ProtectionDomain) -> Result<Self, String> {
        let path = format!("/proc/{}/fd/{}", handle.process, handle.descriptor);
        let text = |error: std::io::Error| {
            format!(
                "memory of its host's first rank at {path} cannot be opened: {error}; ranks of a host must be of one \
                 user and see each other's processes"
            )
        };
        let link = read_link(&path).map_err(text)?;
        if !link.as_os_str().as_encoded_bytes().starts_with(LINK.as_bytes()) {
            return Err(format!(
                "{path} is {}, not memory of its host's first rank: do the ranks of a host see the same processes?",
                link.display()
            ));
        }
        let file = OwnedFd::from(OpenOptions::new().read(true).write(true).open(&path).map_err(text)?);
        let memory = Memory::open(&file, layout(bytes)?).map_err(text)?;
        if [0, 1].map(|word| memory.word(word).load(Ordering::Acquire)) != handle.token {
            return Err(format!(
                "{path} is other memory than that of its host's first rank: do the ranks of a host see the same \
                 processes?"
            ));
        }
        let region = register(&memory, pd, Access::LOCAL_WRITE)?;
        let bytes = memory.ring().1 as u64;
        Ok(Self { region: Some(region), id: None, bytes, file: None, _memory: memory })
    }

    /// What this rank copies from; none on the first rank, whose client has it.
    pub(super) const fn region(&self) -> Option<&MemoryRegion> {
        self.region.as_ref()
    }

    /// Bytes that may be used.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// All ranks of the host have opened it, or none is to use it.
    pub(super) fn settle(&mut self, is_used: bool) {
        self.file = None;
        if !is_used {
            self.bytes = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_decoded_as_it_was_encoded() {
        let handle = Handle { process: 77, descriptor: 5, token: [1 << 60, 3] };
        assert_eq!(Handle::decode(&handle.encode()), Some(handle));
        assert_eq!((Handle::decode(&[0; 23]), Handle::decode(&[])), (None, None));
    }

    #[test]
    fn memory_has_as_many_bytes_as_asked_for_at_least() {
        for (asked, has) in [(0, 4096), (4096, 4096), (5000, 8192)] {
            assert_eq!(Made::new(asked).unwrap().memory.ring().1, has);
        }
        assert!(Made::new(u64::MAX).unwrap_err().contains("more than there can be"));
    }

    /// Another process of the user opens it by its handle.
    #[test]
    fn another_process_opens_the_memory() {
        let made = Made::new(5000).unwrap();
        let Handle { process, descriptor, .. } = made.handle();
        let path = format!("/proc/{process}/fd/{descriptor}");
        let mut command = std::process::Command::new("od");
        let output = command.args(["-An", "-v", "-tu8", "-N8", &path]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text.trim().parse(), Ok(made.handle().token[0]), "{text}");
    }
}
