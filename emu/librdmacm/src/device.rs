//! Cards that connections are made over, opened once and for good as librdmacm does it: those of the host's functions.

use std::net::IpAddr;
use std::sync::OnceLock;

use emu_libibverbs::errno::{Errno, Result};
use emu_libibverbs::{calls, device_name, functions, gids, is_bridged, port_mtu_code};
use emu_machine::nic::{Gid, GidEntry, RoceVersion};
use emu_machine::{Function, FunctionId};
use verbs_sys::*;

use crate::protocol::agent::{address_of, gid_of};

/// A card.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) id: FunctionId,
    verbs: usize,
    pd: usize,
    pub(crate) gids: Vec<GidEntry>,
    pub(crate) guid: u64,
    /// Code of the largest path MTU.
    pub(crate) mtu_code: u8,
}

impl Device {
    pub(crate) fn verbs(&self) -> *mut ibv_context {
        self.verbs as *mut ibv_context
    }

    /// The domain of programs that have none.
    pub(crate) fn pd(&self) -> *mut ibv_pd {
        self.pd as *mut ibv_pd
    }

    /// The index of an address, for RoCE version 2.
    pub(crate) fn gid_index(&self, address: IpAddr) -> Option<u8> {
        let entry = GidEntry { gid: Gid(gid_of(address)), version: RoceVersion::V2 };
        self.gids.iter().position(|other| *other == entry).map(|index| index as u8)
    }

    /// Its addresses, without repetition.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let of_v2 = self.gids.iter().filter(|entry| entry.version == RoceVersion::V2);
        of_v2.map(|entry| address_of(entry.gid.0))
    }

    /// The address of the version of another: the last one, as programs choose GIDs.
    pub(crate) fn address_like(&self, other: IpAddr) -> Option<IpAddr> {
        self.addresses().filter(|own| own.is_ipv4() == other.is_ipv4()).last()
    }

    fn open(id: FunctionId, device: *mut ibv_device) -> Result<Self> {
        let api = calls();
        // SAFETY: a device of a list that is not freed yet.
        let verbs = unsafe { (api.ibv_open_device)(device) };
        if verbs.is_null() {
            return Err(Errno::new(libc::ENODEV, format!("{} cannot be opened", device_name(id))));
        }
        // SAFETY: an open context.
        let pd = unsafe { (api.ibv_alloc_pd)(verbs) };
        if pd.is_null() {
            return Err(Errno::new(libc::ENOMEM, format!("{} has no protection domain left", device_name(id))));
        }
        // SAFETY: a device of a list that is not freed yet.
        let guid = u64::from_be(unsafe { (api.ibv_get_device_guid)(device) });
        Ok(Self { id, verbs: verbs as usize, pd: pd as usize, gids: gids(id)?, guid, mtu_code: port_mtu_code(id)? })
    }
}

fn open_all() -> Result<Vec<Device>> {
    let api = calls();
    let mut count = 0;
    // SAFETY: a writable number.
    let list = unsafe { (api.ibv_get_device_list)(&raw mut count) };
    if list.is_null() {
        return Err(Errno::new(libc::ENODEV, "there are no cards"));
    }
    // In the same order.
    let listed = functions().into_iter().take(usize::try_from(count).unwrap_or(0)).enumerate();
    let host = listed.filter(|(_, id)| id.function == Function::Host);
    // SAFETY: the list has that many entries.
    let devices = host.map(|(index, id)| Device::open(id, unsafe { *list.add(index) })).collect();
    // SAFETY: the list is not used any more.
    unsafe { (api.ibv_free_device_list)(list) };
    devices
}

/// All cards.
///
/// # Errors
/// There is no machine.
pub(crate) fn devices() -> Result<&'static [Device]> {
    static DEVICES: OnceLock<std::result::Result<Vec<Device>, (i32, String)>> = OnceLock::new();
    let devices = DEVICES.get_or_init(|| open_all().map_err(|Errno { value, reason }| (value, reason)));
    devices.as_deref().map_err(|(value, reason)| Errno::new(*value, reason.as_str()))
}

/// The addresses that there are, for a message.
pub(crate) fn listed(devices: &[Device]) -> String {
    let of = |device: &Device| {
        let ipv4 = device.addresses().filter(IpAddr::is_ipv4).map(|address| address.to_string());
        format!("{} has {}", device_name(device.id), ipv4.collect::<Vec<_>>().join(" and "))
    };
    let own = devices.iter().map(of).collect::<Vec<_>>().join(", ");
    if is_bridged() {
        format!("here {own}; card N of a joined machine has 198.18.x.y, where 256 x + y is N + 1")
    } else {
        own
    }
}

/// The card with an address.
pub(crate) fn with_address(devices: &[Device], address: IpAddr) -> Option<usize> {
    devices.iter().position(|device| device.gid_index(address).is_some())
}
