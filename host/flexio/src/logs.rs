//! Device logs: lines of a message stream, some of which are defmt frames.
//!
//! Firmware formats nothing: it sends the index of a string that only its ELF holds, with the arguments, as one line
//! `~` and the frame's bytes in hexadecimal. Other lines are text.

use defmt_decoder::{DecodeError, Table};

/// First character of a line that is a defmt frame.
const FRAME_MARK: char = '~';

/// Decodes lines with the strings of one image.
pub struct LogDecoder {
    table: Option<Table>,
}

impl std::fmt::Debug for LogDecoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogDecoder").field("has_strings", &self.table.is_some()).finish()
    }
}

/// Why logs of an image cannot be decoded.
#[derive(thiserror::Error)]
#[error("log strings of the image: {reason}; rebuild it with the defmt version of this release")]
pub struct LogTableError {
    reason: String,
}

flexcast_error::debug_as_display!(LogTableError);

impl LogDecoder {
    /// Reads the strings of an image; an image without any is fine.
    ///
    /// # Errors
    /// [`LogTableError`] for strings of another defmt version, or a section that does not parse.
    pub fn new(elf: &[u8]) -> Result<Self, LogTableError> {
        let table = Table::parse(elf).map_err(|error| LogTableError { reason: format!("{error:#}") })?;
        Ok(Self { table })
    }

    /// The line as text. A frame that does not decode is shown as it came, with the reason.
    #[must_use]
    pub fn line(&self, line: &str) -> String {
        let Some(hex) = line.strip_prefix(FRAME_MARK) else { return line.to_owned() };
        let Some(frame) = unhex(hex) else { return format!("{line} (not hexadecimal)") };
        let Some(table) = &self.table else { return format!("{line} (the image has no log strings)") };
        // The stream decoder undoes the encoding (rzCOBS, its end marker included) that the image's symbols name.
        let mut stream = table.new_stream_decoder();
        stream.received(&frame);
        match stream.decode() {
            Ok(frame) => {
                let level = frame.level().map_or("print", |level| level.as_str());
                format!("{level:<5} {}", frame.display_message())
            }
            Err(DecodeError::UnexpectedEof) => format!("{line} (frame cut off)"),
            Err(DecodeError::Malformed) => format!("{line} (frame of another image?)"),
        }
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.is_ascii() {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_passes_and_bad_frames_are_shown_with_a_reason() {
        let decoder = LogDecoder { table: None };
        assert_eq!(decoder.line("hello"), "hello");
        assert!(decoder.line("~0102").contains("no log strings"));
        assert!(decoder.line("~01x2").contains("not hexadecimal"));
        assert!(decoder.line("~012").contains("not hexadecimal"));
        assert_eq!(unhex("00ff10"), Some(vec![0, 255, 16]));
    }
}
