//! Listening side of connections: those who have connected and have not proven who they are.
//!
//! Such a stranger is bounded in time and memory, and so is their number, in all and for each address. Where there is
//! no room for one more, the oldest goes: first one that has said nothing, and of the others none that has only just
//! come. A rank that had to go connects again ([`dial`](super::dial)). Whoever has proven that it is a rank is a
//! stranger no more, and never goes. Strangers are handled in the order in which they have come.
//!
//! They want to reach a rank, or aggregators that are no ranks. To those a rank says first, in clear, what it wants.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, Read as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use flexcast_proto::session::{
    CHALLENGE_BYTES, HELLO_BYTES, HandshakeError, Listening, PROOF_BYTES, Party, Proven, Refusal, Role, Secret,
    Session, keyed_hash,
};
use nix::errno::Errno;
use zerocopy::IntoBytes as _;

use crate::aggregator::{self, ANSWER_BYTES, GREETING_BYTES, Greeting, Key, Unheard};
use crate::dial::nonce;
use crate::events::{Address, Watch};
use crate::frame::{Frame, MESSAGE};
use crate::memory::{receive_with, send_with};
use crate::shared::{SharedStream, check_user};
use crate::stream::Stream;

/// Most strangers.
pub(super) const MOST_STRANGERS: usize = 128;
/// Most of them with one address, or of this computer through shared memory.
pub(super) const MOST_OF_ADDRESS: usize = 64;
/// A stranger gives way to another one after this time: many ranks may connect at once, and each needs a moment.
const GRACE: Duration = Duration::from_millis(20);
/// Longest that one may take to say something to a rank.
pub(crate) const SILENCE: Duration = Duration::from_secs(2);
/// Longest that one may take to prove what it has said: its program may be at work meanwhile.
const PROOF: Duration = Duration::from_secs(60);
/// Connections that are taken at a time.
const MOST_ACCEPTS: usize = 2 * MOST_STRANGERS;
/// Time between two lines of the log on strangers that went.
const LOG: Duration = Duration::from_secs(10);

/// A connection of a stranger.
#[derive(Debug)]
enum Caller {
    Tcp(TcpStream),
    /// With the memory that is handed over, once that has come.
    Shared(UnixStream, Option<OwnedFd>),
}

impl Caller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Shared(socket, _) => socket.as_fd(),
        }
    }

    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(bytes),
            Self::Shared(socket, memory) => {
                let (len, files) = receive_with(socket, bytes)?;
                files.into_iter().for_each(|file| *memory = Some(file));
                Ok(len)
            }
        }
    }

    /// Writes a message of the handshake, all or nothing: a connection on which so little is written has room for it.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => {
                let flags = nix::libc::MSG_NOSIGNAL;
                let sent = socket2::SockRef::from(&*stream).send_with_flags(bytes, flags)?;
                if sent == bytes.len() { Ok(()) } else { Err(ErrorKind::WriteZero.into()) }
            }
            Self::Shared(socket, _) => send_with(socket, bytes, &[]),
        }
    }

    fn into_stream(self) -> io::Result<Stream> {
        match self {
            Self::Tcp(stream) => Ok(stream.into()),
            Self::Shared(socket, memory) => {
                let memory = memory.ok_or(ErrorKind::InvalidData)?;
                SharedStream::accept(socket, &memory).map(Stream::from)
            }
        }
    }
}

/// What a stranger has said that it wants of aggregators, and for whom its hello has to be then.
#[derive(Debug)]
struct Wanted {
    greeting: Greeting,
    scope: u64,
}

#[derive(Debug)]
enum Step {
    /// It is to say what it wants of aggregators.
    Greeting,
    /// It is to say who it is.
    Hello(Option<Wanted>),
    /// It is to prove that.
    Proof(Listening, Option<Greeting>),
}

#[derive(Debug)]
struct Stranger {
    caller: Caller,
    address: Address,
    step: Step,
    bytes: [u8; HELLO_BYTES],
    come: usize,
    since: Instant,
    until: Instant,
    watched: bool,
}

/// What has come of a stranger.
enum Fate {
    Stays,
    Goes(Option<HandshakeError>),
    /// It is sent the reason why it goes.
    Turned(String),
    /// It has proven who it is.
    Proven(Proven, Option<Greeting>),
}

/// Whom strangers want to reach.
#[derive(Clone, Copy, Debug)]
pub enum Reached<'r> {
    /// A rank, of so many.
    Rank {
        /// Number of the communicator.
        scope: u64,
        /// Its number.
        own: u32,
        /// Ranks of the communicator.
        ranks: u32,
        /// Key of the handshakes.
        secret: &'r Secret,
    },
    /// Aggregators of any job.
    Aggregators(&'r Key),
}

impl<'r> Reached<'r> {
    const fn secret(self) -> &'r Secret {
        match self {
            Self::Rank { secret, .. } => secret,
            Self::Aggregators(key) => key.secret(),
        }
    }

    const fn first(self) -> Step {
        match self {
            Self::Rank { .. } => Step::Hello(None),
            Self::Aggregators(_) => Step::Greeting,
        }
    }
}

/// Where strangers connect.
#[derive(Clone, Copy, Debug)]
pub struct Host<'h> {
    /// The socket. It does not block.
    pub listener: &'h TcpListener,
    /// The same for processes of this computer.
    pub shared: Option<&'h UnixListener>,
    /// Whom they want to reach.
    pub reached: Reached<'h>,
    /// Longest that one may take to say something.
    pub silence: Duration,
}

impl Stranger {
    /// Takes what has come of the handshake, and nothing behind it. The proof is for another call than the hello:
    /// whoever has only just come is to be one of the strangers before it is a rank.
    fn listen(&mut self, reached: Reached<'_>, now: Instant) -> io::Result<Fate> {
        loop {
            let needed = match self.step {
                Step::Greeting => GREETING_BYTES,
                Step::Hello(_) => HELLO_BYTES,
                Step::Proof(..) => PROOF_BYTES,
            };
            while self.come < needed {
                match self.caller.read(&mut self.bytes[self.come..needed]) {
                    Ok(0) => return Ok(Fate::Goes(None)),
                    Ok(bytes) => self.come += bytes,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Fate::Stays),
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
                if matches!(self.step, Step::Greeting) && !Greeting::may_begin(&self.bytes[..self.come]) {
                    return Ok(Fate::Goes(Some(HandshakeError::Foreign)));
                }
            }
            self.come = 0;
            match (std::mem::replace(&mut self.step, Step::Greeting), reached) {
                (Step::Greeting, Reached::Aggregators(key)) => match wanted(key, &self.bytes) {
                    Ok(wanted) => self.step = Step::Hello(Some(wanted)),
                    Err(Unheard::Stranger) => return Ok(Fate::Goes(Some(HandshakeError::Foreign))),
                    Err(Unheard::Refused(reason)) => return Ok(Fate::Turned(reason)),
                },
                (Step::Hello(None), Reached::Rank { scope, own, secret, .. }) => {
                    let to = (scope, Party::rank(own));
                    let (listening, challenge) = match Listening::new(to, &self.bytes, nonce()?, secret, &keyed_hash) {
                        Ok(answer) => answer,
                        Err(error) => return Ok(Fate::Goes(Some(error))),
                    };
                    self.caller.write(&challenge)?;
                    (self.step, self.until) = (Step::Proof(listening, None), now + PROOF);
                    return Ok(Fate::Stays);
                }
                (Step::Hello(Some(Wanted { greeting, scope })), Reached::Aggregators(key)) => {
                    let to = (scope, Party::aggregator(greeting.terms.aggregator));
                    let answer = Listening::new(to, &self.bytes, nonce()?, key.secret(), &keyed_hash);
                    let answer = answer.and_then(|(listening, challenge)| {
                        let (from, claimed) = (listening.claims(), Party::rank(greeting.rank));
                        let error = HandshakeError::Party { from, to: to.1 };
                        if from == claimed { Ok((listening, challenge)) } else { Err(error) }
                    });
                    let (listening, challenge) = match answer {
                        Ok(answer) => answer,
                        Err(error) => return Ok(Fate::Turned(key.refusal(error))),
                    };
                    let mut answer = [0; ANSWER_BYTES + CHALLENGE_BYTES];
                    let (before, behind) = answer.split_at_mut(ANSWER_BYTES);
                    before.copy_from_slice(&aggregator::answer());
                    behind.copy_from_slice(&challenge);
                    self.caller.write(&answer)?;
                    (self.step, self.until) = (Step::Proof(listening, Some(greeting)), now + PROOF);
                    return Ok(Fate::Stays);
                }
                (Step::Proof(listening, greeting), _) => {
                    let mut proof = [0; PROOF_BYTES];
                    proof.copy_from_slice(&self.bytes[..PROOF_BYTES]);
                    return Ok(match listening.check(&proof, reached.secret(), &keyed_hash) {
                        Ok(proven) => Fate::Proven(proven, greeting),
                        Err(error) => Fate::Goes(Some(error)),
                    });
                }
                // It has begun with what somebody else is to receive.
                (Step::Greeting | Step::Hello(_), _) => return Ok(Fate::Goes(Some(HandshakeError::Foreign))),
            }
        }
    }

    const fn is_silent(&self) -> bool {
        !matches!(self.step, Step::Proof(..))
    }

    fn has_had_time(&self, now: Instant) -> bool {
        now >= self.since + GRACE
    }
}

/// Takes what a stranger wants of aggregators.
fn wanted(key: &Key, bytes: &[u8]) -> Result<Wanted, Unheard> {
    let (bytes, _) = bytes.split_first_chunk().ok_or(Unheard::Stranger)?;
    let greeting = Greeting::decode(bytes)?;
    match key.objection(&greeting) {
        Some(reason) => Err(Unheard::Refused(reason)),
        None => Ok(Wanted { greeting, scope: key.scope(bytes) }),
    }
}

/// A stranger that is to be sent the reason why it is not taken.
#[derive(Debug)]
pub struct Turned {
    stream: TcpStream,
    /// Why, for its user.
    pub reason: String,
}

impl Turned {
    /// Says why not, by a report in clear ([`Report::Refused`](aggregator::Report::Refused)). Nothing else may be sent
    /// on the connection.
    #[must_use]
    pub fn answer(self, report: &[u8]) -> Stream {
        let frame = Frame::new(MESSAGE, 0, report.len());
        let mut stream = Stream::from(self.stream);
        // A new connection has room for so little, and whoever has gone needs no answer.
        let _ = stream.write_vectored(&[IoSlice::new(frame.as_bytes()), IoSlice::new(report)]);
        stream
    }
}

/// A rank that has proven who it is, and is not taken yet.
#[derive(Debug)]
pub struct Arrival {
    /// Its number.
    pub rank: u32,
    /// Where it is.
    pub address: Address,
    /// What it wants of aggregators.
    pub greeting: Option<Greeting>,
    caller: Caller,
    proven: Proven,
}

impl Arrival {
    /// Takes the connection.
    ///
    /// # Errors
    /// It has broken, or its memory cannot be used.
    pub fn accept(self, secret: &Secret) -> io::Result<(Stream, Session)> {
        let Self { caller, proven, .. } = self;
        let mut stream = caller.into_stream()?;
        let (verdict, session) = proven.accept(secret, &keyed_hash);
        // A connection on which so little is written has room for it.
        if stream.write_handshake(&verdict, None)? < verdict.len() {
            return Err(ErrorKind::WriteZero.into());
        }
        Ok((stream, session))
    }

    /// Does not take it. Whoever dials learns why.
    pub(super) fn refuse(self, refusal: Refusal, secret: &Secret) {
        let Self { mut caller, proven, .. } = self;
        // It fails where whoever dials has gone.
        let _ = caller.write(&proven.refuse(refusal, secret, &keyed_hash));
    }
}

/// Those who have connected and have not proven who they are, the oldest first.
#[derive(Debug, Default)]
pub struct Strangers {
    all: VecDeque<Stranger>,
    turned: Vec<Turned>,
    /// Some wait in the system's queue, since there is no room for them.
    stuck: bool,
    /// How many have ever been taken, and how many of them have gone.
    accepted: u64,
    closed: u64,
    /// How many have gone since the log has last said so, and when it has.
    gone: u64,
    logged: Option<Instant>,
}

impl Strangers {
    /// How many have ever come, and how many of them were closed without a word.
    pub const fn counts(&self) -> [u64; 2] {
        [self.accepted, self.closed]
    }

    /// Whether some wait in the system's queue, since there is no room for them: to wait for others would end at once.
    pub const fn is_stuck(&self) -> bool {
        self.stuck
    }

    /// When the time of one is over.
    pub fn deadline(&self) -> Option<Instant> {
        self.all.iter().map(|stranger| stranger.until).min()
    }

    /// Those that are to be sent the reason why they are not taken, since this was last asked.
    pub fn take_turned(&mut self) -> Vec<Turned> {
        std::mem::take(&mut self.turned)
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.all.len()
    }

    /// Takes who has connected since, and what strangers have said. Who has proven to be a rank, in the order in which
    /// they have come.
    pub fn poll(&mut self, host: &Host<'_>, watch: &mut dyn Watch) -> Vec<Arrival> {
        self.accept(host, watch);
        let now = Instant::now();
        let mut arrivals = Vec::new();
        let mut at = 0;
        while at < self.all.len() {
            let stranger = &mut self.all[at];
            let fate = match stranger.listen(host.reached, now) {
                Ok(Fate::Stays) if now >= stranger.until => Fate::Goes(None),
                Ok(fate) => fate,
                Err(_) => Fate::Goes(None),
            };
            if matches!(fate, Fate::Stays) {
                if !std::mem::replace(&mut stranger.watched, true) {
                    watch.watch(stranger.caller.as_fd());
                }
                at += 1;
                continue;
            }
            let Some(stranger) = self.remove(at, watch) else { break };
            match fate {
                Fate::Proven(proven, greeting) => match rank_of(&proven, host.reached) {
                    Some(rank) => {
                        let Stranger { caller, address, .. } = stranger;
                        arrivals.push(Arrival { rank, address, greeting, caller, proven });
                    }
                    None => self.note(stranger.address, Some(HandshakeError::Refused(Refusal::Unknown))),
                },
                Fate::Turned(reason) => self.turn(stranger.caller, reason),
                Fate::Goes(why) => self.note(stranger.address, why),
                Fate::Stays => {}
            }
        }
        arrivals
    }

    fn remove(&mut self, at: usize, watch: &mut dyn Watch) -> Option<Stranger> {
        let stranger = self.all.remove(at)?;
        if stranger.watched {
            watch.forget(stranger.caller.as_fd());
        }
        Some(stranger)
    }

    fn turn(&mut self, caller: Caller, reason: String) {
        // Nobody comes to aggregators in another way.
        if let Caller::Tcp(stream) = caller {
            self.turned.push(Turned { stream, reason });
        }
    }

    fn accept(&mut self, host: &Host<'_>, watch: &mut dyn Watch) {
        self.stuck = false;
        self.accept_from(|| accept_tcp(host.listener), host, watch);
        if let Some(listener) = host.shared {
            self.accept_from(|| accept_shared(listener), host, watch);
        }
    }

    fn accept_from(
        &mut self,
        accept: impl Fn() -> io::Result<(Caller, Address)>,
        host: &Host<'_>,
        watch: &mut dyn Watch,
    ) {
        for _ in 0..MOST_ACCEPTS {
            let now = Instant::now();
            if self.all.len() >= MOST_STRANGERS && !self.all.iter().any(|one| one.is_silent() || one.has_had_time(now))
            {
                // All are at it. The others wait in the system's queue.
                self.stuck = true;
                return;
            }
            match accept() {
                Ok((caller, address)) => {
                    self.accepted += 1;
                    self.admit(caller, address, host, watch);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if is_exhausted(&error) => {
                    // A descriptor of a stranger is worth less than one of a rank.
                    if !self.give_way(watch, true, |_| true) {
                        let next = "raise the limit of open files (`ulimit -n`)";
                        tracing::warn!(%error, next, "a connection cannot be taken");
                        self.stuck = true;
                        return;
                    }
                }
                Err(error) => tracing::debug!(%error, "a connection is refused"),
            }
        }
    }

    fn admit(&mut self, caller: Caller, address: Address, host: &Host<'_>, watch: &mut dyn Watch) {
        let since = Instant::now();
        let mut stranger = Stranger {
            caller,
            address,
            step: host.reached.first(),
            bytes: [0; HELLO_BYTES],
            come: 0,
            since,
            until: since + host.silence,
            watched: false,
        };
        match stranger.listen(host.reached, since) {
            Ok(Fate::Stays) => {}
            Ok(Fate::Turned(reason)) => return self.turn(stranger.caller, reason),
            Ok(Fate::Goes(why)) => return self.note(address, why),
            // The proof is for another call.
            Ok(Fate::Proven(..)) | Err(_) => return self.note(address, None),
        }
        // A rank says who it is as soon as it is connected.
        let speaks = !stranger.is_silent();
        let is_alike = |other: &Stranger| other.address.origin() == address.origin();
        let of_address = self.all.iter().filter(|other| is_alike(other)).count();
        // One that says nothing never takes the place of one that does.
        let gives_way = |other: &Stranger| speaks || other.is_silent();
        let has_room = if of_address >= MOST_OF_ADDRESS {
            self.give_way(watch, speaks, |other| gives_way(other) && is_alike(other))
        } else {
            self.all.len() < MOST_STRANGERS || self.give_way(watch, speaks, gives_way)
        };
        if has_room {
            self.all.push_back(stranger);
        } else {
            self.note(address, None);
        }
    }

    /// The oldest of those that are meant goes, and before it the oldest of those that have said nothing. `at_once`:
    /// such a one even if it has only just come. False: all have only just come.
    fn give_way(&mut self, watch: &mut dyn Watch, at_once: bool, is_meant: impl Fn(&Stranger) -> bool) -> bool {
        let now = Instant::now();
        let is_silent = |one: &Stranger| one.is_silent() && (at_once || one.has_had_time(now)) && is_meant(one);
        let silent = self.all.iter().position(is_silent);
        let at = silent.or_else(|| self.all.iter().position(|one| one.has_had_time(now) && is_meant(one)));
        let Some(stranger) = at.and_then(|at| self.remove(at, watch)) else { return false };
        self.note(stranger.address, None);
        true
    }

    /// Notes that a stranger has gone; the log says so now and then.
    fn note(&mut self, address: Address, why: Option<HandshakeError>) {
        self.gone += 1;
        self.closed += 1;
        let now = Instant::now();
        if self.logged.is_some_and(|logged| now < logged + LOG) {
            return;
        }
        let why = why.map_or_else(|| "it has not proven who it is".to_owned(), |error| error.to_string());
        let count = self.gone;
        tracing::warn!(%address, why, count, "connections of strangers are closed since the last such line, this one \
            last");
        (self.gone, self.logged) = (0, Some(now));
    }
}

/// Which rank has proven itself, if there is that one.
fn rank_of(proven: &Proven, reached: Reached<'_>) -> Option<u32> {
    let Party { role, number } = proven.peer();
    let is_one = |rank: &u32| match reached {
        Reached::Rank { ranks, .. } => *rank < ranks,
        // It is the one that its greeting names.
        Reached::Aggregators(_) => true,
    };
    u32::try_from(number).ok().filter(|rank| role == Role::Rank && is_one(rank))
}

fn accept_tcp(listener: &TcpListener) -> io::Result<(Caller, Address)> {
    let (stream, address) = listener.accept()?;
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    Ok((Caller::Tcp(stream), Address::Tcp(Some(address))))
}

fn accept_shared(listener: &UnixListener) -> io::Result<(Caller, Address)> {
    let (socket, _) = listener.accept()?;
    socket.set_nonblocking(true)?;
    check_user(&socket)?;
    Ok((Caller::Shared(socket, None), Address::Shared))
}

/// Whether the process or the system has no descriptor left.
fn is_exhausted(error: &io::Error) -> bool {
    let code = error.raw_os_error().map(Errno::from_raw);
    matches!(code, Some(Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS | Errno::ENOMEM))
}
