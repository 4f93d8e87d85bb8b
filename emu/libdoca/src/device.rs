//! Listing and opening devices.

use core::ffi::c_char;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use doca_sys::*;
use emu_libibverbs::handle::{self, BadHandle, CStruct, Object};
use emu_libibverbs::{fork, log};
use emu_machine::{Function, FunctionId};

/// A code, and the reason for the log.
struct Failure(doca_error_t, String);

impl From<BadHandle> for Failure {
    fn from(bad: BadHandle) -> Self {
        Failure(DOCA_ERROR_INVALID_VALUE, bad.to_string())
    }
}

fn invalid(reason: impl Into<String>) -> Failure {
    Failure(DOCA_ERROR_INVALID_VALUE, reason.into())
}

fn run(call: &str, f: impl FnOnce() -> Result<(), Failure>) -> doca_error_t {
    log::start();
    let entered = fork::enter().map_err(|error| Failure(DOCA_ERROR_BAD_STATE, error.reason));
    let result = entered.and_then(|()| {
        let panicked =
            || Err(Failure(DOCA_ERROR_UNEXPECTED, "the emulator panicked; see the message above".to_owned()));
        catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|_| panicked())
    });
    let Err(Failure(code, reason)) = result else { return DOCA_SUCCESS };
    if !log::refused(call, &reason, false) {
        tracing::debug!(call, code, reason, "DOCA call failed");
    }
    code
}

/// A writable out-parameter.
///
/// # Safety
/// If not null, `p` must be valid for writes.
unsafe fn put<T>(p: *mut T, value: T) -> Result<(), Failure> {
    if p.is_null() {
        return Err(invalid("an out-parameter is null"));
    }
    // SAFETY: not null; the caller vouches for the rest.
    unsafe { p.write(value) };
    Ok(())
}

struct DevInfo {
    id: FunctionId,
}

impl Object for DevInfo {
    const KIND: &'static str = "device information";
    type C = doca_devinfo;
    fn c_address(&self) -> *mut doca_devinfo {
        (self as *const Self).cast_mut().cast()
    }
}

struct List {
    entries: CStruct<Vec<*mut doca_devinfo>>,
    infos: Vec<Arc<DevInfo>>,
}

impl Object for List {
    const KIND: &'static str = "device list";
    type C = *mut doca_devinfo;
    fn c_address(&self) -> *mut *mut doca_devinfo {
        // SAFETY: nobody changes the vector after creation, so its buffer stays where it is.
        unsafe { (*self.entries.get()).as_mut_ptr() }
    }
}

struct Dev {
    info: Arc<DevInfo>,
}

impl Object for Dev {
    const KIND: &'static str = "device";
    type C = doca_dev;
    fn c_address(&self) -> *mut doca_dev {
        (self as *const Self).cast_mut().cast()
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_devinfo_create_list(
    dev_list: *mut *mut *mut doca_devinfo,
    nb_devs: *mut u32,
) -> doca_error_t {
    run("doca_devinfo_create_list", || {
        if dev_list.is_null() || nb_devs.is_null() {
            return Err(invalid("dev_list or nb_devs is null"));
        }
        let infos: Vec<_> = emu_libibverbs::functions().into_iter().map(|id| Arc::new(DevInfo { id })).collect();
        let mut entries: Vec<_> = infos.iter().map(handle::publish).collect();
        entries.push(core::ptr::null_mut());
        let count = infos.len() as u32;
        let list = handle::publish(&Arc::new(List { entries: CStruct::new(entries), infos }));
        // SAFETY: not null, and writable as the caller promises.
        unsafe {
            put(dev_list, list)?;
            put(nb_devs, count)
        }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_devinfo_destroy_list(dev_list: *mut *mut doca_devinfo) -> doca_error_t {
    run("doca_devinfo_destroy_list", || {
        let list = handle::retire::<List>(dev_list)?;
        for info in &list.infos {
            // An open device keeps its own information, under the same address.
            if Arc::strong_count(info) <= 2 {
                handle::retire::<DevInfo>(info.c_address())?;
            }
        }
        Ok(())
    })
}

/// Copies text and its terminator into a buffer of `size` bytes.
///
/// # Safety
/// If not null, `to` must be writable for `size` bytes.
unsafe fn put_text(to: *mut c_char, size: u32, text: &str) -> Result<(), Failure> {
    if to.is_null() || (size as usize) <= text.len() {
        return Err(invalid(format!(
            "the buffer is null, or its {size} bytes are too few for {} and a terminator",
            text.len()
        )));
    }
    // SAFETY: the text and its terminator fit.
    unsafe {
        core::ptr::copy_nonoverlapping(text.as_ptr(), to.cast(), text.len());
        to.add(text.len()).write(0);
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_devinfo_get_pci_addr_str(
    devinfo: *const doca_devinfo,
    pci_addr_str: *mut c_char,
) -> doca_error_t {
    run("doca_devinfo_get_pci_addr_str", || {
        let id = handle::get::<DevInfo>(devinfo)?.id;
        // The Arm cores have a PCI bus of their own.
        let domain = u8::from(id.function == Function::Arm);
        let address = format!("{domain:04x}:{:02x}:00.0", id.card + 3);
        // SAFETY: the buffer has the 13 bytes that the header fixes.
        unsafe { put_text(pci_addr_str, DOCA_DEVINFO_PCI_ADDR_SIZE, &address) }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_devinfo_get_iface_name(
    devinfo: *const doca_devinfo,
    iface_name: *mut c_char,
    size: u32,
) -> doca_error_t {
    run("doca_devinfo_get_iface_name", || {
        let id = handle::get::<DevInfo>(devinfo)?.id;
        let name = match id.function {
            Function::Host => format!("enp{}s0np0", id.card + 3),
            Function::Arm => format!("p{}", id.card),
        };
        // SAFETY: the caller says how long its buffer is.
        unsafe { put_text(iface_name, size, &name) }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_devinfo_get_ibdev_name(
    devinfo: *const doca_devinfo,
    ibdev_name: *mut c_char,
    size: u32,
) -> doca_error_t {
    run("doca_devinfo_get_ibdev_name", || {
        let id = handle::get::<DevInfo>(devinfo)?.id;
        // SAFETY: the caller says how long its buffer is.
        unsafe { put_text(ibdev_name, size, &emu_libibverbs::device_name(id)) }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_devinfo_get_mac_addr(
    devinfo: *const doca_devinfo,
    mac_addr: *mut u8,
    size: u32,
) -> doca_error_t {
    run("doca_devinfo_get_mac_addr", || {
        let id = handle::get::<DevInfo>(devinfo)?.id;
        if size < DOCA_DEVINFO_MAC_ADDR_SIZE {
            return Err(invalid(format!(
                "the buffer has {size} bytes, but an address has {DOCA_DEVINFO_MAC_ADDR_SIZE}"
            )));
        }
        let Ok(mac) = emu_libibverbs::mac(id) else {
            return Err(Failure(DOCA_ERROR_NOT_FOUND, "the card is not there any more".to_owned()));
        };
        // SAFETY: null is refused; the buffer has at least the 6 bytes checked above.
        unsafe { put(mac_addr.cast::<[u8; 6]>(), mac) }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_dev_open(devinfo: *mut doca_devinfo, dev: *mut *mut doca_dev) -> doca_error_t {
    run("doca_dev_open", || {
        let info = handle::get::<DevInfo>(devinfo)?;
        if dev.is_null() {
            return Err(invalid("dev is null"));
        }
        if !emu_libibverbs::functions().contains(&info.id) {
            return Err(Failure(DOCA_ERROR_NOT_FOUND, format!("{} is not there any more", info.id)));
        }
        // SAFETY: not null, and writable as the caller promises.
        unsafe { put(dev, handle::publish(&Arc::new(Dev { info }))) }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_dev_close(dev: *mut doca_dev) -> doca_error_t {
    run("doca_dev_close", || {
        let info = Arc::clone(&handle::retire::<Dev>(dev)?.info);
        // Only this call and the set of live handles know it still: its list is gone.
        if Arc::strong_count(&info) <= 2 {
            handle::retire::<DevInfo>(info.c_address())?;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_dev_as_devinfo(dev: *const doca_dev) -> *mut doca_devinfo {
    let found = catch_unwind(AssertUnwindSafe(|| handle::get::<Dev>(dev).map(|dev| handle::publish(&dev.info))));
    found.ok().and_then(Result::ok).unwrap_or(core::ptr::null_mut())
}
