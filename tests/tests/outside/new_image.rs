//! `cargo xtask new` makes an image that builds, passes verification, loads and answers; an image built in another
//! folder is the same to the byte. Done on copies of the tree.

use std::fs;
use std::path::Path;

use flexcast_abi::{ABI_HASH, ABI_VERSION};
use flexcast_lab::tput::run::bring_up;
use flexcast_tests::code::cards;
use flexcast_tests::tree::{copied_tree, xtask, xtask_command};
use flexcast_tests::{image_path, workspace_root};
use flexio::{AbiExpectation, Application, MsgLevel, MsgStream, Process, ProtectionDomain};

#[test]
fn a_full_stdout_is_an_error_of_the_build_tool() {
    for args in [&["--help"][..], &["doctor"], &["build", "--dry-run", "reference"]] {
        let full = fs::File::options().write(true).open("/dev/full").expect("/dev/full");
        let mut command = xtask_command(&workspace_root(), args);
        let output = command.stdout(full).stderr(std::process::Stdio::piped()).output().expect("cargo can be started");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {stderr}");
        assert!(stderr.contains("stdout cannot be written: No space left on device"), "{args:?}: {stderr}");
    }
}

/// In one copy of the tree: what images are built from is compiled in it once.
#[test]
fn in_another_folder_a_new_image_builds_and_answers_and_others_are_the_same() {
    let scratch = copied_tree();
    an_image_does_not_depend_on_the_folder_it_is_built_in(scratch.path());
    a_new_image_builds_passes_verification_and_answers(scratch.path());
}

fn an_image_does_not_depend_on_the_folder_it_is_built_in(root: &Path) {
    let here = fs::read(image_path("allgather")).expect("the image of this tree");
    let built = xtask(root, &["build", "allgather"]);
    let report = String::from_utf8_lossy(&built.stderr).into_owned();
    assert!(built.status.success() && report.contains("Compiling allgather"), "{report}");
    let there = fs::read(root.join("target/device/emu/allgather.elf")).expect("the image of the copy");
    let differing = here.iter().zip(&there).filter(|(one, other)| one != other).count();
    assert!(here == there, "{} and {} bytes, {differing} of them differ", here.len(), there.len());
}

fn a_new_image_builds_passes_verification_and_answers(root: &Path) {
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
    let decoder = flexio::LogDecoder::new(&elf).expect("log strings");
    let lines: Vec<String> = stream.lines().expect("lines").iter().map(|line| decoder.line(line)).collect();
    assert!(lines.iter().any(|line| line.contains("hello from thread")), "{lines:?}");

    // An entry that image.toml does not list is reported by every command in the same words, before anything is run.
    let manifest = root.join("device/images/hello/image.toml");
    let text = fs::read_to_string(&manifest).expect("image.toml");
    let unlisted = text.replace(", \"measure\"", "").replace("\"measure\", ", "");
    assert_ne!(text, unlisted, "the template has an RPC besides bring_up");
    fs::write(&manifest, unlisted).expect("writable");
    for command in ["verify", "build", "run"] {
        let output = xtask(root, &[command, "hello"]);
        let text = [&output.stdout[..], &output.stderr].map(String::from_utf8_lossy).concat();
        assert!(!output.status.success(), "{command}: {text}");
        assert!(text.contains("`measure` is an RPC of the image and is not in image.toml"), "{command}: {text}");
    }
}
