//! Endpoints, and memory registered with them.

use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flexcast_rust::registration::{Limits, Range};
use flexcast_rust::{DatapathKind, Endpoint, UdpOptions, UserMemory};

use crate::asked::Asked;
use crate::claims::Claims;
use crate::creation::Creation;
use crate::fault::{Fault, call, lock, own};
use crate::handle::{self, Code, Kind};
use crate::memory::out;
use crate::status::flexcast_status::{self, *};

/// What a process communicates through: a card with or without the firmware on its DPA, or a network interface. Made by
/// flexcast_endpoint_open().
pub struct flexcast_endpoint {
    _opaque: [u8; 0],
}

/// What flexcast_endpoint_open() needs. To be initialised by flexcast_endpoint_options_default().
#[repr(C)]
#[derive(Clone, Copy)]
pub struct flexcast_endpoint_options {
    /// Bytes of this structure, by the header that the program was compiled with.
    pub size: usize,
    /// Folder of libflexio.so, libibverbs.so.1, libmlx5.so.1 and libdoca_common.so.2, such as that of the emulator's
    /// libraries; NULL: what FLEXCAST_LIBRARIES says, or else those of the installed DOCA, wherever the dynamic loader
    /// finds them (LD_LIBRARY_PATH). Once a process has loaded some, it keeps them.
    pub libraries: *const c_char,
    /// RDMA device, such as "mlx5_0"; NULL: what FLEXCAST_DEVICE says, or else the first one.
    pub device: *const c_char,
    /// File of the image `allgather`; NULL: what FLEXCAST_FIRMWARE says. Not used if `firmware` is given.
    pub firmware_path: *const c_char,
    /// The image in memory; NULL: in the file.
    pub firmware: *const c_void,
    /// Its bytes.
    pub firmware_bytes: usize,
    /// What moves the data: "dpa", threads of the card's DPA; "verbs", this process over an RDMA card, which needs no
    /// DPA and no firmware; "udp", this process by IP multicast over a network interface, without an RDMA device;
    /// "auto", the DPA where card, libraries and firmware are there, else an RDMA card, else the interface. NULL: what
    /// FLEXCAST_DATAPATH says, or else the DPA if firmware, libraries or a device are given, here or by a variable, and
    /// the interface if none of them is. Alike on all ranks.
    pub datapath: *const c_char,
    /// Network interface of the datapath "udp", by name or address; NULL: what FLEXCAST_INTERFACE says, or else the
    /// first that can multicast.
    pub interface_name: *const c_char,
    /// How freed memory is noticed, so that its registration is not used again: "off", by flexcast_buffer_invalidate()
    /// alone; "userfaultfd", by the system, which reports when pages are unmapped, moved or emptied. NULL: what
    /// FLEXCAST_MEMORY_WATCH says, or else "off". The datapath "udp" registers nothing.
    pub memory_watch: *const c_char,
    /// File of the image `sparse`, which is started on the card's DPA together with what else runs there, for the
    /// setting `sparse.aggregation` = dpa; NULL: what FLEXCAST_SPARSE_FIRMWARE says, or else none. Not used by the
    /// datapath "udp".
    pub sparse_firmware_path: *const c_char,
}

pub(crate) const ENDPOINT_DEFAULTS: flexcast_endpoint_options = flexcast_endpoint_options {
    size: size_of::<flexcast_endpoint_options>(),
    libraries: std::ptr::null(),
    device: std::ptr::null(),
    firmware_path: std::ptr::null(),
    firmware: std::ptr::null(),
    firmware_bytes: 0,
    datapath: std::ptr::null(),
    interface_name: std::ptr::null(),
    memory_watch: std::ptr::null(),
    sparse_firmware_path: std::ptr::null(),
};

/// An endpoint, its registrations, and the memory that operations use. Communicators hold it, too.
pub(crate) struct OpenEndpoint {
    memory: UserMemory,
    endpoint: Endpoint,
    pub(crate) claims: Claims,
    /// Communicators that are there or are being made.
    users: AtomicU32,
}

/// An endpoint as a handle has it: it may still be opened.
pub(crate) struct EndpointSlot(Mutex<Stage>);

impl Kind for EndpointSlot {
    type Handle = flexcast_endpoint;
    const CODE: Code = Code::Endpoint;
}

enum Stage {
    Opening(Creation<OpenEndpoint>),
    Open(Arc<OpenEndpoint>),
    Failed(Fault),
}

impl EndpointSlot {
    pub(crate) fn of(endpoint: Arc<OpenEndpoint>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Stage::Open(endpoint))))
    }

    /// The endpoint, once it is open.
    pub(crate) fn open(&self) -> Result<Arc<OpenEndpoint>, Fault> {
        match &*lock(&self.0)? {
            Stage::Open(open) => Ok(Arc::clone(open)),
            Stage::Opening(_) => {
                let text = "the endpoint is being opened: call flexcast_endpoint_test() until it is ready";
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

/// A communicator's use of its endpoint.
pub(crate) struct EndpointUse(Arc<OpenEndpoint>);

impl EndpointUse {
    pub(crate) fn new(endpoint: &Arc<OpenEndpoint>) -> Self {
        endpoint.users.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(endpoint))
    }

    pub(crate) fn endpoint(&self) -> &Arc<OpenEndpoint> {
        &self.0
    }
}

impl Drop for EndpointUse {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::Relaxed);
    }
}

impl OpenEndpoint {
    /// A network interface of this computer.
    pub(crate) fn udp(interface: Option<&str>) -> Result<Self, Fault> {
        let mut options = UdpOptions::from_env()?;
        if let Some(interface) = interface {
            options = options.interface(interface);
        }
        Self::of(Endpoint::udp(&options)?, false)
    }

    pub(crate) fn of(endpoint: Endpoint, watched: bool) -> Result<Self, Fault> {
        let memory = match watched {
            true => UserMemory::watched(&endpoint, Limits::default())?,
            false => UserMemory::new(&endpoint, Limits::default()),
        };
        tracing::info!(datapath = endpoint.datapath().name(), "endpoint is open");
        Ok(Self { memory, endpoint, claims: Claims::default(), users: AtomicU32::new(0) })
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// How many communicators use it.
    pub(crate) fn users(&self) -> u32 {
        self.users.load(Ordering::Relaxed)
    }

    pub(crate) fn memory(&self) -> &UserMemory {
        &self.memory
    }

    pub(crate) fn cache_statistics(&self) -> flexcast_rust::registration::CacheStatistics {
        self.memory.statistics()
    }
}

/// The defaults: installed DOCA, first device, no firmware. `size` is sizeof(flexcast_endpoint_options).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_endpoint_options_default(
    options: *mut flexcast_endpoint_options,
    size: usize,
) -> flexcast_status {
    call(|| {
        let value = flexcast_endpoint_options { size, ..ENDPOINT_DEFAULTS };
        // SAFETY: the caller gives as many bytes as it says.
        unsafe { crate::memory::give(options, size, value, "options") }
    })
}

/// Gives out the handle of an endpoint that is being opened, or is open.
///
/// # Safety
/// `options` as the header says; `endpoint` is null or a place for a handle.
unsafe fn open(
    options: *const flexcast_endpoint_options,
    endpoint: *mut *mut flexcast_endpoint,
    make: impl FnOnce(Asked) -> Result<Stage, Fault>,
) -> Result<(), Fault> {
    // SAFETY: by this function's contract.
    let place = unsafe { out(endpoint, "endpoint") }?;
    // SAFETY: the same.
    let asked = unsafe { Asked::read(options, |name| std::env::var_os(name)) }?;
    own()?;
    place.put(handle::insert(Arc::new(EndpointSlot(Mutex::new(make(asked)?))))?);
    Ok(())
}

/// Opens a card and starts the firmware on its DPA, or an RDMA card without firmware, or a network interface, as
/// `datapath` says. `options` may be NULL: the defaults, and what variables say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_endpoint_open(
    options: *const flexcast_endpoint_options,
    endpoint: *mut *mut flexcast_endpoint,
) -> flexcast_status {
    // SAFETY: as the header asks of the caller.
    call(|| unsafe { open(options, endpoint, |asked| Ok(Stage::Open(Arc::new(asked.open()?)))) })
}

/// The same without blocking: `endpoint` becomes a handle at once, which flexcast_endpoint_test() and
/// flexcast_endpoint_close() take until it is open. A thread of the library opens it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_endpoint_open_begin(
    options: *const flexcast_endpoint_options,
    endpoint: *mut *mut flexcast_endpoint,
) -> flexcast_status {
    let begin = |asked: Asked| Ok(Stage::Opening(Creation::start(None, move || asked.open())?));
    // SAFETY: as the header asks of the caller.
    call(|| unsafe { open(options, endpoint, begin) })
}

/// Whether an endpoint is open (`ready` becomes 1) or not yet (0). If it could not be opened the status says why, now
/// and later; then it is only to be closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_endpoint_test(
    endpoint: *mut flexcast_endpoint,
    ready: *mut c_int,
) -> flexcast_status {
    call(|| {
        // SAFETY: null or a place for an int.
        let place = unsafe { out(ready, "ready") }?;
        place.put(0);
        place.put(handle::get::<EndpointSlot>(endpoint)?.test()?.into());
        Ok(())
    })
}

/// What moves the data of an endpoint's communicators: "dpa", "verbs" or "udp". The text belongs to the library and
/// lasts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_endpoint_datapath(
    endpoint: *mut flexcast_endpoint,
    name: *mut *const c_char,
) -> flexcast_status {
    call(|| {
        // SAFETY: null or a place for a pointer.
        let place = unsafe { out(name, "name") }?;
        let open = handle::get::<EndpointSlot>(endpoint)?.open()?;
        place.put(match open.endpoint.datapath() {
            DatapathKind::Dpa => c"dpa".as_ptr(),
            DatapathKind::Verbs => c"verbs".as_ptr(),
            DatapathKind::Udp => c"udp".as_ptr(),
            _ => c"other".as_ptr(),
        });
        Ok(())
    })
}

/// Closes an endpoint. Refused (FLEXCAST_ERROR_BUSY) while it has communicators. One that is being opened is closed as
/// soon as it is open. An RDMA card still answers peers of communicators that were freed a moment ago; this waits for
/// the rest of that moment, 16.8 ms at most with default settings, 100 ms with any. A program that ends without closing
/// its endpoints may leave peers without their last acknowledgement: then their operation fails though this rank has
/// all bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_endpoint_close(endpoint: *mut flexcast_endpoint) -> flexcast_status {
    call(|| {
        let slot = handle::get::<EndpointSlot>(endpoint)?;
        if let Stage::Open(open) = &*lock(&slot.0)? {
            let users = open.users();
            if users > 0 {
                let text = format!("the endpoint has {users} communicators: free them first");
                return Err(Fault::new(FLEXCAST_ERROR_BUSY, text));
            }
        }
        drop(slot);
        handle::remove::<EndpointSlot>(endpoint).map(drop)
    })
}

/// Registers memory with an endpoint before its first use, which is the expensive part of it. Not needed: operations
/// register what they are given, and the registration is kept. The memory stays allocated until
/// flexcast_buffer_invalidate() or flexcast_endpoint_close().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_register(
    endpoint: *mut flexcast_endpoint,
    buffer: *mut c_void,
    bytes: usize,
) -> flexcast_status {
    call(|| {
        let open = handle::get::<EndpointSlot>(endpoint)?.open()?;
        named(buffer, bytes)?;
        // SAFETY: no buffer leaves; the caller's contract is that of the function below.
        Ok(unsafe { open.memory().register(buffer.cast(), bytes) }?)
    })
}

/// Refuses what cannot be memory.
fn named(buffer: *const c_void, bytes: usize) -> Result<(), Fault> {
    if buffer.is_null() && bytes > 0 {
        return Err(Fault::new(FLEXCAST_ERROR_NULL, format!("buffer is NULL: give the {bytes} bytes that it names")));
    }
    if buffer.addr().checked_add(bytes).is_none() {
        let text = format!("{bytes} bytes at {:#x} end beyond the address space", buffer.addr());
        return Err(Fault::new(FLEXCAST_ERROR_ARGUMENT, text));
    }
    Ok(())
}

/// Forgets registrations. Unless the memory is watched (`memory_watch` in flexcast_endpoint_options), to be called
/// before memory is freed or unmapped that an operation has used or flexcast_register() has registered; otherwise what
/// is allocated there later would be sent from, or received into, pages that are not its own. Refused
/// (FLEXCAST_ERROR_BUSY) while an operation uses the memory: it must not be freed then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_buffer_invalidate(
    endpoint: *mut flexcast_endpoint,
    buffer: *const c_void,
    bytes: usize,
) -> flexcast_status {
    call(|| {
        let open = handle::get::<EndpointSlot>(endpoint)?.open()?;
        named(buffer, bytes)?;
        let Ok(range) = Range::new(buffer.addr() as u64, bytes as u64) else { return Ok(()) };
        if open.claims.overlap(range) {
            let text = format!("{bytes} bytes at {:#x} are in use by an operation: wait for it first", buffer.addr());
            return Err(Fault::new(FLEXCAST_ERROR_BUSY, text));
        }
        open.memory.invalidate(buffer.cast(), bytes);
        Ok(())
    })
}
