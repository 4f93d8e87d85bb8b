//! Errors, with the value, the limit and the next step.

use flexcast_image::{ImageError, PanicPlace};

use crate::addr::{DevAddr, HostAddr};
use crate::wait::Bound;

/// Any failure of this crate.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The vendor's libraries are not there, or not of use to this process.
    #[error(
        "DOCA not installed, or not whole: {missing} cannot be used; install the DOCA host packages, or take the \
         emulator's libraries: name their folder (which `cargo xtask build-emu-libs` prints) in LD_LIBRARY_PATH, or \
         open it by its path"
    )]
    NotInstalled {
        /// File names tried, in order.
        missing: String,
        /// What the dynamic loader said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The installed library is of a release without this function.
    #[error("the installed libflexio has no {function}: its release lacks it; install DOCA 2.7 for it")]
    NoFunction {
        /// Its name in C.
        function: &'static str,
    },
    /// No card of that name.
    #[error("no device `{name}`: {}", list_devices(.present))]
    UnknownDevice {
        /// The name asked for.
        name: String,
        /// The names there are.
        present: Vec<String>,
    },
    /// A card was listed but cannot be opened.
    #[error("device `{name}` cannot be opened ({errno}); DPA processes need the physical function and usually root")]
    OpenDevice {
        /// Its name.
        name: String,
        /// What the system said.
        errno: std::io::Error,
    },
    /// The device image cannot be used.
    #[error("device image `{image}` cannot be used")]
    Image {
        /// Name of the application.
        image: String,
        /// Why.
        #[source]
        source: ImageError,
    },
    /// A name with a NUL byte inside, which C cannot carry.
    #[error("{what} {value:?} contains a NUL byte; C strings cannot")]
    Nul {
        /// What the name is for.
        what: &'static str,
        /// The name.
        value: String,
    },
    /// A FlexIO call returned a failure.
    #[error("{call} failed with {status}{}", in_brackets(.detail))]
    FlexIo {
        /// The C function.
        call: &'static str,
        /// Its status, by name.
        status: Status,
        /// What was asked for, and the device's error state where it has one.
        detail: String,
    },
    /// A DOCA call failed.
    #[error("{call} failed: {reason}; is the driver loaded, and may this user open the device?")]
    Doca {
        /// The C function.
        call: &'static str,
        /// DOCA's description.
        reason: String,
    },
    /// A verbs call failed.
    #[error("{call} failed: {errno}{}", in_brackets(.detail))]
    Verbs {
        /// The C function.
        call: &'static str,
        /// What the system said.
        errno: std::io::Error,
        /// What was asked for.
        detail: String,
    },
    /// Card or kernel does not take memory of another device.
    #[error("{call} failed: {errno}, for {bytes} bytes at {addr} of another device; {next}")]
    PeerMemory {
        /// The C function.
        call: &'static str,
        /// What the system said.
        errno: std::io::Error,
        /// Address of the memory.
        addr: HostAddr,
        /// Its length.
        bytes: u64,
        /// What may help.
        next: &'static str,
    },
    /// A firmware command was refused.
    #[error(
        "firmware refused {command}: status {status:#x}, syndrome {syndrome:#x}{}; find the syndrome in the \
         firmware's release notes",
        in_brackets(.detail)
    )]
    Command {
        /// Name of the command.
        command: &'static str,
        /// Status byte of the answer.
        status: u32,
        /// Vendor syndrome of the answer.
        syndrome: u32,
        /// What was asked for.
        detail: String,
    },
    /// An RPC has returned a word that is no answer.
    #[error(
        "RPC `{entry}` has returned {word:#x}: must be {limit}; rebuild image and host program from one definition of \
         its answer"
    )]
    Answer {
        /// Name of the entry.
        entry: &'static str,
        /// What it has returned.
        word: u64,
        /// What it may return.
        limit: &'static str,
    },
    /// A parameter outside its range, found before anything was called.
    #[error("{what} is {value}: must be {limit}")]
    OutOfRange {
        /// The parameter.
        what: &'static str,
        /// Its value.
        value: u64,
        /// What it may be.
        limit: String,
    },
    /// Options that do not go together, found before anything was called.
    #[error("`{option}` of {of} is {value}: must be {limit}")]
    Conflict {
        /// The option.
        option: &'static str,
        /// Its value.
        value: Box<str>,
        /// The object, with the option that it conflicts with.
        of: &'static str,
        /// What it may be, why, and what to do.
        limit: &'static str,
    },
    /// A host range outside its memory region.
    #[error("{len} bytes at offset {offset} leave the memory region of {region_len} bytes at {region}")]
    RegionRange {
        /// Offset asked for.
        offset: u64,
        /// Length asked for.
        len: u64,
        /// Start of the region.
        region: HostAddr,
        /// Its length.
        region_len: u64,
    },
    /// A device range outside its buffer.
    #[error("{len} bytes at offset {offset} leave the device buffer of {buffer_len} bytes at {buffer}")]
    DeviceRange {
        /// Offset asked for.
        offset: u64,
        /// Length asked for.
        len: u64,
        /// Start of the buffer.
        buffer: DevAddr,
        /// Its length.
        buffer_len: u64,
    },
    /// An object of the other provider or process was passed.
    #[error("{what} belongs to another {parent}; create both from one")]
    Foreign {
        /// The object.
        what: &'static str,
        /// What it should share.
        parent: &'static str,
    },
    /// An alias of a key on another physical card.
    #[error(
        "the key is of the card with system image GUID {exported:#x}, this device of {own:#x}: aliases are for \
         functions of one card, so open a function of the key's card"
    )]
    OtherCard {
        /// System image GUID of the key's card.
        exported: u64,
        /// That of the device.
        own: u64,
    },
    /// A message about a key of another function cannot be understood.
    #[error("{what} {found:#x} in the description of a key: must be {limit}; send it as the key's owner encoded it")]
    BadDescription {
        /// The field.
        what: &'static str,
        /// What it holds.
        found: u64,
        /// What it may be.
        limit: String,
    },
    /// All keys of a pool are bound.
    #[error(
        "all {keys} keys of the pool are bound, {retired} of them for good: release a binding, or make a pool of more \
         keys"
    )]
    NoFreeKey {
        /// Keys of the pool.
        keys: usize,
        /// Of them, those that are not used again.
        retired: usize,
    },
    /// A binding was accepted or released by something else than what belongs to it.
    #[error(
        "{what}: binding {found} of key {slot}, expected {expected}; use each description once, with the pool that it \
         is for"
    )]
    BindingMismatch {
        /// What was tried.
        what: &'static str,
        /// Place of the key in its pool.
        slot: u16,
        /// Number of the binding that was given.
        found: u64,
        /// Number that belongs there.
        expected: u64,
    },
    /// A wait ended without its condition.
    #[error("timeout: waited {waited_us} us ({polls} polls) for {what}; the bound is {bound}")]
    Timeout {
        /// What was awaited.
        what: String,
        /// How long, by the provider's clock.
        waited_us: u64,
        /// How often the condition was polled.
        polls: u64,
        /// The bound.
        bound: Bound,
    },
    /// A work request completed in error.
    #[error(
        "{what} completed in error: status {status} ({status_name}), vendor syndrome {vendor:#x}, queue pair {qpn:#x}"
    )]
    Completion {
        /// What had been posted.
        what: String,
        /// Work-completion status.
        status: u32,
        /// Its name in the verbs interface.
        status_name: &'static str,
        /// The vendor's syndrome.
        vendor: u32,
        /// Queue pair.
        qpn: u32,
    },
    /// The device process died.
    #[error("the DPA process has stopped: {state}{}\n{record}", panicked(.panic.as_deref()))]
    DeviceFault {
        /// Fatal or user error.
        state: ErrorState,
        /// Where the firmware panicked, if that is what happened.
        panic: Option<Box<PanicPlace>>,
        /// The crash record, empty where the device left none.
        record: String,
    },
    /// A file of this host could not be used.
    #[error("{what}")]
    Io {
        /// What was being done.
        what: String,
        /// Why it failed.
        #[source]
        source: std::io::Error,
    },
}

flexcast_error::debug_as_display!(Error);

impl Error {
    /// An allocation of so many bytes that the system refuses.
    #[must_use]
    pub fn no_memory(what: &'static str, bytes: u64) -> Self {
        let limit =
            "no more than there is memory for; choose less, or raise the limits of the process (ulimit -v)".to_owned();
        Self::OutOfRange { what, value: bytes, limit }
    }
}

/// An object that comes back, with the reason for which it was refused. `?` in a function of this crate's [`Result`]
/// drops the object and passes the reason on.
pub struct Refused<T>(Box<(T, Error)>);

impl<T> Refused<T> {
    pub(crate) fn new(object: T, error: Error) -> Self {
        Self(Box::new((object, error)))
    }

    /// Why.
    #[must_use]
    pub fn error(&self) -> &Error {
        &self.0.1
    }

    /// The object, and why.
    #[must_use]
    pub fn into_parts(self) -> (T, Error) {
        *self.0
    }
}

impl<T> std::fmt::Debug for Refused<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Debug::fmt(self.error(), f)
    }
}

impl<T> std::fmt::Display for Refused<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self.error(), f)
    }
}

impl<T> std::error::Error for Refused<T> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(self.error())
    }
}

impl<T> From<Refused<T>> for Error {
    fn from(refused: Refused<T>) -> Self {
        refused.into_parts().1
    }
}

/// A FlexIO status that is not success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub u32);

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            1 => f.write_str("FLEXIO_STATUS_FAILED"),
            2 => f.write_str("FLEXIO_STATUS_TIMEOUT"),
            3 => f.write_str("FLEXIO_STATUS_FATAL_ERR"),
            other => write!(f, "unknown status {other}"),
        }
    }
}

/// The error state of a DPA process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorState {
    /// Running.
    None,
    /// Stopped by the device: a trap, a watchdog, a fatal hardware event.
    Fatal,
    /// Stopped by its own program with an error code.
    User,
}

impl std::fmt::Display for ErrorState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            ErrorState::None => "no error",
            ErrorState::Fatal => "fatal device error",
            ErrorState::User => "error raised by the image",
        })
    }
}

fn list_devices(names: &[String]) -> String {
    if names.is_empty() {
        "this provider has no devices; is the driver loaded?".to_owned()
    } else {
        format!("this provider has {}", names.join(", "))
    }
}

fn panicked(place: Option<&PanicPlace>) -> String {
    place.map_or_else(String::new, |place| format!(", which {place}"))
}

fn in_brackets(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(" ({text})") }
}

/// The result of everything in this crate.
pub type Result<T> = std::result::Result<T, Error>;
