//! Cards, and memory registered with them.

use std::ffi::{c_char, c_int, c_void};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flexcast_rust::registration::{Limits, Range};
use flexcast_rust::{Card, DatapathKind, Firmware, UdpOptions, UserMemory, VerbsOptions};
use flexio::Provider;

use crate::claims::Claims;
use crate::creation::Creation;
use crate::fault::{Fault, call, lock, own};
use crate::handle;
use crate::memory::{out, sized, text};
use crate::status::flexcast_status::{self, *};

/// A card with or without the firmware on its DPA, or a network interface: one per process. Made by flexcast_card_open().
pub struct flexcast_card {
    _opaque: [u8; 0],
}

/// What flexcast_card_open() needs. To be initialised by flexcast_card_options_default().
#[repr(C)]
#[derive(Clone, Copy)]
pub struct flexcast_card_options {
    /// Bytes of this structure, by the header that the program was compiled with.
    pub size: usize,
    /// Folder of libflexio.so, libibverbs.so.1, libmlx5.so.1 and libdoca_common.so.2, such as that of the emulator's libraries; NULL: those
    /// of the installed DOCA, wherever the dynamic loader finds them (LD_LIBRARY_PATH). Once a process has loaded some, it keeps them.
    pub libraries: *const c_char,
    /// RDMA device, such as "mlx5_0"; NULL: the first one.
    pub device: *const c_char,
    /// File of the image `allgather`; not used if `firmware` is given.
    pub firmware_path: *const c_char,
    /// The image in memory; NULL: in the file.
    pub firmware: *const c_void,
    /// Its bytes.
    pub firmware_bytes: usize,
    /// What moves the data: "dpa", threads of the card's DPA; "verbs", this process over an RDMA card, which needs no DPA and no firmware; "udp", this
    /// process by IP multicast over a network interface, without an RDMA device; "auto", the DPA where card, libraries and firmware are there, else
    /// an RDMA card, else the interface. NULL: what FLEXCAST_DATAPATH says, or else the DPA if firmware, libraries or a device are given, and the
    /// interface if none of them is. Alike on all ranks.
    pub datapath: *const c_char,
    /// Network interface of the datapath "udp", by name or address; NULL: what FLEXCAST_INTERFACE says, or else the first that can multicast.
    pub interface_name: *const c_char,
    /// How freed memory is noticed, so that its registration is not used again: "off", by flexcast_buffer_invalidate() alone; "userfaultfd", by the system, which tells
    /// when pages are unmapped, moved or emptied. NULL: what FLEXCAST_MEMORY_WATCH says, or else "off". The datapath "udp" registers nothing.
    pub memory_watch: *const c_char,
}

const DEFAULT: flexcast_card_options = flexcast_card_options {
    size: size_of::<flexcast_card_options>(),
    libraries: std::ptr::null(),
    device: std::ptr::null(),
    firmware_path: std::ptr::null(),
    firmware: std::ptr::null(),
    firmware_bytes: 0,
    datapath: std::ptr::null(),
    interface_name: std::ptr::null(),
    memory_watch: std::ptr::null(),
};

/// A card, its registrations, and the memory that operations use. Communicators hold it, too.
pub(crate) struct OpenCard {
    memory: UserMemory,
    card: Card,
    pub(crate) claims: Claims,
    /// Communicators that are there or are being made.
    users: AtomicU32,
}

/// A card as a handle has it: it may still be opened.
pub(crate) struct CardSlot(Mutex<Stage>);

enum Stage {
    Opening(Creation<OpenCard>),
    Open(Arc<OpenCard>),
    Failed(Fault),
}

impl CardSlot {
    /// The card, once it is open.
    pub(crate) fn open(&self) -> Result<Arc<OpenCard>, Fault> {
        match &*lock(&self.0)? {
            Stage::Open(open) => Ok(Arc::clone(open)),
            Stage::Opening(_) => {
                let text = "the card is being opened: call flexcast_card_test() until it is ready";
                Err(Fault::new(FLEXCAST_ERROR_BUSY, text))
            }
            Stage::Failed(fault) => Err(fault.clone()),
        }
    }

    /// Goes on with opening it; whether it is open.
    fn test(&self) -> Result<bool, Fault> {
        let mut stage = lock(&self.0)?;
        if let Stage::Opening(creation) = &*stage {
            match creation.poll(Duration::ZERO) {
                None => return Ok(false),
                Some(Ok(open)) => *stage = Stage::Open(Arc::new(open)),
                Some(Err(fault)) => *stage = Stage::Failed(fault),
            }
        }
        if let Stage::Failed(fault) = &*stage { Err(fault.clone()) } else { Ok(true) }
    }
}

/// A communicator's use of its card.
pub(crate) struct CardUse(Arc<OpenCard>);

impl CardUse {
    pub(crate) fn new(card: &Arc<OpenCard>) -> Self {
        card.users.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(card))
    }

    pub(crate) fn card(&self) -> &Arc<OpenCard> {
        &self.0
    }
}

impl Drop for CardUse {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What moves the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Datapath {
    Dpa,
    Verbs,
    Udp,
    Auto,
}

impl Datapath {
    /// By its name in the options, or else in the environment.
    fn choose(named: Option<&str>, variable: Option<&str>, names_a_card: bool) -> Result<Self, Fault> {
        let (name, from) = match named {
            Some(name) => (name, "datapath"),
            None => (variable.unwrap_or_default(), "FLEXCAST_DATAPATH"),
        };
        match name {
            "dpa" => Ok(Self::Dpa),
            "verbs" => Ok(Self::Verbs),
            "udp" => Ok(Self::Udp),
            "auto" => Ok(Self::Auto),
            "" if names_a_card => Ok(Self::Dpa),
            "" => Ok(Self::Udp),
            other => {
                let text = format!("{from} is {other:?}: must be dpa, verbs, udp or auto");
                Err(Fault::new(FLEXCAST_ERROR_ARGUMENT, text))
            }
        }
    }
}

impl OpenCard {
    /// A network interface of this computer.
    fn udp(interface: Option<&str>) -> Result<Self, Fault> {
        let mut options = UdpOptions::from_env()?;
        if let Some(interface) = interface {
            options = options.interface(interface);
        }
        Self::of(Card::udp(&options)?, false)
    }

    fn of(card: Card, watched: bool) -> Result<Self, Fault> {
        let memory = match watched {
            true => UserMemory::watched(&card, Limits::default())?,
            false => UserMemory::new(&card, Limits::default()),
        };
        tracing::info!(datapath = card.datapath().name(), "card is open");
        Ok(Self { memory, card, claims: Claims::default(), users: AtomicU32::new(0) })
    }

    /// An RDMA card, without firmware on its DPA.
    fn verbs(libraries: Option<&str>, device: Option<&str>, watched: bool) -> Result<Self, Fault> {
        let provider = provider(libraries, Provider::rdma)?;
        let device = name_of(&provider, device)?;
        Self::of(Card::verbs(&provider, &device, &VerbsOptions::default())?, watched)
    }

    pub(crate) fn card(&self) -> &Card {
        &self.card
    }

    pub(crate) fn memory(&self) -> &UserMemory {
        &self.memory
    }

    pub(crate) fn cache_statistics(&self) -> flexcast_rust::registration::CacheStatistics {
        self.memory.statistics()
    }
}

/// The libraries in a folder, or those that `installed` finds.
fn provider(libraries: Option<&str>, installed: fn() -> flexio::Result<Provider>) -> Result<Provider, Fault> {
    let provider = match libraries {
        Some(folder) => Provider::from_folder(Path::new(folder)),
        None => installed(),
    };
    provider.map_err(|error| {
        let mut fault = Fault::from(flexcast_rust::Error::from(error));
        fault.text.push_str(" (`libraries` in flexcast_card_options names a folder of them)");
        fault
    })
}

/// The RDMA device that is named, or the first there is.
fn name_of(provider: &Provider, device: Option<&str>) -> Result<String, Fault> {
    if let Some(device) = device {
        return Ok(device.to_owned());
    }
    let first = provider.devices().map(|devices| devices.into_iter().next().map(|device| device.name));
    first.map_err(flexcast_rust::Error::from)?.ok_or_else(|| {
        Fault::new(FLEXCAST_ERROR_NO_DEVICE, "no RDMA device here: see whether a card and its driver are there")
    })
}

/// Opens a card whose DPA runs the firmware.
fn open_dpa(
    libraries: Option<&str>,
    device: Option<&str>,
    (path, firmware): (Option<&str>, Option<&[u8]>),
    watched: bool,
) -> Result<OpenCard, Fault> {
    let read;
    let (name, elf) = match firmware {
        Some(elf) => (path.unwrap_or("allgather"), elf),
        None => {
            let missing = "neither firmware nor firmware_path is given: name the image `allgather` that was installed with this library \
                 (pkg-config --variable=firmware flexcast)";
            let path = path.ok_or_else(|| Fault::new(FLEXCAST_ERROR_FIRMWARE, missing))?;
            let failed =
                |error| Fault::new(FLEXCAST_ERROR_FIRMWARE, format!("firmware {path} cannot be read: {error}"));
            read = std::fs::read(path).map_err(failed)?;
            (path, &*read)
        }
    };
    let provider = provider(libraries, Provider::system)?;
    let device = name_of(&provider, device)?;
    OpenCard::of(Card::open(&provider, &device, Firmware { name, elf })?, watched)
}

/// The defaults: installed DOCA, first device, no firmware. `size` is sizeof(flexcast_card_options).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_card_options_default(
    options: *mut flexcast_card_options,
    size: usize,
) -> flexcast_status {
    call(|| {
        let value = flexcast_card_options { size, ..DEFAULT };
        // SAFETY: the caller gives as many bytes as it says.
        unsafe { crate::memory::give(options, size, value, "options") }
    })
}

/// What is to be opened, with texts and firmware of its own: the program's need not stay.
struct Asked {
    libraries: Option<String>,
    device: Option<String>,
    path: Option<String>,
    firmware: Option<Vec<u8>>,
    interface: Option<String>,
    datapath: Datapath,
    watched: bool,
}

/// Whether memory is watched, by the options or else the environment.
fn is_watched(named: Option<&str>, variable: Option<&str>) -> Result<bool, Fault> {
    match (named.or(variable), named.is_some()) {
        (None | Some("" | "off"), _) => Ok(false),
        (Some("userfaultfd"), _) => Ok(true),
        (Some(other), named) => {
            let (what, code) = match named {
                true => ("memory_watch", FLEXCAST_ERROR_ARGUMENT),
                false => ("FLEXCAST_MEMORY_WATCH", FLEXCAST_ERROR_VARIABLE),
            };
            Err(Fault::new(code, format!("{what} is {other:?}: must be off or userfaultfd")))
        }
    }
}

impl Asked {
    /// # Safety
    /// Null or options as long as they say, whose pointers are null or what their fields' comments say.
    unsafe fn read(options: *const flexcast_card_options) -> Result<Self, Fault> {
        if options.is_null() {
            return Err(Fault::null("options"));
        }
        // SAFETY: the structure begins with its size; null and any other pointer is one of it.
        let options = unsafe { sized(options, DEFAULT, "options") }?;
        let owned = |pointer, what| {
            // SAFETY: null or a C string, for the duration of the call.
            unsafe { text(pointer, what) }.map(|text| text.map(str::to_owned))
        };
        let (libraries, device) = (owned(options.libraries, "libraries")?, owned(options.device, "device")?);
        let path = owned(options.firmware_path, "firmware_path")?;
        let firmware = (!options.firmware.is_null()).then(|| {
            // SAFETY: the caller gives as many bytes as it says, and leaves them alone during the call.
            unsafe { std::slice::from_raw_parts(options.firmware.cast::<u8>(), options.firmware_bytes) }.to_vec()
        });
        let named = owned(options.datapath, "datapath")?;
        let variable = std::env::var("FLEXCAST_DATAPATH").ok();
        let names_a_card = firmware.is_some() || [&path, &libraries, &device].iter().any(|text| text.is_some());
        let datapath = Datapath::choose(named.as_deref(), variable.as_deref(), names_a_card)?;
        let interface = owned(options.interface_name, "interface_name")?;
        let watch = owned(options.memory_watch, "memory_watch")?;
        let watched = is_watched(watch.as_deref(), std::env::var("FLEXCAST_MEMORY_WATCH").ok().as_deref())?;
        Ok(Self { libraries, device, path, firmware, interface, datapath, watched })
    }

    fn open(&self) -> Result<OpenCard, Fault> {
        let (libraries, device) = (self.libraries.as_deref(), self.device.as_deref());
        let dpa = || open_dpa(libraries, device, (self.path.as_deref(), self.firmware.as_deref()), self.watched);
        match self.datapath {
            Datapath::Dpa => dpa(),
            Datapath::Verbs => OpenCard::verbs(libraries, device, self.watched),
            Datapath::Udp => OpenCard::udp(self.interface.as_deref()),
            Datapath::Auto => dpa()
                .inspect_err(|fault| tracing::info!(reason = fault.text, "no DPA with the firmware"))
                .or_else(|_| OpenCard::verbs(libraries, device, self.watched))
                .inspect_err(|fault| tracing::info!(reason = fault.text, "no RDMA card"))
                .or_else(|_| OpenCard::udp(self.interface.as_deref())),
        }
    }
}

/// Gives out the handle of a card that is being opened, or is open.
///
/// # Safety
/// `options` as the header says; `card` is null or a place for a handle.
unsafe fn open(
    options: *const flexcast_card_options,
    card: *mut *mut flexcast_card,
    make: impl FnOnce(Asked) -> Result<Stage, Fault>,
) -> Result<(), Fault> {
    // SAFETY: by this function's contract.
    let place = unsafe { out(card, "card") }?;
    // SAFETY: the same.
    let asked = unsafe { Asked::read(options) }?;
    own()?;
    place.put(handle::insert(Arc::new(CardSlot(Mutex::new(make(asked)?))))?);
    Ok(())
}

/// Opens a card and starts the firmware on its DPA, or opens a card without, or a network interface (`datapath`).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_card_open(
    options: *const flexcast_card_options,
    card: *mut *mut flexcast_card,
) -> flexcast_status {
    // SAFETY: as the header asks of the caller.
    call(|| unsafe { open(options, card, |asked| Ok(Stage::Open(Arc::new(asked.open()?)))) })
}

/// The same without blocking: `card` becomes a handle at once, which flexcast_card_test() and flexcast_card_close() take until the card is open. A thread of the
/// library opens it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_card_open_begin(
    options: *const flexcast_card_options,
    card: *mut *mut flexcast_card,
) -> flexcast_status {
    let begin = |asked: Asked| Ok(Stage::Opening(Creation::start(None, move || asked.open())?));
    // SAFETY: as the header asks of the caller.
    call(|| unsafe { open(options, card, begin) })
}

/// Whether a card is open (`ready` becomes 1) or not yet (0). If it could not be opened the status says why, now and later; then it is only to be closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_card_test(card: *mut flexcast_card, ready: *mut c_int) -> flexcast_status {
    call(|| {
        // SAFETY: null or a place for an int.
        let place = unsafe { out(ready, "ready") }?;
        place.put(0);
        place.put(handle::get::<CardSlot>(card)?.test()?.into());
        Ok(())
    })
}

/// What moves the data of a card's communicators: "dpa", "verbs" or "udp". The text belongs to the library and lasts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_card_datapath(card: *mut flexcast_card, name: *mut *const c_char) -> flexcast_status {
    call(|| {
        // SAFETY: null or a place for a pointer.
        let place = unsafe { out(name, "name") }?;
        let open = handle::get::<CardSlot>(card)?.open()?;
        place.put(match open.card.datapath() {
            DatapathKind::Dpa => c"dpa".as_ptr(),
            DatapathKind::Verbs => c"verbs".as_ptr(),
            DatapathKind::Udp => c"udp".as_ptr(),
            _ => c"other".as_ptr(),
        });
        Ok(())
    })
}

/// Closes a card. Refused (FLEXCAST_ERROR_BUSY) while it has communicators. One that is being opened is closed as soon as it is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_card_close(card: *mut flexcast_card) -> flexcast_status {
    call(|| {
        let slot = handle::get::<CardSlot>(card)?;
        if let Stage::Open(open) = &*lock(&slot.0)? {
            let users = open.users.load(Ordering::Relaxed);
            if users > 0 {
                let text = format!("the card has {users} communicators: free them first");
                return Err(Fault::new(FLEXCAST_ERROR_BUSY, text));
            }
        }
        drop(slot);
        handle::remove::<CardSlot>(card).map(drop)
    })
}

/// Registers memory with a card before its first use, which is the expensive part of it. Not needed: operations register what they are
/// given, and the registration is kept. The memory stays allocated until flexcast_buffer_invalidate() or flexcast_card_close().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_register(
    card: *mut flexcast_card,
    buffer: *mut c_void,
    bytes: usize,
) -> flexcast_status {
    call(|| {
        let open = handle::get::<CardSlot>(card)?.open()?;
        // SAFETY: no buffer leaves; the caller's contract is that of the function below.
        Ok(unsafe { open.memory().register(buffer.cast(), bytes) }?)
    })
}

/// Forgets registrations. Unless the memory is watched (`memory_watch` in flexcast_card_options), to be called before memory is freed or unmapped that an operation has
/// used or flexcast_register() has registered; otherwise what is allocated there later would be sent from, or received into, pages that are not its own. Refused
/// (FLEXCAST_ERROR_BUSY) while an operation uses the memory: it must not be freed then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_buffer_invalidate(
    card: *mut flexcast_card,
    buffer: *const c_void,
    bytes: usize,
) -> flexcast_status {
    call(|| {
        let open = handle::get::<CardSlot>(card)?.open()?;
        let Ok(range) = Range::new(buffer.addr() as u64, bytes as u64) else { return Ok(()) };
        if open.claims.overlap(range) {
            let text = format!("{bytes} bytes at {:#x} are in use by an operation: wait for it first", buffer.addr());
            return Err(Fault::new(FLEXCAST_ERROR_BUSY, text));
        }
        open.memory.invalidate(buffer.cast(), bytes);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_datapath_is_what_is_named_or_what_the_firmware_says() {
        let choose =
            |named, variable, firmware| Datapath::choose(named, variable, firmware).map_err(|fault| fault.text);
        assert_eq!(choose(None, None, true), Ok(Datapath::Dpa));
        assert_eq!(choose(None, None, false), Ok(Datapath::Udp));
        assert_eq!(choose(None, Some("udp"), true), Ok(Datapath::Udp));
        assert_eq!(choose(Some("dpa"), Some("udp"), false), Ok(Datapath::Dpa));
        assert_eq!(choose(None, Some("verbs"), true), Ok(Datapath::Verbs));
        assert_eq!(choose(Some("auto"), None, false), Ok(Datapath::Auto));
        assert_eq!(
            (is_watched(None, None).ok(), is_watched(None, Some("userfaultfd")).ok()),
            (Some(false), Some(true))
        );
        assert_eq!(is_watched(Some("off"), Some("userfaultfd")).ok(), Some(false));
        assert!(is_watched(None, Some("on")).unwrap_err().text.contains("FLEXCAST_MEMORY_WATCH is \"on\""));
        assert!(choose(Some("tcp"), None, false).unwrap_err().contains("datapath is \"tcp\""));
        assert!(choose(None, Some("x"), false).unwrap_err().contains("FLEXCAST_DATAPATH is \"x\""));
    }
}
