//! Creation of a communicator over an Ethernet interface.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Duration;

use flexcast_bootstrap::DescriptorsUsedUp;
use flexcast_mesh::aggregator::Key;
use flexcast_mesh::external::resolve;
use flexcast_mesh::{self as mesh, Connect, Mesh, SharedListeners};
use flexcast_proto::RankInfo;
use flexcast_proto::sparse::Order;
use socket2::{SockRef, Socket};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::carrier::{Links, UdpCarrier};
use super::datagram::{Codec, Secret};
use super::fanout::{self, Fanout, Handshake, Member, WakeUp};
use super::interface::{Interface, LEAST_MTU_BYTES, MOST_MTU_BYTES};
use super::path::{self, PathMtu, Probing};
use super::sockets::{self, Sockets, at};
use super::tuning_bytes;
use super::waiter::SocketWaiter;
use crate::carrier::Parts;
use crate::carrier::endpoint::{CarrierEndpoint, CarrierPart, DatapathKind, Endpoint};
use crate::carrier::udp::defaults::ETHERNET_GBIT_PER_S;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::op::config::{Config, Control};
use crate::op::selection::Selection;
use crate::op::stream::Transport;
use crate::op::tuning::{LEAST_CHUNK_BYTES, MOST_SUBGROUPS, Tuning};
use crate::plan::footprint::Footprint;
use crate::plan::peers::peers;

/// Bytes of the header of TCP without options.
const TCP_BYTES: u32 = 20;
const MAGIC: [u8; 4] = *b"FXUD";
/// Version of what ranks exchange at first, and of all that they send afterwards.
const VERSION: u32 = 8;

/// What a rank sends the others in the exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ConnectInfo {
    magic: [u8; 4],
    version: U32,
    rank: U32,
    ranks: U32,
    communicator: U64,
    /// Equal for ranks of one computer and one network namespace of it.
    host: U64,
    /// IPv6, or IPv4 mapped to it.
    address: [u8; 16],
    udp_port: U32,
    tcp_port: U32,
    chunk_bytes: U32,
    /// 1: no tags.
    unauthenticated: U32,
    /// Bytes that may wait in its receive buffer.
    receive_bytes: U64,
    /// Alike on all ranks.
    group: [u8; 16],
    port: U32,
    eager_bytes: U32,
    chains: U32,
    /// Whether words in its memory begin with their highest byte: 1, else 0. What is reduced goes over the network as
    /// it lies in memory.
    big_endian: U32,
    chain_mapping: U64,
    /// Number of the socket on which ranks of its computer connect to share memory; 0: it shares none.
    shared_listener: U64,
    /// Whom its process runs for: memory is shared among processes of one user.
    user: U64,
    /// Of rank 0, it is the communicator's.
    subgroups: U32,
    /// Aggregators that are no ranks.
    aggregators: U32,
    /// Of its interface, as far as it is made use of.
    mtu_bytes: U32,
    /// UDP port where it answers probes of paths.
    path_port: U32,
    /// Whether results must not depend on the order in which messages come: 1, else 0. Alike on all ranks, and so is
    /// the next.
    reproducible: U32,
    /// A [`Selection`].
    algorithm: U32,
    /// Of rank 0, it is the communicator's.
    secret: [U64; 4],
}

impl ConnectInfo {
    /// Whether both are of one computer and user, and want to share memory.
    fn shares_memory_with(&self, other: &Self) -> bool {
        let is_open = self.shared_listener.get() != 0 && other.shared_listener.get() != 0;
        is_open && (self.host, self.user) == (other.host, other.user)
    }
}

/// A number of this computer, or of a network namespace of it: what is sent there is received there. `part`: of ranks
/// that count as those of one computer.
fn host(part: u32) -> u64 {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
    let words = boot.bytes().chain(namespace.to_string_lossy().bytes().collect::<Vec<_>>());
    flexcast_proto::digest(words.map(u64::from).chain([part.into()]))
}

pub(crate) fn v6(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

fn socket_failed(what: &str, source: std::io::Error) -> Error {
    Error::Socket { what: what.to_owned(), next: DescriptorsUsedUp::next_step(&source, "try again"), source }
}

/// A communicator that knows its own sockets and not yet those of the others.
pub(crate) struct Part {
    interface: Interface,
    place: RankInfo,
    config: Config,
    socket: Socket,
    /// Where probes of paths are answered.
    path_socket: Socket,
    listener: TcpListener,
    /// Where ranks of this computer connect to share memory, and what wakes this rank for their datagrams.
    shared_listener: Option<(UnixListener, WakeUp)>,
    own: ConnectInfo,
    /// Where aggregators are that are no ranks.
    aggregators: Vec<SocketAddr>,
}

/// A configuration as this datapath carries it out.
pub(crate) fn fitted(config: Config, interface: &Interface) -> Config {
    let mut config = config.with_table();
    config.transport = Transport::Ud;
    config.subgroups = 1;
    let tuning = config.tuning.as_ref().or(interface.options().tuning.as_ref());
    let of_tuning = tuning.and_then(Tuning::chunk_bytes).unwrap_or(u32::MAX);
    config.chunk_bytes = config.chunk_bytes.min(interface.chunk_bytes()).min(of_tuning);
    if config.link_gbit_per_s == 0 {
        config.link_gbit_per_s = ETHERNET_GBIT_PER_S;
    }
    config
}

impl CarrierEndpoint for Interface {
    fn kind(&self) -> DatapathKind {
        DatapathKind::Udp
    }

    fn now_ps(&self) -> u64 {
        Self::now_ps(self)
    }

    fn defaults(&self) -> Config {
        Config::for_interface(self)
    }

    fn part(&self, rank: u32, ranks: u32, config: Config) -> Result<Box<dyn CarrierPart>> {
        if config.control == Control::Service {
            let (value, limit) = (config.control as u64, "host over a network interface: service takes an RDMA card");
            return Err(Error::Config { what: "control", value, limit: limit.to_owned() });
        }
        Ok(Box::new(Part::new(self, rank, ranks, config)?))
    }

    fn interface(&self) -> Option<&Interface> {
        Some(self)
    }
}

impl CarrierPart for Part {
    fn connect_info(&self) -> Vec<u8> {
        Self::connect_info(self)
    }

    fn connect(self: Box<Self>, _: Endpoint, infos: &[Vec<u8>]) -> Result<Parts> {
        let (engine, waiter) = (*self).connect(infos)?;
        // With what the ranks have agreed on.
        let endpoint = Endpoint::of(engine.carrier.interface().clone());
        Ok(Parts { endpoint, datapath: Box::new(engine), waiter: Arc::new(waiter), footprint: Footprint::default() })
    }
}

impl Part {
    /// Makes the sockets of rank `rank` of `ranks`.
    pub(crate) fn new(interface: &Interface, rank: u32, ranks: u32, config: Config) -> Result<Self> {
        let place = RankInfo::new(rank, ranks)?;
        let refuse = |what, value: u64, limit: &str| Err(Error::Config { what, value, limit: limit.to_owned() });
        if config.control != Control::Host {
            return refuse(
                "control",
                config.control as u64,
                "host over an Ethernet interface, which has no DPA and no Arm cores",
            );
        }
        config.check_ranges(ranks)?;
        let config = fitted(config, interface);
        let subgroups = interface.options().count_subgroups(config.tuning.as_ref())?;
        let aggregators = resolve(&config.aggregators)?;
        let socket = Sockets::own(interface)?;
        let listener = mesh::listen(at(interface, interface.address(), 0))?;
        let port_of = |address: std::io::Result<SocketAddr>| {
            address.map(|address| U32::from(u32::from(address.port()))).map_err(|error| socket_failed("socket", error))
        };
        let path_socket = Sockets::own(interface)?;
        let address_of = |socket: &Socket| {
            let address = socket.local_addr().map(|address| address.as_socket());
            address.and_then(|address| address.ok_or_else(|| std::io::ErrorKind::AddrNotAvailable.into()))
        };
        let mut random = [0; 48];
        getrandom::fill(&mut random)
            .map_err(|error| socket_failed("random numbers", std::io::Error::other(error.to_string())))?;
        let mut words = random.chunks_exact(8).map(|word| U64::from_bytes(word.try_into().unwrap_or_default()));
        let mut word = || words.next().unwrap_or_default();
        let number = word().get() | 1;
        let shares = interface.options().shared_memory.unwrap_or(true);
        let shared_listener = shares.then(|| Ok((mesh::listen_shared(number)?, WakeUp::new(number)?)));
        let shared_listener = shared_listener.and_then(|made: std::io::Result<_>| {
            let warn =
                |error: &std::io::Error| tracing::warn!(%error, "no memory is shared with ranks of this computer");
            made.inspect_err(warn).ok()
        });
        let own = ConnectInfo {
            magic: MAGIC,
            version: VERSION.into(),
            rank: rank.into(),
            ranks: ranks.into(),
            communicator: (word().get() ^ u64::from(interface.next_serial())).into(),
            host: host(interface.options().ranks_per_computer.map_or(0, |ranks| rank / ranks)).into(),
            address: v6(interface.address()),
            udp_port: port_of(address_of(&socket))?,
            tcp_port: port_of(listener.local_addr())?,
            chunk_bytes: config.chunk_bytes.into(),
            unauthenticated: u32::from(interface.options().unauthenticated).into(),
            receive_bytes: (sockets::receive_bytes(interface) as u64).into(),
            group: interface.options().group.map_or([0; 16], v6),
            port: u32::from(interface.port()).into(),
            eager_bytes: config.eager_bytes.into(),
            chains: config.chains.into(),
            big_endian: u32::from(cfg!(target_endian = "big")).into(),
            chain_mapping: config.chain_mapping.digest().into(),
            shared_listener: shared_listener.as_ref().map_or(0, |_| number).into(),
            user: u64::from(nix::unistd::geteuid().as_raw()).into(),
            subgroups: subgroups.into(),
            aggregators: (aggregators.len() as u32).into(),
            mtu_bytes: interface.mtu_bytes().into(),
            path_port: port_of(address_of(&path_socket))?,
            reproducible: u32::from(config.reproducible).into(),
            algorithm: (config.algorithm as u32).into(),
            secret: std::array::from_fn(|_| word()),
        };
        Ok(Self {
            interface: interface.clone(),
            place,
            config,
            socket,
            path_socket,
            listener,
            shared_listener,
            own,
            aggregators,
        })
    }

    /// What the other ranks must know of this one.
    pub(crate) fn connect_info(&self) -> Vec<u8> {
        // Of all ranks that of rank 0 counts, so that all choose alike.
        let tuning = self.config.tuning.as_ref().or(self.interface.options().tuning.as_ref());
        let tuning = tuning_bytes::encode(tuning.unwrap_or(&Tuning::default()));
        [self.own.as_bytes(), &tuning].concat()
    }

    /// Checks the connection information of all ranks, in their order.
    fn all(&self, infos: &[Vec<u8>]) -> Result<Vec<ConnectInfo>> {
        let ranks = self.place.ranks();
        let peer = |rank: u32, reason: String| Err(Error::Peer { rank, reason });
        if infos.len() != ranks as usize {
            let reason = format!(
                "got {} blocks of connection information for {ranks} ranks: the exchange must return one per rank",
                infos.len()
            );
            return peer(self.place.rank(), reason);
        }
        let mut all = Vec::with_capacity(infos.len());
        for (rank, bytes) in (0..ranks).zip(infos) {
            let info = match ConnectInfo::read_from_prefix(bytes) {
                Ok((info, _)) if info.magic == MAGIC => info,
                _ => {
                    let reason = format!(
                        "sent {} bytes, which are no connection information of the datapath udp: give all ranks one \
                         datapath (FLEXCAST_DATAPATH) and one build of this library",
                        bytes.len()
                    );
                    return peer(rank, reason);
                }
            };
            if info.version.get() != VERSION {
                let reason = format!(
                    "speaks version {} of the protocol, this rank version {VERSION}: run one build on all ranks",
                    info.version
                );
                return peer(rank, reason);
            }
            if info.rank.get() != rank {
                let reason = format!("says that it is rank {}: two ranks were started with one number", info.rank);
                return peer(rank, reason);
            }
            if info.ranks.get() != ranks {
                return peer(rank, format!("counts {} ranks, this rank {ranks}", info.ranks));
            }
            let mut fields = [
                ("unauthenticated", self.own.unauthenticated.get().into(), info.unauthenticated.get().into()),
                ("port", self.own.port.get().into(), info.port.get().into()),
                ("eager_bytes", self.own.eager_bytes.get().into(), info.eager_bytes.get().into()),
                ("aggregators", self.own.aggregators.get().into(), info.aggregators.get().into()),
                ("chains", self.own.chains.get().into(), info.chains.get().into()),
                ("big-endian words", self.own.big_endian.get().into(), info.big_endian.get().into()),
                ("the chain mapping with digest", self.own.chain_mapping.get(), info.chain_mapping.get()),
                ("reproducible", self.own.reproducible.get().into(), info.reproducible.get().into()),
                ("algorithm", self.own.algorithm.get().into(), info.algorithm.get().into()),
            ]
            .into_iter();
            if let Some((name, own, theirs)) = fields.find(|(_, own, theirs): &(_, u64, u64)| own != theirs) {
                let text = |value: u64| match (name, Selection::ALL.iter().find(|one| **one as u64 == value)) {
                    ("algorithm", Some(selection)) => selection.name().to_owned(),
                    _ => value.to_string(),
                };
                let (theirs, own) = (text(theirs), text(own));
                return peer(rank, format!("has {name} {theirs}, this rank {own}: give all ranks one configuration"));
            }
            let is_ipv4 = |info: &ConnectInfo| address(&info.address).is_ipv4();
            if info.group != self.own.group || is_ipv4(&info) != is_ipv4(&self.own) {
                let text = |info: &ConnectInfo| {
                    let group = if info.group == [0; 16] { "no".to_owned() } else { address(&info.group).to_string() };
                    format!("the address {} and {group} group", address(&info.address))
                };
                let reason = format!(
                    "has {}, this rank {}: give all ranks one group, and interfaces with addresses of one family",
                    text(&info),
                    text(&self.own)
                );
                return peer(rank, reason);
            }
            if info.udp_port.get() > u16::MAX.into()
                || info.tcp_port.get() > u16::MAX.into()
                || info.path_port.get() > u16::MAX.into()
                || info.chunk_bytes.get() < LEAST_CHUNK_BYTES
                || !(LEAST_MTU_BYTES..=MOST_MTU_BYTES).contains(&info.mtu_bytes.get())
                || !(1..=MOST_SUBGROUPS).contains(&info.subgroups.get())
                || info.port.get() + info.subgroups.get() - 1 > u16::MAX.into()
            {
                let reason =
                    "sent ports, subgroups, an MTU or a chunk length that cannot be: run one build on all ranks";
                return peer(rank, reason.to_owned());
            }
            all.push(info);
        }
        if all[self.place.rank() as usize] != self.own {
            let reason = "does not find its own connection information in what the exchange returned".to_owned();
            return peer(self.place.rank(), reason);
        }
        match unreachable(&all).filter(|_| self.interface.options().ranks_per_computer.is_none()) {
            Some((rank, reason)) => peer(rank, reason),
            None => Ok(all),
        }
    }

    /// Connects to the ranks of `infos`.
    pub(crate) fn connect(self, infos: &[Vec<u8>]) -> Result<(Engine<UdpCarrier>, SocketWaiter)> {
        let all = self.all(infos)?;
        let of_first = infos[0].get(size_of::<ConnectInfo>()..).and_then(tuning_bytes::decode);
        let Some(tuning) = of_first else {
            let reason = "sent a tuning that cannot be: run one build on all ranks".to_owned();
            return Err(Error::Peer { rank: 0, reason });
        };
        let Self { interface, place, mut config, socket, path_socket, listener, shared_listener, own, aggregators } =
            self;
        let id = all[0].communicator.get();
        let secret = Secret(all[0].secret.map(U64::get));
        config.chunk_bytes = all.iter().map(|info| info.chunk_bytes.get()).min().unwrap_or(config.chunk_bytes);
        let addresses = |port: fn(&ConnectInfo) -> U32| -> Vec<SocketAddr> {
            all.iter().map(|info| at(&interface, address(&info.address), port(info).get() as u16)).collect()
        };
        let ranks = peers(place, &config.chain_mapping);
        let is_near = |info: &&ConnectInfo| info.host == own.host;
        let mut numbers: Vec<u64> =
            all.iter().map(|info| Some(info).filter(is_near).map_or(0, |near| near.shared_listener.get())).collect();
        let (shared_listener, wake_up) = shared_listener.unzip();
        let (group, subgroups) = (interface.group(id), all[0].subgroups.get() as usize);
        let of_host: Vec<&ConnectInfo> = all.iter().filter(is_near).collect();
        let handshake = wake_up.and_then(|wake_up| {
            handshake(wake_up, (place, &own), &of_host, (subgroups, id, secret, config.barrier_timeout))
        });
        let is_asked = handshake.is_some();
        let shared = handshake.map_or(Ok(None), |handshake| {
            // Nothing comes over the network where all ranks share memory.
            let joins = !handshake.has_all;
            handshake.run(|| Sockets::members(&interface, group, subgroups, joins))
        })?;
        if is_asked && shared.is_none() {
            // One of them cannot use such memory: none does.
            numbers.clear();
        }
        let (fanout, members) = match shared {
            Some((fanout, members)) => (Some(fanout), members),
            None => {
                // Workers need rings, if nobody else does.
                let alone = (subgroups > 1).then(|| Fanout::alone(subgroups)).transpose();
                let failed = |error| socket_failed("memory for the workers of subgroups", error);
                (alone.map_err(failed)?, Sockets::members(&interface, group, subgroups, true)?)
            }
        };
        let fanout = fanout.map(Arc::new);
        let shares = fanout.as_ref().is_some_and(|fanout| fanout.has_others());
        let connect = Connect {
            own: place.rank(),
            communicator: id,
            secret: secret.of_handshakes(),
            proof: secret.proof(id),
            tagged: !interface.options().unauthenticated,
            listener,
            addresses: addresses(|info| info.tcp_port),
            timeout: config.barrier_timeout,
            shared: SharedListeners { listener: shared_listener, numbers },
            aggregators,
            order: if config.reproducible { Order::Rank } else { Order::Arrival },
            key: Key::of(config.aggregator_secret.as_ref()),
        };
        // By what all ranks know, so that all choose alike.
        let is_one = all.len() > 1 && all.iter().all(|info| info.shares_memory_with(&all[0]));
        let is_split = interface.options().ranks_per_computer.is_some();
        let paths = Paths { place, interface: &interface, all: &all, ranks: &ranks };
        let (path, probing) = match paths.are_in_doubt() {
            false => (None, None),
            true => {
                let peers = addresses(|info| info.path_port);
                let (path, probing) = paths.probe(path_socket, peers, (id, secret), &connect)?;
                (path, Some(probing))
            }
        };
        if let Some(path) = path {
            config.chunk_bytes = config.chunk_bytes.min(interface.chunk_bytes_within(path.bytes));
        }
        let mesh = Mesh::connect(connect, &ranks)?;
        let comes_back = is_split || (!shares && of_host.len() > 1);
        let links = Links {
            sockets: Sockets::new(&interface, socket, (members, group), comes_back)?,
            fanout,
            mesh,
            receive_bytes: all.iter().map(|info| info.receive_bytes.get()).min().unwrap_or(0),
            peers: addresses(|info| info.udp_port),
            secret: (!interface.options().unauthenticated).then_some(secret),
            tuning: tuning.before(if is_one { Tuning::computer() } else { Tuning::ethernet() }),
            probing,
        };
        let waiter = SocketWaiter::new()?;
        let engine = UdpCarrier::engine(interface, place, id, config, links, waiter.clone())?;
        Ok((engine, waiter))
    }

    /// Reads the connection information of all ranks, of which `others` is that of the ranks except this one, for
    /// [`hostile`](super::hostile): whether they are refused.
    pub(crate) fn refuses(&self, others: &[Vec<u8>]) -> Option<Error> {
        let mut infos = others.to_vec();
        infos.insert(self.place.rank() as usize, self.connect_info());
        let tuned = infos[0].get(size_of::<ConnectInfo>()..).and_then(tuning_bytes::decode);
        if let Some(tuning) = &tuned {
            // What is accepted is what it says.
            assert_eq!(
                tuning_bytes::decode(&tuning_bytes::encode(tuning)).as_ref(),
                Some(tuning),
                "a tuning that was read can be sent"
            );
        }
        self.all(&infos).err()
    }

    #[cfg(test)]
    fn own_mut(&mut self) -> &mut ConnectInfo {
        &mut self.own
    }
}

/// The paths between ranks.
struct Paths<'p> {
    place: RankInfo,
    interface: &'p Interface,
    all: &'p [ConnectInfo],
    /// Those to which this one connects.
    ranks: &'p [u32],
}

impl Paths<'_> {
    /// Whether packets could be longer than a path carries: by what all ranks know, so that they decide alike.
    fn are_in_doubt(&self) -> bool {
        let mut longest: Vec<u32> = self.all.iter().map(|info| info.mtu_bytes.get()).collect();
        longest.sort_unstable();
        // A packet is as long as both ends allow.
        let is_long = longest.iter().rev().nth(1).is_some_and(|mtu_bytes| *mtu_bytes > path::PLAIN_MTU_BYTES);
        is_long && self.all.iter().any(|info| info.host != self.all[0].host)
    }

    /// Finds the longest packet that all paths carry, if it is shorter than all interfaces allow, and makes connections
    /// keep to it. Others are answered as long as what is given is there.
    fn probe(
        &self,
        socket: Socket,
        peers: Vec<SocketAddr>,
        (id, secret): (u64, Secret),
        connect: &Connect,
    ) -> Result<(Option<PathMtu>, Probing)> {
        let (own, near) = (self.interface.mtu_bytes(), self.all[self.place.rank() as usize].host);
        let least = self.all.iter().map(|info| info.mtu_bytes.get()).min().unwrap_or(own);
        let is_far = |rank: &&u32| self.all[**rank as usize].host != near;
        let limit = |rank: &u32| (*rank, own.min(self.all[*rank as usize].mtu_bytes.get()));
        let others = self.ranks.iter().filter(is_far).map(limit).collect();
        let codec = Codec::new(id, self.place.rank(), Some(secret));
        let socket = path::unfragmented(socket)?;
        let probing = Probing::start((self.place, codec), socket, (peers, others), connect.timeout)?;
        let path = probing.agree(own, |path| {
            if path.bytes < least {
                // Accepted connections take it over, and limit the other end as well.
                let most = path.bytes - self.interface.ip_bytes() - TCP_BYTES;
                let set = SockRef::from(&connect.listener).set_tcp_mss(most);
                set.map_err(|error| socket_failed("listener", error))?;
            }
            Ok(())
        })?;
        if path.bytes >= least {
            return Ok((None, probing));
        }
        if path.rank == self.place.rank() {
            tracing::warn!(
                "the interfaces of the hosts carry packets of {least} bytes, the network between them only {} bytes, \
                 as rank {} has found on {}: packets are no longer. Give interfaces and switches one MTU",
                path.bytes,
                path.rank,
                self.interface.name()
            );
        }
        Ok((Some(path), probing))
    }
}

/// A rank that the others do not reach since its address is one of the loopback interface, and why; alike on all ranks.
fn unreachable(all: &[ConnectInfo]) -> Option<(u32, String)> {
    let is_loopback = |info: &&ConnectInfo| address(&info.address).is_loopback();
    let loopback = all.iter().find(is_loopback)?;
    let addresses = all.iter().map(|info| (info.rank.get(), address(&info.address)));
    if let Some(unreachable) = mixed_loopback(addresses) {
        return Some(unreachable);
    }
    let own = address(&loopback.address);
    let other = all.iter().find(|info| info.host != loopback.host)?;
    let theirs = address(&other.address);
    let reason = format!(
        "has the address {own} and rank {}, of another computer or network namespace, has {theirs}: only processes of \
         one reach one another there; on all ranks {NEXT}",
        other.rank
    );
    Some((loopback.rank.get(), reason))
}

const NEXT: &str = "set FLEXCAST_INTERFACE to the interface, or the address, of the network between them";

/// A rank with an address of the loopback interface, if another rank has one that is none, and why that cannot be.
pub(crate) fn mixed_loopback(addresses: impl Iterator<Item = (u32, IpAddr)> + Clone) -> Option<(u32, String)> {
    let (rank, own) = addresses.clone().find(|(_, address)| address.is_loopback())?;
    let (other, theirs) = addresses.clone().find(|(_, address)| !address.is_loopback())?;
    let reason = format!(
        "has the address {own}, which only its own computer reaches, and rank {other} has {theirs}: on rank {rank} \
         {NEXT}"
    );
    Some((rank, reason))
}

/// The handshake of a computer's ranks, if all of them share memory and there are others than this one.
fn handshake(
    wake_up: WakeUp,
    (place, own): (RankInfo, &ConnectInfo),
    of_host: &[&ConnectInfo],
    (subgroups, communicator, secret, timeout): (usize, u64, Secret, Duration),
) -> Option<Handshake> {
    let shares = of_host.iter().all(|info| info.shares_memory_with(own));
    if !(2..=fanout::MOST_MEMBERS).contains(&of_host.len()) || !shares {
        return None;
    }
    let member = |info: &&ConnectInfo| Member::new(info.rank.get(), info.shared_listener.get()).ok();
    let members = of_host.iter().map(member).collect::<Option<Vec<_>>>()?;
    let own = members.iter().position(|member| member.rank == place.rank())?;
    let has_all = members.len() == place.ranks() as usize;
    Some(Handshake { wake_up, members, own, has_all, subgroups, communicator, secret, timeout })
}

pub(crate) fn address(octets: &[u8; 16]) -> IpAddr {
    Ipv6Addr::from(*octets).to_canonical()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::carrier::udp::UdpOptions;

    fn parts(ranks: u32) -> Vec<Part> {
        let interface = Interface::open(&UdpOptions::default().interface("lo")).unwrap();
        (0..ranks).map(|rank| Part::new(&interface, rank, ranks, Config::for_interface(&interface)).unwrap()).collect()
    }

    fn refusal(change: impl Fn(&mut ConnectInfo)) -> String {
        let mut parts = parts(2);
        change(parts[1].own_mut());
        let infos: Vec<_> = parts.iter().map(Part::connect_info).collect();
        parts.swap_remove(0).connect(&infos).map(drop).unwrap_err().to_string()
    }

    #[test]
    fn peers_that_do_not_fit_are_named() {
        let text = refusal(|info| info.version = 9.into());
        assert!(text.contains("rank 1 speaks version 9"), "{text}");
        let text = refusal(|info| info.rank = 0.into());
        assert!(text.contains("rank 1 says that it is rank 0"), "{text}");
        let text = refusal(|info| info.ranks = 3.into());
        assert!(text.contains("counts 3 ranks"), "{text}");
        let text = refusal(|info| info.eager_bytes = 3.into());
        assert!(text.contains("rank 1 has eager_bytes 3, this rank 65536"), "{text}");
        let text = refusal(|info| info.aggregators = 2.into());
        assert!(text.contains("rank 1 has aggregators 2, this rank 0"), "{text}");
        let text = refusal(|info| info.reproducible = 1.into());
        assert!(text.contains("rank 1 has reproducible 1, this rank 0"), "{text}");
        let text = refusal(|info| info.algorithm = (Selection::Ring as u32).into());
        assert!(text.contains("rank 1 has algorithm pipelined-ring, this rank automatic"), "{text}");
        let text = refusal(|info| info.algorithm = 99.into());
        assert!(text.contains("rank 1 has algorithm 99, this rank automatic"), "{text}");
        let text = refusal(|info| info.group = v6([239, 1, 1, 1].into()));
        assert!(text.contains("239.1.1.1 group") && text.contains("no group"), "{text}");
        let text = refusal(|info| info.address = v6(std::net::Ipv6Addr::LOCALHOST.into()));
        assert!(text.contains("rank 1 has the address ::1") && text.contains("addresses of one family"), "{text}");
        for subgroups in [0, 17] {
            let text = refusal(|info| info.subgroups = subgroups.into());
            assert!(text.contains("rank 1 sent ports, subgroups"), "{text}");
        }
        let text = refusal(|info| info.big_endian = 1.into());
        assert!(text.contains("rank 1 has big-endian words 1, this rank 0"), "{text}");
        // As a build would send it that writes words the other way round.
        let text = refusal(|info| info.version = VERSION.swap_bytes().into());
        assert!(text.contains("rank 1 speaks version 134217728"), "{text}");
        let text = refusal(|info| info.tcp_port = 70_000.into());
        assert!(text.contains("ports"), "{text}");
        let mut parts = self::parts(2);
        let mut infos: Vec<_> = parts.iter().map(Part::connect_info).collect();
        infos[0].extend([99; 16]);
        let text = parts.swap_remove(1).connect(&infos).map(drop).unwrap_err().to_string();
        assert!(text.contains("rank 0 sent a tuning"), "{text}");
        let text = refusal(|info| info.magic = *b"none");
        assert!(text.contains("FLEXCAST_DATAPATH"), "{text}");
    }

    #[test]
    fn loopback_addresses_are_refused_where_not_all_ranks_reach_them() {
        let text = refusal(|info| info.address = v6([10, 0, 0, 7].into()));
        let expected = "rank 0 has the address 127.0.0.1, which only its own computer reaches, and rank 1 has \
            10.0.0.7: on rank 0 set FLEXCAST_INTERFACE";
        assert!(text.contains(expected), "{text}");
        let text = refusal(|info| info.host = 7.into());
        let expected = "rank 0 has the address 127.0.0.1 and rank 1, of another computer or network namespace, has \
            127.0.0.1: only processes";
        assert!(text.contains(expected) && text.contains("on all ranks set FLEXCAST_INTERFACE"), "{text}");
    }

    #[test]
    fn ranks_that_are_given_different_keys_do_not_connect_and_are_named() {
        let short = std::time::Duration::from_millis(200);
        let mut parts = parts(2);
        parts.iter_mut().for_each(|part| part.config.barrier_timeout = short);
        let infos: Vec<_> = parts.iter().map(Part::connect_info).collect();
        // Whoever carries the messages of bootstrap has changed one of them.
        let mut changed = infos.clone();
        changed[0][size_of::<ConnectInfo>() - 1] ^= 1;
        let second = parts.pop().unwrap();
        let first = parts.pop().unwrap();
        let [first, second] = std::thread::scope(|scope| {
            let threads = [scope.spawn(|| first.connect(&infos)), scope.spawn(|| second.connect(&changed))];
            threads.map(|thread| thread.join().unwrap().map(drop))
        });
        let text = first.unwrap_err().to_string();
        assert!(text.contains("rank 1 of this computer has not said within 200ms"), "{text}");
        let text = second.unwrap_err().to_string();
        assert!(text.contains("rank 0 of this computer has not said within 200ms"), "{text}");
    }

    #[test]
    fn configurations_that_cannot_be_are_refused() {
        let interface = Interface::open(&UdpOptions::default().interface("lo")).unwrap();
        let text = |config: Config| Part::new(&interface, 0, 2, config).map(drop).unwrap_err().to_string();
        assert!(text(Config::for_interface(&interface).control(Control::Device)).contains("no DPA"));
        assert!(text(Config::for_interface(&interface).chunk_bytes(63)).contains("64 to "));
        assert!(text(Config::for_interface(&interface).chains(1025)).contains("0 to 1024"));
    }
}
