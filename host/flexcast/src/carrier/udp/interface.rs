//! Network interfaces of this computer.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use flexcast_bootstrap::DescriptorsUsedUp;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::{InterfaceFlags, if_nametoindex};
use nix::sys::socket::{getsockopt, sockopt};
use socket2::{Domain, Protocol, Socket, Type};

use super::datagram::HEADER_BYTES;
use super::tap::MakeTap;
use crate::error::{Error, Result};
use crate::op::tuning::{MOST_SUBGROUPS, Tuning};
use crate::op::variable::variable;

/// Port of the data unless another is asked for. Communicators that share it have groups and keys of their own.
pub const DEFAULT_PORT: u16 = 17110;
/// Longest link MTU that is made use of: jumbo frames. Longer ones, such as that of the loopback interface, lose too
/// much with one datagram.
pub(crate) const MOST_MTU_BYTES: u32 = 9000;
/// Shortest link MTU: what IPv6 demands.
pub(crate) const LEAST_MTU_BYTES: u32 = 1280;
pub(crate) const UDP_BYTES: u32 = 8;

/// How collectives go over an Ethernet interface.
///
/// ```
/// let options = flexcast::UdpOptions::default().interface("eth0").port(4711);
/// # let _ = options;
/// ```
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct UdpOptions {
    /// The interface, by its name or one of its addresses; or a list of them with commas between, of which the first
    /// that is there counts; or, behind `^`, a list of those that are not taken. A name that does not end in a digit
    /// also stands for all that begin with it, unless `=` is before it: `eth` for `eth0`, `^docker,lo` for neither
    /// `docker0` nor `lo`. Default: the first that is up, can multicast and has an address; else the loopback
    /// interface.
    pub interface: Option<String>,
    /// The multicast group, IPv4 or IPv6, alike on all ranks. Default: of 239.0.0.0/9 or ff15::/16, another one for
    /// each communicator.
    pub group: Option<IpAddr>,
    /// The UDP port of the data, alike on all ranks. Default [`DEFAULT_PORT`].
    pub port: Option<u16>,
    /// How many routers multicast datagrams may pass, plus one. Default 1: none.
    pub ttl: Option<u32>,
    /// Datagrams go without tags: whoever can send to the group can then change what is received. Default false.
    pub unauthenticated: bool,
    /// Which algorithms are taken; that of rank 0 counts for all. Default: what the library expects to be fastest.
    pub tuning: Option<Tuning>,
    /// Whether ranks of one computer and user exchange through shared memory what would otherwise go over TCP. Default
    /// true.
    pub shared_memory: Option<bool>,
    /// Bytes that the buffers of a socket for data should hold, from 2048 to 1 GiB; the system may give less. Half of
    /// the shortest receive buffer of all ranks bounds how far roots are ahead of their receivers. Default 16 MiB, and
    /// 2 MiB to send from.
    pub socket_buffer_bytes: Option<u32>,
    /// Sockets that carry the data side by side, 1 to 16; the number of rank 0 counts for all. They have one port each,
    /// from `port` on; all but the first have a thread on each rank that sends and receives. Default: what the tuning
    /// says, or 1: whoever makes progress does all of it.
    pub subgroups: Option<u32>,
    /// Whether the system cuts runs of datagrams (UDP GSO) and joins them again (GRO) for this library's sockets.
    /// Default true. False where a kernel or a driver corrupts them: each datagram is then a call of its own.
    pub segmentation_offload: Option<bool>,
    /// Sees each datagram before the datapath does; for tests.
    pub(crate) tap: Option<MakeTap>,
    /// Only so many ranks, one after the other, count as ranks of one computer; for tests on one.
    pub(crate) ranks_per_computer: Option<NonZeroU32>,
}

impl fmt::Debug for UdpOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            interface,
            group,
            port,
            ttl,
            unauthenticated,
            tuning,
            shared_memory,
            socket_buffer_bytes,
            subgroups,
            segmentation_offload,
            tap,
            ..
        } = self;
        let mut options = f.debug_struct("UdpOptions");
        options.field("interface", interface).field("group", group).field("port", port).field("ttl", ttl);
        options.field("unauthenticated", unauthenticated).field("tuning", tuning).field("shared_memory", shared_memory);
        options.field("socket_buffer_bytes", socket_buffer_bytes).field("subgroups", subgroups);
        options.field("segmentation_offload", segmentation_offload);
        options.field("tap", &tap.is_some()).finish()
    }
}

impl UdpOptions {
    /// The defaults, changed by the variables `FLEXCAST_INTERFACE`, `FLEXCAST_GROUP`, `FLEXCAST_PORT`, `FLEXCAST_TTL`,
    /// `FLEXCAST_UNAUTHENTICATED` (1 or 0), `FLEXCAST_SHM` (1 or 0), `FLEXCAST_SOCKET_BUFFER` (bytes),
    /// `FLEXCAST_SUBGROUPS`, `FLEXCAST_GSO` (on or off) and `FLEXCAST_TUNING` (a file, as [`Tuning::read`] takes it).
    ///
    /// # Errors
    /// [`Error::Variable`]: one has a value that it cannot have. [`Error::Argument`]: the file is no tuning.
    pub fn from_env() -> Result<Self> {
        Ok(Self {
            interface: std::env::var("FLEXCAST_INTERFACE").ok().filter(|name| !name.is_empty()),
            group: variable("FLEXCAST_GROUP", "a multicast address, such as 239.1.2.3 or ff15::1")?,
            port: variable("FLEXCAST_PORT", "a port from 1 to 65535")?,
            ttl: variable("FLEXCAST_TTL", "a number of hops from 1 to 255")?,
            unauthenticated: switch("FLEXCAST_UNAUTHENTICATED")?.unwrap_or(false),
            tuning: std::env::var_os("FLEXCAST_TUNING")
                .filter(|path| !path.is_empty())
                .map(|path| Tuning::read(path.as_ref()).map_err(of_variable))
                .transpose()?,
            shared_memory: switch("FLEXCAST_SHM")?,
            socket_buffer_bytes: variable("FLEXCAST_SOCKET_BUFFER", "bytes, from 2048 to 1073741824")?,
            subgroups: variable("FLEXCAST_SUBGROUPS", "a number from 1 to 16")?,
            segmentation_offload: on_or_off("FLEXCAST_GSO")?,
            tap: None,
            ranks_per_computer: None,
        })
    }

    /// The same with this interface.
    #[must_use]
    pub fn interface(mut self, interface: impl Into<String>) -> Self {
        self.interface = Some(interface.into());
        self
    }

    /// The same with this group.
    #[must_use]
    pub fn group(mut self, group: IpAddr) -> Self {
        self.group = Some(group);
        self
    }

    /// The same with this port.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// The same with this number of hops.
    #[must_use]
    pub fn ttl(mut self, ttl: u32) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// The same with or without tags.
    #[must_use]
    pub fn unauthenticated(mut self, unauthenticated: bool) -> Self {
        self.unauthenticated = unauthenticated;
        self
    }

    /// The same with this tuning.
    #[must_use]
    pub fn tuning(mut self, tuning: Tuning) -> Self {
        self.tuning = Some(tuning);
        self
    }

    /// The same with or without shared memory.
    #[must_use]
    pub fn shared_memory(mut self, shared_memory: bool) -> Self {
        self.shared_memory = Some(shared_memory);
        self
    }

    /// The same with socket buffers of so many bytes.
    #[must_use]
    pub fn socket_buffer_bytes(mut self, bytes: u32) -> Self {
        self.socket_buffer_bytes = Some(bytes);
        self
    }

    /// The same with so many subgroups.
    #[must_use]
    pub fn subgroups(mut self, subgroups: u32) -> Self {
        self.subgroups = Some(subgroups);
        self
    }

    /// The same with or without GSO and GRO.
    #[must_use]
    pub fn segmentation_offload(mut self, is_on: bool) -> Self {
        self.segmentation_offload = Some(is_on);
        self
    }

    #[doc(hidden)]
    #[must_use]
    pub fn tap(mut self, tap: MakeTap) -> Self {
        self.tap = Some(tap);
        self
    }

    #[doc(hidden)]
    #[must_use]
    pub fn ranks_per_computer(mut self, ranks: NonZeroU32) -> Self {
        self.ranks_per_computer = Some(ranks);
        self
    }

    fn check(&self) -> Result<()> {
        if let Some(group) = self.group.filter(|group| !group.is_multicast()) {
            let reason = "is no multicast address: give one of 224.0.0.0/4 or ff00::/8".to_owned();
            return Err(Error::Interface { name: format!("with the group {group} (FLEXCAST_GROUP)"), reason });
        }
        if let Some(ttl) = self.ttl.filter(|ttl| !(1..=255).contains(ttl)) {
            return Err(Error::Config { what: "ttl", value: ttl.into(), limit: "1 to 255".to_owned() });
        }
        if let Some(bytes) = self.socket_buffer_bytes.filter(|bytes| !(2048..=1 << 30).contains(bytes)) {
            let limit = "2048 to 1073741824".to_owned();
            return Err(Error::Config { what: "socket_buffer_bytes", value: bytes.into(), limit });
        }
        if self.port == Some(0) {
            return Err(Error::Config { what: "port", value: 0, limit: "1 to 65535, alike on all ranks".to_owned() });
        }
        self.count_subgroups(None).map(drop)
    }

    /// Subgroups by these options, and else by a tuning that counts before theirs.
    pub(crate) fn count_subgroups(&self, tuning: Option<&Tuning>) -> Result<u32> {
        let of_tuning = tuning.or(self.tuning.as_ref()).and_then(Tuning::subgroups);
        let subgroups = self.subgroups.or(of_tuning).unwrap_or(1);
        if !(1..=MOST_SUBGROUPS).contains(&subgroups) {
            let limit = format!("1 to {MOST_SUBGROUPS}");
            return Err(Error::Config { what: "subgroups", value: subgroups.into(), limit });
        }
        let port = self.port.unwrap_or(DEFAULT_PORT);
        if u32::from(port) + subgroups - 1 > u16::MAX.into() {
            let limit = format!("at most {} with {subgroups} subgroups, which have a port each", 65_536 - subgroups);
            return Err(Error::Config { what: "port", value: port.into(), limit });
        }
        Ok(subgroups)
    }
}

/// Names the variable of a file that is no tuning.
fn of_variable(error: Error) -> Error {
    match error {
        Error::Argument { reason, .. } => Error::Argument { operation: "FLEXCAST_TUNING", reason },
        other => other,
    }
}

/// Room for what comes to a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveBuffer {
    /// What is asked for.
    pub wanted_bytes: u64,
    /// What the system gives.
    pub got_bytes: u64,
}

/// The value of a variable that is 0 or 1, if it is set and not empty.
fn switch(name: &'static str) -> Result<Option<bool>> {
    match variable::<u8>(name, "0 or 1")? {
        None => Ok(None),
        Some(value @ (0 | 1)) => Ok(Some(value == 1)),
        Some(value) => Err(Error::Variable { name, value: value.to_string(), limit: "0 or 1".into() }),
    }
}

/// The value of a variable that is `on` or `off`, if it is set and not empty.
fn on_or_off(name: &'static str) -> Result<Option<bool>> {
    match variable::<String>(name, "on or off")?.as_deref() {
        None => Ok(None),
        Some("on") => Ok(Some(true)),
        Some("off") => Ok(Some(false)),
        Some(other) => Err(Error::Variable { name, value: other.to_owned(), limit: "on or off".into() }),
    }
}

/// A network interface that carries collectives. A clone is the same interface.
#[derive(Clone)]
pub struct Interface(Arc<Opened>);

struct Opened {
    name: String,
    index: u32,
    address: IpAddr,
    mtu_bytes: u32,
    options: UdpOptions,
    origin: Instant,
    serial: AtomicU32,
}

impl fmt::Debug for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Opened { name, address, mtu_bytes, .. } = &*self.0;
        f.debug_struct("Interface").field("name", name).field("address", address).field("mtu", mtu_bytes).finish()
    }
}

/// An address of an interface.
#[derive(Debug, PartialEq, Eq)]
struct Candidate {
    name: String,
    address: IpAddr,
    is_loopback: bool,
    can_multicast: bool,
}

/// The addresses of interfaces that are up.
fn candidates() -> Result<Vec<Candidate>> {
    let failed = |errno: nix::errno::Errno| {
        let source = std::io::Error::from(errno);
        let next = DescriptorsUsedUp::next_step(&source, "see whether `ip addr` lists any");
        Error::Socket { what: "list of interfaces".to_owned(), source, next }
    };
    let mut all = Vec::new();
    for entry in getifaddrs().map_err(failed)? {
        let Some(storage) = entry.address else { continue };
        let v4 = storage.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
        let v6 = || storage.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip()));
        let Some(address) = v4.or_else(v6) else { continue };
        if !entry.flags.contains(InterfaceFlags::IFF_UP) {
            continue;
        }
        let is_loopback = entry.flags.contains(InterfaceFlags::IFF_LOOPBACK);
        let can_multicast = entry.flags.contains(InterfaceFlags::IFF_MULTICAST);
        all.push(Candidate { name: entry.interface_name, address, is_loopback, can_multicast });
    }
    Ok(all)
}

/// Which of the addresses one entry of a list names. An interface of exactly that name counts before those whose names
/// begin with it.
fn named(all: &[Candidate], entry: &str) -> Vec<usize> {
    let (name, is_exact) = entry.strip_prefix('=').map_or((entry, false), |name| (name, true));
    let of = |fits: &dyn Fn(&Candidate) -> bool| -> Vec<usize> {
        all.iter().enumerate().filter(|(_, candidate)| fits(candidate)).map(|(at, _)| at).collect()
    };
    let exact = of(&|candidate| candidate.name == name || name.parse() == Ok(candidate.address));
    // Whoever writes eth1 does not mean eth10.
    if is_exact || !exact.is_empty() || name.ends_with(|letter: char| letter.is_ascii_digit()) {
        return exact;
    }
    of(&|candidate| candidate.name.starts_with(name))
}

/// Chooses an address of an interface, of the family of `group` if there is one; of both families the fourth.
fn choose(all: &[Candidate], wanted: Option<&str>, group: Option<IpAddr>) -> Result<usize> {
    let refuse = |reason: String| Error::Interface { name: wanted.unwrap_or("any interface").to_owned(), reason };
    let (is_exclusion, list) = match wanted.map(|list| (list.strip_prefix('^'), list)) {
        None => (true, Vec::new()),
        Some((excluded, list)) => (excluded.is_some(), excluded.unwrap_or(list).split(',').map(str::trim).collect()),
    };
    if list.iter().any(|entry| entry.trim_start_matches('=').is_empty() || entry.starts_with('^')) {
        let reason = "is no list of interfaces: write names or addresses with commas between, and ^ before the first \
            if they are not to be taken";
        return Err(refuse(reason.to_owned()));
    }
    let groups: Vec<Vec<usize>> = if is_exclusion {
        let excluded: Vec<usize> = list.iter().flat_map(|entry| named(all, entry)).collect();
        // Loopback does, where ranks are processes of one computer, although it does not say so.
        let can_carry = |at: &usize| !excluded.contains(at) && (all[*at].can_multicast || all[*at].is_loopback);
        vec![(0..all.len()).filter(can_carry).collect()]
    } else {
        list.iter().map(|entry| named(all, entry)).collect()
    };
    let fits = |at: &usize| group.is_none_or(|group| group.is_ipv4() == all[*at].address.is_ipv4());
    let rank = |at: &usize| (all[*at].is_loopback, !all[*at].address.is_ipv4(), *at);
    if let Some(at) = groups.into_iter().find_map(|group| group.into_iter().filter(fits).min_by_key(rank)) {
        return Ok(at);
    }
    let known: Vec<String> =
        all.iter().map(|candidate| format!("{} ({})", candidate.name, candidate.address)).collect();
    let what = match (is_exclusion && wanted.is_some(), list.len()) {
        (true, _) => "leaves no interface that is up and can multicast",
        (false, 0 | 1) => "is no interface that is up",
        (false, _) => "names no interface that is up",
    };
    let of = if group.is_some() { " with an address of the group's family" } else { "" };
    let known = if known.is_empty() { "none that is up".to_owned() } else { known.join(", ") };
    Err(refuse(format!("{what}{of}; there are: {known}")))
}

/// The path MTU from an address to where it multicasts, if the system knows it.
fn path_mtu_bytes(address: IpAddr) -> Option<u32> {
    let IpAddr::V4(own) = address else { return None };
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)).ok()?;
    socket.set_multicast_if_v4(&own).ok()?;
    // No datagram is sent.
    socket.connect(&SocketAddr::from((Ipv4Addr::new(239, 1, 1, 1), 9)).into()).ok()?;
    u32::try_from(getsockopt(&socket, sockopt::IpMtu).ok()?).ok()
}

/// Bytes that a frame of an interface carries.
fn mtu_bytes(name: &str) -> Option<u32> {
    std::fs::read_to_string(format!("/sys/class/net/{name}/mtu")).ok()?.trim().parse().ok()
}

impl Interface {
    /// Finds the interface that `options` want.
    pub(crate) fn open(options: &UdpOptions) -> Result<Self> {
        options.check()?;
        let all = candidates()?;
        let at = choose(&all, options.interface.as_deref(), options.group)?;
        let Candidate { name, address, .. } = &all[at];
        let index = if_nametoindex(name.as_str())
            .map_err(|errno| Error::Interface { name: name.clone(), reason: format!("has gone meanwhile: {errno}") })?;
        let socket = path_mtu_bytes(*address);
        let mtu_bytes = socket.or_else(|| mtu_bytes(name)).unwrap_or(LEAST_MTU_BYTES);
        if mtu_bytes < LEAST_MTU_BYTES {
            let reason = format!("has an MTU of {mtu_bytes} bytes, at least {LEAST_MTU_BYTES} are needed: raise it");
            return Err(Error::Interface { name: name.clone(), reason });
        }
        Ok(Self(Arc::new(Opened {
            name: name.clone(),
            index,
            address: *address,
            mtu_bytes: mtu_bytes.min(MOST_MTU_BYTES),
            options: options.clone(),
            origin: Instant::now(),
            serial: AtomicU32::new(0),
        })))
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Its address: peers connect to it.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.0.address
    }

    /// Bytes of an IP packet that are made use of: the interface's MTU, at most 9000.
    #[must_use]
    pub fn mtu_bytes(&self) -> u32 {
        self.0.mtu_bytes
    }

    /// Room for what comes: what this library wants of the system for each socket, and what it gets, in bytes. Less
    /// bounds how far senders are ahead of receivers; `sysctl net.core.rmem_max` is the system's limit.
    #[must_use]
    pub fn receive_buffer(&self) -> ReceiveBuffer {
        let got_bytes = super::sockets::receive_bytes(self) as u64;
        ReceiveBuffer { wanted_bytes: self.wanted_receive_bytes() as u64, got_bytes }
    }

    /// Bytes that a receive buffer should hold.
    pub(crate) fn wanted_receive_bytes(&self) -> usize {
        self.0.options.socket_buffer_bytes.map_or(super::sockets::WANTED_RECEIVE_BYTES, |bytes| bytes as usize)
    }

    /// The table that chooses algorithms among ranks of several computers: that of the options, and behind it the
    /// library's own.
    #[must_use]
    pub fn tuning(&self) -> Tuning {
        self.0.options.tuning.clone().unwrap_or_default().before(Tuning::ethernet())
    }

    /// The same among ranks that all share the memory of one computer.
    #[must_use]
    pub fn tuning_of_computer(&self) -> Tuning {
        self.0.options.tuning.clone().unwrap_or_default().before(Tuning::computer())
    }

    pub(crate) fn index(&self) -> u32 {
        self.0.index
    }

    /// Whether the system cuts and joins runs of datagrams.
    #[must_use]
    pub fn has_segmentation_offload(&self) -> bool {
        self.0.options.segmentation_offload.unwrap_or(true)
    }

    pub(crate) fn options(&self) -> &UdpOptions {
        &self.0.options
    }

    /// Bytes of the operation's data that a datagram carries.
    pub(crate) fn chunk_bytes(&self) -> u32 {
        self.chunk_bytes_within(self.0.mtu_bytes)
    }

    /// The same of an IP packet of so many bytes, at least [`LEAST_MTU_BYTES`].
    pub(crate) fn chunk_bytes_within(&self, packet_bytes: u32) -> u32 {
        packet_bytes - self.ip_bytes() - UDP_BYTES - HEADER_BYTES as u32
    }

    /// Bytes of the header of an IP packet.
    pub(crate) fn ip_bytes(&self) -> u32 {
        if self.0.address.is_ipv4() { 20 } else { 40 }
    }

    /// The time since it was opened, in picoseconds.
    pub(crate) fn now_ps(&self) -> u64 {
        u64::try_from(self.0.origin.elapsed().as_nanos().saturating_mul(1000)).unwrap_or(u64::MAX)
    }

    /// A number that no other communicator of this interface has had.
    pub(crate) fn next_serial(&self) -> u32 {
        self.0.serial.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    /// The group of a communicator.
    pub(crate) fn group(&self, communicator: u64) -> IpAddr {
        let hash = communicator.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0.options.group.unwrap_or_else(|| {
            let [a, b, c, d, ..] = hash.to_be_bytes();
            match self.0.address {
                // None of 239.255.0.0/16, where other protocols of a site live.
                IpAddr::V4(_) => Ipv4Addr::new(239, a & 0x7F, b, c).into(),
                IpAddr::V6(_) => {
                    let [high, low] = [u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])];
                    Ipv6Addr::new(0xFF15, 0, 0, 0, 0, 0xF1EC, high, low).into()
                }
            }
        })
    }

    /// The group of all communicators, if the options give one.
    pub(crate) fn own_group(&self) -> Option<IpAddr> {
        self.0.options.group
    }

    /// Port of the first subgroup.
    pub(crate) fn port(&self) -> u16 {
        self.0.options.port.unwrap_or(DEFAULT_PORT)
    }

    /// Sockets that carry the data of communicators side by side, unless their configuration has another tuning.
    #[must_use]
    pub fn subgroups(&self) -> u32 {
        // They have been checked.
        self.0.options.count_subgroups(None).unwrap_or(1)
    }

    /// Most bytes of the data that a datagram carries, unless the configuration of a communicator says otherwise.
    #[must_use]
    pub fn datagram_bytes(&self) -> u32 {
        let of_tuning = self.0.options.tuning.as_ref().and_then(Tuning::chunk_bytes);
        of_tuning.unwrap_or(u32::MAX).min(self.chunk_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Candidate> {
        let of = |name: &str, address: &str, is_loopback, can_multicast| Candidate {
            name: name.to_owned(),
            address: address.parse().unwrap(),
            is_loopback,
            can_multicast,
        };
        vec![
            of("lo", "127.0.0.1", true, false),
            of("tun0", "10.8.0.1", false, false),
            of("eth0", "fe80::1", false, true),
            of("eth0", "10.0.0.1", false, true),
            of("eth1", "10.1.0.1", false, true),
        ]
    }

    fn chosen(wanted: Option<&str>, group: Option<&str>) -> Result<String, String> {
        let group = group.map(|group| group.parse().unwrap());
        choose(&all(), wanted, group).map(|at| all()[at].address.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_first_interface_that_can_multicast_is_taken_and_others_by_name_or_address() {
        assert_eq!(chosen(None, None).unwrap(), "10.0.0.1");
        assert_eq!(chosen(None, Some("ff15::1")).unwrap(), "fe80::1");
        assert_eq!(chosen(Some("eth1"), None).unwrap(), "10.1.0.1");
        assert_eq!(chosen(Some("127.0.0.1"), None).unwrap(), "127.0.0.1");
        assert_eq!(chosen(Some("tun0"), None).unwrap(), "10.8.0.1");
        let text = chosen(Some("eth7"), None).unwrap_err();
        assert!(text.contains("eth7") && text.contains("eth1 (10.1.0.1)"), "{text}");
        let text = chosen(Some("eth1"), Some("ff15::1")).unwrap_err();
        assert!(text.contains("family"), "{text}");
        assert_eq!(choose(&all()[..1], None, None).unwrap(), 0);
    }

    #[test]
    fn lists_name_interfaces_that_are_taken_or_left_out() {
        let with_docker = || {
            let mut all = all();
            for (name, address) in [("docker0", "172.17.0.1"), ("eth10", "10.10.0.1")] {
                let address = address.parse().unwrap();
                all.insert(0, Candidate { name: name.to_owned(), address, is_loopback: false, can_multicast: true });
            }
            all
        };
        let chosen = |wanted: &str| {
            let all = with_docker();
            choose(&all, Some(wanted), None).map(|at| all[at].address.to_string()).map_err(|error| error.to_string())
        };
        // The first that is there.
        assert_eq!(chosen("ib0,eth1,eth0").unwrap(), "10.1.0.1");
        assert_eq!(chosen("ib0, 10.0.0.1").unwrap(), "10.0.0.1");
        // The beginning of names, exactly one name.
        assert_eq!(chosen("docker").unwrap(), "172.17.0.1");
        assert_eq!(chosen("eth1").unwrap(), "10.1.0.1");
        assert_eq!(chosen("=eth1").unwrap(), "10.1.0.1");
        assert!(chosen("=docker").unwrap_err().contains("is no interface that is up"));
        // All but some: no prefix of eth10 is left out with eth1.
        assert_eq!(chosen("^docker").unwrap(), "10.10.0.1");
        assert_eq!(chosen("^docker,eth10,lo").unwrap(), "10.0.0.1");
        assert_eq!(chosen("^docker0,eth10,eth0").unwrap(), "10.1.0.1");
        assert_eq!(chosen("^eth,docker").unwrap(), "127.0.0.1");
        let text = chosen("^eth,docker,lo").unwrap_err();
        assert!(text.contains("^eth,docker,lo: leaves no interface") && text.contains("eth0 (10.0.0.1)"), "{text}");
        let text = chosen("ib0,ib1").unwrap_err();
        assert!(text.contains("names no interface that is up"), "{text}");
        for wrong in ["eth0,", ",", "^", "eth0,^lo", "="] {
            assert!(chosen(wrong).unwrap_err().contains("no list of interfaces"), "{wrong}");
        }
    }

    #[test]
    fn options_that_cannot_be_are_refused_with_the_limit() {
        let text = |options: UdpOptions| Interface::open(&options).unwrap_err().to_string();
        assert!(text(UdpOptions::default().group([10, 0, 0, 1].into())).contains("no multicast address"));
        assert!(text(UdpOptions::default().ttl(0)).contains("1 to 255"));
        assert!(text(UdpOptions::default().port(0)).contains("1 to 65535"));
        assert!(text(UdpOptions::default().subgroups(0)).contains("1 to 16"));
        assert!(text(UdpOptions::default().subgroups(17)).contains("1 to 16"));
        assert!(text(UdpOptions::default().port(65_535).subgroups(2)).contains("at most 65534 with 2 subgroups"));
    }

    #[test]
    fn each_communicator_has_a_group_of_its_own() {
        let interface = Interface::open(&UdpOptions::default().interface("lo")).unwrap();
        let groups: std::collections::BTreeSet<_> = (0..1000u64).map(|id| interface.group(id << 32)).collect();
        assert!(groups.len() > 990 && groups.iter().all(IpAddr::is_multicast));
    }
}
