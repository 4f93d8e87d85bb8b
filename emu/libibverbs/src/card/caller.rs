//! Programs that ask the card for something: one of this process, or another process, and what that has.

use std::collections::BTreeSet;

use emu_machine::nic::{QueueMemory, Space};
use emu_machine::{FunctionId, HostProcess, World};

use super::events;
use crate::errno::{Errno, Result};
use crate::umem::Umem;

/// Most objects and registrations of another process.
const MAX_OBJECTS: usize = 1 << 16;

/// Kinds of objects, in the order in which they are destroyed when their process is gone: users before what they use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    QueuePair,
    SharedReceives,
    Key,
    CompletionQueue,
    Domain,
}

/// What another process has.
#[derive(Debug, Default)]
pub(crate) struct Owned {
    /// By class, card and number.
    pub(crate) objects: BTreeSet<(Class, usize, u32)>,
    pub(crate) umems: BTreeSet<u32>,
}

/// Who asks: a program of this process, or another process.
pub(crate) struct Caller<'a> {
    pub(crate) id: FunctionId,
    /// The number of the other process in the machine, and what it has.
    pub(crate) other: Option<(u32, &'a mut Owned)>,
}

impl Caller<'_> {
    /// A program of this process.
    pub(crate) fn here(id: FunctionId) -> Self {
        Self { id, other: None }
    }

    /// Where its addresses lie.
    pub(crate) fn space(&self) -> Space {
        self.other.as_ref().map_or(self.id.function.space(), |(number, _)| Space::HostProcess(*number))
    }

    /// Where its pages lie that may be absent. Those of another process are reached so in any case.
    pub(crate) fn pages(&self, world: &mut World) -> Space {
        match &self.other {
            None if self.id.function.space() == Space::Host => Space::HostProcess(world.own_pages()),
            _ => self.space(),
        }
    }

    pub(crate) fn place(&self, addr: u64) -> QueueMemory {
        QueueMemory { space: self.space(), addr }
    }

    /// Whether it may use an object, which another process may if it has made it. Of a program of this process the card
    /// finds out by itself.
    pub(crate) fn has(&self, class: Class, number: u32) -> bool {
        self.other.as_ref().is_none_or(|(_, owned)| owned.objects.contains(&(class, self.id.card, number)))
    }

    pub(crate) fn check(&self, class: Class, number: u32) -> Result<()> {
        if self.has(class, number) {
            return Ok(());
        }
        let what = match class {
            Class::QueuePair => "queue pair",
            Class::SharedReceives => "shared receive queue",
            Class::Key => "memory key",
            Class::CompletionQueue => "completion queue",
            Class::Domain => "protection domain",
        };
        Err(Errno::invalid(format!("this process has no {what} {number:#x}")))
    }

    /// Whether it may name memory in a command.
    pub(crate) fn may_name(&self, umem: &Umem) -> bool {
        let own = match (self.space(), umem.space) {
            (Space::HostProcess(own), other) => other == Space::HostProcess(own),
            (_, Space::HostProcess(_)) => false,
            _ => true,
        };
        own && umem.owner == self.id
    }

    /// The card's number of a completion channel.
    ///
    /// # Errors
    /// ENOMEM: another process has too many.
    pub(crate) fn channel(&self, channel: u32) -> Result<u32> {
        self.other.as_ref().map_or(Ok(channel), |(process, _)| events::number(*process, channel))
    }

    /// Before another process makes one more object, or registers memory.
    pub(crate) fn room(&self, world: &mut World) -> Result<()> {
        let Some((number, owned)) = &self.other else { return Ok(()) };
        let registrations = world.host_process(*number).map_or(0, |process| process.registrations());
        if owned.objects.len() + registrations < MAX_OBJECTS {
            return Ok(());
        }
        Err(Errno::new(
            libc::ENOMEM,
            format!("this process has {MAX_OBJECTS} objects and registrations already: destroy some"),
        ))
    }

    pub(crate) fn made(&mut self, class: Class, number: u32) -> u32 {
        if let Some((_, owned)) = &mut self.other {
            owned.objects.insert((class, self.id.card, number));
        }
        number
    }

    pub(crate) fn gone(&mut self, class: Class, number: u32) {
        if let Some((_, owned)) = &mut self.other {
            owned.objects.remove(&(class, self.id.card, number));
        }
    }

    pub(crate) fn register(&self, world: &mut World, addr: u64, len: u64) -> Result<()> {
        self.register_in(world, self.space(), (addr, len))
    }

    pub(crate) fn deregister(&self, world: &mut World, addr: u64, len: u64) -> Result<()> {
        self.deregister_in(world, self.space(), (addr, len))
    }

    /// Makes memory reachable for the cards: of the program, or its pages that may be absent.
    #[allow(unsafe_code)]
    pub(crate) fn register_in(&self, world: &mut World, space: Space, (addr, len): (u64, u64)) -> Result<()> {
        match space {
            Space::HostProcess(number) => process(world, number)?.register(addr, len),
            // SAFETY: `ibv_reg_mr` and `mlx5dv_devx_umem_reg` make their callers keep the range mapped until it is
            // deregistered, and leave it to the card; queue memory is this library's own, and is deregistered before it
            // is freed.
            _ => unsafe { world.memory_of(self.id)?.register(addr, len) },
        }
        Ok(())
    }

    pub(crate) fn deregister_in(&self, world: &mut World, space: Space, (addr, len): (u64, u64)) -> Result<()> {
        let was_there = match space {
            Space::HostProcess(number) => process(world, number)?.unregister(addr, len),
            _ => world.memory_of(self.id)?.unregister(addr, len),
        };
        if was_there { Ok(()) } else { Err(Errno::invalid("the memory belongs to another machine")) }
    }
}

fn process(world: &mut World, number: u32) -> Result<&mut HostProcess> {
    world.host_process(number).ok_or_else(|| Errno::new(libc::EIO, "the process is not known to the card any more"))
}
