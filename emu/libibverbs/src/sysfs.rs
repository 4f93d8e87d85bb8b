//! Kernel files and address tables that programs read. Emulated devices have no such files; the few that programs read
//! are answered from here.

use core::ffi::{CStr, c_char, c_int, c_uint};
use std::fs;

use emu_machine::Function;
use emu_machine::nic::{GidEntry, RoceVersion};
use verbs_sys::*;

use crate::device::{self, Context};
use crate::errno::{Errno, Result, number, out, status};
use crate::handle;

/// Where the kernel's files lie.
static SYSFS: &CStr = c"/sys";
const BOARD_ID: &str = "FLEXCAST_EMU";
/// Longest file that is read, as the kernel's are at most a page.
const PAGE_BYTES: usize = 4096;

#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    SYSFS.as_ptr()
}

/// The contents of a file that an emulated device has.
fn emulated(device: &str, file: &str) -> Option<Vec<u8>> {
    let name = device.strip_prefix('/')?;
    let id = device::functions().into_iter().find(|id| device::device_name(*id) == name)?;
    let text = match file {
        "board_id" => BOARD_ID.to_owned(),
        "fw_ver" => device::FIRMWARE.to_owned(),
        "hw_rev" => "0".to_owned(),
        "node_desc" => match id.function {
            Function::Host => format!("emulated card {}", id.card),
            Function::Arm => format!("emulated card {}, Arm cores", id.card),
        },
        _ => return None,
    };
    Some(text.into_bytes())
}

/// Bytes of the file put into `buf`, without the line's end; -1 if there is no such file.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    buf: *mut c_char,
    size: usize,
) -> c_int {
    number("ibv_read_sysfs_file", || {
        if dir.is_null() || file.is_null() || buf.is_null() {
            return Err(Errno::invalid("dir, file and buf must not be null"));
        }
        // SAFETY: not null; the caller passes strings with their ends.
        let [dir, file] = [dir, file].map(|text| unsafe { CStr::from_ptr(text) }.to_string_lossy());
        let contents = match dir.strip_prefix(device::EMULATED) {
            Some(device) => emulated(device, &file),
            None => fs::read(format!("{dir}/{file}")).ok(),
        };
        let contents = contents.ok_or_else(|| Errno::new(libc::ENOENT, format!("no file {dir}/{file}")))?;
        let text = contents.strip_suffix(b"\n").unwrap_or(&contents);
        let bytes = text.len().min(size).min(PAGE_BYTES);
        // SAFETY: the caller's buffer has `size` bytes; the file's contents are this function's.
        unsafe { core::ptr::copy_nonoverlapping(text.as_ptr(), buf.cast::<u8>(), bytes) };
        if bytes < size {
            // SAFETY: still inside the buffer.
            unsafe { buf.add(bytes).write(0) };
        }
        Ok(bytes as c_int)
    })
}

/// `ibv_gid_type_sysfs`: InfiniBand or RoCE version 1.
const SYSFS_ROCE_V1: u32 = 0;
/// RoCE version 2.
const SYSFS_ROCE_V2: u32 = 1;

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_gid_type(
    context: *mut ibv_context,
    port_num: u8,
    index: c_uint,
    gid_type: *mut u32,
) -> c_int {
    number("ibv_query_gid_type", || {
        let entry = entry(context, u32::from(port_num), index)?;
        let found = if entry.gid_type == IBV_GID_TYPE_ROCE_V1 { SYSFS_ROCE_V1 } else { SYSFS_ROCE_V2 };
        // SAFETY: the caller passes a writable type.
        unsafe { out(gid_type, "type") }?.write(found);
        Ok(0)
    })
}

fn entry(context: *mut ibv_context, port_num: u32, index: u32) -> Result<ibv_gid_entry> {
    let id = handle::get::<Context>(context)?.id();
    device::check_port(port_num)?;
    let gids = device::gids(id)?;
    let found = gids.get(index as usize);
    let GidEntry { gid, version } = *found.ok_or_else(|| {
        Errno::new(libc::ENODATA, format!("GID index {index}: the port has {}", device::listed(&gids)))
    })?;
    let gid_type = match version {
        RoceVersion::V1 => IBV_GID_TYPE_ROCE_V1,
        RoceVersion::V2 => IBV_GID_TYPE_ROCE_V2,
    };
    Ok(ibv_gid_entry { gid: ibv_gid { raw: gid.0 }, gid_index: index, port_num, gid_type, ndev_ifindex: 0 })
}

/// Writes as much of an entry as the program's structure has.
///
/// # Safety
/// `to` must be writable for `bytes`.
unsafe fn put(to: *mut ibv_gid_entry, entry: ibv_gid_entry, bytes: usize) {
    let known = bytes.min(size_of::<ibv_gid_entry>());
    // SAFETY: as this function's; the source is longer.
    unsafe { core::ptr::copy_nonoverlapping((&raw const entry).cast::<u8>(), to.cast::<u8>(), known) };
}

/// The function behind `ibv_query_gid_ex`; an errno value on failure.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port_num: u32,
    gid_index: u32,
    to: *mut ibv_gid_entry,
    flags: u32,
    entry_size: usize,
) -> c_int {
    status("ibv_query_gid_ex", || {
        if flags != 0 {
            return Err(Errno::unsupported(format!("flags {flags:#x}")));
        }
        let entry = entry(context, port_num, gid_index)?;
        if to.is_null() {
            return Err(Errno::invalid("entry is null"));
        }
        // SAFETY: the caller says how long its structure is.
        unsafe { put(to, entry, entry_size) };
        Ok(())
    })
}

/// The function behind `ibv_query_gid_table`: the number of entries, or a negative errno value.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
    flags: u32,
    entry_size: usize,
) -> isize {
    let mut count = 0;
    let failed = status("ibv_query_gid_table", || {
        if flags != 0 {
            return Err(Errno::unsupported(format!("flags {flags:#x}")));
        }
        let gids = device::gids(handle::get::<Context>(context)?.id())?.len();
        if gids > max_entries || entries.is_null() {
            return Err(Errno::invalid(format!("room for {max_entries} entries: the port has {gids}")));
        }
        for index in 0..gids {
            let to = entries.wrapping_byte_add(index * entry_size);
            // SAFETY: inside the caller's array, whose entries have this size.
            unsafe { put(to, entry(context, 1, index as u32)?, entry_size) };
        }
        count = gids as isize;
        Ok(())
    });
    if failed == 0 { count } else { -(failed as isize) }
}

/// Where a partition key, in network order, stands in the port's table; -1 if it does not.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_pkey_index(context: *mut ibv_context, port_num: u8, pkey: u16) -> c_int {
    number("ibv_get_pkey_index", || {
        let card = handle::get::<Context>(context)?.card;
        device::check_port(u32::from(port_num))?;
        let position = device::pkeys(card)?.iter().position(|known| known.to_be() == pkey);
        let position = position
            .ok_or_else(|| Errno::new(libc::ENOENT, format!("no partition key {:#06x}", u16::from_be(pkey))))?;
        Ok(position as c_int)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_without_their_line_end_and_no_further_than_the_buffer() {
        let folder = std::env::temp_dir();
        let name = format!("flexcast-sysfs-{}", std::process::id());
        fs::write(folder.join(&name), "12345\n").expect("a file");
        let c = |text: &str| std::ffi::CString::new(text).expect("no zero inside");
        let (dir, file) = (c(folder.to_str().expect("UTF-8")), c(&name));
        for (room, read) in [(16_usize, 5), (5, 5), (3, 3)] {
            let mut buf = [0x7F_u8; 17];
            // SAFETY: strings with their ends and a buffer of 17 bytes, of which fewer are announced.
            let bytes = unsafe { ibv_read_sysfs_file(dir.as_ptr(), file.as_ptr(), buf.as_mut_ptr().cast(), room) };
            assert_eq!((bytes, &buf[..read]), (read as c_int, &b"12345"[..read]));
            assert_eq!(buf[room], 0x7F, "room for {room}");
        }
        fs::remove_file(folder.join(&name)).expect("it is there");
        let mut buf = [0_u8; 4];
        // SAFETY: as above.
        let bytes = unsafe { ibv_read_sysfs_file(dir.as_ptr(), file.as_ptr(), buf.as_mut_ptr().cast(), 4) };
        assert_eq!(bytes, -1);
        // SAFETY: null is answered.
        assert_eq!(unsafe { ibv_read_sysfs_file(core::ptr::null(), file.as_ptr(), buf.as_mut_ptr().cast(), 4) }, -1);
    }

    #[test]
    fn emulated_devices_have_a_few_files() {
        assert_eq!(emulated("/mlx5_0", "board_id"), Some(BOARD_ID.as_bytes().to_vec()));
        assert_eq!(
            (emulated("/mlx5_0", "gids"), emulated("/mlx5_7000", "board_id"), emulated("/x", "hw_rev")),
            (None, None, None)
        );
    }
}
