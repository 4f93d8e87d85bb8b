//! Printed output and reports of the images, compared with what was recorded beside them.

use std::fmt::Write as _;

use emu_machine::Config;
use flexcast_abi::{ABI_HASH, ABI_VERSION};
use flexcast_cli::logs::LogDecoder;
use flexcast_lab::pingpong::ping;
use flexcast_lab::tput::plan::{Params, Transport};
use flexcast_lab::tput::server::bring_up;
use flexcast_tests::code::cards;
use flexcast_tests::{golden, image_bytes, run};
use flexio::{AbiExpectation, Application, MsgLevel, MsgStream, Process, ProtectionDomain};

/// Loads an image, has it come up, lets `body` talk to it, and returns everything as `flexcast run` tells it. Addresses of
/// entries are left out: they move with every change of the code.
fn session(name: &str, body: impl FnOnce(&Process, &mut String)) -> String {
    let elf = image_bytes(name);
    let provider = cards(Config::default());
    let abi = AbiExpectation { version: ABI_VERSION, hash: ABI_HASH };
    let application = Application::load(&provider, name, &elf, Some(abi)).expect("a valid image");
    let device = provider.open("mlx5_0").expect("the first card");
    let pd = ProtectionDomain::new(&device).expect("a protection domain");
    let process = Process::new(&application, &pd).expect("a process");
    let mut text = String::new();
    writeln!(text, "{name}, ABI {ABI_VERSION}").expect("a string");
    for entry in application.image().entries() {
        writeln!(text, "  {:<20} {}", entry.name, entry.kind).expect("a string");
    }
    let decoder = LogDecoder::new(&elf).expect("log strings");
    let mut stream = MsgStream::new(&process, MsgLevel::Debug).expect("a message stream");
    writeln!(text, "bring-up: {:#018x}", bring_up(&process).expect("bring-up")).expect("a string");
    body(&process, &mut text);
    for line in stream.lines().expect("lines") {
        writeln!(text, "  device: {}", decoder.line(&line)).expect("a string");
    }
    process.check().expect("the process lives");
    text
}

#[test]
fn pingpong_answers_and_logs() {
    let text = session("pingpong", |process, text| {
        let client = process.device().provider().open("mlx5_1").expect("the second card");
        let long = vec![0x5A; 4096];
        let messages: [&[u8]; 4] = [b"ping", b"a longer ping, of which every byte comes back", b"!", &long];
        let pong = ping(process, &client, &messages).expect("answers");
        assert!(pong.equal, "an answer differs from its ping");
        for (message, round_trip_ps) in messages.iter().zip(&pong.round_trips_ps) {
            let us = *round_trip_ps as f64 / 1e6;
            writeln!(text, "ping of {} bytes: answered after {us:.2} us (emulated)", message.len()).expect("a string");
        }
    });
    golden::compare("pingpong", "run", &text);
}

#[test]
fn receive_comes_up_and_logs() {
    golden::compare("receive", "run", &session("receive", |_, _| ()));
}

#[test]
fn allgather_comes_up_and_logs() {
    golden::compare("allgather", "run", &session("allgather", |_, _| ()));
}

#[test]
fn reference_comes_up_and_logs() {
    golden::compare("reference", "run", &session("reference", |_, _| ()));
}

/// `flexcast tput --json` of a few runs, one line per field, without wall time.
fn reports(image: &str, runs: &[(Params, u64)]) -> String {
    let mut text = String::new();
    for &(params, bytes) in runs {
        let outcome = run::tput(image, params, bytes).expect("the run succeeds");
        let json = serde_json::to_string_pretty(&outcome.report).expect("JSON");
        let (before, after) = json.split_once(",\n  \"wall_s\": 0.0").expect("a wall time to leave out");
        text.push_str(before);
        text.push_str(after);
        text.push('\n');
    }
    text
}

#[test]
fn receive_reports() {
    for transport in [Transport::Uc, Transport::Ud] {
        let clean = Params { transport, threads: 2, warm_up: 1, ..Params::default() };
        let lossy = Params { transport, threads: 4, loss_ppm: 10_000, seed: 7, ..Params::default() };
        let runs = [(clean, 1_000_003), (lossy, 1 << 20), (Params { transport, ..Params::default() }, 1)];
        golden::compare("receive", &format!("tput-{}", transport.name()), &reports("receive", &runs));
    }
}

#[test]
fn reference_reports() {
    for transport in [Transport::Uc, Transport::Ud] {
        let runs = [(Params { transport, threads: 2, ..Params::default() }, 1_000_003)];
        golden::compare("reference", &format!("tput-{}", transport.name()), &reports("reference", &runs));
    }
}
