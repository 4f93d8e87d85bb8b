//! Programs that nobody here compiled: Debian's ibverbs-utils and perftest, each between two processes with one
//! emulated card each, joined by a bridge on loopback.
//!
//! Where a program is not installed its test says on stderr that it skips. Bandwidths that programs print are
//! *measured*: how fast this computer emulates, not how fast a card is.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use flexcast_tests::harness::{installed, skipped};
use flexcast_tests::libs::{libraries, wait_for};
use object::LittleEndian;
use object::elf::FileHeader64;
use object::read::elf::{FileHeader as _, Sym as _};

/// Longest that a pair of programs may take; they need a second or two.
pub(crate) const BOUND: Duration = Duration::from_secs(120);
/// Longest that a server may take until it listens.
const LISTEN_BOUND: Duration = Duration::from_secs(30);

pub(crate) fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("unmodified").join(name);
    std::fs::create_dir_all(&folder).expect("the folder can be made");
    folder
}

/// A program on the emulator's libraries, with a machine.
pub(crate) fn command(program: &str, machine: &str) -> Command {
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", libraries()).env("FLEXCAST_MACHINE", machine).stdin(Stdio::null());
    command
}

pub(crate) fn run(program: &str, arguments: &[&str], machine: &str) -> Output {
    let folder = scratch(&format!("{program}-alone"));
    let file = |name: &str| File::create(folder.join(name)).expect("a file for the output");
    let mut child = command(program, machine)
        .args(arguments)
        .stdout(file("stdout"))
        .stderr(file("stderr"))
        .spawn()
        .expect("it is installed");
    let status = wait_for(&mut child, BOUND).unwrap_or_else(|| panic!("{program} still runs after {BOUND:?}"));
    let read = |name: &str| std::fs::read(folder.join(name)).expect("the output");
    Output { status, stdout: read("stdout"), stderr: read("stderr") }
}

/// Ports that nobody uses now.
pub(crate) fn free_udp_ports() -> [u16; 2] {
    let sockets = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").expect("a port"));
    sockets.map(|socket| socket.local_addr().expect("bound").port())
}

fn free_tcp_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port").port()
}

/// Whether somebody listens on a TCP port: connecting to find out would use the one connection that servers accept.
fn listens(port: u16) -> bool {
    ["/proc/net/tcp", "/proc/net/tcp6"].into_iter().any(|table| {
        let text = std::fs::read_to_string(table).unwrap_or_default();
        text.lines().any(|line| {
            let mut fields = line.split_whitespace().skip(1);
            let (local, _, state) = (fields.next(), fields.next(), fields.next());
            local.is_some_and(|local| local.ends_with(&format!(":{port:04X}"))) && state == Some("0A")
        })
    })
}

/// A child that does not outlive its test.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What both programs of a pair printed.
pub(crate) struct Pair {
    pub(crate) server: String,
    pub(crate) client: String,
}

/// Runs a program as server and as client, with cards 0 and 1, and checks that both succeed. `more` is added to both
/// machine files, `alone` to the server's.
fn pair(name: &str, program: &str, arguments: &[&str], more: &str, alone: &str) -> Pair {
    pair_with(name, program, arguments, more, alone, |_| ())
}

/// The same; `meddle` is given the processes, the server's first, when both run.
fn pair_with(
    name: &str,
    program: &str,
    arguments: &[&str],
    more: &str,
    alone: &str,
    meddle: impl FnOnce([u32; 2]),
) -> Pair {
    let ports = free_udp_ports();
    let machine = |card: usize| {
        let alone = if card == 0 { alone } else { "" };
        let (listen, peer) = (ports[card], ports[1 - card]);
        format!(
            "first_card = {card}\n{alone}\n{more}\n[bridge]\nlisten = \"127.0.0.1:{listen}\"\npeer \
             = \"127.0.0.1:{peer}\"\n"
        )
    };
    pair_on(name, program, arguments, [machine(0), machine(1)], meddle)
}

/// The same on these machines, the server's first.
fn pair_on(
    name: &str,
    program: &str,
    arguments: &[&str],
    machines: [String; 2],
    meddle: impl FnOnce([u32; 2]),
) -> Pair {
    let folder = scratch(name);
    let port = free_tcp_port();
    let start = |role: &str, place: usize, to: &[&str]| {
        let machine = folder.join(format!("{role}.toml"));
        std::fs::write(&machine, &machines[place]).expect("the machine file");
        let output = || File::create(folder.join(format!("{role}.txt"))).expect("a file for the output");
        let file = output();
        let child = command(program, machine.to_str().expect("UTF-8"))
            .args(arguments)
            .args(["-p", &port.to_string()])
            .args(to)
            .stdout(file.try_clone().expect("the same file"))
            .stderr(file)
            .current_dir(&folder)
            .spawn();
        Running(child.expect("it is installed"))
    };
    let printed = |role: &str| {
        String::from_utf8_lossy(&std::fs::read(folder.join(format!("{role}.txt"))).expect("the output")).into_owned()
    };
    let transcript =
        || format!("{program} {arguments:?}\nserver:\n{}\nclient:\n{}", printed("server"), printed("client"));

    let mut server = start("server", 0, &[]);
    let begun = Instant::now();
    while !listens(port) {
        let ended = server.0.try_wait().expect("it can be waited for");
        assert!(ended.is_none() && begun.elapsed() < LISTEN_BOUND, "{ended:?}: {program} {}", printed("server"));
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut client = start("client", 1, &["127.0.0.1"]);
    meddle([server.0.id(), client.0.id()]);
    let ends = [wait_for(&mut client.0, BOUND), wait_for(&mut server.0, BOUND)];
    assert!(
        ends.iter().all(|end| end.is_some_and(|status| status.success())),
        "{ends:?} (client, server): {}",
        transcript()
    );
    Pair { server: printed("server"), client: printed("client") }
}

#[test]
fn ibv_devinfo_shows_the_card() {
    if !installed("ibv_devinfo", "ibverbs-utils") {
        return;
    }
    let output = run("ibv_devinfo", &["-v"], "toml:cards = 1\nfirst_card = 4\n");
    let text = String::from_utf8_lossy(&output.stdout);
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    for shown in [
        "hca_id: mlx5_0",
        "vendor_id: 0x02c9",
        "board_id: FLEXCAST_EMU",
        "state: PORT_ACTIVE (4)",
        "active_mtu: 4096 (5)",
        "link_layer: Ethernet",
        "GID[ 0]: fe80:0000:0000:0000:0000:00ff:fe00:0005, RoCE v1",
        "GID[ 1]: fe80::ff:fe00:5, RoCE v2",
        "GID[ 2]: 0000:0000:0000:0000:0000:ffff:c612:0005, RoCE v1",
        "GID[ 3]: ::ffff:198.18.0.5, RoCE v2",
    ] {
        assert!(words.contains(shown), "no {shown:?} in\n{text}");
    }
    let output = run("ibv_devinfo", &["-l"], "toml:cards = 2\n");
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("2 HCAs found"));
    let socket = scratch("devinfo").join("card.sock");
    let output = run("ibv_devinfo", &[], &format!("toml:cards = 1\n[share]\nsocket = {socket:?}\n"));
    assert!(output.status.success() && !socket.exists(), "the socket goes with the process");
}

#[test]
fn a_bad_machine_file_is_reported_and_the_program_ends() {
    if !installed("ibv_devinfo", "ibverbs-utils") {
        return;
    }
    for (machine, words) in [
        ("toml:crads = 1\n", "unknown field `crads`"),
        ("/no/such/file.toml", "the machine file /no/such/file.toml cannot be read"),
        ("toml:cards = 0\n", "0 cards"),
        ("toml:[bridge]\nlisten = \"nowhere\"\npeer = \"127.0.0.1:1\"\n", "bridge.listen is \"nowhere\""),
    ] {
        let output = run("ibv_devinfo", &[], machine);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains(words), "{machine:?}: {text}");
        assert_eq!(text.matches("flexcast:").count(), 1, "reported once: {text}");
    }
}

/// Every pingpong polling and sleeping, its data compared (`-c`).
fn pingpong(transport: &str, more: &[&[&str]]) {
    let program = format!("ibv_{transport}_pingpong");
    if !installed(&program, "ibverbs-utils") {
        return;
    }
    let ways: Vec<&[&str]> = [&[][..], &["-e"]].into_iter().chain(more.iter().copied()).collect();
    for (number, way) in ways.into_iter().enumerate() {
        let arguments = [&["-g", "3", "-c", "-n", "300"], way].concat();
        let printed = pair(&format!("{program}-{number}"), &program, &arguments, "", "");
        for text in [&printed.server, &printed.client] {
            assert!(text.contains("300 iters in") && !text.contains("invalid data"), "{way:?}: {text}");
        }
        assert!(printed.client.contains("GID ::ffff:198.18.0.1") && printed.client.contains("GID ::ffff:198.18.0.2"));
    }
    // RoCE version 1, and IPv6.
    for (index, gid) in [("0", "GID fe80::ff:fe00:1"), ("1", "GID fe80::ff:fe00:1"), ("2", "GID ::ffff:198.18.0.1")] {
        let arguments = ["-g", index, "-c", "-n", "100"];
        let printed = pair(&format!("{program}-gid-{index}"), &program, &arguments, "", "");
        for text in [&printed.server, &printed.client] {
            assert!(text.contains("100 iters in") && !text.contains("invalid data"), "GID {index}: {text}");
        }
        assert!(printed.client.contains(gid), "{}", printed.client);
    }
}

#[test]
fn ibv_rc_pingpong_plays() {
    pingpong("rc", &[&["-N"], &["-m", "4096", "-s", "100000"]]);
}

/// Three programs, one card: one has it and waits for events, the others play on it. Each is given the machine that
/// `flexcast emu exec` makes of `--share` and of `--attach`.
#[test]
fn programs_play_on_the_card_of_another() {
    if !installed("ibv_rc_pingpong", "ibverbs-utils") {
        return;
    }
    let socket = scratch("shared").join("card.sock");
    let shared = format!("toml:cards = 1\narm_functions = true\n[share]\nsocket = {socket:?}\n");
    let attached = format!("[attach]\nsocket = {socket:?}\n");
    let file = File::create(scratch("shared").join("owner.txt")).expect("a file for the output");
    let owner =
        command("ibv_asyncwatch", &shared).stdout(file.try_clone().expect("the same file")).stderr(file).spawn();
    let _owner = Running(owner.expect("it is installed"));
    let shown = run("ibv_devinfo", &["-l"], &format!("toml:{attached}"));
    assert!(String::from_utf8_lossy(&shown.stdout).starts_with("1 HCA found"), "{shown:?}");
    for transport in ["rc", "uc", "ud"] {
        // Polling, and asleep until an event.
        for way in [&[][..], &["-e"]] {
            let (name, program) = (format!("shared-{transport}-{}", way.len()), format!("ibv_{transport}_pingpong"));
            let machines = [attached.clone(), attached.clone()];
            let arguments = [&["-g", "3", "-c", "-n", "300"], way].concat();
            let printed = pair_on(&name, &program, &arguments, machines, |_| ());
            for text in [&printed.server, &printed.client] {
                assert!(text.contains("300 iters in") && !text.contains("invalid data"), "{transport} {way:?}: {text}");
            }
        }
    }
}

/// A card answers whether or not its host's processor has time: so does one whose process is stopped, later, and
/// nobody's retries run out.
#[test]
fn a_pingpong_outlives_a_process_that_is_stopped() {
    if !installed("ibv_rc_pingpong", "ibverbs-utils") {
        return;
    }
    for stopped in [0, 1] {
        let meddle = |children: [u32; 2]| {
            let signal = |name: &str| {
                let command = format!("kill -s {name} {}", children[stopped]);
                let _ = Command::new("sh").args(["-c", &command]).stderr(Stdio::null()).status().expect("a shell");
            };
            std::thread::sleep(Duration::from_millis(300));
            signal("STOP");
            std::thread::sleep(Duration::from_secs(1));
            signal("CONT");
        };
        let arguments = ["-g", "3", "-c", "-n", "4000"];
        let printed = pair_with(&format!("stopped-{stopped}"), "ibv_rc_pingpong", &arguments, "", "", meddle);
        for text in [&printed.server, &printed.client] {
            assert!(text.contains("4000 iters in") && !text.contains("invalid data"), "{text}");
        }
    }
}

/// Sixteen queue pairs of each side share a receive queue.
#[test]
fn ibv_srq_pingpong_plays() {
    if !installed("ibv_srq_pingpong", "ibverbs-utils") {
        return;
    }
    for (number, way) in [&[][..], &["-e"]].iter().enumerate() {
        let arguments = [&["-g", "3", "-n", "300"], *way].concat();
        let printed = pair(&format!("ibv_srq_pingpong-{number}"), "ibv_srq_pingpong", &arguments, "", "");
        for text in [&printed.server, &printed.client] {
            assert!(text.contains("300 iters in"), "{way:?}: {text}");
        }
    }
}

#[test]
fn ibv_uc_pingpong_plays() {
    pingpong("uc", &[]);
}

#[test]
fn ibv_ud_pingpong_plays() {
    pingpong("ud", &[]);
}

/// The average bandwidth that perftest prints last, in MB/s (measured).
pub(crate) fn average(text: &str) -> Option<f64> {
    let rows = text.lines().skip_while(|line| !line.contains("BW average[MB/sec]")).skip(1);
    let columns = rows.map(|row| row.split_whitespace().collect::<Vec<_>>());
    columns.filter_map(|columns| columns.get(3)?.parse().ok()).last()
}

fn bandwidth(test: &str, ways: &[&[&str]]) {
    let program = format!("ib_{test}_bw");
    if !installed(&program, "perftest") {
        return;
    }
    for (number, way) in ways.iter().enumerate() {
        let arguments = [&["-d", "mlx5_0", "-x", "3", "-n", "100", "-F"], *way].concat();
        let printed = pair(&format!("{program}-{number}"), &program, &arguments, "", "");
        let average = average(&printed.client);
        assert!(average.is_some_and(|average| average > 0.0), "{way:?}: {}", printed.client);
        eprintln!("{program} {}: {:.1} MB/s measured", way.join(" "), average.unwrap_or(0.0));
    }
}

#[test]
fn ib_send_bw_runs() {
    bandwidth("send", &[&[], &["--use_old_post_send"], &["-c", "UD", "-s", "2048"], &["-c", "UC"], &["-e"], &["-b"]]);
}

#[test]
fn ib_send_bw_runs_on_shared_receives() {
    bandwidth("send", &[&["--use-srq", "-q", "4"], &["-c", "UD", "-s", "2048", "--use-srq"]]);
}

#[test]
fn ib_write_bw_runs() {
    bandwidth("write", &[&[], &["--use_old_post_send"], &["-q", "2"], &["-a", "-n", "5"]]);
}

#[test]
fn ib_read_bw_runs() {
    bandwidth("read", &[&[], &["--use_old_post_send"], &["-e"]]);
}

/// Frames that the link loses are sent again. Not a pingpong: whoever has its last message ends at once there, and an
/// acknowledgement lost then is lost for good, on any card.
#[test]
fn ib_write_bw_runs_on_over_losses() {
    if !installed("ib_write_bw", "perftest") {
        return;
    }
    let arguments = ["-d", "mlx5_0", "-x", "3", "-n", "60", "-s", "8192", "-F"];
    let printed = pair("lossy", "ib_write_bw", &arguments, "[link]\ndrop_ppm = 20000\nseed = 5\n", "");
    assert!(average(&printed.client).is_some_and(|average| average > 0.0), "{}", printed.client);
}

/// What crosses a bridge, before an outside detecting rank.
#[test]
fn a_capture_of_a_bridged_run_is_dissected() {
    if !installed("ibv_rc_pingpong", "ibverbs-utils") || !installed("tshark", "tshark") {
        return;
    }
    for (index, sources) in [("3", ["198.18.0.1", "198.18.0.2"]), ("0", ["fe80::ff:fe00:1", "fe80::ff:fe00:2"])] {
        dissected(index, sources);
    }
}

fn dissected(index: &str, sources: [&str; 2]) {
    let arguments = ["-g", index, "-c", "-n", "20", "-s", "3000"];
    pair("captured", "ibv_rc_pingpong", &arguments, "", "capture = \"card-0.pcapng\"\n");
    let source = if index == "3" { "ip.src" } else { "infiniband.grh.sgid" };
    let fields = ["frame.number", source, "infiniband.bth.opcode", "_ws.malformed", "_ws.expert.severity"];
    let output = Command::new("tshark")
        .arg("-r")
        .arg(scratch("captured").join("card-0.pcapng"))
        .args(["-Y", "infiniband", "-T", "fields", "-E", "separator=,"])
        .args(fields.iter().flat_map(|field| ["-e", field]))
        .output()
        .expect("it is installed");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut seen: BTreeMap<(&str, &str), u32> = BTreeMap::new();
    for line in text.lines() {
        let columns: Vec<&str> = line.split(',').collect();
        assert_eq!(columns[3], "", "malformed: {line}");
        *seen.entry((columns[1], columns[2])).or_default() += 1;
    }
    // 20 messages of three packets (MTU 1024) from each side: first, middle, last, and acknowledgements.
    for source in sources {
        for opcode in ["0", "1", "2"] {
            assert!(seen.get(&(source, opcode)).is_some_and(|&count| count >= 20), "{source} {opcode}: {seen:?}");
        }
        assert!(seen.contains_key(&(source, "17")), "{seen:?}");
    }
}

/// Name and version of what a library exports under its default versions.
fn exports(library: &Path) -> BTreeSet<(String, String)> {
    let data = std::fs::read(library).expect("the library can be read");
    let data = &*data;
    let header = FileHeader64::<LittleEndian>::parse(data).expect("an ELF");
    let sections = header.sections(LittleEndian, data).expect("sections");
    let symbols = sections.symbols(LittleEndian, data, object::elf::SHT_DYNSYM).expect("dynamic symbols");
    let versions = sections.versions(LittleEndian, data).expect("versions").expect("it has versions");
    let mut exports = BTreeSet::new();
    for (index, symbol) in symbols.enumerate() {
        let version = versions.version_index(LittleEndian, index);
        if symbol.is_undefined(LittleEndian) || version.is_hidden() || symbol.st_type() == object::elf::STT_NOTYPE {
            continue;
        }
        if let Ok(Some(version)) = versions.version(version.into()) {
            let name = symbol.name(LittleEndian, symbols.strings()).expect("a name");
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            exports.insert((text(name), text(version.name())));
        }
    }
    exports
}

/// The installed rdma-core is the detecting rank: what it exports, and in which version, is exported here.
#[test]
fn every_function_of_rdma_core_44_is_exported_with_its_version() {
    let ours = exports(&libraries().join("libflexio.so"));
    for name in ["libibverbs.so.1.14.44.0", "libmlx5.so.1.24.44.0", "librdmacm.so.1.3.44.0"] {
        let found = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"]
            .map(|folder| Path::new(folder).join(name))
            .into_iter()
            .find(|path| path.exists());
        let Some(library) = found else {
            skipped(format_args!("{name} is not installed (Debian 12: libibverbs1, ibverbs-providers, librdmacm1)"));
            continue;
        };
        // The versions' own names are exported, too.
        let theirs: Vec<_> = exports(&library).into_iter().filter(|(name, version)| name != version).collect();
        assert!(theirs.len() > 60, "{name}: {}", theirs.len());
        let missing: Vec<_> = theirs.iter().filter(|export| !ours.contains(export)).collect();
        assert!(missing.is_empty(), "{name} exports what libflexio.so does not: {missing:?}");
    }
}
