//! A rank among peers that send anything: what the fuzz target `ethernet` runs, over the loopback interface.
//!
//! The rank has two peers, one at the other end of a socket, one of shared memory, which know the communicator's key:
//! so what they send comes as far as it can. Whatever that is, operations end in time, well or with a typed error, give
//! their buffers back, and nothing panics.

use crate::api::call::{Gather, Reduce, ReduceScatter, Scatter};
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use flexcast_mesh::aggregator::Key;
use flexcast_mesh::hostile::OtherEnd;
use flexcast_mesh::{Connect, Mesh, SharedListeners, Stream, listen};
use flexcast_proto::RankInfo;

use crate::api::communicator::Communicator;
use crate::api::request::Request;
use crate::carrier::Parts;
use crate::carrier::endpoint::Endpoint;
use crate::carrier::udp::carrier::{Links, UdpCarrier};
use crate::carrier::udp::datagram::{Codec, HEADER_BYTES, Kind as Of, Secret};
use crate::carrier::udp::interface::{Interface, UdpOptions};
use crate::carrier::udp::part::{Part, fitted};
use crate::carrier::udp::sockets::{Sockets, at};
use crate::carrier::udp::waiter::SocketWaiter;
use crate::error::{Error, Result};
use crate::op::config::{Config, Control};
use crate::op::outcome::Failed;
use crate::op::selection::Selection;
use crate::op::service_options::ControlReport;
use crate::op::tuning::{MOST_SUBGROUPS, Tuning};
use crate::plan::footprint::Footprint;
use flexcast_reduce::{DataType, Operator, Reduction};

const RANKS: u32 = 3;
/// The rank that is tried: both others are its neighbours.
const OWN: u32 = 1;
const COMMUNICATOR: u64 = 0x0077_1234_5678_9ABC;
const SECRET: Secret = Secret([1, 2, 3, 4]);
/// Most things that peers do.
const MOST_DEEDS: u32 = 64;
const CHUNK_BYTES: u32 = 1000;
/// Waits are short: a fuzzer has no time.
const TIMEOUT: Duration = Duration::from_millis(4);
const SUM: Reduction = Reduction::of(Operator::Sum, DataType::U32).expect("sums of numbers");

fn interface() -> Option<&'static Interface> {
    static INTERFACE: OnceLock<Option<Interface>> = OnceLock::new();
    INTERFACE.get_or_init(|| Interface::open(&UdpOptions::default().interface("lo")).ok()).as_ref()
}

/// What is left of an input; past its end everything is zero.
struct Input<'d>(&'d [u8]);

impl<'d> Input<'d> {
    fn u8(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn word(&mut self) -> u32 {
        u32::from_le_bytes([self.u8(), self.u8(), self.u8(), self.u8()])
    }

    /// A number that is mostly small.
    fn number(&mut self) -> u32 {
        match self.u8() {
            0xFF => self.word(),
            0xFE => u32::from(self.u8()) << 8 | u32::from(self.u8()),
            small => small.into(),
        }
    }

    fn bytes(&mut self, most: usize) -> &'d [u8] {
        let (bytes, rest) = self.0.split_at(most.min(self.0.len()));
        self.0 = rest;
        bytes
    }
}

/// The other end of a connection.
enum Other {
    Socket(UnixStream),
    Shared(OtherEnd),
}

impl Other {
    fn write(&mut self, bytes: &[u8]) {
        match self {
            // It fails where this end is trusted no more.
            Self::Socket(socket) => _ = socket.write(bytes),
            Self::Shared(end) => end.write(bytes),
        }
    }
}

/// The rank, and all that can send to it.
struct World {
    communicator: Communicator,
    others: [Option<Other>; 2],
    codecs: [Codec; 2],
    udp: UdpSocket,
    group: SocketAddr,
    own: SocketAddr,
}

impl World {
    fn new(interface: &Interface, selection: u8, eager_bytes: u32) -> Result<Self> {
        let failed = |what: &str, source| Error::Socket { what: what.to_owned(), source, next: "try again" };
        let place = RankInfo::new(OWN, RANKS)?;
        let config = Config::for_interface(interface).chunk_bytes(CHUNK_BYTES).eager_bytes(eager_bytes);
        let config = config.barrier_timeout(TIMEOUT).recovery_timeout(TIMEOUT);
        let config = config.algorithm(Selection::ALL[usize::from(selection) % Selection::ALL.len()]);
        let own = Sockets::own(interface)?;
        let own_address = own.local_addr().map_err(|error| failed("address", error))?.as_socket();
        let group = interface.group(COMMUNICATOR);
        let sockets = Sockets::new(interface, own, (Sockets::members(interface, group, 1, true)?, group), true)?;
        let pair = || -> std::io::Result<_> {
            let (far, near) = UnixStream::pair()?;
            far.set_nonblocking(true)?;
            near.set_nonblocking(true)?;
            // A stream of bytes like any other.
            let near = TcpStream::from(OwnedFd::from(near));
            let (end, shared) = OtherEnd::pair()?;
            Ok((far, near, end, shared))
        };
        let (far, near, end, shared) = pair().map_err(|error| failed("pair of sockets", error))?;
        let listener = listen(at(interface, interface.address(), 0))?;
        listener.set_nonblocking(true).map_err(|error| failed("TCP socket", error))?;
        let nobody = at(interface, interface.address(), 1);
        let connect = Connect {
            own: OWN,
            communicator: COMMUNICATOR,
            secret: SECRET.of_handshakes(),
            proof: SECRET.proof(COMMUNICATOR),
            tagged: false,
            listener,
            addresses: vec![nobody; RANKS as usize],
            timeout: TIMEOUT,
            shared: SharedListeners::default(),
            aggregators: Vec::new(),
            order: flexcast_proto::sparse::Order::Arrival,
            key: Key::of(None),
        };
        let mesh = Mesh::of(connect, vec![(0, Stream::from(near)), (2, Stream::from(shared))]);
        let links = Links {
            sockets,
            fanout: None,
            mesh,
            receive_bytes: 1 << 20,
            peers: vec![nobody; RANKS as usize],
            secret: Some(SECRET),
            tuning: Tuning::ethernet(),
            probing: None,
        };
        let waiter = SocketWaiter::new()?;
        let config = fitted(config, interface);
        let engine = UdpCarrier::engine(interface.clone(), place, COMMUNICATOR, config, links, waiter.clone())?;
        let (endpoint, footprint) = (Endpoint::of(engine.carrier.interface().clone()), Footprint::default());
        let parts = Parts { endpoint, datapath: Box::new(engine), waiter: Arc::new(waiter), footprint };
        let communicator = Communicator::of(parts, ControlReport::of(Control::Host))?;
        let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).map_err(|error| failed("UDP socket", error))?;
        let set = socket2::SockRef::from(&udp).set_multicast_if_v4(&Ipv4Addr::LOCALHOST);
        set.map_err(|error| failed("UDP socket", error))?;
        let others = [Some(Other::Socket(far)), Some(Other::Shared(end))];
        let codecs = [0, 2].map(|rank| Codec::new(COMMUNICATOR, rank, Some(SECRET)));
        let (group, own) = (SocketAddr::new(group, interface.port()), own_address.unwrap_or(nobody));
        Ok(Self { communicator, others, codecs, udp, group, own })
    }

    /// Calls an operation on this rank.
    fn call(&self, which: u8, bytes: usize) -> Result<Request, Box<Failed>> {
        let (communicator, ranks) = (&self.communicator, RANKS as usize);
        let buffer = |bytes: usize| communicator.endpoint().buffer(bytes).map_err(|error| Box::new(Failed::of(error)));
        let root = u32::from(which >> 4) % RANKS;
        match which & 15 {
            0..3 => communicator.broadcast(buffer(bytes)?, root),
            3..6 => communicator.allgather(buffer(bytes)?, buffer(bytes * ranks)?),
            6 => communicator.allreduce(buffer(bytes / 4 * 4)?, buffer(bytes / 4 * 4)?, SUM),
            7 => communicator.post(Reduce::to(root, SUM).buffers(buffer(bytes / 4 * 4)?, buffer(bytes / 4 * 4)?)),
            8 => communicator
                .post(ReduceScatter::new(SUM).buffers(buffer(bytes / 4 * 4 * ranks)?, buffer(bytes / 4 * 4)?)),
            9 | 10 => communicator.alltoall(buffer(bytes * ranks)?, buffer(bytes * ranks)?),
            11 => communicator
                .post(Gather::to(root).buffers(buffer(bytes)?, buffer(if root == OWN { bytes * ranks } else { 0 })?)),
            12 => communicator.post(
                Scatter::from(root).buffers(buffer(if root == OWN { bytes * ranks } else { 0 })?, buffer(bytes)?),
            ),
            _ => communicator.barrier(),
        }
    }

    /// A peer does something.
    fn act(&mut self, input: &mut Input<'_>) {
        let which = input.u8();
        let peer = usize::from(which >> 7);
        match which & 15 {
            0 => {
                let most = input.number() as usize;
                self.write(peer, input.bytes(most));
            }
            // A frame of any kind and operation: its length is right.
            1..4 => {
                let (kind, operation, most) = (input.u8() % 7, input.number(), input.number() as usize);
                let contents = input.bytes(most);
                self.frame(peer, kind, operation, contents);
            }
            // A control message whose beginning is right.
            4..8 => {
                let (kind, operation) = (input.u8() % 9, input.number());
                let rest = input.bytes(28);
                let mut message = [0; 48];
                message[..6].copy_from_slice(&[b'F', b'X', b'C', b'M', flexcast_proto::wire::VERSION, kind]);
                message[8..16].copy_from_slice(&COMMUNICATOR.to_le_bytes());
                message[16..20].copy_from_slice(&operation.to_le_bytes());
                message[20..20 + rest.len()].copy_from_slice(rest);
                let most = input.number() as usize;
                let data = input.bytes(most);
                self.frame(peer, 1, operation, &[&message[..], data].concat());
            }
            // Datagrams with a right tag, or as they come.
            8..12 => {
                let (kind, operation, number) = (input.u8(), input.number(), input.number());
                let kind = match kind % 4 {
                    0 => Of::Data { psn: number },
                    1 => Of::End { subgroup: kind / 4 % MOST_SUBGROUPS as u8, chunks: number },
                    kind => Of::Acknowledgement { chunks: number, overflowed: kind == 3 },
                };
                let len = input.number() as usize * usize::from(matches!(kind, Of::Data { .. })) * 8 % 9000;
                let mut bytes = vec![0; HEADER_BYTES + len];
                self.codecs[peer].encode(operation, kind, &vec![0x5A; len], &mut bytes);
                self.datagram(which, &bytes);
            }
            12 => {
                let most = input.number() as usize;
                self.datagram(which, input.bytes(most));
            }
            13 => {
                if let Some(Other::Shared(end)) = &self.others[1] {
                    let (word, value) = (input.u8(), u64::from(input.word()));
                    let is_odd = word & 0x80 != 0;
                    end.poke(word, if is_odd { value << 32 | value } else { value });
                }
            }
            14 => self.others[peer] = None,
            _ => {}
        }
        // It fails with a typed error, which whoever waits gets.
        let _ = self.communicator.progress();
    }

    fn write(&mut self, peer: usize, bytes: &[u8]) {
        if let Some(other) = &mut self.others[peer] {
            other.write(bytes);
        }
    }

    fn frame(&mut self, peer: usize, kind: u8, operation: u32, contents: &[u8]) {
        let head = [&(contents.len() as u32).to_le_bytes()[..], &[kind, 0, 0, 0], &operation.to_le_bytes(), &[0; 16]];
        self.write(peer, &[&head.concat()[..], contents].concat());
    }

    fn datagram(&self, which: u8, bytes: &[u8]) {
        let _ = self.udp.send_to(bytes, if which & 0x40 == 0 { self.group } else { self.own });
    }
}

/// Runs operations of a rank while its peers do what an input says.
///
/// # Panics
/// The library has a fault.
pub fn peers(data: &[u8]) {
    let mut input = Input(data);
    let (selection, eager) = (input.u8(), input.u8());
    let Some(interface) = interface() else { return };
    let Ok(mut world) = World::new(interface, selection, u32::from(eager) * 16) else { return };
    let mut requests = Vec::new();
    for deed in 0..MOST_DEEDS {
        if input.0.is_empty() {
            break;
        }
        if deed % 16 == 0 {
            let (which, bytes) = (input.u8(), input.number() as usize % 20_000);
            // Refused after a failure.
            requests.extend(world.call(which, bytes).ok());
        }
        world.act(&mut input);
    }
    // All go.
    world.others = [None, None];
    for request in requests {
        if let Err(failed) = request.wait() {
            let is_typed =
                matches!(failed.error, Error::Failed { .. } | Error::Connection { .. } | Error::Broken { .. });
            assert!(is_typed, "{}", failed.error);
            assert!(failed.receive.is_some(), "its buffers are gone: {}", failed.error);
        }
    }
}

/// Reads the connection information that two other ranks have sent: each as this build makes it, changed, or any bytes.
///
/// # Panics
/// The library has a fault.
pub fn connect_infos(data: &[u8]) {
    static PARTS: OnceLock<Option<[Part; 3]>> = OnceLock::new();
    let parts = PARTS.get_or_init(|| {
        let interface = interface()?;
        let part = |rank| Part::new(interface, rank, RANKS, Config::for_interface(interface)).ok();
        Some([part(0)?, part(1)?, part(2)?])
    });
    let Some([first, own, last]) = parts else { return };
    let mut input = Input(data);
    let others = [first, last].map(|part| {
        let mut info = part.connect_info();
        for _ in 0..input.u8() % 8 {
            let (at, value) = (input.u8(), input.u8());
            if let Some(byte) = info.get_mut(usize::from(at)) {
                *byte = value;
            }
        }
        let cut = usize::from(input.u8());
        info.truncate(if cut == 0 { info.len() } else { cut });
        let most = input.number() as usize;
        info.extend_from_slice(input.bytes(most));
        info
    });
    if let Some(error) = own.refuses(&others) {
        assert!(error.to_string().contains("rank "), "{error}");
    }
}

/// Takes bytes as a datagram.
///
/// # Panics
/// The library has a fault.
pub fn datagram(data: &[u8]) {
    for secret in [None, Some(SECRET)] {
        let codec = Codec::new(COMMUNICATOR, OWN, secret);
        if let Ok(datagram) = codec.decode(data) {
            let sender = Codec::new(COMMUNICATOR, datagram.rank, secret);
            let mut again = vec![0; data.len()];
            let len = sender.encode(datagram.operation, datagram.kind, datagram.chunk, &mut again);
            // Without a tag that field may be anything.
            assert!(len == data.len() && (again == data || secret.is_none()), "what is decoded is what was encoded");
        }
        let _ = (codec.peek(data), codec.is_own(data));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_that_say_nothing_or_anything_end_operations() {
        World::new(interface().unwrap(), 0, 0).map(drop).unwrap();
        peers(&[]);
        let mut word = 1u64;
        for _ in 0..300 {
            let bytes: Vec<u8> = std::iter::from_fn(|| {
                word = word.wrapping_mul(0xD129_0B26_8B4C_F47D).wrapping_add(0x9E37_79B9_7F4A_7C15);
                Some((word >> 56) as u8)
            })
            .take(200)
            .collect();
            peers(&bytes);
            connect_infos(&bytes);
            datagram(&bytes);
        }
    }
}
