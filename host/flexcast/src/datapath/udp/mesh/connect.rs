//! Connecting of ranks, each with its peers: over TCP, or through shared memory where both are processes of one computer.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use flexcast_proto::sparse::Order;
use socket2::{Domain, Protocol, Socket, Type};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::shared::{SharedStream, check_user};
use super::stream::Stream;
use crate::aggregator::wire as aggregator;
use crate::datapath::udp::datagram::Secret;
use crate::datapath::udp::interface::Interface;
use crate::datapath::udp::memory::receive_with;
use crate::datapath::udp::sockets::at;
use crate::error::{Error, Result};

const MAGIC: [u8; 4] = *b"FXTC";
const VERSION: u32 = 2;

/// Longest that one who connects may take to say who it is.
const GREETING: Duration = Duration::from_secs(2);

/// Who connects. The tag is that of the rest under the communicator's key.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Greeting {
    magic: [u8; 4],
    version: U32,
    communicator: U64,
    from: U32,
    to: U32,
    tag: U64,
}

pub(super) const GREETING_BYTES: usize = size_of::<Greeting>();

impl Greeting {
    fn new(communicator: u64, from: u32, to: u32, secret: &Secret) -> Self {
        let mut greeting = Self {
            magic: MAGIC,
            version: VERSION.into(),
            communicator: communicator.into(),
            from: from.into(),
            to: to.into(),
            tag: U64::ZERO,
        };
        greeting.tag = secret.tag([&greeting.as_bytes()[..GREETING_BYTES - 8], &[]]).into();
        greeting
    }
}

pub(super) fn failed(what: String) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Socket { what, source, next: "see whether a firewall closes the ports between the ranks" }
}

/// A socket on which peers connect.
pub(crate) fn listen(interface: &Interface) -> Result<TcpListener> {
    let address = at(interface, interface.address(), 0);
    TcpListener::bind(address).map_err(failed(format!("TCP socket of {address}")))
}

/// What connects ranks: those of the protocol when a communicator is made, others when one of the two has something to send.
#[derive(Debug)]
pub(crate) struct Connect {
    pub(crate) own: u32,
    pub(crate) communicator: u64,
    pub(crate) secret: Secret,
    pub(crate) listener: TcpListener,
    /// Where each rank listens.
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) timeout: Duration,
    pub(crate) doors: Doors,
    /// Where aggregators are that are no ranks: they have numbers behind those of the ranks.
    pub(crate) aggregators: Vec<SocketAddr>,
    /// In which order they add.
    pub(crate) order: Order,
}

/// Where processes of this computer connect to share memory.
#[derive(Debug, Default)]
pub(crate) struct Doors {
    /// The own socket; none: this rank shares no memory.
    pub(crate) listener: Option<UnixListener>,
    /// The number of each rank's socket; 0 or missing: it is not of this computer, or shares no memory.
    pub(crate) numbers: Vec<u64>,
}

/// Begins to connect to an address, without waiting for it.
pub(crate) fn begin_tcp(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    socket.set_tcp_nodelay(true)?;
    match socket.connect(&address.into()) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(nix::libc::EINPROGRESS) => {}
        Err(error) => return Err(error),
    }
    Ok(socket.into())
}

/// Connections that are made when a communicator is.
#[derive(Debug)]
pub(super) struct Met {
    /// To ranks below.
    pub(super) dialled: Vec<(u32, Stream)>,
    /// From ranks that have connected; some may be others than those waited for.
    pub(super) come: Vec<(u32, Stream)>,
    /// Those who have not said who they are yet.
    pub(super) arriving: Arriving,
}

/// Looks again and again instead of waiting.
struct Unwatched;

impl Watch for Unwatched {
    fn watch(&mut self, _: BorrowedFd<'_>) {}

    fn forget(&mut self, _: BorrowedFd<'_>) {}
}

impl Connect {
    /// Connects to `ranks` (ascending): a rank to those below it. Blocks, at most for the timeout.
    pub(super) fn all(&self, ranks: &[u32]) -> Result<Met> {
        let deadline = Instant::now() + self.timeout;
        let mut met = Met { dialled: Vec::new(), come: Vec::new(), arriving: Arriving::default() };
        for rank in ranks.iter().copied().filter(|rank| *rank < self.own) {
            let stream = match self.share(rank) {
                Some(stream) => stream,
                None => self.dial(rank, deadline)?.into(),
            };
            met.dialled.push((rank, stream));
        }
        self.listener.set_nonblocking(true).map_err(failed("TCP socket".to_owned()))?;
        loop {
            let Met { come, arriving, .. } = &mut met;
            arriving.poll(self, &mut Unwatched, |rank, stream| {
                if come.iter().any(|(other, _)| *other == rank) {
                    tracing::warn!(rank, "somebody connects as a rank that is connected");
                } else {
                    come.push((rank, stream));
                }
            });
            let has_come = |rank: u32| come.iter().any(|(other, _)| *other == rank);
            let Some(missing) = ranks.iter().copied().find(|rank| *rank > self.own && !has_come(*rank)) else { break };
            if Instant::now() >= deadline {
                let reason = format!(
                    "has not connected to rank {} within {:?}: see whether it runs, and whether a firewall closes TCP ports between them",
                    self.own, self.timeout
                );
                return Err(Error::Peer { rank: missing, reason });
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        met.come.sort_unstable_by_key(|(rank, _)| *rank);
        Ok(met)
    }

    /// A stream through shared memory to a rank of this computer; none where that is not possible.
    fn share(&self, rank: u32) -> Option<Stream> {
        self.doors.listener.as_ref()?;
        let door = self.doors.numbers.get(rank as usize).copied().filter(|door| *door != 0)?;
        match SharedStream::connect(door, self.greeting(rank).as_bytes()) {
            Ok(stream) => Some(stream.into()),
            Err(error) => {
                tracing::debug!(rank, %error, "no memory is shared: TCP instead");
                None
            }
        }
    }

    fn dial(&self, rank: u32, deadline: Instant) -> Result<TcpStream> {
        let address = self.addresses[rank as usize];
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let connected = TcpStream::connect_timeout(&address, left).and_then(|mut stream| {
            stream.set_write_timeout(Some(left))?;
            stream.write_all(self.greeting(rank).as_bytes())?;
            stream.set_write_timeout(None)?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            Ok(stream)
        });
        connected.map_err(|error| Error::Peer {
            rank,
            reason: format!(
                "is not reached at {address} ({error}): see whether it runs, and whether a firewall closes TCP ports between the ranks"
            ),
        })
    }

    /// What this rank says first to another.
    fn greeting(&self, to: u32) -> Greeting {
        Greeting::new(self.communicator, self.own, to, &self.secret)
    }

    /// Who has said this; none who is a rank of this communicator.
    fn greeted(&self, bytes: &[u8; GREETING_BYTES]) -> Option<u32> {
        let from = Greeting::read_from_bytes(bytes).ok()?.from.get();
        let expected = Greeting::new(self.communicator, from, self.own, &self.secret);
        ((from as usize) < self.addresses.len() && from != self.own && bytes == expected.as_bytes()).then_some(from)
    }

    /// Begins to connect to a rank, without waiting for it: the connection, and what is to be said on it first.
    pub(super) fn begin(&self, rank: u32) -> io::Result<(Stream, Vec<u8>)> {
        match self.share(rank) {
            Some(stream) => Ok((stream, Vec::new())),
            None => self.begin_tcp(rank).map(|(stream, greeting)| (stream.into(), greeting)),
        }
    }

    /// The same over TCP.
    pub(super) fn begin_tcp(&self, rank: u32) -> io::Result<(TcpStream, Vec<u8>)> {
        let apart = rank.checked_sub(self.addresses.len() as u32);
        let address = match apart {
            None => self.addresses.get(rank as usize),
            Some(number) => self.aggregators.get(number as usize),
        };
        let address = *address.ok_or(ErrorKind::AddrNotAvailable)?;
        let socket = begin_tcp(address)?;
        let greeting = match apart {
            None => self.greeting(rank).as_bytes().to_vec(),
            Some(number) => self.greeting_of_worker(number).encode().to_vec(),
        };
        Ok((socket, greeting))
    }

    /// What this rank says first to an aggregator.
    fn greeting_of_worker(&self, aggregator: u32) -> aggregator::Greeting {
        let (job, workers, aggregators) =
            (self.communicator, self.addresses.len() as u32, self.aggregators.len() as u32);
        // Only ranks of the communicator can make it.
        let proof = self.secret.tag([b"worker of an aggregator", &job.to_le_bytes()]);
        let (order, carrier) = (self.order, aggregator::Carrier::Connection);
        let terms = aggregator::Terms { job, proof, workers, aggregator, aggregators, order, carrier };
        aggregator::Greeting { rank: self.own, terms }
    }
}

/// Connections that have been accepted, until they say who they are.
#[derive(Debug, Default)]
pub(super) struct Arriving(Vec<Guest>);

/// A connection on which a greeting comes.
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

    /// The stream, when the greeting is there.
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

#[derive(Debug)]
struct Guest {
    caller: Caller,
    bytes: [u8; GREETING_BYTES],
    come: usize,
    until: Instant,
    /// It is waited for what it says.
    watched: bool,
}

/// Whoever waits for streams to become readable.
pub(crate) trait Watch {
    fn watch(&mut self, stream: BorrowedFd<'_>);

    fn forget(&mut self, stream: BorrowedFd<'_>);
}

/// Most connections that have not said who they are: others are refused meanwhile.
const MOST_GUESTS: usize = 64;

impl Arriving {
    /// Accepts who has connected since, and tells which ranks have said who they are, each with its connection.
    pub(super) fn poll(&mut self, connect: &Connect, watch: &mut dyn Watch, mut tell: impl FnMut(u32, Stream)) {
        while let Ok((stream, _)) = connect.listener.accept() {
            let ready = stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true));
            self.admit(ready.map(|()| Caller::Tcp(stream)));
        }
        while let Some(Ok((socket, _))) = connect.doors.listener.as_ref().map(UnixListener::accept) {
            let ready = socket.set_nonblocking(true).and_then(|()| check_user(&socket));
            self.admit(ready.map(|()| Caller::Shared(socket, None)));
        }
        let mut at = 0;
        while at < self.0.len() {
            match self.0[at].listen() {
                Ok(true) => {
                    let Guest { caller, bytes, watched, .. } = self.0.swap_remove(at);
                    if watched {
                        watch.forget(caller.as_fd());
                    }
                    match connect.greeted(&bytes).map(|rank| (rank, caller.into_stream())) {
                        Some((rank, Ok(stream))) => tell(rank, stream),
                        Some((rank, Err(error))) => tracing::error!(rank, %error, "its memory cannot be shared"),
                        None => tracing::warn!("somebody else connected"),
                    }
                }
                Ok(false) if Instant::now() < self.0[at].until => {
                    let guest = &mut self.0[at];
                    if !std::mem::replace(&mut guest.watched, true) {
                        watch.watch(guest.caller.as_fd());
                    }
                    at += 1;
                }
                Ok(false) | Err(_) => drop(self.0.swap_remove(at)),
            }
        }
    }

    fn admit(&mut self, caller: io::Result<Caller>) {
        match caller {
            Ok(caller) if self.0.len() < MOST_GUESTS => self.0.push(Guest {
                caller,
                bytes: [0; GREETING_BYTES],
                come: 0,
                until: Instant::now() + GREETING,
                watched: false,
            }),
            Ok(_) => tracing::warn!("a connection is refused: {MOST_GUESTS} others have not said who they are"),
            Err(error) => tracing::warn!(%error, "a connection is refused"),
        }
    }
}

impl Guest {
    /// Takes what has come of the greeting, and nothing behind it; whether all of it is there.
    fn listen(&mut self) -> io::Result<bool> {
        while self.come < GREETING_BYTES {
            match self.caller.read(&mut self.bytes[self.come..]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(bytes) => self.come += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connect(own: u32, secret: Secret, listener: &TcpListener, timeout: u64) -> Connect {
        Connect {
            own,
            communicator: 5,
            secret,
            listener: listener.try_clone().unwrap(),
            addresses: vec![listener.local_addr().unwrap(); 3],
            timeout: Duration::from_millis(timeout),
            doors: Doors::default(),
            aggregators: Vec::new(),
            order: Order::Arrival,
        }
    }

    #[test]
    fn strangers_are_turned_away_and_a_rank_that_does_not_come_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (right, other) = (Secret([1, 2, 3, 4]), Secret([1, 2, 3, 5]));
        let soon = || Instant::now() + Duration::from_millis(500);
        // Another key, and somebody who says nothing this protocol knows.
        let _wrong = connect(1, other, &listener, 500).dial(0, soon()).unwrap();
        let mut scanner = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        scanner.write_all(&[0; GREETING_BYTES]).unwrap();
        let _one = connect(1, right, &listener, 500).dial(0, soon()).unwrap();
        let text = connect(0, right, &listener, 200).all(&[1, 2]).map(drop).unwrap_err().to_string();
        assert!(text.contains("rank 2 has not connected to rank 0"), "{text}");
    }

    /// How many are waited for.
    struct Watched(i32);

    impl Watch for Watched {
        fn watch(&mut self, _: BorrowedFd<'_>) {
            self.0 += 1;
        }

        fn forget(&mut self, _: BorrowedFd<'_>) {
            self.0 -= 1;
        }
    }

    #[test]
    fn whoever_connects_later_is_told_apart_from_strangers_and_nothing_behind_a_greeting_is_lost() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let (right, other) = (Secret([1, 2, 3, 4]), Secret([1, 2, 3, 5]));
        let here = connect(0, right, &listener, 500);
        let begin = |own, secret| connect(own, secret, &listener, 500).begin_tcp(0).unwrap();
        let (mut late, greeting) = begin(2, right);
        let (mut wrong, of_other) = begin(1, other);
        // One that takes the name of the rank itself.
        let (mut own, of_own) = begin(0, right);
        let _silent = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        wrong.write_all(&of_other).unwrap();
        own.write_all(&of_own).unwrap();
        let (mut arriving, mut came, mut watched) = (Arriving::default(), Vec::new(), Watched(0));
        let mut parts = [&greeting[..5], &greeting[5..], b"more"].into_iter();
        let until = Instant::now() + Duration::from_secs(5);
        while came.is_empty() && Instant::now() < until {
            if let Some(part) = parts.next() {
                late.write_all(part).unwrap();
            }
            arriving.poll(&here, &mut watched, |rank, stream| came.push((rank, stream)));
            std::thread::sleep(Duration::from_millis(2));
        }
        for part in parts {
            late.write_all(part).unwrap();
        }
        let (rank, stream) = came.pop().unwrap();
        let Stream::Tcp(mut stream) = stream else { panic!("a stream of another kind") };
        assert_eq!((rank, came.len()), (2, 0));
        stream.set_nonblocking(false).unwrap();
        let mut more = [0; 4];
        stream.read_exact(&mut more).unwrap();
        assert_eq!(&more, b"more");
        assert_eq!((arriving.0.len(), watched.0), (1, 1), "the silent one, until its time is over");
    }
}
