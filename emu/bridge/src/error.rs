//! Errors of machine files.

use std::io;
use std::path::PathBuf;

use emu_config::{ConfigError, MOST_TIMEOUT_MS};
use emu_machine::MachineError;

/// Why there is no machine of a description.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BridgeError {
    /// The description is of none.
    #[error("the machine file: {0}")]
    Config(#[from] ConfigError),
    /// The machine cannot be built so.
    #[error("the machine file: {0}")]
    Machine(#[from] MachineError),
    /// Not an address.
    #[error("the machine file: bridge.{key} is {value:?}, but must be HOST:PORT of this or another computer: {source}")]
    Address {
        /// `listen`, `peer` or `peers`.
        key: &'static str,
        /// What it is.
        value: String,
        /// What the system said.
        source: io::Error,
    },
    /// The peers do not fit together.
    #[error("the machine file: bridge: {0}")]
    Peers(String),
    /// A time that nobody waits.
    #[error("the machine file: bridge.peer_timeout_ms is {0}, but must be 1 to {MOST_TIMEOUT_MS} ms")]
    Timeout(u64),
    /// The bridge cannot be set up.
    #[error("the bridge cannot listen on {listen}: {source}; is it taken by another program?")]
    Bridge {
        /// The address.
        listen: String,
        /// What the system said.
        source: io::Error,
    },
    /// The cards cannot be shared.
    #[error("the cards cannot be shared at {}: {source}", socket.display())]
    Share {
        /// The socket.
        socket: PathBuf,
        /// What the system said, or who has it.
        source: io::Error,
    },
    /// A capture cannot be played.
    #[error("the capture {} cannot be played: {reason}", path.display())]
    Replay {
        /// Its path.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// A tap device cannot be used.
    #[error("the tap {interface} cannot be used: {source}; {}", way_to_a_tap(interface, source))]
    Tap {
        /// Its name.
        interface: String,
        /// What the system said.
        source: io::Error,
    },
    /// The computer gives this user no tap devices.
    #[error(
        "the tap {interface} cannot be used: opening /dev/net/tun, of which taps are made: {source}; ask for read and \
         write access to it"
    )]
    Tun {
        /// The tap's name.
        interface: String,
        /// What the system said.
        source: io::Error,
    },
    /// A machine that runs by itself needs a thread, and a few descriptors.
    #[error("the machine cannot run by itself: {0}")]
    Clock(io::Error),
    /// The capture cannot be written.
    #[error("the capture {} cannot be written: {source}", path.display())]
    Capture {
        /// Its path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// The next step where the system refuses a tap device.
fn way_to_a_tap(interface: &str, source: &io::Error) -> String {
    match source.kind() {
        io::ErrorKind::ResourceBusy => "another program uses it: end that, or name another interface".to_owned(),
        io::ErrorKind::InvalidInput => {
            "the interface of this name is of another kind: name another one, or none that is there".to_owned()
        }
        _ => format!(
            "`sudo ip tuntap add dev {interface} mode tap user $USER` and `sudo ip link set {interface} up` make one \
             for a user"
        ),
    }
}
