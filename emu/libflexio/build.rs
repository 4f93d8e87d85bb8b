//! Compiles the one variadic function, against the header it implements.

fn main() {
    println!("cargo::rerun-if-changed=src/c/call.c");
    let include = |name: &str| std::env::var(name).expect("the -sys crates publish their include directories");
    cc::Build::new()
        .file("src/c/call.c")
        .include(include("DEP_FLEXCAST_FLEXIO_INCLUDE"))
        .include(include("DEP_FLEXCAST_VERBS_INCLUDE"))
        .warnings(true)
        .extra_warnings(true)
        .compile("flexcast_emu_call");
}
