//! The machine's side of its observers: when what becomes visible, and who is notified of doorbells, packets and
//! releases.

use std::collections::BTreeMap;

use emu_nic::{Extension, Space};

use crate::card::Card;
use crate::dpa::process::Process;
use crate::error::MachineError;
use crate::function::{ArmSide, FunctionId};
use crate::host_memory::HostMemory;
use crate::observe::race::{Agent, Eyes, Race, Range};
use crate::observe::watch::{Place, publish_due};
use crate::time::{cycles_to_ps, ps_to_cycles};
use crate::weak::UpTo;
use crate::world::World;
use crate::world::queue::Event;

/// How the observer reads the memories that a card reaches.
fn reader<'a>(
    host: &'a HostMemory,
    arm: Option<&'a ArmSide>,
    processes: &'a BTreeMap<u32, Process>,
) -> impl Fn(Space, u64, &mut [u8]) -> bool + 'a {
    move |space, addr, out| match space {
        Space::Host => host.read(addr, out).is_ok(),
        // Races are detected within this process alone, and not at all where a machine file shares its cards.
        Space::HostProcess(_) => false,
        Space::Arm => arm.is_some_and(|arm| arm.memory.read(addr, out).is_ok()),
        Space::Dpa(id) => processes.get(&id).is_some_and(|process| process.memory.dma_read(addr, out).is_ok()),
    }
}

impl World {
    /// The races found since the last call, the first of each kind and place; at most 64. Empty unless
    /// [`Config::detect_races`](crate::Config::detect_races) is set.
    pub fn take_races(&mut self) -> Vec<Race> {
        self.races_mut().map_or_else(Vec::new, crate::observe::race::Races::take)
    }

    /// How many races were found since [`World::take_races`], repetitions included.
    #[must_use]
    pub fn race_count(&self) -> u64 {
        self.watch.as_ref().and_then(|watch| watch.races.as_ref()).map_or(0, crate::observe::race::Races::count)
    }

    fn races_mut(&mut self) -> Option<&mut crate::observe::race::Races> {
        self.watch.as_mut()?.races.as_mut()
    }

    /// Makes visible what is due.
    pub(crate) fn publish_due(&mut self, now_cycles: u64) {
        let Some(watch) = self.watch.as_deref_mut() else { return };
        if watch.weak.as_ref().is_none_or(|weak| now_cycles < weak.quiet_until_cycles) {
            return;
        }
        for (index, Card { nic, processes, .. }) in self.cards.iter_mut().enumerate() {
            publish_due(watch, index, processes, &self.host, nic, now_cycles);
        }
        if let Some(weak) = &mut watch.weak {
            weak.quiet_until_cycles = weak.next_cycles().unwrap_or(u64::MAX);
        }
        self.take_records();
        self.name_races();
    }

    /// When something becomes visible by itself next.
    pub(crate) fn next_visible_cycles(&self) -> Option<u64> {
        self.watch.as_ref()?.weak.as_ref()?.next_cycles()
    }

    /// Nothing else is due: time passes until something becomes visible. `false` when nothing ever will.
    pub(crate) fn publish_next(&mut self) -> bool {
        let Some(at_cycles) = self.next_visible_cycles() else { return false };
        self.now_ps = self.now_ps.max(cycles_to_ps(at_cycles));
        self.publish_due(at_cycles);
        true
    }

    /// Just before an event happens.
    pub(crate) fn before_event(&mut self, at_ps: u64, event: &Event) {
        self.publish_due(ps_to_cycles(at_ps));
        if let Event::Arrival(card, packet) = event
            && let Some(races) = self.watch.as_mut().and_then(|watch| watch.races.as_mut())
        {
            let Card { nic, arm, processes, .. } = &self.cards[*card];
            let read = reader(&self.host, arm.as_ref(), processes);
            let eyes = Eyes { card: *card, nic, read: &read, at_ps };
            races.refresh(&eyes);
            races.read_host_records(&eyes);
            // The key of a Write to a group is none of the card's.
            if let Extension::Remote { address, rkey, len } = packet.extension
                && !packet.destination.is_multicast()
            {
                let qpn = packet.destination_qpn;
                races.remote_access(*card, nic, (qpn, rkey), (address, u64::from(len)), at_ps);
            }
        }
        self.name_races();
    }

    /// A send doorbell reaches a card.
    pub(crate) fn watch_doorbell(&mut self, at_ps: u64, card: usize, qpn: u32, producer: u16) {
        let Some(races) = self.watch.as_mut().and_then(|watch| watch.races.as_mut()) else { return };
        if let Some(Card { nic, arm, processes, .. }) = self.cards.get(card) {
            let read = reader(&self.host, arm.as_ref(), processes);
            let eyes = Eyes { card, nic, read: &read, at_ps };
            races.refresh(&eyes);
            races.doorbell(&eyes, qpn, producer);
        }
        self.name_races();
    }

    /// The program of a function has stored to a doorbell record in its memory, now. Nothing that the cards do depends
    /// on this call: they read the record when they need it. It reports to the detection of races when the entries were
    /// handed over.
    pub fn doorbell_record_stored(&mut self, id: FunctionId, addr: u64) {
        let FunctionId { card, function } = id;
        let at_ps = self.now_ps;
        let Some(races) = self.watch.as_mut().and_then(|watch| watch.races.as_mut()) else { return };
        if let Some(Card { nic, arm, processes, .. }) = self.cards.get(card) {
            let read = reader(&self.host, arm.as_ref(), processes);
            let eyes = Eyes { card, nic, read: &read, at_ps };
            // The queue pair may be new.
            races.refresh(&eyes);
            races.recorded(&eyes, &Range { card, space: function.space(), addr, len: 4 });
        }
        self.name_races();
    }

    /// Examines the doorbell records that cards have read or written, and threads have written through their windows.
    pub(crate) fn take_records(&mut self) {
        let Some(races) = self.watch.as_mut().and_then(|watch| watch.races.as_mut()) else { return };
        if !races.records.is_touched() {
            return;
        }
        for (range, at_ps, cards) in races.records.take_touched() {
            for card in cards {
                let Some(Card { nic, arm, processes, .. }) = self.cards.get(card) else { continue };
                let read = reader(&self.host, arm.as_ref(), processes);
                let eyes = Eyes { card, nic, read: &read, at_ps };
                races.refresh(&eyes);
                races.recorded(&eyes, &range);
            }
        }
    }

    /// An activation or a call of a thread begins.
    pub(crate) fn watch_begin(&mut self, card: usize, process: u32, thread: u32) {
        let Some(watch) = self.watch.as_deref_mut() else { return };
        if let Some(races) = &mut watch.races {
            let Card { nic, arm, processes, .. } = &self.cards[card];
            let at_ps = self.now_ps;
            races.refresh(&Eyes { card, nic, read: &reader(&self.host, arm.as_ref(), processes), at_ps });
            races.begun((card, process, thread));
        }
        if let Some(weak) = &mut watch.weak {
            weak.order((card, thread), process).begin();
        }
    }

    /// A thread gives something to others: the activation of a thread, the result of a call.
    pub(crate) fn watch_gave(&mut self, card: usize, thread: u32) {
        if let Some(races) = self.watch.as_mut().and_then(|watch| watch.races.as_mut())
            && let Some(&process) = self.cards[card].owners.get(&thread)
        {
            races.gave((card, process, thread));
        }
    }

    /// It has ended.
    pub(crate) fn watch_end(&mut self, card: usize, thread: u32) {
        self.note_end(card, thread);
        if self.watch.as_ref().is_some_and(|watch| watch.sample.is_some()) {
            self.stop_sampling(card, thread);
        }
        let weak = self.watch.as_mut().and_then(|watch| watch.weak.as_mut());
        if let Some((_, order)) = weak.and_then(|weak| weak.threads.get_mut(&(card, thread))) {
            order.end();
        }
    }

    /// All that a thread has stored becomes visible: it goes, and nothing of it may reach memory that its host then
    /// gives back.
    pub(crate) fn publish_all_of(&mut self, card: usize, thread: u32) {
        let Some(watch) = self.watch.as_deref_mut() else { return };
        let Card { nic, processes, owners, .. } = &mut self.cards[card];
        let Some(&process) = owners.get(&thread) else { return };
        let Some(Process { memory, .. }) = processes.get_mut(&process) else { return };
        let mut place = Place { card, process, thread, memory, host: &self.host, nic };
        watch.publish_up_to(&mut place, UpTo { stores: u64::MAX, lines: u64::MAX }, self.now_ps);
    }

    /// The host writes memory of a process by a control call; `write` does it.
    pub(crate) fn host_write(
        &mut self,
        card: usize,
        process: u32,
        (addr, len): (u64, usize),
        write: impl FnOnce(&mut [u8]),
    ) -> Result<(), MachineError> {
        let bad = MachineError::BadDeviceRange { process, addr, bytes: len as u64 };
        let at_ps = self.now_ps;
        self.publish_due(ps_to_cycles(at_ps));
        self.card(card)?.process(process)?;
        let Card { nic, processes, cores, .. } = &mut self.cards[card];
        let Some(memory) = processes.get_mut(&process).map(|process| &mut process.memory) else { return Err(bad) };
        if memory.bytes_mut(addr, len).is_none() {
            return Err(bad);
        }
        if let Some(timed) = cores.timed.as_deref_mut() {
            timed.before_access(process, addr, len as u64, memory);
        }
        if let Some(watch) = self.watch.as_deref_mut() {
            watch.will_write((card, process), memory, (addr, len), &Agent::Host, at_ps);
        }
        if let Some(bytes) = memory.bytes_mut(addr, len) {
            write(bytes);
        }
        if let Some(watch) = self.watch.as_deref_mut() {
            let place = Place { card, process, thread: 0, memory, host: &self.host, nic };
            watch.has_written(&place, addr, len as u64, at_ps);
        }
        self.name_races();
        Ok(())
    }

    pub(crate) fn watch_alloc(&mut self, card: usize, process: u32, addr: u64, bytes: u64) {
        if let Some(races) = self.races_mut() {
            races.allocate(card, process, addr, bytes.max(1).next_multiple_of(crate::dpa::heap::GRANULE));
        }
    }

    /// The host gives memory back. That takes it longer than a store needs to get there: those executed by now are
    /// visible.
    pub(crate) fn watch_free(&mut self, card: usize, process: u32, addr: u64, bytes: u64) {
        let at_ps = self.now_ps;
        if let Some(watch) = self.watch.as_deref_mut()
            && let Some(weak) = &mut watch.weak
        {
            let threads = weak.threads.range_mut((card, 0)..=(card, u32::MAX));
            let own = threads.filter(|(_, (of, _))| *of == process);
            let stores: Vec<_> = own
                .flat_map(|(key, (_, order))| order.take_within(addr, bytes).into_iter().map(|store| (key.1, store)))
                .collect();
            let Card { nic, processes, .. } = &mut self.cards[card];
            if let Some(Process { memory, .. }) = processes.get_mut(&process) {
                for (thread, store) in stores {
                    let mut place = Place { card, process, thread, memory, host: &self.host, nic };
                    watch.publish(&mut place, &store, at_ps);
                }
            }
        }
        if let Some(races) = self.races_mut() {
            races.release(card, process, addr, bytes, at_ps);
        }
    }

    /// A process goes.
    pub(crate) fn watch_forget(&mut self, card: usize, process: u32) {
        self.name_races();
        let Some(watch) = self.watch.as_deref_mut() else { return };
        if let Some(races) = &mut watch.races {
            races.forget(card, process);
        }
        if let Some(weak) = &mut watch.weak {
            weak.forget(card, process);
        }
    }

    /// Gives new reports their symbols while the image is there, and reports them.
    pub(crate) fn name_races(&mut self) {
        let Some(races) = self.watch.as_mut().and_then(|watch| watch.races.as_mut()) else { return };
        if races.unnamed {
            for (index, card) in self.cards.iter().enumerate() {
                for (&id, process) in &card.processes {
                    races.name(index, id, &process.image);
                }
            }
            races.unnamed = false;
        }
        if races.is_unreported() {
            let (new, total) = races.take_unreported();
            if let Some(fault_sink) = &mut self.probes.fault_sink {
                fault_sink.raced(&new, total);
            }
            if !new.is_empty() {
                self.publish_state();
            }
        }
    }
}
