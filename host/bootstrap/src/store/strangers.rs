//! Connections to rank 0 that have not said yet who they are.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::frame::Hello;
use super::link::Link;

/// How long somebody may take to say who it is.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// Most strangers of one address, beyond as many as there are ranks: all ranks may come from one computer, at once.
const MOST_OF_ADDRESS: usize = 64;
/// Most strangers, the same.
const MOST: usize = 256;

/// Somebody who has connected.
pub(super) struct Stranger {
    pub(super) link: Link,
    address: IpAddr,
    since: Instant,
    /// What it has said, once the connection is encrypted: its first record shows that it has the secret.
    pub(super) hello: Option<Hello>,
}

impl Stranger {
    pub(super) fn is_late(&self) -> bool {
        self.since.elapsed() > HELLO_TIMEOUT
    }
}

/// Strangers in the order in which they came. A new one takes the place of the oldest where there are too many: ranks
/// speak at once, and connect again if they are dropped.
pub(super) struct Strangers {
    all: VecDeque<Stranger>,
    most_of_address: usize,
    most: usize,
    dropped: u64,
}

impl Strangers {
    pub(super) fn new(ranks: u32) -> Self {
        let ranks = ranks as usize;
        Self { all: VecDeque::new(), most_of_address: MOST_OF_ADDRESS + ranks, most: MOST + ranks, dropped: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Stranger> {
        self.all.iter()
    }

    /// How many have been dropped for newer ones.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Takes a new one.
    pub(super) fn add(&mut self, link: Link, address: IpAddr) {
        let of_address = self.all.iter().filter(|one| one.address == address).count();
        if of_address >= self.most_of_address {
            let oldest = self.all.iter().position(|one| one.address == address);
            self.dropped += u64::from(oldest.and_then(|at| self.all.remove(at)).is_some());
        } else if self.all.len() >= self.most {
            self.drop_oldest();
        }
        self.all.push_back(Stranger { link, address, since: Instant::now(), hello: None });
    }

    /// Drops the one that has been silent for longest; false if there is none.
    pub(super) fn drop_oldest(&mut self) -> bool {
        let is_any = self.all.pop_front().is_some();
        self.dropped += u64::from(is_any);
        is_any
    }

    /// Takes out the oldest, to be put back or not.
    pub(super) fn take(&mut self) -> Option<Stranger> {
        self.all.pop_front()
    }

    /// Puts one back: behind all others, which keeps their order if all are taken out and put back in turn.
    pub(super) fn put_back(&mut self, stranger: Stranger) {
        self.all.push_back(stranger);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    use super::*;

    /// Numbers of those that stay, of so many that come from these addresses in turn.
    fn staying(count: usize, of: impl Fn(usize) -> IpAddr) -> Vec<usize> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut strangers = Strangers::new(2);
        for number in 0..count {
            let _other = TcpStream::connect(address).unwrap();
            let (stream, _) = listener.accept().unwrap();
            strangers.add(Link::new(stream, number.to_string(), 0).unwrap(), of(number));
        }
        assert_eq!(strangers.dropped() as usize + strangers.len(), count);
        std::iter::from_fn(|| strangers.take()).map(|one| one.link.peer.parse().unwrap()).collect()
    }

    #[test]
    fn the_oldest_goes_first() {
        let address = |number: usize| Ipv4Addr::new(10, 0, 0, number as u8).into();
        // Of one address.
        assert_eq!(staying(70, |_| address(1)), (4..70).collect::<Vec<_>>());
        // One that comes rarely stays next to one that comes often.
        let stay = staying(200, |number| address(if number == 3 { 2 } else { 1 }));
        assert_eq!((stay.len(), stay[0]), (67, 3));
        // Of all together.
        assert_eq!(staying(300, |number| address(number % 10)), (42..300).collect::<Vec<_>>());
    }
}
