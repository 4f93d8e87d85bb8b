//! The threads of a card under a timing model: the cores decide which of them issues when, and each access costs what caches and shared
//! paths make of it.
//!
//! A thread executes one instruction at the cycle in which its core issues it, and plain ones that follow ahead of time; the core
//! issues those afterwards, one by one (see [`emu_timing::Core`]). So everything that another agent could notice happens in the order
//! of the cycles, over all cores of the card; ties go to the lower core. A code line that is not in the core's code cache costs the
//! thread the wait for it and the issue slot in which it was found missing.

use std::collections::BTreeMap;

use emu_hart::{Class, Step, Stop};
use emu_timing::cache::{LINE_BYTES, line_of};
use emu_timing::core::THREADS;
use emu_timing::memory::{CORES, lines};
use emu_timing::{Core, Counts, Memory, Model};

use crate::bus::{OutboxStore, ThreadBus};
use crate::card::Card;
use crate::config::DrivenFrom;
use crate::costs::{Modelled, tag};
use crate::images::{Code, Images};
use crate::layout::EXECUTION_UNITS;
use crate::memory::ProcessMemory;
use crate::process::Process;
use crate::schedule::QUANTUM_CYCLES;
use crate::thread::Thread;
use crate::time::{cycles_to_ps, ps_to_cycles};
use crate::world::World;

pub(crate) mod ahead;
mod first;

use ahead::Aheads;
use first::First;

/// In the list of turns, the number of a card's cores: threads have others.
pub(crate) const CORES_TURN: u32 = 0;
/// Cycles that the cores run at a time at least, if nothing else is due.
const LEAST_QUANTUM_CYCLES: u64 = 64;
/// A cycle that does not come.
const NEVER: u64 = u64::MAX;

/// A thread that executes on a hardware thread.
#[derive(Clone, Copy, Debug)]
struct Lane {
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
    /// By execution unit.
    lanes: Box<[Option<Lane>; EXECUTION_UNITS]>,
    aheads: Aheads,
    /// Execution units whose threads have reserved memory (load-reserved).
    reserved: Vec<usize>,
    /// The card's place in the list of turns.
    turn: Option<u64>,
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
            aheads: Aheads::new(),
            lanes: Box::new([None; EXECUTION_UNITS]),
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
        self.lanes[eu as usize].is_some()
    }

    /// An activation of a thread of a process begins.
    pub(crate) fn begin(&mut self, process: u32, thread: &Thread, watchdog_ps: u64) {
        let deadline = thread.started_cycles.saturating_add(ps_to_cycles(watchdog_ps));
        self.lanes[thread.port.eu as usize] = Some(Lane { process, thread: thread.id, place: 0, deadline });
        self.memory.begin(thread.port.eu as usize);
        self.aheads.forget(thread.port.eu as usize);
    }

    /// An activation is over, however it ended.
    pub(crate) fn end(&mut self, eu: u32) {
        let unit = eu as usize;
        if self.lanes[unit].take().is_some() {
            self.memory.end(unit);
            self.aheads.forget(unit);
            self.cores[unit / THREADS].leave(unit % THREADS);
            self.reserved.retain(|other| *other != unit);
        }
    }

    /// The network card, or the host by it, is about to read or write memory of a process: what threads have executed ahead there and not
    /// issued is taken back. Where there is no memory, nobody has.
    pub(crate) fn before_access(&mut self, process: u32, addr: u64, len: u64, memory: &mut ProcessMemory) {
        if memory.bytes(addr, len as usize).is_none() {
            return;
        }
        let first = tag(process) | addr;
        for line in (line_of(first)..).take(lines(first, len) as usize) {
            let addr = line * LINE_BYTES;
            if self.memory.is_held(addr) {
                self.aheads.settle(addr, None, &mut *self.cores, &mut self.memory, memory);
            }
        }
    }

    /// The network card writes to the memory of a process.
    pub(crate) fn written_by_card(&mut self, process: u32, addr: u64, len: u64) {
        self.memory.written_by_card(tag(process) | addr, len);
    }

    /// Cycle before which no thread of the card issues.
    fn next_at(&self) -> Option<u64> {
        self.cores.iter().filter_map(Core::next_at).min()
    }

    /// Whether a thread has reserved memory.
    pub(crate) fn has_reserved(&self) -> bool {
        !self.reserved.is_empty()
    }
}

/// Why the cores of a card stand still before the horizon.
enum Pause {
    /// A store to the outbox, which the card has to be told of.
    Outbox(OutboxStore),
    /// The thread cannot go on by itself.
    Stop(Stop, Option<String>),
    /// Its activation has lasted too long.
    Watchdog,
}

impl World {
    /// A thread goes on at a cycle: its next instruction is to be executed then.
    pub(crate) fn resume(&mut self, cycles: u64, card: usize, id: u32) {
        let Card { processes, owners, cores, .. } = &mut self.cards[card];
        let Some(timed) = cores.timed.as_deref_mut() else { return self.ready.insert((cycles, card, id)) };
        let Some(thread) = owners.get(&id).and_then(|process| processes.get(process)?.threads.get(&id)) else { return };
        let unit = thread.port.eu as usize;
        timed.cores[unit / THREADS].schedule(unit % THREADS, cycles, 0, 0);
        self.wake(cycles, card);
    }

    /// The cores of a card have something to do at a cycle.
    fn wake(&mut self, cycles: u64, card: usize) {
        let Some(timed) = self.cards[card].cores.timed.as_deref_mut() else { return };
        if let Some(turn) = timed.turn {
            if turn <= cycles {
                return;
            }
            self.ready.remove((turn, card, CORES_TURN));
        }
        timed.turn = Some(cycles);
        self.ready.insert((cycles, card, CORES_TURN));
    }

    /// Runs the cores of a card until something else is due or a thread needs the world.
    pub(crate) fn run_cores(&mut self, at_cycles: u64, card_index: usize) {
        self.ready.run((at_cycles, card_index, CORES_TURN));
        self.now_ps = self.now_ps.max(cycles_to_ps(at_cycles));
        let horizon = self.queue.next_at_ps().map_or(NEVER, ps_to_cycles);
        let mut quantum = QUANTUM_CYCLES;
        if let Some(timed) = self.cards[card_index].cores.timed.as_deref_mut() {
            timed.turn = None;
            // What the card does for a doorbell of one core, other cores have not run past yet.
            quantum = quantum.min(ps_to_cycles(timed.model().doorbell_visible_ps).max(LEAST_QUANTUM_CYCLES));
        }
        let end = (at_cycles + quantum).min(horizon.max(at_cycles + 1));
        if let Some((id, pause)) = self.issue_until(end, card_index) {
            let cycles = self.cards[card_index].thread(id).map_or(end, |thread| thread.hart.cycles);
            match pause {
                Pause::Outbox(store) => {
                    self.resume(cycles, card_index, id);
                    self.outbox(cycles_to_ps(cycles), card_index, id, store);
                }
                Pause::Stop(stop, detail) => self.stopped(card_index, id, stop, detail),
                Pause::Watchdog => self.overran(card_index, id),
            }
        }
        if let Some(next) = self.cards[card_index].cores.timed.as_deref().and_then(Timed::next_at) {
            self.wake(next, card_index);
        }
    }

    /// Lets the cores of a card issue instructions of the cycles before `end`. A thread that cannot go on by itself ends it, and is
    /// not scheduled any more.
    #[inline(never)]
    fn issue_until(&mut self, end: u64, card_index: usize) -> Option<(u32, Pause)> {
        let Card { nic, processes, cores, .. } = &mut self.cards[card_index];
        let timed = cores.timed.as_deref_mut()?;
        let Timed { memory: caches, cores, lanes, aheads, reserved, .. } = timed;
        if aheads.is_stale() {
            put_back(aheads, lanes, processes, &mut self.images);
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
            let Some((process, Thread { id, hart, port, .. }, deadline)) = on_lane(lanes, unit, processes) else {
                first.set(core, cores[core].advance(end));
                continue;
            };
            hart.cycles = at;
            if at >= deadline {
                return Some((*id, Pause::Watchdog));
            }
            aheads.issued(unit);
            let code_addr = tag(process.id) | hart.pc;
            if aheads.enters(unit, line_of(code_addr)) {
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
                host: &self.host,
                nic,
                windows,
                port,
                costs: Modelled {
                    memory: caches,
                    cores,
                    aheads,
                    thread: unit,
                    tag: tag(process_id),
                    at,
                    reserved: !reserved.is_empty(),
                    stored: None,
                },
                outbox_store: None,
                detail: None,
                watch: None,
                card: card_index,
                process: process_id,
                thread: *id,
                pc: 0,
            };
            let (step, ahead) = hart.burst(self.images.text(code), &mut bus, self.config.most_ahead, LINE_BYTES);
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
            aheads.executed(unit, ahead.count);
            cores[core].schedule(thread, at + cost, ahead.count, ahead.accesses);
            first.set(core, cores[core].advance(end));
            if hart.reservation().is_some() || !reserved.is_empty() {
                reserve(reserved, unit, stored, lanes, processes);
            }
            if aheads.is_stale() {
                put_back(aheads, lanes, processes, &mut self.images);
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
fn on_lane<'a>(
    lanes: &mut [Option<Lane>; EXECUTION_UNITS],
    unit: usize,
    processes: &'a mut BTreeMap<u32, Process>,
) -> Option<(Home<'a>, &'a mut Thread, u64)> {
    let lane = lanes[unit].as_mut()?;
    let Process { id, memory, windows, code, threads, .. } = processes.get_mut(&lane.process)?;
    let thread = threads.get_near(&mut lane.place, lane.thread)?;
    Some((Home { id: *id, memory, windows, code }, thread, lane.deadline))
}

/// Puts harts back to where they are without what has been taken back.
#[cold]
fn put_back(
    aheads: &mut Aheads,
    lanes: &mut [Option<Lane>; EXECUTION_UNITS],
    processes: &mut BTreeMap<u32, Process>,
    images: &mut Images,
) {
    while let Some(unit) = aheads.stale() {
        if let Some((home, thread, _)) = on_lane(lanes, unit, processes) {
            aheads.put_back(unit, &mut thread.hart, images.text(home.code));
        }
    }
}

/// A thread has reserved memory, or has stored where others may have.
#[cold]
fn reserve(
    reserved: &mut Vec<usize>,
    unit: usize,
    stored: Option<u64>,
    lanes: &mut [Option<Lane>; EXECUTION_UNITS],
    processes: &mut BTreeMap<u32, Process>,
) {
    let home = lanes[unit].map(|lane| lane.process);
    if !reserved.contains(&unit) {
        reserved.push(unit);
    }
    reserved.retain(|&other| {
        let shares = lanes[other].map(|lane| lane.process) == home;
        let Some((_, Thread { hart, .. }, _)) = on_lane(lanes, other, processes) else { return false };
        if let Some(addr) = stored.filter(|_| other != unit && shares) {
            // Stores are eight bytes long at most, and reservations are of aligned words: of the double word.
            hart.break_reservation(addr & !7, 8);
        }
        hart.reservation().is_some()
    });
}
