//! A panic ends the process with [`crate::error::PANIC`] and leaves a record that the host finds by symbol.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Where the first panic of the process happened; all zero if none did. Symbol `flexcast_panic_record`.
#[derive(Debug)]
#[repr(C)]
pub struct PanicRecord {
    /// Panics so far.
    pub count: AtomicU32,
    /// Source line.
    pub line: AtomicU32,
    /// Device address of the file name.
    pub file: AtomicU64,
    /// Length of the file name.
    pub file_len: AtomicU64,
}

impl PanicRecord {
    /// Notes a panic at `file`:`line`; only the first one stays.
    pub fn note(&self, file: &str, line: u32) {
        if self.count.fetch_add(1, Ordering::Relaxed) == 0 {
            self.line.store(line, Ordering::Relaxed);
            self.file.store(file.as_ptr() as u64, Ordering::Relaxed);
            self.file_len.store(file.len() as u64, Ordering::Relaxed);
        }
    }
}

/// The record.
#[cfg_attr(target_arch = "riscv64", unsafe(export_name = "flexcast_panic_record"))]
pub static RECORD: PanicRecord = PanicRecord {
    count: AtomicU32::new(0),
    line: AtomicU32::new(0),
    file: AtomicU64::new(0),
    file_len: AtomicU64::new(0),
};

/// The loader of a card refuses a process without initialised writable data: every image has this word.
#[used]
#[cfg_attr(target_arch = "riscv64", unsafe(link_section = ".data.flexcast"))]
static DATA: AtomicU64 = AtomicU64::new(u64::from_le_bytes(*b"FLXCAST\0"));

#[cfg(all(target_arch = "riscv64", not(test)))]
#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    if let Some(location) = info.location() {
        RECORD.note(location.file(), location.line());
    }
    crate::fatal(crate::error::PANIC)
}
