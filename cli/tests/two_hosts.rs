//! `flexcast tput --server` and `--client`: two processes, each with an emulated card of its own.

use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};

const IMAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/device/emu/allgather.elf");

/// A port that is free for TCP, with the UDP ports of two emulated cards.
fn port() -> String {
    let free = |port: u16| std::net::UdpSocket::bind(("127.0.0.1", port)).is_ok();
    let found = (0..100).find_map(|_| {
        let port = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).ok()?.port();
        (port < u16::MAX && free(port) && free(port + 1)).then_some(port)
    });
    found.expect("free ports").to_string()
}

fn start(side: &[&str], port: &str, more: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flexcast"));
    command.arg("tput").args(side).args(["--port", port, "--image", IMAGE]).args(more);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the tool starts")
}

/// What both processes print.
fn both(server: &[&str], client: &[&str]) -> [Output; 2] {
    let port = port();
    let children = [start(&["--server=127.0.0.1"], &port, server), start(&["--client", "127.0.0.1"], &port, client)];
    children.map(|child| child.wait_with_output().expect("it ends"))
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn two_processes_report_the_same_run() {
    for transport in ["ud", "uc-unicast"] {
        let options = ["--bytes", "256K", "--iterations", "2", "--json", "--transport", transport];
        let outputs = both(&options, &options);
        let reports = outputs.map(|output| {
            assert!(output.status.success(), "{}", said(&output));
            serde_json::from_slice::<serde_json::Value>(&output.stdout).expect("one JSON object")
        });
        for key in ["chunks", "bytes", "sha256", "device", "instructions_per_cqe", "send_instructions_per_chunk"] {
            assert_eq!(reports[0][key], reports[1][key], "{key}");
        }
        let [report, _] = reports;
        assert_eq!((&report["digest_ok"], &report["kind"]), (&true.into(), &"measured".into()));
        assert_eq!(report["model"], "wall clock of the emulator");
        // 64 chunks of 4 KiB, twice: by the card's own counters, or fetched where this computer was too busy for them.
        let count = |of: &serde_json::Value| of.as_u64().unwrap_or(0);
        let chunks = count(&report["device"]["cqes"]) + count(&report["recovered_chunks"]);
        assert!(chunks >= 128, "{report}");
        assert!(report["send_instructions_per_chunk"].as_f64().is_some_and(|count| count > 1.0), "{report}");
    }
}

#[test]
fn what_differs_is_named_and_nobody_waits_for_ever() {
    let [server, client] = both(&["--bytes", "256K"], &["--bytes", "128K"]);
    for output in [server, client] {
        let text = said(&output);
        assert!(!output.status.success() && text.contains("--bytes 131072") && text.contains("262144"), "{text}");
    }
    // No card of this name on one side: the other is given the reason.
    let [server, client] = both(&["--bytes", "64K", "--device", "mlx5_9"], &["--bytes", "64K"]);
    for output in [server, client] {
        assert!(!output.status.success() && said(&output).contains("mlx5_9"), "{}", said(&output));
    }
    // Nobody on the other side.
    let alone = start(&["--client", "127.0.0.1"], &port(), &["--wait", "1"]).wait_with_output().expect("it ends");
    assert!(!alone.status.success() && said(&alone).contains("127.0.0.1"), "{}", said(&alone));
    for (options, word) in [
        (["--server", "--loss", "1"], "--loss describes a machine"),
        (["--server", "--stats", "--json"], "--trace, --stats"),
    ] {
        let refused = start(&options, &port(), &[]).wait_with_output().expect("it ends");
        assert!(!refused.status.success() && said(&refused).contains(word), "{}", said(&refused));
    }
}
