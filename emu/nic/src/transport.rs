//! Transport services.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Transport service of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Raw Ethernet: a send queue's messages are whole frames, and a receive queue gets the frames that steering leads
    /// to it.
    Ethernet,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
            Self::Ethernet => "raw Ethernet",
        })
    }
}
