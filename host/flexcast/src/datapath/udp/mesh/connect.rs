//! Connecting of ranks over TCP, each with its peers.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::datapath::udp::datagram::Secret;
use crate::datapath::udp::interface::Interface;
use crate::datapath::udp::sockets::at;
use crate::error::{Error, Result};

const MAGIC: [u8; 4] = *b"FXTC";
const VERSION: u32 = 2;

/// Connections that a listener takes and that are not of this communicator, before it gives up.
const MOST_STRANGERS: u32 = 1000;
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

/// What connects ranks.
pub(crate) struct Connect<'c> {
    pub(crate) own: u32,
    pub(crate) communicator: u64,
    pub(crate) secret: &'c Secret,
    pub(crate) listener: &'c TcpListener,
    /// Where each rank listens.
    pub(crate) addresses: &'c [SocketAddr],
    pub(crate) timeout: Duration,
}

impl Connect<'_> {
    /// Connects to `ranks` (ascending): a rank to those below it. Blocks, at most for the timeout.
    pub(super) fn all(&self, ranks: &[u32]) -> Result<Vec<(u32, TcpStream)>> {
        let deadline = Instant::now() + self.timeout;
        let mut peers = Vec::with_capacity(ranks.len());
        for rank in ranks.iter().copied().filter(|rank| *rank < self.own) {
            peers.push((rank, self.dial(rank, deadline)?));
        }
        let mut above: Vec<u32> = ranks.iter().copied().filter(|rank| *rank > self.own).collect();
        let mut strangers = 0;
        self.listener.set_nonblocking(true).map_err(failed("TCP socket".to_owned()))?;
        while let Some(missing) = above.first().copied() {
            match self.admit(&above) {
                Ok(Some((rank, stream))) => {
                    above.retain(|other| *other != rank);
                    peers.push((rank, stream));
                }
                Ok(None) => {
                    if Instant::now() >= deadline {
                        let reason = format!(
                            "has not connected to rank {} within {:?}: see whether it runs, and whether a firewall closes TCP ports between them",
                            self.own, self.timeout
                        );
                        return Err(Error::Peer { rank: missing, reason });
                    }
                    std::thread::sleep(Duration::from_micros(200));
                }
                Err(error) => {
                    tracing::warn!(%error, "somebody else connected");
                    strangers += 1;
                    if strangers > MOST_STRANGERS {
                        let reason =
                            format!("is not among {MOST_STRANGERS} that have connected: close the port to others");
                        return Err(Error::Peer { rank: missing, reason });
                    }
                }
            }
        }
        peers.sort_unstable_by_key(|(rank, _)| *rank);
        for (rank, stream) in &peers {
            let ready = stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true));
            ready.map_err(failed(format!("connection to rank {rank}")))?;
        }
        Ok(peers)
    }

    fn dial(&self, rank: u32, deadline: Instant) -> Result<TcpStream> {
        let address = self.addresses[rank as usize];
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let connected = TcpStream::connect_timeout(&address, left).and_then(|mut stream| {
            stream.set_write_timeout(Some(left))?;
            stream.write_all(Greeting::new(self.communicator, self.own, rank, self.secret).as_bytes())?;
            stream.set_write_timeout(None)?;
            Ok(stream)
        });
        connected.map_err(|error| Error::Peer {
            rank,
            reason: format!(
                "is not reached at {address} ({error}): see whether it runs, and whether a firewall closes TCP ports between the ranks"
            ),
        })
    }

    /// Admits the next of those who have connected, if there is one: it must be one of `ranks`.
    fn admit(&self, ranks: &[u32]) -> io::Result<Option<(u32, TcpStream)>> {
        let mut stream = match self.listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => return Ok(None),
            Err(error) => return Err(error),
        };
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(GREETING))?;
        let mut bytes = [0; GREETING_BYTES];
        stream.read_exact(&mut bytes)?;
        stream.set_read_timeout(None)?;
        let told = Greeting::read_from_bytes(&bytes).map(|greeting| greeting.from.get()).unwrap_or(u32::MAX);
        let expected = Greeting::new(self.communicator, told, self.own, self.secret);
        if bytes != expected.as_bytes() || !ranks.contains(&told) {
            return Err(io::Error::new(ErrorKind::PermissionDenied, "not a rank of this communicator"));
        }
        Ok(Some((told, stream)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_are_turned_away_and_a_rank_that_does_not_come_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addresses = [listener.local_addr().unwrap(); 3];
        let secret = Secret([1, 2, 3, 4]);
        let connect = |own, secret, timeout| Connect {
            own,
            communicator: 5,
            secret,
            listener: &listener,
            addresses: &addresses,
            timeout: Duration::from_millis(timeout),
        };
        // Another key, and somebody who says nothing this protocol knows.
        let other = Secret([1, 2, 3, 5]);
        let _wrong = connect(1, &other, 500).dial(0, Instant::now() + Duration::from_millis(500)).unwrap();
        let mut scanner = TcpStream::connect(addresses[0]).unwrap();
        scanner.write_all(&[0; GREETING_BYTES]).unwrap();
        let right = connect(1, &secret, 500).dial(0, Instant::now() + Duration::from_millis(500)).unwrap();
        let text = connect(0, &secret, 200).all(&[1, 2]).map(drop).unwrap_err().to_string();
        assert!(text.contains("rank 2 has not connected to rank 0"), "{text}");
        drop(right);
    }
}
