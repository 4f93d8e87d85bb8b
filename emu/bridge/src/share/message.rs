//! Greeting and messages of the socket between processes that use one card.

use std::io::{self, Read, Write};

use super::{MAX_MESSAGE_BYTES, VERSION};

const MAGIC: [u8; 8] = *b"FXCARD\0\0";
const GREETING_BYTES: usize = 16;

/// The answer to a greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Messages may follow.
    Welcome,
    /// Another version; the answer has that of the process with the card.
    Version,
    /// As many processes as may be are there.
    Full,
    /// Another user's process.
    User,
    /// The process with the card cannot serve, or not yet.
    Unready,
}

impl Verdict {
    const ALL: [Self; 5] = [Self::Welcome, Self::Version, Self::Full, Self::User, Self::Unready];

    fn of_code(code: u32) -> Option<Self> {
        Self::ALL.get(code as usize).copied()
    }
}

fn greeting(version: u32, code: u32) -> [u8; GREETING_BYTES] {
    let mut bytes = [0; GREETING_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&version.to_le_bytes());
    bytes[12..].copy_from_slice(&code.to_le_bytes());
    bytes
}

/// Version and code of a greeting; `None` if it is none.
fn parse(bytes: &[u8; GREETING_BYTES]) -> Option<(u32, u32)> {
    let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
    (bytes[..8] == MAGIC).then(|| (word(8), word(12)))
}

fn strange(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// Says who one is.
pub(crate) fn greet(mut socket: impl Write) -> io::Result<()> {
    socket.write_all(&greeting(VERSION, 0))
}

/// Reads the version of a process that says who it is.
pub(crate) fn greeted(mut socket: impl Read) -> io::Result<u32> {
    let mut bytes = [0; GREETING_BYTES];
    socket.read_exact(&mut bytes)?;
    parse(&bytes).map(|(version, _)| version).ok_or_else(|| strange("what came is no greeting"))
}

/// Answers a greeting.
pub(crate) fn judge(mut socket: impl Write, verdict: Verdict) -> io::Result<()> {
    socket.write_all(&greeting(VERSION, verdict as u32))
}

/// Reads the answer to a greeting: the other side's version, and its verdict.
pub(crate) fn judged(mut socket: impl Read) -> io::Result<(u32, Verdict)> {
    let mut bytes = [0; GREETING_BYTES];
    socket.read_exact(&mut bytes)?;
    let known = parse(&bytes).and_then(|(version, code)| Some((version, Verdict::of_code(code)?)));
    known.ok_or_else(|| strange("what came is no answer to a greeting"))
}

/// Sends a message, in one piece.
pub(crate) fn send(mut socket: impl Write, message: &[u8]) -> io::Result<()> {
    if message.len() > MAX_MESSAGE_BYTES {
        return Err(strange("a message is too long"));
    }
    let mut bytes = Vec::with_capacity(4 + message.len());
    bytes.extend_from_slice(&(message.len() as u32).to_le_bytes());
    bytes.extend_from_slice(message);
    socket.write_all(&bytes)
}

/// Receives a message; `None` at an orderly end.
pub(crate) fn receive(mut socket: impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut head = [0; 4];
    let first = loop {
        match socket.read(&mut head) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => break other?,
        }
    };
    if first == 0 {
        return Ok(None);
    }
    socket.read_exact(&mut head[first..])?;
    let len = u32::from_le_bytes(head) as usize;
    if len > MAX_MESSAGE_BYTES {
        return Err(strange("a message is too long"));
    }
    let mut message = vec![0; len];
    socket.read_exact(&mut message)?;
    Ok(Some(message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_go_there_and_back() {
        let mut wire = Vec::new();
        send(&mut wire, b"one").unwrap();
        send(&mut wire, b"").unwrap();
        let mut from = &wire[..];
        assert_eq!(receive(&mut from).unwrap().as_deref(), Some(&b"one"[..]));
        assert_eq!(receive(&mut from).unwrap().as_deref(), Some(&b""[..]));
        assert_eq!(receive(&mut from).unwrap(), None);
        assert!(receive(&wire[..5]).is_err(), "cut off");
        assert!(receive(&(MAX_MESSAGE_BYTES as u32 + 1).to_le_bytes()[..]).is_err(), "too long");
        assert!(send(Vec::new(), &vec![0; MAX_MESSAGE_BYTES + 1]).is_err());
    }

    #[test]
    fn greetings_are_known_by_their_head() {
        let mut wire = Vec::new();
        greet(&mut wire).unwrap();
        assert_eq!(greeted(&wire[..]).unwrap(), VERSION);
        wire[0] = b'G';
        assert!(greeted(&wire[..]).is_err());
        for verdict in Verdict::ALL {
            let mut wire = Vec::new();
            judge(&mut wire, verdict).unwrap();
            assert_eq!(judged(&wire[..]).unwrap(), (VERSION, verdict));
        }
        assert!(judged(&greeting(VERSION, 9)[..]).is_err());
    }
}
