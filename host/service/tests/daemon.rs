//! The program `flexcast-service`, with emulated cards behind the C libraries of the emulator: configuration, one
//! daemon for a card, status, metrics, signals.

#[allow(dead_code, unreachable_pub)] // Not every program needs all, and in none others do.
#[path = "../../../tests/src/processes.rs"]
mod processes;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use flexcast_proto::service::wire::{self, Body, Group, Hello, NO_CORE, Packet, Place, Role};
use flexcast_proto::service::{Blocks, ContextId, Datatype, Locality};
use flexcast_service::daemon::metrics::METRICS;
use flexcast_service::daemon::read_secret;
use flexcast_service::daemon::status::{State, Status, ask};
use flexcast_service::{Session, SessionError, SessionTiming, endpoint_of};
use flexio::{Access, HostBuffer, MemoryRegion, ProtectionDomain, Provider};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use processes::libraries;

/// Longest that anything here may take; it is far less.
const BOUND: Duration = Duration::from_secs(60);

fn until<T>(what: &str, poll: impl FnMut() -> Option<T>) -> T {
    processes::until(what, BOUND, poll)
}

fn free_ports() -> [u16; 3] {
    // All at once, so that they differ.
    let sockets = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));
    sockets.map(|socket| socket.local_addr().expect("bound").port())
}

/// A folder with a configuration and a secret.
struct Folder {
    folder: tempfile::TempDir,
    port: u16,
    metrics: u16,
}

impl Folder {
    fn new() -> Self {
        let [port, metrics, _] = free_ports();
        let this = Self { folder: tempfile::tempdir().expect("a folder"), port, metrics };
        this.secret("0f");
        this.configure("");
        this
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn secret(&self, pair: &str) {
        std::fs::write(self.path("secret"), pair.repeat(32)).expect("written");
        std::fs::set_permissions(self.path("secret"), std::fs::Permissions::from_mode(0o600)).expect("set");
    }

    fn configure(&self, more: &str) {
        let folder = self.folder.path().display();
        let (port, metrics) = (self.port, self.metrics);
        let text = format!(
            "device = \"mlx5_0_arm\"\nlisten = \"127.0.0.1\"\nport = {port}\nprocesses = 1\nsecret \
             = \"{folder}/secret\"\n\
             status_socket = \"{folder}/status\"\nlock_directory = \"{folder}\"\nmetrics \
             = \"127.0.0.1:{metrics}\"\n{more}"
        );
        std::fs::write(self.path("service.toml"), text).expect("written");
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_flexcast-service"));
        command.arg("--config").arg(self.path("service.toml")).stdin(Stdio::null());
        let card = self.path("card");
        let machine = format!("toml:cards = 1\narm_functions = true\n[share]\nsocket = {card:?}\n");
        command.env("FLEXCAST_MACHINE", machine).env("LD_LIBRARY_PATH", libraries());
        command
    }

    fn start(&self) -> Running {
        let log = std::fs::File::create(self.path("log")).expect("a file");
        let child = self.command().stdout(Stdio::null()).stderr(log).spawn().expect("it starts");
        let mut running = Running { child, log: self.path("log") };
        until("the start", || {
            if let Some(status) = running.child.try_wait().expect("a child") {
                panic!("it has ended with {status}: {}", running.log());
            }
            ask(&self.path("status")).ok()
        });
        running
    }

    fn status(&self) -> Status {
        ask(&self.path("status")).expect("a status")
    }
}

/// A program of ranks, which is a process of its own and uses the card of a daemon. See [`a_program_of_ranks`].
struct Ranks {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Ranks {
    /// One that connects to a port, by the card of a folder.
    fn start(folder: &Folder, port: u16) -> Self {
        let card = folder.path("card");
        let mut child = Command::new(std::env::current_exe().expect("the path of this program"))
            .args(["--exact", "a_program_of_ranks", "--ignored", "--nocapture", "--test-threads", "1"])
            .env("FLEXCAST_MACHINE", format!("toml:[attach]\nsocket = {card:?}\n"))
            .env("FLEXCAST_EMU_LIBS", libraries())
            .env("FLEXCAST_TEST_PORT", port.to_string())
            .env("FLEXCAST_TEST_SECRET", folder.path("secret"))
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program starts");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        Self { child, lines }
    }

    /// What it says next.
    fn says(&mut self) -> String {
        let answer = |line: std::io::Result<String>| Some(line.ok()?.split_once("= ")?.1.to_owned());
        self.lines.find_map(answer).expect("an answer")
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

struct Running {
    child: Child,
    log: PathBuf,
}

impl Running {
    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).expect("a log")
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).expect("it runs");
    }

    fn ended(&mut self) -> ExitStatus {
        until("its end", || self.child.try_wait().expect("a child"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

fn failed(output: &Output, words: &[&str]) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{text}");
    words.iter().for_each(|word| assert!(text.contains(word), "{word:?} is not in {text}"));
}

/// How the process at a port answers a HELLO.
fn greeted(port: u16) -> Option<Vec<u8>> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(BOUND)).expect("a bound");
    let mut bytes = Vec::new();
    let body = Body::Hello(Hello { role: Role::Rank, epoch: 1, nonce: [3; 32] });
    wire::encode(&Packet { context: ContextId { group: 0, collective: 0 }, body }, &mut bytes).expect("a message");
    stream.write_all(&bytes).ok()?;
    let mut head = vec![0; wire::HEADER_BYTES];
    stream.read_exact(&mut head).ok()?;
    let length = wire::length_of(&head).expect("a message");
    head.resize(length, 0);
    stream.read_exact(&mut head[wire::HEADER_BYTES..]).ok()?;
    Some(head)
}

#[test]
fn a_configuration_is_checked_without_a_card() {
    let folder = Folder::new();
    let check = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_flexcast-service"));
        command.arg("--check").arg("--config").arg(folder.path("service.toml")).output().expect("it starts")
    };
    let output = check();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 service processes for mlx5_0_arm"));
    folder.configure("[limits]\npeers = 0\n");
    failed(&check(), &["service.toml, line 10", "`limits.peers` is 0", "1 to 65536"]);
    folder.configure("[limit]\n");
    failed(&check(), &["unknown field `limit`", "limits"]);
    folder.configure("");
    std::fs::set_permissions(folder.path("secret"), std::fs::Permissions::from_mode(0o644)).expect("set");
    failed(&check(), &["secret", "0644", "chmod 600"]);
}

#[test]
fn a_daemon_reports_its_state_and_is_the_only_one_of_its_card() {
    let folder = Folder::new();
    let mut running = folder.start();
    let status = folder.status();
    assert_eq!((status.state, status.device.as_str(), status.processes.len()), (State::Serving, "mlx5_0_arm", 1));
    assert_eq!(status.pid, running.child.id());
    // Another one for the same card, at other ports.
    let other = Folder::new();
    let text = std::fs::read_to_string(other.path("service.toml")).expect("written");
    let lock = |path: &Path| format!("lock_directory = \"{}\"", path.display());
    let text = text.replace(&lock(other.folder.path()), &lock(folder.folder.path()));
    std::fs::write(other.path("service.toml"), text).expect("written");
    let output = other.command().output().expect("it starts");
    failed(
        &output,
        &["another flexcast-service serves card", &status.card, "mlx5_0_arm", &format!("process {}", status.pid)],
    );
    // A device that is not there.
    other.configure("");
    let text = std::fs::read_to_string(other.path("service.toml")).expect("written").replace("mlx5_0_arm", "mlx5_9");
    std::fs::write(other.path("service.toml"), text).expect("written");
    failed(&other.command().output().expect("it starts"), &["mlx5_9", "mlx5_0_arm"]);
    // What the metrics say.
    let greeting = greeted(folder.port).expect("a challenge");
    assert!(matches!(wire::decode(&greeting).expect("a message").body, Body::Challenge(_)));
    let text = until("a greeting that was given up", || {
        let text = metrics(folder.metrics);
        text.contains("greetings_refused_total{process=\"0\",reason=\"closed\"} 1\n").then_some(text)
    });
    assert!(text.contains("# TYPE flexcast_service_groups gauge\n"), "{text}");
    for metric in METRICS {
        let line =
            text.lines().find(|line| line.starts_with(&format!("flexcast_service_{}{{process=\"0\"}} ", metric.name)));
        let value = line.and_then(|line| line.rsplit(' ').next()).and_then(|value| value.parse::<u64>().ok());
        assert_eq!(value, Some(0), "{}", metric.name);
    }
    running.signal(Signal::SIGTERM);
    assert!(running.ended().success(), "{}", running.log());
    assert!(running.log().contains("stopped") && !folder.path("status").exists(), "{}", running.log());
    // A new one takes the card, also where the last one has left its socket behind.
    drop(std::os::unix::net::UnixListener::bind(folder.path("status")).expect("a socket"));
    let mut again = folder.start();
    again.signal(Signal::SIGTERM);
    assert!(again.ended().success(), "{}", again.log());
}

fn metrics(port: u16) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    stream.set_read_timeout(Some(BOUND)).expect("a bound");
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n").expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 200 OK") && head.contains("text/plain; version=0.0.4"), "{head}");
    body.to_owned()
}

#[test]
fn signals_reload_and_stop() {
    let folder = Folder::new();
    let mut running = folder.start();
    // What can change does, and what cannot is named.
    folder.secret("1e");
    folder.configure(
        "log = \"debug\"\n[times]\nheartbeat_ms = 77\nstop_timeout_ms = 60000\n[limits]\nkeys = 5\ngroups = 9\n",
    );
    running.signal(Signal::SIGHUP);
    let status = until("other limits", || Some(folder.status()).filter(|status| status.limits.keys == 5));
    assert_eq!((status.times.heartbeat_ms, status.limits.groups), (77, 64));
    assert!(
        running.log().contains("`limits.groups` stays 64 until the daemon is restarted, and is not 9"),
        "{}",
        running.log()
    );
    // One that cannot be used changes nothing.
    folder.configure("[limits]\nkeys = 0\n");
    running.signal(Signal::SIGHUP);
    until("a complaint", || running.log().contains("`limits.keys` is 0").then_some(()));
    assert_eq!(folder.status().limits.keys, 5);
    // Nothing is under way: it ends at once, although it would wait for a minute.
    running.signal(Signal::SIGTERM);
    assert!(running.ended().success(), "{}", running.log());
    assert!(ask(&folder.path("status")).is_err_and(|error| error.to_string().contains("no flexcast-service answers")));
}

/// Whoever asks and does not take the answer keeps nobody waiting.
#[test]
fn silent_questions_keep_nobody_waiting() {
    let folder = Folder::new();
    let mut running = folder.start();
    let idle = [(); 5].map(|()| UnixStream::connect(folder.path("status")).expect("it listens"));
    let silent = [(); 5].map(|()| TcpStream::connect(("127.0.0.1", folder.metrics)).expect("it listens"));
    let slow = [(); 5].map(|()| TcpStream::connect(("127.0.0.1", folder.port)).expect("it listens"));
    assert_eq!(folder.status().state, State::Serving);
    let greeting = greeted(folder.port).expect("a challenge");
    assert!(matches!(wire::decode(&greeting).expect("a message").body, Body::Challenge(_)));
    running.signal(Signal::SIGTERM);
    assert!(running.ended().success(), "{}", running.log());
    drop((idle, silent, slow));
}

/// Two ranks of a group, of which one calls an Alltoallv: it does not end.
#[test]
#[ignore = "a process that the other tests start: cargo test -p flexcast-service --test daemon"]
fn a_program_of_ranks() {
    let of = |name| std::env::var(name).expect("a variable");
    let provider = Provider::from_folder(libraries()).expect("libraries");
    let pd = ProtectionDomain::new(&provider.open("mlx5_0").expect("the card")).expect("a domain");
    let address = ([127, 0, 0, 1], of("FLEXCAST_TEST_PORT").parse().expect("a port")).into();
    let secret = read_secret(of("FLEXCAST_TEST_SECRET").as_ref()).expect("a secret");
    let endpoint = endpoint_of(address);
    let timing = SessionTiming { connect: BOUND, greeting: BOUND };
    let begun = Instant::now();
    let mut session = match Session::connect(&pd, endpoint, &secret, timing) {
        Ok(session) => session,
        Err(error @ SessionError::Absent { .. }) => {
            // Far less than the bound, which would be waited for if the system did not say that nobody listens.
            println!("= absent {} {error}", begun.elapsed() < BOUND / 2);
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let client = session.client();
    let region = MemoryRegion::register(&pd, HostBuffer::zeroed(64).expect("memory"), access).expect("registered");
    let memory = client.share(region).expect("shared");
    let place = Place { locality: Locality { host: 0, socket: 0 }, core: NO_CORE, process: endpoint };
    for rank in [0, 1] {
        client.join(&Group::new(1, 1, rank, 1, &[place; 2]).expect("a group")).expect("sent");
    }
    let key = until("the group", || {
        session.progress().expect("it goes on");
        let client = session.client();
        let key = client.key(memory).expect("a key");
        let joined = [0, 1].map(|rank| client.has_joined(1, rank).expect("taken")) == [true; 2];
        key.filter(|_| joined)
    });
    let datatype = Datatype { size_bytes: 1, extent_bytes: 1 };
    let part = |at| Blocks { address: key.address + at, key: key.key, datatype, counts: &[8, 8], displs: &[0, 8] };
    let context = session.client().alltoallv(1, 0, &part(0), &part(32)).expect("called");
    println!("= called");
    let end = until("the end", || {
        _ = session.progress();
        session.end()
    });
    session.progress().expect("a card that is gone with its daemon is no error of its own");
    let ended = session.client().end(context, 0).expect_err("the daemon has gone before");
    println!("= {end:?}: {ended}");
}

#[test]
fn a_second_signal_ends_a_daemon_at_once_while_a_collective_is_under_way() {
    let folder = Folder::new();
    folder.configure("[times]\nstop_timeout_ms = 3600000\n");
    let mut running = folder.start();
    let mut ranks = Ranks::start(&folder, folder.port);
    assert_eq!(ranks.says(), "called");
    until("the call", || (folder.status().processes[0].now.collectives == 1).then_some(()));
    running.signal(Signal::SIGTERM);
    until("a daemon that stops", || (folder.status().state == State::Stopping).then_some(()));
    // It waits for the collective, for an hour at most.
    assert_eq!(folder.status().processes[0].now.programs, 1);
    assert!(running.child.try_wait().expect("a child").is_none(), "{}", running.log());
    running.signal(Signal::SIGTERM);
    assert!(running.ended().success(), "{}", running.log());
    assert!(running.log().contains("asked to stop once more"), "{}", running.log());
    // Nobody has said goodbye.
    assert_eq!(ranks.says(), "Died: the service process is gone: start it anew, and make a new connection to it");
    // Its place is free: the socket of the card, that of the status, and the ports.
    let mut again = folder.start();
    again.signal(Signal::SIGTERM);
    assert!(again.ended().success(), "{}", again.log());
}

/// A rank whose card is there, but no daemon where it expects one.
#[test]
fn a_rank_learns_at_once_that_no_daemon_listens() {
    let folder = Folder::new();
    let _running = folder.start();
    let [nobody, _, _] = free_ports();
    let answer = Ranks::start(&folder, nobody).says();
    let expected = format!("absent true no service process listens on 127.0.0.1:{nobody}");
    assert!(answer.starts_with(&expected) && answer.contains("start flexcast-service"), "{answer}");
}
