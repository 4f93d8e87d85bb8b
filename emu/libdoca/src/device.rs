//! Listing and opening devices.

use core::ffi::c_char;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use doca_sys::*;
use emu_libibverbs::handle::{self, CStruct, Object};
use emu_libibverbs::region;
use emu_machine::{Function, FunctionId};

use crate::failure::{Failure, Result, invalid, put, run};

/// What is known of a function of a card.
pub struct DevInfo {
    /// The function.
    pub id: FunctionId,
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

/// An open function of a card.
pub struct Dev {
    /// Which.
    pub info: Arc<DevInfo>,
    /// Protection domain of all that is made on it; allocated when it is first asked for.
    domain: Mutex<Option<u32>>,
}

impl Dev {
    /// Number of its protection domain.
    ///
    /// # Errors
    /// The card is not there any more.
    pub fn domain(&self) -> Result<u32> {
        let mut domain = self.domain.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(match *domain {
            Some(number) => number,
            None => *domain.insert(region::alloc_domain(self.info.id)?),
        })
    }
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
            put(dev_list, "dev_list", list)?;
            put(nb_devs, "nb_devs", count)
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
unsafe fn put_text(to: *mut c_char, size: u32, text: &str) -> Result<()> {
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
        unsafe { put(mac_addr.cast::<[u8; 6]>(), "mac_addr", mac) }
    })
}

/// Both functions of an emulated card are physical ones.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_devinfo_get_pci_func_type(
    devinfo: *const doca_devinfo,
    pci_func_type: *mut doca_pci_func_type,
) -> doca_error_t {
    run("doca_devinfo_get_pci_func_type", || {
        handle::get::<DevInfo>(devinfo)?;
        // SAFETY: writable as the caller promises.
        unsafe { put(pci_func_type, "pci_func_type", DOCA_PCI_FUNC_TYPE_PF) }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_devinfo_rep_cap_is_filter_net_supported(
    devinfo: *const doca_devinfo,
    filter_net_supported: *mut u8,
) -> doca_error_t {
    run("doca_devinfo_rep_cap_is_filter_net_supported", || {
        handle::get::<DevInfo>(devinfo)?;
        // SAFETY: writable as the caller promises.
        unsafe { put(filter_net_supported, "filter_net_supported", 0) }
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
        unsafe { put(dev, "dev", handle::publish(&Arc::new(Dev { info, domain: Mutex::default() }))) }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_dev_close(dev: *mut doca_dev) -> doca_error_t {
    run("doca_dev_close", || {
        let object = handle::get::<Dev>(dev)?;
        // This call and the set of live handles hold it as well, unless another thread closes it now.
        let users = Arc::strong_count(&object).saturating_sub(2);
        if users > 0 {
            return Err(Failure(DOCA_ERROR_IN_USE, format!("objects of the device still exist ({users})")));
        }
        if let Some(domain) = *object.domain.lock().unwrap_or_else(PoisonError::into_inner) {
            region::free_domain(object.info.id, domain)?;
        }
        let info = Arc::clone(&handle::retire::<Dev>(dev)?.info);
        drop(object);
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
    found.ok().and_then(std::result::Result::ok).unwrap_or(core::ptr::null_mut())
}
