//! Test of a network: what of the multicast of each rank arrives at each rank.

use std::fmt::Display;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::datagram::{Codec, HEADER_BYTES, Kind, PathMessage};
use super::interface::{Interface, UDP_BYTES};
use super::part::{address, mixed_loopback, v6};
use super::path::unfragmented;
use super::sockets::{Sockets, at};
use crate::bootstrap::Exchange;
use crate::error::{Error, Result};

/// Time between two datagrams of a length.
const INTERVAL: Duration = Duration::from_millis(50);
/// How long the last datagrams may take.
const GRACE: Duration = Duration::from_millis(300);
/// Longest time of a test.
const MOST_TIME: Duration = Duration::from_secs(3600);

/// What of the multicast of a rank has come to a rank, another or the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MulticastArrival {
    /// Who has sent it.
    pub from: u32,
    /// Where it has come, or not.
    pub to: u32,
    /// Datagrams of each length that were sent.
    pub sent: u32,
    /// Short ones that have come.
    pub short: u32,
    /// Long ones that have come: packets of as many bytes as the sender's interface carries, at most 9000.
    pub long: u32,
    /// Bytes of the long packets.
    pub long_bytes: u32,
    /// When the last of them came, from the beginning of the test; zero if none did.
    pub last: Duration,
}

impl MulticastArrival {
    /// Whether more than half of the datagrams of each length have come.
    #[must_use]
    pub const fn is_right(&self) -> bool {
        2 * self.short > self.sent && 2 * self.long > self.sent
    }
}

/// What a rank says of itself.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Own {
    /// Of rank 0, it decides of the group.
    number: U64,
    time_ms: U32,
    mtu_bytes: U32,
    /// That its options give, or else one that the number decides of.
    group: [u8; 16],
    /// Of its interface; of IPv4 as mapped into IPv6, as above.
    address: [u8; 16],
    port: U32,
}

/// The first rank whose settings do not fit those of rank 0, and why; alike on all ranks. Nothing would arrive,
/// whatever the network does.
fn misfit(all: &[Own]) -> Option<Error> {
    let [first, others @ ..] = all else { return None };
    let misfit = |rank, reason| Some(Error::Peer { rank, reason });
    let differs = |rank, (what, variable), theirs: &dyn Display, of_first: &dyn Display| {
        misfit(rank, format!("has {what} {theirs}, rank 0 {of_first}: give all ranks one ({variable})"))
    };
    for (rank, own) in (1..).zip(others) {
        if own.port != first.port {
            return differs(rank, ("port", "FLEXCAST_PORT"), &own.port, &first.port);
        }
        if own.group != first.group {
            let text = |own: &Own| match address(&own.group) {
                group if group.is_multicast() => group.to_string(),
                _ => "drawn for each communicator".to_owned(),
            };
            return differs(rank, ("group", "FLEXCAST_GROUP"), &text(own), &text(first));
        }
        let [theirs, of_first] = [own, first].map(|own| address(&own.address));
        if theirs.is_ipv4() != of_first.is_ipv4() {
            return differs(rank, ("address", "FLEXCAST_INTERFACE: addresses of IPv4 or of IPv6"), &theirs, &of_first);
        }
    }
    let (rank, reason) = mixed_loopback((0..).zip(all).map(|(rank, own)| (rank, address(&own.address))))?;
    misfit(rank, reason)
}

/// What has come of a rank.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Came {
    short: U32,
    long: U32,
    last_ms: U32,
}

impl Interface {
    /// Multicasts short and long datagrams for so long, at most an hour, among the ranks of `exchange`, and gives what
    /// has come of each rank to each rank, in the order of receivers and then of senders; the same on all ranks. A
    /// group is used that is new to switches: one without a querier forgets it only after minutes (260 s by default),
    /// so that a longer test is needed to see that.
    ///
    /// # Errors
    /// [`Error::Exchange`]: ranks do not come together. [`Error::Socket`]: the group cannot be joined, or nothing can
    /// be sent. [`Error::Peer`]: a rank is of another build, or has other settings; alike on all ranks.
    pub fn check_multicast(&self, exchange: &mut dyn Exchange, time: Duration) -> Result<Vec<MulticastArrival>> {
        let (rank, ranks) = (exchange.rank(), exchange.size());
        let failed = |what: &str, source| Error::Socket { what: what.to_owned(), source, next: "try again" };
        let mut random = [0; 8];
        getrandom::fill(&mut random)
            .map_err(|error| failed("random numbers", std::io::Error::other(error.to_string())))?;
        let time_ms = time.min(MOST_TIME).as_millis() as u32;
        let own = Own {
            number: U64::from_bytes(random),
            time_ms: time_ms.into(),
            mtu_bytes: self.mtu_bytes().into(),
            group: self.own_group().map_or([0; 16], v6),
            address: v6(self.address()),
            port: u32::from(self.port()).into(),
        };
        let all = read::<Own>(&exchange.exchange("flexcast check", own.as_bytes())?)?;
        if let Some(misfit) = misfit(&all) {
            return Err(misfit);
        }
        let first = all.first().ok_or(Error::Peer { rank: 0, reason: WRONG.to_owned() })?;
        let (number, time) = (first.number.get(), Duration::from_millis(first.time_ms.get().into()).min(MOST_TIME));
        let group = self.group(number);
        let mut members = Sockets::members(self, group, 1, true)?;
        let member = members.pop().ok_or_else(|| failed("group", std::io::ErrorKind::InvalidInput.into()))?;
        let sender = Sockets::own(self)?;
        let looped =
            if group.is_ipv4() { sender.set_multicast_loop_v4(true) } else { sender.set_multicast_loop_v6(true) };
        looped.map_err(|error| failed("socket to send from", error))?;
        let sender = unfragmented(sender)?;
        // All are members before anyone sends.
        exchange.exchange("flexcast check joined", &[])?;
        let codec = Codec::new(number, rank, None);
        let to = at(self, group, self.port());
        let mut test =
            Test { member, sender, codec, to, came: vec![Came::default(); ranks as usize], begun: Instant::now() };
        let sent = (time.as_millis() / INTERVAL.as_millis()).max(1) as u32;
        let padding = self.mtu_bytes() - self.ip_bytes() - UDP_BYTES - HEADER_BYTES as u32;
        for number in 0..sent {
            test.send(0)?;
            test.send(padding as usize)?;
            test.receive(test.begun + INTERVAL * (number + 1));
        }
        test.receive(Instant::now() + GRACE);
        let counts = exchange.exchange("flexcast check over", test.came.as_bytes())?;
        let mut arrivals = Vec::new();
        for (to, came) in (0..).zip(&counts) {
            let came = <[Came]>::ref_from_bytes(came).ok().filter(|came| came.len() == ranks as usize);
            let came = came.ok_or_else(|| Error::Peer { rank: to, reason: WRONG.to_owned() })?;
            arrivals.extend((0..).zip(came).zip(&all).map(|((from, came), sender)| MulticastArrival {
                from,
                to,
                sent,
                short: came.short.get(),
                long: came.long.get(),
                long_bytes: sender.mtu_bytes.get(),
                last: Duration::from_millis(came.last_ms.get().into()),
            }));
        }
        Ok(arrivals)
    }
}

const WRONG: &str = "has sent nothing that can be of this test: run one build on all ranks";

fn read<T: FromBytes + Unaligned>(all: &[Vec<u8>]) -> Result<Vec<T>> {
    let of = |(rank, bytes): (u32, &Vec<u8>)| {
        T::read_from_bytes(bytes).map_err(|_| Error::Peer { rank, reason: WRONG.to_owned() })
    };
    (0..).zip(all).map(of).collect()
}

struct Test {
    member: UdpSocket,
    sender: UdpSocket,
    codec: Codec,
    to: SocketAddr,
    /// Of each rank.
    came: Vec<Came>,
    begun: Instant,
}

impl Test {
    /// Multicasts a datagram with so many bytes behind its header.
    fn send(&self, padding: usize) -> Result<()> {
        let mut bytes = vec![0; HEADER_BYTES + padding];
        let message = PathMessage::Probe { bytes: padding as u32 };
        self.codec.encode(0, Kind::Path(message), &vec![0; padding], &mut bytes);
        match self.sender.send_to(&bytes, self.to) {
            // Whether it fits is what is tested.
            Err(source) if source.raw_os_error() != Some(nix::errno::Errno::EMSGSIZE as i32) => Err(Error::Socket {
                what: format!("multicast to {}", self.to),
                source,
                next: "see whether the interface is up, and whether a firewall forbids it (`nft list ruleset`)",
            }),
            _ => Ok(()),
        }
    }

    /// Takes what comes until then.
    fn receive(&mut self, until: Instant) {
        let mut room = vec![0; 1 << 16];
        while Instant::now() < until {
            let left = until.saturating_duration_since(Instant::now()).as_millis().max(1);
            let mut wanted = [PollFd::new(self.member.as_fd(), PollFlags::POLLIN)];
            let _ = poll(&mut wanted, PollTimeout::from(u16::try_from(left).unwrap_or(u16::MAX)));
            while let Ok(len) = self.member.recv(&mut room) {
                let Ok(datagram) = self.codec.decode(&room[..len]) else { continue };
                let Kind::Path(PathMessage::Probe { .. }) = datagram.kind else { continue };
                let Some(came) = self.came.get_mut(datagram.rank as usize) else { continue };
                let count = if datagram.chunk.is_empty() { &mut came.short } else { &mut came.long };
                *count += 1;
                came.last_ms = u32::try_from(self.begun.elapsed().as_millis()).unwrap_or(u32::MAX).into();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::CallbackExchange;
    use crate::carrier::udp::UdpOptions;

    #[test]
    fn the_own_multicast_arrives_on_the_loopback_interface() {
        let interface = Interface::open(&UdpOptions::default().interface("lo").port(17_301)).unwrap();
        let mut alone = CallbackExchange::new(0, 1, |send: &[u8], receive: &mut [u8]| {
            receive.copy_from_slice(send);
            Ok(())
        })
        .unwrap();
        let arrivals = interface.check_multicast(&mut alone, Duration::from_millis(200)).unwrap();
        let [arrival] = arrivals[..] else { panic!("{arrivals:?}") };
        assert_eq!((arrival.from, arrival.to, arrival.sent, arrival.long_bytes), (0, 0, 4, 9000));
        assert!(arrival.is_right() && arrival.last > Duration::ZERO, "{arrival:?}");
        assert!(!MulticastArrival { long: 2, ..arrival }.is_right());
    }

    #[test]
    fn settings_that_do_not_fit_are_named_alike_on_all_ranks() {
        let own = |address: &str, group: &str, port: u16| Own {
            number: 0.into(),
            time_ms: 0.into(),
            mtu_bytes: 1500.into(),
            group: v6(group.parse().unwrap()),
            address: v6(address.parse().unwrap()),
            port: u32::from(port).into(),
        };
        let first = own("192.0.2.1", "::", 4900);
        let text = |other| misfit(&[first, first, other]).map(|error| error.to_string());
        assert_eq!(text(own("192.0.2.2", "::", 4900)), None);
        for (other, said) in [
            (own("192.0.2.2", "::", 4901), "has port 4901, rank 0 4900: give all ranks one (FLEXCAST_PORT)"),
            (own("192.0.2.2", "239.1.1.1", 4900), "has group 239.1.1.1, rank 0 drawn for each communicator"),
            (own("2001:db8::2", "::", 4900), "has address 2001:db8::2, rank 0 192.0.2.1"),
            (own("127.0.0.1", "::", 4900), "has the address 127.0.0.1, which only its own computer reaches"),
        ] {
            let text = text(other).unwrap();
            assert!(text.contains("rank 2") && text.contains(said), "{text}");
        }
    }
}
