//! The program `flexcast-service`, with emulated cards behind the C libraries of the emulator: configuration, one daemon for a card, status, metrics, signals.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use flexcast_proto::service::ContextId;
use flexcast_proto::service::wire::{self, Body, Hello, Packet, Role};
use flexcast_service::daemon::metrics::METRICS;
use flexcast_service::daemon::status::{State, Status, ask};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Longest that anything here may take; it is far less.
const BOUND: Duration = Duration::from_secs(60);

/// The emulator's libraries, as tests/src/libs.rs has them.
fn libraries() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        if let Some(folder) = std::env::var_os("FLEXCAST_EMU_LIBS") {
            return folder.into();
        }
        let output = Command::new(env!("CARGO"))
            .args(["run", "--quiet", "--package", "xtask", "--", "build-emu-libs", "--profile", "dev"])
            .output()
            .expect("cargo can be started");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let folder = String::from_utf8(output.stdout).expect("a path in UTF-8");
        PathBuf::from(folder.lines().last().expect("it prints the folder"))
    })
}

fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < BOUND, "{what} does not come");
        std::thread::sleep(Duration::from_millis(5));
    }
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
            "device = \"mlx5_0_arm\"\nlisten = \"127.0.0.1\"\nport = {port}\nprocesses = 1\nsecret = \"{folder}/secret\"\n\
             status_socket = \"{folder}/status\"\nlock_directory = \"{folder}\"\nmetrics = \"127.0.0.1:{metrics}\"\n{more}"
        );
        std::fs::write(self.path("service.toml"), text).expect("written");
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_flexcast-service"));
        command.arg("--config").arg(self.path("service.toml")).stdin(Stdio::null());
        command.env("FLEXCAST_MACHINE", "toml:arm_functions = true").env("LD_LIBRARY_PATH", libraries());
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

fn failed(output: &Output, told: &[&str]) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{text}");
    told.iter().for_each(|word| assert!(text.contains(word), "{word:?} is not in {text}"));
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
fn a_daemon_tells_of_itself_and_is_the_only_one_of_its_card() {
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
