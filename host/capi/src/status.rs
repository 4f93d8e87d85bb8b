//! Codes of all that can go wrong.

use std::ffi::{CStr, c_char};

use flexcast_rust::Error;

/// What every function returns. The text that names value, limit and next step: flexcast_last_error().
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum flexcast_status {
    /// All went well.
    FLEXCAST_OK = 0,
    /// A pointer is NULL that must not be.
    FLEXCAST_ERROR_NULL = 1,
    /// A handle that was freed, never made, or is one of something else.
    FLEXCAST_ERROR_HANDLE = 2,
    /// A handle that another thread has made: only that thread may use it.
    FLEXCAST_ERROR_THREAD = 3,
    /// The object is in use: by an operation under way, by communicators, or by the call that this one was made from.
    FLEXCAST_ERROR_BUSY = 4,
    /// A structure has a size that this library does not know.
    FLEXCAST_ERROR_SIZE = 5,
    /// The firmware cannot be read.
    FLEXCAST_ERROR_FIRMWARE = 6,
    /// More objects or threads than handles can tell apart.
    FLEXCAST_ERROR_LIMIT = 7,
    /// A mistake of this library; it cannot be used by this thread any more.
    FLEXCAST_ERROR_INTERNAL = 8,
    /// The card or its library refused something.
    FLEXCAST_ERROR_FLEXIO = 100,
    /// Ranks did not come together.
    FLEXCAST_ERROR_EXCHANGE = 101,
    /// A parameter of the configuration outside its range.
    FLEXCAST_ERROR_CONFIG = 102,
    /// The card has not enough of something.
    FLEXCAST_ERROR_BUDGET = 103,
    /// The firmware is of another version.
    FLEXCAST_ERROR_BRING_UP = 104,
    /// The firmware refused a context.
    FLEXCAST_ERROR_CONTEXT = 105,
    /// No such rank, or too many of them.
    FLEXCAST_ERROR_PLACE = 106,
    /// What another rank told of itself does not fit.
    FLEXCAST_ERROR_PEER = 107,
    /// A buffer has not the length that the operation needs.
    FLEXCAST_ERROR_BUFFER_LENGTH = 108,
    /// More chunks than sequence numbers.
    FLEXCAST_ERROR_TOO_MANY_CHUNKS = 109,
    /// An argument that does not fit.
    FLEXCAST_ERROR_ARGUMENT = 110,
    /// The receive space cannot be laid out.
    FLEXCAST_ERROR_SPACE = 111,
    /// The operation has failed, on all ranks.
    FLEXCAST_ERROR_FAILED = 112,
    /// The communicator cannot be used any more: an operation has failed before.
    FLEXCAST_ERROR_BROKEN = 113,
    /// A request of another communicator.
    FLEXCAST_ERROR_FOREIGN_REQUEST = 114,
    /// An error of a later version of the library inside.
    FLEXCAST_ERROR_OTHER = 115,
    /// The card has not what the configuration asks for.
    FLEXCAST_ERROR_UNSUPPORTED = 116,
}

use flexcast_status::*;

/// Every code and what it stands for.
const TEXTS: [(flexcast_status, &CStr); 26] = [
    (FLEXCAST_OK, c"all went well"),
    (FLEXCAST_ERROR_NULL, c"a pointer is NULL that must not be"),
    (FLEXCAST_ERROR_HANDLE, c"a handle that was freed, never made, or is one of something else"),
    (FLEXCAST_ERROR_THREAD, c"a handle that another thread has made"),
    (FLEXCAST_ERROR_BUSY, c"the object is in use"),
    (FLEXCAST_ERROR_SIZE, c"a structure has a size that this library does not know"),
    (FLEXCAST_ERROR_FIRMWARE, c"the firmware cannot be read"),
    (FLEXCAST_ERROR_LIMIT, c"too many objects or threads"),
    (FLEXCAST_ERROR_INTERNAL, c"a mistake of this library"),
    (FLEXCAST_ERROR_FLEXIO, c"the card or its library refused something"),
    (FLEXCAST_ERROR_EXCHANGE, c"ranks did not come together"),
    (FLEXCAST_ERROR_CONFIG, c"a parameter outside its range"),
    (FLEXCAST_ERROR_BUDGET, c"the card has not enough of something"),
    (FLEXCAST_ERROR_BRING_UP, c"the firmware is of another version"),
    (FLEXCAST_ERROR_CONTEXT, c"the firmware refused a context"),
    (FLEXCAST_ERROR_PLACE, c"no such rank, or too many of them"),
    (FLEXCAST_ERROR_PEER, c"what another rank told of itself does not fit"),
    (FLEXCAST_ERROR_BUFFER_LENGTH, c"a buffer has not the length that the operation needs"),
    (FLEXCAST_ERROR_TOO_MANY_CHUNKS, c"more chunks than sequence numbers"),
    (FLEXCAST_ERROR_ARGUMENT, c"an argument that does not fit"),
    (FLEXCAST_ERROR_SPACE, c"the receive space cannot be laid out"),
    (FLEXCAST_ERROR_FAILED, c"the operation has failed on all ranks"),
    (FLEXCAST_ERROR_BROKEN, c"the communicator cannot be used any more"),
    (FLEXCAST_ERROR_FOREIGN_REQUEST, c"a request of another communicator"),
    (FLEXCAST_ERROR_OTHER, c"an error without a code of its own"),
    (FLEXCAST_ERROR_UNSUPPORTED, c"the card has not what the configuration asks for"),
];

impl flexcast_status {
    /// The code of an error of the library.
    pub(crate) fn of(error: &Error) -> Self {
        match error {
            Error::Flexio(_) => FLEXCAST_ERROR_FLEXIO,
            Error::Exchange(_) => FLEXCAST_ERROR_EXCHANGE,
            Error::Config { .. } => FLEXCAST_ERROR_CONFIG,
            Error::Budget { .. } => FLEXCAST_ERROR_BUDGET,
            Error::Unsupported { .. } => FLEXCAST_ERROR_UNSUPPORTED,
            Error::BringUp { .. } => FLEXCAST_ERROR_BRING_UP,
            Error::Context { .. } => FLEXCAST_ERROR_CONTEXT,
            Error::Place(_) => FLEXCAST_ERROR_PLACE,
            Error::Peer { .. } => FLEXCAST_ERROR_PEER,
            Error::BufferLength { .. } => FLEXCAST_ERROR_BUFFER_LENGTH,
            Error::TooManyChunks { .. } => FLEXCAST_ERROR_TOO_MANY_CHUNKS,
            Error::Argument { .. } => FLEXCAST_ERROR_ARGUMENT,
            Error::Space(_) => FLEXCAST_ERROR_SPACE,
            Error::Failed { .. } => FLEXCAST_ERROR_FAILED,
            Error::Broken { .. } => FLEXCAST_ERROR_BROKEN,
            Error::ForeignRequest { .. } => FLEXCAST_ERROR_FOREIGN_REQUEST,
            // The enumeration is open; a test says when a variant has no code.
            _ => FLEXCAST_ERROR_OTHER,
        }
    }
}

/// What a code stands for. For any number; the text is never freed.
#[unsafe(no_mangle)]
pub extern "C" fn flexcast_strerror(status: i32) -> *const c_char {
    TEXTS.iter().find(|(code, _)| *code as i32 == status).map_or(c"no code of this library", |(_, text)| *text).as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_of_the_library_has_a_code() {
        let source = include_str!("../../flexcast/src/error.rs");
        let body = source.split("pub enum Error {").nth(1).expect("the enumeration");
        let names = body.lines().filter_map(|line| {
            let name = line.strip_prefix("    ")?.split(['(', ' ', ',']).next()?;
            name.starts_with(|c: char| c.is_ascii_uppercase()).then_some(name)
        });
        let mut count = 0;
        for name in names {
            count += 1;
            let mut code = String::from("FLEXCAST_ERROR");
            for (at, c) in name.char_indices() {
                if at == 0 || c.is_ascii_uppercase() {
                    code.push('_');
                }
                code.push(c.to_ascii_uppercase());
            }
            let known = TEXTS.iter().any(|(status, _)| format!("{status:?}") == code);
            assert!(known, "{name} has no {code}: add it to the enumeration, to TEXTS and to `of`");
        }
        assert!(count > 10, "{count} found: are the sources still read right?");
    }

    #[test]
    fn codes_and_texts_are_all_different() {
        for (at, (status, text)) in TEXTS.iter().enumerate() {
            assert!(TEXTS[..at].iter().all(|(other, same)| other != status && same != text), "{status:?}");
            // SAFETY: a static C string.
            assert_eq!(unsafe { CStr::from_ptr(flexcast_strerror(*status as i32)) }, *text);
        }
        // SAFETY: as above.
        assert_eq!(unsafe { CStr::from_ptr(flexcast_strerror(-1)) }, c"no code of this library");
    }
}
