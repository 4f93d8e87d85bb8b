//! Bad parameters of `flexcast sim` and `soak`: one line with the value, the limit and the next step, exit code 1,
//! and no result.

use std::path::{Path, PathBuf};
use std::process::Command;

fn image() -> String {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/device/emu");
    let images = std::env::var_os("FLEXCAST_IMAGES").map_or(default, PathBuf::from);
    let image = images.join("allgather.elf");
    assert!(image.exists(), "no image {}: run `cargo xtask build` first", image.display());
    image.to_string_lossy().into_owned()
}

#[track_caller]
fn refused_by(code: i32, command: &str, args: &str, words: &[&str]) {
    let output = Command::new(env!("CARGO_BIN_EXE_flexcast"))
        .args([command, "--image", &image()])
        .args(args.split_whitespace())
        .output()
        .expect("the tool starts");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args}: {text}");
    assert!(output.stdout.is_empty(), "{args} printed a result");
    for word in words {
        assert!(text.contains(word), "{args}: {text:?} lacks {word:?}");
    }
}

#[track_caller]
fn refused(args: &str, words: &[&str]) {
    refused_by(1, "sim", args, words);
}

#[test]
fn ranks_roots_and_operations() {
    refused_by(2, "sim", "--ranks 0", &["'0' for '--ranks", "1 to 1024"]);
    refused_by(2, "sim", "--ranks 1025", &["'1025' for '--ranks", "1 to 1024"]);
    refused_by(2, "sim", "--ranks 4294967295", &["'4294967295' for '--ranks", "1 to 1024"]);
    refused_by(2, "sim", "--ranks-per-card 0", &["'0' for '--ranks-per-card", "1 to 1024"]);
    refused("--op broadcast --root 8", &["--root", "8 of 8 ranks", "0 to 7"]);
    refused_by(2, "sim", "--iterations 0", &["'0' for '--iterations", "from 1"]);
    refused("--warm-up 4294967295", &["--warm-up", "give fewer"]);
    refused_by(
        2,
        "sim",
        "--op gossip",
        &["gossip", "broadcast, allgather, allgatherv, alltoall, reduce-scatter, allreduce"],
    );
}

#[test]
fn skew() {
    refused("--skew-us 1000001", &["--skew-us", "1000001 us", "0 to 1000000"]);
    refused(
        "--skew-us 18446744073709551615 --algorithm ring",
        &["--skew-us", "18446744073709551615 us", "0 to 1000000"],
    );
    for skew in ["-1", "2.5", "1e3", "20us", "18446744073709551616"] {
        let words = ["--skew-us", &format!("'{skew}'"), "no whole number of microseconds", "0 to 1000000"];
        refused_by(2, "sim", &format!("--skew-us {skew}"), &words);
    }
}

#[test]
fn bytes_beyond_all_memory() {
    for args in [
        "--bytes 18446744073709551615",
        "--bytes 18446744073709551615 --ranks 1 --op allgatherv",
        "--bytes 18446744073709551615 --ranks 1024 --op broadcast",
        "--bytes 9223372036854775807 --ranks 2",
        "--bytes 9223372036854775804 --ranks 1024 --op allreduce",
        "--bytes 9223372036854775807 --ranks 1024 --op alltoall",
        "--bytes 400000000 --ranks 1024 --op reduce-scatter",
        "--bytes 1000000 --ranks 1024 --op alltoall",
        "--bytes 16000000000",
    ] {
        refused(args, &["--bytes", "it takes", "of memory", "fewer bytes or ranks"]);
    }
}

#[test]
fn files() {
    refused("--file no/such.bin", &["no/such.bin"]);
    refused_by(2, "sim", "--file Cargo.toml --bytes 5", &["--file", "--bytes"]);
}

#[test]
fn algorithms() {
    for (args, words) in [
        ("--op alltoall --algorithm multicast", ["multicast does no alltoall", "give pairwise, ring or linear"]),
        ("--op alltoall --algorithm tree", ["tree does no alltoall", "pairwise"]),
        ("--op reduce-scatter --algorithm linear", ["linear does no reduce-scatter", "give ring"]),
        (
            "--op allreduce --algorithm multicast",
            ["multicast does no allreduce", "give ring, tree, recursive-doubling or exchange"],
        ),
        ("--op allreduce --segments 2", ["--segments: ring has none", "tree"]),
        ("--op allreduce --bytes 1023", ["--bytes: 1023 bytes", "give a multiple of 4"]),
        ("--op alltoall --file Cargo.toml", ["--file: alltoall takes none", "--op broadcast or allgather"]),
        ("--algorithm pairwise", ["pairwise does no allgather", "multicast, auto, ring"]),
        ("--op sparse-allreduce --skew-us 5", ["has no --skew-us", "leave it out"]),
        ("--op sparse-allreduce --bytes 1023", ["--bytes: 1023 bytes", "give a multiple of 4"]),
        ("--op sparse-allreduce --aggregators cpu:2 --datapath verbs", ["--datapath", "give --aggregators ranks"]),
        ("--op allgather --sparsity 0.5", ["--op sparse-allreduce", "patterns of zeros"]),
    ] {
        refused(args, &words);
    }
    refused(
        "--algorithm ring --op broadcast",
        &["ring does no broadcast", "multicast, auto, k-nomial", "scatter-allgather"],
    );
    refused("--algorithm heap", &["heap does no allgather", "pipelined-ring", "bruck"]);
    refused("--algorithm heap --op allgatherv", &["heap does no allgatherv", "recursive-doubling"]);
    refused_by(2, "sim", "--algorithm torus", &["torus", "multicast, auto, ring"]);
    refused("--radix 3", &["--radix", "multicast has none", "k-nomial"]);
    refused("--algorithm ring --segments 3", &["--segments", "ring has none", "pipelined-ring"]);
    refused(
        "--algorithm scatter-allgather --op broadcast --segment 64",
        &["--segment", "scatter-allgather has none", "chain"],
    );
    for radix in [0, 1] {
        let args = format!("--algorithm k-nomial --op broadcast --radix {radix}");
        refused_by(2, "sim", &args, &[&format!("'{radix}' for '--radix"), "from 2"]);
    }
    refused_by(2, "sim", "--algorithm pipelined-ring --segments 0", &["'0' for '--segments", "from 1"]);
    refused("--algorithm pipelined-ring --segments 4294967295", &["4294967295 segments", "2^32"]);
    refused("--algorithm pipelined-ring --segments 10000000", &["number of messages", "1 to 32768"]);
    refused_by(2, "sim", "--algorithm chain --op broadcast --segment 0", &["'0' for '--segment", "from 1"]);
    refused("--algorithm chain --op broadcast --segment 1", &["number of messages", "1048576", "32768"]);
}

#[test]
fn communicators() {
    for (args, words) in [
        ("--subgroups 0", ["'0' for '--subgroups", "1 to 64"]),
        ("--subgroups 65", ["'65' for '--subgroups", "1 to 64"]),
        ("--threads 0", ["'0' for '--threads", "1 to 64"]),
        ("--slots 16384", ["'16384' for '--slots", "16 to 8192"]),
        ("--chains 1025", ["'1025' for '--chains", "0 to 1024"]),
        ("--send-batch 1", ["'1' for '--send-batch", "from 2"]),
    ] {
        refused_by(2, "sim", args, &words);
    }
    for (args, words) in [
        ("--subgroups 64", ["last-level cache", "1500000"]),
        ("--threads 5", ["receive_threads is 5", "1 to 4"]),
        ("--send-threads 5", ["send_threads is 5", "1 to 4"]),
        ("--slots 100", ["slots is 100", "power of two"]),
        ("--batch 3", ["receive_batch is 3", "power of two"]),
        ("--batch 512", ["receive_batch is 512", "2 to 128"]),
        ("--chunk 100", ["chunk_bytes is 100", "multiple of 64"]),
        ("--chunk 8192", ["chunk_bytes is 8192", "64 to 4096"]),
    ] {
        refused(args, &words);
    }
}

#[test]
fn machines() {
    refused("--topology ring-5", &["topology ring-5", "switch-N", "fat-tree-188", "description file"]);
    refused("--topology nowhere.toml", &["topology `nowhere.toml` cannot be read"]);
    refused("--topology switch-4", &["8 cards", "\"switch-4\"", "4 hosts"]);
    refused("--topology fat-tree-188 --ranks 189 --bytes 1", &["189 cards", "188 hosts", "larger topology"]);
    refused("--faults nowhere.toml", &["fault script `nowhere.toml` cannot be read"]);
    refused("--loss 101", &["101 %", "0 to 100"]);
    refused_by(2, "sim", "--memory odd", &["odd", "strong, weak"]);
}

#[test]
fn images() {
    let output = Command::new(env!("CARGO_BIN_EXE_flexcast")).args(["sim", "--image", "no/such.elf"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("no/such.elf") && text.contains("cargo xtask build"), "{text}");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), b"hello").unwrap();
    let path = file.path().to_string_lossy().into_owned();
    let run = |args: &[&str]| Command::new(env!("CARGO_BIN_EXE_flexcast")).args(args).output().unwrap();
    let output = run(&["sim", "--ranks", "2", "--image", &path]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && text.contains("not an ELF file"), "{text}");
    // Another image of the same build has no such threads.
    let other = image().replace("allgather.elf", "reference.elf");
    let output = run(&["sim", "--ranks", "2", "--image", &other]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && text.starts_with("error: rank 0: "), "{text}");
    // Without multicast there is no firmware to load.
    assert!(run(&["sim", "--ranks", "2", "--image", &path, "--algorithm", "ring"]).status.success());
}

#[test]
fn soak_runs_of_nothing() {
    refused_by(2, "soak", "--seeds 0", &["'0' for '--seeds", "from 1"]);
    refused_by(2, "soak", "--wall-limit 0", &["'0' for '--wall-limit", "from 1"]);
    refused_by(2, "soak", "--jobs 0", &["'0' for '--jobs", "from 1"]);
}
