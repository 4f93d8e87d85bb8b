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
        name: "the DOCA SDK",
        probe: "doca_dev.h",
        includes: &["/opt/mellanox/doca/include", "/usr/include"],
    };
    let headers = ["error", "dev", "log", "argp", "ctx", "mmap", "sync_event", "rdma", "dpa", "version"];
    let contents: String = headers.iter().map(|name| format!("#include <doca_{name}.h>\n")).collect();
    support::bindings::generate(&contents, &sdk, vec![own], |builder| {
        builder
            .clang_arg("-DDOCA_ALLOW_EXPERIMENTAL_API")
            .allowlist_type("doca_(error(_t)?|dev|devinfo|pci_func_type|access_flag)")
            .allowlist_type("doca_log_(level|backend)|log_flush_callback")
            .allowlist_type("doca_argp_(type|param|cmd)|doca_argp_(param|validation|dpdk)_cb_t")
            .allowlist_type("doca_(ctx(_states)?|mmap|sync_event(_remote_net)?|mtu_size|data)")
            .allowlist_type("doca_rdma(_connection|_transport_type)?|doca_dpa_dev_.*_t|doca_dpa_dev_t")
            .allowlist_type(
                "doca_dpa(_app|_thread(_group)?|_completion|_notification_completion|_eu_affinity|_func_t)?",
            )
            .allowlist_type("doca_dpa_async_ops")
            .allowlist_var("DOCA_(CTX_STATE|MTU_SIZE|RDMA_TRANSPORT_TYPE|DPA_DEV_LOG_LEVEL)_.*")
            .allowlist_var(
                "DOCA_(SUCCESS|ERROR_.*|DEVINFO_.*|LOG_LEVEL_.*|ARGP_TYPE_.*|PCI_FUNC_TYPE_.*|ACCESS_FLAG_.*)",
            )
            .allowlist_var("DOCA_VERSION_STRING")
    });
}
