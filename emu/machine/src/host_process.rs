//! The memory of other processes of the host that use the cards: as on a real computer, the cards reach what a process
//! has registered without its help, also while it is stopped.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd as _, OwnedFd};

use emu_nic::DmaFault;

use crate::ranges::Ranges;

/// Writes of more bytes than this end with a part of their own; see [`HostProcess::write`].
const LAST_PART_BYTES: usize = 8;
/// Bytes of a completion queue entry, whose last byte says that it is there.
const ENTRY_BYTES: usize = 64;

/// Registered ranges of another process. They are read and written by `process_vm_readv(2)` and `process_vm_writev(2)`:
/// the system lets one process do so with another of the same user, and an address that is not mapped there, or a
/// process that has ended, is a fault of the access.
#[derive(Debug)]
pub struct HostProcess {
    pub(crate) pid: i32,
    /// Readable once it has ended (`pidfd_open(2)`); none on systems before Linux 6.5.
    pub(crate) end: Option<OwnedFd>,
    pub(crate) ranges: Ranges,
}

impl HostProcess {
    /// Makes `[addr, addr + len)` of the process reachable for the cards until [`HostProcess::unregister`]. That bytes
    /// are there is found out at each access.
    pub fn register(&mut self, addr: u64, len: u64) {
        self.ranges.add(addr, len);
    }

    /// Takes one registration of exactly this range back; `false` if there was none.
    pub fn unregister(&mut self, addr: u64, len: u64) -> bool {
        self.ranges.remove(addr, len)
    }

    /// Registrations that there are.
    #[must_use]
    pub fn registrations(&self) -> usize {
        self.ranges.count()
    }

    /// Copies registered memory out.
    ///
    /// # Errors
    /// Bytes that are not registered, or not mapped; the process has ended, or does not let this one access its memory.
    #[allow(unsafe_code)]
    pub fn read(&self, addr: u64, out: &mut [u8]) -> Result<(), DmaFault> {
        let len = out.len();
        let fault = DmaFault { addr, len: len as u64 };
        self.ranges.find(addr, len)?;
        if len == 0 {
            return Ok(());
        }
        if self.has_ended() {
            return Err(fault);
        }
        let local = libc::iovec { iov_base: out.as_mut_ptr().cast(), iov_len: len };
        let remote = libc::iovec { iov_base: addr as *mut libc::c_void, iov_len: len };
        // SAFETY: `local` is `out`, which is exclusively borrowed; what the system finds at `remote` is of the other
        // process.
        let read = unsafe { libc::process_vm_readv(self.pid, &raw const local, 1, &raw const remote, 1, 0) };
        if usize::try_from(read) == Ok(len) { Ok(()) } else { Err(fault) }
    }

    /// Copies bytes into registered memory. What programs poll to see that something has come is written last, as
    /// PCIe does it: the last byte of a completion queue entry, the last eight of other writes that are longer.
    ///
    /// # Errors
    /// As [`HostProcess::read`]; memory that is read-only.
    pub fn write(&self, addr: u64, data: &[u8]) -> Result<(), DmaFault> {
        self.ranges.find(addr, data.len())?;
        let last = match data.len() {
            ENTRY_BYTES => 1,
            len if len > LAST_PART_BYTES => LAST_PART_BYTES,
            len => len,
        };
        let (first, last) = data.split_at(data.len() - last);
        let fault = DmaFault { addr, len: data.len() as u64 };
        let written = !self.has_ended() && self.put(addr, first) && self.put(addr + first.len() as u64, last);
        if written { Ok(()) } else { Err(fault) }
    }

    /// Whether its number may be that of another process by now.
    #[allow(unsafe_code)]
    fn has_ended(&self) -> bool {
        let Some(end) = &self.end else { return false };
        let mut poll = libc::pollfd { fd: end.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure, which lives during the call; the descriptor is open.
        unsafe { libc::poll(&raw mut poll, 1, 0) != 0 }
    }

    #[allow(unsafe_code)]
    fn put(&self, addr: u64, data: &[u8]) -> bool {
        if data.is_empty() {
            return true;
        }
        let local = libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() };
        let remote = libc::iovec { iov_base: addr as *mut libc::c_void, iov_len: data.len() };
        // SAFETY: the call reads `local` only, which is `data`; what the system finds at `remote` is of the other
        // process.
        let written = unsafe { libc::process_vm_writev(self.pid, &raw const local, 1, &raw const remote, 1, 0) };
        usize::try_from(written) == Ok(data.len())
    }
}

/// The other processes, by their numbers; none is given twice.
#[derive(Debug, Default)]
pub(crate) struct HostProcesses {
    pub(crate) next: u32,
    pub(crate) by_number: BTreeMap<u32, HostProcess>,
    /// The process of the machine itself, for pages that may be absent.
    pub(crate) own: Option<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The own process stands for another: it may reach its own memory by the same calls.
    fn own() -> HostProcess {
        HostProcess { pid: std::process::id() as i32, end: None, ranges: Ranges::default() }
    }

    #[test]
    fn registered_bytes_alone_are_reached() {
        let mut process = own();
        let buffer = vec![7_u8; 256];
        let addr = buffer.as_ptr() as u64;
        let mut out = [0; 64];
        assert!(process.read(addr, &mut out).is_err(), "not registered");
        process.register(addr, 256);
        process.read(addr, &mut out).unwrap();
        assert_eq!(out, [7; 64]);
        assert!(process.read(addr + 200, &mut out).is_err(), "beyond the end");
        for len in [0, 1, 8, 9, 64, 100] {
            let data: Vec<u8> = (1..=len).collect();
            process.write(addr, &data).unwrap();
            let mut out = vec![0; data.len()];
            process.read(addr, &mut out).unwrap();
            assert_eq!(out, data);
        }
        assert!(process.unregister(addr, 256) && !process.unregister(addr, 256));
        assert!(process.write(addr, &[1]).is_err());
    }

    #[test]
    fn bytes_that_are_not_mapped_and_processes_that_are_gone_are_faults() {
        let mut process = own();
        process.register(0, 4096);
        assert!(process.read(16, &mut [0; 8]).is_err() && process.write(16, &[0; 8]).is_err());
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id() as i32;
        child.wait().unwrap();
        let mut gone = HostProcess { pid, end: None, ranges: Ranges::default() };
        let buffer = [1_u8; 8];
        gone.register(buffer.as_ptr() as u64, 8);
        assert!(gone.read(buffer.as_ptr() as u64, &mut [0; 8]).is_err());
    }

    /// A descriptor that is readable stands for that of a process that has ended: its number is another's.
    #[test]
    fn the_number_of_a_process_that_has_ended_is_nobody() {
        let (reader, writer) = std::io::pipe().unwrap();
        let mut process = HostProcess { end: Some(reader.into()), ..own() };
        let buffer = [1_u8; 8];
        let addr = buffer.as_ptr() as u64;
        process.register(addr, 8);
        process.read(addr, &mut [0; 8]).unwrap();
        drop(writer);
        assert!(process.read(addr, &mut [0; 8]).is_err() && process.write(addr, &[2; 8]).is_err());
    }

    #[test]
    fn numbers_are_given_once() {
        let mut world = crate::world::World::new(crate::config::Config::default()).unwrap();
        let first = world.add_host_process(1, None);
        world.remove_host_process(first);
        assert_ne!(world.add_host_process(1, None), first);
        assert!(world.host_process(first).is_none());
        assert_eq!(world.host_process_count(), 1);
    }
}
