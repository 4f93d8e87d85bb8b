//! A panic ends the process with [`crate::error::PANIC`] and leaves a record that the host finds by symbol.

#[cfg(all(target_arch = "riscv64", not(test)))]
use core::sync::atomic::fence;
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
    /// Device address of the message, where that is a text without values.
    pub message: AtomicU64,
    /// Length of the message; 0 where there is none.
    pub message_len: AtomicU64,
}

impl PanicRecord {
    /// Notes a panic at `file`:`line`; only the first one is kept. Its texts lie where they did: nothing runs after a
    /// panic.
    pub fn note(&self, file: &str, line: u32, message: Option<&'static str>) {
        if self.count.fetch_add(1, Ordering::Relaxed) == 0 {
            self.line.store(line, Ordering::Relaxed);
            self.file.store(file.as_ptr() as u64, Ordering::Relaxed);
            self.file_len.store(file.len() as u64, Ordering::Relaxed);
            if let Some(message) = message {
                self.message.store(message.as_ptr() as u64, Ordering::Relaxed);
                self.message_len.store(message.len() as u64, Ordering::Relaxed);
            }
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
    message: AtomicU64::new(0),
    message_len: AtomicU64::new(0),
};

/// The loader of a card refuses a process without initialised writable data: every image has this word.
#[used]
#[cfg_attr(target_arch = "riscv64", unsafe(link_section = ".data.flexcast"))]
static DATA: AtomicU64 = AtomicU64::new(u64::from_le_bytes(*b"FLXCAST\0"));

#[cfg(all(target_arch = "riscv64", not(test)))]
#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    if let Some(location) = info.location() {
        // Formatting would bring calls through pointers, and their stack, into every image: what needs it is left out.
        RECORD.note(location.file(), location.line(), info.message().as_str());
    }
    // The record is there when the process is seen to have died.
    fence(Ordering::SeqCst);
    crate::fatal(crate::error::PANIC)
}
