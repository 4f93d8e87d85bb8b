//! Device logs: defmt frames over the message stream.
//!
//! A frame is gathered in a buffer of the thread and sent as one line of text: `~`, the frame's bytes in hexadecimal,
//! newline. Nobody waits: frames beyond [`FRAME_BYTES`] are dropped and counted, and so is that of a thread whose
//! buffer another thread is using. A frame costs hundreds of instructions and a runtime call: set-up and failures only,
//! never the datapath.

use core::cell::UnsafeCell;
use core::ffi::CStr;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::{Thread, sys};

/// The logging crate: `use dpa::log::defmt;`, then `defmt::info!(...)`.
pub use defmt;

/// Longest frame: a message of the stream holds 511 bytes, two per byte of the frame.
pub const FRAME_BYTES: usize = 254;
/// Buffers. Threads have one by the low bits of their numbers: two threads whose numbers differ by a multiple of 256
/// have the same one.
const BUFFERS: usize = 256;

/// Frames dropped because they were too long, or because a thread with the same buffer was writing one. Symbol
/// `flexcast_log_dropped`.
#[cfg_attr(target_arch = "riscv64", unsafe(export_name = "flexcast_log_dropped"))]
pub static DROPPED: AtomicU32 = AtomicU32::new(0);

struct Frame {
    encoder: defmt::Encoder,
    bytes: [u8; FRAME_BYTES],
    len: usize,
    overflow: bool,
}

impl Frame {
    const NEW: Self = Self { encoder: defmt::Encoder::new(), bytes: [0; FRAME_BYTES], len: 0, overflow: false };

    fn push(bytes: &mut [u8; FRAME_BYTES], len: &mut usize, overflow: &mut bool, more: &[u8]) {
        match bytes.get_mut(*len..*len + more.len()) {
            Some(room) => {
                room.copy_from_slice(more);
                *len += more.len();
            }
            None => *overflow = true,
        }
    }

    fn start(&mut self) {
        let Self { encoder, bytes, len, overflow } = self;
        (*len, *overflow) = (0, false);
        encoder.start_frame(|more| Self::push(bytes, len, overflow, more));
    }

    fn write(&mut self, data: &[u8]) {
        let Self { encoder, bytes, len, overflow } = self;
        encoder.write(data, |more| Self::push(bytes, len, overflow, more));
    }

    fn end(&mut self) {
        let Self { encoder, bytes, len, overflow } = self;
        encoder.end_frame(|more| Self::push(bytes, len, overflow, more));
    }

    /// The frame as a line of text: `~`, hexadecimal digits, newline, NUL.
    fn line<'b>(&self, text: &'b mut [u8; 2 * FRAME_BYTES + 3]) -> Option<&'b CStr> {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        if self.overflow {
            return None;
        }
        let mut at = text.iter_mut();
        *at.next()? = b'~';
        for byte in self.bytes.iter().take(self.len) {
            *at.next()? = DIGITS[usize::from(byte >> 4)];
            *at.next()? = DIGITS[usize::from(byte & 15)];
        }
        *at.next()? = b'\n';
        *at.next()? = 0;
        CStr::from_bytes_until_nul(text).ok()
    }
}

/// A frame, and which thread is writing it.
struct Buffer {
    /// Number of the thread, plus one; 0: nobody.
    writer: AtomicU64,
    frame: UnsafeCell<Frame>,
}

// SAFETY: only the thread that `writer` names touches the frame.
unsafe impl Sync for Buffer {}

static BUFFER: [Buffer; BUFFERS] =
    [const { Buffer { writer: AtomicU64::new(0), frame: UnsafeCell::new(Frame::NEW) } }; BUFFERS];

/// The buffer of the running thread, and what names the thread in it.
fn own() -> (&'static Buffer, u64) {
    let id = Thread::current().id();
    (&BUFFER[id as usize % BUFFERS], u64::from(id) + 1)
}

impl Buffer {
    /// Takes the buffer for a thread; false if another one has it.
    fn take(&self, thread: u64) -> bool {
        self.writer.compare_exchange(0, thread, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Works on the frame if the thread has the buffer.
    fn with<R>(&self, thread: u64, work: impl FnOnce(&mut Frame) -> R) -> Option<R> {
        if self.writer.load(Ordering::Relaxed) != thread {
            return None;
        }
        // SAFETY: the frame is this thread's until it gives the buffer back; `work` knows of no other way to it.
        Some(work(unsafe { &mut *self.frame.get() }))
    }

    fn give_back(&self) {
        self.writer.store(0, Ordering::Release);
    }
}

fn drop_frame() {
    DROPPED.fetch_add(1, Ordering::Relaxed);
}

#[defmt::global_logger]
struct StreamLogger;

// SAFETY: defmt asks that acquire..release of one context is not interleaved with another's. Contexts are DPA threads,
// each with a buffer that it alone has from one to the other; what a thread writes that did not get its buffer goes
// nowhere. A DPA thread has no interrupts.
unsafe impl defmt::Logger for StreamLogger {
    fn acquire() {
        let (buffer, thread) = own();
        if !buffer.take(thread) {
            return drop_frame();
        }
        buffer.with(thread, Frame::start);
    }

    unsafe fn flush() {}

    unsafe fn release() {
        let (buffer, thread) = own();
        let sent = buffer.with(thread, |frame| {
            frame.end();
            let mut text = [0; 2 * FRAME_BYTES + 3];
            match frame.line(&mut text) {
                Some(line) => sys::message(line),
                None => drop_frame(),
            }
        });
        if sent.is_some() {
            buffer.give_back();
        }
    }

    unsafe fn write(bytes: &[u8]) {
        let (buffer, thread) = own();
        buffer.with(thread, |frame| frame.write(bytes));
    }
}

defmt::timestamp!("{=u64:us}", crate::thread::time() / 1000);

#[cfg(all(test, not(target_arch = "riscv64")))]
mod tests {
    use super::*;

    #[test]
    fn threads_with_one_buffer_do_not_write_into_one_frame() {
        let (mine, other) = (8, 8 + BUFFERS as u32);
        sys::set_thread_id(mine);
        <StreamLogger as defmt::Logger>::acquire();
        let theirs = std::thread::spawn(move || {
            sys::set_thread_id(other);
            let before = DROPPED.load(Ordering::Relaxed);
            <StreamLogger as defmt::Logger>::acquire();
            let (buffer, thread) = own();
            let wrote = buffer.with(thread, |_| ()).is_some();
            // SAFETY: after `acquire`, once.
            unsafe { <StreamLogger as defmt::Logger>::release() };
            (wrote, DROPPED.load(Ordering::Relaxed) - before)
        });
        assert_eq!(theirs.join().unwrap(), (false, 1));
        let (buffer, thread) = own();
        assert!(buffer.with(thread, |frame| !frame.overflow).unwrap(), "the other thread gave back what it had not");
        // SAFETY: after `acquire`, once.
        unsafe { <StreamLogger as defmt::Logger>::release() };
        assert!(buffer.take(1 + u64::from(other)), "free for the other thread now");
        buffer.give_back();
    }
}
