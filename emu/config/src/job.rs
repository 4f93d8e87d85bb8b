//! `[job]` of a machine: one description for all processes of a job.

use serde::{Deserialize, Serialize};

use crate::bridge::BridgeTable;
use crate::error::ConfigError;
use crate::machine::Machine;
use crate::network::NetworkTable;

/// UDP port of the first process, if nothing is said.
const FIRST_PORT: u16 = 7471;
/// Numbers that cards can have.
const MOST_CARDS: usize = 65_535;

/// `[job]`: each process of a job on this computer has a machine like this one, and all of them form one network.
/// Numbers of cards and addresses follow from the process's rank, which its launcher gives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobTable {
    /// UDP port at which the machine of rank 0 receives; those of the others follow. Default 7471.
    #[serde(default = "first_port", skip_serializing_if = "is_first_port")]
    pub first_port: u16,
    /// As [`BridgeTable::peer_timeout_ms`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_timeout_ms: Option<u64>,
}

fn first_port() -> u16 {
    FIRST_PORT
}

fn is_first_port(port: &u16) -> bool {
    *port == FIRST_PORT
}

impl Default for JobTable {
    fn default() -> Self {
        Self { first_port: FIRST_PORT, peer_timeout_ms: None }
    }
}

impl Machine {
    /// The machine of process `rank` of `of`: the same with `[bridge]` and numbers of cards in the place of `[job]`; as
    /// it is without `[job]`.
    ///
    /// # Errors
    /// No such rank, more ports or cards than there are, or `[job]` together with what follows from it.
    pub fn placed(&self, rank: usize, of: usize) -> Result<Self, ConfigError> {
        let Some(job) = &self.job else { return Ok(self.clone()) };
        if rank >= of {
            return Err(ConfigError::Rank { rank, of });
        }
        let free = self.first_card.is_none() && self.bridge.is_none() && self.share.is_none() && self.attach.is_none();
        if !free {
            return Err(ConfigError::JobAndPlace);
        }
        let last = usize::from(job.first_port).saturating_add(of - 1);
        if last > usize::from(u16::MAX) {
            return Err(ConfigError::Port { first: job.first_port, last, of });
        }
        let cards = self.cards.unwrap_or(1);
        if cards == 0 || cards.saturating_mul(of) > MOST_CARDS {
            return Err(ConfigError::JobCards { cards, of });
        }
        // A cable leads one card outside; the last host of a switch is where several are joined to the others.
        let switch = || (cards > 1).then(|| NetworkTable::of(format!("switch-{}", cards + 1)));
        let bridge = (of > 1).then(|| BridgeTable {
            peer_timeout_ms: job.peer_timeout_ms,
            ..BridgeTable::on_this_computer(rank, of, cards, job.first_port)
        });
        Ok(Self {
            job: None,
            cards: Some(cards),
            first_card: Some(rank * cards),
            network: self.network.clone().or_else(switch),
            bridge,
            ..self.clone()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Machine {
        Machine::parse(text).unwrap()
    }

    #[test]
    fn each_rank_has_its_own_place() {
        let job = parsed("[job]\n");
        assert_eq!(job.job, Some(JobTable::default()));
        let third = job.placed(2, 4).unwrap();
        assert_eq!((third.cards, third.first_card, &third.network, &third.job), (Some(1), Some(2), &None, &None));
        let bridge = third.bridge.unwrap();
        assert_eq!((&*bridge.listen, bridge.peers.len()), ("127.0.0.1:7473", 3));
        assert_eq!((&*bridge.peers[2].address, bridge.peers[2].first_card), ("127.0.0.1:7474", 3));
        assert_eq!(job.placed(0, 1).unwrap().bridge, None, "alone");
        let wide =
            parsed("cards = 3\nloss_ppm = 5\n[job]\nfirst_port = 9000\npeer_timeout_ms = 7").placed(1, 2).unwrap();
        assert_eq!((wide.first_card, wide.loss_ppm), (Some(3), Some(5)));
        assert_eq!(wide.network.as_ref().and_then(|network| network.topology.as_deref()), Some("switch-4"));
        let bridge = wide.bridge.as_ref().unwrap();
        assert_eq!((&*bridge.listen, bridge.peer_timeout_ms), ("127.0.0.1:9001", Some(7)));
        let plain = parsed("cards = 2");
        assert_eq!(plain.placed(5, 1).unwrap(), plain, "no job");
    }

    #[test]
    fn places_that_cannot_be_are_reported() {
        let refusal = |text: &str, rank, of| parsed(text).placed(rank, of).unwrap_err().to_string();
        assert!(refusal("[job]", 4, 4).contains("ranks are 0 to 3"));
        assert!(refusal("[job]", 0, 0).contains("rank 0 of 0"));
        assert!(refusal("[job]\nfirst_port = 65535", 0, 2).contains("port 65536"));
        assert!(refusal("cards = 0\n[job]", 0, 2).contains("at least one"));
        assert!(refusal("cards = 40000\n[job]", 0, 2).contains("65535 cards together"));
        assert!(refusal("first_card = 1\n[job]", 0, 2).contains("leave them out"));
        assert!(refusal("[job]\n[share]\nsocket = \"s\"", 0, 2).contains("leave them out"));
        let unplaced = parsed("[job]").config().unwrap_err().to_string();
        assert!(unplaced.contains("[job]") && unplaced.contains("flexcast emu exec"), "{unplaced}");
        assert!(parsed("[job]").config_of(4).is_err());
        assert!(Machine::parse("[job]\nranks = 4").is_err(), "no key of that table");
    }
}
