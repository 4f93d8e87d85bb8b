//! Dialling side of a connection to a peer: the handshake, and its repetition until the peer has taken the connection.
//!
//! A peer that has no room for one more stranger closes the connection, or an attacker does so. Nothing is lost then:
//! frames are sent only once the peer has said that it takes the connection.
//!
//! To an aggregator a rank says in clear what it wants before the handshake, and the aggregator may say in clear why
//! not ([`aggregator`]).

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use flexcast_proto::session::{
    CHALLENGE_BYTES, Confirming, Dialling, HandshakeError, Nonce, Party, Secret, Session, VERDICT_BYTES, keyed_hash,
};
use socket2::{Domain, Protocol, Socket, Type};
use zerocopy::FromBytes as _;

use crate::aggregator::{self, ANSWER_BYTES, GREETING_BYTES, Key, MOST_REFUSAL_BYTES, Report};
use crate::events::{Address, Interest};
use crate::external;
use crate::frame::{FRAME_BYTES, Frame, MESSAGE};
use crate::peer;
use crate::shared::SharedStream;
use crate::stream::Stream;

/// Wait before the first repetition. It doubles with each up to [`MOST_BACKOFF`].
const BACKOFF: Duration = Duration::from_millis(1);
const MOST_BACKOFF: Duration = Duration::from_millis(100);

/// Fresh random bytes of the system.
pub(crate) fn nonce() -> io::Result<Nonce> {
    let mut bytes = Nonce::default();
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(bytes)
}

/// Begins to connect to an address, without waiting for it.
fn begin_tcp(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    socket.set_tcp_nodelay(true)?;
    match socket.connect(&address.into()) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(nix::libc::EINPROGRESS) => {}
        Err(error) => return Err(error),
    }
    Ok(socket.into())
}

/// Whom to reach, and as whom.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) scope: u64,
    pub(super) own: Party,
    pub(super) peer: Party,
    pub(super) secret: Secret,
    /// What is said before the hello; of aggregators alone.
    pub(super) greeting: Option<[u8; GREETING_BYTES]>,
    pub(super) address: SocketAddr,
    /// The number of its socket for shared memory, if both may share some.
    pub(super) listener: Option<u64>,
    /// How long dials that fail are repeated, from the first that does.
    pub(super) patience: Duration,
}

#[derive(Debug)]
enum Step {
    /// An aggregator is to say that it answers, or why not.
    Answer(Dialling),
    /// It says why not: the bytes that have come of it.
    Refusal(Vec<u8>),
    Challenge(Dialling),
    Verdict(Confirming),
    /// The next try begins then.
    Pause(Instant),
    Over,
}

/// Why an aggregator does not begin a handshake, as it says.
#[derive(thiserror::Error)]
#[error("{0}")]
struct Declined(String);

flexcast_error::debug_as_display!(Declined);

/// What has become of a dial.
#[derive(Debug)]
pub(super) enum Progress {
    /// It waits for the peer, or for its next try. True: something moved.
    Waits(bool),
    /// Another stream has taken the place of the one before.
    Again,
    /// The peer has taken the connection.
    Taken(Box<Session>),
    /// It does not come about: the system's code, and why.
    Failed(u16, String),
}

/// A connection that is not taken yet.
#[derive(Debug)]
pub(super) struct Dial {
    target: Target,
    step: Step,
    /// What is to be sent, from `sent` on.
    message: Vec<u8>,
    sent: usize,
    answer: [u8; CHALLENGE_BYTES],
    come: usize,
    /// The memory to hand over.
    file: Option<OwnedFd>,
    tries: u32,
    /// When the first try has failed.
    failing: Option<Instant>,
}

impl Dial {
    /// Begins to connect, without waiting.
    pub(super) fn begin(target: Target) -> io::Result<(Stream, Self)> {
        let mut dial = Self {
            target,
            step: Step::Over,
            message: Vec::new(),
            sent: 0,
            answer: [0; CHALLENGE_BYTES],
            come: 0,
            file: None,
            tries: 0,
            failing: None,
        };
        let stream = dial.open()?;
        Ok((stream, dial))
    }

    /// Another try.
    fn open(&mut self) -> io::Result<Stream> {
        let Target { scope, own, peer, address, listener, .. } = self.target;
        let shared = listener.map(SharedStream::connect).and_then(|shared| {
            shared.inspect_err(|error| tracing::debug!(%peer, %error, "no memory is shared: TCP instead")).ok()
        });
        let (stream, file) = match shared {
            Some((stream, file)) => (Stream::Shared(stream), Some(file)),
            None => (Stream::Tcp(begin_tcp(address)?), None),
        };
        let dialling = Dialling::new(scope, own, peer, nonce()?);
        self.file = file;
        self.say(&dialling.hello());
        self.step = match &self.target.greeting {
            Some(greeting) => {
                self.message.splice(..0, *greeting);
                Step::Answer(dialling)
            }
            None => Step::Challenge(dialling),
        };
        self.tries += 1;
        Ok(stream)
    }

    fn say(&mut self, message: &[u8]) {
        self.message.clear();
        self.message.extend_from_slice(message);
        (self.sent, self.come) = (0, 0);
    }

    /// Where the peer is reached by the present try.
    pub(super) fn address(&self) -> Address {
        if self.file.is_some() { Address::Shared } else { Address::Tcp(Some(self.target.address)) }
    }

    /// What is waited for on the stream.
    pub(super) const fn interest(&self) -> Interest {
        match self.step {
            Step::Answer(_) | Step::Refusal(_) | Step::Challenge(_) | Step::Verdict(_) => {
                let is_writing = self.sent < self.message.len();
                Interest { read: !is_writing, write: is_writing }
            }
            Step::Pause(_) | Step::Over => Interest { read: false, write: false },
        }
    }

    /// When there is something to do although nothing comes.
    pub(super) const fn deadline(&self) -> Option<Instant> {
        if let Step::Pause(until) = self.step { Some(until) } else { None }
    }

    /// Goes on with the handshake as far as the stream and the time allow.
    pub(super) fn advance(&mut self, stream: &mut Stream) -> Progress {
        if let Step::Pause(until) = self.step {
            if Instant::now() < until {
                return Progress::Waits(false);
            }
            return match self.open() {
                Ok(new) => {
                    *stream = new;
                    Progress::Again
                }
                Err(error) => self.again(&error, None),
            };
        }
        match self.shake(stream) {
            Ok(progress) => progress,
            Err(error) => {
                let of_handshake = error.get_ref().and_then(|inner| inner.downcast_ref::<HandshakeError>()).copied();
                self.again(&error, of_handshake)
            }
        }
    }

    fn shake(&mut self, stream: &mut Stream) -> io::Result<Progress> {
        let mut moved = false;
        loop {
            while self.sent < self.message.len() {
                // The memory goes with the proof: the peer has proven itself by then.
                let file = self.file.as_ref().filter(|_| matches!(self.step, Step::Verdict(_)));
                match stream.write_handshake(&self.message[self.sent..], file.map(|file| file.as_fd())) {
                    Ok(bytes) => (self.sent, moved) = (self.sent + bytes, true),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Progress::Waits(moved)),
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            if let Step::Refusal(bytes) = &mut self.step {
                let error = refused(stream, bytes);
                return if error.kind() == ErrorKind::WouldBlock { Ok(Progress::Waits(moved)) } else { Err(error) };
            }
            let needed = match self.step {
                Step::Answer(_) => ANSWER_BYTES,
                Step::Verdict(_) => VERDICT_BYTES,
                _ => CHALLENGE_BYTES,
            };
            while self.come < needed {
                // No more: frames of the peer may be behind its verdict.
                match stream.read_handshake(&mut self.answer[self.come..needed]) {
                    Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                    Ok(bytes) => (self.come, moved) = (self.come + bytes, true),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Progress::Waits(moved)),
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            let secret = &self.target.secret;
            match std::mem::replace(&mut self.step, Step::Over) {
                Step::Answer(dialling) => {
                    let came = &self.answer[..ANSWER_BYTES];
                    self.come = 0;
                    self.step = if came == aggregator::answer() {
                        Step::Challenge(dialling)
                    } else {
                        Step::Refusal(came.to_vec())
                    };
                }
                Step::Challenge(dialling) => {
                    let (confirming, proof) =
                        dialling.answer(&self.answer, secret, &keyed_hash).map_err(io::Error::other)?;
                    self.say(&proof);
                    self.step = Step::Verdict(confirming);
                }
                Step::Verdict(confirming) => {
                    let mut verdict = [0; VERDICT_BYTES];
                    verdict.copy_from_slice(&self.answer[..VERDICT_BYTES]);
                    let session = confirming.conclude(&verdict, secret, &keyed_hash).map_err(io::Error::other)?;
                    return Ok(Progress::Taken(Box::new(session)));
                }
                Step::Refusal(_) | Step::Pause(_) | Step::Over => return Ok(Progress::Waits(moved)),
            }
        }
    }

    /// A try has failed: there is another one, unless that is of no use or the time for it is over.
    fn again(&mut self, error: &io::Error, of_handshake: Option<HandshakeError>) -> Progress {
        self.step = Step::Over;
        let declined = error.get_ref().and_then(|inner| inner.downcast_ref::<Declined>());
        // A rank listens as long as its communicator lives: nobody does there any more, or a firewall is in between. Of
        // an aggregator with another secret another try gets no other answer.
        let is_final = error.kind() == ErrorKind::ConnectionRefused
            || declined.is_some()
            || matches!(of_handshake, Some(HandshakeError::Refused(_)))
            || (self.target.greeting.is_some() && of_handshake.is_some());
        let now = Instant::now();
        let since = *self.failing.get_or_insert(now);
        let backoff = (BACKOFF * 2_u32.saturating_pow(self.tries.min(10) - 1)).min(MOST_BACKOFF);
        if !is_final && now + backoff < since + self.target.patience {
            self.step = Step::Pause(now + backoff);
            return Progress::Waits(true);
        }
        let what = match of_handshake {
            Some(error) => error.to_string(),
            None if error.kind() == ErrorKind::UnexpectedEof => "it closes the connection".to_owned(),
            None => error.to_string(),
        };
        let code = match peer::code(error) {
            0 if of_handshake.is_some() => peer::NONSENSE,
            0 => nix::libc::ECONNRESET as u16,
            code => code,
        };
        let tries = self.tries;
        if self.target.greeting.is_some() {
            let why = match (declined, of_handshake) {
                (Some(Declined(reason)), _) => external::refusal(reason),
                (None, Some(error)) => Key::distrust(error),
                (None, None) if peer::code(error) == 0 => external::unanswered(&what, tries),
                (None, None) => external::broken(code),
            };
            return Progress::Failed(code, why);
        }
        Progress::Failed(code, format!("was not taken ({what}), in {tries} tries within {:?}", now - since))
    }
}

/// Takes what has come of an aggregator's refusal behind `bytes`. The error is what it says, once that is whole.
fn refused(stream: &mut Stream, bytes: &mut Vec<u8>) -> io::Error {
    let foreign = || io::Error::other(HandshakeError::Foreign);
    loop {
        let needed = match Frame::read_from_prefix(bytes) {
            Ok((frame, _)) if frame.kind != MESSAGE || frame.len.get() as usize > MOST_REFUSAL_BYTES => {
                return foreign();
            }
            Ok((frame, _)) => FRAME_BYTES + frame.len.get() as usize,
            Err(_) => FRAME_BYTES,
        };
        if bytes.len() == needed && needed > FRAME_BYTES {
            let Some(Report::Refused { reason }) = Report::decode(&bytes[FRAME_BYTES..], 1) else {
                return foreign();
            };
            return io::Error::other(Declined(reason));
        }
        let (come, mut room) = (bytes.len(), [0; FRAME_BYTES + MOST_REFUSAL_BYTES]);
        let Some(room) = room.get_mut(..needed - come).filter(|room| !room.is_empty()) else { return foreign() };
        match stream.read_handshake(room) {
            Ok(0) => return ErrorKind::UnexpectedEof.into(),
            Ok(read) => bytes.extend_from_slice(&room[..read]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return error,
        }
    }
}
