//! Sockets of a communicator: one for each subgroup that is a member of the group, and one to send from.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use flexcast_bootstrap::DescriptorsUsedUp;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recv, recvmsg, setsockopt, sockopt};
use quinn_udp::{RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use socket2::{Domain, InterfaceIndexOrAddress, Protocol, SockRef, Socket, Type};

use super::datagram::HEADER_BYTES;
use super::interface::Interface;
use super::meminfo::drops;
use crate::error::{Error, Result};

/// Longest run of datagrams in one system call: what a datagram of IP can be long.
pub(crate) const RUN_BYTES: usize = 65_507;
/// Runs that one system call takes from a socket. More would not stay in the cache until they are read.
pub(crate) const RUNS: usize = 8;
/// Room for a run that comes.
pub(crate) const ROOM_BYTES: usize = 1 << 16;
/// What a receive buffer should hold; it bounds how far a sender is ahead of a receiver.
pub(crate) const WANTED_RECEIVE_BYTES: usize = 16 << 20;
const WANTED_SEND_BYTES: usize = 2 << 20;

const NO_GROUP: &str = "see whether the interface can multicast (`ip link`), and how many groups a socket may join \
    (net.ipv4.igmp_max_memberships)";

fn failed(what: &str, next: &'static str) -> impl FnOnce(io::Error) -> Error {
    let what = what.to_owned();
    move |source| Error::Socket { what, next: DescriptorsUsedUp::next_step(&source, next), source }
}

/// A socket that is bound to an address.
fn bound(address: SocketAddr, shared: bool) -> Result<Socket> {
    let next = "choose another port or group (FLEXCAST_PORT, FLEXCAST_GROUP)";
    let what = format!("UDP socket of {address}");
    let bind = || {
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        if shared {
            // Ranks of one computer are members of one group.
            socket.set_reuse_address(true)?;
        }
        socket.bind(&address.into())?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    };
    bind().map_err(failed(&what, next))
}

/// Gives a socket as much room for what comes as is wanted and the system allows; how much, in bytes.
fn enlarge(socket: &Socket, wanted_bytes: usize) -> usize {
    // By force where the process may, so that the system's limit does not count.
    if setsockopt(socket, sockopt::RcvBufForce, &wanted_bytes).is_err() {
        let _ = socket.set_recv_buffer_size(wanted_bytes);
    }
    // The system reports twice what it gives: bookkeeping is part of it.
    socket.recv_buffer_size().unwrap_or(0) / 2
}

/// Bytes that the system gives a receive buffer.
pub(crate) fn receive_bytes(interface: &Interface) -> usize {
    let domain = Domain::for_address(SocketAddr::new(interface.address(), 0));
    Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))
        .map_or(0, |socket| enlarge(&socket, interface.wanted_receive_bytes()))
}

/// One socket, and what the system can do with it.
#[derive(Debug)]
struct Half {
    socket: UdpSocket,
    state: UdpSocketState,
    /// The system cuts runs of datagrams, and joins them.
    has_offload: bool,
    /// It has been logged that the system refuses datagrams.
    has_warned: AtomicBool,
}

impl Half {
    fn new(socket: UdpSocket, has_offload: bool) -> Result<Self> {
        let state = UdpSocketState::new(UdpSockRef::from(&socket))
            .map_err(failed("UDP socket", "see whether the system's network stack is complete"))?;
        if !has_offload {
            // Kernels without GRO need not be asked.
            let _ = setsockopt(&socket, sockopt::UdpGroSegment, &false);
        }
        Ok(Self { socket, state, has_offload, has_warned: AtomicBool::new(false) })
    }

    /// Most datagrams in a run.
    fn segments(&self) -> usize {
        if self.has_offload { self.state.max_gso_segments() } else { 1 }
    }

    /// Takes up to [`RUNS`] runs of datagrams, each with the bytes of a datagram, of which the last may be shorter;
    /// returns whether there was one.
    fn receive(&self, room: &mut [u8], deliver: &mut dyn FnMut(&[u8], usize)) -> Result<bool> {
        let mut parts = room.chunks_exact_mut(ROOM_BYTES);
        let mut slices: [IoSliceMut<'_>; RUNS] =
            std::array::from_fn(|_| IoSliceMut::new(parts.next().unwrap_or_default()));
        let mut meta = [RecvMeta::default(); RUNS];
        let count = match self.state.recv(UdpSockRef::from(&self.socket), &mut slices, &mut meta) {
            Ok(count) => count,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => 0,
            // An ICMP message about a datagram of ours: whoever waits for it finds out by time.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => 0,
            Err(error) => return Err(failed("receive of datagrams", "see whether the interface is up")(error)),
        };
        for (slice, meta) in slices.iter().zip(&meta).take(count) {
            deliver(&slice[..meta.len.min(slice.len())], meta.stride.max(1));
        }
        Ok(count > 0)
    }
}

/// Datagrams of a run, at most, whose chunks are received where they belong.
pub(crate) const LANDING_CHUNKS: usize = 64;
/// Room for what the system reports of a run: addresses, times and the length of its datagrams.
const CONTROL_BYTES: usize = 256;

/// Where a run of datagrams is received: headers here, the first chunks there, and what is left in `spare`.
pub(crate) struct Landing<'l> {
    pub(crate) headers: &'l mut [[u8; HEADER_BYTES]],
    /// As many chunks, the last may be shorter.
    pub(crate) chunks: &'l mut [u8],
    pub(crate) chunk_bytes: usize,
    /// Has room for the longest run.
    pub(crate) spare: &'l mut [u8],
}

/// A run of datagrams that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) bytes: usize,
    /// Bytes of each datagram; the last may be shorter.
    pub(crate) datagram_bytes: usize,
}

impl Half {
    /// Takes one run of datagrams.
    fn receive_run(&self, landing: &mut Landing<'_>) -> Result<Option<Run>> {
        let mut parts: [IoSliceMut<'_>; 2 * LANDING_CHUNKS + 1] = std::array::from_fn(|_| IoSliceMut::new(&mut []));
        let mut count = 0;
        let Landing { headers, chunks, chunk_bytes, spare } = landing;
        for (header, chunk) in headers.iter_mut().zip(chunks.chunks_mut((*chunk_bytes).max(1))).take(LANDING_CHUNKS) {
            parts[count] = IoSliceMut::new(header);
            parts[count + 1] = IoSliceMut::new(chunk);
            count += 2;
        }
        parts[count] = IoSliceMut::new(spare);
        let mut control = [0; CONTROL_BYTES];
        let message =
            recvmsg::<()>(self.socket.as_raw_fd(), &mut parts[..=count], Some(&mut control), MsgFlags::MSG_DONTWAIT);
        let message = match message {
            Ok(message) => message,
            Err(Errno::EAGAIN | Errno::EINTR | Errno::ECONNREFUSED) => return Ok(None),
            Err(errno) => return Err(failed("receive of datagrams", "see whether the interface is up")(errno.into())),
        };
        let bytes = message.bytes;
        let mut datagram_bytes = bytes;
        for control in message.cmsgs().into_iter().flatten() {
            if let ControlMessageOwned::UdpGroSegments(segment) = control {
                datagram_bytes = usize::try_from(segment).unwrap_or(bytes);
            }
        }
        Ok(Some(Run { bytes, datagram_bytes: datagram_bytes.clamp(1, bytes.max(1)) }))
    }
}

/// What a try to send has led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// The system has it.
    All,
    /// The send buffer is full.
    Full,
    /// The system sends no runs: one datagram at a time.
    Single,
    /// The system refuses it, such as datagrams that have become too long for the interface, or one that is down:
    /// nothing of it comes anywhere.
    Lost,
}

/// What a subgroup's datagrams come through, and go out through. One thread at a time uses it.
#[derive(Debug)]
pub(crate) struct Lane {
    /// Bound to the group and the subgroup's port, so that it gets nothing else.
    group: Arc<Half>,
    /// Sends to the group.
    own: Arc<Half>,
    destination: SocketAddr,
    room: Vec<u8>,
    /// Datagrams in a run, at most.
    segments: usize,
}

impl Lane {
    fn new(group: Arc<Half>, own: Arc<Half>, destination: SocketAddr) -> Self {
        let segments = own.segments();
        Self { group, own, destination, room: vec![0; RUNS * ROOM_BYTES], segments }
    }

    /// What is to be waited for.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.group.socket.as_fd()
    }

    /// Datagrams of so many bytes that go in one run.
    pub(crate) fn run_of(&self, datagram_bytes: usize) -> usize {
        self.segments.min(most_of_run(datagram_bytes))
    }

    /// Takes runs of datagrams that were sent to the subgroup, each with the bytes of a datagram, of which the last may
    /// be shorter. Returns whether there were any.
    pub(crate) fn receive_runs(&mut self, deliver: &mut dyn FnMut(&[u8], usize)) -> Result<bool> {
        self.group.receive(&mut self.room, deliver)
    }

    /// Peeks at the beginning of the next datagram that was sent to the subgroup; false if there is none.
    pub(crate) fn peek(&self, header: &mut [u8; HEADER_BYTES]) -> Result<bool> {
        header.fill(0);
        match recv(self.group.socket.as_raw_fd(), header, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_PEEK) {
            Ok(_) => Ok(true),
            Err(Errno::EAGAIN | Errno::EINTR | Errno::ECONNREFUSED) => Ok(false),
            Err(errno) => Err(failed("receive of datagrams", "see whether the interface is up")(errno.into())),
        }
    }

    /// Takes one run of datagrams that were sent to the subgroup, chunks where they are expected.
    pub(crate) fn receive_run(&mut self, landing: &mut Landing<'_>) -> Result<Option<Run>> {
        self.group.receive_run(landing)
    }

    /// Sends datagrams to the subgroup: one behind the other in `run`, of `datagram_bytes` each, the last may be
    /// shorter.
    pub(crate) fn multicast(&mut self, run: &[u8], datagram_bytes: usize) -> Result<Sent> {
        self.own.send(self.destination, run, Some(datagram_bytes), &mut self.segments)
    }
}

impl Half {
    /// Sends datagrams of `segment_size` bytes each, or one. `segments`: how many go in one run, which becomes less
    /// where the system says so.
    fn send(
        &self,
        destination: SocketAddr,
        contents: &[u8],
        segment_size: Option<usize>,
        segments: &mut usize,
    ) -> Result<Sent> {
        let transmit = Transmit { destination, ecn: None, contents, segment_size, src_ip: None };
        let Err(error) = self.state.try_send(UdpSockRef::from(&self.socket), &transmit) else {
            return Ok(Sent::All);
        };
        let most = self.segments();
        if most < *segments {
            *segments = most;
            return Ok(Sent::Single);
        }
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(Sent::Full),
            _ => {
                if !self.has_warned.swap(true, Ordering::Relaxed) {
                    let bytes = segment_size.unwrap_or(contents.len());
                    tracing::warn!(
                        %error,
                        bytes,
                        "datagrams refused by the system: they are repaired over TCP; is the interface up, and has its \
                         MTU shrunk?"
                    );
                }
                Ok(Sent::Lost)
            }
        }
    }
}

/// Datagrams of so many bytes that go in one run, at most.
pub(crate) fn most_of_run(datagram_bytes: usize) -> usize {
    (RUN_BYTES / datagram_bytes.max(1)).max(1)
}

/// The sockets of a communicator.
#[derive(Debug)]
pub(crate) struct Sockets {
    /// Of the first subgroup.
    pub(crate) lane: Lane,
    /// Of all subgroups.
    groups: Vec<Arc<Half>>,
    /// Sends to peers, and gets acknowledgements.
    own: Arc<Half>,
    destinations: Vec<SocketAddr>,
}

impl Sockets {
    /// The socket to send from, before the group is known.
    pub(crate) fn own(interface: &Interface) -> Result<Socket> {
        let socket = bound(at(interface, interface.address(), 0), false)?;
        let ttl = interface.options().ttl.unwrap_or(1);
        let set = || match interface.address() {
            IpAddr::V4(own) => {
                socket.set_multicast_if_v4(&own)?;
                socket.set_multicast_ttl_v4(ttl)
            }
            IpAddr::V6(_) => {
                socket.set_multicast_if_v6(interface.index())?;
                socket.set_multicast_hops_v6(ttl)
            }
        };
        set().map_err(failed("socket to send from", "choose another interface (FLEXCAST_INTERFACE)"))?;
        // As much as there may be.
        let _ = socket.set_send_buffer_size(interface.wanted_receive_bytes().min(WANTED_SEND_BYTES));
        Ok(socket)
    }

    /// Sockets of the group's address, one for each of so many subgroups. They get what is sent to the group if they
    /// `join` it, otherwise nothing.
    pub(crate) fn members(
        interface: &Interface,
        group: IpAddr,
        subgroups: usize,
        joins: bool,
    ) -> Result<Vec<UdpSocket>> {
        ports(interface, subgroups).map(|port| Self::member(interface, (group, port), joins)).collect()
    }

    fn member(interface: &Interface, (group, port): (IpAddr, u16), joins: bool) -> Result<UdpSocket> {
        let socket = bound(at(interface, group, port), true)?;
        let is_exclusive = match group {
            IpAddr::V4(_) => socket.set_multicast_all_v4(false),
            IpAddr::V6(_) => socket.set_multicast_all_v6(false),
        };
        let joined = is_exclusive.and_then(|()| if joins { join((&socket).into(), interface, group) } else { Ok(()) });
        joined.map_err(failed(&format!("multicast group {group} on interface {}", interface.name()), NO_GROUP))?;
        let wanted = interface.wanted_receive_bytes();
        let got = enlarge(&socket, wanted);
        if got < wanted {
            tracing::info!(
                wanted,
                got,
                "socket buffer shorter than wanted; `sysctl -w net.core.rmem_max={wanted}` helps"
            );
        }
        Ok(socket.into())
    }

    /// The sockets of a rank: its own, and a member of the group for each subgroup. `comes_back`: other members are on
    /// this computer.
    pub(crate) fn new(
        interface: &Interface,
        own: Socket,
        (members, group): (Vec<UdpSocket>, IpAddr),
        comes_back: bool,
    ) -> Result<Self> {
        let what = format!("multicast group {group} on interface {}", interface.name());
        let set = match (group, interface.address()) {
            (IpAddr::V4(_), IpAddr::V4(address)) => {
                own.set_multicast_loop_v4(comes_back).and_then(|()| own.set_multicast_if_v4(&address))
            }
            _ => own.set_multicast_loop_v6(comes_back),
        };
        set.map_err(failed(&what, NO_GROUP))?;
        let has_offload = interface.has_segmentation_offload();
        let groups: Vec<_> =
            members.into_iter().map(|member| Half::new(member, has_offload).map(Arc::new)).collect::<Result<_>>()?;
        let own = Arc::new(Half::new(own.into(), has_offload)?);
        let destinations: Vec<_> = ports(interface, groups.len()).map(|port| at(interface, group, port)).collect();
        let Some((first, to)) = groups.first().zip(destinations.first()) else {
            return Err(failed(&what, NO_GROUP)(io::ErrorKind::InvalidInput.into()));
        };
        let lane = Lane::new(Arc::clone(first), Arc::clone(&own), *to);
        Ok(Self { lane, groups, own, destinations })
    }

    /// Leaves the group and joins it again, so that the system reports the membership to switches. Sockets that other
    /// processes share may be in between.
    ///
    /// # Errors
    /// A socket is no member any more.
    pub(crate) fn rejoin(&self, interface: &Interface) -> Result<()> {
        let Some(group) = self.destinations.first().map(SocketAddr::ip) else { return Ok(()) };
        // The system reports nothing before the last socket of this computer has left.
        self.groups.iter().for_each(|half| _ = leave((&half.socket).into(), interface, group));
        for half in &self.groups {
            match join((&half.socket).into(), interface, group) {
                // Another process that shares it was faster.
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => {
                    let what = format!("multicast group {group} on interface {}", interface.name());
                    return Err(failed(&what, NO_GROUP)(error));
                }
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// What datagrams of the other subgroups come and go through, by the number of the subgroup.
    pub(crate) fn other_lanes(&self) -> impl Iterator<Item = (usize, Lane)> {
        let lane = |(group, to): (&Arc<Half>, &SocketAddr)| Lane::new(Arc::clone(group), Arc::clone(&self.own), *to);
        self.groups.iter().zip(&self.destinations).map(lane).enumerate().skip(1)
    }

    /// Datagrams for which the receive buffers have had no room, since the sockets were made; goes round. 0 where the
    /// system does not report them.
    pub(crate) fn overflowed(&self) -> u32 {
        self.groups.iter().fold(0, |sum, group| sum.wrapping_add(drops(group.socket.as_fd()).unwrap_or(0)))
    }

    /// The socket of acknowledgements: it is to be waited for.
    pub(crate) fn own_descriptor(&self) -> BorrowedFd<'_> {
        self.own.socket.as_fd()
    }

    /// Takes datagrams that were sent to the first subgroup. Returns whether there were any.
    pub(crate) fn receive(&mut self, deliver: &mut dyn FnMut(&[u8])) -> Result<bool> {
        self.lane.receive_runs(&mut |run, datagram_bytes| run.chunks(datagram_bytes).for_each(&mut *deliver))
    }

    /// Takes datagrams that were sent to this rank.
    pub(crate) fn receive_own(&mut self, deliver: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let deliver = &mut |run: &[u8], datagram_bytes| run.chunks(datagram_bytes).for_each(&mut *deliver);
        self.own.receive(&mut self.lane.room, deliver)
    }

    /// Sends one datagram to a peer.
    pub(crate) fn send_to(&mut self, peer: SocketAddr, datagram: &[u8]) -> Result<Sent> {
        self.own.send(peer, datagram, None, &mut self.lane.segments)
    }
}

fn join(socket: SockRef<'_>, interface: &Interface, group: IpAddr) -> io::Result<()> {
    match (group, interface.address()) {
        (IpAddr::V4(group), IpAddr::V4(_)) => {
            socket.join_multicast_v4_n(&group, &InterfaceIndexOrAddress::Index(interface.index()))
        }
        (IpAddr::V6(group), _) => socket.join_multicast_v6(&group, interface.index()),
        (IpAddr::V4(_), IpAddr::V6(_)) => Err(io::ErrorKind::AddrNotAvailable.into()),
    }
}

fn leave(socket: SockRef<'_>, interface: &Interface, group: IpAddr) -> io::Result<()> {
    match group {
        IpAddr::V4(group) => socket.leave_multicast_v4_n(&group, &InterfaceIndexOrAddress::Index(interface.index())),
        IpAddr::V6(group) => socket.leave_multicast_v6(&group, interface.index()),
    }
}

/// The ports of so many subgroups.
fn ports(interface: &Interface, subgroups: usize) -> impl Iterator<Item = u16> {
    (interface.port()..=u16::MAX).take(subgroups)
}

/// A socket address on an interface: link-local ones of IPv6 are its own.
pub(crate) fn at(interface: &Interface, address: IpAddr, port: u16) -> SocketAddr {
    match address {
        IpAddr::V4(_) => SocketAddr::new(address, port),
        IpAddr::V6(address) => {
            let scope = if is_local(&address) { interface.index() } else { 0 };
            SocketAddrV6::new(address, port, 0, scope).into()
        }
    }
}

fn is_local(address: &Ipv6Addr) -> bool {
    address.is_unicast_link_local() || address.is_multicast()
}
