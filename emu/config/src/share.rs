//! `[share]` and `[attach]` of a machine: cards that several processes of one computer use.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Most processes that may use the cards of another at once, and how many may if nothing is said.
pub const MOST_CLIENTS: usize = 1024;
const CLIENTS: usize = 64;

/// `[share]`: other processes of the same user may use the host's functions of this machine's cards, by a socket of the
/// file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShareTable {
    /// Path of the socket, which is made. One that was left by a process that has ended is replaced.
    pub socket: PathBuf,
    /// Processes that may be there at once, 1 to [`MOST_CLIENTS`]. Default 64.
    #[serde(default = "clients", skip_serializing_if = "is_default_clients")]
    pub clients: usize,
}

fn clients() -> usize {
    CLIENTS
}

fn is_default_clients(clients: &usize) -> bool {
    *clients == CLIENTS
}

impl ShareTable {
    /// For as many processes as nobody says.
    #[must_use]
    pub fn at(socket: PathBuf) -> Self {
        Self { socket, clients: CLIENTS }
    }
}

/// `[attach]`: this process has no cards, but uses those of the process that shares them. A description with it says
/// nothing else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttachTable {
    /// Path of that process's socket.
    pub socket: PathBuf,
    /// How long to wait for that process, when this one begins and at each call, in milliseconds, 1 to
    /// [`MOST_TIMEOUT_MS`](crate::MOST_TIMEOUT_MS). Then calls fail. Default 10,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
}

#[cfg(test)]
mod tests {
    use crate::{ConfigError, Machine};

    fn refused(text: &str) -> ConfigError {
        Machine::parse(text).unwrap().config().unwrap_err()
    }

    #[test]
    fn a_shared_machine_is_one_that_follows_the_clock() {
        let shared = Machine::parse("cards = 1\narm_functions = true\n[share]\nsocket = \"card.sock\"").unwrap();
        assert_eq!((shared.share.as_ref().unwrap().clients, shared.config().unwrap().cards), (64, 1));
        assert!(matches!(
            refused("command_ps = 5\n[share]\nsocket = \"s\""),
            ConfigError::CommandTime { command_ps: 5 }
        ));
        assert!(matches!(refused("[share]\nsocket = \"s\"\nclients = 0"), ConfigError::Clients { clients: 0 }));
        assert!(matches!(refused("[share]\nsocket = \"s\"\nclients = 1025"), ConfigError::Clients { clients: 1025 }));
        assert!(matches!(refused("detect_races = true\n[share]\nsocket = \"s\""), ConfigError::SharedWatched));
        assert!(matches!(refused("[share]\nsocket = \"s\"\n[memory]\nmodel = \"weak\""), ConfigError::SharedWatched));
        assert!(matches!(shared.config_of(4).unwrap_err(), ConfigError::Bridged));
    }

    #[test]
    fn who_attaches_has_no_machine_of_its_own() {
        let attached = Machine::parse("[attach]\nsocket = \"card.sock\"\ntimeout_ms = 50").unwrap();
        assert_eq!(attached.attach.as_ref().unwrap().timeout_ms, Some(50));
        assert!(attached.only_attaches());
        assert!(matches!(attached.config().unwrap_err(), ConfigError::Attached));
        assert!(!Machine::parse("cards = 1\n[attach]\nsocket = \"s\"").unwrap().only_attaches());
        assert!(Machine::parse("[attach]\nsocket = \"s\"\ncards = 1").is_err(), "no key of that table");
    }
}
