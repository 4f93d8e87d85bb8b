//! Whatever may come over the store's connections, for the fuzz target `store`.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::channel::{Channel, HANDSHAKE_BYTES, Opening};
use super::client::Client;
use super::frame::{Frame, Hello, Taken, What, collected, contributions};
use super::link::{Link, Stream};
use super::server::Admission;
use super::{Build, Secret, StoreConfig, StoreError};

/// Ranks of the stores.
const RANKS: u32 = 3;
/// Connections that rank 0 has.
const CONNECTIONS: usize = 4;
/// Most that a stranger's connection holds in memory.
const MOST_OF_STRANGER: usize = 512;

/// What has been sent to one end of a connection and what it has sent.
#[derive(Default)]
struct Pipe {
    sent: VecDeque<u8>,
    received: Vec<u8>,
    has_ended: bool,
}

/// A connection in memory.
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Pipe>>);

impl Memory {
    fn with<R>(&self, body: impl FnOnce(&mut Pipe) -> R) -> R {
        body(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Read for Memory {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.with(|pipe| match (pipe.sent.len(), pipe.has_ended) {
            (0, false) => Err(ErrorKind::WouldBlock.into()),
            _ => pipe.sent.read(into),
        })
    }
}

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.with(|pipe| pipe.received.extend(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Stream for Memory {
    fn end(&self) {
        self.with(|pipe| pipe.has_ended = true);
    }

    fn is_local(&self) -> bool {
        true
    }
}

fn config(rank: u32, secret: bool) -> StoreConfig {
    let secret = secret.then(|| Secret::new(b"a secret of ranks that are fuzzed").ok()).flatten();
    StoreConfig { job: "job".to_owned(), timeout: Duration::ZERO, ..StoreConfig::new(rank, RANKS, "head:1") }
        .secret(secret)
}

/// Reads operands; past the end there are zeros.
struct Operands<'a>(&'a [u8]);

impl<'a> Operands<'a> {
    fn byte(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or(0)
    }

    fn bytes(&mut self, count: usize) -> &'a [u8] {
        let count = count.min(self.0.len());
        self.0.split_off(..count).unwrap_or_default()
    }
}

/// The other end of a connection to rank 0.
#[derive(Default)]
struct Other {
    memory: Memory,
    opening: Option<Opening>,
    channel: Option<Channel>,
    /// Whether it has proved that it has the secret, or need not.
    has_proved: bool,
}

impl Other {
    fn send(&self, bytes: &[u8]) {
        self.memory.with(|pipe| pipe.sent.extend(bytes));
    }

    /// As a rank does: with the secret once there are keys.
    fn send_frame(&mut self, frame: &Frame) {
        let (plain, mut wire) = (frame.encode(), Vec::new());
        match &mut self.channel {
            Some(channel) => drop(channel.seal(&plain, &mut wire)),
            None => wire = plain,
        }
        self.send(&wire);
    }

    /// Takes rank 0's part of the handshake, if it has come.
    fn finish(&mut self) {
        let Some(opening) = self.opening.take() else { return };
        let mut received = self.memory.with(|pipe| pipe.received.clone());
        if let Taken::Whole(frame) = Frame::take(&mut received, HANDSHAKE_BYTES)
            && frame.what == What::Answer
        {
            // None, if it was the answer to another hello than the last.
            self.channel = opening.finish(&frame.body);
        }
    }
}

/// Connections to rank 0 over which hellos, frames and anything else come, in any order: it holds little of strangers,
/// seats nobody without the secret, and names a rank where it fails. Returns what the ranks have exchanged, if they
/// have come together.
///
/// # Panics
/// The store has a fault.
pub fn rank_0(data: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut input = Operands(data);
    let has_secret = input.byte() & 1 != 0;
    let config = config(0, has_secret);
    let mut admission = Admission::new(&config, Build::OWN);
    let mut others: Vec<Other> = (0..CONNECTIONS).map(|_| Other::default()).collect();
    for (number, other) in others.iter().enumerate() {
        let link = Link::over(Box::new(other.memory.clone()), format!("peer {number}"), 0);
        admission.strangers.add(link, Ipv4Addr::LOCALHOST.into());
    }
    while !input.0.is_empty() {
        step(&mut input, &mut others, &config);
        let polled = admission.poll();
        assert!(admission.strangers.len() <= CONNECTIONS && admission.check_claims().is_ok());
        for stranger in admission.strangers.iter() {
            assert!(stranger.link.incoming.len() <= MOST_OF_STRANGER, "{}", stranger.link.incoming.len());
        }
        for link in admission.slots.iter().flatten() {
            let number: usize = link.peer.trim_start_matches("peer ").parse().unwrap_or_default();
            assert!(!has_secret || others[number].has_proved, "{} is a rank, without the secret", link.peer);
        }
        if let Err(error) = polled {
            assert_is_named(&error);
            return None;
        }
        if admission.slots.iter().all(Option::is_some) {
            break;
        }
    }
    if !admission.slots.iter().all(Option::is_some) {
        return None;
    }
    let mut server = admission.welcome().ok()?;
    while !input.0.is_empty() {
        step(&mut input, &mut others, &config);
    }
    match server.exchange("x", b"own") {
        Ok(all) => {
            assert!(all.len() == RANKS as usize && all[0] == b"own");
            Some(all)
        }
        Err(error) => {
            assert_is_named(&error);
            None
        }
    }
}

/// Lets one of the others do something.
fn step(input: &mut Operands<'_>, others: &mut [Other], config: &StoreConfig) {
    let step = input.byte();
    let other = &mut others[usize::from(step) % CONNECTIONS];
    match step >> 2 & 7 {
        0 | 1 => {
            let count = input.byte();
            other.send(input.bytes(count.into()));
        }
        kind @ (2 | 3) => {
            let (rank, size) = (u32::from(input.byte()), u32::from(input.byte()));
            let mut hello = Hello { build: Build::OWN, rank, size, job: config.job.clone(), handshake: None };
            if let (3, Some(secret)) = (kind, &config.secret)
                && let Ok((opening, message)) = Opening::new(secret, &hello.prologue(true))
            {
                (other.opening, hello.handshake) = (Some(opening), Some(message));
            }
            other.send(&hello.encode());
        }
        4 => {
            other.finish();
            other.has_proved |= other.channel.is_some();
            other.send_frame(&Frame::new(What::Present));
        }
        5 => {
            let (number, tag) = (u32::from(input.byte()), "x".to_owned());
            let count = input.byte();
            let body = input.bytes(count.into()).to_vec();
            other.send_frame(&Frame { what: What::Contribution, number, tag, body });
        }
        6 => other.send_frame(&Frame::with_reason(What::Refused, "no card")),
        _ => other.memory.end(),
    }
}

fn assert_is_named(error: &StoreError) {
    let text = error.to_string();
    assert!(text.contains("rank") && !text.contains(|letter: char| letter.is_control()), "{text:?}");
}

/// Anything that comes to rank 1 in the place of rank 0's answers: it ends, well or with an error that names the
/// address.
///
/// # Panics
/// The store has a fault.
pub fn rank_1(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else { return };
    let memory = Memory::default();
    memory.with(|pipe| pipe.sent.extend(rest));
    memory.end();
    let config = config(1, first & 1 != 0);
    let joined = Client::attend(Link::over(Box::new(memory), config.address.clone(), 0), &config, Build::OWN);
    let all = joined.and_then(|mut client| client.exchange("x", b"own"));
    assert!(first & 1 == 0 || all.is_err(), "rank 0 has not proved that it has the secret");
    match all {
        Ok(all) => assert_eq!(all.len(), RANKS as usize),
        Err(StoreError::Reported { what }) => assert!(!what.contains(|letter: char| letter.is_control())),
        Err(error) => assert!(error.to_string().contains("head:1"), "{error}"),
    }
}

/// Bytes as hellos, frames and contributions: what is taken is what its encoding makes of it.
///
/// # Panics
/// The store has a fault.
pub fn frames(data: &[u8]) {
    const LIMIT: usize = 1 << 16;
    let mut stream = data.to_vec();
    if let Taken::Whole(hello) = Hello::take(&mut stream) {
        let again = Hello::take(&mut hello.encode());
        // Text that is no UTF-8 is shown as well as it goes.
        assert!(again == Taken::Whole(hello.clone()) || hello.job.contains('\u{FFFD}'), "{hello:?}");
    }
    loop {
        let before = stream.len();
        let Taken::Whole(frame) = Frame::take(&mut stream, LIMIT) else { break };
        assert!(stream.len() < before && frame.body.len() <= LIMIT, "a frame takes what it has");
        let again = Frame::take(&mut frame.encode(), LIMIT);
        assert!(again == Taken::Whole(frame.clone()) || frame.tag.contains('\u{FFFD}'), "{frame:?}");
    }
    for ranks in [1, 3] {
        if let Some(all) = contributions(data, ranks) {
            assert!(collected(&all) == data, "contributions are what was collected");
        }
    }
}

/// Records on an encrypted connection of which some bytes are changed: what is opened is a beginning of what was
/// sealed.
///
/// # Panics
/// The store has a fault.
pub fn records(data: &[u8]) {
    let Some(secret) = config(1, true).secret else { return };
    let Ok((opening, message)) = Opening::new(&secret, b"hello") else { return };
    let Some((answer, mut there)) = super::channel::answer(&secret, b"hello", &message) else { return };
    let Some(mut here) = opening.finish(&answer) else { return };
    let mut input = Operands(data);
    let (mut plain, mut wire, mut opened, mut is_changed) = (Vec::new(), Vec::new(), Vec::new(), false);
    while !input.0.is_empty() {
        let (kind, count) = (input.byte(), input.byte());
        match kind % 4 {
            // A record, short or long.
            0 | 1 => {
                let text = [input.bytes(count.into()), &vec![kind; usize::from(kind) * usize::from(count)]].concat();
                let taken = here.seal(&text, &mut wire).unwrap_or(0);
                plain.extend(&text[..taken]);
            }
            // Another bit.
            2 => {
                let at = usize::from(count) * wire.len() / 256;
                if let Some(byte) = wire.get_mut(at) {
                    *byte ^= 1 << (kind >> 5);
                    is_changed = true;
                }
            }
            // Part of it arrives.
            _ => {
                let part = (usize::from(count) * 300).min(wire.len()).min(there.room());
                there.sealed().extend(wire.drain(..part));
                if there.open(&mut opened).is_err() {
                    assert!(is_changed, "records that nobody has changed are opened");
                    break;
                }
            }
        }
        assert!(plain.starts_with(&opened));
    }
    assert!(plain.starts_with(&opened));
}
