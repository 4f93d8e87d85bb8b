//! RDMA devices as libibverbs lists them, with what the kernel reports of each (`/sys/class/infiniband`): where DOCA is
//! not installed.

use std::ffi::CStr;
use std::path::Path;

use crate::device::{DeviceInfo, Mac};
use crate::error::{Error, Result};
use crate::provider::Provider;

/// The kernel's folder of RDMA devices.
const FOLDER: &str = "/sys/class/infiniband";

/// All devices of libibverbs.
pub(crate) fn devices(provider: &Provider) -> Result<Vec<DeviceInfo>> {
    let verbs = provider.verbs();
    let mut count = 0;
    // SAFETY: the out-parameter is writable.
    let list = unsafe { (verbs.ibv_get_device_list)(&raw mut count) };
    if list.is_null() {
        let errno = std::io::Error::last_os_error();
        let detail = "the kernel's RDMA modules may be missing".to_owned();
        return Err(Error::Verbs { call: "ibv_get_device_list", errno, detail });
    }
    let name = |index: usize| {
        // SAFETY: the list has `count` live entries until it is freed below; the name is a C string that lives as long.
        let name = unsafe { CStr::from_ptr((verbs.ibv_get_device_name)(*list.add(index))) };
        name.to_string_lossy().into_owned()
    };
    let names: Vec<String> = (0..usize::try_from(count).unwrap_or(0)).map(name).collect();
    // SAFETY: `list` came from `ibv_get_device_list` and is not used again.
    unsafe { (verbs.ibv_free_device_list)(list) };
    Ok(names.into_iter().map(|name| describe(Path::new(FOLDER), name)).collect())
}

/// What the kernel reports of a device; what it does not report is empty, or zero.
fn describe(folder: &Path, name: String) -> DeviceInfo {
    let device = folder.join(&name).join("device");
    let target = std::fs::canonicalize(&device).ok();
    let pci = target.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned())).unwrap_or_default();
    let mut interfaces: Vec<String> = std::fs::read_dir(device.join("net"))
        .map(|entries| entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
        .unwrap_or_default();
    interfaces.sort_unstable();
    let interface = interfaces.into_iter().next().unwrap_or_default();
    let address = std::fs::read_to_string(device.join("net").join(&interface).join("address")).unwrap_or_default();
    DeviceInfo { name, pci, interface, mac: mac(address.trim()).unwrap_or_default() }
}

/// An Ethernet address as the kernel writes it.
fn mac(text: &str) -> Option<Mac> {
    let octets: Vec<u8> = text.split(':').map(|octet| u8::from_str_radix(octet, 16).ok()).collect::<Option<_>>()?;
    octets.try_into().ok().map(Mac)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_reports_is_read_and_what_it_does_not_is_empty() {
        let folder = tempfile::tempdir().unwrap();
        let pci = folder.path().join("0000:03:00.0");
        std::fs::create_dir_all(pci.join("net/ens3")).unwrap();
        std::fs::write(pci.join("net/ens3/address"), "02:00:5e:10:ab:01\n").unwrap();
        std::fs::create_dir(folder.path().join("mlx5_0")).unwrap();
        std::os::unix::fs::symlink(&pci, folder.path().join("mlx5_0/device")).unwrap();
        let info = describe(folder.path(), "mlx5_0".to_owned());
        assert_eq!((info.pci.as_str(), info.interface.as_str()), ("0000:03:00.0", "ens3"));
        assert_eq!(info.mac, Mac([0x02, 0, 0x5E, 0x10, 0xAB, 1]));
        let info = describe(folder.path(), "rxe0".to_owned());
        assert_eq!((info.pci.as_str(), info.interface.as_str(), info.mac), ("", "", Mac::default()));
        assert_eq!((mac("02:00"), mac("02:00:5e:10:ab:xx"), mac("")), (None, None, None));
    }
}
