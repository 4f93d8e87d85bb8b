//! Providers of the C functions: installed libraries, or the emulator.

use std::ffi::CStr;
use std::ops::Deref;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use doca_sys::DocaApi;
use flexio_sys::{EmulatorApi, FlexioApi};
use verbs_sys::VerbsApi;

use crate::device::{Device, DeviceInfo, Mac};
use crate::error::{Error, Result};
use crate::sysfs;
use crate::wait::{Bound, CardKind, EmulatorClock, HostWork, Relax, SpinLoop, wait};

/// Function tables and a way to wait: all that differs between a card and the emulator. Three tables, or that of verbs
/// alone ([`Provider::rdma`]).
///
/// A clone is the same provider. Whatever is made through it keeps it.
#[derive(Clone)]
pub struct Provider {
    tables: Arc<Tables>,
    work: Option<Arc<WorkTimes>>,
}

/// What a piece of work takes the processor of the host that has the device of this name, in picoseconds.
type WorkTimes = dyn Fn(&str, HostWork) -> u64 + Send + Sync;

struct Tables {
    /// None where only verbs are installed.
    flexio: Option<FlexioApi>,
    verbs: VerbsApi,
    doca: Option<DocaApi>,
    relax: Box<dyn Relax>,
    /// Held during calls of FlexIO and DOCA; `None` for installed libraries, which a process loads once, whatever its
    /// providers.
    own_lock: Option<Mutex<()>>,
}

/// Held during calls of installed FlexIO and DOCA libraries.
static INSTALLED: Mutex<()> = Mutex::new(());

/// The functions of one library, for one call: until it is dropped, the calling thread's calls reach the provider's
/// cards, and where the library needs it no other thread calls. Only one of a library with a lock may exist on a
/// thread.
pub(crate) struct Library<'p, T> {
    api: &'p T,
    entered: Option<&'p dyn Relax>,
    _lock: Option<MutexGuard<'p, ()>>,
}

impl<T> Deref for Library<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.api
    }
}

impl<T> Drop for Library<'_, T> {
    fn drop(&mut self) {
        if let Some(relax) = self.entered {
            relax.leave();
        }
    }
}

/// The clock of libraries: the emulator's if they are its own, else the computer's.
fn clock(emulator: Option<EmulatorApi>) -> Box<dyn Relax> {
    let Some(EmulatorApi { flexcast_emu_relax, flexcast_emu_now_ps, flexcast_emu_is_bridged }) = emulator else {
        return Box::<SpinLoop>::default();
    };
    // SAFETY: the three take nothing, and are defined on every thread at any time (flexcast_emu.h).
    let (relax, now_ps) = (move || unsafe { flexcast_emu_relax() }, move || unsafe { flexcast_emu_now_ps() });
    // SAFETY: as above.
    let is_bridged = unsafe { flexcast_emu_is_bridged() };
    Box::new(EmulatorClock::new(relax, now_ps, !is_bridged))
}

impl std::fmt::Debug for Provider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Provider").field("virtual_time", &self.relax().is_virtual()).finish_non_exhaustive()
    }
}

impl Provider {
    /// A provider over tables that somebody else filled.
    ///
    /// # Safety
    /// Every function must implement the C function of its name (FlexIO 2.7, rdma-core, DOCA common), and the three
    /// must belong together: objects of one are passed to the others. Verbs functions are called by any thread at any
    /// time, those of the other two by any thread, one at a time; always between [`Relax::enter`] and [`Relax::leave`].
    #[must_use]
    pub unsafe fn from_tables(flexio: FlexioApi, verbs: VerbsApi, doca: DocaApi, relax: Box<dyn Relax>) -> Self {
        let (flexio, doca) = (Some(flexio), Some(doca));
        Self::of(Tables { flexio, verbs, doca, relax, own_lock: Some(Mutex::new(())) })
    }

    fn of(tables: Tables) -> Self {
        Self { tables: Arc::new(tables), work: None }
    }

    /// The same provider for hosts whose work takes virtual time: `work` gives what a piece of it takes the host that
    /// has the device of this name, in picoseconds. Without virtual time it is not asked.
    #[must_use]
    pub fn with_work(&self, work: impl Fn(&str, HostWork) -> u64 + Send + Sync + 'static) -> Self {
        Self { tables: self.tables.clone(), work: Some(Arc::new(work)) }
    }

    /// What a piece of work takes a host in virtual time, in picoseconds.
    pub(crate) fn work_ps(&self, device: &str, work: HostWork) -> u64 {
        self.work.as_ref().filter(|_| self.relax().is_virtual()).map_or(0, |times| times(device, work))
    }

    /// A provider over tables that the loaders filled.
    fn installed(flexio: FlexioApi, verbs: VerbsApi, doca: DocaApi, relax: Box<dyn Relax>) -> Self {
        let (flexio, doca) = (Some(flexio), Some(doca));
        Self::of(Tables { flexio, verbs, doca, relax, own_lock: None })
    }

    fn library<'p, T>(&'p self, api: &'p T, lock: Option<MutexGuard<'p, ()>>) -> Library<'p, T> {
        let relax = self.relax();
        Library { api, entered: relax.enter().then_some(relax), _lock: lock }
    }

    /// The lock of libraries that promise nothing about threads. It guards no data: what a panic left is as good as
    /// before.
    fn lock(&self) -> Option<MutexGuard<'_, ()>> {
        let lock = self.tables.own_lock.as_ref().unwrap_or(&INSTALLED);
        Some(lock.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The verbs functions, for one call.
    pub(crate) fn verbs(&self) -> Library<'_, VerbsApi> {
        self.library(&self.tables.verbs, None)
    }

    /// The FlexIO functions, if there are any: what an application keeps.
    pub(crate) fn flexio_api(&self) -> Result<FlexioApi> {
        self.tables.flexio.ok_or_else(|| Error::NotInstalled {
            missing: "libflexio.so".to_owned(),
            source: "the provider has verbs alone, by which no firmware is started".into(),
        })
    }

    /// The FlexIO functions that an application keeps, for one call. None of the arguments may need a FlexIO call of
    /// its own.
    pub(crate) fn flexio<'p>(&'p self, api: &'p FlexioApi) -> Library<'p, FlexioApi> {
        self.library(api, self.lock())
    }

    /// The DOCA functions, for one call.
    fn doca<'p>(&'p self, api: &'p DocaApi) -> Library<'p, DocaApi> {
        self.library(api, self.lock())
    }

    /// Whether both are one provider.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.tables, &other.tables)
    }

    /// The libraries of an installed DOCA.
    ///
    /// # Errors
    /// [`Error::NotInstalled`] names what is missing.
    pub fn system() -> Result<Self> {
        let missing = |name: &str, source: Box<dyn std::error::Error + Send + Sync>| Error::NotInstalled {
            missing: name.to_owned(),
            source,
        };
        let (flexio, emulator) = flexio_sys::load().map_err(|e| missing("libflexio.so", e.into()))?;
        let verbs = verbs_sys::load().map_err(|e| missing("libibverbs.so.1 and libmlx5.so.1", e.into()))?;
        let doca = doca_sys::load().map_err(|e| missing("libdoca_common.so", e.into()))?;
        // The loaders take every symbol by its C name from the installed libraries, which are one DOCA release.
        Ok(Self::installed(flexio, verbs, doca, clock(emulator)))
    }

    /// The libraries of an installed DOCA, or where it is not installed, rdma-core's: enough for cards without firmware
    /// on their DPA.
    ///
    /// # Errors
    /// [`Error::NotInstalled`] names what is missing.
    pub fn rdma() -> Result<Self> {
        Self::system().or_else(|_| {
            let verbs = verbs_sys::load().map_err(|error| Error::NotInstalled {
                missing: "libibverbs.so.1 and libmlx5.so.1".to_owned(),
                source: error.into(),
            })?;
            let relax = Box::<SpinLoop>::default();
            Ok(Self::of(Tables { flexio: None, verbs, doca: None, relax, own_lock: None }))
        })
    }

    /// The same libraries in one folder, wherever the dynamic loader searches: those that `cargo xtask build-emu-libs`
    /// makes, for instance.
    ///
    /// # Errors
    /// [`Error::NotInstalled`] names what is missing.
    pub fn from_folder(folder: &Path) -> Result<Self> {
        let missing = |name: &str, source: verbs_sys::LoadError| Error::NotInstalled {
            missing: format!("{name} in {}", folder.display()),
            source: source.into(),
        };
        let (flexio, emulator) = flexio_sys::load_from(folder).map_err(|e| missing("libflexio.so", e))?;
        let verbs = verbs_sys::load_from(folder).map_err(|e| missing("libibverbs.so.1 and libmlx5.so.1", e))?;
        let doca = doca_sys::load_from(folder).map_err(|e| missing("libdoca_common.so.2", e))?;
        // The loaders take every symbol by its C name; libraries in one folder are one release.
        Ok(Self::installed(flexio, verbs, doca, clock(emulator)))
    }

    /// How this provider waits, and its clock.
    #[must_use]
    pub fn relax(&self) -> &dyn Relax {
        &*self.tables.relax
    }

    /// What its cards are.
    #[must_use]
    pub fn kind(&self) -> CardKind {
        self.relax().kind()
    }

    /// The clock by which waits are bounded, from an arbitrary origin: virtual time on the emulator.
    #[must_use]
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.relax().now_ps() / 1000)
    }

    /// Waits for a condition; see [`wait()`].
    ///
    /// # Errors
    /// As [`wait()`].
    pub fn wait<T>(&self, bound: Bound, what: &str, condition: impl FnMut() -> Result<Option<T>>) -> Result<T> {
        wait(self.relax(), bound, what, condition)
    }

    /// The cards, in the order DOCA lists them; without DOCA, in that of libibverbs. Entries without an RDMA device are
    /// left out.
    ///
    /// # Errors
    /// [`Error::Doca`] or [`Error::Verbs`] when the list cannot be made.
    pub fn devices(&self) -> Result<Vec<DeviceInfo>> {
        let Some(api) = &self.tables.doca else { return sysfs::devices(self) };
        let mut list = std::ptr::null_mut();
        let mut count = 0;
        // SAFETY: both out-parameters are writable.
        let status = unsafe { (self.doca(api).doca_devinfo_create_list)(&raw mut list, &raw mut count) };
        self.doca_ok(api, "doca_devinfo_create_list", status)?;
        let mut found = Vec::new();
        for index in 0..count as usize {
            // SAFETY: the list has `count` entries, each valid until the list is destroyed.
            let info = unsafe { *list.add(index) };
            found.extend(self.describe(api, info));
        }
        // SAFETY: `list` came from the call above and is not used again.
        let status = unsafe { (self.doca(api).doca_devinfo_destroy_list)(list) };
        self.doca_ok(api, "doca_devinfo_destroy_list", status)?;
        Ok(found)
    }

    fn describe(&self, api: &DocaApi, info: *mut doca_sys::doca_devinfo) -> Option<DeviceInfo> {
        let mut text = [0 as std::ffi::c_char; 256];
        let mut read = |call: &dyn Fn(*mut std::ffi::c_char) -> doca_sys::doca_error_t| {
            text.fill(0);
            if call(text.as_mut_ptr()) != doca_sys::DOCA_SUCCESS {
                return None;
            }
            // SAFETY: the buffer was zeroed and the call writes at most its size less one, so a NUL is inside.
            let text = unsafe { CStr::from_ptr(text.as_ptr()) };
            Some(text.to_string_lossy().into_owned())
        };
        // SAFETY: `info` is a live entry; each buffer has the size that is passed or that the header fixes (13 bytes
        // for the PCI address).
        let name = read(&|p| unsafe { (self.doca(api).doca_devinfo_get_ibdev_name)(info, p, 64) })?;
        // SAFETY: as above.
        let pci = read(&|p| unsafe { (self.doca(api).doca_devinfo_get_pci_addr_str)(info, p) }).unwrap_or_default();
        // SAFETY: as above.
        let interface =
            read(&|p| unsafe { (self.doca(api).doca_devinfo_get_iface_name)(info, p, 256) }).unwrap_or_default();
        let mut mac = [0; 6];
        // SAFETY: as above; the buffer has the 6 bytes passed.
        let status = unsafe { (self.doca(api).doca_devinfo_get_mac_addr)(info, mac.as_mut_ptr(), 6) };
        if status != doca_sys::DOCA_SUCCESS {
            mac = [0; 6];
        }
        Some(DeviceInfo { name, pci, interface, mac: Mac(mac) })
    }

    /// Opens a card by its RDMA device name, such as `mlx5_0`.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`] lists the names there are; [`Error::OpenDevice`].
    pub fn open(&self, name: &str) -> Result<Device> {
        Device::open(self, self.find(name)?, true)
    }

    /// [`Provider::open`] for verbs alone: the card need not be of a kind whose DPA runs firmware, nor let this process
    /// give it commands.
    ///
    /// # Errors
    /// As [`Provider::open`].
    pub fn open_plain(&self, name: &str) -> Result<Device> {
        Device::open(self, self.find(name)?, false)
    }

    fn find(&self, name: &str) -> Result<DeviceInfo> {
        let devices = self.devices()?;
        let Some(info) = devices.iter().find(|device| device.name == name) else {
            return Err(Error::UnknownDevice {
                name: name.to_owned(),
                present: devices.into_iter().map(|device| device.name).collect(),
            });
        };
        Ok(info.clone())
    }

    fn doca_ok(&self, api: &DocaApi, call: &'static str, status: doca_sys::doca_error_t) -> Result<()> {
        if status == doca_sys::DOCA_SUCCESS {
            return Ok(());
        }
        // SAFETY: any value is accepted; the result is a static string or null.
        let text = unsafe { (self.doca(api).doca_error_get_descr)(status) };
        let reason = if text.is_null() {
            format!("error {status}")
        } else {
            // SAFETY: not null, and a static C string.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        Err(Error::Doca { call, reason })
    }

    /// Turns a FlexIO status into a result.
    pub(crate) fn flexio_ok(
        &self,
        call: &'static str,
        status: flexio_sys::flexio_status,
        detail: impl FnOnce() -> String,
    ) -> Result<()> {
        if status == flexio_sys::FLEXIO_STATUS_SUCCESS {
            return Ok(());
        }
        Err(Error::FlexIo { call, status: crate::Status(status), detail: detail() })
    }
}
