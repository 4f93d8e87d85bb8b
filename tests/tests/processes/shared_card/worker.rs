//! A process of the tests: it does what its standard input says, line by line, and answers each line with one.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use flexcast_tests::libs::libraries;
use flexio::{
    Access, AccessKey, AliasKey, Bound, CompletionQueue, Connection, Device, ExportedRegion, Gid, HostBuffer,
    KeyExport, LocalSlice, Mac, MemoryRegion, ProtectionDomain, Provider, QueueDepths, QueuePair, RemoteQp, SendKind,
    SendRequest, Transport,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Longest that a line may take; the longest wait of a worker is 10 s.
const BOUND: Duration = Duration::from_secs(60);
/// Longest that a worker waits for a completion, by the card's clock.
const COMPLETES: Bound = Bound::millis(10_000);
/// Begins the lines that are answers.
const ANSWER: &str = "= ";

/// A worker, as the test sees it. It does not outlive its test.
pub(crate) struct Worker {
    child: Child,
    input: ChildStdin,
    answers: Receiver<String>,
}

impl Worker {
    /// Starts one on a machine.
    pub(crate) fn start(machine: &str) -> Self {
        Self::start_with(machine, &[])
    }

    /// The same with more variables.
    pub(crate) fn start_with(machine: &str, variables: &[(&str, &str)]) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("the path of this program"))
            .args(["--exact", "shared_card::a_process_with_a_card", "--ignored", "--nocapture", "--test-threads", "1"])
            .env("FLEXCAST_MACHINE", format!("toml:{machine}"))
            .env("FLEXCAST_EMU_LIBS", libraries())
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program starts");
        let input = child.stdin.take().expect("a pipe");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let (sender, answers) = channel();
        let read = |output: BufReader<ChildStdout>| output.lines().map_while(Result::ok);
        std::thread::spawn(move || {
            for line in read(output) {
                // The harness prints before the first answer, on the same line.
                if let Some((_, answer)) = line.split_once(ANSWER) {
                    let _ = sender.send(answer.to_owned());
                }
            }
        });
        Self { child, input, answers }
    }

    /// Begins a line.
    pub(crate) fn begin(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("the worker is there");
    }

    /// The answer to the line begun.
    pub(crate) fn end(&mut self) -> String {
        self.answers.recv_timeout(BOUND).expect("an answer")
    }

    /// What a line is answered with.
    pub(crate) fn says(&mut self, line: &str) -> String {
        self.begin(line);
        self.end()
    }

    /// The same, without a failure.
    pub(crate) fn does(&mut self, line: &str) -> String {
        let answer = self.says(line);
        assert!(!answer.starts_with("failed"), "{line}: {answer}");
        answer
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).expect("a process");
    }

    /// Stops it: none of its threads runs when this returns.
    pub(crate) fn stop(&self) {
        self.signal(Signal::SIGSTOP);
        let tasks = PathBuf::from(format!("/proc/{}/task", self.child.id()));
        let is_stopped = |task: &Path| {
            let text = std::fs::read_to_string(task.join("stat")).unwrap_or_default();
            text.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with('T'))
        };
        let all = || std::fs::read_dir(&tasks).expect("its threads").flatten().all(|task| is_stopped(&task.path()));
        let begun = Instant::now();
        while !all() {
            assert!(begun.elapsed() < BOUND, "it runs still");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Lets it go on.
    pub(crate) fn go_on(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// Kills it and waits for its end.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("a process");
        self.child.wait().expect("a process");
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Bytes that differ from seed to seed.
fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64).map(|i| (i * 31 + i / 251 + seed * 17) as u8).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex<const N: usize>(text: &str) -> [u8; N] {
    std::array::from_fn(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).expect("hexadecimal digits"))
}

/// Memory of a worker.
enum Memory {
    Region(MemoryRegion),
    Exported(ExportedRegion),
    Alias(AliasKey),
    Gone,
}

impl Memory {
    fn region(&self) -> Option<&MemoryRegion> {
        match self {
            Self::Region(region) => Some(region),
            Self::Exported(exported) => Some(exported.region()),
            Self::Alias(_) | Self::Gone => None,
        }
    }

    fn slice(&self, offset: u64, len: u32) -> flexio::Result<LocalSlice> {
        match self {
            Self::Alias(alias) => alias.slice(offset, len),
            other => other.region().expect("memory").slice(offset, len),
        }
    }
}

struct Card {
    pairs: Vec<(QueuePair, CompletionQueue)>,
    memory: Vec<Memory>,
    pd: ProtectionDomain,
    device: Device,
}

impl Card {
    fn open(provider: &Provider, name: &str) -> flexio::Result<Self> {
        let device = provider.open(name)?;
        let pd = ProtectionDomain::new(&device)?;
        Ok(Self { pairs: Vec::new(), memory: Vec::new(), pd, device })
    }

    fn keep(&mut self, memory: Memory) -> usize {
        self.memory.push(memory);
        self.memory.len() - 1
    }

    fn wait(&self, pair: usize) -> flexio::Result<String> {
        self.pairs[pair].1.wait(COMPLETES, "a request").map(|done| format!("{} done", done.len()))
    }

    fn post(&self, pair: usize, kind: SendKind<'_>, local: LocalSlice) -> flexio::Result<String> {
        let request = SendRequest { id: 1, kind, local: Some(local), immediate: None, signaled: true };
        self.pairs[pair].0.post_send(&request)?;
        self.wait(pair)
    }

    /// Does what a line says.
    fn obey(&mut self, words: &[&str]) -> flexio::Result<String> {
        let number = |at: usize| words[at].parse::<u64>().expect("a number");
        let index = |at: usize| number(at) as usize;
        Ok(match words[0] {
            "region" => {
                let buffer = HostBuffer::from_bytes(&pattern(index(1), number(2)))?;
                let region = MemoryRegion::register(&self.pd, buffer, Access::all())?;
                let (addr, rkey) = (region.addr().get(), region.rkey());
                format!("{} {addr} {rkey}", self.keep(Memory::Region(region)))
            }
            "export" => {
                let Memory::Region(region) = std::mem::replace(&mut self.memory[index(1)], Memory::Gone) else {
                    panic!("memory {} is no region", words[1]);
                };
                let exported = ExportedRegion::new(region, AccessKey::new([7; 32]))?;
                let text = hex(&exported.export().encode());
                self.memory[index(1)] = Memory::Exported(exported);
                text
            }
            "alias" => {
                let export = KeyExport::decode(&unhex::<72>(words[1]))?;
                let alias = AliasKey::new(&self.pd, &export)?;
                let key = alias.key();
                format!("{} {} {key}", self.keep(Memory::Alias(alias)), export.addr)
            }
            "pair" => {
                let cq = CompletionQueue::new(&self.device, 16)?;
                let depths = QueueDepths { send: 8, receive: 8 };
                let pair = QueuePair::builder(&self.pd, Transport::Rc, depths).build(&cq, &cq)?;
                pair.init(Access::all(), 0)?;
                let (gid, mac) = (self.device.port().gid, self.device.info().mac);
                let text = format!("{} {} {} {}", self.pairs.len(), pair.qpn(), hex(&gid.0), hex(&mac.0));
                self.pairs.push((pair, cq));
                text
            }
            "connect" => {
                let (gid, mac) = (Gid(unhex(words[3])), Mac(unhex(words[4])));
                let remote = RemoteQp { qpn: number(2) as u32, gid, mac, first_psn: 0 };
                self.pairs[index(1)].0.connect(&Connection::to(remote))?;
                "connected".to_owned()
            }
            // PAIR MEMORY OFFSET LEN [REMOTE-ADDRESS KEY]
            kind @ ("write" | "read" | "send" | "receive") => {
                let local = self.memory[index(2)].slice(number(3), number(4) as u32)?;
                let remote = || (number(5), number(6) as u32);
                match kind {
                    "write" => {
                        let (remote_addr, rkey) = remote();
                        self.post(index(1), SendKind::Write { remote_addr, rkey }, local)?
                    }
                    "read" => {
                        let (remote_addr, rkey) = remote();
                        self.post(index(1), SendKind::Read { remote_addr, rkey }, local)?
                    }
                    "send" => self.post(index(1), SendKind::Send, local)?,
                    _ => {
                        self.pairs[index(1)].0.post_receive(2, local)?;
                        "posted".to_owned()
                    }
                }
            }
            "wait" => self.wait(index(1))?,
            // MEMORY OFFSET LEN SEED SEED-OFFSET
            "holds" => {
                let mut found = vec![0; index(3)];
                self.memory[index(1)].region().expect("memory").read(index(2), &mut found)?;
                let expected = &pattern(index(5) + index(3), number(4))[index(5)..];
                (found == expected).to_string()
            }
            "close" => {
                self.pairs.clear();
                self.memory.clear();
                "closed".to_owned()
            }
            other => panic!("{other} is no word of a worker"),
        })
    }
}

fn answer(text: &str) {
    // One line, whatever an error says.
    println!("{ANSWER}{}", text.replace('\n', " "));
}

/// The worker's side.
pub(crate) fn work() {
    let folder = std::env::var_os(flexcast_tests::libs::LIBRARIES).expect("a folder of libraries");
    let provider = Provider::from_folder(Path::new(&folder)).expect("libraries");
    let mut cards: Vec<Card> = Vec::new();
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let result = match words[..] {
            ["devices"] => provider.devices().map(|found| {
                found.iter().map(|info| format!("{} {}", info.name, hex(&info.mac.0))).collect::<Vec<_>>().join(",")
            }),
            ["open", name] => Card::open(&provider, name).map(|card| {
                cards.insert(0, card);
                "open".to_owned()
            }),
            _ => cards.first_mut().expect("a card that is open").obey(&words),
        };
        answer(&result.unwrap_or_else(|error| format!("failed: {error}")));
    }
}
