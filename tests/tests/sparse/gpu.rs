//! The GPU's programs, run by a processor, and what is said where there is no GPU.

use std::path::Path;
use std::process::{Command, Stdio};

use emu_provider::emulated;
use flexcast::p2p::sparse::{Error, Settings, Worker};
use flexcast_cuda::Cuda;
use flexcast_tests::sparse_world::on;
use flexcast_tests::{told, workspace_root};
use flexio::ProtectionDomain;

#[test]
fn programs_copy_every_byte_and_find_every_bit() {
    if Command::new("gcc").arg("--version").stdout(Stdio::null()).status().is_err() {
        eprintln!("gcc is not installed: skipping the GPU's programs");
        return;
    }
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("gpu_programs");
    // Addresses that are no multiple of 16 are not to be read 16 bytes at a time: a GPU traps, as this does.
    let checks = ["-fsanitize=undefined", "-fsanitize-undefined-trap-on-error"];
    let mut compile = Command::new("gcc");
    compile.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror"]).args(checks);
    compile.arg("tests/c/gpu_programs.c").arg("-lpthread").arg("-o").arg(&program);
    assert!(compile.current_dir(workspace_root()).status().expect("gcc starts").success());
    let output = Command::new(&program).output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("224 cases right"), "{}\n{text}", output.status);
}

#[test]
fn without_a_driver_a_gpu_cannot_be_had_and_the_error_says_so() {
    let provider = emulated(on(1, Vec::new())).expect("a machine");
    let domain = ProtectionDomain::new(&provider.open("mlx5_0").expect("a card")).expect("a domain");
    match Cuda::new(&domain, 0, 4096) {
        Err(error @ Error::Accelerator { .. }) => {
            told(&error, &["the accelerator cannot be had, GPU 0 with a buffer of 4096 bytes"]);
            if !Path::new("/dev/nvidiactl").exists() {
                told(&error, &["there is no CUDA driver", "libcuda.so.1", "install"]);
            }
        }
        Err(error) => panic!("{error}"),
        // The emulated card takes any address. Nothing is sent by it here.
        Ok(gpu) => {
            let settings = Settings::new(1, 1, 1, 256, 16).expect("settings");
            Worker::staged(gpu, settings, 0, super::hasty()).expect("prepared");
        }
    }
}
