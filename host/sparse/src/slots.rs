//! Memory of an aggregator for one shard: a receive slot for each worker, and two transmit slots.
#![allow(unsafe_code)] // Views of registered memory that do not overlap; slices of slots while no card writes there.

use flexcast_proto::sparse::{Additions, Answer, Parameters};
use flexio::{Access, HostBuffer, LocalSlice, MemoryRegion, ProtectionDomain};

use super::link::Link;
use super::sums::Adder;
use super::{Error, Result};
use flexcast_reduce::Reduction;

/// A message in a receive slot.
#[derive(Clone, Copy, Debug)]
struct Message {
    bytes: usize,
    displacement: u32,
}

/// Who may access a receive slot.
#[derive(Clone, Copy, Debug)]
enum Owner {
    Nobody,
    /// The card: a receive into it is posted.
    Card,
    /// This process.
    Host(Message),
}

#[derive(Debug)]
struct Receive {
    memory: MemoryRegion,
    owner: Owner,
}

impl Receive {
    /// The message in the slot; none while the card has it.
    fn message(&self) -> Option<(&[u8], u32)> {
        let Owner::Host(Message { bytes, displacement }) = self.owner else { return None };
        // SAFETY: the region has no rights for peers, and no receive into it is posted (`Slots::post` takes the slot
        // from this process first, and needs it mutably): no card writes to it. No method of another view of it is
        // called, as views do not overlap.
        let memory = unsafe { self.memory.as_slice() };
        Some((memory.get(..bytes)?, displacement))
    }
}

/// The slots of a shard.
#[derive(Debug)]
pub(super) struct Slots {
    /// By worker.
    receive: Vec<Receive>,
    /// They take turns.
    transmit: [MemoryRegion; 2],
}

impl Slots {
    /// The slots of so many shards, in one registration.
    ///
    /// # Errors
    /// No memory.
    pub(super) fn all(pd: &ProtectionDomain, parameters: Parameters, shards: u32) -> Result<Vec<Self>> {
        let too_long = |value| Error::OutOfRange {
            what: "the number of bytes of an aggregator's memory",
            value,
            limit: "less than the address space: use fewer workers, shards or blocks per message".to_owned(),
        };
        let total = parameters.aggregator_bytes().saturating_mul(shards.into());
        let slot = parameters.slot_bytes() as usize;
        let bytes = usize::try_from(total).map_err(|_| too_long(total))?;
        let memory = HostBuffer::zeroed(bytes)?;
        let region = MemoryRegion::register(pd, memory, Access::LOCAL_WRITE)?.share();
        let mut at = 0;
        let mut next = || {
            let offset = at;
            at += slot;
            // SAFETY: each part of the region is in one view.
            unsafe { region.view(offset, slot) }
        };
        let mut shard = || {
            let receive = (0..parameters.workers())
                .map(|_| Ok(Receive { memory: next()?, owner: Owner::Nobody }))
                .collect::<flexio::Result<_>>()?;
            Ok(Self { receive, transmit: [next()?, next()?] })
        };
        (0..shards).map(|_| shard()).collect()
    }

    /// Posts the receive of a worker's next message. What the slot holds is gone.
    pub(super) fn post(&mut self, worker: u32, link: &Link) -> Result<()> {
        let Some(Receive { memory, owner }) = self.receive.get_mut(worker as usize) else { return Ok(()) };
        let slot = memory.slice(0, memory.len() as u32)?;
        *owner = Owner::Card;
        Ok(link.receive(&[slot])?)
    }

    /// A worker's message has come.
    pub(super) fn arrived(&mut self, worker: u32, bytes: u32, displacement: u32) {
        if let Some(receive) = self.receive.get_mut(worker as usize) {
            receive.owner = Owner::Host(Message { bytes: bytes as usize, displacement });
        }
    }

    /// The message of a worker and its immediate; none if none has come.
    pub(super) fn message(&self, worker: u32) -> Option<(&[u8], u32)> {
        self.receive.get(worker as usize)?.message()
    }

    /// Adds the blocks of a worker's message to a transmit slot, from the one straight to the other.
    pub(super) fn add(&mut self, worker: u32, additions: &Additions, block_bytes: usize, reduction: Reduction) {
        let Self { receive, transmit: [even, odd] } = self;
        let Some((message, _)) = receive.get(worker as usize).and_then(Receive::message) else { return };
        // SAFETY: the views do not overlap; peers have no rights to them, and no receive is ever posted into a transmit
        // slot: no card writes to them. A card may read one only to repeat a packet of an answer that all workers have
        // (`flexcast_proto::sparse`), which the receiver drops by its number whatever it holds.
        let slots = unsafe { [even.as_mut_slice(), odd.as_mut_slice()] };
        additions.apply(&mut Adder { slots, message, block_bytes, reduction });
    }

    /// Puts the next global indices behind the sums of an answer; the whole of it.
    pub(super) fn answer(&self, answer: &Answer, parameters: Parameters) -> Result<LocalSlice> {
        let slot = &self.transmit[answer.slot as usize & 1];
        let (sums, indices) = (answer.sums * parameters.block_bytes(), parameters.index_bytes());
        slot.write(sums as usize, &answer.next.to_bytes()[..indices as usize])?;
        Ok(slot.slice(0, sums + indices)?)
    }
}
