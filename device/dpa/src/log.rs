//! Device logs: defmt frames over the message stream.
//!
//! A frame is gathered in a buffer of the thread, so that threads need no lock, and sent as one line of text: `~`, the frame's bytes in
//! hexadecimal, newline. Frames beyond [`FRAME_BYTES`] are dropped and counted. A frame costs hundreds of instructions and a runtime call:
//! set-up and failures only, never the datapath.

use core::cell::UnsafeCell;
use core::ffi::CStr;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::{Thread, sys};

/// The logging crate: `use dpa::log::defmt;`, then `defmt::info!(...)`.
pub use defmt;

/// Longest frame: a message of the stream holds 511 bytes, two per byte of the frame.
pub const FRAME_BYTES: usize = 254;
/// Threads of a process that can log; higher thread numbers share buffers by the low bits, which only 256 execution units rule out.
const THREADS: usize = 256;

/// Frames dropped because they were too long. Symbol `flexcast_log_dropped`.
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

struct Frames([UnsafeCell<Frame>; THREADS]);

// SAFETY: each thread uses only the cell of its own number.
unsafe impl Sync for Frames {}

static FRAMES: Frames = Frames([const { UnsafeCell::new(Frame::NEW) }; THREADS]);

fn frame() -> *mut Frame {
    let index = Thread::current().id() as usize % THREADS;
    FRAMES.0[index].get()
}

#[defmt::global_logger]
struct StreamLogger;

// SAFETY: defmt asks that acquire..release of one context is not interleaved with another's. Contexts are DPA threads, each with a frame
// of its own; a DPA thread has no interrupts.
unsafe impl defmt::Logger for StreamLogger {
    fn acquire() {
        // SAFETY: this thread's own frame; no reference to it outlives the call.
        unsafe { (*frame()).start() };
    }

    unsafe fn flush() {}

    unsafe fn release() {
        // SAFETY: as in `acquire`.
        let frame = unsafe { &mut *frame() };
        frame.end();
        let mut text = [0; 2 * FRAME_BYTES + 3];
        match frame.line(&mut text) {
            Some(line) => sys::message(line),
            None => {
                DROPPED.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    unsafe fn write(bytes: &[u8]) {
        // SAFETY: as in `acquire`.
        unsafe { (*frame()).write(bytes) };
    }
}

defmt::timestamp!("{=u64:us}", crate::thread::time() / 1000);
