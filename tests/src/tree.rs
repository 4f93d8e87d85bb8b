//! Copies of the tree, and the build tool working on them.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::{image_path, workspace_root};

/// Copies a folder, except what builds have left in it.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder in the copy");
    for entry in fs::read_dir(from).expect("a folder of the tree") {
        let entry = entry.expect("an entry");
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if !from.is_dir() {
            fs::copy(&from, &to).expect("a file in the copy");
        } else if entry.file_name() != "target" {
            copy(&from, &to);
        }
    }
}

/// Names the built build tool: `cargo xtask test` sets it, for all test programs. Each command would otherwise ask
/// cargo whether the tool is up to date, and wait while another has cargo's locks.
pub const BUILD_TOOL: &str = "FLEXCAST_XTASK";

/// The build tool, started in the root of this tree: the one that [`BUILD_TOOL`] names, or else the one that cargo
/// builds.
#[must_use]
pub fn build_tool() -> Command {
    let mut command = match std::env::var_os(BUILD_TOOL) {
        Some(program) => Command::new(program),
        None => {
            let mut cargo = Command::new(env!("CARGO"));
            cargo.args(["run", "--quiet", "--package", "xtask", "--"]);
            cargo
        }
    };
    command.current_dir(workspace_root());
    command
}

/// The build tool, working on the tree at `root`.
#[must_use]
pub fn xtask_command(root: &Path, args: &[&str]) -> Command {
    let mut command = build_tool();
    command.args(args).env("FLEXCAST_ROOT", root);
    command
}

/// The same, run to its end.
///
/// # Panics
/// It cannot be started.
#[must_use]
pub fn xtask(root: &Path, args: &[&str]) -> Output {
    xtask_command(root, args).output().expect("cargo can be started")
}

/// A copy of what images are built from.
///
/// # Panics
/// The tree cannot be copied.
#[must_use]
pub fn copied_tree() -> tempfile::TempDir {
    let scratch = tempfile::tempdir().expect("a folder");
    let root = scratch.path();
    for folder in ["device", "shared", "linker", "toolchains"] {
        copy(&workspace_root().join(folder), &root.join(folder));
    }
    for file in ["Cargo.toml", "rust-toolchain.toml"] {
        fs::copy(workspace_root().join(file), root.join(file)).expect("a file in the copy");
    }
    // What the firmware depends on has been compiled for the images already.
    let built = image_path("allgather").parent().and_then(Path::parent).expect("target/device").join("cargo");
    fs::create_dir_all(root.join("target/device")).expect("a folder in the copy");
    std::os::unix::fs::symlink(built, root.join("target/device/cargo")).expect("a link in the copy");
    scratch
}
