//! Arrows between folders: those of ARCHITECTURE.md, against cargo metadata.

use std::path::Path;

use anyhow::Result;
use cargo_metadata::DependencyKind;

use super::files::Findings;
use crate::workspace;

/// Users and what they may use, as path prefixes ("host/*-sys" is spelt out). The first row that fits a user decides.
/// Tests of a crate are a user of their own.
const ARROWS: &[(&str, &[&str])] = &[
    ("shared/proto/models/tests", &["shared/proto"]),
    ("shared/proto", &["shared/abi"]),
    ("shared/isa", &["shared/error"]),
    ("shared/abi-macros", &[]),
    ("shared/abi", &["shared/abi-macros"]),
    ("shared/", &[]),
    ("files", &[]),
    ("image", &["shared/error", "shared/isa"]),
    ("emu/hart", &["shared/isa"]),
    ("emu/machine", &["emu/hart", "emu/nic", "emu/fabric", "emu/timing", "image"]),
    ("emu/observe", &["emu/machine", "files", "image"]),
    ("emu/config", &["emu/machine", "emu/fabric", "files"]),
    ("emu/bridge", &["emu/config", "emu/machine", "emu/nic", "emu/fabric"]),
    (
        "emu/lib",
        &[
            "emu/machine",
            "emu/bridge",
            "emu/observe",
            "emu/lib",
            "image",
            "host/flexio-sys",
            "host/verbs-sys",
            "host/doca-sys",
        ],
    ),
    ("emu/provider", &["emu/lib", "emu/machine", "host/flexio"]),
    // The trait by which a packet gives a link its size.
    ("emu/nic", &["emu/fabric"]),
    ("emu/", &[]),
    ("host/flexio-sys", &["host/verbs-sys"]),
    ("host/verbs-sys", &["shared/error"]),
    ("host/doca-sys", &["host/verbs-sys"]),
    (
        "host/flexio",
        &["host/flexio-sys", "host/verbs-sys", "host/doca-sys", "image", "shared/abi", "shared/hw", "shared/error"],
    ),
    ("host/bootstrap", &["files", "shared/"]),
    ("host/rc", &["host/flexio", "shared/proto"]),
    ("host/reduce", &["shared/proto"]),
    ("host/sparse", &["host/flexio", "host/rc", "host/reduce", "shared/error", "shared/proto"]),
    // Without RDMA.
    ("host/mesh", &["host/bootstrap", "shared/error", "shared/proto"]),
    // Ranks whose aggregators are no ranks.
    ("host/flexcast/tests", &["host/aggregator", "host/flexcast"]),
    (
        "host/flexcast",
        &[
            "host/bootstrap",
            "host/flexio",
            "host/mesh",
            "host/rc",
            "host/reduce",
            "host/service",
            "host/sparse",
            "files",
            "image",
            "shared/",
        ],
    ),
    ("host/capi", &["host/flexcast", "host/flexio", "files"]),
    // What daemons share: it knows neither their work nor the library.
    ("host/daemon", &[]),
    ("host/service", &["host/daemon", "host/flexio", "host/rc", "files", "shared/proto"]),
    ("host/cuda", &["host/flexio", "host/reduce", "host/sparse", "shared/error"]),
    // They have ranks.
    ("host/aggregator/tests", &["host/flexcast", "host/reduce"]),
    (
        "host/aggregator",
        &["host/bootstrap", "host/daemon", "host/flexio", "host/mesh", "host/sparse", "files", "shared/proto"],
    ),
    ("lab", &["host/flexio", "host/flexcast", "host/service", "emu/", "files", "image", "shared/"]),
    (
        "cli",
        &["lab", "host/daemon", "host/flexio", "host/flexcast", "host/service", "emu/", "files", "image", "shared/"],
    ),
    ("device/dpa-macros", &[]),
    ("device/dpa", &["device/dpa-macros", "shared/"]),
    ("device/rt-emu", &["shared/hw"]),
    ("device/datapath", &["device/dpa", "shared/"]),
    ("device/images/", &["device/datapath", "device/dpa", "device/rt-emu", "shared/"]),
    // Another runtime below the same datapath.
    ("device/virt", &["device/dpa", "device/images/synthetic", "shared/"]),
    (
        "fuzz",
        &[
            "image",
            "emu/",
            "shared/isa",
            "shared/proto",
            "host/flexcast",
            "host/mesh",
            "host/flexio-sys",
            "host/verbs-sys",
        ],
    ),
    ("tests", &["shared/", "image", "emu/", "host/", "lab", "cli"]),
    ("xtask", &["shared/", "image"]),
];

/// Every dependency between our own packages that no arrow allows.
pub(super) fn check(root: &Path) -> Result<Findings> {
    let mut edges = Vec::new();
    for manifest in ["Cargo.toml", "device/Cargo.toml"] {
        for package in workspace::metadata(&root.join(manifest))?.packages {
            let Some(user) = package.manifest_path.parent().and_then(|dir| relative(root, dir.as_std_path())) else {
                continue;
            };
            for dependency in &package.dependencies {
                let path = dependency.path.as_ref().and_then(|path| relative(root, path.as_std_path()));
                let is_of_tests = dependency.kind == DependencyKind::Development && !user.ends_with("/tests");
                let user = if is_of_tests { format!("{user}/tests") } else { user.clone() };
                edges.extend(path.map(|used| (user, used)));
            }
        }
    }
    Ok(edges.iter().filter_map(|(user, used)| judge(user, used)).collect())
}

fn relative(root: &Path, dir: &Path) -> Option<String> {
    // A path dependency may be spelt with `..`.
    let dir = dir.canonicalize().ok()?;
    let path = dir.strip_prefix(root.canonicalize().ok()?).ok()?;
    Some(path.to_string_lossy().into_owned())
}

fn judge(user: &str, used: &str) -> Option<String> {
    let Some((_, allowed)) = ARROWS.iter().find(|(prefix, _)| user.starts_with(prefix)) else {
        return Some(format!("{user} is in no arrow of ARCHITECTURE.md; add it there and to xtask/src/tidy/arrows.rs"));
    };
    // The package of a crate's tests uses that crate.
    let own = user.strip_suffix("/tests") == Some(used);
    let fits = own || allowed.iter().any(|prefix| used.starts_with(prefix));
    (!fits).then(|| format!("{user} must not use {used}; it may use: {}", allowed.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrows_point_one_way() {
        for (user, used) in [
            ("shared/proto", "shared/abi"),
            ("emu/libflexio", "host/flexio-sys"),
            ("emu/machine", "image"),
            ("emu/nic/tests", "emu/nic"),
            ("emu/hart", "shared/isa"),
            ("image", "shared/isa"),
            ("cli", "emu/libdoca"),
            ("tests", "host/flexio"),
            ("device/images/allgather", "device/datapath"),
        ] {
            assert_eq!(judge(user, used), None);
        }
        for (user, used) in [
            ("shared/abi", "shared/hw"),
            ("emu/nic", "shared/hw"),
            ("emu/hart", "emu/nic"),
            ("emu/nic/tests", "emu/machine"),
            ("emu/hart", "shared/hw"),
            ("shared/isa", "shared/abi"),
            ("emu/fabric", "emu/nic"),
            ("emu/libflexio", "host/flexio"),
            ("host/flexio", "emu/machine"),
            ("host/flexio", "xtask"),
            ("device/dpa", "device/rt-emu"),
            ("host/daemon", "host/flexcast"),
            ("host/flexcast", "host/aggregator"),
            ("host/mesh", "host/flexcast"),
            ("host/mesh", "host/flexio"),
            ("host/aggregator", "host/service"),
            ("image", "shared/abi"),
        ] {
            assert!(judge(user, used).is_some_and(|text| text.contains("must not use")), "{user} -> {used}");
        }
        assert!(judge("toaster", "image").is_some_and(|text| text.contains("no arrow")));
    }

    #[test]
    fn the_repository_keeps_them() {
        assert_eq!(check(workspace::root()).expect("metadata"), Findings::new());
    }
}
