//! Tests across crates: the whole chain from the host library to the firmware.
//!
//! This library finds the device images, makes tiny ones ([`code`]), inspects the emulated machine
//! ([`world`](mod@world)), runs the throughput harness ([`run`]), has workers of sparse AllReduce ([`sparse`]) and
//! whole groups of them ([`sparse_world`], with arrays in [`device_memory`], too), compares with recorded output
//! ([`golden`]), builds the emulator's C libraries ([`libs`]) and the examples ([`examples`]), connects ranks
//! ([`ranks`], [`communicators`], [`card_ranks`]), makes hosts of network namespaces ([`hosts`]), reads the console
//! blocks of documents ([`transcript`]), copies the tree ([`tree`]), reports skipped tests ([`harness`]) and checks
//! what error messages name ([`assert_mentions`]).

pub mod card_ranks;
pub mod code;
pub mod communicators;
pub mod device_memory;
pub mod examples;
pub mod golden;
pub mod harness;
pub mod hosts;
pub mod libs;
pub mod processes;
pub mod ranks;
pub mod run;
pub mod sparse;
pub mod sparse_world;
pub mod transcript;
pub mod tree;
pub mod world;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Once;

use flexcast_image::Image;

/// The top of the source tree.
///
/// # Panics
/// The crate is not where the workspace has it.
#[must_use]
pub fn workspace_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ has a parent").to_path_buf()
}

/// Names a directory of images to be taken instead of building those of this tree: `cargo xtask test` has built them,
/// `cargo xtask mutants` gives some in which something is missing.
pub const IMAGES: &str = "FLEXCAST_IMAGES";

/// Path of a built device image, such as `allgather`: of the directory that [`IMAGES`] names, or else of this tree.
/// Builds all of its images once per test program, as `cargo xtask build` does; what is up to date is left alone.
///
/// # Panics
/// The images cannot be built; the output of the build says why.
#[must_use]
pub fn image_path(name: &str) -> PathBuf {
    if let Some(folder) = std::env::var_os(IMAGES) {
        let path = PathBuf::from(folder).join(format!("{name}.elf"));
        assert!(path.is_file(), "{} is not there, where {IMAGES} says", path.display());
        return path;
    }
    static BUILT: Once = Once::new();
    let root = workspace_root();
    BUILT.call_once(|| {
        let output = tree::build_tool().arg("build").output().expect("cargo can be started");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "cargo xtask build failed:\n{text}");
    });
    let path = root.join("target/device/emu").join(format!("{name}.elf"));
    assert!(path.is_file(), "{} was not built; is there such an image?", path.display());
    path
}

/// Bytes of a built device image.
///
/// # Panics
/// As [`image_path`], or the file cannot be read.
#[must_use]
pub fn image_bytes(name: &str) -> Vec<u8> {
    std::fs::read(image_path(name)).expect("a built image can be read")
}

/// Whether an image was built by the compiler whose exact figures are recorded (`compiler` in docs/hot-loops.toml).
/// Says so on stderr where it was not: then only limits can be checked.
///
/// # Panics
/// The image cannot be built, or the document does not name a compiler.
#[must_use]
pub fn compiled_as_recorded(image: &str) -> bool {
    let table = std::fs::read_to_string(workspace_root().join("docs/hot-loops.toml")).expect("docs/hot-loops.toml");
    let table: toml::Table = table.parse().expect("docs/hot-loops.toml is TOML");
    let recorded = table["compiler"].as_str().expect("a compiler").to_owned();
    let elf = Image::parse(&image_bytes(image)).expect("a valid image");
    let compiler = elf.compiler().expect("rustc names itself");
    let same = compiler.strip_prefix(&recorded).is_some_and(|rest| rest.starts_with('.'));
    if !same {
        eprintln!("{image} was built by rustc {compiler}; exact figures are recorded for {recorded} and not compared");
    }
    same
}

/// The error with everything that caused it, one line each: what the command-line tool shows.
#[must_use]
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}\n{cause}");
        source = cause.source();
    }
    text
}

/// Checks that an error names the value, the limit and the next step: every one of `words`.
///
/// # Panics
/// A word is missing.
#[track_caller]
pub fn assert_mentions(error: &dyn Error, words: &[&str]) {
    let text = chain(error);
    for word in words {
        assert!(text.contains(word), "the error lacks {word:?}:\n{text}");
    }
}
