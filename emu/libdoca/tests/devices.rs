//! Finding, opening and closing devices, and what happens with anything else.
#![allow(unsafe_code, clippy::undocumented_unsafe_blocks)] // C calls on objects made in the test

use std::ffi::{CStr, c_char};
use std::ptr::null_mut;

use doca_sys::*;

#[test]
fn devices_have_names_and_addresses_and_open() {
    emu_machine::configure(emu_machine::Config::default()).unwrap();
    let api = emu_libdoca::api();
    let (mut list, mut count) = (null_mut(), 0);
    unsafe {
        assert_eq!((api.doca_devinfo_create_list)(&mut list, &mut count), DOCA_SUCCESS);
        assert_eq!(count, 2);
        let mut seen = Vec::new();
        for index in 0..2 {
            let info = *list.add(index);
            let mut text = [0 as c_char; 64];
            assert_eq!((api.doca_devinfo_get_ibdev_name)(info, text.as_mut_ptr(), 64), DOCA_SUCCESS);
            assert_eq!(CStr::from_ptr(text.as_ptr()).to_str().unwrap(), format!("mlx5_{index}"));
            assert_eq!((api.doca_devinfo_get_ibdev_name)(info, text.as_mut_ptr(), 6), DOCA_ERROR_INVALID_VALUE);
            assert_eq!((api.doca_devinfo_get_iface_name)(info, text.as_mut_ptr(), 64), DOCA_SUCCESS);
            assert_eq!((api.doca_devinfo_get_pci_addr_str)(info, text.as_mut_ptr()), DOCA_SUCCESS);
            assert_eq!(CStr::from_ptr(text.as_ptr()).count_bytes(), 12);
            let mut mac = [0; 6];
            assert_eq!((api.doca_devinfo_get_mac_addr)(info, mac.as_mut_ptr(), 6), DOCA_SUCCESS);
            assert_eq!((api.doca_devinfo_get_mac_addr)(info, mac.as_mut_ptr(), 5), DOCA_ERROR_INVALID_VALUE);
            seen.push(mac);
        }
        assert_ne!(seen[0], seen[1]);
        let mut dev = null_mut();
        assert_eq!((api.doca_dev_open)(*list.add(1), &mut dev), DOCA_SUCCESS);
        let gone = *list;
        assert_eq!((api.doca_devinfo_destroy_list)(list), DOCA_SUCCESS);
        assert_eq!((api.doca_devinfo_destroy_list)(list), DOCA_ERROR_INVALID_VALUE);
        assert_eq!((api.doca_dev_open)(gone, &mut dev), DOCA_ERROR_INVALID_VALUE);
        // The open device outlives the list and still knows its name.
        let info = (api.doca_dev_as_devinfo)(dev);
        let mut text = [0 as c_char; 64];
        assert_eq!((api.doca_devinfo_get_ibdev_name)(info, text.as_mut_ptr(), 64), DOCA_SUCCESS);
        assert_eq!(CStr::from_ptr(text.as_ptr()), c"mlx5_1");
        assert_eq!((api.doca_dev_close)(dev), DOCA_SUCCESS);
        assert_eq!((api.doca_dev_close)(dev), DOCA_ERROR_INVALID_VALUE);
        assert!((api.doca_dev_as_devinfo)(dev).is_null());
    }
}

#[test]
fn null_pointers_are_invalid_values() {
    let api = emu_libdoca::api();
    let mut count = 0;
    unsafe {
        assert_eq!((api.doca_devinfo_create_list)(null_mut(), &mut count), DOCA_ERROR_INVALID_VALUE);
        assert_eq!((api.doca_devinfo_destroy_list)(null_mut()), DOCA_ERROR_INVALID_VALUE);
        assert_eq!((api.doca_dev_open)(null_mut(), null_mut()), DOCA_ERROR_INVALID_VALUE);
        assert_eq!((api.doca_devinfo_get_pci_addr_str)(null_mut(), null_mut()), DOCA_ERROR_INVALID_VALUE);
        assert_eq!(CStr::from_ptr((api.doca_error_get_name)(DOCA_ERROR_NOT_FOUND)), c"DOCA_ERROR_NOT_FOUND");
        assert_eq!(CStr::from_ptr((api.doca_error_get_descr)(12_345)), c"unknown error");
    }
}
