//! `[bridge]` of a machine resolved: addresses of the other machines, and the wire to them.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs as _, UdpSocket};
use std::ops::Range;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use emu_config::{BridgeTable, MOST_TIMEOUT_MS};

use crate::error::BridgeError;
use crate::limits::PEER_TIMEOUT;
use crate::peer::PeerConfig;
use crate::wire::Wire;

/// Cards that can be numbered.
const CARDS: usize = 65_535;

/// The other machines, seen from one that has the cards `own`.
pub(crate) fn resolve(bridge: &BridgeTable, own: &Range<usize>) -> Result<Vec<PeerConfig>, BridgeError> {
    let wrong = |text: String| Err(BridgeError::Peers(text));
    match (&bridge.peer, &bridge.peers[..]) {
        (Some(peer), []) => return Ok(vec![PeerConfig { address: address("peer", peer)?, cards: None }]),
        (Some(_), _) => return wrong("peer and peers exclude one another".to_owned()),
        (None, []) => return wrong("neither peer nor peers say what this end is joined to".to_owned()),
        (None, _) => {}
    }
    let mut found: Vec<PeerConfig> = Vec::new();
    for table in &bridge.peers {
        let cards = table.first_card..table.first_card.saturating_add(table.cards);
        let peer = PeerConfig { address: address("peers", &table.address)?, cards: Some(cards.clone()) };
        if cards.is_empty() || cards.end > CARDS {
            return wrong(format!(
                "the peer at {} has {} cards from number {} on: it needs at least one, and the last number is {}",
                table.address,
                table.cards,
                table.first_card,
                CARDS - 1
            ));
        }
        let known = found.iter().filter_map(|other| other.cards.as_ref());
        if let Some(other) = known.chain([own]).find(|other| other.start < cards.end && cards.start < other.end) {
            return wrong(format!(
                "the peer at {} has cards {} to {}, and another machine {} to {}: each number is that of one card",
                table.address,
                cards.start,
                cards.end - 1,
                other.start,
                other.end - 1
            ));
        }
        if found.iter().any(|other| other.address == peer.address) {
            return wrong(format!("two peers are at {}", table.address));
        }
        found.push(peer);
    }
    Ok(found)
}

/// Tries whether this machine can receive at its address, and leaves it free.
///
/// # Errors
/// [`BridgeError::Address`] or [`BridgeError::Bridge`].
pub fn attempt(bridge: &BridgeTable) -> Result<(), BridgeError> {
    let listen = address("listen", &bridge.listen)?;
    UdpSocket::bind(listen).map(drop).map_err(|source| BridgeError::Bridge { listen: bridge.listen.clone(), source })
}

/// Binds the address and names the peers.
pub(crate) fn wire(bridge: &BridgeTable, peers: Vec<PeerConfig>) -> Result<Wire, BridgeError> {
    let listen = address("listen", &bridge.listen)?;
    let peer_timeout = match bridge.peer_timeout_ms {
        None => PEER_TIMEOUT,
        Some(ms @ 1..=MOST_TIMEOUT_MS) => Duration::from_millis(ms),
        Some(ms) => return Err(BridgeError::Timeout(ms)),
    };
    let failed = |source| BridgeError::Bridge { listen: bridge.listen.clone(), source };
    let wire = UdpSocket::bind(listen).and_then(|socket| Wire::over(socket, peers, epoch()));
    Ok(wire.map_err(failed)?.with_peer_timeout(peer_timeout))
}

/// The wire of a machine that nobody is joined to: its socket receives from nobody.
pub(crate) fn alone() -> io::Result<Wire> {
    Wire::over(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?, Vec::new(), epoch())
}

fn address(key: &'static str, value: &str) -> Result<SocketAddr, BridgeError> {
    let found = value.to_socket_addrs().and_then(|mut found| {
        found.next().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the name has no address"))
    });
    found.map_err(|source| BridgeError::Address { key, value: value.to_owned(), source })
}

/// A number that another start of the program hardly has.
fn epoch() -> u32 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (now.as_nanos() as u32 ^ std::process::id().rotate_left(16)).max(1)
}

#[cfg(test)]
mod tests {
    use emu_config::PeerTable;

    use super::*;

    #[test]
    fn machines_of_one_computer_know_one_another() {
        let tables: Vec<_> = (0..3).map(|rank| BridgeTable::on_this_computer(rank, 3, 2, 7471)).collect();
        for (rank, table) in tables.iter().enumerate() {
            let known = resolve(table, &(2 * rank..2 * rank + 2)).unwrap();
            for (other, at) in tables.iter().enumerate().filter(|(other, _)| *other != rank) {
                let peer = PeerConfig { address: at.listen.parse().unwrap(), cards: Some(2 * other..2 * other + 2) };
                assert!(known.contains(&peer), "{rank} knows {other}");
            }
            assert_eq!(known.len(), 2);
        }
    }

    #[test]
    fn a_neighbour_is_waited_for_as_long_as_the_file_says_within_reason() {
        let wire = |peer_timeout_ms| {
            let listen = "127.0.0.1:0".to_owned();
            super::wire(&BridgeTable { listen, peer: None, peer_timeout_ms, peers: Vec::new() }, Vec::new())
        };
        assert!(wire(None).is_ok() && wire(Some(1)).is_ok() && wire(Some(MOST_TIMEOUT_MS)).is_ok());
        for ms in [0, MOST_TIMEOUT_MS + 1, u64::MAX] {
            let text = wire(Some(ms)).map(drop).unwrap_err().to_string();
            assert!(text.contains(&format!("is {ms}")) && text.contains("1 to 3600000"), "{text}");
        }
    }

    #[test]
    fn what_does_not_fit_together_is_named() {
        let peer = |port: u16, first_card, cards| PeerTable { address: format!("127.0.0.1:{port}"), first_card, cards };
        let refusal = |peer: Option<&str>, peers: Vec<PeerTable>| {
            let table = BridgeTable {
                listen: "127.0.0.1:0".to_owned(),
                peer: peer.map(str::to_owned),
                peer_timeout_ms: None,
                peers,
            };
            resolve(&table, &(0..1)).unwrap_err().to_string()
        };
        assert!(refusal(None, vec![]).contains("neither peer nor peers"));
        assert!(refusal(Some("127.0.0.1:1"), vec![peer(2, 1, 1)]).contains("exclude one another"));
        assert!(refusal(None, vec![peer(1, 0, 1)]).contains("cards 0 to 0"), "its own");
        assert!(refusal(None, vec![peer(1, 1, 3), peer(2, 3, 1)]).contains("127.0.0.1:2 has cards 3 to 3"));
        assert!(refusal(None, vec![peer(1, 1, 1), peer(1, 2, 1)]).contains("two peers are at 127.0.0.1:1"));
        assert!(refusal(None, vec![peer(1, 1, 0)]).contains("0 cards"));
        assert!(refusal(None, vec![peer(1, 65_534, 2)]).contains("the last number is 65534"));
        assert!(refusal(None, vec![peer(1, usize::MAX, usize::MAX)]).contains("the last number"));
        assert!(refusal(None, vec![PeerTable { address: "x".to_owned(), ..peer(1, 1, 1) }]).contains("bridge.peers"));
    }
}
