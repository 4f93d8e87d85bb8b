//! Networks as they are found: ten environments, in each of which every byte is right, and what is wrong with the
//! network is said.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use flexcast::bootstrap::{Secret, StoreConfig, TcpStore};
use flexcast::{Algorithm, Choice, Communicator, Config, Endpoint, Kind, MulticastArrival, Tuning, UdpOptions};
use flexcast_tests::examples::Rank;
use flexcast_tests::hosts::{Hosts, INTERFACE, Snooping, VLAN_INTERFACE, Wiring, address, address_v6};

use super::{BOUND, clean, scratch};

/// Says which rank a process is, where the store is, and how many operations there are, or 0 for a test of the network:
/// `rank,address,operations`.
const CALLS: &str = "FLEXCAST_TEST_CALLS";
/// Says how many milliseconds a rank waits between its second operation and the next.
const PAUSE: &str = "FLEXCAST_TEST_PAUSE";
const RANKS: u32 = 3;
/// Bytes of each rank's block.
const BYTES: usize = 200_000;
/// Operations in a network that is as it should be, and in one whose multicast is lost.
const FEW: u32 = 10;
const MANY: u32 = 30;
/// The port of a job's store.
const PORT: u16 = 20_200;

/// What a rank has found.
#[derive(Clone, Debug, Default)]
struct Found {
    /// Median time of an operation.
    median_us: f64,
    /// Operations that went by multicast, and that did not since it did not arrive.
    multicast: u32,
    without: u32,
    repaired_chunks: u64,
    text: String,
}

/// What ranks contribute.
fn filled(rank: u32, turn: u32) -> Vec<u8> {
    let mut state = u64::from(rank) << 32 | u64::from(turn) | 1 << 63;
    let step = || {
        state = state.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23);
        state
    };
    std::iter::repeat_with(step).take(BYTES / 8).flat_map(u64::to_le_bytes).collect()
}

/// Multicast for all lengths, as a file says it that `flexcast tune` writes.
fn tuned() -> flexcast::Result<Tuning> {
    let (operation, algorithm) = (Kind::Allgather, Algorithm::Multicast);
    Tuning::new(vec![Choice { operation, ranks: RANKS, bytes: u64::MAX, algorithm }])
}

/// A rank, if this process is to be one.
pub(crate) fn main() {
    let Ok(task) = std::env::var(CALLS) else { return };
    let mut words = task.split(',');
    let mut word = || words.next().expect("rank,address,operations");
    let (rank, store, operations): (u32, _, u32) =
        (word().parse().expect("a rank"), word().to_owned(), word().parse().expect("operations"));
    tracing_subscriber::fmt().with_writer(std::io::stdout).with_ansi(false).without_time().init();
    let result = if operations == 0 { check(rank, &store) } else { calls(rank, &store, operations) };
    match result {
        Ok(found) => say(&found),
        Err(error) => say(&format!("failed: {error}")),
    }
}

fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

/// Meets the other ranks, with a secret: without one a warning says that the key goes in clear.
fn meet(rank: u32, store: &str, timeout: Duration) -> Result<TcpStore, Box<dyn std::error::Error>> {
    let secret = Secret::new(b"thirty-two bytes that nobody draws")?;
    Ok(TcpStore::join(StoreConfig { timeout, ..StoreConfig::new(rank, RANKS, store) }.secret(Some(secret)))?)
}

fn calls(rank: u32, store: &str, operations: u32) -> Result<String, Box<dyn std::error::Error>> {
    let mut store = meet(rank, store, Duration::from_secs(20))?;
    let card = Endpoint::udp(&UdpOptions::from_env()?)?;
    let patient = Duration::from_secs(20);
    let config = Config::for_endpoint(&card).barrier_timeout(patient).recovery_timeout(patient).tuning(Some(tuned()?));
    let communicator = Communicator::create(&card, &mut store, config)?;
    let (mut times, mut found) = (Vec::new(), Found::default());
    let pause = std::env::var(PAUSE).map_or(Ok(0), |text| text.parse())?;
    for turn in 0..operations {
        if turn == 2 {
            std::thread::sleep(Duration::from_millis(pause));
        }
        let mut send = card.buffer(BYTES)?;
        send.write(0, &filled(rank, turn))?;
        let receive = card.buffer(BYTES * RANKS as usize)?;
        let begun = Instant::now();
        let done = communicator.allgather(send, receive)?.wait().map_err(|failed| failed.error)?;
        times.push(begun.elapsed());
        let expected: Vec<u8> = (0..RANKS).flat_map(|rank| filled(rank, turn)).collect();
        if done.receive.to_vec()? != expected {
            return Err(format!("WRONG BYTES in operation {turn}").into());
        }
        let decision = done.report.decision;
        found.multicast += u32::from(decision.algorithm() == Algorithm::Multicast);
        found.without += u32::from(decision.lost_multicast().is_some());
        found.repaired_chunks += done.report.recovered_chunks;
    }
    times.sort_unstable();
    let median_us = times[times.len() / 2].as_secs_f64() * 1e6;
    Ok(format!("found: {median_us} {} {} {}", found.multicast, found.without, found.repaired_chunks))
}

/// Tests the network; the pairs between which something does not arrive.
fn check(rank: u32, store: &str) -> Result<String, Box<dyn std::error::Error>> {
    let mut store = meet(rank, store, BOUND / 2)?;
    let card = Endpoint::udp(&UdpOptions::from_env()?)?;
    let interface = card.interface().ok_or("an interface")?;
    let mut text = "checked:".to_owned();
    for arrival in interface.check_multicast(&mut store, Duration::from_millis(500))? {
        let MulticastArrival { from, to, sent, short, long, .. } = arrival;
        if !arrival.is_right() {
            let few = |count: u32| if 2 * count > sent { "come" } else { "lost" };
            write!(text, " {from}-{to} short {} long {};", few(short), few(long))?;
        }
    }
    Ok(text)
}

/// What the output of a rank says.
fn parse(text: String) -> Found {
    let line = text.lines().find_map(|line| line.split_once("found: ")).unwrap_or_else(|| panic!("{text}"));
    let words: Vec<f64> = line.1.split(' ').filter_map(|word| word.parse().ok()).collect();
    let [median_us, multicast, without, repaired] = words[..] else { panic!("{text}") };
    let (multicast, without, repaired_chunks) = (multicast as u32, without as u32, repaired as u64);
    Found { median_us, multicast, without, repaired_chunks, text }
}

/// A job on hosts.
struct Job<'j> {
    hosts: &'j Hosts,
    name: &'j str,
    port: u16,
    store: String,
    interface: &'j dyn Fn(u32) -> String,
    operations: u32,
    variables: &'j [(&'j str, &'j str)],
}

impl<'j> Job<'j> {
    fn new(hosts: &'j Hosts, name: &'j str) -> Self {
        let (interface, variables): (&dyn Fn(u32) -> String, _) = (&|_| INTERFACE.to_owned(), &[]);
        Self { hosts, name, port: PORT, store: address(0), interface, operations: FEW, variables }
    }

    fn start(&self) -> Vec<Rank> {
        let folder = scratch(&format!("networks-{}", self.name));
        let program = std::env::current_exe().expect("the path of this program");
        let of = |rank: u32| {
            let mut command = self.hosts.on(rank, &program);
            command.args(["--exact", "networks::a_rank_on_a_network", "--nocapture", "--test-threads", "1"]);
            command.env(CALLS, format!("{rank},{}:{},{}", self.store, self.port, self.operations));
            command.env("FLEXCAST_INTERFACE", (self.interface)(rank)).envs(self.variables.iter().copied());
            Rank::start(&mut command, &folder, &format!("rank-{rank}"))
        };
        (0..RANKS).map(of).collect()
    }

    fn end(&self, mut ranks: Vec<Rank>) -> Vec<Found> {
        let found = ranks.iter_mut().map(|rank| parse(rank.end(BOUND).1)).collect();
        clean(&format!("networks-{}", self.name));
        found
    }

    fn run(&self) -> Vec<Found> {
        self.end(self.start())
    }
}

/// Lines of the log of all ranks that have some words.
fn lines<'f>(found: &'f [Found], words: &str) -> Vec<&'f str> {
    found.iter().flat_map(|found| found.text.lines()).filter(|line| line.contains(words)).collect()
}

/// Everything went by multicast, and nothing is said.
fn all_multicast(found: &[Found]) {
    assert!(found.iter().all(|found| found.multicast == FEW), "{found:#?}");
    assert_eq!(lines(found, "WARN"), [""; 0], "{found:#?}");
}

/// Operations have left multicast, alike on all ranks, and one rank says why, once.
fn left_multicast(found: &[Found]) {
    assert!(
        found.iter().all(|found| found.multicast < MANY / 2 && found.multicast + found.without == MANY),
        "{found:#?}"
    );
    assert!(found.iter().all(|other| (other.multicast, other.without) == (found[0].multicast, found[0].without)));
    let said = lines(found, "no longer arrives");
    assert!(said.len() == 1 && said[0].contains("is there an IGMP querier?"), "{found:#?}");
}

/// The environments that have been run, with their times.
struct Times {
    begun: Instant,
    undisturbed_us: f64,
}

impl Times {
    fn note(&mut self, name: &str, found: &[Found]) {
        let us = found.iter().map(|found| found.median_us).fold(0.0, f64::max);
        if self.undisturbed_us == 0.0 {
            self.undisturbed_us = us;
        }
        let (ratio, seconds) = (us / self.undisturbed_us, self.begun.elapsed().as_secs_f64());
        let repaired: u64 = found.iter().map(|found| found.repaired_chunks).sum();
        eprintln!(
            "{name}: {us:.0} us an operation, {ratio:.2} times the undisturbed; {} by multicast, {} without; \
             {repaired} chunks repaired; {seconds:.1} s since the beginning",
            found[0].multicast, found[0].without
        );
    }
}

#[test]
fn a_rank_on_a_network() {
    main();
}

#[test]
fn in_ten_networks_as_they_are_every_byte_is_right_and_faults_are_said() {
    let Some(hosts) = Hosts::new(RANKS) else { return };
    let mut times = Times { begun: Instant::now(), undisturbed_us: 0.0 };
    let found = Job::new(&hosts, "querier").run();
    all_multicast(&found);
    times.note("snooping with a querier", &found);

    let off = [("FLEXCAST_GSO", "off")];
    let found = Job { variables: &off, ..Job::new(&hosts, "gso") }.run();
    all_multicast(&found);
    times.note("FLEXCAST_GSO=off", &found);

    // Their groups and keys differ; the port of the data does not.
    let jobs = [Job::new(&hosts, "first"), Job { port: PORT + 1, ..Job::new(&hosts, "second") }];
    let both = jobs.each_ref().map(Job::start);
    let mut found = Vec::new();
    jobs.iter().zip(both).for_each(|(job, ranks)| found.extend(job.end(ranks)));
    assert_eq!(lines(&found, "WARN"), [""; 0], "{found:#?}");
    times.note("two jobs", &found);

    let job = Job { variables: &[("FLEXCAST_GROUP", "239.7.7.7")], ..Job::new(&hosts, "flood") };
    let ranks = job.start();
    let flooding = flood(&hosts);
    let found = job.end(ranks);
    drop(flooding);
    assert_eq!(lines(&found, "no longer arrives"), [""; 0], "{found:#?}");
    times.note("flood of foreign datagrams and connections", &found);

    // All that is multicast to one host is dropped there.
    hosts.lose_multicast(2, "udp dport 17110");
    let found = Job { operations: MANY, ..Job::new(&hosts, "lost") }.run();
    left_multicast(&found);
    assert!(lines(&found, "no longer arrives at rank 2").len() == 1, "{found:#?}");
    times.note("loss of all multicast at one host", &found);
    drop(hosts);

    let wired = |wiring: Wiring| Hosts::wired(RANKS, &wiring);
    let forgetful = wired(Wiring { snooping: Snooping::Forgetful, ..Wiring::default() });
    let hosts = forgetful.expect("hosts can be made, as before");
    let has_vlans = hosts.has_vlans();
    // Groups are known for a second, and ranks wait longer.
    let pause = [(PAUSE, "1500")];
    let found = Job { operations: MANY, variables: &pause, ..Job::new(&hosts, "forgetful") }.run();
    left_multicast(&found);
    times.note("snooping without a querier", &found);
    drop(hosts);

    if let Some(hosts) = wired(Wiring { offloads: false, ..Wiring::default() }) {
        let found = Job::new(&hosts, "offloads").run();
        all_multicast(&found);
        times.note("offloads of interfaces off", &found);
    }

    let hosts = wired(Wiring { host_mtu: 9000, switch_mtu: 9000, ..Wiring::default() });
    let hosts = hosts.expect("hosts can be made, as before");
    hosts.run(1, "ip", &["link", "set", INTERFACE, "mtu", "1500"]);
    let found = Job::new(&hosts, "mismatch").run();
    all_multicast(&found);
    times.note("one host with a shorter MTU", &found);
    drop(hosts);

    // Packets that the system has not cut would pass.
    if let Some(hosts) = wired(Wiring { host_mtu: 9000, switch_mtu: 1500, offloads: false, ..Wiring::default() }) {
        let found = Job::new(&hosts, "hole").run();
        assert!(found.iter().all(|found| found.multicast == FEW), "{found:#?}");
        let said = lines(&found, "carry packets of 9000 bytes, the network between them only 1500");
        assert_eq!(said.len(), 1, "{found:#?}");
        times.note("switch with a shorter MTU than all hosts", &found);
    }

    if has_vlans {
        let hosts = wired(Wiring { vlan: true, ..Wiring::default() }).expect("hosts can be made, as before");
        let found = Job { interface: &|_| VLAN_INTERFACE.to_owned(), ..Job::new(&hosts, "vlan") }.run();
        all_multicast(&found);
        times.note("VLAN", &found);
    }

    let hosts = wired(Wiring { ipv4: false, ..Wiring::default() }).expect("hosts can be made, as before");
    let found = Job { store: format!("[{}]", address_v6(0)), ..Job::new(&hosts, "ipv6") }.run();
    all_multicast(&found);
    times.note("IPv6 only", &found);
    let link_local = |host| link_local(&hosts, host);
    let job = Job { store: format!("[{}]", address_v6(0)), interface: &link_local, ..Job::new(&hosts, "local") };
    let found = job.run();
    all_multicast(&found);
    times.note("link-local addresses", &found);
}

#[test]
fn the_check_of_a_network_names_what_does_not_arrive() {
    let wiring = Wiring { host_mtu: 9000, switch_mtu: 1500, offloads: false, ..Wiring::default() };
    let Some(hosts) = Hosts::wired(RANKS, &wiring) else { return };
    let checked = |name: &str| -> Vec<String> {
        let ranks = Job { operations: 0, ..Job::new(&hosts, name) }.start();
        let ends = ranks.into_iter().map(|mut rank| rank.end(BOUND).1);
        // The test program begins the line.
        let line = |text: String| {
            text.find("checked:").map_or(text.clone(), |at| text[at..].lines().next().unwrap_or_default().to_owned())
        };
        ends.map(line).collect()
    };
    let all = checked("check-hole");
    let others = "0-1 0-2 1-0 1-2 2-0 2-1".split(' ');
    assert!(others.clone().all(|pair| all[0].contains(&format!(" {pair} short come long lost;"))), "{all:?}");
    assert!(!all[0].contains("0-0") && all.iter().all(|line| *line == all[0]), "{all:?}");
    for host in 0..RANKS {
        hosts.run(host, "ip", &["link", "set", INTERFACE, "mtu", "1500"]);
    }
    assert_eq!(checked("check-right"), ["checked:"; RANKS as usize]);
    hosts.lose_multicast(1, "ip saddr 10.78.0.1");
    assert_eq!(checked("check-lost"), ["checked: 0-1 short lost long lost;"; RANKS as usize]);
    ["check-hole", "check-right", "check-lost"].iter().for_each(|name| clean(&format!("networks-{name}")));
}

/// The link-local address of a host, once nobody else has been found to have it: before that it cannot be used.
fn link_local(hosts: &Hosts, host: u32) -> String {
    let begun = Instant::now();
    let text = loop {
        let text = hosts.run(host, "ip", &["-6", "-o", "addr", "show", "dev", INTERFACE, "scope", "link"]);
        if !text.contains("tentative") {
            break text;
        }
        assert!(begun.elapsed() < BOUND, "{text}");
        std::thread::sleep(Duration::from_millis(50));
    };
    let words: Vec<&str> = text.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "inet6").expect("a link-local address");
    words[at + 1].split('/').next().expect("an address").to_owned()
}

/// A host sends datagrams to the group and port of a job, and connects to its store, until this is dropped.
fn flood(hosts: &Hosts) -> Rank {
    let program = std::env::current_exe().expect("the path of this program");
    let mut command = hosts.on(2, &program);
    command.args(["--exact", "networks::a_flood", "--nocapture", "--test-threads", "1"]);
    Rank::start(command.env(FLOOD, "1"), &scratch("networks-flooding"), "flood")
}

const FLOOD: &str = "FLEXCAST_TEST_FLOOD";

#[test]
fn a_flood() {
    if std::env::var_os(FLOOD).is_none() {
        return;
    }
    let socket = UdpSocket::bind((address(2), 0)).expect("a socket");
    let store: SocketAddr = format!("{}:{PORT}", address(0)).parse().expect("an address");
    let begun = Instant::now();
    let mut connections = Vec::new();
    // Whoever has started this ends it.
    while begun.elapsed() < BOUND {
        for at in 0..50u32 {
            let _ = socket.send_to(&vec![at as u8; (at * 29) as usize], ("239.7.7.7", flexcast::DEFAULT_PORT));
        }
        if connections.len() < 20 {
            connections.extend(std::net::TcpStream::connect_timeout(&store, Duration::from_millis(100)).ok());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
