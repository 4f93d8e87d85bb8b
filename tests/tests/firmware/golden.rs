//! Printed output and reports of the images, compared with what was recorded with them.

use std::fmt::Write as _;

use emu_machine::Config;
use flexcast::Transport;
use flexcast_abi::{ABI_HASH, ABI_VERSION};
use flexcast_lab::pingpong::ping;
use flexcast_lab::reference;
use flexcast_lab::tput::plan::Params;
use flexcast_lab::tput::run::bring_up;
use flexcast_tests::code::cards;
use flexcast_tests::{golden, image_bytes, run};
use flexio::LogDecoder;
use flexio::{AbiExpectation, Application, MsgLevel, MsgStream, Process, ProtectionDomain};

/// Loads an image, has it come up, lets `body` talk to it, and returns everything as `flexcast run` reports it.
/// Addresses of entries are left out: they move with every change of the code.
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
fn allgather_comes_up_and_logs() {
    golden::compare("allgather", "run", &session("allgather", |_, _| ()));
}

#[test]
fn reference_comes_up_and_logs() {
    golden::compare("reference", "run", &session("reference", |_, _| ()));
}

/// A report, one line per field, without wall time.
fn report(report: &impl serde::Serialize) -> String {
    let json = serde_json::to_string_pretty(report).expect("JSON");
    let (before, after) = json.split_once(",\n  \"wall_s\": 0.0").expect("a wall time to leave out");
    format!("{before}{after}\n")
}

#[test]
fn tput_reports() {
    for transport in [Transport::UcUnicast, Transport::Ud] {
        let base = Params { transport, ..Params::default() };
        let clean = Params { warm_up: 1, ..base.with_threads(2) };
        let lossy = Params { loss_ppm: 10_000, seed: 7, ..base };
        let reports = [(clean, 1_000_003), (lossy, 1 << 20), (base, 1)]
            .map(|(params, bytes)| report(&run::tput(params, bytes).expect("the run succeeds").report));
        let name = flexcast_lab::tput::report::transport_name(transport);
        golden::compare("allgather", &format!("tput-{name}"), &reports.concat());
    }
}

#[test]
fn reference_reports() {
    for transport in [reference::Transport::Uc, reference::Transport::Ud] {
        let params = reference::Params { transport, threads: 2, ..reference::Params::default() };
        let machine = emu_provider::lossy(0, 1);
        let ran = run::reference(machine, image_bytes("reference"), params, 1_000_003).expect("the run succeeds");
        golden::compare("reference", &format!("run-{}", reference::transport::name(transport)), &report(&ran));
    }
}
