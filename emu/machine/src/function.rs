//! Functions of a card: what each of the operating systems at a card sees of it.
//!
//! In DPU mode a BlueField card shows one network function to the host (the physical function, PF) and one to its own
//! Arm cores (the embedded CPU function, ECPF). Each is a virtual HCA with protection domains, memory keys and queues
//! of its own, and with the memory of its own operating system behind them; both share the port and what executes work
//! requests (DOCA documentation, "BlueField modes of operation"; Linux `mlx5_ifc.h`, `vhca_id`).

use std::cell::Cell;
use std::fmt;

use emu_nic::{DmaFault, Space};
use serde::{Deserialize, Serialize};

use crate::error::MachineError;
use crate::host_memory::HostMemory;
use crate::numbering::{arm_address, gid_table};

/// Who uses a card through a function of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Function {
    /// The computer that the card is plugged into.
    #[default]
    Host,
    /// The card's own Arm cores.
    Arm,
}

impl Function {
    /// The memory that addresses of its programs lie in.
    #[must_use]
    pub const fn space(self) -> Space {
        match self {
            Self::Host => Space::Host,
            Self::Arm => Space::Arm,
        }
    }
}

/// A function of one card, which programs open as a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FunctionId {
    /// Index of the card in its machine.
    pub card: usize,
    /// Which of its functions.
    pub function: Function,
}

impl FunctionId {
    /// The host's function of a card.
    #[must_use]
    pub const fn host(card: usize) -> Self {
        Self { card, function: Function::Host }
    }

    /// The function of a card's Arm cores.
    #[must_use]
    pub const fn arm(card: usize) -> Self {
        Self { card, function: Function::Arm }
    }
}

impl fmt::Display for FunctionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.function {
            Function::Host => write!(f, "the host's function of card {}", self.card),
            Function::Arm => write!(f, "the Arm cores' function of card {}", self.card),
        }
    }
}

/// What a card has besides for its Arm cores.
#[derive(Debug)]
pub(crate) struct ArmSide {
    /// Their virtual HCA.
    pub(crate) vhca: u16,
    /// The registered part of their memory.
    pub(crate) memory: HostMemory,
    /// What the card has moved to and from it.
    pub(crate) traffic: Cell<ArmTraffic>,
}

/// Bytes that a card has moved to and from memory of its Arm cores: payload, queue entries, doorbell records and
/// completions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArmTraffic {
    /// Bytes read from it.
    pub read_bytes: u64,
    /// Bytes written to it.
    pub written_bytes: u64,
}

impl ArmSide {
    /// Adds the function to a network card, whose number among all cards is `number`.
    pub(crate) fn new(nic: &mut emu_nic::Nic, number: usize) -> Result<Self, MachineError> {
        let address = arm_address(number);
        let addresses = emu_nic::PortAddresses { mac: address.mac, gids: gid_table(address) };
        let vhca = nic.create_function(addresses).map_err(MachineError::Function)?;
        Ok(Self { vhca, memory: HostMemory::new(1), traffic: Cell::default() })
    }

    /// The card reads its memory.
    pub(crate) fn read(&self, addr: u64, out: &mut [u8]) -> Result<(), DmaFault> {
        self.memory.read(addr, out)?;
        let before = self.traffic.get();
        self.traffic.set(ArmTraffic { read_bytes: before.read_bytes + out.len() as u64, ..before });
        Ok(())
    }

    /// The card writes to its memory.
    pub(crate) fn write(&self, addr: u64, data: &[u8]) -> Result<(), DmaFault> {
        self.memory.write_by(0, addr, data)?;
        let before = self.traffic.get();
        self.traffic.set(ArmTraffic { written_bytes: before.written_bytes + data.len() as u64, ..before });
        Ok(())
    }
}
