//! The process that has the cards: a thread that lets others in, and one for each of them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::SigSet;
use nix::sys::socket::{getsockopt, sockopt};
use nix::unistd::Uid;

use super::VERSION;
use super::message::{self, Verdict};
use super::socket_file::SocketFile;
use crate::process::Process;

/// Longest that a process may take for its greeting, so that one that says nothing does not take another's place for
/// long.
const GREETING: Duration = Duration::from_secs(2);
/// Longest between the first byte of a message and its last, in either direction.
const MESSAGE: Duration = Duration::from_secs(10);
/// A process whose end cannot be watched is checked this often.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// What a message of another process leads to.
#[derive(Debug)]
pub enum Reply {
    /// It is answered.
    Answer(Vec<u8>),
    /// There is nothing to say.
    Nothing,
    /// It was none: the process is cut off, for this reason.
    End(String),
}

/// What another process has of the cards. When this is dropped the process is gone, and all that it had is taken back.
pub trait Session: Send {
    /// A message has come. Messages of one process come one after the other.
    fn handle(&mut self, message: &[u8]) -> Reply;
}

/// A process that has come.
#[derive(Debug)]
pub struct Client {
    /// Its number.
    pub pid: i32,
    /// Readable once it has ended; none on old systems.
    pub end: Option<OwnedFd>,
}

type Sessions = fn(Client) -> Result<Box<dyn Session>, String>;

static SESSIONS: OnceLock<Sessions> = OnceLock::new();
static COUNTERS: Counters = Counters::new();

/// Says who serves other processes: what makes the session of one. The first caller decides.
pub fn serve_with(sessions: fn(Client) -> Result<Box<dyn Session>, String>) {
    SESSIONS.get_or_init(|| sessions);
}

/// Processes that have come to this one for its cards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShareCounters {
    /// Let in.
    pub welcomed: u64,
    /// Of those, gone again.
    pub ended: u64,
    /// Refused: of another user, or one that cannot be determined.
    pub other_users: u64,
    /// Refused: no greeting, or of another version.
    pub strangers: u64,
    /// Refused: as many as may be were there.
    pub too_many: u64,
    /// Cut off: what they sent was no message, or they took too long for one.
    pub cut_off: u64,
}

#[derive(Debug)]
struct Counters {
    welcomed: AtomicU64,
    ended: AtomicU64,
    other_users: AtomicU64,
    strangers: AtomicU64,
    too_many: AtomicU64,
    cut_off: AtomicU64,
}

impl Counters {
    const fn new() -> Self {
        Self {
            welcomed: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            other_users: AtomicU64::new(0),
            strangers: AtomicU64::new(0),
            too_many: AtomicU64::new(0),
            cut_off: AtomicU64::new(0),
        }
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Where this process lets others in.
static PLACE: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Takes away the socket of this process, which is about to end: the thread that has it is not asked. Of a process that
/// is killed the socket stays, and the next one replaces it.
pub(crate) fn withdraw() {
    let place = PLACE.lock().unwrap_or_else(PoisonError::into_inner).take();
    // Somebody else may have taken it away.
    let _ = place.map(std::fs::remove_file);
}

/// What this process has counted so far.
#[must_use]
pub fn share_counters() -> ShareCounters {
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    ShareCounters {
        welcomed: get(&COUNTERS.welcomed),
        ended: get(&COUNTERS.ended),
        other_users: get(&COUNTERS.other_users),
        strangers: get(&COUNTERS.strangers),
        too_many: get(&COUNTERS.too_many),
        cut_off: get(&COUNTERS.cut_off),
    }
}

/// The socket at which other processes come in.
#[derive(Debug)]
pub(crate) struct Server {
    socket: SocketFile,
    clients: usize,
}

impl Server {
    /// Takes the socket's place in the file system.
    ///
    /// # Errors
    /// Another process has it, or it cannot be made.
    pub(crate) fn bind(path: &Path, clients: usize) -> io::Result<Self> {
        Ok(Self { socket: SocketFile::bind(path)?, clients })
    }

    /// Lets processes in from now on, by a thread that lives as long as the process and leaves signals to the program's
    /// threads.
    ///
    /// # Errors
    /// The system has no thread left.
    pub(crate) fn start(self) -> io::Result<()> {
        *PLACE.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.socket.path().to_owned());
        let there = Arc::new(AtomicUsize::new(0));
        let serve = move || {
            let _ = SigSet::all().thread_block();
            loop {
                match self.socket.listener.accept() {
                    Ok((stream, _)) => self.admit(stream, &there),
                    // No descriptor left, for instance: others may end.
                    Err(_) => std::thread::sleep(Duration::from_millis(10)),
                }
            }
        };
        std::thread::Builder::new().name("flexcast-share".to_owned()).spawn(serve).map(drop)
    }

    /// Gives a connection a thread of its own, unless it must not be let in.
    fn admit(&self, stream: UnixStream, there: &Arc<AtomicUsize>) {
        let _ = stream.set_read_timeout(Some(GREETING));
        let _ = stream.set_write_timeout(Some(GREETING));
        let Some(pid) = same_user(&stream) else {
            refuse(&stream, Verdict::User, &COUNTERS.other_users, "a process of another user");
            return;
        };
        if there.load(Ordering::Relaxed) >= self.clients {
            let text = format!("process {pid}: {} are there already (share.clients)", self.clients);
            refuse(&stream, Verdict::Full, &COUNTERS.too_many, &text);
            return;
        }
        there.fetch_add(1, Ordering::Relaxed);
        let counted = Arc::clone(there);
        let serve = move || {
            let _ = SigSet::all().thread_block();
            // A panic in the machine ends this process's session alone.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| attend(&stream, pid)));
            counted.fetch_sub(1, Ordering::Relaxed);
        };
        if std::thread::Builder::new().name(format!("flexcast-{pid}")).spawn(serve).is_err() {
            there.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// The number of the process at the other end, if it is of the same user.
fn same_user(stream: &UnixStream) -> Option<i32> {
    let credentials = getsockopt(stream, sockopt::PeerCredentials).ok()?;
    (credentials.uid() == Uid::effective().as_raw() && credentials.pid() > 0).then(|| credentials.pid())
}

fn refuse(stream: &UnixStream, verdict: Verdict, counter: &AtomicU64, why: &str) {
    count(counter);
    tracing::warn!(why, "a process was refused that asked for the cards of this one");
    let _ = message::judge(stream, verdict);
}

/// From a process's greeting to its end.
fn attend(stream: &UnixStream, pid: i32) {
    match message::greeted(stream) {
        Ok(VERSION) => {}
        Ok(version) => {
            let text = format!("process {pid} speaks version {version}, this one {VERSION}");
            return refuse(stream, Verdict::Version, &COUNTERS.strangers, &text);
        }
        Err(error) => {
            let text = format!("process {pid} has not said who it is: {error}");
            return refuse(stream, Verdict::Version, &COUNTERS.strangers, &text);
        }
    }
    let end = getsockopt(stream, sockopt::PeerPidfd).ok();
    let client = Client { pid, end: end.as_ref().and_then(|end| end.try_clone().ok()) };
    let session = sessions().ok_or_else(|| "nobody serves here".to_owned()).and_then(|sessions| sessions(client));
    let mut session = match session {
        Ok(session) => session,
        Err(why) => return refuse(stream, Verdict::Unready, &COUNTERS.strangers, &why),
    };
    let _ = stream.set_read_timeout(Some(MESSAGE));
    let _ = stream.set_write_timeout(Some(MESSAGE));
    if message::judge(stream, Verdict::Welcome).is_err() {
        return;
    }
    count(&COUNTERS.welcomed);
    let watched = Watched { process: Process::of(pid.cast_unsigned()), end };
    if let Err(why) = converse(stream, &watched, &mut *session) {
        count(&COUNTERS.cut_off);
        tracing::warn!(pid, why, "a process that used the cards of this one was cut off");
    }
    drop(session);
    count(&COUNTERS.ended);
}

/// Who serves: the program's first call says so.
fn sessions() -> Option<Sessions> {
    let begun = Instant::now();
    loop {
        match SESSIONS.get() {
            None if begun.elapsed() < GREETING => std::thread::sleep(Duration::from_millis(1)),
            found => return found.copied(),
        }
    }
}

/// Answers messages until the process closes its end, or ends itself.
///
/// # Errors
/// What it sends is no message.
fn converse(stream: &UnixStream, watched: &Watched, session: &mut dyn Session) -> Result<(), String> {
    while watched.wait_for(stream.as_fd()) {
        let message = match message::receive(stream) {
            Ok(Some(message)) => message,
            Ok(None) => break,
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => break,
            Err(error) => return Err(format!("its message cannot be read: {error}")),
        };
        match session.handle(&message) {
            Reply::Answer(answer) => {
                if let Err(error) = message::send(stream, &answer) {
                    let gone = matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset);
                    return if gone { Ok(()) } else { Err(format!("it takes no answers: {error}")) };
                }
            }
            Reply::Nothing => {}
            Reply::End(why) => return Err(why),
        }
    }
    Ok(())
}

/// A process whose end is noticed although a child of it may still hold the socket.
struct Watched {
    process: Process,
    /// Readable when it has ended; none on old systems.
    end: Option<OwnedFd>,
}

impl Watched {
    /// Waits for something to read. `false`: the process has ended.
    fn wait_for(&self, socket: BorrowedFd<'_>) -> bool {
        loop {
            let mut polls = vec![PollFd::new(socket, PollFlags::POLLIN)];
            polls.extend(self.end.as_ref().map(|end| PollFd::new(end.as_fd(), PollFlags::POLLIN)));
            let most =
                if self.end.is_some() { PollTimeout::NONE } else { PollTimeout::from(CHECK_EVERY.as_millis() as u16) };
            let ready = poll(&mut polls, most).unwrap_or(0);
            let ended = polls.get(1).and_then(PollFd::any).unwrap_or(false);
            // With a closed end as well: what was sent before it ended is of no use to anybody.
            if ended || (self.end.is_none() && self.process.is_known() && self.process.has_ended()) {
                return false;
            }
            if ready > 0 {
                return true;
            }
        }
    }
}

/// The socket as messages name it.
pub(crate) fn name(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}
