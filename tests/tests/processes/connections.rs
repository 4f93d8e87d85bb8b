//! The connection manager between two processes with one emulated card each: the programs of Debian's rdmacm-utils and
//! of perftest (`-R`), which nobody here compiled, and a C program that is compiled against rdma-core's headers and
//! linked to its library.
//!
//! Where programs or headers are not installed, their tests say on stderr that they skip. Figures that programs print
//! are *measured*.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use flexcast_tests::harness::{installed, skipped};
use flexcast_tests::libs::wait_for;
use flexcast_tests::workspace_root;

use super::unmodified::{BOUND, Pair, Running, average, command, free_udp_ports, run, scratch};

/// Longest that a server may take until it listens.
const LISTEN_BOUND: Duration = Duration::from_secs(30);
/// The thread of the emulator's library, which begins with the call that listens and does not serve before it returns.
const THREAD: &str = "flexcast-rdmacm";
/// Address of the server's card, the first one of the network.
const SERVER: &str = "198.18.0.1";

/// Whether a process has the thread.
fn listens(pid: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    let name = |thread: &Path| std::fs::read_to_string(thread.join("comm")).unwrap_or_default();
    threads.flatten().any(|thread| name(&thread.path()).trim_end() == THREAD)
}

/// A server and a client, with cards 0 and 1. `more` is added to both machine files, `alone` to the server's; `ready`
/// says whether the client may start, by what the server has printed. A server that never ends by itself is ended.
struct Play<'a> {
    name: &'a str,
    server: &'a [&'a str],
    client: &'a [&'a str],
    more: &'a str,
    alone: &'a str,
    ready: &'a str,
    server_ends: bool,
}

impl<'a> Play<'a> {
    fn new(name: &'a str, server: &'a [&'a str], client: &'a [&'a str]) -> Self {
        Self { name, server, client, more: "", alone: "", ready: "", server_ends: true }
    }

    fn run(&self) -> Pair {
        let folder = scratch(self.name);
        let ports = free_udp_ports();
        let start = |role: &str, card: usize, line: &[&str]| {
            let (listen, peer) = (ports[card], ports[1 - card]);
            let alone = if card == 0 { self.alone } else { "" };
            let machine = format!(
                "toml:first_card = {card}\n{alone}\n{}\n[bridge]\nlisten = \"127.0.0.1:{listen}\"\npeer = \
                 \"127.0.0.1:{peer}\"\n",
                self.more
            );
            let file = File::create(folder.join(format!("{role}.txt"))).expect("a file for the output");
            // Lines are there when they are printed.
            let mut command = command("stdbuf", &machine);
            command.arg("-oL").args(line).stdout(file.try_clone().expect("the same file")).stderr(file);
            Running(command.current_dir(&folder).spawn().expect("it is installed"))
        };
        let printed = |role: &str| {
            let bytes = std::fs::read(folder.join(format!("{role}.txt"))).expect("the output");
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let mut server = start("server", 0, self.server);
        let begun = Instant::now();
        while !listens(server.0.id()) || !printed("server").contains(self.ready) {
            let ended = server.0.try_wait().expect("it can be waited for");
            assert!(ended.is_none() && begun.elapsed() < LISTEN_BOUND, "{ended:?}: {}", printed("server"));
            std::thread::sleep(Duration::from_millis(5));
        }
        // Whoever asks before the server listens is rejected, as by any host; perftest gives up then.
        let client_end = loop {
            let end = wait_for(&mut start("client", 1, self.client).0, BOUND);
            let rejected = end.is_some_and(|end| !end.success()) && printed("client").contains("EVENT_REJECTED");
            if !rejected || begun.elapsed() > LISTEN_BOUND {
                break end;
            }
        };
        let mut ends = vec![client_end];
        if self.server_ends {
            ends.push(wait_for(&mut server.0, BOUND));
        }
        let pair = Pair { server: printed("server"), client: printed("client") };
        let well = ends.iter().all(|end| end.is_some_and(|status| status.success()));
        assert!(well, "{ends:?} (client, server)\nserver:\n{}\nclient:\n{}", pair.server, pair.client);
        pair
    }
}

#[test]
fn rping_pings() {
    if !installed("rping", "rdmacm-utils") {
        return;
    }
    let (server, client) = (["rping", "-s", "-C", "10", "-v"], ["rping", "-c", "-a", SERVER, "-C", "10", "-v", "-V"]);
    let printed = Play::new("rping", &server, &client).run();
    assert!(printed.client.contains("ping data: rdma-ping-9:"), "{}", printed.client);
    assert!(printed.server.contains("server ping data: rdma-ping-9:"), "{}", printed.server);
    assert!(!printed.client.contains("flexcast"), "nothing is refused: {}", printed.client);
    // Frames are lost.
    let more = "[link]\ndrop_ppm = 50000\nseed = 6\n";
    let (server, client) = (["rping", "-s", "-C", "2", "-v"], ["rping", "-c", "-a", SERVER, "-C", "2", "-v"]);
    let printed = Play { more, ..Play::new("rping-lossy", &server, &client) }.run();
    assert!(printed.client.contains("ping data: rdma-ping-1:"), "{}", printed.client);
}

#[test]
fn a_server_that_stays_serves_one_client_after_another() {
    if !installed("rping", "rdmacm-utils") {
        return;
    }
    let client = ["cmtime", "-s", SERVER, "-c", "20"];
    let play = Play { server_ends: false, ..Play::new("cmtime", &["cmtime"], &client) };
    let printed = play.run();
    assert!(printed.client.contains("disconnect") && !printed.client.contains("error"), "{}", printed.client);
}

#[test]
fn ucmatose_and_the_endpoints_of_rdma_client_transfer() {
    if !installed("ucmatose", "rdmacm-utils") {
        return;
    }
    for (server, client) in [("ucmatose", "ucmatose"), ("rdma_server", "rdma_client")] {
        let printed = Play::new(server, &[server], &[client, "-s", SERVER]).run();
        for text in [&printed.server, &printed.client] {
            assert!(text.contains("return status 0") || text.contains("end 0"), "{text}");
        }
    }
}

#[test]
fn udaddy_finds_its_peer_and_mckey_its_group() {
    if !installed("udaddy", "rdmacm-utils") {
        return;
    }
    let printed = Play::new("udaddy", &["udaddy"], &["udaddy", "-s", SERVER]).run();
    assert!(printed.client.contains("return status 0"), "{}", printed.client);
    let group = "239.1.2.3";
    let (receiver, sender) = (["mckey", "-m", group, "-b", SERVER], ["mckey", "-m", group, "-s", "-b", "198.18.0.2"]);
    let play = Play { ready: "receiving data transfers", ..Play::new("mckey", &receiver, &sender) };
    let printed = play.run();
    assert!(printed.server.contains("joined dgid: ::ffff:239.1.2.3 mlid 0xc000"), "{}", printed.server);
    assert!(printed.server.contains("data transfers complete"), "{}", printed.server);
}

#[test]
fn perftest_connects_through_the_connection_manager() {
    if !installed("ib_send_bw", "perftest") {
        return;
    }
    // Not with datagrams (`-c UD`): there the program asks for the second of two services without knowing that the
    // server listens already, and gives up if it does not.
    for program in ["ib_send_bw", "ib_write_bw", "ib_read_bw"] {
        let server = [program, "-R", "-d", "mlx5_0", "-n", "100", "-F"];
        let client = [&server[..], &[SERVER]].concat();
        let printed = Play::new(&format!("{program}-R"), &server, &client).run();
        let average = average(&printed.client);
        assert!(average.is_some_and(|average| average > 0.0), "{program}: {}", printed.client);
        assert!(printed.client.contains("Data ex. method : rdma_cm"), "{}", printed.client);
    }
}

#[test]
fn a_captured_connection_is_dissected() {
    if !installed("rping", "rdmacm-utils") || !installed("udaddy", "rdmacm-utils") || !installed("tshark", "tshark") {
        return;
    }
    for (name, server, client, expected) in [
        (
            "rping-captured",
            &["rping", "-s", "-C", "2"][..],
            &["rping", "-c", "-a", SERVER, "-C", "2"][..],
            // REQ, REP, RTU, DREQ and DREP.
            &["0x0010", "0x0013", "0x0014", "0x0015", "0x0016"][..],
        ),
        // SIDR_REQ and SIDR_REP.
        ("udaddy-captured", &["udaddy"], &["udaddy", "-s", SERVER], &["0x0017", "0x0018"]),
    ] {
        Play { alone: "capture = \"card-0.pcapng\"\n", ..Play::new(name, server, client) }.run();
        let fields = ["infiniband.mad.attributeid", "_ws.col.Info", "_ws.malformed", "infiniband.deth.q_key"];
        let output = Command::new("tshark")
            .arg("-r")
            .arg(scratch(name).join("card-0.pcapng"))
            .args(["-Y", "infiniband", "-T", "fields", "-E", "separator=;"])
            .args(fields.iter().flat_map(|field| ["-e", field]))
            .output()
            .expect("it is installed");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split(';').collect()).collect();
        assert!(rows.iter().all(|row| row[2].is_empty()), "malformed: {text}");
        let managed: Vec<&str> = rows.iter().map(|row| row[0]).filter(|attribute| !attribute.is_empty()).collect();
        assert_eq!(managed, expected, "{text}");
        let of_manager = rows.iter().filter(|row| !row[0].is_empty());
        assert!(of_manager.clone().all(|row| row[1].starts_with("CM: ")), "{text}");
        assert!(of_manager.clone().all(|row| row[3].to_lowercase().contains("80010000")), "{text}");
    }
}

#[test]
fn what_cannot_be_reached_is_reported_in_words() {
    if !installed("rping", "rdmacm-utils") {
        return;
    }
    for (arguments, expected) in [
        (
            ["-c", "-a", "192.0.2.1"],
            ["RDMA_CM_EVENT_ADDR_ERROR", "192.0.2.1 is no address of a card: mlx5_0 has 198.18.0.5"],
        ),
        (["-s", "-a", "192.0.2.1"], ["No such device", "rdma_bind_addr: 192.0.2.1 is no address of a card"]),
        // The own card, where nobody listens.
        (["-c", "-a", "127.0.0.1"], ["RDMA_CM_EVENT_REJECTED, error 8", ""]),
    ] {
        let output = run("rping", &arguments, "toml:cards = 1\nfirst_card = 4\n");
        let text = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        assert!(!output.status.success() && expected.iter().all(|words| text.contains(words)), "{text}");
    }
}

#[test]
fn who_uses_the_card_of_another_process_has_no_connection_manager() {
    if !installed("rping", "rdmacm-utils") || !installed("ibv_asyncwatch", "ibverbs-utils") {
        return;
    }
    let socket = scratch("cm-shared").join("card.sock");
    let shared = format!("toml:cards = 1\n[share]\nsocket = {socket:?}\n");
    let owner = command("ibv_asyncwatch", &shared).stdout(std::process::Stdio::null()).spawn();
    let _owner = Running(owner.expect("it is installed"));
    let output = run("rping", &["-s"], &format!("toml:[attach]\nsocket = {socket:?}\n"));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("the cards are another process's"), "{text}");
}

/// The C program, compiled once; `None` without a compiler, or without the headers and the library of rdma-core.
fn program() -> Option<&'static Path> {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    if !installed("gcc", "gcc libc6-dev") {
        return None;
    }
    if !Path::new("/usr/include/rdma/rdma_cma.h").is_file() {
        skipped("rdma/rdma_cma.h is not installed (Debian: librdmacm-dev)");
        return None;
    }
    Some(PROGRAM.get_or_init(|| {
        let program = scratch("connections").join("connections");
        let output = Command::new("gcc")
            .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "tests/c/connections.c", "-o"])
            .arg(&program)
            .args(["-lrdmacm", "-libverbs", "-lpthread"])
            .current_dir(workspace_root())
            .output()
            .expect("it starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        program
    }))
}

#[test]
fn a_c_program_with_endpoints_connects_and_transfers() {
    let Some(program) = program() else { return };
    let program = program.to_str().expect("UTF-8");
    let printed = Play::new("endpoints", &[program, "serve", "7471"], &[program, "ask", SERVER, "7471"]).run();
    for text in [&printed.server, &printed.client] {
        assert_eq!(text, "done\n");
    }
}

#[test]
fn a_c_program_with_event_channels_does_everything_and_is_refused_what_is_wrong() {
    let Some(program) = program() else { return };
    let folder = scratch("alone");
    let file = |name: &str| File::create(folder.join(name)).expect("a file for the output");
    let mut child = Running(
        command(program.to_str().expect("UTF-8"), "toml:")
            .arg("alone")
            .env("FLEXCAST_LOG", "debug")
            .stdout(file("stdout"))
            .stderr(file("stderr"))
            .spawn()
            .expect("it starts"),
    );
    let end = wait_for(&mut child.0, BOUND);
    let text = std::fs::read_to_string(folder.join("stderr")).expect("the output");
    assert!(end.is_some_and(|status| status.success()), "{end:?}: {text}");
    for words in [
        "rdma_create_id: port space RDMA_PS_IB (0x13f) is one of InfiniBand",
        "rdma_bind_addr: 10.9.8.7 is no address of a card: mlx5_0 has 198.18.0.1, mlx5_1 has 198.18.0.2",
        "rdma_bind_addr: port 7474 of TCP is taken at 0.0.0.0: choose another",
        "rdma_connect: private_data_len is 57: a request for a connection (REQ) has room for 56 bytes",
        "rdma_accept: private_data_len is 197: an acceptance (REP) has room for 196 bytes",
        "rdma_reject: private_data_len is 149: a refusal (REJ) has room for 148 bytes",
        "rdma_connect: private_data_len is 181: a request for a queue pair (SIDR_REQ) has room for 180 bytes",
        "rdma_accept: responder_resources is 17: the card has 16 at most",
        "rdma_destroy_event_channel: 1 identifiers report to the channel: destroy them first",
        "rdma_destroy_id: ",
    ] {
        assert!(text.contains(words), "no {words:?} in\n{text}");
    }
}
