//! A process without cards of its own: its end of the socket.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::SigSet;
use nix::sys::socket::{getsockopt, sockopt};

use super::VERSION;
use super::message::{self, Verdict};

/// Time between two attempts to connect.
pub(crate) const AGAIN: Duration = Duration::from_millis(10);
/// Time between two polls for events.
const BETWEEN_POLLS: Duration = Duration::from_micros(200);

/// Why the process with the card does not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// Nobody shares a card there, or not within the time.
    #[error("no process shares its cards at {}: {why}; start it (`flexcast emu exec --share`), or correct the socket's \
        path (attach.socket of a machine file)", socket.display())]
    Nobody {
        /// The socket.
        socket: PathBuf,
        /// What the system said.
        why: String,
    },
    /// It was there, and refused.
    #[error("the process that shares its cards at {} refuses this one: {why}", socket.display())]
    Refused {
        /// The socket.
        socket: PathBuf,
        /// Its reason.
        why: String,
    },
    /// It was there, and is no more.
    #[error("the process that shared its cards at {} has ended, or cut this one off: {why}; all that was made there is \
        gone", socket.display())]
    Ended {
        /// The socket.
        socket: PathBuf,
        /// What the system said.
        why: String,
    },
    /// It is there, and does not answer.
    #[error("the process that shares its cards at {} has not answered for {timeout_ms} ms (attach.timeout_ms): it \
        counts as gone", socket.display())]
    Silent {
        /// The socket.
        socket: PathBuf,
        /// How long it was waited for, in milliseconds.
        timeout_ms: u64,
    },
}

/// The process with the cards, as this one sees it. Once it is lost it stays so.
#[derive(Debug)]
pub struct Remote {
    stream: Mutex<UnixStream>,
    socket: PathBuf,
    timeout: Duration,
    pid: i32,
    lost: OnceLock<Lost>,
    /// The thread that polls for events has been started.
    watched: Mutex<bool>,
}

impl Remote {
    /// Connects, as soon as somebody is there.
    ///
    /// # Errors
    /// [`Lost`]: nobody came within `timeout`, or somebody who refuses.
    pub fn attach(socket: &Path, timeout: Duration) -> Result<Self, Lost> {
        let named = super::server::name(socket);
        let begun = Instant::now();
        let stream = loop {
            match Self::connect(socket, &named, timeout) {
                Ok(Some(stream)) => break stream,
                // It has only just begun.
                Ok(None) if begun.elapsed() < timeout => {}
                Ok(None) => {
                    let why = "it does not serve; see what it says on stderr".to_owned();
                    return Err(Lost::Refused { socket: named, why });
                }
                Err((lost, passes)) if !passes || begun.elapsed() >= timeout => return Err(lost),
                Err(_) => {}
            }
            std::thread::sleep(AGAIN);
        };
        let pid = getsockopt(&stream, sockopt::PeerCredentials).map_or(0, |credentials| credentials.pid());
        Ok(Self {
            stream: Mutex::new(stream),
            socket: named,
            timeout,
            pid,
            lost: OnceLock::new(),
            watched: Mutex::new(false),
        })
    }

    /// Tries once: a connection, or none yet because the other process does not serve yet. Of a failure it returns
    /// whether another attempt may do better.
    fn connect(socket: &Path, named: &Path, timeout: Duration) -> Result<Option<UnixStream>, (Lost, bool)> {
        let refused = |why: String| (Lost::Refused { socket: named.to_owned(), why }, false);
        let stream = UnixStream::connect(socket).map_err(|error| {
            let passes = matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused | io::ErrorKind::WouldBlock
            );
            (Lost::Nobody { socket: named.to_owned(), why: error.to_string() }, passes)
        })?;
        let set = stream.set_read_timeout(Some(timeout)).and_then(|()| stream.set_write_timeout(Some(timeout)));
        set.map_err(|error| refused(error.to_string()))?;
        // What cannot be sent has been refused before: the reason can still be read.
        let _ = message::greet(&stream);
        let (version, verdict) = message::judged(&stream).map_err(|error| refused(error.to_string()))?;
        match verdict {
            Verdict::Welcome => Ok(Some(stream)),
            Verdict::Unready => Ok(None),
            Verdict::Version => {
                Err(refused(format!("its library speaks version {version} and this one {VERSION}: use one for both")))
            }
            Verdict::Full => Err(refused("as many processes as it allows are there (share.clients)".to_owned())),
            Verdict::User => {
                Err(refused("it is another user's, or in a PID namespace that does not have this process".to_owned()))
            }
        }
    }

    /// Where the other process is.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Its number, 0 if it is not known.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Why it is lost, if it is.
    #[must_use]
    pub fn lost(&self) -> Option<&Lost> {
        self.lost.get()
    }

    fn lose(&self, error: &io::Error) -> Lost {
        let socket = self.socket.clone();
        let lost = match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                Lost::Silent { socket, timeout_ms: self.timeout.as_millis() as u64 }
            }
            _ => Lost::Ended { socket, why: error.to_string() },
        };
        self.lost.get_or_init(|| lost).clone()
    }

    fn stream(&self) -> Result<MutexGuard<'_, UnixStream>, Lost> {
        let stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        // Checked behind the lock: an answer that came too late must not be taken for that to another message.
        self.lost.get().map_or(Ok(stream), |lost| Err(lost.clone()))
    }

    /// Has `poll` called again and again, by a thread that leaves signals to the program's threads, until it says
    /// `false`. The first call starts it, and the others do nothing.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn watch(&self, poll: fn() -> bool) -> io::Result<()> {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        if *watched {
            return Ok(());
        }
        let keep = move || {
            let _ = SigSet::all().thread_block();
            while poll() {
                std::thread::sleep(BETWEEN_POLLS);
            }
        };
        std::thread::Builder::new().name("flexcast-events".to_owned()).spawn(keep)?;
        *watched = true;
        Ok(())
    }

    /// Sends a message and waits for the answer.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn call(&self, request: &[u8]) -> Result<Vec<u8>, Lost> {
        let stream = self.stream()?;
        let answer = message::send(&*stream, request).and_then(|()| message::receive(&*stream));
        let closed = || io::Error::new(io::ErrorKind::UnexpectedEof, "the connection was closed");
        answer.and_then(|answer| answer.ok_or_else(closed)).map_err(|error| self.lose(&error))
    }

    /// Sends a message that has no answer.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn send(&self, request: &[u8]) -> Result<(), Lost> {
        let stream = self.stream()?;
        message::send(&*stream, request).map_err(|error| self.lose(&error))
    }
}
