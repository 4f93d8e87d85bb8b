//! Registration keys. (The pack function is exercised by every RPC of the emulator's tests.)

use core::ffi::c_void;
use core::ptr::NonNull;

#[test]
fn a_key_is_the_address_given() {
    let mut record = 0u8;
    let address = NonNull::from(&mut record).cast::<c_void>();
    assert_eq!(flexio_sys::stub_key(address).unwrap() as usize, address.as_ptr() as usize);
}

#[test]
fn without_the_sdk_the_loader_says_what_to_install() {
    // On a machine with the SDK there is nothing to say.
    if let Err(error) = flexio_sys::load() {
        let text = error.to_string();
        assert!(text.contains("libflexio.so") && text.contains("FlexIO") && text.contains("LD_LIBRARY_PATH"), "{text}");
    }
}
