//! The linker scripts: the memory of the machine, then those of riscv-rt.

fn main() {
    let own = std::env::var("CARGO_MANIFEST_DIR").expect("set by cargo");
    println!("cargo::rerun-if-changed=memory.x");
    println!("cargo::rustc-link-search={own}");
    if std::env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "riscv64") {
        println!("cargo::rustc-link-arg-bins=-Tmemory.x");
        println!("cargo::rustc-link-arg-bins=-Tlink.x");
    }
}
