//! The GPU's programs: run by a processor, and by a GPU where there is one. Where there is none, what is said of that.
#![allow(unsafe_code)] // Arrays of a GPU are given by their addresses.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use cudarc::driver::{CudaContext, DevicePtr as _};
use emu_provider::emulated;
use flexcast::p2p::sparse::{Accelerator as _, Error, Result, Settings, Stretch, Worker};
use flexcast_cuda::{Cuda, CudaArray};
use flexcast_tests::harness::installed;
use flexcast_tests::sparse_world::on;
use flexcast_tests::{assert_mentions, workspace_root};
use flexio::ProtectionDomain;

#[test]
fn programs_copy_every_byte_and_find_every_bit() {
    if !installed("gcc", "gcc libc6-dev") {
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

/// A program of the GPU that is not over after this time never is.
const BOUND: Duration = Duration::from_secs(10);

fn wait(mut is_over: impl FnMut() -> Result<bool>) {
    let begun = Instant::now();
    while !is_over().expect("the program runs") {
        assert!(begun.elapsed() < BOUND, "the program has no end");
    }
}

/// Arrays to the buffer and back, with the bitmaps of the scans.
fn runs_programs(gpu: &mut Cuda) {
    let context = CudaContext::new(0).expect("a context");
    let stream = context.default_stream();
    for (bytes, block_bytes) in [(1, 256), (256, 256), (10_007, 256), (1_000_003, 1024), (1_048_576, 4096)] {
        let of = |at: usize| if (at / block_bytes as usize).is_multiple_of(3) { 0 } else { at as u8 | 1 };
        let content: Vec<u8> = (0..bytes).map(of).collect();
        let send = stream.clone_htod(&content).expect("memory");
        let receive = stream.clone_htod(&vec![0xa5_u8; bytes]).expect("memory");
        stream.synchronize().expect("copied");
        let (addresses, stretch) = (
            (send.device_ptr(&stream).0, receive.device_ptr(&stream).0),
            Stretch { first_byte: 0, bytes: bytes as u64, block_bytes },
        );
        // SAFETY: both are of this length and nobody else's until the programs are over, for which this waits.
        let mut array = unsafe { CudaArray::out_of_place(addresses.0, addresses.1, bytes as u64) };
        let mut found = vec![0; stretch.words()];
        gpu.scan(&array, stretch).expect("started");
        wait(|| gpu.scanned(&mut found));
        for (number, block) in content.chunks(block_bytes as usize).enumerate() {
            let bit = found[number / 32] >> (number % 32) & 1 != 0;
            assert_eq!(bit, block.iter().any(|byte| *byte != 0), "block {number} of {bytes} bytes");
        }
        // Blocks that are not copied become zero, which they were.
        gpu.copy_back(&mut array, stretch, &found).expect("started");
        wait(|| gpu.is_copied());
        let result = stream.clone_dtoh(&receive).expect("copied");
        stream.synchronize().expect("copied");
        assert!(result == content, "{bytes} bytes");
    }
}

#[test]
fn a_gpu_runs_the_programs_or_the_error_says_why_there_is_none() {
    let provider = emulated(on(1, Vec::new())).expect("a machine");
    let domain = ProtectionDomain::new(&provider.open("mlx5_0").expect("a card")).expect("a domain");
    match Cuda::new(&domain, 0, 1 << 20) {
        Err(error @ Error::Accelerator { .. }) => {
            assert_mentions(&error, &["the accelerator cannot be had, GPU 0 with a buffer of 1048576 bytes"]);
            if !Path::new("/dev/nvidiactl").exists() {
                assert_mentions(&error, &["there is no CUDA driver", "libcuda.so.1", "install"]);
            }
        }
        Err(error) => panic!("{error}"),
        // The emulated card takes any address. It sends nothing here, as it could not.
        Ok(mut gpu) => {
            runs_programs(&mut gpu);
            let settings = Settings::new(1, 1, 1, 256, 16).expect("settings");
            Worker::staged(gpu, settings, 0, super::hasty()).expect("prepared");
        }
    }
}
