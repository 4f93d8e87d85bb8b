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

/// The error of [`flexio_sys::load_from`] for a library with these functions, each of which gives 1. `None` without a
/// compiler.
fn error_of(functions: &[&str]) -> Option<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let source: String = functions.iter().map(|name| format!("int {name}(void) {{ return 1; }}\n")).collect();
    std::fs::write(folder.path().join("library.c"), source).expect("a file");
    let mut compiler = std::process::Command::new("gcc");
    compiler.args(["-shared", "-fPIC", "-o", "libflexio.so", "library.c"]).current_dir(folder.path());
    match compiler.status() {
        Ok(status) => assert!(status.success(), "gcc fails"),
        Err(_) => return None,
    }
    Some(flexio_sys::load_from(folder.path()).map_or_else(|error| error.to_string(), |_| String::from("loaded")))
}

/// Names of the functions that the table needs.
fn called() -> Vec<&'static str> {
    let table = include_str!("../src/api.rs");
    let (_, table) = table.split_once("    called:\n").expect("a list");
    let (table, _) = table.split_once("    others:\n").expect("its end");
    table.lines().filter_map(|line| Some(line.strip_prefix("    fn ")?.split_once('(')?.0)).collect()
}

#[test]
fn libraries_of_other_releases_are_refused_by_their_release() {
    let called = called();
    assert!(called.len() > 30 && called.contains(&"flexio_process_create"), "{called:?}");
    let Some(loaded) = error_of(&called) else {
        eprintln!("SKIPPED gcc is not installed");
        return;
    };
    assert_eq!(loaded, "loaded");
    let old: Vec<&str> = called.iter().copied().filter(|name| !name.starts_with("flexio_msg_stream")).collect();
    let error = error_of(&old).expect("a compiler");
    assert!(error.contains("no function flexio_msg_stream_create, which came with release 2.2"), "{error}");
    let error = error_of(&[called.as_slice(), &["flexio_resources_create"]].concat()).expect("a compiler");
    for part in ["is of 3.x (it has flexio_resources_create)", "those of 2.7", "feature `sdk`"] {
        assert!(error.contains(part), "no {part:?} in {error}");
    }
    // Its one answer is a failure.
    let error = error_of(&[called.as_slice(), &["flexio_version_set"]].concat()).expect("a compiler");
    assert!(error.contains("no longer knows programs of 24.4"), "{error}");
    let error = error_of(&[]).expect("a compiler");
    assert!(error.contains("has no function flexio_app_create"), "{error}");
}
