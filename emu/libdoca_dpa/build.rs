//! Compiles the variadic functions, against the header that they implement.

fn main() {
    println!("cargo::rerun-if-changed=src/c/call.c");
    let include = |name: &str| std::env::var(name).expect("the -sys crates publish their include directories");
    cc::Build::new()
        .file("src/c/call.c")
        .include(include("DEP_FLEXCAST_DOCA_INCLUDE"))
        .warnings(true)
        .extra_warnings(true)
        .compile("flexcast_doca_call");
}
