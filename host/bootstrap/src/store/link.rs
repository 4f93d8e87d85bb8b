//! One connection: what has come and what is to go, without ever blocking.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::StoreError;
use super::channel::{Channel, MOST_RECORD_BYTES};
use super::frame::{Frame, MAX_OVERHEAD_BYTES, Taken};

/// How long a side that gives up lets the other read why.
const FAREWELL: Duration = Duration::from_secs(1);

/// Bytes that are to go.
struct Outgoing {
    bytes: Arc<[u8]>,
    /// Of which so many are in the connection's buffer, or have gone.
    taken: usize,
    /// Whether they go as they are, since they were queued before both ends had keys.
    is_clear: bool,
}

/// What carries a connection: a socket, but for tests.
pub(super) trait Stream: Read + Write + Send {
    /// Nothing more goes out.
    fn end(&self);

    /// Whether the other side is a process of this computer.
    fn is_local(&self) -> bool;
}

impl Stream for TcpStream {
    fn end(&self) {
        let _ = self.shutdown(Shutdown::Write);
    }

    fn is_local(&self) -> bool {
        match (self.local_addr(), self.peer_addr()) {
            (Ok(own), Ok(peer)) => own.ip() == peer.ip() || peer.ip().to_canonical().is_loopback(),
            _ => false,
        }
    }
}

/// A connection, in clear at first.
pub(super) struct Link {
    stream: Box<dyn Stream>,
    /// Where the other side is.
    pub(super) peer: String,
    /// What has come, in clear.
    pub(super) incoming: Vec<u8>,
    outgoing: VecDeque<Outgoing>,
    /// The part of it that goes next: a record, if the connection is encrypted, and so many bytes that have gone.
    wire: Vec<u8>,
    gone: usize,
    channel: Option<Channel>,
    /// Most bytes of a body that the other side may send.
    limit: usize,
    /// Why nothing more comes.
    pub(super) closed: Option<String>,
}

impl Link {
    pub(super) fn new(stream: TcpStream, peer: String, limit: usize) -> Result<Self, StoreError> {
        let ready = stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true));
        ready.map_err(|error| StoreError::Socket { reason: error.to_string() })?;
        Ok(Self::over(Box::new(stream), peer, limit))
    }

    /// Over what never blocks.
    pub(super) fn over(stream: Box<dyn Stream>, peer: String, limit: usize) -> Self {
        let (incoming, wire) = (Vec::new(), Vec::new());
        Self { stream, peer, incoming, outgoing: VecDeque::new(), wire, gone: 0, channel: None, limit, closed: None }
    }

    /// Whether the other side is a process of this computer.
    pub(super) fn is_local(&self) -> bool {
        self.stream.is_local()
    }

    /// Encrypts all that is queued from now on, and takes all that has not been read yet as records.
    pub(super) fn secure(&mut self, mut channel: Channel) {
        channel.sealed().append(&mut self.incoming);
        if let Err(reason) = channel.open(&mut self.incoming) {
            self.closed = Some(reason);
        }
        self.channel = Some(channel);
    }

    /// Lets the other side send bodies of so many bytes, once it has said who it is.
    pub(super) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Puts bytes behind those that are to go.
    pub(super) fn send(&mut self, bytes: impl Into<Arc<[u8]>>) {
        let is_clear = self.channel.is_none();
        self.outgoing.push_back(Outgoing { bytes: bytes.into(), taken: 0, is_clear });
    }

    /// Whether everything has gone, or cannot any more.
    pub(super) fn is_flushed(&self) -> bool {
        (self.outgoing.is_empty() && self.wire.is_empty()) || self.closed.is_some()
    }

    /// Sends and receives what can be at once. Returns whether anything has moved.
    pub(super) fn pump(&mut self) -> bool {
        let written = self.write();
        self.read() || written
    }

    /// Fills the connection's buffer, if it is empty and anything is to go.
    fn fill(&mut self) {
        let Some(first) = self.outgoing.front_mut().filter(|_| self.wire.is_empty()) else { return };
        let rest = &first.bytes[first.taken..];
        match &mut self.channel {
            Some(channel) if !first.is_clear => match channel.seal(rest, &mut self.wire) {
                Ok(taken) => first.taken += taken,
                Err(reason) => {
                    self.closed = Some(reason);
                    self.wire.clear();
                    return self.outgoing.clear();
                }
            },
            _ => {
                let taken = rest.len().min(MOST_RECORD_BYTES);
                self.wire.extend(&rest[..taken]);
                first.taken += taken;
            }
        }
        if first.taken == first.bytes.len() {
            self.outgoing.pop_front();
        }
    }

    fn write(&mut self) -> bool {
        let mut moved = false;
        loop {
            self.fill();
            if self.wire.is_empty() {
                break;
            }
            match self.stream.write(&self.wire[self.gone..]) {
                Ok(0) => break,
                Ok(count) => {
                    moved = true;
                    self.gone += count;
                    if self.gone == self.wire.len() {
                        self.wire.clear();
                        self.gone = 0;
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => {
                    // The other side is gone; what it sent before can still be read, and reading shows how it went.
                    self.outgoing.clear();
                    self.wire.clear();
                    self.gone = 0;
                }
            }
        }
        if self.wire.is_empty() {
            // Most connections are silent most of the time.
            self.wire = Vec::new();
        }
        moved
    }

    fn read(&mut self) -> bool {
        // More than one message at a time nobody sends; the rest waits in the socket.
        let most = self.limit + MAX_OVERHEAD_BYTES + 1;
        let (mut moved, mut is_drained) = (false, false);
        while self.closed.is_none() && !is_drained && self.incoming.len() < most {
            let (into, room) = match &mut self.channel {
                Some(channel) => {
                    let room = channel.room();
                    (channel.sealed(), room)
                }
                None => {
                    let room = most - self.incoming.len();
                    (&mut self.incoming, room)
                }
            };
            let before = into.len();
            match Read::take(&mut *self.stream, room as u64).read_to_end(into) {
                Ok(count) if count == room => {}
                Ok(_) => self.closed = Some("end of the stream".to_owned()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => is_drained = true,
                Err(error) => self.closed = Some(error.to_string()),
            }
            moved |= into.len() > before;
            if let Some(channel) = &mut self.channel
                && let Err(reason) = channel.open(&mut self.incoming)
            {
                self.closed = Some(reason);
            }
        }
        moved
    }

    /// The next frame that has come.
    pub(super) fn take(&mut self) -> Taken<Frame> {
        Frame::take(&mut self.incoming, self.limit)
    }
}

/// Ends connections so that the other sides can read what was sent last: a socket that is closed with something unread
/// takes back what has gone out. `late` gives connections that have been made meanwhile, until it says that no more are
/// expected.
pub(super) fn farewell(links: &mut Vec<Link>, mut late: impl FnMut(&mut Vec<Link>) -> bool) {
    let mut pause = Pause::until(FAREWELL);
    loop {
        let is_expecting = late(links);
        for link in links.iter_mut() {
            link.pump();
            link.incoming.clear();
            if link.is_flushed() && link.closed.is_none() {
                link.stream.end();
            }
        }
        // Their file descriptors may be all that late ones can have.
        links.retain(|link| link.closed.is_none());
        if (!is_expecting && links.is_empty()) || pause.is_over() {
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
