//! The loader's errors name what is missing and what to do.
#![allow(unsafe_code)] // resolving a symbol is unsafe

use verbs_sys::Loader;

#[test]
fn a_missing_library_is_named_with_the_next_step() {
    let error = Loader::open(&["libflexcast-absent.so.7", "libflexcast-absent.so"], "install absent").unwrap_err();
    let text = error.to_string();
    for part in ["libflexcast-absent.so.7 or libflexcast-absent.so", "install absent", "LD_LIBRARY_PATH"] {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
    // The words of the dynamic loader, which may be about a library that this one needs.
    assert!(text.contains("libflexcast-absent.so: cannot open shared object file"), "{text:?}");
}

#[test]
fn a_missing_function_is_named_with_its_library() {
    let libc = Loader::open(&["libc.so.6"], "install a C library").unwrap();
    // SAFETY: `getpid` takes nothing and returns a pid_t.
    let getpid = unsafe { libc.function::<unsafe extern "C" fn() -> i32>("getpid") }.unwrap();
    // SAFETY: as above.
    assert_eq!(unsafe { getpid() }.cast_unsigned(), std::process::id());
    // SAFETY: there is no such function, so no type is wrong.
    let error = unsafe { libc.function::<unsafe extern "C" fn()>("ibv_get_device_list") }.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("libc.so.6 has no function ibv_get_device_list"), "{text}");
}
