//! The loader's errors name what is missing and what to do.
#![allow(unsafe_code)] // resolving a symbol is unsafe

use std::path::Path;

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

/// The dynamic loader says of the third that there is no such file.
#[test]
fn a_library_that_is_there_and_of_no_use_is_not_called_missing() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("unfit");
    std::fs::create_dir_all(&folder).unwrap();
    let own = std::fs::read("/proc/self/exe").unwrap();
    let (mut other_class, mut other_machine) = (own[..64].to_vec(), own[..64].to_vec());
    other_class[4] ^= 3;
    // Alpha.
    other_machine[18..20].copy_from_slice(&[0x26, 0x90]);
    for (contents, said) in [
        (&b""[..], "is no shared library"),
        (b"#!/bin/sh\n", "is no shared library"),
        (&other_machine, "is for another architecture than this process"),
        (&other_class, "is for another architecture than this process"),
        // What the dynamic loader says.
        (&own[..64], "libunfit.so: "),
    ] {
        std::fs::write(folder.join("libunfit.so"), contents).unwrap();
        let text = Loader::open_in(&folder, &["libunfit.so.7", "libunfit.so"], "install it").unwrap_err().to_string();
        assert!(text.contains(&format!("{}/libunfit.so", folder.display())) && text.contains(said), "{text}");
        assert!(!text.contains("No such file"), "{text}");
    }
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
