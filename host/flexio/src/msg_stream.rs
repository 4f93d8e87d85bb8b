//! Message streams: output of device code.

use flexio_sys as sys;

use crate::application::c_string;
use crate::capture::Capture;
use crate::error::Result;
use crate::process::{Process, handle, warn_unless_destroyed};
use crate::raw::Raw;

/// Level up to which a stream passes messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum MsgLevel {
    /// Errors.
    Error = 2,
    /// And warnings.
    Warn = 3,
    /// And information.
    Info = 4,
    /// Everything.
    Debug = 5,
}

/// The message stream of a process, collected line by line. Create it before any device code prints.
#[derive(Debug)]
pub struct MsgStream {
    process: Process,
    raw: Raw<sys::flexio_msg_stream>,
    // Dropped after `drop` has destroyed the stream, whose thread prints into it.
    capture: Capture,
}

impl MsgStream {
    /// Opens the default stream.
    ///
    /// # Errors
    /// [`crate::Error::FlexIo`], [`crate::Error::Io`].
    pub fn new(process: &Process, level: MsgLevel) -> Result<Self> {
        const BUFFER_BYTES: usize = 4 * 2048;
        let capture = Capture::new()?;
        let name = c_string("name of a message stream", "flexcast")?;
        let mut attr = sys::flexio_msg_stream_attr_t {
            data_bsize: BUFFER_BYTES,
            sync_mode: sys::FLEXIO_LOG_DEV_SYNC_MODE_SYNC,
            stream_name: name.as_ptr().cast_mut(),
            level: level as u8,
            ..Default::default()
        };
        let mut raw = std::ptr::null_mut();
        // SAFETY: the process is live; the name lives through the call and is only read; the C stream is open and, as
        // part of this object, outlives the message stream; a null thread handle asks the library for a thread of its
        // own.
        let status = unsafe {
            (process.api().flexio_msg_stream_create)(
                process.raw(),
                &raw mut attr,
                capture.as_ptr().cast(),
                std::ptr::null_mut(),
                &raw mut raw,
            )
        };
        process.ok("flexio_msg_stream_create", status, String::new)?;
        Ok(Self { process: process.clone(), raw: handle("flexio_msg_stream_create", raw)?, capture })
    }

    /// The complete lines printed since the last call, without empty ones: whether a call of the device library ends
    /// its line by itself differs between calls.
    ///
    /// # Errors
    /// [`crate::Error::FlexIo`], [`crate::Error::Io`].
    pub fn lines(&mut self) -> Result<Vec<String>> {
        // SAFETY: the stream is live.
        let status = unsafe { (self.process.api().flexio_msg_stream_flush)(self.raw.as_ptr()) };
        self.process.device().provider().flexio_ok("flexio_msg_stream_flush", status, String::new)?;
        let mut lines = self.capture.lines()?;
        lines.retain(|line| !line.is_empty());
        Ok(lines)
    }
}

impl Drop for MsgStream {
    fn drop(&mut self) {
        // SAFETY: created in `new` and destroyed only here; this stops the printing thread before `capture` goes.
        let status = unsafe { (self.process.api().flexio_msg_stream_destroy)(self.raw.as_ptr()) };
        warn_unless_destroyed("message stream", status);
        if let Some(rest) = self.capture.lines().ok().and(self.capture.rest()) {
            tracing::info!(rest, "last words of the device");
        }
    }
}
