//! `cargo xtask new` makes an image that builds, passes verification, loads and answers; an image built in another folder is the
//! same to the byte. Done on copies of the tree.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use flexcast_abi::{ABI_HASH, ABI_VERSION};
use flexcast_cli::tput::server::bring_up;
use flexcast_tests::code::cards;
use flexcast_tests::{image_path, workspace_root};
use flexio::{AbiExpectation, Application, MsgLevel, MsgStream, Process, ProtectionDomain};

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

/// The build tool, working on the tree at `root`.
fn xtask(root: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO"))
        .args(["run", "--quiet", "--package", "xtask", "--"])
        .args(args)
        .current_dir(workspace_root())
        .env("FLEXCAST_ROOT", root)
        .output()
        .expect("cargo can be started")
}

/// A copy of what images are built from.
fn copied_tree() -> tempfile::TempDir {
    let scratch = tempfile::tempdir().expect("a folder");
    let root = scratch.path();
    for folder in ["device", "shared", "linker", "toolchains"] {
        copy(&workspace_root().join(folder), &root.join(folder));
    }
    for file in ["Cargo.toml", "rust-toolchain.toml"] {
        fs::copy(workspace_root().join(file), root.join(file)).expect("a file in the copy");
    }
    // What the firmware depends on has been compiled for the images already.
    let built = image_path("receive").parent().and_then(Path::parent).expect("target/device").join("cargo");
    fs::create_dir_all(root.join("target/device")).expect("a folder in the copy");
    std::os::unix::fs::symlink(built, root.join("target/device/cargo")).expect("a link in the copy");
    scratch
}

#[test]
fn an_image_does_not_depend_on_the_folder_it_is_built_in() {
    let scratch = copied_tree();
    let here = fs::read(image_path("allgather")).expect("the image of this tree");
    let built = xtask(scratch.path(), &["build", "allgather"]);
    let report = String::from_utf8_lossy(&built.stderr).into_owned();
    assert!(built.status.success() && report.contains("Compiling allgather"), "{report}");
    let there = fs::read(scratch.path().join("target/device/emu/allgather.elf")).expect("the image of the copy");
    let differing = here.iter().zip(&there).filter(|(one, other)| one != other).count();
    assert!(here == there, "{} and {} bytes, {differing} of them differ", here.len(), there.len());
}

#[test]
fn a_new_image_builds_passes_verification_and_answers() {
    let scratch = copied_tree();
    let root = scratch.path();
    let created = xtask(root, &["new", "hello"]);
    assert!(created.status.success(), "{}", String::from_utf8_lossy(&created.stderr));
    assert_eq!(String::from_utf8_lossy(&created.stdout), "next: cargo xtask run hello\n");
    let again = xtask(root, &["new", "hello"]);
    assert!(!again.status.success() && String::from_utf8_lossy(&again.stderr).contains("exists already"));

    let verified = xtask(root, &["verify", "hello"]);
    let report = String::from_utf8_lossy(&verified.stdout).into_owned();
    assert!(verified.status.success(), "{report}{}", String::from_utf8_lossy(&verified.stderr));
    assert!(report.contains("0 failed, 0 unknown"), "{report}");

    let elf = fs::read(root.join("target/device/emu/hello.elf")).expect("the image");
    let provider = cards(emu_machine::Config::default());
    let abi = AbiExpectation { version: ABI_VERSION, hash: ABI_HASH };
    let application = Application::load(&provider, "hello", &elf, Some(abi)).expect("a valid image");
    let device = provider.open("mlx5_0").expect("the first card");
    let pd = ProtectionDomain::new(&device).expect("a protection domain");
    let process = Process::new(&application, &pd).expect("a process");
    let mut stream = MsgStream::new(&process, MsgLevel::Debug).expect("a message stream");
    bring_up(&process).expect("the right answer");
    let decoder = flexcast_cli::logs::LogDecoder::new(&elf).expect("log strings");
    let lines: Vec<String> = stream.lines().expect("lines").iter().map(|line| decoder.line(line)).collect();
    assert!(lines.iter().any(|line| line.contains("hello from thread")), "{lines:?}");
}
