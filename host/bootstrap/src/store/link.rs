//! One connection: what has come and what is to go, without ever blocking.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::StoreError;
use super::frame::{Frame, MAX_OVERHEAD_BYTES, Taken};

/// How long a side that gives up lets the other read why.
const FAREWELL: Duration = Duration::from_secs(1);

/// A connection.
pub(super) struct Link {
    stream: TcpStream,
    /// Where the other side is.
    pub(super) peer: String,
    pub(super) incoming: Vec<u8>,
    outgoing: VecDeque<Arc<[u8]>>,
    /// Bytes of the first of them that have gone.
    gone: usize,
    /// Most bytes of a body that the other side may send.
    limit: usize,
    /// Why nothing more comes.
    pub(super) closed: Option<String>,
}

impl Link {
    pub(super) fn new(stream: TcpStream, peer: String, limit: usize) -> Result<Self, StoreError> {
        let ready = stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true));
        ready.map_err(|error| StoreError::Socket { reason: error.to_string() })?;
        Ok(Self { stream, peer, incoming: Vec::new(), outgoing: VecDeque::new(), gone: 0, limit, closed: None })
    }

    /// Puts bytes behind those that are to go.
    pub(super) fn send(&mut self, bytes: impl Into<Arc<[u8]>>) {
        self.outgoing.push_back(bytes.into());
    }

    /// Whether everything has gone, or cannot any more.
    pub(super) fn is_flushed(&self) -> bool {
        self.outgoing.is_empty() || self.closed.is_some()
    }

    /// Sends and receives what can be at once. Tells whether anything has moved.
    pub(super) fn pump(&mut self) -> bool {
        let written = self.write();
        self.read() || written
    }

    fn write(&mut self) -> bool {
        let mut moved = false;
        while let Some(first) = self.outgoing.front() {
            match self.stream.write(&first[self.gone..]) {
                Ok(count) => {
                    moved |= count > 0;
                    self.gone += count;
                    if self.gone == first.len() {
                        self.outgoing.pop_front();
                        self.gone = 0;
                    } else if count == 0 {
                        break;
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => {
                    // The other side is gone; what it said before can still be read, and reading will tell how it went.
                    self.outgoing.clear();
                    self.gone = 0;
                }
            }
        }
        moved
    }

    fn read(&mut self) -> bool {
        let before = self.incoming.len();
        // More than one message at a time nobody sends; the rest waits in the socket.
        let room = (self.limit + MAX_OVERHEAD_BYTES + 1).saturating_sub(before) as u64;
        if room == 0 || self.closed.is_some() {
            return false;
        }
        match (&self.stream).take(room).read_to_end(&mut self.incoming) {
            Ok(count) if count as u64 == room => {}
            Ok(_) => self.closed = Some("end of the stream".to_owned()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => self.closed = Some(error.to_string()),
        }
        self.incoming.len() > before
    }

    /// The next frame that has come.
    pub(super) fn take(&mut self) -> Taken<Frame> {
        Frame::take(&mut self.incoming, self.limit)
    }
}

/// Ends connections so that the other sides can read what was sent last: a socket that is closed with something unread
/// takes back what has gone out. `late` gives connections that have been made meanwhile, until it says that no more are expected.
pub(super) fn farewell(links: &mut Vec<Link>, mut late: impl FnMut(&mut Vec<Link>) -> bool) {
    let mut pause = Pause::until(FAREWELL);
    loop {
        let mut waiting = late(links);
        for link in links.iter_mut() {
            link.pump();
            link.incoming.clear();
            if link.outgoing.is_empty() && link.closed.is_none() {
                let _ = link.stream.shutdown(Shutdown::Write);
            }
            waiting |= link.closed.is_none();
        }
        if !waiting || pause.is_over() {
            return;
        }
        pause.wait(false);
    }
}

/// A wait with an end: short pauses at first, longer ones later.
pub(super) struct Pause {
    began: Instant,
    timeout: Duration,
    idle: u32,
}

impl Pause {
    pub(super) fn until(timeout: Duration) -> Self {
        Self { began: Instant::now(), timeout, idle: 0 }
    }

    pub(super) fn waited(&self) -> Duration {
        self.began.elapsed()
    }

    pub(super) fn left(&self) -> Duration {
        self.timeout.saturating_sub(self.waited())
    }

    pub(super) fn is_over(&self) -> bool {
        self.left().is_zero()
    }

    /// Lets others run; not at all if something has just moved.
    pub(super) fn wait(&mut self, moved: bool) {
        self.idle = if moved { 0 } else { self.idle + 1 };
        if !moved {
            let pause = Duration::from_micros(if self.idle < 50 { 100 } else { 2000 });
            std::thread::sleep(pause.min(self.left()));
        }
    }
}
