//! `flexio_coredump_create`: names and contents. One test, since the default name is in the working directory.
#![allow(unsafe_code, clippy::undocumented_unsafe_blocks)] // C calls on objects made in the test

#[path = "../support/mod.rs"]
mod support;

use std::ffi::CString;
use std::path::Path;
use std::ptr::null;

use flexio_sys::*;
use support::*;

#[test]
fn dumps_of_living_and_dead_processes_are_named_as_asked() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("core-dump-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::env::set_current_dir(&folder).unwrap();
    let host = Host::small(&image(&[RET], &[addi(A3, 0, 77), ILLEGAL], &[]));
    let dump =
        |process, name: *const i8| unsafe { (host.api.flexio_coredump_create.expect("emulated"))(process, name) };
    let process = host.process();

    // A living process, under the default name.
    assert_eq!(dump(process, null()), FLEXIO_STATUS_SUCCESS);
    let alive = std::fs::read("flexio_dev.001.core").unwrap();
    assert_eq!(alive[..6], [0x7F, b'E', b'L', b'F', 2, 1]);
    assert_eq!(alive[16..20], [4, 0, 0xF3, 0], "a core file of RISC-V");
    assert!(!String::from_utf8_lossy(&alive).contains("illegal instruction"));

    // A dead one, with the crash record inside.
    assert_eq!(host.call(process, 1), (FLEXIO_STATUS_FATAL_ERR, 0));
    let name = CString::new(folder.join("named").to_str().unwrap()).unwrap();
    assert_eq!(dump(process, name.as_ptr()), FLEXIO_STATUS_SUCCESS);
    let dead = std::fs::read("named.001.core").unwrap();
    assert!(String::from_utf8_lossy(&dead).contains("  cause     illegal instruction"));

    assert_eq!(dump(process, c"/no-such-directory/core".as_ptr()), FLEXIO_STATUS_FAILED);
    assert_eq!(dump(process, c"".as_ptr()), FLEXIO_STATUS_FAILED);
    assert_eq!(dump(std::ptr::null_mut(), null()), FLEXIO_STATUS_FAILED);
    let mut files: Vec<_> = std::fs::read_dir(".").unwrap().map(|file| file.unwrap().file_name()).collect();
    files.sort();
    assert_eq!(files, ["flexio_dev.001.core", "named.001.core"]);
    std::fs::remove_dir_all(&folder).unwrap();
}
