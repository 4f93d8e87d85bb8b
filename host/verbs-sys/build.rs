//! Bindings: the committed ones by default; see the features in Cargo.toml.

#[path = "../sys-build.rs"]
mod support;

fn main() {
    let _own = support::begin();
    #[cfg(any(feature = "generate", feature = "sdk"))]
    generate(_own);
}

#[cfg(any(feature = "generate", feature = "sdk"))]
fn generate(own: String) {
    let sdk = support::bindings::Sdk {
        name: "rdma-core's development files",
        probe: "infiniband/mlx5dv.h",
        includes: &["/opt/mellanox/doca/include", "/opt/mellanox/flexio/include", "/usr/include"],
    };
    let contents = "#include <infiniband/verbs.h>\n#include <infiniband/mlx5dv.h>\n";
    support::bindings::generate(contents, &sdk, vec![own], |builder| {
        builder
            .allowlist_type("_?ibv_.*|_compat_ibv_port_attr|verbs_context")
            .allowlist_type("mlx5dv_(obj|obj_type|qp|cq|pd|ah|context_attr|devx_obj|devx_umem|devx_uar|mkey|mkey_init_attr|mkey_init_attr_flags|qp_init_attr|qp_init_attr_mask|qp_create_send_ops_flags|qp_ex)")
            .allowlist_var("(IBV|MLX5DV)_.*")
            .blocklist_type("timespec|time_t|__time_t|__syscall_slong_t")
            .blocklist_type("pthread_.*|__pthread_.*|__atomic_wide_counter.*|off_t|__off_t")
            .raw_line("use libc::{off_t, pthread_cond_t, pthread_mutex_t, timespec};")
            .derive_default(true)
            .no_debug("verbs_context|ibv_(context|cq|cq_ex|qp|srq)")
            // The sizes of pthread types differ between x86-64 and AArch64; src/layout.rs checks what does not.
            .layout_tests(false)
    });
}
