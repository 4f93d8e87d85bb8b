//! Compiles the pack function; bindings are the committed ones by default, see the features in Cargo.toml.

#[path = "../sys-build.rs"]
mod support;

fn main() {
    let _own = support::begin();
    println!("cargo::rerun-if-changed=src/c/pack.c");
    cc::Build::new().file("src/c/pack.c").warnings(true).extra_warnings(true).compile("flexcast_pack");
    #[cfg(any(feature = "generate", feature = "sdk"))]
    generate(_own);
}

#[cfg(any(feature = "generate", feature = "sdk"))]
fn generate(own: String) {
    let verbs = std::env::var("DEP_FLEXCAST_VERBS_INCLUDE").expect("verbs-sys publishes its include directory");
    let sdk = support::bindings::Sdk {
        name: "the FlexIO SDK",
        probe: "libflexio/flexio.h",
        includes: &["/opt/mellanox/flexio/include", "/opt/mellanox/doca/include", "/usr/include"],
    };
    support::bindings::generate("#include <libflexio/flexio.h>\n", &sdk, vec![own, verbs], |builder| {
        builder
            .allowlist_type("flexio_.*")
            .allowlist_var("FLEXIO_.*")
            // Shared with verbs-sys, or with the C library, whose sizes differ between architectures.
            .blocklist_type("_?ibv_.*|mlx5dv_.*|__be.*|_IO_.*|FILE|pthread_t|__off.*|va_list|__builtin_va_list|__gnuc_va_list|__va_list.*")
            .raw_line("use libc::{FILE, pthread_t};")
            .raw_line("use verbs_sys::{ibv_context, ibv_gid, ibv_pd, mlx5dv_devx_obj};")
            .raw_line("/// What a `va_list` parameter points at; unpacked in C only (src/c/pack.c).")
            .raw_line("pub type __va_list_tag = core::ffi::c_void;")
            .derive_default(true)
            .no_debug("flexio_qp_attr")
    });
}
