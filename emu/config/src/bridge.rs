//! `[bridge]` of a machine: the machines of other programs that it is joined to.

use serde::{Deserialize, Serialize};

/// `[bridge]`: addresses as `HOST:PORT`, and either one `peer` or a list of `peers`.
///
/// With several peers all machines form one network: each has cards of its own numbers, and each knows of all the
/// others where they are and which cards they have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BridgeTable {
    /// Where this machine receives, by UDP.
    pub listen: String,
    /// Where the other one does, if there is one only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// How long another machine that has been there may be silent while something waits for it, in milliseconds, 1 to
    /// [`MOST_TIMEOUT_MS`]: so long virtual time stands still here. Then it counts as gone. Default 10,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_timeout_ms: Option<u64>,
    /// Where the others do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<PeerTable>,
}

/// Longest time for which another machine may be waited for, in milliseconds: an hour.
pub const MOST_TIMEOUT_MS: u64 = 3_600_000;

/// An entry of `bridge.peers`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerTable {
    /// Where the other machine receives, by UDP.
    pub address: String,
    /// Number of its first card.
    pub first_card: usize,
    /// Number of its cards. Default 1.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub cards: usize,
}

fn one() -> usize {
    1
}

fn is_one(cards: &usize) -> bool {
    *cards == 1
}

impl BridgeTable {
    /// Machine `rank` of `of` on one computer, of `cards` cards each: machine `i` receives at port `first_port + i` of
    /// the loopback interface and has the cards from `i * cards` on.
    #[must_use]
    pub fn on_this_computer(rank: usize, of: usize, cards: usize, first_port: u16) -> Self {
        let address = |rank: usize| format!("127.0.0.1:{}", usize::from(first_port) + rank);
        let peers = (0..of)
            .filter(|&other| other != rank)
            .map(|other| PeerTable { address: address(other), first_card: other * cards, cards })
            .collect();
        Self { listen: address(rank), peer: None, peer_timeout_ms: None, peers }
    }
}
