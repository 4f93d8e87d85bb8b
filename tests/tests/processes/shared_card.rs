//! One emulated card that several processes of a computer use: a process on its Arm function has it, those of the host
//! come by a socket.

pub(crate) mod worker;

use std::io::{Read as _, Write as _};
use std::net::UdpSocket;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use flexcast_tests::harness::skipped;
use worker::Worker;

/// The place of a test's socket, in a folder that is gone with it.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn socket(&self) -> PathBuf {
        self.0.path().join("card.sock")
    }

    fn server(&self) -> String {
        format!("cards = 1\narm_functions = true\n[share]\nsocket = {:?}\n", self.socket())
    }

    fn client(&self) -> String {
        format!("[attach]\nsocket = {:?}\n", self.socket())
    }
}

/// A process with the card, open on the Arm cores' function.
fn server(place: &Place) -> Worker {
    let mut server = Worker::start(&place.server());
    server.does("open mlx5_0_arm");
    server
}

fn client(place: &Place) -> Worker {
    let mut client = Worker::start(&place.client());
    client.does("open mlx5_0");
    client
}

fn word(text: &str, at: usize) -> String {
    text.split_whitespace().nth(at).expect("so many words").to_owned()
}

/// Connects a new queue pair of one process with a new one of another: both are number 0 if they are the first.
fn connect(first: &mut Worker, second: &mut Worker) {
    let ends = [first.does("pair"), second.does("pair")];
    for (own, peer, worker) in [(0, 1, first), (1, 0, second)] {
        let number = word(&ends[own], 0);
        worker.does(&format!(
            "connect {number} {} {} {}",
            word(&ends[peer], 1),
            word(&ends[peer], 2),
            word(&ends[peer], 3)
        ));
    }
}

/// Memory of a process, of so many bytes with a seed: its number, and where peers find it.
fn region(worker: &mut Worker, len: usize, seed: u64) -> (String, String) {
    let answer = worker.does(&format!("region {len} {seed}"));
    (word(&answer, 0), format!("{} {}", word(&answer, 1), word(&answer, 2)))
}

#[test]
#[ignore = "a process that the other tests start: cargo test -p flexcast-tests --test processes shared_card::"]
fn a_process_with_a_card() {
    worker::work();
}

#[test]
fn two_processes_write_read_and_send_over_the_card_of_a_third() {
    let place = Place::new();
    let mut server = server(&place);
    assert_eq!(server.does("devices").split(',').count(), 2, "the host's function and that of the Arm cores");
    let (mut first, mut second) = (client(&place), client(&place));
    let seen = first.does("devices");
    assert!(seen.starts_with("mlx5_0 ") && !seen.contains("arm"), "{seen}");
    assert!(first.says("open mlx5_0_arm").starts_with("failed"));
    first.does("open mlx5_0");
    connect(&mut first, &mut second);
    let ((own, _), (theirs, at)) = (region(&mut first, 100_000, 1), region(&mut second, 100_000, 2));
    assert_eq!(first.does(&format!("write 0 {own} 100 9000 {at}")), "1 done");
    assert_eq!(second.does(&format!("holds {theirs} 0 9000 1 100")), "true");
    assert_eq!(second.does(&format!("holds {theirs} 9000 91000 2 9000")), "true");
    assert_eq!(first.does(&format!("read 0 {own} 0 100000 {at}")), "1 done");
    assert_eq!(first.does(&format!("holds {own} 9000 91000 2 9000")), "true");
    let (fresh, _) = region(&mut first, 5000, 3);
    second.does(&format!("receive 0 {theirs} 0 5000"));
    first.does(&format!("send 0 {fresh} 0 5000"));
    assert_eq!(second.does("wait 0"), "1 done");
    assert_eq!(second.does(&format!("holds {theirs} 0 5000 3 0")), "true");
    // What they close is closed, and the card is there for more.
    first.does("close");
    second.does("close");
    connect(&mut first, &mut second);
}

/// The card reads and writes memory of processes that are not run.
#[test]
fn the_card_moves_memory_of_stopped_processes_by_alias_keys() {
    let place = Place::new();
    let mut server = server(&place);
    let (mut first, mut second) = (client(&place), client(&place));
    let [(from, _), (to, _)] = [region(&mut first, 300_000, 5), region(&mut second, 300_000, 6)];
    let exports = [first.does(&format!("export {from}")), second.does(&format!("export {to}"))];
    let [source, target] = exports.map(|export| server.does(&format!("alias {export}")));
    let ends = [server.does("pair"), server.does("pair")];
    for (own, peer) in [(0, 1), (1, 0)] {
        let end = |at| word(&ends[peer], at);
        server.does(&format!("connect {own} {} {} {}", end(1), end(2), end(3)));
    }
    [&first, &second].into_iter().for_each(Worker::stop);
    let read = format!("read 0 {} 0 300000 {} {}", word(&target, 0), word(&source, 1), word(&source, 2));
    assert_eq!(server.does(&read), "1 done");
    [&first, &second].into_iter().for_each(Worker::go_on);
    assert_eq!(second.does(&format!("holds {to} 0 300000 5 0")), "true");
    assert_eq!(first.does(&format!("holds {from} 0 300000 5 0")), "true");
}

#[test]
fn a_process_that_is_killed_takes_its_keys_along_and_nobody_else() {
    let place = Place::new();
    let mut server = server(&place);
    let (mut first, mut second, mut third) = (client(&place), client(&place), client(&place));
    connect(&mut first, &mut second);
    connect(&mut second, &mut third);
    let [(own, _), (kept, at_kept)] = [region(&mut second, 4096, 1), region(&mut third, 4096, 2)];
    let (doomed, at_doomed) = region(&mut first, 4096, 3);
    let export = first.does(&format!("export {doomed}"));
    let alias = server.does(&format!("alias {export}"));
    let ends = [server.does("pair"), server.does("pair")];
    for (own, peer) in [(0, 1), (1, 0)] {
        let end = |at| word(&ends[peer], at);
        server.does(&format!("connect {own} {} {} {}", end(1), end(2), end(3)));
    }
    let (here, _) = region(&mut server, 4096, 4);
    let by_alias = format!("read 0 {here} 0 4096 {} {}", word(&alias, 1), word(&alias, 2));
    assert_eq!(server.does(&by_alias), "1 done");
    first.kill();
    // The system notifies the server of its end, a moment later.
    let begun = Instant::now();
    while server.says(&format!("alias {export}")).starts_with(|digit: char| digit.is_ascii_digit()) {
        assert!(begun.elapsed() < Duration::from_secs(20), "its keys are there still");
    }
    let refused = server.says(&by_alias);
    assert!(refused.starts_with("failed") && refused.contains("access"), "{refused}");
    let lost = second.says(&format!("write 0 {own} 0 4096 {at_doomed}"));
    assert!(lost.starts_with("failed") && lost.contains("retr"), "{lost}");
    assert_eq!(second.does(&format!("write 1 {own} 0 4096 {at_kept}")), "1 done");
    assert_eq!(third.does(&format!("holds {kept} 0 4096 1 0")), "true");
    // Another one takes its place.
    let mut fourth = client(&place);
    connect(&mut third, &mut fourth);
    let (_, at) = region(&mut fourth, 4096, 9);
    assert_eq!(third.does(&format!("read 1 {kept} 0 4096 {at}")), "1 done");
    assert_eq!(third.does(&format!("holds {kept} 0 4096 9 0")), "true");
}

#[test]
fn processes_of_two_hosts_reach_one_another_by_their_cards() {
    let places = [Place::new(), Place::new()];
    let sockets = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").expect("a port"));
    let ports = sockets.each_ref().map(|socket| socket.local_addr().expect("bound").port());
    drop(sockets);
    let mut servers = [0, 1].map(|host| {
        let bridge =
            format!("[bridge]\nlisten = \"127.0.0.1:{}\"\npeer = \"127.0.0.1:{}\"\n", ports[host], ports[1 - host]);
        Worker::start(&format!("first_card = {host}\n{}{bridge}", places[host].server()))
    });
    servers.iter_mut().for_each(|server| _ = server.does("open mlx5_0_arm"));
    let [mut first, mut second] = places.each_ref().map(client);
    connect(&mut first, &mut second);
    let ((own, _), (theirs, at)) = (region(&mut first, 50_000, 1), region(&mut second, 50_000, 2));
    assert_eq!(first.does(&format!("write 0 {own} 0 25000 {at}")), "1 done");
    assert_eq!(second.does(&format!("holds {theirs} 0 25000 1 0")), "true");
    assert_eq!(first.does(&format!("read 0 {own} 0 50000 {at}")), "1 done");
    assert_eq!(first.does(&format!("holds {own} 25000 25000 2 25000")), "true");
}

/// Calls of those that are left fail, name the socket and do not hang.
#[test]
fn the_end_or_stop_of_the_process_with_the_card_is_reported() {
    let place = Place::new();
    let server = server(&place);
    let mut first = client(&place);
    first.does("pair");
    server.kill();
    for line in ["region 4096 1", "pair", "wait 0"] {
        let answer = first.says(line);
        assert!(answer.starts_with("failed"), "{line}: {answer}");
    }
    drop(first);
    // Another one takes the place that it left, and one that is stopped is not waited for longer than the time that is
    // allowed.
    let server = self::server(&place);
    let mut patient = Worker::start_with(&place.client(), &[("FLEXCAST_PEER_TIMEOUT_MS", "300")]);
    patient.does("open mlx5_0");
    server.stop();
    let answer = patient.says("region 4096 1");
    assert!(answer.starts_with("failed"), "{answer}");
    server.go_on();
    assert!(patient.says("region 4096 1").starts_with("failed"), "a process that was given up stays so");
    client(&place).does("region 4096 1");
}

#[test]
fn two_processes_cannot_share_at_one_socket_and_nobody_attaches_to_none() {
    let place = Place::new();
    let _server = server(&place);
    let mut second = Worker::start(&place.server());
    assert!(second.says("open mlx5_0").starts_with("failed"));
    let nowhere = Place::new();
    let mut alone = Worker::start_with(&nowhere.client(), &[("FLEXCAST_PEER_TIMEOUT_MS", "50")]);
    assert!(alone.says("open mlx5_0").starts_with("failed"));
}

fn stranger(path: &Path, bytes: &[u8]) -> Vec<u8> {
    let mut stream = UnixStream::connect(path).expect("the socket");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a bound");
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    answer
}

#[test]
fn what_is_no_request_harms_nobody() {
    let place = Place::new();
    let _server = server(&place);
    let mut first = client(&place);
    let greeting = |version: u32| [&b"FXCARD\0\0"[..], &version.to_le_bytes(), &[0; 4]].concat();
    let refused = |answer: &[u8]| u32::from_le_bytes(answer[12..16].try_into().expect("a code"));
    assert_eq!(refused(&stranger(&place.socket(), b"GET / HTTP/1.1\r\n\r\n")), 1);
    assert_eq!(refused(&stranger(&place.socket(), &greeting(2))), 1, "another version");
    assert_eq!(refused(&stranger(&place.socket(), b"FX")), 1, "cut off");
    let message = |text: &[u8]| [&greeting(1)[..], &(text.len() as u32).to_le_bytes(), text].concat();
    for bad in [
        message(b"nonsense"),
        message(b"[{\"card\":0,\"function\":\"host\"},\"Nothing\"]"),
        message(&[b'['; 100_000]),
        [&greeting(1)[..], &u32::MAX.to_le_bytes()].concat(),
        message(b"")[..18].to_vec(),
    ] {
        let answer = stranger(&place.socket(), &bad);
        assert_eq!((answer.len(), refused(&answer)), (16, 0), "greeted, and cut off");
    }
    // A request in time, but before the memory was shown: refused in words.
    let early = stranger(&place.socket(), &message(b"[{\"card\":0,\"function\":\"host\"},\"AllocPd\"]"));
    assert!(String::from_utf8_lossy(&early[20..]).contains("the first request must show"), "{early:?}");
    let nowhere =
        stranger(&place.socket(), &message(b"[{\"card\":0,\"function\":\"host\"},{\"Open\":{\"probe\":16}}]"));
    assert!(String::from_utf8_lossy(&nowhere[20..]).contains("cannot read this one's memory"), "{nowhere:?}");
    first.does("region 4096 1");
    client(&place).does("pair");
}

/// A process that speaks for itself, and not by the library.
struct Raw(UnixStream);

impl Raw {
    fn new(path: &Path) -> Self {
        // What the library has in its memory for this.
        static PROBE: [u8; 16] = *b"flexcast attach\0";
        let mut stream = UnixStream::connect(path).expect("the socket");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a bound");
        stream.write_all(&[&b"FXCARD\0\0"[..], &1_u32.to_le_bytes(), &[0; 4]].concat()).expect("a greeting");
        stream.read_exact(&mut [0; 16]).expect("an answer");
        let mut this = Self(stream);
        let opened = this.says(&format!("{{\"Open\":{{\"probe\":{}}}}}", PROBE.as_ptr() as u64));
        assert!(opened.starts_with("{\"Cards\":"), "{opened}");
        this
    }

    fn send(&mut self, request: &str) {
        let text = format!("[{{\"card\":0,\"function\":\"host\"}},{request}]");
        let message = [&(text.len() as u32).to_le_bytes(), text.as_bytes()].concat();
        self.0.write_all(&message).expect("a process that listens");
    }

    fn says(&mut self, request: &str) -> String {
        self.send(request);
        let mut len = [0; 4];
        self.0.read_exact(&mut len).expect("an answer");
        let mut answer = vec![0; u32::from_le_bytes(len) as usize];
        self.0.read_exact(&mut answer).expect("an answer");
        String::from_utf8(answer).expect("a text")
    }
}

/// Numbers of objects are easily guessed, and lead nowhere.
#[test]
fn what_one_process_has_made_is_not_anothers() {
    let place = Place::new();
    let _server = server(&place);
    let (mut first, mut second) = (client(&place), client(&place));
    connect(&mut first, &mut second);
    let qpn = word(&first.does("pair"), 1);
    let (own, _) = region(&mut first, 4096, 1);
    let (theirs, at) = region(&mut second, 4096, 2);
    let key = word(&at, 1);
    let addr = word(&at, 0);
    let mut raw = Raw::new(&place.socket());
    let mut refused = |request: String| {
        let answer = raw.says(&request);
        assert!(answer.contains("this process has no"), "{request}: {answer}");
    };
    for pd in 0..32 {
        refused(format!("{{\"DeallocPd\":{{\"pd\":{pd}}}}}"));
        refused(format!(
            "{{\"RegisterRegion\":{{\"pd\":{pd},\"addr\":4096,\"len\":4096,\"access\":1,\"iova\":4096,\
             \"on_demand\":false}}}}"
        ));
    }
    refused(format!("{{\"DeregisterRegion\":{{\"key\":{key}}}}}"));
    refused(format!("{{\"DestroyWindow\":{{\"key\":{key}}}}}"));
    for number in 0x800..0x860 {
        refused(format!("{{\"ArmSrq\":{{\"srqn\":{number},\"limit\":1}}}}"));
        refused(format!("{{\"DestroySrq\":{{\"srqn\":{number}}}}}"));
        refused(format!("{{\"ModerateCq\":{{\"cqn\":{number},\"count\":1,\"period_us\":1}}}}"));
    }
    refused(format!("{{\"DestroyDevx\":{{\"kind\":\"Mkey\",\"number\":{key}}}}}"));
    refused(format!("{{\"QueryQp\":{{\"qpn\":{qpn}}}}}"));
    refused(format!("{{\"DestroyQp\":{{\"qpn\":{qpn}}}}}"));
    (0..0x1000).for_each(|cqn| refused(format!("{{\"DestroyCq\":{{\"cqn\":{cqn}}}}}")));
    (1..64).for_each(|id| refused(format!("{{\"DeregisterUmem\":{{\"id\":{id},\"addr\":{addr},\"len\":4096}}}}")));
    // Doorbells have no answer, and do nothing either.
    raw.send(&format!("{{\"Ring\":{{\"qpn\":{qpn},\"counter\":7,\"pushed\":false}}}}"));
    let queried = raw.says(
        "{\"Devx\":{\"call\":{\"Query\":{\"kind\":\"Mkey\",\"number\":1}},\"input\":[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0],\"answer_bytes\":16}}",
    );
    assert!(queried.contains("this process has no object"), "{queried}");
    assert_eq!(first.does(&format!("write 0 {own} 0 4096 {at}")), "1 done");
    assert_eq!(second.does(&format!("holds {theirs} 0 4096 1 0")), "true");
}

/// Prints what the socket answers to a process of another user.
#[test]
#[ignore = "a process that the test below starts: cargo test -p flexcast-tests --test processes shared_card::"]
fn a_process_of_another_user() {
    let socket = std::env::var_os("FLEXCAST_TEST_SOCKET").expect("a socket");
    let answer = stranger(Path::new(&socket), &[&b"FXCARD\0\0"[..], &1_u32.to_le_bytes(), &[0; 4]].concat());
    println!("answered {}", answer[12]);
}

#[test]
fn processes_of_other_users_are_refused() {
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::process::CommandExt as _;
    const NOBODY: u32 = 65_534;
    if !nix::unistd::Uid::effective().is_root() {
        skipped("only root can start a process of another user");
        return;
    }
    let place = Place::new();
    let _server = server(&place);
    // Whatever the socket's own permissions let through.
    for path in [place.0.path(), &place.socket()] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).expect("the test's own");
    }
    let program = place.0.path().join("program");
    std::fs::copy(std::env::current_exe().expect("the path of this program"), &program).expect("a copy for everybody");
    let output = std::process::Command::new(program)
        .args(["--exact", "shared_card::a_process_of_another_user", "--ignored", "--nocapture"])
        .env("FLEXCAST_TEST_SOCKET", place.socket())
        .current_dir("/")
        .uid(NOBODY)
        .output()
        .expect("the program starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("answered 3"), "{text}{}", String::from_utf8_lossy(&output.stderr));
    client(&place).does("pair");
}
