//! Same inputs and seed: bit-identical run, however often, in whatever world and process.

use std::process::Command;

use flexcast::Transport;
use flexcast_lab::tput::plan::Params;
use flexcast_tests::run::{Outcome, tput};

const BYTES: u64 = 4 << 20;

fn params(transport: Transport, seed: u64) -> Params {
    Params { transport, loss_ppm: 10_000, seed, ..Params::default() }
}

fn run(transport: Transport, seed: u64) -> Outcome {
    tput(params(transport, seed), BYTES).expect("the run succeeds")
}

/// Three runs, each in a new world; `elsewhere` runs on another thread of the host, whose buffers lie elsewhere.
#[track_caller]
fn three_runs_are_one(transport: Transport) {
    let first = run(transport, 7);
    assert!(first.report.recovered_chunks > 0, "the loss must have hit something: {:?}", first.report);
    assert!(first.report.digest_ok, "{:?}", first.report);
    assert!(first.trace_events > 1000, "{} events", first.trace_events);
    assert_eq!(run(transport, 7), first);
    let elsewhere = std::thread::spawn(move || run(transport, 7)).join().expect("the other thread lives");
    assert_eq!(elsewhere, first);

    let other = run(transport, 8);
    assert_ne!(other.trace_hash, first.trace_hash, "another seed loses other packets");
    assert_ne!(other.end_ps, first.end_ps);
}

#[test]
fn uc_runs_repeat() {
    three_runs_are_one(Transport::UcUnicast);
}

#[test]
fn ud_runs_repeat() {
    three_runs_are_one(Transport::Ud);
}

/// What another process is asked for through the environment.
const CHILD: &str = "FLEXCAST_TEST_PRINT_TRACE";

fn summary() -> String {
    let both = [Transport::UcUnicast, Transport::Ud].map(|transport| {
        let outcome = run(transport, 7);
        format!("{:016x} {} {}", outcome.trace_hash, outcome.trace_events, outcome.end_ps)
    });
    both.join(", ")
}

/// Host addresses differ from process to process; nothing may depend on them.
#[test]
fn another_process_gives_the_same_trace() {
    if std::env::var_os(CHILD).is_some() {
        println!("trace: {}", summary());
        return;
    }
    let output = Command::new(std::env::current_exe().expect("the path of this program"))
        .args(["--exact", "determinism::another_process_gives_the_same_trace", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .expect("this program starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let line = text.lines().find_map(|line| line.split_once("trace: ")).map(|(_, line)| line);
    assert_eq!(line, Some(summary().as_str()), "{text}");
}

#[test]
fn the_trace_follows_every_parameter() {
    let base = Params::default().with_threads(2);
    let hash = |params: Params, bytes: u64| tput(params, bytes).expect("the run succeeds").trace_hash;
    let mut hashes = vec![
        hash(base, 1 << 20),
        hash(base, (1 << 20) + 64),
        hash(Params { threads: 3, ..base }, 1 << 20),
        hash(Params { batch: 16, ..base }, 1 << 20),
        hash(Params { slots: 512, ..base }, 1 << 20),
        hash(Params { transport: Transport::UcUnicast, ..base }, 1 << 20),
    ];
    assert_eq!(hashes[0], hash(Params { seed: 99, ..base }, 1 << 20), "without loss the seed changes only the bytes");
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), 6, "two different runs left the same trace");
}
