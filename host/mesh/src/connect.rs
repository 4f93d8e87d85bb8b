//! Connecting of ranks, each with its peers: over TCP, or through shared memory where both are processes of one
//! computer.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::time::Duration;

use flexcast_bootstrap::DescriptorsUsedUp;
use flexcast_proto::session::{Party, Secret as SessionSecret};
use flexcast_proto::sparse::Order;
use socket2::SockRef;

use crate::aggregator::{Carrier, Greeting, Key, Terms};
use crate::dial::{Dial, Target};
use crate::error::{Error, Result};
use crate::peer::Peer;
use crate::stream::Stream;

/// Connections that may wait until they are accepted, as those of all ranks at once; the system may allow fewer.
const BACKLOG: i32 = 4096;

pub(crate) fn failed(what: String) -> impl FnOnce(io::Error) -> Error {
    move |source| {
        let next = "see whether a firewall closes the ports between the ranks";
        Error::Socket { what, next: DescriptorsUsedUp::next_step(&source, next), source }
    }
}

/// A socket at this address, on which peers connect.
///
/// # Errors
/// [`Error::Socket`]: the system refuses it.
pub fn listen(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).and_then(deepened).map_err(failed(format!("TCP socket of {address}")))
}

/// A socket with room for as many that wait as ranks may connect at once.
fn deepened(listener: TcpListener) -> io::Result<TcpListener> {
    SockRef::from(&listener).listen(BACKLOG)?;
    Ok(listener)
}

/// What connects ranks: those of the protocol when a communicator is made, others when one of the two has something to
/// send.
#[derive(Debug)]
pub struct Connect {
    /// The own rank.
    pub own: u32,
    /// Number of the communicator: the scope of its handshakes.
    pub communicator: u64,
    /// Key of the handshakes, which all ranks of the communicator have.
    pub secret: SessionSecret,
    /// What all workers of this communicator say alike to aggregators.
    pub proof: u64,
    /// Whether frames over TCP have tags.
    pub tagged: bool,
    /// Where peers connect to this rank ([`listen`]).
    pub listener: TcpListener,
    /// Where each rank listens.
    pub addresses: Vec<SocketAddr>,
    /// How long a peer may take to take a connection. Dials that fail are repeated until then.
    pub timeout: Duration,
    /// Where processes of this computer connect to share memory.
    pub shared: SharedListeners,
    /// Where aggregators are that are no ranks: they have numbers behind those of the ranks.
    pub aggregators: Vec<SocketAddr>,
    /// In which order they add.
    pub order: Order,
    /// What handshakes with them are under.
    pub key: Key,
}

/// Where processes of this computer connect to share memory.
#[derive(Debug, Default)]
pub struct SharedListeners {
    /// The own socket; none: this rank shares no memory.
    pub listener: Option<UnixListener>,
    /// The number of each rank's socket; 0 or missing: it is not of this computer, or shares no memory.
    pub numbers: Vec<u64>,
}

impl Connect {
    /// Begins to connect to a rank, without waiting for it.
    pub(super) fn dial(&self, rank: u32) -> io::Result<(Stream, Dial)> {
        let address = *self.addresses.get(rank as usize).ok_or(io::ErrorKind::AddrNotAvailable)?;
        let shares = self.shared.listener.is_some();
        Dial::begin(Target {
            scope: self.communicator,
            own: Party::rank(self.own),
            peer: Party::rank(rank),
            secret: self.secret.clone(),
            greeting: None,
            address,
            listener: self.shared.numbers.get(rank as usize).copied().filter(|number| shares && *number != 0),
            patience: self.timeout,
        })
    }

    /// Begins to connect to an aggregator that is no rank, without waiting for it. Its number as a peer is behind those
    /// of the ranks.
    pub(super) fn dial_aggregator(&self, aggregator: u32) -> io::Result<Peer> {
        let address = *self.aggregators.get(aggregator as usize).ok_or(io::ErrorKind::AddrNotAvailable)?;
        let (job, workers, aggregators) =
            (self.communicator, self.addresses.len() as u32, self.aggregators.len() as u32);
        let (proof, order, carrier) = (self.proof, self.order, Carrier::Connection);
        let terms = Terms { job, proof, workers, aggregator, aggregators, order, carrier };
        dial_aggregator((self.own, terms), workers + aggregator, address, &self.key, self.timeout)
    }
}

/// Begins to connect a worker to an aggregator that is no rank, without waiting for it. `number`: that of the peer
/// here. `bound`: how long an aggregator may be silent altogether; half of it is for dials that are repeated, so that
/// one that does not answer is named with the reason.
///
/// # Errors
/// The system refuses a socket or random bytes.
pub fn dial_aggregator(
    (own, terms): (u32, Terms),
    number: u32,
    address: SocketAddr,
    key: &Key,
    bound: Duration,
) -> io::Result<Peer> {
    let greeting = Greeting { rank: own, has_secret: key.is_shared(), terms }.encode();
    let (stream, dial) = Dial::begin(Target {
        scope: key.scope(&greeting),
        own: Party::rank(own),
        peer: Party::aggregator(terms.aggregator),
        secret: key.secret().clone(),
        greeting: Some(greeting),
        address,
        listener: None,
        patience: bound / 2,
    })?;
    Ok(Peer::dialled(number, stream, dial, key.is_shared()))
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;

    use super::*;

    /// No firewall has to do with it.
    #[test]
    fn who_has_no_descriptor_left_learns_which_limit_to_raise() {
        let text = |code: i32| failed("TCP socket".to_owned())(io::Error::from_raw_os_error(code)).to_string();
        let [process, system, other] = [Errno::EMFILE, Errno::ENFILE, Errno::EADDRINUSE].map(|code| text(code as i32));
        assert!(process.contains("ulimit -n") && !process.contains("firewall"), "{process}");
        assert!(system.contains("fs.file-max"), "{system}");
        assert!(other.contains("firewall"), "{other}");
    }
}
