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
    /// Of version 1: a handle that another thread has made. Handles are the process's now, and no function returns it.
    FLEXCAST_ERROR_THREAD = 3,
    /// The object is in use: by an operation under way, by communicators, or by the call that this one was made from.
    FLEXCAST_ERROR_BUSY = 4,
    /// A structure has a size that this library does not know.
    FLEXCAST_ERROR_SIZE = 5,
    /// No firmware is given, or its file cannot be read.
    FLEXCAST_ERROR_FIRMWARE = 6,
    /// More objects or threads than handles can distinguish.
    FLEXCAST_ERROR_LIMIT = 7,
    /// A mistake of this library; it cannot be used by this thread any more.
    FLEXCAST_ERROR_INTERNAL = 8,
    /// The process was forked from one that uses the library. Endpoints and connections are that one's: in this process
    /// every function that returns a status returns this one, and changes nothing, until it calls exec().
    FLEXCAST_ERROR_FORKED = 9,
    /// No error: the library does not carry this operation, and the program uses its own. flexcast_post() says so
    /// before anything is posted, and alike on all ranks.
    FLEXCAST_NOT_SUPPORTED = 10,
    /// The card or its library refused something, in a way that has no code of its own (117 to 122).
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
    FLEXCAST_ERROR_RANK = 106,
    /// What another rank announced of itself does not fit.
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
    /// A request whose outcome has been given before.
    FLEXCAST_ERROR_REQUEST_OVER = 114,
    /// An error of a later version of the library inside.
    FLEXCAST_ERROR_OTHER = 115,
    /// The card has not what the configuration asks for.
    FLEXCAST_ERROR_UNSUPPORTED = 116,
    /// The libraries of the card are not installed, or not where `libraries` says, or of another generation. Install
    /// DOCA, or take the emulator's.
    FLEXCAST_ERROR_NOT_INSTALLED = 117,
    /// No card of that name, or none at all. See whether its driver is loaded.
    FLEXCAST_ERROR_NO_DEVICE = 118,
    /// The card is there and cannot be opened, mostly for want of permission.
    FLEXCAST_ERROR_OPEN_DEVICE = 119,
    /// The firmware is no image that the library can use: no ELF for a DPA, or built for another version.
    FLEXCAST_ERROR_IMAGE = 120,
    /// The firmware has stopped: it panicked, trapped, or ran for too long. The text says where.
    FLEXCAST_ERROR_DEVICE_FAULT = 121,
    /// The card did not answer within the bound of a wait.
    FLEXCAST_ERROR_TIMEOUT = 122,
    /// The progress thread of a communicator cannot be started.
    FLEXCAST_ERROR_PROGRESS_THREAD = 123,
    /// No network interface of that name or address, or none that is up.
    FLEXCAST_ERROR_INTERFACE = 124,
    /// The system refused a socket, or something of it.
    FLEXCAST_ERROR_SOCKET = 125,
    /// An environment variable has a value that it cannot have.
    FLEXCAST_ERROR_VARIABLE = 126,
    /// The system has no userfaultfd, or does not let this process have it: leave `memory_watch` out.
    FLEXCAST_ERROR_WATCH = 127,
    /// An aggregator of sparse AllReduce that is no rank failed: the text names its address.
    FLEXCAST_ERROR_AGGREGATOR = 128,
    /// The operation has failed, on all ranks, because of a number that this rank contributed: it is beyond
    /// the setting `sparse.fixed_point`, infinite or not a number.
    FLEXCAST_ERROR_CONTRIBUTION = 129,
    /// The bytes of a buffer cannot be borrowed: a service process may still write to them.
    FLEXCAST_ERROR_LEASED = 130,
    /// The operation has failed because of a connection between this rank and another one: the text names the rank, its
    /// address and what is wrong.
    FLEXCAST_ERROR_CONNECTION = 131,
    /// The card gives this process no execution unit for a thread: the text names those that were asked for.
    FLEXCAST_ERROR_UNITS = 132,
}

use flexcast_status::*;

/// Every code and what it stands for.
const TEXTS: [(flexcast_status, &CStr); 44] = [
    (FLEXCAST_OK, c"all went well"),
    (FLEXCAST_ERROR_NULL, c"a pointer is NULL that must not be"),
    (FLEXCAST_ERROR_HANDLE, c"a handle that was freed, never made, or is one of something else"),
    (FLEXCAST_ERROR_THREAD, c"a handle that another thread has made"),
    (FLEXCAST_ERROR_BUSY, c"the object is in use"),
    (FLEXCAST_ERROR_SIZE, c"a structure has a size that this library does not know"),
    (FLEXCAST_ERROR_FIRMWARE, c"no firmware is given, or its file cannot be read"),
    (FLEXCAST_ERROR_LIMIT, c"too many objects or threads"),
    (FLEXCAST_ERROR_INTERNAL, c"a mistake of this library"),
    (FLEXCAST_ERROR_FORKED, c"the process was forked from one that uses the library"),
    (FLEXCAST_NOT_SUPPORTED, c"the library does not carry this operation: use your own"),
    (FLEXCAST_ERROR_FLEXIO, c"the card or its library refused something"),
    (FLEXCAST_ERROR_EXCHANGE, c"ranks did not come together"),
    (FLEXCAST_ERROR_CONFIG, c"a parameter outside its range"),
    (FLEXCAST_ERROR_BUDGET, c"the card has not enough of something"),
    (FLEXCAST_ERROR_BRING_UP, c"the firmware is of another version"),
    (FLEXCAST_ERROR_CONTEXT, c"the firmware refused a context"),
    (FLEXCAST_ERROR_RANK, c"no such rank, or too many of them"),
    (FLEXCAST_ERROR_PEER, c"what another rank announced of itself does not fit"),
    (FLEXCAST_ERROR_BUFFER_LENGTH, c"a buffer has not the length that the operation needs"),
    (FLEXCAST_ERROR_TOO_MANY_CHUNKS, c"more chunks than sequence numbers"),
    (FLEXCAST_ERROR_ARGUMENT, c"an argument that does not fit"),
    (FLEXCAST_ERROR_SPACE, c"the receive space cannot be laid out"),
    (FLEXCAST_ERROR_FAILED, c"the operation has failed on all ranks"),
    (FLEXCAST_ERROR_BROKEN, c"the communicator cannot be used any more"),
    (FLEXCAST_ERROR_REQUEST_OVER, c"the outcome of the request has been given before"),
    (FLEXCAST_ERROR_OTHER, c"an error without a code of its own"),
    (FLEXCAST_ERROR_UNSUPPORTED, c"the card has not what the configuration asks for"),
    (FLEXCAST_ERROR_NOT_INSTALLED, c"the libraries of the card are not installed"),
    (FLEXCAST_ERROR_NO_DEVICE, c"there is no such card"),
    (FLEXCAST_ERROR_OPEN_DEVICE, c"the card cannot be opened"),
    (FLEXCAST_ERROR_IMAGE, c"the firmware is no image that the library can use"),
    (FLEXCAST_ERROR_DEVICE_FAULT, c"the firmware has stopped"),
    (FLEXCAST_ERROR_TIMEOUT, c"the card did not answer in time"),
    (FLEXCAST_ERROR_PROGRESS_THREAD, c"the progress thread cannot be started"),
    (FLEXCAST_ERROR_INTERFACE, c"there is no such network interface"),
    (FLEXCAST_ERROR_SOCKET, c"the system refused a socket"),
    (FLEXCAST_ERROR_VARIABLE, c"an environment variable has a value that it cannot have"),
    (FLEXCAST_ERROR_WATCH, c"memory cannot be watched"),
    (FLEXCAST_ERROR_AGGREGATOR, c"an aggregator has failed"),
    (FLEXCAST_ERROR_CONTRIBUTION, c"a number of the contribution cannot be summed up"),
    (FLEXCAST_ERROR_LEASED, c"a service process may still write to the buffer"),
    (FLEXCAST_ERROR_CONNECTION, c"the connection to another rank is at fault"),
    (FLEXCAST_ERROR_UNITS, c"the card gives no execution unit for a thread"),
];

impl flexcast_status {
    /// The code of an error of the library.
    pub(crate) fn of(error: &Error) -> Self {
        match error {
            Error::Flexio(error) => Self::of_card(error),
            Error::Exchange(_) => FLEXCAST_ERROR_EXCHANGE,
            Error::Config { .. } => FLEXCAST_ERROR_CONFIG,
            Error::Budget { .. } => FLEXCAST_ERROR_BUDGET,
            Error::Units { .. } => FLEXCAST_ERROR_UNITS,
            Error::Unsupported { .. } => FLEXCAST_ERROR_UNSUPPORTED,
            Error::BringUp { .. } => FLEXCAST_ERROR_BRING_UP,
            Error::Context { .. } => FLEXCAST_ERROR_CONTEXT,
            Error::Rank(_) => FLEXCAST_ERROR_RANK,
            Error::Peer { .. } => FLEXCAST_ERROR_PEER,
            Error::BufferLength { .. } => FLEXCAST_ERROR_BUFFER_LENGTH,
            Error::TooManyChunks { .. } => FLEXCAST_ERROR_TOO_MANY_CHUNKS,
            Error::Argument { .. } => FLEXCAST_ERROR_ARGUMENT,
            Error::Space(_) => FLEXCAST_ERROR_SPACE,
            Error::Failed { .. } => FLEXCAST_ERROR_FAILED,
            Error::Connection { .. } => FLEXCAST_ERROR_CONNECTION,
            Error::Aggregator { .. } => FLEXCAST_ERROR_AGGREGATOR,
            Error::Contribution { .. } => FLEXCAST_ERROR_CONTRIBUTION,
            Error::Leased { .. } => FLEXCAST_ERROR_LEASED,
            Error::Broken { .. } => FLEXCAST_ERROR_BROKEN,
            Error::ProgressThread { .. } => FLEXCAST_ERROR_PROGRESS_THREAD,
            Error::RequestOver { .. } => FLEXCAST_ERROR_REQUEST_OVER,
            Error::Interface { .. } => FLEXCAST_ERROR_INTERFACE,
            Error::Socket { .. } => FLEXCAST_ERROR_SOCKET,
            Error::Variable { .. } => FLEXCAST_ERROR_VARIABLE,
            Error::Watch { .. } => FLEXCAST_ERROR_WATCH,
            // The enumeration is open; a test says when a variant has no code.
            _ => FLEXCAST_ERROR_OTHER,
        }
    }

    /// The code of an error below the library: one of its own for what a program can do something about.
    pub(crate) fn of_card(error: &flexio::Error) -> Self {
        use flexio::Error;
        match error {
            Error::NotInstalled { .. } => FLEXCAST_ERROR_NOT_INSTALLED,
            Error::UnknownDevice { .. } => FLEXCAST_ERROR_NO_DEVICE,
            Error::OpenDevice { .. } => FLEXCAST_ERROR_OPEN_DEVICE,
            Error::Image { .. } => FLEXCAST_ERROR_IMAGE,
            Error::DeviceFault { .. } => FLEXCAST_ERROR_DEVICE_FAULT,
            Error::Timeout { .. } => FLEXCAST_ERROR_TIMEOUT,
            _ => FLEXCAST_ERROR_FLEXIO,
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

    /// Programs are compiled with the numbers: codes are added, and none is ever another's.
    #[test]
    fn codes_keep_their_numbers() {
        let numbers: Vec<i32> = TEXTS.iter().map(|(status, _)| *status as i32).collect();
        assert_eq!(numbers, (0..=10).chain(100..=132).collect::<Vec<_>>());
        let source = include_str!("status.rs");
        let body =
            source.split("pub enum flexcast_status {").nth(1).and_then(|rest| rest.split("\n}").next()).expect("it");
        assert_eq!(body.matches(" = ").count(), TEXTS.len(), "a code without a text");
        for (status, number) in
            [(FLEXCAST_ERROR_INTERNAL, 8), (FLEXCAST_ERROR_FLEXIO, 100), (FLEXCAST_ERROR_UNSUPPORTED, 116)]
        {
            assert_eq!(status as i32, number);
        }
    }

    #[test]
    fn what_a_program_can_mend_has_a_code_of_its_own() {
        let of = |error: flexio::Error| flexcast_status::of(&Error::from(error));
        let missing = flexio::Error::NotInstalled { missing: String::new(), source: "none".into() };
        assert_eq!(of(missing), FLEXCAST_ERROR_NOT_INSTALLED);
        let elf = flexio::ImageError::NotElf { start: b"this".to_vec() };
        assert_eq!(of(flexio::Error::Image { image: String::new(), source: elf }), FLEXCAST_ERROR_IMAGE);
        let unknown = flexio::Error::UnknownDevice { name: String::new(), present: Vec::new() };
        assert_eq!(of(unknown), FLEXCAST_ERROR_NO_DEVICE);
        let closed = flexio::Error::OpenDevice { name: String::new(), errno: std::io::Error::from_raw_os_error(13) };
        assert_eq!(of(closed), FLEXCAST_ERROR_OPEN_DEVICE);
        let state = flexio::ErrorState::Fatal;
        let dead = flexio::Error::DeviceFault { state, panic: None, record: String::new() };
        assert_eq!(of(dead), FLEXCAST_ERROR_DEVICE_FAULT);
        let bound = flexio::Bound::micros(1);
        let late = flexio::Error::Timeout { what: String::new(), waited_us: 1, polls: 1, bound };
        assert_eq!(of(late), FLEXCAST_ERROR_TIMEOUT);
        assert_eq!(of(flexio::Error::Foreign { what: "a", parent: "b" }), FLEXCAST_ERROR_FLEXIO);
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
