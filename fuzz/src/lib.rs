//! Fuzz targets: one module per target.
//!
//! A target is a function of bytes that ends quickly and never panics, whatever the bytes; what it checks beyond that
//! is said in its module. Built with `--cfg fuzzing`, the programs in `fuzz_targets/` run a target under libFuzzer;
//! built without, they replay files. `tests/replay.rs` replays all that is committed.

pub mod abi;
pub mod api;
pub mod devx;
pub mod elf;
pub mod ethernet;
pub mod firmware;
pub mod fixture;
pub mod guard;
pub mod input;
pub mod machine;
pub mod manager;
pub mod packet;
pub mod replay;
pub mod service;
pub mod session;
pub mod store;
pub mod text;
pub mod wqe;

/// A target, as the programs and the tests see it.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name: that of its module, its program, its folders and its row in `targets.toml`.
    pub name: &'static str,
    /// Handles one input.
    pub run: fn(&[u8]),
    /// Makes the inputs to start from: name and bytes.
    pub seeds: fn() -> Vec<(&'static str, Vec<u8>)>,
}

macro_rules! targets {
    ($($name:ident),*) => {
        /// All targets.
        pub const TARGETS: &[Target] =
            &[$(Target { name: stringify!($name), run: $name::run, seeds: $name::seeds }),*];
    };
}
targets!(elf, packet, wqe, devx, api, firmware, text, ethernet, service, store, session, manager);

/// The program of a target: under libFuzzer with `--cfg fuzzing`, otherwise a replay of the files it is given.
#[macro_export]
macro_rules! target {
    ($name:ident) => {
        #[cfg(fuzzing)]
        libfuzzer_sys::fuzz_target!(|data: &[u8]| $crate::$name::run(data));

        #[cfg(not(fuzzing))]
        fn main() -> std::process::ExitCode {
            $crate::replay::main(stringify!($name))
        }
    };
}

// Instrumented code calls libFuzzer's runtime, tests included.
#[cfg(fuzzing)]
use libfuzzer_sys as _;
