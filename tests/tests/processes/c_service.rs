//! Programs in C whose collectives service processes carry out: ranks and daemons are processes of their own, on
//! emulated cards that those of a host share. Without a daemon all go by the host, and say so. Skipped without a C
//! compiler; the tests say so on stderr.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use emu_config::{BridgeTable, Machine, PeerTable, ShareTable};
use flexcast_service::daemon::status::{Status, ask};
use flexcast_tests::examples::{Example, Rank, allgather, compile, compiler, free_tcp_port, free_udp_ports};

const BOUND: Duration = Duration::from_secs(120);
const HOSTS: u16 = 2;
const RANKS_PER_HOST: u16 = 2;
const RANKS: u16 = HOSTS * RANKS_PER_HOST;
const PROCESSES: u16 = 2;

fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("c_service").join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("the folder can be made");
    folder
}

/// The first of so many TCP ports in a row that nobody uses now.
fn free_tcp_ports(count: u16) -> u16 {
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let first = || TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port").port();
    (0..100)
        .map(|_| first())
        .find(|first| (0..count).all(|more| first.checked_add(more).is_some_and(is_free)))
        .expect("ports in a row")
}

fn secret(folder: &Path) -> PathBuf {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    let path = folder.join("secret");
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).expect("a file");
    writeln!(file, "{}", "5a".repeat(32)).expect("written");
    path
}

/// The daemon of a host, which has the host's card.
struct Daemon {
    socket: PathBuf,
    status: PathBuf,
    port: u16,
    process: Rank,
}

impl Daemon {
    fn start(example: &Example, folder: &Path, host: u16, udp: u16, secret: &Path) -> Self {
        let path = |end: &str| folder.join(format!("host{host}.{end}"));
        let (socket, status, port) = (path("card"), path("status"), free_tcp_ports(PROCESSES));
        let other = 1 - host;
        let peer = PeerTable { address: format!("127.0.0.1:{}", udp + other), first_card: other.into(), cards: 1 };
        let bridge = BridgeTable {
            listen: format!("127.0.0.1:{}", udp + host),
            peer: None,
            peer_timeout_ms: None,
            peers: vec![peer],
        };
        let machine = Machine {
            cards: Some(1),
            first_card: Some(host.into()),
            arm_functions: true,
            share: Some(ShareTable::at(socket.clone())),
            bridge: Some(bridge),
            ..Machine::default()
        };
        let config = path("toml");
        let text = format!(
            "device = \"mlx5_0_arm\"\nlibraries = {:?}\nlisten = \"127.0.0.1\"\nport = {port}\nprocesses = \
             {PROCESSES}\nsecret = {secret:?}\nstatus_socket = {status:?}\nlock_directory = {folder:?}\n",
            example.libraries
        );
        std::fs::write(&config, text).expect("written");
        let mut command = Command::new(&example.tool);
        let own = std::process::id().to_string();
        command.args(["service", flexcast_lab::service::processes::DAEMON_COMMAND, "--parent", &own, "--config"]);
        let machine = toml::to_string(&machine).expect("a description");
        command.arg(&config).env("FLEXCAST_MACHINE", format!("toml:{machine}"));
        let process = Rank::start(&mut command, folder, &format!("daemon-{host}"));
        Self { socket, status, port, process }
    }

    /// Its status, once something is so.
    fn until(&mut self, what: &str, is_so: impl Fn(&Status) -> bool) -> Status {
        let begun = Instant::now();
        loop {
            match ask(&self.status) {
                Ok(status) if is_so(&status) => return status,
                other => {
                    let text = self.process.printed();
                    assert!(!self.process.has_ended(), "{what}: the daemon has ended: {text}");
                    assert!(begun.elapsed() < BOUND, "{what} does not come: {other:?}; {text}");
                }
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn programs_in_c_have_service_processes_carry_out_their_collectives() {
    let Some(compiler) = compiler() else { return };
    let (folder, example) = (scratch("with"), allgather(true));
    let (program, secret) = (compile(compiler, "service", &folder), secret(&folder));
    let (udp, tcp) = (free_udp_ports(HOSTS), free_tcp_port());
    let mut daemons: Vec<Daemon> = (0..HOSTS).map(|host| Daemon::start(example, &folder, host, udp, &secret)).collect();
    daemons.iter_mut().for_each(|daemon| _ = daemon.until("its start", |_| true));
    let start = |rank: u16| {
        let daemon = &daemons[usize::from(rank / RANKS_PER_HOST)];
        let mut command = Command::new(&example.tool);
        command.args(["emu", "exec", "--attach"]).arg(&daemon.socket).arg("--libs").arg(&example.libraries).arg("--");
        command.arg(&program).args([&rank.to_string(), &RANKS.to_string(), &format!("127.0.0.1:{tcp}")]);
        command.arg(format!("127.0.0.1:{}", daemon.port)).arg(&secret);
        Rank::start(&mut command, &folder, &format!("rank-{rank}"))
    };
    let mut ranks: Vec<Rank> = (0..RANKS).map(start).collect();
    let ends: Vec<(bool, String)> = ranks.iter_mut().map(|rank| rank.end(BOUND)).collect();
    for (rank, (success, text)) in ends.iter().enumerate() {
        let line = format!("service: rank {rank} of {RANKS}: control 2 (as asked): equal");
        assert!(*success && text.contains(&line), "{ends:#?}");
    }
    let mut bindings = 0;
    for daemon in &mut daemons {
        let status = daemon.until("the end of all that it has", |status| {
            let left = |process: &flexcast_service::ProcessStatus| {
                process.now.programs + process.now.groups + process.now.keys + process.now.bound_keys
            };
            status.processes.iter().map(left).sum::<u64>() == 0
        });
        let sum = |value: fn(&flexcast_service::ProcessStatus) -> u64| status.processes.iter().map(value).sum::<u64>();
        assert!(sum(|process| process.counts.reads) > 0, "the card has read: {status:?}");
        assert_eq!(sum(|process| process.counts.wrong + process.counts.aliases_replaced), 0, "{status:?}");
        bindings += sum(|process| process.counts.bindings);
    }
    assert!(bindings > 0, "buffers were bound to keys");
}

#[test]
fn without_a_daemon_all_ranks_go_by_the_host_and_say_so() {
    let Some(compiler) = compiler() else { return };
    let (folder, example) = (scratch("without"), allgather(true));
    let (program, secret) = (compile(compiler, "service", &folder), secret(&folder));
    let (udp, tcp, nobody) = (free_udp_ports(RANKS), free_tcp_port(), free_tcp_ports(PROCESSES));
    let start = |rank: u16| {
        let mut command = Command::new(&example.tool);
        command.args(["emu", "exec", "--rank", &rank.to_string(), "--of", &RANKS.to_string()]);
        command.args(["--port-base", &udp.to_string(), "--libs"]).arg(&example.libraries).arg("--").arg(&program);
        command.args([&rank.to_string(), &RANKS.to_string(), &format!("127.0.0.1:{tcp}")]);
        command.arg(format!("127.0.0.1:{nobody}")).arg(&secret);
        Rank::start(&mut command, &folder, &format!("rank-{rank}"))
    };
    let mut ranks: Vec<Rank> = (0..RANKS).map(start).collect();
    let ends: Vec<(bool, String)> = ranks.iter_mut().map(|rank| rank.end(BOUND)).collect();
    for (rank, (success, text)) in ends.iter().enumerate() {
        let line =
            format!("service: rank {rank} of {RANKS}: control 0 (rank 0: no service process listens on 127.0.0.1:");
        assert!(*success && text.contains(&line) && text.contains("): equal"), "{ends:#?}");
    }
}
