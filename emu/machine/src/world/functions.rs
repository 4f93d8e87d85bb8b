//! Functions of all cards, by their numbers.

use crate::error::MachineError;
use crate::function::{ArmTraffic, Function, FunctionId};
use crate::host_memory::HostMemory;
use crate::world::World;

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
    use crate::numbering::{address, arm_address};

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
            assert_eq!((addresses.mac, addresses.gids), (expected.mac, crate::gid_table(expected)), "{id}");
            let pd = nic.alloc_pd_on(vhca).unwrap();
            assert_eq!(nic.vhca_of_pd(pd), Ok(vhca));
        }
        assert_ne!(world.vhca(first).unwrap(), world.vhca(first_arm).unwrap());
    }

    #[test]
    fn memory_registered_at_one_function_is_not_there_for_another() {
        let mut world = with_arm_functions();
        let addr = world.memory_of(FunctionId::arm(1)).unwrap().allocate(1);
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
