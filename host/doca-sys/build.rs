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
    let contents = "#include <doca_error.h>\n#include <doca_dev.h>\n";
    support::bindings::generate(contents, &sdk, vec![own], |builder| {
        builder
            .clang_arg("-DDOCA_ALLOW_EXPERIMENTAL_API")
            .allowlist_type("doca_(error(_t)?|dev|devinfo)")
            .allowlist_var("DOCA_(SUCCESS|ERROR_.*|DEVINFO_.*)")
    });
}
