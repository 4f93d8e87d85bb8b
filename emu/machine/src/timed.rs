//! The threads of a card under a timing model: the cores decide which of them issues when, and each access costs what
//! caches and shared paths make of it.
//!
//! A thread executes one instruction at the cycle in which its core issues it, and plain ones that follow ahead of
//! time; the core issues those afterwards, one by one (see [`emu_timing::Core`]). So everything that another agent
//! could notice happens in the order of the cycles, over all cores of the card; ties go to the lower core. A code line
//! that is not in the core's code cache costs the thread the wait for it and the issue slot in which it was found
//! missing.

use std::collections::BTreeMap;

use emu_hart::{Class, Step, Stop};
use emu_nic::Nic;
use emu_timing::cache::{LINE_BYTES, line_of};
use emu_timing::core::THREADS;
use emu_timing::memory::{CORES, lines};
use emu_timing::{Core, Counts, Memory, Model};

use crate::bus::{OutboxStore, ThreadBus};
use crate::config::DrivenFrom;
use crate::dpa::images::{Code, Images};
use crate::dpa::layout::EXECUTION_UNITS;
use crate::dpa::memory::ProcessMemory;
use crate::dpa::process::Process;
use crate::dpa::thread::Thread;
use crate::host_memory::HostMemory;

mod costs;
mod first;
pub(crate) mod nic;
mod run_ahead;
mod tag;

use costs::Modelled;
use first::First;
use run_ahead::RunAhead;
use tag::tag;

/// In the list of turns, the number of a card's cores: threads have others.
pub(crate) const CORES_TURN: u32 = 0;

/// A hardware thread slot: the thread that executes there.
#[derive(Clone, Copy, Debug)]
struct Slot {
    process: u32,
    thread: u32,
    /// Where the thread is among those of its process, see [`crate::Threads`].
    place: usize,
    /// Cycle at which its activation has lasted too long.
    deadline: u64,
}

/// The cores of a card.
#[derive(Debug)]
pub(crate) struct Timed {
    memory: Memory,
    cores: Box<[Core; CORES]>,
    /// Hardware thread slots, by execution unit.
    slots: Box<[Option<Slot>; EXECUTION_UNITS]>,
    run_ahead: RunAhead,
    /// Execution units whose threads have reserved memory (load-reserved).
    reserved: Vec<usize>,
    /// The card's place in the list of turns.
    pub(crate) turn: Option<u64>,
}

impl Timed {
    pub(crate) fn new(model: Model, driven_from: DrivenFrom) -> Self {
        Timed {
            cores: Box::new(std::array::from_fn(|_| {
                Core::new(model.issues_per_cycle, model.gap_millicycles, model.l1_cycles, model.store_hit_cycles)
            })),
            memory: match driven_from {
                DrivenFrom::Host => Memory::new(model),
                DrivenFrom::Arm => Memory::driven_from_arm(model),
            },
            run_ahead: RunAhead::new(),
            slots: Box::new([None; EXECUTION_UNITS]),
            reserved: Vec::new(),
            turn: None,
        }
    }

    pub(crate) fn model(&self) -> &Model {
        self.memory.model()
    }

    /// Accesses so far, by the level that served them.
    pub(crate) fn counts(&self) -> Counts {
        self.memory.counts()
    }

    /// Counts a range of a process's addresses under a name, too.
    pub(crate) fn label(&mut self, process: u32, addr: u64, len: u64, name: &str) -> bool {
        self.memory.label(tag(process) | addr, len, name)
    }

    /// Accesses so far by name.
    pub(crate) fn labelled(&self) -> impl Iterator<Item = (&str, Counts)> {
        self.memory.labelled()
    }

    /// Instructions issued so far, by core.
    pub(crate) fn issues(&self) -> Vec<u64> {
        self.cores.iter().map(Core::issues).collect()
    }

    /// Whether a thread executes on an execution unit.
    pub(crate) fn is_taken(&self, eu: u32) -> bool {
        self.slots[eu as usize].is_some()
    }

    /// An activation of a thread of a process begins.
    pub(crate) fn begin(&mut self, process: u32, thread: &Thread) {
        let deadline = thread.due_cycles;
        self.slots[thread.port.eu as usize] = Some(Slot { process, thread: thread.id, place: 0, deadline });
        self.memory.begin(thread.port.eu as usize);
        self.run_ahead.forget(thread.port.eu as usize);
    }

    /// The cycle at which the thread on an execution unit has to be examined is another one.
    pub(crate) fn set_due(&mut self, eu: u32, due_cycles: u64) {
        if let Some(slot) = &mut self.slots[eu as usize] {
            slot.deadline = due_cycles;
        }
    }

    /// An activation is over, however it ended.
    pub(crate) fn end(&mut self, eu: u32) {
        let unit = eu as usize;
        if self.slots[unit].take().is_some() {
            self.memory.end(unit);
            self.run_ahead.forget(unit);
            self.cores[unit / THREADS].leave(unit % THREADS);
            self.reserved.retain(|other| *other != unit);
        }
    }

    /// The network card, or the host by it, is about to read or write memory of a process: what threads have executed
    /// ahead there and not issued is rolled back. Where there is no memory, nobody has.
    pub(crate) fn before_access(&mut self, process: u32, addr: u64, len: u64, memory: &mut ProcessMemory) {
        if memory.bytes(addr, len as usize).is_none() {
            return;
        }
        let first = tag(process) | addr;
        for line in (line_of(first)..).take(lines(first, len) as usize) {
            let addr = line * LINE_BYTES;
            if self.memory.may_be_in_l1(addr) {
                self.run_ahead.roll_back_line(addr, None, &mut *self.cores, &mut self.memory, memory);
            }
        }
    }

    /// The network card writes to the memory of a process.
    pub(crate) fn written_by_card(&mut self, process: u32, addr: u64, len: u64) {
        self.memory.written_by_card(tag(process) | addr, len);
    }

    /// Cycle before which no thread of the card issues.
    pub(crate) fn next_at(&self) -> Option<u64> {
        self.cores.iter().filter_map(Core::next_at).min()
    }

    /// Whether a thread has reserved memory.
    pub(crate) fn has_reserved(&self) -> bool {
        !self.reserved.is_empty()
    }
}

/// Why the cores of a card stand still before the horizon.
pub(crate) enum Pause {
    /// A store to the outbox, of which the card has to be notified.
    Outbox(OutboxStore),
    /// The thread cannot go on by itself.
    Stop(Stop, Option<String>),
    /// Its activation has lasted too long.
    Watchdog,
}

/// What the threads of a card reach besides its caches.
pub(crate) struct Surroundings<'a> {
    /// Index of the card.
    pub(crate) card: usize,
    pub(crate) nic: &'a mut Nic,
    pub(crate) processes: &'a mut BTreeMap<u32, Process>,
    pub(crate) host: &'a HostMemory,
    pub(crate) images: &'a mut Images,
    /// Instructions that a thread may execute ahead of their issue.
    pub(crate) most_ahead: u32,
}

impl Timed {
    /// A thread's next instruction is to be issued at a cycle.
    pub(crate) fn resume(&mut self, thread: &Thread, cycles: u64) {
        let unit = thread.port.eu as usize;
        self.cores[unit / THREADS].schedule(unit % THREADS, cycles, 0, 0);
    }

    /// Lets the cores issue instructions of the cycles before `end`. A thread that cannot go on by itself ends it, and
    /// is not scheduled any more.
    #[inline(never)]
    pub(crate) fn issue_until(&mut self, end: u64, around: Surroundings<'_>) -> Option<(u32, Pause)> {
        let Surroundings { card, nic, processes, host, images, most_ahead } = around;
        let Timed { memory: caches, cores, slots, run_ahead, reserved, .. } = self;
        if run_ahead.is_stale() {
            restore(run_ahead, slots, processes, images);
        }
        let mut first = First::new();
        for (number, core) in cores.iter_mut().enumerate() {
            if let Some(issue) = core.advance(end) {
                first.set(number, Some(issue));
            }
        }
        loop {
            let (unit, at) = first.get()?;
            let (core, thread) = (unit / THREADS, unit % THREADS);
            cores[core].take();
            let Some((process, Thread { id, hart, port, .. }, deadline)) = in_slot(slots, unit, processes) else {
                first.set(core, cores[core].advance(end));
                continue;
            };
            hart.cycles = at;
            if at >= deadline {
                return Some((*id, Pause::Watchdog));
            }
            run_ahead.issued(unit);
            let code_addr = tag(process.id) | hart.pc;
            if run_ahead.enters(unit, line_of(code_addr)) {
                let missed = caches.fetch(core, code_addr, at);
                if missed > 0 {
                    cores[core].schedule(thread, at + missed, 0, 0);
                    first.set(core, cores[core].advance(end));
                    continue;
                }
            }
            let Home { id: process_id, memory, windows, code } = process;
            let mut bus = ThreadBus::<_, false> {
                memory,
                host,
                nic,
                windows,
                port,
                costs: Modelled {
                    memory: caches,
                    cores,
                    run_ahead,
                    thread: unit,
                    tag: tag(process_id),
                    at,
                    reserved: !reserved.is_empty(),
                    stored: None,
                },
                outbox_store: None,
                detail: None,
                watch: None,
                card,
                process: process_id,
                thread: *id,
                pc: 0,
            };
            let (step, ahead) = hart.burst(images.text(code), &mut bus, most_ahead, LINE_BYTES);
            let ThreadBus { costs: Modelled { stored, .. }, outbox_store, detail, .. } = bus;
            let class = match step {
                Step::Retired(class) => class,
                Step::Stopped(stop) => return Some((*id, Pause::Stop(stop, detail))),
            };
            let cost = match class {
                Class::Multiply => caches.model().multiply_cycles,
                Class::Divide => caches.model().divide_cycles,
                Class::Other if hart.cycles > at => hart.cycles - at,
                Class::Other => cores[core].gap(thread),
            };
            hart.cycles = at + cost;
            if let Some(store) = outbox_store {
                return Some((*id, Pause::Outbox(store)));
            }
            run_ahead.executed(unit, ahead.count);
            cores[core].schedule(thread, at + cost, ahead.count, ahead.accesses);
            first.set(core, cores[core].advance(end));
            if hart.reservation().is_some() || !reserved.is_empty() {
                reserve(reserved, unit, stored, slots, processes);
            }
            if run_ahead.is_stale() {
                restore(run_ahead, slots, processes, images);
            }
        }
    }
}

/// What a thread executes in.
struct Home<'a> {
    id: u32,
    memory: &'a mut ProcessMemory,
    windows: &'a BTreeMap<u32, u32>,
    code: &'a mut Code,
}

/// The thread that executes on a unit, what it executes in, and the cycle at which its activation has lasted too long.
#[inline(always)]
fn in_slot<'a>(
    slots: &mut [Option<Slot>; EXECUTION_UNITS],
    unit: usize,
    processes: &'a mut BTreeMap<u32, Process>,
) -> Option<(Home<'a>, &'a mut Thread, u64)> {
    let slot = slots[unit].as_mut()?;
    let Process { id, memory, windows, code, threads, .. } = processes.get_mut(&slot.process)?;
    let thread = threads.get_near(&mut slot.place, slot.thread)?;
    Some((Home { id: *id, memory, windows, code }, thread, slot.deadline))
}

/// Restores harts after a rollback.
#[cold]
fn restore(
    run_ahead: &mut RunAhead,
    slots: &mut [Option<Slot>; EXECUTION_UNITS],
    processes: &mut BTreeMap<u32, Process>,
    images: &mut Images,
) {
    while let Some(unit) = run_ahead.stale() {
        if let Some((home, thread, _)) = in_slot(slots, unit, processes) {
            run_ahead.restore(unit, &mut thread.hart, images.text(home.code));
        }
    }
}

/// A thread has reserved memory, or has stored where others may have.
#[cold]
fn reserve(
    reserved: &mut Vec<usize>,
    unit: usize,
    stored: Option<u64>,
    slots: &mut [Option<Slot>; EXECUTION_UNITS],
    processes: &mut BTreeMap<u32, Process>,
) {
    let home = slots[unit].map(|slot| slot.process);
    if !reserved.contains(&unit) {
        reserved.push(unit);
    }
    reserved.retain(|&other| {
        let shares = slots[other].map(|slot| slot.process) == home;
        let Some((_, Thread { hart, .. }, _)) = in_slot(slots, other, processes) else { return false };
        if let Some(addr) = stored.filter(|_| other != unit && shares) {
            // Stores are eight bytes long at most, and reservations are of aligned words: of the double word.
            hart.break_reservation(addr & !7, 8);
        }
        hart.reservation().is_some()
    });
}
