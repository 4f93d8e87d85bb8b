//! Compiles the one variadic function, against the header it implements.

fn main() {
    println!("cargo::rerun-if-changed=src/c/log.c");
    cc::Build::new()
        .file("src/c/log.c")
        .include(std::env::var("DEP_FLEXCAST_DOCA_INCLUDE").expect("doca-sys publishes its include directory"))
        .warnings(true)
        .extra_warnings(true)
        .compile("flexcast_doca_log");
}
