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
use crate::numbering::arm_address;
use crate::world::World;

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
        let addresses = emu_nic::PortAddresses { mac: address.mac, gids: vec![address.gid] };
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

impl World {
    /// The functions of all cards: those of the host in the order of the cards, then those of the Arm cores.
    #[must_use]
    pub fn functions(&self) -> Vec<FunctionId> {
        let arms = self.cards.iter().enumerate().filter(|(_, card)| card.arm.is_some());
        (0..self.cards.len()).map(FunctionId::host).chain(arms.map(|(card, _)| FunctionId::arm(card))).collect()
    }

    /// The virtual HCA of a function.
    ///
    /// # Errors
    /// [`MachineError::NoCard`], [`MachineError::NoArmFunction`].
    pub fn vhca(&mut self, id: FunctionId) -> Result<u16, MachineError> {
        let card = self.card(id.card)?;
        match (id.function, &card.arm) {
            (Function::Host, _) => Ok(card.nic.vhca_id()),
            (Function::Arm, Some(arm)) => Ok(arm.vhca),
            (Function::Arm, None) => Err(MachineError::NoArmFunction { card: id.card }),
        }
    }

    /// A control operation of a function's program begins: it is counted, and its time passes (see
    /// [`Config::command_ps`](crate::Config::command_ps)).
    ///
    /// # Errors
    /// [`MachineError::NoCard`], [`MachineError::NoArmFunction`].
    pub fn begin_command(&mut self, id: FunctionId) -> Result<(), MachineError> {
        self.vhca(id)?;
        self.cards[id.card].commands[id.function as usize] += 1;
        let end_ps = self.now_ps.saturating_add(self.config.command_ps);
        if end_ps == self.now_ps || self.has_outside() {
            return Ok(());
        }
        while self.due_ps().is_some_and(|due_ps| due_ps <= end_ps) && self.step() {}
        self.now_ps = self.now_ps.max(end_ps);
        Ok(())
    }

    /// Control operations of verbs and DevX that a function's programs have asked for, refused ones included. FlexIO's
    /// calls are not counted.
    ///
    /// # Errors
    /// [`MachineError::NoCard`], [`MachineError::NoArmFunction`].
    pub fn command_count(&mut self, id: FunctionId) -> Result<u64, MachineError> {
        self.vhca(id)?;
        Ok(self.cards[id.card].commands[id.function as usize])
    }

    /// What a card has moved to and from memory of its Arm cores so far.
    ///
    /// # Errors
    /// [`MachineError::NoCard`], [`MachineError::NoArmFunction`].
    pub fn arm_traffic(&mut self, card: usize) -> Result<ArmTraffic, MachineError> {
        let arm = self.card(card)?.arm.as_ref().ok_or(MachineError::NoArmFunction { card })?;
        Ok(arm.traffic.get())
    }

    /// The registered part of the memory of a function's programs. All hosts of a machine have one memory; each card's
    /// Arm cores have their own.
    ///
    /// # Errors
    /// [`MachineError::NoCard`], [`MachineError::NoArmFunction`].
    pub fn memory_of(&mut self, id: FunctionId) -> Result<&mut HostMemory, MachineError> {
        self.vhca(id)?;
        let arm = self.cards[id.card].arm.as_mut().filter(|_| id.function == Function::Arm);
        Ok(arm.map_or(&mut self.host, |arm| &mut arm.memory))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, DrivenFrom};
    use crate::numbering::address;

    fn with_arm_functions() -> World {
        World::new(Config { arm_functions: true, first_card: 4, ..Config::default() }).unwrap()
    }

    #[test]
    fn functions_are_virtual_hcas_with_addresses_of_their_own() {
        let mut world = with_arm_functions();
        let [first, second] = [0, 1].map(FunctionId::host);
        let [first_arm, second_arm] = [0, 1].map(FunctionId::arm);
        assert_eq!(world.functions(), [first, second, first_arm, second_arm]);
        for (id, expected) in [(first, address(4)), (first_arm, arm_address(4)), (second_arm, arm_address(5))] {
            let vhca = world.vhca(id).unwrap();
            let nic = &mut world.card(id.card).unwrap().nic;
            let addresses = nic.port_addresses(vhca).unwrap().clone();
            assert_eq!((addresses.mac, addresses.gids), (expected.mac, vec![expected.gid]), "{id}");
            let pd = nic.alloc_pd_on(vhca).unwrap();
            assert_eq!(nic.vhca_of_pd(pd), Ok(vhca));
        }
        assert_ne!(world.vhca(first).unwrap(), world.vhca(first_arm).unwrap());
    }

    #[test]
    fn memory_registered_at_one_function_is_not_there_for_another() {
        let mut world = with_arm_functions();
        let addr = world.memory_of(FunctionId::arm(1)).unwrap().lend(1);
        let mut out = [0; 8];
        let mut reads = |id| world.memory_of(id).unwrap().read(addr, &mut out).is_ok();
        assert!(reads(FunctionId::arm(1)));
        assert!(!reads(FunctionId::arm(0)) && !reads(FunctionId::host(1)));
    }

    #[test]
    fn commands_are_counted_by_function_and_take_their_time() {
        let mut world = World::new(Config { arm_functions: true, command_ps: 7_000, ..Config::default() }).unwrap();
        let (host, arm) = (FunctionId::host(1), FunctionId::arm(1));
        for id in [host, arm, arm] {
            world.begin_command(id).unwrap();
        }
        let counts = [host, arm, FunctionId::arm(0)].map(|id| world.command_count(id).unwrap());
        assert_eq!((counts, world.now_ps()), ([1, 2, 0], 21_000));
        let mut plain = World::new(Config::default()).unwrap();
        plain.begin_command(host).unwrap();
        assert_eq!((plain.command_count(host).unwrap(), plain.now_ps()), (1, 0));
        assert!(matches!(plain.begin_command(arm), Err(MachineError::NoArmFunction { card: 1 })));
    }

    #[test]
    fn what_is_not_there_is_named() {
        let mut plain = World::new(Config::default()).unwrap();
        assert_eq!(plain.functions(), [0, 1].map(FunctionId::host));
        let error = plain.vhca(FunctionId::arm(1)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "card 1 has no function for its Arm cores: configure the machine with arm_functions"
        );
        assert!(matches!(plain.memory_of(FunctionId::host(2)), Err(MachineError::NoCard { .. })));
        let both = Config { arm_functions: true, driven_from: DrivenFrom::Arm, ..Config::default() };
        assert!(matches!(World::new(both), Err(MachineError::ArmFunctionsOfArm)));
    }
}
