//! A C stream that collects what the vendor's message thread prints into it.

use std::fs::File;
use std::os::fd::FromRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::ptr::NonNull;

use crate::error::{Error, Result};

/// An anonymous temporary file behind a `FILE *`, read back by position.
///
/// A pipe would block the printing thread when full, and a memory stream moves its buffer under a concurrent reader.
#[derive(Debug)]
pub(crate) struct Capture {
    stream: NonNull<libc::FILE>,
    reader: File,
    read_to: u64,
    partial: Vec<u8>,
}

// SAFETY: C streams lock themselves, and the descriptor is owned; nothing is tied to the creating thread.
unsafe impl Send for Capture {}

impl Capture {
    pub(crate) fn new() -> Result<Self> {
        let failed = |what: &str| Error::Io {
            what: format!("no temporary file for device messages: {what}"),
            source: std::io::Error::last_os_error(),
        };
        // SAFETY: `tmpfile` takes nothing and returns an owned stream or null.
        let stream = unsafe { libc::tmpfile() };
        let stream = NonNull::new(stream).ok_or_else(|| failed("tmpfile"))?;
        // SAFETY: the stream is open; `dup` makes a descriptor of our own, so that both may be closed.
        let fd = unsafe { libc::dup(libc::fileno(stream.as_ptr())) };
        if fd < 0 {
            let error = failed("dup");
            // SAFETY: the stream is open and nobody else has it.
            unsafe { libc::fclose(stream.as_ptr()) };
            return Err(error);
        }
        // SAFETY: `fd` was just made by `dup` and is owned by nobody else.
        let reader = unsafe { File::from_raw_fd(fd) };
        Ok(Self { stream, reader, read_to: 0, partial: Vec::new() })
    }

    pub(crate) fn as_ptr(&self) -> *mut libc::FILE {
        self.stream.as_ptr()
    }

    /// The complete lines that have appeared since the last call. Bytes that are not UTF-8 are replaced.
    pub(crate) fn lines(&mut self) -> Result<Vec<String>> {
        let failed = |source| Error::Io { what: "device messages cannot be read back".to_owned(), source };
        // SAFETY: the stream is open until `drop`; flushing a stream another thread prints to is what stdio locks for.
        if unsafe { libc::fflush(self.stream.as_ptr()) } != 0 {
            return Err(failed(std::io::Error::last_os_error()));
        }
        let mut block = [0; 4096];
        loop {
            let got = self.reader.read_at(&mut block, self.read_to).map_err(failed)?;
            if got == 0 {
                break;
            }
            self.read_to += got as u64;
            self.partial.extend_from_slice(&block[..got]);
        }
        let Some(end) = self.partial.iter().rposition(|&byte| byte == b'\n') else { return Ok(Vec::new()) };
        let whole: Vec<u8> = self.partial.drain(..=end).collect();
        let text = String::from_utf8_lossy(&whole);
        Ok(text.lines().map(|line| line.trim_end_matches('\0').to_owned()).collect())
    }

    /// What is left after the last newline, once nobody prints any more.
    pub(crate) fn rest(&mut self) -> Option<String> {
        let rest = std::mem::take(&mut self.partial);
        (!rest.is_empty()).then(|| String::from_utf8_lossy(&rest).into_owned())
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        // SAFETY: opened in `new`, closed only here; whoever printed into it has been stopped by its owner.
        unsafe { libc::fclose(self.stream.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn print(capture: &Capture, text: &[u8]) {
        // SAFETY: the stream is open, `text` is readable for its length.
        let written = unsafe { libc::fwrite(text.as_ptr().cast(), 1, text.len(), capture.as_ptr()) };
        assert_eq!(written, text.len());
    }

    #[test]
    fn lines_come_out_once_and_whole() {
        let mut capture = Capture::new().unwrap();
        print(&capture, b"one\ntw");
        assert_eq!(capture.lines().unwrap(), ["one"]);
        print(&capture, b"o\nthree\n");
        assert_eq!(capture.lines().unwrap(), ["two", "three"]);
        assert!(capture.lines().unwrap().is_empty());
        print(&capture, b"tail");
        assert!(capture.lines().unwrap().is_empty());
        assert_eq!(capture.rest().as_deref(), Some("tail"));
    }

    #[test]
    fn more_than_a_block_and_bytes_that_are_not_text() {
        let mut capture = Capture::new().unwrap();
        let line = [b'x'; 10_000];
        print(&capture, &line);
        print(&capture, b"\xff\n");
        let lines = capture.lines().unwrap();
        assert_eq!(lines.len(), 1);
        assert!(lines[0].starts_with("xxx") && lines[0].ends_with('\u{fffd}'));
    }
}
